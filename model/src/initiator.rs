//! An initiator of a volume: an iSCSI name or a Fibre Channel port.
//!
//! What must never happen here: two spellings of one initiator that compare as different.

use std::fmt;
use std::str::FromStr;

use crate::{Iqn, NameError, Wwpn};

/// One end of a nexus; the volume is the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Initiator {
    /// Over iSCSI.
    Iscsi(Iqn),
    /// Over Fibre Channel.
    Fc(Wwpn),
}

impl Initiator {
    /// The iSCSI name; `None` over Fibre Channel.
    pub fn iqn(&self) -> Option<&Iqn> {
        match self {
            Self::Iscsi(iqn) => Some(iqn),
            Self::Fc(_) => None,
        }
    }

    /// The Fibre Channel port; `None` over iSCSI.
    pub fn wwpn(&self) -> Option<Wwpn> {
        match self {
            Self::Iscsi(_) => None,
            Self::Fc(wwpn) => Some(*wwpn),
        }
    }
}

impl From<Iqn> for Initiator {
    fn from(iqn: Iqn) -> Self {
        Self::Iscsi(iqn)
    }
}

impl From<Wwpn> for Initiator {
    fn from(wwpn: Wwpn) -> Self {
        Self::Fc(wwpn)
    }
}

impl PartialEq<Iqn> for Initiator {
    fn eq(&self, other: &Iqn) -> bool {
        self.iqn() == Some(other)
    }
}

impl FromStr for Initiator {
    type Err = NameError;

    /// Parses an iSCSI name, or a Fibre Channel port in any spelling of [`Wwpn::from_str`]. A text
    /// that begins with `naa.` is an iSCSI name.
    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.parse::<Wwpn>() {
            Ok(wwpn) => Ok(Self::Fc(wwpn)),
            Err(_) => text.parse().map(Self::Iscsi),
        }
    }
}

impl fmt::Display for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iscsi(iqn) => fmt::Display::fmt(iqn, f),
            Self::Fc(wwpn) => fmt::Display::fmt(wwpn, f),
        }
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_says_which_it_is() {
        for text in [
            "iqn.2026-01.lab:host1",
            "eui.200052540014000b",
            "naa.200052540014000b",
            "naa.200052540014000b200052540014000c",
            "20:00:52:54:00:14:00:0b",
        ] {
            let initiator: Initiator = text.parse().unwrap();
            assert_eq!(
                (initiator.to_string(), initiator.wwpn().is_some()),
                (text.to_owned(), text.starts_with("20"))
            );
        }
        for port in ["0x200052540014000B", "200052540014000b", "20-00-52-54-00-14-00-0B"] {
            assert_eq!(port.parse::<Initiator>().unwrap().to_string(), "20:00:52:54:00:14:00:0b");
        }
        for bad in ["", "host1", "20:00:52:54:00:14:00", "00:00:00:00:00:00:00:00"] {
            assert!(bad.parse::<Initiator>().is_err(), "{bad:?}");
        }
    }
}
