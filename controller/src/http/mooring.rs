//! `/mooring/v1`: Mooring's own API, for what the Block Storage API has no words for: native
//! attach, the live state of an attachment, and the receipt of a detach.
//!
//! What must never happen here: a receipt that says more than the storage agent said.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, routing};
use mooring_model::{Cache, DiskAccess, DiskUser, Problem, Proof, Receipt, Revoked, SessionReport};
use serde_json::{Map, Value, json};

use super::App;
use super::attachments::{attachment_id, mode};
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, Fields};
use super::views::rfc3339;
use super::volumes::volume_id;
use crate::domain::Transport;
use crate::domain::{
    AttachmentCheck, AttachmentLive, AttachmentReceipt, DetachRecord, IsolationChange, NewAttachment,
    NewConnector, Rotating, VolumeState,
};
use crate::service::{NewMode, NewSecrets, RECORDS_MAX, Refusal, Wait, Way};

/// The longest wait of a call, whatever it asks for.
pub const WAIT_MAX: Duration = Duration::from_mins(1);

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/attachments", routing::get(list::<B>).post(create::<B>))
        .route("/attachments/{id}", routing::get(show::<B>).delete(delete::<B>))
        .route("/attachments/{id}/mode", routing::put(set_mode::<B>))
        .route("/attachments/{id}/cache", routing::put(set_cache::<B>))
        .route("/attachments/{id}/check", routing::get(check::<B>))
        .route("/attachments/{id}/receipt", routing::get(show_receipt::<B>))
        .route("/receipts", routing::get(list_receipts::<B>))
        .route("/volumes/{id}", routing::get(show_volume::<B>))
        .route(
            "/volumes/{id}/reservations",
            routing::get(show_reservations::<B>).post(change_reservations::<B>),
        )
        .route("/volumes/{id}/rotate-secrets", routing::post(rotate_secrets::<B>))
        .route("/volumes/{id}/cut", routing::put(cut::<B>).delete(uncut::<B>))
        .route("/volumes/{id}/extend", routing::delete(cancel_extend::<B>))
        .route("/volumes/{id}/confirm-review", routing::post(confirm_review::<B>))
        .route("/epoch", routing::post(raise_epoch::<B>))
}

/// Reads `wait_ms` of the query, within bounds.
pub(super) fn wait(ctx: &Ctx, default: Duration) -> Result<Wait, Fault> {
    let asked = ctx.query.number("wait_ms")?.map(Duration::from_millis);
    Ok(Wait(asked.unwrap_or(default).min(WAIT_MAX)))
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    ctx.query.only(&["volume"])?;
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
    fields.only(&["id", "volume", "host", "mode", "transport", "cache"])?;
    fields.required("volume")?;
    fields.required("host")?;
    let id = fields.uuid("id", false)?.map(|id| attachment_id(&id.to_string())).transpose()?;
    let volume = fields.uuid("volume", false)?.map(|id| volume_id(&id.to_string())).transpose()?;
    let volume = volume.ok_or_else(|| fields.wrong("'volume' is a required property"))?;
    let host = fields.text("host", 1, false)?.unwrap_or_default().to_owned();
    ctx.notes.object("volume", &volume);
    let mode = mode(fields)?;
    let transport = transport(fields)?;
    let cache = cache(fields)?;
    let connector = NewConnector::Native { host, transport, cache };
    let new = NewAttachment { id, volume, instance: None, mode, connector };
    let wait = Wait(app.agents_wait());
    // Noted also for a refused request: the attempt counts.
    if let Some(id) = &id {
        ctx.notes.object("attachment", id);
    }
    let made = app.backend().create_attachment(&ctx.caller, new, wait).await?;
    ctx.notes.object("attachment", &made.id);
    let live = app.backend().live(&ctx.caller, made.id, None, Wait(Duration::ZERO)).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "attachment": view(&live) }))))
}

fn transport(fields: Fields<'_>) -> Result<Option<Transport>, Fault> {
    let Some(word) = fields.text("transport", 1, false)? else { return Ok(None) };
    let found = Transport::ALL.into_iter().find(|one| one.as_str() == word);
    found.map(Some).ok_or_else(|| fields.wrong("transport: want iscsi or fc"))
}

