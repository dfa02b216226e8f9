//! Plans the steps that lead one volume from its view to its spec. Pure.
//!
//! A volume grows by extents that are zeroed before they become its own. They are taken as an LV
//! beside it, the *growth*, which no host is ever given. It is zeroed like a new volume, and only
//! then appended. The volume stays complete and served all the while.
//!
//! What must never happen here: a removal of an LV that is not doomed; a zeroing or a discard of an
//! LV that is not tagged for it; a discard of what is not doomed; a step on an LV without our tag
//! or outside of the listed groups; extents appended that may hold somebody's old data; a mark of
//! how far an LV is zeroed left on it while it is written or discarded; a part of an image taken
//! for a volume.

use std::fmt;

use mooring_model::{
    BlockedKind, ByteSize, Cut, ImageSource, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG, LvName, Phase, Plan,
    Problem, Provisioning, RevertId, Source, VgName, VolumeId, VolumeKind, VolumeReport, VolumeSpec,
    lv_volume_tag,
};

use super::import::Copied;
use super::upload::UploadOp;
use super::view::{SeenGroup, SeenLv, VolumesView};
use super::{device_path, doomed, import, isolate, manage, retag, revert, thin};
use crate::images::PartId;

/// Bytes that one unit of a mark stands for.
pub(super) const MIB: u64 = 1 << 20;

/// Desired state of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The volume exists, active and zeroed.
    Volume(VolumeSpec),
    /// As `Volume`, adopted as the LV of this name: the LV is never created.
    Adopted(VolumeSpec, LvName),
    /// As `Volume`, with the data of the snapshot from when the revert was done.
    Reverted {
        /// The spec, which has a revert.
        spec: VolumeSpec,
        /// `true` once nothing of its export is in the kernel. Until then its LV stays.
        export_gone: bool,
    },
    /// As `Volume`, for one that was completed before, with a revert or without. Hosts may have
    /// written to the LV, so it is never recreated.
    Made {
        /// The current spec.
        spec: VolumeSpec,
        /// `true` once nothing of its export is in the kernel. Until then a revert waits.
        export_gone: bool,
    },
    /// The volume is deleted, with its data.
    Doomed {
        /// `true` once nothing of its export is in the kernel. Until then nothing is done.
        export_gone: bool,
    },
    /// The volume is unmanaged: from now on it is nobody's, with its data.
    Released {
        /// `true` once nothing of its export is in the kernel. Until then nothing is done.
        export_gone: bool,
    },
    /// No spec names the volume: its LV stays, as an orphan.
    Nothing,
}

