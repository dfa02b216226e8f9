//! Agents that joined with a token, and the tokens.
//!
//! What must never happen here: a token's text; a private key in a `Debug`.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A job of an agent on its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The agent serves volumes.
    Storage,
    /// The agent attaches volumes.
    Host,
}

impl Role {
    /// The role's word in the API and on command lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Host => "host",
        }
    }
}

/// The roles of one agent: at least one, each once, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles(Vec<Role>);

impl Roles {
    /// Sorts the roles; `None` for an empty list.
    pub fn new(mut roles: Vec<Role>) -> Option<Self> {
        roles.sort_unstable();
        roles.dedup();
        (!roles.is_empty()).then_some(Self(roles))
    }

    /// Returns `true` if this role is one of them.
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// The roles, in order.
    pub fn iter(&self) -> impl Iterator<Item = Role> {
        self.0.iter().copied()
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.iter().map(Role::as_str).collect();
        f.write_str(&words.join(","))
    }
}

/// A text that names no roles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no role: want storage, host, or both with a comma between them")]
pub struct ParseRolesError(String);

impl FromStr for Roles {
    type Err = ParseRolesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let role = |word: &str| match word {
            "storage" => Ok(Role::Storage),
            "host" => Ok(Role::Host),
            _ => Err(ParseRolesError(text.to_owned())),
        };
        let roles = text.split(',').map(role).collect::<Result<_, _>>()?;
        Self::new(roles).ok_or_else(|| ParseRolesError(text.to_owned()))
    }
}

/// Returns `true` if the text can be a zone's name: no comma, since types list several zones with
/// commas.
pub fn is_zone(text: &str) -> bool {
    let plain = text.trim() == text && !text.contains(',') && !text.chars().any(char::is_control);
    !text.is_empty() && text.chars().count() <= 255 && plain
}

/// An agent that joined with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolment {
    /// The agent's name for people.
    pub name: String,
    /// The enrolment's name in the agent's certificate. A new join makes a new one.
    pub id: Uuid,
    /// The address that is dialled: `https://HOST:PORT`.
    pub address: String,
    /// The agent's roles.
    pub roles: Roles,
    /// `true` if the agent is never dialled again, and its certificate is worth nothing.
    pub revoked: bool,
    /// The availability zone of its pools; `None` for the default zone.
    pub zone: Option<String>,
    /// The time of the join.
    pub joined_at: SystemTime,
    /// The end of the certificate's validity.
    pub expires_at: SystemTime,
}

/// A token by which one agent may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The SHA-256 of the token, in hexadecimal digits.
    pub hash: String,
    /// The agent that may join with it.
    pub name: String,
    /// The roles that it gets.
    pub roles: Roles,
    /// The availability zone that its pools get; `None` for the default zone.
    pub zone: Option<String>,
    /// The time from which the token is worth nothing.
    pub expires_at: SystemTime,
    /// The SHA-256 of the key that joined with the token: only its owner may ask again. `None`
    /// while the token is unused.
    pub used_by: Option<String>,
}

/// Authorities, by their pins, that a controller trusts and shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerTrust {
    /// The controller's machine, for people.
    pub host: String,
    /// The pin of its client certificate, which it keeps over restarts and renewals. Empty if the
    /// certificate cannot be read.
    #[serde(default)]
    pub key: String,
    /// The time at which it said so, in microseconds since 1970: set when it is stored.
    #[serde(default)]
    pub said_us: i64,
    /// The authorities that it trusts; the first one signs.
    pub pins: Vec<String>,
    /// The authorities of its own certificates, among those of [`ControllerTrust::pins`].
    pub shows: Vec<String>,
}

impl ControllerTrust {
    /// Returns `true` if both are words of one controller, also over restarts. `false` if that
    /// cannot be known.
    pub(crate) fn is_of_one(&self, other: &Self) -> bool {
        !self.key.is_empty() && (&self.key, &self.host) == (&other.key, &other.host)
    }
}

/// The authority that takes the place of the one in force, on its way to every controller of a
/// database.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextAuthority {
    /// The certificate, as PEM.
    pub certificate: String,
    /// The private key, as PEM.
    pub key: String,
}

impl fmt::Debug for NextAuthority {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextAuthority").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_they_are_written() {
        for text in ["storage", "host", "storage,host"] {
            assert_eq!(text.parse::<Roles>().unwrap().to_string(), text);
        }
        assert_eq!("host,storage,host".parse::<Roles>().unwrap().to_string(), "storage,host");
        for text in ["", ",", "storage,", "Storage", "storage host", "admin"] {
            assert!(text.parse::<Roles>().is_err(), "{text:?}");
        }
        assert_eq!(Roles::new(Vec::new()), None);
    }
}