fn cache(fields: Fields<'_>) -> Result<Option<Cache>, Fault> {
    let Some(word) = fields.text("cache", 1, false)? else { return Ok(None) };
    word.parse().map(Some).map_err(|_| fields.wrong("cache: want on or off"))
}

async fn set_cache<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["cache"])?;
    fields.required("cache")?;
    let cache = cache(fields)?.ok_or_else(|| fields.wrong("'cache' is a required property"))?;
    let wait = wait(&ctx, app.agents_wait())?;
    let live = app.backend().set_cache(&ctx.caller, attachment_id(&id)?, cache, wait).await?;
    Ok(Json(json!({ "attachment": view(&live) })))
}

async fn check<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let found = app.backend().check_disk(&ctx.caller, attachment_id(&id)?).await?;
    Ok(Json(json!({ "check": checked(&found) })))
}

fn checked(found: &AttachmentCheck) -> Value {
    let user = |user: &DiskUser| {
        json!({
            "device": user.device,
            "kind": user.kind.as_str(),
            "name": user.name,
            "pid": user.pid,
            "access": user.access.map(DiskAccess::as_str),
            "filesystem": user.filesystem,
        })
    };
    let problem = |problem: &Problem| json!({ "code": problem.object, "text": problem.text });
    let check = &found.check;
    json!({
        "attachment_id": found.attachment.to_string(),
        "volume_id": found.volume.to_string(),
        "host": found.host,
        "disk": check.disk.as_ref().map(|disk| &disk.path),
        "cache_in_force": check.cache.map(Cache::as_str),
        "users": check.users.iter().map(user).collect::<Vec<_>>(),
        "unseen": check.unseen,
        "problems": check.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

/// Sets a mode. A `barrier` waits until no write in flight can land any more. The kernel's write
/// protection does not promise that: it holds only where it was requested.
async fn set_mode<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["mode", "barrier"])?;
    let mode = mode(fields)?.ok_or_else(|| fields.wrong("'mode' is a required property"))?;
    let wait = wait(&ctx, app.agents_wait())?;
    let barrier = match fields.map().get("barrier") {
        None => false,
        Some(Value::Bool(barrier)) => *barrier,
        Some(_) => return Err(fields.wrong("'barrier' is not of type 'boolean'")),
    };
    let new = NewMode { mode, barrier };
    let live = app.backend().set_mode(&ctx.caller, attachment_id(&id)?, new, wait).await?;
    // The answer comes when the change is complete.
    Ok(Json(json!({ "attachment": view(&live), "barrier": barrier })))
}

async fn delete<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let way = match (ctx.query.flag("force")?, ctx.query.get("widen")) {
        (false, None) => Way::Asked,
        (true, None) => Way::Forced,
        (true, Some("host")) => Way::Widened,
        (_, Some(_)) => {
            let text = "widen: want host, together with force=true: every attachment of the host to this volume goes";
            return Err(Fault::bad_request(text));
        }
    };
    let wait = wait(&ctx, app.agents_wait())?;
    let id = attachment_id(&id)?;
    // A detach does not fail because its warnings are missing.
    let mut warnings = app.backend().parting_words(&ctx.caller, id).await.unwrap_or_default();
    let detached = match app.backend().detach(&ctx.caller, id, way, wait).await {
        Ok((detached, _)) => detached,
        // Ended, perhaps by an earlier request whose answer was lost. Its receipt answers this
        // request, too.
        Err(gone @ Refusal::NotFound { kind: "Attachment", .. }) => {
            app.backend().receipt(&ctx.caller, id).await.map_err(|_| gone)?
        }
        Err(refusal) => return Err(refusal.into()),
    };
    if warnings.is_empty() {
        // If the detach had begun before, its receipt has the words.
        warnings.extend(detached.receipt.as_ref().and_then(Receipt::parting_words));
    }
    Ok(Json(json!({ "receipt": receipt(&detached), "warnings": warnings })))
}

async fn show_receipt<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let detached = app.backend().receipt(&ctx.caller, attachment_id(&id)?).await?;
    Ok(Json(json!({ "receipt": receipt(&detached) })))
}

