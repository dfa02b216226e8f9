//! Errors of work with LVM or with a device.

use std::path::PathBuf;

use mooring_host::{BlockError, CommandError, Errno};
use mooring_model::Cure;

/// A failure. Earlier steps stay done; the next view and plan go on from there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no `lvm` on this machine.
    #[error("cannot {op}: LVM is not installed; install the package lvm2")]
    NoLvm {
        /// Operation that failed.
        op: String,
        /// Why the command did not start.
        #[source]
        source: CommandError,
    },
    /// The kernel has no device mapper.
    #[error("cannot {op}: the kernel's device mapper is not there; run modprobe dm_mod")]
    NoDeviceMapper {
        /// Operation that failed.
        op: String,
    },
    /// LVM cannot check thin pools.
    #[error("cannot {op}: LVM has no thin_check; install the package thin-provisioning-tools")]
    NoThinTools {
        /// Operation that failed.
        op: String,
    },
    /// The command exceeded its time limit, or its output was too long.
    #[error(
        "cannot {op}: LVM does not return; see whether a disk under the group hangs (dmsetup info, dmesg)"
    )]
    Hung {
        /// Operation that failed.
        op: String,
        /// How the command ended.
        #[source]
        source: CommandError,
    },
    /// There is no such group.
    #[error("cannot {op}: there is no volume group {group} (any more); see vgs")]
    NoGroup {
        /// Operation that failed.
        op: String,
        /// The group.
        group: String,
    },
    /// The group became too full after the view was taken.
    #[error("cannot {op}: {group} has not enough free space: {said}")]
    NoSpace {
        /// Operation that failed.
        op: String,
        /// The group.
        group: String,
        /// Error output of LVM.
        said: String,
    },
    /// Somebody holds the device open.
    #[error(
        "cannot {op}: {object} is in use on this host (mounted, or below another device?); see lsblk and fuser"
    )]
    InUse {
        /// Operation that failed.
        op: String,
        /// The LV.
        object: String,
    },
    /// The group or LV changed after the view was taken.
    #[error("cannot {op}: it has changed since it was looked at: {said}")]
    Changed {
        /// Operation that failed.
        op: String,
        /// Error output of LVM.
        said: String,
    },
    /// LVM refused for another reason.
    #[error("cannot {op}: LVM says (status {status}): {said}")]
    Lvm {
        /// Operation that failed.
        op: String,
        /// Exit status of the command.
        status: i32,
        /// Error output of the command.
        said: String,
    },
    /// LVM cannot read one group. The others are looked at all the same.
    #[error("{said}")]
    Unread {
        /// The error of the look at that group.
        said: String,
        /// Cure that the error needs.
        cure: Cure,
        /// `true` if the look did not come to an end.
        hung: bool,
    },
    /// LVM's report cannot be read.
    #[error("cannot {op}: LVM's report is not what this agent can read: {why}")]
    Report {
        /// Operation that failed.
        op: String,
        /// Why it cannot be read.
        why: String,
    },
    /// The active LV has no device node.
    #[error("{} is not there although its LV is active: see whether udevd runs (udevadm settle)", .path.display())]
    NoDevice {
        /// Device node.
        path: PathBuf,
    },
    /// The size of the device differs from that of its LV.
    #[error("{} has {found} bytes and its LV {wanted}: it was not touched; see dmsetup table", .path.display())]
    DeviceSize {
        /// Device node.
        path: PathBuf,
        /// Size of the device in bytes.
        found: u64,
        /// Size of the LV in bytes.
        wanted: u64,
    },
    /// The kernel refused an operation on the device.
    #[error("cannot {op} {}: see dmesg for the disk's errors", .path.display())]
    Device {
        /// Operation that failed.
        op: &'static str,
        /// Device node.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: BlockError,
    },
    /// There is no `dmsetup` on this machine.
    #[error("cannot {op}: dmsetup is not installed; install it (it comes with lvm2)")]
    NoDmsetup {
        /// Operation that failed.
        op: String,
        /// Why the command did not start.
        #[source]
        source: CommandError,
    },
    /// The kernel still waits for I/O in flight below a device, and the time limit has passed.
    #[error(
        "cannot {op} yet: commands that were sent to the disk below have not returned; tried again (see dmesg, and the disk)"
    )]
    InFlight {
        /// Operation that failed.
        op: String,
        /// How the command ended.
        #[source]
        source: CommandError,
    },
    /// `dmsetup` refused.
    #[error("cannot {op}: dmsetup says (status {status}): {said}")]
    Dmsetup {
        /// Operation that failed.
        op: String,
        /// Exit status of the command.
        status: i32,
        /// Error output of the command.
        said: String,
    },
    /// The image that the volume is made from cannot be used.
    #[error(transparent)]
    Image(#[from] crate::images::Error),
    /// The observer asked to stop.
    #[error("stopped before step {step} of {of}")]
    Stopped {
        /// Number of the step, from 1.
        step: usize,
        /// Number of steps in the plan.
        of: usize,
    },
}

impl Error {
    /// Returns who can cure the failure.
    pub const fn cure(&self) -> Cure {
        match self {
            Self::NoLvm { .. }
            | Self::NoDmsetup { .. }
            | Self::NoDeviceMapper { .. }
            | Self::NoThinTools { .. }
            | Self::NoGroup { .. }
            | Self::NoSpace { .. }
            | Self::DeviceSize { .. }
            | Self::Device { .. }
            | Self::Lvm { .. }
            | Self::Report { .. } => Cure::Operator,
            Self::Image(error) => error.cure(),
            Self::Unread { cure, .. } => *cure,
            // As a rule udev holds it for a moment; the report names a holder that stays longer.
            Self::InUse { .. }
            | Self::Hung { .. }
            | Self::InFlight { .. }
            | Self::Dmsetup { .. }
            | Self::Changed { .. }
            | Self::NoDevice { .. }
            | Self::Stopped { .. } => Cure::Retry,
        }
    }

    /// Returns `true` if LVM did not come to an end.
    pub const fn is_hung(&self) -> bool {
        matches!(self, Self::Hung { .. } | Self::Unread { hung: true, .. })
    }

    /// Returns `true` if the failure of a look says nothing of the group that was looked at: LVM
    /// itself does not work. LVM hangs at a disk, and thus at a group.
    pub(super) const fn concerns_all(&self) -> bool {
        matches!(self, Self::NoLvm { .. } | Self::NoDeviceMapper { .. })
    }

    /// Makes the error of an operation on a device.
    pub(super) fn device(op: &'static str, path: PathBuf, source: BlockError) -> Self {
        match source.errno {
            Errno::EBUSY => Self::InUse { op: format!("{op} it"), object: path.display().to_string() },
            Errno::ENOENT | Errno::ENXIO => Self::NoDevice { path },
            _ => Self::Device { op, path, source },
        }
    }
}
