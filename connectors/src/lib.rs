//! Connectors: this host's half of an attachment. They make and keep iSCSI sessions natively over
//! NETLINK_ISCSI (no `iscsiadm`, no `iscsid`), and use Fibre Channel as its adapters log in. They
//! verify the disks, flag them and give them stable paths.
//!
//! Two processes work here. `mooring-sessiond` keeps sessions alive and knows nothing else:
//! [`iscsi`] is the protocol without I/O, [`wire`] the daemon's own interface. The agent brings
//! connections up and down through it, with the four verbs of every domain.
//!
//! What must never happen here: a disk handed over before its identity was read freshly; a secret
//! in a log, an error, a `Debug` or a file that others can read; a session or disk of somebody else
//! touched; a silent downgrade of CHAP.

mod apply;
mod audit;
pub mod client;
mod clock;
mod device;
mod direct;
mod error;
mod fabric;
#[cfg(feature = "fake")]
pub mod fake;
pub mod iscsi;
mod line;
mod links;
mod named;
mod op;
mod plan;
pub mod release;
mod report;
pub mod sessiond;
mod sessions;
mod view;
pub mod vpd;
pub mod wire;

pub use apply::{Made, Observer, apply, make};
pub use audit::{BUFFERED_IO, UNSHARED_FILESYSTEM, disk_user, holder_name, is_udev, is_wrong, problems};
pub use device::{Arrivals, Parts, Seat, Unit};
pub use direct::DirectSessions;
pub use error::{Cause, Error};
pub use fabric::{Fabric, FcHostPort, Ways, fc_host_ports};
pub use links::{LinkError, LinkName, LinkSeen, Links, ReadAhead, RunLinks};
pub use op::{DiskRef, Op};
pub use plan::{Wanted, plan};
pub use report::{Names, orphan, report};
pub use sessions::{SessionChanges, Sessiond, Sessions, same};
pub use view::{Identity, LinkView, Memory, Once, SeenBlock, SeenDisk, Tried, View, holders, view};
