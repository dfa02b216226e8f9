//! View of LVM: the groups that the configuration lists, and their LVs.

mod groups;
mod pool;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use mooring_host::Commands;
use mooring_model::{
    ByteSize, Chain, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG, LV_ZEROED_MARK, LvName, Problem, RevertId,
    Source, VgName, VolumeId, VolumeKind, lv_volume_tag, revert_of_lv_tag, volume_of_lv_tag,
};

use super::commands::{Lvm, RawLv, attr_at};
use super::error::Error;
use super::import::Copied;
use super::plan::Beside;
use super::whole::mapping;
use crate::config::{self, Wipe};

pub use groups::Unread;
pub(super) use groups::groups_of;
pub use pool::{Fullness, Lack, SeenPool};

/// A listed group that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenGroup {
    /// Name.
    pub name: VgName,
    /// UUID that LVM gave it.
    pub uuid: String,
    /// Size in bytes.
    pub size: ByteSize,
    /// Bytes that LVM has not allocated.
    pub free: ByteSize,
    /// Bytes of `free` that are not for us, by configuration.
    pub reserve: ByteSize,
    /// How a deletion treats the blocks, by configuration.
    pub wipe: Wipe,
    /// Size of LVM's unit of allocation in bytes.
    pub extent: ByteSize,
    /// Why no LV can be made in the group. `None` if one can.
    pub trouble: Option<String>,
    /// Configured size of the thin pool. `None` if the configuration has none.
    pub thin_size: Option<ByteSize>,
    /// The thin pool, ours or somebody else's under our name.
    pub pool: Option<SeenPool>,
    /// `true` if discards of hosts to thick volumes are passed through, by configuration.
    pub discard: bool,
    /// Devices of the group's disks. `None` if nobody has looked, because the configuration enables
    /// discards for no group, or if LVM does not list them.
    pub disks: Option<Vec<PathBuf>>,
}

impl SeenGroup {
    /// Returns the bytes that a new volume may take.
    pub const fn available(&self) -> ByteSize {
        ByteSize(self.free.0.saturating_sub(self.reserve.0))
    }

    /// Returns the problem that the group's thin pool makes for an LV of ours in it. `None` unless
    /// the pool is full.
    pub fn problem_of(&self, lv: &SeenLv) -> Option<Problem> {
        let ours = lv.thin && !lv.snapshot && lv.other_pool().is_none();
        // A look at one volume sees no pool in a group that has none by configuration.
        let pool = self.pool.as_ref().filter(|pool| pool.tagged && ours && self.thin_size.is_some())?;
        pool.problem(&self.name)
    }

    /// Returns the size that LVM makes of this one: whole extents. `None` if that exceeds all
    /// numbers.
    pub fn rounded(&self, size: ByteSize) -> Option<ByteSize> {
        size.0.checked_next_multiple_of(self.extent.0.max(1)).map(ByteSize)
    }
}

/// An LV in a listed group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "attributes of LVM")]
pub struct SeenLv {
    /// Id of the volume or snapshot, by the LV's name; by its tag, if it was adopted.
    pub id: VolumeId,
    /// Name.
    pub name: LvName,
    /// Volume group.
    pub group: String,
    /// UUID that LVM gave it.
    pub uuid: String,
    /// Size in bytes.
    pub size: ByteSize,
    /// Tags.
    pub tags: BTreeSet<String>,
    /// `true` if the LV has a device.
    pub active: bool,
    /// `true` if the device is open, by whomever: an export, a mount, or udev for a moment.
    pub open: bool,
    /// `true` if the LV's blocks are of a thin pool.
    pub thin: bool,
    /// Name of that pool; empty if the LV is thick.
    pub pool: String,
    /// `true` if the LV has the name of a snapshot.
    pub snapshot: bool,
    /// `true` if the kernel's table of the LV differs from the one that LVM would make: the LV may
    /// be isolated from its disk.
    pub altered: bool,
    /// Tags of ours that somebody has removed. By LVM's UUID it is the volume's LV.
    pub lost_tags: Vec<String>,
}

