//! Fake of `/sbin/lvm`: the calls of the agent, with the JSON, the texts and the exit statuses of
//! lvm2 2.03. What must never happen: a new volume that reads as zeros, extents that read as zeros
//! and were not zeroed where they lie, or a volume removed while something holds it.

mod arguments;
mod dmsetup;
mod run;
mod thin;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use self::dmsetup::Ended;
use super::state::{Device, Handle, Machine, Node};
use crate::{Command, CommandError, CommandOutput, Commands};

/// Bytes of a physical extent.
pub(super) const EXTENT: u64 = 4 << 20;

/// LVM of a [`FakeMachine`](super::FakeMachine); clones share it.
#[derive(Debug, Clone)]
pub struct FakeLvm {
    handle: Handle,
}

/// Volume groups, and the misbehaviour of the tool.
#[derive(Debug)]
pub(super) struct LvmState {
    groups: BTreeMap<String, Group>,
    /// Groups whose disk has not come yet.
    late: BTreeMap<String, Group>,
    pub(super) autoactivation: bool,
    missing: bool,
    hanging: bool,
    takes: Duration,
    slow: usize,
    broken: Option<String>,
    failures: Vec<(String, i32, String)>,
    log: Vec<String>,
    next_uuid: u64,
}

impl Default for LvmState {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            late: BTreeMap::new(),
            autoactivation: true,
            missing: false,
            hanging: false,
            takes: Duration::ZERO,
            slow: 0,
            broken: None,
            failures: Vec::new(),
            log: Vec::new(),
            next_uuid: 0,
        }
    }
}

/// Program that shows and changes tables. It reads no disk, and goes on where LVM hangs.
const DMSETUP: &str = "/sbin/dmsetup";

/// Disk of the group `vg0`; those of other groups have longer names.
const DISK: &str = "/dev/sdb";

/// Returns the one disk of a group, as LVM names it.
fn disk_of(vg: &str) -> String {
    if vg == "vg0" { DISK.to_owned() } else { format!("{DISK}-{vg}") }
}

#[derive(Debug, Default)]
struct Group {
    uuid: String,
    extents: u64,
    volumes: BTreeMap<String, Volume>,
    /// Number of the first extent that was never used: from here on all are free.
    fresh: u64,
    /// Free extents before that one.
    returned: BTreeSet<u64>,
    /// Free extents that read as zeros, as long as nobody takes them.
    zeros: BTreeSet<u64>,
    /// The group's disk takes discards.
    discards: bool,
    /// Device node of its disk, if a test has a file for one.
    node: Option<String>,
    /// Used bytes of its thin pool. Nobody counts them here: a test sets them.
    pool_used: u64,
    /// Used metadata of its thin pool, in parts of 10,000. A test sets them.
    pool_metadata: u32,
    /// LVM's word for the health of its thin pool; empty if it is well.
    pool_health: String,
    /// LVM's message about the group, which it cannot read. `None` if it can.
    sick: Option<String>,
    /// How every report that reads the group ends without an answer. `None` if LVM answers.
    silent: Option<Silent>,
    /// The thin pool takes no discards (`lvchange --discards ignore`). The kernel's thin volumes
    /// take discards whatever the disk does, unless the pool ignores them.
    pool_ignores_discards: bool,
}

/// End of a report that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silent {
    /// A signal kills it.
    Crashes,
    /// The report runs into its time limit.
    Hangs,
}

impl Group {
    fn free(&self) -> u64 {
        self.extents - self.fresh + u64::try_from(self.returned.len()).unwrap_or_default()
    }

    fn is_free(&self, extent: u64) -> bool {
        (self.fresh..self.extents).contains(&extent) || self.returned.contains(&extent)
    }

    /// Returns the first free extents: `count` of them, or all if there are fewer.
    fn first_free(&self, count: u64) -> Vec<u64> {
        let all = self.returned.iter().copied().chain(self.fresh..self.extents);
        all.take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
    }

    /// Takes these extents: they are not free any more.
    fn take(&mut self, extents: &[u64]) {
        for extent in extents {
            if *extent >= self.fresh {
                self.returned.extend(self.fresh..*extent);
                self.fresh = extent + 1;
            } else {
                self.returned.remove(extent);
            }
        }
    }
}

