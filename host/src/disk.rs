//! SCSI disks as a host sees them: fresh identity, read-only flag, size, sequence number, flush, and who holds one open.
//!
//! What must never happen here: an answer about identity from a cache; a call that follows a symbolic link to another disk
//! than the one that was opened.

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
    /// Writes out and drops what the page cache holds of it, and has the disk write out its own cache (SYNCHRONIZE CACHE). EACCES
    /// without CAP_SYS_ADMIN.
    fn flush(&self, device: &Path) -> Result<(), DiskError>;
    /// Writes out and drops what the page cache holds of it. The kernel keeps pages that a process has mapped, and pages that are
    /// written to meanwhile. EACCES without CAP_SYS_ADMIN.
    fn drop_pages(&self, device: &Path) -> Result<(), DiskError>;
    /// Sets how far its page cache reads ahead, in sectors of 512 bytes, rounded down to pages by the kernel; 0: not at all. EACCES
    /// without CAP_SYS_ADMIN.
    fn set_read_ahead(&self, device: &Path, sectors: u32) -> Result<(), DiskError>;
    /// The read-ahead of its page cache, in sectors of 512 bytes. Linux begins with 256, or more for a disk that names an optimal
    /// size of its transfers; udev rules change it.
    fn read_ahead(&self, device: &Path) -> Result<u32, DiskError>;
    /// Who holds it open; empty when nobody does. Partitions and devices on top count, this process does not. EPERM without
    /// CAP_SYS_PTRACE, EACCES when a process does not show what it has open: then nobody knows.
    fn holders(&self, device: &Path) -> Result<Vec<Holder>, DiskError>;
}