impl SeenLv {
    fn new(id: VolumeId, name: LvName, snapshot: bool, lv: SeenOther) -> Self {
        Self {
            id,
            name,
            group: lv.group,
            uuid: lv.uuid,
            size: lv.size,
            tags: lv.tags,
            active: lv.active,
            open: lv.open,
            thin: !lv.pool.is_empty(),
            pool: lv.pool,
            snapshot,
            // `lvs` shows an LV with an error table in this state (`-wi-XX--X-`), beside a warning.
            altered: attr_at(&lv.attr, 4) == b'X',
            lost_tags: Vec::new(),
        }
    }

    /// Returns `true` if the LV carries our tag.
    pub fn is_tagged(&self) -> bool {
        self.tags.contains(LV_TAG)
    }

    /// Returns `true` if the LV was adopted, and keeps the name that it had.
    pub fn is_adopted(&self) -> bool {
        !self.snapshot && LvName::volume(self.name.as_str()) != Some(self.id)
    }

    /// Returns the thin pool that the LV's blocks are of, if that is not the group's: an adopted LV
    /// stays in its pool.
    pub fn other_pool(&self) -> Option<&str> {
        (self.thin && !LvName::is_thin_pool(&self.pool)).then_some(self.pool.as_str())
    }

    /// Returns `true` if the LV's blocks must not be shown to anybody.
    pub fn is_unzeroed(&self) -> bool {
        self.tags.contains(LV_UNZEROED_TAG)
    }

    /// Returns `true` if an image was being copied into the LV. Meaningless for an LV that is not
    /// tagged as unzeroed.
    pub fn is_importing(&self) -> bool {
        self.tags.contains(LV_IMPORTING_TAG)
    }

    /// Returns how far a zeroing of the LV had come, in MiB, as its tags say. Meaningless for an LV
    /// that is not tagged as unzeroed.
    pub fn marks(&self) -> Vec<u64> {
        let mib = |tag: &String| tag.strip_prefix(LV_ZEROED_MARK)?.parse().ok();
        self.tags.iter().filter_map(mib).collect()
    }

    /// Returns how far copies of images into the LV had come, as its tags say. Meaningless for an
    /// LV that is not tagged as one that an image is copied into.
    pub fn copied(&self) -> Vec<Copied> {
        self.tags.iter().filter_map(|tag| Copied::of_tag(tag)).collect()
    }

    /// Returns the revert that made the LV. `None` if none did.
    pub fn reverted(&self) -> Option<RevertId> {
        self.tags.iter().find_map(|tag| revert_of_lv_tag(tag))
    }

    /// Returns `true` if the LV may be exported.
    pub fn is_ready(&self) -> bool {
        self.is_tagged() && self.active && !self.is_unzeroed()
    }
}

/// An LV in a listed group that is not ours: it lacks our tag, or a name of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenOther {
    /// Name.
    pub name: String,
    /// Volume group.
    pub group: String,
    /// UUID that LVM gave it.
    pub uuid: String,
    /// Size in bytes.
    pub size: ByteSize,
    /// Tags.
    pub tags: BTreeSet<String>,
    /// `true` if the LV has a device.
    pub active: bool,
    /// `true` if the device is open, by whomever.
    pub open: bool,
    /// Type of the LV's segments, as `linear`.
    pub segtype: String,
    /// Thin pool or cache pool of the LV; empty if it has none.
    pub pool: String,
    /// `lv_attr` (lvs(8)).
    pub attr: String,
}

impl SeenOther {
    /// Returns `true` if the LV's blocks are of the group's thin pool.
    pub fn is_thin(&self) -> bool {
        self.segtype == "thin" && LvName::is_thin_pool(&self.pool)
    }
}

/// View of the listed groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumesView {
    /// Listed groups that exist.
    groups: Vec<SeenGroup>,
    /// Listed groups that do not exist.
    missing: Vec<VgName>,
    /// Listed groups that LVM cannot read. Nothing is known of their LVs.
    unread: BTreeMap<VgName, Unread>,
    /// Groups that exist and are not listed, for messages.
    unlisted: Vec<String>,
    /// LVs of the listed groups that have a volume's or snapshot's name, tagged or not.
    lvs: BTreeMap<VolumeId, Vec<SeenLv>>,
    /// LVs of the listed groups that have a growth's name, tagged or not.
    growths: BTreeMap<VolumeId, Vec<SeenLv>>,
    /// LVs of the listed groups that have the name of a revert's copy, tagged or not.
    backs: BTreeMap<VolumeId, Vec<SeenLv>>,
    /// LVs of the listed groups that are not ours.
    others: Vec<SeenOther>,
}