async fn list_receipts<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Answer {
    ctx.query.only(&["volume", "attachment", "limit"])?;
    let volume = ctx.query.get("volume").map(volume_id).transpose()?;
    let attachment = ctx.query.get("attachment").map(attachment_id).transpose()?;
    let limit = ctx.query.number("limit")?.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(RECORDS_MAX);
    let records = app.backend().receipts(&ctx.caller, volume, attachment, limit).await?;
    Ok(Json(json!({ "receipts": records.iter().map(record).collect::<Vec<_>>() })))
}

/// The record of a detach. Its receipt looks like that of one attachment.
fn record(record: &DetachRecord) -> Value {
    let of = AttachmentReceipt { attachment: record.attachment, receipt: record.receipt.clone() };
    json!({
        "attachment_id": record.attachment.to_string(),
        "volume_id": record.volume.to_string(),
        "project_id": record.project,
        "initiator": record.initiator.as_ref().map(ToString::to_string),
        "instance": record.instance.map(|id| id.to_string()),
        "host": record.host,
        "mode": record.mode.map(|mode| mode.to_string()),
        "forced": record.forced,
        "user_id": record.user,
        "request_id": record.request,
        "asked_at": record.asked_at.and_then(rfc3339),
        "detached_at": record.detached_at.and_then(rfc3339),
        "receipt": receipt(&of),
        "unwritten_bytes": record.unwritten.map(|bytes| bytes.0),
    })
}

async fn show_volume<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let state = app.backend().volume_state(&ctx.caller, volume_id(&id)?).await?;
    Ok(Json(json!({ "volume": volume(&state) })))
}

pub(super) fn volume(state: &VolumeState) -> Value {
    let VolumeState { volume, reserved, holds, review, job, cut } = state;
    let cut = cut.map(|cut| {
        let state = if cut.in_force { "in_force" } else { "pending" };
        json!({ "state": state, "since": cut.since.and_then(rfc3339) })
    });
    json!({
        "id": volume.id.to_string(),
        "name": volume.name,
        "status": volume.status.as_str(),
        "attach_status": volume.attach_status.as_str(),
        "multiattach": volume.multiattach,
        "fault": volume.fault,
        "in_review": review.is_some(),
        "reserved": reserved,
        "announced_detaches": holds,
        "job": job.as_ref().map(super::jobs::view),
        "cut": cut,
    })
}

/// Rotates secrets. Answers when the targets have the new secrets, and our hosts no longer need the
/// old ones.
async fn rotate_secrets<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["attachment", "force"])?;
    let attachment =
        fields.uuid("attachment", false)?.map(|id| attachment_id(&id.to_string())).transpose()?;
    let force = match fields.map().get("force") {
        None => false,
        Some(Value::Bool(force)) => *force,
        Some(_) => return Err(fields.wrong("'force' is not of type 'boolean'")),
    };
    let (id, wait) = (volume_id(&id)?, wait(&ctx, app.agents_wait())?);
    if let Some(id) = &attachment {
        ctx.notes.object("attachment", id);
    }
    let rotation = NewSecrets { attachment, force };
    let rotated = app.backend().rotate_secrets(&ctx.caller, id, rotation, wait).await?;
    Ok(Json(json!({ "attachments": rotated.iter().map(view).collect::<Vec<_>>() })))
}

/// Isolates a volume. Answers when the spec is stored: the volume shows what is in force.
async fn cut<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let fields = schema::whole(&body)?;
    fields.only(&["force"])?;
    let force = match fields.map().get("force") {
        None => false,
        Some(Value::Bool(force)) => *force,
        Some(_) => return Err(fields.wrong("'force' is not of type 'boolean'")),
    };
    change_isolation(&app, &ctx, &id, IsolationChange::Isolate { force }).await
}

async fn uncut<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
) -> Result<(StatusCode, Json<Value>), Fault> {
    change_isolation(&app, &ctx, &id, IsolationChange::End).await
}

/// Cancels a growth that `os-extend` of the Block Storage API began.
async fn cancel_extend<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let id = volume_id(&id)?;
    app.backend().cancel_extend(&ctx.caller, id).await?;
    let state = app.backend().volume_state(&ctx.caller, id).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "volume": volume(&state) }))))
}

async fn change_isolation<B: Backend>(
    app: &App<B>,
    ctx: &Ctx,
    id: &str,
    change: IsolationChange,
) -> Result<(StatusCode, Json<Value>), Fault> {
    let id = volume_id(id)?;
    app.backend().set_isolation(&ctx.caller, id, change).await?;
    let state = app.backend().volume_state(&ctx.caller, id).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "volume": volume(&state) }))))
}

