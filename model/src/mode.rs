//! Access modes: specs request one, and reports say which one the kernel enforces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Access of one nexus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Reads only: `write_protect` at the target.
    #[serde(rename = "ro")]
    ReadOnly,
    /// Reads and writes.
    #[serde(rename = "rw")]
    ReadWrite,
}

/// A text that is neither `ro` nor `rw`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a mode: want rw or ro")]
pub struct ParseModeError(String);

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, ParseModeError> {
        match text {
            "ro" => Ok(Self::ReadOnly),
            "rw" => Ok(Self::ReadWrite),
            other => Err(ParseModeError(other.chars().take(32).collect())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        })
    }
}
