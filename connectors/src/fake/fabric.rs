//! Fake of a host with Fibre Channel ports, in memory: `/sys` as far as it shows ports, remote
//! ports and their disks, and the disks themselves. It records everything that must never happen: a
//! scan that is not of one LUN, a write anywhere but to a disk's own files, a disk removed under a
//! link or a holder without need.
//!
//! The fake behaves as the kernel (6.1, `scsi_transport_fc.c`, and the scenario `fc-main-job`). A
//! scan of a port that is not online does nothing and succeeds. A scan of an existing LUN does not
//! read it again. A port that comes finds all LUNs that it is shown. A port that is lost blocks its
//! disks, and loses them when its timer runs out. A word for a disk's state without a line feed
//! after it is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mooring_host::{
    DiskError, DiskOp, Disks, Entry, EntryKind, Errno, Holder, Tree, TreeError, TreeOp, TreePath, Usage,
};
use mooring_model::Wwpn;

use super::disks::{page, page83};
use super::{Kill, READ_AHEAD_DEFAULT, Sdev, Unit};

/// `host:channel:target:lun`.
type Address = (u32, u32, u32, u16);

/// A port that this host's port sees, or saw.
#[derive(Debug, Clone)]
pub struct Rport {
    /// Name of the port.
    pub name: Wwpn,
    /// State: `Online`, `Blocked`, `Not Present`.
    pub state: &'static str,
    /// Number as a target; −1 if it is none.
    pub target: i32,
    /// Units that it shows to this host, by LUN.
    pub luns: BTreeMap<u16, Unit>,
}

