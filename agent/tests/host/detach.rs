//! Detaching: gracefully, refused while the disk is held, and at once when the target has revoked
//! this host.

use mooring_api::v1;
use mooring_connectors::wire::SessionState;
use mooring_host::Holder;
use tonic::Code;

use crate::rig::*;

#[test]
fn a_detach_leaves_nothing() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW), (2, RO)]));
    agent.make(agent.put(2, 1, &[(3, RW)]));
    let report = agent.make(tombstone(1, 2, false));
    assert_eq!(report.phase(), v1::ConnectionPhase::Gone);
    site.assert_nothing_left(1);
    assert_eq!((site.path_of(1), site.path_of(2)), (None, None));
    site.assert_attached(3, 2);
    // The tombstone is stored and can be read; it does not count as a connection.
    assert!(agent.get(1).unwrap().spec.is_none() && agent.get(1).unwrap().stamp.is_some());
    assert_eq!(agent.list().len(), 1);
    // A newer spec attaches the volume again.
    agent.make(agent.put(1, 3, &[(1, RW)]));
    site.assert_attached(1, 1);
    site.assert_lawful();
}

#[test]
fn held_open_it_is_refused_and_the_holder_is_named() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    site.hold(1);
    let (changes, refused) = (agent.door.changes(), agent.try_put(tombstone(1, 2, false)));
    assert_refused(
        refused,
        Code::FailedPrecondition,
        "operator",
        &["qemu-system-x86 (pid 4711)", "close it"],
    );
    assert_eq!(agent.door.changes(), changes, "nothing was begun");
    site.assert_attached(1, 1);
    assert_eq!(agent.report(1).phase(), v1::ConnectionPhase::Ready);
    site.world.hold_open(volume(1), &[]);
    agent.make(tombstone(1, 2, false));
    site.assert_nothing_left(1);
}

/// udev looks at a new disk for as long as the machine lets it, and then closes it by itself.
#[test]
fn udev_alone_is_waited_for() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    let udev = Holder::Process { pid: 156, name: "(udev-worker)".to_owned() };
    site.world.hold_open(volume(1), &[udev]);
    let world = site.world.clone();
    let lets_go = std::thread::spawn(move || {
        // Longer than the agent waits for any other holder.
        std::thread::sleep(std::time::Duration::from_secs(1));
        world.hold_open(volume(1), &[]);
    });
    agent.make(tombstone(1, 2, false));
    lets_go.join().unwrap();
    site.assert_nothing_left(1);
}

#[test]
fn opened_between_the_check_and_the_removal_it_stays_until_it_is_closed() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    agent.crash();
    // The agent is killed after the tombstone was stored, and before anything was done.
    let agent = site.start_with(Some(mooring_connectors::fake::Kill::Before(1)));
    let mut client = agent.client();
    agent.spawn(async move { client.put_connection(tombstone(1, 2, false)).await });
    eventually("it is killed", || agent.door.is_dead());
    agent.crash();
    site.hold(1);
    let agent = site.start();
    eventually("the holder is named", || agent.report(1).holders == ["qemu-system-x86 (pid 4711)"]);
    assert_eq!(agent.report(1).phase(), v1::ConnectionPhase::Detaching);
    assert!(site.world.disk_of(volume(1)).is_some(), "the disk stays");
    assert_eq!(site.path_of(1), None, "nobody new finds it");
    site.world.hold_open(volume(1), &[]);
    eventually("it is gone", || agent.report(1).phase() == v1::ConnectionPhase::Gone);
    site.assert_nothing_left(1);
}

#[test]
fn revoked_it_goes_at_once_whoever_holds_it() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    site.hold(1);
    let report = agent.make(tombstone(1, 2, true));
    assert_eq!(report.phase(), v1::ConnectionPhase::Gone);
    let log = agent.door.log();
    assert!(log.iter().all(|line| !line.starts_with("flush") && !line.contains("/delete")), "{log:?}");
    assert!(log.last().unwrap().ends_with("Cut"), "{log:?}");
    site.assert_nothing_left(1);
}

#[test]
fn a_lost_session_does_not_hold_up_its_detach() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    for n in [1, 2] {
        agent.make(agent.put(n, 1, &[(n, RW)]));
        site.world.lose(volume(n), true);
    }
    agent.make(tombstone(1, 2, false));
    agent.make(tombstone(2, 2, true));
    site.assert_nothing_left(1);
    site.assert_nothing_left(2);
}

#[test]
fn what_was_never_here_is_gone() {
    let site = Site::new();
    let agent = site.start();
    assert_eq!(agent.make(tombstone(1, 1, false)).phase(), v1::ConnectionPhase::Gone);
    assert_eq!(agent.make(tombstone(2, 1, true)).phase(), v1::ConnectionPhase::Gone);
    // An older spec does not bring the connection back.
    let refused = agent.try_put(put_spec(1, 0, agent.spec(1, &[(1, RW)])));
    assert_refused(refused, Code::Aborted, "retry", &["generation 1.0", "older than 1.1"]);
}

#[test]
fn revoked_by_the_target_it_is_forbidden_and_not_tried_again() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    site.world.end_as(volume(1), SessionState::Forbidden, "10.0.0.1:3260: refused twice (0202)");
    eventually("it is forbidden", || agent.report(1).phase() == v1::ConnectionPhase::Forbidden);
    eventually("the path is gone", || site.path_of(1).is_none());
    let report = agent.report(1);
    assert!(problems(&report).contains("refused twice (0202)") && report.disk.is_none(), "{report:?}");
    let logins = site.world.logins();
    // A repetition is not a newer spec; a newer one tries again.
    agent.make_not_done(agent.put(1, 1, &[(1, RW)]));
    assert_eq!(site.world.logins(), logins);
    agent.make(agent.put(1, 2, &[(1, RW)]));
    site.assert_attached(1, 1);
    agent.make(tombstone(1, 3, true));
    site.assert_nothing_left(1);
}
