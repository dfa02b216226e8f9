//! SCSI disks as a host sees them: fresh identity, read-only flag, size, sequence number, flush,
//! holders and users.
//!
//! What must never happen here: an answer about identity from a cache; a call that follows a
//! symbolic link to another disk than the one that was opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

mod holders;
mod kernel;

pub use kernel::KernelDisks;

/// Operations, as errors name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskOp {
    /// `open(2)`.
    Open,
    /// SG_IO INQUIRY with EVPD and this page.
    Inquiry(u8),
    /// BLKGETSIZE64.
    Size,
    /// BLKGETDISKSEQ (kernel 5.15 and newer).
    Sequence,
    /// BLKROSET.
    SetReadOnly,
    /// BLKROGET.
    GetReadOnly,
    /// `fsync(2)` and BLKFLSBUF.
    Flush,
    /// BLKFLSBUF.
    DropPages,
    /// BLKRASET.
    SetReadAhead,
    /// BLKRAGET.
    GetReadAhead,
    /// Search for holders that have the disk open.
    Holders,
    /// Search for layers on the disk.
    Layers,
    /// Search for users, and their kind of access.
    Usage,
    /// Reading of the number of unwritten bytes in the page cache.
    Unwritten,
}

impl fmt::Display for DiskOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Inquiry(page) => return write!(f, "INQUIRY of page {page:#04x}"),
            Self::Size => "reading the size",
            Self::Sequence => "reading the sequence number",
            Self::SetReadOnly => "setting the read-only flag",
            Self::GetReadOnly => "reading the read-only flag",
            Self::Flush => "flush",
            Self::DropPages => "dropping the cached pages",
            Self::SetReadAhead => "setting the read-ahead",
            Self::GetReadAhead => "reading the read-ahead",
            Self::Holders => "search for holders",
            Self::Layers => "search for layers",
            Self::Usage => "search for users",
            Self::Unwritten => "count of unwritten bytes",
        })
    }
}

/// Failure of an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} of {}: {} ({errno:?}){}", .path.display(), .errno.desc(), .detail)]
pub struct DiskError {
    /// Operation that failed.
    pub op: DiskOp,
    /// Path of the device.
    pub path: PathBuf,
    /// The kernel's answer; EIO for a SCSI status other than GOOD.
    pub errno: Errno,
    /// SCSI status and sense, as `: CHECK CONDITION, sense 5/25/00`; otherwise empty.
    pub detail: String,
}

/// Holder that has a disk open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A process with an open descriptor.
    Process {
        /// Process id.
        pid: u32,
        /// Name of the process.
        name: String,
    },
    /// A mounted file system.
    Mount(PathBuf),
    /// A swap area.
    Swap,
    /// A device on top: dm, md, loop, LIO.
    Device(String),
    /// A holder in the kernel, or in another namespace, without a name: an exclusive open was
    /// refused.
    Unknown,
}

impl Holder {
    /// Returns the holder as a user whose reads and writes go through the page cache, for fakes.
    /// `None` for one without a name.
    #[cfg(feature = "fake")]
    pub fn as_user(&self) -> Option<User> {
        let access = DiskAccess::Buffered;
        Some(match self.clone() {
            Self::Process { pid, name } => User::Process { pid, name, access },
            Self::Mount(point) => User::Mount { point, filesystem: "ext4".to_owned() },
            Self::Swap => User::Swap,
            Self::Device(name) => User::Device { name, access: DiskAccess::Direct },
            Self::Unknown => return None,
        })
    }
}

/// Way of a user's reads and writes to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiskAccess {
    /// Past the page cache: O_DIRECT, or a driver that hands its requests on.
    Direct,
    /// Through the page cache.
    Buffered,
    /// By a memory mapping. BLKFLSBUF drops none of its pages.
    Mapped,
}

/// User of a disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// A process that has the disk open, or has it mapped.
    Process {
        /// Process id.
        pid: u32,
        /// Name of the process.
        name: String,
        /// Way of its reads and writes. A process with several descriptors is a user for each way.
        access: DiskAccess,
    },
    /// A mounted file system.
    Mount {
        /// Mount point, as its mount namespace shows it.
        point: PathBuf,
        /// Kind of the file system, such as `ext4`.
        filesystem: String,
    },
    /// A swap area.
    Swap,
    /// A device on top: dm, md, loop, LIO.
    Device {
        /// Name of the device.
        name: String,
        /// Way of its reads and writes.
        access: DiskAccess,
    },
}

/// A user with the block device that it uses: the disk, a partition, or a device on top of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskUser {
    /// The kernel's name of the device, such as `sda1`.
    pub device: String,
    /// The user.
    pub user: User,
}

/// The users of several disks, from one look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Users of each disk, by the path that was asked for. A disk that has gone is absent.
    pub disks: BTreeMap<PathBuf, BTreeSet<DiskUser>>,
    /// Objects that could not be looked at, as sentences for people. They may hide users.
    pub unseen: BTreeSet<String>,
}

/// A device on top of a disk, with nothing else on top of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Top {
    /// Map of device-mapper (LVM, LUKS, multipath), by its name there.
    Map(String),
    /// RAID of the kernel, such as `md127`.
    Raid(String),
    /// Loop device, such as `loop0`.
    Loop(String),
    /// Any other device, by the kernel's name.
    Other(String),
}

