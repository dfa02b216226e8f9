//! `/volumes`.
//!
//! What must never happen here: a wish that is silently left out of a request that is then accepted.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use mooring_model::VolumeId;
use serde_json::{Map, Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Fault, MALFORMED};
use super::query::{Cell, time_matches};
use super::schema::{self, Fields, invalid, python};
use super::version::Version;
use super::views::{self, ZONE};
use crate::domain::{NewVolume, Volume};

type Answer = Result<Json<Value>, Fault>;

/// Keys of a body since 3.53; before, others are ignored.
const CREATE_KEYS: [&str; 17] = [
    // Ours: a client that chooses the id can repeat the request after a lost answer.
    "id",
    "name",
    "display_name",
    "description",
    "display_description",
    "size",
    "volume_type",
    "availability_zone",
    "metadata",
    "multiattach",
    "snapshot_id",
    "source_volid",
    "imageRef",
    "image_id",
    "backup_id",
    "group_id",
    "consistencygroup_id",
];

const UPDATE_KEYS: [&str; 5] = ["name", "display_name", "description", "display_description", "metadata"];

const HINTS: &str = "OS-SCH-HNT:scheduler_hints";

const FILTERS: [&str; 14] = [
    "name",
    "display_name",
    "status",
    "metadata",
    "bootable",
    "migration_status",
    "availability_zone",
    "group_id",
    "size",
    "created_at",
    "updated_at",
    "consumes_quota",
    "multiattach",
    "volume_type_id",
];

const SORT_KEYS: [&str; 10] = [
    "id",
    "name",
    "display_name",
    "status",
    "size",
    "created_at",
    "updated_at",
    "volume_type_id",
    "availability_zone",
    "bootable",
];

pub(super) fn routes<B: Backend>() -> Router<App<B>> {
    Router::new()
        .route("/volumes", routing::get(list::<B>).post(create::<B>))
        .route("/volumes/detail", routing::get(detail::<B>))
        .route("/volumes/{id}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
        .route("/volumes/{id}/action", routing::post(action::<B>))
}

/// A volume's id; any other text names no volume.
pub(super) fn volume_id(text: &str) -> Result<VolumeId, Fault> {
    text.parse().map_err(|_| Fault::not_found("Volume", text.chars().take(64).collect::<String>()))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    page(&app, &ctx, views::volume_summary).await
}

async fn detail<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    page(&app, &ctx, |ctx, volume| views::volume(ctx, volume, true)).await
}

async fn page<B: Backend>(app: &App<B>, ctx: &Ctx, view: impl Fn(&Ctx, &Volume) -> Value) -> Answer {
    let filters = ctx.query.filters(&FILTERS, ctx.version)?;
    let with_count = ctx.version >= Version::COUNT && ctx.query.flag("with_count")?;
    let page = ctx.query.page()?;
    let mut volumes = app.backend().volumes(&ctx.caller, ctx.all_projects()?).await?;
    if let Some(project) = ctx.query.get("project_id").filter(|_| ctx.caller.admin) {
        volumes.retain(|volume| volume.project == project);
    }
    for (key, value) in filters {
        let mut failed = None;
        volumes.retain(|volume| {
            matches(ctx, volume, key, value).unwrap_or_else(|fault| {
                failed = Some(fault);
                true
            })
        });
        if let Some(fault) = failed {
            return Err(fault);
        }
    }
    ctx.query.sort(&mut volumes, cell, &SORT_KEYS)?;
    let count = volumes.len();
    let (volumes, next) = page.cut(volumes, |volume| volume.id.to_string(), "Volume", &ctx.query)?;
    let views: Vec<_> = volumes.iter().map(|volume| view(ctx, volume)).collect();
    let mut body = Map::new();
    body.insert("volumes".into(), json!(views));
    if with_count {
        body.insert("count".into(), json!(count));
    }
    if let Some(next) = next {
        let href = ctx.href(&format!("{}?{next}", ctx.path));
        body.insert("volumes_links".into(), json!([{ "rel": "next", "href": href }]));
    }
    Ok(Json(Value::Object(body)))
}

