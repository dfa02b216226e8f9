//! Compares the spec of one connection with the view. Pure: no clock, no I/O, no error.
//!
//! A plan goes only as far as the view allows: the disk can be named when the session exists, and
//! its identity is known when the disk exists. So an attach is a few looks, each with a short plan:
//! log in; scan; flag and link. A detach: unlink; flush, delete and log out, once nobody is seen to
//! hold the disk.
//!
//! What must never happen here: a link to a disk that was not verified; a link to a disk that still
//! takes writes and must not, or that still shows old pages of its cache and must not; a disk
//! removed before its links, or while somebody holds it, unless the target has revoked this host; a
//! flush of a disk whose session is lost (it would wait for it); a path taken away before its pages
//! are written, where the cache is off and they still can be; a step on something foreign.

use std::fmt::Display;

use mooring_host::Holder;
use mooring_model::{BlockedKind, Cache, Chap, ConnectionSpec, Generation, Mode, Plan, VolumeId};

use crate::audit::holder_names;
use crate::device::Unit;
use crate::links::{LinkName, LinkSeen};
use crate::op::{DiskRef, Op};
use crate::view::{Identity, LinkView, Once, SeenBlock, SeenDisk, View};
use crate::wire::{SessionSpec, SessionState, SessionStatus, WireChap};

/// The spec of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The connection exists.
    Present {
        /// The spec.
        spec: Box<ConnectionSpec>,
        /// Generation of the spec.
        generation: Generation,
        /// Seconds that I/O waits for a lost session.
        recovery_timeout_s: u32,
    },
    /// A tombstone: no object of the connection exists.
    Absent {
        /// Volume of the connection.
        volume: VolumeId,
        /// The target has revoked this host: the session ends at once, whoever holds the disk.
        revoked: bool,
    },
}

impl Wanted {
    /// Returns the volume.
    pub fn volume(&self) -> VolumeId {
        match self {
            Self::Present { spec, .. } => spec.volume,
            Self::Absent { volume, .. } => *volume,
        }
    }
}

/// Plans the steps from the view to the spec.
pub fn plan(wanted: &Wanted, view: &View) -> Plan<Op> {
    let mut plan = Plan::default();
    match wanted {
        Wanted::Present { spec, .. } => {
            let mut present = Present { wanted, spec, view, plan };
            present.plan();
            plan = present.plan;
        }
        Wanted::Absent { volume, revoked } => absent(*volume, *revoked, view, &mut plan),
    }
    plan
}

fn is_wanted(spec: &ConnectionSpec, name: LinkName) -> bool {
    match name {
        LinkName::Volume(_) => true,
        LinkName::Attachment(id) => spec.attachments.iter().any(|spec| spec.id == id),
    }
}

fn wire_chap(chap: &Chap) -> WireChap {
    let mutual = chap.mutual.as_ref().map(|side| (side.user.clone(), side.secret.expose().to_owned()));
    WireChap { user: chap.initiator.user.clone(), secret: chap.initiator.secret.expose().to_owned(), mutual }
}

fn session_spec(spec: &ConnectionSpec, generation: Generation, recovery_timeout_s: u32) -> SessionSpec {
    SessionSpec {
        volume: spec.volume,
        generation,
        initiator: spec.initiator.clone(),
        target: spec.target.clone(),
        tpg: spec.tpg,
        portals: spec.portals.clone(),
        lun: spec.lun,
        naa: spec.naa.clone(),
        serial: Some(spec.serial.clone()),
        chap: spec.chap.as_ref().map(wire_chap),
        other_chap: spec.other_chap.as_ref().map(wire_chap),
        recovery_timeout_s,
        fc: spec.fc.clone(),
    }
}

/// The fate of the pages in a disk's cache when a path goes.
enum Pages {
    /// They stay: the cache is on, or nothing can be written any more.
    Left,
    /// They are written out to this disk first.
    Flush(DiskRef),
    /// They cannot be written now, and may be later: the path stays.
    Wait { node: String, why: String },
}