/// Layers that must go before a disk can.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layers {
    /// Swap areas on the disk, and swap files in its file systems.
    pub swaps: Vec<PathBuf>,
    /// Mount points of its file systems, and of mounts below them, in the order in which they can
    /// be unmounted. Never the root.
    pub mounts: Vec<PathBuf>,
    /// Devices on top, with nothing else on top of them.
    pub tops: Vec<Top>,
}

impl Layers {
    /// Returns `true` if the disk has no layers.
    pub fn is_empty(&self) -> bool {
        self.swaps.is_empty() && self.mounts.is_empty() && self.tops.is_empty()
    }
}

/// Finds the layers on a disk, its partitions included, in this process's mount namespace. Opens no
/// device. Finds none if the disk has gone.
pub fn layers(device: &Path) -> Result<Layers, DiskError> {
    kernel::layers(device)
}

/// Block devices of SCSI disks. Calls on a blocked device may hang until its session's recovery
/// timer ends: make them on threads that can be lost.
pub trait Disks: Send + Sync {
    /// Sends a fresh INQUIRY for a vital product data page, by SG_IO. Returns 4 bytes of header and
    /// the page.
    fn inquiry(&self, device: &Path, page: u8) -> Result<Vec<u8>, DiskError>;
    /// Reads the size in bytes.
    fn size(&self, device: &Path) -> Result<u64, DiskError>;
    /// Reads the kernel's sequence number of this disk.
    fn sequence(&self, device: &Path) -> Result<u64, DiskError>;
    /// Makes the host refuse writes, or accept them again. On 6.1 a writer that already holds the
    /// disk still writes: this is a hint beside the target's own protection, never the protection.
    fn set_read_only(&self, device: &Path, read_only: bool) -> Result<(), DiskError>;
    /// Returns `true` if the host refuses writes.
    fn read_only(&self, device: &Path) -> Result<bool, DiskError>;
    /// Writes out and drops the pages of the disk and of its partitions, and makes the disk write
    /// out its own cache (SYNCHRONIZE CACHE). Pages that could not be written are lost: the first
    /// caller that asks gets EIO, and later ones no error. EACCES without CAP_SYS_ADMIN.
    fn flush(&self, device: &Path) -> Result<(), DiskError>;
    /// Writes out and drops the pages of the disk and of its partitions. The kernel keeps pages
    /// that a process has mapped, and pages that are written to meanwhile. EACCES without
    /// CAP_SYS_ADMIN.
    fn drop_pages(&self, device: &Path) -> Result<(), DiskError>;
    /// Sets the read-ahead of the page cache, in sectors of 512 bytes, which the kernel rounds down
    /// to pages; 0 turns it off. EACCES without CAP_SYS_ADMIN.
    fn set_read_ahead(&self, device: &Path, sectors: u32) -> Result<(), DiskError>;
    /// Reads the read-ahead of the page cache, in sectors of 512 bytes. Linux begins with 256, or
    /// more for a disk that names an optimal size of its transfers; udev rules change it.
    /// `u32::MAX` for 2 TiB and more.
    fn read_ahead(&self, device: &Path) -> Result<u32, DiskError>;
    /// Finds the holders that have the disk open; empty when there are none. Partitions and devices
    /// on top count, this process does not. EPERM without CAP_SYS_PTRACE, EACCES when a process
    /// does not show its open files: then nobody knows the holders.
    fn holders(&self, device: &Path) -> Result<Vec<Holder>, DiskError>;
    /// Looks once for the users of all these disks and of the devices on top, and reports the
    /// objects that it could not look at. Opens no device. This process does not count. Sees all
    /// mount namespaces of the processes that it sees. It does not see a thread that has
    /// descriptors of its own (unshare).
    fn usage(&self, devices: &[PathBuf]) -> Result<Usage, DiskError>;
    /// Counts the bytes in the page cache, of the disk and of devices on top, that were not written
    /// to the disk. Opens no device, so it also works on a disk whose session is lost. Right to
    /// within some pages for each CPU: the kernel adds up its counts from time to time. `None` if
    /// the kernel does not tell: no debugfs (`/sys/kernel/debug/bdi`, kernel 6.1 and newer).
    fn unwritten(&self, device: &Path) -> Result<Option<u64>, DiskError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_operation_and_the_disk_in_words() {
        let said = |op| {
            let detail = ": CHECK CONDITION".to_owned();
            DiskError { op, path: "/dev/sda".into(), errno: Errno::EIO, detail }.to_string()
        };
        assert_eq!(
            said(DiskOp::Inquiry(0x83)),
            "INQUIRY of page 0x83 of /dev/sda: I/O error (EIO): CHECK CONDITION"
        );
        assert_eq!(said(DiskOp::Inquiry(0)).split(" of /dev").next(), Some("INQUIRY of page 0x00"));
        assert_eq!(
            said(DiskOp::SetReadOnly),
            "setting the read-only flag of /dev/sda: I/O error (EIO): CHECK CONDITION"
        );
    }
}
