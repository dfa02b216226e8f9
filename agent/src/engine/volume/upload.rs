//! A pass over a volume with an image export, a copy to a file, that is granted to nobody.
//!
//! Only the folder of images records what is done: an agent that starts with such a spec looks
//! there first. A failed image export is not tried again by itself: its sender gets a report, and
//! takes the request back.
//!
//! What must never happen here: an image export of a volume that somebody writes to; a part of a
//! file that no spec names, left for long.

use std::sync::Arc;

use mooring_model::{Chain, Cure, ExportSpec, Phase, Problem, Upload, UploadId, VolumeReport, VolumeSpec};

use super::revert::is_granted;
use crate::engine::cell::{Cell, KeptSpec};
use crate::engine::pass::{PassSpecs, VolumeEnd, lv_name};
use crate::engine::steps::Watch;
use crate::engine::{Engine, Refusal};
use crate::images::{Images, PartId};
use crate::lvm::{self, LvId};
use crate::object::seen::Moment;
use crate::object::turn::Left;

/// The image export that a volume was last seen with.
#[derive(Debug, Clone)]
pub(crate) struct Uploading {
    id: UploadId,
    /// The result. `None` if it has not ended.
    end: Option<Result<(), Problem>>,
}

fn upload_of(specs: &PassSpecs) -> Option<&Upload> {
    specs.volume.as_ref().and_then(KeptSpec::spec)?.upload.as_ref()
}

/// Says whether a spec begins an image export: the old spec does not have its id.
pub(in crate::engine) fn begins_upload(old: Option<&VolumeSpec>, spec: &VolumeSpec) -> bool {
    let id = |spec: &VolumeSpec| spec.upload.as_ref().map(|upload| upload.id);
    id(spec).is_some() && id(spec) != old.and_then(id)
}

impl Cell {
    /// Says whether the image export of this id is done, as far as this agent has seen.
    pub(in crate::engine) fn is_uploaded(&self, id: UploadId) -> bool {
        let done = |seen: &Uploading| seen.id == id && matches!(seen.end, Some(Ok(())));
        self.state().knowledge.uploading().is_some_and(done)
    }

    /// Refuses to grant a volume during its image export: it is read from its first block to its
    /// last.
    pub(in crate::engine) fn check_not_uploading(
        &self,
        volume: Option<&KeptSpec<VolumeSpec>>,
        spec: &ExportSpec,
    ) -> Result<(), Refusal> {
        let upload = volume.and_then(KeptSpec::spec).and_then(|spec| spec.upload.as_ref());
        let granted = !spec.grants.is_empty() || !spec.fc.grants.is_empty();
        if !granted || upload.is_none_or(|upload| self.is_uploaded(upload.id)) {
            return Ok(());
        }
        let why = format!("volume {} is being copied to a file: try again when that is done", self.id);
        Err(Refusal::precondition(why, Cure::Retry))
    }
}

impl Engine {
    /// The images that volumes are made from. `None` if no folder of images is configured.
    pub(crate) fn images(&self) -> Option<&Images> {
        self.shared.volume_memory.images.as_ref()
    }

    /// Discards the result of an earlier image export with the id of a new one: the volume may have
    /// changed since.
    pub(in crate::engine) fn forget_upload(
        &self,
        cell: &Cell,
        old: Option<&VolumeSpec>,
        spec: &VolumeSpec,
    ) -> Result<(), Refusal> {
        let upload = spec.upload.as_ref().filter(|_| begins_upload(old, spec));
        let Some((upload, images)) = upload.zip(self.images()) else { return Ok(()) };
        let forgotten = images.forget_part(PartId { volume: cell.id, upload: upload.id });
        forgotten.map_err(|error| {
            let why = format!("what is left of an earlier copy cannot be removed: {}", Chain(&error));
            Refusal::precondition(why, Cure::Operator)
        })
    }