impl VolumesView {
    /// Returns the listed groups that exist.
    pub fn groups(&self) -> &[SeenGroup] {
        &self.groups
    }

    /// Returns the listed groups that do not exist.
    pub fn missing(&self) -> &[VgName] {
        &self.missing
    }

    /// Returns the group that has the volume's LV with this identity
    /// ([`Whole::mapping`](super::Whole)). `None` if none that was read has it, or several LVs say
    /// that they are the volume.
    pub fn group_of(&self, volume: VolumeId, identity: &str) -> Option<&VgName> {
        let mut ours = self.lvs_of(volume).iter().filter(|lv| lv.is_tagged());
        let (lv, None) = (ours.next()?, ours.next()) else { return None };
        let group = self.groups.iter().find(|group| group.name.as_str() == lv.group)?;
        let is = mapping(&group.uuid, &lv.uuid).is_some_and(|found| found == identity);
        is.then_some(&group.name)
    }

    /// Returns the listed groups that LVM cannot read, with the reasons.
    pub fn unread_groups(&self) -> impl Iterator<Item = (&VgName, &Unread)> {
        self.unread.iter()
    }

    /// Returns why LVM cannot read a listed group. `None` if it can, or if the group is missing.
    pub fn unread(&self, group: &VgName) -> Option<&Unread> {
        self.unread.get(group)
    }

    /// Returns the groups that exist and that the configuration does not list.
    pub fn unlisted(&self) -> &[String] {
        &self.unlisted
    }

    /// Returns the listed group of this name, if it exists.
    pub fn group(&self, name: &VgName) -> Option<&SeenGroup> {
        self.groups.iter().find(|group| &group.name == name)
    }

    /// Returns `true` if the configuration lists this group.
    pub fn is_listed(&self, name: &VgName) -> bool {
        self.group(name).is_some() || self.missing.contains(name) || self.unread(name).is_some()
    }

    /// Returns the volume's LV in this group: ours, or somebody else's under our name. `None` if
    /// there is neither.
    pub fn lv(&self, group: &VgName, volume: VolumeId) -> Option<&SeenLv> {
        self.lv_of(group, volume, VolumeKind::Volume)
    }

    /// Returns the LV of this volume or snapshot in this group: ours, or somebody else's under our
    /// name. `None` if there is neither.
    pub fn lv_of(&self, group: &VgName, id: VolumeId, kind: VolumeKind) -> Option<&SeenLv> {
        let snapshot = kind == VolumeKind::Snapshot;
        self.lvs_of(id).iter().find(|lv| lv.group == group.as_str() && lv.snapshot == snapshot)
    }

