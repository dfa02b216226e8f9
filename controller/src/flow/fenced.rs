//! Comparison of fences with the exports of storage agents: a fenced host must not keep access that
//! no attachment in this database explains.
//!
//! What must never happen here: an agent marked as compared that has not reported all its exports;
//! a grant of a fenced host that is passed over because this database does not know it.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_model::{AgentId, Initiator, VolumeId};

use super::Flow;
use crate::agents::exports::{Exports, listed};
use crate::agents::{Agent, task};
use crate::initiators::Initiators;
use crate::store::{Abort, AttachmentRow, Db, Taker};

/// Largest number of fences in force in one comparison.
const FENCES_MAX: u32 = 1_000;

/// Compares an agent's exports with the fences in force. Returns the volumes from which access is
/// to be revoked there.
pub(crate) fn compare(
    db: &Db<'_>,
    name: &str,
    agent: AgentId,
    exports: &Exports,
) -> Result<BTreeSet<VolumeId>, Abort> {
    let mut changed = BTreeSet::new();
    for fence in db.fences(false, FENCES_MAX)? {
        let fenced: BTreeSet<_> = db.fenced_initiators(fence.id)?.into_iter().collect();
        for (volume, theirs) in exports {
            for initiator in theirs.intersection(&fenced) {
                if !is_going(db, *volume, agent, initiator)? {
                    db.take_nexus(Taker::Fence(fence.id), agent, *volume, initiator)?;
                    changed.insert(*volume);
                }
            }
        }
        db.note_fence_node(fence.id, name)?;
    }
    Ok(changed)
}

/// Returns `true` if an attachment of this database has this access, and the spec of its volume
/// revokes it.
fn is_going(db: &Db<'_>, volume: VolumeId, agent: AgentId, initiator: &Initiator) -> Result<bool, Abort> {
    let known = db.volume(volume)?.filter(|volume| volume.agent == agent && volume.review.is_none());
    if known.is_none() {
        return Ok(false);
    }
    let goes = |row: &AttachmentRow| {
        row.is_revoking()
            && row.initiator.as_ref().map(Initiators::each).into_iter().flatten().any(|one| one == *initiator)
    };
    Ok(db.attachments_of(volume)?.iter().any(goes))
}

impl Flow {
    /// Compares an agent's present exports with the fences in force. The error says why they are
    /// not known.
    pub(crate) async fn compare_fences(self: &Arc<Self>, agent: &Arc<Agent>) -> Result<(), String> {
        let Some(id) = agent.id().filter(|_| agent.is_up()) else { return Err(agent.why_down()) };
        let exports = match agent.exports() {
            Some(exports) => {
                // The reports are complete, provided that the agent still answers.
                agent.greet(task::CALL_LIMIT).await.map_err(|error| error.to_string())?;
                exports
            }
            None => listed(&agent.list_volumes(task::LIST_LIMIT).await.map_err(|error| error.to_string())?),
        };
        let name = agent.entry.name.clone();
        let write = move |db: &Db<'_>| compare(db, &name, id, &exports);
        let changed = self.unleased.write("compare fences with an agent", write).await;
        for volume in changed.map_err(|refusal| refusal.to_string())? {
            self.go(volume, &BTreeSet::new());
        }
        Ok(())
    }
}
