//! Transports: how blocks travel, and the names of each.

use crate::initiators::Initiators;

/// The extra spec, the capability, and the key of a connector that name a transport.
pub const STORAGE_PROTOCOL: &str = "storage_protocol";

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// iSCSI.
    Iscsi,
    /// Fibre Channel.
    Fc,
}

impl Transport {
    /// All transports, the first choice first.
    pub const ALL: [Self; 2] = [Self::Iscsi, Self::Fc];

    /// The transport's name on the wire to agents, and in Mooring's own API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::Fc => "fc",
        }
    }

    /// The transport that uses initiator names like these.
    pub const fn of(initiators: &Initiators) -> Self {
        match initiators {
            Initiators::Iscsi(_) => Self::Iscsi,
            Initiators::Fc(_) => Self::Fc,
        }
    }

    /// The transport's spellings in the Block Storage API; the first one is shown.
    pub const fn spellings(self) -> &'static [&'static str] {
        match self {
            Self::Iscsi => &["iSCSI", "iscsi"],
            Self::Fc => &["FC", "fibre_channel", "fc"],
        }
    }

    /// Reads any of the spellings.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.spellings().contains(&word))
    }
}
