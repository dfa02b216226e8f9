//! A sweep: one look at the target's folder and one at LVM for all volumes together, then a pass
//! for each. The start is the first sweep, and its part that needs no LVM does not wait for LVM
//! (`early`). Each resync is a sweep, too. Between them, one look serves all volumes that wait for
//! LVM only.
//!
//! The cost of the start is linear: two LVM commands (two more if volumes are to be activated), and
//! two looks at each export, before its steps and after them. Volumes that are ready come first;
//! volumes of a late group do not delay them.
//!
//! Tombstones are kept for months, and there may be many more of them than volumes. So a sweep does
//! not look at LVM for them, and a resync does not look at the kernel for them.
//!
//! What must never happen here: a look at LVM for each volume of many; a view from before a change
//! taken for the state after it; a volume taken for gone whose group LVM cannot read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mooring_model::{Chain, Cure, Cut, Phase, Stamp, VgName, VolumeId, VolumeReport};

use crate::capabilities;
use crate::engine::cell::{Cell, SpecKind};
use crate::engine::knowledge::Stale;
use crate::engine::start::early::Early;
use crate::engine::{Change, Engine, lock, pass};
use crate::lvm::{self, LvId, SeenLv, Unread, VolumesView};
use crate::object::seen::{Moment, Seen};
use crate::object::turn::{RETRY_MAX, retry_delay};

/// Most volumes that are activated by their own passes; more are activated together.
const ACTIVATED_ALONE_MAX: usize = 1;

/// The looks for late volumes.
#[derive(Debug, Default)]
pub(in crate::engine) struct Late {
    /// `true` if a look is planned.
    planned: bool,
    /// Number of looks in a row that found nothing new.
    in_vain: u32,
}

/// A volume as it was before a look at LVM: the look may have missed a change since then.
struct Before {
    stamp: Option<Stamp>,
    passes: u64,
    running: bool,
    /// Time at which the look began.
    began: Moment,
}

impl Engine {
    /// Sweeps at the start: volumes that need no LVM do not wait for it.
    pub(in crate::engine) fn first_sweep(&self) {
        self.sweep_with(|engine, cells, targets| {
            let early = engine.wake_early(cells, targets);
            engine.let_early_be_made(cells, &early);
            early
        });
    }

    /// Looks at all LVs at once, notes their state, and wakes every volume.
    pub(in crate::engine) fn sweep(&self) {
        self.sweep_with(|_, _, _| Early::new());
    }

    /// Sweeps, and runs `before` ahead of the look at LVM. `before` returns the volumes that it
    /// woke.
    fn sweep_with(&self, before: impl FnOnce(&Self, &[Arc<Cell>], Option<&BTreeSet<String>>) -> Early) {
        let serves = !self.shared.config.groups.is_empty();
        if !serves && self.cells().is_empty() {
            // A host that only attaches volumes needs neither a target nor LVM.
            return;
        }
        // At each sweep, because a module may be loaded after the agent's start.
        if let Err(error) = pass::prepare(self) {
            tracing::error!(error = %Chain(&error), "the target is not ready; exports wait for it");
        }
        self.prepare_ports();
        let targets = self.note_targets();
        // The ports, or anything else, may have changed since the last sweep: watchers get a report
        // then.
        self.lvm().tell();
        let cells = self.cells();
        let share = self.next_share();
        if !self.resync_asks_lvm() {
            return self.wake_all(&self.restless(cells, share, targets.as_ref()), targets.as_ref());
        }
        let early = before(self, &cells, targets.as_ref());
        let Some(view) = self.look_at_volumes(&cells) else {
            // Volumes that were proven without LVM stand until it answers.
            let mut cells = cells;
            cells.retain(|cell| !early.contains_key(&cell.id) || cell.state().knowledge.ready().is_none());
            return self.wake_all(&cells, None);
        };
        self.note_orphans(&view);
        let cells = self.not_confirmed(self.restless(cells, share, targets.as_ref()), &early, &view);
        self.wake_as_seen(cells, &view, targets.as_ref());
    }

