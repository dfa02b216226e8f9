//! Faults of a host and their reports: each is bounded and named, and delays nobody else.

use mooring_api::v1;
use mooring_connectors::fake::Unit;
use mooring_model::VolumeId;

use crate::rig::*;

#[test]
fn the_wrong_disk_is_never_handed_over() {
    let site = Site::exporting(&[1]);
    let other = Unit::of(VolumeId::from_u128(99 << 120), SIZE);
    site.world.target(volume(1), |target| target.unit = Some(other.clone()));
    let agent = site.start();
    let report = agent.make_not_done(agent.put(1, 1, &[(1, RW)]));
    assert_eq!(report.phase(), v1::ConnectionPhase::Failed);
    assert!(problems(&report).contains("wrong disk") && problems(&report).contains(other.naa.as_str()));
    assert!(report.disk.is_none() && report.paths.is_empty() && site.path_of(1).is_none());
    // Once the disk is the right one, the connection recovers by itself.
    site.world.target(volume(1), |target| target.unit = Some(Unit::of(volume(1), SIZE)));
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    site.assert_attached(1, 1);
    site.assert_lawful();
}

#[test]
fn a_disk_that_does_not_appear_is_said_and_taken_when_it_comes() {
    let site = Site::exporting(&[1, 2]);
    site.world.hold_blocks(true);
    let agent = site.start();
    let report = agent.make_not_done(brief(agent.put(1, 1, &[(1, RW)])));
    assert_eq!(report.phase(), v1::ConnectionPhase::Connecting);
    eventually("it says what was seen", || {
        let text = problems(&agent.report(1));
        text.contains("has not appeared for") && text.contains("(running), its block device is not")
    });
    site.world.hold_blocks(false);
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    site.assert_attached(1, 1);
    site.world.target(volume(2), |target| target.unit = None);
    let report = agent.make_not_done(brief(agent.put(2, 1, &[(2, RW)])));
    assert!(problems(&report).contains("shows no LUN 1"), "{report:?}");
    site.assert_lawful();
}

#[test]
fn an_unreachable_target_is_named_and_delays_nobody() {
    let site = Site::exporting(&[1, 2]);
    site.world.target(volume(1), |target| target.reachable = false);
    let agent = site.start();
    let (mut client, put) = (agent.client(), brief(agent.put(1, 1, &[(1, RW)])));
    let pending = agent.spawn(async move { client.put_connection(put).await });
    agent.make(agent.put(2, 1, &[(2, RW)]));
    let report = agent.wait(pending).unwrap().unwrap().into_inner().report.unwrap();
    assert_eq!(report.phase(), v1::ConnectionPhase::Connecting);
    assert!(problems(&report).contains("10.0.0.1:3260: no answer for 3 s"), "{report:?}");
    // The target listens again: sessiond reports this unasked.
    site.world.target(volume(1), |target| target.reachable = true);
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    site.assert_attached(1, 1);
}

#[test]
fn a_wrong_secret_is_final_until_a_newer_spec() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let mut spec = agent.spec(1, &[(1, RW)]);
    spec.chap.as_mut().unwrap().initiator.as_mut().unwrap().secret = format!("{SECRET_WORD}-wrong");
    let report = agent.make_not_done(put_spec(1, 1, spec));
    assert_eq!(report.phase(), v1::ConnectionPhase::Failed);
    assert!(problems(&report).contains("wrong credentials (0201)") && problems(&report).contains(PORTAL));
    assert_eq!(site.world.logins(), 1, "tried once: accounts are locked by less");
    agent.make(agent.put(1, 2, &[(1, RW)]));
    site.assert_attached(1, 1);
}

#[test]
fn a_lost_session_is_recovering_and_keeps_its_paths() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let before = agent.make(agent.put(1, 1, &[(1, RW)]));
    site.world.lose(volume(1), true);
    eventually("it is recovering", || agent.report(1).phase() == v1::ConnectionPhase::Recovering);
    let report = agent.report(1);
    assert!(!report.session.as_ref().unwrap().logged_in && problems(&report).contains("connection broke"));
    assert_eq!(report.disk, before.disk);
    site.assert_attached(1, 1);
    site.world.lose(volume(1), false);
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    assert_eq!(agent.report(1).session.unwrap().relogins, 1);
    assert_eq!(agent.door.changes(), 5, "nothing was done but the attach: {:?}", agent.door.log());
    site.assert_lawful();
}

