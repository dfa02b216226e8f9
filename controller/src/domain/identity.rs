//! Identities: who a request is from, before its policies are asked.

/// Who a request is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `None`: the address says it.
    pub project: Option<String>,
    /// The token is for the whole system: of no project.
    pub system: bool,
    /// For the records.
    pub user: String,
    /// In lower case, sorted.
    pub roles: Vec<String>,
    /// The token's project is the admins' (so it is where no such project is set up).
    pub admin_project: bool,
    /// A service's own token came along: this is another service, acting for the user.
    pub service: bool,
}
