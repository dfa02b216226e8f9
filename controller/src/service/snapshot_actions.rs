//! Operators' actions on a snapshot. A status is set only where no work of the storage agent says
//! otherwise; every snapshot can be deleted by force.
//!
//! What must never happen here: a snapshot shown as there that its agent has not reported; data
//! destroyed of a snapshot that is unmanaged, or that a volume is being made from.

use std::collections::BTreeSet;

use mooring_model::VolumeId;

use super::snapshots::find;
use super::{Refusal, Service, not_in_review, volumes};
use crate::domain::{Caller, SnapshotAction, VolumeStatus};
use crate::flow::volume_specs;
use crate::rules::Operation;
use crate::store::{Abort, Db, VolumeRow};

/// The fault of a snapshot that was given up while its agent makes it.
const GIVEN_UP: &str = "it was set to error before its storage agent had made it: it becomes available if the agent still \
    makes it; delete it otherwise";

/// The fault of a snapshot that was given up before its agent was asked for it.
const NEVER_SENT: &str =
    "it was set to error before its storage agent was asked for it, and is not made: delete it";

const fn policy(action: SnapshotAction) -> &'static str {
    match action {
        SnapshotAction::ResetStatus(_) => "volume_extension:snapshot_admin_actions:reset_status",
        SnapshotAction::ForceDelete => "volume_extension:snapshot_admin_actions:force_delete",
        SnapshotAction::UpdateStatus(_) => "snapshot_extension:snapshot_actions:update_snapshot_status",
        SnapshotAction::Unmanage => "snapshot_extension:snapshot_unmanage",
    }
}

fn invalid(text: &str) -> Abort {
    Refusal::Invalid(format!("Invalid snapshot: {text}")).into()
}

/// Refuses to take a snapshot away while its volume is reverted to it, or a volume is being made
/// from it.
fn not_read(db: &Db<'_>, row: &VolumeRow) -> Result<(), Abort> {
    if row.operation == Some(Operation::Restoring) {
        let id = row.id;
        return Err(invalid(&format!(
            "the volume of snapshot {id} is being reverted to it: wait for the end."
        )));
    }
    match db.being_made_from(row.id)? {
        Some(made) => Err(invalid(&format!("volume {made} is being made from it."))),
        None => Ok(()),
    }
}

/// Ends the wait for a snapshot that its agent is to make. One that was certainly never sent is
/// taken off its agent; any other may still come true.
fn give_up(db: &Db<'_>, row: &VolumeRow) -> Result<(), Abort> {
    let why = if db.may_be_sent(row.id)? {
        GIVEN_UP
    } else {
        db.unplace(row.id)?;
        NEVER_SENT
    };
    Ok(db.set_operation(row.id, Some(Operation::Error), Some(why))?)
}

/// Sets a snapshot to error on an operator's word, or takes that back.
fn reset_status(db: &Db<'_>, row: &VolumeRow, said: VolumeStatus) -> Result<(), Abort> {
    not_in_review(row)?;
    let (id, status) = (row.id, row.status);
    if said == status {
        return Ok(());
    }
    match (said, row.operation) {
        (VolumeStatus::Error, None) => Ok(db.say_status(id, Some(said))?),
        (VolumeStatus::Available, None) => Ok(db.say_status(id, None)?),
        (VolumeStatus::Error, Some(Operation::Creating)) => give_up(db, row),
        (_, None) => Err(invalid(&format!(
            "Snapshot {id} cannot be set to {said}: it is {status}, and error is all that can be said instead."
        ))),
        (_, Some(_)) => Err(invalid(&format!(
            "Snapshot {id} is {status} because of what its storage agent does or said: its status cannot be set to {said}. \
             Delete it, by force if need be."
        ))),
    }
}

/// The refusal to delete an object that is being unmanaged: that has the last word, and its data
/// stays.
pub(super) fn unmanaging(kind: &str, id: VolumeId) -> Abort {
    let text = format!(
        "{kind} {id} is being unmanaged, its data stays, and nothing is deleted: wait until it is gone or error_unmanaging, and \
         try again then if it is still there"
    );
    Refusal::Conflict(text).into()
}

