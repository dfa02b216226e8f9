//! Compares the spec of one volume over one port with the view. Pure.
//!
//! The order of a revoke, and what breaks without it:
//! 1. The mapped LUN's link: nothing new of this initiator reaches the disk. No barrier (lio.md,
//!    d).
//! 2. The TPG LUN's link: returns when the commands in flight of this nexus have drained, and of no
//!    other (lio.md, o).
//! 3. The folders of both, only then: while the mapped LUN's stands, the ACL cannot be removed, and
//!    its removal would wait for commands of this nexus with the whole port's `acls` folder held.
//! 4. The ACL, if nothing is left in it.
//!
//! The order of a grant: TPG LUN, its link; ACL, mapped LUN, its link, `write_protect`. A read-only
//! one is shut before it is mapped, and opened when it is protected and `num_cmds` still reads 0
//! (decision 23). A portal group that has to be enabled is enabled last.
//!
//! What must never happen here: a step on a place whose TPG LUN shows another backstore; an opening
//! of a shut LUN for a read-only nexus without the expectation before it.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::TreePath;
use mooring_model::{
    BlockedKind, ExportNames, FcFabric, FcGrant, FcNames, FcPort, InitiatorSlot, Lun, Mode, Plan, PortLun,
    Step, Wwpn,
};

use super::layout;
use super::places::{Remake, going, leaves, left, obstacle, remake};
use super::view::{AclSeen, GroupView, NexusView, Place, View};
use crate::exports::{Exports, plan_exports};
use crate::layout::{LINK, backstore};
use crate::op::Op;
use crate::plan::{Device, Part, foreign, write_plain, write_protect};

/// The spec of one volume's export over one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The export exists.
    Present {
        /// Names of the backstore and the port.
        names: FcNames,
        /// The block device behind it.
        device: Device,
        /// Grants. A nexus without one is revoked.
        grants: Vec<FcGrant>,
    },
    /// A tombstone: no object of the export exists. The port stays.
    Absent {
        /// The names under which the export is removed.
        names: FcNames,
    },
}

impl Wanted {
    /// Returns the export's names.
    pub fn names(&self) -> &FcNames {
        match self {
            Self::Present { names, .. } | Self::Absent { names } => names,
        }
    }

    /// Returns the grants; none for a tombstone.
    pub fn grants(&self) -> &[FcGrant] {
        match self {
            Self::Present { grants, .. } => grants,
            Self::Absent { .. } => &[],
        }
    }

    /// Returns the places of the grants: they become `former` once this spec was seen in force.
    pub fn places(&self) -> BTreeSet<Place> {
        self.grants().iter().map(Place::of).collect()
    }
}

/// Plans the steps from the view to the spec, for a volume that is exported over this port alone.
/// Over several transports or ports: [`plan_exports`](crate::plan_exports).
pub fn plan(wanted: &Wanted, view: &View) -> Plan<Op> {
    plan_exports(&Exports { iscsi: None, fc: vec![(wanted, view)] })
}

/// The nexus whose revoke is proven once a step has returned: the step takes a TPG LUN from its
/// backstore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Port of the nexus.
    pub port: FcPort,
    /// Number of the initiator on this node.
    pub slot: InitiatorSlot,
    /// LUN of the initiator.
    pub lun: Lun,
}

impl Drained {
    /// Returns `true` if this is the nexus of that place on that port.
    pub fn is(self, port: FcPort, place: Place) -> bool {
        self.port == port && (self.slot, self.lun) == (place.slot, place.lun)
    }
}

/// Returns the nexus whose revoke is proven when this step has returned. No other step proves
/// anything on Fibre Channel. `None` for any other step.
pub fn drains(step: &Step<Op>) -> Option<Drained> {
    let Op::Unlink { path } = &step.op else { return None };
    let parts: Vec<&str> = path.as_str().split('/').collect();
    let [fabric, wwpn, "tpgt_1", "lun", lun, _] = parts.as_slice() else { return None };
    let port = FcPort { fabric: fabric.parse::<FcFabric>().ok()?, wwpn: wwpn.parse().ok()? };
    let (slot, lun) = PortLun::parts(lun.strip_prefix("lun_")?.parse().ok()?)?;
    Some(Drained { port, slot, lun })
}

