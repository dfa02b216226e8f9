//! `/volumes`.
//!
//! What must never happen here: a field that is silently left out of a request that is then
//! accepted.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, routing};
use mooring_model::{Source, VolumeId};
use serde::Serialize;
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault, MALFORMED};
use super::routes::Routes;
use super::schema::{self, Fields, invalid, python};
use super::version::Version;
use super::views::{self, Each, VolumeKeys};
use crate::domain::{Hints, NewVolume, RequestKey, WantedId};
use crate::list::{ListQuery, Page, VOLUMES};

/// Keys of a body since 3.53; earlier versions ignore others.
const CREATE_KEYS: [&str; 18] = [
    // Mooring's own keys: a client that names its request can repeat it after a lost answer. The id
    // is for admins.
    "id",
    "request_key",
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

/// The most volumes that one hint names.
const HINTED_MAX: usize = 100;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/volumes", routing::get(list::<B>).post(create::<B>))
        .route("/volumes/detail", routing::get(detail::<B>))
        .route("/volumes/summary", routing::get(summary::<B>))
        .route("/volumes/{id}/encryption", routing::get(encryption::<B>))
        .route("/volumes/{id}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
}

/// Reads a volume's id. Any other text names no volume.
pub(super) fn volume_id(text: &str) -> Result<VolumeId, Fault> {
    schema::id_of("Volume", text).map(|id| VolumeId::from_u128(id.as_u128()))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Result<Response, Fault> {
    let query = ctx.query.list(&VOLUMES, &ctx, Version::STRICT_FILTERS)?;
    let page = app.backend().volume_names(&ctx.caller, query.clone()).await?;
    Ok(paged(&ctx, &query, &page, |volume| volume.id, views::volume_summary))
}

async fn detail<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Result<Response, Fault> {
    let query = ctx.query.list(&VOLUMES, &ctx, Version::STRICT_FILTERS)?;
    let page = app.backend().volumes(&ctx.caller, query.clone()).await?;
    let keys = VolumeKeys::shown(&ctx);
    Ok(paged(&ctx, &query, &page, |volume| volume.id, |ctx, volume| views::volume(ctx, keys, volume)))
}

fn paged<'a, T, Shown: Serialize>(
    ctx: &'a Ctx,
    query: &ListQuery,
    page: &'a Page<T>,
    id: impl Fn(&T) -> VolumeId,
    view: impl Fn(&'a Ctx, &'a T) -> Shown,
) -> Response {
    let next = ctx.query.next(query, &page.items, |item| id(item).to_string());
    let next = next.map(|next| json!([{ "rel": "next", "href": ctx.page(&next) }]));
    let volumes = Each(&page.items, |item: &'a T| view(ctx, item));
    Json(Paged { count: page.count, volumes, volumes_links: next }).into_response()
}

/// A page of volumes.
#[derive(Serialize)]
struct Paged<V> {
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    volumes: V,
    #[serde(skip_serializing_if = "Option::is_none")]
    volumes_links: Option<Value>,
}

async fn summary<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    ctx.since(Version::SUMMARY)?;
    let query = ctx.query.list(&VOLUMES, &ctx, Version::STRICT_FILTERS)?;
    let with_metadata = ctx.version >= Version::SUMMARY_METADATA;
    let sums = app.backend().volumes_summary(&ctx.caller, query, with_metadata).await?;
    let mut view = json!({ "total_count": sums.count, "total_size": sums.size_gib });
    if with_metadata {
        view["metadata"] = json!(sums.metadata);
    }
    Ok(Json(json!({ "volume-summary": view })))
}

/// Answers what Nova asks before it connects an encrypted volume: no volume is encrypted.
async fn encryption<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let volume = app.backend().volume(&ctx.caller, volume_id(&id)?).await?;
    ctx.may_with("volume_extension:volume_encryption_metadata", &volume)?;
    Ok(Json(json!({ "encryption_key_id": null })))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let volume = app.backend().volume(&ctx.caller, volume_id(&id)?).await?;
    Ok(Json(json!({ "volume": views::volume(&ctx, VolumeKeys::shown(&ctx), &volume) })))
}

