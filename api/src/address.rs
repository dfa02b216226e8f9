//! Addresses of agents, and connections to them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address where an agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `unix:/path`: plain text, protected by the socket's permissions.
    Unix(PathBuf),
    /// `https://HOST:PORT`: TLS with certificates on both sides.
    Tls(String),
    /// `http://HOST:PORT`: plain text; only if both sides allow it (`insecure`).
    Plain(String),
}

/// A text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an agent's address: want unix:/PATH, https://HOST:PORT or http://HOST:PORT")]
pub struct ParseAddressError {
    text: String,
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let wrong = || ParseAddressError { text: text.chars().take(200).collect() };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(wrong()) };
        }
        let (authority, tls) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(authority), _) => (authority, true),
            (_, Some(authority)) => (authority, false),
            _ => return Err(wrong()),
        };
        let authority = authority.trim_end_matches('/');
        let port_ok = authority
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0));
        if !port_ok || authority.contains(['/', '?', '@', ' ']) {
            return Err(wrong());
        }
        Ok(if tls { Self::Tls(authority.to_owned()) } else { Self::Plain(authority.to_owned()) })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tls(authority) => write!(f, "https://{authority}"),
            Self::Plain(authority) => write!(f, "http://{authority}"),
        }
    }
}

/// PEM files for a TLS connection; `None`: not configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the authority that signed the peer's certificate.
    pub ca: Option<PathBuf>,
    /// Our certificate.
    pub cert: Option<PathBuf>,
    /// Our key.
    pub key: Option<PathBuf>,
    /// The name that the peer's certificate must have. `None`: the address's host.
    pub server_name: Option<String>,
}

/// The reason why an agent was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing answers at the address.
    #[error("cannot reach the agent at {address}: is mooring-agent running, and may this user connect?")]
    Transport {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// A certificate or key is missing or unreadable.
    #[error("TLS to {address} needs {what}")]
    Tls {
        /// The address.
        address: String,
        /// The file, and the flag or key that names it.
        what: String,
    },
}

/// Connects to an agent within 5 s.
pub async fn connect(address: &Address, tls: &TlsFiles) -> Result<Channel, ConnectError> {
    let transport = |source| ConnectError::Transport { address: address.to_string(), source };
    match address {
        Address::Unix(path) => {
            let path = path.clone();
            // The URI is unused: the connector below opens the socket.
            let endpoint = Endpoint::from_static("http://agent.invalid").connect_timeout(CONNECT_TIMEOUT);
            let connector = tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await.map_err(transport)
        }
        Address::Plain(_) => {
            let endpoint = Endpoint::from_shared(address.to_string()).map_err(transport)?;
            endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await.map_err(transport)
        }
        Address::Tls(_) => {
            let endpoint = Endpoint::from_shared(address.to_string()).map_err(transport)?;
            let endpoint = endpoint.tls_config(client_tls(address, tls)?).map_err(transport)?;
            endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await.map_err(transport)
        }
    }
}

fn client_tls(address: &Address, files: &TlsFiles) -> Result<ClientTlsConfig, ConnectError> {
    let read = |path: &Option<PathBuf>, what: &str| {
        let missing = |why: String| ConnectError::Tls { address: address.to_string(), what: why };
        let path = path.as_ref().ok_or_else(|| missing(what.to_owned()))?;
        std::fs::read(path)
            .map_err(|error| missing(format!("{what}; {} cannot be read: {error}", path.display())))
    };
    let ca = read(&files.ca, "the authority's certificate (--ca FILE)")?;
    let cert = read(&files.cert, "a client certificate (--cert FILE)")?;
    let key = read(&files.key, "the client certificate's key (--key FILE)")?;
    let config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .identity(Identity::from_pem(cert, key));
    Ok(match &files.server_name {
        Some(name) => config.domain_name(name),
        None => config,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["unix:/run/mooring/agent.sock", "https://storage1:7710", "http://127.0.0.1:7710"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "storage1:7710",
            "unix:agent.sock",
            "https://storage1",
            "https://:7710",
            "https://a:0",
            "http://a:99999",
            "http://u@a:1",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn debug_hides_secrets() {
        let side = crate::v1::ChapSide { user: "u".into(), secret: "hunter2hunter2".into() };
        let spec = crate::v1::ExportSpec {
            grants: vec![crate::v1::Grant {
                chap: Some(crate::v1::Chap { initiator: Some(side), mutual: None }),
                ..Default::default()
            }],
            ..Default::default()
        };
        assert!(!format!("{spec:?} {spec:#?}").contains("hunter2"));
    }
}
