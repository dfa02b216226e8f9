//! The HTTP front: the Block Storage API v3 below `/v3`, Mooring's own API below `/mooring/v1`.
//!
//! A request passes these stages in order: its request id; the version documents, which anybody may
//! read; authentication; the project in the address; the bound on concurrent requests; the
//! microversion; the route; the body. The [`Backend`] does what is asked, and the front decides
//! nothing. The unread rest of a body is discarded before the answer. A call that changes something
//! has a line of the audit log, at whatever stage it ends.
//!
//! What must never happen here: an answer without a request id; an error that is not in the API's
//! words; a decision about volumes; a secret in the log (bodies and answers are never logged).

mod actions;
mod attachments;
mod audit;
mod backend;
mod body;
mod context;
mod default_types;
mod fault;
mod fences;
mod gate;
mod hosts;
mod images;
mod jobs;
mod joining;
mod later;
mod leaving;
mod limits;
mod manage;
mod messages;
mod metadata;
mod misc;
mod mooring;
mod openapi;
mod pools;
mod query;
mod quotas;
mod reservations;
mod routes;
mod schema;
mod serve;
mod services;
mod snapshot_actions;
mod snapshots;
mod types;
mod unread;
mod version;
mod views;
mod volumes;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, request};
use axum::response::{IntoResponse, Response};
use tokio::sync::watch;
use tower::ServiceExt;

pub use backend::{Backend, Detached};
pub use body::{BODY_BYTES_MAX, BODY_TIMEOUT};
pub use mooring::WAIT_MAX;
pub use routes::Route;
pub use serve::{Bound, HEAD_TIMEOUT, Serving, bind, serve, tls};

use crate::auth::{Auth, AuthRefusal, project_ok};
use crate::domain::Caller;
use crate::domain::Identity;
use crate::permits::{self, Holder, Permits, Turn};
use crate::policy::{Policies, Target};
use audit::Notes;
use body::BodyTimeout;
use context::{Ctx, REQUEST_ID, global_request_id, host_header, new_request_id};
use fault::{Detail, Fault, Unrouted, unknown_route};
pub use fault::{in_words, sentence};
use query::Query;
use routes::Routes;
use unread::Rest;
use version::Version;

/// The time for which a request waits for agents by default. Nova gives up after 60 s.
const AGENTS_WAIT: Duration = Duration::from_secs(30);

/// The settings of the front.
#[derive(Debug)]
pub struct Options {
    /// The authentication of callers.
    pub auth: Auth,
    /// The policies; the front asks them only who is an admin.
    pub policies: Arc<Policies>,
    /// The address that clients use, where a proxy hides it: `https://storage.example.org:8776`.
    pub public_url: Option<String>,
    /// `true` if our listeners speak TLS: links then begin with `https`.
    pub tls: bool,
    /// A request's body must be complete within this time.
    pub body_timeout: Duration,
}

/// The state that every handler reaches.
pub(crate) struct App<B>(Arc<Inner<B>>);

struct Inner<B> {
    backend: B,
    options: Options,
    permits: Permits,
}

impl<B> Clone for App<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> App<B> {
    fn backend(&self) -> &B {
        &self.0.backend
    }

    #[allow(clippy::unused_self, reason = "the configuration may come to say it")]
    fn agents_wait(&self) -> Duration {
        AGENTS_WAIT
    }
}

/// The whole API.
pub fn router<B: Backend>(backend: B, options: Options) -> Router {
    let app = App(Arc::new(Inner { backend, options, permits: Permits::default() }));
    let unknown = || async { unknown_route() };
    let routes = block_storage_routes();
    let collections = routes.collections();
    let volumes_api = routes
        .into_router("/v3")
        // As in Cinder, where routes are per method: a wrong method is an unknown route.
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .with_state(app.clone());
    let own_api = own_routes()
        .into_router("/mooring/v1")
        .fallback(|| async { Fault::new(StatusCode::NOT_FOUND, "There is nothing at this address.") })
        .method_not_allowed_fallback(|| async {
            Fault::new(StatusCode::METHOD_NOT_ALLOWED, "This method is not known at this address.")
        })
        .with_state(app.clone());
    let front = Front { app, collections, volumes_api, own_api };
    Router::new().fallback(answer::<B>).with_state(Arc::new(front))
}

