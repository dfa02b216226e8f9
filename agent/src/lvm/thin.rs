//! Plans a thin volume or a snapshot. Pure; a part of [`super::plan`].
//!
//! One command makes a thin volume, or enlarges it. Nothing has to be zeroed: its pool gives it
//! zeroed blocks. A volume made from another has that one's size at first, and is tagged as
//! unfinished until it has its own. A snapshot is an LV without a device: neither this host's udev
//! nor a guest's LVM on it ever looks inside.
//!
//! What must never happen here: a volume from an incomplete source; a pool that is not ours, or
//! hands out old blocks, taken for one of ours; more blocks taken from a pool that is not ours than
//! the adopted LV has; a snapshot with a device.

use mooring_model::{BlockedKind, ByteSize, LV_TAG, LvName, Plan, Source, VolumeKind, VolumeSpec};

use super::import;
use super::plan::{LvId, VolumeOp, block_foreign, block_shrink};
use super::view::{Fullness, SeenGroup, SeenLv, VolumesView};

/// Plans a thin volume or a snapshot. `there` is its LV, ours and thin; `None` if there is none.
pub(super) fn plan(
    plan: &mut Plan<VolumeOp>,
    lv: LvId,
    spec: &VolumeSpec,
    seen: &VolumesView,
    group: &SeenGroup,
    there: Option<&SeenLv>,
) {
    match (there, spec.kind) {
        (Some(_), VolumeKind::Snapshot) => {}
        (Some(there), VolumeKind::Volume) => plan_there(plan, lv, spec, group, there),
        (None, kind) => match (spec.source, kind) {
            (Some(source), _) => plan_from(plan, lv, spec, (source, seen), group),
            (None, VolumeKind::Volume) => plan_empty(plan, lv, spec, group),
            (None, VolumeKind::Snapshot) => {
                let why = format!("its LV {lv} is gone, and its data with it: delete the snapshot");
                plan.block(BlockedKind::Missing, format!("snapshot {}", spec.id), why);
            }
        },
    }
}

fn plan_there(plan: &mut Plan<VolumeOp>, lv: LvId, spec: &VolumeSpec, group: &SeenGroup, there: &SeenLv) {
    if !there.active {
        plan.step(VolumeOp::Activate { lv: lv.clone() }, "it has no device");
        if !there.is_unzeroed() {
            // The volume is activated and served before it grows.
            return;
        }
    }
    if there.is_unzeroed() && (spec.image.is_some() || there.is_importing()) {
        return import::plan_again(plan, lv, spec, there);
    }
    let Some(size) = whole(plan, spec, group) else { return };
    if there.size > size {
        return block_shrink(plan, spec, there.size);
    }
    if there.size < size {
        if let Some(why) = elsewhere(there, "grow") {
            return plan.block(BlockedKind::Birth, format!("volume {}", spec.id), why);
        }
        if has_room(plan, group).is_none() {
            return;
        }
        plan.step(VolumeOp::Extend { lv: lv.clone(), size }, "it is smaller than its spec says");
    }
    if there.is_unzeroed() {
        plan.step(VolumeOp::MarkZeroed { lv }, "it is finished");
    }
}

fn plan_empty(plan: &mut Plan<VolumeOp>, lv: LvId, spec: &VolumeSpec, group: &SeenGroup) {
    let Some(size) = whole(plan, spec, group) else { return };
    if let Some(image) = &spec.image {
        import::plan_check(plan, &lv, size, image);
    }
    if group.pool.is_none() {
        if !plan_pool(plan, group) {
            return;
        }
    } else if has_room(plan, group).is_none() {
        return;
    }
    if let Some(image) = &spec.image {
        return import::plan_made(plan, lv, size, image, true);
    }
    plan.step(VolumeOp::CreateThin { lv, size }, "it is not there");
}

/// Plans a volume or snapshot that is made from another one, whose LV must exist and be complete.
fn plan_from(
    plan: &mut Plan<VolumeOp>,
    lv: LvId,
    spec: &VolumeSpec,
    (source, seen): (Source, &VolumesView),
    group: &SeenGroup,
) {
    let object = || source.to_string();
    let snapshot = matches!(source, Source::Snapshot(_));
    let is = |lv: &&SeenLv| lv.group == group.name.as_str() && lv.snapshot == snapshot;
    let Some(from) = seen.lvs_of(source.id()).iter().find(is) else {
        let why = format!(
            "it is not in volume group {}, and {} {} is to be made from it: see mooring volume list, and lvs {}",
            group.name,
            word(spec.kind),
            spec.id,
            group.name
        );
        return plan.block(BlockedKind::Missing, object(), why);
    };
    let wrong = if !from.is_tagged() {
        Some((BlockedKind::Foreign, format!("its LV carries no tag {LV_TAG}: somebody else made it")))
    } else if !from.thin {
        Some((
            BlockedKind::Birth,
            "it is thick, and only thin volumes have snapshots and clones: copy it on a host".to_owned(),
        ))
    } else if let Some(why) = elsewhere(from, "have snapshots and clones") {
        Some((BlockedKind::Birth, why))
    } else if from.is_unzeroed() {
        Some((BlockedKind::Held, "it is not complete yet".to_owned()))
    } else {
        None
    };
    if let Some((kind, why)) = wrong {
        return plan.block(kind, object(), why);
    }
    if has_room(plan, group).is_none() {
        return;
    }
    let from_lv = LvId { group: group.name.clone(), name: from.name.clone() };
    if spec.kind == VolumeKind::Snapshot {
        return plan.step(VolumeOp::Snapshot { lv, of: from_lv }, "it is not there");
    }
    let Some(size) = whole(plan, spec, group) else { return };
    if from.size > size {
        let why = format!(
            "it has {}, and volume {}, which is made from it, only {}: a volume cannot be smaller than its source; correct the \
             spec",
            from.size, spec.id, spec.size
        );
        return plan.block(BlockedKind::Birth, object(), why);
    }
    plan.step(VolumeOp::Clone { lv: lv.clone(), from: from_lv }, "it is not there");
    if from.size < size {
        plan.step(VolumeOp::Extend { lv: lv.clone(), size }, "it is smaller than its spec says");
    }
    plan.step(VolumeOp::MarkZeroed { lv }, "it is finished");
}

