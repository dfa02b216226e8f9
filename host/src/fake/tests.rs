//! Tests the fake against the facts: sessions, exposure, draining calls, LVM, zeroing.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;

use super::*;
use crate::{BlockDevices as _, Command, Commands as _, Flow, PrSessions as _, Tree, TreeOp, TreePath};

const TARGET: &str = "iqn.2026-01.lab.storage:t0";
const HOST1: &str = "iqn.2026-01.lab:host1";
const HOST2: &str = "iqn.2026-01.lab:host2";
const PORTAL: &str = "10.10.0.10:3260";
const DEVICE: &str = "/dev/vg0/lv0";
const CREDENTIALS: Option<(&str, &str)> = Some(("user1", "secret123456"));

fn path(text: &str) -> TreePath {
    TreePath::new(text)
}

fn tpg() -> TreePath {
    path("iscsi").join(TARGET).join("tpgt_1")
}

fn acl(initiator: &str) -> TreePath {
    tpg().join("acls").join(initiator)
}

/// Makes a machine with one export of `DEVICE`, LUN 1, for two hosts with CHAP.
fn exported() -> (FakeMachine, FakeLio) {
    let machine = FakeMachine::new();
    machine.add_device(DEVICE, 1 << 30);
    let lio = machine.lio();
    export(&lio).unwrap();
    (machine, lio)
}

fn export(lio: &FakeLio) -> Result<(), crate::TreeError> {
    let store = path("core/iblock_1000/vol");
    lio.mkdir(&store.parent())?;
    lio.mkdir(&store)?;
    lio.write(&store.join("control"), format!("udev_path={DEVICE}").as_bytes())?;
    lio.write(&store.join("wwn").join("vpd_unit_serial"), b"11112222-3333-4444-5555-666677778888")?;
    lio.write(&store.join("enable"), b"1")?;
    for folder in ["iscsi", &format!("iscsi/{TARGET}"), &format!("iscsi/{TARGET}/tpgt_1")] {
        lio.mkdir(&path(folder))?;
    }
    let lun = tpg().join("lun").join("lun_1");
    lio.mkdir(&lun)?;
    lio.symlink(&store, &lun.join("vol"))?;
    for host in [HOST1, HOST2] {
        lio.mkdir(&acl(host))?;
        lio.write(&acl(host).join("auth").join("userid"), b"user1")?;
        lio.write(&acl(host).join("auth").join("password"), b"secret123456")?;
        lio.mkdir(&acl(host).join("lun_1"))?;
        lio.symlink(&lun, &acl(host).join("lun_1").join("lun"))?;
    }
    lio.mkdir(&tpg().join("np").join(PORTAL))?;
    lio.write(&tpg().join("enable"), b"1")
}

fn errno<T: std::fmt::Debug>(result: Result<T, crate::TreeError>) -> Errno {
    result.unwrap_err().errno
}

#[test]
fn the_texts_are_the_kernels() {
    let (machine, lio) = exported();
    machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    let store = path("core/iblock_1000/vol");
    let read = |at: TreePath| String::from_utf8(lio.read(&at).unwrap()).unwrap();
    assert_eq!(
        read(store.join("wwn").join("vpd_unit_serial")),
        "T10 VPD Unit Serial Number: 11112222-3333-4444-5555-666677778888\n"
    );
    assert_eq!(
        read(store.join("info")),
        "Status: ACTIVATED  Max Queue Depth: 0  SectorSize: 512  HwMaxSectors: 4294967288\n        iBlock device: dm-0  UDEV PATH: /dev/vg0/lv0  readonly: 0\n        Major: 253 Minor: 0  CLAIMED: IBLOCK\n"
    );
    assert_eq!(
        read(acl(HOST2).join("info")),
        format!("No active iSCSI Session for Initiator Endpoint: {HOST2}\n")
    );
    let info = read(acl(HOST1).join("info"));
    assert!(info.starts_with(&format!("InitiatorName: {HOST1}\nInitiatorAlias: host1\nLIO Session ID: 1   ISID: 0x00 02 3d 00 00 01  TSIH: 1  SessionType: Normal\nSession State: TARG_SESS_STATE_LOGGED_IN\n-----")), "{info}");
    assert!(info.contains("\n 0x00000040   0x00000040   0x00000001   0x00000040   0x"), "{info}");
    let mapped =
        |host: &str| acl(host).join("lun_1").join("statistics").join("scsi_att_intr_port").join("port_ident");
    assert_eq!(read(mapped(HOST1)), format!("{HOST1}+i+00023d000001\n"));
    assert_eq!(errno(lio.read(&mapped(HOST2))), Errno::ENODEV);
    assert_eq!(naa("11112222-3333-4444-5555-666677778888"), "60014051111222233334444555566667");
    assert_eq!(naa("s1"), "60014051000000000000000000000000");
}

