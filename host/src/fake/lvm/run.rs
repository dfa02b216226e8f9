//! Commands of the fake: `vgs`, `pvs`, `lvs`, `lvcreate`, `lvextend`, `lvrename`, `lvchange`,
//! `lvremove`. What must never happen: a change by a command that ends with an error.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::arguments::{Arguments, PARSING, bytes};
use super::{EXTENT, Form, Group, Silent, Volume, device_path, disk_of};
use crate::CommandOutput;
use crate::fake::state::{Device, Machine};

/// A command that failed: exit status, standard error.
pub(super) type Failure = (i32, String);

/// Result of a report command: its rows, and what it says of names and groups that it cannot read.
type Listed = (String, Vec<String>);

/// Groups that a report reads, and what it says of the others that it was to read.
type Read<'a> = (Vec<(&'a String, &'a Group)>, Vec<String>);

/// Exit status of a command that a signal has killed: SIGSEGV.
const CRASHED: i32 = 128 + 11;

/// Status of a command that comes to no end. No command of a machine ends with it.
pub(super) const HUNG: i32 = -1;

const REPORT_OPTIONS: [&str; 6] = ["--config", "--reportformat", "--units", "-o", "-S", "--select"];

impl Machine {
    pub(super) fn run_lvm(&mut self, args: &[String]) -> CommandOutput {
        let (verb, rest) = args.split_first().map_or(("", &[][..]), |(verb, rest)| (verb.as_str(), rest));
        let result = match verb {
            "vgs" => return output_of(rest, self.vgs(rest)),
            "pvs" => return output_of(rest, self.pvs(rest)),
            "lvs" => return output_of(rest, self.lvs(rest)),
            "lvcreate" => self.lvcreate(rest),
            "lvextend" => self.lvextend(rest),
            "lvrename" => self.lvrename(rest),
            "lvchange" => self.lvchange(rest),
            "lvremove" => self.lvremove(rest),
            _ => Err((2, format!("  No such command '{verb}'.  Try 'lvm help'.\n"))),
        };
        match result {
            Ok(stdout) => CommandOutput { status: 0, stdout: stdout.into_bytes(), stderr: String::new() },
            Err((status, stderr)) => CommandOutput { status, stdout: Vec::new(), stderr },
        }
    }

