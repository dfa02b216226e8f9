//! Protocol of `join` with a controller that is known by a pin alone.
//!
//! What must never happen here: the token on a connection whose other end was not proven by the
//! pin.

use std::time::Duration;

use mooring_model::AgentId;
use mooring_systemd::certificates;
use reqwest::tls::{Certificate, Version};
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};

use super::JoinError;

/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of an answer in bytes: certificates have some hundred bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;

#[derive(Deserialize)]
struct AuthorityAnswer {
    authority: String,
}

#[derive(Serialize)]
struct JoinRequest<'a> {
    token: &'a str,
    csr: &'a str,
    address: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
}

/// Answer to a join.
#[derive(Deserialize)]
pub(super) struct Joined {
    pub(super) name: String,
    pub(super) roles: Vec<String>,
    pub(super) certificate: String,
    /// All authorities that the controller's callers may be of: more than one while the authority
    /// is rotated.
    pub(super) authority: String,
    pub(super) cluster: String,
}

/// A controller whose authority was proven.
pub(super) struct Controller {
    url: Url,
    client: Client,
    /// Certificate of the authority, as PEM.
    pub(super) authority: String,
}

fn builder() -> ClientBuilder {
    // A provider that is installed already does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .user_agent(concat!("mooring-agent/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(TIMEOUT)
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .https_only(true)
        .tls_version_min(Version::TLS_1_3)
        .no_proxy()
}

/// Parses the address of a controller's API.
pub(super) fn url(text: &str) -> Result<Url, JoinError> {
    let wrong = || JoinError::Url { url: text.to_owned() };
    let url: Url = text.parse().map_err(|_| wrong())?;
    let bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    let named = url.username().is_empty() && url.password().is_none() && url.has_host();
    if url.scheme() == "https" && bare && named { Ok(url) } else { Err(wrong()) }
}

/// Parses a pin as `mooring host token` prints it.
pub(super) fn pin(text: &str) -> Result<&str, JoinError> {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() == 64 && digits.bytes().all(hex) {
        Ok(text)
    } else {
        Err(JoinError::Pin { pin: text.to_owned() })
    }
}

async fn read<T: serde::de::DeserializeOwned>(mut answer: Response) -> Result<T, JoinError> {
    let mut all = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(JoinError::Lost)? {
        if all.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(JoinError::Answer { why: "it is too long".to_owned() });
        }
        all.extend_from_slice(&part);
    }
    serde_json::from_slice(&all).map_err(|error| JoinError::Answer { why: error.to_string() })
}

/// Reads the message of a refusal: `{"<fault>": {"code": N, "message": "…"}}`.
async fn refusal(answer: Response) -> JoinError {
    let status = answer.status();
    let said: serde_json::Value = match read(answer).await {
        Ok(said) => said,
        Err(error @ JoinError::Lost(_)) => return error,
        Err(_) => return JoinError::Refused { why: status.to_string() },
    };
    let message = said.as_object().and_then(|faults| faults.values().next());
    let message = message.and_then(|fault| fault.get("message")).and_then(serde_json::Value::as_str);
    // The message goes to a terminal.
    let why = message.map(|text| text.chars().filter(|c| !c.is_control()).take(500).collect());
    JoinError::Refused { why: why.unwrap_or_else(|| status.to_string()) }
}

impl Controller {
    /// Requests the authority over a connection that proves nothing, and believes it by its pin.
    pub(super) async fn prove(url: Url, pin: &str) -> Result<Self, JoinError> {
        let reach = |source| JoinError::Reach { url: url.to_string(), source };
        let stranger = builder().tls_danger_accept_invalid_certs(true).build().map_err(JoinError::Tls)?;
        let answer = stranger.get(at(&url, "authority")).send().await.map_err(reach)?;
        if answer.status() != StatusCode::OK {
            return Err(refusal(answer).await);
        }
        let AuthorityAnswer { authority } = read(answer).await?;
        // The pin proves one certificate, the one in force, which comes first. Whoever stands
        // between could have added another.
        let all = certificates::each(&authority);
        let none = || JoinError::Answer { why: "authority: there is no certificate in it".to_owned() };
        let authority = all.first().cloned().ok_or_else(none)?;
        let found = certificates::pin(&authority)
            .map_err(|why| JoinError::Answer { why: format!("authority: {why}") })?;
        if found != pin {
            let was = |pem: &String| certificates::pin(pem).is_ok_and(|former| former == pin);
            return Err(if all.iter().skip(1).any(was) {
                JoinError::FormerPin { url: url.to_string(), found }
            } else {
                JoinError::WrongPin { url: url.to_string(), found }
            });
        }
        let proven = Certificate::from_pem(authority.as_bytes()).map_err(JoinError::Tls)?;
        let client = builder().tls_certs_only([proven]).build().map_err(JoinError::Tls)?;
        Ok(Self { url, client, authority })
    }

    /// Requests the certificate for a key. This uses the token. `known` is the id in this machine's
    /// store; `None` if it has none.
    pub(super) async fn join(
        &self,
        token: &str,
        csr: &str,
        address: &str,
        known: Option<AgentId>,
    ) -> Result<Joined, JoinError> {
        let agent_id = known.map(|id| id.to_string());
        let asked = JoinRequest { token, csr, address, agent_id };
        let request = self.client.post(at(&self.url, "join")).json(&asked);
        let answer = request.send().await.map_err(|error| {
            if error.is_connect() {
                JoinError::Untrusted { url: self.url.to_string(), source: error }
            } else {
                JoinError::Lost(error)
            }
        })?;
        if answer.status().is_success() { read(answer).await } else { Err(refusal(answer).await) }
    }
}

fn at(url: &Url, what: &str) -> Url {
    let mut url = url.clone();
    url.set_path(&format!("/mooring/v1/{what}"));
    url
}
