//! Address of a redirect: `host[:port][,portal group]` (RFC 7143, 13.8).
//!
//! What must never happen here: an address that is completed by guessing.

use std::fmt;
use std::str::FromStr;

use mooring_model::Portal;

use super::text::short;

/// An address that a target names. A numerical address can be used as it is, see
/// [`portal`](Self::portal).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TargetAddress {
    /// A DNS name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    /// TCP port; 3260 when none was named.
    pub port: u16,
    /// Portal group, when one was named.
    pub tpg: Option<u16>,
}

/// A text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not host[:port][,portal group]")]
pub struct ParseTargetAddressError(String);

impl TargetAddress {
    /// Returns the portal if the host is an address; `None` for a name, because names are not
    /// looked up.
    pub fn portal(&self) -> Option<Portal> {
        self.to_string().parse().ok()
    }
}

impl FromStr for TargetAddress {
    type Err = ParseTargetAddressError;

    fn from_str(text: &str) -> Result<Self, ParseTargetAddressError> {
        parse(text).ok_or_else(|| ParseTargetAddressError(short(text)))
    }
}

fn parse(text: &str) -> Option<TargetAddress> {
    let (address, tpg) = match text.split_once(',') {
        Some((address, tpg)) => (address, Some(decimal(tpg)?)),
        None => (text, None),
    };
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let (host, behind) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, if behind.is_empty() { None } else { Some(behind.strip_prefix(':')?) })
    } else {
        let (host, port) = address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port)));
        let letters = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'));
        (Some(host).filter(|host| !host.is_empty() && host.len() <= 253 && letters)?, port)
    };
    let port = port.map_or(Some(Portal::PORT_DEFAULT), decimal).filter(|port| *port != 0)?;
    Some(TargetAddress { host: host.to_owned(), port, tpg })
}

/// Parses digits only: no sign.
fn decimal(text: &str) -> Option<u16> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, want, portal) in [
            ("10.10.0.10", "10.10.0.10:3260", true),
            ("10.10.0.10:3261,1", "10.10.0.10:3261", true),
            ("10.10.0.10,65535", "10.10.0.10:3260", true),
            ("storage.example:860", "storage.example:860", false),
            ("[2001:db8::1]", "[2001:db8::1]:3260", true),
            ("[2001:db8::1]:3261,2", "[2001:db8::1]:3261", true),
            ("[fe80::1]:3260", "[fe80::1]:3260", false),
            ("0.0.0.0:3260", "0.0.0.0:3260", false),
        ] {
            let address: TargetAddress = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.portal().is_some()), (want, portal), "{text}");
        }
        assert_eq!("10.0.0.1,7".parse::<TargetAddress>().unwrap().tpg, Some(7));
        for bad in [
            "",
            ",1",
            ":3260",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a,",
            "a,-1",
            "a b",
            "[::1",
            "[x]",
            "[]",
            "[::1]3260",
            "::1",
            "a:1:2",
        ] {
            assert!(bad.parse::<TargetAddress>().is_err(), "{bad:?}");
        }
    }
}
