//! A host that its target shut out although its grant holds: somebody took its access away at the
//! target, and the storage agent has put it back.
//!
//! Such a host tries again only for a newer spec. It gets one when a fresh look at the target shows
//! its access: at most one for each of its reports, and after ever longer pauses. A target may go
//! on refusing for another reason, such as a wrong secret.
//!
//! What must never happen here: a newer spec for a host whose path is not wanted any more; a spec
//! that is renewed without a pause.

use std::time::Duration;

use mooring_model::{AgentId, ConnectionPhase, ConnectionReport, Cure, Generation, VolumeId};

use super::seen::is_seen;
use super::waits::Waiting;
use super::{Flow, Next};
use crate::agents::Held;
use crate::domain::AttachmentStatus;
use crate::error::Refusal;
use crate::store::{AttachmentRow, Db, Kind};

/// Pause before the first newer spec, and between two looks at a target that does not show the
/// access.
const FIRST_PAUSE: Duration = Duration::from_secs(20);

/// Number of times that the pause doubles.
const DOUBLINGS_MAX: u32 = 4;

/// Returns the pause before the next newer spec, after so many of them.
fn pause_after(told: u32) -> Duration {
    FIRST_PAUSE * (1_u32 << told.min(DOUBLINGS_MAX))
}

/// Returns `true` if the host has ended the session, and waits for a newer spec.
fn has_ended(report: &ConnectionReport) -> bool {
    match report.phase {
        ConnectionPhase::Forbidden => true,
        ConnectionPhase::Failed => report.problems.iter().any(|problem| problem.cure != Cure::Retry),
        _ => false,
    }
}

/// Returns `true` if the attachment is in use on this host, and is to stay so.
fn is_wanted(row: &AttachmentRow, host: AgentId) -> bool {
    let stays = row.status == AttachmentStatus::Attached && row.is_granted() && row.wants_path();
    stays && row.native == Some(host)
}

impl Flow {
    /// Gives a host that was shut out a newer spec of its connection, if its target admits it now.
    /// `at`: the generation of the present spec. Returns when to look again.
    pub(super) async fn shut_out_pass(
        &self,
        agent: &Held,
        id: VolumeId,
        host: AgentId,
        at: Generation,
    ) -> Result<Next, Refusal> {
        let waiting = Waiting::ShutOut(id, host, at);
        let seen = agent.connection(id);
        let ended = seen.report.is_some_and(|report| report.generation >= at && has_ended(&report));
        if !ended {
            // If it ends once more under this spec, the whole pause counts again.
            self.facts.waits.waits_no_more(waiting);
            return Ok(Next::Idle);
        }
        let read = move |db: &Db<'_>| Ok((db.volume(id)?.map(|volume| volume.agent), db.attachments_of(id)?));
        let (storage, rows) = self.reads.read_one("read who is shut out", read).await?;
        if !rows.iter().any(|row| is_wanted(row, host)) {
            return Ok(Next::Idle);
        }
        let waited = self.facts.waits.waited_for(waiting);
        if let Some(left) = pause_after(seen.told_anew).checked_sub(waited).filter(|left| !left.is_zero()) {
            return Ok(Next::After(left));
        }
        // However often the host reports, its target is looked at once in a pause.
        self.facts.waits.waits_anew(waiting);
        let Some(storage) = storage.and_then(|storage| self.facts.agents.up(storage).ok()) else {
            return Ok(Next::After(FIRST_PAUSE));
        };
        // Nobody reports that an access which was taken away is back.
        if let Err(error) = self.look(&storage, id).await {
            tracing::debug!(volume = %id, %error, "cannot look whether a target admits its host");
            return Ok(Next::After(FIRST_PAUSE));
        }
        let Some(export) = storage.export(id) else { return Ok(Next::After(FIRST_PAUSE)) };
        let write = move |db: &Db<'_>| {
            let rows = db.attachments_of(id)?;
            let kind = Kind::Connection(host);
            // The spec may have changed meanwhile: that one is newer, too.
            let spec = db.spec(id, kind)?.filter(|spec| spec.stamp.generation == at);
            let admitted = rows.iter().any(|row| is_wanted(row, host) && is_seen(&export, row, &rows));
            let renews = admitted && spec.is_some_and(|spec| spec.content.body.is_some());
            if renews {
                db.renew(id, kind, at)?;
            }
            Ok(renews)
        };
        if !agent.store.write("tell a host that was shut out anew", write).await? {
            return Ok(Next::After(FIRST_PAUSE));
        }
        tracing::info!(volume = %id, host = agent.entry.name, "its target admits the host again: its connection is sent anew");
        self.facts.waits.waits_no_more(waiting);
        agent.was_told_anew(id);
        Ok(Next::Again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let pauses: Vec<_> = (0..7).map(|told| pause_after(told).as_secs()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 320, 320]);
        assert_eq!(pause_after(u32::MAX).as_secs(), 320);
    }
}
