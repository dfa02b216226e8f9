//! Takeover and release: which LVs of others can become volumes, the steps that make them volumes,
//! and the steps that unmanage a volume. Pure; a part of [`super::plan`].
//!
//! An LV that is taken over first gets the name of its volume, and our tag last. Until it has the
//! tag it is nobody's, and with the tag it has the name. LVM's UUID identifies it before and after.
//! A volume or a snapshot that is unmanaged loses the tag and nothing else: it keeps its name, its
//! data, and its device if it has one.
//!
//! What must never happen here: a tag on an LV that is not the one that was asked for, or that
//! somebody uses; a zeroing, a discard or a removal of an LV that is taken over or unmanaged; a
//! half-wiped volume given back as a complete one.

use mooring_model::{
    BlockedKind, ByteSize, ExistingLv, LV_TAG, LV_UNZEROED_TAG, LvName, Plan, Provisioning, VgName, VolumeId,
    VolumeSpec, volume_of_lv_tag,
};

use super::commands::attr_at;
use super::doomed::{remove_growths, the_one_of_ours};
use super::plan::{LvId, VolumeOp, block_foreign};
use super::revert;
use super::view::{SeenGroup, SeenLv, SeenOther, VolumesView};

/// An LV as a candidate for a takeover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Volume group.
    pub group: String,
    /// Name.
    pub name: String,
    /// UUID that LVM gave it.
    pub uuid: String,
    /// Size in bytes.
    pub size: ByteSize,
    /// `true` if the LV's blocks are of the group's thin pool.
    pub thin: bool,
    /// The volume that the LV is already. `None` if it is none.
    pub volume: Option<VolumeId>,
    /// Why it cannot be taken over now. `None` if it can.
    pub unsafe_because: Option<String>,
}

/// Lists all LVs of the listed groups except our snapshots, growths and pools, by group and name.
pub fn candidates(seen: &VolumesView) -> Vec<Candidate> {
    let others = seen.others().iter().filter_map(|lv| {
        let group = seen.groups().iter().find(|group| group.name.as_str() == lv.group)?;
        Some(Candidate {
            group: lv.group.clone(),
            name: lv.name.clone(),
            uuid: lv.uuid.clone(),
            size: lv.size,
            thin: lv.is_thin(),
            volume: None,
            unsafe_because: why_not(lv, group).map(|(_, why)| why),
        })
    });
    let ours = seen.ours().filter(|lv| !lv.snapshot).map(|lv| Candidate {
        group: lv.group.clone(),
        name: lv.name.to_string(),
        uuid: lv.uuid.clone(),
        size: lv.size,
        thin: lv.thin,
        volume: Some(lv.id),
        unsafe_because: Some("it is a volume already".to_owned()),
    });
    let mut all: Vec<_> = others.chain(ours).collect();
    all.sort_by(|a, b| (&a.group, &a.name).cmp(&(&b.group, &b.name)));
    all
}

/// Returns why an LV cannot become a volume, and what to do. `None` if it can.
fn why_not(lv: &SeenOther, group: &SeenGroup) -> Option<(BlockedKind, String)> {
    let attr = |index: usize| attr_at(&lv.attr, index);
    let path = format!("{}/{}", lv.group, lv.name);
    let foreign = |why: String| Some((BlockedKind::Foreign, why));
    let birth = |why: String| Some((BlockedKind::Birth, why));
    if let Some(tag) = lv.tags.iter().find(|tag| [LV_TAG, LV_UNZEROED_TAG].contains(&tag.as_str())) {
        return foreign(format!(
            "it carries the tag {tag}, which is Mooring's: lvchange --deltag {tag} {path}"
        ));
    }
    if let Some(tag) = lv.tags.iter().find(|tag| volume_of_lv_tag(tag).is_some()) {
        return foreign(format!("its tag {tag} says that it is a volume: lvchange --deltag {tag} {path}"));
    }
    if let Some(trouble) = &group.trouble {
        return Some((BlockedKind::Missing, trouble.clone()));
    }
    if LvName::existing(&lv.name).is_err() {
        return foreign("Mooring cannot use its name: rename it (lvrename)".to_owned());
    }
    match lv.segtype.as_str() {
        "linear" => {}
        "thin" => {
            if let Some(wrong) = pool_why_not(lv, group) {
                return Some(wrong);
            }
        }
        other => {
            return birth(format!("it is of the type {other}, and only linear and thin LVs become volumes"));
        }
    }
    match attr(0) {
        b'-' | b'V' => {}
        kind => {
            return birth(format!(
                "it is part of something larger, or has snapshots that are not thin (lv_attr {}…): see lvs -a",
                char::from(kind)
            ));
        }
    }
    if attr(1) != b'w' {
        return birth(format!("it is read-only: lvchange --permission rw {path}"));
    }
    if attr(9) == b'k' {
        return birth(format!("it is skipped by activation: lvchange --setactivationskip n {path}"));
    }
    if attr(8) != b'-' {
        let why = format!("LVM says that it is not healthy ({}): see lvs -o+lv_health_status", lv.attr);
        return Some((BlockedKind::Missing, why));
    }
    if lv.open {
        return Some((BlockedKind::Held, in_use(lv)));
    }
    None
}

