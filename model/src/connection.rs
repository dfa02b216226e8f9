//! The host's half of an attachment: the spec that connects this host to one volume, and the report
//! on it.
//!
//! One connection is one nexus (volume, initiator): all attachments of the volume on this host
//! share it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::limit::{ATTACHMENTS_PER_CONNECTION_MAX, FC_PORTS_PER_HOST_MAX, PORTALS_PER_EXPORT_MAX};
use crate::{
    AttachmentId, ByteSize, Cache, Chap, Generation, Iqn, Lun, Mode, Naa, Portal, Problem, SpecError,
    StuckStep, VolumeId, Wwpn,
};

/// The spec of one attachment on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentSpec {
    /// The attachment.
    pub id: AttachmentId,
    /// The access it allows.
    pub mode: Mode,
    /// Page cache mode of its disk.
    pub cache: Cache,
}

/// A volume's route over Fibre Channel. No software logs in: the adapter does, for all volumes of a
/// target port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FcRoute {
    /// The port of this host that has the grant.
    pub port: Wwpn,
    /// The ports of the storage node that show the volume.
    pub targets: Vec<Wwpn>,
}

/// The spec of a host's connection to one volume. An attachment that is absent here loses its path;
/// the whole connection ends only by a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSpec {
    /// The volume.
    pub volume: VolumeId,
    /// The name under which this host logs in. It is part of the spec, so that a nexus per
    /// attachment needs no change of the wire.
    pub initiator: Iqn,
    /// The target's name.
    pub target: Iqn,
    /// The target portal group that must answer.
    pub tpg: u16,
    /// The target's addresses, in the order in which they are tried.
    pub portals: Vec<Portal>,
    /// The only LUN that is scanned.
    pub lun: Lun,
    /// The identity that a fresh INQUIRY (page 0x83) must show.
    pub naa: Naa,
    /// The unit serial that a fresh INQUIRY (page 0x80) must show.
    pub serial: String,
    /// The least size that the disk must have.
    pub size: ByteSize,
    /// The credentials. `None`: the host authenticates with none, and a target that demands some is
    /// an error.
    pub chap: Option<Chap>,
    /// The second pair of credentials while secrets are rotated: the new ones or the old ones. The
    /// host logs in with either pair, and accepts the target's proof by either.
    pub other_chap: Option<Chap>,
    /// The attachments that share this connection; at least one.
    pub attachments: Vec<AttachmentSpec>,
    /// The Fibre Channel route, in place of portals and credentials. `initiator` and `target` then
    /// only name the two ends. `None`: the connection is over iSCSI.
    pub fc: Option<FcRoute>,
}

impl ConnectionSpec {
    /// Checks what the types alone cannot guarantee.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_fc()?;
        if self.portals.is_empty() && self.fc.is_none() {
            return Err(SpecError::new("portals", "is empty: a host must know where to log in"));
        }
        if self.portals.len() > PORTALS_PER_EXPORT_MAX {
            return Err(SpecError::new("portals", format!("more than {PORTALS_PER_EXPORT_MAX}")));
        }
        if self.portals.iter().collect::<BTreeSet<_>>().len() != self.portals.len() {
            return Err(SpecError::new("portals", "one portal is listed twice"));
        }
        if self.attachments.is_empty() {
            return Err(SpecError::new("attachments", "is empty: send a tombstone to remove the connection"));
        }
        if self.attachments.len() > ATTACHMENTS_PER_CONNECTION_MAX {
            return Err(SpecError::new("attachments", format!("more than {ATTACHMENTS_PER_CONNECTION_MAX}")));
        }
        let ids: BTreeSet<_> = self.attachments.iter().map(|attachment| attachment.id).collect();
        if ids.len() != self.attachments.len() {
            return Err(SpecError::new("attachments", "one attachment is listed twice"));
        }
        // Single-LUN scans number LUNs above 255 as the target reports them (flat addressing); ours
        // stay below.
        if self.lun.0 == 0 || self.lun.0 > 255 {
            return Err(SpecError::new("lun", format!("{} is not allowed: want 1 to 255", self.lun.0)));
        }
        if self.serial.is_empty() || !self.serial.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(SpecError::new("serial", "want printable ASCII characters without blanks"));
        }
        if let Some(chap) = &self.chap {
            chap.check("chap")?;
        }
        self.check_other_chap()
    }

    fn check_other_chap(&self) -> Result<(), SpecError> {
        let Some(other) = &self.other_chap else { return Ok(()) };
        let Some(chap) = &self.chap else {
            return Err(SpecError::new("other_chap", "needs chap beside it"));
        };
        other.check("other_chap")?;
        // If only one pair demanded the target's proof, the other pair would bypass it.
        let secret = |of: &Chap| of.mutual.as_ref().map(|side| side.secret.clone());
        let (own, others) = (secret(chap), secret(other));
        if own.is_some() != others.is_some() {
            return Err(SpecError::new("other_chap.mutual", "set it if chap has it, else leave it out"));
        }
        // As within one pair: an attacker could reflect our own responses to us.
        if own.as_ref() == Some(&other.initiator.secret) || others.as_ref() == Some(&chap.initiator.secret) {
            return Err(SpecError::new(
                "other_chap",
                "a secret of the initiator must not be a secret of the target",
            ));
        }
        Ok(())
    }

    fn check_fc(&self) -> Result<(), SpecError> {
        let Some(route) = &self.fc else { return Ok(()) };
        if !self.portals.is_empty() {
            return Err(SpecError::new("portals", "a connection over Fibre Channel has none"));
        }
        if self.chap.is_some() {
            return Err(SpecError::new("chap", "a connection over Fibre Channel has no credentials"));
        }
        if route.targets.is_empty() {
            return Err(SpecError::new("fc.target_ports", "is empty: a host must know where to look"));
        }
        if route.targets.len() > FC_PORTS_PER_HOST_MAX {
            return Err(SpecError::new("fc.target_ports", format!("more than {FC_PORTS_PER_HOST_MAX}")));
        }
        if route.targets.iter().collect::<BTreeSet<_>>().len() != route.targets.len() {
            return Err(SpecError::new("fc.target_ports", "one port is listed twice"));
        }
        Ok(())
    }

    /// Access of the nexus: read-write if any of its attachments is.
    pub fn mode(&self) -> Mode {
        self.attachments.iter().map(|attachment| attachment.mode).max().unwrap_or(Mode::ReadOnly)
    }

    /// Page cache of the disk: off if any attachment requires it off.
    pub fn cache(&self) -> Cache {
        self.attachments.iter().map(|attachment| attachment.cache).max().unwrap_or_default()
    }
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionPhase {
    /// In the spec; no verified device yet.
    Connecting,
    /// Logged in; the device is verified and has its paths.
    Ready,
    /// The session was lost and is being re-established; the device exists and its I/O waits.
    Recovering,
    /// No longer in the spec, still there.
    Detaching,
    /// No longer in the spec, and gone.
    Gone,
    /// In the spec, and cannot be made now; see the problems.
    Failed,
    /// The target refused this host: its grant was revoked. The session was ended and is not
    /// retried.
    Forbidden,
}

