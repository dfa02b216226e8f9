//! Tests the kernel's objects: sessions, their disks, `/sys`, and the ones that survive.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::Path;
use std::thread;

use super::super::*;
use super::driver::*;
use crate::{
    DiskOp, Disks, EntryKind, Holder, IscsiEvent, IscsiEvents, IscsiKernel, IscsiParam, StopMode, Tree,
    TreePath, UeventItem, Uevents,
};

const SDA: &str = "/dev/sda";

fn path(text: &str) -> TreePath {
    TreePath::new(text)
}

fn text(host: &FakeHost, at: &str) -> String {
    host.read_text(&path(at)).unwrap()
}

fn scan(host: &FakeHost, sid: u32, what: &str) {
    let link = host.read_link(&path(&format!("class/iscsi_session/session{sid}"))).unwrap();
    let number = link.as_str().split('/').nth(2).unwrap().to_owned();
    host.write(&path("class/scsi_host").join(number).join("scan"), what.as_bytes()).unwrap();
}

/// Makes a host with a session and its disk, `/dev/sda`.
fn attached(target: &FakeTarget) -> (FakeHost, Driver, u32) {
    let host = FakeHost::new();
    let mut driver = Driver::new(&host);
    let sid = driver.attach(target).unwrap();
    scan(&host, sid, "0 0 1");
    (host, driver, sid)
}

#[test]
fn sysfs_shows_a_session_as_the_kernel_does() {
    let (host, target) = (FakeHost::new(), target());
    let mut driver = Driver::new(&host);
    let sid = driver.create();
    let session = format!("class/iscsi_session/session{sid}");
    let connection = format!("class/iscsi_connection/connection{sid}:0");
    let session_is = |name: &str| text(&host, &format!("{session}/{name}"));
    let connection_is = |name: &str| text(&host, &format!("{connection}/{name}"));
    assert_eq!(session_is("state"), "FREE");
    assert_eq!(session_is("target_state"), "ALLOCATED");
    assert_eq!((session_is("targetname"), session_is("ifacename")), ("(null)".into(), "(null)".into()));
    assert_eq!((session_is("creator"), session_is("recovery_tmo")), ("-1".into(), "120".into()));
    assert_eq!(
        (connection_is("state"), connection_is("persistent_address")),
        ("down".into(), "(null)".into())
    );
    let error = host.read(&path(&connection).join("address")).unwrap_err();
    assert_eq!(error.errno, Errno::ENOTCONN);
    driver.bind(sid, &target);
    assert_eq!(connection_is("state"), "bound");
    assert_eq!(connection_is("port"), target.address().port().to_string());
    driver.login(sid).unwrap();
    assert_eq!((session_is("state"), connection_is("state")), ("LOGGED_IN".into(), "up".into()));
    assert_eq!((session_is("targetname"), session_is("ifacename")), (TARGET.into(), "mooring-x".into()));
    scan(&host, sid, "0 0 1\n");
    assert_eq!(session_is("target_state"), "SCANNED");
    let classes = host.list(&path("class/iscsi_session")).unwrap();
    assert_eq!((classes.len(), classes[0].kind), (1, EntryKind::Link));
    let disk = format!("{session}/device/target2:0:0/2:0:0:1");
    assert_eq!(text(&host, &format!("{disk}/state")), "running");
    assert_eq!(host.list(&path(&format!("{disk}/block"))).unwrap()[0].name, "sda");
    assert_eq!(text(&host, "block/sda/size"), (SIZE / 512).to_string());
    assert_eq!(text(&host, "block/sda/device/state"), "running");
    assert_eq!(text(&host, "class/block/sda/ro"), "0");
    assert!(host.list(&path("block/sda/holders")).unwrap().is_empty());
    assert!(text(&host, "class/iscsi_transport/tcp/handle").parse::<u64>().is_ok());
    assert_eq!(host.read(&path("block/sdb/size")).unwrap_err().errno, Errno::ENOENT);
    assert_eq!(host.list(&path("block/sda/size")).unwrap_err().errno, Errno::ENOTDIR);
    assert!(host.is_dir(&path("block/sda")).unwrap() && !host.is_dir(&path("block/sda/size")).unwrap());
    assert_eq!(host.mkdir(&path("block/x")).unwrap_err().errno, Errno::EPERM);
    assert_eq!(host.write(&path("block/sda/size"), b"1").unwrap_err().errno, Errno::EACCES);
}

