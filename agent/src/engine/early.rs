//! The start, before LVM has answered. LVM takes seconds where there are thousands of LVs or a disk is slow, and hosts wait for
//! their exports. What LVM has shown of an LV when it was whole is remembered ([`Whole`]), and device-mapper says at once whether
//! its device is that LV: such a volume is handed to the workers before LVM is asked. LVM is asked all the same, in the same
//! sweep; where it says something else, the volume's next pass does what drift always leads to.
//!
//! A volume that nothing is remembered of, whose device is not there or is another, or whose wish is anything out of the ordinary
//! waits for LVM.
//!
//! What is remembered is written by the tick, or beside the word that a volume was made (`made`), all of it in one transaction, when
//! a look at LVM has shown something new, and never because nothing has changed.
//!
//! What must never happen here: an export before its device is proven; a volume that LVM does not find whole called ready for
//! longer than until its next pass; anything remembered that was said of another wish.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{Chain, Generation, VolumeId, VolumeReport, VolumeSpec};

use super::cell::{Cell, State, Wish};
use super::knowledge::Stale;
use super::{Engine, is_spec, lock, pass};
use crate::object::seen::Seen;
use crate::store::{StoreError, WholeRow};
use crate::volumes::{self, Shown, VolumesView, Whole};

/// LVM is asked behind the exports that need no word of it, if nobody waits for its word: it takes the very processors that they
/// are made with. No longer than this.
const LVM_BEHIND_MAX: Duration = Duration::from_secs(10);

/// What the store is to remember and does not yet, by volume. `None`: nothing any more.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    rows: BTreeMap<VolumeId, Option<(Generation, Whole)>>,
    /// Somebody is at it.
    at_work: bool,
}

impl Unwritten {
    fn take(&mut self) -> Vec<WholeRow> {
        std::mem::take(&mut self.rows).into_iter().collect()
    }

    /// Whoever was at it is not any more. What was not written is to be, unless there is something newer.
    fn ended(&mut self, rows: Vec<WholeRow>, written: bool) {
        self.at_work = false;
        for (volume, row) in rows.into_iter().filter(|_| !written) {
            self.rows.entry(volume).or_insert(row);
        }
    }
}

/// The volumes that are served before LVM was asked, and what LVM is to say of them.
pub(super) type Early = BTreeMap<VolumeId, VolumeReport>;

impl Engine {
    /// Takes what the store remembers. What it has of another wish is forgotten.
    pub(super) fn load_whole(&self) -> Result<(), StoreError> {
        for (volume, generation, whole) in self.shared.store.whole_lvs()? {
            let cell = self.known_cell(volume);
            let current = cell.filter(|cell| {
                let state = cell.state();
                let wish = state.volume();
                is_spec(wish) && wish.is_some_and(|wish| wish.stamp.generation == generation)
            });
            match current {
                Some(cell) => {
                    cell.state().established.set_whole(Some(&(generation, whole)));
                }
                None => {
                    lock(&self.shared.unwritten).rows.insert(volume, None);
                }
            }
        }
        Ok(())
    }

    /// Takes note of what a look at LVM has shown of a volume's LV. It was taken for this wish: by the pass that worked for it, or
    /// while there was none. A pass for the wish before it might still make the LV unready.
    pub(super) fn note_whole(
        &self,
        volume: VolumeId,
        state: &mut State,
        wish: &Wish<VolumeSpec>,
        shown: Shown,
    ) {
        let new = match shown {
            Shown::Nothing => return,
            Shown::NotWhole => None,
            Shown::Whole(whole) => Some((wish.stamp.generation, whole)),
        };
        if !state.established.set_whole(new.as_ref()) {
            return;
        }
        lock(&self.shared.unwritten).rows.insert(volume, new);
    }

    /// Has what is new written, soon.
    pub(super) fn keep_whole_soon(&self) {
        {
            let mut unwritten = lock(&self.shared.unwritten);
            if unwritten.rows.is_empty() || std::mem::replace(&mut unwritten.at_work, true) {
                return;
            }
        }
        let engine = self.clone();
        self.shared.workers.submit(move || engine.keep_whole());
    }

