//! Small collections that tools query first: extensions, availability zones, filters, hosts; and
//! collections that are empty here, since nothing makes their objects.
//!
//! What must never happen here: an extension that is listed and does not exist.

use axum::extract::State;
use axum::{Json, routing};
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::later;
use super::routes::Routes;
use super::version::Version;
use super::views::naive;
use crate::domain::HostUsage;
use crate::list::COLLECTIONS;

/// The time of the last change of the extensions' descriptions.
const UPDATED: &str = "2026-11-21T00:00:00+00:00";

/// Parts of the API that once were extensions: alias, name, description.
const EXTENSIONS: [(&str, &str, &str); 13] = [
    ("OS-SCH-HNT", "SchedulerHints", "Hints say where a new volume is put."),
    ("capabilities", "Capabilities", "What a storage host can do."),
    ("os-availability-zone", "AvailabilityZones", "The availability zones."),
    ("os-hosts", "Hosts", "The storage hosts, for admins."),
    ("os-services", "Services", "The storage hosts as services, enabled and disabled."),
    ("os-types-extra-specs", "TypesExtraSpecs", "Extra specs of volume types."),
    ("os-types-manage", "TypesManage", "Volume types are made, changed and deleted."),
    ("os-vol-host-attr", "VolumeHostAttribute", "The host of a volume."),
    ("os-vol-mig-status-attr", "VolumeMigStatusAttribute", "The migration status of a volume."),
    ("os-vol-tenant-attr", "VolumeTenantAttribute", "The project of a volume."),
    ("os-volume-manage", "VolumeManage", "Logical volumes that are there become volumes."),
    ("os-volume-unmanage", "VolumeUnmanage", "Volumes are unmanaged, and keep their data."),
    ("scheduler-stats", "Scheduler_stats", "The pools, as they were last reported."),
];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    let mut routes = Routes::new()
        .route("/extensions", routing::get(extensions))
        .route("/extensions/{alias}", routing::get(extension))
        .route("/os-availability-zone", routing::get(zones::<B>))
        .route("/resource_filters", routing::get(filters))
        .route("/os-hosts", routing::get(hosts::<B>))
        .route("/os-hosts/{name}", routing::get(host::<B>));
    for path in EMPTY {
        routes = routes.route(path, routing::get(empty).fallback(later::refuse));
    }
    for collection in EMPTY_ONES {
        routes = routes.route(
            &format!("/{collection}/{{id}}"),
            routing::get(not_there).delete(not_there).fallback(later::refuse),
        );
        routes = routes.route(&format!("/{collection}/{{id}}/{{*rest}}"), routing::any(not_there_below));
    }
    routes
}

/// Lists that clients query by themselves: Horizon's tables of volumes (transfers) and types (QoS
/// specs), its menus (backups, groups), and cinder-csi (backups). An error there breaks the page,
/// and the lists are in fact empty. The requests that would make such objects are in
/// [`super::later`].
const EMPTY: [&str; 9] = [
    "/backups",
    "/backups/detail",
    "/groups",
    "/groups/detail",
    "/os-volume-transfer",
    "/os-volume-transfer/detail",
    "/qos-specs",
    "/volume-transfers",
    "/volume-transfers/detail",
];

/// Collections without objects, whose single objects are answered with "not found".
const EMPTY_ONES: [&str; 5] = ["backups", "groups", "os-volume-transfer", "qos-specs", "volume-transfers"];

fn extension_view((alias, name, description): &(&str, &str, &str)) -> Value {
    json!({ "alias": alias, "name": name, "description": description, "updated": UPDATED, "links": [] })
}

async fn extensions(_: Ctx) -> Answer {
    Ok(Json(json!({ "extensions": EXTENSIONS.iter().map(extension_view).collect::<Vec<_>>() })))
}

async fn extension(_: Ctx, At(alias): At<String>) -> Answer {
    let found = EXTENSIONS.iter().find(|(known, ..)| *known == alias);
    let found =
        found.ok_or_else(|| Fault::not_found("Extension", alias.chars().take(64).collect::<String>()))?;
    Ok(Json(json!({ "extension": extension_view(found) })))
}

async fn zones<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let zones = app.backend().zones(&ctx.caller).await?;
    let view = |zone: &crate::domain::Zone| json!({ "zoneName": zone.name, "zoneState": { "available": zone.available } });
    Ok(Json(json!({ "availabilityZoneInfo": zones.iter().map(view).collect::<Vec<_>>() })))
}

