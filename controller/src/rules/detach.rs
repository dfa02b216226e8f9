//! Rules of detaches: which attachment may be detached, and which others go with it.
//!
//! What must never happen here: access revoked from an attachment that nobody named; a server's
//! disk taken by its own user behind the back of the compute service; "no session is live"
//! concluded from a missing report.

use mooring_model::AttachmentId;
use uuid::Uuid;

use super::Existing;
use crate::domain::{AttachViolation, RuleViolation};
use crate::initiators::Initiators;

/// Returns the attachments that go with one that is forced away. The target cuts the nexus (volume,
/// initiator) as a whole.
///
/// Siblings that are leaving anyway and still hold the grant go in the same step: they would keep
/// it alive. A sibling in use makes the call fail, unless the caller widens it to the host
/// (`widen`): then every attachment of the nexus goes.
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
    let holding: Vec<_> = siblings.filter(|other| other.wants_grant).collect();
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

/// Facts that decide whether an attachment may be deleted (CVE-2023-2088).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// `true`: a valid service token came along, so the compute service itself asks.
    pub service: bool,
    /// The attachment's server.
    pub instance: Option<Uuid>,
    /// `true`: it was connected once: it got connection info, or its host was told to connect.
    pub connected: bool,
    /// `true`: a session of its nexus is live, by the storage agent's report. `None`: there is no
    /// report.
    pub live: Option<bool>,
}

/// Allows a delete of an attachment to the compute service, and to others in three cases: no server
/// has the attachment, it was never connected, or the storage agent reports that no session of its
/// nexus is live.
///
/// If a disk is taken from a running server, its host keeps a device whose place another volume may
/// take.
pub fn deletion_allowed(deletion: Deletion) -> Result<(), RuleViolation> {
    match deletion.instance {
        Some(instance) if !deletion.service && deletion.connected && deletion.live != Some(false) => {
            Err(RuleViolation::Attach(AttachViolation::ServerUsesIt { instance, sessions_known: true }))
        }
        _ => Ok(()),
    }
}