#[derive(Debug)]
struct FcState {
    host: u32,
    port: Wwpn,
    online: bool,
    rports: Vec<Rport>,
    sdevs: BTreeMap<Address, (Sdev, &'static str)>,
    next: u64,
    log: Vec<String>,
    violations: Vec<String>,
    /// Disks that were deleted, with the state that each had then.
    deleted: Vec<(Address, &'static str)>,
    /// The target has revoked this host: its disks may go, whoever holds them.
    revoked: bool,
    run_dir: PathBuf,
}

/// The fake host; clones share one.
#[derive(Debug, Clone)]
pub struct FcWorld(Arc<Mutex<FcState>>);

impl FcWorld {
    /// Makes a host with one port that is online and sees no other port.
    pub fn new(run_dir: &Path, port: Wwpn) -> Self {
        Self(Arc::new(Mutex::new(FcState {
            host: 3,
            port,
            online: true,
            rports: Vec::new(),
            sdevs: BTreeMap::new(),
            next: 0,
            log: Vec::new(),
            violations: Vec::new(),
            deleted: Vec::new(),
            revoked: false,
            run_dir: run_dir.to_owned(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, FcState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a target port come, or come back: the kernel finds everything that it shows.
    pub fn meet(&self, rport: Rport) {
        let mut state = self.lock();
        state.rports.retain(|one| one.name != rport.name);
        let (target, luns) = (rport.target, rport.luns.clone());
        state.rports.push(rport);
        for (address, (_, word)) in &mut state.sdevs {
            if i64::from(address.2) == i64::from(target) {
                *word = "running";
            }
        }
        for lun in luns.keys() {
            state.scan(0, u32::try_from(target).unwrap_or(u32::MAX), *lun);
        }
    }

    /// Changes a unit that a port shows; the host is told nothing.
    pub fn shows(&self, port: Wwpn, lun: u16, unit: Option<Unit>) {
        let mut state = self.lock();
        let Some(rport) = state.rports.iter_mut().find(|one| one.name == port) else { return };
        match unit {
            Some(unit) => drop(rport.luns.insert(lun, unit)),
            None => drop(rport.luns.remove(&lun)),
        }
    }

    /// Loses a port: its disks wait. With `for_good` its timer has run out, and they are gone.
    pub fn lose(&self, port: Wwpn, for_good: bool) {
        let mut state = self.lock();
        let Some(rport) = state.rports.iter_mut().find(|one| one.name == port) else { return };
        rport.state = if for_good { "Not Present" } else { "Blocked" };
        let target = i64::from(rport.target);
        if for_good {
            state.sdevs.retain(|address, _| i64::from(address.2) != target);
        }
        for (_, (_, word)) in state.sdevs.iter_mut().filter(|(at, _)| i64::from(at.2) == target) {
            *word = "blocked";
        }
    }

    /// Deletes a disk as another process would.
    pub fn lose_disk(&self, lun: u16) {
        self.lock().sdevs.retain(|address, _| address.3 != lun);
    }

    /// Sets the link of this host's own port: `false` loses it.
    pub fn set_online(&self, online: bool) {
        self.lock().online = online;
    }

    /// Lets the target revoke this host.
    pub fn revoke(&self) {
        self.lock().revoked = true;
    }

    /// Lets these holders open a disk; an empty list closes it.
    pub fn hold_open(&self, lun: u16, holders: &[Holder]) {
        for (_, (sdev, _)) in self.lock().sdevs.iter_mut().filter(|(address, _)| address.3 == lun) {
            sdev.holders = holders.to_vec();
        }
    }

    /// Lists the existing disks, as `host:channel:target:lun`.
    pub fn disks(&self) -> Vec<String> {
        self.lock()
            .sdevs
            .keys()
            .map(|(host, channel, id, lun)| format!("{host}:{channel}:{id}:{lun}"))
            .collect()
    }

    /// Returns `true` if this host or the target refuses writes to a disk. `None` without a disk.
    pub fn is_read_only(&self, lun: u16) -> Option<bool> {
        let state = self.lock();
        state.sdevs.iter().find(|(at, _)| at.3 == lun).map(|(_, (sdev, _))| sdev.read_only || sdev.protected)
    }

    /// Returns the kernel's name of a disk. `None` without a disk.
    pub fn name_of(&self, lun: u16) -> Option<String> {
        self.lock().sdevs.iter().find(|(at, _)| at.3 == lun).map(|(_, (sdev, _))| sdev.name.clone())
    }

    /// Returns the changes after the last call.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().log)
    }

    /// Lists the disks that were deleted so far, as `host:channel:target:lun was <state>`.
    pub fn deleted(&self) -> Vec<String> {
        let was = |((host, channel, id, lun), word): &(Address, &str)| {
            format!("{host}:{channel}:{id}:{lun} was {word}")
        };
        self.lock().deleted.iter().map(was).collect()
    }

    /// Returns everything that must never happen and did.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Makes the door of a process, which is killed at one of its changes.
    pub fn door(&self, kill: Option<Kill>) -> FcDoor {
        FcDoor { world: self.clone(), kill, changes: Arc::default(), dead: Arc::default() }
    }
}

impl FcState {
    fn scan(&mut self, channel: u32, id: u32, lun: u16) {
        let at = (self.host, channel, id, lun);
        let shown = |rport: &Rport| {
            let online = rport.state == "Online" && i64::from(rport.target) == i64::from(id);
            rport.luns.get(&lun).filter(|_| online).cloned()
        };
        let unit = self.rports.iter().find_map(shown).filter(|_| self.online && channel == 0);
        let (Some(unit), false) = (unit, self.sdevs.contains_key(&at)) else { return };
        self.next += 1;
        let sdev = Sdev::of(&unit, format!("sd{}", self.next), 7000 + self.next);
        self.sdevs.insert(at, (sdev, "running"));
    }

    fn links_to(&self, name: &str) -> usize {
        let folders = ["attachments", "volumes"].map(|folder| self.run_dir.join(folder));
        let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let target = Path::new("/dev").join(name);
        entries.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == target)).count()
    }

    /// Returns the unit that the target shows in a disk's place now.
    fn unit(&self, at: Address) -> Option<Unit> {
        let rport = self.rports.iter().find(|one| i64::from(one.target) == i64::from(at.2))?;
        rport.luns.get(&at.3).cloned()
    }

    fn at(&self, device: &Path) -> Option<Address> {
        let name = device.file_name()?.to_str()?;
        self.sdevs.iter().find(|(_, (sdev, _))| sdev.name == name).map(|(at, _)| *at)
    }

    fn delete(&mut self, at: Address) {
        let Some((sdev, word)) = self.sdevs.get(&at) else { return };
        self.deleted.push((at, *word));
        let (name, held) = (sdev.name.clone(), !sdev.holders.is_empty() && !self.revoked);
        if held {
            self.violations.push(format!("{name} was deleted while held"));
        }
        if self.links_to(&name) > 0 {
            self.violations.push(format!("{name} was deleted before its links"));
        }
        self.sdevs.remove(&at);
    }

    fn write(&mut self, path: &str, value: &str) -> Result<(), Errno> {
        if path == format!("class/scsi_host/host{}/scan", self.host) {
            let numbers: Vec<u32> = value.split(' ').filter_map(|word| word.parse().ok()).collect();
            let ([channel, id, lun], 3) = (numbers.as_slice(), value.split(' ').count()) else {
                self.violations.push(format!("a scan of {value:?}"));
                return Err(Errno::EINVAL);
            };
            self.scan(*channel, *id, u16::try_from(*lun).unwrap_or(0));
            return Ok(());
        }
        let Some((at, file)) = address(path).filter(|(at, _)| self.sdevs.contains_key(at)) else {
            self.violations.push(format!("{value:?} written to {path}"));
            return Err(Errno::ENOENT);
        };
        match (file, value) {
            ("delete", "1") => self.delete(at),
            ("rescan", "1") => {
                let unit = self.unit(at);
                if let (Some(unit), Some((sdev, _))) = (unit, self.sdevs.get_mut(&at)) {
                    (sdev.size, sdev.protected) = (unit.size, unit.protected);
                    sdev.read_ahead = READ_AHEAD_DEFAULT;
                }
            }
            // The kernel compares the word with the line feed after it (6.1).
            ("state", "offline\n") => {
                let word = self.sdevs.get_mut(&at).map(|(_, word)| word);
                let word =
                    word.filter(|word| ["running", "offline"].contains(&**word)).ok_or(Errno::EINVAL)?;
                *word = "offline";
            }
            ("state", "running\n") => {
                let word = self.sdevs.get_mut(&at).map(|(_, word)| word);
                *word.filter(|word| **word != "blocked").ok_or(Errno::EINVAL)? = "running";
            }
            ("state", "offline" | "running") => return Err(Errno::EINVAL),
            _ => self.violations.push(format!("{value:?} written to {path}")),
        }
        Ok(())
    }

    fn read(&self, path: &str) -> Option<String> {
        let hex = |name: Wwpn| format!("{:#x}\n", name.as_u64());
        if let Some((at, "state")) = address(path) {
            return self.sdevs.get(&at).map(|(_, word)| format!("{word}\n"));
        }
        let (folder, file) = path.rsplit_once('/')?;
        if folder == format!("class/fc_host/host{}", self.host) {
            return match file {
                "port_name" => Some(hex(self.port)),
                "port_state" => Some(if self.online { "Online\n" } else { "Linkdown\n" }.to_owned()),
                _ => None,
            };
        }
        let number = folder.strip_prefix(&format!("class/fc_remote_ports/rport-{}:0-", self.host))?;
        let rport = self.rports.get(number.parse::<usize>().ok()?)?;
        match file {
            "port_name" => Some(hex(rport.name)),
            "port_state" => Some(format!("{}\n", rport.state)),
            "scsi_target_id" => Some(format!("{}\n", rport.target)),
            _ => None,
        }
    }

    fn list(&self, path: &str) -> Option<Vec<String>> {
        match path {
            "class/fc_host" => Some(vec![format!("host{}", self.host)]),
            "class/fc_remote_ports" => {
                Some((0..self.rports.len()).map(|n| format!("rport-{}:0-{n}", self.host)).collect())
            }
            _ => match address(path)? {
                (at, "block") => self
                    .sdevs
                    .get(&at)
                    .filter(|(sdev, _)| sdev.block)
                    .map(|(sdev, _)| vec![sdev.name.clone()]),
                _ => None,
            },
        }
    }
}

/// Parses `class/scsi_device/H:C:T:L/device[/file]`.
fn address(path: &str) -> Option<(Address, &str)> {
    let rest = path.strip_prefix("class/scsi_device/")?;
    let (address, rest) = rest.split_once("/device")?;
    let numbers: Vec<u32> = address.split(':').filter_map(|word| word.parse().ok()).collect();
    let [host, channel, id, lun] = numbers.as_slice() else { return None };
    Some(((*host, *channel, *id, u16::try_from(*lun).ok()?), rest.trim_start_matches('/')))
}

/// Access of one process to the fake.
#[derive(Debug, Clone)]
pub struct FcDoor {
    world: FcWorld,
    kill: Option<Kill>,
    changes: Arc<AtomicU64>,
    dead: Arc<Mutex<bool>>,
}

impl FcDoor {
    /// Counts the changes by this process.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Returns `true` if the process was killed.
    pub fn is_dead(&self) -> bool {
        *self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the process: every call fails from now on.
    pub fn kill(&self) {
        let _ = self.die();
    }

    fn die(&self) -> Errno {
        *self.dead.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Errno::ESRCH
    }

    fn look<T>(&self, work: impl FnOnce(&mut FcState) -> Result<T, Errno>) -> Result<T, Errno> {
        if self.is_dead() { Err(Errno::ESRCH) } else { work(&mut self.world.lock()) }
    }

    fn act<T>(&self, what: String, work: impl FnOnce(&mut FcState) -> Result<T, Errno>) -> Result<T, Errno> {
        self.look(|_| Ok(()))?;
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        if self.kill == Some(Kill::Before(number)) {
            return Err(self.die());
        }
        let mut state = self.world.lock();
        state.log.push(what);
        let done = work(&mut state);
        if self.kill == Some(Kill::After(number)) { Err(self.die()) } else { done }
    }
}

fn fail(op: TreeOp, path: &TreePath) -> impl FnOnce(Errno) -> TreeError {
    let path = path.clone();
    move |errno| TreeError { op, root: "/sys".to_owned(), path, errno }
}

impl Tree for FcDoor {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Mkdir, path)(Errno::EPERM))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Rmdir, path)(Errno::EPERM))
    }

    fn symlink(&self, _: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Symlink, link)(Errno::EPERM))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Unlink, path)(Errno::EPERM))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        let text = String::from_utf8_lossy(value).into_owned();
        let name = path.as_str().replace("class/", "").replace("/device", "");
        self.act(format!("{name} = {}", text.trim_end()), |state| state.write(path.as_str(), &text))
            .map_err(fail(TreeOp::Write, path))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.look(|state| state.read(path.as_str()).map(String::into_bytes).ok_or(Errno::ENOENT))
            .map_err(fail(TreeOp::Read, path))
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        let names = self.look(|state| state.list(path.as_str()).ok_or(Errno::ENOENT));
        let entry = |name| Entry { name, kind: EntryKind::Link };
        Ok(names.map_err(fail(TreeOp::List, path))?.into_iter().map(entry).collect())
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        Err(fail(TreeOp::ReadLink, path)(Errno::ENOENT))
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        let there = |state: &mut FcState| {
            Ok(address(path.as_str())
                .is_some_and(|(at, rest)| rest.is_empty() && state.sdevs.contains_key(&at)))
        };
        self.look(there).map_err(fail(TreeOp::Read, path))
    }
}

