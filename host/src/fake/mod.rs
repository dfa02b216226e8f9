//! Behaving fakes of the machine, for laws and whole-system tests without a kernel: LIO's configfs
//! tree, initiators that log in and do I/O, LVM, block devices; and wrappers that count and that
//! fail.
//!
//! A [`FakeMachine`] is one storage node. Its parts see each other: a created volume is a device
//! that LIO can open, an exported volume cannot be removed, a session sees the LUNs that are mapped
//! at that moment. What must never happen: a panic, whatever is done in whatever order; and an
//! answer that is kinder than a real machine's.

mod blocks;
mod callers;
mod fibre;
mod folders;
mod images;
pub mod initiator;
mod lio;
mod lvm;
mod pr;
mod session;
mod state;
mod wrap;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use self::state::{Handle, Node};

use crate::LocalAddress;

pub use self::blocks::{FakeBlocks, OLD};
pub use self::callers::FakeCallers;
pub use self::fibre::LateWrite;
pub use self::folders::FakeFolders;
pub use self::images::{FakeImages, PartDeath};
pub use self::initiator::{FakeDisk, FakeHost, FakeTarget};
pub use self::lio::{FakeLio, PrOut, naa};
pub use self::lvm::FakeLvm;
pub use self::session::{Access, Answer, IO_BYTES, Identity, IoRefusal, LoginRefusal, Reach, SessionId};
pub use self::wrap::{Counted, Faulty};

/// Returns an address of loopback that is this process's own: nobody else listens there, and no
/// connection begins there, so a port that is free stays free.
pub fn own_loopback() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low)
}

/// A storage node; clones share one machine.
#[derive(Debug, Clone, Default)]
pub struct FakeMachine {
    handle: Handle,
}

impl FakeMachine {
    /// Makes a machine with the target core loaded, no backstore, no fabric, no volume group, no
    /// device. Every IP address counts as its own until [`FakeMachine::set_addresses`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns its `/sys/kernel/config/target`.
    pub fn lio(&self) -> FakeLio {
        FakeLio::new(self.handle.clone())
    }

    /// Watches folders of its `/sys/kernel/config/target`, for one process.
    pub fn folders(&self) -> FakeFolders {
        FakeFolders::new(self.handle.clone())
    }

    /// Follows the connections to its portals, for one process.
    pub fn callers(&self) -> FakeCallers {
        FakeCallers::new(self.handle.clone())
    }

    /// Returns its `/sbin/lvm`.
    pub fn lvm(&self) -> FakeLvm {
        FakeLvm::new(self.handle.clone())
    }

    /// Returns its block devices.
    pub fn blocks(&self) -> FakeBlocks {
        FakeBlocks::new(self.handle.clone())
    }

    /// Returns its programs that read images.
    pub fn images(&self) -> FakeImages {
        self.handle.lock().images.clone()
    }

    /// Adds a volume group of this size (rounded down to extents of 4 MiB).
    pub fn add_vg(&self, name: &str, bytes: u64) {
        self.handle.lock().lvm.add_group(name, bytes);
    }

    /// Adds a block device that holds data (nothing of it reads as zeros).
    pub fn add_device(&self, path: impl AsRef<Path>, bytes: u64) {
        self.handle.lock().add_device(path.as_ref(), Node::Block, bytes);
    }

    /// Adds a regular file.
    pub fn add_file(&self, path: impl AsRef<Path>, bytes: u64) {
        self.handle.lock().add_device(path.as_ref(), Node::File, bytes);
    }

    /// Removes a device node (its user keeps the device, as with a real one).
    pub fn remove_device(&self, path: impl AsRef<Path>) {
        self.handle.lock().devices.remove(path.as_ref());
    }

    /// Makes a device read-only or writable.
    pub fn set_read_only(&self, path: impl AsRef<Path>, read_only: bool) {
        if let Some(device) = self.handle.lock().devices.get_mut(path.as_ref()) {
            device.read_only = read_only;
        }
    }

