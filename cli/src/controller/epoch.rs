//! `mooring epoch`.
//!
//! What must never happen here: an epoch raised twice for one command.

use serde_json::json;

use crate::controller::Client;
use crate::controller::answers::EpochRaised;
use crate::controller::client::Call;
use crate::error::Failure;
use crate::output::Reply;

/// `epoch raise`.
pub(crate) async fn raise(client: &Client) -> Result<Reply<EpochRaised>, Failure> {
    let call = Call::add("the new epoch", &["mooring", "v1", "epoch"], json!({}));
    Ok(Reply::ok(client.read(call).await?))
}
