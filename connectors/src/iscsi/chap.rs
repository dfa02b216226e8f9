//! CHAP (RFC 7143, 12.1; RFC 1994): the initiator proves that it knows its secret, and with mutual
//! CHAP the target proves that it knows its own.
//!
//! What must never happen here: a proof sent with a secret that the other direction shares; a
//! target taken for proven without having answered our own, fresh challenge; a comparison whose
//! duration tells how much was right; a secret in an error or a `Debug`.

use std::fmt;

use md5::Md5;
use mooring_model::Secret;
use mooring_model::limit::CHAP_BYTES_MAX;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::negotiate::parse_number;
use super::text::{Text, short};

/// Longest accepted challenge, in bytes (RFC 7143, 12.1.3).
const CHALLENGE_BYTES_MAX: usize = 1024;

/// Random bytes that one login needs: an identifier and the longest challenge.
const RANDOM_BYTES: usize = 1 + 32;

/// Names and secrets of both sides. `Debug` shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the initiator.
    pub user: String,
    /// Secret of the initiator.
    pub secret: Secret,
    /// Name and secret of the target: mutual CHAP, without which no login succeeds then.
    pub mutual: Option<(String, Secret)>,
    /// Second name and secret that prove the target as well, while secrets are being rotated. Only
    /// with `mutual`.
    pub other_mutual: Option<(String, Secret)>,
}

/// Sides that have proved themselves in a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Authentication {
    /// Nobody; no credentials were configured.
    None,
    /// The initiator, to the target.
    OneWay,
    /// Both sides, to each other.
    Mutual,
}

/// A hash function for CHAP, by its number in IANA's registry of PPP authentication algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// 7.
    Sha256,
    /// 6.
    Sha1,
    /// 5, which every target has (RFC 7143, 12.1.3).
    Md5,
}

impl Algorithm {
    /// Algorithms in our order of preference: the strongest first, because LIO takes the first that
    /// its kernel has. MD5 comes last, for targets with nothing else.
    pub const PREFERENCE: [Self; 3] = [Self::Sha256, Self::Sha1, Self::Md5];

    /// Returns the number in `CHAP_A`.
    pub fn number(self) -> u32 {
        match self {
            Self::Md5 => 5,
            Self::Sha1 => 6,
            Self::Sha256 => 7,
        }
    }

    /// Returns the number of bytes of a response, and of our challenges.
    pub fn digest_bytes(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Computes the response to a challenge: the hash of identifier, secret and challenge.
    pub fn response(self, id: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        fn hash<D: Digest>(id: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
            let mut hash = D::new();
            hash.update([id]);
            hash.update(secret.expose().as_bytes());
            hash.update(challenge);
            hash.finalize().to_vec()
        }
        match self {
            Self::Md5 => hash::<Md5>(id, secret, challenge),
            Self::Sha1 => hash::<Sha1>(id, secret, challenge),
            Self::Sha256 => hash::<Sha256>(id, secret, challenge),
        }
    }
}

/// Failure of CHAP. It contains neither secrets nor responses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChapError {
    /// The credentials cannot be used.
    #[error("the CHAP credentials cannot be used: {0}")]
    Unusable(&'static str),
    /// The target does not want CHAP.
    #[error(
        "the target does not want CHAP (AuthMethod={0:?}), but a secret is configured: not logged in without it"
    )]
    NotWanted(String),
    /// The target has none of our algorithms.
    #[error(
        "the target takes none of the offered CHAP algorithms 7 (SHA-256), 6 (SHA-1), 5 (MD5): CHAP_A={0:?}"
    )]
    NoAlgorithm(String),
    /// A key of the exchange is missing.
    #[error("the target's CHAP answer lacks {0}")]
    Missing(&'static str),
    /// A key of the exchange has a wrong value.
    #[error("the target's {key} is wrong: {why}")]
    Value {
        /// Name of the key.
        key: &'static str,
        /// Reason why the value is wrong.
        why: &'static str,
    },
    /// Mutual CHAP is configured and the target did not prove itself.
    #[error(
        "the target did not prove itself (no CHAP_N and CHAP_R), but mutual CHAP is configured: it has no mutual \
         secret, or is another target"
    )]
    NoProof,
    /// The target proves itself under another name.
    #[error("the target proves itself as {got:?}; mutual CHAP is configured for {want:?}")]
    Name {
        /// Name in the configuration.
        want: String,
        /// Name that the target sent.
        got: String,
    },
    /// The target's proof is wrong.
    #[error("the target's proof is wrong: it has another mutual secret, or is another target")]
    WrongProof,
    /// The target sent our own text back, or proves itself with our secret.
    #[error(
        "the target only reflects what it was sent: it is an impostor, or uses one secret in both directions"
    )]
    Reflected,
}

