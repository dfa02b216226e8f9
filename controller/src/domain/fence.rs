//! Fences: a host that is cut off, and how far that is.
//!
//! What must never happen here: "proven" of a fence of which anything is not known.

use std::time::SystemTime;

use mooring_model::{AttachmentId, Initiator, Receipt, VolumeId};
use uuid::Uuid;

/// A host that is cut off from every volume: what was taken away with one word, and its receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFence {
    /// Its id.
    pub id: Uuid,
    /// As it was asked for: an enrolled host, the host of connectors, or an initiator's own name.
    pub name: String,
    /// Under which names it logs in: none of them is granted anything while the fence holds.
    pub initiators: Vec<Initiator>,
    /// Why, for people.
    pub reason: Option<String>,
    /// Who wanted it.
    pub user: String,
    /// With which request.
    pub request: String,
    /// Since when it holds.
    pub fenced_at: SystemTime,
    /// Since when it does not hold any more.
    pub lifted_at: Option<SystemTime>,
    /// What it took away, or is taking away.
    pub parts: Vec<FencePart>,
    /// What storage nodes grant to the host, or did, and the wishes of this database do not take away: of volumes that it does
    /// not know, or that are in review.
    pub exports: Vec<FencedExport>,
    /// Storage nodes of which nobody knows whether they grant the host anything.
    pub unknown: Vec<UnknownNode>,
    /// Under which names only users say that it logs in: nothing is taken from them.
    pub disputed: Vec<DisputedInitiator>,
}

/// What a fence is asked for with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewFence {
    /// Why, for people.
    pub reason: Option<String>,
    /// Names of initiators that are the host's, too, as its operator says.
    pub also: Vec<Initiator>,
}

/// A name of an initiator that only users say is a fenced host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisputedInitiator {
    /// The name.
    pub initiator: Initiator,
    /// Whose it is, as services, admins and enrolled agents say.
    pub hosts: Vec<String>,
    /// The attachments that say it, with their volumes.
    pub attachments: Vec<(AttachmentId, VolumeId)>,
}

/// Access of a fenced host that is taken away as its storage node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedExport {
    /// The storage node.
    pub node: String,
    /// The volume, which need not be one of this database.
    pub volume: VolumeId,
    /// Under which name the host has it.
    pub initiator: Initiator,
    /// How far it is.
    pub state: FenceState,
}

/// A storage node whose exports were not compared with a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownNode {
    /// Its name.
    pub node: String,
    /// Why not.
    pub why: String,
}

/// One attachment of a fenced host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencePart {
    /// The attachment.
    pub attachment: AttachmentId,
    /// Its volume.
    pub volume: VolumeId,
    /// How far it is.
    pub state: FenceState,
    /// That the host held the volume's reservation, in words; while it is not cut: that it holds it.
    pub warnings: Vec<String>,
}

/// How far an attachment of a fenced host is cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FenceState {
    /// It is gone. The receipt is proven; `None`: nothing was ever granted.
    Cut(Option<Receipt>),
    /// Its grant is gone, and commands may still land.
    Unproven(Receipt),
    /// Nothing is known to be gone yet, and why.
    Waits(String),
}

impl HostFence {
    /// How far each part and each export is.
    pub fn states(&self) -> impl Iterator<Item = &FenceState> {
        let exports = self.exports.iter().map(|export| &export.state);
        self.parts.iter().map(|part| &part.state).chain(exports)
    }

    /// Names of initiators that may be the host's: nobody says that they are another one's.
    pub fn open_claims(&self) -> impl Iterator<Item = &DisputedInitiator> {
        self.disputed.iter().filter(|claim| claim.hosts.is_empty())
    }

    /// Nothing of this host lands any more, anywhere. Not while a storage node has not said what it grants, nor while it is open
    /// whose a name of an initiator is.
    pub fn is_proven(&self) -> bool {
        self.unknown.is_empty()
            && self.open_claims().next().is_none()
            && self.states().all(|state| matches!(state, FenceState::Cut(_)))
    }

    /// Something may still have its grant.
    pub fn waits(&self) -> bool {
        !self.unknown.is_empty() || self.states().any(|state| matches!(state, FenceState::Waits(_)))
    }
}
