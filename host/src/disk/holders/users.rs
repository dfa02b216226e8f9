//! Finds the users of some disks, and their way of access: one walk over the machine for all of
//! them, and over all mount namespaces.
//!
//! What must never happen here: a part that could not be looked at and is not named; a device that
//! is opened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::{O_DIRECT, O_PATH};

use super::super::kernel::Failure;
use super::super::{DiskAccess, DiskUser, Usage, User};
use super::{Machine, Mount, entries, name_of, parse_number, text, unless_gone};

/// CAP_SYS_ADMIN 21 or CAP_CHECKPOINT_RESTORE 40: with either of them `map_files` shows the mapped
/// files of a process.
const SEES_MAPPINGS: u64 = 1 << 21 | 1 << 40;

/// A block device that is one of the disks, a partition of one, or on top of one.
struct Layer {
    name: String,
    /// Disks below it, by their numbers.
    disks: BTreeSet<u64>,
}

/// Findings of one walk so far.
struct Walk<'a> {
    machine: &'a Machine,
    layers: BTreeMap<u64, Layer>,
    users: BTreeMap<u64, BTreeSet<DiskUser>>,
    unseen: BTreeSet<String>,
    /// Numbers of block devices that processes have mapped, by file system and inode of the file;
    /// `None` for other files.
    mapped: HashMap<(String, String), Option<u64>>,
}

/// Users of each disk, by its number; and the objects that could not be looked at.
type Found = (BTreeMap<u64, BTreeSet<DiskUser>>, BTreeSet<String>);

impl Machine {
    /// Finds the users of these disks, by the disks' numbers. A disk that has gone has no entry.
    pub(in crate::disk) fn usage(&self, disks: &BTreeSet<u64>) -> Result<Found, Failure> {
        let mut walk = Walk {
            machine: self,
            layers: BTreeMap::new(),
            users: BTreeMap::new(),
            unseen: BTreeSet::new(),
            mapped: HashMap::new(),
        };
        let loops = self.loops()?;
        for disk in disks {
            walk.stack(*disk, &loops)?;
        }
        if walk.users.is_empty() {
            return Ok((walk.users, walk.unseen));
        }
        for (name, number) in self.targets()? {
            let access = if name.starts_with("fileio") { DiskAccess::Buffered } else { DiskAccess::Direct };
            walk.add(number, &User::Device { name: format!("LIO {name}"), access });
        }
        for area in self.swaps()? {
            walk.add(area, &User::Swap);
        }
        walk.processes()?;
        Ok((walk.users, walk.unseen))
    }

    /// Counts the bytes of a disk and of devices on top that wait to be written. `None`: the kernel
    /// does not tell.
    pub(in crate::disk) fn unwritten(&self, device: &Path) -> Result<Option<u64>, Failure> {
        let disk = (self.number)(device).ok_or(Errno::ENODEV)?;
        let mut all = None;
        for number in self.stacked(disk, &[])?.keys() {
            let number = format!("{}:{}", super::major(*number), super::minor(*number));
            let stats = self.sys.join("kernel/debug/bdi").join(number).join("stats");
            if let Some(stats) = text(&stats)? {
                *all.get_or_insert(0) += waiting(&stats);
            }
        }
        Ok(all)
    }

    /// Finds the disk, its partitions, and the devices on top of them, with their folders in sysfs.
    /// `loops` is the result of [`Machine::loops`].
    pub(super) fn stacked(
        &self,
        disk: u64,
        loops: &[(PathBuf, u64)],
    ) -> Result<BTreeMap<u64, PathBuf>, Failure> {
        let mut found = BTreeMap::new();
        let mut next = vec![disk];
        while let Some(number) = next.pop() {
            let parts = match self.parts(number) {
                Ok(parts) => parts,
                Err(failure) if number != disk && failure.errno == Errno::ENODEV => continue,
                Err(failure) => return Err(failure),
            };
            for (number, folder) in parts {
                if found.contains_key(&number) {
                    continue;
                }
                let on_loop = loops.iter().filter(|(_, backing)| *backing == number);
                let above = entries(&folder.join("holders"))?;
                for above in above.iter().chain(on_loop.map(|(folder, _)| folder)) {
                    next.extend(text(&above.join("dev"))?.as_deref().and_then(parse_number));
                }
                found.insert(number, folder);
            }
        }
        Ok(found)
    }
}

