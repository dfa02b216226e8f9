//! Static tokens from a file.
//!
//! A token is `mooring_<id>_<secret>`. The id names the entry, so that a request costs at most one
//! argon2 hash, and only for ids in the file. The file has only the argon2 hash of each token: a
//! reader of a backup cannot call. Right and wrong tokens are remembered for a while. Argon2 runs
//! on few threads at once, and few requests may wait for it.
//!
//! What must never happen here: a token in a log or an error; a request that is let in because a
//! hash could not be computed; work for the processor that a stranger can order without a bound.

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{self, PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};
use mooring_model::Cure;
use mooring_systemd::config::{ConfigError, File, Mistakes};
use mooring_systemd::private;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use toml::Spanned;

use super::memory::{Memory, Print, Printer};
use super::roles::{self, MEMBER};
use super::{AuthRefusal, project_ok};

/// The prefix of every token, by which a leaked one is recognised.
const PREFIX: &str = "mooring_";

/// The number of random bytes in a token's id.
const ID_BYTES: usize = 8;

/// The number of random bytes in a token's secret.
const SECRET_BYTES: usize = 32;

/// The most memory that a hash of the file may cost, in KiB, and the most passes over it.
const COST_MAX: (u32, u32) = (256 * 1024, 16);

/// The time for which a right token is remembered.
const RIGHT_FOR: Duration = Duration::from_mins(10);

/// The time for which a wrong token is remembered.
const WRONG_FOR: Duration = Duration::from_mins(1);

/// The number of wrong tokens that are remembered.
const WRONG_MAX: usize = 4_096;

/// The number of concurrent hashes. Each takes about 20 MiB.
const TURNS: usize = 2;

/// The number of requests that may wait for a turn, or have one.
const PLACES: usize = 64;

/// The number of such requests with one token's id. So a caller that sends wrong tokens with a
/// known id keeps nobody else out.
const PLACES_PER_TOKEN: usize = 32;

/// The tokens of the file.
pub struct Tokens {
    list: Vec<Token>,
    by_id: HashMap<String, usize>,
    printer: Printer,
    /// Remembered tokens, with `true` for a right one.
    memory: Mutex<Remembered>,
    turns: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

struct Remembered {
    right: Memory<()>,
    wrong: Memory<()>,
}

/// An entry of the file.
pub(super) struct Token {
    name: String,
    pub(super) project: String,
    pub(super) user: String,
    pub(super) roles: Vec<String>,
    hash: Arc<PasswordHash>,
    places: Arc<Semaphore>,
}

// The hashes are not shown: they help nobody.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list.iter().map(|token| &token.name)).finish()
    }
}

/// The reason why the token file is not used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: make one with `mooring-controller token`", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Other users could read or change the file.
    #[error(
        "the token file {} has mode {mode:04o}: others may not read it, and only its owner may write it: \
         chmod 0640 (or 0600)", .path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// A mistake inside.
    #[error(transparent)]
    Content(#[from] ConfigError),
}

impl TokensError {
    /// The remedy: the keeper of the file has to act.
    pub const fn cure(&self) -> Cure {
        Cure::Operator
    }
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
    id: Option<Spanned<String>>,
    project: Spanned<String>,
    user: Option<String>,
    roles: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    admin: bool,
    argon2: Option<Spanned<String>>,
    /// A key of earlier files.
    sha256: Option<Spanned<IgnoredAny>>,
}

/// Reads a hash that can be computed in bounded time and memory.
fn hash_of(text: &str) -> Result<PasswordHash, &'static str> {
    let want = "argon2: want the text from `mooring-controller token`: $argon2id$v=19$…";
    let hash = PasswordHash::new(text).map_err(|_| want)?;
    if hash.algorithm.as_str() != "argon2id" || hash.salt.is_none() || hash.hash.is_none() {
        return Err(want);
    }
    let cost = Params::try_from(&hash).map_err(|_| want)?;
    if cost.m_cost() > COST_MAX.0 || cost.t_cost() > COST_MAX.1 || cost.p_cost() > 4 {
        return Err("argon2: this hash costs more than is worked out here: at most m=262144, t=16, p=4");
    }
    Ok(hash)
}