#[test]
fn every_path_that_is_listed_can_be_walked() {
    fn walk(host: &FakeHost, at: &TreePath, seen: &mut BTreeSet<String>) {
        for entry in host.list(at).unwrap() {
            let below = at.join(&entry.name);
            seen.insert(below.as_str().to_owned());
            match entry.kind {
                EntryKind::Dir => walk(host, &below, seen),
                EntryKind::Link => {
                    let end = host.read_link(&below).unwrap();
                    assert!(
                        host.is_dir(&end).unwrap() || end.as_str().contains("/block/dm-"),
                        "{below} -> {end}"
                    );
                }
                EntryKind::File => match host.read(&below) {
                    Ok(_) => {}
                    Err(error) => assert!(matches!(error.errno, Errno::EACCES | Errno::ENOTCONN), "{error}"),
                },
            }
        }
    }
    let target = target();
    let (host, mut driver, sid) = attached(&target);
    host.stack(SDA, "dm-0").unwrap();
    driver.isid[5] += 1;
    driver.create();
    let mut seen = BTreeSet::new();
    walk(&host, &TreePath::root(), &mut seen);
    assert!(seen.contains(&format!("class/iscsi_connection/connection{sid}:0")));
    assert!(seen.iter().any(|path| path.ends_with("2:0:0:1/block/sda/holders/dm-0")), "{seen:#?}");
}

