//! Text keys: `key=value`, each with a NUL behind it (RFC 7143, 6.1), split over PDUs with the C
//! bit.
//!
//! What must never happen here: a text without bound; a key that counts twice; a value that ends
//! its key early and becomes another key.

/// Longest key, in bytes (RFC 7143, 6.1).
pub const KEY_BYTES_MAX: usize = 63;

/// Longest accepted text over several PDUs, in bytes: eight full login PDUs. A target sends a few
/// hundred bytes.
pub const TEXT_BYTES_MAX: usize = 65_536;

/// A text of a peer that is not a list of keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text is longer than [`TEXT_BYTES_MAX`].
    #[error("the target's text is longer than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// The last pair has no NUL behind it: the text is incomplete.
    #[error("the target's text ends in the middle of a key (no NUL at its end)")]
    Unterminated,
    /// A piece has no `=`.
    #[error("the target's text has {0:?}, which is not key=value")]
    NoValue(String),
    /// A key has wrong characters or a wrong length.
    #[error("the target's text has the key {0:?}; keys are 1 to {KEY_BYTES_MAX} letters, digits and '.-+@_'")]
    Key(String),
    /// A key comes twice.
    #[error("the target's text has the key {0:?} twice")]
    Twice(String),
    /// A value is not UTF-8.
    #[error("the target's text is not UTF-8")]
    NotUtf8,
}

/// Keys and values, in their order. A key occurs once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text(Vec<(String, String)>);

impl Text {
    /// Makes an empty text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair. A value ends at its first NUL, which on the wire would begin another key.
    pub fn push(&mut self, key: &str, value: &str) {
        let value = value.split('\0').next().unwrap_or_default();
        self.0.push((key.to_owned(), value.to_owned()));
    }

    /// Returns the value of a key; `None` if the key is missing.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Iterates over all pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns `true` if there is no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Encodes the text as it goes over the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (key, value) in self.iter() {
            bytes.extend_from_slice(key.as_bytes());
            bytes.push(b'=');
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// Parses a complete text. NULs behind the last pair are padding.
    pub fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(TextError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| TextError::NotUtf8)?;
        let pairs = text.trim_end_matches('\0');
        if pairs.is_empty() {
            return Ok(Self::new());
        }
        if pairs.len() == text.len() {
            return Err(TextError::Unterminated);
        }
        // A sorted set beside the list: a peer may send thousands of keys.
        let mut seen = std::collections::BTreeSet::new();
        let mut list = Vec::new();
        for pair in pairs.split('\0') {
            let (key, value) = pair.split_once('=').ok_or_else(|| TextError::NoValue(short(pair)))?;
            let letters = key.bytes().all(|b| b.is_ascii_alphanumeric() || b".-+@_".contains(&b));
            if key.is_empty() || key.len() > KEY_BYTES_MAX || !letters {
                return Err(TextError::Key(short(key)));
            }
            if !seen.insert(key) {
                return Err(TextError::Twice(short(key)));
            }
            list.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self(list))
    }
}

/// Joins a text that a peer has split over PDUs.
#[derive(Debug, Clone, Default)]
pub struct Assembly(Vec<u8>);

impl Assembly {
    /// Adds the next piece. Returns the text when it was the last one, otherwise `None`.
    pub fn push(&mut self, piece: &[u8], continues: bool) -> Result<Option<Text>, TextError> {
        if self.0.len().saturating_add(piece.len()) > TEXT_BYTES_MAX {
            return Err(TextError::TooLong);
        }
        self.0.extend_from_slice(piece);
        if continues {
            return Ok(None);
        }
        Text::parse(&std::mem::take(&mut self.0)).map(Some)
    }
}

/// Shortens a peer's text to the length that an error repeats.
pub(super) fn short(text: &str) -> String {
    text.chars().take(48).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let text = Text::parse(b"A=1\0B=\0C=x=y\0\0\0").unwrap();
        assert_eq!(text.iter().collect::<Vec<_>>(), [("A", "1"), ("B", ""), ("C", "x=y")]);
        assert_eq!((text.get("C"), text.get("D")), (Some("x=y"), None));
        assert_eq!(text.encode(), b"A=1\0B=\0C=x=y\0");
        assert!(Text::parse(b"").unwrap().is_empty());
        assert!(Text::parse(b"\0\0\0").unwrap().is_empty());
    }

    #[test]
    fn bad_texts() {
        let long = format!("{}=1\0", "k".repeat(64));
        let huge = vec![0; TEXT_BYTES_MAX + 1];
        for (bytes, want) in [
            (&b"A=1"[..], TextError::Unterminated),
            (b"A=1\0B=2", TextError::Unterminated),
            (b"A\0", TextError::NoValue("A".to_owned())),
            (b"A=1\0\0B=2\0", TextError::NoValue(String::new())),
            (b"=1\0", TextError::Key(String::new())),
            (b"A B=1\0", TextError::Key("A B".to_owned())),
            (long.as_bytes(), TextError::Key("k".repeat(48))),
            (b"A=1\0B=1\0A=1\0", TextError::Twice("A".to_owned())),
            (b"A=\xff\0", TextError::NotUtf8),
            (&huge, TextError::TooLong),
        ] {
            assert_eq!(Text::parse(bytes), Err(want), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_value_cannot_become_a_key() {
        let mut text = Text::new();
        text.push("CHAP_N", "u\0CHAP_R=0x00");
        assert_eq!(text.encode(), b"CHAP_N=u\0");
    }

    #[test]
    fn pieces_are_bounded() {
        let mut assembly = Assembly::default();
        let piece = vec![b'a'; 8192];
        for _ in 0..TEXT_BYTES_MAX / piece.len() {
            assert_eq!(assembly.push(&piece, true), Ok(None));
        }
        assert_eq!(assembly.push(b"a", true), Err(TextError::TooLong));
    }
}
