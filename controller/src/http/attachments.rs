//! `/attachments`.
//!
//! What must never happen here: a connector or connection info in a log; a detach answered with 200
//! before its receipt is there (until then the service answers `Pending`, which is 504 here:
//! clients ask again).

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, routing};
use mooring_model::{AttachmentId, Mode, VolumeId};
use serde_json::{Map, Value, json};

use super::App;
use super::actions::{named, no_such_action};
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, Fields, invalid, python};
use super::version::Version;
use super::views::{self, Each};
use crate::domain::{Attachment, NewAttachment, NewConnector};
use crate::list::ATTACHMENTS;
use crate::service::Wait;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/attachments", routing::get(list::<B>).post(create::<B>))
        .route("/attachments/detail", routing::get(detail::<B>))
        .route("/attachments/{id}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
        .route("/attachments/{id}/action", routing::post(action::<B>))
}

/// Reads an attachment's id. Any other text names no attachment.
pub(super) fn attachment_id(text: &str) -> Result<AttachmentId, Fault> {
    schema::id_of("Attachment", text).map(|id| AttachmentId::from_u128(id.as_u128()))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Result<Response, Fault> {
    let found = page(&app, &ctx).await?;
    Ok(Json(BTreeMap::from([("attachments", Each(&found, views::attachment_summary))])).into_response())
}

async fn detail<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Result<Response, Fault> {
    let found = page(&app, &ctx).await?;
    Ok(Json(BTreeMap::from([("attachments", Each(&found, views::attachment))])).into_response())
}

async fn page<B: Backend>(app: &App<B>, ctx: &Ctx) -> Result<Vec<Attachment>, Fault> {
    ctx.since(Version::ATTACHMENTS)?;
    let query = ctx.query.list(&ATTACHMENTS, ctx, Version::STRICT_FILTERS)?;
    Ok(app.backend().attachments(&ctx.caller, query).await?.items)
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    ctx.since(Version::ATTACHMENTS)?;
    let attachment = app.backend().attachment(&ctx.caller, attachment_id(&id)?).await?;
    Ok(Json(json!({ "attachment": views::attachment(&attachment) })))
}

/// Reads the `mode` of a body.
pub(super) fn mode(fields: Fields<'_>) -> Result<Option<Mode>, Fault> {
    let Some(value) = fields.map().get("mode") else { return Ok(None) };
    match value.as_str().and_then(|text| text.parse().ok()) {
        Some(mode) => Ok(Some(mode)),
        None => Err(invalid("mode", value, format!("{} is not one of ['rw', 'ro']", python(value)))),
    }
}

/// Reads the `connector` of a body; `None` if it is missing or null.
fn connector(fields: Fields<'_>) -> Result<Option<Map<String, Value>>, Fault> {
    match fields.some("connector") {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map.clone())),
        // The value is not shown: it could be a malformed connector with secrets.
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
    ctx.notes.object("volume", &volume);
    if let Some(instance) = &instance {
        ctx.notes.object("instance", instance);
    }
    let new = NewAttachment { id: None, volume, instance, mode, connector };
    let wait = Wait(app.agents_wait());
    let attachment = app.backend().create_attachment(&ctx.caller, new, wait).await?;
    ctx.notes.object("attachment", &attachment.id);
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
    match named(&body)?.0 {
        name @ "os-complete" => {
            ctx.notes.action(name);
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
