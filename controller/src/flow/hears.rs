//! Reactions to reports of agents: [`Flow`] is the [`Listener`] of their tasks.
//!
//! What must never happen here: a wake-up that is left out because nobody waits for it now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mooring_model::{AgentId, VolumeId};

use super::{Flow, fenced, review};
use crate::agents::listener::{Compared, Job, Listed, Listener};
use crate::agents::task::Context;
use crate::agents::{Held, SeenConnection};
use crate::store::{Abort, Db};

impl Listener for Arc<Flow> {
    fn kick(&self, job: Job) {
        Flow::kick(self, job);
    }

    fn report_came(&self, job: Job) {
        match job {
            Job::Storage(volume) => self.storage_news(volume),
            Job::Host(volume, host) => self.host_news(volume, host),
        }
    }

    fn export_report_came(&self, volume: VolumeId, shown: bool) {
        self.export_news(volume, shown);
    }

    fn wake(&self, volume: VolumeId, hosts: &BTreeSet<AgentId>) {
        Flow::wake(self, volume, hosts);
    }

    fn agent_changed(&self) {
        self.notes.said();
        self.touch_all();
    }

    fn compare_storage(&self, db: &Db<'_>, listed: &Listed) -> Result<Compared, Abort> {
        let compared = review::compare_storage(db, &listed.name, listed.agent, &listed.volumes)?;
        fenced::compare(db, &listed.name, listed.agent, &listed.exports)?;
        Ok(compared)
    }

    fn compare_host(
        &self,
        db: &Db<'_>,
        name: &str,
        agent: AgentId,
        connections: &BTreeMap<VolumeId, SeenConnection>,
    ) -> Result<Compared, Abort> {
        review::compare_host(db, name, agent, connections)
    }

    fn found_again(
        &self,
        db: &Db<'_>,
        agent: AgentId,
        volume: VolumeId,
    ) -> Result<Option<BTreeSet<AgentId>>, Abort> {
        review::found_again(db, agent, volume)
    }
}

impl Flow {
    /// Returns the context of an agent's task.
    pub(super) fn context(self: &Arc<Self>, held: &Held) -> Context {
        Context {
            store: held.store.clone(),
            agents: Arc::clone(&self.facts.agents),
            clock: self.facts.options.clock.clone(),
            dial: self.facts.options.dial.clone(),
            listener: Arc::new(Arc::clone(self)),
        }
    }
}
