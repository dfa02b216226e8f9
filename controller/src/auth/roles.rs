//! Names of roles.

/// The role that may do everything, by default.
pub(super) const ADMIN: &str = "admin";
/// The role that changes the objects of its project.
pub(super) const MEMBER: &str = "member";
/// The role that sees the objects of its project.
pub(super) const READER: &str = "reader";
/// The role of another service, like Nova, in a service token.
pub(super) const SERVICE: &str = "service";

/// Roles as policies compare them: in lower case, sorted, each once.
pub(super) fn tidy<T: AsRef<str>>(roles: impl IntoIterator<Item = T>) -> Vec<String> {
    let mut roles: Vec<_> = roles.into_iter().map(|role| role.as_ref().to_lowercase()).collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

/// Roles with those that an identity service would add: an admin is a member, a member a reader.
pub(super) fn with_implied<T: AsRef<str>>(roles: impl IntoIterator<Item = T>) -> Vec<String> {
    let mut roles = tidy(roles);
    for (role, implied) in [(ADMIN, MEMBER), (MEMBER, READER)] {
        if roles.iter().any(|one| one == role) {
            roles.push(implied.to_owned());
        }
    }
    tidy(roles)
}

/// Returns `true` if a text can be the name of a role in the token file.
pub(super) fn ok(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(known)
}
