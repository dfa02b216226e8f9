//! Image exports: copies of a volume to a file of its storage node. Only the agent checks if that
//! file exists already, and if there is room.
//!
//! What must never happen here: a volume copied while a host may write to it; an image export in a
//! spec for an agent that would ignore it.

use std::collections::BTreeSet;

use mooring_model::{ImageFormat, ImageSource, Upload, UploadId, VolumeId};

use super::{Refusal, Service, failed, images, not_in_review, told, volumes};
use crate::domain::{Caller, ExportAsk, ExportState, VolumeExport, VolumeStatus};
use crate::error::announced_attachments;
use crate::flow::{Facts, volume_specs};
use crate::rules::Operation;
use crate::store::{Abort, Db, KeptUpload, VolumeRow};

/// Policy for image exports: the folder of a storage node belongs to no project.
const EXPORT: &str = "mooring:export";

fn view(facts: &Facts, volume: &VolumeRow) -> Result<VolumeExport, Abort> {
    let what = || format!("of volume {}", volume.id);
    let kept = volume.upload().ok_or_else(|| Refusal::NotFound { kind: "Export", what: what() })?;
    let goes_on = volume.operation == Some(Operation::Uploading) && !kept.ended;
    let state = match (&kept.withdrawn, kept.cancelled) {
        (None, _) if goes_on => ExportState::Exporting,
        (Some(_), _) if goes_on => ExportState::Ending,
        (None, _) if kept.ended => ExportState::Done,
        (_, true) => ExportState::Cancelled,
        (Some(_) | None, false) => ExportState::Failed,
    };
    Ok(VolumeExport {
        id: kept.upload.id,
        image: kept.upload.image,
        host: facts.agents.by_id(volume.agent).map(|agent| agent.entry.name.clone()),
        state,
        why: kept.withdrawn,
    })
}

/// Refuses a format that the volume's agent cannot write, as far as it has reported.
fn check_agent(facts: &Facts, volume: &VolumeRow, format: ImageFormat) -> Result<(), Refusal> {
    let agent = facts.agents.up(volume.agent).map_err(Refusal::Unavailable)?;
    images::check_format(&agent, format)
}

/// Begins an image export: `uploading` at once, `available` when the agent reports how it ended.
fn begin(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    volume: &VolumeRow,
    id: Option<UploadId>,
    image: &ImageSource,
) -> Result<(), Abort> {
    let of = volume.id;
    if let Some(kept) = volume.upload().filter(|kept| Some(kept.upload.id) == id) {
        if kept.upload.image == *image {
            return Ok(());
        }
        let text = format!("Export {} of volume {of} is one to {}.", kept.upload.id, kept.upload.image);
        return Err(Refusal::Conflict(text).into());
    }
    not_in_review(volume)?;
    let rows = failed::holding(db, of)?;
    if !rows.is_empty() {
        let who: Vec<_> = rows.iter().map(|row| told::who(facts, caller, row)).collect();
        let text = format!(
            "Volume {of} cannot be exported while it is attached: a copy that is made while somebody writes has a state that \
             the volume never had. Detach {} first, or export a volume that is made from a snapshot of it.",
            who.join(", ")
        );
        return Err(Refusal::Conflict(text).into());
    }
    if volume.status != VolumeStatus::Available {
        let (status, announced) = (volume.status, announced_attachments(volume.reserved));
        let text = format!("Volume {of} must be available to be exported, and it is {status}.{announced}");
        return Err(Refusal::Conflict(text).into());
    }
    check_agent(facts, volume, image.format)?;
    let upload = Upload { image: image.clone(), id: id.unwrap_or_else(UploadId::random) };
    db.keep_upload(volume, &KeptUpload { upload, withdrawn: None, cancelled: false, ended: false })?;
    db.set_operation(of, Some(Operation::Uploading), None)?;
    volume_specs::apply(db, of, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// Cancels an image export: it ends as soon as its agent has the new spec. One that is over stays
/// as it ended.
fn cancel(db: &Db<'_>, volume: &VolumeRow) -> Result<(), Abort> {
    let goes_on = volume.operation == Some(Operation::Uploading);
    let Some(kept) = volume.upload().filter(|kept| goes_on && kept.withdrawn.is_none()) else {
        return Ok(());
    };
    let withdrawn = Some("it was cancelled".to_owned());
    db.keep_upload(volume, &KeptUpload { withdrawn, cancelled: true, ..kept })?;
    volume_specs::apply(db, volume.id, &mut [], &BTreeSet::new())?;
    Ok(())
}

impl Service {
    /// Begins, cancels or shows the export of a volume to a file. 409 while the volume is attached
    /// or another operation is at work. 404 if it was never exported.
    pub async fn volume_export(
        &self,
        caller: &Caller,
        id: VolumeId,
        ask: ExportAsk,
    ) -> Result<VolumeExport, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let looks = ask == ExportAsk::Look;
        let work = move |db: &Db<'_>| {
            let volume = volumes::find(&facts, db, &caller, id)?;
            facts.policies().check(EXPORT, &caller, &volumes::target(&volume))?;
            match &ask {
                ExportAsk::Begin { id, image } => begin(&facts, db, &caller, &volume, *id, image)?,
                ExportAsk::Cancel => cancel(db, &volume)?,
                ExportAsk::Look => {}
            }
            view(&facts, &volumes::find(&facts, db, &caller, id)?)
        };
        if looks {
            return self.store.read("look at an export", work).await;
        }
        let seen = self.store.write("export a volume", work).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(seen)
    }
}