    /// Returns the groups of these names, or all without a name. A group that is not there or that
    /// cannot be read fails the command, which lists the others all the same.
    fn read(&self, names: &BTreeSet<&str>) -> Result<Read<'_>, Failure> {
        let (mut groups, mut said) = (Vec::new(), Vec::new());
        for name in names {
            if !self.lvm.groups.contains_key(*name) {
                said.push(no_group(name).1);
            }
        }
        for (name, group) in &self.lvm.groups {
            if !names.is_empty() && !names.contains(name.as_str()) {
                continue;
            }
            match group.silent {
                Some(Silent::Crashes) => return Err((CRASHED, String::new())),
                Some(Silent::Hangs) => return Err((HUNG, String::new())),
                None => {}
            }
            match &group.sick {
                Some(text) => said.push(text.clone()),
                None => groups.push((name, group)),
            }
        }
        Ok((groups, said))
    }

    fn vgs(&self, rest: &[String]) -> Result<Listed, Failure> {
        let args = report_arguments(rest)?;
        let names = args.names.iter().map(String::as_str).collect();
        let (groups, said) = self.read(&names)?;
        let mut rows = Vec::new();
        for (name, group) in groups {
            rows.push(row(&args, |field| group_field(name, group, field))?);
        }
        Ok((report("vg", &rows), said))
    }

    /// Runs `pvs`: each group lies on one disk.
    fn pvs(&self, rest: &[String]) -> Result<Listed, Failure> {
        let args = report_arguments(rest)?;
        if let Some(name) = args.names.first() {
            return Err((5, format!("  Failed to find physical volume \"{name}\".\n")));
        }
        let (groups, said) = self.read(&BTreeSet::new())?;
        let mut rows = Vec::new();
        for (name, group) in groups {
            rows.push(row(&args, |field| match field {
                "pv_name" => Some(group.node.clone().unwrap_or_else(|| disk_of(name))),
                "vg_name" => Some(name.clone()),
                _ => None,
            })?);
        }
        Ok((report("pv", &rows), said))
    }

    /// Runs `lvs`: missing LVs are an error, and existing ones are listed all the same.
    fn lvs(&self, rest: &[String]) -> Result<Listed, Failure> {
        let args = report_arguments(rest)?;
        let segments = args.get("--segments").is_some();
        // A field of segments makes a line of each segment, also without that option.
        let each = segments || args.all("-o").any(|fields| fields.split(',').any(|field| field == "segtype"));
        let tag = match args.get("-S").or_else(|| args.get("--select")) {
            None => None,
            Some(selection) => Some(
                selection
                    .strip_prefix("lv_tags={")
                    .and_then(|tag| tag.strip_suffix('}'))
                    .or_else(|| selection.strip_prefix("tags="))
                    .ok_or_else(|| (3, format!("  Selection syntax error at '{selection}'.\n{PARSING}")))?,
            ),
        };
        let names = args.names.iter().map(|name| group_part(name)).collect();
        let (groups, mut said) = self.read(&names)?;
        for name in &args.names {
            if let Some((vg, lv)) = name.split_once('/')
                && groups.iter().any(|(read, _)| read.as_str() == vg)
            {
                said.extend(self.volume(vg, lv).err().map(|(_, text)| text));
            }
        }
        let mut rows = Vec::new();
        for (vg, group) in groups {
            for (lv, volume) in &group.volumes {
                let full = format!("{vg}/{lv}");
                let named =
                    args.names.is_empty() || args.names.iter().any(|name| *name == *vg || *name == full);
                if named && tag.is_none_or(|tag| volume.tags.contains(tag)) {
                    let device = self.devices.get(&device_path(vg, lv));
                    let mut ranges = if each { volume.ranges() } else { Vec::new() };
                    if ranges.is_empty() {
                        ranges.push((0, 0));
                    }
                    for range in ranges {
                        let segment = |field: &str| (field == "seg_pe_ranges").then(|| extents_of(vg, range));
                        rows.push(row(&args, |field| {
                            segment(field)
                                .filter(|_| segments)
                                .or_else(|| thin_field(group, volume, field))
                                .or_else(|| volume_field(vg, lv, volume, device, field))
                        })?);
                    }
                }
            }
        }
        Ok((report(if segments { "seg" } else { "lv" }, &rows), said))
    }

    fn lvcreate(&mut self, rest: &[String]) -> Result<String, Failure> {
        let kind = rest.windows(2).find(|pair| pair[0] == "--type").map(|pair| pair[1].as_str());
        let snapshot = rest.iter().any(|arg| arg == "--snapshot");
        let valued: &[&str] = match kind {
            Some("thin-pool") => &["--type", "--zero", "--config", "--size", "--name", "--addtag"],
            Some(_) => &["--type", "--wipesignatures", "--virtualsize", "--thinpool", "--name", "--addtag"],
            None if snapshot => &["--setactivationskip", "--activate", "--permission", "--name", "--addtag"],
            None => &["--wipesignatures", "--zero", "--size", "--name", "--addtag"],
        };
        let flags: &[&str] = if snapshot { &["--yes", "--snapshot"] } else { &["--yes"] };
        let args = Arguments::parse(rest, valued, flags).map_err(|text| (3, text))?;
        match kind {
            Some("thin-pool") => return self.lvcreate_pool(&args),
            Some("thin") => return self.lvcreate_thin(&args),
            Some(_) => return Err((3, PARSING.to_owned())),
            None if snapshot => return self.lvcreate_snapshot(&args),
            None => {}
        }
        let [vg] = args.names.as_slice() else {
            return Err((3, format!("  Please provide a volume group name\n{PARSING}")));
        };
        let name = args.get("--name").ok_or((3, PARSING.to_owned()))?.to_owned();
        let size = args.get("--size").unwrap_or_default();
        let wanted = bytes(size).filter(|bytes| *bytes > 0);
        let wanted =
            wanted.ok_or_else(|| (3, format!("  Invalid argument for --size: {size}\n{PARSING}")))?;
        if !valid_name(&name) {
            return Err((
                3,
                format!(
                    "  Logical volume name \"{name}\" is invalid.\n  Run `lvcreate --help' for more information.\n"
                ),
            ));
        }
        let tags: BTreeSet<String> = args.all("--addtag").map(str::to_owned).collect();
        if let Some(tag) = tags.iter().find(|tag| !valid_tag(tag)) {
            return Err((3, format!("  Invalid argument for --addtag: {tag}\n{PARSING}")));
        }
        let rounded = if wanted.is_multiple_of(EXTENT) {
            String::new()
        } else {
            let size = wanted.div_ceil(EXTENT) * EXTENT / (1 << 20);
            format!("  Rounding up size to full physical extent {size}.00 MiB\n")
        };
        self.create_volume(vg, &name, wanted.div_ceil(EXTENT), tags)?;
        Ok(format!("{rounded}  Logical volume \"{name}\" created.\n"))
    }

    /// Makes a volume, which shows the old contents of the disk.
    pub(super) fn create_volume(
        &mut self,
        vg: &str,
        name: &str,
        extents: u64,
        tags: BTreeSet<String>,
    ) -> Result<(), Failure> {
        let group = self.lvm.groups.get(vg).ok_or_else(|| no_group(vg))?;
        if group.volumes.contains_key(name) {
            return Err((
                5,
                format!("  Logical Volume \"{name}\" already exists in volume group \"{vg}\"\n"),
            ));
        }
        let free = group.free();
        if free < extents {
            return Err((
                5,
                format!(
                    "  Volume group \"{vg}\" has insufficient free space ({free} extents): {extents} required.\n"
                ),
            ));
        }
        let uuid = self.lvm.uuid();
        if let Some(group) = self.lvm.groups.get_mut(vg) {
            let taken = group.first_free(extents);
            group.take(&taken);
            for extent in &taken {
                group.zeros.remove(extent);
            }
            let form = Form::Linear;
            let volume = Volume {
                uuid,
                extents: taken,
                tags,
                flushed: None,
                active: false,
                read_only: false,
                parked: None,
                form,
            };
            group.volumes.insert(name.to_owned(), volume);
        }
        self.set_active(vg, name, true);
        Ok(())
    }

    /// Runs `lvextend`, only onto extents that are named: the agent never lets LVM choose.
    fn lvextend(&mut self, rest: &[String]) -> Result<String, Failure> {
        let valued = ["--alloc", "--extents", "--size"];
        let args = Arguments::parse(rest, &valued, &["--yes"]).map_err(|text| (3, text))?;
        if args.get("--size").is_some() {
            return self.lvextend_thin(&args);
        }
        let Some((name, ranges)) = args.names.split_first().filter(|(_, ranges)| !ranges.is_empty()) else {
            return Err((3, format!("  Please specify a logical volume path and extents.\n{PARSING}")));
        };
        let Some((vg, lv)) = name.split_once('/') else {
            return Err((3, format!("  Path required for Logical Volume \"{name}\".\n{PARSING}")));
        };
        let group = self.lvm.groups.get(vg).ok_or_else(|| no_group(vg))?;
        if !group.volumes.contains_key(lv) {
            return Err((5, format!("  Logical volume {lv} not found in volume group {vg}.\n")));
        }
        let wanted = args.get("--extents").and_then(|text| text.strip_prefix('+')?.parse::<u64>().ok());
        let wanted = wanted.ok_or_else(|| (3, format!("  Invalid argument for --extents\n{PARSING}")))?;
        let (mut named, disk) = (BTreeSet::new(), disk_of(vg));
        for text in ranges {
            let range = text.strip_prefix(&disk).and_then(|text| text.strip_prefix(':')?.split_once('-'));
            let range = range.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
            let (first, last): (u64, u64) =
                range.ok_or_else(|| (5, format!("  Cannot find physical volume \"{text}\".\n")))?;
            named.extend(first..=last);
        }
        let free: Vec<u64> = named.into_iter().filter(|extent| group.is_free(*extent)).collect();
        let count = u64::try_from(free.len()).unwrap_or(u64::MAX);
        if count < wanted {
            return Err((
                5,
                format!("  Insufficient free space: {wanted} extents needed, but only {count} available\n"),
            ));
        }
        self.give_extents(vg, lv, &free[..usize::try_from(wanted).unwrap_or(free.len())]);
        Ok(format!("  Logical volume {vg}/{lv} successfully resized.\n"))
    }

    fn give_extents(&mut self, vg: &str, lv: &str, extents: &[u64]) {
        self.lvm_resumes(&device_path(vg, lv));
        let device = self.devices.get_mut(&device_path(vg, lv));
        let Some(group) = self.lvm.groups.get_mut(vg) else { return };
        group.take(extents);
        let zeros: Vec<bool> = extents.iter().map(|extent| group.zeros.remove(extent)).collect();
        let Some(volume) = group.volumes.get_mut(lv) else { return };
        let mut at = volume.bytes();
        volume.extents.extend(extents);
        let parked = volume.parked.as_mut();
        if let Some(device) = device.or(parked) {
            device.size = at + EXTENT * u64::try_from(extents.len()).unwrap_or_default();
            for zero in zeros {
                if zero {
                    device.mark_zeroed(at, at + EXTENT);
                }
                at += EXTENT;
            }
        }
    }

    /// Runs `lvrename`, also for an LV in use: its users go on (lvrename(8)); its node has the new
    /// name.
    fn lvrename(&mut self, rest: &[String]) -> Result<String, Failure> {
        let args = Arguments::parse(rest, &[], &["--yes"]).map_err(|text| (3, text))?;
        let [old, new] = args.names.as_slice() else {
            return Err((3, format!("  Old and new logical volume names required\n{PARSING}")));
        };
        let path = || (3, format!("  Path required for Logical Volume \"{old}\".\n{PARSING}"));
        let ((vg, from), (other, to)) =
            (old.split_once('/').ok_or_else(path)?, new.split_once('/').ok_or_else(path)?);
        if vg != other {
            return Err((3, "  Logical volume names must have the same volume group\n".to_owned()));
        }
        if !valid_name(to) {
            return Err((3, format!("  New logical volume name \"{to}\" is invalid\n")));
        }
        let group = self.lvm.groups.get_mut(vg).ok_or_else(|| no_group(vg))?;
        if !group.volumes.contains_key(from) {
            let text = format!("  Existing logical volume \"{from}\" not found in volume group \"{vg}\"\n");
            return Err((5, text));
        }
        if group.volumes.contains_key(to) {
            return Err((5, format!("  Logical volume \"{to}\" already exists in volume group \"{vg}\"\n")));
        }
        if let Some(volume) = group.volumes.remove(from) {
            group.volumes.insert(to.to_owned(), volume);
        }
        if let Some(device) = self.devices.remove(&device_path(vg, from)) {
            self.devices.insert(device_path(vg, to), device);
            self.device_renamed(&device_path(vg, from), &device_path(vg, to));
        }
        Ok(format!("  Renamed \"{from}\" to \"{to}\" in volume group \"{vg}\"\n"))
    }

    fn lvchange(&mut self, rest: &[String]) -> Result<String, Failure> {
        let valued = ["--addtag", "--deltag", "--activate", "--permission", "--setactivationskip", "--zero"];
        let args = Arguments::parse(rest, &valued, &["--yes", "--refresh"]).map_err(|text| (3, text))?;
        if args.names.len() < 2 {
            return self.lvchange_one(&args, one_volume(&args)?);
        }
        // An LV that cannot be changed does not stop the others; the status tells that there was
        // one.
        let mut said: Result<String, Failure> = Ok(String::new());
        for name in &args.names {
            let one = args.with_name(name);
            match (self.lvchange_one(&one, one_volume(&one)?), &mut said) {
                (Ok(text), Ok(said)) => said.push_str(&text),
                (Err((status, text)), Err(failure)) => *failure = (status, format!("{}{text}", failure.1)),
                (Err(failure), said) => *said = Err(failure),
                (Ok(_), Err(_)) => {}
            }
        }
        said
    }

    fn lvchange_one(&mut self, args: &Arguments, (vg, lv): (String, String)) -> Result<String, Failure> {
        self.volume(&vg, &lv)?;
        let path = device_path(&vg, &lv);
        if args.get("--refresh").is_some() {
            self.lvm_resumes(&path);
            return Ok(String::new());
        }
        if let Some(state) = args.get("--activate") {
            let active = match state {
                "y" => true,
                "n" => false,
                _ => return Err((3, format!("  Invalid argument for --activate: {state}\n{PARSING}"))),
            };
            if !active && self.devices.get(&path).is_some_and(crate::fake::state::Device::in_use) {
                return Err(in_use(&vg, &lv));
            }
            self.set_active(&vg, &lv, active);
            return Ok(String::new());
        }
        if args.get("--setactivationskip").or_else(|| args.get("--zero")).is_some() {
            return self.lvchange_thin(args, &vg, &lv);
        }
        let read_only = args.get("--permission").map(|permission| permission == "r");
        if let Some(tag) = args.all("--addtag").find(|tag| !valid_tag(tag)) {
            return Err((3, format!("  Invalid argument for --addtag: {tag}\n{PARSING}")));
        }
        if let Some(volume) = self.lvm.groups.get_mut(&vg).and_then(|group| group.volumes.get_mut(&lv)) {
            volume.tags.extend(args.all("--addtag").map(str::to_owned));
            for tag in args.all("--deltag") {
                volume.tags.remove(tag);
            }
            if let (Some(read_only), Some(device)) = (read_only, self.devices.get_mut(&path)) {
                volume.read_only = read_only;
                device.read_only = read_only;
            }
        }
        Ok(format!("  Logical volume {vg}/{lv} changed.\n"))
    }

    fn lvremove(&mut self, rest: &[String]) -> Result<String, Failure> {
        let args = Arguments::parse(rest, &["--config"], &["--yes", "--force"]).map_err(|text| (3, text))?;
        let (vg, lv) = one_volume(&args)?;
        self.volume(&vg, &lv)?;
        let path = device_path(&vg, &lv);
        if self.devices.get(&path).is_some_and(crate::fake::state::Device::in_use) {
            return Err(in_use(&vg, &lv));
        }
        let device = self.devices.remove(&path);
        if let Some(group) = self.lvm.groups.get_mut(&vg)
            && let Some(volume) = group.volumes.remove(&lv)
        {
            // Where a site lets LVM discard freed extents, nobody knows how they read.
            let kept = args.get("--config") == Some("devices/issue_discards=0");
            let device = device.or(volume.parked).filter(|_| kept);
            let zeroed = |at: u64| {
                device.as_ref().is_some_and(|device| device.reads_zeros(at * EXTENT, (at + 1) * EXTENT))
            };
            let at = (0..).zip(&volume.extents).filter(|(at, _)| zeroed(*at));
            group.zeros.extend(at.map(|(_, extent)| *extent));
            group.returned.extend(volume.extents);
        }
        Ok(format!("  Logical volume \"{lv}\" successfully removed.\n"))
    }

    pub(super) fn volume(&self, vg: &str, lv: &str) -> Result<&Volume, Failure> {
        let group = self.lvm.groups.get(vg).ok_or_else(|| no_group(vg))?;
        group.volumes.get(lv).ok_or_else(|| (5, format!("  Failed to find logical volume \"{vg}/{lv}\"\n")))
    }
}

