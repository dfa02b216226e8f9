//! The operations of a plan: each is one call on a session, a disk or a link.
//!
//! What must never happen here: the text of a secret. A login carries credentials; neither `Display` nor `Debug` prints them.

use std::fmt;
use std::path::PathBuf;

use mooring_model::VolumeId;

use crate::device::Unit;
use crate::links::LinkName;
use crate::wire::SessionWish;

/// A block device, and the sequence number that tells it from another one that got its name later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRef {
    /// Where it is.
    pub unit: Unit,
    /// Its node, as `/dev/sda`.
    pub path: PathBuf,
    /// The kernel's sequence number.
    pub sequence: u64,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Asks `mooring-sessiond` for the session.
    Login {
        /// As it is wanted.
        wish: Box<SessionWish>,
    },
    /// Looks for this one LUN, and waits a moment for its block device.
    Scan {
        /// Where.
        unit: Unit,
    },
    /// Reads size and write protection from the target again.
    Rescan {
        /// Where.
        unit: Unit,
    },
    /// Removes a disk that is not the wanted one, so that a scan can find what stands there now.
    DeleteStale {
        /// Where.
        unit: Unit,
    },
    /// Makes the host refuse writes, or take them.
    SetReadOnly {
        /// The disk.
        disk: DiskRef,
        /// Refuse.
        read_only: bool,
    },
    /// Records how far the page cache reads ahead, and makes it read ahead no more.
    StopReadAhead {
        /// Of which volume.
        volume: VolumeId,
        /// The disk.
        disk: DiskRef,
        /// The read-ahead to put back later, in sectors.
        before: u32,
    },
    /// Puts back the read-ahead that was recorded, and forgets the record.
    RestoreReadAhead {
        /// Of which volume.
        volume: VolumeId,
        /// The disk.
        disk: DiskRef,
        /// The read-ahead, in sectors.
        to: u32,
    },
    /// Forgets the read-ahead that was recorded.
    ForgetReadAhead {
        /// Of which volume.
        volume: VolumeId,
    },
    /// Makes a path for users, or points it here.
    Link {
        /// Of which volume.
        volume: VolumeId,
        /// The path.
        link: LinkName,
        /// Where it points.
        disk: DiskRef,
    },
    /// Removes a path for users.
    Unlink {
        /// Of which volume.
        volume: VolumeId,
        /// The path.
        link: LinkName,
    },
    /// Writes out and drops what the page cache holds, before a path is handed out.
    DropPages {
        /// The disk.
        disk: DiskRef,
    },
    /// Writes out and drops what the page cache holds, and has the disk write out its own cache.
    Flush {
        /// The disk.
        disk: DiskRef,
    },
    /// Removes the disk from this host, and waits until it is gone.
    DeleteDisk {
        /// Where.
        unit: Unit,
    },
    /// Ends the session, whose disk is gone.
    Logout {
        /// Of which volume.
        volume: VolumeId,
    },
    /// Ends the session at once, whatever is queued.
    Cut {
        /// Of which volume.
        volume: VolumeId,
    },
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Login { wish } => match &wish.fc {
                None => write!(f, "log in to {}", wish.target),
                Some(route) => write!(f, "reach volume {} through port {}", wish.volume, route.port),
            },
            Self::Scan { unit } => write!(f, "scan {unit}"),
            Self::Rescan { unit } => write!(f, "rescan {unit}"),
            Self::DeleteStale { unit } => write!(f, "delete the wrong disk {unit}"),
            Self::SetReadOnly { disk, read_only } => {
                write!(
                    f,
                    "set {} {}",
                    disk.path.display(),
                    if *read_only { "read-only" } else { "read-write" }
                )
            }
            Self::StopReadAhead { disk, .. } => write!(f, "stop the read-ahead of {}", disk.path.display()),
            Self::RestoreReadAhead { disk, to, .. } => {
                write!(f, "set the read-ahead of {} to {to} sectors", disk.path.display())
            }
            Self::ForgetReadAhead { volume } => {
                write!(f, "forget the recorded read-ahead of volume {volume}")
            }
            Self::Link { link, disk, .. } => write!(f, "link {link} -> {}", disk.path.display()),
            Self::Unlink { link, .. } => write!(f, "unlink {link}"),
            Self::DropPages { disk } => write!(f, "drop the page cache of {}", disk.path.display()),
            Self::Flush { disk } => write!(f, "flush {}", disk.path.display()),
            Self::DeleteDisk { unit } => write!(f, "delete the disk {unit}"),
            Self::Logout { volume } => write!(f, "log out of volume {volume}"),
            Self::Cut { volume } => write!(f, "cut the session of volume {volume}"),
        }
    }
}
