//! Looks at one connection: its session, the disks of its SCSI host, the identity that they show
//! now, its links.
//!
//! Two facts are remembered for the length of one pass: the session's state in the last answer of
//! `mooring-sessiond`, and the disk (by its sequence number) that was verified. Everything else is
//! read each time.
//!
//! What must never happen here: an identity from a cache of the kernel; a call that waits for a
//! disk whose session is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mooring_host::{DiskError, Holder};
use mooring_model::{ByteSize, ConnectionSpec, Naa, VolumeId};

use crate::clock;
use crate::device::{self, Parts, Probe, Unit};
use crate::error::Error;
use crate::links::{LinkName, LinkSeen, ReadAhead};
use crate::op::DiskRef;
use crate::plan::Wanted;
use crate::vpd;
use crate::wire::{SessionState, SessionStatus};

/// Verdict on the identity of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// A fresh INQUIRY has shown the identity of the spec, and the disk is large enough.
    Right(Naa),
    /// The disk is the right one, and too small: the volume has grown, and this host has not seen
    /// that yet. The text has the difference.
    Small(String),
    /// The disk is another one; the text has the difference.
    Wrong(String),
    /// The disk does not tell its identity; the text has the failure.
    Unreadable(String),
    /// Nobody asked: no spec uses the disk, or its session is lost and an INQUIRY would wait for
    /// it.
    NotRead,
}

/// The block device of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenBlock {
    /// Device node, such as `/dev/sda`.
    pub path: PathBuf,
    /// Sequence number in the kernel; 0 when it was not read.
    pub sequence: u64,
    /// Size of the disk.
    pub size: ByteSize,
    /// The host refuses writes.
    pub read_only: bool,
    /// Read-ahead of the page cache in sectors.
    pub read_ahead: u32,
    /// Verdict on the identity.
    pub identity: Identity,
    /// Holders that have the disk open. `None`: nobody asked.
    pub holders: Option<Vec<Holder>>,
}

/// A SCSI device of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDisk {
    /// Place of the disk.
    pub unit: Unit,
    /// Block device. The error is the kernel's word for the SCSI device's state, if there is no
    /// block device.
    pub block: Result<SeenBlock, String>,
}

impl SeenDisk {
    /// Returns the reference by which steps name the block device.
    pub fn reference(&self, block: &SeenBlock) -> DiskRef {
        DiskRef { unit: self.unit, path: block.path.clone(), sequence: block.sequence }
    }
}

/// A link that exists, or is in the spec, or was once recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// Object in the place of the link.
    pub seen: LinkSeen,
    /// The link is recorded as one of this volume. For the volume's own link, whose name needs no
    /// record: udev can name the verified disk.
    pub recorded: bool,
}

/// A step that a pass tries once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Once {
    /// A request for the session.
    Login,
    /// A request to end the session.
    End,
    /// A scan.
    Scan,
    /// A removal of a wrong disk.
    Delete,
    /// A new reading of size and write protection from the target.
    Rescan,
}

/// Steps that this pass has tried and does not try again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tried(BTreeSet<Once>);

impl Tried {
    /// Returns `true` if the pass has tried this step.
    pub fn has(&self, step: Once) -> bool {
        self.0.contains(&step)
    }

    pub(crate) fn note(&mut self, step: Once) {
        self.0.insert(step);
    }

    /// Allows a step once more.
    pub(crate) fn allow_again(&mut self, step: Once) {
        self.0.remove(&step);
    }
}

/// One connection as seen by one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Session, as `mooring-sessiond` has it.
    pub session: Option<SessionStatus>,
    /// Disks of its SCSI host: that of the spec's LUN, or all of them for a tombstone.
    pub disks: Vec<SeenDisk>,
    /// Links.
    pub links: BTreeMap<LinkName, LinkView>,
    /// Read-ahead to put back when the page cache of the disk may be used again. It is read where
    /// the spec has a disk that exists, and for a tombstone whose session is gone.
    pub kept_read_ahead: Option<ReadAhead>,
    /// Steps that this pass has tried.
    pub tried: Tried,
    /// Time for which the disk has been missing.
    pub waited: Duration,
    /// Unwritten bytes in the page cache: the highest number while the session is lost. `None`
    /// while the session is there, and if the kernel does not say.
    pub unwritten: Option<u64>,
}

