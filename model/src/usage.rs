//! Users of a connection's disk on its host, and their kind of access.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Cache, HostDisk, Problem};

/// The kind of a user.
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
    /// The kind's name.
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

/// The path of a user's reads and writes to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskAccess {
    /// Bypassing the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
    /// Through a memory mapping, whose pages cannot be dropped.
    Mapped,
}

impl DiskAccess {
    /// The access's name.
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

/// One user of the disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskUser {
    /// The kernel's name of the device in use: the disk, a partition, or a device on top of them.
    pub device: String,
    /// The kind of user.
    pub kind: DiskUserKind,
    /// The process's name, the mount point, or the name of the device on top; empty for a swap
    /// area.
    pub name: String,
    /// The process id; `None` unless the user is a process.
    pub pid: Option<u32>,
    /// The kind of access; `None` for mounts and swap areas.
    pub access: Option<DiskAccess>,
    /// The type of a mounted file system, such as `ext4`.
    pub filesystem: Option<String>,
}

/// The result of one check of a disk's users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCheck {
    /// The disk; `None` while there is no verified one, and then nothing was checked.
    pub disk: Option<HostDisk>,
    /// The page cache mode of the disk.
    pub cache: Option<Cache>,
    /// The users that were found.
    pub users: Vec<DiskUser>,
    /// Parts that could not be checked: they may hide users.
    pub unseen: Vec<String>,
    /// Wrong uses of a disk whose page cache is off.
    pub problems: Vec<Problem>,
}
