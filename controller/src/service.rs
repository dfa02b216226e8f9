//! Everything that can be asked of the control plane, one method each. `http` calls these and nothing else.
//!
//! What must never happen here: see the crate's own words.

mod attach;
mod detach;
mod live;
mod types;
mod view;
mod volumes;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mooring_api::{Address, TlsFiles};
use mooring_model::{ClusterId, Generation, IqnPrefix, Mode, VolumeId};

use crate::agents::task;
use crate::domain::Caller;
use crate::flow::{Inner, review, wishes};
use crate::store::{Abort, Db, Kind, Store, StoreError, VolumeRow};

/// Why something is not done. Each kind is one status code of the API.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// 400: the request is wrong, or the object's state does not allow it (Cinder answers both with 400).
    #[error("{0}")]
    Invalid(String),
    /// 403.
    #[error("{0}")]
    Forbidden(String),
    /// 404: `Volume`, `Volume type`, `Attachment`, `Host` and what was asked for.
    #[error("{kind} {what} could not be found.")]
    NotFound {
        /// The kind of object.
        kind: &'static str,
        /// Its name or id.
        what: String,
    },
    /// 409.
    #[error("{0}")]
    Conflict(String),
    /// 504: durable, going on, not true yet at the deadline; asking again is safe and right.
    #[error("{0}")]
    Pending(String),
    /// 503: no report to decide from, or an agent that must answer is down.
    #[error("{0}")]
    Unavailable(String),
    /// 500: the store failed.
    #[error("{0}")]
    Internal(String),
}

/// An agent that the configuration enrols.
#[derive(Debug, Clone)]
pub struct AgentEntry {
    /// Unique; how people call it.
    pub name: String,
    /// Where it is dialled.
    pub address: Address,
    /// For `https` addresses.
    pub tls: TlsFiles,
    /// Plain text on a network (`http`) is allowed.
    pub insecure: bool,
}

/// What a control plane is opened with.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// Holds the database. Made with mode 0700 when it is not there.
    pub state_dir: PathBuf,
    /// The enrolled agents.
    pub agents: Vec<AgentEntry>,
    /// The cluster's id. `None`: the database's own, made with it. Another one than the database's is an error.
    pub cluster: Option<ClusterId>,
    /// What stands before `:<volume uuid>` in target names, for names that the agents do not report.
    pub iqn_prefix: IqnPrefix,
    /// The database was restored from a backup: raises the epoch and puts every volume in review until its agents agree.
    pub restored: bool,
}

/// Why the control plane does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration cannot hold.
    #[error("{0}")]
    Options(String),
    /// The database does not open.
    #[error("cannot open the controller's database")]
    Store(#[source] StoreError),
    /// The database did not take what a start writes.
    #[error("cannot prepare the controller's database: {0}")]
    Prepare(Refusal),
}

/// The control plane. Cheap to clone. Its tasks end when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Service {
    pub(crate) inner: Arc<Inner>,
    _guard: Arc<Guard>,
}

/// Ends the tasks with the last handle: they hold the inside, not this.
#[derive(Debug)]
struct Guard(Arc<Inner>);

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.take_tasks());
    }
}

/// How long a call may wait for agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait(pub Duration);

/// The mode that applies when none is given.
pub const MODE_DEFAULT: Mode = Mode::ReadWrite;

/// Longest name, description or text of a key, in characters (Cinder's columns).
const TEXT_CHARS_MAX: usize = 255;

fn text_limit(what: &str, text: &str) -> Result<(), Refusal> {
    let chars = text.chars().count();
    if chars > TEXT_CHARS_MAX {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: {what} has {chars} characters, more than {TEXT_CHARS_MAX}."
        )));
    }
    Ok(())
}

/// Only admins pass.
fn allowed(caller: &Caller, policy: &str) -> Result<(), Refusal> {
    if caller.admin {
        Ok(())
    } else {
        Err(Refusal::Forbidden(format!("Policy doesn't allow {policy} to be performed.")))
    }
}

/// Of a volume in review nothing new is wished.
fn not_in_review(volume: &VolumeRow) -> Result<(), Refusal> {
    match &volume.review {
        None => Ok(()),
        Some(why) => Err(Refusal::Unavailable(format!("volume {} is in review: {why}", volume.id))),
    }
}

fn check(options: &ServiceOptions) -> Result<(), OpenError> {
    let mut names = BTreeSet::new();
    for entry in &options.agents {
        if entry.name.is_empty() || entry.name.len() > TEXT_CHARS_MAX {
            return Err(OpenError::Options(format!("agent {:?}: want a name of 1 to 255 bytes", entry.name)));
        }
        if !names.insert(&entry.name) {
            return Err(OpenError::Options(format!("agent {} is enrolled twice", entry.name)));
        }
    }
    Ok(())
}

