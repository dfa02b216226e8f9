//! A pass over a volume that is to be copied to a file, and is granted to nobody.
//!
//! What is done is in the folder of images, and only there: an agent that starts with such a wish looks there first. What has failed
//! is not tried again by itself: who wished it is told, and takes the wish back.
//!
//! What must never happen here: a copy of a volume that somebody writes to; a part of a file that nobody wants left for long.

use std::sync::Arc;

use mooring_model::{Chain, Cure, ExportSpec, Phase, Problem, Upload, UploadId, VolumeReport, VolumeSpec};

use super::cell::{Cell, Wish};
use super::pass::{VolumeEnd, Wishes, lv_name};
use super::revert::is_granted;
use super::steps::Watch;
use super::{Engine, Refusal};
use crate::images::PartId;
use crate::object::seen::Moment;
use crate::volumes::{self, LvId};

/// The copy that a volume was last seen with.
#[derive(Debug, Clone)]
pub(crate) struct Uploading {
    id: UploadId,
    /// How it ended. `None`: it has not.
    end: Option<Result<(), Problem>>,
}

/// The copies of one volume to a file.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    /// The copy that was seen last.
    seen: Option<Uploading>,
}

fn upload_of(wishes: &Wishes) -> Option<&Upload> {
    wishes.volume.as_ref().and_then(Wish::spec)?.upload.as_ref()
}

/// What a spec begins that was not wanted before, while nobody may reach the volume.
pub(super) fn begins_upload(old: Option<&VolumeSpec>, spec: &VolumeSpec) -> bool {
    let id = |spec: &VolumeSpec| spec.upload.as_ref().map(|upload| upload.id);
    id(spec).is_some() && id(spec) != old.and_then(id)
}

impl Cell {
    /// Whether the copy of this id is done, as far as this agent has seen.
    pub(super) fn is_uploaded(&self, id: UploadId) -> bool {
        let done = |seen: &Uploading| seen.id == id && matches!(seen.end, Some(Ok(())));
        self.state().uploads.seen.as_ref().is_some_and(done)
    }

    /// Nobody is granted a volume that is read from its first block to its last.
    pub(super) fn check_not_uploading(
        &self,
        volume: Option<&Wish<VolumeSpec>>,
        spec: &ExportSpec,
    ) -> Result<(), Refusal> {
        let upload = volume.and_then(Wish::spec).and_then(|spec| spec.upload.as_ref());
        let granted = !spec.grants.is_empty() || !spec.fc.grants.is_empty();
        if !granted || upload.is_none_or(|upload| self.is_uploaded(upload.id)) {
            return Ok(());
        }
        let why = format!("volume {} is being copied to a file: try again when that is done", self.id);
        Err(Refusal::precondition(why, Cure::Retry))
    }
}