/// Returns the backstore that the export has to show; `None` if it cannot show one.
pub(crate) fn needs_backstore<'a>(wanted: &'a Wanted, view: &View) -> Option<(&'a ExportNames, &'a Device)> {
    let Wanted::Present { names, device, grants } = wanted else { return None };
    let left = left(wanted, view);
    let free = |grant| obstacle(names, Place::of(grant), &left).is_none();
    grants.iter().any(free).then_some((&names.export, device))
}

/// Plans the part of one port. `open`: nothing of the backstore stands in the way.
pub(crate) fn part(wanted: &Wanted, view: &View, open: bool) -> Part {
    let names = wanted.names();
    let mut planner = Planner {
        port: names.port,
        backstore: backstore(&names.export),
        view,
        left: left(wanted, view),
        going: going(wanted, view),
        wanted: wanted.grants().iter().map(|grant| (Place::of(grant), grant)).collect(),
        plan: Plan::default(),
    };
    let free = planner.obstacles(names);
    let free = if open { free } else { Vec::new() };
    planner.take_away(&free, matches!(wanted, Wanted::Present { .. }));
    let gives_at = planner.plan.steps.len();
    if !free.is_empty() {
        planner.make_group();
        for grant in free {
            planner.give(grant);
        }
        planner.enable();
    }
    Part { plan: planner.plan, gives_at }
}

struct Planner<'a> {
    port: FcPort,
    backstore: TreePath,
    view: &'a View,
    /// The spec's places, once those that go are gone.
    left: BTreeMap<Place, NexusView>,
    going: Vec<(Place, &'a NexusView)>,
    wanted: BTreeMap<Place, &'a FcGrant>,
    plan: Plan<Op>,
}

