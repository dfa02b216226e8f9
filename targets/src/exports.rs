//! One volume over several fabrics at once: one backstore, shown over iSCSI and over any number of Fibre Channel ports. Pure.
//!
//! Each fabric plans its own part; the parts touch different objects, so any order of theirs is safe that keeps their own
//! and has the backstore before all that shows it, and after all that showed it. The order here:
//! 1. of a backstore that stands, its seals: they shut ways past `write_protect` and wait for nothing;
//! 2. of every fabric, what takes away and cannot block: no fabric waits for another's hanging disk before it is cut off;
//! 3. of every fabric, the rest of what takes away: iSCSI first, whose `enable=0` cuts off a whole target;
//! 4. the backstore;
//! 5. of every fabric, what gives: first the ports that stand, where little can fail for good; then iSCSI, where somebody may
//!    hold a portal; then ports that are to be made, which may have no adapter. A plan stops where it fails;
//! 6. if no fabric wants the volume any more, the removal of the backstore.
//!
//! What must never happen here: a removal of the backstore while one fabric's export is wanted; a step that gives before the
//! last that takes away.

use mooring_model::{ExportNames, Plan, Step};

use crate::layout::{DEPTH, Place};
use crate::op::Op;
use crate::plan::backstore::{self, Backing};
use crate::plan::{Part, Wanted, linked, part};
use crate::view::{BackstoreView, ExportView, HbaFolder};
use crate::{Value, fc};

/// What is wanted of one volume over all its fabrics, beside what is seen. A fabric that is neither wanted nor to be removed is
/// left out; all that are here name the same backstore.
#[derive(Debug, Clone, Default)]
pub struct Exports<'a> {
    /// Over iSCSI.
    pub iscsi: Option<(&'a Wanted, &'a ExportView)>,
    /// Over Fibre Channel, a pair for each port.
    pub fc: Vec<(&'a fc::Wanted, &'a fc::View)>,
}

impl<'a> Exports<'a> {
    /// The names of the backstore.
    fn names(&self) -> Option<&'a ExportNames> {
        let iscsi = self.iscsi.map(|(wanted, _)| wanted.names());
        iscsi.or_else(|| self.fc.first().map(|(wanted, _)| &wanted.names().export))
    }

    /// Nobody wants it any more.
    fn is_absent(&self) -> bool {
        let iscsi = self.iscsi.is_none_or(|(wanted, _)| matches!(wanted, Wanted::Absent { .. }));
        iscsi && self.fc.iter().all(|(wanted, _)| matches!(wanted, fc::Wanted::Absent { .. }))
    }

    /// The backstore as it was seen. Of several looks the first that saw it: they were taken one after the other.
    fn seen(&self) -> (Option<&'a BackstoreView>, HbaFolder) {
        let iscsi = self.iscsi.map(|(_, view)| (view.backstore.as_ref(), view.hba));
        let fc = self.fc.iter().map(|(_, view)| (view.backstore.as_ref(), view.hba));
        let all: Vec<_> = iscsi.into_iter().chain(fc).collect();
        let there = all.iter().find(|(seen, _)| seen.is_some());
        there.or_else(|| all.first()).copied().unwrap_or_default()
    }

    /// The backstore that is wanted, if a fabric needs it now.
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

/// What gives, in the order of giving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Gift {
    /// A Fibre Channel port that stands.
    Port,
    /// The iSCSI target.
    Target,
    /// A port that is to be made.
    NewPort,
}

/// What to do so that what is seen becomes what is wanted, over all fabrics.
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
    let iscsi = exports.iscsi.map(|(wanted, view)| (Gift::Target, part(wanted, view, open)));
    let fc = exports.fc.iter().map(|(wanted, view)| {
        let gift = if view.group.is_some() { Gift::Port } else { Gift::NewPort };
        (gift, fc::part(wanted, view, open))
    });
    let mut gives: Vec<(Gift, Vec<Step<Op>>)> = Vec::new();
    let mut waits = Vec::new();
    for (gift, Part { plan: mut part, gives_at }) in iscsi.into_iter().chain(fc) {
        gives.push((gift, part.steps.split_off(gives_at)));
        let first = part.steps.iter().position(may_block).unwrap_or(part.steps.len());
        waits.push(part.steps.split_off(first));
        plan.steps.append(&mut part.steps);
        plan.blocked.append(&mut part.blocked);
    }
    gives.sort_by_key(|(gift, _)| *gift);
    plan.steps.extend(waits.into_iter().flatten());
    // Whatever else the backstore lacks, the LUN that shows it is not linked then: a fabric has something to give.
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

/// Whether a step of those that take away may wait for commands in flight.
fn may_block(step: &Step<Op>) -> bool {
    match (&step.op, Place::of(step.op.path())) {
        (Op::Rmdir { .. } | Op::Prune { .. }, Place::Acl(_)) | (Op::Unlink { .. }, Place::LunLink) => true,
        // It drops the initiator's sessions and waits for their commands: a barrier.
        (Op::Write { path, .. }, _) if path.name() == DEPTH => true,
        (Op::Write { path, value }, _) => path.name() == "enable" && *value == Value::from("0"),
        _ => false,
    }
}
