//! The laws of connections over Fibre Channel, on a host in memory that records what must never
//! happen.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mooring_connectors::fake::{FcDoor, FcWorld, Kill, Rport, Unit, World};
use mooring_connectors::{
    Arrivals, Fabric, LinkName, Made, Memory, Names, Parts, RunLinks, Wanted, Ways, holders, make, report,
};
use mooring_host::{Holder, Tree, TreePath};
use mooring_model::{
    AgentId, AttachmentId, AttachmentSpec, BlockedKind, ByteSize, Cache, ConnectionPhase, ConnectionReport,
    ConnectionSpec, Cure, FcRoute, Generation, IqnPrefix, Lun, Mode, Naa, VolumeId, Wwpn,
};

const SIZE: u64 = 64 << 20;
const LUN: u16 = 7;
/// LUN of somebody else's disk at this target.
const OTHER: u16 = 9;

fn volume(n: u8) -> VolumeId {
    VolumeId::from_u128(u128::from(n))
}

fn attachment(n: u8) -> AttachmentId {
    AttachmentId::from_u128(0xa0 + u128::from(n))
}

fn port(n: u8) -> Wwpn {
    Wwpn::from_u64(0x2000_5254_0014_0000 + u64::from(n)).unwrap()
}

fn spec(volume: VolumeId, attachments: &[(u8, Mode)]) -> ConnectionSpec {
    let prefix = IqnPrefix::default();
    ConnectionSpec {
        volume,
        initiator: prefix.initiator(AgentId::from_u128(1)),
        target: prefix.target(volume),
        tpg: 1,
        portals: Vec::new(),
        lun: Lun(LUN),
        naa: Naa::of_serial(&volume.to_string()),
        serial: volume.to_string(),
        size: ByteSize(SIZE),
        chap: None,
        other_chap: None,
        attachments: attachments
            .iter()
            .map(|(id, mode)| AttachmentSpec { id: attachment(*id), mode: *mode, cache: Cache::On })
            .collect(),
        fc: Some(FcRoute { port: port(1), targets: vec![port(10), port(11)] }),
    }
}

fn present(counter: u64, attachments: &[(u8, Mode)]) -> Wanted {
    wanted(counter, spec(volume(1), attachments))
}

fn wanted(counter: u64, spec: ConnectionSpec) -> Wanted {
    let generation = Generation { epoch: 1, counter };
    Wanted::Present { spec: Box::new(spec), generation, recovery_timeout_s: 120 }
}

fn absent(revoked: bool) -> Wanted {
    Wanted::Absent { volume: volume(1), revoked }
}

const RW: &[(u8, Mode)] = &[(1, Mode::ReadWrite)];
const RO: &[(u8, Mode)] = &[(1, Mode::ReadOnly)];

struct Site {
    world: FcWorld,
    dir: tempfile::TempDir,
}

impl Site {
    /// A host that is logged in at a target; the target shows it another host's disk.
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let world = FcWorld::new(&dir.path().join("run"), port(1));
        let site = Self { world, dir };
        site.world.meet(Site::rport(10, 0));
        site.world.take_log();
        site
    }

    fn rport(name: u8, target: i32) -> Rport {
        let luns = BTreeMap::from([(OTHER, Unit::of(volume(200), SIZE))]);
        Rport { name: port(name), state: "Online", target, luns }
    }

    fn grant(&self) {
        self.world.shows(port(10), LUN, Some(Unit::of(volume(1), SIZE)));
    }

    fn parts(&self, door: &FcDoor) -> Parts {
        let run = self.dir.path().join("run");
        // mooring-sessiond runs, and has no session.
        let iscsi = World::new(&run).door(None);
        let fabric = Fabric::new(Arc::new(door.clone()), self.dir.path().join("state"));
        Parts {
            sys: Arc::new(door.clone()),
            disks: Arc::new(door.clone()),
            links: Arc::new(RunLinks::new(&run, "/dev")),
            sessions: Arc::new(Ways::new(Arc::new(iscsi), fabric)),
            arrivals: Arrivals::default(),
            dev: PathBuf::from("/dev"),
            recovery_timeout_s: 120,
        }
    }

    fn make(&self, wanted: &Wanted) -> Made {
        make(&self.parts(&self.world.door(None)), wanted, &mut Memory::default(), &mut ())
    }

    fn report(&self, wanted: &Wanted) -> ConnectionReport {
        let made = self.make(wanted);
        let left = !made.left.as_ref().unwrap().is_quiet();
        let spec = spec(volume(1), &[]);
        let names = Names { initiator: spec.initiator, target: spec.target };
        let links = RunLinks::new(self.dir.path().join("run"), "/dev");
        report(wanted, Generation::ZERO, &made.view.unwrap(), left, &links, names)
    }

    fn link(&self, link: LinkName) -> Option<PathBuf> {
        std::fs::read_link(self.dir.path().join("run").join(link.to_string())).ok()
    }

    /// Number of records that are stored, of any volume.
    fn records(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("state")).map_or(0, Iterator::count)
    }

    fn attached(mode: &[(u8, Mode)]) -> Self {
        let site = Self::new();
        site.grant();
        let report = site.report(&present(1, mode));
        assert_eq!(report.phase, ConnectionPhase::Ready, "{report:?}");
        site.world.take_log();
        site
    }

    fn is_right(&self) {
        let disk = PathBuf::from("/dev").join(self.world.name_of(LUN).unwrap());
        assert_eq!(self.link(LinkName::Attachment(attachment(1))).as_ref(), Some(&disk));
        assert_eq!(self.link(LinkName::Volume(volume(1))).as_ref(), Some(&disk));
    }

    fn is_gone(&self) {
        assert_eq!(self.world.disks(), ["3:0:0:9"], "another's disk stays, alone");
        assert_eq!(self.records(), 0);
        assert_eq!(self.link(LinkName::Attachment(attachment(1))), None);
        assert_eq!(self.link(LinkName::Volume(volume(1))), None);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.world.violations(), Vec::<String>::new());
        }
    }
}

