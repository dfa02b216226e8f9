//! Why the agent does not take a change: nothing was written, nothing was done.

use mooring_model::{ClusterId, Cure, Generation, Initiator, Naa, SpecError, StuckStep, VolumeId};

use crate::store::StoreError;

/// A change that was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The request itself is wrong.
    #[error("the request is not valid")]
    Invalid(#[source] SpecError),
    /// No spec of this volume was ever sent, or it was taken away.
    #[error("volume {0} is not known here: create it first (see `mooring volume list`)")]
    UnknownVolume(VolumeId),
    /// Another cluster owns this agent.
    #[error(
        "this agent belongs to cluster {pinned}, not to {sender}; to move it, stop it, set `cluster` in its configuration and start it"
    )]
    OtherCluster {
        /// The owner.
        pinned: ClusterId,
        /// Who sent the change.
        sender: ClusterId,
    },
    /// The sender works on old news.
    #[error(
        "generation {arrived} of {object} is older than {kept}, which is kept here: read the object again"
    )]
    Stale {
        /// The object.
        object: String,
        /// What came.
        arrived: Generation,
        /// What is kept.
        kept: Generation,
    },
    /// Two senders made the same generation with different content.
    #[error(
        "generation {generation} of {object} is kept here with another content: two writers; read the object again"
    )]
    Conflict {
        /// The object.
        object: String,
        /// The generation.
        generation: Generation,
    },
    /// The agent's configuration does not allow it.
    #[error("{0}")]
    NotAllowed(String),
    /// The state of things does not allow it now.
    #[error("{why}")]
    Precondition {
        /// What stands in the way.
        why: String,
        /// Who can take it away.
        cure: Cure,
    },
    /// The initiators are logged in, and the sender did not want them cut.
    #[error(
        "{initiator} is logged in to volume {volume} from {addresses}: detach it there first, or revoke by force"
    )]
    LiveSession {
        /// The initiator.
        initiator: Initiator,
        /// The volume.
        volume: VolumeId,
        /// Where it is logged in from.
        addresses: String,
    },
    /// The volume's identity on the wire is taken.
    #[error(
        "volume {volume} would be NAA {naa}, which is volume {other}: the first 25 hex digits of their ids agree; choose another id"
    )]
    NaaCollision {
        /// The new volume.
        volume: VolumeId,
        /// The identity.
        naa: Naa,
        /// Who has it.
        other: VolumeId,
    },
    /// A volume was to be new, and its id is not.
    #[error(
        "volume {volume} is to be a new one, and {known}: nothing was made, and what is here stays as it is; choose another id"
    )]
    KnownId {
        /// The volume.
        volume: VolumeId,
        /// Object that this agent has under the id.
        known: String,
    },
    /// An object under our name is not ours.
    #[error("{0}")]
    Foreign(String),
    /// There is no room.
    #[error("{0}")]
    NoSpace(String),
    /// A kernel call of this volume has not returned, so that the change could not even be checked.
    #[error("volume {volume} is busy: {why}; the change was not taken, try again")]
    Busy {
        /// The volume.
        volume: VolumeId,
        /// What it is busy with.
        why: String,
    },
    /// LVM could not be asked.
    #[error("cannot look at the volume groups")]
    Volumes(#[source] crate::volumes::Error),
    /// The target could not be looked at.
    #[error("cannot look at the target of volume {volume}")]
    Target {
        /// The volume.
        volume: VolumeId,
        /// Why.
        #[source]
        source: Box<mooring_targets::Error>,
    },
    /// The store did not take it.
    #[error("the change was not taken")]
    Store(#[source] StoreError),
}

impl Refusal {
    /// Who can cure it.
    pub fn cure(&self) -> Cure {
        match self {
            Self::Busy { .. } | Self::Stale { .. } => Cure::Retry,
            Self::NotAllowed(_) | Self::OtherCluster { .. } | Self::Foreign(_) | Self::NoSpace(_) => {
                Cure::Operator
            }
            Self::Precondition { cure, .. } => *cure,
            Self::Volumes(error) => error.cure(),
            Self::Target { source, .. } => source.cure(),
            Self::Store(error) => error.cure(),
            Self::Invalid(_)
            | Self::UnknownVolume(_)
            | Self::Conflict { .. }
            | Self::LiveSession { .. }
            | Self::NaaCollision { .. }
            | Self::KnownId { .. } => Cure::FixSpec,
        }
    }

    /// A change that cannot be made now.
    pub(crate) fn precondition(why: String, cure: Cure) -> Self {
        Self::Precondition { why, cure }
    }

    /// A change that could not be checked in time.
    pub(crate) fn busy(volume: VolumeId, stuck: Option<StuckStep>) -> Self {
        let why = stuck.map_or_else(
            || "it was not looked at in time".to_owned(),
            |stuck| format!("{} has not returned for {:.1} s", stuck.step, stuck.since.as_secs_f64()),
        );
        Self::Busy { volume, why }
    }

    /// A request that has one wrong field.
    pub(crate) fn field(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid(SpecError::new(field, why))
    }
}
