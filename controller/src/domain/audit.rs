//! Lines of the audit log.
//!
//! What must never happen here: a field that holds a request's body, a token or a secret.

use std::net::IpAddr;
use std::time::SystemTime;

/// An object that a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditObject {
    /// The kind: `volume`, `attachment`, `host` …
    pub kind: String,
    /// The id, or the name where that is the key.
    pub id: String,
}

/// A call that changed something, or would have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditCall {
    /// The request id that the answer carries.
    pub request: String,
    /// The authenticated user; `None` if there was none.
    pub user: Option<String>,
    /// The project that the caller acts for.
    pub project: Option<String>,
    /// The caller's roles.
    pub roles: Vec<String>,
    /// The address of the connection's other end; `None` on a listener that has none.
    pub from: Option<IpAddr>,
    /// The HTTP method.
    pub method: String,
    /// The operation's id in the OpenAPI document; `None` if the document has no such operation.
    pub operation: Option<String>,
    /// The action that the body of an `/action` call names; `None` if it is unknown, or the body
    /// was not read.
    pub action: Option<String>,
    /// The objects of the address first, then those in the body, and created ones.
    pub objects: Vec<AuditObject>,
    /// The answer's status.
    pub status: u16,
    /// The reason why it was not done, in words that repeat nothing of the request's body.
    pub problem: Option<String>,
}

/// A call with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The time at which the answer was known.
    pub at: SystemTime,
    /// The call.
    pub call: AuditCall,
}

/// A line as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// The line's number: later lines have larger ones.
    pub seq: u64,
    /// The call, with its time.
    pub entry: AuditEntry,
}

/// A filter of lines.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// The earliest time.
    pub since: Option<SystemTime>,
    /// The time before which the line was written.
    pub until: Option<SystemTime>,
    /// The calling user.
    pub user: Option<String>,
    /// The id of an object.
    pub object: Option<String>,
    /// The most lines.
    pub limit: u32,
    /// The number of a line: only older ones are returned.
    pub marker: Option<u64>,
}
