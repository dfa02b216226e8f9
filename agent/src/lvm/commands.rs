//! Runs `lvm`: makes every command line that this agent gives to LVM, and reads every answer.
//!
//! What must never happen here: an argument that is neither a constant, nor a name, number or tag
//! made by the model or by the agent, nor extents that LVM itself has just named.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use mooring_host::{Command, CommandError, CommandOutput, Commands};
use mooring_model::{ByteSize, LV_TAG, LV_ZEROED_MARK, LvName, VgName};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

use super::error::Error;
use super::plan::LvId;

/// Commands that change nothing.
const REPORTS: [&str; 3] = ["vgs", "lvs", "pvs"];

/// First exit status of a command that a signal has ended (`CommandOutput::status`).
const CRASHED_FROM: i32 = 128;

/// Path of `lvm`, one program with subcommands. Debian, Fedora and SUSE all have it there.
const PROGRAM: &str = "/sbin/lvm";

/// Time limit of one command. LVM waits for udev and for its own locks; an emulated machine needs
/// seconds for what hardware does in 20 ms.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Maximum number of characters of LVM's error output that an error repeats.
const SAID_CHARS_MAX: usize = 400;

const VG_COLUMNS: &str = "vg_name,vg_uuid,vg_size,vg_free,vg_extent_size,vg_attr";
const LV_COLUMNS: &str = "lv_name,lv_uuid,vg_name,lv_size,lv_tags,lv_attr,lv_active,lv_path,lv_device_open,pool_lv,segtype,\
                          data_percent,metadata_percent,lv_health_status,zero,discards";
const PV_COLUMNS: &str = "vg_name,pv_name";

/// Arguments that remove an LV.
///
/// `--force` removes an active LV, too; LVM itself refuses an open one. The setting keeps LVM from
/// discarding the blocks, whatever the host's lvm.conf says. Discarded blocks may read as anything,
/// even if they were zeroed. LVM discards a large LV in one go, which would exceed the time limit.
const REMOVE: [&str; 5] = ["lvremove", "--yes", "--force", "--config", "devices/issue_discards=0"];

/// Beginning of LVM's message that an LV does not exist.
const NOT_FOUND: &str = "Failed to find logical volume";

/// LVM on this machine.
pub(super) struct Lvm<'a>(pub(super) &'a dyn Commands);

/// A group as `vgs` reports it.
#[derive(Debug, Deserialize)]
pub(super) struct RawVg {
    #[serde(rename = "vg_name")]
    pub(super) name: String,
    #[serde(rename = "vg_uuid", default)]
    pub(super) uuid: String,
    #[serde(rename = "vg_size", deserialize_with = "bytes")]
    pub(super) size: u64,
    #[serde(rename = "vg_free", deserialize_with = "bytes")]
    pub(super) free: u64,
    #[serde(rename = "vg_extent_size", deserialize_with = "bytes")]
    pub(super) extent: u64,
    #[serde(rename = "vg_attr", default)]
    pub(super) attr: String,
}

/// An LV as `lvs` reports it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct RawLv {
    #[serde(rename = "lv_name")]
    pub(super) name: String,
    #[serde(rename = "lv_uuid", default)]
    pub(super) uuid: String,
    #[serde(rename = "vg_name")]
    pub(super) group: String,
    #[serde(rename = "lv_size", deserialize_with = "bytes")]
    pub(super) size: u64,
    #[serde(rename = "lv_tags", default)]
    pub(super) tags: String,
    #[serde(rename = "lv_attr", default)]
    pub(super) attr: String,
    #[serde(rename = "lv_active", default)]
    pub(super) active: String,
    #[serde(rename = "lv_device_open", default)]
    pub(super) open: String,
    #[serde(rename = "pool_lv", default)]
    pub(super) pool: String,
    #[serde(default)]
    pub(super) segtype: String,
    #[serde(default)]
    pub(super) data_percent: String,
    #[serde(default)]
    pub(super) metadata_percent: String,
    #[serde(rename = "lv_health_status", default)]
    pub(super) health: String,
    #[serde(default)]
    pub(super) zero: String,
    /// Discard mode of a thin pool: `passdown`, `nopassdown`, `ignore`.
    #[serde(default)]
    pub(super) discards: String,
}

