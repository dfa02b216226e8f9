//! Answers to `GetVolume`, `ListVolumes` and `Plan`. Each answer looks at the kernel. If the kernel
//! does not answer in time, the answer has the last known state and the stuck call, and says so.
//!
//! What must never happen here: a write; a secret in an answer.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{
    Chain, Cure, Cut, ExportReport, ExportSpec, Generation, Phase, Plan, Problem, Receipt, Stamp, Step,
    VgName, VolumeId, VolumeReport, VolumeSpec,
};
use tokio::time::Instant;

use super::cell::{Cell, KeptSpec, SpecKind, State};
use super::export::fabrics::Wanteds;
use super::knowledge::Stale;
use super::{Engine, Refusal, pass};
use crate::clock;
use crate::lvm;

/// Time that an answer waits for the kernel: for a call that is in the way of its look, and for the
/// look.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// Text for a look at LVM whose job did not come to its end.
const NO_LOOK: &str =
    "the look at the volume groups ended without an answer: ask again; the agent's log may say why";

/// Most receipts in an answer.
const RECEIPTS_SHOWN: usize = 20;

/// One volume and its export, with the sender's opaque data.
#[derive(Debug, Clone)]
pub struct Status {
    /// The volume.
    pub id: VolumeId,
    /// The volume as it is.
    pub volume: VolumeReport,
    /// The stamp and opaque data of the volume's spec or tombstone. `None` if there is neither.
    pub volume_spec: Option<(Stamp, Vec<u8>)>,
    /// The export as it is.
    pub export: Option<ExportReport>,
    /// The stamp and opaque data of the export's spec or tombstone. `None` if there is neither.
    pub export_spec: Option<(Stamp, Vec<u8>)>,
    /// The export's spec. It has the secrets: remove them before it leaves the process for anybody
    /// who did not ask for them. `None` if there is none, or a tombstone.
    pub wanted: Option<ExportSpec>,
    /// The volume's spec. `None` if there is none, or a tombstone.
    pub wanted_volume: Option<VolumeSpec>,
    /// Receipts, newest first.
    pub receipts: Vec<Receipt>,
    /// `true` if the export and its sessions were looked at for this answer, or nothing is
    /// exported. `false` if the look failed or came to no end: `export` is as an earlier look saw
    /// it.
    pub looked_now: bool,
}

/// The result of a look at an export, with its sessions and counters.
enum Looked {
    /// The export as it is now.
    Seen(Box<ExportReport>),
    /// There is neither a spec nor a tombstone of an export: nothing is to be looked at.
    Nothing,
    /// The look failed, or came to no end in time.
    Failed,
}

impl Looked {
    /// The result where the specs want no target, so that none is read.
    fn without_target<S>(export: Option<&KeptSpec<S>>) -> Self {
        if export.is_none() { Self::Nothing } else { Self::Failed }
    }
}

/// A step of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// The volume.
    pub volume: VolumeId,
    /// The step that would be done.
    pub step: String,
    /// The reason for the step.
    pub why: String,
}

/// A dry run.
#[derive(Debug, Clone, Default)]
pub struct Planned {
    /// The steps that would be done, in order.
    pub steps: Vec<PlannedStep>,
    /// The steps that could not be done, and why.
    pub blocked: Vec<Problem>,
}

fn stamp_of<S>(kept_spec: &KeptSpec<S>) -> (Stamp, Vec<u8>) {
    (kept_spec.stamp.clone(), kept_spec.opaque.clone())
}