/// Reads a name or description under either of its keys. Outer `None` if neither key is there;
/// inner `None` if the value is null.
#[allow(clippy::option_option, reason = "the three have different meanings")]
pub(super) fn label(fields: Fields<'_>, key: &str, old: &str) -> Result<Option<Option<String>>, Fault> {
    for key in [key, old] {
        let text = fields.label(key)?;
        if fields.map().contains_key(key) {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

pub(super) fn size(fields: Fields<'_>) -> Result<u32, Fault> {
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

/// The source of a volume's contents.
fn source(fields: Fields<'_>) -> Result<Option<Source>, Fault> {
    for (key, kind) in [("backup_id", "Backup"), ("group_id", "Group")] {
        if let Some(id) = fields.uuid(key, true)? {
            return Err(Fault::not_found(kind, id.to_string()));
        }
    }
    if let Some(id) = fields.uuid("consistencygroup_id", true)? {
        return Err(Fault::not_found("Group", id.to_string()));
    }
    let id = |id: uuid::Uuid| volume_id(&id.to_string());
    let snapshot = fields.uuid("snapshot_id", true)?.map(id).transpose()?.map(Source::Snapshot);
    let volume = fields.uuid("source_volid", true)?.map(id).transpose()?.map(Source::Volume);
    if snapshot.is_some() && volume.is_some() {
        return Err(Fault::invalid_input("snapshot_id and source_volid: a volume has one source."));
    }
    Ok(snapshot.or(volume))
}

/// Refuses a volume from an image. This comes after all mistakes of the client: only a valid
/// request is told that the feature is missing.
fn not_from_an_image(fields: Fields<'_>) -> Result<(), Fault> {
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

/// The volumes that a hint names: one id, or a list of ids.
fn hinted(key: &str, value: &Value) -> Result<Vec<VolumeId>, Fault> {
    let one = |value: &Value| {
        let id = value.as_str().and_then(schema::id);
        let id = id.and_then(|id| id.to_string().parse().ok());
        id.ok_or_else(|| invalid(key, value, format!("{} is not a 'uuid'", python(value))))
    };
    let ids = match value {
        Value::Null => Vec::new(),
        Value::Array(list) if list.len() > HINTED_MAX => {
            return Err(Fault::invalid_input(format!("{key} names more than {HINTED_MAX} volumes.")));
        }
        Value::Array(list) => list.iter().map(one).collect::<Result<_, _>>()?,
        other => vec![one(other)?],
    };
    Ok(ids)
}

/// The scheduler hints, at the top level or within the volume. Refuses unknown hints, which would
/// be silently ignored.
fn hints(body: &Value, fields: Fields<'_>) -> Result<Hints, Fault> {
    let mut hints = Hints::default();
    for value in [body.get(HINTS), fields.map().get("scheduler_hints")].into_iter().flatten() {
        let map = match value {
            Value::Null => continue,
            Value::Object(map) => map,
            other => {
                return Err(invalid(
                    "scheduler_hints",
                    other,
                    format!("{} is not of type 'object'", python(other)),
                ));
            }
        };
        for (key, value) in map {
            match key.as_str() {
                "same_host" => hints.same_host.extend(hinted(key, value)?),
                "different_host" => hints.different_host.extend(hinted(key, value)?),
                other => {
                    let shown: String = other.chars().take(64).collect();
                    return Err(Fault::not_implemented(format!("the scheduler hint {shown}")));
                }
            }
        }
    }
    Ok(hints)
}

/// The requested id, or the key of the request that the id follows from.
pub(super) fn wanted_id(fields: Fields<'_>) -> Result<Option<WantedId>, Fault> {
    let given = fields.uuid("id", false)?.map(|id| volume_id(&id.to_string())).transpose()?;
    let key = fields.text("request_key", 1, false)?;
    match (given, key) {
        (Some(_), Some(_)) => {
            Err(Fault::invalid_input("id and request_key: the id follows from the request key."))
        }
        (Some(id), None) => Ok(Some(WantedId::Given(id))),
        (None, Some(text)) => {
            let key = RequestKey::new(text).ok_or_else(|| {
                let value = json!(text);
                invalid("request_key", &value, format!("{} is too long", python(&value)))
            })?;
            Ok(Some(WantedId::Key(key)))
        }
        (None, None) => Ok(None),
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
    let mut hints = hints(&body, fields)?;
    let metadata = fields.texts("metadata", " /")?.unwrap_or_default();
    let name = label(fields, "name", "display_name")?.flatten();
    let description = label(fields, "description", "display_description")?.flatten();
    let volume_type = fields.text("volume_type", 0, true)?.filter(|text| !text.is_empty()).map(str::to_owned);
    let size_gib = if fields.some("size").is_some() { Some(size(fields)?) } else { None };
    let zone = fields.text("availability_zone", 0, true)?.filter(|zone| !zone.is_empty());
    hints.zone = zone.map(str::to_owned);
    let id = wanted_id(fields)?;
    // The size may be missing if the source gives it.
    let source = source(fields)?;
    if source.is_none() && size_gib.is_none() {
        return Err(Fault::bad_request(MALFORMED));
    }
    not_from_an_image(fields)?;
    let new = NewVolume { id, name, description, size_gib, source, volume_type, metadata, hints };
    let volume = app.backend().create_volume(&ctx.caller, new).await?;
    ctx.notes.object("volume", &volume.id);
    Ok((
        StatusCode::ACCEPTED,
        Json(json!({ "volume": views::volume(&ctx, VolumeKeys::changed(&ctx), &volume) })),
    ))
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
    let volume = app.backend().update_volume(&ctx.caller, id, name, description, metadata).await?;
    Ok(Json(json!({ "volume": views::volume(&ctx, VolumeKeys::changed(&ctx), &volume) })))
}

async fn delete<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
) -> Result<StatusCode, Fault> {
    let cascade = ctx.query.flag("cascade")?;
    let id = volume_id(&id)?;
    if ctx.version >= Version::FORCE_DELETE && ctx.query.flag("force")? {
        app.backend().force_delete_volume(&ctx.caller, id, cascade).await?;
        return Ok(StatusCode::ACCEPTED);
    }
    if cascade {
        app.backend().delete_volume_with_snapshots(&ctx.caller, id).await?;
    } else {
        app.backend().delete_volume(&ctx.caller, id).await?;
    }
    Ok(StatusCode::ACCEPTED)
}
