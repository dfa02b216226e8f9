//! An identity service on a real socket, with counters and with faults.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode};
use axum::{Router, body};
use mooring_controller::auth::{Auth, Keystone, keystone};
use serde_json::{Value, json};

pub(crate) const PASSWORD: &str = "correct horse";

/// Faults of the service, in the place of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This code, with a body that no client reads.
    Code(u16),
    /// 200 with this text.
    Text(&'static str),
    /// 200 with more than any client reads.
    Endless,
    /// No answer, for longer than any client waits.
    Silence,
}

#[derive(Default)]
pub(crate) struct Inside {
    /// Tokens of users and services, with the data about each.
    pub(crate) tokens: HashMap<String, Value>,
    /// The controller's own tokens that are valid.
    pub(crate) own: Vec<String>,
    /// Lifetime of a new token for the controller itself.
    pub(crate) own_life: Option<Duration>,
    pub(crate) logins: usize,
    pub(crate) questions: usize,
    /// Number of questions with `allow_expired`.
    pub(crate) lenient: usize,
    pub(crate) fault: Option<Fault>,
    /// A gate at which questions wait until it is closed.
    pub(crate) gate: Option<Arc<tokio::sync::Semaphore>>,
}

#[derive(Clone)]
pub(crate) struct FakeKeystone {
    inside: Arc<Mutex<Inside>>,
    pub(crate) address: SocketAddr,
    dir: Arc<tempfile::TempDir>,
}

/// A time as Keystone writes it, in seconds from now.
pub(crate) fn time(from_now: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(from_now);
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

impl FakeKeystone {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self {
            inside: Arc::default(),
            address: listener.local_addr().unwrap(),
            dir: Arc::new(tempfile::tempdir().unwrap()),
        };
        let router = Router::new().fallback(answer).with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        fake
    }

    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }

    /// Options of a controller that asks this service, and remembers answers for this time.
    pub(crate) fn options(&self, remember: Duration) -> keystone::Options {
        let password_file = self.dir.path().join("password");
        std::fs::write(&password_file, format!("{PASSWORD}\n")).unwrap();
        std::fs::set_permissions(&password_file, std::fs::Permissions::from_mode(0o600)).unwrap();
        keystone::Options {
            url: format!("http://{}", self.address),
            public_uri: "https://cloud.example/identity".to_owned(),
            username: "mooring".to_owned(),
            password_file,
            user_domain: "Default".to_owned(),
            project: "service".to_owned(),
            project_domain: "Default".to_owned(),
            ca: None,
            remember,
            // A busy machine may answer late.
            timeout: Duration::from_secs(20),
            service_roles: vec!["Service".to_owned()],
        }
    }

    pub(crate) fn auth(&self, remember: Duration) -> Auth {
        Auth::Keystone(Keystone::open(&self.options(remember)).unwrap())
    }

    /// A token of a project, with roles, that lives for an hour.
    pub(crate) fn give(&self, token: &str, project: &str, roles: &[&str]) {
        self.give_until(token, 3_600, json!({ "project": { "id": project } }), roles);
    }

    pub(crate) fn give_until(&self, token: &str, seconds: i64, scope: Value, roles: &[&str]) {
        let mut about = scope;
        let roles: Vec<_> = roles.iter().map(|role| json!({ "name": role })).collect();
        about["roles"] = json!(roles);
        about["user"] = json!({ "id": format!("id-of-{token}"), "name": token });
        about["expires_at"] = json!(time(seconds));
        self.inside().tokens.insert(token.to_owned(), about);
    }

    pub(crate) fn asked(&self) -> (usize, usize) {
        let inside = self.inside();
        (inside.logins, inside.questions)
    }
}

fn code(code: u16) -> Response<Body> {
    Response::builder().status(code).body(Body::empty()).unwrap()
}

async fn answer(State(fake): State<FakeKeystone>, request: Request) -> Response<Body> {
    let (parts, content) = request.into_parts();
    assert_eq!(parts.uri.path(), "/v3/auth/tokens");
    if parts.method == Method::POST {
        let content = body::to_bytes(content, usize::MAX).await.unwrap();
        return login(&fake, &serde_json::from_slice(&content).unwrap());
    }
    let header = |name: &str| parts.headers[name].to_str().unwrap().to_owned();
    let lenient = parts.uri.query().unwrap().contains("allow_expired=1");
    let (fault, gate) = {
        let mut inside = fake.inside();
        inside.questions += 1;
        inside.lenient += usize::from(lenient);
        if !inside.own.contains(&header("x-auth-token")) {
            return code(401);
        }
        (inside.fault, inside.gate.clone())
    };
    if let Some(gate) = gate {
        let _ = gate.acquire().await;
    }
    match fault {
        Some(Fault::Code(number)) => return code(number),
        Some(Fault::Text(text)) => return Response::new(Body::from(text)),
        Some(Fault::Endless) => return Response::new(Body::from(vec![b' '; 4 * 1024 * 1024])),
        Some(Fault::Silence) => {
            tokio::time::sleep(Duration::from_mins(1)).await;
            return code(500);
        }
        None => {}
    }
    let about = fake.inside().tokens.get(&header("x-subject-token")).cloned();
    let about = about.filter(|about| {
        let ends: jiff::Timestamp = about["expires_at"].as_str().unwrap().parse().unwrap();
        lenient || ends > jiff::Timestamp::now()
    });
    match about {
        Some(about) => Response::new(Body::from(json!({ "token": about }).to_string())),
        None => code(404),
    }
}

fn login(fake: &FakeKeystone, body: &Value) -> Response<Body> {
    let mut inside = fake.inside();
    inside.logins += 1;
    let user = &body["auth"]["identity"]["password"]["user"];
    if (user["name"].as_str(), user["password"].as_str()) != (Some("mooring"), Some(PASSWORD)) {
        return code(401);
    }
    assert_eq!(body["auth"]["scope"]["project"]["name"], "service");
    let token = format!("own-{}", inside.logins);
    inside.own.push(token.clone());
    let life = inside.own_life.unwrap_or(Duration::from_hours(1));
    let ends = jiff::Timestamp::now() + jiff::SignedDuration::try_from(life).unwrap();
    let body = json!({ "token": { "expires_at": ends.to_string(), "user": { "id": "m" } } });
    Response::builder()
        .status(StatusCode::CREATED)
        .header("x-subject-token", token)
        .body(Body::from(body.to_string()))
        .unwrap()
}
