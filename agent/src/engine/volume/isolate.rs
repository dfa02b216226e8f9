//! Isolates volumes, and takes that back, as their specs say.
//!
//! The exchange of a table runs beside the passes, without a lock of theirs: as a rule the pass of
//! a volume to be isolated hangs in the kernel. The exchange itself may wait for the disk, too:
//! commands in flight below the LV have to come back first. Then the volume is `pending`, and
//! nobody else waits. An export that is not served yet waits until its volume is isolated.
//!
//! What must never happen here: a volume reported as isolated that the kernel does not show so; an
//! export that begins to serve a volume which is to be isolated and is not; an exchange of a table
//! that no spec names.

use std::sync::Arc;

use mooring_model::{Chain, Cure, Cut, Generation, Problem, VolumeId, VolumeReport, VolumeSpec};
use tokio::time::Instant;

use crate::clock;
use crate::engine::cell::{Cell, State};
use crate::engine::{Change, Engine, Refusal, pass};
use crate::lvm::{self, LvId, SeenTable, VolumesView};
use crate::object::seen::{Memory, Moment, Seen};
use crate::object::turn::{self, RETRY_MAX};
use crate::workers::LOST_AFTER;

/// The device-mapper table of a volume's LV, as the last look read it.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The table as the last look read it. `None` in it if that look failed.
    seen: Memory<Option<SeenTable>>,
    /// The last moment in which a sweep or a spec asked for a new look. A look at work then does
    /// not answer it.
    asked: Moment,
    /// An LV that was isolated, or whose table LVM calls altered. `None` once a look saw the LV's
    /// own table.
    doubt: Option<LvId>,
    /// The reason why the last look or exchange failed. `None` if it did not fail.
    problem: Option<Problem>,
}

impl Table {
    /// The table as the last look read it. `None` if no look has, or if the last one failed.
    fn last(&self) -> Option<SeenTable> {
        self.seen.get().copied().flatten()
    }

    /// Says whether the last look saw a table that answers with errors: the volume is isolated.
    fn is_errors(&self) -> bool {
        self.last() == Some(SeenTable::Errors)
    }

    /// Says whether a look has begun, and ended, since somebody asked for one.
    fn is_fresh(&self) -> bool {
        self.seen.seen().is_some_and(|seen| seen.began() >= self.asked)
    }

    /// Notes a look at this LV. `wanted`: it is to be isolated. `true` if the look shows anything
    /// new. `false`, and nothing changes, if the observation of a later look is kept.
    fn learn(
        &mut self,
        (lv, wanted): (&LvId, bool),
        look: Seen<Option<SeenTable>>,
        problem: Option<Problem>,
    ) -> bool {
        let seen = *look;
        let news = self.last() != seen || self.problem != problem;
        if !self.seen.learn(look) {
            return false;
        }
        self.problem = problem;
        let own = matches!(seen, Some(SeenTable::NoDevice | SeenTable::Disk { waiting: false }));
        self.doubt.take_if(|doubt| !wanted && own && doubt == lv);
        news
    }
}

/// The exchanges of the table of a volume's LV.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    /// Time at which the exchange at work began. `None` if none is at work.
    at_work: Option<Instant>,
    /// Number of exchanges that failed one after another.
    failures: u32,
    /// The generation of the volume's spec, if that changed nothing but the isolation.
    asked: Option<Generation>,
}

/// The LV of this spec.
fn lv_of(spec: &VolumeSpec, state: &State) -> LvId {
    let name = pass::lv_name(spec, state.export_spec());
    LvId { group: spec.group.clone(), name }
}

impl State {
    /// Asks for a look at the table that begins after this moment.
    fn ask_for_table(&mut self) {
        let now = self.knowledge.begin_look();
        self.knowledge.table_mut().asked = now;
    }

    fn wants_isolation(&self) -> Option<&VolumeSpec> {
        self.volume_spec().filter(|spec| spec.cut.is_some())
    }

    /// Says whether the table is another one than LVM's own, or may be: no event reports a change
    /// of it.
    pub(in crate::engine) fn may_be_isolated(&self) -> bool {
        self.wants_isolation().is_some() || self.knowledge.table().doubt.is_some()
    }

