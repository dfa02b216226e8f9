//! Disks of a session in sysfs, and waiting for them.
//!
//! `iscsi_tcp` gives every session a SCSI host of its own, with channel 0 and target 0: the calls
//! below `host<H>/session<S>` touch no other session (Linux 5.18 and newer). An adapter for Fibre
//! Channel has one SCSI host for everything that its port sees: there each call names host,
//! channel, target and LUN.
//!
//! What must never happen here: a wildcard scan; a wait without an end; a call on a disk of another
//! session's host, or on another LUN of a shared one.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_host::{Disks, EntryKind, Errno, Tree, TreeError, TreePath};
use mooring_model::Lun;

use crate::clock;
use crate::links::Links;
use crate::sessions::Sessions;
use crate::wire::{FcPath, FcTarget, SessionStatus};

/// The parts of a host that its connections are made with.
#[derive(Clone)]
pub struct Parts {
    /// Tree at `/sys`.
    pub sys: Arc<dyn Tree>,
    /// Block devices.
    pub disks: Arc<dyn Disks>,
    /// Paths for users.
    pub links: Arc<dyn Links>,
    /// Client of `mooring-sessiond`.
    pub sessions: Arc<dyn Sessions>,
    /// Wake-ups from uevents.
    pub arrivals: Arrivals,
    /// Folder of the device nodes: `/dev`.
    pub dev: PathBuf,
    /// Seconds that I/O waits for a lost session before it fails.
    pub recovery_timeout_s: u32,
}

/// Wakes threads that wait for a device to come or go. The reader of uevents calls
/// [`Arrivals::tell`].
#[derive(Debug, Clone, Default)]
pub struct Arrivals(Arc<(Mutex<u64>, Condvar)>);

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiting threads: a device has come or gone, or events were lost.
    pub fn tell(&self) {
        *self.lock() += 1;
        self.0.1.notify_all();
    }

    /// Returns the number of events so far. Read it before the look whose result may be "not yet".
    pub fn mark(&self) -> u64 {
        *self.lock()
    }

    /// Waits until an event came after `mark`, at most for this time.
    pub fn wait(&self, mark: u64, at_most: Duration) {
        let guard = self.lock();
        drop(
            self.0
                .1
                .wait_timeout_while(guard, at_most, |told| *told == mark)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// A uevent may be lost: a waiting thread looks at sysfs again after this time in any case.
const SAFETY_NET: Duration = Duration::from_secs(1);

/// Waits until `is_so`, at most for this time: uevents and the safety net wake it. `stop` ends it
/// early. Returns `true` if it became so.
pub(crate) fn wait_until<E>(
    arrivals: &Arrivals,
    at_most: Duration,
    stop: &dyn Fn() -> bool,
    mut is_so: impl FnMut() -> Result<bool, E>,
) -> Result<bool, E> {
    let until = clock::instant() + at_most;
    loop {
        let mark = arrivals.mark();
        if is_so()? {
            return Ok(true);
        }
        let left = until.saturating_duration_since(clock::instant());
        if left.is_zero() || stop() {
            return Ok(false);
        }
        arrivals.wait(mark, left.min(SAFETY_NET));
    }
}

/// Place of a SCSI target on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// `session<sid>` of iSCSI, which has a SCSI host of its own.
    Session(u32),
    /// A target of an adapter for Fibre Channel, whose SCSI host is shared by everything that this
    /// port sees.
    Fabric(FcTarget),
}

impl Seat {
    /// Returns the target's address on its SCSI host; a session has one target.
    fn target(self) -> FcTarget {
        match self {
            Self::Session(_) => FcTarget { channel: 0, id: 0 },
            Self::Fabric(target) => target,
        }
    }
}

/// A logical unit, at the place where this host has it or would have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Number of the SCSI host, `host<host>`.
    pub host: u32,
    /// Target of that host.
    pub seat: Seat,
    /// The LUN.
    pub lun: Lun,
}

impl Unit {
    /// Returns the unit of this number in a session; `None` while the session has no place on this
    /// host.
    pub(crate) fn of(session: &SessionStatus, lun: Lun) -> Option<Self> {
        let seat = match &session.fc {
            Some(path) => Seat::Fabric(path.used?),
            None => Seat::Session(session.sid?),
        };
        Some(Self { host: session.host?, seat, lun })
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FcTarget { channel, id } = self.seat.target();
        write!(f, "{}:{channel}:{id}:{}", self.host, self.lun.0)
    }
}

/// Path of the folder of a session's one SCSI target.
pub(crate) fn session_target(host: u32, sid: u32) -> TreePath {
    TreePath::new("devices/platform")
        .join(format_args!("host{host}"))
        .join(format_args!("session{sid}"))
        .join(format_args!("target{host}:0:0"))
}

/// Path of the folder of a SCSI device. The folder of an adapter's device lies wherever the adapter
/// does.
fn address(unit: Unit) -> TreePath {
    match unit.seat {
        Seat::Session(sid) => session_target(unit.host, sid).join(unit),
        Seat::Fabric(_) => TreePath::new("class/scsi_device").join(unit).join("device"),
    }
}

/// Lists the units that this host has of a session. Over iSCSI these are all units of its SCSI
/// host, which is nobody else's; over Fibre Channel only those with its own volume's number.
pub(crate) fn units(sys: &dyn Tree, session: &SessionStatus) -> Result<Vec<Unit>, TreeError> {
    let Some(host) = session.host else { return Ok(Vec::new()) };
    match (&session.fc, session.sid) {
        (Some(path), _) => fabric_units(sys, host, path),
        (None, Some(sid)) => session_units(sys, host, sid),
        (None, None) => Ok(Vec::new()),
    }
}

