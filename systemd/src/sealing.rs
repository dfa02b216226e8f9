//! Secrets at rest: a database's secrets are sealed by a key that is stored elsewhere, and each
//! opens only in its own place.
//!
//! A sealed value is `00 4d 53`, the form's number, the key's id (8 bytes), a random nonce (24
//! bytes) and the XChaCha20-Poly1305 cipher text (16 bytes longer than the clear value), with the
//! value's [`Place`] as associated data. No encoded message and no CHAP secret begins so: [`look`]
//! distinguishes sealed values from clear ones. In a text column the same bytes stand as base64
//! after `sealed `. The keys are in a file ([`file`]): the first one seals, all of them open.
//!
//! What must never happen here: a key or a clear value in a `Debug` or an error; a value that opens
//! in another place, or after a byte of it was changed; a nonce that is used twice.

mod file;

use std::collections::BTreeMap;
use std::fmt;

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use data_encoding::BASE64;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

pub use file::{KeysError, Origin, Rotated, add, make, rotate};

/// The first bytes of every sealed value, in any form. Field numbers of an encoded message begin at
/// 1, so none begins with this byte.
pub const MAGIC: [u8; 3] = [0x00, b'M', b'S'];

/// The form's number.
const FORM: u8 = 1;

const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const BODY_AT: usize = HEAD_BYTES + NONCE_BYTES;

/// Bytes of a sealed value that [`look`] needs: the magic, the form and the key's id.
pub const HEAD_BYTES: usize = MAGIC.len() + 1 + ID_BYTES;

/// The beginning of a sealed text. No CHAP secret contains a blank.
pub const TEXT_PREFIX: &str = "sealed ";

/// Characters of a sealed text that [`look_text`] needs: in base64 the head ends with a whole group
/// of digits.
pub const TEXT_HEAD_CHARS: usize = TEXT_PREFIX.len() + HEAD_BYTES / 3 * 4;

/// Identifies a key and reveals nothing of it: the first bytes of its hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; ID_BYTES]);

impl KeyId {
    fn of(key: &[u8; KEY_BYTES]) -> Self {
        let hash = Sha256::new().chain_update(b"mooring sealing key 1\0").chain_update(key).finalize();
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&hash[..ID_BYTES]);
        Self(id)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The place of a value in a database. A sealed value opens only in the place that it was sealed
/// for.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The table.
    pub table: &'a str,
    /// The column.
    pub column: &'a str,
    /// The row's key, with all of its columns.
    pub row: &'a [&'a str],
}

impl Place<'_> {
    /// Encodes the place, differently for each place: every part is preceded by its length.
    fn bytes(&self, head: &[u8]) -> Vec<u8> {
        let mut bytes = head.to_vec();
        for part in [self.table, self.column].iter().chain(self.row) {
            bytes.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} of {}", self.table, self.column, self.row.join(" "))
    }
}

/// A value that cannot be sealed or opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The kernel gives no random bytes.
    #[error("cannot seal {0}: the kernel gives no random bytes")]
    Random(String),
    /// The value is longer than any secret and cannot be encrypted.
    #[error("cannot seal {0}: it is too long")]
    TooLong(String),
    /// A clear value stands in a sealed value's place.
    #[error("{0} is not sealed: something else than this daemon wrote it; a restart seals it")]
    Clear(String),
    /// A later version has sealed the value.
    #[error(
        "{place} is sealed in form {form}, which this version does not know: run the version that sealed it, or a later one"
    )]
    Form {
        /// The value's place.
        place: String,
        /// The form's number.
        form: u8,
    },
    /// The value's key is missing.
    #[error(
        "{place} is sealed by the key {key}, which is not in {keys}: put that key there, from a backup of it"
    )]
    NoKey {
        /// The value's place.
        place: String,
        /// The key's id.
        key: KeyId,
        /// The source of the keys.
        keys: String,
    },
    /// The value does not open: it or its place was changed.
    #[error("{0} does not open: it was changed, or sealed for another row")]
    Changed(String),
}

/// The form in which a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Look {
    /// In clear.
    Clear,
    /// Sealed by the key of this id.
    Sealed(KeyId),
    /// Sealed in a form of a later version.
    Newer(u8),
}

/// Counts of a database's values by their form.
pub type Census = BTreeMap<Look, u64>;

/// Recognises a value's form by its first [`HEAD_BYTES`] bytes.
pub fn look(value: &[u8]) -> Look {
    let Some(rest) = value.strip_prefix(&MAGIC) else { return Look::Clear };
    match rest.split_first() {
        Some((&FORM, rest)) => {
            rest.first_chunk().map_or(Look::Clear, |id: &[u8; ID_BYTES]| Look::Sealed(KeyId(*id)))
        }
        Some((&form, _)) => Look::Newer(form),
        None => Look::Clear,
    }
}

