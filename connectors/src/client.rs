//! Client for the agent's end of the wire to `mooring-sessiond`: blocking calls with a bound each.
//!
//! One [`Client`] is one connection, and its requests are answered in order: a thread that waits in
//! [`Client::ensure`] holds up nobody who has another connection. Connections are cheap; the daemon
//! takes [`CONNECTIONS_MAX`](crate::sessiond::CONNECTIONS_MAX). A call that fails with a
//! [`ClientError`] other than [`ClientError::Refused`] leaves the connection in an unknown state:
//! drop it and connect again. The caller connects again, and decides what it does in between;
//! sessions live on without any client.
//!
//! ```no_run
//! # fn main() -> Result<(), mooring_connectors::client::ClientError> {
//! use std::path::Path;
//! use std::time::Duration;
//! use mooring_connectors::client::{Client, SessionEvent};
//!
//! let mut client = Client::connect(Path::new("/run/mooring"), "mooring-agent 0.1.0")?;
//! for session in client.list()? {
//!     println!("{} {:?}", session.volume, session.state);
//! }
//! let mut watch = client.watch()?;
//! while let Some(event) = watch.next(Duration::from_secs(5))? {
//!     if event == SessionEvent::Synced {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What must never happen here: a call without a bound; a secret in an error.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mooring_model::{Cure, VolumeId};

use crate::line::{self, LineError, LineReader};
use crate::wire::{
    Answer, End, ErrorKind, PROTOCOL_MAX, PROTOCOL_MIN, Request, SOCKET, SessionSpec, SessionStatus,
};

/// Time that the daemon may take for an immediate answer. It answers from memory; a machine under
/// load may schedule it late.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens at the socket.
    #[error("mooring-sessiond does not answer at {}: systemctl status mooring-sessiond", .path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or an answer did not come in time.
    #[error("mooring-sessiond at {}: {what}", .path.display())]
    Broken {
        /// Path of the socket.
        path: PathBuf,
        /// Description of the failure.
        what: String,
    },
    /// The daemon refused the request. The connection goes on.
    #[error("mooring-sessiond refused: {text}")]
    Refused {
        /// Kind of refusal.
        kind: ErrorKind,
        /// Failed request, and a remedy.
        text: String,
    },
    /// The session is none of `mooring-sessiond`: the connection is over Fibre Channel.
    #[error("Fibre Channel on this host: {text}")]
    Fabric {
        /// Failure, and a remedy.
        text: String,
        /// The party that can cure it.
        cure: Cure,
    },
    /// The answer does not fit its request.
    #[error("mooring-sessiond gave an answer that does not fit the request {request}")]
    Answer {
        /// Name of the request.
        request: &'static str,
    },
}

impl ClientError {
    /// Says who can cure it. A broken connection is tried again; a refusal asks for another spec or
    /// another machine.
    pub fn cure(&self) -> Cure {
        match self {
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Cure::Operator
            }
            Self::Connect { .. } | Self::Broken { .. } => Cure::Retry,
            Self::Refused { kind: ErrorKind::Invalid | ErrorKind::Conflict, .. } => Cure::FixSpec,
            Self::Refused { kind: ErrorKind::Unknown | ErrorKind::Protocol | ErrorKind::Machine, .. } => {
                Cure::Operator
            }
            Self::Fabric { cure, .. } => *cure,
            Self::Answer { .. } => Cure::Bug,
        }
    }
}

/// The daemon's first answer: facts about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Protocol of this connection.
    pub protocol: u32,
    /// Software of the daemon.
    pub software: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Start of the daemon. A time that differs from the last one means that it was started again.
    pub started: SystemTime,
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    lines: LineReader,
    welcome: Welcome,
}

impl Client {
    /// Connects to the daemon of this run folder (`/run/mooring`) and agrees on a protocol.
    /// `software` is for its log.
    pub fn connect(run_dir: &Path, software: &str) -> Result<Self, ClientError> {
        let path = run_dir.join(SOCKET);
        let failed = |source| ClientError::Connect { path: path.clone(), source };
        let stream = UnixStream::connect(&path).map_err(failed)?;
        stream.set_write_timeout(Some(ANSWER_WITHIN)).map_err(failed)?;
        let mut client = Self {
            lines: LineReader::new(stream),
            path: path.clone(),
            welcome: Welcome {
                protocol: 0,
                software: String::new(),
                pid: 0,
                started: SystemTime::UNIX_EPOCH,
            },
        };
        let hello = Request::Hello {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            software: software.to_owned(),
        };
        match client.ask(&hello, Duration::ZERO)? {
            Answer::Hello { protocol, software, pid, started } => {
                client.welcome = Welcome { protocol, software, pid, started };
                Ok(client)
            }
            _ => Err(ClientError::Answer { request: "hello" }),
        }
    }