impl State {
    /// The volume as the last pass left it, and what goes on now.
    pub(super) fn volume_report(&self, id: VolumeId) -> VolumeReport {
        let (spec, doomed) = match self.volume().map(|kept_spec| &kept_spec.kind) {
            Some(SpecKind::Spec(spec)) => (Some(spec), false),
            Some(SpecKind::Tombstone { .. } | SpecKind::Released) => (None, true),
            None => (None, false),
        };
        let current =
            self.volume_end().generation == self.volume().map(|kept_spec| kept_spec.stamp.generation);
        // A volume that is there stays there while a newer spec waits for its pass.
        let stands = |report: &VolumeReport| current || (spec.is_some() && report.phase == Phase::Ready);
        let mut report = self
            .volume_end()
            .report
            .clone()
            .filter(stands)
            .or_else(|| self.knowledge.orphan().cloned())
            .unwrap_or(VolumeReport {
                id,
                phase: if doomed { Phase::Deleting } else { Phase::Creating },
                group: spec.map(|spec| spec.group.to_string()).unwrap_or_default(),
                size: mooring_model::ByteSize(0),
                device: None,
                zeroed: None,
                problems: Vec::new(),
                reverted: None,
                uploaded: None,
                cut: Cut::No,
            });
        if report.phase == Phase::Gone
            && let Some(orphan) = self.knowledge.orphan()
        {
            report = orphan.clone();
        }
        report.zeroed = self.jobs.done().map(mooring_model::ByteSize);
        self.fill_isolation(id, &mut report);
        report
    }

    /// The volume group whose disks a call for this volume may hang on.
    pub(super) fn group(&self) -> Option<VgName> {
        self.volume_spec().map(|spec| spec.group.clone())
    }

    /// Fills in the sessions, counters and reservations that the last looks at them saw.
    pub(super) fn fill_lives(&self, report: &mut ExportReport) {
        if let Some(lives) = self.knowledge.lives() {
            lives.fill(report);
        }
        self.fill_reservations(report);
    }

    /// Adds the reservations that the last look at them saw, and their problems.
    fn fill_reservations(&self, report: &mut ExportReport) {
        self.held.fill(report);
        self.fill_reserved(report);
    }

    /// The export as the last pass left it, with sessions and counters of the last look, and the
    /// call that is stuck now. `None` if no pass has reported on it.
    pub(super) fn export_report(&self) -> Option<ExportReport> {
        let mut report = self.last_report()?;
        self.fill_lives(&mut report);
        Some(report)
    }

    /// The export as the last pass left it, without sessions and counters, which no pass reads.
    pub(super) fn last_report(&self) -> Option<ExportReport> {
        let mut report = self.export_end().report.clone();
        if let Some(report) = report.as_mut() {
            report.stuck = self.stuck();
            report.in_force &= self.is_export_current();
            report.problems.extend(self.store_failed().cloned());
        }
        report
    }
}

impl Cell {
    pub(super) fn volume_report(&self) -> VolumeReport {
        self.state().volume_report(self.id)
    }

    pub(super) fn export_report(&self) -> Option<ExportReport> {
        self.state().export_report()
    }
}

impl Engine {
    /// Looks at an export now, with its sessions and counters.
    async fn look(&self, cell: &Arc<Cell>) -> Looked {
        // Where nothing is exported, nothing is read, and no call is in the way.
        if self.wanted_now(cell).is_none() {
            return Looked::without_target(cell.state().export());
        }
        self.look_in_time(cell, Self::look_now).await.unwrap_or(Looked::Failed)
    }

    /// The export that the volume's specs want now. `None` if they want none to be looked at.
    fn wanted_now(&self, cell: &Cell) -> Option<Wanteds> {
        let (volume, export) = cell.state().specs();
        self.wanted_export(cell, volume.as_ref(), export.as_ref())
    }