    /// Returns the LVs of this volume's or snapshot's names in all listed groups.
    pub fn lvs_of(&self, volume: VolumeId) -> &[SeenLv] {
        self.lvs.get(&volume).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the growth of this volume in this group: ours, or somebody else's under our name.
    /// `None` if there is neither.
    pub fn growth(&self, group: &VgName, volume: VolumeId) -> Option<&SeenLv> {
        self.growths_of(volume).iter().find(|lv| lv.group == group.as_str())
    }

    /// Returns the growths of this volume in all listed groups.
    pub fn growths_of(&self, volume: VolumeId) -> &[SeenLv] {
        self.growths.get(&volume).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the revert copy of this volume in this group: ours, or somebody else's under our
    /// name. `None` if there is neither.
    pub fn back(&self, group: &VgName, volume: VolumeId) -> Option<&SeenLv> {
        self.backs_of(volume).iter().find(|lv| lv.group == group.as_str())
    }

    /// Returns the revert copies of this volume in all listed groups.
    pub fn backs_of(&self, volume: VolumeId) -> &[SeenLv] {
        self.backs.get(&volume).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the LVs of the listed groups that are not ours.
    pub fn others(&self) -> &[SeenOther] {
        &self.others
    }

    /// Returns the part of the view that one volume's plan needs: its own LVs, and those in
    /// `beside`.
    #[must_use]
    pub fn of(&self, volume: VolumeId, beside: &Beside) -> Self {
        let part = |lvs: &BTreeMap<VolumeId, Vec<SeenLv>>| {
            let ids = std::iter::once(volume).chain(beside.source.map(Source::id));
            ids.filter_map(|id| Some((id, lvs.get(&id)?.clone()))).collect()
        };
        let names = [Some(LvName::of(volume)), beside.takes.clone()];
        let is = |lv: &&SeenOther| names.iter().flatten().any(|name| name.as_str() == lv.name);
        Self {
            groups: self.groups.clone(),
            missing: self.missing.clone(),
            unread: self.unread.clone(),
            unlisted: self.unlisted.clone(),
            lvs: part(&self.lvs),
            growths: part(&self.growths),
            backs: part(&self.backs),
            others: self.others.iter().filter(is).cloned().collect(),
        }
    }

    /// Returns the sum of the sizes of our thin volumes and snapshots in a group: the bytes they
    /// would take if they were full.
    pub fn thin_bytes_in(&self, group: &VgName) -> ByteSize {
        ByteSize(self.in_group(group).filter(|lv| lv.thin).map(|lv| lv.size.0).sum())
    }

    fn in_group(&self, group: &VgName) -> impl Iterator<Item = &SeenLv> {
        self.ours().filter(move |lv| lv.group == group.as_str())
    }

    /// Iterates over all LVs of ours that hold volumes or snapshots.
    pub fn ours(&self) -> impl Iterator<Item = &SeenLv> {
        self.lvs.values().flatten().filter(|lv| lv.is_tagged())
    }

    /// Returns the number of our volumes in a group, thick or thin ones, without snapshots.
    pub fn count_in(&self, group: &VgName, thin: bool) -> usize {
        self.in_group(group).filter(|lv| lv.thin == thin && !lv.snapshot).count()
    }

    /// Returns the bytes that our thick volumes in a group take.
    pub fn bytes_in(&self, group: &VgName) -> ByteSize {
        ByteSize(self.in_group(group).filter(|lv| !lv.thin).map(|lv| lv.size.0).sum())
    }
}

/// Views all listed groups with two commands, however many LVs there are; with a third where the
/// configuration enables discards. Each group is asked for by its name; where LVM cannot read one,
/// a few commands more tell which. Without groups there is no command: a host that only attaches
/// volumes may have no LVM, and groups of its own that are none of our business.
pub fn view(commands: &dyn Commands, groups: &[config::Group]) -> Result<VolumesView, Error> {
    if groups.is_empty() {
        return Ok(VolumesView::default());
    }
    let lvm = Lvm(commands);
    let mut view = groups_of(&lvm, groups)?;
    let asks_disks = groups.iter().any(|group| group.discard || group.wipe == Wipe::Discard);
    // A list of all disks hangs where a group does.
    if asks_disks && !view.has_hung() {
        view.look_at_disks(&lvm);
    }
    view.look_at_lvs(&lvm)?;
    view.unless_none_is_read(groups.len())
}

/// Views one volume, the LVs in `beside`, and the groups. The amount read does not grow with the
/// number of volumes. Without groups nothing is read.
pub fn view_one(
    commands: &dyn Commands,
    groups: &[config::Group],
    volume: VolumeId,
    beside: &Beside,
) -> Result<VolumesView, Error> {
    if groups.is_empty() {
        return Ok(VolumesView::default());
    }
    let lvm = Lvm(commands);
    let mut view = groups_of(&lvm, groups)?;
    let seen: Vec<_> =
        view.groups.iter().map(|group| (group.name.clone(), group.thin_size.is_some())).collect();
    for (group, thin) in seen {
        if let Err(error) = view.look_at_one(&lvm, (&group, thin), volume, beside) {
            view.leave_out(&group, error)?;
        }
    }
    view.unless_none_is_read(groups.len())
}

/// Lists the disks that LVM finds of these groups, each with its group. A missing disk has no path,
/// and is left out. Without groups LVM is not asked.
pub fn disks(commands: &dyn Commands, groups: &[config::Group]) -> Result<Vec<(VgName, PathBuf)>, Error> {
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let listed = |name: &str| groups.iter().find(|group| group.name.as_str() == name);
    let found = Lvm(commands).disks()?.into_iter().filter_map(|raw| {
        let path = PathBuf::from(raw.name);
        path.is_absolute().then_some((listed(&raw.group)?.name.clone(), path))
    });
    Ok(found.collect())
}

impl SeenOther {
    fn new(raw: RawLv) -> Self {
        Self {
            tags: raw.tags(),
            active: raw.active.starts_with("active"),
            open: raw.open == "open",
            size: ByteSize(raw.size),
            name: raw.name,
            group: raw.group,
            uuid: raw.uuid,
            segtype: raw.segtype,
            pool: raw.pool,
            attr: raw.attr,
        }
    }
}

impl VolumesView {
    /// Adds what one group has of a volume and of the LVs in `beside`.
    fn look_at_one(
        &mut self,
        lvm: &Lvm<'_>,
        (group, thin): (&VgName, bool),
        volume: VolumeId,
        beside: &Beside,
    ) -> Result<(), Error> {
        let mut names = vec![LvName::of(volume), LvName::growth_of(volume), LvName::snapshot_of(volume)];
        names.push(LvName::back_of(volume));
        names.extend(beside.source.map(Source::lv));
        names.extend(beside.takes.clone());
        if thin || beside.source.is_some() || beside.takes.is_some() {
            names.push(LvName::thin_pool());
        }
        for raw in lvm.lvs_named(group, &names)? {
            self.take(raw);
        }
        // An adopted LV has a name of its own. `lvs` looks for it only if no LV has the id's name:
        // a look at other volumes costs nothing more.
        let of = beside.source.map(Source::id).filter(|id| *id != volume);
        for id in std::iter::once(volume).chain(of) {
            if self.lvs_of(id).iter().all(|lv| lv.group != group.as_str()) {
                for raw in lvm.lvs_tagged(group, &lv_volume_tag(id))? {
                    self.take(raw);
                }
            }
        }
        Ok(())
    }

    /// Stores the groups' disks. If LVM does not list them, the rest of the view still stands.
    fn look_at_disks(&mut self, lvm: &Lvm<'_>) {
        let disks = match lvm.disks() {
            Ok(disks) => disks,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot list the disks: it is not known whether they take discards");
                return;
            }
        };
        for group in &mut self.groups {
            let of = disks.iter().filter(|disk| disk.group == group.name.as_str());
            // A missing disk is called `[unknown]`, and accepts no discards.
            group.disks = Some(of.map(|disk| PathBuf::from(&disk.name)).collect());
        }
    }

    /// Finds the LVs of these volumes that have lost tags of ours (`retag`).
    pub fn recognise(&mut self, known: impl IntoIterator<Item = KnownLv>) {
        // An LV of our name that lacks our tag is among the others.
        if self.others.is_empty() {
            return;
        }
        let groups: BTreeMap<_, _> =
            self.groups.iter().map(|group| (group.name.to_string(), group.uuid.clone())).collect();
        let mapping = |group: &str, uuid: &str| mapping(groups.get(group)?, uuid);
        let known: HashMap<_, _> = known.into_iter().map(|known| (known.mapping.clone(), known)).collect();
        let is = |lv: &SeenOther| known.get(&mapping(&lv.group, &lv.uuid)?).filter(|known| known.is(lv));
        for other in std::mem::take(&mut self.others) {
            let Some(known) = is(&other) else {
                self.others.push(other);
                continue;
            };
            let lvs = self.lvs.entry(known.volume).or_default();
            lvs.retain(|there| there.uuid != other.uuid);
            lvs.push(known.seen(other));
        }
    }

    /// Adds an LV of a listed group to the view.
    fn take(&mut self, raw: RawLv) {
        let Some(group) = self.groups.iter_mut().find(|group| group.name.as_str() == raw.group) else {
            return;
        };
        if LvName::is_thin_pool(&raw.name) {
            group.pool = Some(SeenPool::new(&raw));
            return;
        }
        let lv = SeenOther::new(raw);
        let Ok(name) = LvName::existing(&lv.name) else { return self.others.push(lv) };
        let named = NAMES.iter().find_map(|(parse, of, role)| Some((parse(&lv.name)?, of, *role)));
        let (volume, role) = match named {
            // Only the canonical name counts: an id in upper case parses, and is another LV.
            Some((volume, of, role)) if of(volume) == name => (volume, role),
            Some(_) => return self.others.push(lv),
            None => match adopted(&lv.tags) {
                Some(volume) => (volume, Role::Volume),
                None => return self.others.push(lv),
            },
        };
        if !lv.tags.contains(LV_TAG) {
            self.others.push(lv.clone());
        }
        let lvs = match role {
            Role::Volume | Role::Snapshot => &mut self.lvs,
            Role::Growth => &mut self.growths,
            Role::Back => &mut self.backs,
        };
        lvs.entry(volume).or_default().push(SeenLv::new(volume, name, role == Role::Snapshot, lv));
    }
}

/// The LV of a volume as LVM's UUID identifies it. It is the volume's, whatever its tags say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownLv {
    /// The volume, or the snapshot.
    pub volume: VolumeId,
    /// UUID of the LV's device in device-mapper ([`Whole::mapping`](super::Whole)).
    pub mapping: String,
    /// Name. Under another one the LV is nobody's: somebody has renamed it.
    pub name: LvName,
}

impl KnownLv {
    /// Returns `true` if `lv` has this name, and no tag claims it for another volume.
    fn is(&self, lv: &SeenOther) -> bool {
        let mut volumes = lv.tags.iter().filter_map(|tag| volume_of_lv_tag(tag));
        lv.name == self.name.as_str() && volumes.all(|volume| volume == self.volume)
    }

