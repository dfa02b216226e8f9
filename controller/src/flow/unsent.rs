//! The slow look for wishes that their agents do not know: whoever should have been told of a change was not.
//!
//! A change wakes the jobs that send it, on this controller by a call and on others by a note. A note can be lost. This look
//! compares what is wished with what each agent was heard to keep, so that it needs no list of what may change.
//!
//! What must never happen here: a kind of change that is left out; a look whose cost grows with the site.

use std::sync::Arc;

use mooring_model::VolumeId;

use super::Inner;
use crate::agents::listener::Job;
use crate::error::Refusal;
use crate::store::{Db, Kind, Wished};

/// Volumes of one look.
const VOLUMES_MAX: u32 = 500;

impl Inner {
    /// Kicks the jobs of wishes that agents of ours do not know, of some volumes behind this one. Returns where the next look
    /// goes on.
    pub(crate) async fn kick_unsent(
        self: &Arc<Self>,
        after: Option<VolumeId>,
    ) -> Result<Option<VolumeId>, Refusal> {
        let read = move |db: &Db<'_>| Ok(db.wished_after(after, VOLUMES_MAX)?);
        let page = self.reads.read("compare what is wished with what was sent", read).await?;
        for wished in page.wishes {
            if self.is_unsent(&wished) {
                self.kick(match wished.kind {
                    Kind::Volume | Kind::Export => Job::Storage(wished.volume),
                    Kind::Connection(host) => Job::Host(wished.volume, host),
                });
            }
        }
        Ok(page.next)
    }

    /// An agent that is up and ours is not known to keep this wish. When one comes up it is told everything.
    fn is_unsent(&self, wished: &Wished) -> bool {
        let Ok(agent) = self.agents.up(wished.agent) else { return false };
        let keeps = match wished.kind {
            Kind::Volume => agent.volume_stamp(wished.volume),
            Kind::Export => agent.export_stamp(wished.volume),
            Kind::Connection(_) => agent.connection(wished.volume).stamp,
        };
        agent.hold().is_ours() && keeps.as_ref() != Some(&wished.stamp)
    }
}