#[test]
fn sessiond_down_tears_nothing_down() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    let before = agent.make(agent.put(1, 1, &[(1, RW)]));
    site.world.set_sessiond(false);
    let report = agent.make_not_done(brief(agent.put(2, 1, &[(2, RW)])));
    assert!(problems(&report).contains("mooring-sessiond does not answer"), "{report:?}");
    eventually("it is said of all", || {
        problems(&agent.report(1)).contains("mooring-sessiond does not answer")
    });
    let report = agent.report(1);
    assert_eq!(
        (report.phase(), &report.disk, &report.paths),
        (v1::ConnectionPhase::Ready, &before.disk, &before.paths)
    );
    site.assert_attached(1, 1);
    // Work that needs sessiond is refused or waits; nothing is half done.
    let refused = agent.try_put(tombstone(1, 2, false));
    assert_refused(refused, tonic::Code::FailedPrecondition, "retry", &["mooring-sessiond does not answer"]);
    site.world.set_sessiond(true);
    eventually("all is well", || {
        [1, 2].iter().all(|n| {
            let report = agent.report(*n);
            report.phase() == v1::ConnectionPhase::Ready && report.problems.is_empty()
        })
    });
    site.assert_attached(2, 2);
    site.assert_lawful();
}

#[test]
fn a_disk_that_somebody_deletes_comes_back() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let first = agent.make(agent.put(1, 1, &[(1, RW)])).disk.unwrap();
    site.world.lose_disk(volume(1));
    eventually("another disk", || agent.report(1).disk.is_some_and(|disk| disk.sequence != first.sequence));
    eventually("its path", || site.path_of(1).is_some() && site.path_of(1) == site.world.disk_of(volume(1)));
    site.assert_lawful();
}

#[test]
fn a_disk_that_hangs_is_said_and_hangs_nobody_else() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    agent.make(agent.put(2, 1, &[(2, RW)]));
    site.world.hang(true);
    let report = agent.try_put(brief(agent.put(1, 1, &[(1, RW)]))).unwrap();
    assert!(!report.done);
    eventually("it is stuck", || agent.report(1).stuck.is_some_and(|stuck| stuck.step.contains("look")));
    // Work that does not look at the disk goes on. The deletion below does not wait for the disk
    // that hangs.
    agent.make(tombstone(2, 2, true));
    site.assert_nothing_left(2);
    site.world.hang(false);
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    assert!(agent.report(1).stuck.is_none());
}

#[test]
fn a_revoke_does_not_wait_for_a_disk_that_hangs() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    site.world.hang(true);
    agent.make_not_done(brief(agent.put(1, 1, &[(1, RW)])));
    assert!(site.world.disk_of(volume(1)).is_some(), "the control: it hangs on the disk");
    let report = agent.make(tombstone(1, 2, true));
    assert_eq!(report.phase(), v1::ConnectionPhase::Gone);
    site.assert_nothing_left(1);
}

#[test]
fn something_foreign_in_the_place_of_a_path_is_left_and_named() {
    let site = Site::exporting(&[1]);
    std::fs::create_dir_all(site.attachment_path(1).parent().unwrap()).unwrap();
    std::fs::write(site.attachment_path(1), "mine").unwrap();
    let agent = site.start();
    let report = agent.make_not_done(agent.put(1, 1, &[(1, RW), (2, RW)]));
    assert!(problems(&report).contains("is in the place of the path for users"), "{report:?}");
    site.assert_attached(2, 1);
    agent.make(tombstone(1, 2, false));
    assert_eq!(std::fs::read_to_string(site.attachment_path(1)).unwrap(), "mine");
    site.assert_nothing_left(1);
}

#[test]
fn a_session_without_a_spec_is_reported_and_left() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    agent.crash();
    // The store is lost.
    std::fs::remove_dir_all(&site.config.state_dir).unwrap();
    let agent = site.start();
    eventually("it is reported", || agent.list().len() == 1);
    let status = agent.get(1).unwrap();
    assert!(status.stamp.is_none() && status.spec.is_none());
    assert!(problems(&status.report.unwrap()).contains("no spec names it"));
    assert_eq!(agent.door.changes(), 0);
    site.assert_attached(1, 1);
    let unknown = agent.get(2);
    assert_refused(unknown, tonic::Code::NotFound, "fix_spec", &["no connection to volume"]);
}