struct Present<'a> {
    wanted: &'a Wanted,
    spec: &'a ConnectionSpec,
    view: &'a View,
    plan: Plan<Op>,
}

impl Present<'_> {
    fn plan(&mut self) {
        self.unlink_unwanted();
        match &self.view.session {
            None => {
                // The links point to something that is not the disk of a session.
                self.unlink_all("its session is gone");
                self.login("no session");
            }
            Some(session) => self.with(session),
        }
    }

    fn is_wanted(&self, name: LinkName) -> bool {
        is_wanted(self.spec, name)
    }

    /// Decides about the pages in the disk's cache when a path goes.
    fn pages(&self) -> Pages {
        let (spec, view) = (self.spec, self.view);
        let (Some(session), Some(disk)) = (&view.session, view.disks.first()) else { return Pages::Left };
        let Ok(block) = &disk.block else { return Pages::Left };
        if spec.cache() == Cache::On && !view.was_cache_off(block) {
            return Pages::Left;
        }
        let waits = |why: String| Pages::Wait { node: block.path.display().to_string(), why };
        match (session.state, &block.identity) {
            (SessionState::LoggedIn, Identity::Right(_) | Identity::Small(_)) => {
                Pages::Flush(disk.reference(block))
            }
            (SessionState::LoggedIn, Identity::Unreadable(why)) => {
                waits(format!("it does not identify itself ({why})"))
            }
            (SessionState::Recovering, _) => waits("its session is lost".to_owned()),
            // The disk can no longer be written, or must not be.
            (SessionState::LoggedIn, Identity::Wrong(_) | Identity::NotRead)
            | (
                SessionState::Connecting
                | SessionState::Ending
                | SessionState::Forbidden
                | SessionState::Failed
                | SessionState::WrongDisk,
                _,
            ) => Pages::Left,
        }
    }

    fn unlink(&mut self, link: LinkName, why: &'static str) {
        self.plan.step(Op::Unlink { volume: self.spec.volume, link }, why);
    }

    /// Removes the links of attachments that the spec does not have. Where the cache is off, the
    /// data of their users reaches the target first.
    fn unlink_unwanted(&mut self) {
        let (spec, view) = (self.spec, self.view);
        let names: Vec<_> = view.links.keys().filter(|name| !is_wanted(spec, **name)).copied().collect();
        if names.is_empty() {
            return;
        }
        match self.pages() {
            Pages::Left => {}
            Pages::Flush(disk) => {
                self.plan.step(Op::Flush { disk }, "a path is withdrawn, and the cache is off");
            }
            Pages::Wait { node, why } => {
                let why = format!(
                    "a path to it is withdrawn, and its written pages cannot be flushed now: {why}; the path stays, tried again"
                );
                return self.plan.block(BlockedKind::Missing, node, why);
            }
        }
        for name in names {
            self.unlink(name, "not an attachment of this connection any more");
        }
    }

    fn unlink_all(&mut self, why: &'static str) {
        let view = self.view;
        let there = |(name, link): (&LinkName, &LinkView)| {
            (self.is_wanted(*name) && matches!(link.seen, LinkSeen::To(_))).then_some(*name)
        };
        let names: Vec<_> = view.links.iter().filter_map(there).collect();
        for name in names {
            self.unlink(name, why);
        }
    }

    fn login(&mut self, why: &'static str) {
        let Wanted::Present { spec, generation, recovery_timeout_s, .. } = self.wanted else { return };
        if self.view.tried.has(Once::Login) {
            return;
        }
        let spec = Box::new(session_spec(spec, *generation, *recovery_timeout_s));
        self.plan.step(Op::Login { spec }, why);
    }

    fn with(&mut self, session: &SessionStatus) {
        let Wanted::Present { generation, .. } = *self.wanted else { return };
        if session.target != self.spec.target || session.initiator != self.spec.initiator {
            self.unlink_all("the session has other names than the spec");
            let why = format!(
                "this volume has a session to {} as {}, and the spec names {} as {}: detach it first",
                session.target, session.initiator, self.spec.target, self.spec.initiator
            );
            return self.plan.block(BlockedKind::Foreign, self.object(), why);
        }
        let route = self.spec.fc.as_ref().map(|route| route.port);
        if session.fc.as_ref().map(|path| path.port) != route {
            self.unlink_all("its path has changed");
            let why = "the session uses another transport or port than the spec names: detach it first";
            return self.plan.block(BlockedKind::Foreign, self.object(), why);
        }
        let newer = session.generation < generation;
        // There are two secrets, and one could not be written down.
        let unwritten = session.secrets == 1 && self.spec.other_chap.is_some();
        match session.state {
            SessionState::LoggedIn => {
                if newer || unwritten {
                    self.login("a newer spec: portals and credentials for the next login");
                } else if session.fc.as_ref().is_some_and(|path| !path.kept) {
                    self.login("the port in use is recorded");
                }
                self.disk();
            }
            // I/O to the disk waits, and so does every step: the links stay.
            SessionState::Recovering => {
                if newer || unwritten {
                    self.login("a newer spec: portals and credentials for the next login");
                }
            }
            SessionState::Connecting | SessionState::Ending => {
                self.unlink_all("its session is not there");
                if newer || session.state == SessionState::Ending {
                    self.login("wanted again");
                }
            }
            SessionState::Forbidden | SessionState::Failed | SessionState::WrongDisk => {
                self.unlink_all("its session has ended");
                if newer && !self.view.tried.has(Once::Login) {
                    self.login("a newer spec asks for what has ended");
                } else {
                    self.ended(session);
                }
            }
        }
    }

    fn object(&self) -> String {
        format!("the connection to volume {}", self.spec.volume)
    }

    fn ended(&mut self, session: &SessionStatus) {
        let what = match session.state {
            SessionState::Forbidden => "the target refuses this host: it was revoked",
            SessionState::WrongDisk => "after a recovery the disk was another one",
            _ => "it cannot be logged in",
        };
        let why = match &session.problem {
            // Every resync looks at the connection again.
            Some(text) if session.fc.is_some() => text.clone(),
            Some(text) => format!("{what} ({text}); not tried again until a newer spec asks for it"),
            None => format!("{what}; not tried again until a newer spec asks for it"),
        };
        self.plan.block(BlockedKind::Missing, self.object(), why);
    }

    fn disk(&mut self) {
        let view = self.view;
        let Some(disk) = view.disks.first() else { return self.missing() };
        match &disk.block {
            Ok(block) => match &block.identity {
                Identity::Right(_) => self.right(disk, block),
                Identity::Small(how) => self.small(disk, block, how),
                Identity::Wrong(how) => self.wrong(disk, block, how),
                Identity::Unreadable(why) => {
                    let why = format!("does not identify itself ({why}); it is not handed over, tried again");
                    self.plan.block(BlockedKind::Missing, block.path.display().to_string(), why);
                }
                Identity::NotRead => {}
            },
            Err(state) => self.no_block(disk, state),
        }
    }

    fn unit(&self) -> Option<Unit> {
        Unit::of(self.view.session.as_ref()?, self.spec.lun)
    }

    fn missing(&mut self) {
        self.unlink_all("its disk is gone");
        let Some(unit) = self.unit() else { return };
        if !self.view.tried.has(Once::Scan) {
            return self.plan.step(Op::Scan { unit }, "the disk is not there");
        }
        let initiator = match &self.spec.fc {
            Some(route) => format!("port {}", route.port),
            None => self.spec.initiator.to_string(),
        };
        let why = format!(
            "the session is logged in, and for {:.1} s the target shows no LUN {} to {initiator}: see whether it is granted \
             there; tried again",
            self.view.waited.as_secs_f64(),
            unit.lun.0,
        );
        self.plan.block(BlockedKind::Missing, self.object(), why);
    }

    fn no_block(&mut self, disk: &SeenDisk, state: &str) {
        self.unlink_all("its disk is gone");
        if !self.view.tried.has(Once::Scan) {
            let op = Op::Scan { unit: disk.unit };
            return self.plan.step(op, "its block device is not there");
        }
        let why = format!(
            "the disk has not appeared for {:.1} s: the SCSI device {} is there ({state}), its block device is not; tried \
             again",
            self.view.waited.as_secs_f64(),
            disk.unit
        );
        self.plan.block(BlockedKind::Missing, self.object(), why);
    }

    fn wrong(&mut self, disk: &SeenDisk, block: &SeenBlock, how: &str) {
        let before = self.plan.steps.len();
        self.unlink_all("it is another disk");
        if self.plan.steps.len() > before {
            return;
        }
        let (node, lun) = (block.path.display().to_string(), disk.unit.lun);
        let held = block.holders.as_deref().unwrap_or_default();
        if !held.is_empty() {
            let why = format!("wrong disk: {how}; it stays, because it is held by {}", names(held));
            return self.plan.block(BlockedKind::Held, node, why);
        }
        if !self.view.tried.has(Once::Delete) && block.holders.is_some() {
            return self.plan.step(Op::DeleteStale { unit: disk.unit }, format!("wrong disk: {how}"));
        }
        let why =
            format!("wrong disk: {how}; it is not handed over. See what the target exports as LUN {}", lun.0);
        self.plan.block(BlockedKind::Foreign, node, why);
    }

    /// Handles a disk that is too small: the kernel keeps the size that it read, whatever becomes
    /// of the volume. Users keep their paths: it is the right disk.
    fn small(&mut self, disk: &SeenDisk, block: &SeenBlock, how: &str) {
        if !self.view.tried.has(Once::Rescan) {
            let op = Op::Rescan { unit: disk.unit };
            return self.plan.step(op, format!("{how}: it may have grown"));
        }
        self.cache(disk, block, false);
        let why = format!(
            "{how}, and the target shows no more of it: see how large the volume is there; tried again"
        );
        self.plan.block(BlockedKind::Missing, block.path.display().to_string(), why);
    }

    /// Sets the disk's page cache as the attachments want it. `links`: new paths to the disk are
    /// about to be handed out.
    fn cache(&mut self, disk: &SeenDisk, block: &SeenBlock, links: bool) {
        let (spec, view, volume) = (self.spec, self.view, self.spec.volume);
        let reference = disk.reference(block);
        let kept = view.kept_read_ahead.filter(|kept| kept.sequence == block.sequence);
        if spec.cache() == Cache::On {
            match (kept, view.kept_read_ahead) {
                // The recorded value wins over one that the kernel, or another process, has set
                // meanwhile.
                (Some(kept), _) if kept.sectors != block.read_ahead => {
                    let op = Op::RestoreReadAhead { volume, disk: reference, to: kept.sectors };
                    self.plan.step(op, "no attachment wants the cache off any more");
                }
                (Some(_), _) => self.plan.step(Op::ForgetReadAhead { volume }, "it is as it was before"),
                (None, Some(_)) => self.plan.step(Op::ForgetReadAhead { volume }, "it was another disk's"),
                (None, None) => {}
            }
            return;
        }
        let is_off = view.is_cache_off(block);
        let new = |(name, link): (&LinkName, &LinkView)| {
            is_wanted(spec, *name) && !stands(link, block) && !matches!(link.seen, LinkSeen::Foreign(_))
        };
        if !is_off || (links && view.links.iter().any(new)) {
            let op = Op::DropPages { disk: disk.reference(block) };
            self.plan.step(op, "an attachment wants the cache off");
        }
        if !is_off {
            let before = kept.map_or(block.read_ahead, |kept| kept.sectors);
            let op = Op::StopReadAhead { volume, disk: reference, before };
            self.plan.step(op, "an attachment wants the cache off");
        }
    }

    fn right(&mut self, disk: &SeenDisk, block: &SeenBlock) {
        let want = self.spec.mode() == Mode::ReadOnly;
        let reference = || disk.reference(block);
        if want != block.read_only {
            if !want && !self.view.tried.has(Once::Rescan) {
                let op = Op::Rescan { unit: disk.unit };
                self.plan.step(op, "the target may have taken its write protection away");
            } else if !want {
                self.cache(disk, block, false);
                let why =
                    "is read-only although an attachment writes: the target still protects it; tried again";
                return self.plan.block(BlockedKind::Missing, block.path.display().to_string(), why);
            }
            let why = if want { "no attachment writes" } else { "an attachment writes" };
            self.plan.step(Op::SetReadOnly { disk: reference(), read_only: want }, why);
            if !want {
                // A rescan raises the read-ahead (6.11 and newer), and the target may still protect
                // the disk: the next look comes before a path.
                return;
            }
        }
        self.cache(disk, block, true);
        let (spec, view) = (self.spec, self.view);
        for (name, link) in view.links.iter().filter(|(name, _)| is_wanted(spec, **name)) {
            match &link.seen {
                _ if stands(link, block) => {}
                LinkSeen::To(_) | LinkSeen::Absent => {
                    let op = Op::Link { volume: self.spec.volume, link: *name, disk: reference() };
                    self.plan.step(op, "verified");
                }
                LinkSeen::Foreign(what) => {
                    let why = format!("{what} is in the place of the path for users: remove it");
                    self.plan.block(BlockedKind::Foreign, name.to_string(), why);
                }
            }
        }
    }
}

