//! The cache flag of an attachment.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Page cache of an attachment's disk on its host. Attachments that share a disk get the strictest
/// (greatest) of their flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// The host caches reads and buffered writes, and drops nothing by itself.
    #[default]
    On,
    /// The host drops the disk's page cache whenever it hands out or withdraws a path, and never
    /// reads ahead.
    Off,
}

/// A text that is neither `on` nor `off`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no cache flag: want on or off")]
pub struct ParseCacheError(String);

impl FromStr for Cache {
    type Err = ParseCacheError;

    fn from_str(text: &str) -> Result<Self, ParseCacheError> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(ParseCacheError(other.chars().take(32).collect())),
        }
    }
}

impl Cache {
    /// The word that APIs and the command line use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for cache in [Cache::On, Cache::Off] {
            assert_eq!(cache.to_string().parse(), Ok(cache));
        }
        for wrong in ["", "On", "none", "true", "off "] {
            assert_eq!(wrong.parse::<Cache>(), Err(ParseCacheError(wrong.to_owned())));
        }
        assert_eq!([Cache::On, Cache::Off, Cache::On].into_iter().max(), Some(Cache::Off));
    }
}