#[test]
fn a_login_obeys_portal_enable_acl_and_credentials() {
    let (machine, lio) = exported();
    let login = |portal, target, host, shown| machine.login(portal, target, host, shown).err();
    assert_eq!(login(PORTAL, TARGET, HOST1, CREDENTIALS), None);
    assert_eq!(login("10.10.0.10:3261", TARGET, HOST1, CREDENTIALS), Some(LoginRefusal::Unreachable));
    assert_eq!(login("nonsense", TARGET, HOST1, CREDENTIALS), Some(LoginRefusal::Unreachable));
    assert_eq!(login(PORTAL, "iqn.other", HOST1, CREDENTIALS), Some(LoginRefusal::NoTarget));
    assert_eq!(login(PORTAL, TARGET, "iqn.other", CREDENTIALS), Some(LoginRefusal::NotAuthorized));
    assert_eq!(login(PORTAL, TARGET, HOST1, None), Some(LoginRefusal::Authentication));
    assert_eq!(login(PORTAL, TARGET, HOST1, Some(("user1", "wrong"))), Some(LoginRefusal::Authentication));
    // A stored newline never matches, whatever is shown.
    lio.write(&acl(HOST2).join("auth").join("userid"), b"user1\n").unwrap();
    assert_eq!(lio.read(&acl(HOST2).join("auth").join("userid")).unwrap(), b"user1\n\n");
    assert_eq!(login(PORTAL, TARGET, HOST2, CREDENTIALS), Some(LoginRefusal::Authentication));
    assert_eq!(
        login(PORTAL, TARGET, HOST2, Some(("user1\n", "secret123456"))),
        Some(LoginRefusal::Authentication)
    );
    // The ACL's own `authentication` overrides the group's.
    lio.write(&acl(HOST2).join("attrib").join("authentication"), b"0").unwrap();
    assert_eq!(login(PORTAL, TARGET, HOST2, None), None);
    machine.set_addresses(["10.20.0.10".parse().unwrap()]);
    assert_eq!(login(PORTAL, TARGET, HOST1, CREDENTIALS), Some(LoginRefusal::Unreachable));
    machine.set_addresses(["10.10.0.10".parse().unwrap()]);
    lio.write(&tpg().join("enable"), b"0").unwrap();
    assert_eq!(login(PORTAL, TARGET, HOST1, CREDENTIALS), Some(LoginRefusal::NoTarget));
}

#[test]
fn io_counts_and_obeys_write_protection() {
    let (machine, lio) = exported();
    let session = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    let device = || Ok(Answer::Device(DEVICE.into()));
    assert_eq!(machine.write(session, 1), device());
    assert_eq!(machine.landed(DEVICE), 1);
    let protect = acl(HOST1).join("lun_1").join("write_protect");
    lio.write(&protect, b"1\n").unwrap();
    assert_eq!(machine.write(session, 1), Err(IoRefusal::WriteProtected));
    assert_eq!(machine.read(session, 1), device());
    assert!(machine.inquire(session, 1).unwrap().write_protected);
    assert_eq!(machine.inquire(session, 1).unwrap().naa, "60014051111222233334444555566667");
    assert_eq!(machine.report_luns(session).unwrap(), [1]);
    let counter = acl(HOST1).join("lun_1").join("statistics").join("scsi_auth_intr").join("num_cmds");
    assert_eq!(lio.read_text(&counter).unwrap(), "3");
    assert_eq!(machine.write(session, 2), Err(IoRefusal::NoLun));
    assert_eq!(machine.write(session, 0), Err(IoRefusal::WriteProtected));
    assert_eq!(machine.read(session, 0), Ok(Answer::VirtualLun));
    lio.unlink(&acl(HOST1).join("lun_1").join("lun")).unwrap();
    assert_eq!(machine.write(session, 1), Err(IoRefusal::NoLun));
    assert_eq!(lio.read(&protect).unwrap(), b"");
    machine.logout(session);
    assert_eq!(machine.read(session, 1), Err(IoRefusal::SessionGone));
}

#[test]
fn a_new_queue_depth_a_removed_acl_or_a_disabled_group_drops_sessions() {
    let (machine, lio) = exported();
    let login = |host| machine.login(PORTAL, TARGET, host, CREDENTIALS).unwrap();
    let (one, two) = (login(HOST1), login(HOST2));
    lio.write(&acl(HOST1).join("cmdsn_depth"), b"64").unwrap();
    assert!(machine.is_live(one));
    lio.write(&acl(HOST1).join("cmdsn_depth"), b"63").unwrap();
    assert!(!machine.is_live(one) && machine.is_live(two));
    let one = login(HOST1);
    lio.rmdir(&tpg().join("np").join(PORTAL)).unwrap();
    assert!(machine.is_live(one), "a portal's removal leaves sessions");
    assert_eq!(machine.login(PORTAL, TARGET, HOST1, CREDENTIALS), Err(LoginRefusal::Unreachable));
    lio.unlink(&acl(HOST1).join("lun_1").join("lun")).unwrap();
    lio.rmdir(&acl(HOST1).join("lun_1")).unwrap();
    lio.rmdir(&acl(HOST1)).unwrap();
    assert!(!machine.is_live(one) && machine.is_live(two));
    lio.write(&tpg().join("enable"), b"0").unwrap();
    assert!(!machine.is_live(two));
}

