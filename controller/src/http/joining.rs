//! Joins of agents. Below `/mooring/v1`: tokens and revocations for admins; for agents without an
//! identity, the authority's certificate and the join itself.
//!
//! What must never happen here: a token or a certificate signing request in a log; an open address
//! that changes more than its token allows.

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router, routing};
use mooring_model::AgentId;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::App;
use super::audit::Notes;
use super::backend::Backend;
use super::body::{Body, BodyTimeout};
use super::context::{At, Ctx};
use super::fault::{Answer, Fault};
use super::routes::Routes;
use super::schema::{self, Fields};
use super::views::rfc3339;
use crate::domain::{Role, Roles};
use crate::permits::Holder;
use crate::service::{JoinRequest, JoinTerms};

/// The address of the join.
pub(super) const JOIN: &str = "/mooring/v1/join";

/// The address of the authority's certificate.
pub(super) const AUTHORITY: &str = "/mooring/v1/authority";

/// The longest text of a join, in bytes: a request for a P-256 key has about five hundred.
const TEXT_BYTES_MAX: usize = 8 << 10;

pub(super) fn routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .route("/hosts/{name}/token", routing::post(token::<B>))
        .route("/hosts/{name}/revoke", routing::post(revoke::<B>))
}

/// Reads the roles of a request: both if none is named.
fn roles(fields: Fields<'_>) -> Result<Roles, Fault> {
    let wrong = || fields.wrong("roles: want a list of storage, host, or both");
    let Some(value) = fields.some("roles") else {
        return Roles::new(vec![Role::Storage, Role::Host]).ok_or_else(wrong);
    };
    let words = value.as_array().ok_or_else(wrong)?;
    let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
    words.and_then(|words| words.join(",").parse().ok()).ok_or_else(wrong)
}

async fn token<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["roles", "zone"])?;
    let zone = fields.text("zone", 1, true)?.map(str::to_owned);
    let terms = JoinTerms { roles: roles(fields)?, zone };
    let new = app.backend().make_join_token(&ctx.caller, &name, terms).await?;
    Ok(Json(json!({
        "name": new.name,
        "roles": new.roles.iter().map(Role::as_str).collect::<Vec<_>>(),
        "zone": new.zone,
        "token": new.token,
        "url": new.url,
        "pin": new.pin,
        "expires_at": rfc3339(new.expires_at),
        "command": new.command(),
    })))
}

async fn revoke<B: Backend>(
    State(app): State<App<B>>,
    ctx: Ctx,
    At(name): At<String>,
    Body(body): Body,
) -> Answer {
    schema::whole(&body)?.only(&[])?;
    app.backend().revoke_host(&ctx.caller, &name).await?;
    Ok(Json(json!({ "revoked": name })))
}

/// Returns `true` if this address is answered without a caller.
pub(super) fn is_open(method: &Method, path: &str) -> bool {
    (path == JOIN && method == Method::POST)
        || (path == AUTHORITY && matches!(*method, Method::GET | Method::HEAD))
}

/// Answers an open address. All its callers share the permits of one project, so that no other
/// caller waits for them.
pub(super) async fn answer<B: Backend>(app: &App<B>, mut request: Request) -> Response {
    let holder = Holder { project: "(join)".to_owned(), cuts: false };
    let turn = match app.0.permits.admit(holder, None) {
        Ok(turn) => turn,
        Err(full) => {
            let text = format!("{full}: try again in a second.");
            return Fault::new(StatusCode::SERVICE_UNAVAILABLE, text).into_response();
        }
    };
    request.extensions_mut().insert(BodyTimeout(app.0.options.body_timeout));
    let router = Router::new()
        .route(JOIN, routing::post(join::<B>))
        .route(AUTHORITY, routing::get(authority::<B>))
        .with_state(app.clone());
    turn.run(router.oneshot(request)).await.into_response()
}

async fn authority<B: Backend>(State(app): State<App<B>>) -> Answer {
    Ok(Json(json!({ "authority": app.backend().authority()? })))
}

async fn join<B: Backend>(
    State(app): State<App<B>>,
    Extension(notes): Extension<Notes>,
    Body(body): Body,
) -> Answer {
    let fields = schema::whole(&body)?;
    fields.only(&["token", "csr", "address", "agent_id"])?;
    let text = |key: &'static str| {
        fields.required(key)?;
        let text = fields
            .some(key)
            .and_then(Value::as_str)
            .filter(|text| (1..=TEXT_BYTES_MAX).contains(&text.len()));
        let wrong = || Fault::bad_request(format!("{key}: want a text of 1 to {TEXT_BYTES_MAX} bytes"));
        text.map(str::to_owned).ok_or_else(wrong)
    };
    let agent = fields
        .some("agent_id")
        .map(|value| {
            let id = value.as_str().and_then(|text| text.parse::<AgentId>().ok());
            id.ok_or_else(|| Fault::bad_request("agent_id: want the id of an agent"))
        })
        .transpose()?;
    let asked = JoinRequest { token: text("token")?, csr: text("csr")?, address: text("address")?, agent };
    let joined = app.backend().join(asked).await.map_err(|refused| {
        if let Some(name) = &refused.name {
            notes.object("host", name);
        }
        refused.refusal
    })?;
    let enrolment = &joined.enrolment;
    notes.object("host", &enrolment.name);
    Ok(Json(json!({
        "name": enrolment.name,
        "roles": enrolment.roles.iter().map(Role::as_str).collect::<Vec<_>>(),
        "certificate": joined.certificate,
        "authority": joined.authority,
        "cluster": joined.cluster.to_string(),
        "expires_at": rfc3339(enrolment.expires_at),
    })))
}
