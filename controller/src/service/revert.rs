//! Reverts a volume to its newest snapshot.
//!
//! What must never happen here: a volume reverted below a host; a revert to anything but the newest
//! snapshot of the volume.

use std::collections::BTreeSet;

use mooring_model::{Revert, RevertId, VolumeId};

use super::isolate::not_isolated;
use super::volumes::not_a_source;
use super::{Refusal, failed, not_in_review, told};
use crate::domain::{Caller, VolumeStatus};
use crate::error::announced_attachments;
use crate::flow::{Facts, volume_specs};
use crate::rules::Operation;
use crate::store::{Abort, Db, KeptRevert, VolumeRow};

/// Orders a volume reverted to its newest snapshot: `reverting` at once, `available` when its agent
/// reports the end. `None`: the caller named no snapshot.
pub(super) fn begin(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    volume: &VolumeRow,
    to: Option<VolumeId>,
) -> Result<(), Abort> {
    let id = volume.id;
    not_in_review(volume)?;
    not_isolated(volume)?;
    let snapshots = db.snapshots_of(id)?;
    let Some(newest) = snapshots.last() else {
        return Err(Refusal::Invalid(format!("Volume {id} has no snapshots.")).into());
    };
    let Some(to) = to.filter(|to| *to == newest.id) else {
        let named = to.map_or_else(|| "None".to_owned(), |to| to.to_string());
        let text = format!("Specified snapshot {named} is None or not the latest one of volume {id}.");
        return Err(Refusal::Invalid(text).into());
    };
    let cannot = format!("Can't revert volume {id} to its latest snapshot {to}.");
    let rows = failed::holding(db, id)?;
    if !rows.is_empty() {
        // A host that reaches the volume has parts of it in memory, and would write them over the
        // restored data.
        let who: Vec<_> = rows.iter().map(|row| told::who(facts, caller, row)).collect();
        let text = format!(
            "Invalid volume: {cannot} Volume's status must be 'available', and it is attached: detach {} first.",
            who.join(", ")
        );
        return Err(Refusal::Conflict(text).into());
    }
    if volume.status != VolumeStatus::Available {
        let text = format!(
            "Invalid volume: {cannot} Volume's status must be 'available', but current status is: {}.{}",
            volume.status,
            announced_attachments(volume.reserved)
        );
        return Err(Refusal::Conflict(text).into());
    }
    if newest.status != VolumeStatus::Available {
        let text = format!(
            "Invalid snapshot: {cannot} Snapshot's status must be 'available', but current status is: {}.",
            newest.status
        );
        return Err(Refusal::Conflict(text).into());
    }
    not_a_source(db, id)?;
    let revert = Revert { snapshot: to, id: RevertId::random() };
    db.keep_revert(volume, Some(&KeptRevert { revert, withdrawn: None }))?;
    db.set_operation(to, Some(Operation::Restoring), None)?;
    db.set_operation(id, Some(Operation::Reverting), None)?;
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(())
}
