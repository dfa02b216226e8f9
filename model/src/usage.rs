//! Who uses the disk of a connection on its host, and how.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Cache, HostDisk, Problem};

/// What kind of user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskUserKind {
    /// A process that has the device open, or mapped.
    Process,
    /// A mounted file system.
    Mount,
    /// A swap area.
    Swap,
    /// A device on top: dm, md, loop, LIO.
    Device,
}

impl DiskUserKind {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Mount => "mount",
            Self::Swap => "swap",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for DiskUserKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a user's reads and writes get to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskAccess {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
    /// By a memory mapping: its pages cannot be dropped.
    Mapped,
}

impl DiskAccess {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Mapped => "mapped",
        }
    }
}

impl fmt::Display for DiskAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskUser {
    /// The kernel's name of the device that is used: the disk, a partition, or what stands on them.
    pub device: String,
    /// What kind.
    pub kind: DiskUserKind,
    /// The process's name, the mount point, or the name of the device on top; empty for a swap area.
    pub name: String,
    /// The process.
    pub pid: Option<u32>,
    /// `None` for mounts and swap areas.
    pub access: Option<DiskAccess>,
    /// The kind of a mounted file system, as `ext4`.
    pub filesystem: Option<String>,
}

/// The answer to one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCheck {
    /// The disk; `None` while there is no verified one: then nothing was looked at.
    pub disk: Option<HostDisk>,
    /// Whether its page cache is off.
    pub cache: Option<Cache>,
    /// Its users.
    pub users: Vec<DiskUser>,
    /// Parts that could not be looked at: there may be users.
    pub unseen: Vec<String>,
    /// Wrong uses of a disk whose cache is off.
    pub problems: Vec<Problem>,
}