/// Facts that are remembered from one look to the next, and the time for which a disk has been
/// missing.
#[derive(Debug, Clone, Default)]
#[expect(clippy::option_option, reason = "no answer yet and no session are two things")]
pub struct Memory {
    /// Answer of `mooring-sessiond` in this pass.
    pub(crate) session: Option<Option<SessionStatus>>,
    /// Disk that was verified in this pass: its node, sequence number, size and identity.
    verified: Option<SeenBlock>,
    pub(crate) tried: Tried,
    /// Time of the first look that missed the disk of a session, and the disk's place.
    missed: Option<(Unit, Instant)>,
    /// Time at which the login of this pass ended.
    pub(crate) logged_in: Option<Instant>,
    /// Time from the end of the last login to the verified disk with its links.
    pub device_took: Option<Duration>,
    /// Unwritten bytes in the page cache: the highest number while the session is lost. Those
    /// writes then fail one by one, and are forgotten.
    pub unwritten: Option<u64>,
}

impl Memory {
    /// Begins a new pass: everything is looked at freshly.
    pub fn begin(&mut self) {
        let (missed, device_took, unwritten) = (self.missed, self.device_took, self.unwritten);
        *self = Self { missed, device_took, unwritten, ..Self::default() };
    }

    /// Returns the time for which the disk of this session has been missing, from the first look
    /// that missed it.
    fn miss(&mut self, unit: Unit) -> Duration {
        match self.missed {
            Some((missed, since)) if missed == unit => since.elapsed(),
            _ => {
                self.missed = Some((unit, clock::instant()));
                Duration::ZERO
            }
        }
    }
}

/// Looks at a connection.
pub fn view(parts: &Parts, wanted: &Wanted, memory: &mut Memory) -> Result<View, Error> {
    let volume = wanted.volume();
    let session = match memory.session.clone() {
        Some(known) => known,
        None => parts.sessions.get(volume).map_err(Error::view("the session"))?,
    };
    memory.session = Some(session.clone());
    let links = links(parts, wanted)?;
    let mut view = View {
        session,
        disks: Vec::new(),
        links,
        kept_read_ahead: None,
        tried: memory.tried.clone(),
        waited: Duration::ZERO,
        unwritten: memory.unwritten,
    };
    let kept = || parts.links.read_ahead(volume).map_err(Error::view("the recorded read-ahead"));
    let Some(session) = view.session.clone() else {
        if let Wanted::Absent { .. } = wanted {
            view.kept_read_ahead = kept()?;
        }
        return Ok(view);
    };
    let is_there =
        session.state == SessionState::LoggedIn && !matches!(wanted, Wanted::Absent { revoked: true, .. });
    memory.unwritten = if is_there { None } else { memory.unwritten.max(unwritten(parts, &session)) };
    view.unwritten = memory.unwritten;
    let units = match wanted {
        Wanted::Present { spec, .. } => Unit::of(&session, spec.lun).into_iter().collect(),
        Wanted::Absent { revoked: true, .. } => Vec::new(),
        Wanted::Absent { .. } => {
            device::units(&*parts.sys, &session).map_err(Error::view("the session's disks"))?
        }
    };
    for unit in &units {
        let unit = *unit;
        view.disks.extend(disk(parts, wanted, memory, &view, unit, session.state)?);
    }
    let there = view.disks.iter().any(|disk| disk.block.is_ok());
    if let (Wanted::Present { .. }, true) = (wanted, there) {
        view.kept_read_ahead = kept()?;
        let verified = view.right().map(|(_, block)| block.sequence);
        if let (Some(sequence), Some(link)) = (verified, view.links.get_mut(&LinkName::Volume(volume))) {
            let named = parts.links.is_disk_named(volume, sequence);
            link.recorded = named.map_err(Error::view("the paths for users"))?;
        }
    }
    if let (SessionState::LoggedIn, false, Some(unit)) = (session.state, there, units.first()) {
        view.waited = memory.miss(*unit);
    } else if there {
        memory.missed = None;
    }
    Ok(view)
}

