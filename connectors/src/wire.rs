//! What an agent and `mooring-sessiond` say to each other: one JSON object per line, each way, over a unix socket.
//!
//! A connection begins with [`Request::Hello`]; after it requests are answered in order, one answer each, except
//! [`Request::Watch`], after which only events come. Fields are only ever added; unknown ones are ignored; unknown
//! requests are answered with [`ErrorKind::Unknown`].
//!
//! What must never happen here: a secret in a `Debug`.

use std::time::SystemTime;

use mooring_model::{FcRoute, Generation, Iqn, Lun, Naa, Portal, Secret, VolumeId, Wwpn};
use serde::{Deserialize, Serialize};

/// The newest protocol that this build speaks.
pub const PROTOCOL_MAX: u32 = 1;
/// The oldest protocol that this build speaks: N works with N−1.
pub const PROTOCOL_MIN: u32 = 1;
/// Longest line taken, in bytes.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Where the socket is, below the run folder (`/run/mooring`).
pub const SOCKET: &str = "sessiond/sessiond.sock";

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way")]
pub enum Request {
    /// Versions; the first of every connection.
    Hello {
        /// Oldest protocol that the caller speaks.
        protocol_min: u32,
        /// Newest protocol that the caller speaks.
        protocol_max: u32,
        /// The caller's software, for logs.
        software: String,
    },
    /// Keep a session like this: written to the journal first, then made. Idempotent. A session of the same volume with
    /// other parameters is refused, except that portals and CHAP are taken over for the next login. Answered when it is
    /// logged in, or failed for good, or after `wait_ms` with what is known.
    Ensure {
        /// The session.
        session: SessionWish,
        /// How long the answer may wait.
        wait_ms: u64,
    },
    /// End a session. Idempotent. Answered when it is gone, or after `wait_ms`.
    End {
        /// Of this volume.
        volume: VolumeId,
        /// How.
        how: End,
        /// How long the answer may wait.
        wait_ms: u64,
    },
    /// One session.
    Get {
        /// Of this volume.
        volume: VolumeId,
    },
    /// All sessions.
    List,
    /// From here on only events: first all sessions, then `synced`, then every change.
    Watch,
}

/// How a session is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Its disk is gone already (removed by the agent): log out.
    Logout,
    /// At once: the target has revoked this host, or nothing answers. What is queued fails, the disk goes.
    Cut,
}

/// A session that is wanted.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionWish {
    /// The volume: one session each.
    pub volume: VolumeId,
    /// Of the spec that asks for it; for logs.
    pub generation: Generation,
    /// Under which name.
    pub initiator: Iqn,
    /// Which target.
    pub target: Iqn,
    /// Which target portal group must answer.
    pub tpg: u16,
    /// Where, in the order in which they are tried.
    pub portals: Vec<Portal>,
    /// Which LUN is looked at after a recovery.
    pub lun: Lun,
    /// What a fresh INQUIRY must show after a recovery; another disk ends the session.
    pub naa: Naa,
    /// The unit serial that it must show beside the NAA, which holds only the first 25 hex digits of it. `None`: an agent of an
    /// earlier release asks, see [`SessionWish::unit_serial`].
    #[serde(default)]
    pub serial: Option<String>,
    /// Credentials.
    pub chap: Option<WireChap>,
    /// While secrets are being rotated: other credentials that the target may have instead. An earlier release knows none.
    #[serde(default)]
    pub other_chap: Option<WireChap>,
    /// Seconds that I/O waits for a lost session before it fails (the kernel's `recovery_tmo`).
    pub recovery_timeout_s: u32,
    /// Over Fibre Channel: no affair of `mooring-sessiond`, and never on this wire.
    #[serde(skip)]
    pub fc: Option<FcRoute>,
}

impl SessionWish {
    /// With how many secrets the session can be logged in.
    pub fn secrets(&self) -> u32 {
        u32::from(self.chap.is_some()) + u32::from(self.other_chap.is_some())
    }

    /// The unit serial that the disk must show. An export that was not adopted has its volume's id as its serial, which its NAA
    /// tells. `None`: the export was adopted, and nobody has said its serial.
    pub fn unit_serial(&self) -> Option<String> {
        let id = self.volume.to_string();
        self.serial.clone().or_else(|| (self.naa == Naa::of_serial(&id)).then_some(id))
    }
}

