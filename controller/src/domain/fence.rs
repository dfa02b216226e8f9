//! Fences: a fenced host, and the progress of its fence.
//!
//! What must never happen here: "proven" for a fence of which anything is unknown.

use std::time::SystemTime;

use mooring_model::{AttachmentId, Initiator, Receipt, VolumeId};
use uuid::Uuid;

/// A host fenced from every volume: all that was revoked by one request, and the receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFence {
    /// The fence's id.
    pub id: Uuid,
    /// The requested name: an enrolled host, the host of connectors, or an initiator's own name.
    pub name: String,
    /// The host's initiator names: none of them is granted anything while the fence holds.
    pub initiators: Vec<Initiator>,
    /// The reason, for people.
    pub reason: Option<String>,
    /// The user who requested it.
    pub user: String,
    /// The request's id.
    pub request: String,
    /// The time since which it holds.
    pub fenced_at: SystemTime,
    /// The time at which it was lifted; `None` while it holds.
    pub lifted_at: Option<SystemTime>,
    /// The attachments that it ended or is ending.
    pub parts: Vec<FencePart>,
    /// Grants of the host at storage nodes that this database's specs do not revoke: of volumes
    /// that are unknown here, or in review.
    pub exports: Vec<FencedExport>,
    /// Storage nodes that may grant the host something.
    pub unknown: Vec<UnknownNode>,
    /// Initiator names that only users gave for the host: nothing is revoked from them.
    pub disputed: Vec<DisputedInitiator>,
}

/// The terms of a new fence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewFence {
    /// The reason, for people.
    pub reason: Option<String>,
    /// Further initiator names of the host, by its operator's word.
    pub also: Vec<Initiator>,
}

/// An initiator name that only users gave for a fenced host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisputedInitiator {
    /// The initiator name.
    pub initiator: Initiator,
    /// The hosts that have this name, as services, admins and enrolled agents say.
    pub hosts: Vec<String>,
    /// The attachments that claim it, with their volumes.
    pub attachments: Vec<(AttachmentId, VolumeId)>,
}

/// A fenced host's grant that is revoked as its storage node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedExport {
    /// The storage node.
    pub node: String,
    /// The volume, which need not be one of this database.
    pub volume: VolumeId,
    /// The host's initiator name.
    pub initiator: Initiator,
    /// The progress.
    pub state: FenceState,
}

/// A storage node whose exports were not compared with a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownNode {
    /// The storage node's name.
    pub node: String,
    /// The reason.
    pub why: String,
}

/// One attachment of a fenced host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencePart {
    /// The attachment.
    pub attachment: AttachmentId,
    /// The attachment's volume.
    pub volume: VolumeId,
    /// The progress.
    pub state: FenceState,
    /// Warnings that the host held the volume's reservation, or holds it until its grant is
    /// revoked.
    pub warnings: Vec<String>,
}

/// The progress of one part of a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FenceState {
    /// The grant is gone. The receipt is proven; `None` if nothing was ever granted.
    Cut(Option<Receipt>),
    /// The grant is gone, and commands may still land.
    Unproven(Receipt),
    /// Nothing is known to be gone yet, for this reason.
    Waits(String),
}

impl HostFence {
    /// The state of each part and each export.
    pub fn states(&self) -> impl Iterator<Item = &FenceState> {
        let exports = self.exports.iter().map(|export| &export.state);
        self.parts.iter().map(|part| &part.state).chain(exports)
    }

    /// Initiator names that may be the host's: no other host is known to have them.
    pub fn open_claims(&self) -> impl Iterator<Item = &DisputedInitiator> {
        self.disputed.iter().filter(|claim| claim.hosts.is_empty())
    }

    /// Returns `true` if no command of this host can land any more. Requires that every storage
    /// node has reported its grants, and that no initiator name is in doubt.
    pub fn is_proven(&self) -> bool {
        self.unknown.is_empty()
            && self.open_claims().next().is_none()
            && self.states().all(|state| matches!(state, FenceState::Cut(_)))
    }

    /// Returns `true` if a part may still have its grant.
    pub fn waits(&self) -> bool {
        !self.unknown.is_empty() || self.states().any(|state| matches!(state, FenceState::Waits(_)))
    }
}