/// Recognises a text's form by its first [`TEXT_HEAD_CHARS`] characters.
pub fn look_text(text: &str) -> Look {
    let head = text.get(TEXT_PREFIX.len()..TEXT_HEAD_CHARS).filter(|_| text.starts_with(TEXT_PREFIX));
    head.and_then(|head| BASE64.decode(head.as_bytes()).ok()).map_or(Look::Clear, |head| look(&head))
}

struct Key {
    id: KeyId,
    cipher: XChaCha20Poly1305,
}

/// The keys of a database; at least one.
pub struct SealingKeys {
    first: Key,
    older: Vec<Key>,
    /// The source of the keys, for errors.
    origin: String,
}

impl fmt::Debug for SealingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.ids().collect();
        f.debug_struct("SealingKeys").field("ids", &ids).field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Key {
    fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self { id: KeyId::of(key), cipher: XChaCha20Poly1305::new(key.into()) }
    }

    fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..MAGIC.len()].copy_from_slice(&MAGIC);
        head[MAGIC.len()] = FORM;
        head[MAGIC.len() + 1..].copy_from_slice(&self.id.0);
        head
    }
}

impl SealingKeys {
    /// Derives a key from a code. The code must be random and too long to guess: the key has no
    /// other entropy.
    pub fn of_code(code: &str) -> Self {
        let hash = Sha256::new().chain_update(b"mooring sealing code 1\0").chain_update(code).finalize();
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key.copy_from_slice(&hash);
        Self { first: Key::new(&key), older: Vec::new(), origin: "the code".to_owned() }
    }

    /// Every key's id; the one that seals comes first.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(&self.first).chain(&self.older).map(|key| key.id)
    }

    /// The id of the key that seals.
    pub fn first(&self) -> KeyId {
        self.first.id
    }

    /// The source of the keys.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The first bytes of every value that the first key seals.
    pub fn head(&self) -> [u8; HEAD_BYTES] {
        self.first.head()
    }

    /// The first characters of every text that the first key seals.
    pub fn text_head(&self) -> String {
        format!("{TEXT_PREFIX}{}", BASE64.encode(&self.head()))
    }

    /// Seals a value for its place.
    pub fn seal(&self, place: Place<'_>, clear: &[u8]) -> Result<Vec<u8>, SealError> {
        let head = self.first.head();
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| SealError::Random(place.to_string()))?;
        let payload = Payload { msg: clear, aad: &place.bytes(&head) };
        let body = self
            .first
            .cipher
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| SealError::TooLong(place.to_string()))?;
        let mut sealed = Vec::with_capacity(BODY_AT + body.len());
        sealed.extend_from_slice(&head);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&body);
        Ok(sealed)
    }

    /// Opens a value that is stored in this place. The result's memory is wiped on drop.
    pub fn open(&self, place: Place<'_>, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let id = match look(sealed) {
            Look::Sealed(id) => id,
            Look::Clear => return Err(SealError::Clear(place.to_string())),
            Look::Newer(form) => return Err(SealError::Form { place: place.to_string(), form }),
        };
        let key =
            std::iter::once(&self.first).chain(&self.older).find(|key| key.id == id).ok_or_else(|| {
                SealError::NoKey { place: place.to_string(), key: id, keys: self.origin.clone() }
            })?;
        let changed = || SealError::Changed(place.to_string());
        let nonce: &[u8; NONCE_BYTES] = sealed[HEAD_BYTES..].first_chunk().ok_or_else(changed)?;
        let payload = Payload { msg: &sealed[BODY_AT..], aad: &place.bytes(&sealed[..HEAD_BYTES]) };
        let clear = key.cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| changed())?;
        Ok(Zeroizing::new(clear))
    }

    /// Like [`SealingKeys::seal`], for a text column.
    pub fn seal_text(&self, place: Place<'_>, clear: &str) -> Result<String, SealError> {
        let sealed = self.seal(place, clear.as_bytes())?;
        Ok(format!("{TEXT_PREFIX}{}", BASE64.encode(&sealed)))
    }

    /// Like [`SealingKeys::open`], for a text column.
    pub fn open_text(&self, place: Place<'_>, sealed: &str) -> Result<Zeroizing<String>, SealError> {
        let digits = match look_text(sealed) {
            Look::Clear => return Err(SealError::Clear(place.to_string())),
            Look::Sealed(_) | Look::Newer(_) => sealed.get(TEXT_PREFIX.len()..).unwrap_or_default(),
        };
        let changed = || SealError::Changed(place.to_string());
        let bytes = BASE64.decode(digits.as_bytes()).map_err(|_| changed())?;
        let clear = self.open(place, &bytes)?;
        let clear = std::str::from_utf8(&clear).map_err(|_| changed())?;
        Ok(Zeroizing::new(clear.to_owned()))
    }
}

#[cfg(test)]
mod tests;