    /// Removes what is left of an image export that no spec names any more: its part, or its file's
    /// second name.
    pub(in crate::engine) fn leave_upload(&self, cell: &Cell, specs: &PassSpecs) {
        let left = cell.state().knowledge.uploading().map(|seen| seen.id);
        let Some(upload) = left.filter(|id| upload_of(specs).is_none_or(|upload| upload.id != *id)) else {
            return;
        };
        let Some(images) = self.images() else { return };
        cell.begin("remove the part of a file".to_owned());
        let removed = images.remove_part(PartId { volume: cell.id, upload });
        cell.end();
        match removed {
            Ok(()) => cell.state().knowledge.learn_uploading(None),
            // The next pass tries again.
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "cannot remove the part of a file; tried again by the next pass");
            }
        }
    }

    /// Exports a ready volume to its image, and reports the progress.
    pub(in crate::engine) fn upload_half(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        mut end: VolumeEnd,
    ) -> VolumeEnd {
        let began = end.began;
        let Some(report) = &mut end.report else { return end };
        report.uploaded = None;
        let Some(upload) =
            upload_of(specs).filter(|_| end.left == Left::Nothing && report.phase == Phase::Ready)
        else {
            return end;
        };
        let before = cell.state().knowledge.uploading().filter(|seen| seen.id == upload.id).cloned();
        let ended = match before.and_then(|seen| seen.end) {
            Some(ended) => ended,
            None => match self.upload(cell, specs, upload, (report, began)) {
                Some(ended) => ended,
                // The work gave way to something newer, and goes on afterwards.
                None => return VolumeEnd { left: Left::Again, ..end },
            },
        };
        let seen = Uploading { id: upload.id, end: Some(ended.clone()) };
        cell.state().knowledge.learn_uploading(Some(seen));
        match ended {
            Ok(()) => report.uploaded = Some(upload.id),
            Err(problem) => {
                report.problems.push(problem);
                end.left = Left::Unfinished;
            }
        }
        end
    }

    /// Looks, plans and applies. `None` if the work was stopped.
    fn upload(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        upload: &Upload,
        (report, began): (&VolumeReport, Moment),
    ) -> Option<Result<(), Problem>> {
        let object = || format!("the copy of volume {} to {}", cell.id, upload.image);
        let failed = |text: String, cure| Some(Err(Problem { object: object(), text, cure }));
        if is_granted(specs.export.as_ref()) {
            return failed("it is granted to somebody: detach it first".to_owned(), Cure::Operator);
        }
        let id = PartId { volume: cell.id, upload: upload.id };
        let spec = specs.volume.as_ref().and_then(KeptSpec::spec)?;
        let name = lv_name(spec, specs.export.as_ref().and_then(KeptSpec::spec));
        let lv = LvId { group: spec.group.clone(), name };
        let Some(images) = self.images() else {
            return failed(crate::images::Error::NoFolder.to_string(), Cure::Operator);
        };
        cell.begin("look for the file".to_owned());
        let seen = images.look_for(cell.id, upload);
        cell.end();
        // From here on there may be a part of the file.
        cell.state().knowledge.learn_uploading(Some(Uploading { id: upload.id, end: None }));
        let plan = match seen {
            Ok(seen) => lvm::plan_upload(id, (&lv, report.size), upload, seen),
            Err(error) => return failed(Chain(&error).to_string(), error.cure()),
        };
        if let Some(blocked) = plan.blocked.first() {
            return Some(Err(Problem::from(blocked)));
        }
        if plan.steps.is_empty() {
            return Some(Ok(()));
        }
        // Those who ask meanwhile get the volume as it was.
        let end = VolumeEnd { left: Left::Again, report: Some(report.clone()), began };
        self.note_volume(cell, specs, end);
        let machine = &self.shared.machine;
        let hands =
            lvm::Hands { commands: &*machine.commands, blocks: &*machine.blocks, images: Some(images) };
        let generation = mooring_model::Generation::ZERO;
        let applied = lvm::apply_with(&plan, hands, &mut Watch { engine: self, cell, generation });
        match applied {
            Ok(()) => {
                tracing::info!(volume = %cell.id, image = %upload.image, "a volume was copied to a file");
                Some(Ok(()))
            }
            Err(lvm::Error::Stopped { .. }) => None,
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "a volume was not copied to a file");
                // After any error a new image export begins anew.
                failed(Chain(&error).to_string(), Cure::Operator)
            }
        }
    }

    /// Removes at the start the parts that an earlier agent left and no spec names.
    pub(in crate::engine) fn sweep_parts(&self) {
        let Some(images) = self.images() else { return };
        let left = images.parts().inspect_err(|error| {
            tracing::debug!(error = %Chain(error), "cannot list the parts of files");
        });
        for part in left.unwrap_or_default() {
            let specified = self.known_cell(part.volume).is_some_and(|cell| {
                let state = cell.state();
                let spec = state.volume_spec();
                spec.and_then(|spec| spec.upload.as_ref()).is_some_and(|upload| upload.id == part.upload)
            });
            if specified {
                // If the spec goes before a pass looks, the part goes with it.
                if let Some(cell) = self.known_cell(part.volume) {
                    let mut state = cell.state();
                    if state.knowledge.uploading().is_none() {
                        state.knowledge.learn_uploading(Some(Uploading { id: part.upload, end: None }));
                    }
                }
            } else {
                tracing::info!(%part, "removing the part of a file that no spec names");
                images.clear(part);
            }
        }
    }
}
