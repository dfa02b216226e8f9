//! The engine: keeps wishes durable and makes them true.
//!
//! Who talks to whom. `serve` turns a call into a [`PutVolume`] or [`PutExport`] and hands it to the engine. The engine puts
//! one job on the workers: *admission* (check, fence, write to the store) and then a *pass* over that volume (look, plan,
//! apply, look again). A pass of a volume runs once at a time; a change that comes meanwhile marks the volume dirty, and the
//! pass runs again. Everything else (start, tick, retry) only wakes passes. Those who wait for an answer watch the volume's
//! cell and answer at their deadline with what is known.
//!
//! What must never happen here: an acknowledgement before the store has the wish; a change that is taken after its caller
//! was told that it was not; a lock of one volume held while another waits for it; a plan that is stored; a decision from
//! a missing spec.

pub(crate) mod addresses;
mod admit;
mod bulk;
pub(crate) mod busy;
mod callers;
mod calls;
mod cell;
pub(crate) mod counts;
mod cut;
mod disks;
mod early;
mod established;
pub(crate) mod fabrics;
mod first_wish;
pub(crate) mod jobs;
mod kept_look;
mod knock;
mod knowledge;
mod made;
mod narrow;
mod pass;
mod port_ids;
mod pulse;
mod receipts;
mod refusal;
mod reservations;
mod reserve;
mod reserved;
mod revert;
mod shorter;
mod shut_out;
mod silence;
mod status;
mod steps;
mod strays;
mod sweep;
mod tend;
#[cfg(test)]
pub(crate) mod testing;
mod units;
mod upload;
mod watched;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mooring_api::v1;
use mooring_bus::Units;
use mooring_host::LocalAddress;
use mooring_model::{
    AgentId, Chain, ClusterId, Cure, ExportReport, Generation, Naa, Problem, Receipt, Stamp, VolumeId,
    VolumeReport, VolumeSpec,
};
use tokio::sync::{broadcast, oneshot, watch};
use tokio::time::Instant;

pub use knowledge::Stale;
#[cfg(feature = "faults")]
pub use knowledge::keep_stale;
pub use refusal::Refusal;
pub use status::{Planned, PlannedStep, Status};

use crate::capabilities::{FOLLOWED_UNITS, Lvm};
use crate::config::Config;
use crate::door::Door;
use crate::fibre_channel::Ports;
use crate::images::Images;
use crate::lvm_gate::Gated;
use crate::machine::Machine;
use crate::store::{Kind, Store, StoreError};
use crate::turn::{self, Claim, RETRY_MAX, Seldom};
use crate::workers::Workers;
use cell::{Cell, Wish};
use receipts::OpenReceipt;

/// Reports that a watcher may lag behind before it is cut off.
const REPORTS_QUEUED_MAX: usize = 4096;

/// How long the start waits for the first look at the machine.
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

/// What a sender wants of a volume.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and most are specs")]
pub enum VolumeWish {
    /// It shall be there.
    Spec(VolumeSpec),
    /// The spec goes; with `destroy` the data, too.
    Tombstone {
        /// Wipe and delete the data.
        destroy: bool,
    },
    /// The spec goes, and the LV is nobody's from now on, with its data.
    Release,
}

/// A change of a volume's spec.
#[derive(Debug, Clone)]
pub struct PutVolume {
    /// Who sends it.
    pub cluster: ClusterId,
    /// The volume.
    pub volume: VolumeId,
    /// Its fence.
    pub stamp: Stamp,
    /// What is wanted.
    pub wish: VolumeWish,
    /// Kept for the sender.
    pub opaque: Vec<u8>,
    /// The sender has never made a volume of this id: whatever is here under the id is somebody else's.
    pub new: bool,
}

/// What happens to live sessions whose grant goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveSessions {
    /// The change is refused.
    Refuse,
    /// They are cut.
    Cut,
}

/// A change of an export's spec.
#[derive(Debug, Clone)]
pub struct PutExport {
    /// Who sends it.
    pub cluster: ClusterId,
    /// The volume.
    pub volume: VolumeId,
    /// Its fence.
    pub stamp: Stamp,
    /// The spec as it came (an empty secret means: the one that is kept); `None` is its tombstone.
    pub spec: Option<v1::ExportSpec>,
    /// Kept for the sender.
    pub opaque: Vec<u8>,
    /// What happens to live sessions.
    pub live_sessions: LiveSessions,
    /// What this agent kept of the volume's persistent reservations, as its sender has it.
    pub reservations_copy: String,
    /// When the request had been decoded.
    pub decoded: Instant,
}

