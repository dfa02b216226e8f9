//! What the agent knows of one volume. Derived from the store and from looking; nothing here is durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_model::{
    ExportReport, ExportSpec, Generation, Problem, Stamp, StuckStep, VolumeId, VolumeReport, VolumeSpec,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::calls::Calls;
use super::cut::Table;
use super::established::Established;
use super::jobs::Jobs;
use super::knowledge::Knowledge;
use super::receipts::Receipts;
use super::reservations::Held;
use super::reserve::Asked;
use super::reserved::Reserved;
use super::revert::Revert;
use super::shorter::Growth;
use super::silence::Silence;
use super::upload::Uploads;
use crate::object::turn::Turn;
use crate::turn::Turns;

/// A kernel call takes micro- to milliseconds, and some an RCU grace period. After this long a drain is at work, and
/// whoever walks into its folders waits with it.
pub(super) const BLOCKED_AFTER: Duration = Duration::from_millis(200);

/// What is wanted of one object, and the stamp that fences it.
#[derive(Debug, Clone)]
pub(crate) struct Wish<S> {
    pub(crate) stamp: Stamp,
    pub(crate) kind: WishKind<S>,
    pub(crate) opaque: Vec<u8>,
}

/// A spec, or the tombstone of one.
#[derive(Debug, Clone)]
pub(crate) enum WishKind<S> {
    Spec(S),
    Tombstone {
        destroy: bool,
    },
    /// Volumes: the LV is nobody's from now on.
    Released,
}

impl<S> Wish<S> {
    pub(crate) fn spec(&self) -> Option<&S> {
        match &self.kind {
            WishKind::Spec(spec) => Some(spec),
            WishKind::Tombstone { .. } | WishKind::Released => None,
        }
    }
}

/// What one half of a pass, the volume's or the export's, has left.
#[derive(Debug, Clone)]
pub(crate) struct End<R> {
    /// The number of the pass; 0: there was none.
    pub(crate) pass: u64,
    /// The generation that it worked on.
    pub(crate) generation: Option<Generation>,
    pub(crate) report: Option<R>,
    /// Nothing is left to do.
    pub(crate) done: bool,
    /// Something failed that may succeed later by itself.
    pub(crate) retry: bool,
    /// When it ended.
    pub(crate) at: Option<Instant>,
    /// Operations on the kernel's tree that it took.
    pub(crate) operations: u64,
}

impl<R> Default for End<R> {
    fn default() -> Self {
        Self { pass: 0, generation: None, report: None, done: false, retry: false, at: None, operations: 0 }
    }
}

impl<R> End<R> {
    /// Whether a pass that began later than pass `after` worked on this generation or a newer one, and waiting longer is
    /// of no use.
    pub(crate) fn is_settled(&self, generation: Generation, after: u64) -> bool {
        self.pass > after && self.generation >= Some(generation) && (self.done || !self.retry)
    }
}

/// The state of one volume and its export. Each part keeps its fields to its own module.
#[derive(Debug, Default)]
pub(crate) struct State {
    volume: Option<Wish<VolumeSpec>>,
    export: Option<Wish<ExportSpec>>,
    /// The turn of its passes.
    pub(super) turn: Turn,
    /// The observations of it.
    pub(super) knowledge: Knowledge,
    /// The facts that end only with it.
    pub(super) established: Established,
    pub(super) receipts: Receipts,
    /// The calls of it that have not returned.
    pub(super) calls: Calls,
    /// The long work of its passes.
    pub(super) jobs: Jobs,
    /// Steps that make it larger.
    pub(super) growth: Growth,
    /// The silence of its device.
    pub(super) silence: Silence,
    /// The table of its LV.
    pub(super) table: Table,
    pub(super) revert: Revert,
    /// The copy of it to a file.
    pub(super) uploads: Uploads,
    /// The persistent reservations of it.
    pub(super) held: Held,
    /// The RESERVE(6) and RESERVE(10) of it.
    pub(super) reserved: Reserved,
    /// The change of its persistent reservations that was asked for.
    asked: Option<Asked>,
    volume_end: End<VolumeReport>,
    export_end: End<ExportReport>,
    /// The export was made in bulk work. It is looked at when the others are made, too.
    look_later: bool,
    /// Why the store did not take the last change.
    store_failed: Option<Problem>,
}

impl State {
    /// The volume's spec or tombstone. `None` if there was never one.
    pub(crate) fn volume(&self) -> Option<&Wish<VolumeSpec>> {
        self.volume.as_ref()
    }

    /// The export's spec or tombstone. `None` if there was never one.
    pub(crate) fn export(&self) -> Option<&Wish<ExportSpec>> {
        self.export.as_ref()
    }

    /// Both, as they are now.
    pub(super) fn wishes(&self) -> (Option<Wish<VolumeSpec>>, Option<Wish<ExportSpec>>) {
        (self.volume.clone(), self.export.clone())
    }

    /// The volume's spec. `None` if there is none, or a tombstone.
    pub(super) fn volume_spec(&self) -> Option<&VolumeSpec> {
        self.volume.as_ref().and_then(Wish::spec)
    }

    /// The export's spec. `None` if there is none, or a tombstone.
    pub(super) fn export_spec(&self) -> Option<&ExportSpec> {
        self.export.as_ref().and_then(Wish::spec)
    }

