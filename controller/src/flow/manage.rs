//! Logical volumes that become volumes, and volumes that are unmanaged: the agent's answers to
//! both.
//!
//! What must never happen here: data destroyed of a volume that was not taken over, or that is
//! unmanaged; a volume that counts as unmanaged while its agent still manages it.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_api::{reports, v1};
use mooring_model::{Cure, Phase, VolumeId};

use super::storage::Work;
use super::{Flow, Next, cascade, volume_specs};
use crate::agents::calls::CallError;
use crate::agents::{Agent, Held};
use crate::error::Refusal;
use crate::rules::Operation;
use crate::store::{Db, Event, VolumeRow};

/// Returns the refusal in an agent's answer to the tombstone of an unmanaged volume. `None`: the
/// answer has no special meaning.
pub(super) fn release_failed(
    agent: &Agent,
    id: VolumeId,
    answer: &v1::PutVolumeResponse,
) -> Option<CallError> {
    let report = reports::volume_of(answer.report.as_ref(), id);
    let kept = report.is_some_and(|report| report.phase == Phase::Orphan);
    kept.then(|| CallError::Refused {
        text: format!("{}: its release cannot unmanage volumes: upgrade it", agent.entry.name),
        precondition: true,
        id_is_taken: false,
        cure: Cure::Operator,
    })
}

/// Returns the operation that a volume ends in when its agent does not take it away.
pub(super) fn failed_end(volume: &VolumeRow) -> Operation {
    match volume.operation {
        Some(Operation::Unmanaging | Operation::ErrorUnmanaging) => Operation::ErrorUnmanaging,
        _ => Operation::ErrorDeleting,
    }
}

impl Flow {
    /// Fails the manage operation: the logical volume stays as it was, apart from its name.
    pub(super) async fn managing_failed(
        self: &Arc<Self>,
        agent: &Held,
        volume: &VolumeRow,
        why: String,
    ) -> Result<Next, Refusal> {
        let (id, was) = (volume.id, volume.operation);
        tracing::warn!(volume = %id, why, "an LV could not become a volume");
        let write = move |db: &Db<'_>| {
            let Some(now) = db.volume(id)?.filter(|now| now.operation == was) else { return Ok(()) };
            if was == Some(Operation::Managing) {
                db.keep_refusal(Event::Manage, &now.project, id, &why)?;
            }
            Ok(db.set_operation(id, Some(Operation::ErrorManaging), Some(&why))?)
        };
        agent.store.write("keep why an LV is no volume", write).await?;
        self.touch(id);
        Ok(Next::Idle)
    }

    /// Fails the delete or the unmanage operation: the agent refused it. It is tried again when it
    /// is asked for again, or when there is news of the agent.
    pub(super) async fn taking_away_failed(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        why: String,
    ) -> Result<Next, Refusal> {
        let (id, was, end) = (work.volume.id, work.volume.operation, failed_end(&work.volume));
        let write = move |db: &Db<'_>| {
            let Some(now) = db.volume(id)?.filter(|now| now.operation == was) else { return Ok(None) };
            if was == Some(Operation::Unmanaging) {
                db.keep_refusal(Event::Unmanage, &now.project, id, &why)?;
            }
            db.set_operation(id, Some(end), Some(&why))?;
            let stays = cascade::volume_stays(db, &now, &why)?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
            Ok(stays)
        };
        let stays = agent.store.write("keep why a volume does not go", write).await?;
        // No kick: the agent would refuse the same at once, again and again.
        self.touch(id);
        if let Some(volume) = stays {
            self.touch(volume);
        }
        Ok(Next::Idle)
    }
}