impl RawLv {
    /// Returns the LV's tags.
    pub(super) fn tags(&self) -> BTreeSet<String> {
        self.tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
    }

    /// Returns one letter of the LV's `lv_attr` (lvs(8)), by its index from 0.
    pub(super) fn attr(&self, index: usize) -> u8 {
        attr_at(&self.attr, index)
    }
}

/// Returns one letter of an `lv_attr` (lvs(8)), by its index from 0: type, permissions, allocation,
/// fixed minor, state, open, target type, zero, health, skip.
pub(super) fn attr_at(attr: &str, index: usize) -> u8 {
    attr.as_bytes().get(index).copied().unwrap_or(b'-')
}

/// Keeps the first line of each LV. LVM prints a line for each segment, because the columns
/// describe segments.
fn one_of_each(report: Report<Lvs>) -> Vec<RawLv> {
    let mut seen = BTreeSet::new();
    let mut lvs: Vec<_> = report.report.into_iter().flat_map(|part| part.lv).collect();
    lvs.retain(|lv| seen.insert((lv.group.clone(), lv.name.clone())));
    lvs
}

/// A disk as `pvs` reports it.
#[derive(Debug, Deserialize)]
pub(super) struct RawPv {
    /// Volume group; empty if the disk is in none.
    #[serde(rename = "vg_name", default)]
    pub(super) group: String,
    /// Device node; `[unknown]` if the disk is missing.
    #[serde(rename = "pv_name")]
    pub(super) name: String,
}

/// Reads a number of bytes. Numbers come as text (`--reportformat json`), or as numbers
/// (`json_std`, should a site's lvm.conf force it).
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    match Either::deserialize(from)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => {
            let digits = text.trim().trim_end_matches(['B', 'b']);
            digits
                .parse()
                .map_err(|_| serde::de::Error::custom(format_args!("{text:?} is not a number of bytes")))
        }
    }
}

#[derive(Deserialize)]
struct Report<T> {
    report: Vec<T>,
}

#[derive(Deserialize)]
struct Vgs {
    #[serde(default)]
    vg: Vec<RawVg>,
}

#[derive(Deserialize)]
struct Lvs {
    #[serde(default)]
    lv: Vec<RawLv>,
}

#[derive(Deserialize)]
struct Pvs {
    #[serde(default)]
    pv: Vec<RawPv>,
}

#[derive(Deserialize)]
struct Segments {
    #[serde(default)]
    seg: Vec<RawSegment>,
}

#[derive(Deserialize)]
struct RawSegment {
    #[serde(rename = "seg_pe_ranges")]
    ranges: String,
}

/// A range of extents of one disk, from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Extents {
    disk: String,
    first: u64,
    last: u64,
}

impl Extents {
    /// Parses the form in which LVM prints a range: `/dev/sdb:0-99`. `None` for another one.
    fn parse(text: &str) -> Option<Self> {
        let (disk, range) = text.rsplit_once(':')?;
        let (first, last) = range.split_once('-')?;
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        let plain = disk.starts_with("/dev/") && disk.bytes().all(|byte| byte.is_ascii_graphic());
        (plain && first <= last).then(|| Self { disk: disk.to_owned(), first, last })
    }

    fn count(&self) -> u64 {
        self.last - self.first + 1
    }
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}-{}", self.disk, self.first, self.last)
    }
}

