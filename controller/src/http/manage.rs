//! `/manageable_volumes` and `/os-volume-manage`: the LVs of a storage host, and the change of an
//! LV into a volume with its contents.
//!
//! What must never happen here: a field that is silently left out of a request that is then
//! accepted.

use std::cmp::Ordering;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::Ctx;
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, Fields, invalid, python};
use super::version::Version;
use super::views::{self, VolumeKeys};
use super::volumes::label;
use crate::domain::{LvReference, ManageVolume, ManageableVolume};
use crate::list::PAGE_MAX;

const KEYS: [&str; 9] = [
    "description",
    "availability_zone",
    "bootable",
    "volume_type",
    "name",
    "host",
    "cluster",
    "ref",
    "metadata",
];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/manageable_volumes", routing::get(list::<B>).post(manage_listed::<B>))
        .route("/manageable_volumes/detail", routing::get(detail::<B>))
        .route("/os-volume-manage", routing::get(list::<B>).post(manage::<B>))
        .route("/os-volume-manage/detail", routing::get(detail::<B>))
}

/// The storage host of a request. Mooring has no clusters in Cinder's sense.
fn host(host: Option<&str>, cluster: Option<&str>) -> Result<String, Fault> {
    let some = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    match (some(host), some(cluster)) {
        (Some(host), None) => Ok(host),
        (None, Some(cluster)) => {
            Err(Fault::not_found("Service", cluster.chars().take(64).collect::<String>()))
        }
        _ => Err(Fault::invalid_input("One and only one of cluster and host must be set.")),
    }
}

/// Sorts LVs as requested, by Cinder's rules: without a request, the last reference comes first.
fn sort(ctx: &Ctx, lvs: &mut [ManageableVolume]) -> Result<(), Fault> {
    let mut orders = ctx.query.orders()?;
    if orders.is_empty() {
        orders.push(("reference", true));
    }
    // An LV has no time of creation to sort by.
    for (key, _) in &mut orders {
        if *key == "created_at" && ctx.query.get("sort_key").is_none() {
            *key = "reference";
        }
    }
    if let Some((key, _)) = orders.iter().find(|(key, _)| !["reference", "size"].contains(key)) {
        let shown: String = key.chars().take(64).collect();
        return Err(Fault::invalid_input(format!("Invalid sort keys passed: {shown}")));
    }
    lvs.sort_by(|a, b| {
        orders.iter().fold(Ordering::Equal, |order, (key, down)| {
            let next = if *key == "size" { a.bytes.cmp(&b.bytes) } else { a.path().cmp(&b.path()) };
            order.then(if *down { next.reverse() } else { next })
        })
    });
    Ok(())
}

/// The part of the list behind the marker, which is a reference as it is shown, or its name alone.
fn page(ctx: &Ctx, lvs: Vec<ManageableVolume>) -> Result<Vec<ManageableVolume>, Fault> {
    let limit = ctx.query.number("limit")?.unwrap_or(PAGE_MAX).min(PAGE_MAX);
    let offset = ctx.query.number("offset")?.unwrap_or(0);
    let mut begin = usize::try_from(offset).unwrap_or(usize::MAX);
    if let Some(marker) = ctx.query.get("marker") {
        let reference: Option<Value> = serde_json::from_str(&marker.replace('\'', "\"")).ok();
        let named = reference.as_ref().and_then(|value| value["source-name"].as_str()).unwrap_or(marker);
        let Some(at) = lvs.iter().position(|lv| lv.path() == named) else {
            let shown: String = marker.chars().take(64).collect();
            return Err(Fault::invalid_input(format!("marker not found: {shown}")));
        };
        begin = begin.saturating_add(at + 1);
    }
    Ok(lvs.into_iter().skip(begin).take(usize::try_from(limit).unwrap_or(usize::MAX)).collect())
}

async fn shown<B: Backend>(app: &App<B>, ctx: &Ctx, in_full: bool) -> Answer {
    ctx.since(Version::MANAGEABLE)?;
    let host = host(ctx.query.get("host"), ctx.query.get("cluster"))?;
    let known = ctx.query.knows(&["host", "cluster"], ctx.version)?;
    let mut lvs = app.backend().manageable_volumes(&ctx.caller, &host).await?;
    if !known {
        return Ok(Json(json!({ "manageable-volumes": [] })));
    }
    sort(ctx, &mut lvs)?;
    let view = |lv: &ManageableVolume| {
        let mut view = json!({
            "reference": { "source-name": lv.path() },
            "size": lv.bytes.div_ceil(1 << 30),
            "safe_to_manage": lv.unsafe_because.is_none(),
        });
        if in_full {
            view["reason_not_safe"] = json!(lv.unsafe_because);
            view["cinder_id"] = json!(lv.volume);
            let provisioning = if lv.thin { "thin" } else { "thick" };
            view["extra_info"] = json!({ "provisioning": provisioning, "source-id": lv.uuid });
        }
        view
    };
    let page = page(ctx, lvs)?;
    Ok(Json(json!({ "manageable-volumes": page.iter().map(view).collect::<Vec<_>>() })))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    shown(&app, &ctx, false).await
}

async fn detail<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    shown(&app, &ctx, true).await
}

/// Reads `{"source-name": "GROUP/LV"}`, `{"source-id": "LVM's identity"}`, or the name alone.
fn reference(fields: Fields<'_>) -> Result<LvReference, Fault> {
    let value = fields.required("ref")?;
    if let Value::String(name) = value {
        return Ok(LvReference::Name(name.clone()));
    }
    let Value::Object(map) = value else {
        return Err(invalid("ref", value, format!("{} is not of type 'object', 'string'", python(value))));
    };
    match (map.get("source-name"), map.get("source-id"), map.len()) {
        (Some(Value::String(name)), None, 1) => Ok(LvReference::Name(name.clone())),
        (None, Some(Value::String(uuid)), 1) => Ok(LvReference::Uuid(uuid.clone())),
        _ => Err(Fault::bad_request(format!(
            "Manage existing volume failed due to invalid backend reference {}: Reference must contain source-name or source-id \
             element.",
            python(value)
        ))),
    }
}

async fn manage_listed<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Fault> {
    ctx.since(Version::MANAGEABLE)?;
    manage(State(app), ctx, Body(body)).await
}

async fn manage<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let fields = schema::body(&body, "volume")?;
    let known: Vec<_> =
        KEYS.into_iter().filter(|key| *key != "cluster" || ctx.version >= Version::MANAGE_CLUSTER).collect();
    fields.only(&known)?;
    let reference = reference(fields)?;
    let text = |key| Ok::<_, Fault>(fields.text(key, 0, true)?.filter(|text| !text.is_empty()));
    let new = ManageVolume {
        host: host(text("host")?, text("cluster")?)?,
        reference,
        name: label(fields, "name", "name")?.flatten(),
        description: label(fields, "description", "description")?.flatten(),
        volume_type: text("volume_type")?.map(str::to_owned),
        metadata: fields.texts("metadata", " /")?.unwrap_or_default(),
        zone: text("availability_zone")?.map(str::to_owned),
        bootable: fields.boolean("bootable")?.unwrap_or_default(),
    };
    let volume = app.backend().manage_volume(&ctx.caller, new).await?;
    ctx.notes.object("volume", &volume.id);
    let view = views::volume(&ctx, VolumeKeys::changed(&ctx), &volume);
    Ok((StatusCode::ACCEPTED, Json(json!({ "volume": view }))))
}
