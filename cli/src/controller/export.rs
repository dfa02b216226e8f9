//! `mooring volume export`: copies a volume to a new file on its storage node.
//!
//! What must never happen here: an export called done that failed, or was another one; a second
//! export begun by the repetition of a call.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use mooring_model::UploadId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::VolumeExportArgs;
use crate::controller::Client;
use crate::controller::client::{Call, PAUSE, wrapped};
use crate::controller::volume;
use crate::error::{Failure, Fault};
use crate::output::Reply;
use crate::table::named;
use crate::text::one_line;

/// Pauses between looks: first and longest.
const LOOKS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

#[derive(Deserialize)]
struct Shown {
    export: ExportRecord,
}

#[derive(Deserialize)]
struct ExportRecord {
    id: String,
    storage_host: Option<String>,
    image: ImageRecord,
    status: String,
    why: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ImageRecord {
    name: String,
    format: String,
}

impl ExportRecord {
    fn goes_on(&self) -> bool {
        matches!(self.status.as_str(), "exporting" | "ending")
    }
}

/// `volume export`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeExported {
    /// `true`: no export is at work any more.
    done: bool,
    volume_id: String,
    name: Option<String>,
    storage_host: Option<String>,
    image: ImageRecord,
    /// Status of the export.
    status: String,
}

impl Display for VolumeExported {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let volume = named(self.name.as_deref(), &self.volume_id);
        let host = one_line(self.storage_host.as_deref().unwrap_or("its storage node"));
        let image = one_line(&self.image.name);
        match self.status.as_str() {
            "done" => {
                write!(f, "volume {volume} is copied to {image} ({}) on {host}", one_line(&self.image.format))
            }
            "cancelled" => write!(f, "the export of volume {volume} to {image} is cancelled"),
            _ => write!(
                f,
                "volume {volume}: accepted, not finished yet; repeat the command to wait for it, `mooring job list` shows how \
                 far it is, and `mooring volume export {} --cancel` ends it",
                self.volume_id
            ),
        }
    }
}

fn path(id: &str) -> [&str; 5] {
    ["mooring", "v1", "volumes", id, "export"]
}

/// Gets the last export; `None`: there never was one.
async fn last(client: &Client, id: &str) -> Result<Option<ExportRecord>, Fault> {
    match client.read::<Shown>(Call::get("the export", &path(id))).await {
        Ok(shown) => Ok(Some(shown.export)),
        Err(fault) if fault.status() == Some(404) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Waits until the export is over, or until the deadline.
async fn over(client: &Client, id: &str, mut export: ExportRecord) -> Result<ExportRecord, Failure> {
    let lost = |fault| Failure::lost(format!("the export of volume {id}"), fault);
    let mut pause = LOOKS.0;
    while export.goes_on() && client.pause(pause).await {
        pause = (pause * 2).min(LOOKS.1);
        let now = last(client, id).await.map_err(lost)?;
        export = now.filter(|now| now.id == export.id).ok_or_else(|| {
            Failure::Refused(format!(
                "volume {id} was deleted, or exported anew, meanwhile: nobody knows how this ended"
            ))
        })?;
    }
    Ok(export)
}

async fn cancel(client: &Client, id: &str) -> Result<ExportRecord, Failure> {
    let none = || Failure::NotFound(format!("volume {id} is not being exported"));
    last(client, id).await?.filter(ExportRecord::goes_on).ok_or_else(none)?;
    let mut pause = PAUSE.0;
    loop {
        match client.read::<Shown>(Call::delete("the end of the export", &path(id))).await {
            Err(fault) if client.again(&fault, &mut pause).await => {}
            sent => return Ok(sent?.export),
        }
    }
}

/// Begins the export, or joins one with the same arguments that is at work. A request whose answer
/// is lost is repeated with the same id.
async fn begin(client: &Client, id: &str, image: ImageRecord) -> Result<ExportRecord, Failure> {
    let known = last(client, id).await?;
    if let Some(known) = known.filter(|known| known.goes_on() && known.image == image) {
        return Ok(known);
    }
    let body = json!({ "id": UploadId::random().to_string(), "image": image });
    let mut pause = PAUSE.0;
    loop {
        let body = wrapped("export", body.clone());
        match client.read::<Shown>(Call::make("the export", &path(id), body)).await {
            Err(fault) if client.again(&fault, &mut pause).await => {}
            sent => return Ok(sent?.export),
        }
    }
}

/// `volume export`.
pub(crate) async fn export(
    client: &Client,
    args: &VolumeExportArgs,
) -> Result<Reply<VolumeExported>, Failure> {
    let found = volume::find(client, &args.volume).await?;
    let id = found.id;
    let begun = match (&args.image, args.format) {
        (Some(name), Some(format)) if !args.cancel => {
            let image = ImageRecord { name: name.as_str().to_owned(), format: format.as_str().to_owned() };
            begin(client, &id, image).await?
        }
        _ => cancel(client, &id).await?,
    };
    let now = over(client, &id, begun).await?;
    let why = now.why.as_deref().unwrap_or("nobody knows why");
    match now.status.as_str() {
        "failed" => {
            return Err(Failure::Broken(format!(
                "volume {id} is not copied to {}, and nothing is left of that: {why}",
                now.image.name
            )));
        }
        "cancelled" if !args.cancel => {
            return Err(Failure::Refused(format!(
                "the export of volume {id} to {} was cancelled",
                now.image.name
            )));
        }
        _ => {}
    }
    let done = !now.goes_on();
    let (name, storage_host) = (found.name, now.storage_host);
    let answer =
        VolumeExported { done, volume_id: id, name, storage_host, image: now.image, status: now.status };
    Ok(Reply::when(done, answer))
}
