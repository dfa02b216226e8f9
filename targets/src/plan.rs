//! Compares the iSCSI spec of an export with its view. Pure: no clock, no I/O, no error. The
//! backstore, which other transports may share, is planned in `backstore`; [`plan_exports`] places
//! its steps among those of the transports.
//!
//! The order, and what breaks without it (errors of the kernel from lio.md, b):
//! 1. *Take away first.* Modes shrink (`write_protect=1`), every ACL that goes is unmapped, then
//!    attributes and portals are tightened, then ACLs are removed. That last call waits until the
//!    initiator's commands have drained; it comes after everything that is quick, so that nobody
//!    keeps access because another's disk hangs. `rmdir` of an ACL with a mapped LUN inside, or of
//!    a mapped LUN with its link: ENOTEMPTY.
//!    A barrier, which drains an initiator that keeps its grant, stands behind all of that, for the
//!    same reason (`barrier`).
//! 2. *Backstore*: `control`, serial, `enable`. The serial of an exported backstore cannot change
//!    (EINVAL); enabling without the device is ENOENT; linking a backstore that is not enabled is
//!    ENODEV.
//! 3. *Target, portal group, its attributes and how its sessions are negotiated, its relative port
//!    id, LUN.* The id of an enabled group cannot change (EINVAL). A registration that comes back
//!    takes the id that is there. A mapped link to a LUN without a backstore is EINVAL.
//! 4. *ACLs*: the mapped LUN and its `write_protect` stand before the credential (or
//!    `authentication=0`) that lets the initiator in. A mapped LUN is read-write between its link
//!    and its `write_protect`; a closed gate and `prod_mode_write_protect` close that window, each
//!    alone.
//! 5. *Portals*, after the ACLs: a new door never leads to an object that is about to change, and a
//!    port that is taken (EINVAL) keeps no grant from coming into force on the other portals.
//! 6. The portal group's `enable`, last.
//!
//! Portals that are withheld because the device does not answer are taken away with those that no
//! spec has: a revoke that waits for that device comes behind them.
//!
//! What must never happen here: a step on a foreign object; a step that opens something while a
//! foreign object stands under our names; a rebuild of a backstore that is enabled. Half-made
//! objects of ours are finished where they stand. A backstore that is not enabled cannot be in use
//! (nothing links to it), so one with another device in its `control` is removed and made again.
//! Once enabled it is never rebuilt, whoever made it: [`BlockedKind::Birth`] if our own LUN shows
//! it, else [`BlockedKind::Foreign`].

mod absent;
mod acl;
pub(crate) mod backstore;
pub(crate) mod barrier;
mod obstacles;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use mooring_host::TreePath;
use mooring_model::{BlockedKind, ExportNames, Grant, Mode, Plan, Portal, Tuning};

use crate::exports::{Exports, plan_exports};
use crate::layout::{self, TPG_ATTRIBS, TPG_PARAMS};
use crate::op::{Op, Value};
use crate::port::PORT_ID;
use crate::reservations::Kept;
use crate::tuning;
use crate::view::{AclView, ExportView, TpgView};

/// The block device behind an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The block device's node.
    pub path: PathBuf,
    /// Initiators may discard blocks. A backstore gets this when it is made, and never while it is
    /// exported.
    pub discards: bool,
    /// Registrations that a backstore gets back when it is made.
    pub reservations: Vec<Kept>,
}

impl Device {
    /// Returns `true` if both lead to one backstore. Reservations to put back do not count.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.path == other.path && self.discards == other.discards
    }
}

impl<T: Into<PathBuf>> From<T> for Device {
    /// A device without discards, and with no reservations to put back.
    fn from(path: T) -> Self {
        Self { path: path.into(), discards: false, reservations: Vec::new() }
    }
}

/// The spec of one export, with every name filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The export exists.
    Present {
        /// The export's names.
        names: ExportNames,
        /// The block device behind it.
        device: Device,
        /// Portals where the target listens.
        portals: Vec<Portal>,
        /// The device does not answer; until it does, the target listens nowhere. A portal's one
        /// login thread serves all targets, and a login that replaces a session waits in it for the
        /// commands of that session (lio.md, u). Existing sessions go on.
        withheld: bool,
        /// Grants. An initiator without one is revoked.
        grants: Vec<Grant>,
        /// How sessions are negotiated. Keys that are not set are not looked at.
        tuning: Tuning,
        /// Relative port id with which the portal group is enabled, where the kernel has such an
        /// attribute. `None`: it is not looked at, and the kernel chooses.
        port_id: Option<u16>,
    },
    /// A tombstone: no object of the export exists.
    Absent {
        /// The names under which the export is removed.
        names: ExportNames,
    },
}

