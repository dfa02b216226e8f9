//! `/default-types` (3.62): the default type of a project's volumes.
//!
//! What must never happen here: an answer before the version that has it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use serde_json::{Value, json};
use uuid::Uuid;

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, project_id};
use super::version::Version;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/default-types", routing::get(list::<B>))
        .route("/default-types/{project}", routing::get(show::<B>).put(set::<B>).delete(unset::<B>))
}

fn view(project: &str, id: Uuid) -> Value {
    json!({ "project_id": project, "volume_type_id": id.to_string() })
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    ctx.since(Version::DEFAULT_TYPES)?;
    let all = app.backend().default_types(&ctx.caller).await?;
    let views: Vec<_> = all.iter().map(|(project, id)| view(project, *id)).collect();
    Ok(Json(json!({ "default_types": views })))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(project): At<String>) -> Answer {
    ctx.since(Version::DEFAULT_TYPES)?;
    let project = project_id(&project)?;
    let id = app.backend().project_default(&ctx.caller, project).await?;
    Ok(Json(json!({ "default_type": view(project, id) })))
}

async fn set<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(project): At<String>,
    Body(body): Body,
) -> Answer {
    ctx.since(Version::DEFAULT_TYPES)?;
    let project = project_id(&project)?;
    let fields = schema::body(&body, "default_type")?;
    fields.required("volume_type")?;
    fields.only(&["volume_type"])?;
    let wanted = fields.text("volume_type", 1, false)?.unwrap_or_default();
    let id = app.backend().set_project_default(&ctx.caller, project, wanted).await?;
    Ok(Json(json!({ "default_type": view(project, id) })))
}

async fn unset<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(project): At<String>,
) -> Result<StatusCode, Fault> {
    ctx.since(Version::DEFAULT_TYPES)?;
    app.backend().unset_project_default(&ctx.caller, project_id(&project)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