fn fabric_units(sys: &dyn Tree, host: u32, path: &FcPath) -> Result<Vec<Unit>, TreeError> {
    let mut units = Vec::new();
    for target in &path.all {
        let unit = Unit { host, seat: Seat::Fabric(*target), lun: path.lun };
        if probe(sys, unit)? != Probe::Absent {
            units.push(unit);
        }
    }
    Ok(units)
}

/// Lists the units of an iSCSI session; a session without a folder has none.
fn session_units(sys: &dyn Tree, host: u32, sid: u32) -> Result<Vec<Unit>, TreeError> {
    let entries = match sys.list(&session_target(host, sid)) {
        Ok(entries) => entries,
        Err(error) if is_gone(error.errno) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let prefix = format!("{host}:0:0:");
    let lun = |name: &str| name.strip_prefix(&prefix)?.parse().ok().map(Lun);
    Ok(entries
        .iter()
        .filter(|entry| entry.kind != EntryKind::File)
        .filter_map(|entry| lun(&entry.name))
        .map(|lun| Unit { host, seat: Seat::Session(sid), lun })
        .collect())
}

/// The kernel's objects for a LUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probe {
    /// No SCSI device.
    Absent,
    /// A SCSI device without its block device: not there yet, or not any more.
    NoBlock,
    /// Name of the block device.
    Block(String),
}

/// Looks for the block device of a LUN.
pub(crate) fn probe(sys: &dyn Tree, unit: Unit) -> Result<Probe, TreeError> {
    let dir = address(unit);
    match sys.list(&dir.join("block")) {
        Ok(entries) => {
            let name =
                entries.into_iter().find(|entry| entry.kind != EntryKind::File).map(|entry| entry.name);
            Ok(name.map_or(Probe::NoBlock, Probe::Block))
        }
        Err(error) if is_gone(error.errno) => {
            Ok(if sys.is_dir(&dir)? { Probe::NoBlock } else { Probe::Absent })
        }
        Err(error) => Err(error),
    }
}

/// Reads the kernel's word for the state of a SCSI device: `running`, `blocked`, `offline`,
/// `transport-offline`.
pub(crate) fn state(sys: &dyn Tree, unit: Unit) -> String {
    sys.read_text(&address(unit).join("state"))
        .unwrap_or_else(|error| format!("unknown: {}", error.errno.desc()))
}

/// Scans for one LUN of one target. Synchronous: afterwards the SCSI device exists, or the LUN is
/// absent. May block until the session's recovery timer ends; over Fibre Channel, until the port's
/// `fast_io_fail_tmo` or `dev_loss_tmo` does.
pub(crate) fn scan(sys: &dyn Tree, unit: Unit) -> Result<(), TreeError> {
    let path = TreePath::new("class/scsi_host").join(format_args!("host{}", unit.host)).join("scan");
    let FcTarget { channel, id } = unit.seat.target();
    sys.write(&path, format!("{channel} {id} {}", unit.lun.0).as_bytes())
}

/// Lets the kernel read size and write protection again.
pub(crate) fn rescan(sys: &dyn Tree, unit: Unit) -> Result<(), TreeError> {
    sys.write(&address(unit).join("rescan"), b"1")
}

/// Removes a disk from this host. A disk that is gone, or going, is accepted.
pub(crate) fn delete(sys: &dyn Tree, unit: Unit) -> Result<(), TreeError> {
    match sys.write(&address(unit).join("delete"), b"1") {
        Err(error) if is_gone(error.errno) => Ok(()),
        result => result,
    }
}

/// Word for a disk's `state` that makes it refuse everything. The kernel compares a word with the
/// line feed after it: without one the write is EINVAL (`store_state_field`, 6.1).
pub(crate) const OFFLINE: &[u8] = b"offline\n";

/// Word for a disk's `state` that makes it run again; see [`OFFLINE`].
pub(crate) const RUNNING: &[u8] = b"running\n";

/// Makes a disk refuse everything at once, so that the commands of its removal do not wait for a
/// target that does not answer. Two other disks are accepted: one that is gone, and a blocked one,
/// which cannot be set offline but whose removal sends no command then.
pub(crate) fn offline(sys: &dyn Tree, unit: Unit) -> Result<(), TreeError> {
    match sys.write(&address(unit).join("state"), OFFLINE) {
        Err(error) if is_gone(error.errno) || error.errno == Errno::EINVAL => Ok(()),
        result => result,
    }
}

/// Has a disk run that was set offline: a removal that came to no end leaves it so, and no scan
/// changes that.
pub(crate) fn set_running(sys: &dyn Tree, unit: Unit) -> Result<(), TreeError> {
    let state = address(unit).join("state");
    match sys.read_text(&state) {
        Ok(word) if word == "offline" => sys.write(&state, RUNNING),
        Ok(_) => Ok(()),
        Err(error) if is_gone(error.errno) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV | Errno::ENXIO | Errno::ENOTDIR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_is_told() {
        let arrivals = Arrivals::default();
        let teller = arrivals.clone();
        let mark = arrivals.mark();
        let thread = std::thread::spawn(move || teller.tell());
        arrivals.wait(mark, Duration::from_mins(10));
        assert_ne!(arrivals.mark(), mark);
        thread.join().unwrap_or(());
        // A wait returns at once for an event that came before it.
        arrivals.wait(mark, Duration::from_mins(10));
        let never = || Ok::<_, ()>(false);
        assert_eq!(wait_until(&arrivals, Duration::ZERO, &|| false, never), Ok(false));
        assert_eq!(wait_until(&arrivals, Duration::from_mins(10), &|| true, never), Ok(false));
    }
}
