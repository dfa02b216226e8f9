//! What there is: the groups that the configuration lists, and their LVs.

use std::collections::{BTreeMap, BTreeSet};

use mooring_host::Commands;
use mooring_model::{ByteSize, LV_TAG, LV_UNZEROED_TAG, LvName, VgName, VolumeId};

use super::error::Error;
use super::lvm::{Lvm, RawLv, RawVg, group_name};
use crate::config::{self, Wipe};

/// A listed group that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenGroup {
    /// Its name.
    pub name: VgName,
    /// Its size.
    pub size: ByteSize,
    /// What LVM has not given away.
    pub free: ByteSize,
    /// What of that is not for us, by configuration.
    pub reserve: ByteSize,
    /// What a deletion does to the blocks, by configuration.
    pub wipe: Wipe,
    /// LVM's unit of allocation.
    pub extent: ByteSize,
    /// Why no LV can be made in it, if so.
    pub trouble: Option<String>,
}

impl SeenGroup {
    /// What a new volume may take.
    pub const fn available(&self) -> ByteSize {
        ByteSize(self.free.0.saturating_sub(self.reserve.0))
    }

    /// The size that LVM makes of this one: whole extents. `None`: beyond all numbers.
    pub fn rounded(&self, size: ByteSize) -> Option<ByteSize> {
        size.0.checked_next_multiple_of(self.extent.0.max(1)).map(ByteSize)
    }
}

/// An LV in a listed group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenLv {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// LVM's identity of it.
    pub uuid: String,
    /// Its size.
    pub size: ByteSize,
    /// Its tags.
    pub tags: BTreeSet<String>,
    /// It has a device.
    pub active: bool,
    /// Its device is open, by whomever: an export, a mount, or udev for a moment.
    pub open: bool,
}

impl SeenLv {
    /// It carries our tag.
    pub fn is_tagged(&self) -> bool {
        self.tags.contains(LV_TAG)
    }

    /// Its blocks must not be shown to anybody.
    pub fn is_unzeroed(&self) -> bool {
        self.tags.contains(LV_UNZEROED_TAG)
    }

    /// It may be exported.
    pub fn is_ready(&self) -> bool {
        self.is_tagged() && self.active && !self.is_unzeroed()
    }
}

/// What `lvm` shows of the listed groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumesView {
    /// Listed groups that are there.
    groups: Vec<SeenGroup>,
    /// Listed groups that are not there.
    missing: Vec<VgName>,
    /// Groups that are there and not listed, for messages.
    unlisted: Vec<String>,
    /// LVs of the listed groups that have a name of ours, tagged or not.
    lvs: BTreeMap<VolumeId, Vec<SeenLv>>,
    /// The same of what volumes are to grow by.
    growths: BTreeMap<VolumeId, Vec<SeenLv>>,
}

impl VolumesView {
    /// Listed groups that are there.
    pub fn groups(&self) -> &[SeenGroup] {
        &self.groups
    }

    /// Listed groups that are not there.
    pub fn missing(&self) -> &[VgName] {
        &self.missing
    }

    /// Groups that are there and that the configuration does not list.
    pub fn unlisted(&self) -> &[String] {
        &self.unlisted
    }

    /// The listed group of this name, if it is there.
    pub fn group(&self, name: &VgName) -> Option<&SeenGroup> {
        self.groups.iter().find(|group| &group.name == name)
    }

    /// Whether the configuration lists this group.
    pub fn is_listed(&self, name: &VgName) -> bool {
        self.group(name).is_some() || self.missing.contains(name)
    }

    /// The LV of this name in this group: ours, or somebody else's under our name.
    pub fn lv(&self, group: &VgName, volume: VolumeId) -> Option<&SeenLv> {
        self.lvs_of(volume).iter().find(|lv| lv.group == group.as_str())
    }

    /// The LVs of this volume's name in all listed groups.
    pub fn lvs_of(&self, volume: VolumeId) -> &[SeenLv] {
        self.lvs.get(&volume).map(Vec::as_slice).unwrap_or_default()
    }

    /// What this volume is to grow by, in this group: ours, or somebody else's under our name.
    pub fn growth(&self, group: &VgName, volume: VolumeId) -> Option<&SeenLv> {
        self.growths_of(volume).iter().find(|lv| lv.group == group.as_str())
    }

    /// What this volume is to grow by, in all listed groups.
    pub fn growths_of(&self, volume: VolumeId) -> &[SeenLv] {
        self.growths.get(&volume).map(Vec::as_slice).unwrap_or_default()
    }

    /// The part of it that is one volume's.
    #[must_use]
    pub fn of(&self, volume: VolumeId) -> Self {
        let part = |lvs: &BTreeMap<VolumeId, Vec<SeenLv>>| {
            lvs.get(&volume).map(|lvs| (volume, lvs.clone())).into_iter().collect()
        };
        Self {
            groups: self.groups.clone(),
            missing: self.missing.clone(),
            unlisted: self.unlisted.clone(),
            lvs: part(&self.lvs),
            growths: part(&self.growths),
        }
    }