#[derive(Debug)]
struct Volume {
    uuid: String,
    /// Extents in the volume's own order.
    extents: Vec<u64>,
    tags: BTreeSet<String>,
    /// Tags that the disk has for sure, while nobody has flushed LVM's later writes. `None`: after
    /// a power cut the volume may not be there.
    flushed: Option<BTreeSet<String>>,
    active: bool,
    read_only: bool,
    /// Content of the device while the volume is not active.
    parked: Option<Device>,
    form: Form,
}

/// Type of its segment in LVM.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Linear,
    /// Extents for data, and beside them two for metadata. A pool has no device node. Without
    /// `zeroes` its volumes may show old contents of the pool.
    Pool {
        zeroes: bool,
    },
    /// A thin volume, without extents of its own. With `skip` only `--ignoreactivationskip`
    /// activates it.
    Thin {
        pool: String,
        bytes: u64,
        skip: bool,
    },
    /// A foreign LV, of a type that the agent never makes: its segment type, and the first letter
    /// of its attributes.
    Other {
        segtype: String,
        kind: char,
    },
}

impl Volume {
    fn count(&self) -> u64 {
        u64::try_from(self.extents.len()).unwrap_or(u64::MAX)
    }

    fn bytes(&self) -> u64 {
        match self.form {
            Form::Linear | Form::Other { .. } => self.count().saturating_mul(EXTENT),
            Form::Pool { .. } => self.count().saturating_sub(thin::METADATA_EXTENTS).saturating_mul(EXTENT),
            Form::Thin { bytes, .. } => bytes,
        }
    }

    /// Returns its segments, as `first-last`.
    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for extent in &self.extents {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *extent => *last = *extent,
                _ => ranges.push((*extent, *extent)),
            }
        }
        ranges
    }
}

/// Returns the device node of a logical volume.
fn device_path(vg: &str, lv: &str) -> std::path::PathBuf {
    std::path::Path::new("/dev").join(vg).join(lv)
}

impl LvmState {
    /// Returns `true` if this is the disk of a group, and takes discards.
    pub(super) fn disk_discards(&self, path: &std::path::Path) -> bool {
        self.groups.iter().any(|(vg, group)| path == std::path::Path::new(&disk_of(vg)) && group.discards)
    }

    /// Returns device-mapper's uuid of the LV with this node: as LVM makes it, whatever the LV's
    /// name is. `None` if there is no such LV.
    pub(super) fn mapping(&self, path: &std::path::Path) -> Option<String> {
        let named = self.groups.iter().flat_map(|(vg, group)| {
            group.volumes.iter().map(move |(lv, volume)| (device_path(vg, lv), group, volume))
        });
        let (_, group, volume) = { named }.find(|(node, ..)| node == path)?;
        Some(format!("LVM-{}{}", group.uuid.replace('-', ""), volume.uuid.replace('-', "")))
    }

    /// Makes all writes to the disk of this LV's group outlive a power cut.
    pub(super) fn flush(&mut self, path: &std::path::Path) {
        let has =
            |(vg, group): &(&String, &mut Group)| group.volumes.keys().any(|lv| device_path(vg, lv) == path);
        let found = self.groups.iter_mut().find(has);
        for volume in found.into_iter().flat_map(|(_, group)| group.volumes.values_mut()) {
            volume.flushed = Some(volume.tags.clone());
        }
    }

    pub(super) fn add_group(&mut self, name: &str, bytes: u64) {
        let uuid = self.uuid();
        let group = Group { uuid, extents: bytes / EXTENT, pool_metadata: 100, ..Group::default() };
        self.groups.insert(name.to_owned(), group);
    }

    /// Returns an id in LVM's form: 6-4-4-4-4-4-6 characters.
    fn uuid(&mut self) -> String {
        self.next_uuid += 1;
        format!("fAkE00-0000-0000-0000-0000-0000-{:06}", self.next_uuid)
    }
}