/// Credentials on this wire and in the journal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireChap {
    /// The initiator's user.
    pub user: String,
    /// Its secret.
    pub secret: String,
    /// The target's user and secret: mutual CHAP.
    pub mutual: Option<(String, String)>,
}

impl WireChap {
    /// The initiator's secret.
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

impl std::fmt::Debug for SessionWish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionWish")
            .field("volume", &self.volume)
            .field("generation", &self.generation)
            .field("target", &self.target)
            .field("portals", &self.portals)
            .finish_non_exhaustive()
    }
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Being made for the first time; tried again after a failure that may pass.
    Connecting,
    /// Logged in.
    LoggedIn,
    /// Lost, being made again. I/O waits.
    Recovering,
    /// Being ended.
    Ending,
    /// The target has refused this host twice, at least 3 s apart: ended, not tried again until asked anew.
    Forbidden,
    /// Cannot be made (wrong credentials, wrong answers of the target): not tried again until asked anew.
    Failed,
    /// After a recovery the disk was another one: ended, not tried again until asked anew.
    WrongDisk,
}

/// A session as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Of which volume.
    pub volume: VolumeId,
    /// Of the spec that asked for it last.
    pub generation: Generation,
    /// Its target.
    pub target: Iqn,
    /// Under which name.
    pub initiator: Iqn,
    /// Where it stands.
    pub state: SessionState,
    /// The portal that it is logged in at, or tried last. `None` over Fibre Channel.
    pub portal: Option<Portal>,
    /// Initiator session id, 12 hexadecimal digits.
    pub isid: String,
    /// The kernel's number, when there is a kernel session.
    pub sid: Option<u32>,
    /// The number of its SCSI host (`host<N>`), when there is one.
    pub host: Option<u32>,
    /// When it was logged in last.
    pub since: Option<SystemTime>,
    /// How long the last login took, in microseconds.
    pub login_us: Option<u64>,
    /// Logins after a loss.
    pub relogins: u32,
    /// It was there when this process started, and was taken over without a login.
    pub adopted: bool,
    /// Identity checks that were passed after recoveries.
    pub verified: u32,
    /// What went wrong last: which portal, what, for how long it was tried.
    pub problem: Option<String>,
    /// When it is tried again.
    pub retry_in_ms: Option<u64>,
    /// With how many secrets it can be logged in, as the journal has it. 0: with none, or an earlier release is asked.
    #[serde(default)]
    pub secrets: u32,
    /// Over Fibre Channel: where the disk is, or would be. Never on this wire.
    #[serde(skip)]
    pub fc: Option<Box<FcPath>>,
}

/// How a host reaches a volume over Fibre Channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcPath {
    /// The port of this host.
    pub port: Wwpn,
    /// The SCSI target whose disk is used. `None`: nothing is known of it now.
    pub used: Option<FcTarget>,
    /// Which one that is, is written down: it stays the one.
    pub kept: bool,
    /// Every SCSI target of this port through which the volume may show.
    pub all: Vec<FcTarget>,
    /// The LUN.
    pub lun: Lun,
}

/// A SCSI target of an adapter, as its SCSI host numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FcTarget {
    /// Its channel.
    pub channel: u32,
    /// Its number there.
    pub id: u32,
}

/// An answer, or an event after [`Request::Watch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To `Hello`.
    Hello {
        /// The protocol to use.
        protocol: u32,
        /// The daemon's software.
        software: String,
        /// Its process.
        pid: u32,
        /// When it started.
        started: SystemTime,
    },
    /// To `Ensure` and `Get`; an event.
    Session {
        /// As it is.
        session: SessionStatus,
    },
    /// To `List`.
    Sessions {
        /// All of them.
        sessions: Vec<SessionStatus>,
    },
    /// To `End` and `Get`, and an event: there is no session of this volume (any more).
    Gone {
        /// Of which volume.
        volume: VolumeId,
    },
    /// An event: everything was sent; what follows are changes.
    Synced,
    /// The request was not done.
    Error {
        /// What kind of failure.
        kind: ErrorKind,
        /// What failed, and what to do. Never a secret.
        text: String,
    },
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request is wrong.
    Invalid,
    /// The request is not known to this version.
    Unknown,
    /// No common protocol.
    Protocol,
    /// There is a session of this volume with another target or initiator.
    Conflict,
    /// The machine refuses: modules missing, rights, no memory.
    Machine,
}
