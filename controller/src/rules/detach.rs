//! Who may be cut off, and who goes along.
//!
//! What must never happen here: an attachment cut that nobody named; a server's disk pulled by its own user behind the back
//! of the compute service; "no session is live" concluded from a report that is missing.

use mooring_model::AttachmentId;
use uuid::Uuid;

use super::Existing;
use crate::domain::{AttachViolation, RuleViolation};
use crate::initiators::Initiators;

/// Who goes along when one attachment is forced away. The target cuts the nexus (volume, initiator) as a whole.
///
/// Siblings that are leaving anyway and still hold the grant go in the same act, or they would keep it alive. One that is in use
/// refuses, unless the caller widens the act to the host (`widen`): then every attachment of the nexus goes.
pub fn may_force(
    id: AttachmentId,
    initiator: &Initiators,
    existing: &[Existing],
    widen: bool,
) -> Result<Vec<AttachmentId>, RuleViolation> {
    let siblings = existing.iter().filter(|other| other.id != id && other.shares(initiator));
    if widen {
        return Ok(siblings.map(|other| other.id).collect());
    }
    let holding: Vec<_> = siblings.filter(|other| other.granted).collect();
    match holding.iter().find(|other| !other.is_leaving()) {
        None => Ok(holding.iter().map(|other| other.id).collect()),
        Some(other) => Err(RuleViolation::Attach(AttachViolation::SharedAccess {
            id,
            other: other.id,
            status: other.status,
            initiator: initiator.clone(),
        })),
    }
}

/// What decides whether an attachment may be deleted (CVE-2023-2088).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// A valid service token came along: the compute service itself asks.
    pub service: bool,
    /// The attachment's server.
    pub instance: Option<Uuid>,
    /// It was connected once: it got connection info, or its host was told to connect.
    pub connected: bool,
    /// A session of its nexus is live, as the storage agent says. `None`: there is no report to tell from.
    pub live: Option<bool>,
}

/// Whether an attachment may be deleted: by the compute service; or when no server has it, or it never was connected, or
/// the storage agent sees that no session of its nexus is live.
///
/// A disk that is taken from a running server leaves the host with a device whose place another volume may take.
pub fn deletion_allowed(deletion: Deletion) -> Result<(), RuleViolation> {
    match deletion.instance {
        Some(instance) if !deletion.service && deletion.connected && deletion.live != Some(false) => {
            Err(RuleViolation::Attach(AttachViolation::ServerUsesIt { instance, sessions_known: true }))
        }
        _ => Ok(()),
    }
}