async fn show_reservations<B: Backend>(State(app): State<App<B>>, ctx: Ctx, At(id): At<String>) -> Answer {
    let found = app.backend().reservations(&ctx.caller, volume_id(&id)?).await?;
    Ok(Json(json!({ "reservations": super::reservations::view(&found) })))
}

async fn change_reservations<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(id): At<String>,
    Body(body): Body,
) -> Answer {
    let change = super::reservations::change(&body)?;
    let [before, now] = app.backend().change_reservations(&ctx.caller, volume_id(&id)?, change).await?;
    let view = super::reservations::view;
    Ok(Json(json!({ "before": view(&before), "reservations": view(&now) })))
}

// The bodies of these two are empty (`{}`). They are required because a web page cannot send JSON
// here without asking first.

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
    let nexus = live.nexus.as_ref();
    let sessions = || nexus.into_iter().flat_map(|nexus| &nexus.sessions);
    json!({
        "id": attachment.id.to_string(),
        "volume_id": attachment.volume.to_string(),
        "volume_name": live.volume_name,
        "host": attachment.attached_host,
        "mode": attachment.mode.to_string(),
        "cache": attachment.cache.as_str(),
        "cache_in_force": live.cache_in_force.map(Cache::as_str),
        "hints": (attachment.cache == Cache::Off).then(|| json!({ "cache": "none", "io": "native" })),
        "effective_mode": live.effective_mode.map(|mode| mode.to_string()),
        "status": attachment.status.as_str(),
        "native": attachment.native.is_some(),
        "initiator": attachment.initiator.as_ref().map(ToString::to_string),
        "transport": attachment.initiator.as_ref().map(|of| Transport::of(of).as_str()),
        "session": live.session,
        "session_missing": nexus.is_some_and(|nexus| nexus.missing),
        "session_addresses": sessions().flat_map(|session| &session.addresses).collect::<Vec<_>>(),
        "sessions": sessions().map(session).collect::<Vec<_>>(),
        "unlisted_sessions": nexus.and_then(|nexus| nexus.unlisted),
        "storage_host": nexus.map(|nexus| &nexus.storage),
        "counters": nexus.map(|nexus| json!({
            "commands": nexus.counters.commands,
            "read_mib": nexus.counters.read_mib,
            "written_mib": nexus.counters.written_mib,
        })),
        "last_activity": nexus.and_then(|nexus| nexus.counters.active).and_then(rfc3339),
        "looked_at": nexus.and_then(|nexus| nexus.looked).and_then(rfc3339),
        "host_phase": live.host_phase,
        "device_path": live.device_path,
        "disk": live.disk,
        "secret_rotation": live.secret_rotation.map(Rotating::as_str),
        "secret_rotated_at": live.secret_rotated_at.and_then(rfc3339),
        "problems": live.problems,
        "steps_ms": steps,
        "fault": attachment.fault,
        "created_at": rfc3339(attachment.created_at),
        "attached_at": attachment.attached_at.and_then(rfc3339),
        "revision": live.revision,
    })
}

fn session(session: &SessionReport) -> Value {
    json!({
        "id": session.id,
        "isid": session.isid,
        "addresses": session.addresses,
        "state": session.state,
        "in_flight": session.in_flight,
        "since": session.since.and_then(rfc3339),
    })
}

pub(super) fn receipt(detached: &AttachmentReceipt) -> Value {
    let Some(receipt) = &detached.receipt else { return Value::Null };
    let mut view = nexus_receipt(receipt);
    view["attachment_id"] = detached.attachment.to_string().into();
    view
}

/// The receipt of a nexus of any attachment.
pub(super) fn nexus_receipt(receipt: &Receipt) -> Value {
    let Receipt {
        volume,
        initiator,
        attachments,
        generation,
        revoked,
        sessions,
        proof,
        began,
        ended,
        reservation,
        cause,
    } = receipt;
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
        Proof::Proven => ("proven", Some(0)),
        Proof::Unproven { in_flight } => ("unproven", *in_flight),
    };
    json!({
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
        "held_reservation": reservation.map(|held| held.to_string()),
        "cause": cause.to_string(),
    })
}
