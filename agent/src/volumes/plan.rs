//! What to do about one volume. Pure.
//!
//! A volume grows by extents that are zeroed before they are its own: they are taken as an LV beside it, the *growth*,
//! which nobody is ever given, zeroed like a new volume, and only then appended. A volume that is to grow is whole and
//! served all the while.
//!
//! What must never happen here: a removal of an LV that is not doomed; a zeroing or a discard of an LV that is not tagged for
//! it; a discard of what is not doomed; a step on an LV without our tag or outside of the listed groups; extents appended
//! that may hold somebody's old data; a mark of how far an LV is zeroed left on it while it is written or discarded; a part of an
//! image taken for a volume.

use std::fmt;

use mooring_model::{
    BlockedKind, ByteSize, Cut, ImageSource, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG, LvName, Phase, Plan,
    Problem, Provisioning, RevertId, Source, VgName, VolumeId, VolumeKind, VolumeReport, VolumeSpec,
    lv_volume_tag,
};

use super::import::Copied;
use super::upload::UploadOp;
use super::view::{SeenGroup, SeenLv, VolumesView};
use super::{cut, device_path, doomed, import, manage, retag, revert, thin};
use crate::images::PartId;

/// What marks count.
pub(super) const MIB: u64 = 1 << 20;

/// What is wanted of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// It is there, active and zeroed.
    Volume(VolumeSpec),
    /// The same of one that was adopted as the LV of this name: it is never made.
    Adopted(VolumeSpec, LvName),
    /// The same, and it holds what a snapshot held when this revert was done.
    Reverted {
        /// With the revert.
        spec: VolumeSpec,
        /// Nothing of its export is in the kernel. Until then its LV stays.
        export_gone: bool,
    },
    /// The same of one that was whole before, with a revert or without: whoever was given it may have written to it, so that its
    /// LV is never made again.
    Made {
        /// What is wanted of it now.
        spec: VolumeSpec,
        /// Nothing of its export is in the kernel. Until then a revert waits.
        export_gone: bool,
    },
    /// It goes, with its data.
    Doomed {
        /// Nothing of its export is in the kernel. Until then nothing is done.
        export_gone: bool,
    },
    /// It is nobody's from now on, with its data.
    Released {
        /// Nothing of its export is in the kernel. Until then nothing is done.
        export_gone: bool,
    },
    /// Nobody wants anything of it: what is there stays, as an orphan.
    Nothing,
}

impl Wanted {
    /// What must be looked at beside it.
    pub fn beside(&self) -> Beside {
        match self {
            // By its name, too: its tags may be gone.
            Self::Adopted(spec, name) => Beside { takes: Some(name.clone()), ..Beside::of(spec) },
            Self::Volume(spec) | Self::Reverted { spec, .. } | Self::Made { spec, .. } => Beside::of(spec),
            Self::Doomed { .. } | Self::Released { .. } | Self::Nothing => Beside::default(),
        }
    }

    fn spec(&self) -> Option<&VolumeSpec> {
        match self {
            Self::Volume(spec)
            | Self::Adopted(spec, _)
            | Self::Reverted { spec, .. }
            | Self::Made { spec, .. } => Some(spec),
            Self::Doomed { .. } | Self::Released { .. } | Self::Nothing => None,
        }
    }
}

/// What must be looked at beside a volume's own LVs to plan it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beside {
    /// What it is made from, or is to be reverted to.
    pub source: Option<Source>,
    /// The LV that it takes over, as that was called, or the one that it was adopted as.
    pub takes: Option<LvName>,
}

impl Beside {
    /// What this spec names.
    pub fn of(spec: &VolumeSpec) -> Self {
        let reverts_to = spec.revert.map(|revert| Source::Snapshot(revert.snapshot));
        Self {
            source: reverts_to.or(spec.source),
            takes: spec.takes.as_ref().map(|takes| takes.name.clone()),
        }
    }
}

/// One of our LVs: its name is made from a volume's id and nothing else, or is the one that it had when it was adopted. Or one
/// that is to become ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LvId {
    /// Its group, which the configuration lists.
    pub group: VgName,
    /// Its name.
    pub name: LvName,
}

