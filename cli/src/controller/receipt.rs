//! `mooring receipt`: shows the records of detaches, and changes nothing.
//!
//! What must never happen here: "proven" of a receipt that is not understood.

use mooring_model::AttachmentId;

use crate::Exit;
use crate::controller::Client;
use crate::controller::answers::Record;
use crate::controller::client::Call;
use crate::controller::records::ManyReceipts;
use crate::controller::volume::find;
use crate::error::Failure;
use crate::output::Reply;
use crate::volume_ref::VolumeRef;

use super::answers::Records;

const PATH: [&str; 3] = ["mooring", "v1", "receipts"];

/// `receipt list`: of one volume, or all. A deleted volume is named by its id.
pub(crate) async fn list(client: &Client, volume: Option<&VolumeRef>) -> Result<Reply<Records>, Failure> {
    let mut call = Call::get("the list of receipts", &PATH);
    match volume {
        None => {}
        Some(VolumeRef::Id(id)) => call = call.query("volume", id),
        Some(name @ VolumeRef::Name(_)) => call = call.query("volume", &find(client, name).await?.id),
    }
    Ok(Reply::ok(Records { receipts: read(client, call).await? }))
}

/// `receipt show`: of one attachment.
pub(crate) async fn show(client: &Client, id: AttachmentId) -> Result<Reply<Record>, Failure> {
    let call = Call::get("the receipt", &PATH).query("attachment", &id);
    let Some(record) = read(client, call).await?.into_iter().next() else {
        return Err(Failure::NotFound(format!(
            "no record of a detach of attachment {id}: it is there still (`mooring attachment show {id}`), or it never was"
        )));
    };
    let proven =
        record.receipt.as_ref().is_none_or(|receipt| receipt.proven) && record.detached_at().is_some();
    Ok(Reply { exit: if proven { Exit::Ok } else { Exit::Pending }, answer: record })
}

async fn read(client: &Client, call: Call<'_>) -> Result<Vec<Record>, Failure> {
    let records = client.read::<ManyReceipts>(call).await?.receipts;
    Ok(records.into_iter().map(Record::of_record).collect::<Result<_, _>>()?)
}
