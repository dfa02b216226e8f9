//! Operators' actions on a volume, and the flags that users set on it.
//!
//! What must never happen here: an attachment row that goes while its grant stays; a status that
//! hides the agents' work; data destroyed under an attachment.

use std::collections::BTreeSet;

use mooring_model::VolumeId;
use mooring_model::limit::VOLUME_BYTES_MAX;

use super::{Refusal, Service, failed, manage, not_in_review, quotas, revert, snapshot_actions, volumes};
use crate::domain::{Caller, VolumeAction, VolumeStatus};
use crate::error::announced_attachments;
use crate::flow::place::{self, Figures};
use crate::flow::{Facts, volume_specs};
use crate::rules::{self, Operation};
use crate::schedule::Provisioning;
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// Begins to delete a volume in any status. It must have no attachments but those that failed and
/// hold nothing: each other row belongs to a grant. With `cascade` its snapshots go first, and the
/// status of each must allow that: one may be what the volume is being reverted to. Returns the
/// snapshots whose deletion has begun.
fn force_delete(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    volume: &VolumeRow,
    cascade: bool,
) -> Result<Vec<VolumeId>, Abort> {
    let leaving = manage::leaving(volume);
    if volume.operation == Some(Operation::Deleting) {
        return volumes::delete_again(facts, db, caller, volume.id, cascade);
    }
    if volume.operation == Some(Operation::Unmanaging) {
        return Err(snapshot_actions::unmanaging("volume", volume.id));
    }
    not_in_review(volume)?;
    super::isolate::not_isolated(volume)?;
    if let Some(attachment) = failed::end(db, caller, volume.id)?.first() {
        let text = format!(
            "Invalid volume: Volume {} is attached (attachment {}, {}): detach it first, by force if its host does not \
             answer",
            volume.id, attachment.id, attachment.status
        );
        return Err(Refusal::Invalid(text).into());
    }
    let snapshots = db.snapshots_of(volume.id)?;
    if let Some(snapshot) = snapshots.first().filter(|_| !cascade) {
        let text = format!(
            "Invalid volume: Volume {} has snapshots (the oldest is {}): delete them first",
            volume.id, snapshot.id
        );
        return Err(Refusal::Invalid(text).into());
    }
    volumes::not_a_source(db, volume.id)?;
    if !volume.is_placed() {
        // No agent has any part of this volume.
        db.delete_volume(volume.id)?;
        return Ok(Vec::new());
    }
    let begun = volumes::delete_snapshots(facts, db, caller, &snapshots)?;
    db.set_operation(volume.id, Some(leaving), None)?;
    volume_specs::apply(db, volume.id, &mut [], &BTreeSet::new())?;
    Ok(begun)
}

fn set_bootable(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    volume: &VolumeRow,
    bootable: bool,
) -> Result<(), Abort> {
    let existing: Vec<_> = db.attachments_of(volume.id)?.iter().map(AttachmentRow::existing).collect();
    let live = existing.iter().filter(|one| one.is_live()).count();
    // The rule is the one for the second server of a bootable volume.
    if live > 1 && rules::bootable_multiattach(volume.multiattach, bootable, &existing) {
        let target = volumes::target(volume);
        facts.policies().check("volume:multiattach_bootable_volume", caller, &target)?;
    }
    db.set_bootable(volume.id, bootable)?;
    volume_specs::renew_unless_in_review(db, volume)
}

fn set_readonly(db: &Db<'_>, volume: &VolumeRow, readonly: bool) -> Result<(), Abort> {
    let live = db.attachments_of(volume.id)?.iter().any(|row| row.existing().is_live());
    if live || volume.status != VolumeStatus::Available {
        return Err(Refusal::Invalid(format!(
            "Invalid volume: Volume {} status must be available to update readonly flag, but current status is: {}.{}",
            volume.id,
            volume.status,
            announced_attachments(volume.reserved)
        ))
        .into());
    }
    db.set_readonly(volume.id, readonly)?;
    volume_specs::renew_unless_in_review(db, volume)
}

