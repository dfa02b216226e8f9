//! The periodic look for specs that their agents do not have, because a wake-up was lost.
//!
//! A change wakes the jobs that send it: on this controller by a call, on others by a note. A note
//! can be lost. This look compares each spec with the stamp that its agent is known to store, so
//! that it needs no list of the kinds of changes.
//!
//! What must never happen here: a kind of change that is left out; a look whose cost grows with the
//! number of volumes.

use std::sync::Arc;

use mooring_model::VolumeId;

use super::Flow;
use crate::agents::listener::Job;
use crate::error::Refusal;
use crate::store::{Db, DueSpec, Kind};

/// Largest number of volumes in one look.
const VOLUMES_MAX: u32 = 500;

impl Flow {
    /// Kicks the jobs of specs that agents of this controller are not known to have, for some
    /// volumes after this one. Returns the volume after which the next look goes on; `None`: from
    /// the first.
    pub(crate) async fn kick_unsent(
        self: &Arc<Self>,
        after: Option<VolumeId>,
    ) -> Result<Option<VolumeId>, Refusal> {
        let read = move |db: &Db<'_>| Ok(db.due_specs_after(after, VOLUMES_MAX)?);
        let page = self.reads.read("compare specs with what was sent", read).await?;
        for due in page.specs {
            if self.is_unsent(&due) {
                self.kick(match due.kind {
                    Kind::Volume | Kind::Export => Job::Storage(due.volume),
                    Kind::Connection(host) => Job::Host(due.volume, host),
                });
            }
        }
        Ok(page.next)
    }

    /// Returns `true` if an agent that is up, and that this controller drives, is not known to
    /// store this spec. An agent that comes up gets all its specs anyway.
    fn is_unsent(&self, due: &DueSpec) -> bool {
        let Ok(agent) = self.facts.agents.up(due.agent) else { return false };
        let keeps = match due.kind {
            Kind::Volume => agent.volume_stamp(due.volume),
            Kind::Export => agent.export_stamp(due.volume),
            Kind::Connection(_) => agent.connection(due.volume).stamp,
        };
        agent.hold().is_ours() && keeps.as_ref() != Some(&due.stamp)
    }
}
