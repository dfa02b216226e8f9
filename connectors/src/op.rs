//! Operations of a plan: each is one call on a session, a disk or a link.
//!
//! What must never happen here: the text of a secret. A login carries credentials; neither
//! `Display` nor `Debug` prints them.

use std::fmt;
use std::path::PathBuf;

use mooring_model::VolumeId;

use crate::device::Unit;
use crate::links::LinkName;
use crate::wire::SessionSpec;

/// A block device, and the sequence number that tells it from another one that got its name later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRef {
    /// Place of the disk.
    pub unit: Unit,
    /// Device node, such as `/dev/sda`.
    pub path: PathBuf,
    /// Sequence number in the kernel; 0 if it was not read.
    pub sequence: u64,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Asks `mooring-sessiond` for the session.
    Login {
        /// Spec of the session.
        spec: Box<SessionSpec>,
    },
    /// Scans for this one LUN, and waits a moment for its block device.
    Scan {
        /// Place of the disk.
        unit: Unit,
    },
    /// Reads size and write protection from the target again.
    Rescan {
        /// Place of the disk.
        unit: Unit,
    },
    /// Removes a wrong disk, so that a scan can find the one that is there now.
    DeleteStale {
        /// Place of the disk.
        unit: Unit,
    },
    /// Makes the host refuse writes, or accept them.
    SetReadOnly {
        /// The disk.
        disk: DiskRef,
        /// `true`: the host refuses writes.
        read_only: bool,
    },
    /// Records the read-ahead of the page cache, and turns it off.
    StopReadAhead {
        /// Volume of the disk.
        volume: VolumeId,
        /// The disk.
        disk: DiskRef,
        /// The read-ahead to put back later, in sectors.
        before: u32,
    },
    /// Puts back the recorded read-ahead, and removes the record.
    RestoreReadAhead {
        /// Volume of the disk.
        volume: VolumeId,
        /// The disk.
        disk: DiskRef,
        /// Read-ahead in sectors.
        to: u32,
    },
    /// Removes the record of the read-ahead.
    ForgetReadAhead {
        /// Volume of the record.
        volume: VolumeId,
    },
    /// Makes a path for users, or points it to this disk.
    Link {
        /// Volume of the path.
        volume: VolumeId,
        /// The path.
        link: LinkName,
        /// Disk that it points to.
        disk: DiskRef,
    },
    /// Removes a path for users.
    Unlink {
        /// Volume of the path.
        volume: VolumeId,
        /// The path.
        link: LinkName,
    },
    /// Writes out and drops the disk's pages in the page cache, before a path is handed out.
    DropPages {
        /// The disk.
        disk: DiskRef,
    },
    /// Writes out and drops the disk's pages in the page cache, and makes the disk write out its
    /// own cache.
    Flush {
        /// The disk.
        disk: DiskRef,
    },
    /// Removes the disk from this host, and waits until it is gone.
    DeleteDisk {
        /// Place of the disk.
        unit: Unit,
    },
    /// Ends the session, whose disk is gone.
    Logout {
        /// Volume of the session.
        volume: VolumeId,
    },
    /// Ends the session at once, whatever is queued.
    EndSession {
        /// Volume of the session.
        volume: VolumeId,
    },
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Login { spec } => match &spec.fc {
                None => write!(f, "log in to {}", spec.target),
                Some(route) => write!(f, "reach volume {} through port {}", spec.volume, route.port),
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
            Self::EndSession { volume } => write!(f, "end the session of volume {volume} at once"),
        }
    }
}
