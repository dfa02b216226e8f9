//! The deletion of a volume together with its snapshots: the volume goes last.
//!
//! While a snapshot is there, the volume's specs stay as they are, and no tombstone of the volume
//! exists. When the last snapshot is gone, the tombstones follow.
//!
//! What must never happen here: a snapshot that outlives its volume, and keeps the id of one that
//! is gone; a volume that waits for a snapshot and does not say which.

use std::collections::BTreeSet;
use std::sync::Arc;

use mooring_model::VolumeId;

use super::{Flow, Next, volume_specs};
use crate::agents::Held;
use crate::agents::listener::Job;
use crate::error::Refusal;
use crate::rules::Operation;
use crate::store::{Abort, Db, VolumeRow};

/// Fails the deletion of a snapshot's volume, because the snapshot could not be deleted. Returns
/// the volume; `None`: it is not being deleted.
pub(super) fn volume_stays(db: &Db<'_>, snapshot: &VolumeRow, why: &str) -> Result<Option<VolumeId>, Abort> {
    let Some(id) = snapshot.snapshot_of else { return Ok(None) };
    if db.volume(id)?.is_none_or(|volume| volume.operation != Some(Operation::Deleting)) {
        return Ok(None);
    }
    let text = format!(
        "snapshot {} of it could not be deleted: {why}: mend that, and delete that snapshot: the volume follows by itself",
        snapshot.id
    );
    db.set_operation(id, Some(Operation::ErrorDeleting), Some(&text))?;
    Ok(Some(id))
}

impl Flow {
    /// Makes the job of a snapshot's volume look again, because the snapshot may be gone. Does
    /// nothing for a volume.
    pub(super) fn snapshot_gone(self: &Arc<Self>, gone: &VolumeRow) {
        if let Some(volume) = gone.snapshot_of {
            self.kick(Job::Storage(volume));
        }
    }

    /// Makes the tombstones of a volume that waited for its snapshots, which are gone.
    pub(super) async fn follow_snapshots(
        self: &Arc<Self>,
        agent: &Held,
        id: VolumeId,
    ) -> Result<Next, Refusal> {
        let write = move |db: &Db<'_>| volume_specs::apply(db, id, &mut [], &BTreeSet::new());
        let spec_changes = agent.store.write("delete a volume after its snapshots", write).await?;
        // The specs are tombstones already, or a snapshot is there again: its job kicks this one.
        Ok(if spec_changes.storage { Next::Again } else { Next::Idle })
    }
}