#[test]
fn removing_an_acl_waits_for_its_commands_and_blocks_only_its_folder() {
    let (machine, lio) = exported();
    let one = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    let two = machine.login(PORTAL, TARGET, HOST2, CREDENTIALS).unwrap();
    machine.hold(DEVICE);
    for _ in 0..8 {
        machine.start_write(one, 1).unwrap();
    }
    assert_eq!(machine.write(one, 1), Err(IoRefusal::Held));
    assert_eq!(machine.in_flight(DEVICE), 9);
    let info = lio.read_text(&acl(HOST1).join("info")).unwrap();
    assert!(info.contains("\n 0x00000040   0x00000037   0x0000000a   0x00000040   0x"), "{info}");
    // Unmapping alone is no fence: it returns, and the writes have still to land.
    lio.unlink(&acl(HOST1).join("lun_1").join("lun")).unwrap();
    lio.rmdir(&acl(HOST1).join("lun_1")).unwrap();
    assert_eq!((machine.in_flight(DEVICE), machine.landed(DEVICE)), (9, 0));

    let (events, seen) = mpsc::channel();
    let remover = {
        let (lio, events) = (lio.clone(), events.clone());
        thread::spawn(move || {
            lio.rmdir(&acl(HOST1)).unwrap();
            events.send("removed").unwrap();
        })
    };
    while machine.is_live(one) {
        thread::yield_now();
    }
    let lister = {
        let lio = lio.clone();
        thread::spawn(move || {
            let left = lio.list(&tpg().join("acls")).unwrap();
            events.send("listed").unwrap();
            left
        })
    };
    // Everything else goes on meanwhile.
    assert!(lio.is_dir(&acl(HOST2)).unwrap());
    assert_eq!(lio.read_text(&acl(HOST2).join("lun_1").join("write_protect")).unwrap(), "0");
    lio.mkdir(&path("core/iblock_7")).unwrap();
    lio.mkdir(&path("iscsi/iqn.other")).unwrap();
    assert!(machine.is_live(two));
    assert!(seen.recv_timeout(Duration::from_millis(50)).is_err(), "neither call may have returned");
    machine.release(DEVICE);
    assert_eq!(machine.landed(DEVICE), 9);
    remover.join().unwrap();
    assert_eq!(lister.join().unwrap().len(), 1);
    assert_eq!(machine.write(one, 1), Err(IoRefusal::SessionGone));
    assert_eq!(machine.landed(DEVICE), 9);
}

#[test]
fn every_draining_call_waits_and_the_others_do_not() {
    type Drain = fn(&FakeLio) -> Result<(), crate::TreeError>;
    let drains: [Drain; 3] = [
        |lio| lio.unlink(&tpg().join("lun").join("lun_1").join("vol")),
        |lio| lio.write(&acl(HOST1).join("cmdsn_depth"), b"63"),
        |lio| lio.write(&tpg().join("enable"), b"0"),
    ];
    for drain in drains {
        let (machine, lio) = exported();
        let session = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
        machine.hold(DEVICE);
        machine.start_write(session, 1).unwrap();
        lio.write(&acl(HOST1).join("lun_1").join("write_protect"), b"1").unwrap();
        assert_eq!((machine.landed(DEVICE), machine.in_flight(DEVICE)), (0, 1), "no barrier");
        let waiting = thread::spawn(move || drain(&lio));
        thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        assert!(machine.write(session, 1).is_err());
        machine.release(DEVICE);
        waiting.join().unwrap().unwrap();
        assert_eq!((machine.landed(DEVICE), machine.in_flight(DEVICE)), (1, 0));
    }
}

