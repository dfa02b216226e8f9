//! Requests to Keystone, and our own token that they need.
//!
//! What must never happen here: a token or the password in a log, an error, or at another address
//! than Keystone's (redirects are not followed, proxies of the environment not used); an answer
//! that is read without a bound.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use mooring_model::{Chain, Secret};
use mooring_systemd::private;
use reqwest::{Certificate, Response};
use tokio::time::Instant;

use super::wire::{self, Known};
use super::{KeystoneError, Options};

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// The time without further requests after one that was not answered: waiting callers do not all
/// wait for the same silence.
const DOWN_FOR: Duration = Duration::from_secs(1);

/// The error that Keystone cannot be asked. The log has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Down;

/// A failed request.
enum Trouble {
    /// There was no answer, and there will be none soon.
    Silence(String),
    /// The answer does not fit the request.
    Answer(String),
}

/// The token that we authenticate with.
struct Own {
    token: HeaderValue,
    renew: Instant,
}

pub(super) struct Client {
    http: reqwest::Client,
    options: Options,
    password: Secret,
    own: tokio::sync::Mutex<Option<Own>>,
    down_until: Mutex<Option<Instant>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.options.url).finish_non_exhaustive()
    }
}

fn password(path: &Path) -> Result<Secret, KeystoneError> {
    let read = |source| KeystoneError::Read { path: path.to_owned(), source };
    if let Some(mode) = private::exposed(path).map_err(read)? {
        return Err(KeystoneError::Open { path: path.to_owned(), mode });
    }
    let text = std::fs::read_to_string(path).map_err(read)?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Secret::new(line)),
        _ => {
            Err(KeystoneError::Content { path: path.to_owned(), why: "want the password as the first line" })
        }
    }
}

fn http(options: &Options) -> Result<reqwest::Client, KeystoneError> {
    // An existing provider is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("mooring-controller/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.timeout)
        .timeout(options.timeout)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    if let Some(path) = &options.ca {
        let text =
            std::fs::read(path).map_err(|source| KeystoneError::Read { path: path.clone(), source })?;
        let found = Certificate::from_pem_bundle(&text).unwrap_or_default();
        if found.is_empty() {
            return Err(KeystoneError::Content { path: path.clone(), why: "no certificates in PEM format" });
        }
        builder = builder.tls_certs_only(found);
    } else if options.url.starts_with("http://") {
        // The system's trust is not needed, and its absence must not matter.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| KeystoneError::Setup(format!("TLS cannot be used: {}", Chain(&error))))
}

/// Reads the whole body, unless it is too long.
async fn body(mut response: Response) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|error| broken(&error))? {
        if all.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(format!("an answer of more than {ANSWER_BYTES_MAX} bytes"));
        }
        all.extend_from_slice(&part);
    }
    Ok(all)
}

fn broken(error: &reqwest::Error) -> String {
    if error.is_timeout() { "no answer in time".to_owned() } else { Chain(error).to_string() }
}

impl Client {
    pub(super) fn new(options: &Options) -> Result<Self, KeystoneError> {
        Ok(Self {
            http: http(options)?,
            password: password(&options.password_file)?,
            options: options.clone(),
            own: tokio::sync::Mutex::new(None),
            down_until: Mutex::new(None),
        })
    }

    /// Keystone's facts about a token; `None` if it does not know it. With `expired`, also about a
    /// token that expired a while ago.
    pub(super) async fn validate(&self, token: &HeaderValue, expired: bool) -> Result<Option<Known>, Down> {
        // Our token may have been revoked meanwhile: then a new one is requested, once.
        for _ in 0..2 {
            self.not_down()?;
            let own = self.own_token().await?;
            match self.question(token, expired, &own).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => self.forget(&own).await,
                Err(Trouble::Silence(why)) => return Err(self.silent(&why)),
                Err(Trouble::Answer(why)) => return Err(self.warn(&why)),
            }
        }
        Err(self.silent("it refuses the token that it has just given to us"))
    }

    /// Sends one request; `None` if our own token was refused.
    async fn question(
        &self,
        token: &HeaderValue,
        expired: bool,
        own: &HeaderValue,
    ) -> Result<Option<Option<Known>>, Trouble> {
        let answer = |why: &str| Trouble::Answer(why.to_owned());
        let more = if expired { "&allow_expired=1" } else { "" };
        let url = format!("{}/v3/auth/tokens?nocatalog{more}", self.options.url);
        let request = self.http.get(url).header("x-auth-token", own).header("x-subject-token", token);
        let response = request.send().await.map_err(|error| Trouble::Silence(broken(&error)))?;
        match response.status() {
            StatusCode::OK => {
                let body = body(response).await.map_err(Trouble::Answer)?;
                Ok(Some(Some(wire::known(&body).map_err(answer)?)))
            }
            StatusCode::NOT_FOUND => Ok(Some(None)),
            StatusCode::UNAUTHORIZED => Ok(None),
            StatusCode::FORBIDDEN => Err(answer(
                "our user may not ask about tokens: give it the role service or admin in its project",
            )),
            other => Err(Trouble::Answer(format!("it answers {other}"))),
        }
    }

    /// Our own token. Requests a new one if there is none, or if it will expire soon.
    async fn own_token(&self) -> Result<HeaderValue, Down> {
        let mut own = self.own.lock().await;
        if let Some(own) = own.as_ref().filter(|own| Instant::now() < own.renew) {
            return Ok(own.token.clone());
        }
        // The former holder of the lock may have found Keystone down.
        self.not_down()?;
        let new = self.login().await.map_err(|why| self.silent(&why))?;
        let token = new.token.clone();
        *own = Some(new);
        Ok(token)
    }

    async fn login(&self) -> Result<Own, String> {
        let url = format!("{}/v3/auth/tokens?nocatalog", self.options.url);
        let request = self.http.post(url).json(&wire::login(&self.options, self.password.expose()));
        let response = request.send().await.map_err(|error| broken(&error))?;
        match response.status() {
            StatusCode::CREATED => {}
            StatusCode::UNAUTHORIZED => {
                return Err(
                    "it refuses our user: look at username, password_file, project and their domains"
                        .to_owned(),
                );
            }
            other => return Err(format!("it answers {other} to our login")),
        }
        let mut token = response.headers().get("x-subject-token").cloned().ok_or("it gives no token")?;
        token.set_sensitive(true);
        let ends = wire::expires(&body(response).await?).ok_or("its token has no end")?;
        let life = ends.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        // Renewed well before its end, so that no request carries a token that expires on the way.
        let renew = Instant::now() + life.saturating_sub((life / 10).min(Duration::from_mins(5)));
        Ok(Own { token, renew })
    }

    /// Forgets our token, if it is still this one.
    async fn forget(&self, refused: &HeaderValue) {
        let mut own = self.own.lock().await;
        if own.as_ref().is_some_and(|own| own.token == *refused) {
            *own = None;
        }
    }

    fn not_down(&self) -> Result<(), Down> {
        let until = *self.down_until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|until| Instant::now() < until) { Err(Down) } else { Ok(()) }
    }

    /// Logs a failure that concerns one request only: others are sent.
    fn warn(&self, why: &str) -> Down {
        tracing::warn!(keystone = %self.options.url, why, "cannot ask Keystone about a token");
        Down
    }

    /// Logs a failure that concerns all requests, and suspends them for a while.
    fn silent(&self, why: &str) -> Down {
        let mut until = self.down_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Some(Instant::now() + DOWN_FOR);
        drop(until);
        self.warn(why)
    }
}