#[test]
fn one_lun_is_scanned_and_one_disk_removed() {
    let site = Site::new();
    site.grant();
    let report = site.report(&present(1, RO));
    assert_eq!((report.phase, report.mode), (ConnectionPhase::Ready, Some(Mode::ReadOnly)));
    assert_eq!(report.session, None, "nobody keeps a session");
    assert_eq!(site.world.take_log(), ["scsi_host/host3/scan = 0 0 7", "read-only = true"]);
    site.is_right();
    assert_eq!(site.make(&present(1, RO)).left.unwrap().steps.len(), 0);
    assert_eq!(site.world.take_log(), [""; 0], "a second pass changes nothing");

    let report = site.report(&absent(false));
    assert_eq!(report.phase, ConnectionPhase::Gone);
    assert_eq!(site.world.take_log(), ["flush", "scsi_device/3:0:0:7/delete = 1"]);
    site.is_gone();
}

#[test]
fn modes_follow_the_attachments() {
    let site = Site::attached(RO);
    assert_eq!(site.report(&present(2, RW)).phase, ConnectionPhase::Ready);
    assert_eq!(site.world.is_read_only(LUN), Some(false));
    assert_eq!(site.report(&present(3, RO)).phase, ConnectionPhase::Ready);
    assert_eq!(site.world.is_read_only(LUN), Some(true));
}

