//! Initiator session id: with the initiator's name it says which session a login replaces.
//!
//! What must never happen here: an id that changes between two logins of one session (the target
//! would keep the dead one beside the new one), or one that another initiator of this host uses
//! (each would end the other's session).

use std::fmt;
use std::str::FromStr;

use mooring_model::{Iqn, Portal};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Type "random" (RFC 7143, 11.12.5): top bits 10. open-iscsi's ids begin with 0x00, so neither
/// reinstates the other's session.
const TYPE_RANDOM: u8 = 0x80;

/// An initiator session id. `Display` and `FromStr` are 12 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Isid([u8; 6]);

/// A text that is not an ISID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an initiator session id has 12 hexadecimal digits, not {0:?}")]
pub struct ParseIsidError(String);

impl Isid {
    /// Computes the id of this initiator's session with this target over this portal. As a function
    /// of the three it is equal after a restart, a crash or a reboot. So the target drops the dead
    /// session at the first login. Sessions over two portals have different ids.
    pub fn of(initiator: &Iqn, target: &Iqn, portal: Portal) -> Self {
        let mut hash = Sha256::new();
        for part in [initiator.as_str(), target.as_str(), &portal.to_string()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let hash: [u8; 32] = hash.finalize().into();
        Self([TYPE_RANDOM, hash[0], hash[1], hash[2], hash[3], hash[4]])
    }

    /// Returns the bytes as they stand in a PDU.
    pub fn as_bytes(&self) -> &[u8; 6] {
        &self.0
    }
}

impl FromStr for Isid {
    type Err = ParseIsidError;

    fn from_str(text: &str) -> Result<Self, ParseIsidError> {
        data_encoding::HEXLOWER_PERMISSIVE
            .decode(text.as_bytes())
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or_else(|| ParseIsidError(text.chars().take(32).collect()))
    }
}

impl TryFrom<String> for Isid {
    type Error = ParseIsidError;

    fn try_from(text: String) -> Result<Self, ParseIsidError> {
        text.parse()
    }
}

impl From<Isid> for String {
    fn from(isid: Isid) -> Self {
        isid.to_string()
    }
}

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isid(initiator: &str, target: &str, portal: &str) -> Isid {
        Isid::of(&initiator.parse().unwrap(), &target.parse().unwrap(), portal.parse().unwrap())
    }

    #[test]
    fn it_is_a_function_of_three_and_pinned() {
        let first = isid("iqn.2026-11.dev.mooring:host.a", "iqn.2026-11.dev.mooring:v", "10.10.0.10:3260");
        // sha256 of the three texts, each with a NUL behind it. Changing this makes every running
        // session a second one.
        assert_eq!(first.to_string(), "8087d2081326");
        for other in [
            isid("iqn.2026-11.dev.mooring:host.b", "iqn.2026-11.dev.mooring:v", "10.10.0.10:3260"),
            isid("iqn.2026-11.dev.mooring:host.a", "iqn.2026-11.dev.mooring:w", "10.10.0.10:3260"),
            isid("iqn.2026-11.dev.mooring:host.a", "iqn.2026-11.dev.mooring:v", "10.10.0.10:3261"),
            isid("iqn.2026-11.dev.mooring:host.av", "iqn.2026-11.dev.mooring:v", "10.10.0.10"),
        ] {
            assert_ne!(first, other);
            assert_eq!(other.as_bytes()[0], 0x80);
        }
    }

    #[test]
    fn it_reads_what_it_prints() {
        let isid = isid("iqn.2026-11.dev.mooring:host.a", "iqn.2026-11.dev.mooring:v", "10.10.0.10");
        assert_eq!(isid.to_string().parse(), Ok(isid));
        assert_eq!(serde_json::to_string(&isid).unwrap(), format!("\"{isid}\""));
        assert_eq!(serde_json::from_str::<Isid>(&format!("\"{isid}\"")).unwrap(), isid);
        for bad in [
            "",
            "80",
            "80112233445",
            "8011223344556",
            "80112233445566",
            "80112233445g",
            " 0112233445 ",
            "é0112233445",
        ] {
            assert!(bad.parse::<Isid>().is_err(), "{bad:?}");
        }
    }
}