/// Sets a volume to error on an operator's word, or takes that back. Every other status is derived,
/// and setting it would hide the real one. A status in which a volume rests ends what was
/// announced.
fn reset_status(
    db: &Db<'_>,
    volume: &VolumeRow,
    status: Option<VolumeStatus>,
    attached: Option<bool>,
) -> Result<(), Abort> {
    let id = volume.id;
    if volume.operation == Some(Operation::Unknown) {
        // Its words are of a later release, which alone may change them.
        not_in_review(volume)?;
    }
    let rows = db.attachments_of(id)?;
    let invalid = |text: String| Abort::from(Refusal::Invalid(format!("Invalid volume: {text}")));
    if attached == Some(false)
        && let Some(row) = rows.iter().find(|row| !row.holds_nothing())
    {
        return Err(invalid(format!(
            "Volume {id} has attachment {} ({}), and removing its record would not end its access: use os-force_detach, or \
             DELETE of the attachment with force",
            row.id, row.status
        )));
    }
    if attached == Some(true) && !rows.iter().any(|row| row.existing().is_live()) {
        return Err(invalid(format!("Volume {id} has no attachment: attach it instead")));
    }
    let rests = matches!(status, Some(VolumeStatus::Available | VolumeStatus::InUse | VolumeStatus::Error));
    let announced = volume.reserved > 0 || volume.holds > 0;
    if announced && (rests || attached == Some(false)) {
        // Nobody waits any more for what was announced and did not come.
        db.set_reserved(id, 0, None)?;
        db.set_holds(id, 0, None)?;
    }
    let Some(said) = status else { return Ok(()) };
    db.say_status(id, None)?;
    let extended = volume.operation == Some(Operation::ErrorExtending) && volume.grows_from.is_none();
    let reverted = volume.operation.is_none() && volume.said_status.is_some();
    if extended || reverted {
        // No work is open: the failure has been seen.
        db.set_operation(id, None, None)?;
    }
    reset_to(db, volume, &rows, said)
}

/// Sets the status beside what the rows say now.
fn reset_to(
    db: &Db<'_>,
    volume: &VolumeRow,
    rows: &[AttachmentRow],
    said: VolumeStatus,
) -> Result<(), Abort> {
    let id = volume.id;
    let invalid = |text: String| Abort::from(Refusal::Invalid(format!("Invalid volume: {text}")));
    let now = db.volume(id)?;
    let derived = now.as_ref().map_or(volume.status, |now| now.status);
    if said == derived {
        return Ok(());
    }
    if now.is_some_and(|now| now.operation.is_some()) {
        return Err(invalid(format!(
            "Volume {id} is {derived} because of what its storage agent does or said: its status cannot be reset. Delete \
             it, by force if need be"
        )));
    }
    match said {
        VolumeStatus::Error => Ok(db.say_status(id, Some(said))?),
        VolumeStatus::InUse if rows.is_empty() => {
            Err(invalid(format!("Volume {id} has no attachment: it cannot be in-use")))
        }
        _ => Err(invalid(format!(
            "Volume {id} cannot be set to {said}: its attachments say that it is {derived}, and error is all that can \
             be said instead{}",
            announced_attachments(volume.reserved)
        ))),
    }
}