/// The answer to a [`PutVolume`].
#[derive(Debug, Clone)]
pub struct VolumeAnswer {
    /// The volume as it is.
    pub report: VolumeReport,
    /// The wish is true.
    pub done: bool,
}

/// The answer to a [`PutExport`].
#[derive(Debug, Clone)]
pub struct ExportAnswer {
    /// The export as it is.
    pub report: Option<ExportReport>,
    /// The wish is seen in the kernel.
    pub done: bool,
    /// For each grant that this generation took away.
    pub receipts: Vec<Receipt>,
    /// Until the wish was durable.
    pub durable: Duration,
    /// Until it was seen.
    pub seen: Option<Duration>,
    /// Operations on the kernel's tree of the pass that saw it.
    pub operations: u64,
}

struct Shared {
    config: Config,
    machine: Machine,
    store: Store,
    workers: Workers,
    /// What LVM said of the groups.
    lvm: Lvm,
    cells: Mutex<BTreeMap<VolumeId, Arc<Cell>>>,
    naas: Mutex<HashMap<Naa, VolumeId>>,
    /// Fibre Channel.
    ports: Mutex<Ports>,
    changes: broadcast::Sender<Change>,
    /// Targets of ours that no wish explains.
    strays: Mutex<Vec<strays::Stray>>,
    /// Old tombstones are forgotten.
    purged: Seldom,
    /// A target of ours that the last look found, to see what targets offer.
    seen_target: Mutex<Option<String>>,
    /// The relative port ids of exports.
    port_ids: Mutex<port_ids::PortIds>,
    /// The health that was told last.
    health: Mutex<Option<v1::Health>>,
    door: OnceLock<Arc<Door>>,
    pulse: Mutex<pulse::Pulse>,
    ears: Mutex<silence::Ears>,
    knocks: Mutex<knock::Knocks>,
    bulk: bulk::Bulk,
    /// The images that volumes may be made from.
    images: Option<Images>,
    late: Mutex<sweep::Late>,
    /// What the store is to remember of LVs.
    unwritten: Mutex<early::Unwritten>,
    watch: Mutex<disks::Watch>,
    watches: Mutex<watched::Watches>,
    /// How fast jobs may be.
    pace: jobs::Pace,
    /// What was done since the start.
    done: counts::Done,
    /// The addresses of this host, as they were seen last.
    addresses: Mutex<Vec<LocalAddress>>,
    /// The states of systemd's units. `None`: nobody is asked.
    units: Option<watch::Receiver<Option<Units>>>,
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
    /// Reads the store and gets ready; nothing is done to the machine before [`Engine::start`]. Must be called inside a
    /// tokio runtime.
    pub fn new(config: Config, machine: Machine, store: Store) -> Result<Self, StoreError> {
        Self::with_workers(config, machine, store, Workers::default())
    }

