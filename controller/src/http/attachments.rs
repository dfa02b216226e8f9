//! `/attachments`.
//!
//! What must never happen here: a connector or connection info in a log; a detach answered with 200 before its receipt is
//! there (the service answers `Pending` until then, which is 504 here: clients ask again).

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use mooring_model::{AttachmentId, Mode, VolumeId};
use serde_json::{Map, Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::query::Cell;
use super::schema::{self, Fields, invalid, python};
use super::version::Version;
use super::views;
use super::volumes::{action_name, no_such_action};
use crate::domain::{Attachment, NewAttachment, NewConnector};
use crate::service::Wait;

type Answer = Result<Json<Value>, Fault>;

const FILTERS: [&str; 4] = ["volume_id", "status", "instance_id", "attach_status"];

const SORT_KEYS: [&str; 6] = ["id", "status", "attach_status", "volume_id", "instance_id", "created_at"];

pub(super) fn routes<B: Backend>() -> Router<App<B>> {
    Router::new()
        .route("/attachments", routing::get(list::<B>).post(create::<B>))
        .route("/attachments/detail", routing::get(detail::<B>))
        .route("/attachments/{id}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
        .route("/attachments/{id}/action", routing::post(action::<B>))
}

/// An attachment's id; any other text names none.
pub(super) fn attachment_id(text: &str) -> Result<AttachmentId, Fault> {
    text.parse().map_err(|_| Fault::not_found("Attachment", text.chars().take(64).collect::<String>()))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    page(&app, &ctx, views::attachment_summary).await
}

async fn detail<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    page(&app, &ctx, views::attachment).await
}

async fn page<B: Backend>(app: &App<B>, ctx: &Ctx, view: impl Fn(&Attachment) -> Value) -> Answer {
    ctx.since(Version::ATTACHMENTS)?;
    let filters = ctx.query.filters(&FILTERS, ctx.version)?;
    let page = ctx.query.page()?;
    // The store can look up one volume's; a text that is no id matches nothing.
    let volume = match filters.iter().find(|(key, _)| *key == "volume_id") {
        Some((_, text)) => match text.parse::<VolumeId>() {
            Ok(id) => Some(id),
            Err(_) => return Ok(Json(json!({ "attachments": [] }))),
        },
        None => None,
    };
    let mut attachments = app.backend().attachments(&ctx.caller, ctx.all_projects()?, volume).await?;
    // The service has the oldest first, the API the newest.
    attachments.reverse();
    for (key, value) in filters {
        attachments.retain(|attachment| matches(attachment, key, value));
    }
    ctx.query.sort(&mut attachments, cell, &SORT_KEYS)?;
    let (attachments, _) = page.cut(attachments, |item| item.id.to_string(), "Attachment", &ctx.query)?;
    let views: Vec<_> = attachments.iter().map(view).collect();
    Ok(Json(json!({ "attachments": views })))
}

fn matches(attachment: &Attachment, key: &str, value: &str) -> bool {
    let status = attachment.status.as_str();
    let volume = attachment.volume.to_string();
    let instance = attachment.instance.map(|id| id.to_string()).unwrap_or_default();
    match key {
        "volume_id" => volume.eq_ignore_ascii_case(value),
        "status" | "attach_status" => status == value,
        "instance_id" => instance.eq_ignore_ascii_case(value),
        "volume_id~" => volume.contains(value),
        "status~" | "attach_status~" => status.contains(value),
        "instance_id~" => instance.contains(value),
        _ => false,
    }
}

fn cell(attachment: &Attachment, key: &str) -> Option<Cell> {
    match key {
        "id" => Some(Cell::Text(attachment.id.to_string())),
        "status" | "attach_status" => Some(Cell::Text(attachment.status.as_str().to_owned())),
        "volume_id" => Some(Cell::Text(attachment.volume.to_string())),
        "instance_id" => attachment.instance.map(|id| Cell::Text(id.to_string())),
        "created_at" => Some(Cell::Time(attachment.created_at)),
        _ => None,
    }
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    ctx.since(Version::ATTACHMENTS)?;
    let attachment = app.backend().attachment(&ctx.caller, attachment_id(&id)?).await?;
    Ok(Json(json!({ "attachment": views::attachment(&attachment) })))
}

/// `mode` of a body.
pub(super) fn mode(fields: Fields<'_>) -> Result<Option<Mode>, Fault> {
    let Some(value) = fields.map().get("mode") else { return Ok(None) };
    match value.as_str().and_then(|text| text.parse().ok()) {
        Some(mode) => Ok(Some(mode)),
        None => Err(invalid("mode", value, format!("{} is not one of ['rw', 'ro']", python(value)))),
    }
}

/// `connector` of a body: missing and null are none.
fn connector(fields: Fields<'_>) -> Result<Option<Map<String, Value>>, Fault> {
    match fields.some("connector") {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map.clone())),
        // Not shown: it could be a connector with its secrets, only written wrongly.
        Some(_) => Err(Fault::bad_request(
            "Invalid input for field/attribute connector. It is not of type 'object', 'null'",
        )),
    }
}

