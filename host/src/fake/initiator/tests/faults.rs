//! Tests the faults that tests can ask for: failures, crashes, overruns, reboots.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::super::*;
use super::driver::*;
use crate::{
    IscsiEvent, IscsiEvents, IscsiKernel, IscsiOp, IscsiParam, StopMode, Tree, TreePath, UeventItem, Uevents,
};

#[test]
fn the_nth_request_fails_once() {
    let host = FakeHost::new();
    host.fail(IscsiOp::CreateSession, 2, Errno::ENOMEM);
    host.create_session(128, 32).unwrap();
    host.create_connection(1).unwrap();
    let error = host.create_session(128, 32).unwrap_err();
    assert_eq!((error.op, error.errno), (IscsiOp::CreateSession, Errno::ENOMEM));
    host.create_session(128, 32).unwrap();
    assert_eq!((host.sessions(), host.ops()), (vec![1, 2], 4));
}

#[test]
fn a_paused_request_waits_and_the_hook_sees_each() {
    let host = FakeHost::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    host.set_before(Some(Box::new(move |op| log.lock().unwrap().push(*op))));
    host.pause(IscsiOp::CreateConnection);
    let thread = {
        let host = host.clone();
        thread::spawn(move || {
            let sid = host.create_session(128, 32).unwrap().sid;
            host.create_connection(sid).unwrap();
        })
    };
    assert!(host.wait_for(|host| host.is_paused(IscsiOp::CreateConnection)));
    assert!(!host.is_dir(&TreePath::new("class/iscsi_connection/connection1:0")).unwrap());
    host.resume(IscsiOp::CreateConnection);
    thread.join().unwrap();
    assert!(host.is_dir(&TreePath::new("class/iscsi_connection/connection1:0")).unwrap());
    assert_eq!(*seen.lock().unwrap(), [IscsiOp::CreateSession, IscsiOp::CreateConnection]);
}

/// Makes a login as a daemon does, which dies where the kernel says.
fn attach(host: &FakeHost, target: &FakeTarget) -> Result<u32, Errno> {
    let mut driver = Driver::new(host);
    let sid = host.create_session(128, 32).map_err(|error| error.errno)?.sid;
    host.create_connection(sid).map_err(|error| error.errno)?;
    let socket = std::net::TcpStream::connect(target.address()).unwrap();
    host.bind_connection(sid, &socket).map_err(|error| error.errno)?;
    host.set_param(sid, IscsiParam::IfaceName, "mooring-x").map_err(|error| error.errno)?;
    driver.login(sid).map(|_| sid).map_err(|_| Errno::ECANCELED)
}

#[test]
fn a_crash_leaves_what_the_kernel_had_and_a_new_daemon_can_clean_up() {
    for after in [false, true] {
        let mut crashes = 0;
        for nth in 1.. {
            let (host, target) = (FakeHost::new(), target());
            if after {
                host.crash_after(nth);
            } else {
                host.crash_at(nth);
            }
            let result = attach(&host, &target);
            if !host.crashed() {
                result.unwrap();
                break;
            }
            crashes += 1;
            assert_eq!(result, Err(Errno::ECANCELED));
            assert_eq!(host.create_session(128, 32).unwrap_err().errno, Errno::ECANCELED);
            let made = nth > 1 || after;
            assert_eq!(host.sessions(), if made { vec![1] } else { vec![] }, "nth {nth}");
            host.uncrash();
            let mut driver = Driver::new(&host);
            for sid in host.sessions() {
                let _ = host.stop_connection(sid, StopMode::Terminate);
                let _ = host.destroy_connection(sid);
                host.destroy_session(sid).unwrap();
                driver.until(|event| matches!(event, IscsiEvent::Destroyed(_)));
            }
            assert!(host.sessions().is_empty());
            assert!(target.wait_for(|target| target.sessions().is_empty()));
        }
        // Create session, create connection, bind, parameter, login, start.
        assert_eq!(crashes, 6);
    }
}

#[test]
fn a_dead_daemons_session_lives_on() {
    let (host, target) = (FakeHost::new(), target());
    let mut driver = Driver::new(&host);
    let sid = driver.attach(&target).unwrap();
    host.crash();
    drop(driver);
    host.uncrash();
    assert_eq!(host.session_state(sid).as_deref(), Some("LOGGED_IN"));
    assert_eq!(target.sessions().len(), 1);
    // Lost while nobody listens: the state shows it.
    target.cut_all();
    assert!(host.wait_for(|host| host.session_state(sid).as_deref() == Some("FAILED")));
    let mut driver = Driver::new(&host);
    driver.recover(sid, &target).unwrap();
    assert_eq!(host.session_state(sid).as_deref(), Some("LOGGED_IN"));
}

