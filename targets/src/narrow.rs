//! Changes some grants of an export that is known to be in force, and looks at and plans their ACLs
//! only.
//!
//! Why: a whole look reads every ACL of the export, so a grant would cost more with every host that
//! shares the volume (ARCHITECTURE, invariant 12). A whole look has just shown everything in force,
//! and its view is trusted; the ACLs that change are looked at before and after. The holder of a
//! [`Known`] throws it away at every error and now and then, so the next whole look finds drift;
//! nothing less does.
//!
//! What must never happen here: a narrow plan where anything but grants has changed; a `Known` that
//! a plan would change.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::Tree;
use mooring_model::{Grant, Plan};

use crate::Error;
use crate::op::Op;
use crate::plan::{Wanted, plan};
use crate::view::ExportView;

/// An export that was in force when it was looked at: the plan from `view` to `wanted` was empty.
#[derive(Debug, Clone)]
pub struct Known {
    wanted: Wanted,
    view: ExportView,
}

/// Indexes grants by initiator: an export has one grant of each.
fn by_initiator(grants: &[Grant]) -> BTreeMap<&str, &Grant> {
    grants.iter().map(|grant| (grant.initiator.as_str(), grant)).collect()
}

/// The part of a spec that differs from the known one: all that is left to look at.
#[derive(Debug, Clone)]
pub struct Narrow {
    /// The spec with the changed grants only.
    pub wanted: Wanted,
    initiators: BTreeSet<String>,
    known: Known,
}

impl Known {
    /// Keeps the view if it is as the spec says; `None` otherwise.
    pub fn new(wanted: &Wanted, view: ExportView) -> Option<Self> {
        let left = plan(wanted, &view);
        Self::planned(wanted, view, &left)
    }

    /// Does as [`new`](Self::new) for a caller that already has the plan from this view to this
    /// spec.
    pub fn planned(wanted: &Wanted, view: ExportView, left: &Plan<Op>) -> Option<Self> {
        let in_force = matches!(wanted, Wanted::Present { .. }) && left.is_quiet();
        in_force.then(|| Self { wanted: wanted.clone(), view })
    }

    /// Returns the view.
    pub fn view(&self) -> &ExportView {
        &self.view
    }

    /// Returns the change to `wanted`; `None` if more than grants differ.
    pub fn narrow(self, wanted: &Wanted) -> Option<Narrow> {
        let (
            // Reservations are put into a new backstore only; they do not matter to an export that
            // exists.
            Wanted::Present { names, device, portals, withheld, grants, tuning, port_id },
            Wanted::Present {
                names: old_names,
                device: old_device,
                portals: old_portals,
                withheld: old_withheld,
                grants: old_grants,
                tuning: old_tuning,
                port_id: _,
            },
        ) = (wanted, &self.wanted)
        else {
            return None;
        };
        let (new, old) =
            ((names, portals, withheld, tuning), (old_names, old_portals, old_withheld, old_tuning));
        if new != old || !device.is_same(old_device) {
            return None;
        }
        let (new_by, old_by) = (by_initiator(grants), by_initiator(old_grants));
        let same = |grant: &Grant, others: &BTreeMap<&str, &Grant>| {
            others.get(grant.initiator.as_str()).is_some_and(|other| *other == grant)
        };
        let changed: Vec<_> = grants.iter().filter(|grant| !same(grant, &old_by)).cloned().collect();
        let gone = old_grants.iter().filter(|grant| !same(grant, &new_by));
        let initiators = changed
            .iter()
            .chain(gone)
            .map(|grant| grant.initiator.as_str().to_owned())
            .collect::<BTreeSet<_>>();
        let wanted = Wanted::Present {
            names: names.clone(),
            device: device.clone(),
            portals: portals.clone(),
            withheld: *withheld,
            grants: changed,
            tuning: tuning.clone(),
            port_id: *port_id,
        };
        Some(Narrow { wanted, initiators, known: self })
    }
}

impl Narrow {
    /// Returns `true` if this initiator's grant is among those that change.
    pub fn concerns(&self, initiator: &str) -> bool {
        self.initiators.contains(initiator)
    }

    /// Looks at the ACLs that change. The result is the known view with these ACLs as they are now,
    /// and no others.
    pub fn look(&self, tree: &dyn Tree) -> Result<ExportView, Error> {
        self.known.view.with_acls(tree, &self.wanted, &self.initiators)
    }

    /// Returns the whole export with the changed ACLs as in `seen`, if `wanted`, the whole spec, is
    /// now in force. The error is the plan of the steps that are left.
    pub fn widen(self, wanted: &Wanted, seen: &ExportView) -> Result<Known, Plan<Op>> {
        let left = plan(&self.wanted, seen);
        if !left.is_quiet() {
            return Err(left);
        }
        let mut view = self.known.view;
        view.replace_acls(&self.initiators, seen);
        Ok(Known { wanted: wanted.clone(), view })
    }
}
