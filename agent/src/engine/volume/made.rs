//! The durable fact that a volume's LV was whole. It is stored before the volume is reported as
//! ready or exported. From then on hosts may have written to the LV, and a missing LV is never
//! recreated (`lvm::Wanted::Made`).
//!
//! The fact stands beside the volume's spec. A later spec leaves it as it is, in the transaction
//! that stores that spec; a tombstone ends it. A half-made volume is not whole: after a crash the
//! agent goes on making it. After a crash between the last step and the write, the next look sees
//! the LV whole, and the fact is stored then. The fact costs one commit in the life of a volume,
//! which also stores facts for the next start (`early`).
//!
//! What must never happen here: a volume that is called ready, or is exported, while a crash could
//! make it look never made; a volume that has ended and keeps the next one of its id from being
//! made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mooring_host::{BlockError, Errno};
use mooring_model::{Chain, Cure, Phase, Problem, Stamp, VgName, VolumeId, VolumeReport, VolumeSpec};

use crate::engine::cell::{Cell, KeptSpec, State};
use crate::engine::{Engine, is_spec, pass};
use crate::lvm::{self, Beside, KnownLv, VolumesView};

impl State {
    /// The LV of a volume that was made: it is recognised by its identity if somebody changes its
    /// tags. `None` if the volume was not made: then only the tags tell its LV from somebody's old
    /// data.
    pub(in crate::engine) fn known_lv(&self, volume: VolumeId) -> Option<KnownLv> {
        let spec = self.volume().filter(|_| self.established.is_made())?.spec()?;
        let name = pass::lv_name(spec, self.export_spec());
        Some(KnownLv { volume, mapping: self.established.identity()?.to_owned(), name })
    }

    /// The part of a view by which a volume with a tombstone ends: a look at its own group proves
    /// that its LV is gone, whatever the other groups are like. `None` if its group is unknown, it
    /// has no tombstone, or the view lacks no group: then the whole view counts.
    pub(in crate::engine) fn view_of_end(
        &self,
        (volume, beside): (VolumeId, &Beside),
        view: &VolumesView,
    ) -> Option<VolumesView> {
        let home = self.home().filter(|_| view.lacks_a_group())?;
        let mut part = view.of(volume, beside);
        part.wait_for_only(home);
        Some(part)
    }
}

impl Engine {
    /// Looks at one volume, and recognises its LV. `own` is the volume's group; `None` if it is
    /// unknown. LVM is not asked for another group that hangs. Fails if LVM cannot read the group
    /// of the volume's spec.
    pub(in crate::engine) fn view_of(
        &self,
        cell: &Cell,
        beside: &Beside,
        own: Option<&VgName>,
    ) -> Result<VolumesView, lvm::Error> {
        let shared = &self.shared;
        let mut hung = self.hung_groups();
        hung.retain(|group, _| Some(group) != own);
        let mut asked = shared.config.groups.clone();
        if hung.len() < asked.len() {
            asked.retain(|group| !hung.contains_key(&group.name));
        } else {
            hung.clear();
        }
        let mut view = lvm::view_one(&*shared.machine.commands, &asked, cell.id, beside)?;
        self.note_hung(&view);
        view.add_hung(hung);
        let group = cell.state().volume_spec().map(|spec| spec.group.clone());
        if let Some(unread) = group.and_then(|group| view.unread(&group).cloned()) {
            return Err(unread.into_error());
        }
        view.recognise(cell.state().known_lv(cell.id));
        Ok(view)
    }

    /// Looks at one volume for a pass over it. Returns the part of the view that counts.
    pub(in crate::engine) fn view_for_pass(
        &self,
        cell: &Cell,
        beside: &Beside,
    ) -> Result<VolumesView, lvm::Error> {
        let own = {
            let state = cell.state();
            state.volume_spec().map(|spec| &spec.group).or_else(|| state.home()).cloned()
        };
        let view = self.view_of(cell, beside, own.as_ref())?;
        let part = cell.state().view_of_end((cell.id, beside), &view);
        Ok(part.unwrap_or(view))
    }

