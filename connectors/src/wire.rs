//! Protocol between an agent and `mooring-sessiond`: one JSON object per line, each way, over a
//! unix socket.
//!
//! A connection begins with [`Request::Hello`]. The requests behind it are answered in order, one
//! answer each, except [`Request::Watch`], after which only events come. Fields are only ever
//! added; unknown ones are ignored; unknown requests are answered with [`ErrorKind::Unknown`].
//!
//! What must never happen here: a secret in a `Debug`.

use std::time::SystemTime;

use mooring_model::{FcRoute, Generation, Iqn, Lun, Naa, Portal, Secret, VolumeId, Wwpn};
use serde::{Deserialize, Serialize};

/// The newest protocol that this build speaks.
pub const PROTOCOL_MAX: u32 = 1;
/// The oldest protocol that this build speaks: N works with N−1.
pub const PROTOCOL_MIN: u32 = 1;
/// Longest accepted line, in bytes.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Path of the socket, below the run folder (`/run/mooring`).
pub const SOCKET: &str = "sessiond/sessiond.sock";

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way")]
pub enum Request {
    /// Exchanges versions; the first request of every connection.
    Hello {
        /// Oldest protocol that the caller speaks.
        protocol_min: u32,
        /// Newest protocol that the caller speaks.
        protocol_max: u32,
        /// The caller's software, for logs.
        software: String,
    },
    /// Keeps a session like this: first written to the journal, then made. Idempotent. A session of
    /// this volume with other parameters is refused, except that portals and CHAP are taken over
    /// for the next login. Answered when the session is logged in, or failed for good, or after
    /// `wait_ms` with its state.
    Ensure {
        /// The session.
        session: SessionSpec,
        /// Longest time until the answer, in milliseconds.
        wait_ms: u64,
    },
    /// Ends a session. Idempotent. Answered when it is gone, or after `wait_ms`.
    End {
        /// Volume of the session.
        volume: VolumeId,
        /// Way of ending it.
        how: End,
        /// Longest time until the answer, in milliseconds.
        wait_ms: u64,
    },
    /// Asks for one session.
    Get {
        /// Volume of the session.
        volume: VolumeId,
    },
    /// Asks for all sessions.
    List,
    /// Asks for events only: first all sessions, then `synced`, then every change.
    Watch,
}

/// Ways of ending a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Logs out: the agent has removed the disk already.
    Logout,
    /// Ends it at once: the target has revoked this host, or nothing answers. Queued commands fail,
    /// the disk goes.
    Cut,
}

/// The spec of a session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// The volume, which has one session.
    pub volume: VolumeId,
    /// Generation of the spec that asks for the session; for logs.
    pub generation: Generation,
    /// Initiator name to use.
    pub initiator: Iqn,
    /// Name of the target.
    pub target: Iqn,
    /// Target portal group that must answer.
    pub tpg: u16,
    /// Portals, in the order in which they are tried.
    pub portals: Vec<Portal>,
    /// LUN that is looked at after a recovery.
    pub lun: Lun,
    /// Identity that a fresh INQUIRY must show after a recovery; another disk ends the session.
    pub naa: Naa,
    /// Unit serial that the disk must show beside the NAA, which holds only the serial's first 25
    /// hex digits. `None`: the agent is of an earlier release, see [`SessionSpec::unit_serial`].
    #[serde(default)]
    pub serial: Option<String>,
    /// Credentials.
    pub chap: Option<WireChap>,
    /// Second credentials that the target may have instead, while secrets are being rotated. An
    /// earlier release knows none.
    #[serde(default)]
    pub other_chap: Option<WireChap>,
    /// Seconds that I/O waits for a lost session before it fails (the kernel's `recovery_tmo`).
    pub recovery_timeout_s: u32,
    /// Route over Fibre Channel: `mooring-sessiond` has no part in it, and it is never on this
    /// wire.
    #[serde(skip)]
    pub fc: Option<FcRoute>,
}

impl SessionSpec {
    /// Counts the secrets with which the session can be logged in.
    pub fn secrets(&self) -> u32 {
        u32::from(self.chap.is_some()) + u32::from(self.other_chap.is_some())
    }

    /// Returns the unit serial that the disk must show. An export that was not adopted has its
    /// volume's id as its serial, which its NAA tells. `None`: the export was adopted, and the spec
    /// has no serial.
    pub fn unit_serial(&self) -> Option<String> {
        let id = self.volume.to_string();
        self.serial.clone().or_else(|| (self.naa == Naa::of_serial(&id)).then_some(id))
    }
}

/// Credentials on this wire and in the journal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireChap {
    /// User of the initiator.
    pub user: String,
    /// Secret of the initiator.
    pub secret: String,
    /// User and secret of the target: mutual CHAP.
    pub mutual: Option<(String, String)>,
}