    /// Reads the target as soon as no other call is in the way. `None`: no answer came in time.
    async fn look_in_time<T: Send + 'static>(
        &self,
        cell: &Arc<Cell>,
        read: impl FnOnce(&Self, &Arc<Cell>) -> T + Send + 'static,
    ) -> Option<T> {
        if !cell.until_clear(LOOK_DEADLINE).await {
            return None;
        }
        let (engine, at) = (self.clone(), Arc::clone(cell));
        let work = self.blocking(move || {
            let _look = Look::begin(&at);
            read(&engine, &at)
        });
        tokio::time::timeout(LOOK_DEADLINE, work).await.ok().flatten()
    }

    fn look_now(&self, cell: &Arc<Cell>) -> Looked {
        let (volume, export) = cell.state().specs();
        let Some(wanted) = self.wanted_export(cell, volume.as_ref(), export.as_ref()) else {
            return Looked::without_target(export.as_ref());
        };
        let tree = &*self.shared.machine.target;
        let Ok(seen) = wanted.look(tree) else { return Looked::Failed };
        let Ok(lives) = self.read_lives(cell, &wanted) else { return Looked::Failed };
        // Sessions and counters are filled in below, in place of those in the pass's report.
        let last = cell.state().export_end().report.clone();
        let generation = export.as_ref().map_or(Generation::ZERO, |kept_spec| kept_spec.stamp.generation);
        let problems = last.map(|last| last.problems).unwrap_or_default();
        let (mut facts, ports) = wanted.facts(&seen, &wanted.plan(&seen));
        facts.problems.extend(self.portal_problems(cell, &wanted.iscsi));
        let mut report = pass::export_report(cell.id, generation, facts, ports, &problems);
        self.note_looked(cell, &report);
        lives.fill(&mut report);
        let state = cell.state();
        report.problems.extend(state.store_failed().cloned());
        state.fill_reservations(&mut report);
        Looked::Seen(Box::new(report))
    }

    /// Keeps the report of a look beside all passes if the last pass left another one, and wakes
    /// the volume. So the watchers get a report when a pass has put the export right, as the caller
    /// of the look has this one.
    fn note_looked(&self, cell: &Arc<Cell>, found: &ExportReport) {
        {
            let mut state = cell.state();
            let rests = state.turn.is_idle() && state.is_export_current();
            if !rests || state.export_end().report.as_ref().is_none_or(|last| last == found) {
                return;
            }
            state.replace_export_report(found.clone());
            state.knowledge.forget(Stale::FoundOtherwise);
        }
        self.wake(cell);
    }

    /// The present state of one volume. `None` if nothing is known of it.
    pub async fn status(&self, id: VolumeId) -> Option<Status> {
        let cell = self.known_cell(id)?;
        {
            let state = cell.state();
            if state.is_unknown() {
                return None;
            }
        }
        let (seen, looked_now) = match self.look(&cell).await {
            Looked::Seen(report) => (Some(*report), true),
            Looked::Nothing => (None, true),
            Looked::Failed => (None, false),
        };
        let engine = self.clone();
        let receipts = self.blocking(move || engine.shared.store.receipts(id, RECEIPTS_SHOWN)).await;
        let export = seen.or_else(|| cell.export_report());
        let volume = cell.volume_report();
        let state = cell.state();
        let receipts = match receipts {
            Some(Ok(receipts)) => receipts,
            Some(Err(_)) | None => {
                state.established.receipts().open().iter().map(|open| open.receipt.clone()).collect()
            }
        };
        // The export of a tombstone is shown until it is gone.
        let shown = super::is_spec(state.export()) || !state.is_export_done();
        Some(Status {
            id,
            volume,
            volume_spec: state.volume().map(stamp_of),
            export: export.filter(|_| state.export().is_some() && shown),
            export_spec: state.export().map(stamp_of),
            wanted: state.export_spec().cloned(),
            wanted_volume: state.volume_spec().cloned(),
            receipts,
            looked_now,
        })
    }

    /// The state of all volumes with a spec, and of orphans, by id. Volumes that are deleted and
    /// gone are included only with `tombstones`.
    pub async fn statuses(&self, tombstones: bool) -> Vec<Status> {
        let mut all = Vec::new();
        for cell in self.cells() {
            let Some(status) = self.status(cell.id).await else { continue };
            if tombstones || status.volume.phase != Phase::Gone {
                all.push(status);
            }
        }
        all
    }

    /// The LVs of the groups that this agent serves, and which of them could become volumes.
    pub async fn candidates(&self) -> Result<Vec<lvm::Candidate>, Refusal> {
        let engine = self.clone();
        let look = move || lvm::view(&*engine.shared.machine.commands, &engine.shared.config.groups);
        match self.blocking(look).await {
            Some(Ok(view)) => Ok(lvm::candidates(&view)),
            Some(Err(error)) => Err(Refusal::Volumes(error)),
            None => Err(Refusal::precondition(NO_LOOK.to_owned(), Cure::Retry)),
        }
    }

    /// The steps that a pass would do now, for one volume or for all.
    pub async fn plan(&self, only: Option<VolumeId>) -> Planned {
        let mut planned = Planned::default();
        let engine = self.clone();
        let view = self
            .blocking(move || lvm::view(&*engine.shared.machine.commands, &engine.shared.config.groups))
            .await;
        let lvs = match view {
            Some(Ok(lvs)) => Some(Arc::new(lvs)),
            Some(Err(error)) => {
                let text = Chain(&error).to_string();
                planned.blocked.push(Problem { object: "LVM".to_owned(), text, cure: error.cure() });
                None
            }
            None => {
                let (object, text) = ("LVM".to_owned(), NO_LOOK.to_owned());
                planned.blocked.push(Problem { object, text, cure: Cure::Retry });
                None
            }
        };
        for cell in self.cells().into_iter().filter(|cell| only.is_none_or(|id| id == cell.id)) {
            self.plan_export(&cell, &mut planned).await;
            if let Some(lvs) = &lvs {
                plan_volume(&cell, lvs, &mut planned);
            }
        }
        planned
    }

    async fn plan_export(&self, cell: &Arc<Cell>, planned: &mut Planned) {
        let object = || format!("the export of volume {}", cell.id);
        if self.wanted_now(cell).is_none() {
            return;
        }
        let read = |engine: &Self, cell: &Arc<Cell>| {
            // The specs may have changed while this waited.
            let Some(wanted) = engine.wanted_now(cell) else { return Ok(Plan::default()) };
            wanted.look(&*engine.shared.machine.target).map(|view| wanted.plan(&view))
        };
        let looked = self.look_in_time(cell, read).await;
        match looked {
            Some(Ok(plan)) => planned.add(cell, &plan),
            Some(Err(error)) => {
                let text = Chain(&error).to_string();
                planned.blocked.push(Problem { object: object(), text, cure: error.cure() });
            }
            None => {
                let text = Refusal::busy(cell.id, cell.state().in_the_way()).to_string();
                planned.blocked.push(Problem { object: object(), text, cure: Cure::Retry });
            }
        }
    }
}

