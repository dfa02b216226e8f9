//! Renaming and forgetting hosts: below `/mooring/v1`, for admins.
//!
//! What must never happen here: a host forgotten by a request that does not say its name twice.

use axum::extract::State;
use axum::{Json, routing};
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, Fields};
use super::views::rfc3339;
use crate::domain::{HostLoss, ProjectLoss};

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/hosts/{name}/rename", routing::post(rename::<B>))
        .route("/hosts/{name}/forget", routing::get(loss::<B>).post(forget::<B>))
}

/// Reads a required text.
fn text<'a>(fields: Fields<'a>, key: &'static str) -> Result<&'a str, Fault> {
    fields.only(&[key])?;
    fields.required(key)?;
    fields.text(key, 1, false)?.ok_or_else(|| fields.wrong(format!("{key}: want a text")))
}

async fn rename<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    let new = text(schema::whole(&body)?, "name")?;
    let warnings = app.backend().rename_host(&ctx.caller, &name, new).await?;
    ctx.notes.object("host", &new);
    Ok(Json(json!({ "renamed": name, "name": new, "warnings": warnings })))
}

fn view(loss: &HostLoss) -> Value {
    let project = |one: &ProjectLoss| {
        json!({
            "project": one.project,
            "volumes": one.volumes,
            "snapshots": one.snapshots,
            "gib": one.gib,
            "attachments": one.attachments,
        })
    };
    let total = loss.total();
    json!({
        "name": loss.name,
        "agent_id": loss.agent.map(|id| id.to_string()),
        "last_report": loss.heard_at.and_then(rfc3339),
        "enrolled": loss.enrolled,
        "volumes": total.volumes,
        "snapshots": total.snapshots,
        "gib": total.gib,
        "attachments": total.attachments,
        "attached": loss.attached,
        "projects": loss.projects.iter().map(project).collect::<Vec<_>>(),
        "obstacle": loss.obstacle,
    })
}

async fn loss<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(name): At<String>) -> Answer {
    let loss = app.backend().host_loss(&ctx.caller, &name).await?;
    Ok(Json(json!({ "loss": view(&loss) })))
}

async fn forget<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    let confirm = text(schema::whole(&body)?, "confirm")?;
    let loss = app.backend().forget_host(&ctx.caller, &name, confirm).await?;
    Ok(Json(json!({ "forgotten": view(&loss) })))
}