#[test]
fn what_waits_behind_a_removal_is_what_needs_its_folder() {
    let (machine, lio) = exported();
    let session = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    machine.hold(DEVICE);
    machine.start_write(session, 1).unwrap();
    let folder = acl(HOST1).join("lun_1");
    lio.unlink(&folder.join("lun")).unwrap();
    lio.rmdir(&folder).unwrap();
    let removal = {
        let lio = lio.clone();
        thread::spawn(move || lio.rmdir(&acl(HOST1)))
    };
    while machine.is_live(session) {
        thread::yield_now();
    }
    let waits: [fn(&FakeLio); 5] = [
        |lio| drop(lio.list(&tpg().join("acls"))),
        |lio| drop(lio.mkdir(&acl("iqn.new"))),
        |lio| drop(lio.rmdir(&acl(HOST2))),
        |lio| drop(lio.is_dir(&acl("iqn.unknown"))),
        |lio| drop(lio.read(&acl(HOST1).join("info"))),
    ];
    let waiting: Vec<_> = waits
        .into_iter()
        .map(|wait| {
            let lio = lio.clone();
            thread::spawn(move || wait(&lio))
        })
        .collect();
    assert!(lio.is_dir(&acl(HOST1)).unwrap(), "its name stands until it has gone");
    lio.write(&acl(HOST2).join("lun_1").join("write_protect"), b"1").unwrap();
    assert_eq!(lio.list(&acl(HOST2)).unwrap().len(), 8);
    assert_eq!(machine.login(PORTAL, TARGET, HOST1, CREDENTIALS), Err(LoginRefusal::NotAuthorized));
    assert!(machine.login(PORTAL, TARGET, HOST2, CREDENTIALS).is_ok());
    thread::sleep(Duration::from_millis(30));
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    machine.release(DEVICE);
    removal.join().unwrap().unwrap();
    for waiting in waiting {
        waiting.join().unwrap();
    }
}

#[test]
fn unlinking_a_lun_cuts_everyone_and_leaves_stale_links() {
    let (machine, lio) = exported();
    let session = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    let lun = tpg().join("lun").join("lun_1");
    lio.unlink(&lun.join("vol")).unwrap();
    assert_eq!(machine.write(session, 1), Err(IoRefusal::NoLun));
    assert!(machine.is_live(session));
    lio.symlink(&path("core/iblock_1000/vol"), &lun.join("vol")).unwrap();
    assert_eq!(machine.write(session, 1), Err(IoRefusal::NoLun), "a stale link is not revived");
    assert_eq!(errno(lio.rmdir(&lun)), Errno::EBUSY);
    assert_eq!(lio.read_link(&acl(HOST1).join("lun_1").join("lun")).unwrap(), lun);
    assert_eq!(errno(lio.rmdir(&path("core/iblock_1000/vol"))), Errno::EBUSY);
}

#[test]
fn what_is_reachable_follows_every_switch() {
    let (machine, lio) = exported();
    let seen = || {
        machine
            .reachable()
            .into_iter()
            .map(|r| (r.initiator, r.lun, r.mode, r.authenticated))
            .collect::<Vec<_>>()
    };
    let rw = |host: &str, authenticated| (host.to_owned(), 1, Access::ReadWrite, authenticated);
    assert_eq!(seen(), [rw(HOST1, true), rw(HOST2, true)]);
    lio.write(&acl(HOST1).join("attrib").join("authentication"), b"0").unwrap();
    lio.write(&acl(HOST2).join("lun_1").join("write_protect"), b"1").unwrap();
    // A command that changes the disk and claims to read passes, until none is left.
    for seal in ["max_write_same_len", "emulate_caw", "emulate_3pc"] {
        assert_eq!(seen(), [rw(HOST1, false), rw(HOST2, true)], "{seal}");
        lio.write(&path("core/iblock_1000/vol").join("attrib").join(seal), b"0").unwrap();
    }
    assert_eq!(seen(), [rw(HOST1, false), rw(HOST2, true)]);
    lio.write(&tpg().join("param").join("ImmediateData"), b"No").unwrap();
    assert_eq!(seen(), [rw(HOST1, false), (HOST2.to_owned(), 1, Access::ReadOnly, true)]);
    lio.write(&acl(HOST2).join("auth").join("userid"), b"NULL").unwrap();
    assert_eq!(seen(), [rw(HOST1, false)]);
    lio.write(&tpg().join("attrib").join("generate_node_acls"), b"1").unwrap();
    lio.write(&tpg().join("attrib").join("authentication"), b"0").unwrap();
    assert_eq!(seen()[0], ("*".to_owned(), 1, Access::ReadOnly, false));
    machine.set_addresses([]);
    assert_eq!(seen(), []);
    machine.set_addresses(["10.10.0.10".parse().unwrap()]);
    let session = machine.login(PORTAL, TARGET, "iqn.any", None).unwrap();
    assert_eq!(lio.read(&tpg().join("dynamic_sessions")).unwrap(), b"iqn.any\n");
    lio.write(&tpg().join("attrib").join("generate_node_acls"), b"0").unwrap();
    assert!(seen().iter().any(|reach| reach.0 == "iqn.any"), "a session that lives still reaches it");
    lio.mkdir(&acl("iqn.any")).unwrap();
    assert_eq!(lio.read(&tpg().join("dynamic_sessions")).unwrap(), b"");
    assert!(machine.is_live(session));
    lio.write(&tpg().join("enable"), b"0").unwrap();
    assert_eq!(seen(), []);
}