impl FcDoor {
    fn on<T>(
        &self,
        op: DiskOp,
        path: &Path,
        work: impl FnOnce(&mut FcState, Address) -> Result<T, Errno>,
    ) -> Result<T, DiskError> {
        let fail = |errno| DiskError { op, path: path.to_owned(), errno, detail: String::new() };
        self.look(|state| state.at(path).ok_or(Errno::ENXIO).and_then(|at| work(state, at))).map_err(fail)
    }

    fn sdev<T>(&self, op: DiskOp, path: &Path, get: impl FnOnce(&Sdev) -> T) -> Result<T, DiskError> {
        self.on(op, path, |state, at| state.sdevs.get(&at).map(|(sdev, _)| get(sdev)).ok_or(Errno::ENXIO))
    }

    fn change(
        &self,
        op: DiskOp,
        path: &Path,
        what: String,
        work: impl FnOnce(&mut FcState, Address),
    ) -> Result<(), DiskError> {
        let fail = |errno| DiskError { op, path: path.to_owned(), errno, detail: String::new() };
        let done = self.act(what, |state| {
            let at = state.at(path).ok_or(Errno::ENXIO)?;
            work(state, at);
            Ok(())
        });
        done.map_err(fail)
    }
}

fn is_blocked(state: &mut FcState, at: Address, what: &str) {
    if state.sdevs.get(&at).is_some_and(|(_, word)| *word == "blocked") {
        state.violations.push(format!("{what} of a disk whose port is lost"));
    }
}