    /// Stores that the volume was made, if `seen` shows it ready and the store does not have that
    /// yet. `None` if `seen` may be reported. `Some` is the report in its place, because the store
    /// does not have the fact.
    pub(in crate::engine) fn keep_made(
        &self,
        cell: &Cell,
        kept_spec: &KeptSpec<VolumeSpec>,
        seen: Option<&VolumeReport>,
    ) -> Option<VolumeReport> {
        let seen = seen.filter(|seen| seen.phase == Phase::Ready && kept_spec.spec().is_some())?;
        if cell.state().established.is_made() {
            return None;
        }
        let waits = |object, text, cure| {
            tracing::warn!(volume = %cell.id, %object, error = %text, "a new volume is not handed out yet");
            let problems = vec![Problem { object, text, cure }];
            Some(VolumeReport { phase: Phase::Creating, problems, ..seen.clone() })
        };
        if let Err(error) = self.flush_disks(seen.device.as_deref().map(Path::new)) {
            return waits(error.path.display().to_string(), Chain(&error).to_string(), Cure::Retry);
        }
        match self.write_made(&[(cell.id, kept_spec.stamp.generation)]) {
            Ok(kept) => {
                note(cell, Some(&kept_spec.stamp), &kept);
                // Otherwise a newer spec came: its pass stores the fact.
                let newer = !cell.state().established.is_made();
                newer.then(|| VolumeReport { phase: Phase::Creating, problems: Vec::new(), ..seen.clone() })
            }
            Err(error) => {
                let object = format!("the agent's store, for volume {}", cell.id);
                waits(object, Chain(&error).to_string(), error.cure())
            }
        }
    }

    /// Makes LVM's metadata of these LVs' groups outlive a power cut: LVM flushes nothing, and an
    /// agent may have been killed before it flushed. Skips an LV without a device.
    fn flush_disks<'a>(&self, devices: impl IntoIterator<Item = &'a Path>) -> Result<(), BlockError> {
        devices.into_iter().try_for_each(|device| match self.shared.machine.blocks.flush(device) {
            Err(error) if error.errno == Errno::ENOENT => Ok(()),
            flushed => flushed,
        })
    }

    /// Stores the fact for all volumes that a look has shown whole, in one transaction. The look
    /// was made while they had these stamps.
    pub(in crate::engine) fn keep_all_made<'a>(
        &self,
        cells: impl Iterator<Item = (&'a Arc<Cell>, Option<&'a Stamp>)>,
        view: &VolumesView,
    ) {
        let made: Vec<_> = cells.filter(|(cell, stamp)| is_new(cell, *stamp, view)).collect();
        if made.is_empty() {
            return;
        }
        let of = |(cell, stamp): &(&Arc<Cell>, Option<&Stamp>)| Some((cell.id, (*stamp)?.generation));
        // One device of each group: every disk has all metadata of its group, and the newest copy
        // counts.
        let one_of_each: BTreeMap<_, _> = made.iter().filter_map(|(cell, _)| device_of(cell)).collect();
        if let Err(error) = self.flush_disks(one_of_each.values().map(PathBuf::as_path)) {
            return tracing::warn!(error = %Chain(&error), "new volumes are not handed out yet: their disk cannot be flushed");
        }
        match self.write_made(&made.iter().filter_map(of).collect::<Vec<_>>()) {
            Ok(kept) => {
                for (cell, stamp) in made {
                    note(cell, stamp, &kept);
                }
            }
            // Each volume's own pass tries the write again, and reports the problem.
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "new volumes are not handed out yet: the store cannot record them");
            }
        }
    }
}

/// Says whether this look is the first known one that shows the volume's LV whole.
fn is_new(cell: &Cell, stamp: Option<&Stamp>, view: &VolumesView) -> bool {
    let state = cell.state();
    let kept_spec =
        state.volume().filter(|kept_spec| !state.established.is_made() && Some(&kept_spec.stamp) == stamp);
    kept_spec.filter(|kept_spec| kept_spec.spec().is_some()).is_some_and(|kept_spec| {
        let wanted = pass::wanted_volume(kept_spec, state.export(), false, false);
        lvm::report(&wanted, view, cell.id).phase == Phase::Ready
    })
}

/// The group of a volume, and the device of its LV. `None` without a spec.
fn device_of(cell: &Cell) -> Option<(VgName, PathBuf)> {
    let state = cell.state();
    let spec = state.volume_spec()?;
    let name = pass::lv_name(spec, state.export_spec());
    Some((spec.group.clone(), lvm::device_path(spec.group.as_str(), name.as_str())))
}

/// Notes that the store has the fact. If a newer spec came meanwhile, only the next look notes it:
/// a tombstone may have come between.
fn note(cell: &Cell, stamp: Option<&Stamp>, kept: &[VolumeId]) {
    let mut state = cell.state();
    let same = state.volume().map(|kept_spec| &kept_spec.stamp) == stamp;
    if same && is_spec(state.volume()) && kept.contains(&cell.id) {
        state.established.set_made(true);
    }
}
