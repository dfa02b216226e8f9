//! Bulk work: many exports that the kernel does not serve, and whose volumes are ready, are made
//! together. This happens after a boot, after the modules were loaded, and after a late volume
//! group has come. Meanwhile the kernel's grace periods are short ([`Expedite`]).
//!
//! The steps of all exports come first. The look that shows whether they are in force comes in a
//! second pass of each.
//!
//! Bulk work ends when each export has had its first pass. It also ends when no pass has ended for
//! as long as a job may take before it counts as lost: an export that hangs does not keep the
//! switch on. Until the first pass has ended that time is longer: the first export loads modules.
//!
//! What must never happen here: the switch touched for a single grant, or for exports that wait for
//! something.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use mooring_host::Tree;
use mooring_model::{Chain, VolumeId};
use tokio::time::Instant;

use super::expedite::Expedite;
use crate::clock;
use crate::config::Config;
use crate::engine::{Engine, lock};
use crate::workers::LOST_AFTER;

/// Least number of exports that are bulk work. Fewer take less than half a second with normal grace
/// periods.
const BULK_MIN: usize = 16;

/// Factor by which bulk work may go longer without progress, until one export has been made.
const FIRST_TAKES: u32 = 5;

struct State {
    expedite: Expedite,
    /// Exports whose first pass has not ended.
    left: BTreeSet<VolumeId>,
    /// Exports that have had their steps and wait for their look.
    made: Vec<VolumeId>,
    /// Number of all exports. `began` is when the work began, `progress` when the last pass ended.
    count: usize,
    began: Instant,
    progress: Instant,
}

impl State {
    /// Longest time without progress. After a boot the first exports load the kernel's modules:
    /// that takes seconds under emulation.
    fn patience(&self, lost_after: Duration) -> Duration {
        if self.left.len() == self.count { lost_after * FIRST_TAKES } else { lost_after }
    }
}

/// The bulk work of an engine.
pub(in crate::engine) struct Bulk {
    /// `true` while exports are left, or the switch is on: passes ask this before they take the
    /// lock.
    at_work: AtomicBool,
    state: Mutex<State>,
    /// Wakes those who wait until no export is left.
    over: Condvar,
}

impl Bulk {
    pub(in crate::engine) fn new(config: &Config) -> Self {
        let expedite = Expedite::new(&config.run_dir);
        let now = clock::instant();
        let at_work = AtomicBool::new(expedite.is_on());
        let state =
            State { expedite, left: BTreeSet::new(), made: Vec::new(), count: 0, began: now, progress: now };
        Self { at_work, state: Mutex::new(state), over: Condvar::new() }
    }

    /// Begins to make these exports. `true` if grace periods are short: then the work waits for
    /// processors only.
    fn begin(&self, sys: &dyn Tree, volumes: &BTreeSet<VolumeId>) -> bool {
        if volumes.len() < BULK_MIN {
            return lock(&self.state).expedite.is_on();
        }
        let mut state = lock(&self.state);
        let now = clock::instant();
        if state.left.is_empty() {
            (state.count, state.began) = (0, now);
        }
        state.count += volumes.difference(&state.left).count();
        state.left.extend(volumes);
        state.progress = now;
        self.at_work.store(true, Ordering::Release);
        if let Err(error) = state.expedite.begin(sys) {
            tracing::warn!(error = %Chain(&error), "cannot shorten the kernel's grace periods: exports are made more slowly");
        }
        state.expedite.is_on()
    }

    fn is_making(&self) -> bool {
        self.at_work.load(Ordering::Acquire) && !lock(&self.state).left.is_empty()
    }

    /// Exports that are made, and all of them. `None` while no export is left to be made.
    fn progress(&self) -> Option<(usize, usize)> {
        if !self.at_work.load(Ordering::Acquire) {
            return None;
        }
        let state = lock(&self.state);
        (!state.left.is_empty()).then(|| (state.count.saturating_sub(state.left.len()), state.count))
    }

