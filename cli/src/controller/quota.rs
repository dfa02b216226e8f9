//! `mooring quota`: limits of projects, and their use.
//!
//! What must never happen here: a limit shown as if it were the use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::args::QuotaSetArgs;
use crate::controller::Client;
use crate::controller::client::{Call, wrapped};
use crate::error::Failure;
use crate::output::Reply;

/// One line of a project's quotas.
#[derive(Debug, Serialize)]
pub(crate) struct Quota {
    pub key: String,
    /// The limit; -1: none.
    pub limit: i64,
    pub in_use: u64,
}

/// Answer of `quota show`, `quota set` and `quota reset`.
#[derive(Debug, Serialize)]
pub(crate) struct Quotas {
    pub project: String,
    pub quotas: Vec<Quota>,
}

/// `{"quota_set":{…}}`, including the use.
#[derive(Debug, Deserialize)]
struct OneSet {
    quota_set: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Line {
    limit: i64,
    in_use: u64,
}

fn path(project: &str) -> [&str; 3] {
    ["v3", "os-quota-sets", project]
}

/// `quota show`.
pub(crate) async fn show(client: &Client, project: &str) -> Result<Reply<Quotas>, Failure> {
    let call = Call::get("the quotas", &path(project)).query("usage", &true);
    let set = client.read::<OneSet>(call).await?.quota_set;
    // The set also has the project's id, as a text.
    let line = |(key, value): (String, Value)| {
        let Line { limit, in_use } = serde_json::from_value(value).ok()?;
        Some(Quota { key, limit, in_use })
    };
    let quotas = set.into_iter().filter_map(line).collect();
    Ok(Reply::ok(Quotas { project: project.to_owned(), quotas }))
}

/// `quota set`.
pub(crate) async fn set(client: &Client, args: &QuotaSetArgs) -> Result<Reply<Quotas>, Failure> {
    let mut limits = Map::new();
    for one in &args.limits {
        if limits.insert(one.key.clone(), json!(one.limit)).is_some() {
            return Err(Failure::Usage(format!("the limit of {:?} is given twice", one.key)));
        }
    }
    client.done(Call::put("the new quotas", &path(&args.project), wrapped("quota_set", limits))).await?;
    show(client, &args.project).await
}

/// `quota reset`.
pub(crate) async fn reset(client: &Client, project: &str) -> Result<Reply<Quotas>, Failure> {
    client.done(Call::delete("the end of the quotas", &path(project))).await?;
    show(client, project).await
}