/// The Block Storage API, below the project.
fn block_storage_routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .merge(types::routes())
        .merge(volumes::routes())
        .merge(metadata::routes())
        .merge(attachments::routes())
        .merge(actions::routes())
        .merge(snapshots::routes())
        .merge(manage::routes())
        .merge(messages::routes())
        .merge(misc::routes())
        .merge(pools::routes())
        .merge(services::routes())
        .merge(quotas::routes())
        .merge(limits::routes())
        .merge(default_types::routes())
        .merge(later::routes())
}

/// Mooring's own API.
fn own_routes<B: Backend>() -> Routes<B> {
    Routes::new()
        .merge(mooring::routes())
        .merge(hosts::routes())
        .merge(fences::routes())
        .merge(joining::routes())
        .merge(leaving::routes())
        .merge(jobs::routes())
        .merge(images::routes())
        .merge(audit::routes())
}

struct Front<B> {
    app: App<B>,
    /// Collections below `/v3`: any other word in their place is a project.
    collections: BTreeSet<String>,
    volumes_api: Router,
    own_api: Router,
}

/// The refusals that an operator wants to see in the log: callers that are not let in, lack
/// permission, or send too much or too slowly.
const REFUSALS: [StatusCode; 4] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::REQUEST_TIMEOUT,
];

/// The most characters of a path in the log: its length is the client's choice.
const LOGGED_CHARS_MAX: usize = 200;

/// The end of a client's interest, carried with a request that goes on without its client.
#[derive(Clone)]
struct Client(permits::Client);

/// An answer, and the version that it echoes.
type Echoed = (Response, Option<HeaderValue>);

