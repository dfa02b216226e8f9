//! Fences compared with what storage agents export: whoever is fenced has no access that no row here knows.
//!
//! What must never happen here: an agent called compared that has not said all that it exports; a grant of a fenced host that is
//! passed over because this database does not know it.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_model::{AgentId, Initiator, VolumeId};

use super::Inner;
use crate::agents::exports::{Exports, listed};
use crate::agents::{Agent, task};
use crate::initiators::Initiators;
use crate::store::{Abort, AttachmentRow, Db, Taker};

/// Fences in force that are looked at.
const FENCES_MAX: u32 = 1_000;

/// Compares what an agent exports with the fences in force. Volumes of which something is to be taken away there.
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

/// An attachment here has this access, and the wish of its volume takes it away.
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

impl Inner {
    /// Compares what an agent exports now with the fences in force. The text: why that is not known.
    pub(crate) async fn compare_fences(self: &Arc<Self>, agent: &Arc<Agent>) -> Result<(), String> {
        let Some(id) = agent.id().filter(|_| agent.is_up()) else { return Err(agent.why_down()) };
        let exports = match agent.exports() {
            Some(exports) => {
                // What it has said is all, if it is still there.
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