    /// Looks at all LVs after a change of a group, and wakes the volumes whose LV has changed.
    pub(in crate::engine) fn look_for_drift(&self) {
        let cells = self.cells();
        let before: Vec<_> = cells.iter().map(|cell| cell.state().knowledge.ready().cloned()).collect();
        let Some(view) = self.look_at_volumes(&cells) else { return };
        self.note_orphans(&view);
        for (cell, before) in cells.iter().zip(before) {
            let mut state = cell.state();
            if state.knowledge.ready() != before.as_ref() {
                state.knowledge.forget(Stale::LvDrifted);
                drop(state);
                self.wake(cell);
            }
        }
    }

    /// Wakes these volumes. Those whose LVs have no device are activated together, and woken then.
    fn wake_as_seen(&self, cells: Vec<Arc<Cell>>, view: &VolumesView, targets: Option<&BTreeSet<String>>) {
        let asleep = asleep(&cells, view);
        if asleep.len() <= ACTIVATED_ALONE_MAX {
            return self.wake_all(&cells, targets);
        }
        // Volumes that need not wait for LVM come first.
        let (first, others): (Vec<_>, Vec<_>) =
            cells.into_iter().partition(|cell| !asleep.contains_key(&cell.id));
        self.wake_all(&first, targets);
        let lvs: Vec<_> = asleep.into_values().collect();
        self.activate(&lvs);
        self.look_at_volumes(&others);
        self.wake_all(&others, targets);
    }

    /// The groups at which the last look of LVM hung.
    pub(in crate::engine) fn hung_groups(&self) -> BTreeMap<VgName, Unread> {
        lock(&self.shared.look_memory.hung).clone()
    }

    /// Notes which of the groups that this look asked for hung, and which did not.
    pub(in crate::engine) fn note_hung(&self, view: &VolumesView) {
        view.note_hung(&mut lock(&self.shared.look_memory.hung));
    }

    /// Looks at these volumes, and notes LVM's view. `None` if LVM does not answer.
    fn look_at_volumes(&self, cells: &[Arc<Cell>]) -> Option<VolumesView> {
        let before: Vec<_> = cells.iter().map(|cell| before(cell)).collect();
        let began = capabilities::begin(&self.shared.machine);
        let seen = lvm::view(&*self.shared.machine.commands, &self.shared.config.groups);
        self.lvm().note(began, &seen, &self.shared.machine);
        match seen {
            Ok(mut view) => {
                self.note_hung(&view);
                view.recognise(cells.iter().filter_map(|cell| cell.state().known_lv(cell.id)));
                let stamps = before.iter().map(|before| before.stamp.as_ref());
                self.keep_all_made(cells.iter().zip(stamps), &view);
                for (cell, before) in cells.iter().zip(&before) {
                    self.note_lv(cell, before, &view);
                }
                Some(view)
            }
            Err(error) => {
                tracing::error!(error = %Chain(&error), "cannot look at the volume groups");
                // Each volume's report has the error. But an LVM that hangs must not stop every
                // volume: the last observation stands until it answers.
                if error.cure() != Cure::Retry {
                    for cell in cells {
                        cell.state().knowledge.forget(Stale::LvmFailed);
                    }
                }
                None
            }
        }
    }