impl Wanted {
    /// Returns the export's names.
    pub fn names(&self) -> &ExportNames {
        match self {
            Self::Present { names, .. } | Self::Absent { names } => names,
        }
    }

    /// Returns the session parameters of the spec; `None` for a tombstone.
    pub(crate) fn tuning(&self) -> Option<&Tuning> {
        match self {
            Self::Present { tuning, .. } => Some(tuning),
            Self::Absent { .. } => None,
        }
    }

    /// Returns the portals where the target has to listen now.
    pub fn doors(&self) -> &[Portal] {
        match self {
            Self::Present { portals, withheld: false, .. } => portals,
            Self::Present { .. } | Self::Absent { .. } => &[],
        }
    }

    /// Returns the portals that are withheld because the device does not answer.
    pub fn withheld(&self) -> &[Portal] {
        match self {
            Self::Present { portals, withheld: true, .. } => portals,
            Self::Present { .. } | Self::Absent { .. } => &[],
        }
    }

    /// Returns the relative port id to take when the group is enabled; `None` leaves it to the
    /// kernel.
    pub fn port_id(&self) -> Option<u16> {
        match self {
            Self::Present { port_id, .. } => *port_id,
            Self::Absent { .. } => None,
        }
    }

    /// Withholds all portals: the target listens nowhere.
    pub fn withhold(&mut self) {
        if let Self::Present { withheld, .. } = self {
            *withheld = true;
        }
    }

    /// Returns the grants; none for a tombstone.
    pub fn grants(&self) -> &[Grant] {
        match self {
            Self::Present { grants, .. } => grants,
            Self::Absent { .. } => &[],
        }
    }
}

/// Plans the steps from the view to the spec, for a volume that is exported over iSCSI alone. Over
/// several transports: [`plan_exports`](crate::plan_exports).
pub fn plan(wanted: &Wanted, view: &ExportView) -> Plan<Op> {
    plan_exports(&Exports { iscsi: Some((wanted, view)), fc: Vec::new() })
}

/// Plans the removal of portals, and nothing else: for a caller that cannot look at the rest,
/// because a removal that waits for the device holds it. `there` lists the target's portals.
pub fn plan_portals(wanted: &Wanted, there: &[String]) -> Plan<Op> {
    let (view, tpg) = (ExportView::default(), TpgView { portals: there.to_vec(), ..TpgView::default() });
    let Some(mut present) = Present::of(wanted, &view) else { return Plan::default() };
    present.remove_portals(&tpg);
    present.plan
}

/// One transport's part of a plan; the backstore is planned for all of them together.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) plan: Plan<Op>,
    /// Index of the first step that gives; all steps before it take away.
    pub(crate) gives_at: usize,
}

/// Plans the part of iSCSI. `open`: nothing of the backstore stands in the way.
pub(crate) fn part(wanted: &Wanted, view: &ExportView, open: bool) -> Part {
    Present::of(wanted, view).map_or_else(
        || {
            let plan = absent::plan(wanted.names(), view);
            Part { gives_at: plan.steps.len(), plan }
        },
        |present| present.part(open),
    )
}

/// Counts the initiators that are mapped to our LUN; `None` unless it shows the backstore under our
/// name.
pub(crate) fn linked(names: &ExportNames, view: &ExportView) -> Option<usize> {
    let tpg = view.tpg()?;
    let link = tpg.lun.as_ref()?.link.as_ref()?;
    (link.target == layout::backstore(names)).then_some(tpg.acls.len())
}

struct Present<'a> {
    names: &'a ExportNames,
    /// Path of our LUN.
    lun: TreePath,
    /// Portals by the names of their folders.
    portals: Vec<String>,
    withheld: Vec<String>,
    grants: &'a [Grant],
    tuning: &'a Tuning,
    port_id: Option<u16>,
    view: &'a ExportView,
    plan: Plan<Op>,
}

