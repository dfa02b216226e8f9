//! Agent's interface to `mooring-sessiond`, as a trait: the real daemon behind its socket, or a
//! fake of it.
//!
//! What must never happen here: two calls on one connection at the same time; a call without a
//! bound.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mooring_model::VolumeId;

use crate::client::{Client, ClientError, SessionEvent, Watch};
use crate::wire::{End, SessionSpec, SessionStatus};

/// The keeper of sessions. Every call blocks, and is bounded.
pub trait Sessions: Send + Sync {
    /// Asks for a session by this spec, and waits up to `wait` for it to be logged in or failed for
    /// good. Idempotent.
    fn ensure(&self, spec: &SessionSpec, wait: Duration) -> Result<SessionStatus, ClientError>;
    /// Ends a session and waits up to `wait`. `None` if it is gone. Idempotent.
    fn end(&self, volume: VolumeId, how: End, wait: Duration) -> Result<Option<SessionStatus>, ClientError>;
    /// Returns one session; `None` when this volume has none.
    fn get(&self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError>;
    /// Returns all sessions.
    fn list(&self) -> Result<Vec<SessionStatus>, ClientError>;
    /// Streams all sessions, then [`SessionEvent::Synced`], then every change.
    fn watch(&self) -> Result<Box<dyn SessionChanges>, ClientError>;
}

/// A stream of changes with one reader.
pub trait SessionChanges: Send {
    /// Returns the next change; `None` when none came within `wait`. After an error: watch again.
    fn next(&mut self, wait: Duration) -> Result<Option<SessionEvent>, ClientError>;
}

impl SessionChanges for Watch {
    fn next(&mut self, wait: Duration) -> Result<Option<SessionEvent>, ClientError> {
        Self::next(self, wait)
    }
}

/// Returns `true` if two views of a session tell one state; a countdown does not count.
pub fn same(one: Option<&SessionStatus>, other: Option<&SessionStatus>) -> bool {
    let facts = |status: &SessionStatus| SessionStatus { retry_in_ms: None, ..status.clone() };
    one.map(facts) == other.map(facts)
}

/// Maximum number of idle connections that stay open for the next call. Connecting costs another
/// round trip.
const IDLE_MAX: usize = 4;

/// Client of the daemon in a run folder.
#[derive(Debug)]
pub struct Sessiond {
    run_dir: PathBuf,
    software: String,
    idle: Mutex<Vec<Client>>,
}

impl Sessiond {
    /// Makes a client of the daemon whose socket lies below this folder (`/run/mooring`).
    /// `software` is for its log. Nothing is connected yet.
    pub fn new(run_dir: &Path, software: &str) -> Self {
        Self { run_dir: run_dir.to_owned(), software: software.to_owned(), idle: Mutex::default() }
    }

    fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.run_dir, &self.software)
    }

    fn take(&self) -> Option<Client> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, client: Client) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(client);
        }
    }

    /// Runs one call on a connection of its own. A kept connection may lead to a daemon that is
    /// gone: then the call, which is idempotent like all of them, is repeated once on a new one.
    fn call<T>(&self, call: impl Fn(&mut Client) -> Result<T, ClientError>) -> Result<T, ClientError> {
        if let Some(mut client) = self.take() {
            match call(&mut client) {
                Err(ClientError::Broken { .. } | ClientError::Connect { .. }) => {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                answer => {
                    if !matches!(answer, Err(ClientError::Answer { .. })) {
                        self.keep(client);
                    }
                    return answer;
                }
            }
        }
        let mut client = self.connect()?;
        let answer = call(&mut client);
        if matches!(answer, Ok(_) | Err(ClientError::Refused { .. })) {
            self.keep(client);
        }
        answer
    }
}

impl Sessions for Sessiond {
    fn ensure(&self, spec: &SessionSpec, wait: Duration) -> Result<SessionStatus, ClientError> {
        self.call(|client| client.ensure(spec, wait))
    }

    fn end(&self, volume: VolumeId, how: End, wait: Duration) -> Result<Option<SessionStatus>, ClientError> {
        self.call(|client| client.end(volume, how, wait))
    }

    fn get(&self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError> {
        self.call(|client| client.get(volume))
    }

    fn list(&self) -> Result<Vec<SessionStatus>, ClientError> {
        self.call(Client::list)
    }

    fn watch(&self) -> Result<Box<dyn SessionChanges>, ClientError> {
        Ok(Box::new(self.connect()?.watch()?))
    }
}
