//! Addresses of controllers: `http://HOST:PORT` or `https://HOST:PORT`, with a path if a proxy
//! stands in front.
//!
//! What must never happen here: credentials of an address in anything that is printed.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use reqwest::Url;

/// The default address.
const DEFAULT: &str = "http://127.0.0.1:8776";

/// A controller's address.
#[derive(Clone, PartialEq, Eq)]
pub struct ControllerUrl(Url);

/// A text that is not such an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not a controller's address: want http://HOST:PORT or https://HOST:PORT")]
pub struct ParseUrlError;

impl FromStr for ControllerUrl {
    type Err = ParseUrlError;

    fn from_str(text: &str) -> Result<Self, ParseUrlError> {
        let url = Url::parse(text).map_err(|_| ParseUrlError)?;
        let plain = url.query().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() || !plain {
            return Err(ParseUrlError);
        }
        Ok(Self(url))
    }
}

impl ControllerUrl {
    /// The controller of this machine.
    pub(crate) fn local() -> Result<Self, ParseUrlError> {
        DEFAULT.parse()
    }

    /// Returns `true` if no one on a network can read what is sent there.
    pub(crate) fn is_private(&self) -> bool {
        self.is_tls() || self.is_loopback()
    }

    /// Returns `true` if it uses certificates.
    pub(crate) fn is_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    fn is_loopback(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Returns `true` if the address contains credentials.
    pub(crate) fn has_credentials(&self) -> bool {
        !self.0.username().is_empty() || self.0.password().is_some()
    }

    /// The address of an object, with its segments encoded.
    pub(crate) fn join(&self, segments: &[&str]) -> Url {
        let mut url = self.0.clone();
        // Only a URL that cannot have a path has no segments, and such URLs have other schemes.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }
}

impl fmt::Display for ControllerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.0.host_str().unwrap_or_default())?;
        if let Some(port) = self.0.port() {
            write!(f, ":{port}")?;
        }
        f.write_str(self.0.path().trim_end_matches('/'))
    }
}

impl fmt::Debug for ControllerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ControllerUrl {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_read_and_others_refused() {
        assert_eq!(ControllerUrl::local().unwrap().to_string(), DEFAULT);
        assert_eq!(url("https://c1:8776/block/").to_string(), "https://c1:8776/block");
        assert_eq!(
            url("https://c1/block").join(&["v3", "volumes", "a b/.."]).as_str(),
            "https://c1/block/v3/volumes/a%20b%2F.."
        );
        for bad in [
            "",
            "c1:8776",
            "127.0.0.1:8776",
            "ftp://c1",
            "unix:/run/x",
            "http://",
            "http://c1/?a=b",
            "http://c1/#x",
        ] {
            assert_eq!(bad.parse::<ControllerUrl>(), Err(ParseUrlError), "{bad}");
        }
    }

    #[test]
    fn only_loopback_and_tls_are_private() {
        for private in
            ["http://127.0.0.1:1", "http://127.9.9.9", "http://localhost:1", "http://[::1]:1", "https://c1"]
        {
            assert!(url(private).is_private(), "{private}");
        }
        for public in [
            "http://10.0.0.1",
            "http://c1:8776",
            "http://localhost.example",
            "http://[::2]",
            "http://0.0.0.0",
        ] {
            assert!(!url(public).is_private(), "{public}");
        }
    }

    #[test]
    fn credentials_are_seen_and_never_shown() {
        let with = url("http://me:hidden@127.0.0.1:1");
        assert!(with.has_credentials() && !url("http://127.0.0.1").has_credentials());
        assert!(!format!("{with} {with:?}").contains("hidden"));
    }
}
