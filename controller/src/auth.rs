//! Who may call: static bearer tokens from a file, or anybody on loopback where the operator says so.
//!
//! The file has no token, only the SHA-256 of each: tokens are 256 random bits, so that a fast hash is enough (a guess is as
//! hard as the token itself), and whoever reads a backup of the file cannot call.
//!
//! What must never happen here: a token in a log or an error; a comparison whose time tells how much was right; a call
//! without a token from another machine.

use std::fmt;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, header};
use mooring_model::Cure;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use toml::Spanned;

use crate::config::{ConfigError, File};
use crate::domain::Caller;

/// The project of those who name none, where nobody is asked who they are.
const PROJECT_DEFAULT: &str = "default";

/// Random bytes of a new token.
const TOKEN_BYTES: usize = 32;

/// Permissions of the token file that are refused: for others, and writing by the group.
const MODE_REFUSED: u32 = 0o027;

/// Who may call.
#[derive(Debug)]
pub enum Auth {
    /// Those with a token of the file.
    Tokens(Tokens),
    /// Anybody, as an admin. For loopback listeners only: [`crate::config::Config`] sees to that.
    NoAuth,
}

/// The tokens of the file.
#[derive(Debug)]
pub struct Tokens(Vec<Token>);

struct Token {
    name: String,
    project: String,
    user: String,
    admin: bool,
    hash: [u8; 32],
}

// What is compared is not shown either: it helps nobody who may not know it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.name)
    }
}

/// Who a request is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `None`: the address says it.
    pub project: Option<String>,
    /// For the records.
    pub user: String,
    /// May do everything.
    pub admin: bool,
}

impl Identity {
    /// The caller of one request, whose address may name the project.
    pub(crate) fn caller(self, project: Option<String>, request: String) -> Caller {
        let project = self.project.or(project).unwrap_or_else(|| PROJECT_DEFAULT.to_owned());
        Caller { project, user: self.user, admin: self.admin, request }
    }
}

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    /// 401.
    #[error(
        "The request you have made requires authentication: send a token as X-Auth-Token or as Authorization: Bearer."
    )]
    NoToken,
    /// 401.
    #[error("The token is not known.")]
    UnknownToken,
    /// 403: a web page that had its own name resolved to this machine.
    #[error("Without authentication, requests are taken for localhost only.")]
    ForeignHost,
}

impl AuthRefusal {
    /// 403 instead of 401.
    pub(crate) const fn forbidden(self) -> bool {
        matches!(self, Self::ForeignHost)
    }
}

/// Why the token file is not used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: make one with `mooring-controller token`", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Others could read or change it.
    #[error(
        "the token file {} has mode {mode:04o}: others may not read it, and only its owner may write it: \
         chmod 0640 (or 0600)", .path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A mistake inside.
    #[error(transparent)]
    Content(#[from] ConfigError),
}

impl TokensError {
    /// Who can cure it: whoever keeps the file.
    pub const fn cure(&self) -> Cure {
        Cure::Operator
    }
}

