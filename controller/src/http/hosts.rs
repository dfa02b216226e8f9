//! Below `/mooring/v1`: enrolled hosts, operators' decisions about them, and the reasons for a
//! volume's place.
//!
//! What must never happen here: a decision.

use axum::extract::State;
use axum::{Json, routing};
use serde_json::{Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::{At, Ctx};
use super::fault::Answer;
use super::routes::Routes;
use super::schema;
use super::views::rfc3339;
use super::volumes::volume_id;
use crate::domain::{
    Enrolment, Health, HealthReason, Host, HostChange, HostModule, HostPool, HostReport, HostTransport,
    PortalLink, Role,
};
use crate::service::Refusal;

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
    ctx.query.only(&[])?;
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

fn health_view(health: &Health) -> Value {
    let reason = |reason: &HealthReason| {
        json!({
            "code": reason.code,
            "level": reason.level.as_str(),
            "object": reason.object,
            "text": reason.text,
        })
    };
    json!({ "level": health.level.as_str(), "reasons": health.reasons.iter().map(reason).collect::<Vec<_>>() })
}

fn pool_view(pool: &HostPool) -> Value {
    json!({
        "name": pool.name,
        "total_bytes": pool.total,
        "free_bytes": pool.free,
        "thick": pool.thick,
        "provisioned_bytes": pool.provisioned,
        "reserved_bytes": pool.reserved,
        "snapshots": pool.snapshots,
        "online_extend": pool.online_extend,
        "discard": pool.discard,
        "wipe": pool.wipe,
        "health": pool.health.as_ref().map(health_view),
    })
}

fn transport_view(transport: &HostTransport) -> Value {
    let port = |(port, state): &(String, String)| json!({ "port": port, "state": state });
    let digests = |(header, data): &(String, String)| json!({ "header": header, "data": data });
    let link = |link: &PortalLink| json!({ "portal": link.portal, "interface": link.interface, "up": link.up, "mtu": link.mtu });
    json!({
        "protocol": transport.protocol,
        "ready": transport.ready,
        "portals": transport.portals,
        "links": transport.links.iter().map(link).collect::<Vec<_>>(),
        "ports": transport.ports.iter().map(port).collect::<Vec<_>>(),
        "digests": transport.digests.as_ref().map(digests),
        "volumes_per_initiator_max": transport.volumes_per_initiator_max,
        "health": transport.health.as_ref().map(health_view),
    })
}

fn report_view(report: &HostReport) -> Value {
    let module = |module: &HostModule| {
        json!({
            "name": module.name,
            "needed_for": module.needed_for,
            "state": module.state.as_str(),
            "remedy": module.remedy,
        })
    };
    json!({
        "kernel_release": report.kernel_release,
        "multiattach": report.multiattach,
        "access_modes": report.modes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "persistent_reservations": report.reservations,
        "persistent_reservations_kept": report.reservations_kept,
        "read_only_sealed": report.read_only_sealed,
        "initiators_per_volume_max": report.initiators_per_volume_max,
        "attachments_per_connection_max": report.attachments_per_connection_max,
        "cache_off": report.cache_off,
        "fc_initiator_ports": report.fc_initiator_ports,
        "transports": report.transports.iter().map(transport_view).collect::<Vec<_>>(),
        "modules": report.modules.iter().map(module).collect::<Vec<_>>(),
    })
}

fn enrolment_view(enrolment: &Enrolment) -> Value {
    json!({
        "roles": enrolment.roles.iter().map(Role::as_str).collect::<Vec<_>>(),
        "joined_at": rfc3339(enrolment.joined_at),
        "expires_at": rfc3339(enrolment.expires_at),
    })
}

fn view(host: &Host) -> Value {
    json!({
        "name": host.name,
        "address": host.address,
        "agent_id": host.agent.map(|id| id.to_string()),
        "initiator": host.initiator.as_ref().map(ToString::to_string),
        "enrolment": host.enrolment.as_ref().map(enrolment_view),
        "zone": host.zone,
        "disabled": host.disabled,
        "disabled_reason": host.disabled_reason,
        "drained": host.drained,
        "up": host.up,
        "why_down": host.why_down,
        "last_report": host.last_report.and_then(rfc3339),
        "health": host.health.as_ref().map(health_view),
        "report": host.report.as_ref().map(report_view),
        "pools": host.pools.iter().map(pool_view).collect::<Vec<_>>(),
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