/// Begins to delete a snapshot in any status. One that was certainly never sent to its agent goes
/// at once.
fn force_delete(db: &Db<'_>, row: &VolumeRow) -> Result<(), Abort> {
    not_in_review(row)?;
    let unsent = row.operation == Some(Operation::Creating) && !db.may_be_sent(row.id)?;
    if unsent || !row.is_placed() {
        // No agent has any part of this snapshot.
        db.forget_spec(row.id)?;
        return Ok(db.delete_volume(row.id)?);
    }
    if row.operation == Some(Operation::Deleting) {
        return Ok(());
    }
    if row.operation == Some(Operation::Unmanaging) {
        return Err(unmanaging("snapshot", row.id));
    }
    not_read(db, row)?;
    db.set_operation(row.id, Some(Operation::Deleting), None)?;
    volume_specs::apply(db, row.id, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// Takes the word of a driver that takes snapshots itself, within the Block Storage API's map of
/// changes. Only the storage agent says that a snapshot is there, or could not be deleted.
fn update_status(db: &Db<'_>, row: &VolumeRow, said: VolumeStatus) -> Result<(), Abort> {
    not_in_review(row)?;
    let (id, status) = (row.id, row.status);
    let allowed: &[VolumeStatus] = match status {
        VolumeStatus::Creating => &[VolumeStatus::Creating, VolumeStatus::Available, VolumeStatus::Error],
        VolumeStatus::Deleting => &[VolumeStatus::Deleting, VolumeStatus::ErrorDeleting],
        _ => {
            let text = format!("Snapshot status {status} not allowed for update_snapshot_status");
            return Err(Refusal::Invalid(text).into());
        }
    };
    if !allowed.contains(&said) {
        let text = format!("Provided snapshot status {said} not allowed for snapshot with status {status}.");
        return Err(Refusal::Invalid(text).into());
    }
    match said {
        same if same == status => Ok(()),
        VolumeStatus::Error => give_up(db, row),
        _ => Err(invalid(&format!(
            "Snapshot {id} is {status}, and only its storage agent says that it is {said}."
        ))),
    }
}

/// Begins to unmanage a snapshot.
fn unmanage(db: &Db<'_>, row: &VolumeRow) -> Result<(), Abort> {
    if row.operation == Some(Operation::Unmanaging) {
        return Ok(());
    }
    not_in_review(row)?;
    not_read(db, row)?;
    if !matches!(row.status, VolumeStatus::Available | VolumeStatus::ErrorUnmanaging) {
        return Err(invalid(&format!(
            "Snapshot {} status must be available or error_unmanaging to unmanage, but current status is: {}.",
            row.id, row.status
        )));
    }
    db.set_operation(row.id, Some(Operation::Unmanaging), None)?;
    volume_specs::apply(db, row.id, &mut [], &BTreeSet::new())?;
    Ok(())
}

impl Service {
    /// Does an action on a snapshot, in one transaction.
    pub async fn snapshot_action(
        &self,
        caller: &Caller,
        id: VolumeId,
        action: SnapshotAction,
    ) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let (row, of) = find(&facts, db, &caller, id)?;
            facts.policies().check(policy(action), &caller, &volumes::target(&row))?;
            match action {
                SnapshotAction::ResetStatus(said) => reset_status(db, &row, said)?,
                SnapshotAction::ForceDelete => force_delete(db, &row)?,
                SnapshotAction::UpdateStatus(said) => update_status(db, &row, said)?,
                SnapshotAction::Unmanage => unmanage(db, &row)?,
            }
            Ok(of)
        };
        let of = self.store.write("act on a snapshot", write).await?;
        self.flow.go(id, &BTreeSet::new());
        // A volume may wait for the end of its snapshots.
        self.flow.go(of, &BTreeSet::new());
        Ok(())
    }
}
