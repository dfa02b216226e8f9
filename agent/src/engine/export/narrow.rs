//! A pass over an export that was in force a moment ago: it looks only at the ACLs of changed
//! grants. So a grant, a mode change and a revoke cost the same with one attachment and with five
//! hundred (ARCHITECTURE, invariant 12).
//!
//! What must never happen here: a known export that outlives an error or a sweep; a receipt proven
//! from an ACL that was not looked at.

use std::sync::Arc;

use mooring_model::{Generation, Plan};
use mooring_targets::{Known, Narrow};

use super::fabrics::{View, Wanteds};
use crate::engine::Engine;
use crate::engine::cell::Cell;
use crate::engine::knowledge::Stale;
use crate::engine::pass::Made;
use crate::engine::steps::Watch;
use crate::object::seen::Seen;

impl Cell {
    /// The difference between the spec and the export that is known to be in force. `None` asks for
    /// a whole look. Takes away what is known: only success puts it back.
    pub(in crate::engine) fn narrow(&self, wanted: &Wanteds) -> Option<Seen<Narrow>> {
        let mut state = self.state();
        // Over Fibre Channel a look already reads the volume's own places only.
        let known = state.knowledge.take_known().filter(|_| !wanted.is_over_fc())?;
        let wanted = &wanted.iscsi;
        // A grant that came back before its revoke was carried out: a whole pass revokes the old
        // nexus first.
        let came_back = state
            .established
            .receipts()
            .open()
            .iter()
            .any(|open| wanted.grants().iter().any(|grant| open.receipt.initiator == grant.initiator));
        drop(state);
        if came_back { None } else { known.and_then(|known| known.narrow(wanted)) }
    }

    /// Keeps what a whole look has seen, if nothing is left to do.
    pub(in crate::engine) fn keep_known(&self, wanted: &Wanteds, made: &Made) {
        if let Made { view: Some(view), left: Ok(left) } = made
            && left.is_quiet()
            && !wanted.is_over_fc()
        {
            // The plan in `left` was made for this view.
            let known = Known::planned(&wanted.iscsi, view.iscsi.clone(), left);
            if let Some(known) = known {
                self.state().knowledge.learn_known(Seen::new(view.began(), known));
            }
        }
    }
}

impl Engine {
    /// Looks at what changes, plans, applies, looks at it again.
    pub(in crate::engine) fn make_narrow(
        &self,
        cell: &Arc<Cell>,
        wanted: &Wanteds,
        narrow: Seen<Narrow>,
        generation: Generation,
    ) -> Made {
        // All but the changed ACLs is as old as the whole look.
        let (began, narrow) = (narrow.began(), narrow.into_value());
        let look = || {
            cell.begin(format!("look at {}", wanted.names().iqn));
            let seen = narrow.look(&*self.shared.machine.target);
            cell.end();
            seen
        };
        let before = match look() {
            Ok(before) => before,
            Err(error) => return Made { view: None, left: Err(error) },
        };
        let plan = mooring_targets::plan(&narrow.wanted, &before);
        if !plan.steps.is_empty() {
            cell.state().knowledge.forget(Stale::NarrowStep);
        }
        let mut watch = Watch { engine: self, cell, generation };
        if let Err(error) = mooring_targets::apply(&plan, &*self.shared.machine.target, &mut watch) {
            return Made { view: None, left: Err(error) };
        }
        let seen = if plan.steps.is_empty() {
            before
        } else {
            match look() {
                Ok(seen) => seen,
                Err(error) => return Made { view: None, left: Err(error) },
            }
        };
        // A changed ACL that is not there has drained: its lookup waits for an `rmdir` as a listing
        // does.
        let gone = |initiator: &str| {
            narrow.concerns(initiator) && !seen.tpg().is_some_and(|tpg| tpg.acls.contains_key(initiator))
        };
        self.prove(cell, generation, |initiator| initiator.iqn().is_some_and(|iqn| gone(iqn.as_str())));
        match narrow.widen(&wanted.iscsi, &seen) {
            Err(left) => Made { view: None, left: Ok(left) },
            Ok(known) => {
                let view = known.view().clone();
                cell.state().knowledge.learn_known(Seen::new(began, known));
                Made { view: Some(Seen::new(began, View::iscsi(view))), left: Ok(Plan::default()) }
            }
        }
    }
}

#[cfg(test)]
mod tests;
