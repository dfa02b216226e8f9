//! Plans one volume over several transports at once: one backstore, shown over iSCSI and over any
//! number of Fibre Channel ports. Pure.
//!
//! Each transport plans its own part. The parts touch different objects, so a merged order is safe
//! if it keeps the order inside each part. The backstore is set up before everything that shows it,
//! and removed after everything that showed it. The order here:
//! 1. The seals of an existing backstore: they shut ways past `write_protect` and wait for nothing.
//! 2. From every transport, the steps that take away and cannot block: no revoke waits for the
//!    hanging disk of another transport.
//! 3. From every transport, the other steps that take away: iSCSI first, whose `enable=0` ends a
//!    whole target.
//! 4. The backstore.
//! 5. From every transport, the steps that give. First the ports that exist, where little can fail
//!    for good; then iSCSI, where another process may hold a portal; then ports to be made, which
//!    may have no adapter. A plan stops where it fails.
//! 6. If no transport's spec has the volume any more, the removal of the backstore.
//!
//! What must never happen here: a removal of the backstore while a spec of one transport still
//! exports it; a step that gives before the last that takes away.

use mooring_model::{ExportNames, Plan, Step};

use crate::layout::{DEPTH, Place};
use crate::op::Op;
use crate::plan::backstore::{self, Backing};
use crate::plan::{Part, Wanted, linked, part};
use crate::view::{BackstoreView, ExportView, HbaFolder};
use crate::{Value, fc};

/// Spec and view of one volume on each of its transports. A transport with no export to make or
/// remove is left out. All that are here name one backstore.
#[derive(Debug, Clone, Default)]
pub struct Exports<'a> {
    /// iSCSI: spec and view.
    pub iscsi: Option<(&'a Wanted, &'a ExportView)>,
    /// Fibre Channel: spec and view of each port.
    pub fc: Vec<(&'a fc::Wanted, &'a fc::View)>,
}

impl<'a> Exports<'a> {
    /// Returns the names of the backstore; `None` without any transport.
    fn names(&self) -> Option<&'a ExportNames> {
        let iscsi = self.iscsi.map(|(wanted, _)| wanted.names());
        iscsi.or_else(|| self.fc.first().map(|(wanted, _)| &wanted.names().export))
    }

    /// Returns `true` if no spec has the export any more.
    fn is_absent(&self) -> bool {
        let iscsi = self.iscsi.is_none_or(|(wanted, _)| matches!(wanted, Wanted::Absent { .. }));
        iscsi && self.fc.iter().all(|(wanted, _)| matches!(wanted, fc::Wanted::Absent { .. }))
    }

    /// Returns the backstore as seen. The views were taken one after the other; the first that has
    /// the backstore counts.
    fn seen(&self) -> (Option<&'a BackstoreView>, HbaFolder) {
        let iscsi = self.iscsi.map(|(_, view)| (view.backstore.as_ref(), view.hba));
        let fc = self.fc.iter().map(|(_, view)| (view.backstore.as_ref(), view.hba));
        let all: Vec<_> = iscsi.into_iter().chain(fc).collect();
        let there = all.iter().find(|(seen, _)| seen.is_some());
        there.or_else(|| all.first()).copied().unwrap_or_default()
    }

    /// Returns the backstore to set up; `None` if no transport needs it now.
    fn backing(&self) -> Option<Backing<'a>> {
        let iscsi = self.iscsi.and_then(|(wanted, _)| match wanted {
            Wanted::Present { names, device, .. } => Some((names, device)),
            Wanted::Absent { .. } => None,
        });
        let fc = || self.fc.iter().find_map(|(wanted, view)| fc::needs_backstore(wanted, view));
        let (names, device) = iscsi.or_else(fc)?;
        let over_iscsi = self.iscsi.and_then(|(wanted, view)| linked(wanted.names(), view));
        let over_fc: usize = self.fc.iter().map(|(wanted, view)| view.linked(wanted.names())).sum();
        Some(Backing {
            names,
            device: &device.path,
            discards: device.discards,
            reservations: &device.reservations,
            seen: self.seen().0,
            linked: over_iscsi.is_some() || over_fc > 0,
            initiators: over_iscsi.unwrap_or_default() + over_fc,
        })
    }
}

/// The parts that grant, in the order of granting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// A Fibre Channel port that exists.
    Port,
    /// The iSCSI target.
    Target,
    /// A port that has to be made.
    NewPort,
}

/// Plans the steps from the views to the specs, over all transports.
pub fn plan_exports(exports: &Exports<'_>) -> Plan<Op> {
    let mut plan = Plan::default();
    let backing = exports.backing();
    if let Some(backing) = &backing {
        backing.obstacles(&mut plan);
    }
    let open = plan.blocked.is_empty();
    if let Some(backing) = backing.as_ref().filter(|_| open) {
        backing.seal(&mut plan);
    }
    let iscsi = exports.iscsi.map(|(wanted, view)| (Stage::Target, part(wanted, view, open)));
    let fc = exports.fc.iter().map(|(wanted, view)| {
        let stage = if view.group.is_some() { Stage::Port } else { Stage::NewPort };
        (stage, fc::part(wanted, view, open))
    });
    let mut gives: Vec<(Stage, Vec<Step<Op>>)> = Vec::new();
    let mut waits = Vec::new();
    for (stage, Part { plan: mut part, gives_at }) in iscsi.into_iter().chain(fc) {
        gives.push((stage, part.steps.split_off(gives_at)));
        let first = part.steps.iter().position(may_block).unwrap_or(part.steps.len());
        waits.push(part.steps.split_off(first));
        plan.steps.append(&mut part.steps);
        plan.blocked.append(&mut part.blocked);
    }
    gives.sort_by_key(|(stage, _)| *stage);
    plan.steps.extend(waits.into_iter().flatten());
    // Whatever else the backstore lacks, no LUN that shows it is linked in that case: a transport
    // has something to give.
    let gives_any = gives.iter().any(|(_, steps)| !steps.is_empty());
    if let Some(backing) = backing.filter(|_| open && gives_any) {
        backing.make(&mut plan);
    }
    plan.steps.extend(gives.into_iter().flat_map(|(_, steps)| steps));
    if let Some(names) = exports.names().filter(|_| exports.is_absent()) {
        let (seen, hba) = exports.seen();
        backstore::remove(&mut plan, names, seen, hba);
    }
    plan
}

/// Returns `true` if a step which takes away may wait for commands in flight.
fn may_block(step: &Step<Op>) -> bool {
    match (&step.op, Place::of(step.op.path())) {
        (Op::Rmdir { .. } | Op::Prune { .. }, Place::Acl(_)) | (Op::Unlink { .. }, Place::LunLink) => true,
        // Dropping the initiator's sessions waits for their commands: a barrier.
        (Op::Write { path, .. }, _) if path.name() == DEPTH => true,
        (Op::Write { path, value }, _) => path.name() == "enable" && *value == Value::from("0"),
        _ => false,
    }
}
