//! The registry of agents: finds the enrolled agents by name, by id, and by the name that their
//! host logs in under. Agents come and go while the controller runs. Code that holds an agent keeps
//! it; each new look-up sees the registry of that moment.
//!
//! What must never happen here: an agent that is found after it was removed; two agents of one
//! name.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use mooring_model::{AgentId, Iqn};

use super::lease::{self, Hold};
use super::roll::Roll;
use super::{Agent, AgentState, lock};
use crate::domain::AgentEntry;
use crate::store::leases::Said;
use crate::store::{FencedStore, Store};

/// The agents at one moment: those of the configuration first, in its order, then the others by the
/// time they joined.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    all: Vec<Arc<Agent>>,
    names: HashMap<String, usize>,
    /// The place of the next agent that joins. Places grow, and no place is given twice.
    next: usize,
}

impl Deref for Roster {
    type Target = [Arc<Agent>];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Roster {
    fn new(all: Vec<Arc<Agent>>, next: usize) -> Self {
        let names = all.iter().enumerate().map(|(at, agent)| (agent.entry.name.clone(), at)).collect();
        Self { all, names, next }
    }

    fn named(&self, name: &str) -> Option<&Arc<Agent>> {
        self.all.get(*self.names.get(name)?)
    }

    fn at_place(&self, place: usize) -> Option<&Arc<Agent>> {
        let at = self.all.binary_search_by_key(&place, |agent| agent.place).ok()?;
        self.all.get(at)
    }
}

/// An agent that this controller drives, with a store that only the holder of its lease can change.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    agent: Arc<Agent>,
    /// Commits nothing once the agent's lease has ended.
    pub(crate) store: FencedStore,
}

impl Deref for Held {
    type Target = Arc<Agent>;

    fn deref(&self) -> &Self::Target {
        &self.agent
    }
}

/// All enrolled agents.
#[derive(Debug)]
pub(crate) struct Agents {
    store: Store,
    roster: RwLock<Arc<Roster>>,
    roll: Arc<Mutex<Roll>>,
    /// `true`: the database is shared, and other controllers may drive these agents.
    shared: bool,
}

impl Agents {
    /// Makes a registry of agents none of which was reached yet. With a shared store, other
    /// controllers may drive them.
    pub(crate) fn new(entries: Vec<AgentEntry>, store: Store) -> Self {
        let shared = store.dialer().is_some();
        Self::with(entries, store, shared)
    }

    fn with(entries: Vec<AgentEntry>, store: Store, shared: bool) -> Self {
        let agents = Self { store, roster: RwLock::default(), roll: Arc::default(), shared };
        for entry in entries {
            drop(agents.add(entry));
        }
        agents
    }

    /// Returns the agents of this moment.
    pub(crate) fn all(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds an agent. `None`: an agent of this name exists.
    pub(crate) fn add(&self, entry: AgentEntry) -> Option<Arc<Agent>> {
        let mut roster = self.roster.write().unwrap_or_else(PoisonError::into_inner);
        if roster.named(&entry.name).is_some() {
            return None;
        }
        let hold = if self.shared { Hold::Theirs(Said::default()) } else { Hold::Always };
        let agent = Arc::new(Agent {
            entry,
            place: roster.next,
            roll: Arc::clone(&self.roll),
            state: Mutex::new(AgentState::default()),
            hold: Mutex::new(hold),
            borrowed: tokio::sync::Mutex::default(),
            drive: Mutex::default(),
        });
        let all = roster.all.iter().cloned().chain([Arc::clone(&agent)]).collect();
        *roster = Arc::new(Roster::new(all, roster.next + 1));
        Some(agent)
    }

    /// Removes an agent for good: no look-up finds it, no task follows it, and for code that still
    /// holds it, it is down.
    pub(crate) fn remove(&self, agent: &Arc<Agent>, why: &str) {
        let mut roster = self.roster.write().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = roster.all.iter().filter(|other| !Arc::ptr_eq(other, agent)).cloned().collect();
        *roster = Arc::new(Roster::new(all, roster.next));
        drop(roster);
        agent.is_gone(why);
    }

    /// Returns the agent of this id. `None`: no enrolled agent has it.
    pub(crate) fn by_id(&self, id: AgentId) -> Option<Arc<Agent>> {
        let place = lock(&self.roll).ids.first(&id)?;
        self.all().at_place(place).cloned()
    }

    /// Returns the agent whose host logs in under this name. `None`: no enrolled agent does.
    pub(crate) fn by_initiator(&self, initiator: &Iqn) -> Option<Arc<Agent>> {
        let place = lock(&self.roll).initiators.first(initiator)?;
        self.all().at_place(place).cloned()
    }

    /// Returns the agent of this name. `None`: none is enrolled under it.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Agent>> {
        self.all().named(name).cloned()
    }