    /// Waits until no export is left to be made, for `at_most`. A condition variable wakes it: to
    /// look again and again would take the processors from the exports.
    fn wait(&self, at_most: Duration) {
        let waited = self.over.wait_timeout_while(lock(&self.state), at_most, |state| !state.left.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn holds(&self, volume: VolumeId) -> bool {
        self.at_work.load(Ordering::Acquire) && lock(&self.state).left.contains(&volume)
    }

    /// Notes that a pass of this volume has ended; with `made` a look at it is to follow. Returns
    /// the volumes whose look is due now.
    fn passed(&self, sys: &dyn Tree, volume: VolumeId, made: bool) -> Vec<VolumeId> {
        if !self.at_work.load(Ordering::Acquire) {
            return Vec::from_iter(made.then_some(volume));
        }
        let mut state = lock(&self.state);
        if !state.left.remove(&volume) {
            return Vec::from_iter(made.then_some(volume));
        }
        if made {
            state.made.push(volume);
        }
        state.progress = clock::instant();
        if !state.left.is_empty() {
            return Vec::new();
        }
        tracing::info!(exports = state.count, ms = state.began.elapsed().as_millis(), "exports were made");
        self.end(&mut state, sys)
    }

    /// Ends the work, whatever is left of it. Returns the volumes whose look is due now.
    fn stop(&self, sys: &dyn Tree) -> Vec<VolumeId> {
        if !self.at_work.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.end(&mut lock(&self.state), sys)
    }

    fn end(&self, state: &mut State, sys: &dyn Tree) -> Vec<VolumeId> {
        state.left.clear();
        self.over.notify_all();
        state.expedite.end_or_say(sys);
        self.at_work.store(state.expedite.is_on(), Ordering::Release);
        std::mem::take(&mut state.made)
    }

    /// Ends work without progress, and puts back grace periods that could not be put back before.
    /// Returns the volumes whose look is due now.
    fn tend(&self, sys: &dyn Tree, lost_after: Duration) -> Vec<VolumeId> {
        if !self.at_work.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        if !state.left.is_empty() && state.progress.elapsed() < state.patience(lost_after) {
            return Vec::new();
        }
        if !state.left.is_empty() {
            tracing::warn!(
                left = state.left.len(),
                of = state.count,
                "exports are still to be made: their passes hang"
            );
        }
        self.end(&mut state, sys)
    }
}

impl Engine {
    /// Begins to make these exports.
    pub(in crate::engine) fn begin_bulk(&self, volumes: &BTreeSet<VolumeId>) {
        let short = self.shared.start_memory.bulk.begin(&*self.shared.machine.sys, volumes);
        self.shared.workers.set_busy(short);
    }

    /// Says whether this export is one of many that are being made. The look behind its steps waits
    /// until all are made: hosts wait for the steps, and nobody waits for the look.
    pub(in crate::engine) fn is_bulk(&self, volume: VolumeId) -> bool {
        self.shared.start_memory.bulk.holds(volume)
    }

    /// Notes that a pass of this volume has ended. With `made` its look follows when all others are
    /// made.
    pub(in crate::engine) fn passed(&self, volume: VolumeId, made: bool) {
        let was_making = self.shared.start_memory.bulk.is_making();
        let made = self.shared.start_memory.bulk.passed(&*self.shared.machine.sys, volume, made);
        if was_making && !self.shared.start_memory.bulk.is_making() {
            self.shared.workers.set_busy(false);
        }
        self.wake_made(&made);
    }

    /// Says whether exports of bulk work are still to be made.
    pub(in crate::engine) fn is_making(&self) -> bool {
        self.shared.start_memory.bulk.is_making()
    }

    /// Exports of bulk work that are made, and all of them. `None` while there is no such work.
    pub(in crate::engine) fn restored(&self) -> Option<(usize, usize)> {
        self.shared.start_memory.bulk.progress()
    }

    /// Waits until all exports are made, for `at_most`.
    pub(in crate::engine) fn wait_until_made(&self, at_most: Duration) {
        self.shared.start_memory.bulk.wait(at_most);
    }

    pub(in crate::engine) fn tend_bulk(&self) {
        let made = self.shared.start_memory.bulk.tend(&*self.shared.machine.sys, LOST_AFTER);
        if !self.shared.start_memory.bulk.is_making() {
            self.shared.workers.set_busy(false);
        }
        self.wake_made(&made);
    }

    fn wake_made(&self, made: &[VolumeId]) {
        for cell in made.iter().filter_map(|volume| self.known_cell(*volume)) {
            self.wake(&cell);
        }
    }

    /// Ends bulk work: the rest of it goes on with normal grace periods. Before the first pass of
    /// an engine this also ends the bulk work of an agent that was killed. The process may end
    /// afterwards.
    pub fn end_bulk(&self) {
        let made = self.shared.start_memory.bulk.stop(&*self.shared.machine.sys);
        self.wake_made(&made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_export_of_many_may_take_longer_than_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let left: BTreeSet<_> = (0..3).map(VolumeId::from_u128).collect();
        let expedite = Expedite::new(dir.path());
        let mut state = State { expedite, left, made: Vec::new(), count: 3, began: now, progress: now };
        assert_eq!(state.patience(LOST_AFTER), LOST_AFTER * FIRST_TAKES);
        assert_eq!(state.patience(Duration::ZERO), Duration::ZERO, "an end that was asked for");
        state.left.pop_first();
        assert_eq!(state.patience(LOST_AFTER), LOST_AFTER);
    }

    #[test]
    fn the_progress_of_many_exports_is_told_until_all_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("state_dir = \"{0}\"\nrun_dir = \"{0}\"\n[host]\n", dir.path().display());
        let bulk = Bulk::new(&Config::parse(&text, "agent.toml").unwrap());
        let tree = mooring_host::KernelTree::new(dir.path());
        let few: BTreeSet<_> = (0..2).map(VolumeId::from_u128).collect();
        let many: BTreeSet<_> = (0..120).map(VolumeId::from_u128).collect();
        bulk.begin(&tree, &few);
        assert_eq!(bulk.progress(), None, "it takes no time");
        bulk.begin(&tree, &many);
        for (made, volume) in many.iter().enumerate() {
            assert_eq!(bulk.progress(), Some((made, 120)));
            bulk.passed(&tree, *volume, true);
        }
        assert_eq!(bulk.progress(), None);
        bulk.begin(&tree, &many);
        bulk.passed(&tree, VolumeId::from_u128(0), true);
        assert_eq!(bulk.tend(&tree, LOST_AFTER), [], "it goes on");
        assert_eq!(bulk.stop(&tree), [VolumeId::from_u128(0)], "the look behind what was made is due");
        assert_eq!((bulk.progress(), bulk.stop(&tree)), (None, Vec::new()));
    }
}