fn plan_volume(cell: &Cell, lvs: &lvm::VolumesView, planned: &mut Planned) {
    let (kept_spec, export, made, part) = {
        let state = cell.state();
        let part = state.view_of_end((cell.id, &lvm::Beside::default()), lvs);
        (state.volume().cloned(), state.export().cloned(), state.established.is_made(), part)
    };
    let Some(kept_spec) = kept_spec else { return };
    let wanted = pass::wanted_volume(&kept_spec, export.as_ref(), made, true);
    let plan = lvm::plan(&wanted, part.as_ref().unwrap_or(lvs), cell.id);
    planned.add(cell, &plan);
}

impl Planned {
    fn add<Op: Display>(&mut self, cell: &Cell, plan: &Plan<Op>) {
        let step = |step: &Step<Op>| PlannedStep {
            volume: cell.id,
            step: step.op.to_string(),
            why: step.why.to_string(),
        };
        self.steps.extend(plan.steps.iter().map(step));
        self.blocked.extend(plan.blocked.iter().map(Problem::from));
    }
}

/// Marks a look as ended, however it ends.
struct Look<'a> {
    cell: &'a Cell,
    began: Instant,
}

impl<'a> Look<'a> {
    fn begin(cell: &'a Cell) -> Self {
        let began = clock::instant();
        cell.state().calls.begin_look(began);
        Self { cell, began }
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.cell.state().calls.end_look(self.began);
    }
}
