//! `mooring volume revert`: returns a volume to the content of its newest snapshot.
//!
//! What must never happen here: a revert called done that failed; a second one begun by a
//! repetition of a call.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use serde_json::json;

use crate::args::RevertArgs;
use crate::controller::Client;
use crate::controller::client::{Call, PAUSE, wrapped};
use crate::controller::records::VolumeRecord;
use crate::controller::{snapshot, volume};
use crate::error::Failure;
use crate::output::Reply;
use crate::table::named;

/// `volume revert`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeReverted {
    /// `true`: the volume has the snapshot's content.
    done: bool,
    volume_id: String,
    name: Option<String>,
    /// Present status of the volume.
    status: String,
    snapshot_id: String,
}

impl Display for VolumeReverted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let volume = named(self.name.as_deref(), &self.volume_id);
        if self.done {
            return write!(f, "volume {volume} holds what its snapshot {} holds", self.snapshot_id);
        }
        write!(
            f,
            "volume {volume}: accepted, not reverted yet; look with `mooring volume show {}`: while it is reverting, the same command \
             waits for it",
            self.volume_id
        )
    }
}

/// Requests the revert. A request whose answer is lost is not repeated blindly: the revert may be
/// at work. If it is over by then, it is done once more, and no host has written to the volume in
/// between.
async fn begin(client: &Client, id: &str, to: &str) -> Result<VolumeRecord, Failure> {
    let mut pause = PAUSE.0;
    loop {
        let body = wrapped("revert", json!({ "snapshot_id": to }));
        let call = Call::add("the revert", &["v3", "volumes", id, "action"], body).at("3.40");
        let sent = client.done(call).await;
        let now = volume::get_after(client, id, &sent).await?;
        match sent {
            Err(fault) if client.again(&fault, &mut pause).await => {
                if now.status == "reverting" {
                    return Ok(now);
                }
            }
            Err(fault) => return Err(fault.into()),
            Ok(()) => return Ok(now),
        }
    }
}

/// `volume revert`. Joins one that is already at work.
pub(crate) async fn revert(client: &Client, args: &RevertArgs) -> Result<Reply<VolumeReverted>, Failure> {
    let found = volume::find(client, &args.volume).await?;
    let to = snapshot::find(client, &args.to).await?;
    let id = found.id.clone();
    let found = if found.status == "reverting" && to.status == "restoring" {
        found
    } else {
        begin(client, &id, &to.id).await?
    };
    let Some(now) = volume::settled(client, found, "reverting").await? else {
        return Err(Failure::Refused("the volume was deleted meanwhile".to_owned()));
    };
    if now.status.starts_with("error") {
        return Err(Failure::Broken(format!(
            "volume {id} is not reverted, and holds what it held: its status is {}. `mooring volume show {id}` says why; once that \
             is cured, `mooring volume reset-status {id} available` and this command again",
            now.status
        )));
    }
    let done = now.status != "reverting";
    let answer =
        VolumeReverted { done, volume_id: id, name: now.name, status: now.status, snapshot_id: to.id };
    Ok(Reply::when(done, answer))
}