    /// Returns the agent that has this text as its name or its id. `None`: no enrolled agent has.
    pub(crate) fn by_name(&self, text: &str) -> Option<Arc<Agent>> {
        self.named(text).or_else(|| text.parse().ok().and_then(|id| self.by_id(id)))
    }

    /// Returns the name of an agent, or the id as text if no enrolled agent has it.
    pub(crate) fn name_of(&self, id: AgentId) -> String {
        self.by_id(id).map_or_else(|| id.to_string(), |agent| agent.entry.name.clone())
    }

    /// Returns the agent if it is up and this controller drives it: only then may anything change
    /// there. The work of the calling task relies on the agent's lease from now on, and changes the
    /// store only through the returned value. The error says why not.
    pub(crate) fn held(&self, id: AgentId) -> Result<Held, String> {
        let agent = self.up(id)?;
        let hold = agent.hold();
        if !hold.is_ours() {
            return Err(format!("another controller drives agent {}", agent.entry.name));
        }
        Ok(self.relied_on(agent, &hold))
    }

    /// Returns the agent for the task that follows it: that task relies on the agent's lease from
    /// now on.
    pub(crate) fn driven(&self, agent: &Arc<Agent>) -> Held {
        self.relied_on(Arc::clone(agent), &agent.hold())
    }

    fn relied_on(&self, agent: Arc<Agent>, hold: &Hold) -> Held {
        let fence = lease::rely_on(&agent, hold);
        Held { agent, store: self.store.fenced(fence) }
    }

    /// Returns the agent if it is up. The error says why it is not.
    pub(crate) fn up(&self, id: AgentId) -> Result<Arc<Agent>, String> {
        match self.by_id(id) {
            Some(agent) if agent.is_up() => Ok(agent),
            Some(agent) => Err(agent.why_down()),
            None => Err(format!("no enrolled agent has the id {id}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooring_api::TlsFiles;

    use super::*;
    use crate::clock::Clock;
    use crate::store::Database;

    fn agents(shared: bool) -> Agents {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
        Agents::with(Vec::new(), store, shared)
    }

    fn entry(name: &str) -> AgentEntry {
        AgentEntry {
            name: name.to_owned(),
            address: "unix:/nowhere".parse().unwrap(),
            tls: TlsFiles::default(),
            insecure: false,
            zone: None,
            enrolment: None,
        }
    }

    #[tokio::test]
    async fn whoever_still_holds_an_agent_that_has_left_brings_it_to_nobody() {
        for shared in [false, true] {
            let agents = agents(shared);
            let (id, other) = (AgentId::from_u128(1), AgentId::from_u128(2));
            let left = agents.add(entry("a")).unwrap();
            left.is_known_as(&mut left.state(), id, None);
            agents.remove(&left, "it was revoked");
            let came = agents.add(entry("a")).unwrap();
            // The removed agent's task was in the middle of a step: it reports its identity once
            // more, and gets a task and a lease.
            left.is_known_as(&mut left.state(), other, None);
            assert!(!left.set_hold(Hold::Always) && !left.hold().is_ours());
            let drive = tokio::spawn(std::future::pending::<()>());
            left.is_driven_by(drive.abort_handle());
            assert!(drive.await.unwrap_err().is_cancelled());
            came.is_known_as(&mut came.state(), id, None);
            assert!(agents.by_id(id).is_some_and(|found| Arc::ptr_eq(&found, &came)), "shared: {shared}");
            assert!(agents.by_id(other).is_none());
            assert_eq!(left.why_down(), "agent a is down: it was revoked");
        }
    }

    #[tokio::test]
    async fn the_task_of_an_agent_that_leaves_ends() {
        let agents = agents(false);
        let agent = agents.add(entry("a")).unwrap();
        let drive = tokio::spawn(std::future::pending::<()>());
        agent.is_driven_by(drive.abort_handle());
        agents.remove(&agent, "it was revoked");
        let ended = tokio::time::timeout(Duration::from_secs(10), drive).await.unwrap();
        assert!(ended.unwrap_err().is_cancelled());
    }
}