/// Returns why the LV may take nothing more of its pool. `None` if that is the group's pool.
///
/// LVM would take blocks of any pool without a word. A pool that nobody looks after may be full, or
/// hand out somebody's old data.
fn elsewhere(lv: &SeenLv, may: &str) -> Option<String> {
    let (pool, group) = (lv.other_pool()?, &lv.group);
    let ours = LvName::thin_pool();
    Some(format!(
        "its LV {group}/{} lies in the thin pool {group}/{pool}, and only volumes in {group}/{ours} {may}: copy it to a new \
         volume on a host",
        lv.name
    ))
}

const fn word(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::Volume => "volume",
        VolumeKind::Snapshot => "snapshot",
    }
}

/// Returns the spec's size, rounded up as LVM does. `None` if it exceeds all numbers; then the plan
/// is blocked.
fn whole(plan: &mut Plan<VolumeOp>, spec: &VolumeSpec, group: &SeenGroup) -> Option<ByteSize> {
    let size = group.rounded(spec.size);
    if size.is_none() {
        plan.block(
            BlockedKind::Full,
            format!("volume {}", spec.id),
            format!("{} are too much: correct the spec", spec.size),
        );
    }
    size
}

/// Returns `Some` if the group's pool can give blocks. `None` blocks the plan with the reason.
pub(super) fn has_pool(plan: &mut Plan<VolumeOp>, group: &SeenGroup) -> Option<()> {
    let lv = LvId { group: group.name.clone(), name: LvName::thin_pool() };
    let object = || format!("thin pool {lv}");
    let Some(pool) = &group.pool else {
        plan.block(BlockedKind::Missing, object(), "it is not there (any more): see lvs".to_owned());
        return None;
    };
    if !pool.tagged {
        block_foreign(plan, &lv);
        return None;
    }
    if let Some(trouble) = group.trouble.as_ref().or(pool.trouble.as_ref()) {
        plan.block(BlockedKind::Missing, object(), trouble.clone());
        return None;
    }
    Some(())
}

/// Returns `Some` if the group's pool may give blocks to something new or larger. `None` blocks the
/// plan with the reason: what is left in a pool that is almost full is for the volumes in it.
fn has_room(plan: &mut Plan<VolumeOp>, group: &SeenGroup) -> Option<()> {
    has_pool(plan, group)?;
    let pool = group.pool.as_ref().filter(|pool| pool.fullness() >= Fullness::Closed);
    let Some(why) = pool.and_then(|pool| pool.advice(&group.name)) else { return Some(()) };
    let lv = LvId { group: group.name.clone(), name: LvName::thin_pool() };
    plan.block(BlockedKind::Full, format!("thin pool {lv}"), why);
    None
}

/// Plans the creation of the pool with the first thin volume. Returns `false` if it cannot be made;
/// then the plan is blocked.
fn plan_pool(plan: &mut Plan<VolumeOp>, group: &SeenGroup) -> bool {
    let object = format!("volume group {}", group.name);
    if let Some(trouble) = &group.trouble {
        plan.block(BlockedKind::Missing, object, trouble.clone());
        return false;
    }
    let Some(size) = group.thin_size.and_then(|size| group.rounded(size)) else {
        let why = format!(
            "it has no thin pool: say thin_pool = \"SIZE\" under [[groups]] of {} in the agent's configuration",
            group.name
        );
        plan.block(BlockedKind::Missing, object, why);
        return false;
    };
    // LVM takes some more for metadata, and reports it itself if that is not free.
    if size > group.available() {
        let why = format!(
            "{size} are wanted for its thin pool and {} of {} are free: free some space, extend the group, or make \
             thin_pool smaller",
            group.available(),
            group.size
        );
        plan.block(BlockedKind::Full, object, why);
        return false;
    }
    let lv = LvId { group: group.name.clone(), name: LvName::thin_pool() };
    plan.step(VolumeOp::CreatePool { lv, size }, "the first thin volume of the group needs it");
    true
}
