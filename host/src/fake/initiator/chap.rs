//! Target's half of CHAP (RFC 7143, 12.1; RFC 1994), with MD5, SHA1 and SHA-256.
//!
//! What must never happen here: a secret in a `Debug`; a login admitted whose response does not
//! match.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::pdu::{Pair, value};

/// A user and a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User, as `CHAP_N` has it.
    pub user: String,
    /// Secret, which is hashed.
    pub secret: String,
}

impl Credentials {
    /// Makes credentials from a user and a secret.
    pub fn new(user: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { user: user.into(), secret: secret.into() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Computes the digest of an algorithm by its number: MD5 5, SHA1 6, SHA-256 7. `None` for any
/// other.
pub(super) fn digest(algorithm: u8, id: u8, secret: &str, challenge: &[u8]) -> Option<Vec<u8>> {
    fn hash<D: Digest>(id: u8, secret: &str, challenge: &[u8]) -> Vec<u8> {
        let mut hash = D::new();
        hash.update([id]);
        hash.update(secret);
        hash.update(challenge);
        hash.finalize().to_vec()
    }
    match algorithm {
        5 => Some(hash::<Md5>(id, secret, challenge)),
        6 => Some(hash::<Sha1>(id, secret, challenge)),
        7 => Some(hash::<Sha256>(id, secret, challenge)),
        _ => None,
    }
}

fn digest_bytes(algorithm: u8) -> usize {
    match algorithm {
        5 => 16,
        6 => 20,
        _ => 32,
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    if digits.len() % 2 != 0 || !digits.is_ascii() {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

/// Makes a challenge that no other login gets; it need not be unpredictable.
fn challenge(bytes: usize) -> Vec<u8> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let mut all = Sha256::digest(format!("{now} {}", COUNT.fetch_add(1, Ordering::Relaxed))).to_vec();
    all.truncate(bytes);
    all
}

/// The target's own `CHAP_R`, where mutual authentication was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TargetProof {
    /// The right one.
    #[default]
    Right,
    /// None at all.
    Missing,
    /// A wrong one.
    Wrong,
    /// The initiator's own one, sent back.
    Reflected,
}

/// State of a CHAP exchange.
#[derive(Debug, Default)]
pub(super) enum Chap {
    #[default]
    Method,
    Algorithm,
    Response {
        algorithm: u8,
        id: u8,
        challenge: Vec<u8>,
    },
    Done,
}

/// Result of a step of CHAP.
#[derive(Debug)]
pub(super) enum Step {
    /// Go on with these keys.
    Answer(Vec<Pair>),
    /// The initiator has proved itself.
    Passed(Vec<Pair>),
    /// Status 0x0201.
    Failed,
    /// Status 0x0207.
    Missing,
}

fn pair(key: &str, value: impl Into<String>) -> Pair {
    (key.to_owned(), value.into())
}

impl Chap {
    /// Handles one request's keys. `allowed` are the algorithms that the target supports.
    pub(super) fn step(
        &mut self,
        keys: &[Pair],
        credentials: &Credentials,
        mutual: Option<&Credentials>,
        allowed: &[u8],
        own: TargetProof,
    ) -> Step {
        match self {
            Self::Method => {
                if value(keys, "AuthMethod").is_none() {
                    return Step::Missing;
                }
                *self = Self::Algorithm;
                Step::Answer(vec![pair("AuthMethod", "CHAP")])
            }
            Self::Algorithm => {
                let Some(list) = value(keys, "CHAP_A") else { return Step::Missing };
                let chosen = list.split(',').filter_map(|number| number.parse().ok());
                let Some(algorithm) = chosen.into_iter().find(|number| allowed.contains(number)) else {
                    return Step::Failed;
                };
                let challenge = challenge(digest_bytes(algorithm));
                let id = challenge[0];
                let answer = vec![
                    pair("CHAP_A", algorithm.to_string()),
                    pair("CHAP_I", id.to_string()),
                    pair("CHAP_C", hex(&challenge)),
                ];
                *self = Self::Response { algorithm, id, challenge };
                Step::Answer(answer)
            }
            Self::Response { algorithm, id, challenge } => {
                let Some((user, shown)) = value(keys, "CHAP_N").zip(value(keys, "CHAP_R")) else {
                    return Step::Missing;
                };
                let wanted = digest(*algorithm, *id, &credentials.secret, challenge);
                let shown = unhex(shown);
                if user != credentials.user || shown.is_none() || shown != wanted {
                    return Step::Failed;
                }
                let answer = prove(keys, *algorithm, challenge, mutual, own);
                if answer.is_some() {
                    *self = Self::Done;
                }
                answer.map_or(Step::Failed, Step::Passed)
            }
            Self::Done => Step::Passed(Vec::new()),
        }
    }
}

/// Computes the target's own proof, when the initiator asks for one. Like LIO it answers one-way,
/// silently, when it has no credentials of its own. `None`: the initiator sent the target's
/// challenge back.
fn prove(
    keys: &[Pair],
    algorithm: u8,
    ours: &[u8],
    mutual: Option<&Credentials>,
    own: TargetProof,
) -> Option<Vec<Pair>> {
    let Some(((id, theirs), credentials)) = value(keys, "CHAP_I").zip(value(keys, "CHAP_C")).zip(mutual)
    else {
        return Some(Vec::new());
    };
    let (id, theirs) = (id.parse().ok()?, unhex(theirs)?);
    if theirs == ours {
        return None;
    }
    let mut proof = digest(algorithm, id, &credentials.secret, &theirs)?;
    if own == TargetProof::Reflected {
        proof = unhex(value(keys, "CHAP_R")?)?;
    }
    if own == TargetProof::Wrong {
        proof[0] ^= 1;
    }
    let mut answer = vec![pair("CHAP_N", &credentials.user)];
    if own != TargetProof::Missing {
        answer.push(pair("CHAP_R", hex(&proof)));
    }
    Some(answer)
}
