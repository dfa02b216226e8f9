//! Finds the holders that have a disk open: devices on top, mounts, swap areas, the kernel's
//! targets, processes.
//!
//! What must never happen here: a holder that is passed over because a look failed. A look that
//! fails fails the question, unless its object has just gone.
//!
//! Not seen here: a process that keeps only a memory mapping of the device, a thread that has
//! descriptors of its own (unshare), and mounts of other mount namespaces. The last make an
//! exclusive open fail, which the caller tries.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{major, makedev, minor};

use super::Holder;
use super::kernel::Failure;

mod layers;
mod partitions;
mod users;

/// CAP_SYS_PTRACE 19, as a bit of a capability set.
const SYS_PTRACE: u64 = 1 << 19;

/// Folders in which the machine shows itself; other ones in a test.
pub(super) struct Machine {
    sys: PathBuf,
    proc: PathBuf,
    /// Id of this process, which looks at disks but never keeps one.
    own: u32,
    /// Reads the number of the block device at a path; `None` when there is none.
    number: fn(&Path) -> Option<u64>,
    /// Inode number of the initial process namespace.
    initial: u64,
}

/// PROC_PID_INIT_INO of the kernel: since 3.8.
const INITIAL_PROCESSES: u64 = 0xEFFF_FFFC;

fn block_number(path: &Path) -> Option<u64> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// Turns the error of an object that has gone meanwhile into `None`: a process, a device, a feature
/// that this machine lacks.
fn unless_gone<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error)
            if [Errno::ESRCH, Errno::ENODEV]
                .iter()
                .any(|gone| error.raw_os_error() == Some(*gone as i32)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Lists the paths in a folder; none when it does not exist.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in unless_gone(fs::read_dir(folder))?.into_iter().flatten() {
        // A folder of /proc may end early, with an error, when its process ends.
        match unless_gone(entry)? {
            Some(entry) => found.push(entry.path()),
            None => break,
        }
    }
    Ok(found)
}