impl WireChap {
    /// Returns the initiator's secret.
    pub fn secret(&self) -> Secret {
        Secret::new(self.secret.clone())
    }
}

impl std::fmt::Debug for WireChap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WireChap")
            .field("user", &self.user)
            .field("mutual", &self.mutual.is_some())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SessionSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionSpec")
            .field("volume", &self.volume)
            .field("generation", &self.generation)
            .field("target", &self.target)
            .field("portals", &self.portals)
            .finish_non_exhaustive()
    }
}

/// State of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// The daemon makes it: for the first time, or anew because the kernel has it no more. A
    /// failure that may pass is tried again.
    Connecting,
    /// Logged in.
    LoggedIn,
    /// The session is lost and being made again: I/O waits. Or its disk has not said for too long
    /// who it is, and is offline until it does.
    Recovering,
    /// The daemon ends the session.
    Ending,
    /// The target has refused this host for the session's whole recovery time: ended, not tried
    /// again until a newer spec asks for it.
    Forbidden,
    /// No login is possible (wrong credentials, wrong answers of the target): not tried again until
    /// a newer spec asks for it.
    Failed,
    /// A recovery found another disk: ended, not tried again until a newer spec asks for it.
    WrongDisk,
}

/// A session as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Volume of the session.
    pub volume: VolumeId,
    /// Generation of the spec that asked for it last.
    pub generation: Generation,
    /// Name of the target.
    pub target: Iqn,
    /// Initiator name in use.
    pub initiator: Iqn,
    /// State of the session.
    pub state: SessionState,
    /// Portal that the session is logged in at, or tried last. `None` over Fibre Channel.
    pub portal: Option<Portal>,
    /// Initiator session id, 12 hexadecimal digits.
    pub isid: String,
    /// Session number in the kernel, when there is a kernel session.
    pub sid: Option<u32>,
    /// Number of the SCSI host (`host<N>`), when there is one.
    pub host: Option<u32>,
    /// Time of the last login.
    pub since: Option<SystemTime>,
    /// Duration of the last login, in microseconds.
    pub login_us: Option<u64>,
    /// Number of logins after a loss.
    pub relogins: u32,
    /// The session existed when this process started, and was taken over without a login.
    pub adopted: bool,
    /// Number of identity checks that were passed after recoveries.
    pub verified: u32,
    /// Last failure: the portal, the cause, and for how long it was tried.
    pub problem: Option<String>,
    /// Time until the next attempt, in milliseconds; `None` if there is none.
    pub retry_in_ms: Option<u64>,
    /// Number of secrets with which the session can be logged in, from the journal. 0: none, or the
    /// daemon is of an earlier release.
    #[serde(default)]
    pub secrets: u32,
    /// Place of the disk over Fibre Channel, where it is or would be. Never on this wire.
    #[serde(skip)]
    pub fc: Option<Box<FcPath>>,
}

/// Paths of a host to a volume over Fibre Channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcPath {
    /// Port of this host.
    pub port: Wwpn,
    /// SCSI target whose disk is used. `None`: no target is known now.
    pub used: Option<FcTarget>,
    /// The used target is recorded: it stays the one.
    pub kept: bool,
    /// All SCSI targets of this port through which the volume may show.
    pub all: Vec<FcTarget>,
    /// The LUN.
    pub lun: Lun,
}

/// A SCSI target of an adapter, as its SCSI host numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FcTarget {
    /// Channel on the SCSI host.
    pub channel: u32,
    /// Target number in the channel.
    pub id: u32,
}

/// An answer, or an event after [`Request::Watch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Answers `Hello`.
    Hello {
        /// Protocol to use.
        protocol: u32,
        /// Software of the daemon.
        software: String,
        /// Process id of the daemon.
        pid: u32,
        /// Start of the daemon.
        started: SystemTime,
    },
    /// Answers `Ensure` and `Get`; also an event.
    Session {
        /// Session as it is now.
        session: SessionStatus,
    },
    /// Answers `List`.
    Sessions {
        /// All sessions.
        sessions: Vec<SessionStatus>,
    },
    /// Answers `End` and `Get`, and is an event: this volume has no session (any more).
    Gone {
        /// Volume of the session.
        volume: VolumeId,
    },
    /// Event: everything was sent; the events behind it are changes.
    Synced,
    /// The request was not done.
    Error {
        /// Kind of failure.
        kind: ErrorKind,
        /// Failure, and a remedy. Never a secret.
        text: String,
    },
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request is wrong.
    Invalid,
    /// This version does not know the request.
    Unknown,
    /// The two sides have no common protocol.
    Protocol,
    /// This volume has a session with another target or initiator.
    Conflict,
    /// The machine refuses: modules missing, rights, no memory.
    Machine,
}
