//! The engine: keeps specs durable and carries them out.
//!
//! How the parts work together. `rpc` turns a call into a [`PutVolume`] or [`PutExport`] and
//! hands it to the engine. The engine puts one job on the workers: *admission* (check, fence, write
//! to the store) and then a *pass* over that volume (look, plan, apply, look again). At most one
//! pass of a volume runs at a time. A change that comes meanwhile asks for another pass behind it.
//! Everything else (start, tick, retry) only wakes passes. Those who wait for an answer watch the
//! volume's cell, and answer at their deadline with what is known.
//!
//! What must never happen here: an acknowledgement before the store has the spec; a change that is
//! taken after its caller was told that it was not; a lock of one volume held while another waits
//! for it; a plan that is stored; a decision from a missing spec.

mod admit;
pub(crate) mod busy;
mod calls;
mod capabilities;
mod cell;
mod clear;
pub(crate) mod counts;
mod established;
mod export;
mod knowledge;
mod look;
mod naas;
mod pass;
mod receipts;
mod refusal;
mod reports;
mod reservation;
mod start;
mod status;
mod steps;
mod tend;
#[cfg(test)]
pub(crate) mod testing;
mod volume;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mooring_api::v1;
use mooring_model::{
    AgentId, Chain, ClusterId, Cure, ExportReport, Generation, Problem, Receipt, Stamp, VolumeId,
    VolumeReport, VolumeSpec,
};
use tokio::sync::{broadcast, oneshot, watch};
use tokio::time::Instant;

pub use knowledge::Stale;
pub use refusal::Refusal;
pub use status::{Planned, PlannedStep, Status};

use crate::capabilities::{FOLLOWED_UNITS, Lvm};
use crate::clock;
use crate::config::Config;
use crate::door::Door;
use crate::fibre_channel::Ports;
use crate::lvm::gate::Gated;
use crate::machine::Machine;
use crate::object::admission::{self, Claim};
use crate::object::turn::{self, RETRY_MAX};
use crate::rate_limit::RateLimit;
use crate::store::{Kind, Store, StoreError};
use crate::workers::Workers;
use cell::{Cell, KeptSpec};
use export::ExportMemory;
use look::LookMemory;
use naas::Naas;
use receipts::OpenReceipt;
use reports::Reports;
use start::StartMemory;
use volume::VolumeMemory;

/// Longest time that the start waits for the first look at the machine.
const START_WITHIN: Duration = Duration::from_secs(2);

/// Something that has changed.
#[derive(Debug, Clone)]
pub enum Change {
    /// A volume.
    Volume(VolumeReport),
    /// An export.
    Export(Box<ExportReport>),
    /// A receipt came into being, or was proven.
    Receipt(Receipt),
}

/// A sender's request for a volume.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and most are specs")]
pub enum VolumeRequest {
    /// The volume shall be there as the spec says.
    Spec(VolumeSpec),
    /// The spec goes; with `destroy` the data goes, too.
    Tombstone {
        /// Wipe and delete the data.
        destroy: bool,
    },
    /// The spec goes. The volume is unmanaged: its LV stays, with its data.
    Release,
}

/// A change of a volume's spec.
#[derive(Debug, Clone)]
pub struct PutVolume {
    /// The cluster that sends the change.
    pub cluster: ClusterId,
    /// The volume.
    pub volume: VolumeId,
    /// The stamp that fences the change.
    pub stamp: Stamp,
    /// The requested spec or end.
    pub request: VolumeRequest,
    /// Bytes that the agent keeps for the sender.
    pub opaque: Vec<u8>,
    /// `true` if the sender has never made a volume of this id: anything here under the id is
    /// somebody else's.
    pub new: bool,
}

/// The treatment of live sessions whose grant goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveSessions {
    /// Live sessions refuse the change.
    Refuse,
    /// The change ends live sessions.
    End,
}

/// A change of an export's spec.
#[derive(Debug, Clone)]
pub struct PutExport {
    /// The cluster that sends the change.
    pub cluster: ClusterId,
    /// The volume.
    pub volume: VolumeId,
    /// The stamp that fences the change.
    pub stamp: Stamp,
    /// The spec as it came; an empty secret stands for the kept one. `None` is its tombstone.
    pub spec: Option<v1::ExportSpec>,
    /// Bytes that the agent keeps for the sender.
    pub opaque: Vec<u8>,
    /// The treatment of live sessions.
    pub live_sessions: LiveSessions,
    /// The sender's copy of what this agent kept of the volume's persistent reservations.
    pub reservations_copy: String,
    /// Time at which the request was decoded.
    pub decoded: Instant,
}

