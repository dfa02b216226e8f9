//! Bodies that Keystone sends and accepts. Pure.
//!
//! What must never happen here: an answer that is taken for a token it does not describe.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Options;
use crate::auth::{project_ok, roles};

/// Keystone's facts about a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) user: String,
    pub(super) project: Option<String>,
    pub(super) system: bool,
    /// Roles in lower case, sorted.
    pub(super) roles: Vec<String>,
    pub(super) admin_project: bool,
    pub(super) expires: SystemTime,
}

impl Known {
    /// The rest of the token's life; `None` once it has expired.
    pub(super) fn left(&self) -> Option<Duration> {
        self.expires.duration_since(SystemTime::now()).ok()
    }
}

#[derive(Deserialize)]
struct Body {
    token: Token,
}

#[derive(Deserialize)]
struct Token {
    user: User,
    project: Option<Project>,
    system: Option<System>,
    #[serde(default)]
    roles: Vec<Role>,
    is_admin_project: Option<bool>,
    expires_at: Timestamp,
}

#[derive(Deserialize)]
struct User {
    id: String,
}

#[derive(Deserialize)]
struct Project {
    id: String,
}

#[derive(Deserialize)]
struct System {
    #[serde(default)]
    all: bool,
}

#[derive(Deserialize)]
struct Role {
    name: String,
}

/// Reads the facts about a token. The error says why the answer cannot be understood.
pub(super) fn known(body: &[u8]) -> Result<Known, &'static str> {
    let Body { token } = serde_json::from_slice(body).map_err(|_| "an answer that describes no token")?;
    let project = token.project.map(|project| project.id);
    if project.as_ref().is_some_and(|project| !project_ok(project)) {
        return Err("a project whose id cannot stand in an address");
    }
    if token.user.id.is_empty() || token.user.id.len() > 255 {
        return Err("a user without an id of 1 to 255 bytes");
    }
    Ok(Known {
        user: token.user.id,
        system: project.is_none() && token.system.is_some_and(|system| system.all),
        project,
        roles: roles::tidy(token.roles.iter().map(|role| &role.name)),
        // Keystone says this only where an admins' project is set up.
        admin_project: token.is_admin_project.unwrap_or(true),
        expires: token.expires_at.into(),
    })
}

/// The end of our own new token.
pub(super) fn expires(body: &[u8]) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Body {
        token: Token,
    }
    #[derive(Deserialize)]
    struct Token {
        expires_at: Timestamp,
    }
    serde_json::from_slice::<Body>(body).ok().map(|body| body.token.expires_at.into())
}

/// The body of a request for our own token.
pub(super) fn login(options: &Options, password: &str) -> Value {
    json!({ "auth": {
        "identity": {
            "methods": ["password"],
            "password": { "user": {
                "name": options.username,
                "domain": { "name": options.user_domain },
                "password": password,
            } },
        },
        "scope": { "project": { "name": options.project, "domain": { "name": options.project_domain } } },
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(token: &Value) -> Result<Known, &'static str> {
        known(json!({ "token": token }).to_string().as_bytes())
    }

    #[test]
    fn a_token_is_what_keystone_says() {
        let base = json!({
            "methods": ["password"], "user": { "id": "u1", "name": "ann", "domain": { "id": "default" } },
            "audit_ids": ["x"], "expires_at": "2026-11-21T15:00:00.000000Z", "issued_at": "2026-11-21T14:00:00.000000Z",
        });
        let with = |more: Value| {
            let mut all = base.clone();
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            parsed(&all).unwrap()
        };
        let unscoped = with(json!({}));
        assert_eq!(
            (unscoped.project.as_deref(), unscoped.system, unscoped.user.as_str()),
            (None, false, "u1")
        );
        assert!(unscoped.roles.is_empty() && unscoped.admin_project);
        let seconds = unscoped.expires.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(seconds, 1_795_273_200);
        let scoped = with(json!({
            "project": { "id": "p1", "name": "x" }, "is_admin_project": false,
            "roles": [{ "name": "Member", "id": "1" }, { "name": "reader" }, { "name": "member" }],
        }));
        assert_eq!((scoped.project.as_deref(), scoped.admin_project), (Some("p1"), false));
        assert_eq!(scoped.roles, ["member", "reader"]);
        assert!(with(json!({ "system": { "all": true } })).system);
        assert!(!with(json!({ "system": {} })).system);
        // A token of both a project and the system counts for the project only.
        assert!(!with(json!({ "system": { "all": true }, "project": { "id": "p" } })).system);
    }

    #[test]
    fn anything_else_is_not_understood() {
        for body in [
            "",
            "{",
            "[]",
            "null",
            "{}",
            "{\"token\":{}}",
            "\u{fffd}",
            "{\"token\":{\"user\":{\"id\":\"u\"}}}",
        ] {
            assert!(known(body.as_bytes()).is_err(), "{body}");
        }
        let token = |user: &str, project: &str, expires: &str| {
            parsed(&json!({ "user": { "id": user }, "project": { "id": project }, "expires_at": expires }))
        };
        let time = "2026-11-21T15:00:00Z";
        assert!(token("u", "p", time).is_ok());
        assert!(token("", "p", time).is_err());
        assert!(token("u", "p/../q", time).is_err());
        assert!(token("u", "", time).is_err());
        assert!(token("u", "p", "soon").is_err());
        // The parser bounds the depth.
        assert!(known(&b"[".repeat(1_000_000)).is_err());
    }
}
