//! `mooring host`.

use crate::Reply;
use crate::controller::Client;
use crate::controller::client::Call;
use crate::controller::records::Hosts;
use crate::error::Failure;

/// `host list`.
pub(crate) async fn list(client: &Client) -> Result<Reply<Hosts>, Failure> {
    let mut hosts: Hosts = client.read(Call::get("the list of hosts", &["mooring", "v1", "hosts"])).await?;
    hosts.hosts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::ok(hosts))
}
