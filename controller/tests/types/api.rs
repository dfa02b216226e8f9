//! A client of the real control plane's HTTP front: no sockets.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use mooring_controller::auth::Auth;
use mooring_controller::domain::{Caller, VolumeType};
use mooring_controller::http::{BODY_TIMEOUT, Options, router};
use mooring_controller::policy::Policies;
use serde_json::Value;
use tower::ServiceExt;

use crate::support::{Rig, admin};

pub(crate) const DEAD: &str = "00000000-0000-4000-8000-00000000dead";

pub(crate) struct Api(Router);

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Api {
    pub(crate) fn of(rig: &Rig) -> Self {
        Self::ruled(rig, "")
    }

    /// An API with an operator's policies in the HTTP layer.
    pub(crate) fn ruled(rig: &Rig, file: &str) -> Self {
        let policies = Arc::new(Policies::parse(file, "policy.yaml", true).unwrap());
        let options = Options {
            auth: Auth::NoAuth,
            policies,
            public_url: None,
            tls: false,
            body_timeout: BODY_TIMEOUT,
        };
        Self(router(rig.service.clone(), options))
    }

    /// A call as an admin of project `p`.
    pub(crate) async fn call(&self, version: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(format!("/v3/p{path}"))
            .header("host", "localhost:8776")
            .header("x-auth-token", "u:p")
            .header("openstack-api-version", format!("volume {version}"));
        let request = match body {
            Some(body) => {
                request.header("content-type", "application/json").body(Body::from(body.to_string()))
            }
            None => request.body(Body::empty()),
        };
        let response = self.0.clone().oneshot(request.unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("3.69", "GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("3.69", "POST", path, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("3.69", "PUT", path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call("3.69", "DELETE", path, None).await
    }
}

impl Answer {
    /// Asserts the answer's code, and a part of its error.
    #[track_caller]
    pub(crate) fn is(&self, code: u16, part: &str) {
        let message = self.body.as_object().and_then(|map| map.values().next());
        let message = message.and_then(|fault| fault["message"].as_str()).unwrap_or_default();
        assert_eq!(self.status.as_u16(), code, "{}", self.body);
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

pub(crate) fn specs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A public type with these specs.
pub(crate) async fn kind(rig: &Rig, name: &str, pairs: &[(&str, &str)]) -> VolumeType {
    rig.service.create_type(&admin(), name, None, true, specs(pairs)).await.unwrap()
}

pub(crate) fn of_project(project: &str) -> Caller {
    crate::support::member(project)
}