/// Adds up `BdiReclaimable` (dirty) and `BdiWriteback` (on its way) of a `stats` file, in bytes.
fn waiting(stats: &str) -> u64 {
    let kib = |name: &str| -> u64 {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    (kib("BdiReclaimable:") + kib("BdiWriteback:")) << 10
}

/// Tells how a driver on top hands requests on. dm and md pass their requests on. A loop device
/// reads through the page cache of the device below, unless it was told not to.
fn driver(folder: &Path) -> io::Result<DiskAccess> {
    let direct = text(&folder.join("loop/dio"))?;
    Ok(if direct.is_some_and(|dio| dio.trim() == "0") { DiskAccess::Buffered } else { DiskAccess::Direct })
}

impl Walk<'_> {
    /// Enters a disk with all layers on it.
    fn stack(&mut self, disk: u64, loops: &[(PathBuf, u64)]) -> Result<(), Failure> {
        let stacked = match self.machine.stacked(disk, loops) {
            Ok(stacked) => stacked,
            Err(failure) if failure.errno == Errno::ENODEV => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let users = self.users.entry(disk).or_default();
        for (number, folder) in &stacked {
            let device = name_of(folder);
            let on_loop = loops.iter().filter(|(_, backing)| backing == number).map(|(folder, _)| folder);
            for above in entries(&folder.join("holders"))?.iter().chain(on_loop) {
                let user = User::Device { name: name_of(above), access: driver(above)? };
                users.insert(DiskUser { device: device.clone(), user });
            }
            let layer = || Layer { name: device, disks: BTreeSet::new() };
            self.layers.entry(*number).or_insert_with(layer).disks.insert(disk);
        }
        Ok(())
    }

    /// Enters a user of a device, if the device is one of those in the walk.
    fn add(&mut self, number: u64, user: &User) {
        let Some(layer) = self.layers.get(&number) else { return };
        for disk in &layer.disks {
            let user = DiskUser { device: layer.name.clone(), user: user.clone() };
            self.users.entry(*disk).or_default().insert(user);
        }
    }

    /// Enters processes, and the mounts of each of their mount namespaces.
    fn processes(&mut self) -> Result<(), Failure> {
        let machine = self.machine;
        let rights = machine.rights()?;
        if rights & super::SYS_PTRACE == 0 {
            self.unseen.insert("what other processes have open (CAP_SYS_PTRACE is needed)".to_owned());
        }
        if rights & SEES_MAPPINGS == 0 {
            self.unseen.insert("what processes have mapped (CAP_SYS_ADMIN is needed)".to_owned());
        }
        let own = unless_gone(fs::metadata(machine.proc.join("self/ns/pid")))?;
        if own.is_none_or(|own| own.ino() != machine.initial) {
            let text = "processes and mounts outside of the process namespace that the agent runs in";
            self.unseen.insert(text.to_owned());
        }
        let mut namespaces = BTreeSet::new();
        self.mounts(&machine.proc.join("self"), &mut namespaces)?;
        for process in entries(&machine.proc)? {
            let Ok(pid) = name_of(&process).parse::<u32>() else { continue };
            let looked = self
                .mounts(&process, &mut namespaces)
                .and_then(|()| if pid == machine.own { Ok(()) } else { self.process(pid, &process, rights) });
            if let Err(error) = looked {
                let name = name_of_process(&process);
                self.unseen.insert(format!("process {pid} ({name}) does not show what it uses: {error}"));
            }
        }
        Ok(())
    }

    /// Enters the mounts that a process sees, if no process of its namespace was asked yet.
    fn mounts(&mut self, process: &Path, namespaces: &mut BTreeSet<u64>) -> io::Result<()> {
        let namespace = unless_gone(fs::metadata(process.join("ns/mnt")))?.map(|namespace| namespace.ino());
        // A process that ends has no mounts any more.
        if !namespace.is_some_and(|namespace| namespaces.insert(namespace)) {
            return Ok(());
        }
        let bytes = unless_gone(fs::read(process.join("mountinfo")))?.unwrap_or_default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Some(mount) = Mount::parse(line) else { continue };
            // A file system over several disks (btrfs) has an anonymous number, and names one of
            // them as its source. Another source may have been another disk when it was named.
            let named = || {
                let source = mount.source.strip_prefix("/").ok()?;
                let found = (self.machine.number)(&process.join("root").join(source));
                found.or_else(|| (self.machine.number)(&mount.source))
            };
            let number = if super::major(mount.number) == 0 { named() } else { Some(mount.number) };
            if let Some(number) = number {
                self.add(number, &User::Mount { point: mount.point, filesystem: mount.filesystem });
            }
        }
        Ok(())
    }

    fn process(&mut self, pid: u32, process: &Path, rights: u64) -> io::Result<()> {
        let mut found = BTreeSet::new();
        if rights & super::SYS_PTRACE != 0 {
            for descriptor in self.machine.descriptors(process, |number| self.layers.contains_key(&number))? {
                let (descriptor, number) = descriptor?;
                found.extend(
                    flags_of(&descriptor)?.as_deref().and_then(access).map(|access| (number, access)),
                );
            }
        }
        if rights & SEES_MAPPINGS != 0 {
            self.mappings(process, &mut found)?;
        }
        if !found.is_empty() {
            let name = name_of_process(process);
            for (number, access) in found {
                self.add(number, &User::Process { pid, name: name.clone(), access });
            }
        }
        Ok(())
    }

    fn mappings(&mut self, process: &Path, found: &mut BTreeSet<(u64, DiskAccess)>) -> io::Result<()> {
        let Some(maps) = text(&process.join("maps"))? else { return Ok(()) };
        for line in maps.lines() {
            let Some(mapping) = Mapping::parse(line) else { continue };
            let key = (mapping.filesystem.to_owned(), mapping.inode.to_owned());
            let number = *self
                .mapped
                .entry(key)
                .or_insert_with(|| (self.machine.number)(&process.join("map_files").join(&mapping.range)));
            let number = number.filter(|number| self.layers.contains_key(number));
            found.extend(number.map(|number| (number, DiskAccess::Mapped)));
        }
        Ok(())
    }
}

