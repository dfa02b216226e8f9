//! Why something could not be done with LVM or a device.

use std::path::PathBuf;

use mooring_host::{BlockError, CommandError, Errno};
use mooring_model::Cure;

/// A failure. What was done before it stays done; the next look and plan go on from there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no `lvm` on this machine.
    #[error("cannot {op}: LVM is not installed; install the package lvm2")]
    NoLvm {
        /// What was tried.
        op: String,
        /// Why it did not start.
        #[source]
        source: CommandError,
    },
    /// The kernel has no device mapper.
    #[error("cannot {op}: the kernel's device mapper is not there; run modprobe dm_mod")]
    NoDeviceMapper {
        /// What was tried.
        op: String,
    },
    /// LVM cannot check thin pools.
    #[error("cannot {op}: LVM has no thin_check; install the package thin-provisioning-tools")]
    NoThinTools {
        /// What was tried.
        op: String,
    },
    /// The command did not end in time, or said too much.
    #[error(
        "cannot {op}: LVM does not come to an end; see whether a disk under the group hangs (dmsetup info, dmesg)"
    )]
    Hung {
        /// What was tried.
        op: String,
        /// How it ended.
        #[source]
        source: CommandError,
    },
    /// There is no such group.
    #[error("cannot {op}: there is no volume group {group} (any more); see vgs")]
    NoGroup {
        /// What was tried.
        op: String,
        /// The group.
        group: String,
    },
    /// The group has become too full since it was looked at.
    #[error("cannot {op}: {group} has not enough free space: {said}")]
    NoSpace {
        /// What was tried.
        op: String,
        /// The group.
        group: String,
        /// LVM's words.
        said: String,
    },
    /// Somebody holds the device open.
    #[error(
        "cannot {op}: {object} is in use on this host (mounted, or below another device?); see lsblk and fuser"
    )]
    InUse {
        /// What was tried.
        op: String,
        /// The LV.
        object: String,
    },
    /// The group or LV is no longer as it was seen.
    #[error("cannot {op}: it has changed since it was looked at: {said}")]
    Changed {
        /// What was tried.
        op: String,
        /// LVM's words.
        said: String,
    },
    /// Something else that LVM refused.
    #[error("cannot {op}: LVM says (status {status}): {said}")]
    Lvm {
        /// What was tried.
        op: String,
        /// Its exit status.
        status: i32,
        /// Its words.
        said: String,
    },
    /// LVM's report cannot be read.
    #[error("cannot {op}: LVM's report is not what this agent can read: {why}")]
    Report {
        /// What was tried.
        op: String,
        /// What is wrong with it.
        why: String,
    },
    /// The active LV has no device node.
    #[error("{} is not there although its LV is active: see whether udevd runs (udevadm settle)", .path.display())]
    NoDevice {
        /// The node.
        path: PathBuf,
    },
    /// The device has not the size of its LV.
    #[error("{} has {found} bytes and its LV {wanted}: it was not touched; see dmsetup table", .path.display())]
    DeviceSize {
        /// The node.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The LV's size.
        wanted: u64,
    },
    /// The kernel refused a work on the device.
    #[error("cannot {op} {}: see dmesg for the disk's errors", .path.display())]
    Device {
        /// What was tried.
        op: &'static str,
        /// The node.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: BlockError,
    },
    /// There is no `dmsetup` on this machine.
    #[error("cannot {op}: dmsetup is not installed; install it (it comes with lvm2)")]
    NoDmsetup {
        /// What was tried.
        op: String,
        /// Why it did not start.
        #[source]
        source: CommandError,
    },
    /// The kernel waits for what is in flight below a device, and was not waited for any longer.
    #[error(
        "cannot {op} yet: what was sent to the disk below has not come back; tried again (see dmesg, and the disk)"
    )]
    InFlight {
        /// What was tried.
        op: String,
        /// How it ended.
        #[source]
        source: CommandError,
    },
    /// Something that `dmsetup` refused.
    #[error("cannot {op}: dmsetup says (status {status}): {said}")]
    Dmsetup {
        /// What was tried.
        op: String,
        /// Its exit status.
        status: i32,
        /// Its words.
        said: String,
    },
    /// The image that it is to be made from.
    #[error(transparent)]
    Image(#[from] crate::images::Error),
    /// The observer asked to stop.
    #[error("stopped before step {step} of {of}")]
    Stopped {
        /// The step, from 1.
        step: usize,
        /// Steps of the plan.
        of: usize,
    },
}

impl Error {
    /// Who can cure it.
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
            // Held for a moment, by udev as a rule; who holds it for longer is in the report.
            Self::InUse { .. }
            | Self::Hung { .. }
            | Self::InFlight { .. }
            | Self::Dmsetup { .. }
            | Self::Changed { .. }
            | Self::NoDevice { .. }
            | Self::Stopped { .. } => Cure::Retry,
        }
    }

    /// A device's error.
    pub(super) fn device(op: &'static str, path: PathBuf, source: BlockError) -> Self {
        match source.errno {
            Errno::EBUSY => Self::InUse { op: format!("{op} it"), object: path.display().to_string() },
            Errno::ENOENT | Errno::ENXIO => Self::NoDevice { path },
            _ => Self::Device { op, path, source },
        }
    }
}
