//! Image exports: the volume's storage agent copies it to a file on its node, and reports when that
//! is done.
//!
//! The request stays in the volume's spec until the agent's report names this copy. A copy that
//! fails, or is cancelled, is withdrawn. It is over when the agent has taken the spec without it:
//! the agent reads nothing from then on.
//!
//! What must never happen here: a copy that counts as done before the agent reports it; a volume
//! that hosts may change while it is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_model::Cure;

use super::storage::{Work, said};
use super::volume_specs::{self, SpecChanges};
use super::{AGAIN, AGENT_WAIT_MS, Flow, Next};
use crate::agents::Held;
use crate::agents::calls::CallError;
use crate::error::Refusal;
use crate::rules::Operation;
use crate::store::{Abort, Db, Event, KeptUpload, VolumeRow};

/// Returns the volume with its image export. `None`: the volume has changed after this pass read
/// it.
fn same(db: &Db<'_>, seen: &VolumeRow) -> Result<Option<(VolumeRow, Option<KeptUpload>)>, Abort> {
    let is_same =
        |now: &VolumeRow| now.operation == Some(Operation::Uploading) && now.upload() == seen.upload();
    Ok(db.volume(seen.id)?.filter(is_same).map(|row| {
        let kept = row.upload();
        (row, kept)
    }))
}

impl Flow {
    /// Does the next step of a volume's image export.
    pub(super) async fn upload_pass(self: &Arc<Self>, agent: &Held, work: &Work) -> Result<Next, Refusal> {
        let (seen, id) = (&work.volume, work.volume.id);
        let (Some(kept), Some(spec)) = (seen.upload(), &work.volume_spec) else {
            return self
                .end_upload(agent, seen, Some("it is not known any more to which file".to_owned()))
                .await;
        };
        let done = match self.put_volume(agent, &work.volume, spec, AGENT_WAIT_MS).await {
            Ok(done) => done,
            Err(CallError::Stale(text)) => return self.review(agent, id, &text).await,
            Err(CallError::Refused { text, cure, .. }) if cure != Cure::Retry && kept.withdrawn.is_none() => {
                return self.withdraw_upload(agent, seen, format!("{}: {text}", agent.entry.name)).await;
            }
            Err(CallError::Lost(text) | CallError::Refused { text, .. }) => {
                tracing::warn!(volume = %id, error = text, "a volume is not copied to a file yet");
                return Ok(Next::After(AGAIN));
            }
        };
        // A report made after this answer may have come before it.
        if self.look(agent, id).await.is_err() {
            return Ok(Next::After(AGAIN));
        }
        let Some(report) = agent.volume(id) else { return Ok(Next::After(AGAIN)) };
        if report.uploaded == Some(kept.upload.id) {
            return self.end_upload(agent, seen, None).await;
        }
        let failed = report.problems.iter().any(|problem| problem.cure != Cure::Retry);
        match kept.withdrawn {
            // The agent has stored the withdrawal, and has done all that it had to do.
            Some(why) if done => self.end_upload(agent, seen, Some(why)).await,
            None if failed => self.withdraw_upload(agent, seen, said(agent, &report.problems)).await,
            None if done => {
                let name = &agent.entry.name;
                let why = format!("{name}: its release cannot export volumes: upgrade it");
                self.withdraw_upload(agent, seen, why).await
            }
            _ => Ok(Next::After(AGAIN)),
        }
    }

    /// Takes a copy that fails out of the volume's spec.
    async fn withdraw_upload(
        self: &Arc<Self>,
        agent: &Held,
        seen: &VolumeRow,
        why: String,
    ) -> Result<Next, Refusal> {
        let (id, seen) = (seen.id, seen.clone());
        tracing::warn!(volume = %id, why, "a volume is not copied to a file");
        let write = move |db: &Db<'_>| {
            let Some((volume, Some(kept))) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            db.keep_upload(&volume, &KeptUpload { withdrawn: Some(why.clone()), ..kept })?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("take back an export", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(Next::Again)
    }

    /// Ends the image export. `failed`: the reason why it was not done; `None` if it was. The
    /// volume stays as it was.
    async fn end_upload(
        self: &Arc<Self>,
        agent: &Held,
        seen: &VolumeRow,
        failed: Option<String>,
    ) -> Result<Next, Refusal> {
        let (id, seen) = (seen.id, seen.clone());
        let write = move |db: &Db<'_>| {
            let Some((volume, kept)) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            let cancelled = kept.as_ref().is_some_and(|kept| kept.cancelled);
            if let Some(why) = failed.as_ref().filter(|_| !cancelled) {
                db.keep_refusal(Event::Upload, &volume.project, id, why)?;
            }
            if let Some(kept) = kept {
                // A copy that was done just before it was cancelled is done.
                let cancelled = kept.cancelled && failed.is_some();
                db.keep_upload(
                    &volume,
                    &KeptUpload { withdrawn: failed.clone(), cancelled, ended: true, ..kept },
                )?;
            }
            db.set_operation(id, None, None)?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("keep how an export ended", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(Next::Again)
    }
}