fn name_of_process(process: &Path) -> String {
    let name = text(&process.join("comm")).ok().flatten().unwrap_or_default();
    name.trim_end().to_owned()
}

/// Reads the `fdinfo` of a descriptor, which is beside its folder; `None` if it has gone.
fn flags_of(descriptor: &Path) -> io::Result<Option<String>> {
    let Some(owner) = descriptor.parent().and_then(Path::parent) else { return Ok(None) };
    text(&owner.join("fdinfo").join(name_of(descriptor)))
}

/// Tells how a descriptor of this `fdinfo` reads and writes; `None` if it does neither (O_PATH), or
/// has gone.
fn access(info: &str) -> Option<DiskAccess> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = i64::from_str_radix(flags.trim(), 8).ok()?;
    let has = |flag: i32| flags & i64::from(flag) != 0;
    if has(O_PATH) {
        return None;
    }
    Some(if has(O_DIRECT) { DiskAccess::Direct } else { DiskAccess::Buffered })
}

/// One line of `maps` that names a file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    /// Range of addresses, as `map_files` names it.
    range: String,
    filesystem: &'a str,
    inode: &'a str,
}

impl<'a> Mapping<'a> {
    /// Parses `7f2e8a600000-7f2e8a700000 rw-s 00000000 00:05 312   /dev/sda`. `None` without a
    /// path, or with one in brackets: that is no file.
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = format!("{:x}-{:x}", hex(start)?, hex(end)?);
        let filesystem = fields.nth(2)?;
        let inode = fields.next()?;
        fields.next().filter(|path| path.starts_with('/'))?;
        Some(Self { range, filesystem, inode })
    }
}