impl fmt::Display for LvId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.name)
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeOp {
    /// Make the LV, tagged as ours and as not zeroed, in one command.
    Create {
        /// The LV.
        lv: LvId,
        /// Its size, in whole extents.
        size: ByteSize,
    },
    /// Look whether an image can be copied into so many bytes. Nothing is changed.
    CheckImage {
        /// The LV that it is for.
        lv: LvId,
        /// The image.
        image: ImageSource,
        /// The LV's size.
        size: ByteSize,
    },
    /// Make the LV for an image, tagged as ours, as not zeroed and as one that is imported into, in one command.
    CreateForImage {
        /// The LV.
        lv: LvId,
        /// Its size, in whole extents.
        size: ByteSize,
        /// It lies in the thin pool.
        thin: bool,
    },
    /// Copy an image into it, and zeros behind that, from its first block to its last.
    Import {
        /// The LV.
        lv: LvId,
        /// Its size.
        size: ByteSize,
        /// It lies in the thin pool.
        thin: bool,
        /// The image.
        image: ImageSource,
        /// How far copies of it, or of others, had come before, as its tags say.
        copied: Vec<Copied>,
    },
    /// A step of its copy to a file.
    Upload {
        /// The LV, which is only read.
        lv: LvId,
        /// Which copy.
        part: PartId,
        /// The step.
        op: UploadOp,
    },
    /// Tag it as one that is imported into.
    MarkImporting {
        /// The LV.
        lv: LvId,
    },
    /// Take the tags away that say that it is not whole: from here on it is usable.
    MarkImported {
        /// The LV.
        lv: LvId,
    },
    /// Give it a device.
    Activate {
        /// The LV.
        lv: LvId,
    },
    /// Tag it as not zeroed: from here on it is not usable, and may be zeroed.
    MarkUnzeroed {
        /// The LV.
        lv: LvId,
    },
    /// Take away what its tags say of an earlier zeroing or copy: from here on it may hold anything.
    Unmark {
        /// The LV.
        lv: LvId,
        /// What they say of a zeroing, in MiB.
        marks: Vec<u64>,
        /// What they say of copies.
        copied: Vec<Copied>,
    },
    /// Zero all of its blocks.
    Zero {
        /// The LV.
        lv: LvId,
        /// Its size.
        size: ByteSize,
        /// How far this had come before, in MiB, as its tags say.
        marks: Vec<u64>,
    },
    /// Tell its disk that nobody needs its blocks; zero them where it takes no discards.
    Discard {
        /// The LV.
        lv: LvId,
        /// Its size.
        size: ByteSize,
    },
    /// Take that tag away: from here on it is usable.
    MarkZeroed {
        /// The LV.
        lv: LvId,
    },
    /// Make the zeroed growth the end of the volume.
    Append {
        /// The volume's LV.
        lv: LvId,
        /// The growth. It is no LV any more afterwards.
        growth: LvId,
        /// Its size.
        size: ByteSize,
    },
    /// Remove a growth: nobody ever wrote to it.
    RemoveGrowth {
        /// The growth.
        lv: LvId,
    },
    /// Make a thin LV with what a snapshot holds, tagged as ours, as not finished, and with the revert that it is for.
    CloneForRevert {
        /// The copy.
        lv: LvId,
        /// The snapshot.
        from: LvId,
        /// The revert.
        revert: RevertId,
    },
    /// Remove a copy that takes no volume's place: nobody ever wrote to it.
    RemoveCopy {
        /// The copy.
        lv: LvId,
    },
    /// Remove the LV of a volume that is reverted. LVM refuses while anybody holds it open.
    RemoveReverted {
        /// The volume's LV.
        lv: LvId,
        /// What takes its place, finished.
        copy: LvId,
    },
    /// Give somebody's LV the name of the volume that it is to be.
    Rename {
        /// The volume's LV.
        lv: LvId,
        /// What it is called so far.
        from: LvId,
        /// LVM's identity of it.
        uuid: String,
    },
    /// Tag it as ours: from here on it is the volume.
    Own {
        /// The LV.
        lv: LvId,
    },
    /// Give it the tags back that somebody took from it.
    Retag {
        /// The LV.
        lv: LvId,
        /// The tags.
        tags: Vec<String>,
    },
    /// Take our tag away: from here on it is nobody's.
    Disown {
        /// The LV.
        lv: LvId,
        /// The volume that it was: an adopted one carries a tag with its id.
        volume: VolumeId,
    },
    /// Remove it.
    Remove {
        /// The LV.
        lv: LvId,
    },
    /// Make the group's thin pool.
    CreatePool {
        /// The pool.
        lv: LvId,
        /// Bytes for data, in whole extents. LVM adds its metadata, twice.
        size: ByteSize,
    },
    /// Make a thin LV, which reads as zeros, tagged as ours.
    CreateThin {
        /// The LV.
        lv: LvId,
        /// Its size, in whole extents.
        size: ByteSize,
    },
    /// Make a snapshot: it has what is in its volume at that moment, and no device.
    Snapshot {
        /// The snapshot.
        lv: LvId,
        /// Its volume.
        of: LvId,
    },
    /// Make a thin LV with what another one has, tagged as ours and as not to be used yet.
    Clone {
        /// The new LV.
        lv: LvId,
        /// A volume, or a snapshot.
        from: LvId,
    },
    /// Make a thin LV larger: it reads as zeros there.
    Extend {
        /// The LV.
        lv: LvId,
        /// Its new size, in whole extents.
        size: ByteSize,
    },
}

