//! A volume that grows: its storage agent is told, and its users see the new size when the agent has seen it.
//!
//! One that is taken back is wished the old size. Its agent takes that as long as nothing of the growth is the volume's, and then
//! nothing ever will be; one that does not take it has the last word, too.
//!
//! What must never happen here: a host told of a size that the storage agent has not reported; a size taken back that the
//! agent keeps as a wish; a volume that is not served because it does not grow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{ByteSize, Cure, Phase, VolumeReport};

use super::storage::Work;
use super::wishes::{self, GIB, Rewished};
use super::{AGAIN, Inner, Next};
use crate::agents::Held;
use crate::error::Refusal;
use crate::rules::Operation;
use crate::store::{Abort, Db, Event, VolumeRow};

/// How long an agent may wait with its answer to a larger size. It looks at LVM first.
pub(super) const WAIT_MS: u32 = 2_000;

/// A report may be lost: it is looked at this often.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What is told of a growth that was to be taken back.
const TOO_LATE: &str = "it had grown already when that was to be taken back: a volume never shrinks";

/// The volume, if it still stands where this pass saw it.
fn same(db: &Db<'_>, seen: &VolumeRow) -> Result<Option<VolumeRow>, Abort> {
    let stand = |of: &VolumeRow| (of.operation, of.size_gib, of.grows_from, of.growth_is_taken_back());
    Ok(db.volume(seen.id)?.filter(|now| stand(now) == stand(seen)))
}

/// Its agent reports the new size.
fn is_grown(seen: &VolumeRow, report: &VolumeReport) -> bool {
    report.phase == Phase::Ready && report.size >= ByteSize(u64::from(seen.size_gib) * GIB)
}

impl Inner {
    /// Its agent took nothing of the larger size: what is there is what was there, and what is wanted again. Or it did not take
    /// that it is taken back.
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
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(Rewished::default()) };
            db.keep_message(Event::Extend, &volume.project, id, &why)?;
            db.fail_growth(id, &why)?;
            wishes::apply(db, id, &mut [], &BTreeSet::new())
        };
        let rewished = agent.store.write("take back a volume's size", write).await?;
        self.go(id, &rewished.hosts);
        Ok(Next::Again)
    }

    /// What has become of its growth, by the agent's report. Whether that was written down; if not, the export is next: it is
    /// served meanwhile.
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
            // An answer that was made before a report may have come after it.
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
        // It goes on by itself when that is cured: the wish stands.
        let problems = report.problems.iter().map(ToString::to_string);
        let why = format!("{}: {}", agent.entry.name, problems.collect::<Vec<_>>().join("; "));
        let id = seen.id;
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(()) };
            db.keep_message(Event::Extend, &volume.project, id, &why)?;
            Ok(db.set_operation(id, Some(Operation::ErrorExtending), Some(&why))?)
        };
        agent.store.write("keep why a volume does not grow", write).await?;
        self.touch(id);
        Ok(true)
    }

    async fn has_grown(self: &Arc<Self>, agent: &Held, seen: VolumeRow) -> Result<(), Refusal> {
        let id = seen.id;
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(Rewished::default()) };
            if volume.growth_is_taken_back() {
                db.keep_message(Event::Extend, &volume.project, id, TOO_LATE)?;
                db.take_growth_back(&volume, false)?;
            }
            db.end_growth(id)?;
            wishes::apply(db, id, &mut [], &BTreeSet::new())
        };
        let rewished = agent.store.write("keep that a volume has grown", write).await?;
        self.go(id, &rewished.hosts);
        Ok(())
    }

    /// Its agent has taken the old size, so nothing was appended and nothing will be: it is what it was.
    async fn growth_returned(self: &Arc<Self>, agent: &Held, seen: VolumeRow) -> Result<(), Refusal> {
        let id = seen.id;
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(Rewished::default()) };
            db.take_growth_back(&volume, false)?;
            db.return_growth(id)?;
            wishes::apply(db, id, &mut [], &BTreeSet::new())
        };
        let rewished = agent.store.write("keep that a growth was taken back", write).await?;
        self.go(id, &rewished.hosts);
        Ok(())
    }

    /// Its agent does not take the old size: the volume has grown already, or the agent takes no smaller size of any volume. What it
    /// keeps as a wish is wanted again.
    async fn growth_stays(
        self: &Arc<Self>,
        agent: &Held,
        seen: VolumeRow,
        text: &str,
    ) -> Result<Next, Refusal> {
        let id = seen.id;
        // Which of the two it is, only a report of now says.
        if let Err(error) = self.look(agent, id).await {
            tracing::debug!(volume = %id, %error, "cannot look at a growth that is not taken back");
            return Ok(Next::After(AGAIN));
        }
        if agent.volume(id).is_some_and(|report| is_grown(&seen, &report)) {
            self.has_grown(agent, seen).await?;
            return Ok(Next::Again);
        }
        let why = format!("{}: its growth is not taken back, and goes on: {text}", agent.entry.name);
        tracing::warn!(volume = %id, error = why, "the agent does not take a growth back");
        let write = move |db: &Db<'_>| {
            let Some(volume) = same(db, &seen)? else { return Ok(Rewished::default()) };
            db.keep_message(Event::Extend, &volume.project, id, &why)?;
            db.take_growth_back(&volume, false)?;
            db.set_operation(id, Some(Operation::ErrorExtending), Some(&why))?;
            wishes::apply(db, id, &mut [], &BTreeSet::new())
        };
        let rewished = agent.store.write("keep that a growth goes on", write).await?;
        self.go(id, &rewished.hosts);
        Ok(Next::Again)
    }
}
