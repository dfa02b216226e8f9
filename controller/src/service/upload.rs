//! A volume is copied to a file of its storage node. Whether a file of that name is there, and whether there is room, its agent
//! sees.
//!
//! What must never happen here: a volume copied that somebody may write to; an export wished of an agent that would take the wish
//! for one without it.

use std::collections::BTreeSet;

use mooring_model::{ImageFormat, ImageSource, Upload, UploadId, VolumeId};

use super::revert::who;
use super::{Refusal, Service, images, not_in_review, volumes};
use crate::domain::{Caller, ExportAsk, ExportState, VolumeExport, VolumeStatus};
use crate::flow::{Inner, wishes};
use crate::rules::Operation;
use crate::store::{Abort, Db, KeptUpload, VolumeRow};

/// Who may export volumes: the folder of a storage node is nobody's project's.
const EXPORT: &str = "mooring:export";

fn view(inner: &Inner, volume: &VolumeRow) -> Result<VolumeExport, Abort> {
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
        host: inner.agents.by_id(volume.agent).map(|agent| agent.entry.name.clone()),
        state,
        why: kept.withdrawn,
    })
}

/// Whether its agent can write such a file, as far as it has said.
fn check_agent(inner: &Inner, volume: &VolumeRow, format: ImageFormat) -> Result<(), Refusal> {
    let agent = inner.agents.up(volume.agent).map_err(Refusal::Unavailable)?;
    images::check_format(&agent, format)
}

/// From now on it is copied: `uploading` at once, `available` when its agent says how that ended.
fn begin(
    inner: &Inner,
    db: &Db<'_>,
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
    let rows = db.attachments_of(of)?;
    if !rows.is_empty() {
        let who: Vec<_> = rows.iter().map(who).collect();
        let text = format!(
            "Volume {of} cannot be exported while it is attached: what is copied while somebody writes is no state that it ever \
             had. Detach {} first, or export a volume that is made from a snapshot of it.",
            who.join(", ")
        );
        return Err(Refusal::Conflict(text).into());
    }
    if volume.status != VolumeStatus::Available {
        let text = format!("Volume {of} must be available to be exported, and it is {}.", volume.status);
        return Err(Refusal::Conflict(text).into());
    }
    check_agent(inner, volume, image.format)?;
    let upload = Upload { image: image.clone(), id: id.unwrap_or_else(UploadId::random) };
    db.keep_upload(volume, &KeptUpload { upload, withdrawn: None, cancelled: false, ended: false })?;
    db.set_operation(of, Some(Operation::Uploading), None)?;
    wishes::apply(db, of, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// It ends as soon as its agent has heard of it. One that is over stays as it ended.
fn cancel(db: &Db<'_>, volume: &VolumeRow) -> Result<(), Abort> {
    let goes_on = volume.operation == Some(Operation::Uploading);
    let Some(kept) = volume.upload().filter(|kept| goes_on && kept.withdrawn.is_none()) else {
        return Ok(());
    };
    let withdrawn = Some("it was cancelled".to_owned());
    db.keep_upload(volume, &KeptUpload { withdrawn, cancelled: true, ..kept })?;
    wishes::apply(db, volume.id, &mut [], &BTreeSet::new())?;
    Ok(())
}

impl Service {
    /// The export of a volume to a file: begun, cancelled, or looked at. 409 while it is attached or something else is done to it;
    /// 404 where there never was one.
    pub async fn volume_export(
        &self,
        caller: &Caller,
        id: VolumeId,
        ask: ExportAsk,
    ) -> Result<VolumeExport, Refusal> {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let looks = ask == ExportAsk::Look;
        let work = move |db: &Db<'_>| {
            let volume = volumes::find(&inner, db, &caller, id)?;
            inner.policies().check(EXPORT, &caller, &volumes::target(&volume))?;
            match &ask {
                ExportAsk::Begin { id, image } => begin(&inner, db, &volume, *id, image)?,
                ExportAsk::Cancel => cancel(db, &volume)?,
                ExportAsk::Look => {}
            }
            view(&inner, &volumes::find(&inner, db, &caller, id)?)
        };
        if looks {
            return self.store.read("look at an export", work).await;
        }
        let seen = self.store.write("export a volume", work).await?;
        self.inner.go(id, &BTreeSet::new());
        Ok(seen)
    }
}
