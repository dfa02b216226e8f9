//! `POST /mooring/v1/volumes`: a volume from an image of a storage node. The Block Storage API has volumes from images, too, of an
//! image service; these are files beside the disks.
//!
//! What must never happen here: a format that nobody has said.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use mooring_model::ImageSource;
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::Ctx;
use super::fault::Fault;
use super::mooring::volume;
use super::routes::Routes;
use super::schema::{self, Fields, invalid};
use super::volumes::{label, size, volume_id};
use crate::domain::{Hints, HostImage, NewVolume};

const KEYS: [&str; 7] = ["id", "name", "description", "size", "volume_type", "metadata", "image"];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new().route("/volumes", routing::post(import::<B>))
}

fn image(fields: Fields<'_>) -> Result<HostImage, Fault> {
    let image = Fields::of("image", fields.required("image")?)?;
    image.only(&["host", "name", "format"])?;
    let text = |key| Ok::<_, Fault>(image.required(key).and(image.text(key, 1, false))?.unwrap_or_default());
    let wrong = |key, why: String| invalid(key, &json!(image.map().get(key)), why);
    let name = text("name")?.parse().map_err(|error| wrong("name", format!("{error}")))?;
    let format = text("format")?.parse().map_err(|error| wrong("format", format!("{error}")))?;
    Ok(HostImage { host: text("host")?.to_owned(), image: ImageSource { name, format } })
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
        id: fields.uuid("id", false)?.map(|id| volume_id(&id.to_string())).transpose()?,
        name: label(fields, "name", "name")?.flatten(),
        description: label(fields, "description", "description")?.flatten(),
        size_gib: Some(size(fields)?),
        source: None,
        volume_type: fields.text("volume_type", 0, true)?.filter(|text| !text.is_empty()).map(str::to_owned),
        metadata: fields.texts("metadata", " /")?.unwrap_or_default(),
        hints: Hints { image: Some(image(fields)?), ..Hints::default() },
    };
    let made = app.backend().create_volume(&ctx.caller, new).await?;
    let state = app.backend().volume_state(&ctx.caller, made.id).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "volume": volume(&state) }))))
}