impl VolumeOp {
    /// The LV that the step is about.
    pub const fn lv(&self) -> &LvId {
        match self {
            Self::Create { lv, .. }
            | Self::CheckImage { lv, .. }
            | Self::CreateForImage { lv, .. }
            | Self::Import { lv, .. }
            | Self::Upload { lv, .. }
            | Self::MarkImporting { lv }
            | Self::MarkImported { lv }
            | Self::Activate { lv }
            | Self::MarkUnzeroed { lv }
            | Self::Unmark { lv, .. }
            | Self::Zero { lv, .. }
            | Self::Discard { lv, .. }
            | Self::MarkZeroed { lv }
            | Self::Append { lv, .. }
            | Self::Rename { lv, .. }
            | Self::Own { lv }
            | Self::Retag { lv, .. }
            | Self::Disown { lv, .. }
            | Self::RemoveGrowth { lv }
            | Self::CloneForRevert { lv, .. }
            | Self::RemoveCopy { lv }
            | Self::RemoveReverted { lv, .. }
            | Self::Remove { lv }
            | Self::CreatePool { lv, .. }
            | Self::CreateThin { lv, .. }
            | Self::Snapshot { lv, .. }
            | Self::Clone { lv, .. }
            | Self::Extend { lv, .. } => lv,
        }
    }
}

impl fmt::Display for VolumeOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { lv, size } => write!(f, "create {lv} with {size}"),
            Self::CheckImage { image, size, .. } => write!(f, "see whether {image} fits in {size}"),
            Self::CreateForImage { lv, size, thin: false } => {
                write!(f, "create {lv} with {size} for an image")
            }
            Self::CreateForImage { lv, size, thin: true } => {
                write!(f, "create {lv} with {size} for an image in its thin pool")
            }
            Self::Import { lv, image, copied, .. } if copied.is_empty() => {
                write!(f, "copy {image} to {lv}")
            }
            Self::Import { lv, image, .. } => {
                write!(f, "copy {image} to {lv}, from where it was if that is the same file")
            }
            Self::Upload { lv, op, .. } => op.describe(f, lv),
            Self::MarkImporting { lv } => write!(f, "tag {lv} {LV_IMPORTING_TAG}"),
            Self::MarkImported { lv } => write!(f, "untag {lv} {LV_IMPORTING_TAG} {LV_UNZEROED_TAG}"),
            Self::Activate { lv } => write!(f, "activate {lv}"),
            Self::MarkUnzeroed { lv } => write!(f, "tag {lv} {LV_UNZEROED_TAG}"),
            Self::Unmark { lv, .. } => write!(f, "forget how far {lv} was zeroed or copied"),
            Self::Zero { lv, size, marks } => match zeroed_before(marks, *size) {
                ByteSize(0) => write!(f, "zero {size} of {lv}"),
                before => write!(f, "zero {size} of {lv}, of which {before} are"),
            },
            Self::Discard { lv, size } => write!(f, "discard {size} of {lv}"),
            Self::MarkZeroed { lv } => write!(f, "untag {lv} {LV_UNZEROED_TAG}"),
            Self::Append { lv, growth, size } => write!(f, "append {size} of {growth} to {lv}"),
            Self::Rename { lv, from, .. } => write!(f, "rename {from} to {lv}"),
            Self::Own { lv } => write!(f, "tag {lv} {LV_TAG}"),
            Self::Retag { lv, tags } => write!(f, "tag {lv} {} again", tags.join(" ")),
            Self::Disown { lv, .. } => write!(f, "untag {lv} {LV_TAG}"),
            Self::RemoveGrowth { lv } | Self::RemoveCopy { lv } | Self::Remove { lv } => {
                write!(f, "remove {lv}")
            }
            Self::RemoveReverted { lv, copy } => write!(f, "remove {lv}, which {copy} takes the place of"),
            Self::CreatePool { lv, size } => write!(f, "create the thin pool {lv} with {size}"),
            Self::CreateThin { lv, size } => write!(f, "create {lv} with {size} in its thin pool"),
            Self::Snapshot { lv, of } => write!(f, "take the snapshot {lv} of {of}"),
            Self::Clone { lv, from } | Self::CloneForRevert { lv, from, .. } => {
                write!(f, "make {lv} from {from}")
            }
            Self::Extend { lv, size } => write!(f, "extend {lv} to {size}"),
        }
    }
}

