//! Fake of a host with its sessions, its disks and the targets that it talks to, in memory: the
//! agent's half of an attachment is tested on it. It has `mooring-sessiond` as the agent sees it;
//! the daemon's own tests are elsewhere.
//!
//! A [`Door`] is one process's access to the world. It counts the changes of the process, and can
//! be closed for good at any of these steps, as a kill -9 does. The world stays, and records
//! everything that must never happen.

mod disks;
mod door;
mod fabric;
mod sysfs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_host::{DiskOp, Holder, Uevent};
use mooring_model::{Naa, Portal, VolumeId};

pub use door::{Door, Kill};
pub use fabric::{FcDoor, FcWorld, Rport};

use crate::client::SessionEvent;
use crate::clock;
use crate::wire::{End, SessionSpec, SessionState, SessionStatus};

/// A logical unit that a target shows under a LUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Identity of the unit.
    pub naa: Naa,
    /// Unit serial.
    pub serial: String,
    /// Size in bytes.
    pub size: u64,
    /// The unit refuses writes of this host.
    pub protected: bool,
}

impl Unit {
    /// Makes the unit of a volume of ours.
    pub fn of(volume: VolumeId, size: u64) -> Self {
        let serial = volume.to_string();
        Self { naa: Naa::of_serial(&serial), serial, size, protected: false }
    }
}

/// A target, as this host meets it.
#[derive(Debug, Clone)]
pub struct Target {
    /// Unit under LUN 1.
    pub unit: Option<Unit>,
    /// The portal listens.
    pub reachable: bool,
    /// The host has a grant.
    pub granted: bool,
    /// Secret that the host must know.
    pub secret: Option<String>,
}

/// Read-ahead in sectors that Linux sets for a disk which names no optimal size.
pub(crate) const READ_AHEAD_DEFAULT: u32 = 256;

/// A disk on this host.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "attributes of the kernel")]
pub(crate) struct Sdev {
    pub(crate) name: String,
    pub(crate) sequence: u64,
    pub(crate) size: u64,
    /// Write protection: the target's as it was read last, or the host's own flag.
    pub(crate) protected: bool,
    pub(crate) read_only: bool,
    /// Read-ahead in sectors.
    pub(crate) read_ahead: u32,
    /// The page cache has pages of the disk.
    pub(crate) cached: bool,
    /// The page cache has unwritten pages of the disk.
    pub(crate) dirty: bool,
    /// The block device exists.
    pub(crate) block: bool,
    pub(crate) holders: Vec<Holder>,
}

