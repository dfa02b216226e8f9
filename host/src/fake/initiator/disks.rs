//! Disks `/dev/sdX` of a fake host: identity, size, read-only flag, flush, holders, reads and
//! writes.
//!
//! What must never happen here: an answer about identity from a cache; a disk found by a name that
//! it no longer has.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::FakeHost;
use super::disk::{Command, Outcome};
use super::scsi::{Failure, Sender};
use super::state::Queue;
use crate::{DiskError, DiskOp, DiskUser, Disks, Holder, UeventItem, Uevents, Usage, User};

/// Sectors of a page: the kernel rounds a read-ahead to pages.
const PAGE_SECTORS: u32 = 8;

/// Maximum number of symbolic links on the way to a device.
const LINKS_MAX: u32 = 8;

/// A disk that was opened.
#[derive(Debug, Clone, Copy)]
struct Open {
    sid: u32,
    lun: u64,
    sequence: u64,
}

/// Returns the `sd<x>` that a path leads to.
fn block_name(path: &Path) -> Result<String, Errno> {
    let mut path: PathBuf = path.to_owned();
    for _ in 0..LINKS_MAX {
        if let Ok(name) = path.strip_prefix("/dev")
            && name.components().count() == 1
        {
            return Ok(name.to_string_lossy().into_owned());
        }
        let target =
            fs::read_link(&path).map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    Err(Errno::ELOOP)
}

impl FakeHost {
    /// Finds a disk, as `open(2)` does; one that is offline gives ENXIO.
    fn open(&self, path: &Path) -> Result<Open, (DiskOp, Errno)> {
        let failed = |errno| (DiskOp::Open, errno);
        let name = block_name(path).map_err(failed)?;
        let kernel = self.inner.lock();
        if let Some(errno) = kernel.disk_fault(DiskOp::Open) {
            return Err(failed(errno));
        }
        let (session, lun, disk) = kernel.disk(&name).ok_or(failed(Errno::ENOENT))?;
        if matches!(session.disk_state(disk), "offline" | "transport-offline") {
            return Err(failed(Errno::ENXIO));
        }
        Ok(Open { sid: session.ids.sid, lun, sequence: disk.sequence })
    }

    fn on_disk<T>(
        &self,
        op: DiskOp,
        path: &Path,
        act: impl FnOnce(Open) -> Result<T, (Errno, String)>,
    ) -> Result<T, DiskError> {
        let failed = |op, errno, detail| DiskError { op, path: path.to_owned(), errno, detail };
        let disk = self.open(path).map_err(|(op, errno)| failed(op, errno, String::new()))?;
        if let Some(errno) = self.inner.lock().disk_fault(op) {
            return Err(failed(op, errno, String::new()));
        }
        act(disk).map_err(|(errno, detail)| failed(op, errno, detail))
    }

    fn send(&self, disk: Open, command: Command<'_>) -> Result<Outcome, Failure> {
        self.command(disk.sid, disk.lun, Sender::Disk(disk.sequence), command)
    }

    /// Accesses the kernel's present state of a disk.
    fn field<T>(
        &self,
        disk: Open,
        field: impl FnOnce(&mut super::state::ScsiDisk) -> T,
    ) -> Result<T, (Errno, String)> {
        self.inner.change(|kernel| {
            let session = kernel.sessions.get_mut(&disk.sid);
            let found = session.and_then(|session| session.disks.get_mut(&disk.lun));
            let found = found.filter(|found| found.sequence == disk.sequence);
            found.map(field).ok_or((Errno::ENXIO, String::new()))
        })
    }

    /// Reads from a disk, past the page cache. Waits while its session is blocked.
    pub fn read_disk(&self, device: impl AsRef<Path>, offset: u64, length: u64) -> Result<Vec<u8>, Errno> {
        let disk = self.open(device.as_ref()).map_err(|(_, errno)| errno)?;
        match self.send(disk, Command::Read { offset, length }) {
            Ok(Outcome::Good(data)) => Ok(data),
            Ok(_) => Err(Errno::EIO),
            Err(failure) => Err(failure.errno()),
        }
    }

    /// Opens a disk for writing and writes, past the page cache. EROFS: the host knows it as
    /// write-protected; EACCES: it was set read-only; EREMOTEIO: the target refused. Waits while
    /// its session is blocked.
    pub fn write_disk(&self, device: impl AsRef<Path>, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let disk = self.open(device.as_ref()).map_err(|(_, errno)| errno)?;
        let (protected, set) = self
            .field(disk, |disk| (disk.write_protected, disk.set_read_only))
            .map_err(|(errno, _)| errno)?;
        if protected || set {
            return Err(if protected { Errno::EROFS } else { Errno::EACCES });
        }
        self.send(disk, Command::Write { offset, data }).map(|_| ()).map_err(Failure::errno)
    }

    /// Lets a process hold a disk open, until [`FakeHost::close`].
    pub fn hold_open(&self, device: impl AsRef<Path>, pid: u32, name: &str) -> Result<(), Errno> {
        self.hold(device.as_ref(), Holder::Process { pid, name: name.to_owned() })
    }

    /// Mounts a file system of a disk, until [`FakeHost::close`].
    pub fn mount(&self, device: impl AsRef<Path>, at: impl Into<PathBuf>) -> Result<(), Errno> {
        self.hold(device.as_ref(), Holder::Mount(at.into()))
    }

    /// Puts a device (`dm-0`) on top of a disk, until [`FakeHost::close`].
    pub fn stack(&self, device: impl AsRef<Path>, above: &str) -> Result<(), Errno> {
        self.hold(device.as_ref(), Holder::Device(above.to_owned()))
    }

    fn hold(&self, device: &Path, holder: Holder) -> Result<(), Errno> {
        let name = block_name(device)?;
        let disk = self.open(device).map_err(|(_, errno)| errno)?;
        self.inner.change(|kernel| {
            let held = kernel.holders.entry(disk.sequence).or_default();
            held.name = name;
            held.users.extend(holder.as_user());
            held.by.push(holder);
        });
        Ok(())
    }

    /// Adds a user of a disk with a kind of access of its own, until [`FakeHost::close`]: such as a
    /// process with O_DIRECT, or one that keeps only a mapping, which holds nothing.
    pub fn use_as(&self, device: impl AsRef<Path>, user: User) -> Result<(), Errno> {
        let name = block_name(device.as_ref())?;
        let disk = self.open(device.as_ref()).map_err(|(_, errno)| errno)?;
        self.inner.change(|kernel| {
            let held = kernel.holders.entry(disk.sequence).or_default();
            held.name = name;
            held.users.push(user);
        });
        Ok(())
    }

    /// Sets the number of unwritten bytes of a disk in the page cache.
    pub fn set_unwritten(&self, device: impl AsRef<Path>, bytes: u64) -> Result<(), Errno> {
        let disk = self.open(device.as_ref()).map_err(|(_, errno)| errno)?;
        self.inner.change(|kernel| kernel.unwritten.insert(disk.sequence, bytes));
        Ok(())
    }

    /// Ends all holders and users of the disk of this name, also of one that has been deleted
    /// meanwhile.
    pub fn close(&self, device: impl AsRef<Path>) -> Result<(), Errno> {
        let name = block_name(device.as_ref())?;
        self.inner.change(|kernel| kernel.holders.retain(|_, held| held.name != name));
        Ok(())
    }

    /// Makes every operation of a kind on disks fail. `None` ends that.
    pub fn fail_disks(&self, op: DiskOp, errno: Option<Errno>) {
        self.inner.change(|kernel| match errno {
            Some(errno) => {
                kernel.disk_faults.insert(format!("{op:?}"), errno);
            }
            None => {
                kernel.disk_faults.remove(&format!("{op:?}"));
            }
        });
    }
}

fn told(failure: Failure) -> (Errno, String) {
    match failure {
        Failure::Sense(key, code, qualifier) => {
            (Errno::EIO, format!(": CHECK CONDITION, sense {key:x}/{code:02x}/{qualifier:02x}"))
        }
        Failure::Transport => (Errno::EIO, ": the command did not reach the target".to_owned()),
    }
}

impl Disks for FakeHost {
    fn inquiry(&self, device: &Path, page: u8) -> Result<Vec<u8>, DiskError> {
        self.on_disk(DiskOp::Inquiry(page), device, |disk| {
            match self.send(disk, Command::Inquiry(page)).map_err(told)? {
                Outcome::Good(page) => Ok(page),
                _ => Err((Errno::EIO, String::new())),
            }
        })
    }

    fn size(&self, device: &Path) -> Result<u64, DiskError> {
        self.on_disk(DiskOp::Size, device, |disk| self.field(disk, |disk| disk.size))
    }

    fn sequence(&self, device: &Path) -> Result<u64, DiskError> {
        self.on_disk(DiskOp::Sequence, device, |disk| Ok(disk.sequence))
    }

    fn set_read_only(&self, device: &Path, read_only: bool) -> Result<(), DiskError> {
        self.on_disk(DiskOp::SetReadOnly, device, |disk| {
            self.field(disk, |disk| disk.set_read_only = read_only)
        })
    }

    fn read_only(&self, device: &Path) -> Result<bool, DiskError> {
        self.on_disk(DiskOp::GetReadOnly, device, |disk| self.field(disk, |disk| disk.read_only()))
    }

    fn flush(&self, device: &Path) -> Result<(), DiskError> {
        self.on_disk(DiskOp::Flush, device, |disk| self.send(disk, Command::Flush).map(|_| ()).map_err(told))
    }

    fn drop_pages(&self, device: &Path) -> Result<(), DiskError> {
        // Reads and writes of this fake go past the page cache.
        self.on_disk(DiskOp::DropPages, device, |disk| self.field(disk, |_| ()))
    }

    fn set_read_ahead(&self, device: &Path, sectors: u32) -> Result<(), DiskError> {
        self.on_disk(DiskOp::SetReadAhead, device, |disk| {
            self.field(disk, |disk| disk.read_ahead = sectors / PAGE_SECTORS * PAGE_SECTORS)
        })
    }

    fn read_ahead(&self, device: &Path) -> Result<u32, DiskError> {
        self.on_disk(DiskOp::GetReadAhead, device, |disk| self.field(disk, |disk| disk.read_ahead))
    }

    fn holders(&self, device: &Path) -> Result<Vec<Holder>, DiskError> {
        // No open here: the real call looks through /proc and must not be refused by a dead
        // session.
        let failed =
            |errno| DiskError { op: DiskOp::Holders, path: device.to_owned(), errno, detail: String::new() };
        let name = block_name(device).map_err(failed)?;
        let kernel = self.inner.lock();
        if let Some(errno) = kernel.disk_fault(DiskOp::Holders) {
            return Err(failed(errno));
        }
        let (_, _, disk) = kernel.disk(&name).ok_or(failed(Errno::ENOENT))?;
        Ok(kernel.holders.get(&disk.sequence).map(|held| held.by.clone()).unwrap_or_default())
    }

    fn usage(&self, devices: &[PathBuf]) -> Result<Usage, DiskError> {
        let kernel = self.inner.lock();
        if let Some(errno) = kernel.disk_fault(DiskOp::Usage) {
            let path = devices.first().cloned().unwrap_or_default();
            return Err(DiskError { op: DiskOp::Usage, path, errno, detail: String::new() });
        }
        let mut usage = Usage::default();
        for device in devices {
            let Ok(name) = block_name(device) else { continue };
            let Some((_, _, disk)) = kernel.disk(&name) else { continue };
            let users = kernel.holders.get(&disk.sequence).map(|held| held.users.clone()).unwrap_or_default();
            let named = users.into_iter().map(|user| DiskUser { device: name.clone(), user });
            usage.disks.insert(device.clone(), named.collect());
        }
        Ok(usage)
    }

    fn unwritten(&self, device: &Path) -> Result<Option<u64>, DiskError> {
        let failed = |errno| {
            let (op, path) = (DiskOp::Unwritten, device.to_owned());
            DiskError { op, path, errno, detail: String::new() }
        };
        let name = block_name(device).map_err(failed)?;
        let kernel = self.inner.lock();
        if let Some(errno) = kernel.disk_fault(DiskOp::Unwritten) {
            return Err(failed(errno));
        }
        let (_, _, disk) = kernel.disk(&name).ok_or(failed(Errno::ENODEV))?;
        Ok(Some(kernel.unwritten.get(&disk.sequence).copied().unwrap_or(0)))
    }
}

/// One listener's events: [`FakeHost::uevents`].
pub struct FakeUevents {
    pub(super) queue: Arc<Queue<UeventItem>>,
}

impl Uevents for FakeUevents {
    fn next(&mut self, wait: Duration) -> Result<Option<UeventItem>, Errno> {
        Ok(self.queue.next(wait))
    }
}