/// Whether a text can be a project: what can stand in an address without being escaped.
pub fn project_ok(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(known)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTokens {
    #[serde(default)]
    tokens: Vec<Spanned<RawToken>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawToken {
    name: Spanned<String>,
    project: Spanned<String>,
    user: Option<String>,
    #[serde(default)]
    admin: bool,
    sha256: Spanned<String>,
}

impl Tokens {
    /// Reads the file, if nobody else can.
    pub fn load(path: &Path) -> Result<Self, TokensError> {
        let read = |source| TokensError::Read { path: path.to_owned(), source };
        let mode = std::fs::metadata(path).map_err(read)?.permissions().mode() & 0o777;
        if mode & MODE_REFUSED != 0 {
            return Err(TokensError::Open { path: path.to_owned(), mode });
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        Ok(Self::parse(&text, &path.display().to_string())?)
    }

    /// Checks a text; `name` is what errors call the file.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let file = File { name, text };
        let raw: RawTokens = toml::from_str(text).map_err(|error| file.of_toml(&error))?;
        if raw.tokens.is_empty() {
            return Err(file.missing(
                "no token: nobody could call; make one with `mooring-controller token` and put its block here",
            ));
        }
        let mut tokens: Vec<Token> = Vec::new();
        for raw in raw.tokens {
            let raw = raw.into_inner();
            let span = raw.sha256.span();
            let wrong = |why: &str| file.wrong(&span, format!("sha256: {why}"));
            let hash = unhex(raw.sha256.get_ref()).ok_or_else(|| wrong("want 64 hexadecimal digits"))?;
            if tokens.iter().any(|token| token.hash == hash) {
                return Err(wrong("this token stands there twice"));
            }
            if !project_ok(raw.project.get_ref()) {
                let why = "project: want 1 to 64 letters, digits, - and _ (usually 32 hexadecimal digits)";
                return Err(file.wrong(&raw.project.span(), why));
            }
            if raw.name.get_ref().trim().is_empty() {
                return Err(file.wrong(&raw.name.span(), "name: want a text that says whose token it is"));
            }
            if tokens.iter().any(|token| &token.name == raw.name.get_ref()) {
                return Err(file.wrong(&raw.name.span(), "name: this name stands there twice"));
            }
            let name = raw.name.into_inner();
            let user = raw.user.unwrap_or_else(|| name.clone());
            tokens.push(Token { name, project: raw.project.into_inner(), user, admin: raw.admin, hash });
        }
        Ok(Self(tokens))
    }

    /// All are compared, whichever is right.
    fn find(&self, token: &[u8]) -> Option<&Token> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let mut found = None;
        for token in &self.0 {
            if bool::from(token.hash.ct_eq(&hash)) {
                found = Some(token);
            }
        }
        found
    }
}

impl Auth {
    /// Who a request is from. `host` is what it calls us.
    pub(crate) fn identify(&self, headers: &HeaderMap, host: Option<&str>) -> Result<Identity, AuthRefusal> {
        let token = presented(headers);
        match self {
            Self::Tokens(tokens) => {
                let token = token.filter(|token| !token.is_empty()).ok_or(AuthRefusal::NoToken)?;
                let known = tokens.find(token).ok_or(AuthRefusal::UnknownToken)?;
                Ok(Identity {
                    project: Some(known.project.clone()),
                    user: known.user.clone(),
                    admin: known.admin,
                })
            }
            Self::NoAuth => {
                if host.is_some_and(|host| !is_local(host)) {
                    return Err(AuthRefusal::ForeignHost);
                }
                // Clients without a password say `user:project`.
                let text = token.and_then(|token| std::str::from_utf8(token).ok()).unwrap_or_default();
                let (user, project) = text.split_once(':').unwrap_or((text, ""));
                let user: String = user.chars().filter(|c| !c.is_control()).take(64).collect();
                Ok(Identity {
                    project: Some(project.to_owned()).filter(|project| project_ok(project)),
                    user: if user.is_empty() { "admin".to_owned() } else { user },
                    admin: true,
                })
            }
        }
    }
}

/// A web page anywhere can point its own name at 127.0.0.1; it cannot make a browser say `localhost` for it.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    address || name.eq_ignore_ascii_case("localhost")
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(token) = headers.get("x-auth-token") {
        return Some(token.as_bytes());
    }
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A token that was made just now: shown once, and kept nowhere.
pub struct NewToken {
    /// What the client sends.
    pub token: String,
    /// What goes into the file.
    pub block: String,
}

impl NewToken {
    /// Makes one from the system's random numbers.
    pub fn make(
        name: &str,
        project: &str,
        user: Option<&str>,
        admin: bool,
    ) -> Result<Self, getrandom::Error> {
        let mut random = [0; TOKEN_BYTES];
        getrandom::fill(&mut random)?;
        let token = hex(&random);
        let hash = hex(&Sha256::digest(token.as_bytes()));
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut block = format!("[[tokens]]\nname = {}\nproject = {}\n", quoted(name), quoted(project));
        if let Some(user) = user {
            // Writing to a String cannot fail.
            let _ = writeln!(block, "user = {}", quoted(user));
        }
        let _ = writeln!(block, "admin = {admin}\nsha256 = \"{hash}\"");
        Ok(Self { token, block })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn a_new_token_opens_what_its_block_says() {
        let new = NewToken::make("ci \"x\"", "0123abcd", Some("robot"), false).unwrap();
        assert!(!new.block.contains(&new.token));
        let (_dir, path) = file(&new.block, 0o640);
        let auth = Auth::Tokens(Tokens::load(&path).unwrap());
        let wanted =
            Identity { project: Some("0123abcd".to_owned()), user: "robot".to_owned(), admin: false };
        assert_eq!(auth.identify(&headers("x-auth-token", &new.token), None), Ok(wanted.clone()));
        let bearer = headers("authorization", &format!("bearer {}", new.token));
        assert_eq!(auth.identify(&bearer, None), Ok(wanted));
        for (name, value) in [("x-auth-token", "x"), ("authorization", "Bearer x")] {
            assert_eq!(auth.identify(&headers(name, value), None), Err(AuthRefusal::UnknownToken));
        }
        for (name, value) in [("x-auth-token", ""), ("authorization", "Basic eDp5"), ("authorization", "B")] {
            assert_eq!(auth.identify(&headers(name, value), None), Err(AuthRefusal::NoToken), "{value}");
        }
        assert!(!format!("{auth:?}").contains("sha256"));
    }

    #[test]
    fn a_file_that_others_could_use_is_refused() {
        let block = NewToken::make("a", "b", None, true).unwrap().block;
        for mode in [0o644, 0o604, 0o660, 0o620, 0o602] {
            let (_dir, path) = file(&block, mode);
            let error = Tokens::load(&path).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("chmod"), "{error}");
        }
        for mode in [0o600, 0o640, 0o400, 0o440] {
            let (_dir, path) = file(&block, mode);
            assert!(Tokens::load(&path).is_ok(), "{mode:o}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let block = NewToken::make("a", "b", None, true).unwrap().block;
        for (text, line, word) in [
            (String::new(), None, "no token"),
            (format!("{block}\n{block}"), Some(11), "twice"),
            (block.replace("admin", "amdin"), Some(4), "amdin"),
            (block.replace("\"b\"", "\"b/../c\""), Some(3), "project"),
            (block.replace("sha256 = \"", "sha256 = \"0"), Some(5), "64"),
            (block.replace("\"a\"", "\" \""), Some(2), "name"),
        ] {
            let error = Tokens::parse(&text, "tokens").unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
            if let Some(line) = line {
                assert!(error.contains(&format!("line {line}:")), "{error}");
            }
        }
    }

    #[test]
    fn without_authentication_only_localhost_is_served() {
        for (host, local) in [
            ("127.0.0.1:8776", true),
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("[::1]:8776", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:8776", false),
            ("10.0.0.1:8776", false),
        ] {
            let answer = Auth::NoAuth.identify(&HeaderMap::new(), Some(host));
            assert_eq!(answer.is_ok(), local, "{host}");
        }
        let said = Auth::NoAuth.identify(&headers("x-auth-token", "eve:p1"), None).unwrap();
        assert_eq!((said.user.as_str(), said.project.as_deref(), said.admin), ("eve", Some("p1"), true));
    }
}