impl Sdev {
    /// Makes the disk of a unit as it appears on this host.
    pub(crate) fn of(unit: &Unit, name: String, sequence: u64) -> Self {
        Self {
            name,
            sequence,
            size: unit.size,
            protected: unit.protected,
            read_only: false,
            read_ahead: READ_AHEAD_DEFAULT,
            cached: false,
            dirty: false,
            block: true,
            holders: Vec::new(),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ScsiHost {
    pub(crate) sid: u32,
    pub(crate) volume: VolumeId,
    pub(crate) sdevs: BTreeMap<u16, Sdev>,
}

#[allow(clippy::struct_excessive_bools, reason = "switches of a fake")]
pub(crate) struct State {
    pub(crate) targets: BTreeMap<VolumeId, Target>,
    pub(crate) sessions: BTreeMap<VolumeId, (SessionSpec, SessionStatus)>,
    /// Last state of each session that the agent was answered.
    pub(crate) told: BTreeMap<VolumeId, SessionState>,
    pub(crate) hosts: BTreeMap<u32, ScsiHost>,
    pub(crate) events: Vec<SessionEvent>,
    pub(crate) uevents: Vec<Uevent>,
    /// Life of sessiond: raised at each of its ends.
    pub(crate) lives: u64,
    pub(crate) up: bool,
    /// Block devices do not appear.
    pub(crate) no_blocks: bool,
    /// INQUIRYs do not return while this is set.
    pub(crate) hang: bool,
    /// Change of a disk that is refused; `None`: all are accepted.
    pub(crate) refused: Option<DiskOp>,
    /// The next write-back fails.
    pub(crate) write_back_fails: bool,
    pub(crate) logins: u64,
    /// Unwritten bytes in the page cache of every disk. `None`: the kernel does not say.
    pub(crate) unwritten: Option<u64>,
    next: u32,
    violations: Vec<String>,
    run_dir: PathBuf,
}

/// A fake host with everything around it; clones share one.
#[derive(Clone)]
pub struct World {
    pub(crate) shared: Arc<(Mutex<State>, Condvar)>,
}

impl World {
    /// Makes a host without sessions, with this run folder.
    pub fn new(run_dir: &Path) -> Self {
        let state = State {
            targets: BTreeMap::new(),
            sessions: BTreeMap::new(),
            told: BTreeMap::new(),
            hosts: BTreeMap::new(),
            events: Vec::new(),
            uevents: Vec::new(),
            lives: 0,
            up: true,
            no_blocks: false,
            hang: false,
            refused: None,
            write_back_fails: false,
            logins: 0,
            unwritten: None,
            next: 0,
            violations: Vec::new(),
            run_dir: run_dir.to_owned(),
        };
        Self { shared: Arc::new((Mutex::new(state), Condvar::new())) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the world, and wakes everybody who waits.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let value = work(&mut self.lock());
        self.shared.1.notify_all();
        value
    }

    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.shared.1.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Adds a target that exports this volume to this host.
    pub fn export(&self, volume: VolumeId, size: u64, secret: Option<&str>) {
        let target = Target {
            unit: Some(Unit::of(volume, size)),
            reachable: true,
            granted: true,
            secret: secret.map(str::to_owned),
        };
        self.change(|state| state.targets.insert(volume, target));
    }

    /// Changes a target, and retries waiting logins.
    pub fn target(&self, volume: VolumeId, change: impl FnOnce(&mut Target)) {
        self.change(|state| {
            if let Some(target) = state.targets.get_mut(&volume) {
                change(target);
            }
            state.retry(volume);
        });
    }

    /// Holds back new block devices; `false` lets those held back appear.
    pub fn hold_blocks(&self, hold: bool) {
        self.change(|state| {
            state.no_blocks = hold;
            if !hold {
                state.release_blocks();
            }
        });
    }

    /// Hangs INQUIRYs; `false` lets them return again.
    pub fn hang(&self, hang: bool) {
        self.change(|state| state.hang = hang);
    }

    /// Returns the size that this host has read from a volume's disk. `None` without a disk.
    pub fn size_of(&self, volume: VolumeId) -> Option<u64> {
        self.lock().sdevs_of(volume).next().map(|sdev| sdev.size)
    }

    /// Sets the number of unwritten bytes in the page cache of every disk. `None`: the kernel does
    /// not say.
    pub fn set_unwritten(&self, bytes: Option<u64>) {
        self.lock().unwritten = bytes;
    }

    /// Lets these holders open a volume's disk; an empty list closes it.
    pub fn hold_open(&self, volume: VolumeId, holders: &[Holder]) {
        self.change(|state| {
            for sdev in state.sdevs_of(volume) {
                sdev.holders = holders.to_vec();
            }
        });
    }

    /// Breaks the connection of a volume's session; `false` makes it again.
    pub fn lose(&self, volume: VolumeId, lost: bool) {
        self.change(|state| {
            let Some((_, status)) = state.sessions.get_mut(&volume) else { return };
            status.state = if lost { SessionState::Recovering } else { SessionState::LoggedIn };
            status.problem = lost.then(|| "the connection broke".to_owned());
            status.relogins += u32::from(!lost);
            state.tell(volume);
        });
    }

    /// Ends a session on the side of sessiond: forbidden, or with another disk after a recovery.
    pub fn end_as(&self, volume: VolumeId, end: SessionState, problem: &str) {
        self.change(|state| {
            state.drop_host(volume);
            let Some((_, status)) = state.sessions.get_mut(&volume) else { return };
            (status.state, status.sid, status.host) = (end, None, None);
            status.problem = Some(problem.to_owned());
            state.tell(volume);
        });
    }

    /// Ends sessiond, or starts it again to adopt what exists.
    pub fn set_sessiond(&self, up: bool) {
        self.change(|state| {
            state.lives += u64::from(!up);
            state.up = up;
        });
    }

    /// Turns power off and on: sessions, disks and the run folder are gone.
    pub fn reboot(&self) {
        self.change(|state| {
            state.sessions.clear();
            state.hosts.clear();
            state.lives += 1;
            for folder in ["attachments", "volumes", "connections"] {
                // A missing folder was never made.
                let _ = std::fs::remove_dir_all(state.run_dir.join(folder));
            }
        });
    }

    /// Deletes a volume's disk as another process would.
    pub fn lose_disk(&self, volume: VolumeId) {
        self.change(|state| {
            let hosts: Vec<u32> =
                state.hosts.iter().filter(|(_, host)| host.volume == volume).map(|(host, _)| *host).collect();
            for host in hosts {
                state.delete(host, 1);
            }
        });
    }

    /// Returns the kernel's name of a volume's disk. `None` without a disk.
    pub fn disk_of(&self, volume: VolumeId) -> Option<String> {
        self.lock().sdevs_of(volume).find(|sdev| sdev.block).map(|sdev| sdev.name.clone())
    }

    /// Returns `true` if this host or the target refuses writes to a volume's disk. `None` without
    /// a disk.
    pub fn is_read_only(&self, volume: VolumeId) -> Option<bool> {
        self.lock().sdevs_of(volume).next().map(|sdev| sdev.read_only || sdev.protected)
    }

    /// Returns the read-ahead of a volume's disk, in sectors. `None` without a disk.
    pub fn read_ahead(&self, volume: VolumeId) -> Option<u32> {
        self.lock().sdevs_of(volume).next().map(|sdev| sdev.read_ahead)
    }

    /// Sets the read-ahead of a volume's disk, as the kernel or another process would.
    pub fn set_read_ahead(&self, volume: VolumeId, sectors: u32) {
        self.change(|state| state.sdevs_of(volume).for_each(|sdev| sdev.read_ahead = sectors));
    }

    /// Reads a volume's disk through the page cache, as a process would.
    pub fn read_buffered(&self, volume: VolumeId) {
        self.change(|state| state.sdevs_of(volume).for_each(|sdev| sdev.cached = true));
    }

    /// Writes to a volume's disk through the page cache, without a sync.
    pub fn write_buffered(&self, volume: VolumeId) {
        self.change(|state| state.sdevs_of(volume).for_each(|sdev| (sdev.cached, sdev.dirty) = (true, true)));
    }

    /// Returns `true` if the page cache has unwritten pages of a volume's disk. `None` without a
    /// disk.
    pub fn is_dirty(&self, volume: VolumeId) -> Option<bool> {
        self.lock().sdevs_of(volume).next().map(|sdev| sdev.dirty)
    }

    /// Lets the next write-back fail with EIO. As in the kernel its pages count as written then,
    /// and the write-back after it succeeds.
    pub fn fail_write_back(&self) {
        self.change(|state| state.write_back_fails = true);
    }

    /// Returns the kernel's sequence number of a volume's disk. `None` without a disk.
    pub fn sequence(&self, volume: VolumeId) -> Option<u64> {
        self.lock().sdevs_of(volume).next().map(|sdev| sdev.sequence)
    }

    /// Returns `true` if the page cache has pages of a volume's disk. `None` without a disk.
    pub fn is_cached(&self, volume: VolumeId) -> Option<bool> {
        self.lock().sdevs_of(volume).next().map(|sdev| sdev.cached)
    }

    /// Refuses this change of a disk with EACCES, as the kernel does without CAP_SYS_ADMIN. `None`
    /// ends that.
    pub fn refuse(&self, op: Option<DiskOp>) {
        self.change(|state| state.refused = op);
    }

    /// Returns a volume's session. `None` if it has none.
    pub fn session(&self, volume: VolumeId) -> Option<SessionStatus> {
        self.lock().sessions.get(&volume).map(|(_, status)| status.clone())
    }

    /// Counts the logins so far.
    pub fn logins(&self) -> u64 {
        self.lock().logins
    }

    /// Returns everything that must never happen and did.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }
}

impl State {
    pub(crate) fn violate(&mut self, what: String) {
        self.violations.push(what);
    }

    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn sdevs_of(&mut self, volume: VolumeId) -> impl Iterator<Item = &mut Sdev> {
        self.hosts
            .values_mut()
            .filter(move |host| host.volume == volume)
            .flat_map(|host| host.sdevs.values_mut())
    }

    pub(crate) fn tell(&mut self, volume: VolumeId) {
        let event =
            self.sessions.get(&volume).map(|(_, status)| SessionEvent::Session(Box::new(status.clone())));
        self.events.push(event.unwrap_or(SessionEvent::Gone(volume)));
    }

    /// Returns the links that point to this device.
    pub(crate) fn links_to(&self, name: &str) -> Vec<PathBuf> {
        let folders = ["attachments", "volumes"].map(|folder| self.run_dir.join(folder));
        let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let target = Path::new("/dev").join(name);
        entries
            .map(|entry| entry.path())
            .filter(|path| std::fs::read_link(path).is_ok_and(|to| to == target))
            .collect()
    }

    pub(crate) fn uevent(&mut self, action: &str, host: u32, name: &str) {
        let sid = self.hosts.get(&host).map_or(0, |host| host.sid);
        let devpath =
            format!("/devices/platform/host{host}/session{sid}/target{host}:0:0/{host}:0:0:1/block/{name}");
        let keys = [("ACTION", action), ("DEVPATH", &devpath), ("SUBSYSTEM", "block"), ("DEVTYPE", "disk")];
        let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        self.uevents.push(Uevent { action: action.to_owned(), devpath: devpath.clone(), keys });
    }

    pub(crate) fn delete(&mut self, host: u32, lun: u16) -> bool {
        let gone = self.hosts.get_mut(&host).and_then(|host| host.sdevs.remove(&lun));
        if let Some(sdev) = &gone {
            self.uevent("remove", host, &sdev.name);
        }
        gone.is_some()
    }

    fn drop_host(&mut self, volume: VolumeId) {
        let hosts: Vec<u32> =
            self.hosts.iter().filter(|(_, host)| host.volume == volume).map(|(host, _)| *host).collect();
        for host in hosts {
            let luns: Vec<u16> = self.hosts[&host].sdevs.keys().copied().collect();
            for lun in luns {
                self.delete(host, lun);
            }
            self.hosts.remove(&host);
        }
    }

    fn release_blocks(&mut self) {
        let mut events = Vec::new();
        for (number, host) in &mut self.hosts {
            for sdev in host.sdevs.values_mut().filter(|sdev| !sdev.block) {
                sdev.block = true;
                events.push((*number, sdev.name.clone()));
            }
        }
        for (host, name) in events {
            self.uevent("add", host, &name);
        }
    }

    /// Retries a login that waits.
    fn retry(&mut self, volume: VolumeId) {
        let waits = |(_, status): &(SessionSpec, SessionStatus)| status.state == SessionState::Connecting;
        if self.sessions.get(&volume).is_some_and(waits) {
            self.login(volume);
        }
    }

    pub(crate) fn ensure(&mut self, spec: &SessionSpec) -> SessionStatus {
        let portal = spec.portals[0];
        let again = if let Some((kept, status)) = self.sessions.get_mut(&spec.volume) {
            use SessionState::{Connecting, Ending, Failed, Forbidden, LoggedIn, Recovering, WrongDisk};
            let newer = spec.generation > status.generation;
            // A session that has ended takes nothing but a newer spec.
            if matches!(status.state, Forbidden | Failed | WrongDisk) && !newer {
                return status.clone();
            }
            *kept = spec.clone();
            status.secrets = spec.secrets();
            if newer {
                status.generation = spec.generation;
            }
            match status.state {
                LoggedIn | Recovering | Connecting => false,
                Forbidden | Failed | WrongDisk | Ending => true,
            }
        } else {
            let status = fresh(spec, portal);
            self.sessions.insert(spec.volume, (spec.clone(), status));
            true
        };
        if again {
            self.login(spec.volume);
        }
        self.sessions[&spec.volume].1.clone()
    }

    fn login(&mut self, volume: VolumeId) {
        let target = self.targets.get(&volume).cloned();
        let (host, sid) = (self.number(), self.number() + 1000);
        self.logins += 1;
        let Some((spec, status)) = self.sessions.get_mut(&volume) else { return };
        let portal = spec.portals[0];
        let refused = |text: &str| (SessionState::Failed, Some(format!("{portal}: {text}")));
        let (state, problem) = match target {
            Some(target) if !target.reachable => {
                let text = format!("{portal}: no answer for 3 s");
                (SessionState::Connecting, Some(text))
            }
            None => refused("target not found (0203)"),
            Some(target) if !target.granted => refused("the target forbids it (0202)"),
            Some(target) if !fits(target.secret.as_deref(), spec) => refused("wrong credentials (0201)"),
            Some(_) => (SessionState::LoggedIn, None),
        };
        (status.state, status.problem) = (state, problem);
        (status.sid, status.host, status.since, status.login_us) = (None, None, None, None);
        if state == SessionState::LoggedIn {
            (status.sid, status.host) = (Some(sid), Some(host));
            (status.since, status.login_us) = (Some(clock::system_time()), Some(1234));
            self.hosts.insert(host, ScsiHost { sid, volume, sdevs: BTreeMap::new() });
        }
        self.tell(volume);
    }

    pub(crate) fn end(&mut self, volume: VolumeId, how: End) {
        let names: Vec<(String, bool)> =
            self.sdevs_of(volume).map(|sdev| (sdev.name.clone(), !sdev.holders.is_empty())).collect();
        for (name, held) in names {
            if how == End::Logout {
                self.violate(format!("logged out with the disk {name} (held: {held})"));
            }
            for link in self.links_to(&name) {
                self.violate(format!("{} was left when the session ended", link.display()));
            }
        }
        self.drop_host(volume);
        if self.sessions.remove(&volume).is_some() {
            self.tell(volume);
        }
    }
}

/// Returns `true` if the spec has the target's secret, alone or as one of two that are being
/// rotated.
fn fits(secret: Option<&str>, spec: &SessionSpec) -> bool {
    let known = || spec.chap.iter().chain(&spec.other_chap).map(|chap| chap.secret.as_str());
    secret.map_or_else(|| spec.chap.is_none(), |secret| known().any(|known| known == secret))
}

fn fresh(spec: &SessionSpec, portal: Portal) -> SessionStatus {
    SessionStatus {
        volume: spec.volume,
        generation: spec.generation,
        target: spec.target.clone(),
        initiator: spec.initiator.clone(),
        state: SessionState::Connecting,
        portal: Some(portal),
        isid: "80a1b2c3d4e5".to_owned(),
        sid: None,
        host: None,
        since: None,
        login_us: None,
        relogins: 0,
        adopted: false,
        verified: 0,
        problem: None,
        retry_in_ms: None,
        secrets: spec.secrets(),
        fc: None,
    }
}
