//! Identities: the sender of a request, before its policies are asked.

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The token's project; `None` if the address names it.
    pub project: Option<String>,
    /// `true` if the token is for the whole system, without a project.
    pub system: bool,
    /// The user, for the records.
    pub user: String,
    /// Roles in lower case, sorted.
    pub roles: Vec<String>,
    /// `true` if the token's project is the admins' project, or no such project is set up.
    pub admin_project: bool,
    /// `true` with a service's own token: another service acts for the user.
    pub service: bool,
}
