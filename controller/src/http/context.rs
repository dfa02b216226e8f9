//! The context of a request before its handler runs: the caller, the version, and the address that
//! the client used.
//!
//! What must never happen here: a handler that runs without a caller.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Request};
use axum::http::header;
use axum::http::request::Parts;
use uuid::Uuid;

use super::audit::Notes;
use super::fault::Fault;
use super::query::Query;
use super::version::Version;
use crate::domain::{Caller, Volume};
use crate::policy::{Policies, Target};

/// The header in which a client names its own chain of requests, and in which we name ours.
pub(super) const REQUEST_ID: &str = "x-openstack-request-id";

/// The context of a request: see the module.
#[derive(Debug, Clone)]
pub(crate) struct Ctx {
    pub(super) caller: Caller,
    pub(super) version: Version,
    /// The address that the client used: `http://HOST:PORT`.
    pub(super) base: Arc<str>,
    /// The path that the client used, with or without the project: `/v3/volumes/detail`.
    pub(super) address: Arc<str>,
    /// The path below the project, like `/volumes/detail`.
    pub(super) path: Arc<str>,
    pub(super) query: Query,
    pub(super) policies: Arc<Policies>,
    /// The notes for the audit log.
    pub(super) notes: Notes,
}

impl Ctx {
    /// Refuses a feature of a later version.
    pub(super) fn since(&self, version: Version) -> Result<(), Fault> {
        if self.version >= version { Ok(()) } else { Err(Fault::not_at_this_version()) }
    }

    /// Returns `true` if the caller may see a part of an answer that belongs to no project.
    pub(super) fn allows(&self, policy: &'static str) -> bool {
        self.policies.allows(policy, &self.caller, &Target::own(&self.caller))
    }

    /// Refuses an act on a target that the policy denies the caller.
    pub(super) fn check(&self, policy: &'static str, target: &Target<'_>) -> Result<(), Fault> {
        Ok(self.policies.check(policy, &self.caller, target)?)
    }

    /// Refuses an act, on something without a project, that the policy denies the caller.
    pub(super) fn may(&self, policy: &'static str) -> Result<(), Fault> {
        self.check(policy, &Target::own(&self.caller))
    }

    /// Refuses an act on a volume, visible to the caller, that the policy denies the caller.
    pub(super) fn may_with(&self, policy: &'static str, volume: &Volume) -> Result<(), Fault> {
        self.check(policy, &Target { project: Some(&volume.project), user: Some(&volume.user) })
    }

    /// The address of an object of the caller's project.
    pub(super) fn href(&self, path: &str) -> String {
        format!("{}/v3/{}{path}", self.base, self.caller.project)
    }

    /// The address of another page of the list that was asked for, in the form of the request: with
    /// the project if the client named it there.
    pub(super) fn page(&self, query: &str) -> String {
        format!("{}{}?{query}", self.base, self.address)
    }

    /// Returns `true` if objects of all projects are requested. Only callers for whom
    /// `context_is_admin` holds get them, since there is no separate policy. For others the request
    /// is ignored, as in Cinder.
    pub(super) fn all_projects(&self) -> Result<bool, Fault> {
        Ok(self.query.flag("all_tenants")? && self.caller.admin)
    }
}

impl<S: Sync> FromRequestParts<S> for Ctx {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Fault::internal("a request without its context"))
    }
}

/// The variable parts of a path, decoded.
pub(super) struct At<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for At<T>
where
    T: serde::de::DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let Path(value) = Path::<T>::from_request_parts(parts, state)
            .await
            .map_err(|_| Fault::bad_request("Malformed request url"))?;
        Ok(Self(value))
    }
}

/// A new request id: `req-<uuid>`.
pub(super) fn new_request_id() -> String {
    format!("req-{}", Uuid::new_v4())
}

/// The client's own request id; `None` if it is missing or malformed.
pub(super) fn global_request_id(request: &Request) -> Option<&str> {
    let text = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    Uuid::try_parse(text.strip_prefix("req-")?).ok().map(|_| text)
}

/// The `HOST:PORT` that the client used; `None` unless it can stand in an address.
pub(super) fn host_header(request: &Request) -> Option<String> {
    let text = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    text.filter(|text| !text.is_empty() && text.len() < 256 && text.bytes().all(known)).map(str::to_owned)
}
