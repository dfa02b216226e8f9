//! What the Block Storage API has and Mooring does not yet: 501 with a text that says so, so that nobody takes it for a
//! wrong address.
//!
//! What must never happen here: a pretence.

use axum::Router;
use axum::routing::any;

use super::App;
use super::backend::Backend;
use super::context::Ctx;
use super::fault::Fault;

/// Collections of the API that are not there yet.
pub(super) const COLLECTIONS: [&str; 29] = [
    "backups",
    "capabilities",
    "cgsnapshots",
    "clusters",
    "consistencygroups",
    "default-types",
    "extensions",
    "group_snapshots",
    "group_types",
    "groups",
    "limits",
    "manageable_snapshots",
    "manageable_volumes",
    "messages",
    "os-availability-zone",
    "os-hosts",
    "os-quota-class-sets",
    "os-quota-sets",
    "os-services",
    "os-snapshot-manage",
    "os-volume-manage",
    "os-volume-transfer",
    "qos-specs",
    "resource_filters",
    "scheduler-stats",
    "snapshots",
    "volume-transfers",
    "workers",
    "os-volume-replication",
];

/// The same below collections that are there.
const BELOW: [&str; 7] = [
    "/volumes/summary",
    "/volumes/{id}/encryption",
    "/volumes/{id}/encryption/{key}",
    "/types/{id}/action",
    "/types/{id}/os-volume-type-access",
    "/types/{id}/encryption",
    "/types/{id}/encryption/{key}",
];

pub(super) fn routes<B: Backend>() -> Router<App<B>> {
    let mut router = Router::new();
    for collection in COLLECTIONS {
        router = router.route(&format!("/{collection}"), any(refuse));
        router = router.route(&format!("/{collection}/{{*rest}}"), any(refuse));
    }
    for path in BELOW {
        router = router.route(path, any(refuse));
    }
    router
}

async fn refuse(ctx: Ctx) -> Fault {
    let shown: String = ctx.path.chars().take(100).collect();
    Fault::not_implemented(format!("{shown} of the Block Storage API"))
}
