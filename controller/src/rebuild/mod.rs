//! `mooring-controller rebuild --from-agents`: makes a database after the total loss of the former
//! one, from what the agents store.
//!
//! Agents store each spec as it was sent: its generation, its digest, its secrets, and beside it
//! the data that only a controller reads (the module `kept`). `ask` collects that, `read` makes
//! rows from it (pure), `write` writes them in one transaction. The specs stay as they are, so that
//! the first comparison with the agents finds nothing to send: no session is cut, no grant is lost,
//! and none is made. The epoch is raised, so that every later spec is newer than all that were ever
//! sent. Volumes are in review until their storage agent is heard, as after a restore.
//!
//! What must never happen here: a row that contradicts its agent; a write to a database that is not
//! empty; a changed agent; a secret in a report.

mod ask;
mod read;
mod write;

use std::collections::BTreeSet;
use std::fmt;

use mooring_model::ClusterId;

use crate::service::{Database, ServiceOptions};
use crate::store::{Store, StoreError};

/// Things that agents do not store, for the reader of the report.
const LOST: &str = "Agents do not keep, and so is lost: attachments that are only reserved (os-reserve and attachments without a \
    connector), or attached without a connection; types without volumes; quotas, default types, and what operators said of \
    hosts (disable, drain); messages; records of detaches, and receipts that their agents have forgotten; hints and the pools \
    that were tried; who asked for a detach that was going on: it is attached again, ask again. Tokens and policies are files \
    of yours.";

/// Options of a rebuild.
#[derive(Debug, Clone, Default)]
pub struct How {
    /// Agents of the configuration that are not asked: what they store is left out.
    pub without: Vec<String>,
    /// `true`: only report what would be done. The database is not even looked at.
    pub dry_run: bool,
}

/// Reason why nothing was rebuilt and nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The configuration names no agent.
    #[error("the configuration names no agent to rebuild from: add an [[agents]] table for each")]
    NoAgents,
    /// `--without` names an agent that the configuration does not have.
    #[error("--without {0}: the configuration has no agent of this name")]
    NoSuchAgent(String),
    /// Some agents do not answer.
    #[error(
        "{0}\nall agents must answer, because what one keeps may explain what another one does. Start them; or say --without \
         NAME for each that is gone for good: its volumes are left out"
    )]
    Silent(String),
    /// A task of the rebuild ended by itself.
    #[error("cannot ask the agents: {0}")]
    Ask(String),
    /// The agents belong to several clusters.
    #[error(
        "the agents belong to different clusters:\n{0}\ntake those that are not of this one out of the configuration"
    )]
    Clusters(String),
    /// The agents belong to another cluster than the configuration says.
    #[error("the agents belong to another cluster than `cluster` in the configuration says:\n{0}")]
    OtherCluster(String),
    /// No agent belongs to a cluster.
    #[error("no agent belongs to a cluster: none keeps anything to rebuild from")]
    Unowned,
    /// One agent has two names.
    #[error("agents {0} and {1} are the same one, or a copy of it: correct the configuration")]
    Twice(String, String),
    /// An agent is of an older release.
    #[error("agent {0} is of an older release, which does not give its specs back: upgrade it first")]
    Outdated(String),
    /// The database does not open.
    #[error("cannot open the controller's database")]
    Open(#[source] StoreError),
    /// The database is not empty.
    #[error(
        "the controller's database is not empty, it holds {0} object(s): only an empty one is rebuilt. If it is of no use, \
         move it aside (or name another one in `url`) and try again"
    )]
    NotEmpty(u64),
    /// The database refused the write.
    #[error("cannot write the controller's database")]
    Write(#[source] StoreError),
    /// The thread of the rebuild ended by itself.
    #[error("the rebuild's thread ended")]
    Thread,
}

/// Counts of what one agent gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Name of the agent.
    pub name: String,
    /// Number of volumes.
    pub volumes: usize,
    /// Number of attachments of these volumes.
    pub attachments: usize,
    /// Number of connections of this host.
    pub connections: usize,
    /// Objects that were left as they are, with the reason; and what is not known of the others.
    pub notes: Vec<String>,
}

/// Result of a rebuild.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The cluster that the agents belong to.
    pub cluster: ClusterId,
    /// The epoch from now on.
    pub epoch: u64,
    /// Number of volume types.
    pub types: usize,
    /// Report of each agent.
    pub agents: Vec<AgentReport>,
    /// Agents that were not asked.
    pub without: Vec<String>,
    /// Uncertainties about types.
    pub notes: Vec<String>,
    /// `true`: nothing was written.
    pub dry_run: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&AgentReport) -> usize| self.agents.iter().map(of).sum::<usize>();
        let (volumes, attachments) = (sum(|agent| agent.volumes), sum(|agent| agent.attachments));
        let done = if self.dry_run { "would be rebuilt" } else { "rebuilt" };
        writeln!(
            f,
            "{done}: cluster {}, epoch {}: {} type(s), {volumes} volume(s), {attachments} attachment(s), {} connection(s)",
            self.cluster,
            self.epoch,
            self.types,
            sum(|agent| agent.connections)
        )?;
        for agent in &self.agents {
            writeln!(
                f,
                "agent {}: {} volume(s) with {} attachment(s), {} connection(s)",
                agent.name, agent.volumes, agent.attachments, agent.connections
            )?;
            agent.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))?;
        }
        for name in &self.without {
            writeln!(
                f,
                "agent {name}: not asked; what it keeps is left out, and shows as orphans when it is back"
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))?;
        writeln!(f, "{LOST}")?;
        if self.dry_run {
            writeln!(f, "Nothing was written, and the database was not looked at.")
        } else {
            writeln!(f, "Start the controller. Volumes are in review until their storage agents are heard.")
        }
    }
}

/// Rebuilds an empty database from the agents of these options.
pub async fn run(options: ServiceOptions, database: Database, how: &How) -> Result<Report, RebuildError> {
    if options.agents.is_empty() {
        return Err(RebuildError::NoAgents);
    }
    let without: BTreeSet<_> = how.without.iter().collect();
    let known = |name: &String| options.agents.iter().any(|entry| entry.name == *name);
    if let Some(name) = without.iter().find(|name| !known(name)) {
        return Err(RebuildError::NoSuchAgent((*name).clone()));
    }
    let asked = options.agents.into_iter().filter(|entry| !without.contains(&entry.name));
    let heard = ask::ask_all(&options.dial, asked.collect()).await?;
    let cluster = ask::cluster_of(&heard, options.cluster)?;
    ask::check_ids(&heard)?;
    let found = read::read(&heard, options.clock.now())?;
    let mut report = Report {
        cluster,
        epoch: found.epoch,
        types: found.types.len(),
        agents: found.reports.clone(),
        without: without.into_iter().cloned().collect(),
        notes: found.notes.clone(),
        dry_run: how.dry_run,
    };
    if !how.dry_run {
        let write = move || {
            let store = Store::open(database, Some(cluster), options.clock).map_err(RebuildError::Open)?;
            write::write(&store, &heard, found)
        };
        report.epoch = tokio::task::spawn_blocking(write).await.map_err(|_| RebuildError::Thread)??;
    }
    Ok(report)
}
