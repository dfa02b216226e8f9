//! Refusals of a change: nothing was written, and nothing was done.

use mooring_model::{ClusterId, Cure, Generation, Initiator, Naa, SpecError, StuckStep, VolumeId};

use crate::store::StoreError;

/// A change that was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The request itself is wrong.
    #[error("the request is not valid")]
    Invalid(#[source] SpecError),
    /// The store has no spec of this volume: none was ever sent, or it was taken away.
    #[error("volume {0} is not known here: create it first (see `mooring volume list`)")]
    UnknownVolume(VolumeId),
    /// Another cluster owns this agent.
    #[error(
        "this agent belongs to cluster {pinned}, not to {sender}; to move it, stop it, set `cluster` in its configuration and start it"
    )]
    OtherCluster {
        /// The cluster that owns this agent.
        pinned: ClusterId,
        /// The cluster that sent the change.
        sender: ClusterId,
    },
    /// The sender works on an old state.
    #[error(
        "generation {arrived} of {object} is older than {kept}, which is kept here: read the object again"
    )]
    Stale {
        /// The object.
        object: String,
        /// The generation that arrived.
        arrived: Generation,
        /// The generation that is kept.
        kept: Generation,
    },
    /// Two senders gave one generation different content.
    #[error(
        "generation {generation} of {object} is kept here with another content: somebody else changes it, too; read the object \
         again"
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
    /// The present state does not allow it.
    #[error("{why}")]
    Precondition {
        /// The obstacle.
        why: String,
        /// The cure of the obstacle.
        cure: Cure,
    },
    /// The initiators are logged in, and the sender did not want their sessions ended.
    #[error(
        "{initiator} is logged in to volume {volume} from {addresses}: detach it there first, or revoke by force"
    )]
    LiveSession {
        /// The initiator.
        initiator: Initiator,
        /// The volume.
        volume: VolumeId,
        /// The addresses from which the initiator is logged in.
        addresses: String,
    },
    /// Another volume has the volume's identity on the wire.
    #[error(
        "volume {volume} would have NAA {naa}, which volume {other} has: the first 25 hex digits of their ids agree; choose \
         another id"
    )]
    NaaCollision {
        /// The new volume.
        volume: VolumeId,
        /// The identity.
        naa: Naa,
        /// The volume that has the identity.
        other: VolumeId,
    },
    /// The id of a volume that was to be new is known already.
    #[error("volume {volume} cannot be made: {known}. Nothing was changed; choose another id")]
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
    /// A kernel call of this volume has not returned, and the change could not even be checked.
    #[error("volume {volume} is busy: {why}; the change was not taken, try again")]
    Busy {
        /// The volume.
        volume: VolumeId,
        /// The work that keeps the volume busy.
        why: String,
    },
    /// LVM could not be asked.
    #[error("cannot look at the volume groups")]
    Volumes(#[source] crate::lvm::Error),
    /// The agent could not look at the target.
    #[error("cannot look at the target of volume {volume}")]
    Target {
        /// The volume.
        volume: VolumeId,
        /// The cause.
        #[source]
        source: Box<mooring_targets::Error>,
    },
    /// The store did not take the change.
    #[error("the change was not taken")]
    Store(#[source] StoreError),
}

impl Refusal {
    /// The cure of the refusal.
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

    /// Refuses a change that cannot be made now.
    pub(crate) fn precondition(why: String, cure: Cure) -> Self {
        Self::Precondition { why, cure }
    }

    /// Refuses a change that could not be checked in time.
    pub(crate) fn busy(volume: VolumeId, stuck: Option<StuckStep>) -> Self {
        let why = stuck.map_or_else(
            || "no look at it has ended in time".to_owned(),
            |stuck| format!("{} has not returned for {:.1} s", stuck.step, stuck.since.as_secs_f64()),
        );
        Self::Busy { volume, why }
    }

    /// Refuses a request that has one wrong field.
    pub(crate) fn field(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid(SpecError::new(field, why))
    }
}