impl Usage {
    /// Turns the users by number into users by the path that was asked for.
    pub(in crate::disk) fn of(machine: &Machine, devices: &[PathBuf]) -> Result<Self, Failure> {
        let numbers: BTreeMap<&PathBuf, u64> =
            devices.iter().filter_map(|device| Some((device, (machine.number)(device)?))).collect();
        let (users, unseen) = machine.usage(&numbers.values().copied().collect())?;
        let of = |(device, number): (&PathBuf, u64)| Some((device.clone(), users.get(&number)?.clone()));
        Ok(Self { disks: numbers.into_iter().filter_map(of).collect(), unseen })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::makedev;
    use proptest::prelude::*;

    use super::super::tests::Fixture;
    use super::*;

    const DISK: u64 = 8 << 8 | 16;

    /// Makes the machine of the holders' tests, with all rights and the initial process namespace.
    fn fixture() -> Fixture {
        let fixture = Fixture::new();
        fixture.put("proc/self/status", "CapEff:\t000001ffffffffff\n");
        for process in ["self", "100"] {
            fixture.put(&format!("proc/{process}/ns/mnt"), "");
        }
        fixture
    }

    fn machine(fixture: &Fixture) -> Machine {
        fixture.put("proc/self/ns/pid", "");
        let initial = fs::metadata(fixture.at("proc/self/ns/pid")).unwrap().ino();
        Machine { initial, ..fixture.machine() }
    }

    fn users(fixture: &Fixture) -> (Vec<DiskUser>, Vec<String>) {
        let (users, unseen) = machine(fixture).usage(&BTreeSet::from([DISK])).unwrap();
        let users = users.get(&DISK).map(|users| users.iter().cloned().collect());
        (users.unwrap_or_default(), unseen.into_iter().collect())
    }

    fn user(device: &str, user: User) -> DiskUser {
        DiskUser { device: device.to_owned(), user }
    }

    fn process(pid: u32, name: &str, access: DiskAccess) -> User {
        User::Process { pid, name: name.to_owned(), access }
    }

    /// Lets process `pid` have a device open with these flags.
    fn open(fixture: &Fixture, pid: u32, device: &str, flags: &str) {
        fixture.link(device, &format!("proc/{pid}/fd/7"));
        fixture.put(&format!("proc/{pid}/fdinfo/7"), &format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t24\n"));
        fixture.put(&format!("proc/{pid}/comm"), "reader\n");
        fixture.put(&format!("proc/{pid}/ns/mnt"), "");
    }

    #[test]
    fn a_disk_without_users_is_there_and_one_that_has_gone_is_not() {
        let fixture = fixture();
        let (users, unseen) = machine(&fixture).usage(&BTreeSet::from([DISK, makedev(8, 32)])).unwrap();
        assert_eq!((users, unseen), (BTreeMap::from([(DISK, BTreeSet::new())]), BTreeSet::new()));
    }

    #[test]
    fn descriptors_say_whether_they_go_through_the_page_cache() {
        let fixture = fixture();
        let direct = format!("0{:o}", O_DIRECT | 0o2);
        open(&fixture, 201, "dev/sdb", "0100000");
        open(&fixture, 202, "dev/sdb1", &direct);
        open(&fixture, 203, "dev/sdb", &format!("0{O_PATH:o}"));
        open(&fixture, 204, "dev/sda", "02");
        open(&fixture, 77, "dev/sdb", "02");
        let wanted = [
            user("sdb", process(201, "reader", DiskAccess::Buffered)),
            user("sdb1", process(202, "reader", DiskAccess::Direct)),
        ];
        assert_eq!(users(&fixture), (wanted.to_vec(), vec![]));
    }

    #[test]
    fn a_process_that_keeps_only_a_mapping_is_named() {
        let fixture = fixture();
        fixture.put("proc/300/comm", "mapper\n");
        fixture.put("proc/300/ns/mnt", "");
        let maps = "00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/mapper\n\
                    7f00-7f10 rw-s 00000000 00:05 312                    /dev/sdb (deleted)\n\
                    7f20-7f30 rw-p 00000000 00:00 0\n7ffc-7ffd rw-p 00000000 00:00 0 [stack]\n";
        fixture.put("proc/300/maps", maps);
        fixture.link("dev/sdb", "proc/300/map_files/7f00-7f10");
        assert_eq!(users(&fixture).0, [user("sdb", process(300, "mapper", DiskAccess::Mapped))]);
    }

    #[test]
    fn what_is_on_top_is_named_with_its_own_users() {
        let fixture = fixture();
        for (name, number) in [("dm-0", "253:0"), ("loop0", "7:0")] {
            fixture.put(&format!("dev/{name}"), number);
            fixture.put(&format!("sys/devices/{name}/dev"), &format!("{number}\n"));
            fs::create_dir(fixture.at(&format!("sys/devices/{name}/holders"))).unwrap();
            fixture.link(&format!("sys/devices/{name}"), &format!("sys/block/{name}"));
            fixture.link(&format!("sys/devices/{name}"), &format!("sys/dev/block/{number}"));
        }
        fixture.link("sys/devices/dm-0", "sys/devices/sdb/sdb1/holders/dm-0");
        fixture
            .put("sys/devices/loop0/loop/backing_file", &format!("{}\n", fixture.at("dev/dm-0").display()));
        fixture.put("sys/devices/loop0/loop/dio", "0\n");
        open(&fixture, 201, "dev/loop0", "02");
        let wanted = [
            user("dm-0", User::Device { name: "loop0".into(), access: DiskAccess::Buffered }),
            user("loop0", process(201, "reader", DiskAccess::Buffered)),
            user("sdb1", User::Device { name: "dm-0".into(), access: DiskAccess::Direct }),
        ];
        assert_eq!(users(&fixture).0, wanted);
        let stats = |number: &str, dirty: u32| {
            let text = format!("BdiWriteback:       4 kB\nBdiReclaimable:  {dirty} kB\nBdiDirtied: 999 kB\n");
            fixture.put(&format!("sys/kernel/debug/bdi/{number}/stats"), &text);
        };
        assert_eq!(machine(&fixture).unwritten(&fixture.at("dev/sdb")).unwrap(), None);
        stats("8:16", 8);
        stats("253:0", 100);
        stats("8:0", 5000);
        assert_eq!(
            machine(&fixture).unwritten(&fixture.at("dev/sdb")).unwrap(),
            Some((8 + 4 + 100 + 4) * 1024)
        );
    }

    #[test]
    fn mounts_of_every_namespace_are_seen_with_their_kind() {
        let fixture = fixture();
        fixture.put("proc/400/ns/mnt", "");
        fixture.put("proc/400/mountinfo", "36 35 8:17 / /data rw shared:1 - ext4 /dev/sdb1 rw\n");
        // btrfs has a number of its own, and a container its own names.
        fixture.put("proc/401/ns/mnt", "");
        fixture.put("proc/401/mountinfo", "37 35 0:50 / /other rw - btrfs /dev/inner rw\n");
        fixture.put("proc/401/root/dev/inner", "8:16");
        let mount = |point: &str, filesystem: &str| User::Mount {
            point: point.into(),
            filesystem: filesystem.to_owned(),
        };
        let wanted = [user("sdb", mount("/other", "btrfs")), user("sdb1", mount("/data", "ext4"))];
        assert_eq!(users(&fixture), (wanted.to_vec(), vec![]));
    }

    #[test]
    fn swap_and_targets_are_named() {
        let fixture = fixture();
        fixture.put(
            "proc/swaps",
            &format!("Filename\tType\n{} partition\t8\t0\t-2\n", fixture.at("dev/sdb1").display()),
        );
        for (adapter, device) in [("iblock_0", "dev/sdb"), ("fileio_1", "dev/sdb")] {
            let folder = format!("sys/kernel/config/target/core/{adapter}/x");
            fixture.put(&format!("{folder}/enable"), "1\n");
            fixture.put(&format!("{folder}/udev_path"), &format!("{}\n", fixture.at(device).display()));
        }
        let lio = |name: &str, access| User::Device { name: format!("LIO {name}"), access };
        let wanted = [
            user("sdb", lio("fileio_1/x", DiskAccess::Buffered)),
            user("sdb", lio("iblock_0/x", DiskAccess::Direct)),
            user("sdb1", User::Swap),
        ];
        assert_eq!(users(&fixture).0, wanted);
    }

    #[test]
    fn what_cannot_be_looked_at_is_said_and_hides_nothing_else() {
        let fixture = fixture();
        open(&fixture, 201, "dev/sdb", "0");
        // A file where the folder of descriptors should be: an error that is not "gone".
        fixture.put("proc/202/fd", "");
        fixture.put("proc/202/comm", "odd\n");
        let (found, unseen) = users(&fixture);
        assert_eq!(found.len(), 1);
        assert_eq!(unseen.len(), 1);
        assert!(unseen[0].starts_with("process 202 (odd) does not show what it uses: "), "{unseen:?}");
        fixture.put("proc/self/status", "CapEff:\t0\n");
        let other = Machine { initial: 1, ..machine(&fixture) };
        let (found, unseen) = other.usage(&BTreeSet::from([DISK])).unwrap();
        assert_eq!(found[&DISK], BTreeSet::new());
        for part in ["CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "process namespace"] {
            assert!(unseen.iter().any(|text| text.contains(part)), "{part} is not in {unseen:?}");
        }
    }

    #[test]
    fn a_process_that_ends_meanwhile_is_no_matter() {
        let fixture = fixture();
        symlink("none", fixture.at("proc/200")).unwrap();
        fs::create_dir(fixture.at("proc/201")).unwrap();
        assert_eq!(users(&fixture), (vec![], vec![]));
    }

    #[test]
    fn this_machine_can_be_walked() {
        let (users, _) = Machine::this().usage(&BTreeSet::from([makedev(4095, 1_048_575)])).unwrap();
        assert_eq!(users, BTreeMap::new());
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "\\PC{0,80}") {
            let _ = (Mapping::parse(&line), access(&line), waiting(&line));
            let _ = access(&format!("flags:\t{line}"));
        }
    }
}
