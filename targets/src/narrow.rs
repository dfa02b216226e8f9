//! A change of some grants of an export that is known to be in force: only their ACLs are looked at and planned.
//!
//! Why: a whole look reads every ACL of the export, so that a grant would cost more with every host that shares the volume
//! (ARCHITECTURE, invariant 12). What was seen in force a moment ago, by a whole look, is taken as it was seen; the ACLs
//! that change are looked at before and after. Whoever keeps a [`Known`] throws it away at every error and now and then,
//! so that drift is found by the next whole look and by nothing less.
//!
//! What must never happen here: a narrow plan where anything but grants has changed; a `Known` that a plan would change.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::Tree;
use mooring_model::{Grant, Plan};

use crate::Error;
use crate::op::Op;
use crate::plan::{Wanted, plan};
use crate::view::ExportView;

/// An export that was in force when it was looked at: the plan for `wanted` was quiet on `view`.
#[derive(Debug, Clone)]
pub struct Known {
    wanted: Wanted,
    view: ExportView,
}

/// An export has one grant of an initiator.
fn by_initiator(grants: &[Grant]) -> BTreeMap<&str, &Grant> {
    grants.iter().map(|grant| (grant.initiator.as_str(), grant)).collect()
}

/// What is left to look at: the part of a wish, and of what is known, that differs.
#[derive(Debug, Clone)]
pub struct Narrow {
    /// The wish with the changed grants only.
    pub wanted: Wanted,
    initiators: BTreeSet<String>,
    known: Known,
}

impl Known {
    /// Keeps what was seen, if it is what is wanted.
    pub fn new(wanted: &Wanted, view: ExportView) -> Option<Self> {
        let left = plan(wanted, &view);
        Self::planned(wanted, view, &left)
    }

    /// The same for whoever has the plan of this wish and this view at hand.
    pub fn planned(wanted: &Wanted, view: ExportView, left: &Plan<Op>) -> Option<Self> {
        let in_force = matches!(wanted, Wanted::Present { .. }) && left.is_quiet();
        in_force.then(|| Self { wanted: wanted.clone(), view })
    }

    /// What was seen.
    pub fn view(&self) -> &ExportView {
        &self.view
    }

    /// The change to `wanted`, if only grants differ.
    pub fn narrow(self, wanted: &Wanted) -> Option<Narrow> {
        let (
            // Like what a backstore gets back: it says nothing of an export that stands.
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
    /// Whether the grant of this initiator is among those that change.
    pub fn concerns(&self, initiator: &str) -> bool {
        self.initiators.contains(initiator)
    }

    /// Looks at the ACLs that change: what is known, with these ACLs as they are now and no others.
    pub fn look(&self, tree: &dyn Tree) -> Result<ExportView, Error> {
        self.known.view.with_acls(tree, &self.wanted, &self.initiators)
    }

    /// The whole export, with the changed ACLs as `seen`: known again if `wanted`, the whole wish, is now in force. Else what
    /// is left to do.
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
