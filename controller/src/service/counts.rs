//! Counts of all objects, by one read of the database and of the agents' last reports.
//!
//! What must never happen here: a call of an agent; an id in an answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use mooring_model::Proof;

use super::detach::receipt_of;
use super::{Refusal, Service};
use crate::agents::Agent;
use crate::store::Db;

/// Counts that the database gives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Number by status.
    pub(crate) volumes: BTreeMap<String, u64>,
    pub(crate) snapshots: BTreeMap<String, u64>,
    /// Number by status.
    pub(crate) attachments: BTreeMap<String, u64>,
    /// Number by kind.
    pub(crate) reviews: BTreeMap<String, u64>,
    /// Number of fences in force.
    pub(crate) fences: u64,
    /// Number by proof.
    pub(crate) receipts: BTreeMap<String, u64>,
    /// Detaching attachments without a proven receipt, by the word for their receipt: `none` or
    /// `unproven`.
    pub(crate) detaches: BTreeMap<String, u64>,
    /// Attachments that should be logged in and are not, on the storage nodes whose reports reach
    /// this controller.
    pub(crate) missing: u64,
}

/// Counts of one enrolled agent.
#[derive(Debug, Clone)]
pub(crate) struct AgentCounts {
    pub(crate) name: String,
    pub(crate) up: bool,
    /// `true` if this controller drives the agent.
    pub(crate) ours: bool,
    pub(crate) last_report: Option<SystemTime>,
    /// Number of the agent's reports about objects that are not its own, by kind.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
}

impl Service {
    /// Counts what is in the database.
    pub(crate) async fn counts(&self) -> Result<Counts, Refusal> {
        let missing = self.missing_attachments(usize::MAX).await?;
        let missing = missing.iter().map(|(_, ids)| ids.len()).sum::<usize>();
        let read = |db: &Db<'_>| {
            let mut counts = Counts {
                volumes: db.count_volumes()?,
                snapshots: db.count_snapshots()?,
                attachments: db.count_attachments()?,
                reviews: db.count_reviews()?,
                fences: db.count_fences()?,
                receipts: db.count_receipts()?,
                ..Counts::default()
            };
            for row in db.attachments_going()? {
                let word = match receipt_of(db, &row)?.map(|receipt| receipt.proof) {
                    None => "none",
                    Some(Proof::Unproven { .. }) => "unproven",
                    // The volume's job is about to end this attachment.
                    Some(Proof::Proven) => continue,
                };
                *counts.detaches.entry(word.to_owned()).or_default() += 1;
            }
            Ok(counts)
        };
        let counts = self.store.read("count everything", read).await?;
        Ok(Counts { missing: u64::try_from(missing).unwrap_or(u64::MAX), ..counts })
    }

    /// The enrolled agents as this controller knows them, without a call.
    pub(crate) fn count_agents(&self) -> Vec<AgentCounts> {
        let of = |agent: &Arc<Agent>| {
            let (last_report, dropped) = {
                let state = agent.state();
                (state.last_report, state.dropped.clone())
            };
            let (up, ours) = (agent.is_up(), agent.hold().is_ours());
            AgentCounts { name: agent.entry.name.clone(), up, ours, last_report, dropped }
        };
        self.facts.agents.all().iter().map(of).collect()
    }

    /// The line that `systemctl status mooring-controller` shows, from memory alone.
    pub fn status_line(&self) -> String {
        line(&self.count_agents())
    }
}

/// `11 of 12 hosts up`; and how many of them this controller drives, if other controllers drive
/// some.
fn line(agents: &[AgentCounts]) -> String {
    let number = |is: fn(&&AgentCounts) -> bool| agents.iter().filter(is).count();
    let (up, ours) = (number(|agent| agent.up), number(|agent| agent.ours));
    let plural = if agents.len() == 1 { "" } else { "s" };
    let line = format!("{up} of {} host{plural} up", agents.len());
    if ours == agents.len() { line } else { format!("{line}, {ours} driven by this controller") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_says_how_many_hosts_are_up_and_driven_here() {
        let agent = |up, ours| AgentCounts {
            name: "storage1".to_owned(),
            up,
            ours,
            last_report: None,
            dropped: BTreeMap::new(),
        };
        assert_eq!(line(&[]), "0 of 0 hosts up");
        assert_eq!(line(&[agent(true, true)]), "1 of 1 host up");
        let both = [agent(true, true), agent(false, true)];
        assert_eq!(line(&both), "1 of 2 hosts up");
        let shared = [agent(true, true), agent(true, false), agent(false, false)];
        assert_eq!(line(&shared), "2 of 3 hosts up, 1 driven by this controller");
    }
}