    /// The same, with these workers.
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
        let ports = Mutex::new(Ports::kept(store.fc_ports()?));
        let addresses = Mutex::new((machine.addresses)());
        let bulk = bulk::Bulk::new(&config);
        let pace = jobs::Pace::new(config.job_limit);
        let units = machine.bus.clone().map(|bus| mooring_bus::follow(bus, &FOLLOWED_UNITS));
        let images = config.images_dir.clone();
        let images = images.map(|dir| Images::new(dir, &config.run_dir, Arc::clone(&machine.images)));
        let shared = Shared {
            config,
            machine,
            store,
            workers,
            lvm: Lvm::default(),
            cells: Mutex::default(),
            naas: Mutex::default(),
            ports,
            changes: broadcast::Sender::new(REPORTS_QUEUED_MAX),
            strays: Mutex::default(),
            purged: Seldom::default(),
            seen_target: Mutex::default(),
            port_ids: Mutex::default(),
            health: Mutex::default(),
            door: OnceLock::new(),
            pulse: Mutex::default(),
            ears: Mutex::default(),
            knocks: Mutex::default(),
            bulk,
            images,
            late: Mutex::default(),
            unwritten: Mutex::default(),
            watch: Mutex::default(),
            watches: Mutex::default(),
            pace,
            done: counts::Done::default(),
            addresses,
            units,
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

    /// Jobs that were given to threads for kernel work since the start: a thread that is woken costs as much as some calls do.
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

    /// Takes the id back under which a cluster knows this host, if nothing is kept under the one that it has.
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

    /// The cluster that this agent is pinned to.
    pub fn cluster(&self) -> Result<Option<ClusterId>, Refusal> {
        self.shared.store.cluster().map_err(Refusal::Store)
    }

    /// Whether anything is known of a volume.
    pub fn knows(&self, id: VolumeId) -> bool {
        self.known_cell(id).is_some_and(|cell| !cell.state().is_unknown())
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.shared.machine
    }

    /// The health that was told last; `None`: nobody has asked.
    pub(crate) fn health(&self) -> Option<v1::Health> {
        lock(&self.shared.health).clone()
    }

    /// This agent's side of TLS is this from now on. A second one is not taken.
    pub(crate) fn note_door(&self, door: Arc<Door>) {
        // An engine is served once.
        let _ = self.shared.door.set(door);
    }

    /// This agent's side of TLS; `None`: it has none, or does not serve yet.
    pub(crate) fn door(&self) -> Option<&Arc<Door>> {
        self.shared.door.get()
    }

    /// What is told of this host's health now.
    pub(crate) fn note_health(&self, health: Option<&v1::Health>) {
        *lock(&self.shared.health) = health.cloned();
    }

    /// The states of systemd's units; `None`: nobody knows them.
    pub(crate) fn units(&self) -> Option<Units> {
        self.shared.units.as_ref()?.borrow().clone()
    }

    /// The images that volumes may be made from.
    pub(crate) fn images(&self) -> Option<&Images> {
        self.shared.images.as_ref()
    }

    /// What LVM says of the groups, for whoever asks what this host can do.
    pub(crate) fn lvm(&self) -> &Lvm {
        &self.shared.lvm
    }

    fn load(&self) -> Result<(), StoreError> {
        for stored in self.shared.store.specs()? {
            // Connections are not this engine's.
            if stored.kind == Kind::Connection {
                continue;
            }
            let cell = self.cell(stored.volume);
            match stored.kind {
                Kind::Volume => {
                    let wish = admit::stored_volume(&stored)?;
                    let mut state = cell.state();
                    state.set_volume(wish);
                    state.established.set_made(stored.made);
                }
                Kind::Export => {
                    let wish = admit::stored_export(&stored)?;
                    if let Some(spec) = wish.spec() {
                        let names = spec.identity.names(stored.volume, &self.shared.config.iqn_prefix);
                        lock(&self.shared.naas).insert(names.naa(), stored.volume);
                    }
                    let mut state = cell.state();
                    state.set_export(wish);
                    state.silence.set_unheard();
                }
                Kind::Connection => {}
            }
            // A volume's identity is its own from its first spec on, also before it is exported.
            lock(&self.shared.naas)
                .entry(Naa::of_serial(&stored.volume.to_string()))
                .or_insert(stored.volume);
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
            cell.state().receipts.add_open(OpenReceipt { row, receipt, began: None });
        }
        Ok(())
    }

    /// Looks at the machine, adopts what is ours, and begins to work. Returns when every volume's first pass was handed to
    /// the workers; passes go on by themselves. With an LVM that hangs it returns before that: what the kernel serves can be
    /// granted and revoked all the same.
    pub async fn start(&self) {
        // What an agent before this one has left, if it was killed.
        self.end_bulk();
        let (engine, sweeper) = (self.clone(), self.clone());
        let mut swept = tokio::spawn(async move { engine.blocking(move || sweeper.first_sweep()).await });
        let in_time = tokio::time::timeout(START_WITHIN, &mut swept).await.is_ok();
        if !in_time && self.is_making() {
            tracing::info!("exports are being made; requests are taken beside that");
        } else if !in_time {
            tracing::error!(
                "the first look at the volume groups does not come to an end; going on without it"
            );
        }
        let engine = self.clone();
        self.shared.workers.submit(move || engine.sweep_parts());
        tokio::spawn(self.clone().follow_reservations());
        let engine = self.clone();
        tokio::spawn(async move {
            // It asks LVM, too: behind the start.
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

    /// Whether nothing is left of an object whose tombstone is kept.
    fn is_gone(&self, kind: Kind, id: VolumeId) -> bool {
        if kind == Kind::Connection {
            // Those who keep connections forget them.
            return false;
        }
        let Some(cell) = self.known_cell(id) else { return true };
        let state = cell.state();
        match kind {
            Kind::Volume => {
                state.volume_end().done && state.knowledge.orphan().is_none() && !is_spec(state.volume())
            }
            Kind::Export => state.is_export_done() && !is_spec(state.export()),
            Kind::Connection => false,
        }
    }

    /// Runs `work` on a thread that can be lost, and waits for it.
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

    /// The cell of a volume, made when there is none.
    fn cell(&self, id: VolumeId) -> Arc<Cell> {
        Arc::clone(lock(&self.shared.cells).entry(id).or_insert_with(|| Cell::new(id)))
    }

    fn known_cell(&self, id: VolumeId) -> Option<Arc<Cell>> {
        lock(&self.shared.cells).get(&id).cloned()
    }

    fn cells(&self) -> Vec<Arc<Cell>> {
        lock(&self.shared.cells).values().cloned().collect()
    }

    /// How many volumes are known.
    fn count(&self) -> usize {
        lock(&self.shared.cells).len()
    }

    /// The next volumes behind this one in the order of their ids, and round, at most so many.
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

    /// Has a pass run later, after so many failures, if the volume still waits behind this pass then.
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
        self.shared.changes.subscribe()
    }

    fn publish(&self, change: Change) {
        // No watcher is no error.
        drop(self.shared.changes.send(change));
    }

    /// Takes a volume's change and waits until it is true, blocked, or the deadline.
    pub async fn put_volume(&self, put: PutVolume, deadline: Duration) -> Result<VolumeAnswer, Refusal> {
        let began = Instant::now();
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
                // What is cut off may have a pass that hangs.
                let only_cut = state.is_only_cut(generation);
                // Of a newer wish than this one it is not said that this one is true.
                let done = only_cut || end.done && end.generation == Some(generation);
                (only_cut || end.is_settled(generation, after) && state.is_cut_true())
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

    /// Takes an export's change and waits until it is seen in the kernel, blocked, or the deadline.
    pub async fn put_export(&self, put: PutExport, deadline: Duration) -> Result<ExportAnswer, Refusal> {
        let began = put.decoded;
        let generation = put.stamp.generation;
        let cell = self.cell(put.volume);
        let mut version = cell.watch();
        let admitted = self
            .admitted(&cell, &mut version, deadline, move |engine, cell, claim| {
                engine.admit_export(cell, put, claim)
            })
            .await?;
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
                if settled && end.done {
                    let at = end.at.unwrap_or_else(Instant::now);
                    answer.seen = Some(at.saturating_duration_since(began));
                    answer.operations = end.operations;
                    answer.done = true;
                }
                if settled || left.is_zero() {
                    answer.report = state.export_report();
                    break;
                }
            }
            // At the deadline it is looked at once more.
            let _ = tokio::time::timeout(left, version.changed()).await;
        }
        if admitted.receipts {
            answer.receipts = self.receipts_of(&cell, generation).await?;
        }
        Ok(answer)
    }

    async fn receipts_of(&self, cell: &Cell, generation: Generation) -> Result<Vec<Receipt>, Refusal> {
        if let Some(receipts) = cell.state().receipts.newest(generation) {
            return Ok(receipts.to_vec());
        }
        // Of a generation before, or before the agent was started.
        let (engine, volume) = (self.clone(), cell.id);
        let read = self.blocking(move || engine.shared.store.receipts_of(volume, generation)).await;
        Ok(read.transpose().map_err(Refusal::Store)?.unwrap_or_default())
    }

    /// Whoever asks why a change waits is told when it was the store: its sender may be gone by then, or be another one.
    fn note_store(&self, cell: &Cell, refusal: Option<&Refusal>) {
        let failed = match refusal {
            None => None,
            Some(Refusal::Store(error)) if error.cure() != Cure::FixSpec => Some(Problem {
                object: format!("the agent's store, for volume {}", cell.id),
                text: Chain(error).to_string(),
                cure: error.cure(),
            }),
            // Nothing new is known of the store.
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
        let began = Instant::now();
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
            engine.explain_stray(at.id);
            drop(done.send(admitted));
            if go_on {
                // Somebody waits for the look behind its steps.
                engine.passed(at.id, false);
                engine.tend_cut_soon(&at);
                at.state().turn.ask_anew();
                engine.run(&at);
            } else {
                at.changed();
            }
        });
        // As a rule the pass behind it ends a moment later: the caller is woken once, for both.
        let _ = tokio::time::timeout(deadline, version.changed()).await;
        let answer = turn::answer(result, &claim, deadline.saturating_sub(began.elapsed())).await;
        answer.unwrap_or_else(|| Err(Refusal::busy(cell.id, cell.state().stuck())))
    }
}

/// For those who only ask whether an object is to go.
fn is_tombstone<S>(wish: Option<&Wish<S>>) -> bool {
    wish.is_some_and(|wish| wish.spec().is_none())
}

/// What is wanted, for those who only ask whether there is a spec.
fn is_spec<S>(wish: Option<&Wish<S>>) -> bool {
    wish.is_some_and(|wish| wish.spec().is_some())
}