impl<'a> Present<'a> {
    fn of(wanted: &'a Wanted, view: &'a ExportView) -> Option<Self> {
        let Wanted::Present { names, grants, tuning, port_id, .. } = wanted else { return None };
        let text = |portals: &[Portal]| portals.iter().map(Portal::to_string).collect();
        Some(Self {
            names,
            lun: layout::lun(names),
            portals: text(wanted.doors()),
            withheld: text(wanted.withheld()),
            grants,
            tuning,
            port_id: *port_id,
            view,
            plan: Plan::default(),
        })
    }
}

impl Present<'_> {
    fn part(mut self, open: bool) -> Part {
        self.obstacles();
        // With an obstacle in the way the plan only takes access away: revokes and smaller modes.
        let open = open && self.plan.blocked.is_empty();
        self.take_away(open);
        let gives_at = self.plan.steps.len();
        if open {
            self.target();
            self.lun();
            self.admit();
            self.add_portals();
            self.enable();
        }
        Part { plan: self.plan, gives_at }
    }

    fn write(&mut self, path: TreePath, value: &str, why: impl Into<Cow<'static, str>>) {
        self.plan.step(Op::Write { path, value: value.into() }, why);
    }

    /// Returns `true` if the portal group has admitted strangers: then their sessions, which no ACL
    /// shows, are dropped too. (A stranger whose ACL the kernel has cached stays known until the
    /// group is removed. It cannot log in again: the group requires CHAP and has no credentials of
    /// its own.)
    fn strangers(&self) -> bool {
        self.view.tpg().is_some_and(|tpg| tpg.enabled && tpg.attrib("generate_node_acls") != Some("0"))
    }

    fn take_away(&mut self, open: bool) {
        let Some(tpg) = self.view.tpg() else { return };
        if open && self.strangers() {
            let why = "it admitted initiators without an ACL: their sessions end here";
            self.write(layout::tpg(self.names).join("enable"), "0", why);
        }
        self.shrink_modes(tpg);
        let going = self.going(tpg, open);
        for (initiator, (acl, why)) in &going {
            unmap(&mut self.plan, self.names, initiator, acl, why);
        }
        if open {
            self.keep_admitted(tpg);
            self.tighten(tpg);
            self.tune(tpg);
            self.remove_portals(tpg);
        }
        for (initiator, (acl, why)) in &going {
            remove_acl(&mut self.plan, self.names, initiator, acl, why);
        }
        if open {
            self.barriers(tpg);
            self.clear_mappings(tpg);
        }
    }

    /// Returns the ACLs to remove: those of initiators without a grant, and those that have to be
    /// made anew.
    fn going<'v>(&self, tpg: &'v TpgView, open: bool) -> BTreeMap<&'v str, (&'v AclView, &'static str)> {
        let mut going = BTreeMap::new();
        for (initiator, acl) in &tpg.acls {
            match self.grant(initiator) {
                None => {
                    going.insert(initiator.as_str(), (acl, "no grant for it"));
                }
                Some(grant) if barrier::is_owed(acl, grant) => {}
                Some(grant) if open && acl::is_remade(tpg, acl, grant) => {
                    going.insert(initiator.as_str(), (acl, "mapped wrongly, made anew"));
                }
                Some(_) => {}
            }
        }
        going
    }

    fn grant(&self, initiator: &str) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.initiator.as_str() == initiator)
    }

    fn tighten(&mut self, tpg: &TpgView) {
        let attribs = TPG_ATTRIBS.iter().map(|row| ("attrib", row));
        let params = TPG_PARAMS.iter().map(|row| ("param", row));
        for (folder, &(name, value, why)) in attribs.chain(params) {
            if tpg.attrib(name) != Some(value) {
                self.write(layout::tpg(self.names).join(folder).join(name), value, why);
            }
        }
    }

    /// Sets the session parameters before any ACL is made, which takes its queue depth from here,
    /// and before anybody logs in.
    fn tune(&mut self, tpg: &TpgView) {
        for (key, value) in self.tuning.iter().filter(|(key, _)| !tuning::is_settled(*key)) {
            let text = tuning::text(key, value);
            if tpg.tuning.get(&key) != Some(&text) {
                self.write(tuning::path(self.names, key), &text, tuning::why(key));
            }
        }
    }

    fn remove_portals(&mut self, tpg: &TpgView) {
        for portal in tpg.portals.iter().filter(|portal| !self.portals.contains(portal)) {
            let path = layout::portals(self.names).join(portal);
            let why = if self.withheld.contains(portal) {
                "its device does not answer: a login to it would hold up those to all others; its sessions go on"
            } else {
                "not a portal of this export; its sessions go on"
            };
            self.plan.step(Op::Rmdir { path }, why);
        }
    }

    fn target(&mut self) {
        if self.view.target.is_none() {
            if !self.view.fabric {
                self.plan.step(Op::Mkdir { path: layout::fabric() }, "the iSCSI fabric");
            }
            self.plan.step(Op::Mkdir { path: layout::target(self.names) }, "the target");
        }
        if self.view.tpg().is_none() {
            self.plan.step(
                Op::Mkdir { path: layout::tpg(self.names) },
                "the portal group, disabled until the end",
            );
            self.tighten(&TpgView::default());
            self.tune(&TpgView::default());
        }
        self.take_port_id();
    }

    /// Writes the port's id for a group that this plan enables. This comes before anything depends
    /// on the id, and whatever the group shows: the kernel draws an id anew that nobody has
    /// written. An enabled group keeps its own, and so does one that is enabled again for
    /// strangers' sake.
    fn take_port_id(&mut self) {
        let tpg = self.view.tpg();
        let has_none = tpg.is_some_and(|tpg| tpg.port_id.is_none());
        let stays = tpg.is_some_and(|tpg| tpg.enabled) && !self.strangers();
        let Some(wanted) = self.port_id.filter(|_| !has_none && !stays) else { return };
        let own = tpg.filter(|tpg| tpg.enabled).and_then(|tpg| tpg.port_id).filter(|id| *id > 0);
        let (path, value) = (layout::tpg(self.names).join(PORT_ID), own.unwrap_or(wanted).to_string());
        // Only an existing group shows that the kernel has the attribute.
        let op = Op::WriteIfThere { path, value: Value::Plain(value) };
        self.plan.step(op, "its relative port id, which stays; else the order of a boot gives it one");
    }

    fn lun(&mut self) {
        let seen = self.view.tpg().and_then(|tpg| tpg.lun.as_ref());
        if seen.is_none() {
            self.plan.step(Op::Mkdir { path: self.lun.clone() }, "the LUN");
        }
        if seen.is_none_or(|lun| lun.link.is_none()) {
            let (target, link) = (layout::backstore(self.names), self.lun.join(layout::LINK));
            self.plan.step(Op::Link { target, link }, "shows the backstore; nobody is mapped to it yet");
        }
    }

    fn add_portals(&mut self) {
        let seen = self.view.tpg().map(|tpg| tpg.portals.as_slice()).unwrap_or_default();
        for portal in self.portals.iter().filter(|portal| !seen.contains(portal)) {
            let path = layout::portals(self.names).join(portal);
            self.plan.step(Op::Mkdir { path }, "a portal of this export");
        }
    }

    fn enable(&mut self) {
        if self.strangers() || !self.view.tpg().is_some_and(|tpg| tpg.enabled) {
            self.write(layout::tpg(self.names).join("enable"), "1", "logins from here on");
        }
    }
}

