//! `/mooring/v1`: Mooring's own API, for what the Block Storage API has no words for: enrolled hosts, native attach, what is
//! live of an attachment, and the receipt of a detach.
//!
//! What must never happen here: a receipt that says more than the storage agent said.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use mooring_model::{Proof, Receipt, Revoked};
use serde_json::{Map, Value, json};

use super::App;
use super::attachments::{attachment_id, mode};
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Fault;
use super::schema;
use super::views::rfc3339;
use super::volumes::volume_id;
use crate::domain::{AttachmentLive, AttachmentReceipt, Host, NewAttachment, NewConnector};
use crate::service::{Refusal, Wait};

/// A call waits no longer than this, whatever it asks for.
pub const WAIT_MAX: Duration = Duration::from_mins(1);

type Answer = Result<Json<Value>, Fault>;

pub(super) fn routes<B: Backend>() -> Router<App<B>> {
    Router::new()
        .route("/hosts", routing::get(hosts::<B>))
        .route("/attachments", routing::get(list::<B>).post(create::<B>))
        .route("/attachments/{id}", routing::get(show::<B>).delete(delete::<B>))
        .route("/attachments/{id}/receipt", routing::get(show_receipt::<B>))
        .route("/volumes/{id}/confirm-review", routing::post(confirm_review::<B>))
        .route("/epoch", routing::post(raise_epoch::<B>))
}

async fn hosts<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let hosts = app.backend().hosts(&ctx.caller).await?;
    Ok(Json(json!({ "hosts": hosts.iter().map(host).collect::<Vec<_>>() })))
}

fn host(host: &Host) -> Value {
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
        "up": host.up,
        "why_down": host.why_down,
        "last_report": host.last_report.and_then(rfc3339),
        "pools": pools,
        "problems": host.problems,
    })
}

/// `wait_ms` of the query, within bounds.
fn wait(ctx: &Ctx, default: Duration) -> Result<Wait, Fault> {
    let asked = ctx.query.number("wait_ms")?.map(Duration::from_millis);
    Ok(Wait(asked.unwrap_or(default).min(WAIT_MAX)))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    let volume = ctx.query.get("volume").map(volume_id).transpose()?;
    let mut all = app.backend().live_all(&ctx.caller).await?;
    if let Some(volume) = volume {
        all.retain(|live| live.attachment.volume == volume);
    }
    Ok(Json(json!({ "attachments": all.iter().map(view).collect::<Vec<_>>() })))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let after = ctx.query.number("after")?;
    let default = if after.is_some() { app.agents_wait() } else { Duration::ZERO };
    let wait = wait(&ctx, default)?;
    let live = app.backend().live(&ctx.caller, attachment_id(&id)?, after, wait).await?;
    Ok(Json(json!({ "attachment": view(&live) })))
}

async fn create<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let fields = schema::body(&body, "attachment")?;
    fields.only(&["id", "volume", "host", "mode"])?;
    fields.required("volume")?;
    fields.required("host")?;
    let id = fields.uuid("id", false)?.map(|id| attachment_id(&id.to_string())).transpose()?;
    let volume = fields.uuid("volume", false)?.map(|id| volume_id(&id.to_string())).transpose()?;
    let volume = volume.ok_or_else(|| fields.wrong("'volume' is a required property"))?;
    let host = fields.text("host", 1, false)?.unwrap_or_default().to_owned();
    let mode = mode(fields)?;
    let new = NewAttachment { id, volume, instance: None, mode, connector: NewConnector::Native(host) };
    let wait = Wait(app.agents_wait());
    let made = app.backend().create_attachment(&ctx.caller, new, wait).await?;
    let live = app.backend().live(&ctx.caller, made.id, None, Wait(Duration::ZERO)).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "attachment": view(&live) }))))
}

async fn delete<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let force = ctx.query.flag("force")?;
    let wait = wait(&ctx, app.agents_wait())?;
    let id = attachment_id(&id)?;
    let detached = match app.backend().delete_attachment(&ctx.caller, id, force, wait).await {
        Ok((detached, _)) => detached,
        // Gone: by an earlier request whose answer was lost, perhaps. Its receipt is the answer to this one, too.
        Err(gone @ Refusal::NotFound { kind: "Attachment", .. }) => {
            app.backend().receipt(&ctx.caller, id).await.map_err(|_| gone)?
        }
        Err(refusal) => return Err(refusal.into()),
    };
    Ok(Json(json!({ "receipt": receipt(&detached) })))
}

async fn show_receipt<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let detached = app.backend().receipt(&ctx.caller, attachment_id(&id)?).await?;
    Ok(Json(json!({ "receipt": receipt(&detached) })))
}

// The bodies of these two say nothing (`{}`), but a web page cannot send JSON here without asking first.

async fn raise_epoch<B: Backend>(State(app): State<App<B>>, ctx: Ctx, Body(_): Body) -> Answer {
    Ok(Json(json!({ "epoch": app.backend().raise_epoch(&ctx.caller).await? })))
}

async fn confirm_review<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(_): Body,
) -> Result<StatusCode, Fault> {
    app.backend().confirm_review(&ctx.caller, volume_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn view(live: &AttachmentLive) -> Value {
    let attachment = &live.attachment;
    let steps: Map<String, Value> =
        live.steps_ms.iter().map(|(step, ms)| (step.clone(), json!(ms))).collect();
    json!({
        "id": attachment.id.to_string(),
        "volume_id": attachment.volume.to_string(),
        "volume_name": live.volume_name,
        "host": attachment.attached_host,
        "mode": attachment.mode.to_string(),
        "effective_mode": live.effective_mode.map(|mode| mode.to_string()),
        "status": attachment.status.as_str(),
        "native": attachment.native.is_some(),
        "initiator": attachment.initiator.as_ref().map(ToString::to_string),
        "session": live.session,
        "session_addresses": live.session_addresses,
        "host_phase": live.host_phase,
        "device_path": live.device_path,
        "disk": live.disk,
        "problems": live.problems,
        "steps_ms": steps,
        "fault": attachment.fault,
        "created_at": rfc3339(attachment.created_at),
        "attached_at": attachment.attached_at.and_then(rfc3339),
        "revision": live.revision,
    })
}

fn receipt(detached: &AttachmentReceipt) -> Value {
    let Some(receipt) = &detached.receipt else { return Value::Null };
    let Receipt { volume, initiator, attachments, generation, revoked, sessions, proof, began, ended } =
        receipt;
    let cut: Vec<_> = sessions
        .iter()
        .map(|session| {
            json!({
                "initiator": session.initiator.to_string(),
                "isid": session.isid,
                "addresses": session.addresses,
                "in_flight": session.in_flight,
            })
        })
        .collect();
    let (proof, may_still_land) = match proof {
        Proof::Proven => ("proven", 0),
        Proof::Unproven { in_flight } => ("unproven", *in_flight),
    };
    json!({
        "attachment_id": detached.attachment.to_string(),
        "volume_id": volume.to_string(),
        "initiator": initiator.to_string(),
        "attachment_ids": attachments.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "generation": generation.to_string(),
        "revoked": match revoked { Revoked::Nexus => "nexus", Revoked::Nothing => "nothing" },
        "sessions_cut": cut,
        "proof": proof,
        "may_still_land": may_still_land,
        "began": rfc3339(*began),
        "ended": ended.and_then(rfc3339),
    })
}
