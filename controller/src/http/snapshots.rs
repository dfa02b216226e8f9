//! `/snapshots`: the contents of volumes at one moment.
//!
//! What must never happen here: a snapshot shown as there before its agent has it; a change without
//! its policy.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use mooring_model::VolumeId;
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::metadata::{KEY_EXTRA, texts};
use super::routes::Routes;
use super::schema;
use super::snapshot_actions::act;
use super::version::Version;
use super::views::{self, SnapshotView};
use super::volumes::{label, volume_id};
use crate::domain::{MetadataChange, NewSnapshot};
use crate::list::SNAPSHOTS;
use crate::policy::Target;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/snapshots", routing::get(list::<B>).post(create::<B>))
        .route("/snapshots/detail", routing::get(detail::<B>))
        .route("/snapshots/{id}", routing::get(show::<B>).put(update::<B>).delete(delete::<B>))
        .route("/snapshots/{id}/action", routing::post(act::<B>))
        .route("/snapshots/{id}/metadata", routing::get(all::<B>).post(merge::<B>).put(replace::<B>))
        .route("/snapshots/{id}/metadata/{key}", routing::get(one::<B>).put(set::<B>).delete(remove::<B>))
}

/// Reads a snapshot's id. Any other text names no snapshot.
pub(super) fn snapshot_id(text: &str) -> Result<VolumeId, Fault> {
    schema::id_of("Snapshot", text).map(|id| VolumeId::from_u128(id.as_u128()))
}

async fn page<B: Backend>(app: &App<B>, ctx: &Ctx, view: SnapshotView) -> Answer {
    let query = ctx.query.list(&SNAPSHOTS, ctx, Version::STRICT_FILTERS)?;
    let page = app.backend().snapshots(&ctx.caller, query.clone()).await?;
    let shown = page.items.iter().map(|snapshot| views::snapshot(ctx, snapshot, view));
    let mut answer = json!({ "snapshots": shown.collect::<Vec<_>>() });
    if let Some(count) = page.count {
        answer["count"] = json!(count);
    }
    if let Some(next) = ctx.query.next(&query, &page.items, |snapshot| snapshot.id.to_string()) {
        answer["snapshots_links"] = json!([{ "rel": "next", "href": ctx.page(&next) }]);
    }
    Ok(Json(answer))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    page(&app, &ctx, SnapshotView::Listed).await
}

async fn detail<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    page(&app, &ctx, SnapshotView::Shown).await
}

async fn create<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let fields = schema::body(&body, "snapshot")?;
    fields.required("volume_id")?;
    let name = label(fields, "name", "display_name")?.flatten();
    let description = label(fields, "description", "display_description")?.flatten();
    let metadata = fields.texts("metadata", KEY_EXTRA)?.unwrap_or_default();
    let force = fields.boolean("force")?;
    // Cinder's schema allows null here, and no volume has that id.
    if fields.some("volume_id").is_none() {
        return Err(Fault::not_found("Volume", "None"));
    }
    let id =
        fields.uuid("volume_id", false)?.ok_or_else(|| fields.wrong("'volume_id' is a required property"))?;
    if ctx.version >= Version::SNAPSHOT_IN_USE && force == Some(false) {
        return Err(Fault::bad_request(
            "Since microversion 3.66 the 'force' flag is invalid for this request.  For backward compatability, \
             however, when the 'force' flag is passed with a value evaluating to True, it is silently ignored.",
        ));
    }
    let in_use = force == Some(true) || ctx.version >= Version::SNAPSHOT_IN_USE;
    ctx.notes.object("volume", &id);
    let new = NewSnapshot { volume: volume_id(&id.to_string())?, name, description, metadata, in_use };
    let snapshot = app.backend().create_snapshot(&ctx.caller, new).await?;
    ctx.notes.object("snapshot", &snapshot.id);
    let view = views::snapshot(&ctx, &snapshot, SnapshotView::Changed);
    Ok((StatusCode::ACCEPTED, Json(json!({ "snapshot": view }))))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let snapshot = app.backend().snapshot(&ctx.caller, snapshot_id(&id)?).await?;
    Ok(Json(json!({ "snapshot": views::snapshot(&ctx, &snapshot, SnapshotView::Shown) })))
}

async fn update<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let id = snapshot_id(&id)?;
    let fields = schema::body(&body, "snapshot")?;
    fields.not_empty()?;
    let name = label(fields, "name", "display_name")?;
    let description = label(fields, "description", "display_description")?;
    let snapshot = app.backend().update_snapshot(&ctx.caller, id, name, description).await?;
    Ok(Json(json!({ "snapshot": views::snapshot(&ctx, &snapshot, SnapshotView::Changed) })))
}

async fn delete<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
) -> Result<StatusCode, Fault> {
    app.backend().delete_snapshot(&ctx.caller, snapshot_id(&id)?).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn metadata<B: Backend>(
    app: &App<B>,
    ctx: &Ctx,
    id: VolumeId,
) -> Result<BTreeMap<String, String>, Fault> {
    let snapshot = app.backend().snapshot(&ctx.caller, id).await?;
    let target = Target { project: Some(&snapshot.project), user: Some(&snapshot.user) };
    ctx.check("volume:get_snapshot_metadata", &target)?;
    Ok(snapshot.metadata)
}

async fn change<B: Backend>(
    app: &App<B>,
    ctx: &Ctx,
    id: &str,
    change: MetadataChange,
) -> Result<Value, Fault> {
    let metadata = app.backend().change_snapshot_metadata(&ctx.caller, snapshot_id(id)?, change).await?;
    Ok(json!({ "metadata": metadata }))
}

async fn all<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    Ok(Json(json!({ "metadata": metadata(&app, &ctx, snapshot_id(&id)?).await? })))
}

async fn merge<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    change(&app, &ctx, &id, MetadataChange::Merge(texts(&body, "metadata")?)).await.map(Json)
}

async fn replace<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    change(&app, &ctx, &id, MetadataChange::Replace(texts(&body, "metadata")?)).await.map(Json)
}

async fn one<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At((id, key)): At<(String, String)>) -> Answer {
    let id = snapshot_id(&id)?;
    let metadata = metadata(&app, &ctx, id).await?;
    let key: String = key.chars().take(schema::TEXT_MAX).collect();
    if let Some(value) = metadata.get(&key) {
        return Ok(Json(json!({ "meta": { key: value } })));
    }
    let text = format!("Snapshot {id} has no metadata with key {key}.");
    Err(Fault::new(StatusCode::NOT_FOUND, text))
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
    let shown = json!(new);
    change(&app, &ctx, &id, MetadataChange::Merge(new)).await?;
    Ok(Json(json!({ "meta": shown })))
}

async fn remove<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
) -> Result<StatusCode, Fault> {
    change(&app, &ctx, &id, MetadataChange::Remove(key)).await?;
    Ok(StatusCode::OK)
}