impl Machine {
    /// Handles a reboot: volumes get their device nodes again, or wait for `lvchange --activate y`.
    pub(super) fn reactivate_volumes(&mut self) {
        let on = self.lvm.autoactivation;
        let volumes: Vec<(String, String)> = (self.lvm.groups.iter())
            .flat_map(|(vg, group)| group.volumes.keys().map(move |lv| (vg.clone(), lv.clone())))
            .collect();
        for (vg, lv) in volumes {
            self.set_active(&vg, &lv, on);
        }
    }

    fn set_active(&mut self, vg: &str, lv: &str, active: bool) {
        let path = device_path(vg, lv);
        let minor = self.next_minor;
        let Some(group) = self.lvm.groups.get_mut(vg) else { return };
        let (discards, thin_discards) = (group.discards, !group.pool_ignores_discards);
        let Some(volume) = group.volumes.get_mut(lv) else { return };
        match volume.form {
            Form::Pool { .. } => {
                volume.active = active;
                return;
            }
            Form::Thin { skip: true, .. } if active => return,
            Form::Thin { .. } | Form::Linear | Form::Other { .. } => {}
        }
        if active && !volume.active {
            let mut device =
                volume.parked.take().unwrap_or(Device { node: Node::Block, ..Device::default() });
            device.minor = minor;
            device.size = volume.bytes();
            device.read_only = volume.read_only;
            device.discards = if volume.form == Form::Linear { discards } else { thin_discards };
            self.next_minor += 1;
            self.devices.insert(path, device);
        } else if !active && volume.active {
            // A device that is made again has the table that LVM makes.
            let device = self.devices.remove(&path);
            volume.parked =
                device.map(|device| Device { errors: false, errors_wait: false, suspended: false, ..device });
        }
        volume.active = active;
    }
}

impl FakeLvm {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Makes a volume as a foreign program would: active, holding data, with these tags. `false`
    /// when there is no such group, no room, or the name is taken.
    pub fn add_volume(&self, vg: &str, lv: &str, bytes: u64, tags: &[&str]) -> bool {
        let mut machine = self.handle.lock();
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let made = machine.create_volume(vg, lv, bytes.div_ceil(EXTENT).max(1), tags).is_ok();
        machine.lvm.flush(&device_path(vg, lv));
        made
    }

    /// Gives a foreign volume this type: `raid1` with `r`, for one. The letter is the first of its
    /// attributes (lvs(8)).
    pub fn set_type(&self, vg: &str, lv: &str, segtype: &str, kind: char) {
        let mut machine = self.handle.lock();
        if let Some(volume) = machine.lvm.groups.get_mut(vg).and_then(|group| group.volumes.get_mut(lv)) {
            volume.form = Form::Other { segtype: segtype.to_owned(), kind };
        }
    }

    /// Drops everything that the disks have not flushed, as a power cut does: volumes that were
    /// made later, and changes of tags. (Removals and growth are not undone here.) Call it before
    /// [`FakeMachine::reboot`](super::FakeMachine::reboot).
    pub fn forget_unflushed(&self) {
        let mut machine = self.handle.lock();
        let mut lost = Vec::new();
        for (vg, group) in &mut machine.lvm.groups {
            for (lv, volume) in &mut group.volumes {
                match &volume.flushed {
                    Some(tags) => volume.tags.clone_from(tags),
                    None => lost.push((vg.clone(), lv.clone())),
                }
            }
        }
        drop(machine);
        for (vg, lv) in lost {
            self.lose_volume(&vg, &lv);
        }
    }

    /// Removes a volume as a foreign program would, even one in use (a disk that was pulled).
    pub fn lose_volume(&self, vg: &str, lv: &str) {
        let mut machine = self.handle.lock();
        if let Some(group) = machine.lvm.groups.get_mut(vg) {
            let volume = group.volumes.remove(lv);
            group.returned.extend(volume.into_iter().flat_map(|volume| volume.extents));
        }
        machine.devices.remove(&device_path(vg, lv));
    }

    /// Makes a volume group disappear or come (back) empty.
    pub fn lose_group(&self, vg: &str) {
        self.handle.lock().lvm.groups.remove(vg);
    }

