//! systemd's units as they are followed: when something else is wrong with them than before, the log says so, and so does this host of
//! itself.
//!
//! What must never happen here: a look at systemd (the states are those that it told); a problem that is logged at every change.

use mooring_model::Problem;

use super::Engine;
use crate::capabilities::wrong_units;

impl Engine {
    /// Tells of what comes and goes. Ends at once where nobody is asked.
    pub(super) async fn follow_units(self) {
        let Some(mut seen) = self.shared.units.clone() else { return };
        let mut known: Vec<Problem> = Vec::new();
        loop {
            seen.mark_unchanged();
            let asking = self.clone();
            // It reads files, too.
            let Some(now) = self.blocking(move || wrong_units(&asking)).await else { return };
            if now != known {
                for problem in now.iter().filter(|problem| !known.contains(problem)) {
                    tracing::warn!(unit = problem.object, "{}", problem.text);
                }
                for problem in known.iter().filter(|problem| !now.contains(problem)) {
                    tracing::info!(unit = problem.object, "what was wrong with it is not so any more");
                }
                known = now;
                self.lvm().tell();
            }
            if seen.changed().await.is_err() {
                return;
            }
        }
    }
}
