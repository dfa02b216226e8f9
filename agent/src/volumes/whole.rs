//! What is remembered of an LV that LVM has shown whole, so that a start need not wait for LVM: device-mapper's own words are
//! enough to prove that a device is that LV.
//!
//! LVM's identity of an LV and of its group stand in the name that the kernel has of the LV's device (`dm/uuid`). LVM gives an identity
//! once: an LV that somebody has made anew under the same name has another one. What the name does not tell is what the LV's
//! tags say, that it is ours and zeroed. That is remembered with the generation of the volume's wish: this agent makes nothing
//! unready but for a wish that came after, which is durable before anything is touched, and makes what was remembered void.
//!
//! Of thin volumes and snapshots only the identity is of use, for tags that somebody takes from them ([`super::retag`]).
//!
//! What must never happen here: anything remembered of a volume that LVM does not show whole; a device taken for an LV by its
//! node's name; a volume said to be whole that is wanted otherwise than it was then.

use mooring_host::Mapped;
use mooring_model::{
    ByteSize, Cut, LvName, Phase, Provisioning, RevertId, VgName, VolumeId, VolumeKind, VolumeReport,
    VolumeSpec,
};

use super::view::VolumesView;
use super::{Wanted, device_path, plan, report};

/// Characters of an identity of LVM's without its dashes.
const UUID_CHARS: usize = 32;

/// An LV as LVM showed it when it was whole: ours, with a device, zeroed, as large as wanted, and nothing left to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// What device-mapper calls its device.
    pub mapping: String,
    /// Its size.
    pub size: ByteSize,
    /// The revert that made it.
    pub reverted: Option<RevertId>,
}

/// What a look at LVM says of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// It is whole.
    Whole(Whole),
    /// It is not, or not as it is wanted.
    NotWhole,
    /// Its group is not there, it has no device, or somebody took tags from it: what was remembered is as true as before, and of no use until it has.
    Nothing,
}

/// Why a volume waits for LVM whatever device-mapper says, if so.
pub fn waits_for_lvm(spec: &VolumeSpec) -> Option<&'static str> {
    if spec.kind != VolumeKind::Volume {
        Some("a snapshot has no device")
    } else if spec.provisioning != Provisioning::Thick {
        // Whether its pool zeroes what it gives, only LVM tells.
        Some("its blocks are of a thin pool")
    } else if spec.cut.is_some() {
        Some("it is to be cut off")
    } else if spec.upload.is_some() {
        Some("it is copied to a file")
    } else {
        None
    }
}

/// What `seen` says of the LV of this volume.
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
    if !lv.robbed.is_empty() {
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

/// Whether a volume is whole by what is remembered and by what device-mapper says of its device: then what LVM would say of it.
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

/// What [`report`] says of an LV that is so.
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

/// What device-mapper calls the device of an LV, by LVM's identities of the group and the LV. `None`: they are not in the form
/// that LVM gives them.
pub(super) fn mapping(group: &str, lv: &str) -> Option<String> {
    let plain = |uuid: &str| {
        let plain: String = uuid.chars().filter(|c| *c != '-').collect();
        (plain.len() == UUID_CHARS && plain.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(plain)
    };
    Some(format!("LVM-{}{}", plain(group)?, plain(lv)?))
}

#[cfg(test)]
mod tests;