/// Proof of the target: it knows the mutual secret. Only the comparison makes one.
#[derive(Debug, Clone, Copy)]
struct Proven(());

/// One exchange, with a challenge of its own.
pub(super) struct Exchange {
    credentials: Credentials,
    /// Our identifier, followed by our challenge; the algorithm decides its length.
    random: [u8; RANDOM_BYTES],
    algorithm: Option<Algorithm>,
    proven: Option<Proven>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("algorithm", &self.algorithm)
            .field("proven", &self.proven.is_some())
            .finish_non_exhaustive()
    }
}

impl Exchange {
    pub(super) fn new(credentials: Credentials, random: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut bytes = [0; RANDOM_BYTES];
        random(&mut bytes);
        Self { credentials, random: bytes, algorithm: None, proven: None }
    }

    /// Checks the credentials, then returns the algorithms to offer: nothing is proved with bad
    /// credentials.
    pub(super) fn algorithms(&self) -> Result<Text, ChapError> {
        self.credentials.check()?;
        let list: Vec<String> = Algorithm::PREFERENCE.iter().map(|a| a.number().to_string()).collect();
        let mut text = Text::new();
        text.push("CHAP_A", &list.join(","));
        Ok(text)
    }

    /// Returns our proof, and with mutual CHAP our challenge.
    pub(super) fn respond(&mut self, asked: &Text) -> Result<Text, ChapError> {
        let number = asked.get("CHAP_A").ok_or(ChapError::Missing("CHAP_A"))?;
        let algorithm = Algorithm::PREFERENCE
            .into_iter()
            .find(|algorithm| parse_number(number) == Some(algorithm.number()))
            .ok_or_else(|| ChapError::NoAlgorithm(short(number)))?;
        let id = identifier(asked.get("CHAP_I").ok_or(ChapError::Missing("CHAP_I"))?)?;
        let challenge = asked.get("CHAP_C").ok_or(ChapError::Missing("CHAP_C"))?;
        let challenge = decode_binary(challenge, CHALLENGE_BYTES_MAX)
            .map_err(|why| ChapError::Value { key: "CHAP_C", why })?;
        self.algorithm = Some(algorithm);
        let (our_id, ours) = self.challenge(algorithm);
        if self.credentials.mutual.is_some() && bool::from(challenge.as_slice().ct_eq(ours)) {
            return Err(ChapError::Reflected);
        }
        let mut text = Text::new();
        text.push("CHAP_N", &self.credentials.user);
        let response = algorithm.response(id, &self.credentials.secret, &challenge);
        text.push("CHAP_R", &encode_binary(&response));
        if self.credentials.mutual.is_some() {
            text.push("CHAP_I", &our_id.to_string());
            text.push("CHAP_C", &encode_binary(ours));
        }
        Ok(text)
    }

    /// Returns our identifier and our challenge, as long as the algorithm's hash.
    fn challenge(&self, algorithm: Algorithm) -> (u8, &[u8]) {
        let [id, challenge @ ..] = &self.random;
        (*id, &challenge[..algorithm.digest_bytes()])
    }