/// Returns the output of a report: one that says anything beside its rows has failed.
/// Makes the output of a report. By its own settings LVM 2.03.31 (Debian 13) has the messages in
/// the report and none on standard error; the report's part for them is not modelled.
fn output_of(rest: &[String], listed: Result<Listed, Failure>) -> CommandOutput {
    let to_stderr = rest.windows(2).any(|pair| pair == ["--config", "log/report_command_log=0"]);
    match listed {
        Ok((stdout, said)) => CommandOutput {
            status: if said.is_empty() { 0 } else { 5 },
            stdout: stdout.into_bytes(),
            stderr: if to_stderr { said.concat() } else { String::new() },
        },
        Err((status, stderr)) => CommandOutput { status, stdout: Vec::new(), stderr },
    }
}

/// Returns the group of a name that `lvs` takes: `vg0` or `vg0/lv0`.
fn group_part(name: &str) -> &str {
    name.split_once('/').map_or(name, |(vg, _)| vg)
}

fn report_arguments(rest: &[String]) -> Result<Arguments, Failure> {
    let args =
        Arguments::parse(rest, &REPORT_OPTIONS, &["--nosuffix", "--segments"]).map_err(|text| (3, text))?;
    let exact = args.get("--reportformat") == Some("json")
        && args.get("--units") == Some("b")
        && args.get("--nosuffix").is_some();
    // A machine would print a table or other units, which the agent could not read.
    if exact {
        Ok(args)
    } else {
        Err((3, format!("  Only the JSON report in bytes is modelled.\n{PARSING}")))
    }
}

