//! The seam between agents and the work that follows from their reports: `flow` implements
//! [`Listener`].
//!
//! What must never happen here: a call that waits; a wake-up that can be lost, or come late because
//! a queue is full.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mooring_model::{AgentId, VolumeId};

use super::exports::Exports;
use super::{Kept, SeenConnection};
use crate::store::{Abort, Db};

/// A key of work: one job of it runs at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Job {
    /// A volume and its export, at its storage agent.
    Storage(VolumeId),
    /// The volume's connection, at a host's agent.
    Host(VolumeId, AgentId),
}

/// Findings of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Volumes and connections that this database does not know.
    pub(crate) orphans: BTreeMap<String, String>,
    /// Volumes whose review has ended, with the hosts whose connections waited for that.
    pub(crate) released: BTreeMap<VolumeId, BTreeSet<AgentId>>,
}

/// Volumes and exports as an agent has listed them.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// The agent's name.
    pub(crate) name: String,
    /// The agent.
    pub(crate) agent: AgentId,
    /// Volumes of the agent.
    pub(crate) volumes: BTreeMap<VolumeId, Arc<Kept>>,
    /// Initiators that reach each of them.
    pub(crate) exports: Exports,
}

/// Acts on what agents report. Every method returns at once. The last three run in the transaction
/// that stores what was reported.
pub(crate) trait Listener: Send + Sync {
    /// Makes a job look again.
    fn kick(&self, job: Job);

    /// Makes a job look again after a report of its agent, and wakes everybody who follows its
    /// volume.
    fn report_came(&self, job: Job);

    /// Does as [`Listener::report_came`] for an export whose report is kept already. `shown`: also
    /// wakes everybody who follows the volume.
    fn export_report_came(&self, volume: VolumeId, shown: bool);

    /// Wakes everything that a change of a volume's specs concerns: its storage agent's job and
    /// those of these hosts.
    fn wake(&self, volume: VolumeId, hosts: &BTreeSet<AgentId>);

    /// Tells everybody that an agent went up or down.
    fn agent_changed(&self);

    /// Compares a storage agent's list with the store.
    fn compare_storage(&self, db: &Db<'_>, listed: &Listed) -> Result<Compared, Abort>;

    /// Compares the connections that a host's agent has listed with the store.
    fn compare_host(
        &self,
        db: &Db<'_>,
        name: &str,
        agent: AgentId,
        connections: &BTreeMap<VolumeId, SeenConnection>,
    ) -> Result<Compared, Abort>;

    /// Ends the review of a volume that counted as lost, now that its agent has found the data.
    /// Returns the hosts whose connections waited for that; `None` if there was no such review.
    fn found_again(
        &self,
        db: &Db<'_>,
        agent: AgentId,
        volume: VolumeId,
    ) -> Result<Option<BTreeSet<AgentId>>, Abort>;
}