/// Makes another target without a disk on this portal, for the second host.
fn other_target(lio: &FakeLio) -> &'static str {
    const OTHER: &str = "iqn.2026-01.lab.storage:t1";
    let tpg = path("iscsi").join(OTHER).join("tpgt_1");
    lio.mkdir(&tpg.parent()).unwrap();
    lio.mkdir(&tpg).unwrap();
    lio.write(&tpg.join("attrib").join("authentication"), b"0").unwrap();
    lio.mkdir(&tpg.join("acls").join(HOST2)).unwrap();
    lio.mkdir(&tpg.join("np").join(PORTAL)).unwrap();
    lio.write(&tpg.join("enable"), b"1").unwrap();
    OTHER
}

/// lio.md, u: one backing device does not answer.
#[test]
fn a_relogin_beside_a_hung_device_blocks_the_portal_s_login_thread() {
    let (machine, lio) = exported();
    let other = other_target(&lio);
    let login = |target, host| machine.login(PORTAL, target, host, CREDENTIALS);
    let one = login(TARGET, HOST1).unwrap();
    machine.hold(DEVICE);
    machine.start_write(one, 1).unwrap();
    login(other, HOST2).expect("a live session with commands in flight blocks nobody");
    assert_eq!(login(TARGET, HOST1), Err(LoginRefusal::NoAnswer));
    assert_eq!(login(other, HOST2), Err(LoginRefusal::NoAnswer), "nobody logs in to anything");
    let knock = || machine.knock(PORTAL.parse().unwrap(), std::time::Instant::now());
    assert_eq!(knock().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    // The cure comes too late now: the other target's portal waits as well.
    let late = lio.clone();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        late.rmdir(&path("iscsi").join(other).join("tpgt_1").join("np").join(PORTAL)).unwrap();
        done.send(()).unwrap();
    });
    assert!(ended.recv_timeout(Duration::from_millis(50)).is_err());
    machine.release(DEVICE);
    ended.recv_timeout(Duration::from_secs(10)).expect("the thread answers again");
    knock().unwrap();
    login(TARGET, HOST1).unwrap();
}

/// The cure comes in time.
#[test]
fn a_hung_target_without_its_portal_blocks_nobody() {
    let (machine, lio) = exported();
    let other = other_target(&lio);
    let login = |target, host| machine.login(PORTAL, target, host, CREDENTIALS);
    let one = login(TARGET, HOST1).unwrap();
    machine.hold(DEVICE);
    machine.start_write(one, 1).unwrap();
    lio.rmdir(&tpg().join("np").join(PORTAL)).unwrap();
    assert!(machine.is_live(one));
    assert_eq!(login(TARGET, HOST1), Err(LoginRefusal::NoTarget));
    login(other, HOST2).unwrap();
    machine.release(DEVICE);
    lio.mkdir(&tpg().join("np").join(PORTAL)).unwrap();
    assert!(machine.is_live(one), "the same session goes on");
    login(TARGET, HOST1).unwrap();
}

#[test]
fn a_followed_device_says_what_is_in_flight_and_what_has_ended() {
    let (machine, _lio) = exported();
    let followed = machine.blocks().follow(Path::new(DEVICE)).unwrap();
    let session = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    machine.write(session, 1).unwrap();
    assert_eq!(followed.flow(), Ok(Flow::Idle));
    machine.hold(DEVICE);
    machine.start_write(session, 1).unwrap();
    let Ok(Flow::Busy { ended }) = followed.flow() else { panic!("it is busy") };
    assert_eq!(followed.flow(), Ok(Flow::Busy { ended }), "nothing has ended");
    machine.release(DEVICE);
    machine.hold(DEVICE);
    machine.start_write(session, 1).unwrap();
    assert_eq!(followed.flow(), Ok(Flow::Busy { ended: ended + 1 }));
    machine.set_suspended(DEVICE, true);
    assert_eq!(followed.flow(), Ok(Flow::Suspended));
    machine.remove_device(DEVICE);
    assert_eq!(followed.flow().unwrap_err().errno, Errno::ENODEV);
}

#[test]
fn a_reboot_empties_configfs_and_keeps_volumes() {
    let (machine, lio) = exported();
    machine.add_vg("vg0", 1 << 30);
    assert!(machine.lvm().add_volume("vg0", "lv1", 8 << 20, &["mooring"]));
    machine.reboot();
    assert!(lio.list(&TreePath::root()).unwrap().iter().all(|entry| entry.name != "iscsi"));
    assert_eq!(machine.blocks().size("/dev/vg0/lv1".as_ref()).unwrap(), Some(8 << 20));
    machine.set_autoactivation(false);
    machine.reboot();
    assert_eq!(machine.blocks().size("/dev/vg0/lv1".as_ref()).unwrap(), None);
    assert_eq!(lvm(&machine, "lvchange --activate y vg0/lv1").0, 0);
    assert_eq!(machine.blocks().size("/dev/vg0/lv1".as_ref()).unwrap(), Some(8 << 20));
    machine.unload_configfs();
    assert_eq!(errno(lio.list(&TreePath::root())), Errno::ENOENT);
    assert!(!lio.is_dir(&path("core")).unwrap());
    machine.load_configfs();
    export(&lio).unwrap();
}