pub(super) fn one_volume(args: &Arguments) -> Result<(String, String), Failure> {
    match args.names.as_slice() {
        [name] => match name.split_once('/') {
            Some((vg, lv)) => Ok((vg.to_owned(), lv.to_owned())),
            // lvm takes the name of a group for all its volumes; the agent must never do that.
            None => Err((3, format!("  Path required for Logical Volume \"{name}\".\n{PARSING}"))),
        },
        _ => Err((3, format!("  Please provide a logical volume path\n{PARSING}"))),
    }
}

pub(super) fn no_group(vg: &str) -> Failure {
    (5, format!("  Volume group \"{vg}\" not found\n  Cannot process volume group {vg}\n"))
}

fn in_use(vg: &str, lv: &str) -> Failure {
    (5, format!("  Logical volume {vg}/{lv} in use.\n"))
}

fn valid_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
    !name.is_empty()
        && name.len() <= 127
        && !name.starts_with('-')
        && name != "."
        && name != ".."
        && name.bytes().all(allowed)
}

pub(super) fn valid_tag(tag: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-/=!:&#".contains(&byte);
    !tag.is_empty() && tag.len() <= 1024 && !tag.starts_with('-') && tag.bytes().all(allowed)
}

fn group_field(name: &str, group: &Group, field: &str) -> Option<String> {
    Some(match field {
        "vg_name" => name.to_owned(),
        "vg_uuid" => group.uuid.clone(),
        "vg_size" => (group.extents * EXTENT).to_string(),
        "vg_free" => (group.free() * EXTENT).to_string(),
        "vg_extent_size" => EXTENT.to_string(),
        "vg_attr" => "wz--n-".to_owned(),
        _ => return None,
    })
}

