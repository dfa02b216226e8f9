//! `mooring detach`.
//!
//! What must never happen here: a detach of an attachment that was not meant; success without the
//! receipt's proof.

use mooring_model::AttachmentId;

use crate::args::DetachArgs;
use crate::controller::Client;
use crate::controller::answers::{Detached, Proof};
use crate::controller::attachment::{PATH, get, of_volume};
use crate::controller::client::Call;
use crate::controller::records::{Kept, Live, OneReceipt};
use crate::controller::volume;
use crate::error::Failure;
use crate::output::Reply;
use crate::volume_ref::VolumeRef;

/// The call that detaches. It is repeated until it is done.
pub(crate) fn call(id: &str, force: bool, widen: bool) -> Call<'_> {
    let [a, b, c] = PATH;
    let call = Call::delete("the detach", &[a, b, c, id]).waiting();
    match (force, widen) {
        (false, _) => call,
        (true, false) => call.query("force", &true),
        (true, true) => call.query("force", &true).query("widen", &"host"),
    }
}

/// `detach`.
pub(crate) async fn detach(client: &Client, args: &DetachArgs) -> Result<Reply<Detached>, Failure> {
    let id = meant(client, args).await?;
    let answer = |known, receipt: Option<Proof>, waits_for: Option<String>| {
        let done = waits_for.is_none() && receipt.as_ref().is_none_or(|proof| proof.receipt.proven);
        let attachment_id = id.clone();
        let full = args.force;
        Reply::when(
            done,
            Detached { done, attachment_id, known, receipt, waits_for, warnings: Vec::new(), full },
        )
    };
    match client.read::<OneReceipt>(call(&id, args.force, args.widen)).await {
        Ok(OneReceipt { receipt, warnings }) => {
            let proof = receipt.map(Proof::of_record).transpose()?;
            let reply = answer(true, proof, None);
            Ok(Reply { answer: Detached { warnings, ..reply.answer }, ..reply })
        }
        // Ids are never reused: an attachment that the controller does not know is gone.
        Err(fault) if fault.status() == Some(404) => Ok(answer(false, None, None)),
        Err(fault) if fault.status() == Some(504) => Ok(answer(true, None, Some(fault.to_string()))),
        Err(fault) => Err(fault.into()),
    }
}

/// The attachment that is meant: by its id, or the only one of a volume (on a host).
async fn meant(client: &Client, args: &DetachArgs) -> Result<String, Failure> {
    let host = args.host.as_deref();
    let volume = match &args.what {
        name @ VolumeRef::Name(_) => volume::find(client, name).await?,
        VolumeRef::Id(id) => match volume::get(client, &id.to_string()).await {
            Ok(volume) => volume,
            Err(fault) if fault.status() == Some(404) => {
                return attachment(client, &id.to_string(), host).await;
            }
            Err(fault) => return Err(fault.into()),
        },
    };
    let attachments = of_volume(client, Some(&volume.id)).await?;
    let fits = |live: &&Kept<Live>| host.is_none_or(|host| is_on(live, host));
    let attachments: Vec<_> = attachments.iter().filter(fits).collect();
    let name = volume.name.as_deref().unwrap_or(&volume.id);
    let on = host.map(|host| format!(" on host {host}")).unwrap_or_default();
    match attachments[..] {
        [one] => Ok(one.id.clone()),
        [] => Err(Failure::NotFound(format!("volume {name} has no attachment{on}"))),
        ref several => {
            let list: Vec<_> = several.iter().map(|live| in_words(live)).collect();
            Err(Failure::Usage(format!(
                "volume {name} has {} attachments{on}; say which one by its id{}: {}",
                several.len(),
                if host.is_none() { " or with --host" } else { "" },
                list.join(", ")
            )))
        }
    }
}

/// Returns `true` if the attachment is on this host: by the host's name, or by the agent id in its
/// initiator name.
fn is_on(live: &Live, host: &str) -> bool {
    let id =
        live.initiator.as_deref().and_then(|initiator| initiator.rsplit_once(":host.")).map(|(_, id)| id);
    live.host.as_deref() == Some(host) || id == Some(host)
}

fn in_words(live: &Live) -> String {
    let host = live.host.as_deref().unwrap_or("-");
    format!("{} (host {host}, {}, {})", live.id, live.mode.as_deref().unwrap_or("-"), live.status)
}

async fn attachment(client: &Client, id: &str, host: Option<&str>) -> Result<String, Failure> {
    // Both kinds of id have the same canonical form.
    let id = id.parse::<AttachmentId>().map_or_else(|_| id.to_owned(), |id| id.to_string());
    let Some(host) = host else { return Ok(id) };
    match get(client, &id).await {
        Ok(live) if !is_on(&live, host) => Err(Failure::Usage(format!(
            "attachment {id} is on host {}, not on {host}",
            live.host.as_deref().unwrap_or("-")
        ))),
        Ok(_) => Ok(id),
        Err(fault) if fault.status() == Some(404) => Ok(id),
        Err(fault) => Err(fault.into()),
    }
}
