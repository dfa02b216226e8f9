//! `mooring volume import`: makes a volume from an image on a storage node.
//!
//! What must never happen here: a second volume made by a repetition; a volume that was made
//! otherwise taken for the imported one.

use mooring_model::VolumeId;
use serde::Deserialize;
use serde_json::json;

use crate::args::ImportArgs;
use crate::controller::Client;
use crate::controller::answers::{Volume, VolumeCreated};
use crate::controller::client::{Call, PAUSE, wrapped};
use crate::controller::records::VolumeRecord;
use crate::controller::volume;
use crate::error::Failure;
use crate::output::Reply;

/// The metadata key that names the volume's image; a repeated command recognises its volume by it.
const ORIGIN: &str = "imported-from";

/// An answer of Mooring's own API.
#[derive(Deserialize)]
struct Made {
    volume: MadeVolume,
}

#[derive(Deserialize)]
struct MadeVolume {
    id: String,
}

/// The volume that an earlier run of the same command made; `None`: there is none.
async fn known(
    client: &Client,
    args: &ImportArgs,
    origin: &str,
    gib: u64,
) -> Result<Option<VolumeRecord>, Failure> {
    let mut same = volume::named(client, &args.name).await?;
    let is = |volume: &VolumeRecord| {
        volume.size == gib && volume.metadata.get(ORIGIN).is_some_and(|of| of == origin)
    };
    if let Some(other) = same.iter().find(|volume| !is(volume)) {
        return Err(Failure::Refused(format!(
            "a volume named {:?} exists: {}. Choose another name",
            args.name.to_string(),
            other.id
        )));
    }
    Ok(same.pop())
}

/// Requests the import, unless an earlier run of the same command did. A request whose answer is
/// lost is repeated with the same key.
async fn make(client: &Client, args: &ImportArgs, origin: &str, gib: u64) -> Result<VolumeRecord, Failure> {
    let key = VolumeId::random().to_string();
    let mut body = json!({
        "request_key": key, "name": args.name.to_string(), "size": gib, "metadata": { ORIGIN: origin },
        "image": { "host": args.host, "name": args.image.as_str(), "format": args.format.as_str() },
    });
    if let Some(kind) = &args.kind {
        body["volume_type"] = json!(kind);
    }
    let mut pause = PAUSE.0;
    loop {
        if let Some(known) = known(client, args, origin, gib).await? {
            return Ok(known);
        }
        let body = wrapped("volume", body.clone());
        match client.read::<Made>(Call::add("the new volume", &["mooring", "v1", "volumes"], body)).await {
            Err(fault) if client.again(&fault, &mut pause).await => {}
            sent => {
                let id = sent?.volume.id;
                return volume::get_after(client, &id, &Ok(())).await;
            }
        }
    }
}

/// `volume import`.
pub(crate) async fn import(client: &Client, args: &ImportArgs) -> Result<Reply<VolumeCreated>, Failure> {
    let gib = volume::whole_gib(args.size)?;
    let origin = format!("{}:{}:{}", args.host, args.image, args.format);
    let made = make(client, args, &origin, gib).await?;
    let Some(made) = volume::settled(client, made, "creating").await? else {
        return Err(Failure::Refused("the volume was deleted while it was being made".to_owned()));
    };
    if made.status.starts_with("error") {
        return Err(Failure::Broken(format!(
            "{} did not become volume {}: its status is {}. `mooring volume show {}` says why, and `mooring volume delete {}` takes \
             away what is there of it",
            args.image, made.id, made.status, made.id, made.id
        )));
    }
    let done = made.status != "creating";
    let name = args.name.to_string();
    Ok(Reply::when(done, VolumeCreated { done, name, volume: Volume::of_record(made) }))
}
