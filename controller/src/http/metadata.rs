//! `/volumes/{id}/metadata`: the users' own keys.
//!
//! What must never happen here: a lost change of two concurrent ones. Each change is one
//! transaction of the service. A client that wants more says in `If-Match` what it has read (3.15).

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, routing};
use mooring_model::VolumeId;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::routes::Routes;
use super::schema;
use super::version::Version;
use super::volumes::volume_id;
use crate::domain::MetadataChange;

/// Characters allowed in keys beside those of extra specs.
pub(super) const KEY_EXTRA: &str = " /";

type Metadata = BTreeMap<String, String>;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/volumes/{id}/metadata", routing::get(all::<B>).post(merge::<B>).put(replace::<B>))
        .route("/volumes/{id}/metadata/{key}", routing::get(one::<B>).put(set::<B>).delete(remove::<B>))
}

/// The tag of metadata: equal for equal metadata.
fn tag(metadata: &Metadata) -> String {
    let digest = Sha256::digest(json!(metadata).to_string());
    let bits = digest.iter().take(16).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
    format!("\"{bits:032x}\"")
}

async fn read<B: Backend>(app: &App<B>, ctx: &Ctx, id: VolumeId) -> Result<Metadata, Fault> {
    Ok(app.backend().volume(&ctx.caller, id).await?.metadata)
}

/// Reads the metadata, for a caller that may see it.
async fn shown<B: Backend>(app: &App<B>, ctx: &Ctx, id: VolumeId) -> Result<Metadata, Fault> {
    let volume = app.backend().volume(&ctx.caller, id).await?;
    ctx.may_with("volume:get_volume_metadata", &volume)?;
    Ok(volume.metadata)
}

fn tagged(ctx: &Ctx, name: &str, metadata: &Metadata, shown: &Value) -> Response {
    let mut response = Json(json!({ name: shown })).into_response();
    if ctx.version >= Version::METADATA_TAGS
        && let Ok(tag) = HeaderValue::from_str(&tag(metadata))
    {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// The metadata that the client has read, if it sends `If-Match`. Refuses if that is outdated.
/// `None` without the header.
async fn only_if<B: Backend>(
    app: &App<B>,
    ctx: &Ctx,
    headers: &HeaderMap,
    id: VolumeId,
) -> Result<Option<Metadata>, Fault> {
    if ctx.version < Version::METADATA_TAGS || !headers.contains_key(header::IF_MATCH) {
        return Ok(None);
    }
    let now = read(app, ctx, id).await?;
    let values = headers.get_all(header::IF_MATCH).iter().filter_map(|value| value.to_str().ok());
    let tag = tag(&now);
    let bare = tag.trim_matches('"');
    // Cinder's clients send the tag with and without its quotes.
    let known = |asked: &str| asked == "*" || asked == tag || asked == bare;
    if values.flat_map(|value| value.split(',')).any(|asked| known(asked.trim())) {
        return Ok(Some(now));
    }
    let text = format!("The metadata of volume {id} is not what If-Match names.");
    Err(Fault::new(StatusCode::PRECONDITION_FAILED, text))
}

async fn change<B: Backend>(
    app: &App<B>,
    ctx: &Ctx,
    headers: &HeaderMap,
    id: VolumeId,
    change: MetadataChange,
) -> Result<Metadata, Fault> {
    let only_if = only_if(app, ctx, headers, id).await?;
    Ok(app.backend().change_metadata(&ctx.caller, id, change, only_if).await?)
}

/// Reads the metadata that a body carries under a key, for a volume or a snapshot.
pub(super) fn texts(body: &Value, key: &'static str) -> Result<Metadata, Fault> {
    let fields = schema::body(body, key)?;
    schema::texts(key, &Value::Object(fields.map().clone()), KEY_EXTRA)
}

async fn all<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Result<Response, Fault> {
    let metadata = shown(&app, &ctx, volume_id(&id)?).await?;
    Ok(tagged(&ctx, "metadata", &metadata, &json!(metadata)))
}

async fn merge<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Fault> {
    let new = MetadataChange::Merge(texts(&body, "metadata")?);
    let metadata = change(&app, &ctx, &headers, volume_id(&id)?, new).await?;
    Ok(tagged(&ctx, "metadata", &metadata, &json!(metadata)))
}

async fn replace<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Fault> {
    let new = MetadataChange::Replace(texts(&body, "metadata")?);
    let metadata = change(&app, &ctx, &headers, volume_id(&id)?, new).await?;
    Ok(tagged(&ctx, "metadata", &metadata, &json!(metadata)))
}

async fn one<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
) -> Result<Response, Fault> {
    let id = volume_id(&id)?;
    let metadata = shown(&app, &ctx, id).await?;
    if let Some(value) = metadata.get(&key) {
        return Ok(tagged(&ctx, "meta", &metadata, &json!({ key: value })));
    }
    let key: String = key.chars().take(schema::TEXT_MAX).collect();
    let text = format!("Volume {id} has no metadata with key {key}.");
    Err(Fault::new(StatusCode::NOT_FOUND, text))
}

async fn set<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Fault> {
    let new = texts(&body, "meta")?;
    if new.len() != 1 || !new.contains_key(&key) {
        return Err(Fault::bad_request("Request body and URI mismatch"));
    }
    let shown = json!(new);
    let metadata = change(&app, &ctx, &headers, volume_id(&id)?, MetadataChange::Merge(new)).await?;
    Ok(tagged(&ctx, "meta", &metadata, &shown))
}

async fn remove<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At((id, key)): At<(String, String)>,
    headers: HeaderMap,
) -> Result<StatusCode, Fault> {
    change(&app, &ctx, &headers, volume_id(&id)?, MetadataChange::Remove(key)).await?;
    Ok(StatusCode::OK)
}