impl<'a> Planner<'a> {
    /// Adds obstacles to the plan. Returns the grants that have none.
    fn obstacles(&mut self, names: &FcNames) -> Vec<&'a FcGrant> {
        let mut free = Vec::new();
        for (place, grant) in self.wanted.clone() {
            match obstacle(names, place, &self.left) {
                None => free.push(grant),
                Some((object, BlockedKind::Foreign, why)) => foreign(&mut self.plan, &object, why),
                Some((object, kind, why)) => self.plan.block(kind, object.as_str(), why),
            }
        }
        free
    }

    fn lun(&self, place: Place) -> Option<TreePath> {
        place.number().map(|number| layout::lun(self.port, number))
    }

    fn mapped(&self, place: Place) -> TreePath {
        layout::mapped(self.port, place.initiator, place.lun)
    }

    fn write(&mut self, path: TreePath, value: &str, why: impl Into<std::borrow::Cow<'static, str>>) {
        self.plan.step(write_plain(path, value), why);
    }

    fn take_away(&mut self, free: &[&'a FcGrant], present: bool) {
        if present {
            self.tighten();
        }
        self.shrink_modes();
        let (going, left) = (self.going.clone(), self.left.clone());
        let remade: Vec<(Place, &NexusView, Remake)> = free
            .iter()
            .filter_map(|grant| Some((grant, Place::of(grant), left.get(&Place::of(grant))?)))
            .map(|(grant, place, nexus)| (place, nexus, remake(grant, nexus)))
            .filter(|(_, _, remake)| *remake != Remake::No)
            .collect();
        for (place, nexus) in &going {
            self.unmap(*place, nexus, "no grant for it");
        }
        for (place, nexus, _) in &remade {
            self.unmap(*place, nexus, "mapped wrongly, made anew");
        }
        for (place, nexus) in &going {
            self.drain(*place, nexus, "no grant for it");
        }
        for (place, nexus, _) in remade.iter().filter(|(_, _, remake)| *remake == Remake::Suspect) {
            self.drain(*place, nexus, "it may have been asked while it was writable");
        }
        for (place, nexus) in &going {
            self.remove_folders(*place, nexus);
        }
        self.prune_acls(&going);
    }

    /// Corrects attributes of the portal group that let in more than they should. The group is the
    /// port's, not a volume's: every volume's plan sees to it.
    fn tighten(&mut self) {
        if let Some(group) = &self.view.group {
            self.plan.steps.extend(attrib_steps(self.port, Some(group)));
        }
    }

    /// Makes modes smaller on nexuses that are open.
    fn shrink_modes(&mut self) {
        for (place, grant) in self.wanted.clone() {
            let Some(nexus) = self.left.get(&place) else { continue };
            if grant.mode == Mode::ReadOnly && !nexus.is_shut() && self.maps(place, nexus) == Some(false) {
                let why = format!("{} may only read; works on live sessions", place.initiator);
                self.write(self.mapped(place).join("write_protect"), "1", why);
            }
        }
    }

    /// Returns the `write_protect` of a mapping that leads to our own TPG LUN and works; `None` for
    /// any other.
    fn maps(&self, place: Place, nexus: &NexusView) -> Option<bool> {
        let mapped = nexus.mapped.as_ref()?;
        let leads =
            self.lun(place).is_some_and(|lun| mapped.link.as_ref().is_some_and(|link| link.target == lun));
        mapped.write_protect.filter(|_| leads && nexus.shows(&self.backstore))
    }

    fn unmap(&mut self, place: Place, nexus: &NexusView, why: &'static str) {
        let link = nexus.mapped.as_ref().and_then(|mapped| mapped.link.as_ref());
        if let Some(link) = link.filter(|link| self.lun(place).is_some_and(|lun| lun == link.target)) {
            let path = self.mapped(place).join(&link.name);
            self.plan.step(Op::Unlink { path }, format!("{why}: no new commands of {}", place.initiator));
        }
    }

    fn drain(&mut self, place: Place, nexus: &NexusView, why: &'static str) {
        let link = nexus.lun.as_ref().and_then(|lun| lun.link.as_ref());
        if let (Some(link), Some(lun)) = (link, self.lun(place)) {
            let path = lun.join(&link.name);
            self.plan
                .step(Op::Unlink { path }, format!("{why}: waits for the commands of {}", place.initiator));
        }
    }

    fn remove_folders(&mut self, place: Place, nexus: &NexusView) {
        if leaves(self.port, place, nexus) {
            let why = format!("drained: the mapped LUN of {}", place.initiator);
            self.plan.step(Op::Rmdir { path: self.mapped(place) }, why);
        }
        if let (Some(_), Some(path)) = (&nexus.lun, self.lun(place)) {
            self.plan.step(Op::Rmdir { path }, "drained: its TPG LUN");
        }
    }

    fn prune_acls(&mut self, going: &[(Place, &NexusView)]) {
        let kept: BTreeSet<Wwpn> = self.wanted.keys().map(|place| place.initiator).collect();
        let empty = |(place, nexus): &&(Place, &NexusView)| {
            !kept.contains(&place.initiator)
                && (nexus.acl == AclSeen::Empty || leaves(self.port, *place, nexus))
        };
        let initiators: BTreeSet<Wwpn> =
            going.iter().filter(empty).map(|(place, _)| place.initiator).collect();
        for initiator in initiators {
            let path = layout::acl(self.port, initiator);
            self.plan.step(Op::Prune { path }, "no volume of this initiator is left, unless another's");
        }
    }

    fn make_group(&mut self) {
        if self.view.group.is_none() {
            let steps = group_steps(self.port, None);
            self.plan.steps.extend(steps.into_iter().filter(|step| step.op.path().name() != "enable"));
        }
    }

    fn enable(&mut self) {
        if layout::has_enable(self.port.fabric)
            && !self.view.group.as_ref().is_some_and(|group| group.enabled)
        {
            self.write(layout::tpg(self.port).join("enable"), "1", "logins from here on");
        }
    }

    /// Makes or repairs one nexus.
    fn give(&mut self, grant: &FcGrant) {
        let place = Place::of(grant);
        let nexus = &self.left.get(&place).cloned().unwrap_or_default();
        let remake = remake(grant, nexus);
        let Some(lun) = self.lun(place) else { return };
        let read_only = grant.mode == Mode::ReadOnly;
        let linked = nexus.shows(&self.backstore) && remake != Remake::Suspect;
        let mapping = nexus.mapped.as_ref().filter(|mapped| mapped.link.is_some() && remake == Remake::No);
        let mut shut = nexus.is_shut();
        if nexus.lun.is_none() {
            self.plan.step(Op::Mkdir { path: lun.clone() }, "a TPG LUN of its own");
        }
        if !linked {
            let (target, link) = (self.backstore.clone(), lun.join(LINK));
            self.plan.step(Op::Link { target, link }, "shows the backstore; nobody is mapped to it yet");
        }
        // The gate of a folder that lost its link is unknown, and stays as it is.
        let unknown = nexus.lun.is_some() && !linked;
        if mapping.is_none() && read_only && (!linked || !shut) {
            self.write(lun.join(layout::SHUT), "1", "shut, until it is mapped and read-only");
            shut = true;
        } else if unknown && !read_only {
            self.write(lun.join(layout::SHUT), "0", "it may have been shut");
            shut = false;
        }
        if mapping.is_none() {
            self.map(place, nexus, &lun);
        }
        self.set_mode(grant, mapping.and_then(|mapped| mapped.write_protect), shut);
        if shut {
            self.open(&lun, &self.mapped(place), read_only);
        }
    }

    fn map(&mut self, place: Place, nexus: &NexusView, lun: &TreePath) {
        let mapped = self.mapped(place);
        if nexus.mapped.is_none() {
            // Also when the view has the ACL: another volume's removal may take an empty one away
            // at any time.
            let why = "the initiator's ACL, shared with its other volumes";
            self.plan.step(Op::Mkdir { path: mapped.parent() }, why);
            self.plan.step(Op::Mkdir { path: mapped.clone() }, "the LUN as the initiator numbers it");
        }
        self.plan.step(Op::Link { target: lun.clone(), link: mapped.join(LINK) }, "maps it");
    }

    /// Sets the mode. `seen` is the `write_protect` of a mapping that stays; `None` without one.
    fn set_mode(&mut self, grant: &FcGrant, seen: Option<bool>, shut: bool) {
        let (protect, why) = match grant.mode {
            Mode::ReadOnly => (true, "read-only"),
            Mode::ReadWrite => (false, "read-write"),
        };
        // The first steps of the plan have written an open mapping whose mode shrinks.
        let done = seen == Some(protect) || (protect && seen.is_some() && !shut);
        if !done {
            self.write(self.mapped(Place::of(grant)).join("write_protect"), write_protect(grant.mode), why);
        }
    }

    fn open(&mut self, lun: &TreePath, mapped: &TreePath, read_only: bool) {
        if read_only {
            let (path, value) = (layout::num_cmds(mapped), "0".to_owned());
            self.plan.step(Op::Expect { path, value }, "nobody asked it while it was writable");
        }
        self.write(lun.join(layout::SHUT), "0", "opens it");
    }
}