async fn create<B: Backend>(State(app): State<App<B>>, ctx: Ctx, Body(body): Body) -> Answer {
    ctx.since(Version::ATTACHMENTS)?;
    let fields = schema::body(&body, "attachment")?;
    let known: &[&str] = if ctx.version >= Version::MODE {
        &["volume_uuid", "instance_uuid", "connector", "mode"]
    } else {
        &["volume_uuid", "instance_uuid", "connector"]
    };
    fields.required("volume_uuid")?;
    fields.only(known)?;
    let volume = fields
        .uuid("volume_uuid", false)?
        .ok_or_else(|| fields.wrong("'volume_uuid' is a required property"))?;
    let instance = fields.uuid("instance_uuid", false)?;
    let mode = mode(fields)?;
    let connector = match connector(fields)? {
        Some(map) if !map.is_empty() => NewConnector::Client(map),
        _ => NewConnector::None,
    };
    let volume = VolumeId::from_u128(volume.as_u128());
    let new = NewAttachment { id: None, volume, instance, mode, connector };
    let wait = Wait(app.agents_wait());
    let attachment = app.backend().create_attachment(&ctx.caller, new, wait).await?;
    Ok(Json(json!({ "attachment": views::attachment(&attachment) })))
}

async fn update<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    ctx.since(Version::ATTACHMENTS)?;
    let fields = schema::body(&body, "attachment")?;
    fields.required("connector")?;
    fields.only(&["connector"])?;
    let Some(map) = connector(fields)? else {
        return Err(fields.wrong("None is not of type 'object'"));
    };
    if map.is_empty() {
        let why = "{} does not have enough properties";
        return Err(invalid("connector", &Value::Object(map), why));
    }
    let id = attachment_id(&id)?;
    let wait = Wait(app.agents_wait());
    let attachment = app.backend().update_attachment(&ctx.caller, id, map, wait).await?;
    Ok(Json(json!({ "attachment": views::attachment(&attachment) })))
}

async fn action<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Result<StatusCode, Fault> {
    ctx.since(Version::ATTACHMENTS)?;
    match action_name(&body)? {
        "os-complete" => {
            ctx.since(Version::COMPLETE)?;
            app.backend().complete_attachment(&ctx.caller, attachment_id(&id)?).await?;
            Ok(StatusCode::NO_CONTENT)
        }
        other => Err(no_such_action(other)),
    }
}

async fn delete<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    ctx.since(Version::ATTACHMENTS)?;
    let force = ctx.query.flag("force")?;
    let id = attachment_id(&id)?;
    let wait = Wait(app.agents_wait());
    let (_, others) = app.backend().delete_attachment(&ctx.caller, id, force, wait).await?;
    let views: Vec<_> = others.iter().map(views::attachment_summary).collect();
    Ok(Json(json!({ "attachments": views })))
}