impl Service {
    /// Opens the database (blocks). Nothing is dialled before [`Service::start`].
    pub fn open(options: ServiceOptions) -> Result<Self, OpenError> {
        check(&options)?;
        let store = Store::open(&options.state_dir, options.cluster).map_err(OpenError::Store)?;
        let restored = options.restored;
        let prepare = |db: &Db<'_>| {
            if restored {
                let epoch = db.raise_epoch(0)?;
                let volumes = db.review_all(review::RESTORED)?;
                tracing::warn!(
                    epoch,
                    volumes,
                    "the database was restored: the epoch is raised, its volumes are in review"
                );
            }
            Ok(db.agents()?)
        };
        let known = store.write_blocking("prepare the store", prepare).map_err(OpenError::Prepare)?;
        let inner = Arc::new(Inner::new(options, store));
        for row in known {
            // What an agent said last still decides, until it says otherwise.
            if let Some(agent) = inner.agents.all().iter().find(|agent| agent.entry.name == row.name) {
                let mut state = agent.state();
                state.id = Some(row.id);
                state.initiator = row.initiator;
                state.capabilities = row.capabilities;
                state.last_report = row.reported_at;
            }
        }
        let guard = Arc::new(Guard(Arc::clone(&inner)));
        Ok(Self { inner, _guard: guard })
    }

    /// Starts to dial the agents and to go on with everything that was going on. Needs a tokio runtime.
    pub fn start(&self) {
        for agent in self.inner.agents.all() {
            self.inner.spawn(task::run(Arc::clone(&self.inner), Arc::clone(agent)));
        }
        let inner = Arc::clone(&self.inner);
        self.inner.spawn(async move {
            if let Err(refusal) = inner.resume().await {
                tracing::error!(error = %refusal, "cannot go on with what was on its way; it goes on when its agents are up");
            }
        });
    }

    /// Ends all tasks at once; every wish is durable, and another start goes on.
    pub async fn stop(&self) {
        if let Some(mut tasks) = self.inner.take_tasks() {
            tasks.shutdown().await;
        }
    }

    /// The cluster's id, which agents are pinned to.
    pub fn cluster(&self) -> ClusterId {
        self.inner.store.cluster()
    }

    /// Raises the epoch: every later change of a spec is newer than all before. Returns the new one. Admins only.
    pub async fn raise_epoch(&self, caller: &Caller) -> Result<u64, Refusal> {
        allowed(caller, "mooring:raise_epoch")?;
        self.inner.store.write("raise the epoch", |db| Ok(db.raise_epoch(0)?)).await
    }

    /// An operator says that what this database wishes of a volume in review is right: it is sent, newer than what the
    /// agents have. Its agents must be up, so that it is known what that is. Admins only.
    pub async fn confirm_review(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        allowed(caller, "mooring:confirm_review")?;
        let inner = Arc::clone(&self.inner);
        let write = move |db: &Db<'_>| confirm(&inner, db, id);
        let hosts = self.inner.store.write("confirm a volume", write).await?;
        self.inner.go(id, &hosts);
        Ok(())
    }

    /// What a request about this volume waits for.
    async fn why_waits(&self, id: VolumeId) -> String {
        let read = move |db: &Db<'_>| Ok(db.volume(id)?);
        let Ok(Some(volume)) = self.inner.store.read("read a volume", read).await else {
            return "its volume is not there".to_owned();
        };
        if let Some(why) = volume.review {
            return format!("volume {id} is in review: {why}");
        }
        match self.inner.agents.up(volume.agent) {
            Err(why) => why,
            Ok(agent) => {
                let report = agent.volume(id).export;
                let problem = report.as_ref().and_then(|report| report.problems.first());
                problem.map_or_else(
                    || format!("agent {} is at it", agent.entry.name),
                    |problem| format!("{}: {}: {}", agent.entry.name, problem.object, problem.text),
                )
            }
        }
    }
}

fn confirm(inner: &Inner, db: &Db<'_>, id: VolumeId) -> Result<BTreeSet<mooring_model::AgentId>, Abort> {
    let volume = db.volume(id)?;
    let volume = volume.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: id.to_string() })?;
    if volume.review.is_none() {
        return Ok(BTreeSet::new());
    }
    let storage = inner.agents.up(volume.agent).map_err(Refusal::Unavailable)?.volume(id);
    let hosts: BTreeSet<_> = db.connections_of(id)?.into_iter().collect();
    let mut kept = vec![
        (Kind::Volume, storage.volume_stamp.map(|stamp| stamp.generation)),
        (Kind::Export, storage.export_stamp.map(|stamp| stamp.generation)),
    ];
    for host in &hosts {
        let seen = inner.agents.up(*host).map_err(Refusal::Unavailable)?.connection(id);
        kept.push((Kind::Connection(*host), seen.stamp.map(|stamp| stamp.generation)));
    }
    let newest =
        kept.iter().filter_map(|(_, generation)| *generation).map(|generation| generation.epoch).max();
    if let Some(newest) = newest.filter(|newest| *newest > db.epoch().unwrap_or(0)) {
        db.raise_epoch(newest)?;
    }
    for (kind, generation) in kept {
        db.renew(id, kind, generation.unwrap_or(Generation::ZERO))?;
    }
    db.set_review(id, None)?;
    // Whatever has the old generations in its row waits for the new ones.
    let mut rows: Vec<_> = db.attachments_of(id)?.into_iter().filter(|row| row.held).collect();
    for row in &mut rows {
        row.wished_at = Generation::ZERO;
    }
    wishes::apply(db, id, &mut rows, &BTreeSet::new())?;
    Ok(hosts)
}