    /// Hides the disk below a group: nobody sees the group, and its LVs have no devices. Data
    /// stays.
    pub fn hide_group(&self, vg: &str) {
        let mut machine = self.handle.lock();
        let lvs = machine.lvm.groups.get(vg).map(|group| group.volumes.keys().cloned().collect::<Vec<_>>());
        for lv in lvs.unwrap_or_default() {
            machine.set_active(vg, &lv, false);
        }
        if let Some(group) = machine.lvm.groups.remove(vg) {
            machine.lvm.late.insert(vg.to_owned(), group);
        }
    }

    /// Brings that disk back. Nobody activates its LVs.
    pub fn show_group(&self, vg: &str) {
        let mut machine = self.handle.lock();
        if let Some(group) = machine.lvm.late.remove(vg) {
            machine.lvm.groups.insert(vg.to_owned(), group);
        }
    }

    /// Sets if the disk below a group, and so every thick LV on it, takes discards. At first it
    /// takes none.
    pub fn set_discards(&self, vg: &str, discards: bool) {
        let mut guard = self.handle.lock();
        let machine = &mut *guard;
        let Some(group) = machine.lvm.groups.get_mut(vg) else { return };
        group.discards = discards;
        for (lv, _) in group.volumes.iter().filter(|(_, volume)| volume.form == Form::Linear) {
            if let Some(device) = machine.devices.get_mut(&device_path(vg, lv)) {
                device.discards = discards;
            }
        }
    }

    /// Sets the device node of the disk below a group. A write to it raises the events that LVM's
    /// own writes raise on a kernel.
    pub fn set_disk(&self, vg: &str, node: &std::path::Path) {
        if let Some(group) = self.handle.lock().lvm.groups.get_mut(vg) {
            group.node = Some(node.display().to_string());
        }
    }

    /// Sets if a group's thin pool ignores discards. At first it passes them down.
    pub fn set_pool_ignores_discards(&self, vg: &str, ignores: bool) {
        let mut guard = self.handle.lock();
        let machine = &mut *guard;
        let Some(group) = machine.lvm.groups.get_mut(vg) else { return };
        group.pool_ignores_discards = ignores;
        for (lv, _) in group.volumes.iter().filter(|(_, volume)| volume.form != Form::Linear) {
            if let Some(device) = machine.devices.get_mut(&device_path(vg, lv)) {
                device.discards = !ignores;
            }
        }
    }

    /// Sets the number of used bytes of a group's thin pool.
    pub fn set_pool_used(&self, vg: &str, bytes: u64) {
        if let Some(group) = self.handle.lock().lvm.groups.get_mut(vg) {
            group.pool_used = bytes;
        }
    }

    /// Sets how much of the metadata of a group's thin pool is used, in parts of 10,000.
    pub fn set_pool_metadata(&self, vg: &str, parts: u32) {
        if let Some(group) = self.handle.lock().lvm.groups.get_mut(vg) {
            group.pool_metadata = parts;
        }
    }

    /// Sets LVM's word for the health of a group's thin pool, as `out_of_data`. An empty one says
    /// that the pool is well.
    pub fn set_pool_health(&self, vg: &str, word: &str) {
        if let Some(group) = self.handle.lock().lvm.groups.get_mut(vg) {
            word.clone_into(&mut group.pool_health);
        }
    }

    /// Returns `true` if an LV reads as zeros everywhere, with or without a device. `false` also
    /// when it does not exist.
    pub fn reads_zeros(&self, vg: &str, lv: &str) -> bool {
        let machine = self.handle.lock();
        let volume = machine.lvm.groups.get(vg).and_then(|group| group.volumes.get(lv));
        let parked = volume.and_then(|volume| volume.parked.as_ref());
        parked.or_else(|| machine.devices.get(&device_path(vg, lv))).is_some_and(Device::is_zeroed)
    }

    /// Removes or installs the program.
    pub fn set_missing(&self, missing: bool) {
        self.handle.lock().lvm.missing = missing;
    }

    /// Lets every command run into its time limit (it does not really wait).
    pub fn set_hanging(&self, hanging: bool) {
        self.handle.lock().lvm.hanging = hanging;
    }