fn text(file: &Path) -> io::Result<Option<String>> {
    Ok(unless_gone(fs::read(file))?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Machine {
    /// Returns this machine.
    pub(super) fn this() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
            own: std::process::id(),
            number: block_number,
            initial: INITIAL_PROCESSES,
        }
    }

    /// Finds every holder that has a name. ENODEV when the disk has gone.
    pub(super) fn holders(&self, disk: u64) -> Result<BTreeSet<Holder>, Failure> {
        let parts = self.parts(disk)?;
        let numbers: BTreeSet<u64> = parts.keys().copied().collect();
        let mut holders = BTreeSet::new();
        for folder in parts.values() {
            let on_top = entries(&folder.join("holders"))?;
            holders.extend(on_top.iter().map(|path| Holder::Device(name_of(path))));
        }
        let ours = |number: &u64| numbers.contains(number);
        let loops = self.loops()?.into_iter().filter(|(_, number)| ours(number));
        holders.extend(loops.map(|(folder, _)| Holder::Device(name_of(&folder))));
        let targets = self.targets()?.into_iter().filter(|(_, number)| ours(number));
        holders.extend(targets.map(|(name, _)| Holder::Device(format!("LIO {name}"))));
        self.mounts(&numbers, &mut holders)?;
        if self.swaps()?.iter().any(ours) {
            holders.insert(Holder::Swap);
        }
        self.processes(&numbers, &mut holders)?;
        Ok(holders)
    }

    /// Finds the disk and its partitions: number and folder in sysfs.
    fn parts(&self, disk: u64) -> Result<BTreeMap<u64, PathBuf>, Failure> {
        let link = self.sys.join(format!("dev/block/{}:{}", major(disk), minor(disk)));
        let Some(folder) = unless_gone(fs::canonicalize(link))? else { return Err(Errno::ENODEV.into()) };
        let mut parts = BTreeMap::new();
        for below in entries(&folder)? {
            if below.join("partition").exists()
                && let Some(number) = text(&below.join("dev"))?.as_deref().and_then(parse_number)
            {
                parts.insert(number, below);
            }
        }
        parts.insert(disk, folder);
        Ok(parts)
    }

    /// Returns `true` if the path is one of these devices.
    fn is_one(&self, path: &Path, numbers: &BTreeSet<u64>) -> bool {
        (self.number)(path).is_some_and(|number| numbers.contains(&number))
    }

    /// Lists the loop devices, which are in no `holders`: their folders in sysfs, with the number
    /// of the device behind each.
    fn loops(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut found = Vec::new();
        for block in entries(&self.sys.join("block"))? {
            let backing = text(&block.join("loop/backing_file"))?;
            let number = backing.and_then(|path| (self.number)(Path::new(path.trim_end_matches('\n'))));
            found.extend(number.map(|number| (block, number)));
        }
        Ok(found)
    }

    /// Lists the enabled backstores of the kernel's target, which are in no `holders` either:
    /// `iblock_0/NAME`, with the number of the device.
    fn targets(&self) -> io::Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        for adapter in entries(&self.sys.join("kernel/config/target/core"))? {
            if !adapter.is_dir() {
                continue;
            }
            for backstore in entries(&adapter)? {
                let enabled = text(&backstore.join("enable")).or_else(not_a_folder)?;
                if enabled.as_deref().map(str::trim) != Some("1") {
                    continue;
                }
                let device = text(&backstore.join("udev_path"))?.unwrap_or_default();
                let name = format!("{}/{}", name_of(&adapter), name_of(&backstore));
                found.extend((self.number)(Path::new(device.trim())).map(|number| (name, number)));
            }
        }
        Ok(found)
    }

    /// Adds the mounts of this process's namespace and of the first process's.
    fn mounts(&self, numbers: &BTreeSet<u64>, holders: &mut BTreeSet<Holder>) -> io::Result<()> {
        for process in ["self", "1"] {
            let Some(bytes) = unless_gone(fs::read(self.proc.join(process).join("mountinfo")))? else {
                continue;
            };
            for line in bytes.split(|byte| *byte == b'\n') {
                let Some(mount) = Mount::parse(line) else { continue };
                // A file system over several disks (btrfs) has a number of its own, but names one
                // of them as its source.
                if numbers.contains(&mount.number)
                    || (mount.source.is_absolute() && self.is_one(&mount.source, numbers))
                {
                    holders.insert(Holder::Mount(mount.point));
                }
            }
        }
        Ok(())
    }

    /// Lists the numbers of the devices that are swap areas.
    fn swaps(&self) -> io::Result<Vec<u64>> {
        let bytes = unless_gone(fs::read(self.proc.join("swaps")))?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n').skip(1);
        let areas = lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next().map(unescape));
        Ok(areas.filter_map(|area| (self.number)(&area)).collect())
    }

    /// Reads the capabilities in effect.
    fn rights(&self) -> io::Result<u64> {
        let status = text(&self.proc.join("self/status"))?.unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Ok(effective.and_then(|field| u64::from_str_radix(field.trim(), 16).ok()).unwrap_or(0))
    }

    /// Fails without CAP_SYS_PTRACE: other users' processes then hide their open files, or
    /// (`hidepid`) that they exist.
    fn sees_processes(&self) -> Result<(), Failure> {
        if self.rights()? & SYS_PTRACE == 0 {
            let detail = ": CAP_SYS_PTRACE is needed to see what other processes have open".to_owned();
            return Err(Failure { errno: Errno::EPERM, detail });
        }
        Ok(())
    }

    /// Adds processes with a descriptor of one of these devices, under whatever name they opened
    /// it. This process does not count.
    fn processes(&self, numbers: &BTreeSet<u64>, holders: &mut BTreeSet<Holder>) -> Result<(), Failure> {
        self.sees_processes()?;
        for process in entries(&self.proc)? {
            let Ok(pid) = name_of(&process).parse::<u32>() else { continue };
            if pid != self.own && self.has_open(&process, numbers).map_err(|error| hidden(pid, error))? {
                let name = text(&process.join("comm"))?.unwrap_or_default().trim_end().to_owned();
                holders.insert(Holder::Process { pid, name });
            }
        }
        Ok(())
    }

    fn has_open(&self, process: &Path, numbers: &BTreeSet<u64>) -> io::Result<bool> {
        Ok(self.descriptors(process, |number| numbers.contains(&number))?.next().transpose()?.is_some())
    }

    /// Lists the descriptors of a process that lead to block devices which are `meant`, with the
    /// devices' numbers.
    fn descriptors(
        &self,
        process: &Path,
        meant: impl Fn(u64) -> bool,
    ) -> io::Result<impl Iterator<Item = io::Result<(PathBuf, u64)>>> {
        let mut descriptors = entries(&process.join("fd"))?;
        if descriptors.is_empty() {
            // A process whose first thread has ended shows its descriptors only at the other
            // threads.
            for thread in entries(&process.join("task"))? {
                descriptors.extend(entries(&thread.join("fd"))?);
            }
        }
        Ok(descriptors.into_iter().filter_map(move |descriptor| {
            let target = match unless_gone(fs::read_link(&descriptor)) {
                Ok(target) => target?,
                Err(error) => return Some(Err(error)),
            };
            // The name of a socket or a pipe is no path. The number of a device is read through the
            // descriptor: the name may be another namespace's.
            let number = if target.is_absolute() { (self.number)(&descriptor) } else { None };
            number.filter(|number| meant(*number)).map(|number| Ok((descriptor, number)))
        }))
    }
}