impl Wanted {
    /// Returns what the view must contain beside the volume's own LVs.
    pub fn beside(&self) -> Beside {
        match self {
            // The adopted LV is looked up by its name, too: somebody may have removed its tags.
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

/// Objects that a view must contain beside a volume's own LVs, so that the volume can be planned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beside {
    /// The volume or snapshot that it is made from, or the snapshot that it is reverted to.
    pub source: Option<Source>,
    /// Earlier name of the LV that it takes over, or the name that it was adopted under.
    pub takes: Option<LvName>,
}

impl Beside {
    /// Returns the objects that this spec names.
    pub fn of(spec: &VolumeSpec) -> Self {
        let reverts_to = spec.revert.map(|revert| Source::Snapshot(revert.snapshot));
        Self {
            source: reverts_to.or(spec.source),
            takes: spec.takes.as_ref().map(|takes| takes.name.clone()),
        }
    }
}

/// One of our LVs, or one that is to become ours. Its name is made from a volume's id and nothing
/// else, or is the one that it had when it was adopted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LvId {
    /// Volume group, which the configuration lists.
    pub group: VgName,
    /// Name.
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
    /// Creates the LV, tagged as ours and as not zeroed, in one command.
    Create {
        /// The LV.
        lv: LvId,
        /// Size, in whole extents.
        size: ByteSize,
    },
    /// Checks that an image can be copied into this many bytes. Changes nothing.
    CheckImage {
        /// The LV that the image is for.
        lv: LvId,
        /// The image.
        image: ImageSource,
        /// Size of the LV.
        size: ByteSize,
    },
    /// Creates the LV for an image, tagged as ours, as not zeroed and as an import, in one command.
    CreateForImage {
        /// The LV.
        lv: LvId,
        /// Size, in whole extents.
        size: ByteSize,
        /// `true` if the LV lies in the thin pool.
        thin: bool,
    },
    /// Copies an image into the LV, and zeros behind it, from the first block to the last.
    Import {
        /// The LV.
        lv: LvId,
        /// Size in bytes.
        size: ByteSize,
        /// `true` if the LV lies in the thin pool.
        thin: bool,
        /// The image.
        image: ImageSource,
        /// How far copies of this image, or of others, had come before, as the LV's tags say.
        copied: Vec<Copied>,
    },
    /// Executes a step of the LV's copy to a file.
    Upload {
        /// The LV, which is only read.
        lv: LvId,
        /// Id of the copy.
        part: PartId,
        /// The step.
        op: UploadOp,
    },
    /// Tags the LV as one that an image is copied into.
    MarkImporting {
        /// The LV.
        lv: LvId,
    },
    /// Removes the tags of an incomplete LV: from here on the LV is usable.
    MarkImported {
        /// The LV.
        lv: LvId,
    },
    /// Gives the LV a device.
    Activate {
        /// The LV.
        lv: LvId,
    },
    /// Tags the LV as not zeroed: from here on it is not usable, and may be zeroed.
    MarkUnzeroed {
        /// The LV.
        lv: LvId,
    },
    /// Removes the marks of an earlier zeroing or copy: from here on the LV may hold anything.
    Unmark {
        /// The LV.
        lv: LvId,
        /// Marks of a zeroing, in MiB.
        marks: Vec<u64>,
        /// Marks of copies.
        copied: Vec<Copied>,
    },
    /// Zeroes all blocks of the LV.
    Zero {
        /// The LV.
        lv: LvId,
        /// Size in bytes.
        size: ByteSize,
        /// How far the zeroing had come before, in MiB, as the LV's tags say.
        marks: Vec<u64>,
    },
    /// Discards all blocks of the LV; zeroes them where its disk takes no discards.
    Discard {
        /// The LV.
        lv: LvId,
        /// Size in bytes.
        size: ByteSize,
    },
    /// Removes the tag of an LV that is not zeroed: from here on the LV is usable.
    MarkZeroed {
        /// The LV.
        lv: LvId,
    },
    /// Appends the zeroed growth to the volume.
    Append {
        /// The volume's LV.
        lv: LvId,
        /// The growth, which is no LV afterwards.
        growth: LvId,
        /// Size in bytes.
        size: ByteSize,
    },
    /// Removes a growth. Nobody ever wrote to it.
    RemoveGrowth {
        /// The growth.
        lv: LvId,
    },
    /// Creates a thin LV with the data of a snapshot, tagged as ours, as unfinished, and with its
    /// revert.
    CloneForRevert {
        /// The copy.
        lv: LvId,
        /// The snapshot.
        from: LvId,
        /// The revert.
        revert: RevertId,
    },
    /// Removes a copy that takes no volume's place. Nobody ever wrote to it.
    RemoveCopy {
        /// The copy.
        lv: LvId,
    },
    /// Removes the LV of a volume that is reverted. LVM refuses while anybody holds it open.
    RemoveReverted {
        /// The volume's LV.
        lv: LvId,
        /// The finished copy that takes the LV's place.
        copy: LvId,
    },
    /// Gives somebody's LV the name of the volume that it becomes.
    Rename {
        /// The volume's LV.
        lv: LvId,
        /// Present name of the LV.
        from: LvId,
        /// UUID that LVM gave the LV.
        uuid: String,
    },
    /// Tags the LV as ours: from here on it is the volume.
    Own {
        /// The LV.
        lv: LvId,
    },
    /// Gives the LV the tags back that somebody removed.
    Retag {
        /// The LV.
        lv: LvId,
        /// The tags.
        tags: Vec<String>,
    },
    /// Removes our tag: from here on the LV is nobody's.
    Disown {
        /// The LV.
        lv: LvId,
        /// The volume that the LV was: an adopted one carries a tag with its id.
        volume: VolumeId,
    },
    /// Removes the LV.
    Remove {
        /// The LV.
        lv: LvId,
    },
    /// Creates the group's thin pool.
    CreatePool {
        /// The pool.
        lv: LvId,
        /// Size of the data, in whole extents. LVM adds its metadata, twice.
        size: ByteSize,
    },
    /// Creates a thin LV, which reads as zeros, tagged as ours.
    CreateThin {
        /// The LV.
        lv: LvId,
        /// Size, in whole extents.
        size: ByteSize,
    },
    /// Takes a snapshot: it has the volume's data of that moment, and no device.
    Snapshot {
        /// The snapshot.
        lv: LvId,
        /// The volume.
        of: LvId,
    },
    /// Creates a thin LV with the data of another one, tagged as ours and as not usable yet.
    Clone {
        /// The new LV.
        lv: LvId,
        /// A volume or a snapshot.
        from: LvId,
    },
    /// Enlarges a thin LV: it reads as zeros there.
    Extend {
        /// The LV.
        lv: LvId,
        /// New size, in whole extents.
        size: ByteSize,
    },
}

impl VolumeOp {
    /// Returns the LV that the step works on.
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

/// Returns how much of an LV is zeroed already. Each mark was true when it was written, and nobody
/// has written to the LV since.
pub(super) fn zeroed_before(marks: &[u64], size: ByteSize) -> ByteSize {
    let bytes = marks.iter().filter_map(|mib| mib.checked_mul(MIB));
    ByteSize(bytes.filter(|bytes| *bytes <= size.0).max().unwrap_or(0))
}

/// Plans the steps that lead from the view `seen` to the desired state `wanted`.
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
        isolate::hold(&mut plan, format!("volume {volume}"));
    }
    plan
}

