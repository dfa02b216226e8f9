//! `mooring attachment`: shows attachments, and changes their mode and cache in place.

use mooring_model::AttachmentId;
use serde_json::json;

use crate::Exit;
use crate::args::{AttachmentCacheArgs, AttachmentModeArgs};
use crate::controller::Client;
use crate::controller::answers::{AttachmentCache, AttachmentMode, AttachmentShown, Proof};
use crate::controller::client::Call;
use crate::controller::records::{Attachments, Kept, Live, OneAttachment, OneReceipt};
use crate::controller::volume::find;
use crate::error::Failure;
use crate::error::Fault;
use crate::output::Reply;
use crate::volume_ref::VolumeRef;

/// Path of attachments in the API.
pub(crate) const PATH: [&str; 3] = ["mooring", "v1", "attachments"];

/// Gets the attachments of one volume, or all.
pub(crate) async fn of_volume(client: &Client, volume: Option<&str>) -> Result<Vec<Kept<Live>>, Fault> {
    let mut call = Call::get("the list of attachments", &PATH);
    if let Some(volume) = volume {
        call = call.query("volume", &volume);
    }
    Ok(client.read::<Attachments>(call).await?.attachments)
}

/// Gets one attachment.
pub(crate) async fn get(client: &Client, id: &str) -> Result<Kept<Live>, Fault> {
    let [a, b, c] = PATH;
    Ok(client.read::<OneAttachment>(Call::get("the attachment", &[a, b, c, id])).await?.attachment)
}

/// Gets one attachment once its version differs from `after`, or after a while.
pub(crate) async fn changed(client: &Client, id: &str, after: u64) -> Result<Kept<Live>, Fault> {
    let [a, b, c] = PATH;
    let call = Call::get("the attachment", &[a, b, c, id]).query("after", &after).waiting();
    Ok(client.read::<OneAttachment>(call).await?.attachment)
}

/// `attachment list`.
pub(crate) async fn list(client: &Client, volume: Option<&VolumeRef>) -> Result<Reply<Attachments>, Failure> {
    let id = match volume {
        None => None,
        Some(volume) => Some(find(client, volume).await?.id),
    };
    Ok(Reply::ok(Attachments { attachments: of_volume(client, id.as_deref()).await? }))
}

/// `attachment show`. For a detached attachment only the receipt is left; the exit code says that
/// it is gone.
pub(crate) async fn show(client: &Client, id: AttachmentId) -> Result<Reply<AttachmentShown>, Failure> {
    let id = id.to_string();
    let answer = match get(client, &id).await {
        Ok(attachment) => {
            let going = attachment.status.ends_with("detaching");
            let receipt = if going { receipt(client, &id).await? } else { None };
            AttachmentShown::Live { attachment: Box::new(attachment), receipt }
        }
        Err(fault) if fault.status() == Some(404) => {
            let receipt = receipt(client, &id).await?.ok_or(fault)?;
            let answer = AttachmentShown::Gone { id, status: "gone", receipt };
            return Ok(Reply { exit: Exit::NotFound, answer });
        }
        Err(fault) => return Err(fault.into()),
    };
    Ok(Reply::ok(answer))
}

/// `attachment mode`.
pub(crate) async fn set_mode(
    client: &Client,
    args: &AttachmentModeArgs,
) -> Result<Reply<AttachmentMode>, Failure> {
    let (id, mut body) = (args.id.to_string(), json!({ "mode": args.mode.to_string() }));
    if args.barrier {
        // A controller that knows no barriers refuses the field.
        body["barrier"] = true.into();
    }
    let [a, b, c] = PATH;
    let call = Call::put("the attachment's mode", &[a, b, c, &id, "mode"], body).waiting();
    Ok(Reply::ok(client.read(call).await?))
}

/// `attachment cache`.
pub(crate) async fn set_cache(
    client: &Client,
    args: &AttachmentCacheArgs,
) -> Result<Reply<AttachmentCache>, Failure> {
    let id = args.id.to_string();
    let [a, b, c] = PATH;
    let body = json!({ "cache": args.cache.as_str() });
    let call = Call::put("the attachment's cache flag", &[a, b, c, &id, "cache"], body).waiting();
    Ok(Reply::ok(client.read(call).await?))
}

/// Gets the receipt of a detach; `None`: there is none.
async fn receipt(client: &Client, id: &str) -> Result<Option<Proof>, Fault> {
    let [a, b, c] = PATH;
    match client.read::<OneReceipt>(Call::get("the receipt", &[a, b, c, id, "receipt"])).await {
        Ok(answer) => answer.receipt.map(Proof::of_record).transpose(),
        Err(fault) if fault.status() == Some(404) => Ok(None),
        Err(fault) => Err(fault),
    }
}