impl ConnectionPhase {
    /// The text for people and programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::Recovering => "recovering",
            Self::Detaching => "detaching",
            Self::Gone => "gone",
            Self::Failed => "failed",
            Self::Forbidden => "forbidden",
        }
    }
}

impl fmt::Display for ConnectionPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A session as its host reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSession {
    /// The portal where the host is logged in, or tries to.
    pub portal: Portal,
    /// The kernel's number of the session on this host (`session<sid>`); not stable over reboots.
    pub sid: u32,
    /// Initiator session id, 12 hexadecimal digits.
    pub isid: String,
    /// The session is logged in now.
    pub logged_in: bool,
    /// Time of the last login; `None`: none yet.
    pub since: Option<SystemTime>,
    /// Number of logins after a loss.
    pub relogins: u32,
}

/// The disk of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDisk {
    /// The kernel's name, such as `/dev/sda`. Not stable; for people and logs.
    pub path: String,
    /// The kernel's sequence number of this disk; it distinguishes a reused name.
    pub sequence: u64,
    /// Size of the disk.
    pub size: ByteSize,
    /// The host rejects writes as well.
    pub read_only: bool,
    /// The identity that the last fresh INQUIRY showed.
    pub naa: Naa,
}

/// The stable path of one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentPath {
    /// The attachment.
    pub attachment: AttachmentId,
    /// `/run/mooring/attachments/<attachment uuid>`.
    pub path: String,
}

/// The report on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport {
    /// The volume.
    pub volume: VolumeId,
    /// The generation that the agent works on.
    pub generation: Generation,
    /// The name under which the host logs in.
    pub initiator: Iqn,
    /// The target that it logs in to.
    pub target: Iqn,
    /// The state of the connection.
    pub phase: ConnectionPhase,
    /// The mode that host and spec agree on; `None` while there is no verified device.
    pub mode: Option<Mode>,
    /// Page cache mode in force on the disk. `None` while there is no verified device, or if the
    /// agent does not know the flag.
    pub cache: Option<Cache>,
    /// The session; `None` if there is none.
    pub session: Option<HostSession>,
    /// The verified disk; `None` if there is none.
    pub disk: Option<HostDisk>,
    /// The user paths that exist.
    pub paths: Vec<AttachmentPath>,
    /// Processes that hold the disk open, such as `qemu-system-x86 (pid 4711)`. Collected only when
    /// they matter.
    pub holders: Vec<String>,
    /// Deviations from the spec.
    pub problems: Vec<Problem>,
    /// A kernel call that has not returned.
    pub stuck: Option<StuckStep>,
    /// Duration of the last login.
    pub login_took: Option<Duration>,
    /// Time from the end of the login to the verified device with its paths.
    pub device_took: Option<Duration>,
    /// Number of secrets that the host can log in with from now on: two during a rotation. The
    /// session's keeper recorded it for this generation's spec. `None`: not recorded, as over Fibre
    /// Channel and without CHAP.
    pub secrets: Option<u32>,
    /// Dirty pages in the page cache when the session was lost or ended. `None` if the kernel does
    /// not say, and while the session exists.
    pub unwritten: Option<ByteSize>,
}
