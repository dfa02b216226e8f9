//! Reverts of a volume to its newest snapshot: the storage agent does it, and reports when it is
//! done.
//!
//! The request stays in the volume's spec until the agent's report names this revert. A revert that
//! fails is withdrawn. Only when the agent has taken the spec without it is it known what the
//! volume holds: the revert may have been done meanwhile.
//!
//! What must never happen here: a revert that counts as done, or as failed, without the agent's
//! word; a snapshot that stays `restoring`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mooring_model::Cure;

use super::storage::{Work, said};
use super::volume_specs::{self, SpecChanges};
use super::waits::Waiting;
use super::{AGAIN, AGENT_WAIT_MS, Flow, Next};
use crate::agents::Held;
use crate::agents::calls::CallError;
use crate::domain::VolumeStatus;
use crate::error::Refusal;
use crate::rules::Operation;
use crate::store::{Abort, Db, Event, KeptRevert, VolumeRow};

/// Time for which a revert may fail for a reason that may cure itself.
const GIVE_UP: Duration = Duration::from_mins(1);

/// Returns the volume. `None`: it has changed after this pass read it.
fn same(db: &Db<'_>, seen: &VolumeRow) -> Result<Option<VolumeRow>, Abort> {
    let is_same =
        |now: &VolumeRow| now.operation == Some(Operation::Reverting) && now.revert() == seen.revert();
    Ok(db.volume(seen.id)?.filter(is_same))
}

/// Ends the `restoring` of a snapshot whose volume is not reverted to it any more.
fn give_back(db: &Db<'_>, snapshot: Option<VolumeRow>) -> Result<(), Abort> {
    if let Some(row) = snapshot.filter(|row| row.operation == Some(Operation::Restoring)) {
        db.set_operation(row.id, None, None)?;
        volume_specs::apply(db, row.id, &mut [], &BTreeSet::new())?;
    }
    Ok(())
}

impl Flow {
    /// Does the next step for a volume that is reverted, or for its snapshot.
    pub(super) async fn revert_pass(self: &Arc<Self>, agent: &Held, work: &Work) -> Result<Next, Refusal> {
        if work.volume.operation == Some(Operation::Restoring) {
            return self.restoring_pass(agent, &work.volume).await;
        }
        let (seen, id) = (&work.volume, work.volume.id);
        let (Some(kept), Some(spec)) = (seen.revert(), &work.volume_spec) else {
            return self
                .end_revert(agent, seen, Some("it is not known any more to which snapshot".to_owned()))
                .await;
        };
        let done = match self.put_volume(agent, &work.volume, spec, AGENT_WAIT_MS).await {
            Ok(done) => done,
            Err(CallError::Stale(text)) => return self.review(agent, id, &text).await,
            Err(CallError::Refused { text, cure, .. }) if cure != Cure::Retry && kept.withdrawn.is_none() => {
                return self.withdraw_revert(agent, seen, format!("{}: {text}", agent.entry.name)).await;
            }
            Err(CallError::Lost(text) | CallError::Refused { text, .. }) => {
                tracing::warn!(volume = %id, error = text, "a volume is not reverted yet");
                return Ok(Next::After(AGAIN));
            }
        };
        // A report made after this answer may have come before it.
        if self.look(agent, id).await.is_err() {
            return Ok(Next::After(AGAIN));
        }
        let Some(report) = agent.volume(id) else { return Ok(Next::After(AGAIN)) };
        if report.reverted == Some(kept.revert.id) {
            return self.end_revert(agent, seen, None).await;
        }
        // A failure that may cure itself (something holds the logical volume open) is waited for,
        // but not for ever.
        let given_up = self.facts.waits.waited_for(Waiting::Revert(kept.revert.id)) >= GIVE_UP;
        let stuck = report.problems.iter().any(|problem| given_up || problem.cure != Cure::Retry);
        match kept.withdrawn {
            Some(why) if done => self.end_revert(agent, seen, Some(why)).await,
            None if done => {
                let name = &agent.entry.name;
                let why = format!("{name}: its release cannot revert volumes: upgrade it");
                self.withdraw_revert(agent, seen, why).await
            }
            None if stuck => self.withdraw_revert(agent, seen, said(agent, &report.problems)).await,
            _ => Ok(Next::After(AGAIN)),
        }
    }

    async fn restoring_pass(self: &Arc<Self>, agent: &Held, snapshot: &VolumeRow) -> Result<Next, Refusal> {
        let (id, of) = (snapshot.id, snapshot.snapshot_of);
        let write = move |db: &Db<'_>| {
            let volume = of.map(|of| db.volume(of)).transpose()?.flatten();
            let reverts = |row: VolumeRow| {
                let to = row.revert().map(|kept| kept.revert.snapshot);
                row.operation == Some(Operation::Reverting) && to == Some(id)
            };
            if volume.is_some_and(reverts) { Ok(()) } else { give_back(db, db.volume(id)?) }
        };
        agent.store.write("look whether a volume is reverted to a snapshot", write).await?;
        self.touch(id);
        Ok(Next::Idle)
    }

    /// Takes a revert that fails out of the volume's spec. The agent has the last word.
    async fn withdraw_revert(
        self: &Arc<Self>,
        agent: &Held,
        seen: &VolumeRow,
        why: String,
    ) -> Result<Next, Refusal> {
        let (id, seen) = (seen.id, seen.clone());
        tracing::warn!(volume = %id, why, "a volume is not reverted");
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            let kept = volume.revert().map(|kept| KeptRevert { withdrawn: Some(why.clone()), ..kept });
            db.keep_revert(&volume, kept.as_ref())?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("take back a revert", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(Next::Again)
    }

    /// Ends the revert. `failed`: the reason why it was not done; `None` if it was. A volume that
    /// was not reverted gets the status `error`, as with Cinder, and holds what it held.
    async fn end_revert(
        self: &Arc<Self>,
        agent: &Held,
        seen: &VolumeRow,
        failed: Option<String>,
    ) -> Result<Next, Refusal> {
        let (id, seen) = (seen.id, seen.clone());
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            let snapshot = volume.revert().map(|kept| db.volume(kept.revert.snapshot)).transpose()?.flatten();
            give_back(db, snapshot)?;
            db.keep_revert(&volume, None)?;
            if let Some(why) = &failed {
                db.keep_refusal(Event::Revert, &volume.project, id, why)?;
                db.say_status(id, Some(VolumeStatus::Error))?;
            }
            db.set_operation(id, None, failed.as_deref())?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("keep how a revert ended", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(Next::Again)
    }
}