/// Returns `true` if the path exists, leads to this disk and is recorded.
fn stands(link: &LinkView, block: &SeenBlock) -> bool {
    link.recorded && matches!(&link.seen, LinkSeen::To(target) if *target == block.path)
}

fn names(holders: &[Holder]) -> impl Display {
    holder_names(holders).join(", ")
}

fn absent(volume: VolumeId, revoked: bool, view: &View, plan: &mut Plan<Op>) {
    for (name, link) in &view.links {
        let forget = link.recorded && *name != LinkName::Volume(volume);
        if forget || matches!(link.seen, LinkSeen::To(_)) {
            plan.step(Op::Unlink { volume, link: *name }, "not wanted any more");
        }
    }
    let Some(session) = &view.session else {
        if view.kept_read_ahead.is_some() {
            plan.step(Op::ForgetReadAhead { volume }, "its disk is gone");
        }
        return;
    };
    if revoked {
        if !view.tried.has(Once::End) {
            plan.step(Op::EndSession { volume }, "the target has revoked this host");
        }
        return;
    }
    // Holders are looked at only when nobody can open the disk by a link any more.
    if !plan.steps.is_empty() || view.tried.has(Once::End) {
        return;
    }
    let mut held = false;
    for disk in &view.disks {
        let Ok(block) = &disk.block else { continue };
        if let Some(holders) = block.holders.as_deref().filter(|holders| !holders.is_empty()) {
            let why = format!("is held by {}: close it there, then it is detached", names(holders));
            plan.block(BlockedKind::Held, block.path.display().to_string(), why);
            held = true;
        }
    }
    if held {
        return;
    }
    match session.state {
        SessionState::LoggedIn => {
            for disk in &view.disks {
                if let Ok(block) = &disk.block {
                    plan.step(
                        Op::Flush { disk: disk.reference(block) },
                        "what was written reaches the target",
                    );
                }
                plan.step(Op::DeleteDisk { unit: disk.unit }, "not wanted any more");
            }
            plan.step(Op::Logout { volume }, "its disk is gone");
        }
        SessionState::Ending => plan.step(Op::Logout { volume }, "it is being ended"),
        // Nobody holds the disk, so nothing is unwritten, and a flush would wait for the session.
        SessionState::Connecting
        | SessionState::Recovering
        | SessionState::Forbidden
        | SessionState::Failed
        | SessionState::WrongDisk => plan.step(Op::EndSession { volume }, "it is not logged in"),
    }
}
