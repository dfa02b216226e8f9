//! Refusals: the reasons why something is not done, in the kinds that the API distinguishes.
//!
//! What must never happen here: a refusal without a kind; a secret in a text.

use crate::domain::{AttachViolation, QuotaViolation, RetypeViolation, RuleViolation};

/// How the API answers a request that breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAnswer {
    /// 400.
    Invalid,
    /// 400: it is the volume that makes the request wrong.
    InvalidVolume,
    /// 409.
    Conflict,
    /// 413.
    Exceeded,
    /// 501: a part that is not there yet.
    Unimplemented,
}

/// The reason why something is not done. Each kind is one status code of the API.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// 400: the request is wrong, or the object's state does not allow it (Cinder answers both with
    /// 400).
    #[error("{0}")]
    Invalid(String),
    /// 400, 409, 413 or 501: the request breaks a rule of volume types, attachments or quotas.
    /// `http` makes the API's sentence.
    #[error("a rule is broken: {1:?}")]
    Rule(RuleAnswer, Box<RuleViolation>),
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
    /// 413: the project's quota is exhausted. `http` makes it of a broken rule.
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

impl Refusal {
    /// Turns a conflict into a wrong request: some calls of the API know no conflicts.
    pub(crate) fn into_invalid(self) -> Self {
        match self {
            Self::Conflict(why) => Self::Invalid(format!("Invalid volume: {why}")),
            Self::Rule(RuleAnswer::Conflict, violation) => Self::Rule(RuleAnswer::InvalidVolume, violation),
            other => other,
        }
    }

    /// Makes the refusal of a request that breaks a rule.
    pub(crate) fn rule(answer: RuleAnswer, violation: RuleViolation) -> Self {
        Self::Rule(answer, Box::new(violation))
    }
}

impl From<RuleViolation> for Refusal {
    fn from(violation: RuleViolation) -> Self {
        use {AttachViolation as Attach, QuotaViolation as Quota, RetypeViolation as Retype};
        let answer = match &violation {
            RuleViolation::Retype(Retype::PoolCannotServe { may_move: true, .. }) => {
                RuleAnswer::Unimplemented
            }
            RuleViolation::Quota(Quota::VolumeTooLarge { .. } | Quota::Exceeded { .. }) => {
                RuleAnswer::Exceeded
            }
            RuleViolation::Spec(_)
            | RuleViolation::Connector(_)
            | RuleViolation::Quota(Quota::LimitBelowUsage { .. })
            | RuleViolation::Retype(_)
            | RuleViolation::Attach(
                Attach::ReadOnlyVolume | Attach::NotAttachable { .. } | Attach::DetachAnnounced { .. },
            ) => RuleAnswer::Invalid,
            RuleViolation::Attach(
                Attach::MixedModes { .. }
                | Attach::AccessGoing { .. }
                | Attach::DuplicateConnector { .. }
                | Attach::SharedAccess { .. }
                | Attach::ServerUsesIt { .. }
                | Attach::LunTaken { .. }
                | Attach::LunsDiffer { .. }
                | Attach::NoLunLeft,
            ) => RuleAnswer::Conflict,
        };
        Self::rule(answer, violation)
    }
}

/// Returns the sentence of a refusal that names announced attachments, with a space before it.
/// Empty without them.
pub(crate) fn announced_attachments(count: u32) -> String {
    if count == 0 {
        return String::new();
    }
    format!(
        " {count} announced by os-reserve did not come: they end by themselves, os-unreserve takes one back, and an admin's \
         os-reset_status all of them."
    )
}