#[test]
fn a_crashed_daemon_is_deaf_and_cannot_write_to_sysfs() {
    let (host, target) = (FakeHost::new(), target());
    let mut driver = Driver::new(&host);
    driver.attach(&target).unwrap();
    while driver.events.next(Duration::ZERO).unwrap().is_some() {}
    host.crash();
    let scan = TreePath::new("class/scsi_host/host2/scan");
    assert_eq!(host.write(&scan, b"0 0 1").unwrap_err().errno, Errno::ECANCELED);
    target.cut_all();
    assert!(host.wait_for(|host| host.session_state(1).as_deref() == Some("FAILED")));
    assert_eq!(driver.events.next(Duration::ZERO).unwrap(), None);
}

#[test]
fn a_dead_process_stays_dead_and_harms_no_other() {
    let (machine, target) = (FakeHost::new(), target());
    let (daemon, agent) = (machine.process(), machine.process());
    let (mut uevents, mut log) = (agent.uevents(), machine.events());
    let sid = Driver::new(&daemon).attach(&target).unwrap();
    while log.next(Duration::ZERO).unwrap().is_some() {}
    machine.crash_at(1);
    assert_eq!(daemon.set_param(sid, IscsiParam::PingTmo, "5").unwrap_err().errno, Errno::ECANCELED);
    assert!(machine.crashed());
    let timeout = TreePath::new(&format!("class/iscsi_session/session{sid}/recovery_tmo"));
    assert_eq!(daemon.write(&timeout, b"5").unwrap_err().errno, Errno::ECANCELED);
    agent.write(&TreePath::new("class/scsi_host/host2/scan"), b"0 0 1").unwrap();
    assert!(matches!(uevents.next(LONG).unwrap(), Some(UeventItem::Event(_))));
    machine.uncrash();
    assert_eq!(daemon.set_param(sid, IscsiParam::PingTmo, "5").unwrap_err().errno, Errno::ECANCELED);
    let next = machine.process();
    next.set_param(sid, IscsiParam::PingTmo, "5").unwrap();
    next.write(&timeout, b"5").unwrap();
    next.break_connection(sid, 1022);
    assert!(matches!(log.next(LONG).unwrap(), Some(IscsiEvent::ConnectionError { .. })));
}

#[test]
fn every_listener_hears_and_lost_events_are_told() {
    let (host, target) = (FakeHost::new(), target());
    let (mut first, mut second, mut uevents) = (host.events(), host.events(), host.uevents());
    let created = host.create_session(128, 32).unwrap();
    assert_eq!(first.next(LONG).unwrap(), Some(IscsiEvent::Created(created)));
    assert_eq!(second.next(LONG).unwrap(), Some(IscsiEvent::Created(created)));
    host.lose_events(true);
    let driver = Driver::new(&host);
    driver.create();
    assert_eq!(first.next(Duration::ZERO).unwrap(), None);
    host.lose_events(false);
    assert_eq!(first.next(LONG).unwrap(), Some(IscsiEvent::Overrun));
    host.create_session(128, 32).unwrap();
    host.overrun();
    assert_eq!(first.next(LONG).unwrap(), Some(IscsiEvent::Overrun));
    assert_eq!(first.next(Duration::ZERO).unwrap(), None);
    assert_eq!(uevents.next(LONG).unwrap(), Some(UeventItem::Overrun));
    drop((target, second));
}

#[test]
fn a_reboot_leaves_nothing() {
    let (host, target) = (FakeHost::new(), target());
    let mut driver = Driver::new(&host);
    let sid = driver.attach(&target).unwrap();
    host.write(&TreePath::new("class/scsi_host/host2/scan"), b"0 0 1").unwrap();
    let waiting = {
        let host = host.clone();
        target.hold_io(true);
        thread::spawn(move || host.read_disk("/dev/sda", 0, 1))
    };
    // The daemon still holds its descriptor; the power does not care.
    host.reboot();
    assert!(waiting.join().unwrap().is_err());
    target.hold_io(false);
    assert!(target.wait_for(|target| target.sessions().is_empty()));
    assert_eq!((host.sessions(), host.disks(), host.session_state(sid)), (vec![], vec![], None));
    assert_eq!(Driver::new(&host).attach(&target).unwrap(), 1, "numbers begin again");
}

#[test]
fn a_fake_that_is_dropped_closes_its_connections() {
    use std::io::Read;
    let (host, target) = (FakeHost::new(), target());
    let driver = {
        let mut driver = Driver::new(&host);
        driver.attach(&target).unwrap();
        driver
    };
    drop((host, driver));
    assert!(target.wait_for(|target| target.sessions().is_empty()), "the last handle of the host is gone");
    let mut stream = std::net::TcpStream::connect(target.address()).unwrap();
    let address = target.address();
    drop(target);
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    assert!(std::net::TcpStream::connect(address).is_err());
}
