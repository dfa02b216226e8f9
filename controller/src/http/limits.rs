//! `/limits`: a project's limits and usage, for its users.
//!
//! What must never happen here: a project's usage shown to those who may not see it.

use axum::extract::State;
use axum::{Json, routing};
use serde_json::{Map, Value, json};

use super::App;
use super::backend::Backend;
use super::context::Ctx;
use super::fault::Fault;
use super::routes::Routes;
use super::version::Version;
use crate::quota::Key;

/// The limited resources, and the names of their limits and their usage here.
const NAMES: [(Key, &str, &str); 5] = [
    (Key::Volumes, "maxTotalVolumes", "totalVolumesUsed"),
    (Key::Gigabytes, "maxTotalVolumeGigabytes", "totalGigabytesUsed"),
    (Key::Snapshots, "maxTotalSnapshots", "totalSnapshotsUsed"),
    (Key::Backups, "maxTotalBackups", "totalBackupsUsed"),
    (Key::BackupGigabytes, "maxTotalBackupGigabytes", "totalBackupGigabytesUsed"),
];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new().route("/limits", routing::get(limits::<B>))
}

async fn limits<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Result<Json<Value>, Fault> {
    let project = ctx.query.get("project_id").filter(|_| ctx.version >= Version::PROJECT_LIMITS);
    let entries = app.backend().limits(&ctx.caller, project).await?;
    let used = ctx.allows("limits_extension:used_limits");
    let mut absolute = Map::new();
    for (key, limit_name, used_name) in NAMES {
        if let Some(entry) = entries.iter().find(|entry| entry.key == key) {
            absolute.insert(limit_name.to_owned(), json!(entry.limit.number()));
            if used {
                absolute.insert(used_name.to_owned(), json!(entry.in_use));
            }
        }
    }
    // No limit applies to the rate of requests.
    Ok(Json(json!({ "limits": { "rate": [], "absolute": absolute } })))
}
