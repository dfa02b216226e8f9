//! Sizes in bytes, formatted and parsed for people.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// A text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size: want a whole number with B, KiB, MiB, GiB or TiB, for example 10GiB")]
pub struct ParseSizeError {
    text: String,
}

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let wrong = || ParseSizeError { text: text.chars().take(64).collect() };
        let trimmed = text.trim();
        let (digits, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| trimmed.strip_suffix(unit).map(|digits| (digits.trim_end(), *factor)))
            .unwrap_or((trimmed, 1));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(factor).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in &UNITS[..4] {
            if self.0 >= *factor {
                // Two digits after the point are enough for people; programs read the number from
                // --json.
                let hundredths = u128::from(self.0) * 100 / u128::from(*factor);
                let (whole, part) = (hundredths / 100, hundredths % 100);
                return if part == 0 {
                    write!(f, "{whole} {unit}")
                } else {
                    write!(f, "{whole}.{part:02} {unit}")
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, shown) in [
            ("0", 0, "0 B"),
            ("4096", 4096, "4 KiB"),
            ("10GiB", 10 << 30, "10 GiB"),
            ("1536M", 1536 << 20, "1.50 GiB"),
            ("1 TiB", 1 << 40, "1 TiB"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
        }
        for wrong in
            ["", "-1", "1.5GiB", "GiB", "99999999999999999999", "18446744073709551615K", "1gb", "0x10"]
        {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong:?}");
        }
    }
}
