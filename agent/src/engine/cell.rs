//! The state of one volume in memory, derived from the store and from looks. Nothing here is
//! durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_model::{
    ExportReport, ExportSpec, Generation, Phase, Problem, Stamp, StuckStep, VgName, VolumeId, VolumeReport,
    VolumeSpec,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::calls::Calls;
use super::established::Established;
use super::knowledge::{Knowledge, Stale};
use super::look::silence::Silence;
use super::reservation::reservations::Held;
use super::reservation::reserve::Asked;
use super::reservation::reserved::Reserved;
use super::volume::isolate::Exchanges;
use super::volume::jobs::Jobs;
use super::volume::revert::Revert;
use super::volume::shrink::Growth;
use crate::lvm::VolumesView;
use crate::object::admission::Turns;
use crate::object::turn::{Begun, Left, Turn};

/// Time after which a kernel call counts as blocked. A kernel call takes micro- to milliseconds,
/// and some wait for an RCU grace period. A longer call is a drain, and everyone who reads its
/// folders waits with it.
pub(super) const BLOCKED_AFTER: Duration = Duration::from_millis(200);

/// The spec or tombstone of one object, and the stamp that fences it.
#[derive(Debug, Clone)]
pub(crate) struct KeptSpec<S> {
    pub(crate) stamp: Stamp,
    pub(crate) kind: SpecKind<S>,
    pub(crate) opaque: Vec<u8>,
}

/// A spec, or the tombstone of one.
#[derive(Debug, Clone)]
pub(crate) enum SpecKind<S> {
    Spec(S),
    Tombstone {
        destroy: bool,
    },
    /// For volumes: the volume is unmanaged, and its LV stays.
    Released,
}

impl<S> KeptSpec<S> {
    pub(crate) fn spec(&self) -> Option<&S> {
        match &self.kind {
            SpecKind::Spec(spec) => Some(spec),
            SpecKind::Tombstone { .. } | SpecKind::Released => None,
        }
    }
}

/// The result of one half of a pass, the volume's or the export's.
#[derive(Debug, Clone)]
pub(crate) struct End<R> {
    /// The number of the pass; 0 if there was none.
    pub(crate) pass: u64,
    /// The generation that the pass worked on. `None` if there was neither a spec nor a tombstone.
    pub(crate) generation: Option<Generation>,
    pub(crate) report: Option<R>,
    /// The work that is left.
    pub(crate) left: Left,
    /// Time at which the pass ended. `None` if there was none.
    pub(crate) at: Option<Instant>,
    /// Operations of the pass on the kernel's tree.
    pub(crate) operations: u64,
}

impl<R> Default for End<R> {
    fn default() -> Self {
        Self { pass: 0, generation: None, report: None, left: Left::Unfinished, at: None, operations: 0 }
    }
}

impl<R> End<R> {
    /// Says whether nothing is left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.left == Left::Nothing
    }

    /// Says whether a pass that began later than pass `after` worked on this generation or a newer
    /// one, and a longer wait is of no use.
    pub(crate) fn is_settled(&self, generation: Generation, after: u64) -> bool {
        self.pass > after && self.generation >= Some(generation) && self.left != Left::Again
    }
}

/// The state of one volume and its export. Each part keeps its fields to its own module.
#[derive(Debug, Default)]
pub(crate) struct State {
    volume: Option<KeptSpec<VolumeSpec>>,
    export: Option<KeptSpec<ExportSpec>>,
    /// Knowledge of the place of a volume that has a tombstone.
    home: Home,
    /// The turn of the volume's passes.
    pub(super) turn: Turn,
    /// The observations of the volume.
    pub(super) knowledge: Knowledge,
    /// The facts that end only with the volume.
    pub(super) established: Established,
    /// The volume's calls that have not returned.
    pub(super) calls: Calls,
    /// The long work of the volume's passes.
    pub(super) jobs: Jobs,
    /// Steps that extend the LV.
    pub(super) growth: Growth,
    /// The silence of the volume's device.
    pub(super) silence: Silence,
    /// The exchanges of the LV's device-mapper table.
    pub(super) exchanges: Exchanges,
    pub(super) revert: Revert,
    /// The persistent reservations of the volume.
    pub(super) held: Held,
    /// The looks at RESERVE(6) and RESERVE(10) of the volume.
    pub(super) reserved: Reserved,
    /// The requested change of the persistent reservations. `None` if no change waits for a pass.
    asked: Option<Asked>,
    volume_end: End<VolumeReport>,
    export_end: End<ExportReport>,
    /// `true` if bulk work made the export. A look follows when the other exports are made, too.
    look_later: bool,
    /// Reason why the store did not take the last change. `None` if it did.
    store_failed: Option<Problem>,
}