    /// The LV whose table is to be exchanged or read, and whether it is to be isolated. `None` if
    /// nothing is to be done.
    fn due(&self) -> Option<(LvId, bool)> {
        let table = self.knowledge.table();
        match self.wants_isolation() {
            Some(_) if table.is_fresh() && table.is_errors() => None,
            Some(spec) => Some((lv_of(spec, self), true)),
            None => table.doubt.clone().map(|lv| (lv, false)),
        }
    }

    /// Says whether the volume is isolated, or not, as its spec says.
    pub(in crate::engine) fn isolation_matches_spec(&self) -> bool {
        match self.wants_isolation() {
            Some(_) => self.knowledge.table().is_errors(),
            None => self.knowledge.table().doubt.is_none(),
        }
    }

    /// Says whether a spec of this generation is carried out although its pass may hang: it changed
    /// nothing but the isolation.
    pub(in crate::engine) fn is_only_isolation(&self, generation: Generation) -> bool {
        self.exchanges.asked == Some(generation) && self.isolation_matches_spec()
    }

    /// Notes a new spec before the state has it.
    pub(in crate::engine) fn note_isolation_spec(
        &mut self,
        generation: Generation,
        new: Option<&VolumeSpec>,
    ) {
        let Some(old) = self.volume_spec() else { return };
        let cut = new.and_then(|spec| spec.cut);
        let doubt = (old.cut.is_some() && cut.is_none()).then(|| lv_of(old, self));
        let changed = old.cut != cut;
        let only = changed
            && new.is_some_and(|new| {
                VolumeSpec { cut: None, ..new.clone() } == VolumeSpec { cut: None, ..old.clone() }
            });
        if doubt.is_some() {
            self.knowledge.table_mut().doubt = doubt;
        }
        if changed {
            self.ask_for_table();
            self.knowledge.table_mut().problem = None;
        }
        self.exchanges.asked = only.then_some(generation);
    }

    /// Notes LVM's view of the tables of this volume's LVs.
    pub(in crate::engine) fn note_altered(&mut self, id: VolumeId, view: &VolumesView) {
        let Some(lv) = view.lvs_of(id).iter().find(|lv| lv.is_tagged() && lv.altered) else { return };
        if let Some(group) = view.groups().iter().find(|group| group.name.as_str() == lv.group) {
            self.knowledge.table_mut().doubt =
                Some(LvId { group: group.name.clone(), name: lv.name.clone() });
        }
    }

    /// Reports whether the volume is isolated, and what keeps it from being as its spec says.
    pub(in crate::engine) fn fill_isolation(&self, id: VolumeId, report: &mut VolumeReport) {
        let (wanted, errors) = (self.wants_isolation().is_some(), self.knowledge.table().is_errors());
        report.cut = match (wanted, errors) {
            (_, true) => Cut::InForce,
            (true, false) => Cut::Pending,
            (false, false) => Cut::No,
        };
        let waits = self.exchanges.at_work.is_some_and(|began| began.elapsed() >= LOST_AFTER);
        if let Some(problem) = &self.knowledge.table().problem {
            report.problems.push(problem.clone());
        } else if waits && wanted {
            let text = "not cut off yet: commands that were sent to the disk below have not returned, and may still land";
            let object = format!("the table of volume {id}");
            report.problems.push(Problem { object, text: text.to_owned(), cure: Cure::Retry });
        }
    }
}

/// Marks the exchange as ended, however it ends.
struct AtWork<'a> {
    cell: &'a Cell,
    /// The moment at which the exchange began.
    began: Moment,
    /// `true` if the end is marked already: another exchange may be at work.
    ended: bool,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.cell.state().exchanges.at_work = None;
        }
    }
}

impl Cell {
    /// Refuses every other change of a volume that is isolated.
    pub(in crate::engine) fn check_not_isolated(
        &self,
        old: Option<&VolumeSpec>,
        new: Option<&VolumeSpec>,
    ) -> Result<(), Refusal> {
        let Some(old) = old.filter(|old| old.cut.is_some()) else { return Ok(()) };
        let same = |new: &VolumeSpec| new.size == old.size && new.revert == old.revert;
        if new.is_some_and(|new| new.cut.is_none() || same(new)) {
            return Ok(());
        }
        let why =
            format!("volume {} is cut off from its disk: give it back first (mooring volume uncut)", self.id);
        Err(Refusal::precondition(why, Cure::FixSpec))
    }
}

