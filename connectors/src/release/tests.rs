//! Tests the release of disks on a fake whose users go at their own time. The fake refuses steps
//! that a kernel would refuse, and steps that would lose data.
#![allow(clippy::unwrap_used, reason = "a test may")]

use super::*;

/// A machine whose disks have users, each of which goes at its own time.
#[derive(Default)]
struct Fake {
    disks: Mutex<Vec<FakeDisk>>,
    /// Everything that was done, in order.
    done: Mutex<Vec<String>>,
    /// Name of the thread that cannot be started.
    no_thread: Option<&'static str>,
}

#[derive(Clone, Default)]
struct FakeDisk {
    number: u128,
    layers: Layers,
    holders: Vec<Holder>,
    /// Number of looks until users close the disk.
    busy: u32,
    /// The device never answers.
    hangs: bool,
    gone: bool,
}

impl FakeDisk {
    fn our(&self) -> OurDisk {
        OurDisk {
            volume: VolumeId::from_u128(self.number),
            device: format!("/dev/sd{}", self.number).into(),
            sequence: 6 + u64::try_from(self.number).unwrap(),
        }
    }
}

impl Fake {
    fn with<T>(&self, disk: &OurDisk, work: impl FnOnce(&mut FakeDisk) -> T) -> T {
        let mut disks = self.disks.lock().unwrap();
        work(disks.iter_mut().find(|one| one.our() == *disk).unwrap())
    }

    fn note(&self, what: String) {
        self.done.lock().unwrap().push(what);
    }
}

impl Door for Fake {
    fn disks(&self) -> Result<Vec<OurDisk>, String> {
        Ok(self.disks.lock().unwrap().iter().filter(|disk| !disk.gone).map(FakeDisk::our).collect())
    }

    fn layers(&self, disk: &OurDisk) -> Result<Layers, String> {
        if self.with(disk, |disk| disk.hangs) {
            thread::sleep(Duration::from_mins(1));
        }
        Ok(self.with(disk, |disk| disk.layers.clone()))
    }

    fn holders(&self, disk: &OurDisk) -> Result<Vec<Holder>, String> {
        Ok(self.with(disk, |disk| {
            disk.busy = disk.busy.saturating_sub(1);
            if disk.busy == 0 && !disk.holders.iter().all(stays) {
                disk.holders.clear();
            }
            disk.holders.clone()
        }))
    }

    fn run(&self, command: &Command) -> Result<(), String> {
        let object = command.args.last().unwrap().clone();
        let program = command.program.rsplit('/').next().unwrap();
        let mut disks = self.disks.lock().unwrap();
        for disk in disks.iter_mut() {
            let layers = &mut disk.layers;
            let (mount, swap) =
                (Some(Path::new(&object)), layers.swaps.iter().position(|one| one.as_os_str() == &*object));
            match program {
                "umount" if layers.mounts.iter().any(|one| Some(&**one) == mount) => {
                    if disk.busy > 0 {
                        disk.busy -= 1;
                        return Err(format!("{object}: target is busy"));
                    }
                    assert_eq!(layers.mounts.first().map(|one| &**one), mount, "not in its turn");
                    assert!(layers.swaps.is_empty(), "swap before mounts");
                    layers.mounts.remove(0);
                }
                "swapoff" if swap.is_some() => drop(layers.swaps.remove(swap.unwrap())),
                "dmsetup" | "mdadm" | "losetup" => {
                    assert!(layers.mounts.is_empty() && layers.swaps.is_empty(), "{program} under users");
                    layers.tops.retain(|top| match top {
                        Top::Map(name) | Top::Raid(name) | Top::Loop(name) | Top::Other(name) => {
                            !object.ends_with(name)
                        }
                    });
                }
                _ => continue,
            }
            break;
        }
        drop(disks);
        self.note(format!("{program} {object}"));
        Ok(())
    }

    fn flush(&self, disk: &OurDisk) -> Result<(), String> {
        self.note(format!("flush {}", disk.device.display()));
        Ok(())
    }

    fn start(&self, name: String, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        if self.no_thread == Some(&*name) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        thread::Builder::new().name(name).spawn(work).map(drop)
    }

    fn pause(&self) {
        thread::sleep(Duration::from_millis(1));
    }

    fn log_out(&self, disk: &OurDisk) -> Result<(), String> {
        self.note(format!("log out {}", disk.device.display()));
        self.with(disk, |disk| {
            assert!(disk.layers.is_empty() && disk.holders.is_empty(), "a disk in use was removed");
            disk.gone = true;
        });
        Ok(())
    }
}

fn machine(disks: &[FakeDisk]) -> (Arc<Fake>, Arc<dyn Door>) {
    let fake = Arc::new(Fake { disks: Mutex::new(disks.to_vec()), ..Fake::default() });
    (fake.clone(), fake)
}

fn mounted(number: u128, points: &[&str]) -> FakeDisk {
    let mounts = points.iter().map(PathBuf::from).collect();
    FakeDisk { number, layers: Layers { mounts, ..Layers::default() }, ..FakeDisk::default() }
}