    /// Notes whether `view` shows a volume's LV ready, unless the volume's spec has changed since.
    /// If it is not ready, the view serves the volume's next pass in place of a new look, unless a
    /// pass ran since. A tombstone's pass needs no look if nothing is left of its volume. If
    /// something is left, the pass looks itself, right before it removes that.
    fn note_lv(&self, cell: &Cell, before: &Before, view: &VolumesView) {
        let mut guard = cell.state();
        let state = &mut *guard;
        let Some(kept_spec) =
            state.volume().filter(|kept_spec| Some(&kept_spec.stamp) == before.stamp.as_ref())
        else {
            return;
        };
        let is_unread = match kept_spec.spec() {
            Some(spec) => view.unread(&spec.group).is_some(),
            None => state.has_ended_by(kept_spec) && is_hidden(cell.id, view),
        };
        if is_unread {
            // The last observation stands until LVM can read the group again.
            return;
        }
        let kept_spec = kept_spec.clone();
        let part = state.view_of_end((cell.id, &lvm::Beside::default()), view);
        let view = part.as_ref().unwrap_or(view);
        let made = state.established.is_made();
        let wanted = pass::wanted_volume(&kept_spec, state.export(), made, false);
        let report = lvm::report(&wanted, view, cell.id);
        let beside = wanted.beside();
        state.note_altered(cell.id, view);
        // Ready only once `made` is stored: the volume's own pass does that, and also drops a
        // cancelled extend.
        let taken_back = view.growths_of(cell.id).iter().any(SeenLv::is_tagged)
            && kept_spec.spec().is_some_and(|spec| report.size >= spec.size);
        let ready = (report.phase == Phase::Ready && made && !taken_back).then_some(report);
        state.knowledge.learn_if_ready(before.began, ready, Stale::LvNotReady);
        let still = state.turn.rests_since(before.passes);
        let ended = kept_spec.spec().is_none();
        let left = ended && {
            let wanted = pass::wanted_volume(&kept_spec, state.export(), made, true);
            !lvm::plan(&wanted, view, cell.id).is_quiet()
        };
        if left && still {
            state.undo_volume_end();
        } else if state.knowledge.ready().is_none() && still {
            state.knowledge.learn_looked(Seen::new(before.began, view.of(cell.id, &beside)));
        }
        // A pass for the spec before this one may still make its next step.
        if still && !before.running {
            self.note_whole(cell.id, state, &kept_spec, lvm::shown(&wanted, view, cell.id));
        }
    }

    /// Wakes these volumes; those come first that can be served now. `targets`: the kernel's
    /// targets, `None` if they are unknown.
    pub(in crate::engine) fn wake_all(&self, cells: &[Arc<Cell>], targets: Option<&BTreeSet<String>>) {
        let prefix = &self.shared.config.iqn_prefix;
        let (mut ready, mut waiting, mut missing) = (Vec::new(), Vec::new(), BTreeSet::new());
        for cell in cells {
            let mut state = cell.state();
            // Only a whole look finds drift.
            state.knowledge.forget(Stale::Swept);
            if state.volume().is_none() && state.export().is_none() {
                continue;
            }
            let is_ready = state.knowledge.ready().is_some();
            if let (Some(targets), Some(spec), true) = (targets, state.export_spec(), is_ready)
                && !targets.contains(spec.identity.names(cell.id, prefix).iqn.as_str())
            {
                missing.insert(cell.id);
            }
            drop(state);
            if is_ready { ready.push(cell) } else { waiting.push(cell) }
        }
        self.begin_bulk(&missing);
        for cell in ready.into_iter().chain(waiting) {
            self.look_at_isolation(cell);
            self.wake(cell);
        }
    }

    fn activate(&self, lvs: &[LvId]) {
        tracing::info!(lvs = lvs.len(), "activating");
        // The pass of each LV without a device activates it, and reports why that fails.
        if let Err(error) = lvm::activate(&*self.shared.machine.commands, lvs) {
            tracing::warn!(error = %Chain(&error), "not all logical volumes were activated together");
        }
    }

