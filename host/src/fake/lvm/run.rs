//! The commands: `vgs`, `lvs`, `lvcreate`, `lvchange`, `lvremove`. What must never happen: a change by a command that
//! ends with an error.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::arguments::{Arguments, PARSING, bytes};
use super::{EXTENT, Group, Volume, device_path};
use crate::CommandOutput;
use crate::fake::state::Machine;

/// A command that failed: exit status, standard error.
type Failure = (i32, String);

const REPORT_OPTIONS: [&str; 5] = ["--reportformat", "--units", "-o", "-S", "--select"];

impl Machine {
    pub(super) fn run_lvm(&mut self, args: &[String]) -> CommandOutput {
        let (verb, rest) = args.split_first().map_or(("", &[][..]), |(verb, rest)| (verb.as_str(), rest));
        let result = match verb {
            "vgs" => self.vgs(rest),
            "lvs" => self.lvs(rest),
            "lvcreate" => self.lvcreate(rest),
            "lvchange" => self.lvchange(rest),
            "lvremove" => self.lvremove(rest),
            _ => Err((2, format!("  No such command '{verb}'.  Try 'lvm help'.\n"))),
        };
        match result {
            Ok(stdout) => CommandOutput { status: 0, stdout: stdout.into_bytes(), stderr: String::new() },
            Err((status, stderr)) => CommandOutput { status, stdout: Vec::new(), stderr },
        }
    }

    fn vgs(&self, rest: &[String]) -> Result<String, Failure> {
        let args = report_arguments(rest)?;
        if let Some(unknown) = args.names.iter().find(|name| !self.lvm.groups.contains_key(*name)) {
            return Err(no_group(unknown));
        }
        let wanted = |name: &String| args.names.is_empty() || args.names.contains(name);
        let rows = self.lvm.groups.iter().filter(|(name, _)| wanted(name));
        let rows: Result<Vec<_>, _> =
            rows.map(|(name, group)| row(&args, |field| group_field(name, group, field))).collect();
        Ok(report("vg", &rows?))
    }

    fn lvs(&self, rest: &[String]) -> Result<String, Failure> {
        let args = report_arguments(rest)?;
        let tag = match args.get("-S").or_else(|| args.get("--select")) {
            None => None,
            Some(selection) => Some(
                selection
                    .strip_prefix("tags=")
                    .ok_or_else(|| (3, format!("  Selection syntax error at '{selection}'.\n{PARSING}")))?,
            ),
        };
        for name in &args.names {
            match name.split_once('/') {
                None if !self.lvm.groups.contains_key(name) => return Err(no_group(name)),
                Some((vg, lv)) => drop(self.volume(vg, lv)?),
                None => {}
            }
        }
        let mut rows = Vec::new();
        for (vg, group) in &self.lvm.groups {
            for (lv, volume) in &group.volumes {
                let full = format!("{vg}/{lv}");
                let named =
                    args.names.is_empty() || args.names.iter().any(|name| *name == *vg || *name == full);
                if named && tag.is_none_or(|tag| volume.tags.contains(tag)) {
                    let open = self
                        .devices
                        .get(&device_path(vg, lv))
                        .is_some_and(crate::fake::state::Device::in_use);
                    rows.push(row(&args, |field| volume_field(vg, lv, volume, open, field))?);
                }
            }
        }
        Ok(report("lv", &rows))
    }

    fn lvcreate(&mut self, rest: &[String]) -> Result<String, Failure> {
        let valued = ["--wipesignatures", "--zero", "--size", "--name", "--addtag"];
        let args = Arguments::parse(rest, &valued, &["--yes"]).map_err(|text| (3, text))?;
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

    /// A new volume shows what the disk held before.
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
        let volume = Volume { uuid, extents, tags, active: false, read_only: false, parked: None };
        if let Some(group) = self.lvm.groups.get_mut(vg) {
            group.volumes.insert(name.to_owned(), volume);
        }
        self.set_active(vg, name, true);
        Ok(())
    }

    fn lvchange(&mut self, rest: &[String]) -> Result<String, Failure> {
        let valued = ["--addtag", "--deltag", "--activate", "--permission"];
        let args = Arguments::parse(rest, &valued, &["--yes"]).map_err(|text| (3, text))?;
        let (vg, lv) = one_volume(&args)?;
        self.volume(&vg, &lv)?;
        let path = device_path(&vg, &lv);
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
        let args = Arguments::parse(rest, &[], &["--yes", "--force"]).map_err(|text| (3, text))?;
        let (vg, lv) = one_volume(&args)?;
        self.volume(&vg, &lv)?;
        let path = device_path(&vg, &lv);
        if self.devices.get(&path).is_some_and(crate::fake::state::Device::in_use) {
            return Err(in_use(&vg, &lv));
        }
        self.devices.remove(&path);
        if let Some(group) = self.lvm.groups.get_mut(&vg) {
            group.volumes.remove(&lv);
        }
        Ok(format!("  Logical volume \"{lv}\" successfully removed.\n"))
    }

    fn volume(&self, vg: &str, lv: &str) -> Result<&Volume, Failure> {
        let group = self.lvm.groups.get(vg).ok_or_else(|| no_group(vg))?;
        group.volumes.get(lv).ok_or_else(|| (5, format!("  Failed to find logical volume \"{vg}/{lv}\"\n")))
    }
}

fn report_arguments(rest: &[String]) -> Result<Arguments, Failure> {
    let args = Arguments::parse(rest, &REPORT_OPTIONS, &["--nosuffix"]).map_err(|text| (3, text))?;
    let exact = args.get("--reportformat") == Some("json")
        && args.get("--units") == Some("b")
        && args.get("--nosuffix").is_some();
    // A machine would print a table or other units; the agent could not read them.
    if exact {
        Ok(args)
    } else {
        Err((3, format!("  Only the JSON report in bytes is modelled.\n{PARSING}")))
    }
}

fn one_volume(args: &Arguments) -> Result<(String, String), Failure> {
    match args.names.as_slice() {
        [name] => match name.split_once('/') {
            Some((vg, lv)) => Ok((vg.to_owned(), lv.to_owned())),
            // lvm takes the name of a group for all its volumes; the agent must never do that.
            None => Err((3, format!("  Path required for Logical Volume \"{name}\".\n{PARSING}"))),
        },
        _ => Err((3, format!("  Please provide a logical volume path\n{PARSING}"))),
    }
}

fn no_group(vg: &str) -> Failure {
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

fn valid_tag(tag: &str) -> bool {
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

fn volume_field(vg: &str, lv: &str, volume: &Volume, open: bool, field: &str) -> Option<String> {
    Some(match field {
        "lv_name" => lv.to_owned(),
        "lv_uuid" => volume.uuid.clone(),
        "vg_name" => vg.to_owned(),
        "lv_size" => (volume.extents * EXTENT).to_string(),
        "lv_tags" => volume.tags.iter().cloned().collect::<Vec<_>>().join(","),
        "lv_attr" => {
            let permission = if volume.read_only { 'r' } else { 'w' };
            let (active, open) = (if volume.active { 'a' } else { '-' }, if open { 'o' } else { '-' });
            format!("-{permission}i-{active}{open}----")
        }
        "lv_active" => if volume.active { "active" } else { "" }.to_owned(),
        "lv_path" => device_path(vg, lv).display().to_string(),
        "lv_device_open" => if open { "open" } else { "" }.to_owned(),
        _ => return None,
    })
}

/// One report row: every value a string, as lvm2 2.03 writes them.
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