/// Counts the unwritten bytes in the page cache for the disks of a session. It asks no disk: the
/// session may be lost. A number that cannot be read stops nothing. `None` if the kernel tells
/// none.
fn unwritten(parts: &Parts, session: &SessionStatus) -> Option<u64> {
    let mut all = None;
    for unit in device::units(&*parts.sys, session).ok()? {
        let Ok(Probe::Block(name)) = device::probe(&*parts.sys, unit) else { continue };
        match parts.disks.unwritten(&parts.dev.join(name)) {
            Ok(bytes) => all = bytes.map(|bytes| bytes + all.unwrap_or(0)).or(all),
            Err(error) => tracing::debug!(%error, "what was not written is not known"),
        }
    }
    all
}

fn links(parts: &Parts, wanted: &Wanted) -> Result<BTreeMap<LinkName, LinkView>, Error> {
    let volume = wanted.volume();
    let recorded = parts.links.recorded(volume).map_err(Error::view("the paths for users"))?;
    let mut names: BTreeMap<LinkName, bool> =
        recorded.into_iter().map(|id| (LinkName::Attachment(id), true)).collect();
    if let Wanted::Present { spec, .. } = wanted {
        for attachment in &spec.attachments {
            names.entry(LinkName::Attachment(attachment.id)).or_insert(false);
        }
    }
    // The link's name is a function of the volume's: it needs no record.
    names.insert(LinkName::Volume(volume), true);
    let look = |(name, recorded)| {
        let seen = parts.links.look(name).map_err(Error::view("the paths for users"))?;
        Ok((name, LinkView { seen, recorded }))
    };
    names.into_iter().map(look).collect()
}

fn disk(
    parts: &Parts,
    wanted: &Wanted,
    memory: &mut Memory,
    view: &View,
    unit: Unit,
    state: SessionState,
) -> Result<Option<SeenDisk>, Error> {
    let block = match device::probe(&*parts.sys, unit).map_err(Error::view("the disk in sysfs"))? {
        Probe::Absent => return Ok(None),
        Probe::NoBlock => Err(device::state(&*parts.sys, unit)),
        Probe::Block(name) => {
            let path = parts.dev.join(name);
            let mut block = match (wanted, state) {
                (Wanted::Present { spec, .. }, SessionState::LoggedIn) => {
                    look_at(parts, spec, memory.verified.as_ref(), &path)
                }
                // No spec uses the disk. An ioctl might wait for the session.
                (Wanted::Absent { .. }, SessionState::LoggedIn) => numbered(parts, path),
                _ => not_read(path),
            };
            memory.verified =
                Some(block.clone()).filter(|block| matches!(block.identity, Identity::Right(_)));
            if wants_holders(wanted, view, &block.identity) {
                let holders = parts.disks.holders(&block.path).map_err(Error::view("who holds the disk"))?;
                block.holders = Some(holders);
            }
            Ok(block)
        }
    };
    Ok(Some(SeenDisk { unit, block }))
}

/// Returns `true` if the holders have to be read, which walks over all processes: only before a
/// disk is removed, and after its links are gone, so that nobody opens it by them any more.
fn wants_holders(wanted: &Wanted, view: &View, identity: &Identity) -> bool {
    let linked = view.links.values().any(|link| matches!(link.seen, LinkSeen::To(_)));
    match wanted {
        Wanted::Absent { revoked, .. } => !revoked && !linked,
        Wanted::Present { .. } => {
            matches!(identity, Identity::Wrong(_)) && !linked && !view.tried.has(Once::Delete)
        }
    }
}

fn not_read(path: PathBuf) -> SeenBlock {
    SeenBlock {
        path,
        sequence: 0,
        size: ByteSize(0),
        read_only: false,
        read_ahead: 0,
        identity: Identity::NotRead,
        holders: None,
    }
}

fn numbered(parts: &Parts, path: PathBuf) -> SeenBlock {
    let sequence = parts.disks.sequence(&path).unwrap_or(0);
    SeenBlock { sequence, ..not_read(path) }
}

fn look_at(parts: &Parts, spec: &ConnectionSpec, verified: Option<&SeenBlock>, path: &Path) -> SeenBlock {
    let read = || -> Result<SeenBlock, DiskError> {
        let sequence = parts.disks.sequence(path)?;
        let read_only = parts.disks.read_only(path)?;
        let read_ahead = parts.disks.read_ahead(path)?;
        if let Some(known) = verified.filter(|known| known.path == path && known.sequence == sequence) {
            return Ok(SeenBlock { read_only, read_ahead, holders: None, ..known.clone() });
        }
        let size = ByteSize(parts.disks.size(path)?);
        let page = parts.disks.inquiry(path, vpd::PAGE_IDENTIFICATION)?;
        let naa = vpd::naa_of_page83(&page);
        let page = parts.disks.inquiry(path, vpd::PAGE_SERIAL)?;
        let serial = vpd::serial_of_page80(&page);
        let identity = identity(spec, naa, serial.as_deref(), size);
        let path = path.to_owned();
        Ok(SeenBlock { path, sequence, size, read_only, read_ahead, identity, holders: None })
    };
    read().unwrap_or_else(|error| SeenBlock {
        identity: Identity::Unreadable(error.to_string()),
        ..not_read(path.to_owned())
    })
}