pub(crate) fn write_plain(path: TreePath, value: &str) -> Op {
    Op::Write { path, value: Value::Plain(value.to_owned()) }
}

/// First half of a revoke: nothing new of this initiator reaches the disk. Never blocks.
fn unmap(plan: &mut Plan<Op>, names: &ExportNames, initiator: &str, acl: &AclView, why: &'static str) {
    for (name, mapped) in &acl.luns {
        if let Some(link) = &mapped.link {
            let path = layout::acl(names, initiator).join(name).join(&link.name);
            plan.step(Op::Unlink { path }, format!("{why}: no new commands of {initiator}"));
        }
    }
}

/// Second half of a revoke: once its last step has returned, no command of this initiator lands any
/// more.
fn remove_acl(plan: &mut Plan<Op>, names: &ExportNames, initiator: &str, acl: &AclView, why: &'static str) {
    let dir = layout::acl(names, initiator);
    for name in acl.luns.keys() {
        plan.step(Op::Rmdir { path: dir.join(name) }, format!("{why}: the mapped LUN of {initiator}"));
    }
    plan.step(
        Op::Rmdir { path: dir },
        format!("{why}: ends the sessions of {initiator}, waits for its commands"),
    );
}

pub(crate) fn write_protect(mode: Mode) -> &'static str {
    match mode {
        Mode::ReadOnly => "1",
        Mode::ReadWrite => "0",
    }
}

pub(crate) fn foreign(plan: &mut Plan<Op>, object: &TreePath, why: String) {
    plan.block(BlockedKind::Foreign, object.as_str(), why);
}
