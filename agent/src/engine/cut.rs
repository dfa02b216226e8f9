//! Cuts volumes off from their disks, and takes that back, as their wishes say.
//!
//! It is done beside the passes, and by no lock of theirs: what an operator wants cut off is as a rule a volume whose pass hangs
//! in the kernel. The exchange itself may wait for the disk, too (what is in flight below the LV has to come back first), and
//! then its volume is `pending`, and nobody else waits. An export that is not served yet waits for the cut of its volume.
//!
//! What must never happen here: a volume said to be cut that the kernel does not show so; an export that begins to serve a
//! volume which is to be cut and is not; a table exchanged of what no wish names.

use std::sync::Arc;

use mooring_model::{Chain, Cure, Cut, Generation, Problem, VolumeId, VolumeReport, VolumeSpec};
use tokio::time::Instant;

use super::cell::{Cell, State};
use super::{Change, Engine, Refusal, pass};
use crate::turn::{self, RETRY_MAX};
use crate::volumes::{self, LvId, SeenTable, VolumesView};
use crate::workers::LOST_AFTER;

/// What is known of the table of a volume's LV.
#[derive(Debug, Default)]
pub(crate) struct Table {
    seen: Option<SeenTable>,
    /// It was looked at since the last sweep.
    fresh: bool,
    /// This LV was cut, or LVM says that its table is not its own; nobody has seen since that it is.
    doubt: Option<LvId>,
    /// When whoever is at it began.
    at_work: Option<Instant>,
    problem: Option<Problem>,
    failures: u32,
    /// The generation of the volume's wish that changed nothing else.
    asked: Option<Generation>,
}

/// The LV that this spec is about.
fn lv_of(spec: &VolumeSpec, state: &State) -> LvId {
    let name = pass::lv_name(spec, state.export_spec());
    LvId { group: spec.group.clone(), name }
}

impl State {
    fn wants_cut(&self) -> Option<&VolumeSpec> {
        self.volume_spec().filter(|spec| spec.cut.is_some())
    }

    /// Whether its table is another than LVM's own, or may be: nobody tells who changes that.
    pub(super) fn may_be_cut(&self) -> bool {
        self.wants_cut().is_some() || self.table.doubt.is_some()
    }

    /// What there is to do or to look at, and whether it is to be cut.
    fn due(&self) -> Option<(LvId, bool)> {
        match self.wants_cut() {
            Some(_) if self.table.fresh && self.table.seen == Some(SeenTable::Errors) => None,
            Some(spec) => Some((lv_of(spec, self), true)),
            None => self.table.doubt.clone().map(|lv| (lv, false)),
        }
    }

    /// Whether it is cut off, or not, as it is wanted.
    pub(super) fn is_cut_true(&self) -> bool {
        match self.wants_cut() {
            Some(_) => self.table.seen == Some(SeenTable::Errors),
            None => self.table.doubt.is_none(),
        }
    }

    /// Whether a volume's wish of this generation is true because it changed nothing but the cut: its pass may hang.
    pub(super) fn is_only_cut(&self, generation: Generation) -> bool {
        self.table.asked == Some(generation) && self.is_cut_true()
    }

    /// Takes note of a new wish, before it stands here.
    pub(super) fn note_cut_wish(&mut self, generation: Generation, new: Option<&VolumeSpec>) {
        let Some(old) = self.volume_spec() else { return };
        let cut = new.and_then(|spec| spec.cut);
        let doubt = (old.cut.is_some() && cut.is_none()).then(|| lv_of(old, self));
        let changed = old.cut != cut;
        let only = changed
            && new.is_some_and(|new| {
                VolumeSpec { cut: None, ..new.clone() } == VolumeSpec { cut: None, ..old.clone() }
            });
        if doubt.is_some() {
            self.table.doubt = doubt;
        }
        if changed {
            self.table.fresh = false;
            self.table.problem = None;
        }
        self.table.asked = only.then_some(generation);
    }

    /// Takes note of what LVM says of the tables of this volume's LVs.
    pub(super) fn note_altered(&mut self, id: VolumeId, view: &VolumesView) {
        let Some(lv) = view.lvs_of(id).iter().find(|lv| lv.is_tagged() && lv.altered) else { return };
        if let Some(group) = view.groups().iter().find(|group| group.name.as_str() == lv.group) {
            self.table.doubt = Some(LvId { group: group.name.clone(), name: lv.name.clone() });
        }
    }

    /// Whether it is cut off, as it is known now, and what keeps it from being as it is wanted.
    pub(super) fn fill_cut(&self, id: VolumeId, report: &mut VolumeReport) {
        let (wanted, errors) = (self.wants_cut().is_some(), self.table.seen == Some(SeenTable::Errors));
        report.cut = match (wanted, errors) {
            (_, true) => Cut::InForce,
            (true, false) => Cut::Pending,
            (false, false) => Cut::No,
        };
        let waits = self.table.at_work.is_some_and(|began| began.elapsed() >= LOST_AFTER);
        if let Some(problem) = &self.table.problem {
            report.problems.push(problem.clone());
        } else if waits && wanted {
            let text =
                "not cut off yet: what was sent to the disk below has not come back, and may still land";
            let object = format!("the table of volume {id}");
            report.problems.push(Problem { object, text: text.to_owned(), cure: Cure::Retry });
        }
    }
}

