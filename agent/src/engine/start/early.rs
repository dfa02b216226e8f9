//! The start, before LVM has answered. LVM takes seconds if there are thousands of LVs or a disk is
//! slow, and hosts wait for their exports. The store has how LVM showed each LV when it was whole
//! ([`Whole`]), and device-mapper says at once whether its device is that LV. If so, the workers
//! get the volume before LVM is asked. The same sweep asks LVM all the same. If LVM shows the
//! volume otherwise, the volume's next pass treats that as drift.
//!
//! A volume waits for LVM if the store has no [`Whole`] of it, if its device is missing or another
//! one, or if its spec is out of the ordinary.
//!
//! The tick writes these facts, or they go with the write that a volume was made (`made`), all in
//! one transaction. They are only written when a look at LVM has shown something new.
//!
//! What must never happen here: an export before its device is proven; a volume that LVM does not
//! find whole called ready beyond its next pass; a remembered fact of another spec.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mooring_model::{Chain, Generation, VolumeId, VolumeReport, VolumeSpec};

use crate::engine::cell::{Cell, KeptSpec, State};
use crate::engine::{Engine, is_spec, lock, pass};
use crate::lvm::{self, Shown, VolumesView, Whole};
use crate::object::seen::Seen;
use crate::store::{StoreError, WholeRow};

/// Longest time that LVM waits for the exports that do not need it, if no other export waits for
/// LVM: LVM takes the processors that make them.
const LVM_BEHIND_MAX: Duration = Duration::from_secs(10);

/// Rows that the store is to have and does not have yet, by volume. `None` deletes the volume's
/// row.
#[derive(Debug, Default)]
pub(in crate::engine) struct Unwritten {
    rows: BTreeMap<VolumeId, Option<(Generation, Whole)>>,
    /// `true` while somebody writes.
    at_work: bool,
}

impl Unwritten {
    fn take(&mut self) -> Vec<WholeRow> {
        std::mem::take(&mut self.rows).into_iter().collect()
    }

    /// Ends a write. Rows that were not written wait again, unless there is a newer one.
    fn ended(&mut self, rows: Vec<WholeRow>, written: bool) {
        self.at_work = false;
        for (volume, row) in rows.into_iter().filter(|_| !written) {
            self.rows.entry(volume).or_insert(row);
        }
    }
}

/// The volumes that are served before LVM was asked, and the reports that LVM is to confirm.
pub(in crate::engine) type Early = BTreeMap<VolumeId, VolumeReport>;

impl Engine {
    /// Takes the facts that the store has. Forgets those of another spec.
    pub(in crate::engine) fn load_whole(&self) -> Result<(), StoreError> {
        for (volume, generation, whole) in self.shared.store.whole_lvs()? {
            let cell = self.known_cell(volume);
            let current = cell.filter(|cell| {
                let state = cell.state();
                let kept_spec = state.volume();
                is_spec(kept_spec)
                    && kept_spec.is_some_and(|kept_spec| kept_spec.stamp.generation == generation)
            });
            match current {
                Some(cell) => {
                    cell.state().established.set_whole(Some(&(generation, whole)));
                }
                None => {
                    lock(&self.shared.start_memory.unwritten).rows.insert(volume, None);
                }
            }
        }
        Ok(())
    }

    /// Notes what a look at LVM has shown of a volume's LV. The look was made for this spec: by the
    /// pass that worked on it, or while there was no pass. A pass for an earlier spec might still
    /// make the LV unready.
    pub(in crate::engine) fn note_whole(
        &self,
        volume: VolumeId,
        state: &mut State,
        kept_spec: &KeptSpec<VolumeSpec>,
        shown: Shown,
    ) {
        let new = match shown {
            Shown::Nothing => return,
            Shown::NotWhole => None,
            Shown::Whole(whole) => Some((kept_spec.stamp.generation, whole)),
        };
        if !state.established.set_whole(new.as_ref()) {
            return;
        }
        lock(&self.shared.start_memory.unwritten).rows.insert(volume, new);
    }