fn matches(ctx: &Ctx, volume: &Volume, key: &str, value: &str) -> Result<bool, Fault> {
    let name = volume.name.as_deref().unwrap_or_default();
    let status = volume.status.as_str();
    let flag = |key| ctx.query.flag(key);
    Ok(match key {
        "name" | "display_name" => name == value,
        "name~" | "display_name~" => name.contains(value),
        "status" => status == value,
        "status~" => status.contains(value),
        "availability_zone" | "availability_zone~" => value == ZONE,
        "size" => value.parse() == Ok(volume.size_gib),
        "volume_type_id" => volume.volume_type.id.to_string() == value,
        "bootable" => !flag("bootable")?,
        "consumes_quota" => flag("consumes_quota")?,
        "multiattach" => flag("multiattach")? == volume.multiattach,
        "metadata" => {
            let wanted = super::types::dictionary(value)
                .ok_or_else(|| Fault::bad_request("metadata: want a dictionary as {'key': 'value'}"))?;
            wanted.iter().all(|(key, value)| volume.metadata.get(key) == Some(value))
        }
        "created_at" if ctx.version >= Version::TIME_FILTERS => {
            time_matches(key, value, Some(volume.created_at))?
        }
        "updated_at" if ctx.version >= Version::TIME_FILTERS => time_matches(key, value, volume.updated_at)?,
        // No volume is in a group, none migrates, and before 3.60 times have no operators.
        _ => false,
    })
}

fn cell(volume: &Volume, key: &str) -> Option<Cell> {
    match key {
        "id" => Some(Cell::Text(volume.id.to_string())),
        "name" | "display_name" => volume.name.clone().map(Cell::Text),
        "status" => Some(Cell::Text(volume.status.as_str().to_owned())),
        "size" => Some(Cell::Number(volume.size_gib.into())),
        "created_at" => Some(Cell::Time(volume.created_at)),
        "updated_at" => volume.updated_at.map(Cell::Time),
        "volume_type_id" => Some(Cell::Text(volume.volume_type.id.to_string())),
        // All are in one zone, and none is bootable.
        _ => None,
    }
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let volume = app.backend().volume(&ctx.caller, volume_id(&id)?).await?;
    Ok(Json(json!({ "volume": views::volume(&ctx, &volume, true) })))
}

/// A name or description under either of its keys: not said, said to be none, or said.
#[allow(clippy::option_option, reason = "the three are different wishes")]
fn label(fields: Fields<'_>, key: &str, old: &str) -> Result<Option<Option<String>>, Fault> {
    for key in [key, old] {
        let text = fields.label(key)?;
        if fields.map().contains_key(key) {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

fn size(fields: Fields<'_>) -> Result<u32, Fault> {
    let Some(value) = fields.some("size") else { return Err(Fault::bad_request(MALFORMED)) };
    let number = match value {
        Value::String(text) => {
            if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(invalid("size", value, format!("{} does not match '^[0-9]+$'", python(value))));
            }
            text.parse::<i128>().unwrap_or(i128::MAX)
        }
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => return Err(wrong_size(value)),
        },
        _ => return Err(wrong_size(value)),
    };
    let max = i32::MAX;
    if number < 1 {
        return Err(invalid("size", value, format!("{number} is less than the minimum of 1")));
    }
    if number > max.into() {
        return Err(invalid("size", value, format!("{number} is greater than the maximum of {max}")));
    }
    u32::try_from(number).map_err(|_| wrong_size(value))
}

fn wrong_size(value: &Value) -> Fault {
    invalid("size", value, format!("{} is not of type 'integer', 'string', 'null'", python(value)))
}

/// Sources that a volume could be made from. None exists, or none can be copied yet.
async fn no_source<B: Backend>(app: &App<B>, ctx: &Ctx, fields: Fields<'_>) -> Result<(), Fault> {
    for (key, kind) in [("snapshot_id", "Snapshot"), ("backup_id", "Backup"), ("group_id", "Group")] {
        if let Some(id) = fields.uuid(key, true)? {
            return Err(Fault::not_found(kind, id.to_string()));
        }
    }
    if let Some(id) = fields.uuid("consistencygroup_id", true)? {
        return Err(Fault::not_found("Group", id.to_string()));
    }
    if let Some(id) = fields.uuid("source_volid", true)? {
        app.backend().volume(&ctx.caller, volume_id(&id.to_string())?).await?;
        return Err(Fault::not_implemented("volumes that are copies of volumes (source_volid)"));
    }
    for key in ["imageRef", "image_id"] {
        // Old clients send an empty text for none.
        if fields.some(key).is_some_and(|value| value != "") {
            return Err(Fault::not_implemented(format!("volumes made from images ({key})")));
        }
    }
    Ok(())
}

fn not_shared_by_flag(fields: Fields<'_>) -> Result<(), Fault> {
    let Some(value) = fields.some("multiattach") else { return Ok(()) };
    let known = match value {
        Value::Bool(value) => Some(*value),
        Value::String(text) => schema::boolean(text),
        _ => None,
    };
    match known {
        Some(false) => Ok(()),
        Some(true) => Err(Fault::bad_request(
            "multiattach parameter has been removed. The default behavior is to use multiattach enabled volume \
             types. Contact your administrator to create a multiattach enabled volume type and use it to create \
             multiattach volumes.",
        )),
        None => {
            let why = format!("{} is not valid under any of the given schemas", python(value));
            Err(invalid("multiattach", value, why))
        }
    }
}

async fn create<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let fields = schema::body(&body, "volume")?;
    if ctx.version >= Version::STRICT_VOLUMES {
        fields.only(&CREATE_KEYS)?;
    }
    not_shared_by_flag(fields)?;
    let hints = [body.get(HINTS), fields.map().get("scheduler_hints")];
    if hints.into_iter().flatten().any(|hints| !hints.is_null() && hints != &json!({})) {
        return Err(Fault::not_implemented("scheduler hints"));
    }
    let metadata = fields.texts("metadata", " /")?.unwrap_or_default();
    let name = label(fields, "name", "display_name")?.flatten();
    let description = label(fields, "description", "display_description")?.flatten();
    let volume_type = fields.text("volume_type", 0, true)?.filter(|text| !text.is_empty()).map(str::to_owned);
    let size_gib = if fields.some("size").is_some() { Some(size(fields)?) } else { None };
    no_source(&app, &ctx, fields).await?;
    let zone = fields.text("availability_zone", 0, true)?.filter(|zone| !zone.is_empty());
    if let Some(zone) = zone.filter(|zone| *zone != ZONE) {
        return Err(Fault::bad_request(format!("Availability zone '{zone}' is invalid.")));
    }
    let size_gib = size_gib.ok_or_else(|| Fault::bad_request(MALFORMED))?;
    let id = fields.uuid("id", false)?.map(|id| volume_id(&id.to_string())).transpose()?;
    let new = NewVolume { id, name, description, size_gib, volume_type, metadata };
    let volume = app.backend().create_volume(&ctx.caller, new).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "volume": views::volume(&ctx, &volume, false) }))))
}