#[test]
fn requests_have_the_kernels_errors() {
    let (host, target) = (FakeHost::new(), target());
    let errno = |result: Result<(), crate::IscsiError>| result.unwrap_err().errno;
    assert_eq!(host.create_session(100, 32).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(errno(host.create_connection(9)), Errno::EINVAL);
    let mut driver = Driver::new(&host);
    let sid = driver.create();
    assert_eq!(errno(host.create_connection(sid)), Errno::ENOMEM);
    assert_eq!(errno(host.set_param(sid, IscsiParam::TargetName, "x")), Errno::ENOTCONN);
    host.set_param(sid, IscsiParam::SessRecoveryTmo, "30").unwrap();
    assert_eq!(errno(host.start_connection(sid)), Errno::EINVAL);
    assert_eq!(errno(host.send_pdu(sid, &Pdu::new(0x43).header, &[])), Errno::EPERM);
    assert_eq!(errno(host.destroy_session(sid)), Errno::EBUSY);
    driver.bind(sid, &target);
    let socket = TcpStream::connect(target.address()).unwrap();
    assert_eq!(errno(host.bind_connection(sid, &socket)), Errno::EINVAL);
    // No logout before START, no data but with Login and Text, no login text above 8 KiB.
    assert_eq!(errno(host.send_pdu(sid, &Pdu::new(0x46).header, &[])), Errno::EPERM);
    assert_eq!(errno(host.send_pdu(sid, &Pdu::new(0x43).header, &[0; 8193])), Errno::EPERM);
    host.set_param(sid, IscsiParam::ImmDataEn, "1").unwrap();
    host.set_param(sid, IscsiParam::FirstBurst, "2").unwrap();
    host.set_param(sid, IscsiParam::MaxBurst, "1").unwrap();
    assert_eq!(errno(host.start_connection(sid)), Errno::EINVAL);
    host.set_param(sid, IscsiParam::MaxBurst, "2").unwrap();
    // One login request at a time.
    target.behave(|behaviour| behaviour.stall_at = Some(1));
    host.send_pdu(sid, &Pdu::new(0x43).header, b"InitiatorName=x\0").unwrap();
    assert_eq!(errno(host.send_pdu(sid, &Pdu::new(0x43).header, &[])), Errno::EPERM);
    target.behave(|behaviour| behaviour.stall_at = None);
    driver.recover(sid, &target).unwrap();
    driver.destroy(sid);
    assert_eq!(errno(host.destroy_connection(sid)), Errno::EINVAL);
    assert_eq!(errno(host.destroy_session(sid)), Errno::EINVAL);
    assert_eq!(errno(host.stop_connection(sid, StopMode::Recover)), Errno::EINVAL);
    assert!(host.sessions().is_empty());
    assert!(target.wait_for(|target| target.sessions().is_empty()));
}

#[test]
fn a_lost_session_blocks_its_disk_and_comes_back() {
    let target = target();
    let (host, mut driver, sid) = attached(&target);
    host.write_disk(SDA, 512, b"before").unwrap();
    target.cut_all();
    driver.until(|event| matches!(event, IscsiEvent::ConnectionError { error: 1020, .. }));
    assert_eq!(host.session_state(sid).as_deref(), Some("FAILED"));
    assert_eq!(text(&host, "block/sda/device/state"), "blocked");
    assert_eq!(host.write(&path("block/sda/device/state"), b"offline\n").unwrap_err().errno, Errno::EINVAL);
    // The kernel's clean-up mark: nothing goes until STOP_CONN with RECOVER.
    let socket = TcpStream::connect(target.address()).unwrap();
    assert_eq!(host.bind_connection(sid, &socket).unwrap_err().errno, Errno::ENOTCONN);
    assert_eq!(host.start_connection(sid).unwrap_err().errno, Errno::ENOTCONN);
    let waiting = {
        let host = host.clone();
        thread::spawn(move || host.write_disk(SDA, 0, b"during"))
    };
    driver.recover(sid, &target).unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(()));
    assert_eq!(host.read_disk(SDA, 512, 6).unwrap(), b"before");
    assert_eq!(target.disk(1).unwrap().peek(0, 6), b"during");
    assert_eq!(text(&host, "block/sda/device/state"), "running");
    assert_eq!(host.sequence(Path::new(SDA)).unwrap(), 1, "the same disk");
}

#[test]
fn recovery_that_comes_too_late_still_brings_the_disk_back() {
    let target = target();
    let (host, mut driver, sid) = attached(&target);
    host.expire_recovery(sid);
    assert_eq!(host.session_state(sid).as_deref(), Some("LOGGED_IN"), "no timer runs");
    host.break_connection(sid, 1022);
    driver.until(|event| matches!(event, IscsiEvent::ConnectionError { error: 1022, .. }));
    let busy = path(&format!("class/iscsi_session/session{sid}/recovery_tmo"));
    assert_eq!(host.write(&busy, b"5").unwrap_err().errno, Errno::EBUSY);
    let waiting = {
        let host = host.clone();
        thread::spawn(move || host.flush(Path::new(SDA)).unwrap_err().errno)
    };
    host.expire_recovery(sid);
    let errno = waiting.join().unwrap();
    assert!(matches!(errno, Errno::EIO | Errno::ENXIO), "{errno}");
    assert_eq!(text(&host, "block/sda/device/state"), "transport-offline");
    assert_eq!(host.inquiry(Path::new(SDA), 0x83).unwrap_err().op, DiskOp::Open);
    assert_eq!(host.size(Path::new(SDA)).unwrap_err().errno, Errno::ENXIO);
    driver.recover(sid, &target).unwrap();
    assert_eq!(host.size(Path::new(SDA)).unwrap(), SIZE);
    // A disk that was set offline stays so.
    host.write(&path("block/sda/device/state"), b"offline\n").unwrap();
    host.break_connection(sid, 1020);
    driver.recover(sid, &target).unwrap();
    assert_eq!(text(&host, "block/sda/device/state"), "offline");
    assert_eq!(host.write(&path("block/sda/device/state"), b"running").unwrap_err().errno, Errno::EINVAL);
    host.write(&path("block/sda/device/state"), b"running\n").unwrap();
    assert_eq!(host.size(Path::new(SDA)).unwrap(), SIZE);
}

