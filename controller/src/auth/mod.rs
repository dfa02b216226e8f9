//! Authentication of callers: by tokens of Keystone, by static tokens of a file, or by nothing on
//! loopback where the operator allows it. [`crate::policy`] says what callers may do.
//!
//! What must never happen here: a token in a log or an error; a comparison whose time tells how
//! much was right; a call without a token from another machine; a caller that acts for a project
//! which its token does not name.

pub mod keystone;
mod memory;
mod noauth;
mod roles;
mod tokens;

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

pub use keystone::{Keystone, KeystoneError};
pub use tokens::{NewToken, NewTokenError, Tokens, TokensError};

use crate::domain::{Caller, Identity};
use crate::policy::Policies;

/// The project of callers that name none, where nobody is authenticated.
const PROJECT_DEFAULT: &str = "default";

/// The way in which callers are authenticated.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per process")]
pub enum Auth {
    /// Tokens that Keystone knows.
    Keystone(Keystone),
    /// Tokens of the file.
    Tokens(Tokens),
    /// None: every caller is an admin. For loopback listeners only, which [`crate::config::Config`]
    /// ensures.
    NoAuth,
    /// None, under whatever name callers reach us: the operator insisted.
    NoAuthAnywhere,
}

impl Identity {
    /// The caller of one request, whose address may name the project.
    pub(crate) fn caller(
        self,
        policies: &Policies,
        project: Option<String>,
        request: String,
    ) -> Result<Caller, AuthRefusal> {
        let admin = policies.makes_admin(&self);
        let project = match (self.project, self.system) {
            (Some(own), _) => own,
            // A caller that is not an admin must not choose its project.
            (None, true) if !admin => return Err(AuthRefusal::Unscoped),
            (None, true) => project.unwrap_or_default(),
            (None, false) => project.unwrap_or_else(|| PROJECT_DEFAULT.to_owned()),
        };
        Ok(Caller { project, user: self.user, roles: self.roles, admin, service: self.service, request })
    }
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    /// 401: the token is missing.
    #[error(
        "The request you have made requires authentication: send a token as X-Auth-Token or as Authorization: Bearer."
    )]
    NoToken,
    /// 401: the token is unknown.
    #[error("The token is not known.")]
    UnknownToken,
    /// 401: the service token is unknown, or not a service's.
    #[error("The service token is not known.")]
    UnknownServiceToken,
    /// 403: the token has no project, and its user is no admin of the system.
    #[error("The token is of no project: ask for one that is.")]
    Unscoped,
    /// 400: the token is for the whole system, and the address names no project.
    #[error("The token is for the whole system: name a project in the address, as /v3/PROJECT/volumes.")]
    NoProject,
    /// 403: a web page made its own name resolve to this machine.
    #[error("Without authentication, requests are taken for localhost only.")]
    ForeignHost,
    /// 503: Keystone does not answer, and nothing is remembered about the token.
    #[error("The identity service cannot be asked about the token now: try again.")]
    Unavailable,
    /// 503: too many tokens are being verified.
    #[error("Too many tokens are being looked at: try again.")]
    Busy,
}

impl AuthRefusal {
    /// The status of the answer.
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::NoToken | Self::UnknownToken | Self::UnknownServiceToken => StatusCode::UNAUTHORIZED,
            Self::Unscoped | Self::ForeignHost => StatusCode::FORBIDDEN,
            Self::NoProject => StatusCode::BAD_REQUEST,
            Self::Unavailable | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Returns `true` if a text can be a project: it needs no escapes in an address.
pub fn project_ok(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(known)
}

impl Auth {
    /// Authenticates a request. `host` is the name under which it reached us. `peer` is the address
    /// that it comes from; `None` if that is unknown.
    pub async fn identify(
        &self,
        headers: &HeaderMap,
        host: Option<&str>,
        peer: Option<IpAddr>,
    ) -> Result<Identity, AuthRefusal> {
        let token = presented(headers).filter(|token| !token.is_empty());
        let service = headers.get("x-service-token").map(HeaderValue::as_bytes);
        let service = service.filter(|token| !token.is_empty());
        match self {
            Self::Keystone(keystone) => {
                keystone.identify(token.ok_or(AuthRefusal::NoToken)?, service, peer).await
            }
            Self::Tokens(tokens) => of_file(tokens, token.ok_or(AuthRefusal::NoToken)?, service).await,
            Self::NoAuth => {
                noauth::only_local(host)?;
                Ok(noauth::identity(token, service.is_some()))
            }
            Self::NoAuthAnywhere => Ok(noauth::identity(token, service.is_some())),
        }
    }

    /// The header of a 401 that says where to get a token.
    pub(crate) fn challenge(&self) -> HeaderValue {
        match self {
            Self::Keystone(keystone) => keystone.challenge(),
            Self::Tokens(_) | Self::NoAuth | Self::NoAuthAnywhere => {
                HeaderValue::from_static("Bearer realm=\"mooring\"")
            }
        }
    }
}

async fn of_file(tokens: &Tokens, token: &[u8], service: Option<&[u8]>) -> Result<Identity, AuthRefusal> {
    let service = match service {
        None => false,
        Some(token) => {
            let found = tokens.find(token).await.map_err(|refusal| match refusal {
                AuthRefusal::UnknownToken => AuthRefusal::UnknownServiceToken,
                other => other,
            })?;
            found.roles.iter().any(|role| role == roles::SERVICE)
        }
    };
    let found = tokens.find(token).await?;
    Ok(Identity {
        project: Some(found.project.clone()),
        system: false,
        user: found.user.clone(),
        roles: found.roles.clone(),
        admin_project: true,
        service,
    })
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(token) = headers.get("x-auth-token") {
        return Some(token.as_bytes());
    }
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests;