/// Knowledge of the place of a volume that has a tombstone.
#[derive(Debug, Default)]
enum Home {
    /// Nobody knows where the LV is, and which it is.
    #[default]
    Unknown,
    /// LVM's identity of the LV, which was complete: somebody may have moved it to another group.
    Lv(String),
    /// The group: a pass found the LV there, or the LV was never complete and the last spec named
    /// the group.
    Group(VgName),
}

impl State {
    /// The volume's spec or tombstone. `None` if there was never one.
    pub(crate) fn volume(&self) -> Option<&KeptSpec<VolumeSpec>> {
        self.volume.as_ref()
    }

    /// The export's spec or tombstone. `None` if there was never one.
    pub(crate) fn export(&self) -> Option<&KeptSpec<ExportSpec>> {
        self.export.as_ref()
    }

    /// The specs or tombstones of the volume and its export, as they are now.
    pub(super) fn specs(&self) -> (Option<KeptSpec<VolumeSpec>>, Option<KeptSpec<ExportSpec>>) {
        (self.volume.clone(), self.export.clone())
    }

    /// The volume's spec. `None` if there is none, or a tombstone.
    pub(super) fn volume_spec(&self) -> Option<&VolumeSpec> {
        self.volume.as_ref().and_then(KeptSpec::spec)
    }

    /// The export's spec. `None` if there is none, or a tombstone.
    pub(super) fn export_spec(&self) -> Option<&ExportSpec> {
        self.export.as_ref().and_then(KeptSpec::spec)
    }

    /// Takes the volume's spec or tombstone as the store has it.
    pub(super) fn set_volume(&mut self, kept_spec: KeptSpec<VolumeSpec>) {
        let (made, identity) = (self.established.is_made(), self.established.identity());
        match self.volume_spec() {
            _ if kept_spec.spec().is_some() => self.home = Home::Unknown,
            Some(spec) if !made => self.home = Home::Group(spec.group.clone()),
            Some(_) => self.home = identity.map_or(Home::Unknown, |of| Home::Lv(of.to_owned())),
            // A tombstone follows a tombstone.
            None => {}
        }
        self.volume = Some(kept_spec);
    }

    /// The group that has, or had, the LV of a volume with a tombstone. `None` if it is unknown:
    /// any group may have it.
    pub(super) fn home(&self) -> Option<&VgName> {
        if let Home::Group(group) = &self.home { Some(group) } else { None }
    }

    /// Notes the group in which a look shows the LV of a volume that has a tombstone.
    pub(super) fn note_home(&mut self, volume: VolumeId, view: &VolumesView) {
        if let Home::Lv(identity) = &self.home
            && let Some(group) = view.group_of(volume, identity)
        {
            self.home = Home::Group(group.clone());
        }
    }

    /// Returns `true` if the last pass has shown that nothing is left of the volume.
    pub(super) fn is_gone(&self) -> bool {
        self.volume_end.report.as_ref().is_some_and(|report| report.phase == Phase::Gone)
    }

    /// Takes the export's spec or tombstone as the store has it.
    pub(super) fn set_export(&mut self, kept_spec: KeptSpec<ExportSpec>) {
        self.export = Some(kept_spec);
    }

    /// Says whether nothing is known of this volume: no spec, no tombstone, no orphan LV.
    pub(super) fn is_unknown(&self) -> bool {
        self.volume.is_none() && self.export.is_none() && self.knowledge.orphan().is_none()
    }

    /// Begins the pass that waits. `None` if none waits, or one is at work.
    pub(super) fn begin_pass(&mut self) -> Option<Begun> {
        let begun = self.turn.begin()?;
        self.knowledge.forget(Stale::PassBegun);
        Some(begun)
    }

    /// The result of the volume half of the last pass.
    pub(super) fn volume_end(&self) -> &End<VolumeReport> {
        &self.volume_end
    }

    /// The result of the export half of the last pass.
    pub(super) fn export_end(&self) -> &End<ExportReport> {
        &self.export_end
    }

    /// Notes the result of the volume half of a pass.
    pub(super) fn end_volume(&mut self, end: End<VolumeReport>) {
        self.volume_end = end;
    }

    /// Notes the result of the export half of a pass.
    pub(super) fn end_export(&mut self, end: End<ExportReport>) {
        self.export_end = end;
    }

    /// Replaces the last pass's report by the report of a look beside all passes.
    pub(super) fn replace_export_report(&mut self, report: ExportReport) {
        self.export_end.report = Some(report);
    }

    /// Notes that something is left to do for the volume: LVM has shown it.
    pub(super) fn undo_volume_end(&mut self) {
        if self.volume_end.is_done() {
            self.volume_end.left = Left::Unfinished;
        }
    }