/// How much of an LV is zeroed already, as its marks say: each of them was true when it was written, and nobody has written to
/// the LV since.
pub(super) fn zeroed_before(marks: &[u64], size: ByteSize) -> ByteSize {
    let bytes = marks.iter().filter_map(|mib| mib.checked_mul(MIB));
    ByteSize(bytes.filter(|bytes| *bytes <= size.0).max().unwrap_or(0))
}

/// What has to be done so that `wanted` is what is seen.
pub fn plan(wanted: &Wanted, seen: &VolumesView, volume: VolumeId) -> Plan<VolumeOp> {
    let mut plan = Plan::default();
    match wanted {
        Wanted::Volume(spec) => plan_volume(&mut plan, (spec, false), Before::Nothing, seen, volume),
        Wanted::Reverted { spec, export_gone } => {
            plan_volume(&mut plan, (spec, *export_gone), Before::Nothing, seen, volume);
        }
        Wanted::Adopted(spec, lv) => plan_volume(&mut plan, (spec, false), Before::Adopted(lv), seen, volume),
        Wanted::Made { spec, export_gone } => {
            plan_volume(&mut plan, (spec, *export_gone), Before::Made, seen, volume);
        }
        Wanted::Doomed { export_gone } => doomed::plan_doomed(&mut plan, *export_gone, seen, volume),
        Wanted::Released { export_gone } => manage::plan_released(&mut plan, *export_gone, seen, volume),
        Wanted::Nothing => {}
    }
    if wanted.spec().is_some_and(|spec| spec.cut.is_some()) {
        cut::hold(&mut plan, format!("volume {volume}"));
    }
    plan
}

/// What is known of a volume's LV before anybody has looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before<'a> {
    Nothing,
    /// It was adopted under this name.
    Adopted(&'a LvName),
    /// It was whole.
    Made,
}

