//! `/volumes/{id}/metadata`: the users' own keys.
//!
//! What must never happen here: two changes of which one is lost. They follow each other; the store has one controller.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use mooring_model::VolumeId;
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::schema;
use super::volumes::volume_id;

type Answer = Result<Json<Value>, Fault>;

/// Characters of keys beside those of extra specs.
const KEY_EXTRA: &str = " /";

pub(super) fn routes<B: Backend>() -> Router<App<B>> {
    Router::new()
        .route("/volumes/{id}/metadata", routing::get(all::<B>).post(merge::<B>).put(replace::<B>))
        .route("/volumes/{id}/metadata/{key}", routing::get(one::<B>).put(set::<B>).delete(remove::<B>))
}

async fn read<B: Backend>(app: &App<B>, ctx: &Ctx, id: VolumeId) -> Result<BTreeMap<String, String>, Fault> {
    Ok(app.backend().volume(&ctx.caller, id).await?.metadata)
}

async fn write<B: Backend>(
    app: &App<B>,
    ctx: &Ctx,
    id: VolumeId,
    metadata: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Fault> {
    let volume = app.backend().update_volume(&ctx.caller, id, None, None, Some(metadata)).await?;
    Ok(volume.metadata)
}

fn texts(body: &Value, key: &'static str) -> Result<BTreeMap<String, String>, Fault> {
    let fields = schema::body(body, key)?;
    schema::texts(key, &Value::Object(fields.map().clone()), KEY_EXTRA)
}

fn no_such_key(id: &str, key: &str) -> Fault {
    let shown: String = key.chars().take(schema::TEXT_MAX).collect();
    Fault::new(StatusCode::NOT_FOUND, format!("Volume {id} has no metadata with key {shown}."))
}

async fn all<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let metadata = read(&app, &ctx, volume_id(&id)?).await?;
    Ok(Json(json!({ "metadata": metadata })))
}

async fn merge<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let new = texts(&body, "metadata")?;
    let id = volume_id(&id)?;
    let _order = app.metadata_order().await;
    let mut metadata = read(&app, &ctx, id).await?;
    metadata.extend(new);
    Ok(Json(json!({ "metadata": write(&app, &ctx, id, metadata).await? })))
}

async fn replace<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let metadata = texts(&body, "metadata")?;
    let id = volume_id(&id)?;
    let _order = app.metadata_order().await;
    Ok(Json(json!({ "metadata": write(&app, &ctx, id, metadata).await? })))
}

async fn one<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At((id, key)): At<(String, String)>) -> Answer {
    match read(&app, &ctx, volume_id(&id)?).await?.remove(&key) {
        Some(value) => Ok(Json(json!({ "meta": { key: value } }))),
        None => Err(no_such_key(&id, &key)),
    }
}

async fn set<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
    Body(body): Body,
) -> Answer {
    let new = texts(&body, "meta")?;
    if new.len() != 1 || !new.contains_key(&key) {
        return Err(Fault::bad_request("Request body and URI mismatch"));
    }
    let id = volume_id(&id)?;
    let _order = app.metadata_order().await;
    let mut metadata = read(&app, &ctx, id).await?;
    metadata.extend(new.clone());
    write(&app, &ctx, id, metadata).await?;
    Ok(Json(json!({ "meta": new })))
}

async fn remove<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((text, key)): At<(String, String)>,
) -> Result<StatusCode, Fault> {
    let id = volume_id(&text)?;
    let _order = app.metadata_order().await;
    let mut metadata = read(&app, &ctx, id).await?;
    if metadata.remove(&key).is_none() {
        return Err(no_such_key(&text, &key));
    }
    write(&app, &ctx, id, metadata).await?;
    Ok(StatusCode::OK)
}
