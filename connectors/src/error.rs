//! Errors of this crate, and who can cure each.

use std::path::PathBuf;

use mooring_host::{DiskError, Errno, TreeError};
use mooring_model::{Cure, Step};

use crate::client::ClientError;
use crate::links::LinkError;
use crate::op::Op;

/// The cause of an error, by its source.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// An error of `mooring-sessiond`.
    #[error(transparent)]
    Sessions(#[from] ClientError),
    /// An error of sysfs.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// An error of the disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// An error of the run folder.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The device name belongs to another disk than the one that was looked at.
    #[error("{} is not the disk any more that was looked at (sequence {found}, wanted {wanted})", .path.display())]
    Changed {
        /// Name of the device.
        path: PathBuf,
        /// Sequence number of the disk that has the name now.
        found: u64,
        /// Sequence number of the intended disk.
        wanted: u64,
    },
    /// The disk is still there after its removal.
    #[error("the disk is still there {seconds} s after its removal began")]
    Lingers {
        /// Seconds that the step waited.
        seconds: u64,
    },
}

impl Cause {
    fn cure(&self) -> Cure {
        let of = |errno: Errno| match errno {
            Errno::EACCES | Errno::EPERM | Errno::EROFS => Cure::Operator,
            _ => Cure::Retry,
        };
        match self {
            Self::Sessions(error) => error.cure(),
            Self::Tree(error) => of(error.errno),
            Self::Disk(error) => of(error.errno),
            Self::Link(error) if error.operator => Cure::Operator,
            Self::Link(_) | Self::Changed { .. } | Self::Lingers { .. } => Cure::Retry,
        }
    }
}

/// An error of bringing a connection up or down.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A look failed.
    #[error("cannot look at {what}")]
    View {
        /// Object of the look.
        what: &'static str,
        /// The cause.
        #[source]
        source: Box<Cause>,
    },
    /// A step of a plan failed. The steps before it are done; those after it were not begun.
    #[error("step {} of {total} failed ({step})", .index + 1)]
    Step {
        /// Index of the step, from 0.
        index: usize,
        /// Number of steps in the plan.
        total: usize,
        /// Text of the step.
        step: String,
        /// The cause.
        #[source]
        source: Box<Cause>,
    },
    /// The observer stopped the plan before this step.
    #[error("stopped before step {} of {total}", .index + 1)]
    Stopped {
        /// Index of the step that was not begun, from 0.
        index: usize,
        /// Number of steps in the plan.
        total: usize,
    },
    /// Plan after plan, and steps are left each time.
    #[error("not done after {rounds} looks: somebody else changes it at the same time; tried again")]
    Restless {
        /// Number of plans.
        rounds: usize,
    },
}

impl Error {
    /// Says who can cure this error.
    pub fn cure(&self) -> Cure {
        match self {
            Self::View { source, .. } | Self::Step { source, .. } => source.cure(),
            Self::Stopped { .. } | Self::Restless { .. } => Cure::Retry,
        }
    }

    /// Returns `true` if `mooring-sessiond` did not answer: then nothing is known of the session.
    pub fn is_sessiond_down(&self) -> bool {
        match self {
            Self::View { source, .. } | Self::Step { source, .. } => {
                matches!(**source, Cause::Sessions(ClientError::Connect { .. } | ClientError::Broken { .. }))
            }
            Self::Stopped { .. } | Self::Restless { .. } => false,
        }
    }

    pub(crate) fn view<C: Into<Cause>>(what: &'static str) -> impl FnOnce(C) -> Self {
        move |source| Self::View { what, source: Box::new(source.into()) }
    }

    pub(crate) fn step(index: usize, total: usize, step: &Step<Op>, source: Cause) -> Self {
        Self::Step { index, total, step: step.op.to_string(), source: Box::new(source) }
    }
}