/// Facts known of a volume's LV before any view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before<'a> {
    Nothing,
    /// The LV was adopted under this name.
    Adopted(&'a LvName),
    /// The LV was completed.
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
                    .chain(seen.unread_groups().map(|(group, _)| group.as_str()))
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
            "it lies in volume group {}, and its spec names {}: no volume is moved; change the spec, or move it by hand",
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
        let why = "it was adopted, and its export keeps its LV, so it cannot be reverted: make a volume from the snapshot";
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
            let why = format!("it is {is}, and its spec says {want}: that cannot change; correct the spec");
            plan.block(BlockedKind::Birth, format!("volume {volume}"), why);
        }
        (there, Provisioning::Thin) => thin::plan(plan, lv, spec, seen, group, there),
        (None, Provisioning::Thick) => plan_new(plan, lv, spec, group),
        (Some(there), Provisioning::Thick) => plan_there(plan, lv, spec, seen, group, there),
    }
}

/// Blocks the plan of an adopted volume whose LV is gone. No LV replaces it: the data is somewhere
/// else, or nowhere.
fn block_lost(plan: &mut Plan<VolumeOp>, group: &VgName, adopted: &LvName, volume: VolumeId) {
    let tag = lv_volume_tag(volume);
    let why = format!(
        "it was adopted as {group}/{adopted}, and no LV of that name has the tags {LV_TAG} and {tag}: if it is there, run \
         lvchange --addtag {LV_TAG} --addtag {tag} {group}/{adopted}; if it was renamed, name it as it was"
    );
    plan.block(BlockedKind::Missing, format!("volume {volume}"), why);
}

/// Blocks the plan of a completed volume whose LV is gone. No LV replaces it: it would be empty
/// under the identity that hosts know.
///
/// Whoever has renamed the LV, or has put an older state of the group back, can undo that, but only
/// if nobody has taken its blocks meanwhile.
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

/// Returns `true`, and blocks the plan, if two LVs of ours in the group claim to be this volume: by
/// its name and by a tag, or by two tags.
fn two_names(plan: &mut Plan<VolumeOp>, spec: &VolumeSpec, seen: &VolumesView, volume: VolumeId) -> bool {
    let is = |lv: &&SeenLv| lv.group == spec.group.as_str() && lv.is_tagged() && !lv.snapshot;
    let names: Vec<_> = seen.lvs_of(volume).iter().filter(is).map(|lv| lv.name.as_str()).collect();
    if names.len() < 2 {
        return false;
    }
    let why = format!(
        "the LVs {} of volume group {} carry the tag of this volume: remove the tag {} from the wrong one",
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

/// Growth of a volume's LV. `missing` is in bytes; `seen` is the growth if it exists.
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
        // The volume is activated and served before it grows.
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
            plan.step(VolumeOp::RemoveGrowth { lv: growth.clone() }, "its size is not what the volume lacks");
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
    let why = format!(
        "it has {has}, and its spec says only {}: a volume never shrinks; correct the spec",
        spec.size
    );
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

/// Says why nothing is known of a listed group: LVM cannot read it, or it is missing.
pub(super) fn absent(group: &VgName, seen: &VolumesView) -> String {
    if let Some(unread) = seen.unread(group) {
        return unread.said.clone();
    }
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

/// Reports the state of a volume. The caller adds the progress of a zeroing.
pub fn report(wanted: &Wanted, seen: &VolumesView, volume: VolumeId) -> VolumeReport {
    let plan = plan(wanted, seen, volume);
    let there = match wanted.spec() {
        Some(spec) => seen.lv_of(&spec.group, volume, spec.kind),
        None => seen.lvs_of(volume).iter().find(|lv| lv.is_tagged()),
    };
    let lost = wanted.spec().and(there).and_then(retag::problem);
    let lv = there.filter(|lv| lv.is_tagged() && lost.is_none());
    // A plan that is blocked says it itself.
    let full = lv.filter(|_| wanted.spec().is_some() && plan.blocked.is_empty()).and_then(|lv| {
        let group = seen.groups().iter().find(|group| group.name.as_str() == lv.group)?;
        group.problem_of(lv)
    });
    let phase = match (wanted, wanted.spec(), lv) {
        // An LV that is only too small is complete, whatever keeps it from growing.
        (_, Some(spec), Some(lv)) if lv.is_ready() && lv.size < spec.size => Phase::Ready,
        // An LV that only lacks its revert is complete, too.
        (_, Some(spec), Some(lv)) if lv.is_ready() && spec.revert.is_some() => Phase::Ready,
        (_, Some(_), _) if !plan.blocked.is_empty() || lost.is_some() => Phase::Failed,
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
        problems: plan.blocked.iter().map(Problem::from).chain(lost).chain(full).collect(),
        reverted: lv.and_then(SeenLv::reverted),
        uploaded: None,
        // The engine looks at the LV's own table.
        cut: Cut::No,
    }
}