fn lvm(machine: &FakeMachine, line: &str) -> (i32, String, String) {
    let args = line.split(' ').map(str::to_owned).collect();
    let command = Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) };
    let output = machine.lvm().run(&command).unwrap();
    (output.status, String::from_utf8(output.stdout).unwrap(), output.stderr)
}

const VGS: &str = "vgs --config log/report_command_log=0 --reportformat json --units b --nosuffix -o vg_name,vg_uuid,vg_size,vg_free,vg_extent_size,vg_attr";
const LVS: &str = "lvs --reportformat json --units b --nosuffix -o lv_name,lv_uuid,vg_name,lv_size,lv_tags,lv_attr,lv_active,lv_path,lv_device_open";
const CREATE: &str = "lvcreate --yes --wipesignatures n --zero n --size 5000000b --name lv0 --addtag mooring --addtag mooring.new vg0";

#[test]
fn lvm_creates_reports_tags_and_removes() {
    let machine = FakeMachine::new();
    machine.add_vg("vg0", (64 << 20) + 5);
    assert_eq!(lvm(&machine, CREATE).0, 0);
    let (status, stdout, _) = lvm(&machine, LVS);
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let row = &report["report"][0]["lv"][0];
    assert_eq!(status, 0);
    assert_eq!((&row["lv_name"], &row["lv_size"]), (&"lv0".into(), &"8388608".into()));
    assert_eq!((&row["lv_tags"], &row["lv_attr"]), (&"mooring,mooring.new".into(), &"-wi-a-----".into()));
    assert_eq!((&row["lv_path"], &row["lv_device_open"]), (&"/dev/vg0/lv0".into(), &"".into()));
    let report: serde_json::Value = serde_json::from_str(&lvm(&machine, VGS).1).unwrap();
    let row = &report["report"][0]["vg"][0];
    assert_eq!((&row["vg_size"], &row["vg_free"]), (&"67108864".into(), &"58720256".into()));
    assert_eq!(lvm(&machine, "lvchange --deltag mooring.new vg0/lv0").0, 0);
    assert!(!lvm(&machine, LVS).1.contains("mooring.new"));
    for select in ["tags=mooring", "lv_tags={mooring}"] {
        assert!(lvm(&machine, &format!("{LVS} -S {select}")).1.contains("lv0"));
    }
    assert!(!lvm(&machine, &format!("{LVS} -S lv_tags={{mooring-volume-1}}")).1.contains("lv0"));
    assert!(!lvm(&machine, &format!("{LVS} -S tags=other")).1.contains("lv0"));
    machine.set_busy(DEVICE, true);
    assert!(lvm(&machine, LVS).1.contains("-wi-ao----"));
    let refused = lvm(&machine, "lvremove --yes --force vg0/lv0");
    assert_eq!((refused.0, refused.2.as_str()), (5, "  Logical volume vg0/lv0 in use.\n"));
    machine.set_busy(DEVICE, false);
    assert_eq!(lvm(&machine, "lvremove --yes --force vg0/lv0").0, 0);
    assert_eq!(machine.blocks().size(DEVICE.as_ref()).unwrap(), None);
    assert_eq!(machine.lvm().log().len(), 12);
}

#[test]
fn lvm_refuses_as_the_tool_does() {
    let machine = FakeMachine::new();
    machine.add_vg("vg0", 16 << 20);
    assert_eq!(lvm(&machine, CREATE).0, 0);
    for (line, status, text) in [
        (CREATE, 5, "  Logical Volume \"lv0\" already exists in volume group \"vg0\"\n"),
        (
            "lvcreate --yes --size 17m --name x vg0",
            5,
            "  Volume group \"vg0\" has insufficient free space (2 extents): 5 required.\n",
        ),
        ("lvcreate --yes --size 4m --name x vgx", 5, "  Volume group \"vgx\" not found\n"),
        ("lvcreate --yes --size 0b --name x vg0", 3, "  Invalid argument for --size: 0b\n"),
        ("lvcreate --yes --size -4b --name x vg0", 3, "  Invalid argument for --size: -4b\n"),
        ("lvcreate --yes --size 4m --name a:b vg0", 3, "  Logical volume name \"a:b\" is invalid.\n"),
        ("lvcreate --yes --size 4m --frob vg0", 3, "  lvm: unrecognized option '--frob'\n"),
        ("lvremove --yes --force vg0/x", 5, "  Failed to find logical volume \"vg0/x\"\n"),
        ("lvremove --yes --force vg0", 3, "  Path required"),
        ("lvchange --addtag t vg0/x", 5, "  Failed to find logical volume \"vg0/x\"\n"),
        ("frobnicate", 2, "  No such command 'frobnicate'."),
    ] {
        let got = lvm(&machine, line);
        assert_eq!(got.0, status, "{line}: {}", got.2);
        assert!(got.2.starts_with(text), "{line}: {}", got.2);
    }
    assert_eq!(lvm(&machine, &format!("{LVS} vgx")).0, 5);
    assert_eq!(lvm(&machine, &format!("{LVS} vg0/x")).0, 5);
    machine.lvm().fail_next("lvremove", 5, "  I/O error\n");
    assert_eq!(lvm(&machine, "lvremove --yes --force vg0/lv0").2, "  I/O error\n");
    machine.lvm().set_broken(Some("  broken\n"));
    assert_eq!(lvm(&machine, VGS), (5, String::new(), "  broken\n".to_owned()));
    machine.lvm().set_missing(true);
    let command = Command { program: "/sbin/lvm", args: Vec::new(), timeout: Duration::from_secs(1) };
    assert!(matches!(machine.lvm().run(&command), Err(crate::CommandError::Start { .. })));
    machine.lvm().set_missing(false);
    machine.lvm().set_hanging(true);
    assert!(matches!(machine.lvm().run(&command), Err(crate::CommandError::Timeout { .. })));
}

