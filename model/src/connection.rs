//! The host's half of an attachment: the wish that this host is connected to one volume, and what is seen of it.
//!
//! One connection is one nexus (volume, initiator): all attachments of the volume on this host share it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::limit::{ATTACHMENTS_PER_CONNECTION_MAX, FC_PORTS_PER_HOST_MAX, PORTALS_PER_EXPORT_MAX};
use crate::{
    AttachmentId, ByteSize, Cache, Chap, Generation, Iqn, Lun, Mode, Naa, Portal, Problem, SpecError,
    StuckStep, VolumeId, Wwpn,
};

/// One attachment on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentWish {
    /// The attachment.
    pub id: AttachmentId,
    /// What it may do.
    pub mode: Mode,
    /// Page cache of its disk.
    pub cache: Cache,
}

/// The way to a volume over Fibre Channel. Nobody logs in for it: the adapter does, for all volumes of a target port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FcRoute {
    /// The port of this host that the volume is granted to.
    pub port: Wwpn,
    /// The ports of the storage node that show the volume.
    pub targets: Vec<Wwpn>,
}

/// The wish that this host is connected to a volume. An attachment that is absent here loses its path; the whole
/// connection goes only by a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSpec {
    /// The volume.
    pub volume: VolumeId,
    /// Under which name this host logs in. It travels in the spec, so that a nexus per attachment can come without a
    /// change of the wire.
    pub initiator: Iqn,
    /// The target's name.
    pub target: Iqn,
    /// The target portal group that must answer.
    pub tpg: u16,
    /// Where the target listens, in the order in which they are tried.
    pub portals: Vec<Portal>,
    /// The LUN that is scanned, alone.
    pub lun: Lun,
    /// The identity that a fresh INQUIRY (page 0x83) must show.
    pub naa: Naa,
    /// The unit serial that a fresh INQUIRY (page 0x80) must show.
    pub serial: String,
    /// The smallest size that the disk must have.
    pub size: ByteSize,
    /// The credentials. `None`: the target is asked for none, and one that demands them is an error.
    pub chap: Option<Chap>,
    /// While secrets are being rotated: the credentials that come, or those that go. The host logs in with either, and takes the
    /// target's proof by either.
    pub other_chap: Option<Chap>,
    /// The attachments that share this connection; at least one.
    pub attachments: Vec<AttachmentWish>,
    /// Over Fibre Channel, in the place of portals and credentials. `initiator` and `target` name the two ends then, and nobody
    /// logs in with them.
    pub fc: Option<FcRoute>,
}