fn volume_field(vg: &str, lv: &str, volume: &Volume, device: Option<&Device>, field: &str) -> Option<String> {
    let open = device.is_some_and(Device::in_use);
    Some(match field {
        "lv_name" => lv.to_owned(),
        "lv_uuid" => volume.uuid.clone(),
        "vg_name" => vg.to_owned(),
        "lv_size" => volume.bytes().to_string(),
        "lv_tags" => volume.tags.iter().cloned().collect::<Vec<_>>().join(","),
        "lv_attr" => {
            let permission = if volume.read_only { 'r' } else { 'w' };
            let (active, open) = (if volume.active { 'a' } else { '-' }, if open { 'o' } else { '-' });
            // lvs(8): the type first, the activation skip last.
            let (kind, target, skip) = match &volume.form {
                Form::Linear => ('-', '-', '-'),
                Form::Pool { .. } => ('t', 't', '-'),
                Form::Thin { skip, .. } => ('V', 't', if *skip { 'k' } else { '-' }),
                Form::Other { kind, .. } => (*kind, '-', '-'),
            };
            if device.is_some_and(|device| device.errors) {
                // LVM sees that the table is not its own.
                format!("{kind}{permission}i-XX{target}-X{skip}")
            } else {
                format!("{kind}{permission}i-{active}{open}{target}--{skip}")
            }
        }
        "lv_active" => if volume.active { "active" } else { "" }.to_owned(),
        "lv_path" => device_path(vg, lv).display().to_string(),
        "lv_device_open" => if open { "open" } else { "" }.to_owned(),
        _ => return None,
    })
}