/// Says that nobody is at it any more, however that ended.
struct AtWork<'a>(&'a Cell);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.state().table.at_work = None;
    }
}

impl Cell {
    /// Nothing else is changed of a volume that is cut off.
    pub(super) fn check_not_cut(
        &self,
        old: Option<&VolumeSpec>,
        new: Option<&VolumeSpec>,
    ) -> Result<(), Refusal> {
        let Some(old) = old.filter(|old| old.cut.is_some()) else { return Ok(()) };
        let same = |new: &VolumeSpec| new.size == old.size && new.revert == old.revert;
        if new.is_some_and(|new| new.cut.is_none() || same(new)) {
            return Ok(());
        }
        let why = format!(
            "volume {} is cut off from its disk: take that back first (mooring volume uncut)",
            self.id
        );
        Err(Refusal::precondition(why, Cure::FixSpec))
    }
}

impl Engine {
    /// Nothing is made from a volume that is cut off: LVM would put its table back on the way.
    pub(super) fn check_source_not_cut(&self, spec: &VolumeSpec) -> Result<(), Refusal> {
        let Some(source) = spec.source.map(mooring_model::Source::id) else { return Ok(()) };
        if self.known_cell(source).is_some_and(|cell| cell.state().wants_cut().is_some()) {
            let why = format!(
                "volume {source} is cut off from its disk: nothing is made from it until that is taken back"
            );
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        Ok(())
    }

    /// Has a volume cut off, or that taken back, soon, if there is anything to do.
    pub(super) fn tend_cut_soon(&self, cell: &Arc<Cell>) {
        let state = cell.state();
        if state.table.at_work.is_some() || state.due().is_none() {
            return;
        }
        drop(state);
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.workers.submit_awaited(move || engine.tend_cut(&cell));
    }

    /// The same at a sweep: what was seen before may have changed.
    pub(super) fn look_at_cut(&self, cell: &Arc<Cell>) {
        cell.state().table.fresh = false;
        self.tend_cut_soon(cell);
    }

    /// Whether a volume that is not served yet may be: not while it is to be cut and is not.
    pub(super) fn is_cut_first(&self, cell: &Arc<Cell>) -> bool {
        let so = {
            let state = cell.state();
            state.wants_cut().is_none() || state.table.seen == Some(SeenTable::Errors)
        };
        if !so {
            self.tend_cut_soon(cell);
        }
        so
    }

    fn tend_cut(&self, cell: &Arc<Cell>) {
        loop {
            let due = {
                let mut state = cell.state();
                let due = state.due().filter(|_| state.table.at_work.is_none());
                let Some(due) = due else { return };
                state.table.at_work = Some(Instant::now());
                due
            };
            let at_work = AtWork(cell);
            let (seen, failed) = self.exchange(&due.0, due.1);
            drop(at_work);
            self.note_cut(cell, &due, seen, failed);
            // A wish that came meanwhile.
            if cell.state().due().is_none_or(|now| now == due) {
                return self.tend_cut_later(cell);
            }
        }
    }

    /// Looks, plans, applies, and looks again. What was seen last, and what went wrong.
    fn exchange(&self, lv: &LvId, wanted: bool) -> (Option<SeenTable>, Option<volumes::Error>) {
        let commands = &*self.shared.machine.commands;
        let seen = match volumes::look_at_table(commands, lv) {
            Ok(seen) => seen,
            Err(error) => return (None, Some(error)),
        };
        let plan = volumes::plan_cut(wanted, seen, lv);
        if plan.steps.is_empty() {
            return (Some(seen), None);
        }
        let failed = volumes::apply_cut(&plan, commands).err();
        match volumes::look_at_table(commands, lv) {
            Ok(seen) => (Some(seen), failed),
            Err(error) => (None, failed.or(Some(error))),
        }
    }

    fn note_cut(
        &self,
        cell: &Arc<Cell>,
        (lv, wanted): &(LvId, bool),
        seen: Option<SeenTable>,
        failed: Option<volumes::Error>,
    ) {
        let (report, news) = {
            let mut state = cell.state();
            let before = (state.table.seen, state.table.problem.clone());
            state.table.seen = seen;
            state.table.fresh = true;
            let object = format!("the table of {lv}");
            state.table.problem =
                failed.map(|error| Problem { object, text: Chain(&error).to_string(), cure: error.cure() });
            let own = matches!(seen, Some(SeenTable::NoDevice | SeenTable::Disk { waiting: false }));
            if !wanted && own && state.table.doubt.as_ref() == Some(lv) {
                state.table.doubt = None;
            }
            (state.volume_report(cell.id), before != (state.table.seen, state.table.problem.clone()))
        };
        if news {
            let cut = report.cut;
            tracing::warn!(volume = %cell.id, ?cut, "the table of a volume's LV is another one");
            self.publish(Change::Volume(report));
            // Its export may wait for it, and what was left undone may be done.
            self.wake(cell);
        }
        cell.changed();
    }

    /// Tries again later what was not done.
    fn tend_cut_later(&self, cell: &Arc<Cell>) {
        let failures = {
            let mut state = cell.state();
            let left = state.due().is_some();
            state.table.failures = if left { state.table.failures.saturating_add(1) } else { 0 };
            state.table.failures
        };
        if failures == 0 {
            return;
        }
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(turn::retry_delay(failures, RETRY_MAX)).await;
            engine.tend_cut_soon(&cell);
        });
    }
}
