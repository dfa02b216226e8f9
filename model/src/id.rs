//! Typed UUIDs. A volume id cannot be passed where an attachment id is meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not a UUID of the canonical 36-character form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} id {text:?} is not a UUID (want 8-4-4-4-12 hexadecimal digits)")]
pub struct ParseIdError {
    kind: &'static str,
    text: String,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Makes a random (version 4) id.
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }

            /// Makes the id with exactly these 128 bits.
            pub const fn from_u128(bits: u128) -> Self {
                Self(Uuid::from_u128(bits))
            }

            /// The 16 bytes, most significant first.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            /// Parses the canonical hyphenated form only, lower or upper case. Ids end up in names
            /// on disks and wires, so braces, URNs and bare hex digits are refused instead of
            /// silently normalised.
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let wrong = || ParseIdError { kind: $kind, text: text.chars().take(64).collect() };
                if text.len() != 36 {
                    return Err(wrong());
                }
                Uuid::try_parse(text).map(Self).map_err(|_| wrong())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self.0.as_hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// One revert of a volume to a snapshot. A tag of the LV that the revert made carries it.
    RevertId,
    "revert"
);

id!(
    /// One image export: a copy of a volume to a file. The unfinished file's name carries it.
    UploadId,
    "upload"
);

id!(
    /// One volume. Names on disks and wires are functions of this id, for ever.
    VolumeId,
    "volume"
);
id!(
    /// One attachment: one host's access to one volume in one mode.
    AttachmentId,
    "attachment"
);
id!(
    /// One controller cluster. An agent is pinned to exactly one.
    ClusterId,
    "cluster"
);
id!(
    /// One agent's state folder; made together with the folder.
    AgentId,
    "agent"
);
id!(
    /// One barrier: the request that no command that one nexus had in flight at that time lands any
    /// more.
    BarrierId,
    "barrier"
);

impl ClusterId {
    /// The cluster id that `mooring --agent` uses with an agent that no controller owns.
    pub const STANDALONE: Self = Self(Uuid::nil());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_an_id() {
        let text = "b0c1d2e3-0001-4002-8003-00000000000a";
        assert_eq!(text.parse::<VolumeId>().unwrap().to_string(), text);
        for wrong in [
            "",
            "b0c1d2e3",
            "b0c1d2e300014002800300000000000a",
            "{b0c1d2e3-0001-4002-8003-0000000000a}",
            "../../etc",
        ] {
            assert!(wrong.parse::<VolumeId>().is_err(), "{wrong:?}");
        }
    }
}
