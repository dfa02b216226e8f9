//! Old records go by age: the store says which, and this deletes them in small transactions.
//!
//! What must never happen here: a tombstone that is deleted before its agent may forget its own; a
//! record deleted because the clock was set.

use std::time::{Duration, SystemTime};

use mooring_model::limit::TOMBSTONE_KEEP;

use super::{Refusal, Service};
use crate::flow::Facts;
use crate::store::{Db, Store};

/// Time between two searches for old records.
const EVERY: Duration = Duration::from_hours(1);

/// Deletes old records. Returns their number.
async fn prune(store: &Store, keep: Duration, now: SystemTime) -> Result<u64, Refusal> {
    let before = |keep: Duration| now.checked_sub(keep).unwrap_or(SystemTime::UNIX_EPOCH);
    let (records, specs) = (before(keep), before(keep.max(TOMBSTONE_KEEP)));
    let mut all = 0;
    loop {
        let prune = move |db: &Db<'_>| Ok(db.prune_records(records, specs)?);
        let pruned = store.write_soon("prune old records", prune).await?;
        if pruned.count() == 0 {
            return Ok(all);
        }
        tracing::info!(?pruned, "old records were deleted");
        all += pruned.count();
    }
}

/// Deletes old records again and again, for ever. Does nothing if they are kept for ever.
pub(super) async fn keep(store: Store, facts: Facts) {
    let Some(keep) = facts.options.keep_records else { return };
    loop {
        if let Some(now) = facts.steady.now()
            && let Err(error) = prune(&store, keep, now).await
        {
            tracing::warn!(%error, "old records are not deleted now");
        }
        tokio::time::sleep(EVERY).await;
    }
}

impl Service {
    /// Deletes old records now, as each controller does every hour. Returns their number: 0, too,
    /// while the wall clock has not run evenly for a day.
    pub async fn prune_records(&self) -> Result<u64, Refusal> {
        let Some(keep) = self.facts.options.keep_records else { return Ok(0) };
        let Some(now) = self.facts.steady.now() else { return Ok(0) };
        prune(&self.store, keep, now).await
    }
}
