//! Errors of this crate, and who can cure each.

use mooring_host::{Errno, TreeError};
use mooring_model::{Cure, Step};

use crate::layout::Place;
use crate::op::Op;

/// Turns a missing object into `None`.
pub(crate) fn maybe<T>(result: Result<T, TreeError>) -> Result<Option<T>, TreeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// An error of this crate. Its source is the kernel's answer: operation, path, error number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Reading the tree failed.
    #[error("cannot look at the export in the kernel's target configuration")]
    View {
        /// The kernel's answer.
        source: TreeError,
    },
    /// A step of a plan failed. The steps before it are done; those after it were not begun.
    #[error("step {} of {total} failed ({step}){}{}", .index + 1, if hint.is_empty() { "" } else { ": " }, .hint)]
    Step {
        /// Index of the step, from 0.
        index: usize,
        /// Number of steps in the plan.
        total: usize,
        /// The step; secrets in it are `***`.
        step: String,
        /// The usual cause, and a remedy.
        hint: &'static str,
        /// The party that can cure it.
        cure: Cure,
        /// The kernel's answer.
        source: TreeError,
    },
    /// An expectation of a plan was not met. The steps before it are done; those after it were not
    /// begun.
    #[error("step {} of {total} found {found:?} ({step}): the next plan begins anew", .index + 1)]
    Unexpected {
        /// Index of the step, from 0.
        index: usize,
        /// Number of steps in the plan.
        total: usize,
        /// The step.
        step: String,
        /// The text that was read.
        found: String,
    },
    /// The observer stopped the plan before this step.
    #[error("stopped before step {} of {total}", .index + 1)]
    Stopped {
        /// Index of the step that was not begun, from 0.
        index: usize,
        /// Number of steps in the plan.
        total: usize,
    },
    /// The kernel has no target configuration.
    #[error("no iSCSI target in this kernel: {hint}")]
    NoFabric {
        /// A remedy.
        hint: &'static str,
        /// The kernel's answer.
        source: TreeError,
    },
}

impl Error {
    /// Says who can cure this error.
    pub fn cure(&self) -> Cure {
        match self {
            Self::View { source } if matches!(source.errno, Errno::EACCES | Errno::EPERM) => Cure::Operator,
            Self::View { .. } | Self::Stopped { .. } | Self::Unexpected { .. } => Cure::Retry,
            Self::Step { cure, .. } => *cure,
            Self::NoFabric { .. } => Cure::Operator,
        }
    }

    /// Makes the error of one step.
    pub(crate) fn step(index: usize, total: usize, step: &Step<Op>, source: TreeError) -> Self {
        let (hint, cure) = explain(&step.op, source.errno);
        Self::Step { index, total, step: step.op.to_string(), hint, cure, source }
    }

    /// Makes the error of a fabric folder that cannot be created.
    pub(crate) fn no_fabric(source: TreeError) -> Self {
        Self::NoFabric { hint: fabric_hint(source.errno).0, source }
    }
}

const NO_CORE: &str = "the target core is not there: modprobe target_core_mod, and mount configfs \
                       (mount -t configfs none /sys/kernel/config)";
const NO_RIGHT: &str = "this needs root with CAP_SYS_ADMIN";

fn fabric_hint(errno: Errno) -> (&'static str, Cure) {
    match errno {
        Errno::ENOENT => (NO_CORE, Cure::Operator),
        Errno::EINVAL => ("the kernel knows no iSCSI target: modprobe iscsi_target_mod", Cure::Operator),
        Errno::EACCES | Errno::EPERM => (NO_RIGHT, Cure::Operator),
        _ => ("", Cure::Retry),
    }
}

/// Explains an error number at this place (lio.md, b): its usual cause, and who can cure it.
fn explain(op: &Op, errno: Errno) -> (&'static str, Cure) {
    use Errno::{EACCES, EBUSY, EINVAL, ENODEV, ENOENT, ENOMEM, ENOTBLK, ENOTEMPTY, ENXIO, EPERM};
    match (op, Place::of(op.path()), errno) {
        (Op::Mkdir { .. }, Place::Fabric, errno) => fabric_hint(errno),
        (Op::Mkdir { .. }, Place::FcFabric, EINVAL) => {
            ("the kernel has no such target driver: modprobe tcm_fc, tcm_qla2xxx or efct", Cure::Operator)
        }
        (Op::Mkdir { .. }, Place::FcPort, EINVAL) => {
            ("no adapter of this machine has this port, or it is in initiator mode only", Cure::Operator)
        }
        (Op::Mkdir { .. }, Place::MappedLun, ENOENT) => {
            ("the ACL went with another volume's removal; the next plan makes it again", Cure::Retry)
        }
        (Op::Mkdir { .. }, Place::Hba, ENOENT) => (NO_CORE, Cure::Operator),
        (Op::Mkdir { .. }, Place::Hba, EINVAL) => {
            ("the kernel knows no iblock backstores: modprobe target_core_iblock", Cure::Operator)
        }
        (Op::Mkdir { .. }, Place::Backstore, ENOENT) => {
            ("the HBA went with another export's removal; the next plan makes it again", Cure::Retry)
        }
        (Op::Mkdir { .. }, Place::Portal(_), EINVAL) => (
            "the port is taken on this address: by another program, by a target on the wildcard address, or by \
             another portal group of this target",
            Cure::Operator,
        ),
        (Op::Write { .. }, Place::BackstoreAttribute("enable"), ENOENT | ENXIO | ENODEV) => {
            ("the block device is not there: is the logical volume active?", Cure::Operator)
        }
        (Op::Write { .. }, Place::BackstoreAttribute("enable"), EBUSY) => (
            "the block device is in use: mounted, below another device, or behind another backstore",
            Cure::Operator,
        ),
        (Op::Write { .. }, Place::BackstoreAttribute("enable"), EACCES) => {
            ("the block device is read-only", Cure::Operator)
        }
        (Op::Write { .. }, Place::BackstoreAttribute("enable"), ENOTBLK) => {
            ("the path is no block device", Cure::Operator)
        }
        (Op::Write { .. }, Place::BackstoreAttribute("vpd_unit_serial"), EINVAL) => {
            ("somebody exported the backstore before it had its serial", Cure::Operator)
        }
        (Op::Write { path, .. }, Place::Other, EINVAL) if path.name() == "enable" => {
            ("another portal group of this machine has its relative port id (rtpi)", Cure::Retry)
        }
        (Op::Rmdir { .. }, Place::Backstore, EBUSY) => {
            ("the backstore is a LUN of another target: remove it there", Cure::Operator)
        }
        (Op::Link { .. }, Place::LunLink, ENODEV) => {
            ("the backstore is not enabled; the next plan enables it", Cure::Retry)
        }
        (Op::Rmdir { .. }, _, EBUSY | ENOTEMPTY) => {
            ("somebody put something into it or linked to it meanwhile", Cure::Retry)
        }
        (_, _, EACCES | EPERM) => (NO_RIGHT, Cure::Operator),
        (_, _, ENOMEM) => ("the kernel is out of memory", Cure::Retry),
        (_, _, ENOENT) => ("it or its folder vanished meanwhile", Cure::Retry),
        _ => ("", Cure::Retry),
    }
}
