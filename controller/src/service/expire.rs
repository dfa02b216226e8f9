//! Reserved attachments that nobody completes, which end by age where the configuration says so.
//!
//! What must never happen here: an attachment ended that has a connector; one ended by a clock that
//! was set.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mooring_model::{AttachmentId, VolumeId};

use super::detach::end_unconnected;
use super::{Refusal, Service};
use crate::flow::Flow;
use crate::flow::volume_specs::SpecChanges;
use crate::store::{Abort, Asked, Db, Store};

/// Time between two searches.
const EVERY: Duration = Duration::from_hours(1);

/// The most attachments that one transaction ends.
const ENDED_MAX: u32 = 20;

/// The user in the records of these detaches.
const USER: &str = "mooring-controller";

/// The request in the records of these detaches: the setting that asks for them.
const REQUEST: &str = "attachments.expire_reserved_days";

/// An attachment that ended, with what follows from it.
type Ended = (AttachmentId, VolumeId, SpecChanges);

fn end_some(db: &Db<'_>, before: SystemTime) -> Result<Vec<Ended>, Abort> {
    let asked = Asked { user: USER.to_owned(), request: REQUEST.to_owned(), at: db.now };
    let mut ended = Vec::new();
    for mut row in db.reserved_until(before, ENDED_MAX)? {
        let changes = end_unconnected(db, &asked, &mut row, false, &mut [])?;
        ended.push((row.id, row.volume, changes));
    }
    Ok(ended)
}

/// Ends all reserved attachments that are old enough. Returns their number.
async fn expire(flow: &Arc<Flow>, store: &Store) -> Result<u64, Refusal> {
    let Some(after) = flow.facts.options.expire_reserved else { return Ok(0) };
    let Some(now) = flow.facts.steady.now() else { return Ok(0) };
    let before = now.checked_sub(after).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut count = 0;
    loop {
        let ended = store.write_soon("end old reserved attachments", move |db| end_some(db, before)).await?;
        if ended.is_empty() {
            return Ok(count);
        }
        for (attachment, volume, changes) in ended {
            tracing::info!(%attachment, %volume, "a reserved attachment that nobody completed has ended by its age");
            count += 1;
            flow.touch(volume);
            if changes.storage || !changes.hosts.is_empty() {
                flow.wake(volume, &changes.hosts);
            }
        }
    }
}

/// Ends old reserved attachments again and again, for ever. Does nothing if none are to end.
pub(super) async fn keep(flow: Arc<Flow>, store: Store) {
    if flow.facts.options.expire_reserved.is_none() {
        return;
    }
    loop {
        if let Err(error) = expire(&flow, &store).await {
            tracing::warn!(%error, "old reserved attachments are not ended now");
        }
        tokio::time::sleep(EVERY).await;
    }
}

impl Service {
    /// Ends old reserved attachments now, as each controller does every hour. Returns their number:
    /// 0, too, while the wall clock has not run evenly for a day.
    pub async fn expire_reserved(&self) -> Result<u64, Refusal> {
        expire(&self.flow, &self.store).await
    }
}
