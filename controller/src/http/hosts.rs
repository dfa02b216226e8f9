//! Below `/mooring/v1`: enrolled hosts, what operators say of them, and how a volume came to its place.
//!
//! What must never happen here: a decision.

use axum::extract::State;
use axum::{Json, routing};
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::routes::Routes;
use super::schema;
use super::views::rfc3339;
use super::volumes::volume_id;
use crate::domain::{Host, HostChange};
use crate::service::Refusal;

type Answer = Result<Json<Value>, Fault>;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/hosts", routing::get(list::<B>))
        .route("/hosts/{name}", routing::get(show::<B>))
        .route("/hosts/{name}/enable", routing::post(change::<B>))
        .route("/hosts/{name}/disable", routing::post(change::<B>))
        .route("/hosts/{name}/drain", routing::post(change::<B>))
        .route("/hosts/{name}/undrain", routing::post(change::<B>))
        .route("/volumes/{id}/placement", routing::get(placement::<B>))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let hosts = app.backend().hosts(&ctx.caller).await?;
    Ok(Json(json!({ "hosts": hosts.iter().map(view).collect::<Vec<_>>() })))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(name): At<String>) -> Answer {
    let hosts = app.backend().hosts(&ctx.caller).await?;
    let is = |host: &&Host| host.name == name || host.agent.is_some_and(|agent| agent.to_string() == name);
    let shown = || name.chars().take(64).collect();
    let found = hosts.iter().find(is).ok_or_else(|| Refusal::NotFound { kind: "Host", what: shown() })?;
    Ok(Json(json!({ "host": view(found) })))
}

fn view(host: &Host) -> Value {
    let pools: Vec<_> = host
        .pools
        .iter()
        .map(|pool| json!({ "name": pool.name, "total_bytes": pool.total, "free_bytes": pool.free }))
        .collect();
    json!({
        "name": host.name,
        "address": host.address,
        "agent_id": host.agent.map(|id| id.to_string()),
        "initiator": host.initiator.as_ref().map(ToString::to_string),
        "zone": host.zone,
        "disabled": host.disabled,
        "disabled_reason": host.disabled_reason,
        "drained": host.drained,
        "up": host.up,
        "why_down": host.why_down,
        "last_report": host.last_report.and_then(rfc3339),
        "pools": pools,
        "problems": host.problems,
    })
}

async fn change<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    let word = ctx.path.rsplit('/').next().unwrap_or_default();
    let fields = schema::whole(&body)?;
    fields.only(if word == "disable" { &["reason"] } else { &[] })?;
    let change = match word {
        "enable" => HostChange::Enable,
        "disable" => HostChange::Disable(fields.text("reason", 0, true)?.map(str::to_owned)),
        "drain" => HostChange::Drain,
        _ => HostChange::Undrain,
    };
    let host = app.backend().change_host(&ctx.caller, &name, change).await?;
    Ok(Json(json!({ "host": view(&host) })))
}

async fn placement<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let placement = app.backend().placement(&ctx.caller, volume_id(&id)?).await?;
    let ids = |ids: &[mooring_model::VolumeId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    let tried: Vec<_> =
        placement.tried.iter().map(|(pool, why)| json!({ "pool": pool, "why": why })).collect();
    Ok(Json(json!({ "placement": {
        "volume_id": placement.volume.to_string(),
        "pool": placement.pool,
        "zone": placement.zone,
        "asked_zone": placement.hints.zone,
        "same_host": ids(&placement.hints.same_host),
        "different_host": ids(&placement.hints.different_host),
        "tried": tried,
    } })))
}
