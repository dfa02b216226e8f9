//! `POST /mooring/v1/volumes`: a volume from an image of a storage node. The Block Storage API
//! makes volumes from images of an image service; these images are files beside the disks.
//!
//! `/mooring/v1/volumes/ID/export`: an image export, the other way round.
//!
//! What must never happen here: a format that no request has named.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use mooring_model::{ImageFormat, ImageName, ImageSource, UploadId};
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::mooring::volume;
use super::routes::Routes;
use super::schema::{self, Fields, invalid};
use super::volumes::{label, size, volume_id, wanted_id};
use crate::domain::{ExportAsk, Hints, HostImage, NewVolume, VolumeExport};

const KEYS: [&str; 8] =
    ["id", "request_key", "name", "description", "size", "volume_type", "metadata", "image"];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    let export = routing::post(begin::<B>).get(look::<B>).delete(cancel::<B>);
    Routes::new().route("/volumes", routing::post(import::<B>)).route("/volumes/{id}/export", export)
}

fn image(fields: Fields<'_>) -> Result<HostImage, Fault> {
    let image = Fields::of("image", fields.required("image")?)?;
    image.only(&["host", "name", "format"])?;
    let (name, format) = file(image)?;
    Ok(HostImage { host: text(image, "host")?.to_owned(), image: ImageSource { name, format } })
}

fn text<'a>(image: Fields<'a>, key: &'static str) -> Result<&'a str, Fault> {
    Ok(image.required(key).and(image.text(key, 1, false))?.unwrap_or_default())
}

/// Reads the name and the format of a file.
fn file(image: Fields<'_>) -> Result<(ImageName, ImageFormat), Fault> {
    let wrong = |key, why: String| invalid(key, &json!(image.map().get(key)), why);
    let name = text(image, "name")?.parse().map_err(|error| wrong("name", format!("{error}")))?;
    let format = text(image, "format")?.parse().map_err(|error| wrong("format", format!("{error}")))?;
    Ok((name, format))
}

async fn import<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let fields = schema::body(&body, "volume")?;
    fields.only(&KEYS)?;
    fields.required("size")?;
    let new = NewVolume {
        id: wanted_id(fields)?,
        name: label(fields, "name", "name")?.flatten(),
        description: label(fields, "description", "description")?.flatten(),
        size_gib: Some(size(fields)?),
        source: None,
        volume_type: fields.text("volume_type", 0, true)?.filter(|text| !text.is_empty()).map(str::to_owned),
        metadata: fields.texts("metadata", " /")?.unwrap_or_default(),
        hints: Hints { image: Some(image(fields)?), ..Hints::default() },
    };
    let made = app.backend().create_volume(&ctx.caller, new).await?;
    ctx.notes.object("volume", &made.id);
    let state = app.backend().volume_state(&ctx.caller, made.id).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "volume": volume(&state) }))))
}

type Export = Result<(StatusCode, Json<Value>), Fault>;

async fn ask<B: Backend>(app: &App<B>, ctx: &Ctx, id: &str, ask: ExportAsk, status: StatusCode) -> Export {
    let seen = app.backend().volume_export(&ctx.caller, volume_id(id)?, ask).await?;
    Ok((status, Json(json!({ "export": export(&seen) }))))
}

async fn begin<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Export {
    let fields = schema::body(&body, "export")?;
    fields.only(&["id", "image"])?;
    let image = Fields::of("image", fields.required("image")?)?;
    image.only(&["name", "format"])?;
    let (name, format) = file(image)?;
    let export = fields.uuid("id", false)?.map(|id| UploadId::from_u128(id.as_u128()));
    let begin = ExportAsk::Begin { id: export, image: ImageSource { name, format } };
    ask(&app, &ctx, &id, begin, StatusCode::ACCEPTED).await
}

async fn look<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Export {
    ask(&app, &ctx, &id, ExportAsk::Look, StatusCode::OK).await
}

async fn cancel<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Export {
    ask(&app, &ctx, &id, ExportAsk::Cancel, StatusCode::ACCEPTED).await
}

fn export(seen: &VolumeExport) -> Value {
    json!({
        "id": seen.id.to_string(),
        "storage_host": seen.host,
        "image": { "name": seen.image.name.as_str(), "format": seen.image.format.as_str() },
        "status": seen.state.as_str(),
        "why": seen.why,
    })
}