/// The answer to a [`PutVolume`].
#[derive(Debug, Clone)]
pub struct VolumeAnswer {
    /// The volume as it is now.
    pub report: VolumeReport,
    /// `true` if the change is carried out.
    pub done: bool,
}

/// The answer to a [`PutExport`].
#[derive(Debug, Clone)]
pub struct ExportAnswer {
    /// The export as it is now. `None` if no pass has reported on it.
    pub report: Option<ExportReport>,
    /// `true` if the kernel shows the export as the spec says.
    pub done: bool,
    /// One receipt for each grant that this generation took away.
    pub receipts: Vec<Receipt>,
    /// Time until the store had the change.
    pub durable: Duration,
    /// Time until a look saw the change in force. `None` if no look has seen it so.
    pub seen: Option<Duration>,
    /// Operations of that pass on the kernel's tree.
    pub operations: u64,
}

struct Shared {
    config: Config,
    machine: Machine,
    store: Store,
    workers: Workers,
    /// The last answers of LVM about the groups.
    lvm: Lvm,
    cells: Mutex<BTreeMap<VolumeId, Arc<Cell>>>,
    naas: Naas,
    reports: Reports,
    look_memory: LookMemory,
    export_memory: ExportMemory,
    start_memory: StartMemory,
    volume_memory: VolumeMemory,
    /// Limits how often old tombstones are forgotten.
    purged: RateLimit,
    door: OnceLock<Arc<Door>>,
    /// Work that a shutdown waits for.
    busy: busy::Busy,
    runtime: tokio::runtime::Handle,
}

