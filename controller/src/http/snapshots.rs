//! `/snapshots`: no agent makes any yet, so there is none. The collection is empty, truly; a create is refused, after the
//! checks that Cinder makes first.
//!
//! What must never happen here: an answer that lets a client believe in a snapshot.

use axum::extract::State;
use axum::{Json, routing};
use serde_json::{Value, json};

use super::App;
use super::actions::named;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::routes::Routes;
use super::schema;
use super::version::Version;
use super::volumes::volume_id;
use crate::domain::VolumeStatus;
use crate::list::SNAPSHOTS;

type Answer = Result<Json<Value>, Fault>;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/snapshots", routing::get(list).post(create::<B>))
        .route("/snapshots/detail", routing::get(list))
        .route("/snapshots/{id}", routing::get(none).put(none_to_change).delete(none))
        .route("/snapshots/{id}/action", routing::post(none_to_act_on))
        .route("/snapshots/{id}/metadata", routing::get(none).post(none_to_change).put(none_to_change))
        .route(
            "/snapshots/{id}/metadata/{key}",
            routing::get(none_with_key).put(none_with_key_to_change).delete(none_with_key),
        )
}

fn not_found(id: &str) -> Fault {
    Fault::not_found("Snapshot", id.chars().take(64).collect::<String>())
}

async fn list(ctx: Ctx) -> Answer {
    ctx.may("volume:get_all_snapshots")?;
    let query = ctx.query.list(&SNAPSHOTS, &ctx, Version::STRICT_FILTERS)?;
    match &query.marker {
        Some(marker) => Err(not_found(marker)),
        None if query.count => Ok(Json(json!({ "snapshots": [], "count": 0 }))),
        None => Ok(Json(json!({ "snapshots": [] }))),
    }
}

async fn create<B: Backend>(State(app): State<App<B>>, ctx: Ctx, Body(body): Body) -> Answer {
    let fields = schema::body(&body, "snapshot")?;
    fields.required("volume_id")?;
    for key in ["name", "display_name", "description", "display_description"] {
        fields.label(key)?;
    }
    fields.texts("metadata", " /")?;
    let force = fields.boolean("force")?;
    let id =
        fields.uuid("volume_id", false)?.ok_or_else(|| fields.wrong("'volume_id' is a required property"))?;
    if ctx.version >= Version::SNAPSHOT_IN_USE && force == Some(false) {
        return Err(Fault::bad_request(
            "Since microversion 3.66 the 'force' flag is invalid for this request.  For backward compatability, \
             however, when the 'force' flag is passed with a value evaluating to True, it is silently ignored.",
        ));
    }
    let volume = app.backend().volume(&ctx.caller, volume_id(&id.to_string())?).await?;
    ctx.may_with("volume:create_snapshot", &volume)?;
    let in_use = force == Some(true) || ctx.version >= Version::SNAPSHOT_IN_USE;
    match volume.status {
        VolumeStatus::Available => {}
        VolumeStatus::InUse if in_use => {}
        status => {
            return Err(Fault::bad_request(format!(
                "Invalid volume: Volume {} status must be available, but current status is: {status}.",
                volume.id
            )));
        }
    }
    Err(Fault::not_implemented("snapshots of volumes"))
}

async fn none(_: Ctx, At(id): At<String>) -> Fault {
    not_found(&id)
}

async fn none_to_change(_: Ctx, At(id): At<String>, Body(_): Body) -> Fault {
    not_found(&id)
}

async fn none_to_act_on(_: Ctx, At(id): At<String>, Body(body): Body) -> Fault {
    named(&body).map_or_else(|fault| fault, |_| not_found(&id))
}

async fn none_with_key(_: Ctx, At((id, _)): At<(String, String)>) -> Fault {
    not_found(&id)
}

async fn none_with_key_to_change(_: Ctx, At((id, _)): At<(String, String)>, Body(_): Body) -> Fault {
    not_found(&id)
}