async fn update<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::body(&body, "volume")?;
    fields.not_empty()?;
    if ctx.version >= Version::STRICT_VOLUMES {
        fields.only(&UPDATE_KEYS)?;
    }
    let name = label(fields, "name", "display_name")?;
    let description = label(fields, "description", "display_description")?;
    let metadata = fields.texts("metadata", " /")?;
    let id = volume_id(&id)?;
    let _order = app.metadata_order().await;
    let volume = app.backend().update_volume(&ctx.caller, id, name, description, metadata).await?;
    Ok(Json(json!({ "volume": views::volume(&ctx, &volume, false) })))
}

async fn delete<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
) -> Result<StatusCode, Fault> {
    // Snapshots do not exist: there is none that `cascade` would have to take along.
    ctx.query.flag("cascade")?;
    let id = volume_id(&id)?;
    if ctx.version >= Version::FORCE_DELETE && ctx.query.flag("force")? {
        app.backend().volume(&ctx.caller, id).await?;
        return Err(Fault::not_implemented("forced deletes of volumes"));
    }
    app.backend().delete_volume(&ctx.caller, id).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Actions of the Block Storage API.
const ACTIONS: [&str; 28] = [
    "os-attach",
    "os-begin_detaching",
    "os-detach",
    "os-extend",
    "os-force_delete",
    "os-force_detach",
    "os-initialize_connection",
    "os-migrate_volume",
    "os-migrate_volume_completion",
    "os-reimage",
    "os-reserve",
    "os-reset_status",
    "os-retype",
    "os-roll_detaching",
    "os-set_bootable",
    "os-set_image_metadata",
    "os-show_image_metadata",
    "os-terminate_connection",
    "os-unmanage",
    "os-unreserve",
    "os-unset_image_metadata",
    "os-update_readonly_flag",
    "os-volume_upload_image",
    "os-promote-replica",
    "os-reenable-replica",
    "os-update_volume_admin_metadata",
    "os-extend_volume_completion",
    "revert",
];

/// The one key of an action's body.
pub(super) fn action_name(body: &Value) -> Result<&str, Fault> {
    match body.as_object().map(|map| map.keys().collect::<Vec<_>>()).as_deref() {
        Some([name]) => Ok(name.as_str()),
        _ => Err(Fault::bad_request("Malformed request body")),
    }
}

pub(super) fn no_such_action(name: &str) -> Fault {
    let shown: String = name.chars().take(64).collect();
    Fault::bad_request(format!("There is no such action: {shown}"))
}

async fn action<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Result<StatusCode, Fault> {
    let name = action_name(&body)?;
    if !ACTIONS.contains(&name) {
        return Err(no_such_action(name));
    }
    app.backend().volume(&ctx.caller, volume_id(&id)?).await?;
    Err(Fault::not_implemented(format!("the action {name}")))
}
