//! `/os-services`: the storage agents, enabled and disabled.
//!
//! What must never happen here: a change that is answered with success and not made; a pretence
//! (freezing and failing over).

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, routing};
use serde_json::{Map, Value, json};

use super::App;
use super::backend::Backend;
use super::body::Body;
use super::context::Ctx;
use super::fault::{Fault, unknown_route};
use super::routes::Routes;
use super::schema::{self, Fields};
use super::version::Version;
use super::views::naive;
use crate::domain::{HostChange, ServiceState};
use crate::service::{DISABLED_REASON_MAX, Refusal};

/// The actions on a service.
const CHANGES: [&str; 7] =
    ["enable", "disable", "disable-log-reason", "freeze", "thaw", "failover", "failover_host"];

pub(super) fn routes<B: Backend>() -> Routes<B> {
    let mut routes = Routes::new().route("/os-services", routing::get(list::<B>));
    for word in CHANGES {
        routes = routes.route(&format!("/os-services/{word}"), routing::put(change::<B>));
    }
    routes
}

async fn list<B: Backend>(State(app): State<App<B>>, ctx: Ctx) -> Result<Json<Value>, Fault> {
    let (host, binary) = (ctx.query.get("host"), ctx.query.get("binary"));
    let known = ctx.query.knows(&["host", "binary"], ctx.version)?;
    let mut services = app.backend().services(&ctx.caller).await?;
    // A host may be named without its back end.
    let is_host = |service: &ServiceState, wanted: &str| {
        service.host == wanted || service.host.split('@').next() == Some(wanted)
    };
    services.retain(|service| {
        known
            && host.is_none_or(|host| is_host(service, host))
            && binary.is_none_or(|binary| service.binary == binary)
    });
    Ok(Json(json!({ "services": services.iter().map(|service| view(&ctx, service)).collect::<Vec<_>>() })))
}

fn view(ctx: &Ctx, service: &ServiceState) -> Value {
    let word = |up: bool| if up { "up" } else { "down" };
    let mut view = json!({
        "binary": service.binary,
        "host": service.host,
        "zone": service.zone,
        "status": if service.disabled { "disabled" } else { "enabled" },
        "state": word(service.up),
        "updated_at": service.heard_at.and_then(naive),
        "disabled_reason": service.disabled_reason,
    });
    let Value::Object(map) = &mut view else { return view };
    if ctx.version >= Version::CLUSTERS {
        map.insert("cluster".to_owned(), Value::Null);
    }
    if service.binary == "cinder-volume" {
        map.insert("replication_status".to_owned(), json!("disabled"));
        map.insert("active_backend_id".to_owned(), Value::Null);
        map.insert("frozen".to_owned(), json!(false));
        if ctx.version >= Version::BACKEND_STATE {
            map.insert("backend_state".to_owned(), json!(word(service.up)));
        }
    }
    view
}

/// The service that a body names: `binary`, or `service` from older clients.
fn named(fields: Fields<'_>) -> Result<(String, String), Fault> {
    fields.required("host")?;
    let host = fields.text("host", 1, false)?.unwrap_or_default();
    let binary = match fields.text("binary", 0, true)?.filter(|binary| !binary.is_empty()) {
        Some(binary) => binary,
        None => fields.text("service", 0, true)?.unwrap_or_default(),
    };
    Ok((binary.to_owned(), host.to_owned()))
}

fn reason(fields: Fields<'_>) -> Result<String, Fault> {
    let value = fields.required("disabled_reason")?;
    let wrong = || {
        schema::invalid(
            "disabled_reason",
            value,
            "Disabled reason contains invalid characters or is too long",
        )
    };
    let text = fields.text("disabled_reason", 1, false)?.map(str::trim).filter(|text| !text.is_empty());
    text.filter(|text| text.chars().count() <= DISABLED_REASON_MAX).map(str::to_owned).ok_or_else(wrong)
}

async fn change<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    Body(body): Body,
) -> Result<Response, Fault> {
    let word = ctx.path.rsplit('/').next().unwrap_or_default();
    let fields = schema::whole(&body)?;
    if word == "failover" && ctx.version < Version::FAILOVER {
        return Ok(unknown_route());
    }
    let (mut binary, host) = named(fields)?;
    let (change, why) = match word {
        "enable" => (HostChange::Enable, None),
        "disable" => (HostChange::Disable(None), None),
        "disable-log-reason" => {
            let why = reason(fields)?;
            (HostChange::Disable(Some(why.clone())), Some(why))
        }
        _ => {
            ctx.may(match word {
                "freeze" => "volume:freeze_host",
                "thaw" => "volume:thaw_host",
                _ => "volume:failover_host",
            })?;
            // The bodies of these actions name no binary: they are about volumes.
            "cinder-volume".clone_into(&mut binary);
            let services = app.backend().services(&ctx.caller).await?;
            if !services.iter().any(|service| service.binary == binary && service.host == host) {
                // As in Cinder: here an unknown host is a wrong input, and a 404 elsewhere.
                return Err(Fault::invalid_input(unknown(&binary, &host)));
            }
            return Err(Fault::not_implemented(format!("{word} of services (drain the host instead)")));
        }
    };
    let disabled = change != HostChange::Enable;
    let changed = app.backend().change_service(&ctx.caller, &binary, &host, change).await;
    changed.map_err(|refusal| missing(refusal, &binary, &host))?;
    let mut view = Map::new();
    view.insert("host".to_owned(), json!(host));
    view.insert("service".to_owned(), json!(binary));
    view.insert("binary".to_owned(), json!(binary));
    view.insert("disabled".to_owned(), json!(disabled));
    view.insert("status".to_owned(), json!(if disabled { "disabled" } else { "enabled" }));
    if let Some(why) = why {
        view.insert("disabled_reason".to_owned(), json!(why));
    }
    Ok(Json(Value::Object(view)).into_response())
}

/// The refusal in the words that clients know.
fn missing(refusal: Refusal, binary: &str, host: &str) -> Fault {
    match refusal {
        Refusal::NotFound { kind: "Service", .. } => not_there(binary, host),
        other => other.into(),
    }
}

fn not_there(binary: &str, host: &str) -> Fault {
    Fault::new(StatusCode::NOT_FOUND, unknown(binary, host))
}

fn unknown(binary: &str, host: &str) -> String {
    format!("Service {binary} could not be found on host {host}.")
}