impl Engine {
    /// Refuses a volume whose source is isolated: LVM would put the source's own table back on the
    /// way.
    pub(in crate::engine) fn check_source_not_isolated(&self, spec: &VolumeSpec) -> Result<(), Refusal> {
        let Some(source) = spec.source.map(mooring_model::Source::id) else { return Ok(()) };
        if self.known_cell(source).is_some_and(|cell| cell.state().wants_isolation().is_some()) {
            let why = format!(
                "volume {source} is cut off from its disk: nothing is made from it until it is given back (mooring volume \
                 uncut)"
            );
            return Err(Refusal::precondition(why, Cure::FixSpec));
        }
        Ok(())
    }

    /// Has a volume's table exchanged soon, if there is anything to do.
    pub(in crate::engine) fn tend_isolation_soon(&self, cell: &Arc<Cell>) {
        let state = cell.state();
        if state.exchanges.at_work.is_some() || state.due().is_none() {
            return;
        }
        drop(state);
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.workers.submit_awaited(move || engine.tend_isolation(&cell));
    }

    /// Has a volume's table read again at a sweep, and exchanged if need be: it may have changed.
    pub(in crate::engine) fn look_at_isolation(&self, cell: &Arc<Cell>) {
        cell.state().ask_for_table();
        self.tend_isolation_soon(cell);
    }

    /// Says whether a volume that is not served yet may be: not while it is to be isolated and is
    /// not.
    pub(in crate::engine) fn is_isolated_first(&self, cell: &Arc<Cell>) -> bool {
        let so = {
            let state = cell.state();
            state.wants_isolation().is_none() || state.knowledge.table().is_errors()
        };
        if !so {
            self.tend_isolation_soon(cell);
        }
        so
    }

    fn tend_isolation(&self, cell: &Arc<Cell>) {
        loop {
            let (due, began) = {
                let mut state = cell.state();
                let due = state.due().filter(|_| state.exchanges.at_work.is_none());
                let Some(due) = due else { return };
                state.exchanges.at_work = Some(clock::instant());
                (due, state.knowledge.begin_look())
            };
            let mut at_work = AtWork { cell, began, ended: false };
            let (seen, failed) = self.exchange(&due.0, due.1);
            self.note_isolation(cell, &mut at_work, &due, seen, failed);
            // A spec that came meanwhile may want the opposite.
            if cell.state().due().is_none_or(|now| now == due) {
                return self.tend_isolation_later(cell);
            }
        }
    }

    /// Looks, plans, applies, and looks again. Returns the table that the last look saw (`None` if
    /// it failed), and what went wrong.
    fn exchange(&self, lv: &LvId, wanted: bool) -> (Option<SeenTable>, Option<lvm::Error>) {
        let commands = &*self.shared.machine.commands;
        let seen = match lvm::look_at_table(commands, lv) {
            Ok(seen) => seen,
            Err(error) => return (None, Some(error)),
        };
        let plan = lvm::plan_isolation(wanted, seen, lv);
        if plan.steps.is_empty() {
            return (Some(seen), None);
        }
        let failed = lvm::apply_isolation(&plan, commands).err();
        match lvm::look_at_table(commands, lv) {
            Ok(seen) => (Some(seen), failed),
            Err(error) => (None, failed.or(Some(error))),
        }
    }