    /// All LVs of ours that hold volumes, by volume.
    pub fn ours(&self) -> impl Iterator<Item = &SeenLv> {
        self.lvs.values().flatten().filter(|lv| lv.is_tagged())
    }

    /// The volumes of ours in a group.
    pub fn count_in(&self, group: &VgName) -> usize {
        self.ours().filter(|lv| lv.group == group.as_str()).count()
    }

    /// What the volumes of ours in a group take.
    pub fn bytes_in(&self, group: &VgName) -> ByteSize {
        ByteSize(self.ours().filter(|lv| lv.group == group.as_str()).map(|lv| lv.size.0).sum())
    }
}

/// Looks at everything: two commands, however many LVs there are.
pub fn view(commands: &dyn Commands, groups: &[config::Group]) -> Result<VolumesView, Error> {
    let lvm = Lvm(commands);
    let mut view = groups_of(&lvm, groups)?;
    if !view.groups.is_empty() {
        for raw in lvm.lvs()? {
            view.take(raw);
        }
    }
    Ok(view)
}

/// Looks at one volume, and at the groups: what is read does not grow with the number of volumes.
pub fn view_one(
    commands: &dyn Commands,
    groups: &[config::Group],
    volume: VolumeId,
) -> Result<VolumesView, Error> {
    let lvm = Lvm(commands);
    let mut view = groups_of(&lvm, groups)?;
    let names: Vec<_> = view.groups.iter().map(|group| group.name.clone()).collect();
    for group in names {
        for raw in lvm.lvs_named(&group, &[LvName::of(volume), LvName::growth_of(volume)])? {
            view.take(raw);
        }
    }
    Ok(view)
}

fn groups_of(lvm: &Lvm<'_>, listed: &[config::Group]) -> Result<VolumesView, Error> {
    let raw = lvm.groups()?;
    let mut view = VolumesView::default();
    for group in listed {
        let same: Vec<_> = raw.iter().filter(|raw| raw.name == group.name.as_str()).collect();
        match same.as_slice() {
            [] => view.missing.push(group.name.clone()),
            [first, others @ ..] => view.groups.push(seen_group(group, first, others)),
        }
    }
    let is_listed = |name: &str| group_name(name).is_some_and(|name| view.is_listed(&name));
    let unlisted: BTreeSet<_> =
        raw.iter().map(|raw| &raw.name).filter(|name| !is_listed(name)).cloned().collect();
    view.unlisted = unlisted.into_iter().collect();
    Ok(view)
}

fn seen_group(listed: &config::Group, raw: &RawVg, others: &[&RawVg]) -> SeenGroup {
    let name = &listed.name;
    // vg_attr(8): w/r, resizeable, exported, partial, policy, clustered or shared.
    let attr = |index: usize| raw.attr.as_bytes().get(index).copied();
    let trouble = if let Some(other) = others.first() {
        Some(format!(
            "two volume groups are named {name} ({} and {}): rename one with vgrename UUID NEWNAME",
            raw.uuid, other.uuid
        ))
    } else if attr(2) == Some(b'x') {
        Some(format!("volume group {name} is exported: run vgimport {name}"))
    } else if attr(3) == Some(b'p') {
        Some(format!("a disk of volume group {name} is missing: see pvs and vgreduce(8)"))
    } else if attr(0) == Some(b'r') {
        Some(format!("volume group {name} is read-only: run vgchange --permission rw {name}"))
    } else {
        None
    };
    SeenGroup {
        name: name.clone(),
        size: ByteSize(raw.size),
        free: ByteSize(raw.free),
        reserve: listed.reserve,
        wipe: listed.wipe,
        extent: ByteSize(raw.extent),
        trouble,
    }
}

impl VolumesView {
    /// Keeps an LV of a listed group that has a name of ours.
    fn take(&mut self, raw: RawLv) {
        let (volume, growth) = match (LvName::volume(&raw.name), LvName::growing(&raw.name)) {
            // The canonical name only: an id in upper case parses, and is another LV.
            (Some(volume), _) if LvName::of(volume).as_str() == raw.name => (volume, false),
            (_, Some(volume)) if LvName::growth_of(volume).as_str() == raw.name => (volume, true),
            _ => return,
        };
        if !self.groups.iter().any(|group| group.name.as_str() == raw.group) {
            return;
        }
        let tags = raw.tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        let lvs = if growth { &mut self.growths } else { &mut self.lvs };
        lvs.entry(volume).or_default().push(SeenLv {
            name: raw.name,
            group: raw.group,
            uuid: raw.uuid,
            size: ByteSize(raw.size),
            tags,
            active: raw.active.starts_with("active"),
            open: raw.open == "open",
        });
    }
}
