//! The host's role: keeps the specs of connections to volumes durable, and carries them out through
//! `mooring-sessiond`.
//!
//! This module works as the engine of volumes and exports does, with its own cells, admission and
//! passes: a hanging disk or an unreachable target delays its own volume only. A pass is woken by a
//! new spec, a changed session (`mooring-sessiond` reports it), a disk that comes or goes (uevents
//! report it), the retry of a failure, and the resync.
//!
//! What must never happen here: an acknowledgement before the store has the spec; a session or disk
//! touched that no spec and no tombstone names; anything torn down because somebody does not
//! answer.

mod admit;
mod audit;
mod cell;
mod listen;
mod pass;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mooring_connectors::wire::SessionStatus;
use mooring_connectors::{Names, Parts};
use mooring_host::Uevents;
use mooring_model::{AttachmentId, Chain, ClusterId, ConnectionReport, ConnectionSpec, Iqn, Stamp, VolumeId};
use tokio::sync::{broadcast, oneshot};
use tokio::time::Instant;

pub use status::Status;

use crate::engine::{Engine, Refusal, lock};
use crate::object::admission::{self, Claim};
use crate::object::turn::{self, RETRY_MAX};
use crate::rate_limit::RateLimit;
use crate::store::{Kind, PURGED_EVERY, StoreError};
use crate::workers::Workers;
use cell::Cell;

/// Reports that a watcher may lag behind before its stream ends.
const REPORTS_QUEUED_MAX: usize = 4096;

/// Time until `mooring-sessiond` is asked again after it did not answer.
const SESSIOND_RETRY: Duration = Duration::from_secs(1);

/// A sender's request for a connection.
#[derive(Debug, Clone)]
pub enum ConnectionRequest {
    /// The connection shall be there as the spec says.
    Spec(Box<ConnectionSpec>),
    /// The connection goes.
    Tombstone {
        /// `true` if the target has revoked this host: the connection goes at once, whoever holds
        /// the disk.
        revoked: bool,
    },
}

/// A change of a connection's spec.
#[derive(Debug, Clone)]
pub struct PutConnection {
    /// The cluster that sends the change.
    pub cluster: ClusterId,
    /// The volume.
    pub volume: VolumeId,
    /// The stamp that fences the change.
    pub stamp: Stamp,
    /// The requested spec or end.
    pub request: ConnectionRequest,
    /// Bytes that the agent keeps for the sender.
    pub opaque: Vec<u8>,
    /// Time at which the request was decoded.
    pub decoded: Instant,
}

/// The answer to a [`PutConnection`].
#[derive(Debug, Clone)]
pub struct ConnectionAnswer {
    /// The connection as it is now. `None` if nothing is known of it.
    pub report: Option<ConnectionReport>,
    /// `true` if the change is carried out.
    pub done: bool,
    /// Time until the store had the change.
    pub durable: Duration,
}

/// The result of an admission.
struct Admitted {
    durable: Duration,
    /// Passes that had begun: a later pass has seen the change.
    after: u64,
}

struct Shared {
    /// The engine, for its store, its configuration and the agent's cluster.
    engine: Engine,
    parts: Parts,
    workers: Workers,
    cells: Mutex<HashMap<VolumeId, Arc<Cell>>>,
    /// The volume of each attachment: an attachment's path has room for one.
    attachments: Mutex<HashMap<AttachmentId, VolumeId>>,
    /// Sessions of ours, as `mooring-sessiond` reported them.
    sessions: Mutex<BTreeMap<VolumeId, SessionStatus>>,
    changes: broadcast::Sender<ConnectionReport>,
    /// Limits how often old tombstones are forgotten.
    purged: RateLimit,
    /// The walks for the users of disks.
    audits: audit::Audits,
    runtime: tokio::runtime::Handle,
}

/// The host's role; clones share it.
#[derive(Clone)]
pub struct Connections {
    shared: Arc<Shared>,
}

impl Connections {
    /// Reads the store and gets ready, without any work before [`Connections::start`]. Must be
    /// called inside a tokio runtime.
    pub fn new(engine: Engine, parts: Parts) -> Result<Self, StoreError> {
        let shared = Shared {
            parts,
            workers: engine.workers().beside(),
            engine,
            cells: Mutex::default(),
            attachments: Mutex::default(),
            sessions: Mutex::default(),
            changes: broadcast::Sender::new(REPORTS_QUEUED_MAX),
            purged: RateLimit::default(),
            audits: audit::Audits::default(),
            runtime: tokio::runtime::Handle::current(),
        };
        let connections = Self { shared: Arc::new(shared) };
        for stored in connections.shared.engine.store().specs()? {
            if stored.kind == Kind::Connection {
                let kept_spec = admit::stored(&stored)?;
                let cell = connections.cell(stored.volume);
                connections.claim_attachments(stored.volume, kept_spec.spec());
                cell.state().set_spec(kept_spec);
            }
        }
        Ok(connections)
    }

    /// The name under which this host logs in.
    pub fn initiator(&self) -> Iqn {
        let engine = &self.shared.engine;
        engine.config().iqn_prefix.initiator(engine.agent_id())
    }

