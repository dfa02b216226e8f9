//! Block devices of the fake machine. What must never happen: a range counted as zeroed that was
//! not, or that was discarded later.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::state::{Device, Handle, Machine, Node};
use crate::{BlockDevices, BlockError, Flow, Followed, Mapped};

/// Smallest unit of an I/O, in bytes.
const SECTOR: u64 = 512;

/// Byte that blocks of an earlier owner hold.
pub const OLD: u8 = 0xa5;

/// Block devices of a [`FakeMachine`](super::FakeMachine); clones share them.
#[derive(Debug, Clone)]
pub struct FakeBlocks {
    handle: Handle,
}

impl FakeBlocks {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Returns `true` if the whole device reads as zeros; `false` also when there is no such
    /// device.
    pub fn is_zeroed(&self, path: impl AsRef<Path>) -> bool {
        self.handle.lock().devices.get(path.as_ref()).is_some_and(super::state::Device::is_zeroed)
    }

    /// Returns the ranges that read as zeros, in bytes: start, end (exclusive).
    pub fn zeroed_ranges(&self, path: impl AsRef<Path>) -> Vec<(u64, u64)> {
        let machine = self.handle.lock();
        let device = machine.devices.get(path.as_ref());
        device.map(|device| device.zeroed.iter().map(|(from, to)| (*from, *to)).collect()).unwrap_or_default()
    }

    /// Returns the ranges that were discarded, in bytes: start, end (exclusive).
    pub fn discarded_ranges(&self, path: impl AsRef<Path>) -> Vec<(u64, u64)> {
        let machine = self.handle.lock();
        let device = machine.devices.get(path.as_ref());
        device
            .map(|device| device.discarded.iter().map(|(from, to)| (*from, *to)).collect())
            .unwrap_or_default()
    }

    /// Returns the device's bytes: all writes of this machine to it, zeros where it reads as zeros,
    /// and `OLD` elsewhere.
    pub fn contents(&self, path: impl AsRef<Path>) -> Vec<u8> {
        let machine = self.handle.lock();
        let Some(device) = machine.devices.get(path.as_ref()) else { return Vec::new() };
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        let mut all = vec![OLD; at(device.size)];
        for (offset, piece) in &device.pieces {
            all[at(*offset)..][..piece.len()].copy_from_slice(piece);
        }
        for (from, to) in &device.zeroed {
            all[at(*from)..at(*to)].fill(0);
        }
        all
    }

    /// Fills the device with foreign data.
    pub fn fill(&self, path: impl AsRef<Path>) {
        if let Some(device) = self.handle.lock().devices.get_mut(path.as_ref()) {
            device.mark_written(0, device.size);
        }
    }

    /// Makes every discard fail with this errno, until `None`.
    pub fn fail_discarding(&self, errno: Option<Errno>) {
        self.handle.lock().discarding_fails = errno;
    }

    /// Makes every zeroing fail with this errno, until `None`.
    pub fn fail_zeroing(&self, errno: Option<Errno>) {
        self.handle.lock().zeroing_fails = errno;
    }
}

/// A device that is followed.
struct FakeFollowed {
    handle: Handle,
    path: PathBuf,
    /// Minor number of the device: another device may later be at its path.
    minor: u32,
}

impl Followed for FakeFollowed {
    fn flow(&self) -> Result<Flow, BlockError> {
        let machine = self.handle.lock();
        let device = machine.devices.get(&self.path).filter(|device| device.minor == self.minor);
        let Some(device) = device else {
            let op = "look at the flow of";
            return Err(BlockError { op, path: self.path.clone(), errno: Errno::ENODEV });
        };
        let in_flight = machine.in_flight.iter().any(|command| command.device == self.path);
        Ok(match (device.suspended, in_flight) {
            (true, _) => Flow::Suspended,
            (false, false) => Flow::Idle,
            (false, true) => Flow::Busy { ended: device.ended },
        })
    }
}

impl BlockDevices for FakeBlocks {
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError> {
        match self.handle.lock().devices.get(path) {
            None => Ok(None),
            Some(device) if device.node == Node::Block => Ok(Some(device.size)),
            Some(_) => Err(BlockError { op: "size of", path: path.to_owned(), errno: Errno::ENOTBLK }),
        }
    }

