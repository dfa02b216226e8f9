//! Sessions of attachments: compares each attached nexus with the sessions in its storage agent's
//! last report.
//!
//! What must never happen here: an alarm from a look that never was, or from one before the attach
//! was over; an address shown to a caller who may not see it.

use std::time::SystemTime;

use mooring_model::{AgentId, Counters, ExportReport, Iqn, SessionReport, Wwpn};

use super::live::live_of;
use super::{Refusal, Service, told};
use crate::agents::{fc_grants, fc_logged_in, logged_in};
use crate::domain::{AttachmentLive, AttachmentStatus, Caller, NexusLive};
use crate::initiators::{HostPorts, Initiators};
use crate::policy::Target;
use crate::store::Db;

/// Most attachments without a session that a host's problem names, for one storage node.
const NAMED_MAX: usize = 16;

/// The part of a report about the grants of one attachment.
struct Granted {
    /// `true` if the kernel enforces one of the grants: a login is possible.
    complete: bool,
    logged_in: bool,
    /// The sessions that the target lists. Over Fibre Channel it lists none.
    sessions: Vec<SessionReport>,
    counters: Counters,
    /// Likely reasons for a missing session.
    why: &'static str,
}

fn over_iscsi(report: &ExportReport, iqn: &Iqn) -> Option<Granted> {
    let grant = report.grants.iter().find(|grant| grant.initiator == *iqn)?;
    let sessions: Vec<_> = logged_in(grant).cloned().collect();
    Some(Granted {
        complete: grant.seen.is_some(),
        logged_in: !sessions.is_empty(),
        sessions,
        counters: grant.counters,
        why: "its host is down, does not reach the portals, or has logged out",
    })
}

/// The grants of a host's ports. Each host port has a grant at each target port. One login at any
/// pair of ports is enough: the fabric's zones decide which ports see each other. The counters are
/// summed over all grants.
fn over_fc(report: &ExportReport, ports: &HostPorts) -> Option<Granted> {
    let is_ours = |initiator: Wwpn| ports.iter().any(|port| port == initiator);
    let grants = || fc_grants(report).filter(|grant| is_ours(grant.initiator));
    let counters = grants().map(|grant| grant.counters).reduce(|all, one| Counters {
        commands: all.commands.saturating_add(one.commands),
        read_mib: all.read_mib.saturating_add(one.read_mib),
        written_mib: all.written_mib.saturating_add(one.written_mib),
        active: all.active.max(one.active),
    })?;
    Some(Granted {
        complete: grants().any(|grant| grant.seen.is_some()),
        logged_in: ports.iter().any(|port| fc_logged_in(report, port)),
        sessions: Vec::new(),
        counters,
        why: "its host is down, or its ports do not reach the target's: see the links and the zones of the fabric",
    })
}

/// Adds the report of the named storage agent about an attachment's nexus.
pub(super) fn add(
    live: &mut AttachmentLive,
    name: &str,
    report: &ExportReport,
    initiators: Option<&Initiators>,
) {
    live.session = Some(false);
    let Some(initiators) = initiators else { return };
    let granted = match initiators {
        Initiators::Iscsi(iqn) => over_iscsi(report, iqn),
        Initiators::Fc(ports) => over_fc(report, ports),
    };
    let Some(granted) = granted else { return };
    live.session = Some(granted.logged_in);
    let since = live.attachment.attached_at.unwrap_or(SystemTime::UNIX_EPOCH);
    let missing = live.attachment.status == AttachmentStatus::Attached
        && granted.complete
        && !granted.logged_in
        && report.looked.is_some_and(|looked| looked > since);
    if missing {
        live.problems.push(format!("{name}: {initiators} should be logged in and is not: {}", granted.why));
    }
    live.nexus = Some(NexusLive {
        storage: name.to_owned(),
        sessions: granted.sessions,
        counters: granted.counters,
        unlisted: report.unlisted_sessions,
        looked: report.looked,
        missing,
    });
}

impl Service {
    /// The live state for this caller: without addresses and agents' words if the caller may not
    /// see them.
    pub(super) fn shown(&self, caller: &Caller, mut live: AttachmentLive) -> AttachmentLive {
        if !self.reads_agents(caller) {
            told::hide(&mut live);
        }
        if let Some(nexus) = &mut live.nexus
            && !self.facts.policies().allows("mooring:sessions", caller, &Target::default())
        {
            nexus.sessions.clear();
        }
        live
    }

    /// The missing sessions of each storage node, in words.
    pub(super) async fn missing_sessions(&self) -> Result<Vec<(AgentId, String)>, Refusal> {
        let missing = self.missing_attachments(NAMED_MAX).await?;
        Ok(missing.iter().filter_map(|(agent, ids)| Some((*agent, words(ids)?))).collect())
    }

    /// The attachments without a session, for each storage node that is up. A node with more than
    /// `enough` of them gets only some. Reads only the volumes whose last report lacks a session.
    pub(super) async fn missing_attachments(
        &self,
        enough: usize,
    ) -> Result<Vec<(AgentId, Vec<String>)>, Refusal> {
        let mut quiet = Vec::new();
        for agent in self.facts.agents.all().iter().filter(|agent| agent.is_up()) {
            let volumes = agent.quiet_volumes();
            quiet.extend(agent.id().filter(|_| !volumes.is_empty()).map(|id| (id, volumes)));
        }
        if quiet.is_empty() {
            return Ok(Vec::new());
        }
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            let mut all = Vec::new();
            for (agent, volumes) in &quiet {
                let mut missing = Vec::new();
                for volume in volumes {
                    for row in db.attachments_of(*volume)? {
                        let live = live_of(&facts, db, row)?;
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
        self.store.read("look for sessions that are missing", read).await
    }
}

/// The problem that names attachments whose sessions are missing. `None` if there are none.
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