impl Disks for FcDoor {
    fn inquiry(&self, device: &Path, code: u8) -> Result<Vec<u8>, DiskError> {
        self.on(DiskOp::Inquiry(code), device, |state, at| {
            is_blocked(state, at, "an INQUIRY");
            let offline = state.sdevs.get(&at).is_some_and(|(_, word)| *word == "offline");
            let unit = state.unit(at).filter(|_| !offline).ok_or(Errno::EIO)?;
            Ok(if code == 0x83 { page83(&unit) } else { page(code, unit.serial.as_bytes()) })
        })
    }

    fn size(&self, device: &Path) -> Result<u64, DiskError> {
        self.sdev(DiskOp::Size, device, |sdev| sdev.size)
    }

    fn sequence(&self, device: &Path) -> Result<u64, DiskError> {
        self.sdev(DiskOp::Sequence, device, |sdev| sdev.sequence)
    }

    fn set_read_only(&self, device: &Path, read_only: bool) -> Result<(), DiskError> {
        let what = format!("read-only = {read_only}");
        self.change(DiskOp::SetReadOnly, device, what, |state, at| {
            if let Some((sdev, _)) = state.sdevs.get_mut(&at) {
                sdev.read_only = read_only;
            }
        })
    }

    fn read_only(&self, device: &Path) -> Result<bool, DiskError> {
        self.sdev(DiskOp::GetReadOnly, device, |sdev| sdev.read_only || sdev.protected)
    }