    fn discards(&self, path: &Path) -> Result<bool, BlockError> {
        let machine = self.handle.lock();
        match machine.devices.get(path) {
            None => Ok(machine.lvm.disk_discards(path)),
            Some(device) if device.node == Node::Block => Ok(device.discards),
            Some(_) => {
                let op = "look for discards of";
                Err(BlockError { op, path: path.to_owned(), errno: Errno::ENOTBLK })
            }
        }
    }

    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError> {
        let machine = self.handle.lock();
        let Some(device) = machine.devices.get(path) else { return Ok(None) };
        if device.node == Node::File {
            let op = "look what device-mapper says of";
            return Err(BlockError { op, path: path.to_owned(), errno: Errno::ENOTBLK });
        }
        let uuid = machine.lvm.mapping(path);
        Ok(uuid.map(|uuid| Mapped { uuid, size: device.size, suspended: device.suspended }))
    }

    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError> {
        let fail = |errno| BlockError { op: "follow", path: path.to_owned(), errno };
        let machine = self.handle.lock();
        let device = machine.devices.get(path).ok_or_else(|| fail(Errno::ENOENT))?;
        if device.node == Node::File {
            return Err(fail(Errno::ENOTBLK));
        }
        let (handle, path) = (self.handle.clone(), path.to_owned());
        Ok(Box::new(FakeFollowed { handle, path, minor: device.minor }))
    }

    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        let fails = |machine: &Machine, _: &Device| machine.zeroing_fails;
        self.wipe("zero", path, (offset, length), fails, Device::mark_zeroed)
    }

    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        let fails = |machine: &Machine, device: &Device| {
            machine.discarding_fails.or((length > 0 && !device.discards).then_some(Errno::EOPNOTSUPP))
        };
        self.wipe("discard", path, (offset, length), fails, Device::mark_discarded)
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.wipe(
            "write",
            path,
            (offset, length),
            |_, _| None,
            |device, from, to| {
                device.mark_written(from, to);
                device.pieces.insert(offset, bytes.to_vec());
            },
        )
    }

    fn flush(&self, path: &Path) -> Result<(), BlockError> {
        let fail = |errno| BlockError { op: "flush", path: path.to_owned(), errno };
        let mut machine = self.handle.lock();
        while machine.devices.get(path).is_some_and(|device| device.held) {
            machine = self.handle.wait(machine);
        }
        let device = machine.devices.get(path).ok_or_else(|| fail(Errno::ENOENT))?;
        if device.errors {
            return Err(fail(Errno::EIO));
        }
        machine.lvm.flush(path);
        Ok(())
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError> {
        let fail = |errno| BlockError { op: "read", path: path.to_owned(), errno };
        let machine = self.handle.lock();
        let device = machine.devices.get(path).ok_or_else(|| fail(Errno::ENOENT))?;
        let length = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let end =
            offset.checked_add(length).filter(|end| *end <= device.size).ok_or_else(|| fail(Errno::EIO))?;
        // Bytes that nobody has written here are foreign data.
        buffer.fill(if device.reads_zeros(offset, end) { 0 } else { OLD });
        if let Some(piece) = device.pieces.get(&offset).filter(|_| !device.reads_zeros(offset, end)) {
            let both = buffer.len().min(piece.len());
            buffer[..both].copy_from_slice(&piece[..both]);
        }
        Ok(())
    }
}

impl FakeBlocks {
    /// Zeroes or discards a range as the kernel does both: exclusively, in whole sectors, within
    /// the device.
    fn wipe(
        &self,
        op: &'static str,
        path: &Path,
        (offset, length): (u64, u64),
        fails: impl Fn(&Machine, &Device) -> Option<Errno>,
        mark: impl Fn(&mut Device, u64, u64),
    ) -> Result<(), BlockError> {
        let fail = |errno| BlockError { op, path: path.to_owned(), errno };
        let mut machine = self.handle.lock();
        while machine.devices.get(path).is_some_and(|device| device.held) {
            machine = self.handle.wait(machine);
        }
        let device = machine.devices.get(path).ok_or_else(|| fail(Errno::ENOENT))?;
        if device.node == Node::File {
            return Err(fail(Errno::ENOTBLK));
        }
        if device.read_only {
            return Err(fail(Errno::EACCES));
        }
        if device.in_use() {
            return Err(fail(Errno::EBUSY));
        }
        let end = offset.checked_add(length).filter(|end| *end <= device.size);
        let end = end.ok_or_else(|| fail(Errno::EINVAL))?;
        if !offset.is_multiple_of(SECTOR) || !length.is_multiple_of(SECTOR) {
            return Err(fail(Errno::EINVAL));
        }
        if device.errors {
            return Err(fail(Errno::EIO));
        }
        if let Some(errno) = fails(&machine, device) {
            return Err(fail(errno));
        }
        if let Some(device) = machine.devices.get_mut(path) {
            mark(device, offset, end);
        }
        // A discard is not flushed.
        if op != "discard" && length > 0 {
            machine.lvm.flush(path);
        }
        Ok(())
    }
}