    /// Takes the volume's spec or tombstone as the store has it.
    pub(super) fn set_volume(&mut self, wish: Wish<VolumeSpec>) {
        self.volume = Some(wish);
    }

    /// Takes the export's spec or tombstone as the store has it.
    pub(super) fn set_export(&mut self, wish: Wish<ExportSpec>) {
        self.export = Some(wish);
    }

    /// Says whether nothing is known of this volume: no spec, no tombstone, no LV.
    pub(super) fn is_unknown(&self) -> bool {
        self.volume.is_none() && self.export.is_none() && self.knowledge.orphan().is_none()
    }

    /// Where the volume half of the last pass has ended.
    pub(super) fn volume_end(&self) -> &End<VolumeReport> {
        &self.volume_end
    }

    /// Where the export half of the last pass has ended.
    pub(super) fn export_end(&self) -> &End<ExportReport> {
        &self.export_end
    }

    /// Takes note of where the volume half of a pass has ended.
    pub(super) fn end_volume(&mut self, end: End<VolumeReport>) {
        self.volume_end = end;
    }

    /// Takes note of where the export half of a pass has ended.
    pub(super) fn end_export(&mut self, end: End<ExportReport>) {
        self.export_end = end;
    }

    /// Keeps the report of a look beside all passes in the place of the last pass's.
    pub(super) fn replace_export_report(&mut self, report: ExportReport) {
        self.export_end.report = Some(report);
    }

    /// LVM has shown that something is left to do for the volume.
    pub(super) fn undo_volume_end(&mut self) {
        self.volume_end.done = false;
    }

    /// The change of persistent reservations that waits for a pass.
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

    /// Leaves the look at the export until the other exports of the bulk work are made.
    pub(super) fn leave_look(&mut self) {
        self.look_later = true;
    }

    /// Says whether the pass at work has left its look for later.
    pub(super) fn has_left_look(&self) -> bool {
        self.look_later
    }

    /// Says whether the pass that has ended left its look for later: the next one does not begin so.
    pub(super) fn take_left_look(&mut self) -> bool {
        std::mem::take(&mut self.look_later)
    }

    /// Why the store did not take the last change. `None` if it did.
    pub(super) fn store_failed(&self) -> Option<&Problem> {
        self.store_failed.as_ref()
    }

    /// Takes note of why the store did not take a change. `false` if that is nothing new.
    pub(super) fn note_store(&mut self, failed: Option<Problem>) -> bool {
        let news = self.store_failed != failed;
        self.store_failed = failed;
        news
    }

    /// The kernel call of this volume that has not returned for so long that somebody should know.
    pub(crate) fn stuck(&self) -> Option<StuckStep> {
        let (step, began) = self.calls.oldest()?;
        let since = began.elapsed();
        (since >= crate::workers::LOST_AFTER).then(|| StuckStep { step: step.to_owned(), since })
    }

    /// Whether a look at the target now may not come back. A zeroing or a discard is no call on the target.
    pub(crate) fn is_blocked(&self) -> bool {
        let step = self.calls.step_began().filter(|_| !self.jobs.is_at_work());
        let began = step.into_iter().chain(self.calls.look_began()).min();
        began.is_some_and(|began| began.elapsed() >= BLOCKED_AFTER)
    }

    /// Whether no pass is at work on the export: none runs, or the one that runs has done its export.
    pub(crate) fn is_export_still(&self) -> bool {
        self.turn.running().is_none_or(|pass| self.export_end.pass == pass)
    }

    /// Whether the last pass worked on the export's wish of now: of one that came since, nothing is known.
    pub(crate) fn is_export_current(&self) -> bool {
        self.export_end.generation == self.export.as_ref().map(|wish| wish.stamp.generation)
    }

    /// Whether the export's wish of now is true.
    pub(crate) fn is_export_done(&self) -> bool {
        self.export_end.done && self.is_export_current()
    }

    /// Whether nothing was left of the volume when a pass worked on this tombstone.
    pub(crate) fn has_ended_by(&self, wish: &Wish<VolumeSpec>) -> bool {
        let end = &self.volume_end;
        wish.spec().is_none() && end.done && end.generation == Some(wish.stamp.generation)
    }
}

#[cfg(test)]
impl State {
    /// Takes this for the export's spec, or with `None` that there was never one.
    pub(super) fn replace_export(&mut self, wish: Option<Wish<ExportSpec>>) -> Option<Wish<ExportSpec>> {
        std::mem::replace(&mut self.export, wish)
    }

    /// The volume's spec, to be changed.
    pub(super) fn volume_spec_mut(&mut self) -> Option<&mut VolumeSpec> {
        match self.volume.as_mut().map(|wish| &mut wish.kind) {
            Some(WishKind::Spec(spec)) => Some(spec),
            Some(WishKind::Tombstone { .. } | WishKind::Released) | None => None,
        }
    }
}

/// One volume's place in the engine.
pub(crate) struct Cell {
    pub(crate) id: VolumeId,
    state: Mutex<State>,
    /// Changes of this volume are taken one by one.
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

    /// The state. Never hold the guard across a kernel call, a command or the store.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which step is at work from now on.
    pub(crate) fn begin(&self, step: String) {
        self.state().calls.begin(step);
    }

    /// Ends the step that is at work.
    pub(crate) fn end(&self) {
        self.state().calls.end();
    }

    /// Tells those who wait that something has changed.
    pub(crate) fn changed(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