    fn flush(&self, device: &Path) -> Result<(), DiskError> {
        self.change(DiskOp::Flush, device, "flush".to_owned(), |state, at| is_blocked(state, at, "a flush"))
    }

    fn drop_pages(&self, device: &Path) -> Result<(), DiskError> {
        self.change(DiskOp::DropPages, device, "drop".to_owned(), |state, at| is_blocked(state, at, "a drop"))
    }

    fn set_read_ahead(&self, device: &Path, sectors: u32) -> Result<(), DiskError> {
        self.change(DiskOp::SetReadAhead, device, format!("read-ahead = {sectors}"), |state, at| {
            if let Some((sdev, _)) = state.sdevs.get_mut(&at) {
                sdev.read_ahead = sectors;
            }
        })
    }

    fn read_ahead(&self, device: &Path) -> Result<u32, DiskError> {
        self.sdev(DiskOp::GetReadAhead, device, |sdev| sdev.read_ahead)
    }

    fn holders(&self, device: &Path) -> Result<Vec<Holder>, DiskError> {
        self.sdev(DiskOp::Holders, device, |sdev| sdev.holders.clone())
    }

    fn usage(&self, _: &[PathBuf]) -> Result<Usage, DiskError> {
        Ok(Usage::default())
    }

    fn unwritten(&self, device: &Path) -> Result<Option<u64>, DiskError> {
        self.sdev(DiskOp::Unwritten, device, |_| None)
    }
}