fn token(file: &File<'_>, raw: Spanned<RawToken>) -> Result<(String, Token), ConfigError> {
    let span = raw.span();
    let raw = raw.into_inner();
    if let Some(old) = raw.sha256 {
        let why = "sha256: tokens of this form are not taken any more: make a new one with `mooring-controller \
                   token`, put its block here instead of this one, and give it to the token's user";
        return Err(file.wrong(&old.span(), why));
    }
    let missing =
        |key: &str| file.wrong(&span, format!("{key} is missing: `mooring-controller token` writes it"));
    let id = raw.id.ok_or_else(|| missing("id"))?;
    if id.get_ref().len() != 2 * ID_BYTES || !id.get_ref().bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(file.wrong(&id.span(), "id: want the 16 hexadecimal digits of the token"));
    }
    let text = raw.argon2.ok_or_else(|| missing("argon2"))?;
    let hash = hash_of(text.get_ref()).map_err(|why| file.wrong(&text.span(), why))?;
    if !project_ok(raw.project.get_ref()) {
        let why = "project: want 1 to 64 letters, digits, - and _ (usually 32 hexadecimal digits)";
        return Err(file.wrong(&raw.project.span(), why));
    }
    if raw.name.get_ref().trim().is_empty() {
        return Err(file.wrong(&raw.name.span(), "name: want a text that says whose token it is"));
    }
    let mut named = Vec::new();
    for role in raw.roles.iter().flatten() {
        if !roles::ok(role.get_ref()) {
            return Err(file.wrong(&role.span(), "roles: want names of 1 to 64 letters, digits, -, _ and ."));
        }
        named.push(role.get_ref().as_str());
    }
    if raw.admin {
        named.push(roles::ADMIN);
    } else if raw.roles.is_none() {
        named.push(MEMBER);
    }
    let name = raw.name.into_inner();
    let user = raw.user.unwrap_or_else(|| name.clone());
    let roles = roles::with_implied(named);
    let id = id.into_inner().to_ascii_lowercase();
    Ok((
        id,
        Token {
            name,
            project: raw.project.into_inner(),
            user,
            roles,
            hash: Arc::new(hash),
            places: Arc::new(Semaphore::new(PLACES_PER_TOKEN)),
        },
    ))
}

impl Tokens {
    /// Reads the file, if no one else can.
    pub fn load(path: &Path) -> Result<Self, TokensError> {
        let read = |source| TokensError::Read { path: path.to_owned(), source };
        if let Some(mode) = private::exposed(path).map_err(read)? {
            return Err(TokensError::Open { path: path.to_owned(), mode });
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        Ok(Self::parse(&text, &path.display().to_string())?)
    }

    /// Checks a text; `name` is the file's name in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let file = File::new(name, text);
        let mut wrong = Mistakes::default();
        let raw: Option<RawTokens> = file.parse(&mut wrong);
        let raw = wrong.end(|| raw)?;
        if raw.tokens.is_empty() {
            return Err(file.missing(
                "no token: nobody could call; make one with `mooring-controller token` and put its block here",
            ));
        }
        let mut tokens: Vec<Token> = Vec::new();
        let mut by_id = HashMap::new();
        for raw in raw.tokens {
            let span = raw.span();
            let (id, token) = token(&file, raw)?;
            if by_id.insert(id, tokens.len()).is_some() {
                return Err(file.wrong(&span, "id: this token is listed twice"));
            }
            if tokens.iter().any(|other| other.name == token.name) {
                return Err(file.wrong(&span, "name: this name is listed twice"));
            }
            tokens.push(token);
        }
        let printer = Printer::new().map_err(|error| file.missing(format!("no random numbers: {error}")))?;
        let memory = Remembered {
            // Twice the number: no right token is dropped for lack of room.
            right: Memory::new(2 * tokens.len()),
            wrong: Memory::new(WRONG_MAX),
        };
        Ok(Self {
            list: tokens,
            by_id,
            printer,
            memory: Mutex::new(memory),
            turns: Arc::new(Semaphore::new(TURNS)),
            places: Arc::new(Semaphore::new(PLACES)),
        })
    }

    /// The entry of a token.
    pub(super) async fn find(&self, token: &[u8]) -> Result<&Token, AuthRefusal> {
        let found = id_of(token).and_then(|id| self.list.get(*self.by_id.get(&id)?));
        let found = found.ok_or(AuthRefusal::UnknownToken)?;
        let print = self.printer.print(0, token);
        let right = match self.remembered(&print) {
            Some(right) => right,
            None => self.verify(found, token, print).await?,
        };
        if right { Ok(found) } else { Err(AuthRefusal::UnknownToken) }
    }