    /// Has new facts written soon.
    pub(in crate::engine) fn keep_whole_soon(&self) {
        {
            let mut unwritten = lock(&self.shared.start_memory.unwritten);
            if unwritten.rows.is_empty() || std::mem::replace(&mut unwritten.at_work, true) {
                return;
            }
        }
        let engine = self.clone();
        self.shared.workers.submit(move || engine.keep_whole());
    }

    fn keep_whole(&self) {
        let rows = lock(&self.shared.start_memory.unwritten).take();
        let kept = self.shared.store.keep_whole_lvs(rows.clone());
        if let Err(error) = &kept {
            tracing::debug!(error = %Chain(error), "cannot remember logical volumes; tried again at the next tick");
        }
        lock(&self.shared.start_memory.unwritten).ended(rows, kept.is_ok());
    }

    /// Writes that these volumes were made, and with that the waiting facts, unless somebody else
    /// writes those. Returns the volumes for which the store has it.
    pub(in crate::engine) fn write_made(
        &self,
        made: &[(VolumeId, Generation)],
    ) -> Result<Vec<VolumeId>, StoreError> {
        let rows = {
            let mut unwritten = lock(&self.shared.start_memory.unwritten);
            let busy = std::mem::replace(&mut unwritten.at_work, true);
            (!busy).then(|| unwritten.take())
        };
        let kept = self.shared.store.keep_made(made, rows.clone().unwrap_or_default());
        if let Some(rows) = rows {
            lock(&self.shared.start_memory.unwritten).ended(rows, kept.is_ok());
        }
        kept
    }

    /// Wakes the volumes whose exports do not need LVM. `targets`: the kernel's targets, `None` if
    /// they are unknown.
    pub(in crate::engine) fn wake_early(
        &self,
        cells: &[Arc<Cell>],
        targets: Option<&BTreeSet<String>>,
    ) -> Early {
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

    /// The volume as LVM would show it. `None` unless the store's facts and the device agree, and a
    /// spec exports the volume.
    fn proven(&self, cell: &Cell) -> Option<VolumeReport> {
        let (spec, whole, lv) = {
            let state = cell.state();
            let kept_spec = state.volume().filter(|_| state.established.is_made())?;
            let export = state.export_spec()?;
            let whole = state.established.whole(kept_spec.stamp.generation)?;
            let spec = kept_spec.spec()?;
            (spec.clone(), whole.clone(), pass::lv_name(spec, Some(export)))
        };
        self.shared.config.group(&spec.group)?;
        let node = lvm::device_path(spec.group.as_str(), lv.as_str());
        let device = self.shared.machine.blocks.mapped(&node).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look at the volume's device: the volume waits for LVM");
            None
        });
        lvm::is_whole(&spec, &lv, &whole, device.as_ref())
    }

    /// Waits until the exports that do not need LVM are made, unless another export waits for LVM.
    pub(in crate::engine) fn let_early_be_made(&self, cells: &[Arc<Cell>], early: &Early) {
        let waits = |cell: &Arc<Cell>| {
            let state = cell.state();
            is_spec(state.export()) && !early.contains_key(&cell.id)
        };
        if cells.iter().any(waits) {
            return;
        }
        self.wait_until_made(LVM_BEHIND_MAX);
    }

    /// The volumes whose next pass has to look again, now that LVM has answered: all but those that
    /// LVM shows as expected.
    pub(in crate::engine) fn not_confirmed(
        &self,
        cells: Vec<Arc<Cell>>,
        early: &Early,
        view: &VolumesView,
    ) -> Vec<Arc<Cell>> {
        let (confirmed, others): (Vec<_>, Vec<_>) = cells.into_iter().partition(|cell| {
            let state = cell.state();
            let says = |kept_spec: &KeptSpec<VolumeSpec>| {
                let wanted =
                    pass::wanted_volume(kept_spec, state.export(), state.established.is_made(), false);
                lvm::report(&wanted, view, cell.id)
            };
            early.get(&cell.id).is_some_and(|report| state.volume().map(says).as_ref() == Some(report))
        });
        for cell in &confirmed {
            self.look_at_isolation(cell);
        }
        // The same look has noted for each volume whether its LV is ready.
        for cell in others.iter().filter(|cell| early.contains_key(&cell.id)) {
            tracing::warn!(volume = %cell.id, "LVM shows the volume differently than its device did: looking again");
        }
        others
    }
}