    /// Checks the target's proof, if there is one. Without mutual CHAP nobody asked for it.
    pub(super) fn look_at(&mut self, answer: &Text) -> Result<(), ChapError> {
        let (Some(first), Some(algorithm)) = (&self.credentials.mutual, self.algorithm) else {
            return Ok(());
        };
        let known = || std::iter::once(first).chain(&self.credentials.other_mutual);
        let (got_name, response) = match (answer.get("CHAP_N"), answer.get("CHAP_R")) {
            // Nothing is proven; the end of the stage checks that.
            (_, None) => return Ok(()),
            (None, Some(_)) => return Err(ChapError::Missing("CHAP_N")),
            (Some(got), Some(response)) => (got, response),
        };
        if known().all(|(name, _)| got_name != name) {
            return Err(ChapError::Name { want: first.0.clone(), got: short(got_name) });
        }
        let response = decode_binary(response, CHALLENGE_BYTES_MAX)
            .map_err(|why| ChapError::Value { key: "CHAP_R", why })?;
        let (id, challenge) = self.challenge(algorithm);
        let reflected = algorithm.response(id, &self.credentials.secret, challenge);
        if bool::from(response.as_slice().ct_eq(&reflected)) {
            return Err(ChapError::Reflected);
        }
        let proves = |(name, secret): &(String, Secret)| {
            let wanted = algorithm.response(id, secret, challenge);
            got_name == name && bool::from(response.as_slice().ct_eq(&wanted))
        };
        if !known().any(proves) {
            return Err(ChapError::WrongProof);
        }
        self.proven = Some(Proven(()));
        Ok(())
    }

    /// Returns the sides that have proved themselves, at the end of the stage. With mutual CHAP the
    /// target must have.
    pub(super) fn authentication(&self) -> Result<Authentication, ChapError> {
        match (&self.credentials.mutual, self.proven, self.algorithm) {
            (None, _, Some(_)) => Ok(Authentication::OneWay),
            (Some(_), Some(Proven(())), Some(_)) => Ok(Authentication::Mutual),
            (Some(_), _, _) => Err(ChapError::NoProof),
            (None, _, None) => Err(ChapError::Missing("CHAP_A")),
        }
    }
}

impl Credentials {
    fn check(&self) -> Result<(), ChapError> {
        let usable = |text: &str| !text.is_empty() && text.len() <= CHAP_BYTES_MAX && !text.contains('\0');
        let Self { user, secret, mutual, other_mutual } = self;
        let sides = || mutual.iter().chain(other_mutual);
        if !usable(user) || sides().any(|(user, _)| !usable(user)) {
            return Err(ChapError::Unusable("a user name is empty, longer than 255 bytes or has a NUL"));
        }
        if !usable(secret.expose()) || sides().any(|(_, secret)| !usable(secret.expose())) {
            return Err(ChapError::Unusable("a secret is empty, longer than 255 bytes or has a NUL"));
        }
        let same = |other: &Secret| bool::from(secret.expose().as_bytes().ct_eq(other.expose().as_bytes()));
        if sides().any(|(_, other)| same(other)) {
            // RFC 7143, 9.2.1: the target could play our own responses back to us.
            return Err(ChapError::Unusable("both directions have the same secret"));
        }
        Ok(())
    }
}

fn identifier(text: &str) -> Result<u8, ChapError> {
    parse_number(text)
        .and_then(|number| u8::try_from(number).ok())
        .ok_or(ChapError::Value { key: "CHAP_I", why: "want a number from 0 to 255" })
}

/// Decodes a binary value: `0x` and hexadecimal digits in pairs, or `0b` and base64 (RFC 7143,
/// 6.1). The value may be neither empty nor longer than `bytes_max`. The error is the reason.
pub fn decode_binary(text: &str, bytes_max: usize) -> Result<Vec<u8>, &'static str> {
    let (prefix, digits) = text.as_bytes().split_at_checked(2).ok_or("want 0x… or 0b…")?;
    let bytes = match prefix {
        b"0x" | b"0X" if digits.len() / 2 > bytes_max => return Err("it is too long"),
        b"0x" | b"0X" => {
            data_encoding::HEXLOWER_PERMISSIVE.decode(digits).map_err(|_| "bad hexadecimal digits")?
        }
        b"0b" | b"0B" if digits.len() / 4 * 3 > bytes_max + 2 => return Err("it is too long"),
        b"0b" | b"0B" => data_encoding::BASE64.decode(digits).map_err(|_| "bad base64")?,
        _ => return Err("want 0x… or 0b…"),
    };
    match bytes.len() {
        0 => Err("it is empty"),
        length if length > bytes_max => Err("it is too long"),
        _ => Ok(bytes),
    }
}

/// Encodes a binary value in hexadecimal digits, the form that every target reads (LIO wants
/// exactly two digits per byte).
pub fn encode_binary(bytes: &[u8]) -> String {
    format!("0x{}", data_encoding::HEXLOWER.encode(bytes))
}