#[test]
fn a_scan_finds_what_is_there_and_repairs_nothing() {
    let target = target();
    let (host, mut driver, sid) = attached(&target);
    scan(&host, sid, "0 0 5");
    assert_eq!(host.disks(), ["sda"], "LUN 5 is absent");
    for bad in ["0 0", "0 0 1 2", "0 0 x", ""] {
        let scan = path("class/scsi_host/host2/scan");
        assert_eq!(host.write(&scan, bad.as_bytes()).unwrap_err().errno, Errno::EINVAL, "{bad:?}");
    }
    let cached = || host.read(&path("block/sda/device/vpd_pg83")).unwrap();
    let old = cached();
    assert_eq!(host.inquiry(Path::new(SDA), 0x83).unwrap(), old);
    assert_eq!(&host.inquiry(Path::new(SDA), 0x80).unwrap()[4..40], SERIAL.as_bytes());
    target.set_disk(1, FakeDisk::new("99990000-0000-0000-0000-000000000000", 2 * SIZE));
    scan(&host, sid, "0 0 1");
    assert_eq!((cached(), host.size(Path::new(SDA)).unwrap()), (old.clone(), SIZE));
    let fresh = host.inquiry(Path::new(SDA), 0x83).unwrap();
    assert_eq!((fresh[8], fresh[11] & 0xf, fresh[12]), (0x60, 0x9, 0x99));
    host.write(&path("block/sda/device/rescan"), b"1").unwrap();
    assert_eq!((cached(), host.size(Path::new(SDA)).unwrap()), (fresh, 2 * SIZE));
    let error = host.inquiry(Path::new(SDA), 0xb0).unwrap_err();
    assert_eq!((error.errno, error.detail.as_str()), (Errno::EIO, ": CHECK CONDITION, sense 5/24/00"));
    target.remove_lun(1);
    assert_eq!(host.inquiry(Path::new(SDA), 0x83).unwrap_err().detail, ": CHECK CONDITION, sense 5/25/00");
    target.set_disk(3, FakeDisk::new(SERIAL, SIZE));
    scan(&host, sid, "- - -");
    assert_eq!(host.disks(), ["sda", "sdb"]);
    // A session that is not logged in is passed over silently.
    target.set_disk(4, FakeDisk::new(SERIAL, SIZE));
    target.cut_all();
    driver.until(|event| matches!(event, IscsiEvent::ConnectionError { .. }));
    scan(&host, sid, "0 0 4");
    assert_eq!(host.disks(), ["sda", "sdb"]);
    assert_eq!(host.scans().last().unwrap(), "0 0 4");
}