    /// Returns the daemon's first answer.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Asks for a session by this spec, and waits up to `wait` for it to be logged in or failed for
    /// good. The answer has its `state`: a session that is still being made is no error.
    /// Idempotent.
    pub fn ensure(&mut self, session: &SessionSpec, wait: Duration) -> Result<SessionStatus, ClientError> {
        let request = Request::Ensure { session: session.clone(), wait_ms: millis(wait) };
        match self.ask(&request, wait)? {
            Answer::Session { session } => Ok(session),
            _ => Err(ClientError::Answer { request: "ensure" }),
        }
    }

    /// Ends a session and waits up to `wait` until it is gone. `None` if it is gone; otherwise its
    /// state (`Ending`): ask again. Idempotent; `End::Cut` after `End::Logout` hurries a logout
    /// that does not come to its end.
    pub fn end(
        &mut self,
        volume: VolumeId,
        how: End,
        wait: Duration,
    ) -> Result<Option<SessionStatus>, ClientError> {
        let request = Request::End { volume, how, wait_ms: millis(wait) };
        match self.ask(&request, wait)? {
            Answer::Session { session } => Ok(Some(session)),
            Answer::Gone { .. } => Ok(None),
            _ => Err(ClientError::Answer { request: "end" }),
        }
    }

    /// Returns one session; `None` when this volume has none.
    pub fn get(&mut self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError> {
        match self.ask(&Request::Get { volume }, Duration::ZERO)? {
            Answer::Session { session } => Ok(Some(session)),
            Answer::Gone { .. } => Ok(None),
            _ => Err(ClientError::Answer { request: "get" }),
        }
    }

    /// Returns all sessions, by volume.
    pub fn list(&mut self) -> Result<Vec<SessionStatus>, ClientError> {
        match self.ask(&Request::List, Duration::ZERO)? {
            Answer::Sessions { sessions } => Ok(sessions),
            _ => Err(ClientError::Answer { request: "list" }),
        }
    }

    /// Turns the connection into a stream of events: first every session, then
    /// [`SessionEvent::Synced`], then every change.
    pub fn watch(self) -> Result<Watch, ClientError> {
        self.send(&Request::Watch)?;
        Ok(Watch { path: self.path, lines: self.lines })
    }

    fn send(&self, request: &Request) -> Result<(), ClientError> {
        line::write(self.lines.stream(), request).map_err(|error| broken(&self.path, &error))
    }

    fn ask(&mut self, request: &Request, wait: Duration) -> Result<Answer, ClientError> {
        self.send(request)?;
        match receive(&self.path, &mut self.lines, wait + ANSWER_WITHIN)? {
            Some(Answer::Error { kind, text }) => Err(ClientError::Refused { kind, text }),
            Some(answer) => Ok(answer),
            None => Err(ClientError::Broken {
                path: self.path.clone(),
                what: format!("no answer within {} s", (wait + ANSWER_WITHIN).as_secs()),
            }),
        }
    }
}

/// A change of sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session as it is now.
    Session(Box<SessionStatus>),
    /// There is no session of this volume any more.
    Gone(VolumeId),
    /// All existing sessions were sent; the events behind it are changes.
    Synced,
}

/// The stream of changes.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    lines: LineReader,
}

impl Watch {
    /// Returns the next change; `None` when none came within `wait`. The daemon disconnects a
    /// watcher that reads too slowly (an error here): connect and watch again, the first events
    /// tell everything anew.
    pub fn next(&mut self, wait: Duration) -> Result<Option<SessionEvent>, ClientError> {
        match receive(&self.path, &mut self.lines, wait)? {
            None => Ok(None),
            Some(Answer::Session { session }) => Ok(Some(SessionEvent::Session(Box::new(session)))),
            Some(Answer::Gone { volume }) => Ok(Some(SessionEvent::Gone(volume))),
            Some(Answer::Synced) => Ok(Some(SessionEvent::Synced)),
            Some(Answer::Error { kind, text }) => Err(ClientError::Refused { kind, text }),
            Some(Answer::Hello { .. } | Answer::Sessions { .. }) => {
                Err(ClientError::Answer { request: "watch" })
            }
        }
    }
}

fn receive(path: &Path, lines: &mut LineReader, wait: Duration) -> Result<Option<Answer>, ClientError> {
    let Some(line) = lines.next(wait).map_err(|error| broken(path, &error))? else { return Ok(None) };
    match serde_json::from_slice(&line) {
        Ok(answer) => Ok(Some(answer)),
        // serde_json's message may hold the text that it read.
        Err(error) => Err(ClientError::Broken {
            path: path.to_owned(),
            what: format!("an answer that is not understood (column {})", error.column()),
        }),
    }
}

fn broken(path: &Path, error: &LineError) -> ClientError {
    ClientError::Broken { path: path.to_owned(), what: mooring_model::Chain(error).to_string() }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