    /// The engine of the same agent.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Begins to work: carries out every stored spec and tombstone again, and listens from now on.
    pub fn start(&self, uevents: Option<Box<dyn Uevents>>) {
        listen::start(self, uevents);
        self.wake_all();
        let connections = self.clone();
        self.shared.runtime.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1));
            let resync = connections.shared.engine.config().resync_seconds;
            let mut until_resync = resync;
            loop {
                tick.tick().await;
                connections.shared.workers.tend();
                connections.audit_when_due();
                until_resync = until_resync.saturating_sub(1);
                if until_resync == 0 {
                    until_resync = resync;
                    connections.wake_all();
                    let keeper = connections.clone();
                    connections.shared.workers.submit(move || keeper.housekeep());
                }
            }
        });
    }

    /// Forgets old tombstones whose connection is gone.
    fn housekeep(&self) {
        let engine = &self.shared.engine;
        let now = engine.machine().clock.now();
        let gone = |kind, id| kind == Kind::Connection && self.is_gone(id);
        let purge = || engine.store().purge(now, gone).map(drop);
        if let Err(error) = self.shared.purged.when_due(now, PURGED_EVERY, purge) {
            tracing::warn!(error = %Chain(&error), "old connections are not forgotten; tried again at the next tick");
        }
    }

    fn is_gone(&self, id: VolumeId) -> bool {
        let Some(cell) = self.known_cell(id) else { return true };
        cell.state().is_gone()
    }

    fn cell(&self, id: VolumeId) -> Arc<Cell> {
        Arc::clone(lock(&self.shared.cells).entry(id).or_insert_with(|| Cell::new(id)))
    }

    fn known_cell(&self, id: VolumeId) -> Option<Arc<Cell>> {
        lock(&self.shared.cells).get(&id).cloned()
    }

    fn cells(&self) -> Vec<Arc<Cell>> {
        let mut cells: Vec<_> = lock(&self.shared.cells).values().cloned().collect();
        cells.sort_by_key(|cell| cell.id);
        cells
    }

    fn names(&self, volume: VolumeId) -> Names {
        let target = self.shared.engine.config().iqn_prefix.target(volume);
        Names { initiator: self.initiator(), target }
    }

    /// Claims the paths of a volume's attachments for this volume from now on.
    fn claim_attachments(&self, volume: VolumeId, spec: Option<&ConnectionSpec>) {
        let mut claimed = lock(&self.shared.attachments);
        if let Some(spec) = spec {
            claimed.extend(spec.attachments.iter().map(|attachment| (attachment.id, volume)));
        }
    }

    fn wake_all(&self) {
        for cell in self.cells() {
            if cell.state().kept_spec().is_some() {
                self.wake(&cell);
            }
        }
    }

    /// Has a pass run over this connection soon.
    fn wake(&self, cell: &Arc<Cell>) {
        if !cell.state().turn.ask() {
            return;
        }
        let (connections, cell) = (self.clone(), Arc::clone(cell));
        self.shared.workers.submit(move || connections.run(&cell));
    }

    /// Has a pass run later, if the connection still waits behind this pass then. The delay grows
    /// with `failures`, up to `at_most`.
    fn wake_later(&self, cell: &Arc<Cell>, pass: u64, failures: u32, at_most: Duration) {
        let delay = turn::retry_delay(failures, at_most);
        let (connections, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            if cell.state().turn.is_due(pass) {
                connections.wake(&cell);
            }
        });
    }

    /// Subscribes to changes.
    pub fn changes(&self) -> broadcast::Receiver<ConnectionReport> {
        self.shared.changes.subscribe()
    }

    fn publish(&self, report: ConnectionReport) {
        // A change without a watcher is no error.
        drop(self.shared.changes.send(report));
    }

    /// Takes a change, and waits until it is carried out, blocked, or late for the deadline.
    pub async fn put(&self, put: PutConnection, deadline: Duration) -> Result<ConnectionAnswer, Refusal> {
        let began = put.decoded;
        let generation = put.stamp.generation;
        let cell = self.cell(put.volume);
        let mut version = cell.watch();
        let admitted = self.admitted(&cell, put, deadline).await?;
        loop {
            let (settled, answer) = {
                let state = cell.state();
                // An end for a newer spec does not say that this one was carried out.
                let done = state.end().is_done(generation, admitted.after);
                let answer = ConnectionAnswer {
                    report: self.report(cell.id, &state),
                    done,
                    durable: admitted.durable,
                };
                (state.end().is_settled(generation, admitted.after), answer)
            };
            let left = deadline.saturating_sub(began.elapsed());
            if settled || left.is_zero() || tokio::time::timeout(left, version.changed()).await.is_err() {
                return Ok(answer);
            }
        }
    }

    /// Runs admission on a worker, and a pass behind it on the same thread.
    async fn admitted(
        &self,
        cell: &Arc<Cell>,
        put: PutConnection,
        deadline: Duration,
    ) -> Result<Admitted, Refusal> {
        let claim = Arc::new(Claim::default());
        let (done, result) = oneshot::channel();
        let (connections, at, ours) = (self.clone(), Arc::clone(cell), Arc::clone(&claim));
        self.shared.workers.submit(move || {
            // `None`: the caller's deadline has passed, and nobody waits for this answer.
            let Some(turn) = at.admission.take(deadline) else { return };
            let admitted = connections.admit(&at, put, &ours);
            drop(turn);
            let go_on = admitted.is_ok();
            drop(done.send(admitted));
            if go_on {
                at.state().turn.ask();
                connections.end_beside(&at);
                connections.run(&at);
            }
        });
        let answer = admission::answer(result, &claim, deadline).await;
        answer.unwrap_or_else(|| Err(Refusal::busy(cell.id, cell.state().stuck())))
    }
}