async fn answer<B: Backend>(State(front): State<Arc<Front<B>>>, request: Request) -> Response {
    let id = new_request_id();
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(LOGGED_CHARS_MAX).collect();
    let global = global_request_id(&request).map(str::to_owned);
    let (mut request, rest) = Rest::of(request);
    let (mut response, echo) = if matches!(method, Method::GET | Method::HEAD) {
        // A request that changes nothing ends with its connection.
        dispatch(front, request, id.clone()).await
    } else {
        // A request that changes something is completed even if its client is gone. It then waits
        // for nothing.
        let (client, gone) = watch::channel(());
        request.extensions_mut().insert(Client(gone));
        let done = tokio::spawn(audited(front, request, id.clone())).await;
        drop(client);
        done.unwrap_or_else(|error| (Fault::internal(error.to_string()).into_response(), None))
    };
    let status = response.status();
    // A request that was too slow has used up its wait already.
    if status != StatusCode::REQUEST_TIMEOUT {
        rest.take().await;
    }
    let global = global.as_deref().unwrap_or("-");
    let code = status.as_u16();
    if let Some(Detail(why)) = response.extensions_mut().remove::<Detail>() {
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(request = %id, global, %method, path, code, why, "failed");
        } else {
            tracing::info!(request = %id, global, %method, path, code, why, "not done");
        }
    } else if REFUSALS.contains(&status) {
        tracing::info!(request = %id, global, %method, path, code, "refused");
    } else {
        tracing::debug!(request = %id, global, %method, path, code, "answered");
    }
    let unrouted = response.extensions_mut().remove::<Unrouted>().is_some();
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(echo) = echo.filter(|_| !unrouted) {
        headers.insert(version::HEADER, echo);
        headers.insert(header::VARY, HeaderValue::from_static("OpenStack-API-Version"));
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Dispatches a request, and writes its line of the audit log if it has one.
async fn audited<B: Backend>(front: Arc<Front<B>>, mut request: Request, id: String) -> Echoed {
    if !audit::is_recorded(request.method()) {
        return dispatch(front, request, id).await;
    }
    let api = front.api(request.uri().path());
    let line = audit::Line::begin(&front.app, &mut request, &id, api);
    let (response, echo) = dispatch(front, request, id).await;
    line.end(&response);
    (response, echo)
}

impl<B> Front<B> {
    /// The API that an address belongs to, and the path below it; `None` if it belongs to neither.
    fn api(&self, path: &str) -> Option<openapi::Api> {
        if let Some(rest) = path.strip_prefix("/v3/") {
            return Some((openapi::Which::BlockStorage, address(&self.collections, rest).path));
        }
        path.strip_prefix("/mooring/v1/").map(|rest| (openapi::Which::Own, format!("/{rest}")))
    }
}

async fn dispatch<B: Backend>(front: Arc<Front<B>>, request: Request, id: String) -> Echoed {
    let path = request.uri().path();
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    match path {
        "" | "/" if reading => versions(&front, &request, StatusCode::MULTIPLE_CHOICES),
        "/v3" | "/v3/" if reading => versions(&front, &request, StatusCode::OK),
        openapi::PATH if reading => (openapi::answer(), None),
        _ if joining::is_open(request.method(), path) => (joining::answer(&front.app, request).await, None),
        _ => {
            if let Some(rest) = path.strip_prefix("/v3/") {
                let rest = rest.to_owned();
                return volumes_api(&front, request, id, &rest).await;
            }
            if let Some(rest) = path.strip_prefix("/mooring/v1/") {
                let rest = format!("/{rest}");
                return (own_api(&front, request, id, rest).await, None);
            }
            (unknown_route(), None)
        }
    }
}

fn versions<B: Backend>(front: &Front<B>, request: &Request, status: StatusCode) -> Echoed {
    match version::asked(request.headers()) {
        Ok(asked) => (version::document(status, &base(&front.app, request)), asked.echo()),
        Err((fault, echo)) => (fault.into_response(), echo),
    }
}

/// The address under which this client reached us.
fn base<B: Backend>(app: &App<B>, request: &Request) -> String {
    let Options { public_url, tls, .. } = &app.0.options;
    if let Some(url) = public_url {
        return url.clone();
    }
    let scheme = if *tls { "https" } else { "http" };
    let host = host_header(request).unwrap_or_else(|| "localhost".to_owned());
    format!("{scheme}://{host}")
}

/// The path below `/v3/`: a collection, or a project and a collection.
struct Address {
    project: Option<String>,
    path: String,
}

fn address(collections: &BTreeSet<String>, rest: &str) -> Address {
    let known = |text: &str| collections.contains(text);
    // Routes of the API may end in a format; there is only one.
    let rest = match rest.strip_suffix(".json") {
        Some(plain) if plain.rsplit('/').next().is_some_and(|last| known(last) || last == "detail") => plain,
        _ => rest,
    };
    let first = rest.split('/').next().unwrap_or_default();
    match rest.split_once('/') {
        Some((project, below)) if !known(first) => {
            Address { project: Some(project.to_owned()), path: format!("/{below}") }
        }
        _ => Address { project: None, path: format!("/{rest}") },
    }
}

async fn volumes_api<B: Backend>(front: &Front<B>, request: Request, id: String, rest: &str) -> Echoed {
    let Address { project, path } = address(&front.collections, rest);
    if project.as_ref().is_some_and(|project| !project_ok(project)) {
        return (unknown_route(), None);
    }
    let notes = request.extensions().get::<Notes>().cloned().unwrap_or_default();
    let identity = match identity(front, request.headers(), called(&request), peer(&request)).await {
        Ok(identity) => identity,
        Err(refusal) => return (refused(front, refusal), None),
    };
    notes.identity(&identity);
    let version = match version::asked(request.headers()) {
        Ok(version) => version,
        Err((fault, echo)) => return (fault.into_response(), echo),
    };
    let own = identity.project.as_deref();
    if project.is_some() && own.is_some() && own != project.as_deref() {
        return (Fault::bad_request("Malformed request url").into_response(), version.echo());
    }
    if identity.system && project.is_none() {
        return (refused(front, AuthRefusal::NoProject), version.echo());
    }
    let caller = match identity.caller(&front.app.0.options.policies, project, id) {
        Ok(caller) => caller,
        Err(refusal) => return (refused(front, refusal), version.echo()),
    };
    notes.caller(&caller);
    let turn = match admit(front, &request, &caller) {
        Ok(turn) => turn,
        Err(fault) => return (fault.into_response(), version.echo()),
    };
    let response = match routed(front, request, caller, version, path) {
        Ok(request) => turn.run(front.volumes_api.clone().oneshot(request)).await.into_response(),
        Err(fault) => fault.into_response(),
    };
    (response, version.echo())
}

async fn own_api<B: Backend>(front: &Front<B>, request: Request, id: String, path: String) -> Response {
    let notes = request.extensions().get::<Notes>().cloned().unwrap_or_default();
    let identity = match identity(front, request.headers(), called(&request), peer(&request)).await {
        Ok(identity) => identity,
        Err(refusal) => return refused(front, refusal),
    };
    notes.identity(&identity);
    let caller = match identity.caller(&front.app.0.options.policies, None, id) {
        Ok(caller) => caller,
        Err(refusal) => return refused(front, refusal),
    };
    notes.caller(&caller);
    let turn = match admit(front, &request, &caller) {
        Ok(turn) => turn,
        Err(fault) => return fault.into_response(),
    };
    match routed(front, request, caller, Version::ATTACHMENTS, path) {
        Ok(request) => turn.run(front.own_api.clone().oneshot(request)).await.into_response(),
        Err(fault) => fault.into_response(),
    }
}

/// Gives a request its permit, now that its caller is known.
fn admit<B: Backend>(front: &Front<B>, request: &Request, caller: &Caller) -> Result<Turn, Fault> {
    let policies = &front.app.0.options.policies;
    let cuts = policies.allows("mooring:fence", caller, &Target::default())
        || policies.allows(FORCE_DETACH, caller, &Target::own(caller));
    let holder = Holder { project: caller.project.clone(), cuts };
    let gone = request.extensions().get::<Client>().map(|client| client.0.clone());
    let busy = |full| Fault::new(StatusCode::SERVICE_UNAVAILABLE, format!("{full}: try again in a second."));
    front.app.0.permits.admit(holder, gone).map_err(busy)
}

/// The policy of forced detaches.
const FORCE_DETACH: &str = "volume_extension:volume_admin_actions:force_detach";

/// The name under which the request reached us. A `Host` header that cannot be read counts as a
/// foreign name; `None` only if it is missing.
fn called(request: &Request) -> Option<String> {
    let present = request.headers().contains_key(header::HOST);
    present.then(|| host_header(request).unwrap_or_else(|| "?".to_owned()))
}

/// The address that a request comes from; `None` if that is this machine, where a proxy may hand on
/// requests from anywhere.
fn peer(request: &Request) -> Option<IpAddr> {
    let from = request.extensions().get::<ConnectInfo<SocketAddr>>()?.0.ip();
    Some(from).filter(|from| !from.to_canonical().is_loopback())
}

async fn identity<B: Backend>(
    front: &Front<B>,
    headers: &HeaderMap,
    host: Option<String>,
    peer: Option<IpAddr>,
) -> Result<Identity, AuthRefusal> {
    front.app.0.options.auth.identify(headers, host.as_deref(), peer).await
}

fn refused<B: Backend>(front: &Front<B>, refusal: AuthRefusal) -> Response {
    let status = refusal.status();
    let mut response = Fault::new(status, refusal.to_string()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, front.app.0.options.auth.challenge());
    }
    response
}

/// The request as the inner router sees it: with another path, and with its context.
fn routed<B: Backend>(
    front: &Front<B>,
    request: Request,
    caller: Caller,
    version: Version,
    path: String,
) -> Result<Request, Fault> {
    let base = base(&front.app, &request).into();
    let address = request.uri().path().into();
    let query = Query::of(request.uri())?;
    let (mut parts, body) = request.into_parts();
    rewrite(&mut parts, &path)?;
    parts.extensions.insert(BodyTimeout(front.app.0.options.body_timeout));
    let policies = Arc::clone(&front.app.0.options.policies);
    let notes = parts.extensions.get::<Notes>().cloned().unwrap_or_default();
    let path = path.into();
    parts.extensions.insert(Ctx { caller, version, base, address, path, query, policies, notes });
    Ok(Request::from_parts(parts, body))
}

fn rewrite(parts: &mut request::Parts, path: &str) -> Result<(), Fault> {
    let text = match parts.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    parts.uri = text.parse::<Uri>().map_err(|_| Fault::bad_request("Malformed request url"))?;
    Ok(())
}
