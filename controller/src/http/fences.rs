//! Below `/mooring/v1`: fenced hosts, and the one receipt of a fence.
//!
//! What must never happen here: "proven" for a fence with one unproven part.

use axum::extract::State;
use axum::{Json, routing};
use mooring_model::{AttachmentId, Initiator, Proof, Receipt, VolumeId};
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::mooring::{nexus_receipt, receipt, wait};
use super::routes::Routes;
use super::schema::{self, Fields};
use super::views::rfc3339;
use crate::domain::{
    AttachmentReceipt, DisputedInitiator, FencePart, FenceState, FencedExport, HostFence, NewFence,
    UnknownNode,
};

/// Names of initiators in one request.
const ALSO_MAX: usize = 64;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/fences", routing::get(list::<B>))
        .route("/hosts/{name}/fence", routing::get(show::<B>).post(fence::<B>))
        .route("/hosts/{name}/unfence", routing::post(unfence::<B>))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    ctx.query.only(&["all"])?;
    let lifted = ctx.query.flag("all")?;
    let fences = app.backend().fences(&ctx.caller, lifted).await?;
    Ok(Json(json!({ "fences": fences.iter().map(view).collect::<Vec<_>>() })))
}

async fn show<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(name): At<String>) -> Answer {
    Ok(Json(json!({ "fence": view(&app.backend().fence(&ctx.caller, &name).await?) })))
}

async fn fence<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["reason", "also"])?;
    let new = NewFence { reason: fields.text("reason", 0, true)?.map(str::to_owned), also: also(fields)? };
    let wait = wait(&ctx, app.agents_wait())?;
    let fence = app.backend().fence_host(&ctx.caller, &name, new, wait).await?;
    Ok(Json(json!({ "fence": view(&fence) })))
}

/// Names of initiators.
fn also(fields: Fields<'_>) -> Result<Vec<Initiator>, Fault> {
    let Some(value) = fields.some("also") else { return Ok(Vec::new()) };
    let wrong = || fields.wrong("also: want a list of at most 64 iSCSI names and Fibre Channel ports");
    let names = value.as_array().filter(|names| names.len() <= ALSO_MAX).ok_or_else(wrong)?;
    let one = |name: &Value| name.as_str().and_then(|name| name.parse().ok()).ok_or_else(wrong);
    names.iter().map(one).collect()
}

async fn unfence<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["anyway"])?;
    let anyway = fields.boolean("anyway")?.unwrap_or(false);
    let fence = app.backend().unfence_host(&ctx.caller, &name, anyway).await?;
    Ok(Json(json!({ "fence": view(&fence) })))
}

fn view(fence: &HostFence) -> Value {
    let may_still_land: Option<u64> = fence.states().map(landing).sum();
    let ended = if fence.is_proven() { ended(fence) } else { None };
    json!({
        "id": fence.id.to_string(),
        "host": fence.name,
        "initiators": fence.initiators.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "reason": fence.reason,
        "user_id": fence.user,
        "request_id": fence.request,
        "fenced_at": rfc3339(fence.fenced_at),
        "lifted_at": fence.lifted_at.and_then(rfc3339),
        "proof": if fence.is_proven() { "proven" } else { "unproven" },
        "may_still_land": may_still_land.filter(|_| !fence.waits()),
        "ended": ended,
        "parts": fence.parts.iter().map(part).collect::<Vec<_>>(),
        "exports": fence.exports.iter().map(export).collect::<Vec<_>>(),
        "unknown": fence
            .unknown
            .iter()
            .map(|UnknownNode { node, why }| json!({ "node": node, "why": why }))
            .collect::<Vec<_>>(),
        "disputed": fence.disputed.iter().map(claim).collect::<Vec<_>>(),
    })
}

fn claim(claim: &DisputedInitiator) -> Value {
    let attachment = |(attachment, volume): &(AttachmentId, VolumeId)| json!({ "attachment_id": attachment.to_string(), "volume_id": volume.to_string() });
    json!({
        "initiator": claim.initiator.to_string(),
        "hosts": claim.hosts,
        "attachments": claim.attachments.iter().map(attachment).collect::<Vec<_>>(),
    })
}

/// Commands that may still land, for a part whose grant is gone; `None` if their number is unknown.
fn landing(state: &FenceState) -> Option<u64> {
    match state {
        FenceState::Unproven(receipt) => match receipt.proof {
            Proof::Unproven { in_flight } => in_flight.map(u64::from),
            Proof::Proven => Some(0),
        },
        FenceState::Cut(_) | FenceState::Waits(_) => Some(0),
    }
}

/// The time at which the last part was proven.
fn ended(fence: &HostFence) -> Option<String> {
    let ends = fence.states().filter_map(|state| match state {
        FenceState::Cut(Some(receipt)) => receipt.ended,
        _ => None,
    });
    rfc3339(ends.max().unwrap_or(fence.fenced_at))
}

/// The state of a part in a word, with its receipt and what it waits for.
fn how_far(state: &FenceState) -> (&'static str, Option<Receipt>, Option<&str>) {
    match state {
        FenceState::Cut(receipt) => ("cut", receipt.clone(), None),
        FenceState::Unproven(receipt) => ("unproven", Some(receipt.clone()), None),
        FenceState::Waits(why) => ("waiting", None, Some(why.as_str())),
    }
}

fn export(export: &FencedExport) -> Value {
    let (state, kept, waits_for) = how_far(&export.state);
    json!({
        "node": export.node,
        "volume_id": export.volume.to_string(),
        "initiator": export.initiator.to_string(),
        "state": state,
        "receipt": kept.as_ref().map(nexus_receipt),
        "waits_for": waits_for,
    })
}

fn part(part: &FencePart) -> Value {
    let (state, kept, waits_for) = how_far(&part.state);
    let of = AttachmentReceipt { attachment: part.attachment, receipt: kept };
    json!({
        "attachment_id": part.attachment.to_string(),
        "volume_id": part.volume.to_string(),
        "state": state,
        "receipt": receipt(&of),
        "waits_for": waits_for,
        "warnings": part.warnings,
    })
}
