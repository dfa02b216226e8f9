//! State of a fake machine, behind one lock: LIO's objects, sessions, devices, volume groups.
//!
//! What must never happen: a panic, or two truths about one thing (who holds a device, who is
//! logged in): every fact is kept once, and facts that the kernel derives are derived.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::lio::{FabricKind, Lio};
use super::lvm::LvmState;
use super::session::{InFlight, Session};

/// State that all handles of one fake machine share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    machine: Mutex<Machine>,
    changed: Condvar,
    /// Number of threads that wait for a change, or are about to.
    waiting: AtomicUsize,
}

/// A handle on the shared machine; clones share one machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Handle(Arc<Shared>);

impl Handle {
    /// Locks the machine. A test thread that panicked elsewhere does not make the fake unusable.
    pub(super) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.0.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something changed.
    pub(super) fn wait<'a>(&self, guard: MutexGuard<'a, Machine>) -> MutexGuard<'a, Machine> {
        // Counted under the lock, which a change needs, too: no change comes in between unseen.
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.0.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Counts the calls that wait.
    pub(super) fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::SeqCst)
    }

    /// Wakes every thread that waits. Call it after the lock was held.
    pub(super) fn wake(&self) {
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            self.0.changed.notify_all();
        }
    }
}

/// State of the machine.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) lio: Lio,
    pub(super) sessions: BTreeMap<u64, Session>,
    pub(super) in_flight: Vec<InFlight>,
    pub(super) next_session: u64,
    pub(super) devices: BTreeMap<PathBuf, Device>,
    pub(super) next_minor: u32,
    pub(super) lvm: LvmState,
    /// Addresses of the machine. `None`: every address is one of them.
    pub(super) addresses: Option<BTreeSet<IpAddr>>,
    /// Error of every zeroing; `None`: it succeeds.
    pub(super) zeroing_fails: Option<nix::errno::Errno>,
    /// Error of every discard; `None`: it succeeds.
    pub(super) discarding_fails: Option<nix::errno::Errno>,
    /// Fibre Channel ports of this machine's adapters.
    pub(super) fc_ports: BTreeSet<(FabricKind, String)>,
    /// Folder in the place of `/`, for the files that LIO writes.
    pub(super) root: Option<PathBuf>,
    /// Programs that read images.
    pub(super) images: super::images::FakeImages,
    /// Watched folders of LIO's tree.
    pub(super) folders: super::folders::Watches,
    /// Login threads of portals that wait for commands, and the sessions of those commands.
    pub(super) login_threads: BTreeMap<SocketAddr, BTreeSet<u64>>,
    /// Sockets that another program listens on.
    pub(super) occupied: BTreeSet<SocketAddr>,
}

impl Machine {
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        address.is_unspecified() || self.addresses.as_ref().is_none_or(|known| known.contains(&address))
    }

    pub(super) fn has_fc_port(&self, kind: FabricKind, wwpn: &str) -> bool {
        self.fc_ports.contains(&(kind, wwpn.to_owned()))
    }

    pub(super) fn add_device(&mut self, path: &Path, node: Node, size: u64) {
        let minor = self.next_minor;
        self.next_minor += 1;
        let discards = node == Node::Block;
        self.devices.insert(path.to_owned(), Device { node, size, minor, discards, ..Device::default() });
    }
}

/// Object at a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Node {
    #[default]
    Block,
    File,
}

/// A block device or a regular file.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "attributes of the kernel")]
pub(super) struct Device {
    pub(super) node: Node,
    pub(super) size: u64,
    pub(super) minor: u32,
    pub(super) read_only: bool,
    /// Commands to the device stay in flight.
    pub(super) held: bool,
    /// LIO has opened the device exclusively.
    pub(super) claimed: bool,
    /// A foreign holder has opened the device: a mount, a dm table.
    pub(super) busy: bool,
    /// For an LV: an exchange of its table has stopped half-way.
    pub(super) suspended: bool,
    /// For an LV: its table consists of errors.
    pub(super) errors: bool,
    /// For an LV: such a table waits to come into force.
    pub(super) errors_wait: bool,
    /// The disk takes discards.
    pub(super) discards: bool,
    /// Byte ranges that read as zeros: start → end, disjoint and not adjacent.
    pub(super) zeroed: BTreeMap<u64, u64>,
    /// Byte ranges that were discarded, in the same form.
    pub(super) discarded: BTreeMap<u64, u64>,
    /// Number of writes of initiators that have reached the device.
    pub(super) landed: u64,
    /// Number of commands of initiators that have ended.
    pub(super) ended: u64,
    /// Writes of this machine, in their original pieces, by offset.
    pub(super) pieces: BTreeMap<u64, Vec<u8>>,
}

impl Device {
    pub(super) fn in_use(&self) -> bool {
        self.claimed || self.busy
    }

    /// Records that a range reads as zeros.
    pub(super) fn mark_zeroed(&mut self, start: u64, end: u64) {
        add(&mut self.zeroed, start, end);
        remove(&mut self.discarded, start, end);
    }

    /// Records that a range was discarded: it may read as anything.
    pub(super) fn mark_discarded(&mut self, start: u64, end: u64) {
        remove(&mut self.zeroed, start, end);
        add(&mut self.discarded, start, end);
    }

    /// Records that a range holds data again.
    pub(super) fn mark_written(&mut self, start: u64, end: u64) {
        remove(&mut self.zeroed, start, end);
        remove(&mut self.discarded, start, end);
    }

    /// Returns `true` if this range reads as zeros.
    pub(super) fn reads_zeros(&self, start: u64, end: u64) -> bool {
        start >= end || self.zeroed.range(..=start).next_back().is_some_and(|(_, stop)| *stop >= end)
    }

    pub(super) fn is_zeroed(&self) -> bool {
        self.reads_zeros(0, self.size)
    }
}

/// Adds a range to ranges that are disjoint and not adjacent, and stay so.
fn add(ranges: &mut BTreeMap<u64, u64>, mut start: u64, mut end: u64) {
    if start >= end {
        return;
    }
    let touching: Vec<u64> =
        ranges.range(..=end).filter(|(_, stop)| **stop >= start).map(|(from, _)| *from).collect();
    for from in touching {
        if let Some(stop) = ranges.remove(&from) {
            start = start.min(from);
            end = end.max(stop);
        }
    }
    ranges.insert(start, end);
}

/// Removes a range from such ranges.
fn remove(ranges: &mut BTreeMap<u64, u64>, start: u64, end: u64) {
    if start >= end {
        return;
    }
    let touching: Vec<(u64, u64)> =
        ranges.range(..end).filter(|(_, stop)| **stop > start).map(|(from, stop)| (*from, *stop)).collect();
    for (from, stop) in touching {
        ranges.remove(&from);
        if from < start {
            ranges.insert(from, start);
        }
        if stop > end {
            ranges.insert(end, stop);
        }
    }
}