#[test]
fn a_group_that_lvm_cannot_read_hides_no_other() {
    let machine = FakeMachine::new();
    for vg in ["vg0", "vg1"] {
        machine.add_vg(vg, 64 << 20);
    }
    machine.lvm().set_sick("vg1", Some("  unreadable\n"));
    let (status, stdout, stderr) = lvm(&machine, VGS);
    assert_eq!((status, stderr.as_str()), (5, "  unreadable\n"));
    let by_its_own_settings = VGS.replace("--config log/report_command_log=0 ", "");
    assert_eq!(lvm(&machine, &by_its_own_settings).2, "", "the report has the messages");
    assert!(stdout.contains("vg0") && !stdout.contains("vg1"), "{stdout}");
    assert_eq!(lvm(&machine, &format!("{VGS} vg0")).0, 0, "only what is named is read");
    let (status, stdout, stderr) = lvm(&machine, &format!("{VGS} vg0 vg2"));
    assert!(status == 5 && stdout.contains("vg0"), "{stdout}");
    assert!(stderr.starts_with("  Volume group \"vg2\" not found\n"), "{stderr}");
    machine.lvm().set_crashing("vg1", true);
    assert_eq!(lvm(&machine, LVS), (139, String::new(), String::new()));
    assert_eq!(lvm(&machine, &format!("{LVS} vg0")).0, 0);
    machine.lvm().set_group_hanging("vg1", true);
    let args = LVS.split(' ').map(str::to_owned).collect();
    let command = Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) };
    assert!(matches!(machine.lvm().run(&command), Err(crate::CommandError::Timeout { .. })));
    assert_eq!(lvm(&machine, &format!("{LVS} vg0")).0, 0);
}

#[test]
fn discarded_blocks_read_as_anything_and_only_where_discards_are_taken() {
    let machine = FakeMachine::new();
    machine.add_vg("vg0", 1 << 30);
    assert_eq!(lvm(&machine, CREATE).0, 0);
    let (blocks, device) = (machine.blocks(), Path::new(DEVICE));
    assert_eq!(blocks.discard(device, 0, 512).unwrap_err().errno, Errno::EOPNOTSUPP);
    machine.lvm().set_discards("vg0", true);
    blocks.zero(device, 0, 8 << 20).unwrap();
    blocks.discard(device, 1 << 20, 1 << 20).unwrap();
    assert_eq!(blocks.zeroed_ranges(DEVICE), [(0, 1 << 20), (2 << 20, 8 << 20)]);
    assert_eq!(blocks.discarded_ranges(DEVICE), [(1 << 20, 2 << 20)]);
    blocks.zero(device, 1 << 20, 512).unwrap();
    assert_eq!(blocks.discarded_ranges(DEVICE), [((1 << 20) + 512, 2 << 20)]);
    for (offset, length) in [(0, 16 << 20), (1, 512), (0, 100), (512, u64::MAX)] {
        assert_eq!(blocks.discard(device, offset, length).unwrap_err().errno, Errno::EINVAL);
    }
    export(&machine.lio()).unwrap();
    assert_eq!(blocks.discard(device, 0, 512).unwrap_err().errno, Errno::EBUSY);
    let session = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    blocks.fill(DEVICE);
    machine.write(session, 1).unwrap();
    assert_eq!((blocks.zeroed_ranges(DEVICE), blocks.discarded_ranges(DEVICE)), (Vec::new(), Vec::new()));
    // An LV that is made or activated later has the disk below it, too.
    machine.reboot();
    assert_eq!(lvm(&machine, "lvremove --yes --force vg0/lv0").0, 0);
    assert_eq!(lvm(&machine, CREATE).0, 0);
    blocks.discard(device, 0, 512).unwrap();
}

