//! A pass over a volume that is to be reverted to a snapshot, and is granted to nobody.
//!
//! The copy of the snapshot is made while the export stands as it is. Then the export leaves the
//! kernel, because its backstore holds the LV open. The volume's LV is exchanged, and the export
//! comes back under its names. Only the LV records whether the revert was done: an agent that
//! starts with such a spec asks LVM before it takes anything away.
//!
//! What must never happen here: an LV exchanged below an export; a granted export taken away; an
//! export that does not come back.

use std::sync::Arc;

use mooring_model::{Cure, ExportSpec, RevertId, VolumeReport, VolumeSpec};

use crate::engine::cell::{Cell, KeptSpec};
use crate::engine::pass::{Grow, PassSpecs};
use crate::engine::{Engine, Refusal};

/// Says whether the export has any grant.
pub(in crate::engine) fn is_granted(export: Option<&KeptSpec<ExportSpec>>) -> bool {
    let spec = export.and_then(KeptSpec::spec);
    spec.is_some_and(|spec| !spec.grants.is_empty() || !spec.fc.grants.is_empty())
}

/// The revert of one volume to a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Revert {
    /// The revert that made the volume's LV, as LVM showed it last. `None` if LVM has shown none.
    seen: Option<RevertId>,
    /// `true` while the export is out of the kernel and the volume's LV is exchanged.
    apart: bool,
}

impl Revert {
    /// Notes the revert that made the LV, as LVM showed it. `None` changes nothing.
    pub(in crate::engine) fn note(&mut self, seen: Option<RevertId>) {
        self.seen = seen.or(self.seen);
    }

    /// Says whether the export is out of the kernel while the volume's LV is exchanged.
    pub(in crate::engine) fn is_apart(&self) -> bool {
        self.apart
    }
}

impl Cell {
    /// Says whether the volume's spec asks for a revert that LVM has not shown as done. `false`
    /// while the volume is granted.
    pub(in crate::engine) fn is_reverting(
        &self,
        volume: Option<&KeptSpec<VolumeSpec>>,
        export: Option<&KeptSpec<ExportSpec>>,
    ) -> bool {
        let revert = volume.and_then(KeptSpec::spec).and_then(|spec| spec.revert);
        revert.is_some_and(|revert| self.state().revert.seen != Some(revert.id)) && !is_granted(export)
    }

    /// Says whether the export is out of the kernel for a revert now.
    pub(in crate::engine) fn is_apart(
        &self,
        volume: Option<&KeptSpec<VolumeSpec>>,
        export: Option<&KeptSpec<ExportSpec>>,
    ) -> bool {
        self.state().revert.apart && self.is_reverting(volume, export)
    }

    /// Notes the revert that made the LV, as LVM shows it.
    pub(in crate::engine) fn note_reverted(&self, seen: Option<&VolumeReport>) {
        self.state().revert.note(seen.and_then(|report| report.reverted));
    }

    /// Refuses to grant a volume whose LV is about to be exchanged, or is being copied.
    pub(in crate::engine) fn check_may_grant(
        &self,
        volume: Option<&KeptSpec<VolumeSpec>>,
        spec: &ExportSpec,
    ) -> Result<(), Refusal> {
        self.check_not_reverting(volume, spec)?;
        self.check_not_uploading(volume, spec)
    }

    fn check_not_reverting(
        &self,
        volume: Option<&KeptSpec<VolumeSpec>>,
        spec: &ExportSpec,
    ) -> Result<(), Refusal> {
        if (spec.grants.is_empty() && spec.fc.grants.is_empty()) || !self.is_reverting(volume, None) {
            return Ok(());
        }
        let why = format!("volume {} is being reverted to a snapshot: try again when that is done", self.id);
        Err(Refusal::precondition(why, Cure::Retry))
    }
}

impl Engine {
    /// Does what a revert needs before the rest of a pass. `false` if the pass ends here.
    pub(in crate::engine) fn revert_half(&self, cell: &Arc<Cell>, specs: &PassSpecs) -> bool {
        // A revert that was interrupted may have left the mark.
        cell.state().revert.apart = false;
        let is_reverting = || cell.is_reverting(specs.volume.as_ref(), specs.export.as_ref());
        let prepared = self.volume_half(cell, specs, false, true, Grow::Now);
        if !prepared || !is_reverting() {
            return true;
        }
        cell.state().revert.apart = true;
        let end = self.export_half(cell, specs, false);
        if cell.state().has_left_look() {
            // The next look shows what was done: the pass that makes it finds nothing left of the
            // export.
            return false;
        }
        let gone = end.gone;
        if gone {
            self.volume_half(cell, specs, true, true, Grow::Now);
        } else {
            self.end_export(cell, specs, end);
        }
        // Exchanged or not: from here on the export has to come back.
        cell.state().revert.apart = false;
        gone
    }
}
