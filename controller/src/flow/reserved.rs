//! The copy of persistent reservations that is kept here: as the storage agent keeps them, from its reports, for the day on which
//! it has lost its store.
//!
//! What must never happen here: a copy thrown away because an agent without a store reports nothing.

use std::sync::Arc;

use mooring_model::ExportReport;

use super::storage::Work;
use super::{Inner, Refusal};
use crate::agents::Held;
use crate::store::Db;

impl Inner {
    /// Keeps what the agent's report says that it keeps. A report that does not say it is of an agent that knows nothing of the
    /// export (its store is new), or of an older release: then the copy stays.
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