#[test]
fn a_renamed_volume_stays_open_until_its_backstore_goes() {
    let machine = FakeMachine::new();
    machine.add_vg("vg0", 64 << 20);
    assert_eq!(lvm(&machine, CREATE).0, 0);
    let (lio, store) = (machine.lio(), path("core/iblock_1/a"));
    lio.mkdir(&store.parent()).unwrap();
    lio.mkdir(&store).unwrap();
    lio.write(&store.join("control"), b"udev_path=/dev/vg0/lv0").unwrap();
    lio.write(&store.join("enable"), b"1").unwrap();
    assert_eq!(lvm(&machine, "lvrename --yes vg0/lv0 vg0/away").0, 0);
    assert_eq!(lvm(&machine, "lvremove --yes --force vg0/away").0, 5);
    lio.rmdir(&store).unwrap();
    assert_eq!(lvm(&machine, "lvremove --yes --force vg0/away").0, 0);
}

#[test]
fn an_exported_volume_cannot_be_removed_and_a_new_one_holds_old_data() {
    let machine = FakeMachine::new();
    machine.add_vg("vg0", 1 << 30);
    assert_eq!(lvm(&machine, CREATE).0, 0);
    let blocks = machine.blocks();
    assert!(!blocks.is_zeroed(DEVICE));
    blocks.zero(DEVICE.as_ref(), 4 << 20, 4 << 20).unwrap();
    assert!(!blocks.is_zeroed(DEVICE));
    blocks.zero(DEVICE.as_ref(), 0, 4 << 20).unwrap();
    assert_eq!(blocks.zeroed_ranges(DEVICE), [(0, 8 << 20)]);
    assert!(blocks.is_zeroed(DEVICE));
    for (offset, length, expected) in [
        (0, 16 << 20, Errno::EINVAL),
        (1, 512, Errno::EINVAL),
        (0, 100, Errno::EINVAL),
        (512, u64::MAX, Errno::EINVAL),
    ] {
        assert_eq!(blocks.zero(DEVICE.as_ref(), offset, length).unwrap_err().errno, expected);
    }
    export(&machine.lio()).unwrap();
    assert_eq!(lvm(&machine, "lvremove --yes --force vg0/lv0").0, 5);
    assert_eq!(lvm(&machine, "lvchange --activate n vg0/lv0").0, 5);
    let session = machine.login(PORTAL, TARGET, HOST1, CREDENTIALS).unwrap();
    machine.write(session, 1).unwrap();
    assert!(!blocks.is_zeroed(DEVICE));
    machine.reboot();
    assert_eq!(lvm(&machine, "lvremove --yes --force vg0/lv0").0, 0);
    assert_eq!(lvm(&machine, CREATE).0, 0);
    assert!(!blocks.is_zeroed(DEVICE), "old data");
    assert_eq!(blocks.zero("/dev/none".as_ref(), 0, 512).unwrap_err().errno, Errno::ENOENT);
    machine.add_file("/etc/passwd", 512);
    assert_eq!(blocks.size("/etc/passwd".as_ref()).unwrap_err().errno, Errno::ENOTBLK);
    machine.set_read_only(DEVICE, true);
    assert_eq!(blocks.zero(DEVICE.as_ref(), 0, 512).unwrap_err().errno, Errno::EACCES);
    machine.set_read_only(DEVICE, false);
    blocks.fail_zeroing(Some(Errno::EIO));
    assert_eq!(blocks.zero(DEVICE.as_ref(), 0, 512).unwrap_err().errno, Errno::EIO);
}

#[test]
fn wrappers_count_and_fail() {
    let machine = FakeMachine::new();
    let faulty = Faulty::new(Counted::new(machine.lio()));
    let make = |name: &str| faulty.mkdir(&path("core").join(name));
    faulty.fail_nth(2, Errno::EIO);
    make("iblock_0").unwrap();
    assert_eq!(errno(make("iblock_1")), Errno::EIO);
    make("iblock_1").unwrap();
    assert_eq!((faulty.mutations(), faulty.inner().mutations()), (3, 2));
    faulty.halt_after(1);
    make("iblock_2").unwrap();
    assert_eq!(errno(make("iblock_3")), Errno::EIO);
    assert_eq!(errno(make("iblock_3")), Errno::EIO);
    assert_eq!(faulty.list(&path("core")).unwrap().len(), 4);
    faulty.clear();
    faulty.fail_when(Errno::EBUSY, |op, at| op == TreeOp::Rmdir && at.name() == "iblock_1");
    assert_eq!(errno(faulty.rmdir(&path("core/iblock_1"))), Errno::EBUSY);
    faulty.rmdir(&path("core/iblock_2")).unwrap();
    faulty.delay_when(Duration::from_millis(20), |op, _| op == TreeOp::Read);
    let start = std::time::Instant::now();
    assert!(faulty.is_dir(&path("core")).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(faulty.inner().count(TreeOp::List), 1);
    faulty.inner().reset();
    assert_eq!((faulty.inner().total(), faulty.inner().counts().len()), (0, 0));
}