fn plan_volume(
    plan: &mut Plan<VolumeOp>,
    (spec, export_gone): (&VolumeSpec, bool),
    before: Before<'_>,
    seen: &VolumesView,
    volume: VolumeId,
) {
    if !seen.is_listed(&spec.group) {
        let why = format!(
            "the agent may not use volume group {}: its configuration lists {}; choose one of them, or add it there",
            spec.group,
            join(
                seen.groups()
                    .iter()
                    .map(|group| group.name.as_str())
                    .chain(seen.missing().iter().map(VgName::as_str))
            )
        );
        return plan.block(BlockedKind::Missing, format!("volume group {}", spec.group), why);
    }
    let Some(group) = seen.group(&spec.group) else {
        return plan.block(
            BlockedKind::Missing,
            format!("volume group {}", spec.group),
            absent(&spec.group, seen),
        );
    };
    if let Some(other) =
        seen.lvs_of(volume).iter().find(|other| other.group != spec.group.as_str() && other.is_tagged())
    {
        let why = format!(
            "it lies in volume group {}, and {} is wanted: a volume is not moved; change the spec, or move it by hand",
            other.group, spec.group
        );
        return plan.block(BlockedKind::Birth, format!("volume {volume}"), why);
    }
    let there = seen.lv_of(&spec.group, volume, spec.kind);
    let name = there.map_or_else(|| spec.lv(), |there| there.name.clone());
    let lv = LvId { group: spec.group.clone(), name };
    if let Before::Adopted(adopted) = before
        && there.is_none_or(|there| there.name != *adopted)
    {
        return block_lost(plan, &spec.group, adopted, volume);
    }
    if two_names(plan, spec, seen, volume) || retag::plan(plan, &lv, there) {
        return;
    }
    if matches!(before, Before::Adopted(_)) && spec.revert.is_some() {
        let why = "it was adopted, and its export keeps the LV that it had: make a volume from the snapshot";
        return plan.block(BlockedKind::Birth, format!("volume {volume}"), why);
    }
    if revert::plan(plan, &lv, spec, there, (seen, group), export_gone) {
        return;
    }
    if before == Before::Made && there.is_none() {
        return block_gone(plan, &lv, spec.kind);
    }
    if let Some(takes) = spec.takes.as_ref().filter(|_| there.is_none_or(|there| !there.is_tagged())) {
        return manage::plan_taking(plan, lv, spec, (takes, there), (seen, group));
    }
    match (there, spec.provisioning) {
        (Some(there), _) if !there.is_tagged() => block_foreign(plan, &lv),
        (Some(there), wanted) if there.thin != (wanted == Provisioning::Thin) => {
            let (is, want) = if there.thin { ("thin", "thick") } else { ("thick", "thin") };
            let why = format!("it is {is}, and a {want} one is wanted: it does not change; correct the spec");
            plan.block(BlockedKind::Birth, format!("volume {volume}"), why);
        }
        (there, Provisioning::Thin) => thin::plan(plan, lv, spec, seen, group, there),
        (None, Provisioning::Thick) => plan_new(plan, lv, spec, group),
        (Some(there), Provisioning::Thick) => plan_there(plan, lv, spec, seen, group, there),
    }
}

/// Nothing is made in the place of what was adopted: its data is somewhere else, or nowhere.
fn block_lost(plan: &mut Plan<VolumeOp>, group: &VgName, adopted: &LvName, volume: VolumeId) {
    let tag = lv_volume_tag(volume);
    let why = format!(
        "it was adopted as {group}/{adopted}, and no LV of that name has the tags {LV_TAG} and {tag}: if it is there, run \
         lvchange --addtag {LV_TAG} --addtag {tag} {group}/{adopted}; if it was renamed, name it as it was"
    );
    plan.block(BlockedKind::Missing, format!("volume {volume}"), why);
}

/// Nothing is made in the place of what was whole: it would be empty under the identity that hosts know. Whoever has renamed the LV
/// or has put an older state of the group back can undo it, and only if nobody has taken its blocks meanwhile.
fn block_gone(plan: &mut Plan<VolumeOp>, lv: &LvId, kind: VolumeKind) {
    let LvId { group, name } = lv;
    let what = match kind {
        VolumeKind::Volume => "volume",
        VolumeKind::Snapshot => "snapshot",
    };
    let why = format!(
        "the {what} was there and its LV is gone: it was renamed or removed by hand, or an older state of the group was put back. \
         Nothing was made in its place. Bring the LV back, and it is taken up as soon as it is there: lvs -o+lv_tags {group} \
         shows one that was renamed (lvrename {group} THAT {name}), vgcfgrestore --list {group} the states of the group from \
         before. If it is lost for good, delete the {what} and make it again"
    );
    plan.block(BlockedKind::Missing, format!("LV {lv}"), why);
}

/// Two LVs of ours in one group say that they are this volume: one by its name, another by its tag, or two by their tags.
fn two_names(plan: &mut Plan<VolumeOp>, spec: &VolumeSpec, seen: &VolumesView, volume: VolumeId) -> bool {
    let is = |lv: &&SeenLv| lv.group == spec.group.as_str() && lv.is_tagged() && !lv.snapshot;
    let names: Vec<_> = seen.lvs_of(volume).iter().filter(is).map(|lv| lv.name.as_str()).collect();
    if names.len() < 2 {
        return false;
    }
    let why = format!(
        "the LVs {} of {} each say that they are it: take the tag {} away from the one that is not",
        join(names.into_iter()),
        spec.group,
        lv_volume_tag(volume)
    );
    plan.block(BlockedKind::Foreign, format!("volume {volume}"), why);
    true
}