impl Lvm<'_> {
    /// Lists those of the named groups that exist. Fails if LVM cannot read one of them.
    ///
    /// LVM reads no other group then: one of somebody else that it cannot read costs nothing.
    pub(super) fn groups(&self, names: &[&VgName]) -> Result<Vec<RawVg>, Error> {
        let op = || "list the volume groups".to_owned();
        let mut args = report("vgs", &["-o", VG_COLUMNS]);
        args.extend(names.iter().map(|name| name.as_str()));
        let out = self.ask(op, &args)?;
        if out.status != 0 && !only_absent(&out.stderr) {
            let group = names.first().map_or("", |name| name.as_str());
            return Err(meaning(op(), group, out.status, &out.stderr));
        }
        rows_of_groups(op, &out)
    }

    /// Lists all groups of the machine that LVM can read.
    pub(super) fn all_groups(&self) -> Result<Vec<RawVg>, Error> {
        let op = || "list the volume groups".to_owned();
        rows_of_groups(op, &self.ask(op, &report("vgs", &["-o", VG_COLUMNS]))?)
    }

    /// Lists all disks of the machine that LVM knows. Those of a group that it cannot read are left
    /// out, unless LVM lists none at all.
    pub(super) fn disks(&self) -> Result<Vec<RawPv>, Error> {
        let op = || "list the physical volumes".to_owned();
        let out = self.ask(op, &report("pvs", &["-o", PV_COLUMNS]))?;
        let parsed = parse::<Report<Pvs>>(op, &out.stdout);
        if out.status != 0 && parsed.is_err() {
            return Err(meaning(op(), "", out.status, &out.stderr));
        }
        Ok(parsed?.report.into_iter().flat_map(|part| part.pv).collect())
    }

    /// Lists all LVs of these groups that `lvs` shows. Fails if LVM cannot read one of them.
    pub(super) fn lvs(&self, groups: &[&VgName]) -> Result<Vec<RawLv>, Error> {
        let op = || "list the logical volumes".to_owned();
        let mut args = report("lvs", &["-o", LV_COLUMNS]);
        args.extend(groups.iter().map(|group| group.as_str()));
        let out = self.run(op, groups.first().map_or("", |group| group.as_str()), &args)?;
        Ok(one_of_each(parse::<Report<Lvs>>(op, &out)?))
    }

    /// Lists those of the named LVs that exist.
    pub(super) fn lvs_named(&self, group: &VgName, names: &[LvName]) -> Result<Vec<RawLv>, Error> {
        let op = || {
            let names: Vec<_> = names.iter().map(|name| format!("{group}/{name}")).collect();
            format!("look at {}", names.join(" and "))
        };
        let mut args = report("lvs", &["-o", LV_COLUMNS]);
        let paths: Vec<_> = names.iter().map(|name| format!("{group}/{name}")).collect();
        args.extend(paths.iter().map(String::as_str));
        let out = self.ask(op, &args)?;
        // `lvs` lists the LVs that exist; its exit status speaks of those that do not.
        if out.status == 0 || only_missing(&out.stderr) {
            return Ok(one_of_each(parse::<Report<Lvs>>(op, &out.stdout)?));
        }
        let error = meaning(op(), group.as_str(), out.status, &out.stderr);
        match error {
            Error::NoGroup { .. } => Ok(Vec::new()),
            // LVM says something of other disks, too. It has to say of each LV that it is there, or
            // that it is not.
            Error::Changed { .. } => {
                let found = one_of_each(parse::<Report<Lvs>>(op, &out.stdout)?);
                let is_told = |path: &String| {
                    let missing = format!("{NOT_FOUND} \"{path}\"");
                    found.iter().any(|lv| format!("{}/{}", lv.group, lv.name) == *path)
                        || lines(&out.stderr).any(|line| line == missing)
                };
                if paths.iter().all(is_told) { Ok(found) } else { Err(error) }
            }
            _ => Err(error),
        }
    }

    /// Lists the LVs of a group that carry this tag.
    pub(super) fn lvs_tagged(&self, group: &VgName, tag: &str) -> Result<Vec<RawLv>, Error> {
        let op = || format!("look for what is tagged {tag} in {group}");
        // The braces match an LV that has further tags, too (lvmreport(7)).
        let select = format!("lv_tags={{{tag}}}");
        let args = report("lvs", &["-o", LV_COLUMNS, "--select", &select, group.as_str()]);
        let out = match self.run(op, group.as_str(), &args) {
            // The group went after the view was taken.
            Err(Error::NoGroup { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        Ok(one_of_each(parse::<Report<Lvs>>(op, &out)?))
    }

    /// Returns the UUID that LVM gave an LV. `None` if there is no such LV.
    pub(super) fn uuid(&self, lv: &LvId) -> Result<Option<String>, Error> {
        let found = self.lvs_named(&lv.group, std::slice::from_ref(&lv.name))?;
        Ok(found.into_iter().next().map(|raw| raw.uuid))
    }

    /// Returns the ranges of extents that an LV occupies.
    fn ranges(&self, lv: &LvId) -> Result<Vec<Extents>, Error> {
        let op = || format!("look where {lv} lies");
        let path = lv.to_string();
        let args = report("lvs", &["--segments", "-o", "seg_pe_ranges", &path]);
        let out = self.run(op, lv.group.as_str(), &args)?;
        let segments = parse::<Report<Segments>>(op, &out)?.report.into_iter().flat_map(|part| part.seg);
        let texts: Vec<_> = segments.map(|segment| segment.ranges).collect();
        let ranges: Option<Vec<_>> =
            texts.iter().flat_map(|text| text.split_whitespace()).map(Extents::parse).collect();
        let none = || Error::Report { op: op(), why: format!("{} names no extents", texts.join(" ")) };
        ranges.filter(|ranges| !ranges.is_empty()).ok_or_else(none)
    }

    /// Creates a thick LV. `--zero n`, because LVM would zero its first blocks only; a step of its
    /// own zeroes all of them.
    pub(super) fn create(&self, lv: &LvId, size: ByteSize, tags: &[&str]) -> Result<(), Error> {
        let size = format!("{}b", size.0);
        let mut args = vec!["lvcreate", "--yes", "--wipesignatures", "n", "--zero", "n", "--size", &size];
        args.extend(["--name", lv.name.as_str()]);
        for tag in tags {
            args.extend(["--addtag", tag]);
        }
        args.push(lv.group.as_str());
        self.run(|| format!("create {lv}"), lv.group.as_str(), &args).map(drop)
    }

    /// Creates a thin pool. The pool zeroes the blocks that it allocates, and a write that finds it
    /// full fails at once.
    ///
    /// By default such a write hangs for a minute first. `lvcreate` has no option for that, but a
    /// setting.
    pub(super) fn create_pool(&self, lv: &LvId, size: ByteSize) -> Result<(), Error> {
        let size = format!("{}b", size.0);
        let mut args = vec!["lvcreate", "--yes", "--type", "thin-pool", "--zero", "y"];
        args.extend(["--config", "activation/error_when_full=1", "--size", &size]);
        args.extend(["--name", lv.name.as_str(), "--addtag", LV_TAG, lv.group.as_str()]);
        self.run(|| format!("create the thin pool {lv}"), lv.group.as_str(), &args).map(drop)
    }

    /// Creates a thin LV, which reads as zeros.
    pub(super) fn create_thin(&self, lv: &LvId, size: ByteSize, tags: &[&str]) -> Result<(), Error> {
        let (size, pool) = (format!("{}b", size.0), LvName::thin_pool());
        let mut args = vec!["lvcreate", "--yes", "--wipesignatures", "n", "--type", "thin"];
        args.extend(["--virtualsize", &size, "--thinpool", pool.as_str(), "--name", lv.name.as_str()]);
        for tag in tags {
            args.extend(["--addtag", tag]);
        }
        args.push(lv.group.as_str());
        self.run(|| format!("create {lv}"), lv.group.as_str(), &args).map(drop)
    }

    /// Takes a snapshot, which gets no device, now or at a boot.
    ///
    /// The kernel suspends the volume's device for that and completes I/O in flight: the snapshot
    /// contains every write that was acknowledged before.
    pub(super) fn snapshot(&self, lv: &LvId, of: &LvId) -> Result<(), Error> {
        let (from, op) = (of.to_string(), || format!("take the snapshot {lv} of {of}"));
        let mut args =
            vec!["lvcreate", "--yes", "--snapshot", "--setactivationskip", "y", "--permission", "r"];
        args.extend(["--name", lv.name.as_str(), "--addtag", LV_TAG, &from]);
        self.run(op, lv.group.as_str(), &args).map(drop)
    }

    /// Creates a thin LV with the data of another one.
    pub(super) fn clone_of(&self, lv: &LvId, from: &LvId, tags: &[&str]) -> Result<(), Error> {
        let (path, op) = (from.to_string(), || format!("make {lv} from {from}"));
        let mut args = vec!["lvcreate", "--yes", "--snapshot", "--setactivationskip", "n", "--activate", "y"];
        args.extend(["--permission", "rw", "--name", lv.name.as_str()]);
        for tag in tags {
            args.extend(["--addtag", tag]);
        }
        args.push(&path);
        self.run(op, lv.group.as_str(), &args).map(drop)
    }

    /// Enlarges a thin LV.
    pub(super) fn extend(&self, lv: &LvId, size: ByteSize) -> Result<(), Error> {
        let size = format!("{}b", size.0);
        self.on(lv, "extend", &["lvextend", "--yes", "--size", &size])
    }

    pub(super) fn activate(&self, lv: &LvId) -> Result<(), Error> {
        self.on(lv, "activate", &["lvchange", "--activate", "y"])
    }

    /// Puts the LV's own table back in force, whatever table the device has.
    pub(super) fn refresh(&self, lv: &LvId) -> Result<(), Error> {
        self.on(lv, "refresh", &["lvchange", "--refresh"])
    }

    /// Activates many LVs of one group with one command.
    pub(super) fn activate_all(&self, lvs: &[&LvId]) -> Result<(), Error> {
        let Some(first) = lvs.first() else { return Ok(()) };
        let paths: Vec<_> = lvs.iter().map(ToString::to_string).collect();
        let mut args = vec!["lvchange", "--activate", "y"];
        args.extend(paths.iter().map(String::as_str));
        let op = || format!("activate {} logical volumes of {}", lvs.len(), first.group);
        self.run(op, first.group.as_str(), &args).map(drop)
    }

    pub(super) fn add_tag(&self, lv: &LvId, tag: &str) -> Result<(), Error> {
        self.add_tags(lv, &[tag])
    }

    pub(super) fn add_tags(&self, lv: &LvId, tags: &[&str]) -> Result<(), Error> {
        let options: Vec<_> = tags.iter().flat_map(|tag| ["--addtag", tag]).collect();
        self.on(lv, "tag", &[&["lvchange"], options.as_slice()].concat())
    }

    /// Removes tags. A tag that the LV does not carry is no error.
    pub(super) fn delete_tags(&self, lv: &LvId, tags: &[String]) -> Result<(), Error> {
        let options = tags.iter().flat_map(|tag| ["--deltag", tag.as_str()]);
        let args: Vec<_> = ["lvchange"].into_iter().chain(options).collect();
        self.on(lv, "untag", &args)
    }

    /// Adds the mark of how far a work has come, and removes the marks before it. LVM may do the
    /// two one after the other: each mark is true.
    pub(super) fn mark(&self, lv: &LvId, new: &str, before: &[String]) -> Result<(), Error> {
        let options = before.iter().flat_map(|tag| ["--deltag", tag.as_str()]);
        let args: Vec<_> = ["lvchange", "--addtag", new].into_iter().chain(options).collect();
        self.on(lv, "mark", &args)
    }

    /// Appends the extents of `growth` to `lv`. They stay the same, zeroed blocks.
    ///
    /// LVM has no command for that: `growth` is removed, and `lv` is extended onto exactly its
    /// extents. If somebody takes one of them in between, LVM refuses, and `lv` stays as it is.
    pub(super) fn append(&self, lv: &LvId, growth: &LvId) -> Result<(), Error> {
        let ranges = self.ranges(growth)?;
        let (path, from) = (lv.to_string(), growth.to_string());
        let remove = [&REMOVE[..], &[from.as_str()]].concat();
        let extents = format!("+{}", ranges.iter().map(Extents::count).sum::<u64>());
        let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        let mut extend = vec!["lvextend", "--yes", "--alloc", "normal", "--extents", &extents, &path];
        extend.extend(ranges.iter().map(String::as_str));
        let ops = [format!("remove {growth}"), format!("extend {lv}")];
        let op = || format!("append {growth} to {lv}");
        let outputs = self.0.run_in_a_row(&[command(&remove), command(&extend)]);
        for (op, out) in ops.into_iter().zip(ended(op, outputs)?) {
            if out.status != 0 {
                return Err(meaning(op, lv.group.as_str(), out.status, &out.stderr));
            }
        }
        Ok(())
    }

    /// Renames the LV that has this UUID. LVM finds it by the old name only, so the UUID is checked
    /// just before.
    pub(super) fn rename(&self, from: &LvId, to: &LvId, uuid: &str) -> Result<(), Error> {
        let op = || format!("rename {from} to {to}");
        if self.uuid(from)?.as_deref() != Some(uuid) {
            return Err(Error::Changed { op: op(), said: format!("{from} is not the LV {uuid}") });
        }
        let (old, new) = (from.to_string(), to.to_string());
        self.run(op, from.group.as_str(), &["lvrename", "--yes", &old, &new]).map(drop)
    }

    pub(super) fn remove(&self, lv: &LvId) -> Result<(), Error> {
        self.on(lv, "remove", &REMOVE)
    }

    fn on(&self, lv: &LvId, verb: &str, args: &[&str]) -> Result<(), Error> {
        let path = lv.to_string();
        let args: Vec<&str> = args.iter().copied().chain([path.as_str()]).collect();
        self.run(|| format!("{verb} {lv}"), lv.group.as_str(), &args).map(drop)
    }

    fn run(&self, op: impl Fn() -> String, group: &str, args: &[&str]) -> Result<Vec<u8>, Error> {
        let out = self.output(&op, args)?;
        match out.status {
            0 => Ok(out.stdout),
            status => Err(meaning(op(), group, status, &out.stderr)),
        }
    }

    fn output(&self, op: impl Fn() -> String, args: &[&str]) -> Result<CommandOutput, Error> {
        if REPORTS.contains(args.first().unwrap_or(&"")) {
            return self.ask(op, args);
        }
        ended(op, self.0.run(&command(args)))
    }

    /// Runs a report. One that crashes is run once more: it changes nothing.
    fn ask(&self, op: impl Fn() -> String, args: &[&str]) -> Result<CommandOutput, Error> {
        let command = command(args);
        let out = ended(&op, self.0.run(&command))?;
        if out.status < CRASHED_FROM {
            return Ok(out);
        }
        tracing::warn!(status = out.status, "lvm crashed, and is run again to {}", op());
        ended(op, self.0.run(&command))
    }
}

/// Reads the rows of groups in the output of `vgs`, also if it has failed for others.
fn rows_of_groups(op: impl Fn() -> String, out: &CommandOutput) -> Result<Vec<RawVg>, Error> {
    if out.status != 0 && out.stdout.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    Ok(parse::<Report<Vgs>>(op, &out.stdout)?.report.into_iter().flat_map(|part| part.vg).collect())
}

/// Setting with which LVM writes its messages to standard error. By its own settings a report in
/// JSON has them within it (LVM 2.03.31, Debian 13), and standard error says nothing.
const MESSAGES: &str = "log/report_command_log=0";

/// Returns the arguments of a report whose answer [`parse`] reads: JSON, with sizes in bytes.
fn report<'a>(verb: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let format = [verb, "--config", MESSAGES, "--reportformat", "json", "--units", "b", "--nosuffix"];
    [&format, rest].concat()
}

/// Returns the tag of an LV whose first `mib` MiB are zeroed.
pub(super) fn mark(mib: u64) -> String {
    format!("{LV_ZEROED_MARK}{mib}")
}

fn command(args: &[&str]) -> Command {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Command { program: PROGRAM, args, timeout: TIMEOUT }
}

/// Returns the output of a command that ran to its end, whatever its exit status.
fn ended<T>(op: impl Fn() -> String, result: Result<T, CommandError>) -> Result<T, Error> {
    match result {
        Ok(out) => Ok(out),
        Err(source @ CommandError::Start { .. }) => Err(Error::NoLvm { op: op(), source }),
        Err(source @ (CommandError::Timeout { .. } | CommandError::Output { .. })) => {
            Err(Error::Hung { op: op(), source })
        }
    }
}

/// Returns `true` if LVM complains of nothing but LVs that do not exist.
fn only_missing(stderr: &str) -> bool {
    let mut errors = lines(stderr).filter(|line| !line.starts_with("WARNING")).peekable();
    errors.peek().is_some() && errors.all(|line| line.starts_with(NOT_FOUND))
}

/// Returns `true` if LVM complains of nothing but groups that do not exist.
fn only_absent(stderr: &str) -> bool {
    let errors = || lines(stderr).filter(|line| !line.starts_with("WARNING"));
    let absent: BTreeSet<_> = errors().filter_map(absent_group).collect();
    // LVM says this of a group that it cannot read as well.
    let follows = |line: &str| {
        line.strip_prefix("Cannot process volume group ").is_some_and(|name| absent.contains(name))
    };
    !absent.is_empty() && errors().all(|line| absent_group(line).is_some() || follows(line))
}

/// Returns the group that does not exist, by this message. `None`: the message says something else.
fn absent_group(line: &str) -> Option<&str> {
    line.strip_prefix("Volume group \"")?.strip_suffix("\" not found")
}

fn lines(stderr: &str) -> impl Iterator<Item = &str> {
    stderr.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Derives the error from LVM's messages: LVM has one exit status, 5, for almost every failure.
fn meaning(op: String, group: &str, status: i32, stderr: &str) -> Error {
    let said = shorten(stderr);
    let has = |text: &str| stderr.contains(text);
    if has("/dev/mapper/control") || has("device-mapper driver missing") {
        Error::NoDeviceMapper { op }
    } else if has("thin_check") && (has("execvp failed") || has("not found") || has("No such file")) {
        Error::NoThinTools { op }
    } else if lines(stderr).any(|line| absent_group(line).is_some()) {
        Error::NoGroup { op, group: group.to_owned() }
    } else if has("insufficient free space")
        || has("Insufficient free extents")
        || has("Insufficient suitable")
        // A thin pool that is full takes no new volume.
        || has("reached threshold")
    {
        Error::NoSpace { op, group: group.to_owned(), said }
    } else if has(" in use") || has("is used by another device") || has("Device or resource busy") {
        let object = op.split_once(' ').map_or_else(|| op.clone(), |(_, object)| object.to_owned());
        Error::InUse { op, object }
    } else if has(NOT_FOUND)
        || has("already exists in volume group")
        // LVM's message about a pool that another first volume has just made.
        || has("already exists in Volume group")
        || has("not found in volume group")
        // LVM's message about pools and origins is written so.
        || has("not found in Volume group")
        // The missing extents are not the group's free ones: somebody took the extents that were
        // named.
        || has("extents needed, but only")
    {
        Error::Changed { op, said }
    } else {
        Error::Lvm { op, status, said }
    }
}

/// Shortens LVM's messages to one line: its errors, or its warnings if there is nothing else.
pub(super) fn shorten(stderr: &str) -> String {
    let mut said: Vec<_> = lines(stderr).filter(|line| !line.starts_with("WARNING")).collect();
    if said.is_empty() {
        said = lines(stderr).collect();
    }
    if said.is_empty() {
        return "nothing".to_owned();
    }
    said.join("; ").chars().take(SAID_CHARS_MAX).collect()
}

fn parse<T: DeserializeOwned>(op: impl Fn() -> String, out: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(&report_of(out))
        .map_err(|error| Error::Report { op: op(), why: error.to_string() })
}

/// Returns the report in LVM's output. LVM 2.03 writes some messages between the lines of the
/// report ("Retrying metadata scan." beside damaged metadata, also of another group). A line of the
/// report begins with a bracket, a quotation mark or a comma, and no message does.
fn report_of(out: &[u8]) -> Vec<u8> {
    let is_report = |line: &&[u8]| {
        matches!(line.trim_ascii_start().first(), Some(b'{' | b'}' | b'[' | b']' | b'"' | b','))
    };
    out.split_inclusive(|byte| *byte == b'\n').filter(is_report).flatten().copied().collect()
}

/// Parses the name of a group. `None` if LVM itself would refuse the name.
pub(super) fn group_name(text: &str) -> Option<VgName> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