/// Returns a field of a report that concerns thin pools; for other LVs most of these are empty.
fn thin_field(group: &Group, volume: &Volume, field: &str) -> Option<String> {
    let form = &volume.form;
    let percent = |used: u64, of: u64| {
        let parts = used.saturating_mul(10_000).checked_div(of).unwrap_or(0);
        format!("{}.{:02}", parts / 100, parts % 100)
    };
    Some(match (field, form) {
        ("pool_lv", Form::Thin { pool, .. }) => pool.clone(),
        ("segtype", Form::Linear) => "linear".to_owned(),
        ("segtype", Form::Pool { .. }) => "thin-pool".to_owned(),
        ("segtype", Form::Thin { .. }) => "thin".to_owned(),
        ("segtype", Form::Other { segtype, .. }) => segtype.clone(),
        ("data_percent", Form::Pool { .. }) => percent(group.pool_used, volume.bytes()),
        ("metadata_percent", Form::Pool { .. }) => percent(group.pool_metadata.into(), 10_000),
        ("lv_health_status", Form::Pool { .. }) => group.pool_health.clone(),
        ("zero", Form::Pool { zeroes }) => said_to_zero(*zeroes),
        ("zero", Form::Thin { pool, .. }) => said_to_zero(group.pool_zeroes(pool)),
        ("zero", Form::Linear | Form::Other { .. }) => "unknown".to_owned(),
        ("discards", Form::Pool { .. } | Form::Thin { .. }) => {
            if group.pool_ignores_discards { "ignore" } else { "passdown" }.to_owned()
        }
        ("pool_lv" | "data_percent" | "metadata_percent" | "lv_health_status" | "discards", _) => {
            String::new()
        }
        _ => return None,
    })
}

fn said_to_zero(zeroes: bool) -> String {
    if zeroes { "zero" } else { "" }.to_owned()
}

fn extents_of(vg: &str, (first, last): (u64, u64)) -> String {
    format!("{}:{first}-{last}", disk_of(vg))
}

/// Builds one report row: every value a string, as lvm2 2.03 writes them.
fn row(args: &Arguments, value: impl Fn(&str) -> Option<String>) -> Result<String, Failure> {
    let mut text = String::new();
    for field in args.all("-o").flat_map(|fields| fields.split(',')) {
        let found = value(field).ok_or_else(|| (3, format!("  Unrecognised field: {field}\n{PARSING}")))?;
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}\"{field}\":{}", serde_json::Value::String(found));
    }
    Ok(format!("{{{text}}}"))
}

fn report(kind: &str, rows: &[String]) -> String {
    let rows = rows.join(",\n                  ");
    let rows = if rows.is_empty() { rows } else { format!("                  {rows}\n") };
    format!(
        "  {{\n      \"report\": [\n          {{\n              \"{kind}\": [\n{rows}              ]\n          }}\n      ]\n  }}\n"
    )
}
