//! Volumes as a command line names them: by id or by name.
//!
//! What must never happen here: a mistyped id taken for a name.

use std::fmt;
use std::str::FromStr;

use mooring_model::VolumeId;

/// Longest name, in bytes: names appear in tables.
const NAME_BYTES_MAX: usize = 128;

/// A volume's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeName(String);

/// A text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a volume name: {why}")]
pub struct VolumeNameError {
    text: String,
    why: &'static str,
}

impl FromStr for VolumeName {
    type Err = VolumeNameError;

    fn from_str(text: &str) -> Result<Self, VolumeNameError> {
        let wrong = |why| Err(VolumeNameError { text: text.chars().take(64).collect(), why });
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return wrong("want 1 to 128 bytes");
        }
        if text.trim() != text || text.chars().any(char::is_control) {
            return wrong("no control characters, and no blanks at its ends");
        }
        if looks_like_an_id(text) {
            return wrong("it looks like an id");
        }
        Ok(Self(text.to_owned()))
    }
}

impl VolumeName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns `true` for a UUID, or a text that was meant as one.
fn looks_like_an_id(text: &str) -> bool {
    text.len() >= 30 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// A volume as a command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeRef {
    /// By its id.
    Id(VolumeId),
    /// By its name.
    Name(VolumeName),
}

impl FromStr for VolumeRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<VolumeId>() {
            Ok(id) => Ok(Self::Id(id)),
            // A mistyped id is reported as such, not as an unknown name.
            Err(error) if looks_like_an_id(text) => Err(error.to_string()),
            Err(_) => text.parse().map(Self::Name).map_err(|error: VolumeNameError| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_do_not_mix() {
        for good in ["data", "my data", "größe", "deadbeef", "b0c1d2e3-backup"] {
            assert_eq!(good.parse::<VolumeRef>(), Ok(VolumeRef::Name(good.parse().unwrap())), "{good}");
        }
        let id = "b0c1d2e3-0001-4002-8003-00000000000a";
        assert_eq!(id.parse::<VolumeRef>(), Ok(VolumeRef::Id(id.parse().unwrap())));
        for bad in [
            "",
            " data",
            "data\n",
            "a\u{1b}[31m",
            "b0c1d2e3-0001-4002-8003-0000000000",
            "b0c1d2e300014002800300000000000a",
        ] {
            assert!(bad.parse::<VolumeRef>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(129).parse::<VolumeName>().is_err());
    }
}
