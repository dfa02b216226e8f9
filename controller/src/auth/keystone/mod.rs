//! Tokens of OpenStack's identity service.
//!
//! Keystone is asked once about each token. The answer is remembered for a while, but never past
//! the token's own end. Concurrent requests with one token wait for the one answer. While Keystone
//! does not answer, remembered tokens stay valid, and all other callers are told to try again.
//!
//! A service (Nova) sends its own token beside the user's. If that is valid, the user's token may
//! have expired a while ago, since the user's work may take longer than the token lives. Keystone
//! itself bounds how long ago.
//!
//! What must never happen here: a caller let in because Keystone did not answer; a token in a log;
//! a project that the token does not name.

mod client;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;
use mooring_model::Cure;
use mooring_systemd::places::{Place, Places};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::memory::{Memory, Print, Printer};
use super::{AuthRefusal, Identity};
use client::{Client, Down};
use wire::Known;

/// The longest token that Keystone is asked about, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The number of remembered tokens.
const REMEMBERED_MAX: usize = 10_000;

/// The longest time for which a wrong token is remembered.
const WRONG_FOR: Duration = Duration::from_secs(30);

/// The number of concurrent requests to Keystone.
const ASKED_MAX: usize = 32;

/// The number of requests to Keystone in progress or waiting.
const WAITING_MAX: usize = 256;

/// The number of those for tokens from one address: random tokens do not keep others out.
const WAITING_PER_ADDRESS_MAX: usize = 64;

/// Address, credentials and limits of the requests to Keystone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Keystone's address, without `/v3`.
    pub url: String,
    /// The address in a 401 at which clients get a token.
    pub public_uri: String,
    /// The name of our user.
    pub username: String,
    /// The file with the user's password.
    pub password_file: PathBuf,
    /// The name of the user's domain.
    pub user_domain: String,
    /// The project of our own token.
    pub project: String,
    /// The name of the project's domain.
    pub project_domain: String,
    /// The authority that signed Keystone's certificate, as a PEM file; `None` for those that the
    /// system trusts.
    pub ca: Option<PathBuf>,
    /// The time for which an answer is remembered.
    pub remember: Duration,
    /// The longest time of one request.
    pub timeout: Duration,
    /// The roles of which one makes a token in `X-Service-Token` a service's.
    pub service_roles: Vec<String>,
}

/// The reason why Keystone cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeystoneError {
    /// A file cannot be read.
    #[error("keystone: cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Other users could read the password.
    #[error("keystone: {} has mode {mode:04o}, and others could read the password: chmod 0640 (or 0600)", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// A file does not have the expected content.
    #[error("keystone: {}: {why}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: &'static str,
    },
    /// TLS failed, or an address cannot stand in a header.
    #[error("keystone: {0}")]
    Setup(String),
}

impl KeystoneError {
    /// The remedy: the keeper of the configuration has to act.
    pub const fn cure(&self) -> Cure {
        Cure::Operator
    }
}

/// A client of Keystone. Cheap to clone.
#[derive(Clone)]
pub struct Keystone(Arc<Inner>);

struct Inner {
    client: Client,
    challenge: HeaderValue,
    remember: Duration,
    service_roles: Vec<String>,
    printer: Printer,
    state: Mutex<State>,
    asking: Semaphore,
    waiting: Places,
}

struct State {
    right: Memory<Arc<Known>>,
    wrong: Memory<()>,
    flights: HashMap<Print, Flight>,
}

/// The result of a request; inner `None` for an invalid token.
type Outcome = Result<Option<Arc<Known>>, AuthRefusal>;

/// A request in progress.
type Flight = watch::Receiver<Option<Outcome>>;

impl fmt::Debug for Keystone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keystone").field("client", &self.0.client).finish_non_exhaustive()
    }
}