#[test]
fn disks_come_and_go_with_events_and_sequence_numbers() {
    let (host, target) = (FakeHost::new(), target());
    let mut uevents = host.uevents();
    let mut next = |action: &str, subsystem: &str| loop {
        let Some(UeventItem::Event(event)) = uevents.next(LONG).unwrap() else { panic!("no {action}") };
        if event.action == action && event.keys["SUBSYSTEM"] == subsystem {
            return event;
        }
    };
    let mut driver = Driver::new(&host);
    let sid = driver.attach(&target).unwrap();
    host.hold_probes(true);
    scan(&host, sid, "0 0 1");
    next("add", "scsi");
    assert_eq!(host.disks(), Vec::<String>::new());
    assert!(host.is_dir(&path("devices/platform/host2/session1/target2:0:0/2:0:0:1")).unwrap());
    host.hold_probes(false);
    let event = next("add", "block");
    assert_eq!(event.devpath, "/devices/platform/host2/session1/target2:0:0/2:0:0:1/block/sda");
    assert_eq!((event.keys["DEVNAME"].as_str(), event.keys["DISKSEQ"].as_str()), ("sda", "1"));
    let flushes = || target.disk(1).unwrap().flushes();
    host.write(&path("block/sda/device/delete"), b"1").unwrap();
    assert_eq!((next("remove", "block").keys["DEVNAME"].as_str(), flushes()), ("sda", 1));
    assert!(!host.is_dir(&path("block/sda")).unwrap());
    scan(&host, sid, "0 0 1");
    assert_eq!(next("add", "block").keys["DISKSEQ"], "2", "the same name, another disk");
    // A disk that is held open keeps its name.
    host.hold_open(SDA, 42, "qemu").unwrap();
    host.write(&path("block/sda/device/delete"), b"1").unwrap();
    scan(&host, sid, "0 0 1");
    assert_eq!(host.disks(), ["sdb"]);
    host.close(SDA).unwrap();
    host.write(&path("block/sdb/device/delete"), b"1").unwrap();
    scan(&host, sid, "0 0 1");
    assert_eq!(host.disks(), ["sda"]);
    host.unbind_session(sid).unwrap();
    driver.until(|event| matches!(event, IscsiEvent::Unbound(_)));
    assert_eq!(host.disks(), Vec::<String>::new());
    assert_eq!(text(&host, &format!("class/iscsi_session/session{sid}/target_state")), "UNBOUND");
}

#[test]
fn a_device_is_found_through_a_link_and_its_holders_are_named() {
    let target = target();
    let (host, ..) = attached(&target);
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("attachment");
    std::os::unix::fs::symlink(SDA, &link).unwrap();
    let second = folder.path().join("volume");
    std::os::unix::fs::symlink("attachment", &second).unwrap();
    assert_eq!(host.size(&second).unwrap(), SIZE);
    assert_eq!(host.size(Path::new("/dev/sdq")).unwrap_err().errno, Errno::ENOENT);
    assert_eq!(host.size(&folder.path().join("none")).unwrap_err().errno, Errno::ENOENT);
    assert_eq!(host.holders(&link).unwrap(), []);
    host.hold_open(&link, 7, "qemu").unwrap();
    host.mount(SDA, "/mnt").unwrap();
    host.stack(SDA, "dm-3").unwrap();
    let process = Holder::Process { pid: 7, name: "qemu".to_owned() };
    let wanted = [process, Holder::Mount("/mnt".into()), Holder::Device("dm-3".to_owned())];
    assert_eq!(host.holders(&link).unwrap(), wanted);
    host.close(&link).unwrap();
    assert_eq!(host.holders(&link).unwrap(), []);
    host.fail_disks(DiskOp::Flush, Some(Errno::EIO));
    assert_eq!(host.flush(&link).unwrap_err().errno, Errno::EIO);
    host.fail_disks(DiskOp::Flush, None);
    host.flush(&link).unwrap();
}

#[test]
fn writes_are_refused_by_the_target_and_by_the_host() {
    let target = target();
    target.allow(INITIATOR, Acl { read_only: true, ..Acl::default() });
    let (host, ..) = attached(&target);
    assert!(host.read_only(Path::new(SDA)).unwrap());
    assert_eq!(host.write_disk(SDA, 0, b"x"), Err(Errno::EROFS));
    host.set_read_only(Path::new(SDA), false).unwrap();
    assert!(host.read_only(Path::new(SDA)).unwrap(), "the target's protection stays");
    // The target allows writes; the host learns that only by a rescan.
    target.allow(INITIATOR, Acl::default());
    assert_eq!(host.write_disk(SDA, 0, b"x"), Err(Errno::EROFS));
    host.write(&path("block/sda/device/rescan"), b"1").unwrap();
    host.write_disk(SDA, 0, b"x").unwrap();
    // The target is write-protected before the host knows.
    target.disk(1).unwrap().set_write_protect(true);
    assert_eq!(host.write_disk(SDA, 0, b"y"), Err(Errno::EREMOTEIO));
    target.disk(1).unwrap().set_write_protect(false);
    host.set_read_only(Path::new(SDA), true).unwrap();
    assert_eq!(
        (host.write_disk(SDA, 0, b"y"), text(&host, "block/sda/ro")),
        (Err(Errno::EACCES), "1".into())
    );
    assert_eq!(host.read_disk(SDA, 0, 1).unwrap(), b"x");
    assert_eq!(target.disk(1).unwrap().writes(), 1);
    assert_eq!(host.read_disk(SDA, SIZE, 1), Err(Errno::EIO));
}