    fn keep_whole(&self) {
        let rows = lock(&self.shared.unwritten).take();
        let kept = self.shared.store.keep_whole_lvs(rows.clone());
        if let Err(error) = &kept {
            tracing::debug!(error = %Chain(error), "cannot remember logical volumes; tried again at the next tick");
        }
        lock(&self.shared.unwritten).ended(rows, kept.is_ok());
    }

    /// Writes that these volumes were made, and with it what is to be remembered, unless somebody is at that. Returns those that
    /// it was kept of.
    pub(super) fn write_made(&self, made: &[(VolumeId, Generation)]) -> Result<Vec<VolumeId>, StoreError> {
        let rows = {
            let mut unwritten = lock(&self.shared.unwritten);
            let busy = std::mem::replace(&mut unwritten.at_work, true);
            (!busy).then(|| unwritten.take())
        };
        let kept = self.shared.store.keep_made(made, rows.clone().unwrap_or_default());
        if let Some(rows) = rows {
            lock(&self.shared.unwritten).ended(rows, kept.is_ok());
        }
        kept
    }

    /// Wakes the volumes whose exports need no word of LVM. `targets`: what the kernel serves, if that is known.
    pub(super) fn wake_early(&self, cells: &[Arc<Cell>], targets: Option<&BTreeSet<String>>) -> Early {
        let mut early = Early::new();
        let mut proven = Vec::new();
        for cell in cells {
            let began = cell.state().knowledge.begin_look();
            let Some(report) = self.proven(cell) else { continue };
            early.insert(cell.id, report.clone());
            let mut state = cell.state();
            state.revert.note(report.reverted);
            state.knowledge.learn_ready(Seen::new(began, report));
            drop(state);
            proven.push(Arc::clone(cell));
        }
        if !proven.is_empty() {
            let (volumes, of) = (proven.len(), cells.len());
            tracing::info!(
                volumes,
                of,
                "volumes are known by their devices: their exports do not wait for LVM"
            );
            self.wake_all(&proven, targets);
        }
        early
    }

    /// The volume as LVM would show it, if what is remembered of it and its device agree, and its export is wanted.
    fn proven(&self, cell: &Cell) -> Option<VolumeReport> {
        let (spec, whole, lv) = {
            let state = cell.state();
            let wish = state.volume().filter(|_| state.established.is_made())?;
            let export = state.export_spec()?;
            let whole = state.established.whole(wish.stamp.generation)?;
            let spec = wish.spec()?;
            (spec.clone(), whole.clone(), pass::lv_name(spec, Some(export)))
        };
        self.shared.config.group(&spec.group)?;
        let node = volumes::device_path(spec.group.as_str(), lv.as_str());
        let device = self.shared.machine.blocks.mapped(&node).unwrap_or_else(|error| {
            tracing::warn!(%error, "the volume waits for LVM");
            None
        });
        volumes::is_whole(&spec, &lv, &whole, device.as_ref())
    }

    /// Waits until the exports that need no word of LVM were made, if no other one waits for it.
    pub(super) fn let_early_be_made(&self, cells: &[Arc<Cell>], early: &Early) {
        let waits = |cell: &Arc<Cell>| {
            let state = cell.state();
            is_spec(state.export()) && !early.contains_key(&cell.id)
        };
        if cells.iter().any(waits) {
            return;
        }
        self.wait_until_made(LVM_BEHIND_MAX);
    }

    /// Those whose next pass has to look again, now that LVM has answered: all but those that it shows as they were taken to be.
    pub(super) fn not_confirmed(
        &self,
        cells: Vec<Arc<Cell>>,
        early: &Early,
        view: &VolumesView,
    ) -> Vec<Arc<Cell>> {
        let (confirmed, others): (Vec<_>, Vec<_>) = cells.into_iter().partition(|cell| {
            let state = cell.state();
            let says = |wish: &Wish<VolumeSpec>| {
                let wanted = pass::wanted_volume(wish, state.export(), state.established.is_made(), false);
                volumes::report(&wanted, view, cell.id)
            };
            early.get(&cell.id).is_some_and(|report| state.volume().map(says).as_ref() == Some(report))
        });
        for cell in &confirmed {
            self.look_at_cut(cell);
        }
        for cell in others.iter().filter(|cell| early.contains_key(&cell.id)) {
            tracing::warn!(volume = %cell.id, "LVM shows the volume otherwise than its device did: looked at again");
            cell.state().knowledge.forget(Stale::LvContradicted);
        }
        others
    }
}