fn plan_new(plan: &mut Plan<VolumeOp>, lv: LvId, spec: &VolumeSpec, group: &SeenGroup) {
    let object = format!("volume group {}", group.name);
    if let Some(trouble) = &group.trouble {
        return plan.block(BlockedKind::Missing, object, trouble.clone());
    }
    let Some(size) = group.rounded(spec.size).filter(|size| *size <= group.available()) else {
        return block_full(plan, spec, spec.size, group);
    };
    if let Some(image) = &spec.image {
        return import::plan_new(plan, lv, size, image, false);
    }
    plan.step(VolumeOp::Create { lv: lv.clone(), size }, "it is not there");
    plan_zero(plan, lv, size, Vec::new());
}

/// What is missing, in bytes, of whatever is there for it.
struct Growing<'a> {
    lv: LvId,
    growth: LvId,
    missing: ByteSize,
    seen: Option<&'a SeenLv>,
}

fn plan_there(
    plan: &mut Plan<VolumeOp>,
    lv: LvId,
    spec: &VolumeSpec,
    seen: &VolumesView,
    group: &SeenGroup,
    there: &SeenLv,
) {
    let growth = seen.growth(&spec.group, spec.id);
    let missing = group.rounded(spec.size).and_then(|size| size.0.checked_sub(there.size.0));
    let Some(missing) = missing.map(ByteSize) else {
        return block_shrink(plan, spec, there.size);
    };
    if !there.active {
        plan.step(VolumeOp::Activate { lv: lv.clone() }, "it has no device");
    }
    if there.is_unzeroed() && (spec.image.is_some() || there.is_importing()) {
        return import::plan_again(plan, lv, spec, there);
    }
    if there.is_unzeroed() {
        return plan_zero(plan, lv, there.size, there.marks());
    }
    if !there.active {
        // It is served as it is before it grows.
        return;
    }
    let name = LvName::growth_of(spec.id);
    let growing = Growing { growth: LvId { group: spec.group.clone(), name }, lv, missing, seen: growth };
    plan_growth(plan, growing, spec, group);
}

fn plan_growth(plan: &mut Plan<VolumeOp>, growing: Growing<'_>, spec: &VolumeSpec, group: &SeenGroup) {
    let Growing { lv, growth, missing, seen } = growing;
    let mut available = group.available();
    match seen {
        Some(seen) if !seen.is_tagged() => {
            if missing.0 > 0 {
                block_foreign(plan, &growth);
            }
            return;
        }
        Some(seen) if seen.size == missing && missing.0 > 0 => {
            if !seen.active && seen.is_unzeroed() {
                plan.step(VolumeOp::Activate { lv: growth.clone() }, "it is zeroed through its device");
            }
            if seen.is_unzeroed() {
                plan_zero(plan, growth.clone(), missing, seen.marks());
            }
            let op = VolumeOp::Append { lv, growth, size: missing };
            return plan.step(op, "what it grows by is zeroed");
        }
        Some(seen) => {
            plan.step(VolumeOp::RemoveGrowth { lv: growth.clone() }, "it is not what is missing");
            available = ByteSize(available.0.saturating_add(seen.size.0));
        }
        None => {}
    }
    if missing.0 == 0 {
        return;
    }
    if let Some(trouble) = &group.trouble {
        return plan.block(BlockedKind::Missing, format!("volume group {}", group.name), trouble.clone());
    }
    if missing > available {
        return block_full(plan, spec, missing, group);
    }
    plan.step(VolumeOp::Create { lv: growth.clone(), size: missing }, "what the volume grows by");
    plan_zero(plan, growth.clone(), missing, Vec::new());
    plan.step(VolumeOp::Append { lv, growth, size: missing }, "what it grows by is zeroed");
}

pub(super) fn block_shrink(plan: &mut Plan<VolumeOp>, spec: &VolumeSpec, has: ByteSize) {
    let why =
        format!("it has {has} and only {} are wanted: a volume never shrinks; correct the spec", spec.size);
    plan.block(BlockedKind::Birth, format!("volume {}", spec.id), why);
}

