//! Lines of the audit log.
//!
//! What must never happen here: a field that holds a request's body, a token or a secret.

use std::net::IpAddr;
use std::time::SystemTime;

/// Something that a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditObject {
    /// `volume`, `attachment`, `host` …
    pub kind: String,
    /// The id, or the name where that is the key.
    pub id: String,
}

/// A call that changes something, or would have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditCall {
    /// The request id that the answer carries.
    pub request: String,
    /// `None`: nobody was authenticated.
    pub user: Option<String>,
    /// The project that the caller acts for.
    pub project: Option<String>,
    /// The caller's roles.
    pub roles: Vec<String>,
    /// The address at the other end of the connection; `None` on a listener that has none.
    pub from: Option<IpAddr>,
    /// The HTTP method.
    pub method: String,
    /// The operation's id in the OpenAPI document; `None`: the document has no such operation.
    pub operation: Option<String>,
    /// The action that the body of an `/action` call names; `None`: none that is known, or nobody read the body.
    pub action: Option<String>,
    /// The objects of the address first, then those that the body names and those that were made.
    pub objects: Vec<AuditObject>,
    /// The answer's status.
    pub status: u16,
    /// Why it was not done, in words that repeat nothing of the request's body.
    pub problem: Option<String>,
}

/// A call with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// When the answer was known.
    pub at: SystemTime,
    /// The call.
    pub call: AuditCall,
}

/// A line as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// The number of the line: later lines have larger ones.
    pub seq: u64,
    /// The call, with its time.
    pub entry: AuditEntry,
}

/// Which lines are asked for.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// The earliest time.
    pub since: Option<SystemTime>,
    /// The time before which the line was written.
    pub until: Option<SystemTime>,
    /// The user who called.
    pub user: Option<String>,
    /// The id of an object that the line is about.
    pub object: Option<String>,
    /// How many lines at most.
    pub limit: u32,
    /// The number of a line: only older ones.
    pub marker: Option<u64>,
}