/// Returns why the LV's thin pool keeps it from becoming a volume. `None` if the pool does not.
fn pool_why_not(lv: &SeenOther, group: &SeenGroup) -> Option<(BlockedKind, String)> {
    let ours = LvName::thin_pool();
    if !lv.is_thin() {
        let why = format!(
            "it lies in the thin pool {}, and Mooring serves {}/{ours} only: copy it",
            lv.pool, lv.group
        );
        return Some((BlockedKind::Birth, why));
    }
    let Some(pool) = group.pool.as_ref().filter(|pool| pool.tagged) else {
        let why = format!("its thin pool carries no tag {LV_TAG}: it is not Mooring's");
        return Some((BlockedKind::Foreign, why));
    };
    // A pool that does not zero its blocks would show whoever writes to it what others have left in
    // them.
    let trouble = pool.trouble.as_ref()?;
    Some((BlockedKind::Missing, format!("its thin pool {}/{ours} is not well: {trouble}", lv.group)))
}

fn in_use(lv: &SeenOther) -> String {
    format!(
        "it is in use on this host (mounted, exported, swap, or below another device): see lsblk /dev/{}/{} and fuser, and end that",
        lv.group, lv.name
    )
}

/// Finds the LV that is asked for, under its own name or under that of its volume. The error says
/// what is in the way.
fn asked_for<'a>(
    takes: &ExistingLv,
    lv: &LvId,
    seen: &'a VolumesView,
) -> Result<&'a SeenOther, (BlockedKind, String)> {
    let mut named = seen.others().iter().filter(|other| {
        other.group == lv.group.as_str()
            && (other.name == takes.name.as_str() || other.name == lv.name.as_str())
    });
    if let Some(found) = named.clone().find(|other| other.uuid == takes.uuid) {
        return Ok(found);
    }
    if named.any(|other| other.name == takes.name.as_str()) {
        let why = "another LV has this name now: look again (mooring volume manageable)".to_owned();
        return Err((BlockedKind::Foreign, why));
    }
    let is = |ours: &&SeenLv| ours.group == lv.group.as_str() && ours.name == takes.name;
    match seen.ours().find(is) {
        Some(ours) => Err((BlockedKind::Foreign, format!("it is a volume already, {}", ours.name))),
        None => Err((BlockedKind::Missing, format!("it is not there: see lvs {}", lv.group))),
    }
}

/// Plans the steps that make somebody's LV the volume's. The volume has no LV of ours yet; `there`
/// has the volume's name and lacks our tag.
pub(super) fn plan_taking(
    plan: &mut Plan<VolumeOp>,
    lv: LvId,
    spec: &VolumeSpec,
    (takes, there): (&ExistingLv, Option<&SeenLv>),
    (seen, group): (&VolumesView, &SeenGroup),
) {
    if there.is_some_and(|there| there.uuid != takes.uuid) {
        return block_foreign(plan, &lv);
    }
    let from = LvId { group: lv.group.clone(), name: takes.name.clone() };
    let found = match asked_for(takes, &lv, seen) {
        Ok(found) => found,
        Err((kind, why)) => return plan.block(kind, format!("LV {from}"), why),
    };
    let is = if found.is_thin() { Provisioning::Thin } else { Provisioning::Thick };
    let wrong = why_not(found, group).or_else(|| {
        let why = if found.size != spec.size {
            format!("it has {} ({} bytes), and the request says {}", found.size, found.size.0, spec.size)
        } else if is != spec.provisioning {
            format!("it is {}: request that", if found.is_thin() { "thin" } else { "thick" })
        } else {
            return None;
        };
        Some((BlockedKind::Birth, why))
    });
    if let Some((kind, why)) = wrong {
        return plan.block(kind, format!("LV {}/{}", found.group, found.name), why);
    }
    if there.is_none() {
        let op = VolumeOp::Rename { lv: lv.clone(), from, uuid: takes.uuid.clone() };
        plan.step(op, "the volume takes it over");
    }
    plan.step(VolumeOp::Own { lv: lv.clone() }, "the volume has taken it over");
    if !found.active {
        plan.step(VolumeOp::Activate { lv }, "it has no device");
    }
}

/// Plans the steps that unmanage a volume or a snapshot.
pub(super) fn plan_released(
    plan: &mut Plan<VolumeOp>,
    export_gone: bool,
    seen: &VolumesView,
    volume: VolumeId,
) {
    let object = || format!("volume {volume}");
    if !export_gone {
        let why = "the kernel still exports it: the export is removed first";
        return plan.block(BlockedKind::Missing, object(), why);
    }
    let backs: Vec<_> =
        seen.backs_of(volume).iter().filter(|copy| copy.is_tagged() && !copy.is_unzeroed()).collect();
    let Some(there) = the_one_of_ours(plan, seen, volume) else {
        if let [copy] = backs.as_slice() {
            // The copy is what the volume holds after its revert: it is released under the volume's
            // name.
            let Ok(group) = copy.group.parse::<VgName>() else { return };
            let from = LvId { group: group.clone(), name: LvName::back_of(volume) };
            let lv = LvId { group, name: LvName::of(volume) };
            let uuid = copy.uuid.clone();
            plan.step(VolumeOp::Rename { lv: lv.clone(), from, uuid }, "it holds what the volume holds");
            return plan
                .step(VolumeOp::Disown { lv, volume }, "its volume is unmanaged: the LV keeps its data");
        }
        return remove_growths(plan, seen, volume, "its volume is unmanaged");
    };
    if there.is_unzeroed() {
        let why = "its blocks are somebody's old data, or half-wiped: it can only be deleted";
        return plan.block(BlockedKind::Birth, object(), why);
    }
    remove_growths(plan, seen, volume, "its volume is unmanaged");
    revert::remove_copies(plan, seen, volume, "its volume is unmanaged");
    let Ok(group) = there.group.parse::<VgName>() else { return };
    let lv = LvId { group, name: there.name.clone() };
    plan.step(VolumeOp::Disown { lv, volume }, "its volume is unmanaged: the LV keeps its data");
}
