//! Agents that the controller dials: from the configuration, or by an enrolment.
//!
//! What must never happen here: an agent that may do more than its enrolment says.

use mooring_api::{Address, TlsFiles};
use uuid::Uuid;

use super::{Enrolment, Role, Roles};

/// An agent that the configuration names, or that has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEntry {
    /// The unique name for people.
    pub name: String,
    /// The address that is dialled.
    pub address: Address,
    /// The TLS files for an `https` address.
    pub tls: TlsFiles,
    /// `true` if plain text across a network (`http`) is allowed.
    pub insecure: bool,
    /// The availability zone of its pools; `None` for the default zone.
    pub zone: Option<String>,
    /// The enrolment by which it joined; `None` for an agent of the configuration, which may do
    /// everything.
    pub enrolment: Option<EntryEnrolment>,
}

/// The enrolment of an agent that is dialled by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryEnrolment {
    /// The enrolment's id.
    pub id: Uuid,
    /// The roles by which it joined.
    pub roles: Roles,
}

impl AgentEntry {
    /// Returns `true` if the agent may take this role.
    pub fn may(&self, role: Role) -> bool {
        self.enrolment.as_ref().is_none_or(|enrolment| enrolment.roles.has(role))
    }

    /// Returns `true` if the agent joined by this enrolment.
    pub(crate) fn is_of(&self, enrolment: &Enrolment) -> bool {
        self.enrolment.as_ref().is_some_and(|own| own.id == enrolment.id)
    }
}
