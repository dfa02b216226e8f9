//! A client of the router: no sockets, no clock.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use mooring_controller::auth::Auth;
use mooring_controller::http::{BODY_TIMEOUT, Options, router};
use mooring_controller::policy::Policies;
use mooring_controller::service::Service;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fake::Fake;

pub(crate) const PROJECT: &str = "0123456789abcdef0123456789abcdef";
/// An id that no object has.
pub(crate) const DEAD: &str = "00000000-0000-4000-8000-00000000dead";
pub(crate) const INSTANCE: &str = "aaaaaaaa-0000-4000-8000-000000000000";

pub(crate) struct Api {
    pub(crate) fake: Fake,
    router: Router,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// The parts of a request.
pub(crate) struct Call<'a> {
    api: &'a Api,
    method: Method,
    path: String,
    request: axum::http::request::Builder,
    body: Body,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self::with(Auth::NoAuth, None)
    }

    pub(crate) fn with(auth: Auth, public_url: Option<&str>) -> Self {
        let public_url = public_url.map(str::to_owned);
        Self::from(Options {
            auth,
            policies: Arc::default(),
            public_url,
            tls: false,
            body_timeout: BODY_TIMEOUT,
        })
    }

    /// An API with an operator's policies.
    pub(crate) fn ruled(auth: Auth, policies: &str) -> Self {
        let policies = Arc::new(Policies::parse(policies, "policy.yaml", true).unwrap());
        Self::from(Options { auth, policies, public_url: None, tls: false, body_timeout: BODY_TIMEOUT })
    }

    fn from(options: Options) -> Self {
        let fake = Fake::new();
        Self { router: router(fake.clone(), options), fake }
    }

    /// An API of a control plane with a store. Its callers are admins.
    pub(crate) fn on(service: &Service) -> Self {
        Self::of(service, Auth::NoAuth)
    }

    /// An API of a control plane with a store.
    pub(crate) fn of(service: &Service, auth: Auth) -> Self {
        let options = Options {
            auth,
            policies: std::sync::Arc::default(),
            public_url: None,
            tls: false,
            body_timeout: BODY_TIMEOUT,
        };
        Self { router: router(service.clone(), options), fake: Fake::new() }
    }

    pub(crate) fn router(&self) -> Router {
        self.router.clone()
    }

    pub(crate) fn call(&self, method: &str, path: &str) -> Call<'_> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(method.clone()).uri(path).header("host", "localhost:8776");
        Call { api: self, method, path: path.to_owned(), request, body: Body::empty() }
    }

    /// A call of the Block Storage API below the project's address, at a version.
    pub(crate) async fn v3(&self, version: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
        let call = self.call(method, &format!("/v3/{PROJECT}{path}")).version(version);
        match body {
            Some(body) => call.json(&body).send().await,
            None => call.send().await,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.v3("3.60", "GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.v3("3.60", "POST", path, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.v3("3.60", "PUT", path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.v3("3.60", "DELETE", path, None).await
    }

    /// Makes a volume of 1 GiB, and returns its id.
    pub(crate) async fn volume(&self, name: &str) -> String {
        let answer = self.post("/volumes", json!({ "volume": { "size": 1, "name": name } })).await;
        assert_eq!(answer.status, 202);
        answer.body["volume"]["id"].as_str().unwrap().to_owned()
    }

    /// Makes a reserved attachment, and returns its id.
    pub(crate) async fn reserved(&self, volume: &str) -> String {
        let body = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": INSTANCE } });
        let answer = self.post("/attachments", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["attachment"]["id"].as_str().unwrap().to_owned()
    }
}

impl Call<'_> {
    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.request = self.request.header(name, value.as_ref());
        self
    }

    /// Makes the request come from this address, as a listener passes it on.
    pub(crate) fn peer(mut self, address: &str) -> Self {
        let from = std::net::SocketAddr::new(address.parse().unwrap(), 40_000);
        self.request = self.request.extension(axum::extract::ConnectInfo(from));
        self
    }

    pub(crate) fn version(self, version: &str) -> Self {
        self.header("OpenStack-API-Version", format!("volume {version}"))
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.raw("application/json", body.to_string())
    }

    pub(crate) fn raw(self, content_type: &str, body: impl Into<Body>) -> Self {
        let mut call = self.header("content-type", content_type);
        call.body = body.into();
        call
    }

    pub(crate) fn untyped(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self) -> Answer {
        let request = self.request.body(self.body).unwrap();
        let response = self.api.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        let id = parts.headers["x-openstack-request-id"].to_str().unwrap();
        assert!(id.starts_with("req-") && id.len() == 40, "{id}");
        crate::openapi::check(&self.method, &self.path, parts.status, &body);
        Answer { status: parts.status, headers: parts.headers, body }
    }
}

impl Answer {
    /// The keys of the object under `name`, sorted.
    pub(crate) fn keys(&self, name: &str) -> Vec<String> {
        keys(&self.body[name])
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Asserts that this is that fault with that code and text.
    #[track_caller]
    pub(crate) fn is_fault(&self, code: u16, fault: &str, text: &str) {
        assert_eq!(
            (self.status.as_u16(), &self.body),
            (code, &json!({ fault: { "code": code, "message": text } }))
        );
    }
}

pub(crate) fn keys(value: &Value) -> Vec<String> {
    let mut keys: Vec<_> = value.as_object().unwrap_or_else(|| panic!("{value}")).keys().cloned().collect();
    keys.sort();
    keys
}

/// The words of a line, sorted: for lists of keys.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    words.sort();
    words
}
