//! Memory of LVs that LVM has shown complete. With it, a start need not wait for LVM:
//! device-mapper's answer is enough to prove that a device is that LV.
//!
//! The name that the kernel has of the LV's device (`dm/uuid`) contains LVM's UUIDs of the LV and
//! of its group. LVM gives a UUID once: an LV that somebody made anew under the same name has
//! another one. The name does not tell what the LV's tags say, that it is ours and zeroed. The
//! agent remembers that with the generation of the volume's spec. It makes an LV unready only for a
//! later spec; that spec is durable before anything is touched, and voids the memory.
//!
//! For thin volumes and snapshots only the UUID is of use, for tags that somebody removes from them
//! ([`super::retag`]).
//!
//! What must never happen here: a memory of a volume that LVM does not show complete; a device
//! taken for an LV by its node's name; a volume reported complete whose spec differs from the one
//! at that time.

use mooring_host::Mapped;
use mooring_model::{
    ByteSize, Cut, LvName, Phase, Provisioning, RevertId, VgName, VolumeId, VolumeKind, VolumeReport,
    VolumeSpec,
};

use super::view::VolumesView;
use super::{Wanted, device_path, plan, report};

/// Number of characters of LVM's UUID without its dashes.
const UUID_CHARS: usize = 32;

/// A complete LV as LVM showed it: ours, with a device, zeroed, as large as its spec, and nothing
/// left to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// UUID of the LV's device in device-mapper.
    pub mapping: String,
    /// Size in bytes.
    pub size: ByteSize,
    /// The revert that made the LV. `None` if none did.
    pub reverted: Option<RevertId>,
}

/// Result of a view for what is remembered of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// The LV is complete.
    Whole(Whole),
    /// The LV is incomplete, or differs from its spec.
    NotWhole,
    /// The group is missing, the LV has no device, or somebody removed its tags. The memory stays
    /// true, and is of no use until that is mended.
    Nothing,
}

/// Returns why a volume must wait for LVM, whatever device-mapper says. `None` if it need not.
pub fn waits_for_lvm(spec: &VolumeSpec) -> Option<&'static str> {
    if spec.kind != VolumeKind::Volume {
        Some("a snapshot has no device")
    } else if spec.provisioning != Provisioning::Thick {
        // Only LVM tells whether the pool zeroes its blocks.
        Some("its blocks are of a thin pool")
    } else if spec.cut.is_some() {
        Some("it is to be cut off")
    } else if spec.upload.is_some() {
        Some("it is copied to a file")
    } else {
        None
    }
}

/// Derives what a view says of the LV of this volume.
pub fn shown(wanted: &Wanted, seen: &VolumesView, volume: VolumeId) -> Shown {
    let (Wanted::Volume(spec)
    | Wanted::Adopted(spec, _)
    | Wanted::Reverted { spec, .. }
    | Wanted::Made { spec, .. }) = wanted
    else {
        return Shown::NotWhole;
    };
    if spec.cut.is_some() || spec.upload.is_some() {
        return Shown::NotWhole;
    }
    let Some(group) = seen.group(&spec.group) else { return Shown::Nothing };
    let Some(lv) = seen.lv_of(&spec.group, volume, spec.kind) else { return Shown::NotWhole };
    if !lv.lost_tags.is_empty() {
        // It is the very LV that is remembered.
        return Shown::Nothing;
    }
    if !lv.is_tagged() || lv.is_unzeroed() || lv.altered || group.trouble.is_some() {
        return Shown::NotWhole;
    }
    if !lv.active && spec.kind == VolumeKind::Volume {
        return Shown::Nothing;
    }
    let reverted = spec.revert.is_none_or(|revert| lv.reverted() == Some(revert.id));
    let ready = report(wanted, seen, volume).phase == Phase::Ready && plan(wanted, seen, volume).is_quiet();
    match (mapping(&group.uuid, &lv.uuid), ready && reverted && lv.size >= spec.size) {
        (Some(mapping), true) => Shown::Whole(Whole { mapping, size: lv.size, reverted: lv.reverted() }),
        _ => Shown::NotWhole,
    }
}

/// Returns the report that LVM would lead to, if memory and device-mapper prove that the volume is
/// complete. `None` if they do not.
pub fn is_whole(
    spec: &VolumeSpec,
    lv: &LvName,
    remembered: &Whole,
    device: Option<&Mapped>,
) -> Option<VolumeReport> {
    let same = device.is_some_and(|device| {
        device.uuid == remembered.mapping && device.size == remembered.size.0 && !device.suspended
    });
    let reverted = spec.revert.is_none_or(|revert| remembered.reverted == Some(revert.id));
    let wanted = waits_for_lvm(spec).is_none() && remembered.size >= spec.size && reverted;
    (same && wanted).then(|| ready(spec.id, &spec.group, lv, remembered))
}

/// Returns what [`report`] says of such an LV.
fn ready(id: VolumeId, group: &VgName, lv: &LvName, remembered: &Whole) -> VolumeReport {
    VolumeReport {
        id,
        phase: Phase::Ready,
        group: group.to_string(),
        size: remembered.size,
        device: Some(device_path(group.as_str(), lv.as_str()).display().to_string()),
        zeroed: None,
        problems: Vec::new(),
        reverted: remembered.reverted,
        uploaded: None,
        cut: Cut::No,
    }
}

/// Builds the UUID that device-mapper has of an LV's device, from LVM's UUIDs of the group and the
/// LV. `None` if these are not in the form that LVM gives them.
pub(super) fn mapping(group: &str, lv: &str) -> Option<String> {
    let plain = |uuid: &str| {
        let plain: String = uuid.chars().filter(|c| *c != '-').collect();
        (plain.len() == UUID_CHARS && plain.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(plain)
    };
    Some(format!("LVM-{}{}", plain(group)?, plain(lv)?))
}

#[cfg(test)]
mod tests;