    fn remembered(&self, print: &Print) -> Option<bool> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let right = memory.right.get(print, now).map(|()| true);
        right.or_else(|| memory.wrong.get(print, now).map(|()| false))
    }

    async fn verify(&self, found: &Token, token: &[u8], print: Print) -> Result<bool, AuthRefusal> {
        let own = Arc::clone(&found.places).try_acquire_owned().map_err(|_| AuthRefusal::Busy)?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| AuthRefusal::Busy)?;
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| AuthRefusal::Busy)?;
        // Another request with this token may have had the turn before.
        if let Some(right) = self.remembered(&print) {
            return Ok(right);
        }
        let (hash, token) = (Arc::clone(&found.hash), token.to_vec());
        let work = tokio::task::spawn_blocking(move || {
            // Held until the work is done, even if the client is gone before.
            let _held = (own, place, turn);
            Argon2::default().verify_password(&token, &*hash)
        });
        let right = match work.await {
            Ok(Ok(())) => true,
            Ok(Err(password_hash::Error::PasswordInvalid)) => false,
            Ok(Err(_)) | Err(_) => return Err(AuthRefusal::Busy),
        };
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if right {
            memory.right.put(print, (), Instant::now() + RIGHT_FOR);
        } else {
            memory.wrong.put(print, (), Instant::now() + WRONG_FOR);
        }
        Ok(right)
    }
}

/// The id inside a token; `None` if it has not the form of one.
fn id_of(token: &[u8]) -> Option<String> {
    let rest = std::str::from_utf8(token).ok()?.strip_prefix(PREFIX)?;
    let (id, secret) = rest.split_once('_')?;
    let ok = id.len() == 2 * ID_BYTES && secret.len() == 2 * SECRET_BYTES;
    ok.then(|| id.to_ascii_lowercase())
}

/// A new token: shown once, and stored nowhere.
pub struct NewToken {
    /// The token that the client sends.
    pub token: String,
    /// The block for the token file.
    pub block: String,
}

/// The reason why no token is made.
#[derive(Debug, thiserror::Error)]
pub enum NewTokenError {
    /// The role cannot stand in the file.
    #[error("{0:?} is no role: want 1 to 64 letters, digits, -, _ and .")]
    Role(String),
    /// The system gave no random numbers.
    #[error("cannot read random numbers")]
    Random(#[source] getrandom::Error),
    /// The hash cannot be computed.
    #[error("cannot work out the token's hash: {0}")]
    Hash(String),
}

impl NewTokenError {
    /// The party that can mend the failure.
    pub const fn cure(&self) -> Cure {
        match self {
            Self::Role(_) => Cure::FixSpec,
            Self::Random(_) | Self::Hash(_) => Cure::Operator,
        }
    }
}

impl NewToken {
    /// Makes a token from the system's random numbers.
    pub fn make<T: AsRef<str>>(
        name: &str,
        project: &str,
        user: Option<&str>,
        roles: &[T],
    ) -> Result<Self, NewTokenError> {
        if let Some(wrong) = roles.iter().find(|role| !roles::ok(role.as_ref())) {
            return Err(NewTokenError::Role(wrong.as_ref().chars().take(80).collect()));
        }
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random).map_err(NewTokenError::Random)?;
        let (id, secret) = random.split_at(ID_BYTES);
        let id = hex(id);
        let token = format!("{PREFIX}{id}_{}", hex(secret));
        let hash: PasswordHash = Argon2::default()
            .hash_password(token.as_bytes())
            .map_err(|error| NewTokenError::Hash(error.to_string()))?;
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut block =
            format!("[[tokens]]\nname = {}\nid = \"{id}\"\nproject = {}\n", quoted(name), quoted(project));
        if let Some(user) = user {
            // Writing to a String cannot fail.
            let _ = writeln!(block, "user = {}", quoted(user));
        }
        let roles: Vec<_> = roles::tidy(roles).iter().map(|role| quoted(role)).collect();
        let _ = writeln!(block, "roles = [{}]\nargon2 = \"{hash}\"", roles.join(", "));
        Ok(Self { token, block })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
