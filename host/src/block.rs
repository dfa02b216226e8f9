//! Block devices: size and zeroing.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// An operation on a block device that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} {}: {} ({errno:?})", .path.display(), .errno.desc())]
pub struct BlockError {
    /// What was tried.
    pub op: &'static str,
    /// On which device node.
    pub path: PathBuf,
    /// The kernel's answer.
    pub errno: Errno,
}

/// Works on block devices.
pub trait BlockDevices: Send + Sync {
    /// The device's size in bytes; `None` when there is no such node.
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError>;
    /// Makes `length` bytes from `offset` read as zeros, durably (`BLKZEROOUT`, which may offload to the disk).
    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError>;
}

/// The block devices of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelBlocks;
