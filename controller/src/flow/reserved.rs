//! The controller's copy of persistent reservations: equal to what the storage agent stores, taken
//! from its reports, for the day on which that agent has lost its store.
//!
//! What must never happen here: a copy thrown away because an agent without a store reports
//! nothing.

use std::sync::Arc;

use mooring_model::ExportReport;

use super::storage::Work;
use super::{Flow, Refusal};
use crate::agents::Held;
use crate::store::Db;

impl Flow {
    /// Keeps the reservations that the agent reports as stored. A report without them comes from an
    /// agent that does not know the export (its store is new), or from an older release: then the
    /// copy stays.
    pub(super) async fn copy_reservations(
        self: &Arc<Self>,
        agent: &Held,
        work: &Work,
        report: Option<&ExportReport>,
    ) -> Result<(), Refusal> {
        let Some(kept) = report.and_then(|report| report.kept_reservations.clone()) else { return Ok(()) };
        if kept == work.volume.reservations_copy() {
            return Ok(());
        }
        let id = work.volume.id;
        let write = move |db: &Db<'_>| Ok(db.copy_reservations(id, &kept)?);
        agent.store.write("keep a copy of persistent reservations", write).await
    }
}