/// Kills before and after every change of the machine; another process then finishes.
#[test]
fn killed_at_every_change_it_comes_to_the_same() {
    type Way = (&'static str, Wanted, fn(&Site));
    let ways: [Way; 3] = [
        ("attach", present(2, RO), Site::is_right),
        ("detach", absent(false), Site::is_gone),
        ("revoke", absent(true), Site::is_gone),
    ];
    for (what, wanted, holds) in ways {
        let start = || {
            let site = if what == "attach" { Site::new() } else { Site::attached(RW) };
            site.grant();
            if what == "revoke" {
                site.world.revoke();
            }
            site
        };
        let site = start();
        let door = site.world.door(None);
        make(&site.parts(&door), &wanted, &mut Memory::default(), &mut ()).left.unwrap();
        let total = door.changes();
        assert!(total >= 2, "{what}: {total}");
        for kill in (1..=total).flat_map(|n| [Kill::Before(n), Kill::After(n)]) {
            let site = start();
            let door = site.world.door(Some(kill));
            let died = make(&site.parts(&door), &wanted, &mut Memory::default(), &mut ());
            assert!(door.is_dead() && died.left.is_err(), "{what} {kill:?}");
            assert!(site.make(&wanted).left.unwrap().is_quiet(), "{what} {kill:?}");
            holds(&site);
        }
    }
}

#[test]
fn without_a_way_nothing_is_touched_and_the_reason_is_said() {
    let check = |prepare: fn(&Site), say: &str| {
        let site = Site::new();
        site.grant();
        prepare(&site);
        let report = site.report(&present(1, RW));
        assert_eq!(report.phase, ConnectionPhase::Connecting, "{report:?}");
        let problem = &report.problems[0];
        assert!(problem.text.contains(say) && problem.cure == Cure::Retry, "{problem:?}");
        assert_eq!(site.world.take_log(), [""; 0]);
        // The connection recovers by itself once there is a path.
        site.world.set_online(true);
        site.world.meet(Site::rport(10, 0));
        site.grant();
        assert_eq!(site.report(&present(1, RW)).phase, ConnectionPhase::Ready);
    };
    check(|site| site.world.set_online(false), "is Linkdown: see its cable");
    check(|site| site.world.meet(Site::rport(10, -1)), "is no target to port");
    check(|site| site.world.lose(port(10), true), "is Not Present");
    let site = Site::new();
    let mut elsewhere = spec(volume(1), RW);
    elsewhere.fc = Some(FcRoute { port: port(1), targets: vec![port(77)] });
    let report = site.report(&wanted(1, elsewhere.clone()));
    assert!(report.problems[0].text.contains("issue_lip"), "{report:?}");
    let site = Site::new();
    elsewhere.fc = Some(FcRoute { port: port(2), targets: vec![port(10)] });
    let report = site.report(&wanted(1, elsewhere));
    assert!(report.problems[0].text.contains("has no port 20:00:52:54:00:14:00:02"), "{report:?}");
}

#[test]
fn a_target_that_does_not_show_it_is_said_and_asked_again() {
    let site = Site::new();
    let made = site.make(&present(1, RW));
    let blocked = &made.left.unwrap().blocked[0];
    assert!(
        blocked.kind == BlockedKind::Missing && blocked.why.contains("shows no LUN 7 to port"),
        "{blocked:?}"
    );
    assert_eq!(site.world.take_log(), ["scsi_host/host3/scan = 0 0 7"]);
    site.grant();
    assert_eq!(site.report(&present(1, RW)).phase, ConnectionPhase::Ready);
}

#[test]
fn the_wrong_disk_is_deleted_once_and_never_linked() {
    let site = Site::new();
    let other = Unit::of(volume(99), SIZE);
    assert_eq!(other.naa, Unit::of(volume(1), SIZE).naa, "their serials alone tell them apart");
    site.world.shows(port(10), LUN, Some(other));
    let report = site.report(&present(1, RW));
    assert_eq!((report.phase, report.paths.len()), (ConnectionPhase::Failed, 0));
    let scan = "scsi_host/host3/scan = 0 0 7";
    assert_eq!(site.world.take_log(), [scan, "scsi_device/3:0:0:7/delete = 1", scan]);
    // The host still has the stale disk. The target now shows the right one in its place.
    site.grant();
    assert_eq!(site.report(&present(1, RW)).phase, ConnectionPhase::Ready);
    site.is_right();
}

#[test]
fn several_ports_are_refused_and_one_that_comes_later_changes_nothing() {
    let second = |site: &Site| {
        let mut rport = Site::rport(11, 1);
        rport.luns.insert(LUN, Unit::of(volume(1), SIZE));
        site.world.meet(rport);
    };
    let site = Site::new();
    site.grant();
    second(&site);
    let report = site.report(&present(1, RW));
    assert_eq!((report.phase, report.paths.len()), (ConnectionPhase::Failed, 0));
    let problem = &report.problems[0];
    assert!(problem.text.contains("uses one path") && problem.cure != Cure::Retry, "{problem:?}");
    assert_eq!(site.world.take_log(), [""; 0]);

    let site = Site::attached(RW);
    second(&site);
    assert_eq!(site.report(&present(1, RW)).phase, ConnectionPhase::Ready);
    site.is_right();
    // The detach also removes the second disk, which the kernel has found by itself.
    assert_eq!(site.world.disks(), ["3:0:0:7", "3:0:0:9", "3:0:1:7", "3:0:1:9"]);
    assert_eq!(site.report(&absent(false)).phase, ConnectionPhase::Gone);
    assert_eq!(site.world.disks(), ["3:0:0:9", "3:0:1:9"]);
}

#[test]
fn a_lost_port_keeps_the_paths_until_its_disk_goes() {
    let site = Site::attached(RW);
    site.world.lose(port(10), false);
    let report = site.report(&present(1, RW));
    assert_eq!((report.phase, report.paths.len()), (ConnectionPhase::Recovering, 1));
    assert!(report.problems[0].text.contains("is Blocked"), "{report:?}");
    site.world.lose(port(10), true);
    let report = site.report(&present(1, RW));
    assert_eq!((report.phase, report.paths.len()), (ConnectionPhase::Connecting, 0));
    assert_eq!(site.world.take_log(), [""; 0]);
    let mut rport = Site::rport(10, 0);
    rport.luns.insert(LUN, Unit::of(volume(1), SIZE));
    site.world.meet(rport);
    assert_eq!(site.report(&present(1, RW)).phase, ConnectionPhase::Ready);
    site.is_right();
    // A lost port delays nothing, because nothing is flushed to it.
    site.world.lose(port(10), false);
    assert_eq!(site.report(&absent(false)).phase, ConnectionPhase::Gone);
    site.is_gone();
}

#[test]
fn a_held_disk_goes_only_when_the_host_is_revoked() {
    let site = Site::attached(RW);
    site.world.hold_open(LUN, &[Holder::Process { pid: 4711, name: "dd".into() }]);
    let parts = site.parts(&site.world.door(None));
    assert_eq!(holders(&parts, volume(1)).unwrap().len(), 1);
    let made = site.make(&absent(false));
    assert_eq!(made.left.unwrap().blocked[0].kind, BlockedKind::Held);
    assert_eq!(site.world.take_log(), [""; 0]);
    site.world.revoke();
    assert_eq!(site.report(&absent(true)).phase, ConnectionPhase::Gone);
    let log = ["scsi_device/3:0:0:7/state = offline", "scsi_device/3:0:0:7/delete = 1"];
    assert_eq!(site.world.take_log(), log, "no flush: the target may not answer");
    site.is_gone();
}

#[test]
fn a_revoked_disk_is_offline_when_it_is_deleted() {
    let site = Site::attached(RW);
    site.world.revoke();
    assert_eq!(site.report(&absent(true)).phase, ConnectionPhase::Gone);
    assert_eq!(site.world.deleted(), ["3:0:0:7 was offline"]);
    // The control: a disk that the target still serves runs until it goes.
    let site = Site::attached(RW);
    assert_eq!(site.report(&absent(false)).phase, ConnectionPhase::Gone);
    assert_eq!(site.world.deleted(), ["3:0:0:7 was running"]);
}

/// The agent died between the two steps of a removal, and the host is granted the volume again.
#[test]
fn a_disk_that_was_left_offline_runs_for_a_newer_spec() {
    let site = Site::attached(RW);
    let door = site.world.door(None);
    let state = TreePath::new("class/scsi_device/3:0:0:7/device/state");
    door.write(&state, b"offline\n").unwrap();
    assert_eq!(door.read_text(&state).unwrap(), "offline");
    std::fs::remove_dir_all(site.dir.path().join("run")).unwrap();
    assert!(site.make(&present(2, RW)).left.unwrap().is_quiet());
    assert_eq!(site.report(&present(2, RW)).phase, ConnectionPhase::Ready);
    assert_eq!(door.read_text(&state).unwrap(), "running");
    assert_eq!(site.world.violations(), Vec::<String>::new());
}

/// After a reboot only the record knows the volume, and the kernel finds every LUN by itself.
#[test]
fn what_the_kernel_finds_after_a_reboot_goes_with_its_tombstone() {
    let site = Site::attached(RW);
    std::fs::remove_dir_all(site.dir.path().join("run")).unwrap();
    let report = site.report(&absent(false));
    assert_eq!(report.phase, ConnectionPhase::Gone);
    site.is_gone();
}

#[test]
fn a_number_is_one_volumes_at_a_time() {
    let site = Site::attached(RW);
    let second = wanted(1, spec(volume(2), &[(2, Mode::ReadWrite)]));
    let error = site.make(&second).left.unwrap_err();
    let text = mooring_model::Chain(&error).to_string();
    assert!(text.contains("is still volume") && error.cure() == Cure::Retry, "{text}");
    site.is_right();
    assert_eq!(site.world.take_log(), [""; 0]);
    assert_eq!(site.report(&absent(false)).phase, ConnectionPhase::Gone);
    site.world.shows(port(10), LUN, Some(Unit::of(volume(2), SIZE)));
    assert!(site.make(&second).left.unwrap().is_quiet());
    assert!(site.link(LinkName::Volume(volume(2))).is_some());
}

#[test]
fn a_foreign_object_in_place_of_a_claim_is_named_and_stays() {
    let site = Site::new();
    site.grant();
    let claim = site.dir.path().join("state").join(format!("{:016x}-{LUN}", port(1).as_u64()));
    std::fs::create_dir(claim.parent().unwrap()).unwrap();
    std::fs::write(&claim, "somebody's").unwrap();
    let error = site.make(&present(1, RW)).left.unwrap_err();
    let text = mooring_model::Chain(&error).to_string();
    let say = format!("{} is no link of Mooring's: remove it", claim.display());
    assert!(text.contains(&say) && error.cure() == Cure::Operator, "{text}");
    assert_eq!(std::fs::read_to_string(&claim).unwrap(), "somebody's");
    std::fs::remove_file(&claim).unwrap();
    assert_eq!(site.report(&present(1, RW)).phase, ConnectionPhase::Ready);
}

#[test]
fn another_way_is_not_taken_for_the_same() {
    let site = Site::attached(RW);
    let mut iscsi = spec(volume(1), RW);
    (iscsi.fc, iscsi.lun) = (None, Lun(1));
    iscsi.portals = vec!["10.0.0.1:3260".parse().unwrap()];
    let made = site.make(&wanted(2, iscsi));
    assert_eq!(made.left.unwrap().blocked[0].kind, BlockedKind::Foreign);
    assert_eq!(site.world.disks().len(), 2);
    assert_eq!(site.link(LinkName::Volume(volume(1))), None, "nothing leads to it");
}