fn extend(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    volume: &VolumeRow,
    to_gib: u32,
    online: bool,
) -> Result<(), Abort> {
    let (id, from_gib) = (volume.id, volume.size_gib);
    if online && volume.status == VolumeStatus::InUse {
        facts.policies().check("volume:extend_attached_volume", caller, &volumes::target(volume))?;
    }
    let ready = volume.status == VolumeStatus::Available || (online && volume.status == VolumeStatus::InUse);
    if !ready {
        return Err(Refusal::Invalid(format!(
            "Invalid volume: Volume {id} status must be available to extend, currently {}.{}",
            volume.status,
            announced_attachments(volume.reserved)
        ))
        .into());
    }
    not_in_review(volume)?;
    super::isolate::not_isolated(volume)?;
    if to_gib <= from_gib {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: New size for extend must be greater than current size. (current: {from_gib}, \
             extended: {to_gib})."
        ))
        .into());
    }
    if u64::from(to_gib) * volume_specs::GIB > VOLUME_BYTES_MAX {
        let text =
            format!("Invalid input received: New size for extend, {to_gib}, is more than a volume can have.");
        return Err(Refusal::Invalid(text).into());
    }
    let volume_type = db.type_by_id(volume.type_id)?;
    if let Some(of) = &volume_type {
        rules::types::check_size(&of.extra_specs, &of.name, to_gib)?;
    }
    quotas::check_extend(facts, db, volume, to_gib)?;
    volumes::not_closed(facts, caller, volume)?;
    check_space(facts, db, volume, to_gib - from_gib)?;
    db.begin_growth(id, to_gib)?;
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// Orders a growth taken back. The agent decides if that is still possible. A growth that is
/// already being taken back is left alone.
fn cancel_extend(db: &Db<'_>, volume: &VolumeRow) -> Result<(), Abort> {
    let id = volume.id;
    let extends = matches!(volume.operation, Some(Operation::Extending | Operation::ErrorExtending));
    if !extends || volume.grows_from.is_none() {
        return Err(Refusal::Conflict(format!(
            "Invalid volume: Volume {id} does not grow, or not any more: it has {} GiB, and its status is: {}.",
            volume.served_gib(),
            volume.status
        ))
        .into());
    }
    if volume.growth_is_taken_back() {
        return Ok(());
    }
    not_in_review(volume)?;
    db.take_growth_back(volume, true)?;
    db.set_operation(id, Some(Operation::Extending), None)?;
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// Refuses a growth that certainly does not fit. The agent decides about the rest.
fn check_space(facts: &Facts, db: &Db<'_>, volume: &VolumeRow, more_gib: u32) -> Result<(), Abort> {
    let pools = place::pools(facts, db, Figures::Promises)?;
    let own = pools.iter().find(|pool| pool.agent == volume.agent && pool.name == volume.pool);
    let kind = if volume.is_thin() { Provisioning::Thin } else { Provisioning::Thick };
    let left = own.and_then(|pool| pool.capacity.available(Some(kind)));
    let more = u64::from(more_gib) * volume_specs::GIB;
    if left.is_none_or(|left| more <= left) {
        return Ok(());
    }
    Err(Refusal::Invalid(format!(
        "Invalid volume: the pool of volume {} has no room for {more_gib} GiB more.",
        volume.id
    ))
    .into())
}

const fn policy(action: &VolumeAction) -> &'static str {
    match action {
        VolumeAction::SetBootable(_) => "volume:update",
        VolumeAction::SetReadonly(_) => "volume:update_readonly_flag",
        VolumeAction::ResetStatus { .. } => "volume_extension:volume_admin_actions:reset_status",
        VolumeAction::ForceDelete => "volume_extension:volume_admin_actions:force_delete",
        VolumeAction::Extend { .. } => "volume:extend",
        VolumeAction::Revert(_) => "volume:revert_to_snapshot",
    }
}

impl Service {
    /// Does an action on a volume, in one transaction.
    pub async fn volume_action(
        &self,
        caller: &Caller,
        id: VolumeId,
        action: VolumeAction,
    ) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let volume = volumes::find(&facts, db, &caller, id)?;
            facts.policies().check(policy(&action), &caller, &volumes::target(&volume))?;
            match action {
                VolumeAction::SetBootable(bootable) => set_bootable(&facts, db, &caller, &volume, bootable),
                VolumeAction::SetReadonly(readonly) => set_readonly(db, &volume, readonly),
                VolumeAction::ResetStatus { status, attached } => reset_status(db, &volume, status, attached),
                VolumeAction::ForceDelete => force_delete(&facts, db, &caller, &volume, false).map(drop),
                VolumeAction::Revert(to) => revert::begin(&facts, db, &caller, &volume, to),
                VolumeAction::Extend { size_gib, online } => {
                    extend(&facts, db, &caller, &volume, size_gib, online)
                }
            }
        };
        self.store.write("change a volume", write).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(())
    }

    /// Takes a volume's growth back. The volume is `extending` until its agent has said if that was
    /// possible: then it has its old size, or has grown. 409 for a volume that does not grow.
    pub async fn cancel_extend(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let volume = volumes::find(&facts, db, &caller, id)?;
            facts.policies().check("mooring:extend_cancel", &caller, &volumes::target(&volume))?;
            cancel_extend(db, &volume)
        };
        self.store.write("take a growth back", write).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(())
    }

    /// `DELETE` with `force`: as [`VolumeAction::ForceDelete`], with a policy of its own. With
    /// `cascade`, together with the volume's snapshots: the volume goes last.
    pub async fn force_delete_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        cascade: bool,
    ) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let volume = volumes::find(&facts, db, &caller, id)?;
            facts.policies().check("volume:force_delete", &caller, &volumes::target(&volume))?;
            force_delete(&facts, db, &caller, &volume, cascade)
        };
        for gone in self.store.write("delete a volume by force", write).await? {
            self.flow.go(gone, &BTreeSet::new());
        }
        self.flow.go(id, &BTreeSet::new());
        Ok(())
    }
}