impl Keystone {
    /// Reads the password and the certificates. Sends no request: a Keystone that is down now may
    /// be up later.
    pub fn open(options: &Options) -> Result<Self, KeystoneError> {
        let challenge = format!("Keystone uri=\"{}\"", options.public_uri);
        let challenge = HeaderValue::from_str(&challenge)
            .map_err(|_| KeystoneError::Setup("the address cannot stand in a header".to_owned()))?;
        let printer =
            Printer::new().map_err(|error| KeystoneError::Setup(format!("no random numbers: {error}")))?;
        Ok(Self(Arc::new(Inner {
            client: Client::new(options)?,
            challenge,
            remember: options.remember,
            service_roles: super::roles::tidy(&options.service_roles),
            printer,
            state: Mutex::new(State {
                right: Memory::new(REMEMBERED_MAX),
                wrong: Memory::new(REMEMBERED_MAX),
                flights: HashMap::new(),
            }),
            asking: Semaphore::new(ASKED_MAX),
            waiting: Places::new(WAITING_MAX, WAITING_PER_ADDRESS_MAX),
        })))
    }

    pub(super) fn challenge(&self) -> HeaderValue {
        self.0.challenge.clone()
    }

    pub(super) async fn identify(
        &self,
        token: &[u8],
        service: Option<&[u8]>,
        peer: Option<IpAddr>,
    ) -> Result<Identity, AuthRefusal> {
        let service = match service {
            None => false,
            Some(token) => {
                let found = self.known(token, false, peer).await?.ok_or(AuthRefusal::UnknownServiceToken)?;
                found.roles.iter().any(|role| self.0.service_roles.contains(role))
            }
        };
        let found = self.known(token, service, peer).await?.ok_or(AuthRefusal::UnknownToken)?;
        if found.project.is_none() && !found.system {
            return Err(AuthRefusal::Unscoped);
        }
        Ok(Identity {
            project: found.project.clone(),
            system: found.system,
            user: found.user.clone(),
            roles: found.roles.clone(),
            admin_project: found.admin_project,
            service,
        })
    }

    /// The facts about a token, from memory or from Keystone. With `expired`, also if it expired a
    /// while ago.
    async fn known(&self, token: &[u8], expired: bool, peer: Option<IpAddr>) -> Outcome {
        if token.len() > TOKEN_BYTES_MAX || !token.iter().all(u8::is_ascii_graphic) {
            return Ok(None);
        }
        let Ok(mut header) = HeaderValue::from_bytes(token) else { return Ok(None) };
        header.set_sensitive(true);
        let print = self.0.printer.print(u8::from(expired), token);
        let mut flight = {
            let mut state = self.0.state();
            let now = Instant::now();
            if let Some(found) = state.right.get(&print, now) {
                return Ok(Some(found));
            }
            if state.wrong.get(&print, now).is_some() {
                return Ok(None);
            }
            match state.flights.get(&print) {
                // A request whose task died is begun anew.
                Some(flight) if flight.borrow().is_some() || flight.has_changed().is_ok() => flight.clone(),
                _ => {
                    let place = self.0.waiting.take(peer).ok_or(AuthRefusal::Busy)?;
                    let (outcome, flight) = watch::channel(None);
                    state.flights.insert(print, flight.clone());
                    // A task of its own: it ends properly even if the request that began it is
                    // gone.
                    tokio::spawn(Arc::clone(&self.0).ask(place, print, header, expired, outcome));
                    flight
                }
            }
        };
        match flight.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(AuthRefusal::Unavailable)),
            Err(_) => Err(AuthRefusal::Unavailable),
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(
        self: Arc<Self>,
        place: Place,
        print: Print,
        token: HeaderValue,
        expired: bool,
        outcome: watch::Sender<Option<Outcome>>,
    ) {
        let found = match self.asking.acquire().await {
            Ok(_turn) => self.client.validate(&token, expired).await,
            Err(_) => Err(Down),
        };
        let mut state = self.state();
        state.flights.remove(&print);
        drop(place);
        let answer = match found {
            Ok(Some(found)) => {
                let found = Arc::new(found);
                // An expired token, which is accepted with a service's, has no end of its own any
                // more.
                let left = found.left().filter(|left| !left.is_zero());
                let remember = left.unwrap_or(if expired { self.remember } else { Duration::ZERO });
                let ends = Instant::now() + remember.min(self.remember);
                state.right.put(print, Arc::clone(&found), ends);
                Ok((expired || left.is_some()).then_some(found))
            }
            Ok(None) => {
                state.wrong.put(print, (), Instant::now() + self.remember.min(WRONG_FOR));
                Ok(None)
            }
            Err(Down) => Err(AuthRefusal::Unavailable),
        };
        drop(state);
        // Nobody waits if all clients are gone.
        let _ = outcome.send(Some(answer));
    }
}