#[test]
fn a_cut_session_writes_nothing_more_and_a_forced_end_never_waits() {
    let target = target();
    let (host, mut driver, sid) = attached(&target);
    target.hold_io(true);
    let waiting = {
        let host = host.clone();
        thread::spawn(move || host.write_disk(SDA, 0, b"late"))
    };
    assert_eq!(target.revoke(INITIATOR), 1);
    driver.until(|event| matches!(event, IscsiEvent::ConnectionError { .. }));
    assert_eq!(driver.recover(sid, &target), Err(Lost::Status(2, 2)));
    driver.destroy(sid);
    assert!(waiting.join().unwrap().is_err());
    target.hold_io(false);
    assert_eq!(target.disk(1).unwrap().writes(), 0);
    assert_eq!((host.sessions(), host.disks()), (vec![], vec![]));
}

#[test]
fn a_flush_hangs_as_long_as_the_target_does() {
    let target = target();
    let (host, ..) = attached(&target);
    target.hold_io(true);
    let before = target.commands();
    let waiting = {
        let host = host.clone();
        thread::spawn(move || host.flush(Path::new(SDA)))
    };
    assert_eq!(target.commands(), before);
    target.hold_io(false);
    waiting.join().unwrap().unwrap();
    assert_eq!((target.disk(1).unwrap().flushes(), target.commands()), (1, before + 1));
}

#[test]
fn a_logout_ends_in_order() {
    let target = target();
    let (_host, mut driver, sid) = attached(&target);
    let mut logout = Pdu::new(0x46);
    logout.header[1] = 0x80;
    driver.host.send_pdu(sid, &logout.header, &[]).unwrap();
    let event = driver.until(|event| matches!(event, IscsiEvent::Pdu { .. }));
    let IscsiEvent::Pdu { header, .. } = event else { unreachable!() };
    assert_eq!((header[0], header[2]), (0x26, 0));
    assert_eq!((target.sessions(), target.logouts()), (vec![], 1));
    // The target closes the connection after it; that is no error.
    driver.destroy(sid);
    assert!(driver.events.next(std::time::Duration::ZERO).unwrap().is_none());
}

#[test]
fn the_kernel_gives_a_socket_up_but_the_daemon_may_still_hold_it() {
    let target = target();
    let (host, mut driver, sid) = attached(&target);
    host.stop_connection(sid, StopMode::Recover).unwrap();
    let held = driver.socket.take().unwrap();
    assert_eq!(target.sessions().len(), 1);
    drop(held);
    assert!(target.wait_for(|target| target.sessions().is_empty()));
}

#[test]
fn pings_are_answered_by_the_kernel_alone() {
    let target = target();
    let (host, mut driver, sid) = attached(&target);
    assert_eq!(target.ping(INITIATOR), 1);
    assert!(target.wait_for(|target| target.pings_answered() == 1));
    target.send_async(INITIATOR, 1, [0, 0, 3]);
    let event = driver.until(|event| matches!(event, IscsiEvent::Pdu { .. }));
    let IscsiEvent::Pdu { header, .. } = event else { unreachable!() };
    assert_eq!((header[0], header[36], header[43]), (0x32, 1, 3));
    // With nobody there to hear it, the same message breaks the connection.
    drop(driver);
    target.send_async(INITIATOR, 0, [0; 3]);
    assert!(host.wait_for(|host| host.session_state(sid).as_deref() == Some("FAILED")));
}