/// The engine; clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded maps are whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Reads the store and gets ready, without a change of the machine before [`Engine::start`].
    /// Must be called inside a tokio runtime.
    pub fn new(config: Config, machine: Machine, store: Store) -> Result<Self, StoreError> {
        Self::with_workers(config, machine, store, Workers::default())
    }

    /// Reads the store as [`Engine::new`] does, and runs on these workers.
    pub fn with_workers(
        config: Config,
        machine: Machine,
        store: Store,
        workers: Workers,
    ) -> Result<Self, StoreError> {
        let machine = Machine { commands: Arc::new(Gated::new(machine.commands)), ..machine };
        if let Some(cluster) = config.cluster {
            store.pin_by_operator(cluster)?;
        }
        store.keep_prefix(&config.iqn_prefix)?;
        let units = machine.bus.clone().map(|bus| mooring_bus::follow(bus, &FOLLOWED_UNITS));
        let shared = Shared {
            look_memory: LookMemory::new(units),
            export_memory: ExportMemory::new(Ports::kept(store.fc_ports()?), (machine.addresses)()),
            start_memory: StartMemory::new(&config),
            volume_memory: VolumeMemory::new(&config, &machine.images),
            config,
            machine,
            store,
            workers,
            lvm: Lvm::default(),
            cells: Mutex::default(),
            naas: Naas::default(),
            reports: Reports::new(),
            purged: RateLimit::default(),
            door: OnceLock::new(),
            busy: busy::Busy::default(),
            runtime: tokio::runtime::Handle::current(),
        };
        let engine = Self { shared: Arc::new(shared) };
        engine.load()?;
        Ok(engine)
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// Jobs that threads for kernel work have taken since the start. To wake a thread costs as much
    /// as some calls do.
    pub fn hand_overs(&self) -> u64 {
        self.shared.workers.taken()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// This agent's id.
    pub fn agent_id(&self) -> AgentId {
        self.shared.store.agent_id()
    }

    /// Takes back the id under which a cluster knows this host, if nothing is kept under the
    /// current id.
    pub async fn adopt(&self, cluster: ClusterId, agent: AgentId) -> Result<(), Refusal> {
        let engine = self.clone();
        let done = self.blocking(move || {
            engine.check_sender(cluster)?;
            engine.store().adopt(cluster, agent).map_err(Refusal::Store)
        });
        done.await.unwrap_or_else(|| {
            let why = format!("this agent could not take the id {agent}: try again");
            Err(Refusal::precondition(why, Cure::Retry))
        })
    }

    /// The cluster that this agent is pinned to. `None` if it is not pinned.
    pub fn cluster(&self) -> Result<Option<ClusterId>, Refusal> {
        self.shared.store.cluster().map_err(Refusal::Store)
    }

    /// Says whether anything is known of a volume.
    pub fn knows(&self, id: VolumeId) -> bool {
        self.known_cell(id).is_some_and(|cell| !cell.state().is_unknown())
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.shared.machine
    }

    /// The health that was reported last. `None` if nobody has asked.
    pub(crate) fn health(&self) -> Option<v1::Health> {
        self.shared.reports.health()
    }

    /// Takes this agent's side of TLS, once: a second one is ignored.
    pub(crate) fn note_door(&self, door: Arc<Door>) {
        // An engine is served once.
        let _ = self.shared.door.set(door);
    }

    /// This agent's side of TLS. `None` if it has none, or does not serve yet.
    pub(crate) fn door(&self) -> Option<&Arc<Door>> {
        self.shared.door.get()
    }

    /// Notes the health that this host reports now.
    pub(crate) fn note_health(&self, health: Option<&v1::Health>) {
        self.shared.reports.note_health(health);
    }

    /// The last answers of LVM about the groups, for whoever asks what this host can do.
    pub(crate) fn lvm(&self) -> &Lvm {
        &self.shared.lvm
    }

    fn load(&self) -> Result<(), StoreError> {
        for stored in self.shared.store.specs()? {
            // Another engine keeps the connections.
            if stored.kind == Kind::Connection {
                continue;
            }
            let cell = self.cell(stored.volume);
            match stored.kind {
                Kind::Volume => {
                    let kept_spec = volume::admit::stored_volume(&stored)?;
                    let mut state = cell.state();
                    state.set_volume(kept_spec);
                    state.established.set_made(stored.made);
                }
                Kind::Export => {
                    let kept_spec = export::admit::stored_export(&stored)?;
                    if let Some(spec) = kept_spec.spec() {
                        let names = spec.identity.names(stored.volume, &self.shared.config.iqn_prefix);
                        self.shared.naas.load(names.naa(), stored.volume);
                    }
                    let mut state = cell.state();
                    state.set_export(kept_spec);
                    state.silence.set_unheard();
                }
                Kind::Connection => {}
            }
            // A volume has its own identity from its first spec on, also before it is exported.
            self.shared.naas.note_own(stored.volume);
        }
        for (volume, place) in self.shared.store.fc_places()? {
            self.cell(volume).state().established.load_place(place);
        }
        self.load_reservations()?;
        self.load_port_ids()?;
        self.load_whole()?;
        self.load_kept_out()?;
        for (row, receipt) in self.shared.store.unproven_receipts()? {
            let cell = self.cell(receipt.volume);
            cell.state().established.receipts_mut().add_open(OpenReceipt { row, receipt, began: None });
        }
        Ok(())
    }

    /// Looks at the machine, adopts what is ours, and begins to work. Returns when the workers have
    /// every volume's first pass; passes go on by themselves. If LVM hangs, returns without them:
    /// the kernel's exports can be granted and revoked all the same.
    pub async fn start(&self) {
        // Ends the bulk work of an agent that was killed before this one started.
        self.end_bulk();
        let (engine, sweeper) = (self.clone(), self.clone());
        let mut swept = tokio::spawn(async move { engine.blocking(move || sweeper.first_sweep()).await });
        let in_time = tokio::time::timeout(START_WITHIN, &mut swept).await.is_ok();
        if !in_time && self.is_making() {
            tracing::info!("exports are still being made; requests are taken meanwhile");
        } else if !in_time {
            tracing::error!(
                "the first look at the volume groups has not ended in time; the agent starts without it"
            );
        }
        let engine = self.clone();
        self.shared.workers.submit(move || engine.sweep_parts());
        tokio::spawn(self.clone().follow_reservations());
        let engine = self.clone();
        tokio::spawn(async move {
            // The watch of disks asks LVM, too: it begins behind the first look.
            if !in_time {
                drop(swept.await);
            }
            engine.follow_disks().await;
        });
        tokio::spawn(self.clone().follow_folders());
        tokio::spawn(self.clone().follow_units());
        tokio::spawn(self.clone().follow_shutdowns());
        tokio::spawn(self.clone().tend());
    }

    /// Says whether nothing is left of an object whose tombstone is kept.
    fn is_gone(&self, kind: Kind, id: VolumeId) -> bool {
        if kind == Kind::Connection {
            // The engine of connections forgets their tombstones.
            return false;
        }
        let Some(cell) = self.known_cell(id) else { return true };
        let state = cell.state();
        match kind {
            Kind::Volume => {
                state.volume_end().is_done() && state.knowledge.orphan().is_none() && !is_spec(state.volume())
            }
            Kind::Export => state.is_export_done() && !is_spec(state.export()),
            Kind::Connection => false,
        }
    }

    /// Runs `work` on a thread that can be lost, and waits for it. `None` if `work` did not come to
    /// its end.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        self.shared.workers.submit_awaited(move || drop(done.send(work())));
        result.await.ok()
    }

    /// Runs `work` on a thread that can be lost.
    pub(crate) fn submit(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.workers.submit(work);
    }

    /// The cell of a volume; a new one if there is none.
    fn cell(&self, id: VolumeId) -> Arc<Cell> {
        Arc::clone(lock(&self.shared.cells).entry(id).or_insert_with(|| Cell::new(id)))
    }

    fn known_cell(&self, id: VolumeId) -> Option<Arc<Cell>> {
        lock(&self.shared.cells).get(&id).cloned()
    }

    fn cells(&self) -> Vec<Arc<Cell>> {
        lock(&self.shared.cells).values().cloned().collect()
    }

    /// Number of volumes that are known.
    fn count(&self) -> usize {
        lock(&self.shared.cells).len()
    }

    /// Up to `most` volumes behind this one in the order of their ids; the first follows the last.
    fn cells_behind(&self, last: Option<VolumeId>, most: usize) -> Vec<Arc<Cell>> {
        let cells = lock(&self.shared.cells);
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = cells.range((behind, Bound::Unbounded)).chain(cells.iter());
        next.map(|(_, cell)| Arc::clone(cell)).take(most.min(cells.len())).collect()
    }

    /// Has a pass run over this volume soon.
    fn wake(&self, cell: &Arc<Cell>) {
        if !cell.state().turn.ask() {
            return;
        }
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        let group = cell.state().group();
        self.shared.workers.submit_of(group, move || engine.run(&cell));
    }

    /// Has a pass run later, if the volume still waits behind this pass then. The delay grows with
    /// `failures`.
    fn wake_later(&self, cell: &Arc<Cell>, pass: u64, failures: u32) {
        let delay = turn::retry_delay(failures, RETRY_MAX);
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            if cell.state().turn.is_due(pass) {
                engine.wake(&cell);
            }
        });
    }

    /// Subscribes to changes.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.shared.reports.subscribe()
    }

    fn publish(&self, change: Change) {
        self.shared.reports.publish(change);
    }

    /// Takes a volume's change, and waits until it is carried out, blocked, or late for the
    /// deadline.
    pub async fn put_volume(&self, put: PutVolume, deadline: Duration) -> Result<VolumeAnswer, Refusal> {
        let began = clock::instant();
        let generation = put.stamp.generation;
        let cell = self.cell(put.volume);
        let mut version = cell.watch();
        let after = self
            .admitted(&cell, &mut version, deadline, move |engine, cell, claim| {
                engine.admit_volume(cell, put, claim)
            })
            .await?;
        loop {
            let settled = {
                let state = cell.state();
                let end = state.volume_end();
                // A pass of an isolated volume may hang.
                let only_isolation = state.is_only_isolation(generation);
                // An end for a newer spec does not say that this one was carried out.
                let done = only_isolation || end.is_done() && end.generation == Some(generation);
                (only_isolation || end.is_settled(generation, after) && state.isolation_matches_spec())
                    .then(|| VolumeAnswer { report: state.volume_report(cell.id), done })
            };
            if let Some(answer) = settled {
                return Ok(answer);
            }
            let left = deadline.saturating_sub(began.elapsed());
            if left.is_zero() || tokio::time::timeout(left, version.changed()).await.is_err() {
                return Ok(VolumeAnswer { report: cell.volume_report(), done: false });
            }
        }
    }

    /// Takes an export's change, and waits until a look sees it in the kernel, it is blocked, or
    /// late.
    pub async fn put_export(&self, put: PutExport, deadline: Duration) -> Result<ExportAnswer, Refusal> {
        let began = put.decoded;
        let generation = put.stamp.generation;
        let cell = self.cell(put.volume);
        let mut version = cell.watch();
        let admitted = self.admitted_export(&cell, &mut version, put, deadline).await?;
        let mut answer = ExportAnswer {
            report: None,
            done: false,
            receipts: Vec::new(),
            durable: admitted.durable,
            seen: None,
            operations: 0,
        };
        loop {
            let left = deadline.saturating_sub(began.elapsed());
            {
                let state = cell.state();
                let end = state.export_end();
                let settled = end.is_settled(generation, admitted.after);
                if settled && end.is_done() {
                    let at = end.at.unwrap_or_else(clock::instant);
                    answer.seen = Some(at.saturating_duration_since(began));
                    answer.operations = end.operations;
                    answer.done = true;
                }
                if settled || left.is_zero() {
                    answer.report = state.export_report();
                    break;
                }
            }
            // At the deadline the loop reads the state once more.
            let _ = tokio::time::timeout(left, version.changed()).await;
        }
        if admitted.receipts {
            answer.receipts = self.receipts_of(&cell, generation).await?;
        }
        Ok(answer)
    }

    /// Runs the admission of an export's change, and again if a call was in the way of its look at
    /// the sessions and has returned in time.
    async fn admitted_export(
        &self,
        cell: &Arc<Cell>,
        version: &mut watch::Receiver<u64>,
        put: PutExport,
        deadline: Duration,
    ) -> Result<export::admit::Admitted, Refusal> {
        loop {
            let (began, put) = (put.decoded, put.clone());
            let left = || deadline.saturating_sub(began.elapsed());
            let admit =
                move |engine: &Self, cell: &Arc<Cell>, claim: &Claim| engine.admit_export(cell, put, claim);
            match self.admitted(cell, version, left(), admit).await {
                Err(Refusal::Busy { .. }) if cell.until_clear(left()).await => {}
                answer => return answer,
            }
        }
    }

    async fn receipts_of(&self, cell: &Cell, generation: Generation) -> Result<Vec<Receipt>, Refusal> {
        if let Some(receipts) = cell.state().established.receipts().newest(generation) {
            return Ok(receipts.to_vec());
        }
        // The receipts are of an earlier generation, or from before the agent's start.
        let (engine, volume) = (self.clone(), cell.id);
        let read = self.blocking(move || engine.shared.store.receipts_of(volume, generation)).await;
        Ok(read.transpose().map_err(Refusal::Store)?.unwrap_or_default())
    }

    /// Notes whether the store took a change, for whoever asks why that change waits. The sender
    /// may be gone by then, or be another one.
    fn note_store(&self, cell: &Cell, refusal: Option<&Refusal>) {
        let failed = match refusal {
            None => None,
            Some(Refusal::Store(error)) if error.cure() != Cure::FixSpec => Some(Problem {
                object: format!("the agent's store, for volume {}", cell.id),
                text: Chain(error).to_string(),
                cure: error.cure(),
            }),
            // The other refusals show nothing new of the store.
            Some(_) => return,
        };
        let report = {
            let mut state = cell.state();
            if !state.note_store(failed) {
                return;
            }
            state.export_report()
        };
        if let Some(report) = report {
            self.publish(Change::Export(report.into()));
        }
    }

    /// Runs admission on a worker, and a pass behind it on the same thread.
    async fn admitted<T: Send + 'static>(
        &self,
        cell: &Arc<Cell>,
        version: &mut watch::Receiver<u64>,
        deadline: Duration,
        admit: impl FnOnce(&Self, &Arc<Cell>, &Claim) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let began = clock::instant();
        let claim = Arc::new(Claim::default());
        let (done, result) = oneshot::channel();
        let (engine, at, ours) = (self.clone(), Arc::clone(cell), Arc::clone(&claim));
        let group = cell.state().group();
        self.shared.workers.submit_awaited_of(group, move || {
            // `None`: the caller's deadline has passed, and nobody waits for this answer.
            let Some(turn) = at.admission.take(deadline) else { return };
            let admitted = admit(&engine, &at, &ours);
            drop(turn);
            let go_on = admitted.is_ok();
            engine.note_store(&at, admitted.as_ref().err());
            engine.explain_orphaned_target(at.id);
            drop(done.send(admitted));
            if go_on {
                // The sender waits for the look behind the steps of its pass.
                engine.passed(at.id, false);
                engine.tend_isolation_soon(&at);
                at.state().turn.ask_anew();
                engine.run(&at);
            } else {
                at.changed();
            }
        });
        // As a rule the pass ends a moment after admission: one wake-up of the caller serves both.
        let _ = tokio::time::timeout(deadline, version.changed()).await;
        let answer = admission::answer(result, &claim, deadline.saturating_sub(began.elapsed())).await;
        answer.unwrap_or_else(|| Err(Refusal::busy(cell.id, cell.state().stuck())))
    }
}

/// Says whether an object has a tombstone.
fn is_tombstone<S>(kept_spec: Option<&KeptSpec<S>>) -> bool {
    kept_spec.is_some_and(|kept_spec| kept_spec.spec().is_none())
}

/// Says whether an object has a spec.
fn is_spec<S>(kept_spec: Option<&KeptSpec<S>>) -> bool {
    kept_spec.is_some_and(|kept_spec| kept_spec.spec().is_some())
}
