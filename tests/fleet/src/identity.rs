//! An identity service for clients that begin with a password: versions, tokens and a service
//! catalogue, as far as `openstack` and the controller ask Keystone for them.
//!
//! The accounts of the fleet are its users. The name of an account is also its password: the
//! service listens on loopback, and what a token opens is a fake.
//!
//! What must never happen here: a token without a password; a token of a project that is not the
//! user's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::{Router, body};
use mooring_controller::auth::keystone;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// The domain of every user and every project.
pub const DOMAIN: &str = "Default";

/// The longest body that is read, in bytes.
const BODY_MAX: usize = 1 << 20;

/// Life of a token, counted from each answer.
const TOKEN_HOURS: i64 = 24;

/// The controller's own user, which asks about the tokens of others.
const CONTROLLER: &str = "service";

/// A user, with the one token that each of its logins gives.
pub(crate) struct User {
    pub(crate) name: &'static str,
    pub(crate) project: &'static str,
    pub(crate) project_name: &'static str,
    pub(crate) role: &'static str,
    pub(crate) token: String,
}

/// A running identity service; it ends with its runtime.
pub struct Identity {
    address: SocketAddr,
    password_file: PathBuf,
    project: &'static str,
}

struct Service {
    users: Vec<User>,
    /// Address of this service, without `/v3`.
    url: String,
    /// Address of the controller.
    controller: String,
}

impl Identity {
    /// Starts the service for these users and the controller at this address. `password_file` is
    /// made, with the password of the controller's own user.
    pub(crate) fn start(
        runtime: &Runtime,
        users: Vec<User>,
        controller: &str,
        password_file: PathBuf,
    ) -> Self {
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        std::fs::write(&password_file, format!("{CONTROLLER}\n")).unwrap();
        std::fs::set_permissions(&password_file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let own = users.iter().find(|user| user.name == CONTROLLER).expect("the controller's user");
        let project = own.project_name;
        let url = format!("http://{address}");
        let service = Arc::new(Service { users, url, controller: controller.to_owned() });
        let router = Router::new().fallback(answer).with_state(service);
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, password_file, project }
    }

    /// The address for `OS_AUTH_URL`, such as `http://127.0.0.1:34568/v3`.
    pub fn auth_url(&self) -> String {
        format!("http://{}/v3", self.address)
    }

    /// The options of a controller that asks this service.
    pub(crate) fn options(&self) -> keystone::Options {
        keystone::Options {
            url: format!("http://{}", self.address),
            public_uri: self.auth_url(),
            username: CONTROLLER.to_owned(),
            password_file: self.password_file.clone(),
            user_domain: DOMAIN.to_owned(),
            project: self.project.to_owned(),
            project_domain: DOMAIN.to_owned(),
            ca: None,
            remember: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            service_roles: vec!["service".to_owned()],
        }
    }
}

async fn answer(State(service): State<Arc<Service>>, request: Request) -> Response<Body> {
    let (parts, content) = request.into_parts();
    match (&parts.method, parts.uri.path().trim_end_matches('/')) {
        (&Method::GET, "") => {
            let versions = json!({ "versions": { "values": [service.version()] } });
            reply(StatusCode::MULTIPLE_CHOICES, &versions)
        }
        (&Method::GET, "/v3") => reply(StatusCode::OK, &json!({ "version": service.version() })),
        (&Method::POST, "/v3/auth/tokens") => {
            // A body that is too long or no JSON names nobody, and is refused like a wrong
            // password.
            let content = body::to_bytes(content, BODY_MAX).await.unwrap_or_default();
            let asked: Value = serde_json::from_slice(&content).unwrap_or_default();
            service.log_in(&asked)
        }
        (&Method::GET, "/v3/auth/tokens") => {
            let catalogue = !parts.uri.query().unwrap_or_default().contains("nocatalog");
            service.describe(&parts.headers, catalogue)
        }
        (&Method::GET, path) => service.project(path),
        _ => fault(StatusCode::NOT_FOUND),
    }
}

fn reply(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn fault(status: StatusCode) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let error = json!({ "code": status.as_u16(), "title": title, "message": title });
    reply(status, &json!({ "error": error }))
}

