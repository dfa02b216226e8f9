//! One door to the machine: configfs and sysfs trees, commands, the kernel's iSCSI initiator, SCSI
//! disks, kernel events, block-device ioctls, locks, addresses, TCP connections and the clock.
//! Everything above works on the traits of this crate, so the code runs on the kernel as well as on
//! the behaving fakes (feature `fake`).
//!
//! What must never happen here: a decision. This crate does what it is told, once, and says exactly
//! what failed. `unsafe` lives in the module `sys` alone.

#[cfg(feature = "addresses")]
mod addresses;
mod block;
mod callers;
mod clock;
mod command;
mod disk;
mod dump;
mod folders;
mod front;
mod harden;
mod image;
mod iscsi;
mod lock;
mod net;
mod netlink;
mod pr;
mod remains;
mod sys;
mod tree;
mod uevent;

#[cfg(feature = "contract")]
pub mod contract;

#[cfg(feature = "fake")]
pub mod fake;

#[cfg(feature = "addresses")]
pub use addresses::local_addresses;
pub use block::{BlockDevices, BlockError, Flow, Followed, KernelBlocks, Mapped};
pub use callers::{CallerChanges, Callers, KernelCallers};
pub use clock::{Clock, SystemClock};
pub use command::{Command, CommandError, CommandOutput, Commands, HostCommands, OUTPUT_BYTES_MAX};
pub use disk::{
    DiskAccess, DiskError, DiskOp, DiskUser, Disks, Holder, KernelDisks, Layers, Top, Usage, User, layers,
};
pub use dump::{dump, dump_below};
pub use folders::{FolderChanges, FolderId, Folders, KernelFolders, Noted};
pub use front::{Front, FrontError, Incoming, Listener, next_caller};
pub use harden::{HardenWarning, harden};
pub use image::{
    ImageError, ImageFile, ImagePart, ImageServers, PartFormat, QemuServers, ServedImage, has_name, is_zeros,
    mark_of, part_name, parts,
};
pub use iscsi::{
    HEADER_BYTES, IscsiError, IscsiEvent, IscsiEvents, IscsiKernel, IscsiModules, IscsiOp, IscsiOpenError,
    IscsiParam, KernelIscsi, KernelIscsiEvents, KernelSession, LOGIN_DATA_BYTES_MAX, PortId, StopMode,
    iscsi_modules, parse_event,
};
pub use lock::{LockError, LockFile};
pub use net::{DialError, LocalAddress, dial, dial_here, drop_connection};
pub use pr::{PrCommand, PrError, PrNexus, PrSession, PrSessions};
pub use remains::{Remains, remains_of};
pub use tree::{Entry, EntryKind, KernelTree, Tree, TreeError, TreeOp, TreePath, tree_operations};
pub use uevent::{KernelUevents, Uevent, UeventItem, Uevents, parse_uevent};

/// The error numbers of the kernel.
pub use nix::errno::Errno;
