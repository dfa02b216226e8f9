//! Reports the facts of one export. Pure.
//!
//! What must never happen here: `in_force` while a plan would still do something; a mode that the
//! kernel does not enforce.

use std::collections::{BTreeMap, BTreeSet};

use mooring_model::{BarrierId, Cure, Grant, GrantReport, Iqn, Mode, Naa, Plan, Portal, Problem};

use crate::layout;
use crate::live::Live;
use crate::op::Op;
use crate::plan::{Wanted, barrier, plan};
use crate::view::{ExportView, TpgView};

/// The part of an export's report that the kernel's tree decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportFacts {
    /// Target name.
    pub target: Iqn,
    /// The identity that initiators see.
    pub naa: Naa,
    /// Portals where the target listens at this moment, or would if its device answered.
    pub portals: Vec<Portal>,
    /// The kernel has everything in the spec, and nothing else.
    pub in_force: bool,
    /// The grants.
    pub grants: Vec<GrantReport>,
    /// Differences from the spec.
    pub problems: Vec<Problem>,
}

/// Reports the facts of one export. `live` is the result of [`read_live`](crate::read_live), or
/// empty.
pub fn report(wanted: &Wanted, view: &ExportView, live: &BTreeMap<String, Live>) -> ExportFacts {
    report_planned(wanted, view, live, &plan(wanted, view))
}

/// Does as [`report`] for a caller that already has the plan from this view to this spec.
pub fn report_planned(
    wanted: &Wanted,
    view: &ExportView,
    live: &BTreeMap<String, Live>,
    plan: &Plan<Op>,
) -> ExportFacts {
    let names = wanted.names();
    let mut problems: Vec<_> = plan.blocked.iter().map(Problem::from).collect();
    let granted: BTreeSet<&str> = wanted.grants().iter().map(|grant| grant.initiator.as_str()).collect();
    let there = view.tpg().into_iter().flat_map(|tpg| tpg.acls.keys());
    for initiator in there.filter(|name| !granted.contains(name.as_str())) {
        problems.push(Problem {
            object: initiator.clone(),
            text: "still has an ACL and no grant: it is being revoked".to_owned(),
            cure: Cure::Retry,
        });
    }
    ExportFacts {
        target: names.iqn.clone(),
        naa: names.naa(),
        portals: portals(wanted, view),
        in_force: plan.is_quiet(),
        grants: wanted
            .grants()
            .iter()
            .map(|grant| {
                let seen =
                    view.tpg().filter(|tpg| shows(tpg, wanted)).and_then(|tpg| seen_mode(tpg, wanted, grant));
                let barrier = view.tpg().and_then(|tpg| done_barrier(tpg, seen, grant));
                let live = live.get(grant.initiator.as_str()).cloned().unwrap_or_default();
                GrantReport {
                    initiator: grant.initiator.clone(),
                    lun: grant.lun,
                    wanted: grant.mode,
                    seen,
                    sessions: live.sessions,
                    counters: live.counters,
                    barrier,
                }
            })
            .collect(),
        problems,
    }
}

/// Returns the portals where the target listens. Withheld portals count: a caller that keeps this
/// as the volume's place needs them when the device answers again.
fn portals(wanted: &Wanted, view: &ExportView) -> Vec<Portal> {
    let there = view.tpg().into_iter().flat_map(|tpg| &tpg.portals);
    let mut portals: Vec<Portal> = there.filter_map(|name| name.parse().ok()).collect();
    let withheld = wanted.withheld().iter().filter(|portal| !portals.contains(portal));
    portals.extend(withheld.copied().collect::<Vec<_>>());
    portals
}

/// Returns `true` if the portal group answers logins and shows our backstore.
fn shows(tpg: &TpgView, wanted: &Wanted) -> bool {
    let link = tpg.lun.as_ref().and_then(|lun| lun.link.as_ref());
    tpg.enabled && link.is_some_and(|link| link.target == layout::backstore(wanted.names()))
}

/// Returns the barrier of a grant if it is done and nothing was written after it; else `None`.
fn done_barrier(tpg: &TpgView, seen: Option<Mode>, grant: &Grant) -> Option<BarrierId> {
    let acl = tpg.acls.get(grant.initiator.as_str())?;
    grant.barrier.filter(|_| seen == Some(Mode::ReadOnly) && !barrier::is_owed(acl, grant))
}

/// Returns the mode that the kernel enforces for a grant: its gate is open and its LUN is mapped as
/// in the spec. `None` if it enforces none.
fn seen_mode(tpg: &TpgView, wanted: &Wanted, grant: &Grant) -> Option<Mode> {
    let acl = tpg.acls.get(grant.initiator.as_str())?;
    let mapped = acl.luns.get(&layout::lun_name(grant.lun))?;
    let ours = mapped.link.as_ref()?.target == layout::lun(wanted.names());
    let open = acl.admits(tpg.attrib("authentication") != Some("0"));
    let mode = if mapped.write_protect? { Mode::ReadOnly } else { Mode::ReadWrite };
    (ours && open).then_some(mode)
}
