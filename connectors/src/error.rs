//! What can go wrong, and who can cure it.

use std::path::PathBuf;

use mooring_host::{DiskError, Errno, TreeError};
use mooring_model::{Cure, Step};

use crate::client::ClientError;
use crate::links::LinkError;
use crate::op::Op;

/// What was answered.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// By `mooring-sessiond`.
    #[error(transparent)]
    Sessions(#[from] ClientError),
    /// By sysfs.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// By the disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// By the run folder.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The name belongs to another disk than the one that was looked at.
    #[error("{} is not the disk any more that was looked at (sequence {found}, wanted {wanted})", .path.display())]
    Changed {
        /// The name.
        path: PathBuf,
        /// The sequence number of what has it now.
        found: u64,
        /// That of the disk that is meant.
        wanted: u64,
    },
    /// The disk is still there.
    #[error("the disk is still there {seconds} s after its removal began")]
    Lingers {
        /// How long that was waited for.
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

/// An error of making a connection true.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A look failed.
    #[error("cannot look at {what}")]
    View {
        /// At what.
        what: &'static str,
        /// What was answered.
        #[source]
        source: Box<Cause>,
    },
    /// A step of a plan failed; the steps before it are done, those after it were not begun.
    #[error("step {} of {total} failed ({step})", .index + 1)]
    Step {
        /// Which one, from 0.
        index: usize,
        /// Of how many.
        total: usize,
        /// The step.
        step: String,
        /// What was answered.
        #[source]
        source: Box<Cause>,
    },
    /// The observer asked to stop before this step.
    #[error("stopped before step {} of {total}", .index + 1)]
    Stopped {
        /// Before which one, from 0.
        index: usize,
        /// Of how many.
        total: usize,
    },
    /// Plan after plan, and something is left each time.
    #[error("not done after {rounds} looks: somebody else changes it at the same time; tried again")]
    Restless {
        /// How many.
        rounds: usize,
    },
}

impl Error {
    /// Who can cure it.
    pub fn cure(&self) -> Cure {
        match self {
            Self::View { source, .. } | Self::Step { source, .. } => source.cure(),
            Self::Stopped { .. } | Self::Restless { .. } => Cure::Retry,
        }
    }

    /// Whether `mooring-sessiond` did not answer: nothing is known of the session then.
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
