//! Whether those who are attached are really there: the sessions of a nexus as its storage agent saw them last.
//!
//! What must never happen here: an alarm from what nobody has looked at, or from a look before the attach was over; an
//! address shown to somebody who may not see it.

use std::time::SystemTime;

use mooring_model::{AgentId, ExportReport, GrantReport};

use super::live::live_of;
use super::{Refusal, Service};
use crate::agents::logged_in;
use crate::domain::{AttachmentLive, AttachmentStatus, Caller, NexusLive};
use crate::policy::Target;
use crate::store::Db;

/// Volumes that are named for one storage node.
const NAMED_MAX: usize = 16;

/// Adds what the storage agent of this name says of an attachment's nexus.
pub(super) fn add(live: &mut AttachmentLive, name: &str, report: &ExportReport, grant: Option<&GrantReport>) {
    live.session = Some(grant.is_some_and(|grant| logged_in(grant).next().is_some()));
    let Some(grant) = grant else { return };
    let since = live.attachment.attached_at.unwrap_or(SystemTime::UNIX_EPOCH);
    let missing = live.attachment.status == AttachmentStatus::Attached
        && grant.seen.is_some()
        && live.session == Some(false)
        && report.looked.is_some_and(|looked| looked > since);
    if missing {
        live.problems.push(format!(
            "{name}: {} should be logged in and is not: its host is down, does not reach the portals, or has logged out",
            grant.initiator
        ));
    }
    live.nexus = Some(NexusLive {
        storage: name.to_owned(),
        sessions: logged_in(grant).cloned().collect(),
        counters: grant.counters,
        looked: report.looked,
        missing,
    });
}

impl Service {
    /// The same for this caller: addresses are for those who may see them.
    pub(super) fn shown(&self, caller: &Caller, mut live: AttachmentLive) -> AttachmentLive {
        if let Some(nexus) = &mut live.nexus
            && !self.inner.policies().allows("mooring:sessions", caller, &Target::default())
        {
            nexus.sessions.clear();
        }
        live
    }

    /// What is missing at each storage node, in words.
    pub(super) async fn missing_sessions(&self) -> Result<Vec<(AgentId, String)>, Refusal> {
        let missing = self.missing_attachments(NAMED_MAX).await?;
        Ok(missing.iter().filter_map(|(agent, ids)| Some((*agent, words(ids)?))).collect())
    }

    /// The attachments whose sessions are missing, at each storage node that is up; of more than `enough` at one of them not
    /// all. Only volumes whose last report shows somebody who is not there are read.
    pub(super) async fn missing_attachments(
        &self,
        enough: usize,
    ) -> Result<Vec<(AgentId, Vec<String>)>, Refusal> {
        let mut quiet = Vec::new();
        for agent in self.inner.agents.all().iter().filter(|agent| agent.is_up()) {
            let volumes = agent.quiet_volumes();
            quiet.extend(agent.id().filter(|_| !volumes.is_empty()).map(|id| (id, volumes)));
        }
        if quiet.is_empty() {
            return Ok(Vec::new());
        }
        let inner = self.inner.clone();
        let read = move |db: &Db<'_>| {
            let mut all = Vec::new();
            for (agent, volumes) in &quiet {
                let mut missing = Vec::new();
                for volume in volumes {
                    for row in db.attachments_of(*volume)? {
                        let live = live_of(&inner, db, row)?;
                        if live.nexus.as_ref().is_some_and(|nexus| nexus.missing) {
                            missing.push(live.attachment.id.to_string());
                        }
                    }
                    if missing.len() > enough {
                        break;
                    }
                }
                all.push((*agent, missing));
            }
            Ok(all)
        };
        self.inner.store.read("look for sessions that are missing", read).await
    }
}

/// What is said of attachments whose sessions are missing.
fn words(missing: &[String]) -> Option<String> {
    let named = missing.get(..NAMED_MAX).unwrap_or(missing);
    let more = if missing.len() > NAMED_MAX { " and more" } else { "" };
    (!missing.is_empty()).then(|| {
        format!("attached and not logged in: {}{more} (see `mooring session list`)", named.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_named_and_many_are_more() {
        let ids = |count| (0..count).map(|n| format!("a{n}")).collect::<Vec<_>>();
        assert_eq!(words(&[]), None);
        let one = words(&ids(1)).unwrap();
        assert_eq!(one, "attached and not logged in: a0 (see `mooring session list`)");
        let all = words(&ids(NAMED_MAX)).unwrap();
        assert!(all.contains("a15 (see") && !all.contains("more"), "{all}");
        let many = words(&ids(NAMED_MAX + 1)).unwrap();
        assert!(many.contains("a15 and more") && !many.contains("a16"), "{many}");
    }
}
