//! Refusals: why something is not done, in the kinds that the API tells apart.
//!
//! What must never happen here: a refusal without a kind; a secret in a text.

/// Why something is not done. Each kind is one status code of the API.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// 400: the request is wrong, or the object's state does not allow it (Cinder answers both with 400).
    #[error("{0}")]
    Invalid(String),
    /// 403.
    #[error("{0}")]
    Forbidden(String),
    /// 401: a join token that is worth nothing.
    #[error("{0}")]
    Unauthenticated(String),
    /// 404: `Volume`, `Volume type`, `Attachment`, `Host` and what was asked for.
    #[error("{kind} {what} could not be found.")]
    NotFound {
        /// The kind of object.
        kind: &'static str,
        /// Its name or id.
        what: String,
    },
    /// 409.
    #[error("{0}")]
    Conflict(String),
    /// 409, also where other conflicts are 400: the name of an initiator is another host's.
    #[error("{0}")]
    OtherHost(String),
    /// 413: the project has as much as it may have.
    #[error("{0}")]
    Exceeded(String),
    /// 501: a part of the API that is not there yet.
    #[error("{0}")]
    Unimplemented(String),
    /// 412: it is not as the caller says that it is.
    #[error("{0}")]
    Changed(String),
    /// 504: durable, going on, not true yet at the deadline; asking again is safe and right.
    #[error("{0}")]
    Pending(String),
    /// 503: no report to decide from, or an agent that must answer is down.
    #[error("{0}")]
    Unavailable(String),
    /// 500: the store failed.
    #[error("{0}")]
    Internal(String),
}