/// Makes the error of a process that hides its descriptors: it may hold the disk.
fn hidden(pid: u32, error: io::Error) -> Failure {
    Failure { detail: format!(": process {pid} does not show what it has open"), ..Failure::from(error) }
}

/// Turns the error of a file in a folder of backstores into `None`: an adapter's own attributes are
/// beside them.
fn not_a_folder(error: io::Error) -> io::Result<Option<String>> {
    if error.kind() == io::ErrorKind::NotADirectory { Ok(None) } else { Err(error) }
}

/// Parses `8:16`, with or without a newline.
fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The fields of a line of `mountinfo` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    number: u64,
    point: PathBuf,
    filesystem: String,
    source: PathBuf,
}

impl Mount {
    /// Parses `36 35 8:17 / /mnt rw,noatime shared:1 - ext4 /dev/sdb1 rw`: any number of optional
    /// fields before the dash.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let number = parse_number(std::str::from_utf8(fields.nth(2)?).ok()?)?;
        let point = unescape(fields.nth(1)?);
        let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
        let filesystem = String::from_utf8_lossy(behind.next().unwrap_or_default()).into_owned();
        let source = behind.next().map(unescape).unwrap_or_default();
        Some(Self { number, point, filesystem, source })
    }
}

/// Decodes a path as /proc prints it: blanks, backslashes and line ends as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = match behind {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { behind.get(3..).unwrap_or_default() } else { behind };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    /// A machine made of files: a "device" is a file that holds its number.
    pub(super) struct Fixture {
        folder: tempfile::TempDir,
    }

    fn fixture_number(path: &Path) -> Option<u64> {
        parse_number(&fs::read_to_string(path).ok()?)
    }

    impl Fixture {
        /// Makes sdb with partition sdb1, and the foreign disk sda; process 100 has neither open.
        pub(super) fn new() -> Self {
            let fixture = Self { folder: tempfile::tempdir().unwrap() };
            for (name, number) in [("sda", "8:0"), ("sdb", "8:16"), ("sdb1", "8:17")] {
                fixture.put(&format!("dev/{name}"), number);
            }
            for disk in ["sda", "sdb"] {
                fixture.put(&format!("sys/devices/{disk}/size"), "8");
                fs::create_dir(fixture.at(&format!("sys/devices/{disk}/holders"))).unwrap();
                fixture.link(&format!("sys/devices/{disk}"), &format!("sys/block/{disk}"));
            }
            fixture.put("sys/devices/sdb/sdb1/partition", "1\n");
            fixture.put("sys/devices/sdb/sdb1/dev", "8:17\n");
            fixture.put("sys/devices/sdb/queue/dev", "no partition");
            fixture.link("sys/devices/sda", "sys/dev/block/8:0");
            fixture.link("sys/devices/sdb", "sys/dev/block/8:16");
            fixture.put("proc/self/mountinfo", "22 1 8:0 / / rw - ext4 /dev/root rw\n");
            fixture.put("proc/1/mountinfo", "22 1 8:0 / / rw - ext4 /dev/root rw\n");
            fixture.put("proc/self/status", "Name:\tx\nCapPrm:\t0\nCapEff:\t0000000000080000\n");
            fixture.put("proc/swaps", "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
            fixture.put("proc/100/comm", "qemu-system-x86\n");
            fixture.link("dev/sda", "proc/100/fd/3");
            symlink("socket:[8]", fixture.at("proc/100/fd/4")).unwrap();
            fixture
        }

        pub(super) fn at(&self, path: &str) -> PathBuf {
            self.folder.path().join(path)
        }

        pub(super) fn put(&self, path: &str, value: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }

        pub(super) fn link(&self, target: &str, path: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(self.at(target), path).unwrap();
        }

        fn holders(&self) -> Result<Vec<Holder>, Failure> {
            Ok(self.machine().holders(makedev(8, 16))?.into_iter().collect())
        }

        pub(super) fn machine(&self) -> Machine {
            Machine {
                sys: self.at("sys"),
                proc: self.at("proc"),
                own: 77,
                number: fixture_number,
                initial: 1,
            }
        }
    }

    #[test]
    fn a_disk_that_nobody_holds_has_no_holders() {
        assert_eq!(Fixture::new().holders().unwrap(), []);
    }

    #[test]
    fn a_disk_that_has_gone_is_an_error_and_not_free() {
        let fixture = Fixture::new();
        fs::remove_file(fixture.at("sys/dev/block/8:16")).unwrap();
        assert_eq!(fixture.holders(), Err(Errno::ENODEV.into()));
    }

    #[test]
    fn devices_on_top_of_the_disk_and_of_its_partitions_hold_it() {
        let fixture = Fixture::new();
        fixture.put("sys/devices/sdb/holders/dm-3", "");
        fixture.put("sys/devices/sdb/sdb1/holders/md0", "");
        fixture.put("sys/devices/sda/holders/dm-0", "");
        let devices = ["dm-3", "md0"].map(|name| Holder::Device(name.into()));
        assert_eq!(fixture.holders().unwrap(), devices);
    }

    #[test]
    fn a_loop_device_and_a_target_hold_it() {
        let fixture = Fixture::new();
        fixture.put("sys/block/loop0/loop/backing_file", &format!("{}\n", fixture.at("dev/sdb1").display()));
        fixture.put("sys/block/loop1/loop/backing_file", &format!("{}\n", fixture.at("dev/sda").display()));
        let core = "sys/kernel/config/target/core";
        for (name, enable, device) in
            [("vol", "1\n", "dev/sdb"), ("off", "0\n", "dev/sdb"), ("other", "1\n", "dev/sda")]
        {
            fixture.put(&format!("{core}/iblock_0/{name}/enable"), enable);
            fixture.put(
                &format!("{core}/iblock_0/{name}/udev_path"),
                &format!("{}\n", fixture.at(device).display()),
            );
        }
        fixture.put(&format!("{core}/iblock_0/hba_info"), "HBA Index: 1");
        fixture.put(&format!("{core}/version"), "x");
        let devices = ["LIO iblock_0/vol", "loop0"].map(|name| Holder::Device(name.into()));
        assert_eq!(fixture.holders().unwrap(), devices);
    }

    #[test]
    fn mounts_are_found_by_number_and_by_source_once() {
        let fixture = Fixture::new();
        let mounts = format!(
            "30 22 8:17 / /mnt/my\\040disk rw,noatime shared:1 master:2 - ext4 /dev/sdb1 rw\n\
             31 22 0:45 / /btrfs rw - btrfs {} rw\n\
             32 22 8:0 / /other rw - ext4 {} rw\n\
             33 22 0:5 / /proc rw - proc proc rw\nnonsense\n",
            fixture.at("dev/sdb").display(),
            fixture.at("dev/sda").display(),
        );
        fixture.put("proc/1/mountinfo", &mounts);
        fixture.put("proc/self/mountinfo", &mounts);
        let expected = ["/btrfs", "/mnt/my disk"].map(|point| Holder::Mount(point.into()));
        assert_eq!(fixture.holders().unwrap(), expected);
    }

    #[test]
    fn a_swap_area_holds_it() {
        let fixture = Fixture::new();
        let swaps = |device: &str| {
            format!("Filename\tType\n{}                partition\t8\t0\t-2\n", fixture.at(device).display())
        };
        fixture.put("proc/swaps", &swaps("dev/sda"));
        assert_eq!(fixture.holders().unwrap(), []);
        fixture.put("proc/swaps", &swaps("dev/sdb1"));
        assert_eq!(fixture.holders().unwrap(), [Holder::Swap]);
    }

    #[test]
    fn a_process_holds_it_under_any_name_but_we_do_not() {
        let fixture = Fixture::new();
        fixture.put("var/jail/disk", "8:17");
        fixture.link("var/jail/disk", "proc/100/fd/5");
        fixture.link("dev/sdb", "proc/77/fd/3");
        fixture.put("proc/77/comm", "mooring-agent\n");
        fixture.link("dev/sdb", "proc/irq/fd/3");
        // A process that has just ended, and one without descriptors.
        symlink("none", fixture.at("proc/200")).unwrap();
        fs::create_dir(fixture.at("proc/300")).unwrap();
        // The first thread of this one has ended.
        fixture.put("proc/500/comm", "threads\n");
        fs::create_dir(fixture.at("proc/500/fd")).unwrap();
        fixture.link("dev/sdb", "proc/500/task/501/fd/3");
        let holders = [(100, "qemu-system-x86"), (500, "threads")]
            .map(|(pid, name)| Holder::Process { pid, name: name.into() });
        assert_eq!(fixture.holders().unwrap(), holders);
    }

    #[test]
    fn a_look_that_fails_fails_the_question() {
        let fixture = Fixture::new();
        // A file where the folder of descriptors should be: an error that is not "gone".
        fixture.put("proc/400/fd", "");
        let failure = fixture.holders().unwrap_err();
        assert_eq!(
            (failure.errno, failure.detail.as_str()),
            (Errno::ENOTDIR, ": process 400 does not show what it has open")
        );
    }

    #[test]
    fn a_view_without_the_others_processes_is_no_view() {
        let fixture = Fixture::new();
        for status in ["CapEff:\t000001fffff7ffff\n", "CapPrm:\t0000000000080000\n", "CapEff:\tx\n"] {
            fixture.put("proc/self/status", status);
            let failure = fixture.holders().unwrap_err();
            assert_eq!(failure.errno, Errno::EPERM);
            assert!(failure.detail.contains("CAP_SYS_PTRACE"), "{}", failure.detail);
        }
    }

    #[test]
    fn this_machine_shows_itself() {
        // This machine may have any block devices: every look at it ends well.
        let numbers = BTreeSet::from([makedev(4095, 1_048_575)]);
        let (machine, mut holders) = (Machine::this(), BTreeSet::new());
        machine.loops().unwrap();
        machine.targets().unwrap();
        machine.mounts(&numbers, &mut holders).unwrap();
        machine.swaps().unwrap();
        assert_eq!(holders, BTreeSet::new());
        assert_eq!(machine.holders(makedev(4095, 1_048_575)), Err(Errno::ENODEV.into()));
    }

    #[test]
    fn paths_of_proc_are_read_back() {
        for (field, path) in [
            ("/a\\040b\\011c\\134d", "/a b\tc\\d"),
            ("/a\\04", "/a\\04"),
            ("/a\\999", "/a\\999"),
            ("\\", "\\"),
            ("", ""),
        ] {
            assert_eq!(unescape(field.as_bytes()), Path::new(path));
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Mount::parse(&line);
            let _ = parse_number(&String::from_utf8_lossy(&line));
            prop_assert!(unescape(&line).as_os_str().len() <= line.len());
        }
    }
}
