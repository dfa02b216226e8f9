//! `mooring volume retype`, `reset-status` and `set`.
//!
//! What must never happen here: a repetition that counts as a failure.

use mooring_model::VolumeId;
use serde_json::{Value, json};

use crate::args::{ResetStatusArgs, RetypeArgs, VolumeSetArgs};
use crate::controller::Client;
use crate::controller::answers::VolumeChanged;
use crate::controller::client::{Call, wrapped};
use crate::controller::records::VolumeRecord;
use crate::controller::volume::{find, get};
use crate::error::Failure;
use crate::error::Fault;
use crate::output::Reply;

/// Sends one action. A repetition of any of these has no further effect.
async fn act(client: &Client, id: &str, name: &str, value: Value) -> Result<(), Fault> {
    client.done(Call::make("the change", &["v3", "volumes", id, "action"], wrapped(name, value))).await
}

async fn changed(client: &Client, id: &str) -> Result<Reply<VolumeChanged>, Failure> {
    Ok(Reply::ok(VolumeChanged::of_record(get(client, id).await?)))
}

/// `volume retype`. Succeeds if the volume already has the type.
pub(crate) async fn retype(client: &Client, args: &RetypeArgs) -> Result<Reply<VolumeChanged>, Failure> {
    let volume = find(client, &args.volume).await?;
    let id = volume.id.clone();
    let has = |volume: &VolumeRecord| volume.volume_type.as_ref() == Some(&args.kind);
    if args.kind.parse::<VolumeId>().is_err() && has(&volume) {
        return Ok(Reply::ok(VolumeChanged::of_record(volume)));
    }
    // The controller refuses a type that does not fit where the volume lies: volumes are not moved.
    let body = json!({ "new_type": args.kind, "migration_policy": "never" });
    if let Err(fault) = act(client, &id, "os-retype", body).await {
        // If the answer to the first attempt was lost, the second finds the change done.
        let now = get(client, &id).await.ok().filter(|now| fault.status() == Some(400) && has(now));
        return now.map(|now| Reply::ok(VolumeChanged::of_record(now))).ok_or_else(|| fault.into());
    }
    changed(client, &id).await
}

/// `volume reset-status`.
pub(crate) async fn reset_status(
    client: &Client,
    args: &ResetStatusArgs,
) -> Result<Reply<VolumeChanged>, Failure> {
    let id = find(client, &args.volume).await?.id;
    act(client, &id, "os-reset_status", json!({ "status": args.status })).await?;
    changed(client, &id).await
}

/// `volume set`.
pub(crate) async fn set(client: &Client, args: &VolumeSetArgs) -> Result<Reply<VolumeChanged>, Failure> {
    let id = find(client, &args.volume).await?.id;
    if let Some(readonly) = args.readonly {
        act(client, &id, "os-update_readonly_flag", json!({ "readonly": readonly })).await?;
    }
    if let Some(bootable) = args.bootable {
        act(client, &id, "os-set_bootable", json!({ "bootable": bootable })).await?;
    }
    changed(client, &id).await
}
