//! Follows systemd's units. When their problems change, the agent logs that, and this host reports
//! it.
//!
//! What must never happen here: a query of systemd (it reports the states itself); a problem that
//! is logged at every change.

use mooring_bus::Units;
use mooring_model::Problem;

use crate::capabilities;
use crate::engine::Engine;

impl Engine {
    /// The states of systemd's units. `None` if they are unknown.
    pub(crate) fn units(&self) -> Option<Units> {
        self.shared.look_memory.units.as_ref()?.borrow().clone()
    }

    /// Reports problems of units that come or go. Ends at once if this agent has no bus.
    pub(in crate::engine) async fn follow_units(self) {
        let Some(mut seen) = self.shared.look_memory.units.clone() else { return };
        let mut known: Vec<Problem> = Vec::new();
        loop {
            seen.mark_unchanged();
            let asking = self.clone();
            // The check reads files, too.
            let Some(now) = self.blocking(move || asking.wrong_units()).await else { return };
            if now != known {
                for problem in now.iter().filter(|problem| !known.contains(problem)) {
                    tracing::warn!(unit = problem.object, "{}", problem.text);
                }
                for problem in known.iter().filter(|problem| !now.contains(problem)) {
                    tracing::info!(unit = problem.object, "the problem of this unit has ended");
                }
                known = now;
                self.lvm().tell();
            }
            if seen.changed().await.is_err() {
                return;
            }
        }
    }

    fn wrong_units(&self) -> Vec<Problem> {
        let judge = |seen| capabilities::wrong_units(&seen, self.machine(), self.config());
        self.units().map(judge).unwrap_or_default()
    }
}