impl Engine {
    /// Before a copy is wished that was not wished until now: what is said of an earlier one of the same id is of a time since when
    /// somebody may have written to the volume.
    pub(super) fn forget_upload(
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

    /// Takes away what is left of a copy that is not wished any more: its part, or the second name of its file.
    pub(super) fn leave_upload(&self, cell: &Cell, wishes: &Wishes) {
        let left = cell.state().uploads.seen.as_ref().map(|seen| seen.id);
        let Some(upload) = left.filter(|id| upload_of(wishes).is_none_or(|upload| upload.id != *id)) else {
            return;
        };
        let Some(images) = self.images() else { return };
        cell.begin("remove the part of a file".to_owned());
        let removed = images.remove_part(PartId { volume: cell.id, upload });
        cell.end();
        match removed {
            Ok(()) => cell.state().uploads.seen = None,
            // It is tried again with the next pass.
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "a part of a file is not removed");
            }
        }
    }

    /// Copies a volume that was seen to be whole, and says how that stands.
    pub(super) fn upload_half(&self, cell: &Arc<Cell>, wishes: &Wishes, mut end: VolumeEnd) -> VolumeEnd {
        let began = end.began;
        let Some(report) = &mut end.report else { return end };
        report.uploaded = None;
        let Some(upload) = upload_of(wishes).filter(|_| end.done && report.phase == Phase::Ready) else {
            return end;
        };
        let before = cell.state().uploads.seen.clone().filter(|seen| seen.id == upload.id);
        let ended = match before.and_then(|seen| seen.end) {
            Some(ended) => ended,
            None => match self.upload(cell, wishes, upload, (report, began)) {
                Some(ended) => ended,
                // For something newer: it goes on afterwards.
                None => return VolumeEnd { done: false, retry: true, ..end },
            },
        };
        cell.state().uploads.seen = Some(Uploading { id: upload.id, end: Some(ended.clone()) });
        match ended {
            Ok(()) => report.uploaded = Some(upload.id),
            Err(problem) => {
                report.problems.push(problem);
                end.done = false;
            }
        }
        end
    }

    /// `None`: it was stopped.
    fn upload(
        &self,
        cell: &Arc<Cell>,
        wishes: &Wishes,
        upload: &Upload,
        (report, began): (&VolumeReport, Moment),
    ) -> Option<Result<(), Problem>> {
        let object = || format!("the copy of volume {} to {}", cell.id, upload.image);
        let failed = |text: String, cure| Some(Err(Problem { object: object(), text, cure }));
        if is_granted(wishes.export.as_ref()) {
            return failed("it is granted to somebody: detach it first".to_owned(), Cure::Operator);
        }
        let id = PartId { volume: cell.id, upload: upload.id };
        let spec = wishes.volume.as_ref().and_then(Wish::spec)?;
        let name = lv_name(spec, wishes.export.as_ref().and_then(Wish::spec));
        let lv = LvId { group: spec.group.clone(), name };
        let Some(images) = self.images() else {
            return failed(crate::images::Error::NoFolder.to_string(), Cure::Operator);
        };
        cell.begin("look for the file".to_owned());
        let seen = images.look_for(cell.id, upload);
        cell.end();
        // From here on there may be a part of it.
        cell.state().uploads.seen = Some(Uploading { id: upload.id, end: None });
        let plan = match seen {
            Ok(seen) => volumes::plan_upload(id, (&lv, report.size), upload, seen),
            Err(error) => return failed(Chain(&error).to_string(), error.cure()),
        };
        if let Some(blocked) = plan.blocked.first() {
            return Some(Err(Problem::from(blocked)));
        }
        if plan.steps.is_empty() {
            return Some(Ok(()));
        }
        // The volume is there as it was, for whoever asks meanwhile.
        let end = VolumeEnd { done: false, retry: true, report: Some(report.clone()), began };
        self.note_volume(cell, wishes, end);
        let machine = &self.shared.machine;
        let hands =
            volumes::Hands { commands: &*machine.commands, blocks: &*machine.blocks, images: Some(images) };
        let generation = mooring_model::Generation::ZERO;
        let applied = volumes::apply_with(&plan, hands, &mut Watch { engine: self, cell, generation });
        match applied {
            Ok(()) => {
                tracing::info!(volume = %cell.id, image = %upload.image, "a volume was copied to a file");
                Some(Ok(()))
            }
            Err(volumes::Error::Stopped { .. }) => None,
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "a volume was not copied to a file");
                // Whatever it was: it begins anew when it is wished anew.
                failed(Chain(&error).to_string(), Cure::Operator)
            }
        }
    }

    /// Takes away the parts that an agent before this one has left, and nobody wants: at the start.
    pub(super) fn sweep_parts(&self) {
        let Some(images) = self.images() else { return };
        let left = images.parts().inspect_err(|error| {
            tracing::debug!(error = %Chain(error), "no parts of files are looked for");
        });
        for part in left.unwrap_or_default() {
            let wished = self.known_cell(part.volume).is_some_and(|cell| {
                let state = cell.state();
                let spec = state.volume_spec();
                spec.and_then(|spec| spec.upload.as_ref()).is_some_and(|upload| upload.id == part.upload)
            });
            if wished {
                // Should the wish be taken back before anybody has looked, its part goes.
                if let Some(cell) = self.known_cell(part.volume) {
                    cell.state().uploads.seen.get_or_insert(Uploading { id: part.upload, end: None });
                }
            } else {
                tracing::info!(%part, "the part of a file that nobody wants any more is removed");
                images.clear(part);
            }
        }
    }
}