/// Returns the steps that correct the attributes of a portal group. An attribute that an existing
/// group lacks is one that its driver lacks.
fn attrib_steps(port: FcPort, seen: Option<&GroupView>) -> Vec<Step<Op>> {
    let mut plan = Plan::default();
    for (name, value, why) in layout::attribs(port.fabric) {
        let wrong = seen.is_none_or(|group| group.attribs.get(name).is_some_and(|seen| seen != value));
        if wrong {
            plan.step(write_plain(layout::tpg(port).join("attrib").join(name), value), *why);
        }
    }
    plan.steps
}

/// Returns the steps that make a port's portal group, or complete the one in the view.
pub(super) fn group_steps(port: FcPort, seen: Option<&GroupView>) -> Vec<Step<Op>> {
    let mut plan = Plan::default();
    if seen.is_none() {
        for (path, why) in [
            (layout::fabric(port), "the Fibre Channel fabric"),
            (layout::target(port), "the port"),
            (layout::tpg(port), "its portal group; it stays when the volume goes"),
        ] {
            plan.step(Op::Mkdir { path }, why);
        }
    }
    plan.steps.extend(attrib_steps(port, seen));
    if layout::has_enable(port.fabric) && !seen.is_some_and(|group| group.enabled) {
        plan.step(write_plain(layout::tpg(port).join("enable"), "1"), "logins from here on");
    }
    plan.steps
}
