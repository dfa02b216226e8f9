//! Reverts a volume to a snapshot of it. Pure; a part of [`super::plan`].
//!
//! Nothing is copied into the volume. Instead an LV is made from the snapshot under a name of its
//! own, the *copy*. It is as large as the volume, and carries the tag of this revert from the
//! command that creates it. Once it is finished, and the volume is exported to nobody, the volume's
//! LV is removed and the copy takes its name. LVM refuses to remove an LV that anybody holds open.
//!
//! So at every moment one of the two exists and is complete: the volume's old data, or the
//! snapshot's. The tag of the LV that has the volume's name says which. The snapshot is read, and
//! nothing else.
//!
//! What must never happen here: the volume's LV removed without a finished copy; a revert that was
//! done, done once more; the copy of another revert taken for the one in the spec.

use mooring_model::{BlockedKind, LV_TAG, LvName, Plan, Revert, VolumeId, VolumeSpec};

use super::plan::{LvId, VolumeOp, block_foreign};
use super::thin;
use super::view::{SeenGroup, SeenLv, VolumesView};

/// Plans the steps of a revert, or the removal of an earlier one's remains. Returns `true` if these
/// steps come first, and nothing else is to be planned now.
///
/// `apart` is `true` once nothing of the volume's export is in the kernel. Until then its LV stays.
pub(super) fn plan(
    plan: &mut Plan<VolumeOp>,
    lv: &LvId,
    spec: &VolumeSpec,
    there: Option<&SeenLv>,
    (seen, group): (&VolumesView, &SeenGroup),
    apart: bool,
) -> bool {
    let copy_lv = LvId { group: lv.group.clone(), name: LvName::back_of(spec.id) };
    let copy = seen.back(&spec.group, spec.id);
    if copy.is_some_and(|copy| !copy.is_tagged()) {
        // A foreign LV under this name is in the way of a revert only.
        let wanted = spec.revert.is_some_and(|revert| there.is_some_and(|there| !is_made_by(there, revert)));
        if wanted {
            block_foreign(plan, &copy_lv);
        }
        return wanted;
    }
    let Some(there) = there else {
        let Some(copy) = copy.filter(|copy| !copy.is_unzeroed()) else { return false };
        // The volume's old data is gone, and the copy is what it holds now, whatever the spec says
        // since.
        let op = VolumeOp::Rename { lv: lv.clone(), from: copy_lv, uuid: copy.uuid.clone() };
        plan.step(op, "the volume's old LV is gone, and this copy holds what the snapshot held");
        return true;
    };
    if !there.is_tagged() {
        return false;
    }
    let Some(revert) = spec.revert.filter(|revert| !is_made_by(there, *revert)) else {
        if copy.is_some() {
            plan.step(VolumeOp::RemoveCopy { lv: copy_lv }, "the revert that needed this copy was cancelled");
        }
        return false;
    };
    match copy.filter(|copy| is_made_by(copy, revert)) {
        Some(copy) if !copy.is_unzeroed() => plan_exchange(plan, lv, copy_lv, copy, apart),
        Some(copy) => plan_finish(plan, copy_lv, copy, there),
        None => {
            if copy.is_some() {
                plan.step(VolumeOp::RemoveCopy { lv: copy_lv.clone() }, "it was made for another revert");
            }
            plan_copy(plan, copy_lv, (spec, revert), there, (seen, group));
        }
    }
    true
}

/// Returns `true` if this revert has made the LV.
fn is_made_by(lv: &SeenLv, revert: Revert) -> bool {
    lv.reverted() == Some(revert.id)
}

fn plan_copy(
    plan: &mut Plan<VolumeOp>,
    copy: LvId,
    (spec, revert): (&VolumeSpec, Revert),
    there: &SeenLv,
    (seen, group): (&VolumesView, &SeenGroup),
) {
    let object = || format!("snapshot {}", revert.snapshot);
    let is = |lv: &&SeenLv| lv.snapshot && lv.group == spec.group.as_str();
    let Some(from) = seen.lvs_of(revert.snapshot).iter().find(is) else {
        let why = format!(
            "it is not in volume group {}, and volume {} is to be reverted to it: see mooring snapshot list",
            spec.group, spec.id
        );
        return plan.block(BlockedKind::Missing, object(), why);
    };
    if !from.is_tagged() {
        let why = format!("its LV carries no tag {LV_TAG}: somebody else made it");
        return plan.block(BlockedKind::Foreign, object(), why);
    }
    if from.size > there.size {
        let why = format!(
            "it has {}, and volume {} only {}: it cannot be a snapshot of this volume",
            from.size, spec.id, there.size
        );
        return plan.block(BlockedKind::Birth, object(), why);
    }
    if thin::has_pool(plan, group).is_none() {
        return;
    }
    let from_lv = LvId { group: copy.group.clone(), name: from.name.clone() };
    let op = VolumeOp::CloneForRevert { lv: copy.clone(), from: from_lv, revert: revert.id };
    plan.step(op, "the volume is reverted to the snapshot");
    if from.size < there.size {
        let op = VolumeOp::Extend { lv: copy.clone(), size: there.size };
        plan.step(op, "the volume has grown since the snapshot");
    }
    plan.step(VolumeOp::MarkZeroed { lv: copy }, "it is finished");
}

fn plan_finish(plan: &mut Plan<VolumeOp>, copy_lv: LvId, copy: &SeenLv, there: &SeenLv) {
    if copy.size < there.size {
        let op = VolumeOp::Extend { lv: copy_lv.clone(), size: there.size };
        plan.step(op, "the volume has grown since the snapshot");
    }
    plan.step(VolumeOp::MarkZeroed { lv: copy_lv }, "it is finished");
}

fn plan_exchange(plan: &mut Plan<VolumeOp>, lv: &LvId, copy_lv: LvId, copy: &SeenLv, apart: bool) {
    if !apart {
        return;
    }
    let op = VolumeOp::RemoveReverted { lv: lv.clone(), copy: copy_lv.clone() };
    plan.step(op, "the volume is reverted: its copy of the snapshot is finished");
    let op = VolumeOp::Rename { lv: lv.clone(), from: copy_lv, uuid: copy.uuid.clone() };
    plan.step(op, "it holds what the snapshot held");
}

/// Plans the removal of copies that never took their volume's place. Nobody ever wrote to them.
pub(super) fn remove_copies(
    plan: &mut Plan<VolumeOp>,
    seen: &VolumesView,
    volume: VolumeId,
    why: &'static str,
) {
    for copy in seen.backs_of(volume).iter().filter(|lv| lv.is_tagged()) {
        let group = seen.groups().iter().find(|group| group.name.as_str() == copy.group);
        if let Some(group) = group {
            let lv = LvId { group: group.name.clone(), name: LvName::back_of(volume) };
            plan.step(VolumeOp::RemoveCopy { lv }, why);
        }
    }
}
