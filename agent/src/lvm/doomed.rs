//! Plans the deletion of a volume with its data: how its blocks are wiped, and which LVs go with
//! it. Pure; a part of [`super::plan`].
//!
//! What must never happen here: a removal while the export is in the kernel; a half-wiped LV that
//! anybody could take for a complete one; a volume reported as gone whose group is missing, or
//! cannot be read.

use mooring_model::{BlockedKind, LvName, Plan, VolumeId};

use super::plan::{LvId, VolumeOp, absent, join};
use super::revert;
use super::view::{SeenLv, VolumesView};
use crate::config::Wipe;

/// Plans the deletion of a volume.
pub(super) fn plan_doomed(
    plan: &mut Plan<VolumeOp>,
    export_gone: bool,
    seen: &VolumesView,
    volume: VolumeId,
) {
    let object = || format!("volume {volume}");
    if !export_gone {
        return plan.block(
            BlockedKind::Missing,
            object(),
            "the kernel still exports it: the export is removed first",
        );
    }
    remove_growths(plan, seen, volume, "its volume is being deleted");
    revert::remove_copies(plan, seen, volume, "its volume is being deleted");
    let Some(there) = the_one_of_ours(plan, seen, volume) else { return };
    let Some(group) = seen.groups().iter().find(|group| group.name.as_str() == there.group) else { return };
    let lv = LvId { group: group.name.clone(), name: there.name.clone() };
    if there.is_adopted() && there.open {
        // Without the spec of its export this agent does not know the names under which the LV is
        // served.
        let why = format!(
            "{lv} is open and may still be exported, so its data is kept: send the spec of its export, or close what holds it \
             open"
        );
        return plan.block(BlockedKind::Held, object(), why);
    }
    if !there.thin {
        // The blocks of a thin LV go back to their pool, which zeroes them before anybody else gets
        // them.
        plan_wipe(plan, &lv, there, group.wipe);
    }
    plan.step(VolumeOp::Remove { lv }, "its volume is being deleted");
}

/// Plans the removal of the volume's growths. Nobody ever wrote to them.
pub(super) fn remove_growths(
    plan: &mut Plan<VolumeOp>,
    seen: &VolumesView,
    volume: VolumeId,
    why: &'static str,
) {
    for growth in seen.growths_of(volume).iter().filter(|lv| lv.is_tagged()) {
        let group = seen.groups().iter().find(|group| group.name.as_str() == growth.group);
        if let Some(group) = group {
            let lv = LvId { group: group.name.clone(), name: LvName::growth_of(volume) };
            plan.step(VolumeOp::RemoveGrowth { lv }, why);
        }
    }
}

/// Returns the volume's LV of ours. `None` if there is none, or if it is unknown which; then the
/// plan says so.
pub(super) fn the_one_of_ours<'a>(
    plan: &mut Plan<VolumeOp>,
    seen: &'a VolumesView,
    volume: VolumeId,
) -> Option<&'a SeenLv> {
    let object = || format!("volume {volume}");
    // An LV under our name without our tag is somebody else's: nothing of ours is there.
    let ours: Vec<_> = seen.lvs_of(volume).iter().filter(|lv| lv.is_tagged()).collect();
    match ours.as_slice() {
        [] => {
            // The LV may lie in a group that is missing, or that LVM cannot read: nothing is known
            // of it, and "gone" would be a lie.
            let unread = seen.unread_groups().map(|(group, _)| group);
            for group in seen.missing().iter().chain(unread) {
                let why = format!("it is not known whether its data is gone: {}", absent(group, seen));
                plan.block(BlockedKind::Missing, object(), why);
            }
            None
        }
        [there] => Some(there),
        [there, ..] => {
            let groups = join(ours.iter().map(|lv| lv.group.as_str()));
            let why = format!(
                "volume groups {groups} each have an LV {} with our tag: untag or remove the one that is a copy",
                there.name
            );
            let same = |lv: &&&SeenLv| lv.group == there.group;
            let why = match ours.iter().filter(same).count() {
                1 => why,
                _ => format!(
                    "several LVs of volume group {} carry the tag of this volume: untag all but the right one",
                    there.group
                ),
            };
            plan.block(BlockedKind::Foreign, object(), why);
            None
        }
    }
}

/// Plans the wipe of a doomed volume's blocks.
fn plan_wipe(plan: &mut Plan<VolumeOp>, lv: &LvId, there: &SeenLv, wipe: Wipe) {
    let (size, of, marks) = (there.size, lv.clone(), there.marks());
    // Marks of a complete volume date from before hosts wrote to it, and a discard makes marks
    // untrue.
    let stale = !marks.is_empty() && (!there.is_unzeroed() || wipe == Wipe::Discard);
    let copied = there.copied();
    let (op, why) = match wipe {
        // The volume stays complete and unmarked until its removal: a deletion that is called off
        // has lost nothing.
        Wipe::None => return,
        Wipe::Zero => {
            let marks = if stale { Vec::new() } else { marks.clone() };
            (VolumeOp::Zero { lv: of, size, marks }, "its volume is being deleted: nobody may find its data")
        }
        Wipe::Discard => {
            (VolumeOp::Discard { lv: of, size }, "its volume is being deleted: nobody needs its data")
        }
    };
    if stale || !copied.is_empty() {
        let marks = if stale { marks } else { Vec::new() };
        // A command of its own, before the next one: marks are believed on an LV that is tagged as
        // unzeroed.
        plan.step(
            VolumeOp::Unmark { lv: lv.clone(), marks, copied },
            "its marks are stale: its blocks have changed since",
        );
    }
    // Tagged first: if the deletion is called off half-way, nobody may take a half-wiped volume for
    // a complete one.
    if !there.is_unzeroed() {
        plan.step(
            VolumeOp::MarkUnzeroed { lv: lv.clone() },
            "its volume is being deleted: it is wiped first",
        );
    }
    if !there.active {
        plan.step(VolumeOp::Activate { lv: lv.clone() }, "it is wiped through its device");
    }
    plan.step(op, why);
}