    /// Returns the LV as a volume's LV in the view, with the tags of ours that it lacks.
    fn seen(&self, lv: SeenOther) -> SeenLv {
        let snapshot = LvName::snapshot_of(self.volume) == self.name;
        let seen = SeenLv::new(self.volume, self.name.clone(), snapshot, lv);
        let wanted = [Some(LV_TAG.to_owned()), seen.is_adopted().then(|| lv_volume_tag(self.volume))];
        let lost_tags = wanted.into_iter().flatten().filter(|tag| !seen.tags.contains(tag)).collect();
        SeenLv { lost_tags, ..seen }
    }
}

/// Role of an LV of ours, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Volume,
    Snapshot,
    /// The growth of a volume.
    Growth,
    /// The copy that takes the place of a volume that is reverted.
    Back,
}

/// How a name is read, how it is written, and the role of the LV that has it.
type Names = (fn(&str) -> Option<VolumeId>, fn(VolumeId) -> LvName, Role);

const NAMES: [Names; 4] = [
    (LvName::volume, LvName::of, Role::Volume),
    (LvName::growing, LvName::growth_of, Role::Growth),
    (LvName::snapshot, LvName::snapshot_of, Role::Snapshot),
    (LvName::going_back, LvName::back_of, Role::Back),
];

/// Returns the volume of an adopted LV, by its tags. `None` if our tag is missing, or if the tags
/// do not name exactly one volume.
fn adopted(tags: &BTreeSet<String>) -> Option<VolumeId> {
    let mut volumes = tags.iter().filter_map(|tag| volume_of_lv_tag(tag));
    let volume = volumes.next().filter(|_| tags.contains(LV_TAG))?;
    volumes.next().is_none().then_some(volume)
}

#[cfg(test)]
mod tests {
    use mooring_host::fake::FakeMachine;

    use super::*;

    #[test]
    fn lvm_is_asked_for_nothing_without_groups() {
        let fake = FakeMachine::new();
        fake.add_vg("vg0", 1 << 30);
        let (lvm, volume) = (fake.lvm(), VolumeId::from_u128(1));
        let commands = |groups: &[config::Group]| {
            let count = |ask: &dyn Fn()| {
                lvm.clear_log();
                ask();
                lvm.log().len()
            };
            [
                count(&|| drop(view(&lvm, groups).unwrap())),
                count(&|| drop(view_one(&lvm, groups, volume, &Beside::default()).unwrap())),
                count(&|| drop(disks(&lvm, groups).unwrap())),
            ]
        };
        assert_eq!(commands(&[]), [0, 0, 0]);
        assert_eq!(view(&lvm, &[]).unwrap(), VolumesView::default());
        // Control: with one group LVM is asked each time.
        let name = "vg0".parse().unwrap();
        let group =
            config::Group { name, reserve: ByteSize(0), wipe: Wipe::Zero, discard: false, thin_pool: None };
        assert!(commands(&[group]).iter().all(|count| *count > 0));
    }
}