/// A time as Keystone writes it, in hours from now.
fn time(hours: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(hours);
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

impl Service {
    fn version(&self) -> Value {
        let links = json!([{ "rel": "self", "href": format!("{}/v3/", self.url) }]);
        json!({ "id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z", "links": links,
                "media-types": [] })
    }

    /// Answers a login by a password, or by a token that its user has already.
    fn log_in(&self, asked: &Value) -> Response<Body> {
        let (identity, scope) = (&asked["auth"]["identity"], &asked["auth"]["scope"]["project"]);
        let (who, token) = (&identity["password"]["user"], &identity["token"]["id"]);
        let proven = |user: &&User| {
            let named = who["name"] == user.name || who["id"] == user.name;
            (named && who["password"] == user.name) || *token == user.token.as_str()
        };
        // Without a scope a user gets a token of its default project, the only one.
        let own = |user: &&User| {
            scope.is_null() || scope["id"] == user.project || scope["name"] == user.project_name
        };
        let Some(user) = self.users.iter().find(proven).filter(own) else {
            return fault(StatusCode::UNAUTHORIZED);
        };
        let mut response = reply(StatusCode::CREATED, &self.about(user, true));
        let token = HeaderValue::from_str(&user.token).expect("a token is plain text");
        response.headers_mut().insert("x-subject-token", token);
        response
    }

    /// Describes the token in `X-Subject-Token` to whoever has one.
    fn describe(&self, headers: &HeaderMap, catalogue: bool) -> Response<Body> {
        let holder = |name: &str| {
            let token = headers.get(name)?.to_str().ok()?;
            self.users.iter().find(|user| user.token == token)
        };
        match (holder("x-auth-token"), holder("x-subject-token")) {
            (None, _) => fault(StatusCode::UNAUTHORIZED),
            (Some(_), None) => fault(StatusCode::NOT_FOUND),
            (Some(_), Some(user)) => reply(StatusCode::OK, &self.about(user, catalogue)),
        }
    }

    /// Describes one project, which the commands of `openstack` look up by its id.
    fn project(&self, path: &str) -> Response<Body> {
        let id = path.strip_prefix("/v3/projects/").unwrap_or_default();
        match self.users.iter().find(|user| user.project == id) {
            Some(user) => {
                let about =
                    json!({ "id": id, "name": user.project_name, "domain_id": "default", "enabled": true });
                reply(StatusCode::OK, &json!({ "project": about }))
            }
            None => fault(StatusCode::NOT_FOUND),
        }
    }

    fn about(&self, user: &User, catalogue: bool) -> Value {
        let domain = json!({ "id": "default", "name": DOMAIN });
        let mut token = json!({
            "methods": ["password"],
            "user": { "id": user.name, "name": user.name, "domain": domain },
            "project": { "id": user.project, "name": user.project_name, "domain": domain },
            "is_domain": false,
            "roles": roles(user.role),
            "audit_ids": [user.name],
            "issued_at": time(0),
            "expires_at": time(TOKEN_HOURS),
        });
        if catalogue {
            let volumes = format!("{}/v3/{}", self.controller, user.project);
            token["catalog"] = json!([
                entry("identity", "keystone", &format!("{}/v3", self.url)),
                entry("block-storage", "mooring", &volumes),
            ]);
        }
        json!({ "token": token })
    }
}

/// The role and those that it implies, as Keystone lists them: an admin is a member, a member a
/// reader.
fn roles(role: &str) -> Vec<Value> {
    const ORDER: [&str; 3] = ["admin", "member", "reader"];
    let all = match ORDER.iter().position(|known| *known == role) {
        Some(at) => ORDER[at..].to_vec(),
        None => vec![role],
    };
    all.into_iter().map(|role| json!({ "id": role, "name": role })).collect()
}

/// A service of the catalogue, with its one endpoint.
fn entry(kind: &str, name: &str, url: &str) -> Value {
    let region = "RegionOne";
    let endpoint = json!({ "id": format!("{name}-public"), "interface": "public", "region": region,
                           "region_id": region, "url": url });
    json!({ "id": name, "type": kind, "name": name, "endpoints": [endpoint] })
}