    /// Has LVM asked later, once for all late volumes.
    pub(in crate::engine) fn wake_when_there(&self) {
        let delay = {
            let mut late = lock(&self.shared.look_memory.late);
            if std::mem::replace(&mut late.planned, true) {
                return;
            }
            retry_delay(late.in_vain.saturating_add(1), RETRY_MAX)
        };
        let engine = self.clone();
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            let looker = engine.clone();
            engine.submit(move || looker.look_for_late());
        });
    }

    /// Looks for late volumes that a pass can help now, and wakes them.
    fn look_for_late(&self) {
        lock(&self.shared.look_memory.late).planned = false;
        let mut cells = self.cells();
        cells.retain(|cell| {
            let state = cell.state();
            state.turn.is_late()
        });
        if cells.is_empty() {
            lock(&self.shared.look_memory.late).in_vain = 0;
            return;
        }
        let count = cells.len();
        let view = self.look_at_volumes(&cells);
        let (come, waiting): (Vec<_>, Vec<_>) = match &view {
            Some(view) => cells.into_iter().partition(|cell| is_news(cell, view)),
            None => (Vec::new(), cells),
        };
        {
            let mut late = lock(&self.shared.look_memory.late);
            late.in_vain = if come.is_empty() { late.in_vain.saturating_add(1) } else { 0 };
        }
        for cell in &waiting {
            cell.state().knowledge.forget(Stale::LateInVain);
        }
        if let Some(view) = view.filter(|_| !come.is_empty()) {
            tracing::info!(
                volumes = come.len(),
                of = count,
                "logical volumes that were missing have appeared"
            );
            let targets = self.note_targets();
            self.wake_as_seen(come, &view, targets.as_ref());
        }
        if !waiting.is_empty() {
            self.wake_when_there();
        }
    }

    fn note_orphans(&self, view: &VolumesView) {
        for cell in self.cells() {
            if view.lvs_of(cell.id).iter().all(|lv| !lv.is_tagged()) {
                let mut state = cell.state();
                let is_in = |orphan: &VolumeReport| {
                    view.unread_groups().any(|(group, _)| group.as_str() == orphan.group)
                };
                if !state.knowledge.orphan().is_some_and(is_in) {
                    state.knowledge.learn_orphan(None);
                }
            }
        }
        for lv in view.ours() {
            let id = lv.id;
            // The orphan has an identity on the wire, too: it may still be exported, and may be
            // taken back.
            self.shared.naas.note_own(id);
            let cell = self.cell(id);
            let mut state = cell.state();
            let known = state.volume().is_some_and(|kept_spec| match kept_spec.kind {
                SpecKind::Spec(_) | SpecKind::Released => true,
                SpecKind::Tombstone { destroy } => destroy,
            });
            let orphan = (!known).then(|| VolumeReport {
                id,
                phase: Phase::Orphan,
                group: lv.group.clone(),
                size: lv.size,
                device: lv
                    .active
                    .then(|| lvm::device_path(&lv.group, lv.name.as_str()).display().to_string()),
                zeroed: None,
                problems: Vec::new(),
                reverted: None,
                uploaded: None,
                cut: Cut::No,
            });
            if state.knowledge.learn_orphan(orphan) {
                tracing::warn!(volume = %id, group = lv.group, "an LV of ours has no spec: kept and reported as an orphan");
                // A controller that listed the volumes before this look holds the volume for lost.
                self.publish(Change::Volume(state.volume_report(id)));
            }
        }
    }
}

/// Says whether the view shows no LV of ours of this volume, and lacks a group that may have one.
fn is_hidden(volume: VolumeId, view: &VolumesView) -> bool {
    view.unread_groups().next().is_some() && view.lvs_of(volume).iter().all(|lv| !lv.is_tagged())
}

/// LVs without a device that volumes are to be served from, by volume.
fn asleep(cells: &[Arc<Cell>], view: &VolumesView) -> BTreeMap<VolumeId, LvId> {
    let asleep = |cell: &Arc<Cell>| {
        let state = cell.state();
        let spec = state.volume_spec().filter(|_| !state.turn.is_running())?;
        let lv = view.lv(&spec.group, cell.id)?;
        let sleeps = lv.is_tagged() && !lv.is_unzeroed() && !lv.active;
        sleeps.then(|| (cell.id, LvId { group: spec.group.clone(), name: lv.name.clone() }))
    };
    cells.iter().filter_map(asleep).collect()
}

fn before(cell: &Cell) -> Before {
    let mut state = cell.state();
    let stamp = state.volume().map(|kept_spec| kept_spec.stamp.clone());
    let began = state.knowledge.begin_look();
    Before { stamp, passes: state.turn.passes(), running: state.turn.is_running(), began }
}

/// Says whether a pass can do anything for a late volume.
fn is_news(cell: &Cell, view: &VolumesView) -> bool {
    let state = cell.state();
    let Some(kept_spec) = state.volume() else { return true };
    let wanted = pass::wanted_volume(kept_spec, state.export(), state.established.is_made(), false);
    let plan = lvm::plan(&wanted, view, cell.id);
    state.knowledge.ready().is_some() || !plan.steps.is_empty()
}

#[cfg(test)]
mod tests;
