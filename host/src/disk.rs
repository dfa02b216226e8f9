//! SCSI disks as a host sees them: fresh identity, read-only flag, size, sequence number, flush, and who holds one open.
//!
//! What must never happen here: an answer about identity from a cache; a call that follows a symbolic link to another disk
//! than the one that was opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

mod holders;
mod kernel;

pub use kernel::KernelDisks;

/// The operations, as errors name them.
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
    /// Looking for those who hold it open.
    Holders,
    /// Looking for what stands on it.
    Layers,
    /// Looking for those who use it, and how.
    Usage,
    /// Reading how much of it the page cache has not written.
    Unwritten,
}

/// An operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op:?} of {}: {} ({errno:?}){}", .path.display(), .errno.desc(), .detail)]
pub struct DiskError {
    /// What was tried.
    pub op: DiskOp,
    /// On which device.
    pub path: PathBuf,
    /// The kernel's answer; EIO for a SCSI status other than GOOD.
    pub errno: Errno,
    /// The SCSI status and sense, as `: CHECK CONDITION, sense 5/25/00`, or nothing.
    pub detail: String,
}

/// Somebody who holds a disk open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A process with an open descriptor.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A mounted file system.
    Mount(PathBuf),
    /// A swap area.
    Swap,
    /// A device on top: dm, md, loop, LIO.
    Device(String),
    /// Somebody in the kernel, or in another namespace, who cannot be named: an exclusive open was refused.
    Unknown,
}

impl Holder {
    /// The holder as a user whose reads and writes go through the page cache, for fakes. `None` for one without a name.
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

/// How a user's reads and writes get to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiskAccess {
    /// Past the page cache: O_DIRECT, or a driver that hands its requests on.
    Direct,
    /// Through the page cache.
    Buffered,
    /// By a memory mapping. BLKFLSBUF drops none of its pages.
    Mapped,
}

/// Who uses a disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// A process that has it open, or has it mapped.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
        /// How it reads and writes. A process with several descriptors is a user for each way.
        access: DiskAccess,
    },
    /// A mounted file system.
    Mount {
        /// Where, as its mount namespace shows it.
        point: PathBuf,
        /// Its kind, as `ext4`.
        filesystem: String,
    },
    /// A swap area.
    Swap,
    /// A device on top: dm, md, loop, LIO.
    Device {
        /// Its name.
        name: String,
        /// How it reads and writes.
        access: DiskAccess,
    },
}

/// A user, with the block device that it uses: the disk, a partition, or a device on top of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskUser {
    /// The kernel's name of the device, as `sda1`.
    pub device: String,
    /// Who.
    pub user: User,
}

/// The users of several disks, from one look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// The users of each disk, by the path that was asked for. A disk that has gone is absent.
    pub disks: BTreeMap<PathBuf, BTreeSet<DiskUser>>,
    /// What could not be looked at, as sentences for people. Users may be there.
    pub unseen: BTreeSet<String>,
}

/// A device on top of a disk that nothing else stands on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Top {
    /// Map of device-mapper, by its name there: LVM, LUKS, multipath.
    Map(String),
    /// RAID of the kernel, as `md127`.
    Raid(String),
    /// Loop device, as `loop0`.
    Loop(String),
    /// Another one, by the kernel's name.
    Other(String),
}

/// What must go before a disk can.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layers {
    /// Swap areas on it, and swap files in its file systems.
    pub swaps: Vec<PathBuf>,
    /// Mount points of its file systems and of what is mounted below them, in the order in which they can be unmounted. Never the root.
    pub mounts: Vec<PathBuf>,
    /// Devices on top that nothing else stands on.
    pub tops: Vec<Top>,
}

impl Layers {
    /// True if nothing stands on the disk.
    pub fn is_empty(&self) -> bool {
        self.swaps.is_empty() && self.mounts.is_empty() && self.tops.is_empty()
    }
}

/// Looks for what stands on a disk, its partitions included, in this process's mount namespace. Opens no device. Nothing if the
/// disk has gone.
pub fn layers(device: &Path) -> Result<Layers, DiskError> {
    kernel::layers(device)
}

/// Block devices of SCSI disks. Calls on a blocked device may hang until its session's recovery timer ends: they belong on
/// threads that can be lost.
pub trait Disks: Send + Sync {
    /// A fresh INQUIRY of a vital product data page, by SG_IO: 4 bytes of header and the page.
    fn inquiry(&self, device: &Path, page: u8) -> Result<Vec<u8>, DiskError>;
    /// Size in bytes.
    fn size(&self, device: &Path) -> Result<u64, DiskError>;
    /// The kernel's sequence number of this disk.
    fn sequence(&self, device: &Path) -> Result<u64, DiskError>;
    /// Makes the host refuse writes, or take them again. On 6.1 a writer that already holds the disk still writes: this is a
    /// hint beside the target's own protection, never the protection.
    fn set_read_only(&self, device: &Path, read_only: bool) -> Result<(), DiskError>;
    /// Whether the host refuses writes.
    fn read_only(&self, device: &Path) -> Result<bool, DiskError>;
    /// Writes out and drops what the page cache holds of it and of its partitions, and has the disk write out its own cache
    /// (SYNCHRONIZE CACHE). Pages that could not be written are lost: EIO once, to whoever asks first, and then no more. EACCES
    /// without CAP_SYS_ADMIN.
    fn flush(&self, device: &Path) -> Result<(), DiskError>;
    /// Writes out and drops what the page cache holds of it and of its partitions. The kernel keeps pages that a process has mapped,
    /// and pages that are written to meanwhile. EACCES without CAP_SYS_ADMIN.
    fn drop_pages(&self, device: &Path) -> Result<(), DiskError>;
    /// Sets how far its page cache reads ahead, in sectors of 512 bytes, rounded down to pages by the kernel; 0: not at all. EACCES
    /// without CAP_SYS_ADMIN.
    fn set_read_ahead(&self, device: &Path, sectors: u32) -> Result<(), DiskError>;
    /// The read-ahead of its page cache, in sectors of 512 bytes. Linux begins with 256, or more for a disk that names an optimal
    /// size of its transfers; udev rules change it. `u32::MAX` for 2 TiB and more.
    fn read_ahead(&self, device: &Path) -> Result<u32, DiskError>;
    /// Who holds it open; empty when nobody does. Partitions and devices on top count, this process does not. EPERM without
    /// CAP_SYS_PTRACE, EACCES when a process does not show what it has open: then nobody knows.
    fn holders(&self, device: &Path) -> Result<Vec<Holder>, DiskError>;
    /// Looks once for the users of all these disks, of what is on top of them too, and says what it could not look at. Opens no
    /// device. This process does not count. Sees all mount namespaces of the processes that it sees; not seen: a thread that
    /// has descriptors of its own (unshare).
    fn usage(&self, devices: &[PathBuf]) -> Result<Usage, DiskError>;
    /// Bytes that the page cache holds of it, and of what is on top, and that were not written to it. Opens no device: also of a disk
    /// whose session is lost. Right to within some pages for each CPU: the kernel adds up its counts from time to time. `None` if it
    /// does not say: no debugfs (`/sys/kernel/debug/bdi`, kernel 6.1 and newer).
    fn unwritten(&self, device: &Path) -> Result<Option<u64>, DiskError>;
}
