//! The first spec of a volume at an agent: it says that the volume is new, and the agent takes it
//! only if it knows nothing of the id. So nobody gets data that another volume has left under an
//! id.
//!
//! The agent recognises a repeated spec by its stamp. Therefore a first spec stays unchanged until
//! its agent was seen to have the volume: a name that changes meanwhile goes with the next spec. A
//! tombstone does not replace it either: the tombstone would destroy what another volume has left.
//! For a volume that is deleted that early, the first spec is sent once more. If the agent takes
//! it, a tombstone follows; if the agent refuses it, the agent has nothing of the volume.
//!
//! What must never happen here: data destroyed, or taken over, that was not made for this volume.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_api::{Message, reports, v1};
use mooring_model::{Cure, Phase};
use tokio::time::Instant;

use super::{AGAIN, Flow, Next, growth, manage, volume_specs};
use crate::agents::calls::CallError;
use crate::agents::{Heard, Held};
use crate::error::Refusal;
use crate::rules::Operation;
use crate::store::{self, Abort, Db, Event, Kind, SpecContent, SpecRow, VolumeRow};

/// The message about a volume whose id is taken. It names nobody: the other thing may be somebody
/// else's.
const ID_TAKEN: &str = "its storage node has something else under this id already: delete this volume, and make one under \
                        another id";

/// Returns `true` if this spec asks for a volume that its agent never had for this controller. If
/// another pool of the same agent may have had it, the agent stores a tombstone of it.
fn is_new(volume: &VolumeRow, spec: &SpecRow) -> bool {
    let begins = volume.operation.is_some_and(|now| now.is_coming() || now.is_destroying()) && !volume.taken;
    let first = match &volume.tried[..] {
        [] => spec.stamp.generation.counter == 1,
        tried => tried.iter().all(|tried| tried.agent != volume.agent || tried.pool == volume.pool),
    };
    spec.content.body.is_some() && begins && first
}

/// Returns the volume's next spec: `new`, or the present one while that is the first and differs in
/// nothing that its agent reads.
pub(super) fn next_content(volume: &VolumeRow, last: Option<&SpecContent>, new: SpecContent) -> SpecContent {
    let waits = volume.operation.is_some_and(Operation::is_coming) && !volume.taken;
    last.filter(|last| waits && last.body == new.body).cloned().unwrap_or(new)
}

/// Returns `true` if a volume that is to be destroyed was never seen at its agent, so that its
/// first spec stays.
pub(super) fn is_unconfirmed(db: &Db<'_>, volume: &VolumeRow) -> Result<bool, Abort> {
    let destroys = volume.operation.is_some_and(Operation::is_destroying) && !volume.taken;
    Ok(destroys && db.spec(volume.id, Kind::Volume)?.is_some_and(|spec| spec.content.body.is_some()))
}

impl Flow {
    /// Sends a volume's spec, and waits up to `wait_ms` for it. Returns `true` if it is in force.
    pub(super) async fn put_volume(
        &self,
        agent: &Held,
        volume: &VolumeRow,
        spec: &SpecRow,
        wait_ms: u32,
    ) -> Result<bool, CallError> {
        use v1::put_volume_request::Wish;
        let id = volume.id;
        let corrupt = |_| CallError::Lost("the stored spec of the volume does not decode".to_owned());
        let wish = match &spec.content.body {
            Some(body) => Wish::Spec(v1::VolumeSpec::decode(body.as_slice()).map_err(corrupt)?),
            None => Wish::Tombstone(store::SpecContent::volume_tombstone(spec.content.hard)),
        };
        let put = v1::PutVolumeRequest {
            sender: Some(self.sender()),
            volume_id: id.to_string(),
            stamp: Some(mooring_api::stamp_to_wire(&spec.stamp)),
            wish: Some(wish),
            opaque: spec.content.opaque.clone(),
            deadline_ms: wait_ms,
            new: is_new(volume, spec),
        };
        let heard = Heard::Answered(Instant::now());
        let answer = agent.put_volume(put).await?;
        let released = spec.content.body.is_none() && !spec.content.hard;
        if let Some(error) = manage::release_failed(agent, id, &answer).filter(|_| released) {
            return Err(error);
        }
        agent.took_volume(id, spec.stamp.clone());
        let report = reports::volume_of(answer.report.as_ref(), id);
        let gone = report.as_ref().is_some_and(|report| report.phase == Phase::Gone);
        if report.is_some_and(|report| !agent.saw_volume(&report, heard)) {
            self.look(agent, id).await?;
        }
        self.touch(id);
        Ok(answer.done || gone)
    }

    /// Handles an agent that has something else under the volume's id or NAA. No other pool is
    /// tried: hosts would meet two disks of one identity.
    pub(super) async fn id_refused(
        self: &Arc<Self>,
        agent: &Held,
        volume: &VolumeRow,
        said: String,
    ) -> Result<Next, Refusal> {
        let seen = volume.clone();
        if matches!(seen.operation, Some(Operation::Managing | Operation::ErrorManaging)) {
            return self.managing_failed(agent, &seen, said).await;
        }
        // Only the storage node is named to the creator: the other thing may belong to somebody
        // else.
        tracing::warn!(volume = %seen.id, agent = agent.entry.name, said, "the id of a new volume is taken");
        let why = format!(
            "storage node {} has something else under this id already: delete this volume, and make one under another id",
            agent.entry.name
        );
        let id = seen.id;
        let write = move |db: &Db<'_>| {
            let same = |now: &VolumeRow| {
                now.agent == seen.agent && now.pool == seen.pool && now.operation == seen.operation
            };
            let Some(now) = db.volume(id)?.filter(|now| same(now) && now.review.is_none()) else {
                return Ok(());
            };
            db.keep_message(Event::Create, &now.project, id, ID_TAKEN)?;
            db.unplace(id)?;
            Ok(db.set_operation(id, Some(Operation::Error), Some(&why))?)
        };
        agent.store.write("say that the id of a volume is taken", write).await?;
        self.touch(id);
        Ok(Next::Idle)
    }

    /// Deletes a volume that its agent was never seen to have: the first spec asks whether it has
    /// it.
    pub(super) async fn confirm_pass(
        self: &Arc<Self>,
        agent: &Held,
        volume: &VolumeRow,
        first: &SpecRow,
    ) -> Result<Next, Refusal> {
        let (id, was) = (volume.id, volume.operation);
        let has = if agent.volume_stamp(id).as_ref() == Some(&first.stamp) {
            true
        } else {
            match self.put_volume(agent, volume, first, growth::WAIT_MS).await {
                Ok(_) => true,
                Err(CallError::Stale(text)) => return self.review(agent, id, &text).await,
                Err(CallError::Refused { text, cure, .. }) if cure != Cure::Retry => {
                    tracing::info!(volume = %id, text, "a volume that is deleted was never made");
                    false
                }
                Err(error) => {
                    tracing::warn!(volume = %id, %error, "a volume is not deleted yet");
                    return Ok(Next::After(AGAIN));
                }
            }
        };
        let write = move |db: &Db<'_>| {
            if db.volume(id)?.is_none_or(|now| now.operation != was) {
                return Ok(());
            }
            if has {
                db.note_taken(id)?;
                volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
            } else {
                db.forget_spec(id)?;
                db.delete_volume(id)?;
            }
            Ok(())
        };
        agent.store.write("see whether a volume that is deleted was made", write).await?;
        self.touch(id);
        self.snapshot_gone(volume);
        Ok(Next::Again)
    }
}