    /// Notes what an exchange has seen, and its end, in one step: between the two, another exchange
    /// could begin and see what comes after it.
    fn note_isolation(
        &self,
        cell: &Arc<Cell>,
        at_work: &mut AtWork<'_>,
        (lv, wanted): &(LvId, bool),
        seen: Option<SeenTable>,
        failed: Option<lvm::Error>,
    ) {
        let (report, news) = {
            let mut state = cell.state();
            let object = format!("the table of {lv}");
            let problem =
                failed.map(|error| Problem { object, text: Chain(&error).to_string(), cure: error.cure() });
            let look = Seen::new(at_work.began, seen);
            let news = state.knowledge.table_mut().learn((lv, *wanted), look, problem);
            state.exchanges.at_work = None;
            at_work.ended = true;
            (state.volume_report(cell.id), news)
        };
        if news {
            let cut = report.cut;
            tracing::warn!(volume = %cell.id, ?cut, "the table of a volume's LV has changed");
            self.publish(Change::Volume(report));
            // The export may wait for the isolation, and steps that were left undone may succeed.
            self.wake(cell);
        }
        cell.changed();
    }

    /// Tries again later, if something is left to do.
    fn tend_isolation_later(&self, cell: &Arc<Cell>) {
        let failures = {
            let mut state = cell.state();
            let left = state.due().is_some();
            state.exchanges.failures = if left { state.exchanges.failures.saturating_add(1) } else { 0 };
            state.exchanges.failures
        };
        if failures == 0 {
            return;
        }
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(turn::retry_delay(failures, RETRY_MAX)).await;
            // A later failure has a timer of its own: two would make two chains of retries.
            if cell.state().exchanges.failures == failures {
                engine.tend_isolation_soon(&cell);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use mooring_model::LvName;

    use super::*;
    use crate::engine::cell::SpecKind;
    use crate::engine::testing;

    const DISK: SeenTable = SeenTable::Disk { waiting: false };

    fn lv() -> LvId {
        LvId { group: "vg0".parse().unwrap(), name: LvName::thin_pool() }
    }

    /// Sweeps, passes and changes begin exchanges, too, not only the retry.
    #[tokio::test(start_paused = true)]
    async fn exchanges_that_fail_leave_one_retry_behind() {
        let node = testing::Node::new();
        node.fake.lvm().set_missing(true);
        {
            let mut state = node.cell.state();
            let mut kept_spec = state.volume().cloned().unwrap();
            if let SpecKind::Spec(spec) = &mut kept_spec.kind {
                spec.cut = Some(SystemTime::UNIX_EPOCH);
            }
            state.set_volume(kept_spec);
            // A pass at work, so that none begins an exchange of its own.
            assert!(state.turn.ask() && state.turn.begin().is_some());
        }
        (0..3).for_each(|_| node.engine.tend_isolation(&node.cell));
        let begun = node.engine.hand_overs();
        // The timer of the second failure is over, and that of the third is not.
        let (second, third) = (turn::retry_delay(2, RETRY_MAX), turn::retry_delay(3, RETRY_MAX));
        assert!(second < third);
        tokio::time::sleep(second + Duration::from_millis(1)).await;
        assert_eq!(node.engine.hand_overs(), begun);
        tokio::time::sleep(third.saturating_sub(second)).await;
        assert_eq!(node.engine.hand_overs(), begun + 1, "the exchange is tried again");
    }

    #[test]
    fn a_look_at_a_table_that_ends_late_does_not_win_over_a_later_one() {
        let (mut table, mut now, lv) = (Table::default(), Moment::default(), lv());
        let (isolating, undoing) = (now.advance(), now.advance());
        assert!(table.learn((&lv, false), Seen::new(undoing, Some(DISK)), None));
        assert!(!table.learn((&lv, true), Seen::new(isolating, Some(SeenTable::Errors)), None));
        assert!(!table.is_errors());
        // The control: a look that begins after it does.
        assert!(table.learn((&lv, true), Seen::new(now.advance(), Some(SeenTable::Errors)), None));
        assert!(table.is_errors());
    }

    #[test]
    fn a_look_at_a_table_does_not_answer_who_asks_during_it() {
        let (mut table, mut now, lv) = (Table::default(), Moment::default(), lv());
        let began = now.advance();
        table.asked = now.advance();
        assert!(table.learn((&lv, true), Seen::new(began, Some(SeenTable::Errors)), None));
        assert!(table.is_errors() && !table.is_fresh(), "what it saw is kept, and looked at once more");
        // The control: a look that begins after the question answers it.
        table.learn((&lv, true), Seen::new(now.advance(), Some(SeenTable::Errors)), None);
        assert!(table.is_errors() && table.is_fresh());
    }
}
