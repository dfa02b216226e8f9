//! Images: files that new volumes are copied from.
//!
//! What must never happen here: a name that is a path; a format that was guessed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most bytes of an image's name.
const NAME_BYTES_MAX: usize = 128;

/// A text that is not the name of an image, or not the name of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?} is not {what}")]
pub struct ParseImageError {
    shown: String,
    what: &'static str,
}

impl ParseImageError {
    fn new(text: &str, what: &'static str) -> Self {
        Self { shown: text.chars().take(64).collect(), what }
    }
}

/// The name of a file in a storage node's image folder. It is no path: letters, digits, `.`, `_`,
/// `+` and `-`, beginning with a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

impl ImageName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImageName {
    type Err = ParseImageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANT: &str = "the name of an image: want 1 to 128 letters, digits and . _ + -, of which the first is a letter or a \
                            digit; it is a file in the storage node's folder of images, and no path";
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'-');
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if begins && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(ParseImageError::new(text, WANT))
    }
}

impl TryFrom<String> for ImageName {
    type Error = ParseImageError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> Self {
        name.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The format of an image, always stated by the caller and never detected. Whoever writes a file's
/// first bytes, such as the user of a raw disk, could make it look like any format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// The bytes of the disk, and nothing else.
    Raw,
    /// QEMU's copy-on-write format, version 2 or 3.
    Qcow2,
}

impl ImageFormat {
    /// The format's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

impl FromStr for ImageFormat {
    type Err = ParseImageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "raw" => Ok(Self::Raw),
            "qcow2" => Ok(Self::Qcow2),
            other => Err(ParseImageError::new(other, "a format of images: want raw or qcow2")),
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The image that a new volume is copied from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSource {
    /// The file.
    pub name: ImageName,
    /// The file's format.
    pub format: ImageFormat,
}

impl fmt::Display for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image {} ({})", self.name, self.format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths() {
        for good in ["debian-12.qcow2", "0", "a_b+c"] {
            assert_eq!(good.parse::<ImageName>().unwrap().to_string(), good);
        }
        let long = "x".repeat(129);
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "/etc/shadow",
            "-f",
            "a b",
            "a\n",
            "json:{}",
            "nbd:x",
            "\u{e9}",
            &long,
        ] {
            let error = bad.parse::<ImageName>().unwrap_err().to_string();
            assert!(error.contains("is not the name of an image"), "{error}");
            assert!(ImageName::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_format_is_said_and_is_one_of_two() {
        for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
            assert_eq!(format.as_str().parse::<ImageFormat>().unwrap(), format);
        }
        for bad in ["", "vmdk", "QCOW2", "qcow", "auto"] {
            assert!(bad.parse::<ImageFormat>().unwrap_err().to_string().contains("want raw or qcow2"));
        }
    }
}
