//! Callers without authentication.
//!
//! What must never happen here: a web page that calls this API by a name of its own that it points
//! at this machine.

use std::net::IpAddr;

use super::{AuthRefusal, Identity, project_ok};
use crate::auth::roles::{ADMIN, with_implied};

/// Refuses a host name that is not one of this machine's own. A web page anywhere can point its own
/// name at 127.0.0.1, but cannot make a browser say `localhost` for it.
pub(super) fn only_local(host: Option<&str>) -> Result<(), AuthRefusal> {
    if host.is_some_and(|host| !is_local(host)) { Err(AuthRefusal::ForeignHost) } else { Ok(()) }
}

/// The identity of an admin. Clients without a password send `user:project`: user, project and the
/// claim to be a service are believed.
pub(super) fn identity(token: Option<&[u8]>, service: bool) -> Identity {
    let text = token.and_then(|token| std::str::from_utf8(token).ok()).unwrap_or_default();
    let (user, project) = text.split_once(':').unwrap_or((text, ""));
    let user: String = user.chars().filter(|c| !c.is_control()).take(64).collect();
    Identity {
        project: Some(project.to_owned()).filter(|project| project_ok(project)),
        system: false,
        user: if user.is_empty() { "admin".to_owned() } else { user },
        roles: with_implied([ADMIN]),
        admin_project: true,
        service,
    }
}

fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    address || name.eq_ignore_ascii_case("localhost")
}
