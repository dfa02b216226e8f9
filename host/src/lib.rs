//! The one door to the machine: configfs and sysfs trees, commands, block-device ioctls, locks, addresses and the clock. Everything
//! above works on the traits of this crate, so that the same code runs on the kernel and on the behaving fakes
//! (feature `fake`).
//!
//! What must never happen here: a decision. This crate does what it is told, once, and says exactly what failed.
//! `unsafe` lives in the module `sys` alone.

mod block;
mod clock;
mod command;
mod disk;
mod dump;
mod iscsi;
mod lock;
mod net;
mod sys;
mod tree;
mod uevent;

#[cfg(feature = "contract")]
pub mod contract;

#[cfg(feature = "fake")]
pub mod fake;

pub use block::{BlockDevices, BlockError, KernelBlocks};
pub use clock::{Clock, SystemClock};
pub use command::{Command, CommandError, CommandOutput, Commands, HostCommands, OUTPUT_BYTES_MAX};
pub use disk::{DiskError, DiskOp, Disks, Holder};
pub use dump::{dump, dump_below};
pub use iscsi::{
    HEADER_BYTES, IscsiError, IscsiEvent, IscsiEvents, IscsiKernel, IscsiOp, IscsiParam, KernelSession,
    LOGIN_DATA_BYTES_MAX, StopMode,
};
pub use lock::{LockError, LockFile};
pub use net::local_addresses;
pub use tree::{Entry, EntryKind, KernelTree, Tree, TreeError, TreeOp, TreePath, tree_operations};
pub use uevent::{Uevent, UeventItem, Uevents};

/// The error numbers of the kernel.
pub use nix::errno::Errno;