fn identity(spec: &ConnectionSpec, naa: Option<Naa>, serial: Option<&str>, size: ByteSize) -> Identity {
    let Some(naa) = naa else {
        return Identity::Wrong(format!("it names no NAA, and {} is wanted", spec.naa));
    };
    if naa != spec.naa {
        return Identity::Wrong(format!("it is NAA {naa}, and {} is wanted", spec.naa));
    }
    if serial != Some(spec.serial.as_str()) {
        let found = serial.unwrap_or("none");
        return Identity::Wrong(format!("its serial is {found:?}, and {:?} is wanted", spec.serial));
    }
    if size < spec.size {
        return Identity::Small(format!("it has {size}, and at least {} is wanted", spec.size));
    }
    Identity::Right(naa)
}

impl View {
    /// Returns the verified disk; `None` if no disk is.
    pub fn right(&self) -> Option<(&SeenDisk, &SeenBlock)> {
        self.disks.iter().find_map(|disk| match &disk.block {
            Ok(block) if matches!(block.identity, Identity::Right(_)) => Some((disk, block)),
            _ => None,
        })
    }

    /// Returns `true` if the page cache of this disk is off: its read-ahead is 0, and the value
    /// before is recorded.
    pub fn is_cache_off(&self, block: &SeenBlock) -> bool {
        let kept = self.kept_read_ahead.is_some_and(|kept| kept.sequence == block.sequence);
        kept && block.read_ahead == 0
    }

    /// Returns `true` if the page cache of this disk was turned off, whatever its read-ahead is
    /// now: the value before is recorded. For a disk whose number was not read, a record of any
    /// disk counts.
    pub(crate) fn was_cache_off(&self, block: &SeenBlock) -> bool {
        let of = |sequence| block.sequence == 0 || sequence == block.sequence;
        self.kept_read_ahead.is_some_and(|kept| of(kept.sequence))
    }

    /// Returns `true` if another disk stands where the spec's disk belongs.
    pub fn has_wrong_disk(&self) -> bool {
        let wrong =
            |disk: &SeenDisk| matches!(&disk.block, Ok(SeenBlock { identity: Identity::Wrong(_), .. }));
        self.disks.iter().any(wrong)
    }

    /// Returns all holders of the disks.
    pub fn holders(&self) -> Vec<Holder> {
        let of = |disk: &SeenDisk| disk.block.as_ref().ok().and_then(|block| block.holders.clone());
        self.disks.iter().filter_map(of).flatten().collect()
    }

    /// Returns `true` if this host has nothing of the connection.
    pub fn is_gone(&self, volume: VolumeId) -> bool {
        let linked = |(name, link): (&LinkName, &LinkView)| match &link.seen {
            LinkSeen::To(_) => true,
            LinkSeen::Absent | LinkSeen::Foreign(_) => link.recorded && *name != LinkName::Volume(volume),
        };
        self.session.is_none() && self.kept_read_ahead.is_none() && !self.links.iter().any(linked)
    }
}

/// Finds the holders of the disk of a volume's session, whatever the spec is. There are none
/// without a session or a disk.
pub fn holders(parts: &Parts, volume: VolumeId) -> Result<Vec<Holder>, Error> {
    let session = parts.sessions.get(volume).map_err(Error::view("the session"))?;
    let Some(session) = session else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for unit in device::units(&*parts.sys, &session).map_err(Error::view("the session's disks"))? {
        if let Probe::Block(name) =
            device::probe(&*parts.sys, unit).map_err(Error::view("the disk in sysfs"))?
        {
            let found = parts.disks.holders(&parts.dev.join(name));
            all.extend(found.map_err(Error::view("who holds the disk"))?);
        }
    }
    Ok(all)
}
