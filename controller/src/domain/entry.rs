//! Agents that are dialled: from the configuration, or by an enrolment.
//!
//! What must never happen here: an agent that may do what its enrolment does not say.

use mooring_api::{Address, TlsFiles};
use uuid::Uuid;

use super::{Enrolment, Role, Roles};

/// An agent that the configuration names, or that has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEntry {
    /// Unique; how people call it.
    pub name: String,
    /// Where it is dialled.
    pub address: Address,
    /// For `https` addresses.
    pub tls: TlsFiles,
    /// Plain text on a network (`http`) is allowed.
    pub insecure: bool,
    /// The availability zone of its pools. `None`: the default one.
    pub zone: Option<String>,
    /// The enrolment by which it joined. `None`: the configuration names it, and it may do everything.
    pub enrolment: Option<EntryEnrolment>,
}

/// What an enrolment says of the agent that is dialled by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryEnrolment {
    /// The enrolment.
    pub id: Uuid,
    /// The roles by which it joined.
    pub roles: Roles,
}

impl AgentEntry {
    /// True if the agent may do this.
    pub fn may(&self, role: Role) -> bool {
        self.enrolment.as_ref().is_none_or(|enrolment| enrolment.roles.has(role))
    }

    /// True if the agent joined by this enrolment.
    pub(crate) fn is_of(&self, enrolment: &Enrolment) -> bool {
        self.enrolment.as_ref().is_some_and(|own| own.id == enrolment.id)
    }
}