impl ConnectionSpec {
    /// Checks what the types alone do not hold.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_fc()?;
        if self.portals.is_empty() && self.fc.is_none() {
            return Err(SpecError::new("portals", "is empty: a host must know where to log in"));
        }
        if self.portals.len() > PORTALS_PER_EXPORT_MAX {
            return Err(SpecError::new("portals", format!("more than {PORTALS_PER_EXPORT_MAX}")));
        }
        if self.portals.iter().collect::<BTreeSet<_>>().len() != self.portals.len() {
            return Err(SpecError::new("portals", "one portal stands there twice"));
        }
        if self.attachments.is_empty() {
            return Err(SpecError::new("attachments", "is empty: a connection goes by a tombstone"));
        }
        if self.attachments.len() > ATTACHMENTS_PER_CONNECTION_MAX {
            return Err(SpecError::new("attachments", format!("more than {ATTACHMENTS_PER_CONNECTION_MAX}")));
        }
        let ids: BTreeSet<_> = self.attachments.iter().map(|attachment| attachment.id).collect();
        if ids.len() != self.attachments.len() {
            return Err(SpecError::new("attachments", "one attachment stands there twice"));
        }
        // Single-LUN scans number LUNs above 255 as the target reports them (flat addressing); ours stay below.
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
            return Err(SpecError::new("other_chap", "stands beside no credentials"));
        };
        other.check("other_chap")?;
        // One of them without the target's proof would be a way around it.
        let secret = |of: &Chap| of.mutual.as_ref().map(|side| side.secret.clone());
        let (own, others) = (secret(chap), secret(other));
        if own.is_some() != others.is_some() {
            return Err(SpecError::new("other_chap.mutual", "want it if, and only if, chap has it"));
        }
        // As within one pair: our own responses could be played back to us.
        if own.as_ref() == Some(&other.initiator.secret) || others.as_ref() == Some(&chap.initiator.secret) {
            return Err(SpecError::new("other_chap", "no secret of one direction may be one of the other's"));
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
            return Err(SpecError::new("fc.target_ports", "one port stands there twice"));
        }
        Ok(())
    }

    /// What the nexus may do: rw if any of its attachments is.
    pub fn mode(&self) -> Mode {
        self.attachments.iter().map(|attachment| attachment.mode).max().unwrap_or(Mode::ReadOnly)
    }

    /// Page cache of the disk: off if any attachment wants it off.
    pub fn cache(&self) -> Cache {
        self.attachments.iter().map(|attachment| attachment.cache).max().unwrap_or_default()
    }
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionPhase {
    /// Wanted, no verified device yet.
    Connecting,
    /// Logged in; the device is verified and has its paths.
    Ready,
    /// The session was lost and is being made again; the device is there and its I/O waits.
    Recovering,
    /// Not wanted any more, still there.
    Detaching,
    /// Not wanted and gone.
    Gone,
    /// Wanted and cannot be made now; see the problems.
    Failed,
    /// The target has refused this host: it was revoked. The session has been ended and is not tried again.
    Forbidden,
}

impl ConnectionPhase {
    /// As people and programs read it.
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

/// A session as its host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSession {
    /// The portal that it is logged in at, or tries.
    pub portal: Portal,
    /// The kernel's number of the session on this host (`session<sid>`); not stable over reboots.
    pub sid: u32,
    /// Initiator session id, 12 hexadecimal digits.
    pub isid: String,
    /// Logged in at this moment.
    pub logged_in: bool,
    /// When it was logged in last.
    pub since: Option<SystemTime>,
    /// How often it was logged in again after a loss.
    pub relogins: u32,
}

/// The disk of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDisk {
    /// The kernel's name, as `/dev/sda`: not stable, for people and for logs.
    pub path: String,
    /// The kernel's sequence number of this disk: tells a name that was used again.
    pub sequence: u64,
    /// Its size.
    pub size: ByteSize,
    /// The host refuses writes, too.
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

/// One connection as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport {
    /// The volume.
    pub volume: VolumeId,
    /// The generation that the agent works on.
    pub generation: Generation,
    /// Under which name.
    pub initiator: Iqn,
    /// To which target.
    pub target: Iqn,
    /// Where it stands.
    pub phase: ConnectionPhase,
    /// The mode that host and spec agree on; `None` while there is no verified device.
    pub mode: Option<Mode>,
    /// Page cache of the disk as it is in force; `None` while there is no verified device, and from an agent that knows no flag.
    pub cache: Option<Cache>,
    /// Its session.
    pub session: Option<HostSession>,
    /// Its disk, verified.
    pub disk: Option<HostDisk>,
    /// The paths for users that are there.
    pub paths: Vec<AttachmentPath>,
    /// Who holds the disk open, as `qemu-system-x86 (pid 4711)`; looked at when that matters.
    pub holders: Vec<String>,
    /// What is not as wanted.
    pub problems: Vec<Problem>,
    /// A call that has not returned.
    pub stuck: Option<StuckStep>,
    /// From the beginning of the last login to its end.
    pub login_took: Option<Duration>,
    /// From the end of the login to the verified device with its paths.
    pub device_took: Option<Duration>,
    /// With how many secrets the host can log in from now on, as its session's keeper has written down for the spec of this
    /// generation: two while they are being rotated. `None`: nobody has said so, as over Fibre Channel and without CHAP.
    pub secrets: Option<u32>,
    /// What the page cache held and had not written when the session was lost or cut. `None` if the kernel does not say, and
    /// while the session is there.
    pub unwritten: Option<ByteSize>,
}
