//! The enrolled agents: how they are reached, and what they said last.
//!
//! What an agent said is kept in memory only (who it is and what it can do apart): it is asked again after every connect.
//! An agent that is down holds up nothing but its own volumes.
//!
//! What must never happen here: a decision; a report of one agent taken for another's; a call without a deadline.

pub(crate) mod calls;
pub(crate) mod task;
pub(crate) mod wire;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use mooring_api::{Channel, v1};
use mooring_model::{AgentId, ConnectionReport, ExportReport, Iqn, Stamp, VolumeId, VolumeReport};

use crate::service::AgentEntry;

/// What a storage agent said of one volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenVolume {
    /// What it keeps of the volume's wish.
    pub(crate) volume_stamp: Option<Stamp>,
    /// What it keeps of the export's wish.
    pub(crate) export_stamp: Option<Stamp>,
    /// The volume as it is.
    pub(crate) volume: Option<VolumeReport>,
    /// The export as it is.
    pub(crate) export: Option<ExportReport>,
    /// When the export's wish was sent last.
    pub(crate) put_at: Option<Instant>,
}

/// What a host's agent said of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenConnection {
    /// What it keeps of the wish.
    pub(crate) stamp: Option<Stamp>,
    /// The connection as it is.
    pub(crate) report: Option<ConnectionReport>,
    /// When the wish was sent last.
    pub(crate) put_at: Option<Instant>,
}

/// What is known of one agent now.
#[derive(Debug, Default)]
pub(crate) struct AgentState {
    /// Its id, once it said hello; from the store before.
    pub(crate) id: Option<AgentId>,
    /// Under which name it logs in.
    pub(crate) initiator: Option<Iqn>,
    /// What it can do.
    pub(crate) capabilities: Option<v1::Capabilities>,
    /// How it is called, while it is up.
    pub(crate) channel: Option<Channel>,
    /// Why it is not up.
    pub(crate) why_down: Option<String>,
    /// When its last report came.
    pub(crate) last_report: Option<SystemTime>,
    /// Its volumes.
    pub(crate) volumes: HashMap<VolumeId, SeenVolume>,
    /// Its connections.
    pub(crate) connections: HashMap<VolumeId, SeenConnection>,
    /// What it has and nobody here knows.
    pub(crate) orphans: BTreeMap<String, String>,
}

/// An enrolled agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// As the configuration says.
    pub(crate) entry: AgentEntry,
    state: Mutex<AgentState>,
}

impl Agent {
    /// What is known of it.
    pub(crate) fn state(&self) -> MutexGuard<'_, AgentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its id, if it ever said hello.
    pub(crate) fn id(&self) -> Option<AgentId> {
        self.state().id
    }

    /// It answers, and its reports come.
    pub(crate) fn is_up(&self) -> bool {
        self.state().channel.is_some()
    }

    /// Why it is not up, with its name.
    pub(crate) fn why_down(&self) -> String {
        let why = self.state().why_down.clone();
        format!("agent {} is down: {}", self.entry.name, why.as_deref().unwrap_or("it was not reached yet"))
    }

    /// What it said of a volume.
    pub(crate) fn volume(&self, id: VolumeId) -> SeenVolume {
        self.state().volumes.get(&id).cloned().unwrap_or_default()
    }

    /// What it said of a connection.
    pub(crate) fn connection(&self, id: VolumeId) -> SeenConnection {
        self.state().connections.get(&id).cloned().unwrap_or_default()
    }

    /// Takes a report of an export. Answers and the stream of reports race: an older generation does not replace a newer.
    pub(crate) fn saw_export(&self, report: ExportReport) {
        let mut state = self.state();
        let seen = state.volumes.entry(report.volume).or_default();
        if seen.export.as_ref().is_none_or(|kept| kept.generation <= report.generation) {
            seen.export = Some(report);
        }
    }

    /// Takes a report of a connection, likewise.
    pub(crate) fn saw_connection(&self, report: ConnectionReport) {
        let mut state = self.state();
        let seen = state.connections.entry(report.volume).or_default();
        if seen.report.as_ref().is_none_or(|kept| kept.generation <= report.generation) {
            seen.report = Some(report);
        }
    }

    /// Takes a report of a volume.
    pub(crate) fn saw_volume(&self, report: VolumeReport) {
        let id = report.id;
        self.state().volumes.entry(id).or_default().volume = Some(report);
    }

    /// Everything that it can be asked is unknown from now on.
    pub(crate) fn down(&self, why: String) {
        let mut state = self.state();
        state.channel = None;
        state.why_down = Some(why);
        state.volumes.clear();
        state.connections.clear();
        state.orphans.clear();
    }
}

/// All of them, in the configuration's order.
#[derive(Debug)]
pub(crate) struct Agents(Vec<Arc<Agent>>);

impl Agents {
    /// None was reached yet.
    pub(crate) fn new(entries: Vec<AgentEntry>) -> Self {
        let agent = |entry| Arc::new(Agent { entry, state: Mutex::new(AgentState::default()) });
        Self(entries.into_iter().map(agent).collect())
    }

    /// All.
    pub(crate) fn all(&self) -> &[Arc<Agent>] {
        &self.0
    }

    /// By its id.
    pub(crate) fn by_id(&self, id: AgentId) -> Option<&Arc<Agent>> {
        self.0.iter().find(|agent| agent.id() == Some(id))
    }

    /// By its name, or by the text of its id.
    pub(crate) fn by_name(&self, text: &str) -> Option<&Arc<Agent>> {
        self.0
            .iter()
            .find(|agent| agent.entry.name == text)
            .or_else(|| text.parse().ok().and_then(|id| self.by_id(id)))
    }

    /// Its name, or its id when no name has it.
    pub(crate) fn name_of(&self, id: AgentId) -> String {
        self.by_id(id).map_or_else(|| id.to_string(), |agent| agent.entry.name.clone())
    }

    /// It, if it is up.
    pub(crate) fn up(&self, id: AgentId) -> Result<Arc<Agent>, String> {
        match self.by_id(id) {
            Some(agent) if agent.is_up() => Ok(Arc::clone(agent)),
            Some(agent) => Err(agent.why_down()),
            None => Err(format!("no agent of this configuration has the id {id}")),
        }
    }
}