fn block_full(plan: &mut Plan<VolumeOp>, spec: &VolumeSpec, wanted: ByteSize, group: &SeenGroup) {
    let reserve = match group.reserve.0 {
        0 => String::new(),
        _ => format!(" (beside a reserve of {})", group.reserve),
    };
    let more = if wanted == spec.size { "" } else { "more " };
    let why = format!(
        "{wanted} {more}are wanted for volume {} and {} of {} are free{reserve}: free some space, or extend the group",
        spec.id,
        group.available(),
        group.size
    );
    plan.block(BlockedKind::Full, format!("volume group {}", group.name), why);
}

fn plan_zero(plan: &mut Plan<VolumeOp>, lv: LvId, size: ByteSize, marks: Vec<u64>) {
    plan.step(VolumeOp::Zero { lv: lv.clone(), size, marks }, "its blocks may hold somebody's old data");
    plan.step(VolumeOp::MarkZeroed { lv }, "it is zeroed");
}

pub(super) fn block_foreign(plan: &mut Plan<VolumeOp>, lv: &LvId) {
    let why = format!(
        "an LV of this name is there without the tag {LV_TAG}: somebody else made it, and it is not touched; rename it, or \
         give it to Mooring with lvchange --addtag {LV_TAG} {lv}"
    );
    plan.block(BlockedKind::Foreign, format!("LV {lv}"), why);
}

pub(super) fn absent(group: &VgName, seen: &VolumesView) -> String {
    let there = seen
        .groups()
        .iter()
        .map(|group| group.name.as_str())
        .chain(seen.unlisted().iter().map(String::as_str));
    format!(
        "volume group {group} is not on this host (there is {}); see pvs, vgscan and the disks",
        join(there)
    )
}

pub(super) fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// What is seen of a volume, beside what is wanted. Progress of a zeroing is the caller's to add.
pub fn report(wanted: &Wanted, seen: &VolumesView, volume: VolumeId) -> VolumeReport {
    let plan = plan(wanted, seen, volume);
    let there = match wanted.spec() {
        Some(spec) => seen.lv_of(&spec.group, volume, spec.kind),
        None => seen.lvs_of(volume).iter().find(|lv| lv.is_tagged()),
    };
    let robbed = wanted.spec().and(there).and_then(retag::problem);
    let lv = there.filter(|lv| lv.is_tagged() && robbed.is_none());
    let phase = match (wanted, wanted.spec(), lv) {
        // What is only too small is whole, whatever is in the way of its growth.
        (_, Some(spec), Some(lv)) if lv.is_ready() && lv.size < spec.size => Phase::Ready,
        // The same of what is only not reverted.
        (_, Some(spec), Some(lv)) if lv.is_ready() && spec.revert.is_some() => Phase::Ready,
        (_, Some(_), _) if !plan.blocked.is_empty() || robbed.is_some() => Phase::Failed,
        (_, Some(_), Some(lv)) if lv.is_ready() => Phase::Ready,
        (_, Some(_), Some(lv)) if lv.snapshot && !lv.is_unzeroed() => Phase::Ready,
        (_, Some(_), _) => Phase::Creating,
        (Wanted::Nothing, None, Some(_)) => Phase::Orphan,
        (Wanted::Nothing, None, None) => Phase::Gone,
        (_, None, None) if plan.is_quiet() => Phase::Gone,
        (_, None, _) => Phase::Deleting,
    };
    let group = match (lv, wanted.spec()) {
        (Some(lv), _) => lv.group.clone(),
        (None, Some(spec)) => spec.group.to_string(),
        (None, None) => String::new(),
    };
    VolumeReport {
        id: volume,
        phase,
        group,
        size: lv.map_or(ByteSize(0), |lv| lv.size),
        device: lv
            .filter(|lv| lv.active)
            .map(|lv| device_path(&lv.group, lv.name.as_str()).display().to_string()),
        zeroed: None,
        problems: plan.blocked.iter().map(Problem::from).chain(robbed).collect(),
        reverted: lv.and_then(SeenLv::reverted),
        uploaded: None,
        // The LV's own table is the engine's to look at.
        cut: Cut::No,
    }
}