    /// Lets every command really take this time, also those that are running.
    pub fn set_slow(&self, takes: Duration) {
        self.handle.lock().lvm.takes = takes;
    }

    /// Returns the number of commands that are taking their time now.
    pub fn slow_commands(&self) -> usize {
        self.handle.lock().lvm.slow
    }

    fn take_time(&self) {
        let begun = Instant::now();
        self.handle.lock().lvm.slow += 1;
        while begun.elapsed() < self.handle.lock().lvm.takes {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.handle.lock().lvm.slow -= 1;
    }

    /// Lets every command fail with exit status 5 and this text, until `None`: unreadable metadata,
    /// lost disks.
    pub fn set_broken(&self, stderr: Option<&str>) {
        self.handle.lock().lvm.broken = stderr.map(str::to_owned);
    }

    /// Makes the metadata of one group unreadable: a report that is to read it says so, ends with
    /// exit status 5, and lists the other groups. `None` makes the group readable again.
    pub fn set_sick(&self, vg: &str, stderr: Option<&str>) {
        if let Some(group) = self.handle.lock().lvm.groups.get_mut(vg) {
            group.sick = stderr.map(str::to_owned);
        }
    }

    /// Lets every report that is to read this group die of a signal, without any output; or lets it
    /// answer.
    pub fn set_crashing(&self, vg: &str, crashes: bool) {
        self.set_silent(vg, crashes.then_some(Silent::Crashes));
    }

    /// Lets every report that is to read this group run into its time limit (it does not really
    /// wait); or lets it answer.
    pub fn set_group_hanging(&self, vg: &str, hangs: bool) {
        self.set_silent(vg, hangs.then_some(Silent::Hangs));
    }

    fn set_silent(&self, vg: &str, silent: Option<Silent>) {
        if let Some(group) = self.handle.lock().lvm.groups.get_mut(vg) {
            group.silent = silent;
        }
    }

    /// Lets the next command of this kind (`lvcreate`) fail so, and do nothing. A status from 129
    /// on is a death by a signal.
    pub fn fail_next(&self, verb: &str, status: i32, stderr: &str) {
        self.handle.lock().lvm.failures.push((verb.to_owned(), status, stderr.to_owned()));
    }

    /// Returns the command lines so far, oldest first, without the program.
    pub fn log(&self) -> Vec<String> {
        self.handle.lock().lvm.log.clone()
    }

    /// Clears the log.
    pub fn clear_log(&self) {
        self.handle.lock().lvm.log.clear();
    }
}

impl Commands for FakeLvm {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        let takes = self.handle.lock().lvm.takes;
        if !takes.is_zero() {
            self.take_time();
        }
        let mut machine = self.handle.lock();
        if command.program == DMSETUP && !machine.lvm.missing {
            machine.lvm.log.push(format!("dmsetup {}", command.args.join(" ")));
            return match machine.run_dmsetup(&command.args) {
                Ended::Output(output) => Ok(output),
                Ended::Waits => Err(timed_out(command)),
            };
        }
        if machine.lvm.missing || !["/sbin/lvm", "/usr/sbin/lvm"].contains(&command.program) {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(CommandError::Start { program: command.program, source });
        }
        machine.lvm.log.push(command.args.join(" "));
        if machine.lvm.hanging {
            return Err(timed_out(command));
        }
        if let Some(stderr) = &machine.lvm.broken {
            return Ok(CommandOutput { status: 5, stdout: Vec::new(), stderr: stderr.clone() });
        }
        let verb = command.args.first().cloned().unwrap_or_default();
        if let Some(at) = machine.lvm.failures.iter().position(|(failing, ..)| *failing == verb) {
            let (_, status, stderr) = machine.lvm.failures.remove(at);
            return Ok(CommandOutput { status, stdout: Vec::new(), stderr });
        }
        let output = machine.run_lvm(&command.args);
        if output.status == run::HUNG { Err(timed_out(command)) } else { Ok(output) }
    }
}

fn timed_out(command: &Command) -> CommandError {
    let (program, args) = (command.program, command.args.join(" "));
    CommandError::Timeout { program, args, timeout: command.timeout }
}