/// Time for disks of which one never ends: long enough for all steps of the others.
const SOON: Duration = Duration::from_secs(4);
/// Time for disks that all end.
const LONG: Duration = Duration::from_mins(1);

#[test]
fn everything_on_a_disk_goes_in_its_order_and_then_the_disk() {
    let mut disk = mounted(1, &["/data/inner", "/data"]);
    disk.layers.swaps = vec!["/data/swap".into()];
    disk.layers.tops = vec![Top::Map("vg-data".into()), Top::Raid("md0".into()), Top::Loop("loop0".into())];
    let (fake, door) = machine(&[disk]);
    let went = release(&door, LONG).unwrap();
    assert_eq!(went, BTreeMap::from([("/dev/sd1".into(), Released::Whole)]));
    let wanted = [
        "swapoff /data/swap",
        "umount /data/inner",
        "umount /data",
        "dmsetup vg-data",
        "mdadm /dev/md0",
        "losetup /dev/loop0",
        "flush /dev/sd1",
        "log out /dev/sd1",
    ];
    assert_eq!(*fake.done.lock().unwrap(), wanted);
    assert_eq!(release(&door, LONG).unwrap(), BTreeMap::new(), "the second time there is nothing");
}

#[test]
fn users_that_go_later_are_waited_for_and_their_writes_are_sent_meanwhile() {
    let mut open = FakeDisk { number: 2, busy: 3, ..FakeDisk::default() };
    open.holders = vec![Holder::Process { pid: 9, name: "qemu".into() }];
    let (fake, door) = machine(&[FakeDisk { busy: 2, ..mounted(1, &["/data"]) }, open]);
    let went = release(&door, LONG).unwrap();
    assert!(went.values().all(|how| *how == Released::Whole), "{went:?}");
    assert_eq!(fake.done.lock().unwrap().iter().filter(|what| *what == "sync /data").count(), 2);
}

#[test]
fn a_disk_that_stays_in_use_is_flushed_and_its_session_stays() {
    let (fake, door) = machine(&[FakeDisk { busy: u32::MAX, ..mounted(1, &["/data"]) }, mounted(2, &["/b"])]);
    let went = release(&door, SOON).unwrap();
    assert!(
        matches!(&went[Path::new("/dev/sd1")], Released::Not(why) if why.contains("/data: target is busy")),
        "{went:?}"
    );
    assert_eq!(went[Path::new("/dev/sd2")], Released::Whole);
    assert_eq!(left(&went), BTreeSet::from([Path::new("/dev/sd1")]));
    assert!(!fake.done.lock().unwrap().contains(&"log out /dev/sd1".to_owned()));
}

#[test]
fn a_disk_that_the_target_of_this_host_exports_is_not_waited_for() {
    let disk =
        FakeDisk { number: 1, holders: vec![Holder::Device("LIO iblock_0/x".into())], ..FakeDisk::default() };
    let (fake, door) = machine(&[disk]);
    let went = release(&door, LONG).unwrap();
    assert_eq!(went[Path::new("/dev/sd1")], Released::Flushed("held by LIO iblock_0/x".into()));
    assert_eq!(*fake.done.lock().unwrap(), ["flush /dev/sd1"]);
}

#[test]
fn a_disk_that_does_not_answer_holds_up_no_other() {
    let (_, door) = machine(&[FakeDisk { hangs: true, ..mounted(1, &["/data"]) }, mounted(2, &["/b"])]);
    let began = Instant::now();
    let went = release(&door, SOON).unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(
        matches!(&went[Path::new("/dev/sd1")], Released::Not(why) if why.contains("does not answer")),
        "{went:?}"
    );
    assert_eq!(went[Path::new("/dev/sd2")], Released::Whole);
}

#[test]
fn a_disk_without_a_thread_holds_up_no_other() {
    let disks = [mounted(1, &["/a"]), mounted(2, &["/b"]), mounted(3, &["/c"])];
    for (without, name) in [("/dev/sd1", "release-7"), ("/dev/sd2", "release-8"), ("/dev/sd3", "release-9")] {
        let disks = Mutex::new(disks.to_vec());
        let fake = Arc::new(Fake { disks, no_thread: Some(name), ..Fake::default() });
        let door: Arc<dyn Door> = fake.clone();
        let mut went = release(&door, LONG).unwrap();
        let how = went.remove(Path::new(without)).unwrap();
        assert!(matches!(&how, Released::Not(why) if why.contains("cannot start a thread")), "{how:?}");
        assert_eq!(went.into_values().collect::<Vec<_>>(), [Released::Whole, Released::Whole]);
        assert!(!fake.done.lock().unwrap().contains(&format!("flush {without}")));
    }
}

#[test]
fn a_host_without_disks_is_done_at_once() {
    let (fake, door) = machine(&[]);
    assert_eq!(release(&door, LONG).unwrap(), BTreeMap::new());
    assert!(fake.done.lock().unwrap().is_empty());
}
