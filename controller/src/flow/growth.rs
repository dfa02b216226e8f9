//! Growing volumes: the storage agent extends the volume, and users see the new size when the agent
//! has reported it.
//!
//! A growth that is taken back restores the old size in the spec. The agent takes that spec as long
//! as nothing was appended to the volume, and then nothing will be. If the agent refuses it, the
//! growth stays.
//!
//! What must never happen here: a host that learns a size which the storage agent has not reported;
//! a size that counts as taken back while the agent stores it in its spec; a volume that is not
//! served because it does not grow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{ByteSize, Cure, Phase, VolumeReport};

use super::storage::Work;
use super::volume_specs::{self, GIB, SpecChanges};
use super::{AGAIN, Flow, Next};
use crate::agents::Held;
use crate::error::Refusal;
use crate::rules::Operation;
use crate::store::{Abort, Db, Event, VolumeRow};

/// Longest time, in milliseconds, for an agent's answer to a larger size. The agent looks at LVM
/// first.
pub(super) const WAIT_MS: u32 = 2_000;

/// Time between two looks at a growing volume: its report may be lost.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Message about a growth that could not be taken back any more.
const TOO_LATE: &str = "it had grown already when its growth was cancelled: a volume never shrinks";

/// Returns the volume. `None`: it has changed after this pass read it.
fn same(db: &Db<'_>, seen: &VolumeRow) -> Result<Option<VolumeRow>, Abort> {
    let stand = |of: &VolumeRow| (of.operation, of.size_gib, of.grows_from, of.growth_is_taken_back());
    Ok(db.volume(seen.id)?.filter(|now| stand(now) == stand(seen)))
}

/// Returns `true` if the agent reports the new size.
fn is_grown(seen: &VolumeRow, report: &VolumeReport) -> bool {
    report.phase == Phase::Ready && report.size >= ByteSize(u64::from(seen.size_gib) * GIB)
}

impl Flow {
    /// Handles the agent's refusal. It refused the larger size: the volume keeps the old one. Or it
    /// refused to take a growth back.
    pub(super) async fn extension_refused(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        text: &str,
    ) -> Result<Next, Refusal> {
        if work.volume.growth_is_taken_back() {
            return self.growth_stays(agent, work.volume.clone(), text).await;
        }
        let (seen, why) = (work.volume.clone(), format!("{}: {text}", agent.entry.name));
        tracing::warn!(volume = %seen.id, error = why, "the agent does not make a volume larger");
        let id = seen.id;
        // No work is open, so only an operator's word ends the error.
        let fault = format!(
            "{why}: it keeps its old size: when that is cured, `mooring volume reset-status {id} available` (in-use of an \
             attached one) ends this error, and it can be extended again"
        );
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            db.keep_refusal(Event::Extend, &volume.project, id, &why)?;
            db.fail_growth(id, &fault)?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("take back a volume's size", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(Next::Again)
    }

    /// Checks the agent's report for the end of a growth. Returns `true` if an end was stored.
    /// `false`: the export is next, since the volume is served meanwhile.
    pub(super) async fn growth_pass(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        mut report: VolumeReport,
    ) -> Result<bool, Refusal> {
        let seen = work.volume.clone();
        if seen.grows_from.is_none() {
            return Ok(false);
        }
        if !is_grown(&seen, &report) {
            // A report made after this answer may have come before it.
            match self.look(agent, seen.id).await {
                Ok(_) => report = agent.volume(seen.id).unwrap_or(report),
                Err(error) => tracing::debug!(volume = %seen.id, %error, "cannot look at a growth"),
            }
        }
        if is_grown(&seen, &report) {
            return self.has_grown(agent, seen).await.map(|()| true);
        }
        let taken = agent.volume_stamp(seen.id) == work.volume_spec.as_ref().map(|spec| spec.stamp.clone());
        if seen.growth_is_taken_back() {
            if taken {
                self.growth_returned(agent, seen).await?;
            }
            return Ok(taken);
        }
        let waits = report.problems.iter().any(|problem| problem.cure != Cure::Retry);
        if seen.operation != Some(Operation::Extending) || !waits || !taken {
            return Ok(false);
        }
        // The growth goes on by itself when that is cured: the spec stays.
        let problems = report.problems.iter().map(ToString::to_string);
        let why = format!("{}: {}", agent.entry.name, problems.collect::<Vec<_>>().join("; "));
        let id = seen.id;
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(()) };
            db.keep_refusal(Event::Extend, &volume.project, id, &why)?;
            Ok(db.set_operation(id, Some(Operation::ErrorExtending), Some(&why))?)
        };
        agent.store.write("keep why a volume does not grow", write).await?;
        self.touch(id);
        Ok(true)
    }

    async fn has_grown(self: &Arc<Self>, agent: &Held, seen: VolumeRow) -> Result<(), Refusal> {
        let id = seen.id;
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            if volume.growth_is_taken_back() {
                db.keep_message(Event::Extend, &volume.project, id, TOO_LATE)?;
                db.take_growth_back(&volume, false)?;
            }
            db.end_growth(id)?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("keep that a volume has grown", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(())
    }

    /// Ends a growth that was taken back: the agent has stored the old size, so nothing was
    /// appended, and nothing will be.
    async fn growth_returned(self: &Arc<Self>, agent: &Held, seen: VolumeRow) -> Result<(), Refusal> {
        let id = seen.id;
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            db.take_growth_back(&volume, false)?;
            db.return_growth(id)?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("keep that a growth was taken back", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(())
    }

    /// Handles an agent that refuses the old size: the volume has grown already, or that agent
    /// takes no smaller size for any volume. The size that its spec has is wanted again.
    async fn growth_stays(
        self: &Arc<Self>,
        agent: &Held,
        seen: VolumeRow,
        text: &str,
    ) -> Result<Next, Refusal> {
        let id = seen.id;
        // Only a present report tells which of the two it is.
        if let Err(error) = self.look(agent, id).await {
            tracing::debug!(volume = %id, %error, "cannot look at a growth that is not taken back");
            return Ok(Next::After(AGAIN));
        }
        if agent.volume(id).is_some_and(|report| is_grown(&seen, &report)) {
            self.has_grown(agent, seen).await?;
            return Ok(Next::Again);
        }
        let why = format!("{}: its growth could not be cancelled, and goes on: {text}", agent.entry.name);
        tracing::warn!(volume = %id, error = why, "the agent does not take a growth back");
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(SpecChanges::default()) };
            db.keep_refusal(Event::Extend, &volume.project, id, &why)?;
            db.take_growth_back(&volume, false)?;
            db.set_operation(id, Some(Operation::ErrorExtending), Some(&why))?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())
        };
        let spec_changes = agent.store.write("keep that a growth goes on", write).await?;
        self.go(id, &spec_changes.hosts);
        Ok(Next::Again)
    }
}
