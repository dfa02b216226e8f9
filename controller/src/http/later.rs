//! The parts of the Block Storage API that Mooring does not have yet: 501 with a text that says so,
//! so that clients do not take it for a wrong address.
//!
//! What must never happen here: a pretence.

use axum::routing::any;

use super::backend::Backend;
use super::context::Ctx;
use super::fault::Fault;
use super::routes::Routes;

/// Collections of the API that do not exist yet.
const COLLECTIONS: [&str; 9] = [
    "cgsnapshots",
    "clusters",
    "consistencygroups",
    "group_snapshots",
    "group_types",
    "manageable_snapshots",
    "os-snapshot-manage",
    "os-volume-replication",
    "workers",
];

/// Missing parts of collections that exist.
const BELOW: [&str; 3] =
    ["/volumes/{id}/encryption/{key}", "/types/{id}/encryption", "/types/{id}/encryption/{key}"];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    let mut routes = Routes::new();
    for collection in COLLECTIONS {
        routes = routes.route(&format!("/{collection}"), any(refuse));
        routes = routes.route(&format!("/{collection}/{{*rest}}"), any(refuse));
    }
    for path in BELOW {
        routes = routes.route(path, any(refuse));
    }
    routes
}

pub(super) async fn refuse(ctx: Ctx) -> Fault {
    let shown: String = ctx.path.chars().take(100).collect();
    Fault::not_implemented(format!("{shown} of the Block Storage API"))
}
