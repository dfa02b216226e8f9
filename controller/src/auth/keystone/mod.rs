//! Tokens of OpenStack's identity service.
//!
//! Each token is asked about once, and what was found out is remembered for a while, never past the token's own end.
//! Requests that come with the same token meanwhile wait for the one question. While Keystone does not answer, what is
//! remembered goes on; the rest is told to come again.
//!
//! A service (Nova) sends its own token beside the user's: where that is right, the user's token may have expired a while
//! ago, since what the user began may take longer than his token lives; Keystone itself bounds how long ago.
//!
//! What must never happen here: somebody let in because Keystone did not answer; a token in a log; a project that the
//! token does not name.

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

/// Longest token that is asked about, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Tokens that are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// How long a wrong token is remembered at most.
const WRONG_FOR: Duration = Duration::from_secs(30);

/// Questions on their way at once.
const ASKED_MAX: usize = 32;

/// Questions on their way, or waiting to be.
const WAITING_MAX: usize = 256;

/// Questions about tokens that one address has sent: random tokens do not keep others out.
const WAITING_PER_ADDRESS_MAX: usize = 64;

/// How to ask Keystone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where it is, without `/v3`.
    pub url: String,
    /// What a 401 tells clients about where to get a token.
    pub public_uri: String,
    /// Our user there.
    pub username: String,
    /// The file with its password.
    pub password_file: PathBuf,
    /// The name of its domain.
    pub user_domain: String,
    /// The project that our own token is of.
    pub project: String,
    /// The name of that project's domain.
    pub project_domain: String,
    /// The authority that signed its certificate, as a PEM file. `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// How long an answer is remembered.
    pub remember: Duration,
    /// How long one question may take.
    pub timeout: Duration,
    /// With one of these roles, a token that comes as `X-Service-Token` is a service's.
    pub service_roles: Vec<String>,
}

/// Why Keystone is not asked.
#[derive(Debug, thiserror::Error)]
pub enum KeystoneError {
    /// A file cannot be read.
    #[error("keystone: cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Others could read the password.
    #[error("keystone: {} has mode {mode:04o}, and others could read the password: chmod 0640 (or 0600)", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file has not what it should have.
    #[error("keystone: {}: {why}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// TLS, or an address that cannot stand in a header.
    #[error("keystone: {0}")]
    Setup(String),
}

impl KeystoneError {
    /// Who can cure it: whoever keeps the configuration.
    pub const fn cure(&self) -> Cure {
        Cure::Operator
    }
}

/// Asks Keystone. Cheap to clone.
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

/// What a question came to: `None` within is a token that is not right.
type Outcome = Result<Option<Arc<Known>>, AuthRefusal>;

/// A question on its way.
type Flight = watch::Receiver<Option<Outcome>>;

impl fmt::Debug for Keystone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keystone").field("client", &self.0.client).finish_non_exhaustive()
    }
}

impl Keystone {
    /// Reads the password and the certificates. Nothing is asked yet: a Keystone that is down now may be up later.
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

    /// What is known of a token, asking if nothing is. `expired`: also if it has ended a while ago.
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
                // One whose task has died without a word is begun anew.
                Some(flight) if flight.borrow().is_some() || flight.has_changed().is_ok() => flight.clone(),
                _ => {
                    let place = self.0.waiting.take(peer).ok_or(AuthRefusal::Busy)?;
                    let (outcome, flight) = watch::channel(None);
                    state.flights.insert(print, flight.clone());
                    // A task of its own: it ends well also when the request that began it is gone.
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
                // One that has ended, and is let in for a service, has no end of its own any more.
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
        // Nobody waits any more when all their clients are gone.
        let _ = outcome.send(Some(answer));
    }
}