/// Answers the filters that callers other than admins may use, from the table that requests are
/// checked against.
async fn filters(ctx: Ctx) -> Answer {
    ctx.since(Version::RESOURCE_FILTERS)?;
    // This list is younger than strict filters: other keys are refused.
    ctx.query.knows(&["resource"], ctx.version)?;
    let wanted = ctx.query.get("resource");
    let all =
        COLLECTIONS.iter().filter(|one| wanted.is_none_or(|wanted| wanted == one.resource)).map(|one| {
            let names: Vec<_> = one.keys.iter().filter(|key| key.everybody).map(|key| key.name).collect();
            json!({ "resource": one.resource, "filters": names })
        });
    Ok(Json(json!({ "resource_filters": all.collect::<Vec<_>>() })))
}

async fn hosts<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let zone = ctx.query.get("zone").filter(|zone| !zone.is_empty());
    let known = ctx.query.knows(&["zone"], ctx.version)?;
    let mut hosts = app.backend().storage_hosts(&ctx.caller).await?;
    hosts.retain(|host| known && zone.is_none_or(|zone| host.zone == zone));
    let view = |host: &crate::domain::StorageHost| {
        json!({
            "host_name": host.name,
            "service": "cinder-volume",
            "zone": host.zone,
            "service-status": if host.up { "available" } else { "unavailable" },
            "service-state": if host.enabled { "enabled" } else { "disabled" },
            "last-update": host.heard_at.and_then(naive),
        })
    };
    Ok(Json(json!({ "hosts": hosts.iter().map(view).collect::<Vec<_>>() })))
}

async fn host<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(name): At<String>) -> Answer {
    let usage = app.backend().storage_host(&ctx.caller, &name).await?;
    // As ever in this API, these numbers are texts.
    let view = |of: &HostUsage| {
        json!({ "resource": {
            "host": name,
            "project": of.project,
            "volume_count": of.volumes.to_string(),
            "total_volume_gb": of.size_gib.to_string(),
            "snapshot_count": of.snapshots.to_string(),
            "total_snapshot_gb": of.snapshots_gib.to_string(),
        } })
    };
    let sum = |of: fn(&HostUsage) -> u64| usage.iter().map(of).sum();
    let total = HostUsage {
        project: "(total)".to_owned(),
        volumes: sum(|one| one.volumes),
        size_gib: sum(|one| one.size_gib),
        snapshots: sum(|one| one.snapshots),
        snapshots_gib: sum(|one| one.snapshots_gib),
    };
    let all: Vec<_> = std::iter::once(&total).chain(&usage).map(view).collect();
    Ok(Json(json!({ "host": all })))
}

/// The names of a path's collection, for its list and for its objects, and the policy of the list.
/// The policy for QoS specs is for admins by default, and is not asked: there is nothing to hide,
/// and Horizon's table of types would not be shown.
fn names(path: &str) -> (&'static str, &'static str, Option<&'static str>) {
    match path.split('/').nth(1).unwrap_or_default() {
        "backups" => ("backups", "Backup", Some("backup:get_all")),
        "groups" => ("groups", "Group", Some("group:get_all")),
        "qos-specs" => ("qos_specs", "QoS spec", None),
        _ => ("transfers", "Transfer", Some("volume:get_all_transfers")),
    }
}

async fn empty(ctx: Ctx) -> Answer {
    let (list, one, policy) = names(&ctx.path);
    policy.map(|policy| ctx.may(policy)).transpose()?;
    match ctx.query.get("marker") {
        Some(marker) => Err(Fault::not_found(one, marker.chars().take(64).collect::<String>())),
        None => Ok(Json(json!({ list: [] }))),
    }
}

async fn not_there(ctx: Ctx, At(id): At<String>) -> Fault {
    no_such(&ctx, &id)
}

async fn not_there_below(ctx: Ctx, At((id, _)): At<(String, String)>) -> Fault {
    no_such(&ctx, &id)
}

fn no_such(ctx: &Ctx, id: &str) -> Fault {
    let (_, one, _) = names(&ctx.path);
    let shown: String = id.chars().take(64).collect();
    if one == "QoS spec" {
        return Fault::new(axum::http::StatusCode::NOT_FOUND, format!("No such QoS spec {shown}."));
    }
    Fault::not_found(one, shown)
}
