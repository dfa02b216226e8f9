//! Refusals: the reasons why something is not done, in the kinds that the API distinguishes.
//!
//! What must never happen here: a refusal without a kind; a secret in a text.

/// The reason why something is not done. Each kind is one status code of the API.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// 400: the request is wrong, or the object's state does not allow it (Cinder answers both with
    /// 400).
    #[error("{0}")]
    Invalid(String),
    /// 403: the caller may not do it.
    #[error("{0}")]
    Forbidden(String),
    /// 401: a join token that is worth nothing.
    #[error("{0}")]
    Unauthenticated(String),
    /// 404: a `Volume`, `Volume type`, `Attachment`, `Host` or other object is missing.
    #[error("{kind} {what} could not be found.")]
    NotFound {
        /// The kind of object.
        kind: &'static str,
        /// The name or id.
        what: String,
    },
    /// 409: the request conflicts with the present state.
    #[error("{0}")]
    Conflict(String),
    /// 409, even where other conflicts are 400: the initiator name belongs to another host.
    #[error("{0}")]
    OtherHost(String),
    /// 413: the project's quota is exhausted.
    #[error("{0}")]
    Exceeded(String),
    /// 501: a part of the API that does not exist yet.
    #[error("{0}")]
    Unimplemented(String),
    /// 412: the state differs from the caller's condition.
    #[error("{0}")]
    Changed(String),
    /// 504: the change is durable and in progress, but not complete at the deadline. Repeating the
    /// request is safe and right.
    #[error("{0}")]
    Pending(String),
    /// 503: no report to decide from, or an agent that must answer is down.
    #[error("{0}")]
    Unavailable(String),
    /// 500: the store failed.
    #[error("{0}")]
    Internal(String),
}