    /// Sets if a device takes discards. At first a device that was added does, and an LV does as
    /// its group ([`FakeLvm::set_discards`]).
    pub fn set_discards(&self, path: impl AsRef<Path>, discards: bool) {
        if let Some(device) = self.handle.lock().devices.get_mut(path.as_ref()) {
            device.discards = discards;
        }
    }

    /// Lets a holder other than LIO (a mount, a dm table) open a device, or close it.
    pub fn set_busy(&self, path: impl AsRef<Path>, busy: bool) {
        if let Some(device) = self.handle.lock().devices.get_mut(path.as_ref()) {
            device.busy = busy;
        }
    }

    /// Leaves an LV's device suspended (`dmsetup suspend`), or resumes it. Commands to it wait all
    /// the while.
    pub fn set_suspended(&self, path: impl AsRef<Path>, suspended: bool) {
        if let Some(device) = self.handle.lock().devices.get_mut(path.as_ref()) {
            (device.suspended, device.held) = (suspended, suspended);
        }
        self.handle.wake();
    }

    /// Fails the power and brings it back: configfs is empty, sessions and commands in flight are
    /// gone, held devices answer again. Logical volumes are activated again unless
    /// [`FakeMachine::set_autoactivation`] turned that off.
    pub fn reboot(&self) {
        let mut machine = self.handle.lock();
        machine.lio = lio::Lio { has_port_ids: machine.lio.has_port_ids, ..lio::Lio::default() };
        machine.sessions.clear();
        machine.in_flight.clear();
        machine.login_threads.clear();
        for device in machine.devices.values_mut() {
            device.held = false;
            device.suspended = false;
            device.claimed = false;
            device.busy = false;
            device.errors = false;
            device.errors_wait = false;
        }
        machine.reactivate_volumes();
        drop(machine);
        self.handle.wake();
    }

    /// Counts the calls that wait at this moment, for a held device or for a folder that such a
    /// call holds.
    pub fn waiting(&self) -> usize {
        self.handle.waiting()
    }

    /// Sets if a reboot activates logical volumes (it does at first).
    pub fn set_autoactivation(&self, on: bool) {
        self.handle.lock().lvm.autoactivation = on;
    }

    /// Sets the IP addresses of this machine. A portal on another address exists, but nobody
    /// reaches it.
    pub fn set_addresses(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.handle.lock().addresses = Some(addresses.into_iter().collect());
    }

    /// Returns the addresses that were set, as a machine lists them.
    pub fn local_addresses(&self) -> Vec<LocalAddress> {
        let machine = self.handle.lock();
        machine.addresses.iter().flatten().map(|ip| LocalAddress::from(*ip)).collect()
    }

    /// Returns `true` if the machine has this address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.handle.lock().has_address(address)
    }

    /// Lets another program listen on a socket: a portal there is refused (EINVAL, as the kernel's
    /// bind fails).
    pub fn occupy(&self, socket: SocketAddr) {
        self.handle.lock().occupied.insert(socket);
    }

    /// Makes its kernel a later one, whose portal groups have their own relative port ids, in
    /// `rtpi` (6.12); or one like 6.1, which it is at first. Only for a machine with nothing
    /// exported yet.
    pub fn set_port_ids(&self, on: bool) {
        self.handle.lock().lio.has_port_ids = on;
    }

    /// Removes configfs' target folder: every path is ENOENT, and its objects are gone.
    pub fn unload_configfs(&self) {
        let mut machine = self.handle.lock();
        let has_port_ids = machine.lio.has_port_ids;
        machine.lio = lio::Lio { present: false, has_port_ids, ..lio::Lio::default() };
        machine.sessions.clear();
        for device in machine.devices.values_mut() {
            device.claimed = false;
        }
    }

    /// Loads the target core again, empty.
    pub fn load_configfs(&self) {
        self.handle.lock().lio.present = true;
    }
}

#[cfg(test)]
mod tests;
