//! The error about a spec of any kind. It stands below all specs, so that each of them can return
//! it.

/// A spec that can never be made true. The text names the field, the fault, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct SpecError {
    /// The field, such as `grants[3].chap.secret`.
    pub field: String,
    /// The fault.
    pub why: String,
}

impl SpecError {
    /// An error about one field.
    pub fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self { field: field.into(), why: why.into() }
    }
}
