//! `mooring host` and `mooring pool`.

use serde_json::{Map, Value, json};

use crate::args::HostTokenArgs;
use crate::controller::Client;
use crate::controller::client::Call;
use crate::controller::records::{Hosts, JoinToken, OneHost, Pools, Revoked};
use crate::error::Failure;
use crate::output::Reply;

/// `host list`.
pub(crate) async fn list(client: &Client) -> Result<Reply<Hosts>, Failure> {
    let mut hosts: Hosts = client.read(Call::get("the list of hosts", &["mooring", "v1", "hosts"])).await?;
    hosts.hosts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::ok(hosts))
}

/// `host show`.
pub(crate) async fn show(client: &Client, host: &str) -> Result<Reply<OneHost>, Failure> {
    Ok(Reply::ok(client.read(Call::get("a host", &["mooring", "v1", "hosts", host])).await?))
}

/// `host enable`, `disable`, `drain`, `undrain`: each may be repeated.
pub(crate) async fn change(
    client: &Client,
    host: &str,
    word: &'static str,
    reason: Option<&str>,
) -> Result<Reply<OneHost>, Failure> {
    let mut body = Map::new();
    if let Some(reason) = reason {
        body.insert("reason".to_owned(), json!(reason));
    }
    let path = ["mooring", "v1", "hosts", host, word];
    Ok(Reply::ok(client.read(Call::make("the change of a host", &path, Value::Object(body))).await?))
}

/// `host token`.
pub(crate) async fn token(client: &Client, args: &HostTokenArgs) -> Result<Reply<JoinToken>, Failure> {
    let mut body = Map::new();
    if !args.role.is_empty() {
        let roles: Vec<_> = args.role.iter().map(|role| role.as_str()).collect();
        body.insert("roles".to_owned(), json!(roles));
    }
    if let Some(zone) = &args.zone {
        body.insert("zone".to_owned(), json!(zone));
    }
    let path = ["mooring", "v1", "hosts", &args.host, "token"];
    // A repetition makes a new token, which replaces the first.
    Ok(Reply::ok(client.read(Call::make("the new token", &path, Value::Object(body))).await?))
}

/// `host revoke`. A repetition succeeds again.
pub(crate) async fn revoke(client: &Client, host: &str) -> Result<Reply<Revoked>, Failure> {
    let path = ["mooring", "v1", "hosts", host, "revoke"];
    Ok(Reply::ok(client.read(Call::make("the end of an enrolment", &path, json!({}))).await?))
}

/// `pool list`.
pub(crate) async fn pools(client: &Client) -> Result<Reply<Pools>, Failure> {
    let call = Call::get("the list of pools", &["v3", "scheduler-stats", "get_pools"]).query("detail", &true);
    let mut pools: Pools = client.read(call).await?;
    pools.pools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::ok(pools))
}