    /// The change of persistent reservations that waits for a pass. `None` if none does.
    pub(super) fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref()
    }

    /// Has the next pass change persistent reservations.
    pub(super) fn ask(&mut self, asked: Asked) {
        self.asked = Some(asked);
    }

    /// Takes the change of persistent reservations that waits for a pass.
    pub(super) fn take_asked(&mut self) -> Option<Asked> {
        self.asked.take()
    }

    /// Postpones the look at the export until the other exports of the bulk work are made.
    pub(super) fn leave_look(&mut self) {
        self.look_later = true;
    }

    /// Says whether the pass at work has postponed its look.
    pub(super) fn has_left_look(&self) -> bool {
        self.look_later
    }

    /// Says whether the ended pass postponed its look, and clears that for the next pass.
    pub(super) fn take_left_look(&mut self) -> bool {
        std::mem::take(&mut self.look_later)
    }

    /// Reason why the store did not take the last change. `None` if it did.
    pub(super) fn store_failed(&self) -> Option<&Problem> {
        self.store_failed.as_ref()
    }

    /// Notes why the store did not take a change, or with `None` that it did. `false` if nothing
    /// changes.
    pub(super) fn note_store(&mut self, failed: Option<Problem>) -> bool {
        let news = self.store_failed != failed;
        self.store_failed = failed;
        news
    }

    /// The oldest kernel call of this volume that has not returned for `LOST_AFTER`. `None` if
    /// there is no such call.
    pub(crate) fn stuck(&self) -> Option<StuckStep> {
        open_for(crate::workers::LOST_AFTER, self.calls.oldest())
    }

    /// The call that a look at the target would hang behind now. `None` if there is none. A zeroing
    /// or a discard is no call on the target.
    pub(super) fn in_the_way(&self) -> Option<StuckStep> {
        let call = if self.jobs.is_at_work() { self.calls.look() } else { self.calls.oldest() };
        open_for(BLOCKED_AFTER, call)
    }

    /// Says whether a look at the target would hang behind another call now.
    pub(crate) fn is_blocked(&self) -> bool {
        self.in_the_way().is_some()
    }

    /// Says whether no pass works on the export: no pass runs, or the running pass has done its
    /// export.
    pub(crate) fn is_export_still(&self) -> bool {
        self.turn.running().is_none_or(|pass| self.export_end.pass == pass)
    }

    /// Says whether the last pass worked on the export's current spec or tombstone.
    pub(crate) fn is_export_current(&self) -> bool {
        self.export_end.generation == self.export.as_ref().map(|kept_spec| kept_spec.stamp.generation)
    }

    /// Says whether the export's current spec or tombstone is carried out.
    pub(crate) fn is_export_done(&self) -> bool {
        self.export_end.is_done() && self.is_export_current()
    }

    /// Says whether nothing was left of the volume when a pass worked on this tombstone.
    pub(crate) fn has_ended_by(&self, kept_spec: &KeptSpec<VolumeSpec>) -> bool {
        let end = &self.volume_end;
        kept_spec.spec().is_none() && end.is_done() && end.generation == Some(kept_spec.stamp.generation)
    }
}

/// The step of a call, if it has not returned for at least this time.
fn open_for(least: Duration, call: Option<(&str, Instant)>) -> Option<StuckStep> {
    let (step, began) = call?;
    let since = began.elapsed();
    (since >= least).then(|| StuckStep { step: step.to_owned(), since })
}

#[cfg(test)]
impl State {
    /// Replaces the export's spec; with `None` the export never had one. Returns the spec before.
    pub(super) fn replace_export(
        &mut self,
        kept_spec: Option<KeptSpec<ExportSpec>>,
    ) -> Option<KeptSpec<ExportSpec>> {
        std::mem::replace(&mut self.export, kept_spec)
    }

    /// The volume's spec, to be changed.
    pub(super) fn volume_spec_mut(&mut self) -> Option<&mut VolumeSpec> {
        match self.volume.as_mut().map(|kept_spec| &mut kept_spec.kind) {
            Some(SpecKind::Spec(spec)) => Some(spec),
            Some(SpecKind::Tombstone { .. } | SpecKind::Released) | None => None,
        }
    }
}

/// One volume in the engine: its state, and those who wait for a change of it.
pub(crate) struct Cell {
    pub(crate) id: VolumeId,
    state: Mutex<State>,
    /// The turn of admissions: changes of this volume are taken one by one.
    pub(crate) admission: Turns,
    version: watch::Sender<u64>,
}

impl Cell {
    pub(crate) fn new(id: VolumeId) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::default(),
            admission: Turns::default(),
            version: watch::Sender::new(0),
        })
    }

    /// Locks the state. Never hold the guard across a kernel call, a command or the store.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this step is at work from now on.
    pub(crate) fn begin(&self, step: String) {
        self.state().calls.begin(step);
    }

    /// Ends the step that is at work.
    pub(crate) fn end(&self) {
        self.state().calls.end();
    }

    /// Wakes those who wait for a change.
    pub(crate) fn changed(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
