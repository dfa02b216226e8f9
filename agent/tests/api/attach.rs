//! The main job: create, grant to two hosts, change modes, revoke one, delete.

use mooring_host::fake::{Answer, IoRefusal, LoginRefusal};

use crate::rig::*;
use crate::switch::Blocks;

#[test]
fn one_volume_for_two_hosts_each_with_its_own_mode() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    assert_eq!(node.fake.reachable(), []);
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
    assert_eq!(node.reach(&v), ["host1 rw", "host2 ro"]);

    let wrong = node.fake.login(PORTAL, &target(&v), &iqn("host1"), Some(("host1", "a-guess-of-mine")));
    assert_eq!(wrong, Err(LoginRefusal::Authentication));
    assert_eq!(node.login(&v, "host3"), Err(LoginRefusal::NotAuthorized));
    let (one, two) = (node.login(&v, "host1").unwrap(), node.login(&v, "host2").unwrap());
    assert_eq!(node.fake.write(one, 1), Ok(Answer::Device(device(&v))));
    assert_eq!(node.fake.write(two, 1), Err(IoRefusal::WriteProtected));
    assert_eq!(node.fake.read(two, 1), Ok(Answer::Device(device(&v))));
    let (seen, shown) = (node.fake.inquire(one, 1).unwrap(), node.fake.inquire(two, 1).unwrap());
    assert_eq!((&seen.serial, &seen.naa), (&v, &shown.naa));
    assert!(shown.write_protected && !seen.write_protected);

    let report = agent.get(&v).unwrap().export.unwrap();
    assert!(report.in_force && report.problems.is_empty() && report.stuck.is_none());
    assert_eq!(report.naa.trim_start_matches("naa."), seen.naa);
    let of = |host: &str| report.grants.iter().find(|grant| grant.initiator == iqn(host)).unwrap();
    assert_eq!((of("host1").seen(), of("host2").seen()), (RW, RO));
    assert_eq!((of("host1").sessions.len(), of("host2").sessions.len()), (1, 1));
}

#[test]
fn a_change_of_mode_works_on_the_live_session_both_ways() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    let (one, two) = (node.login(&v, "host1").unwrap(), node.login(&v, "host2").unwrap());
    let receipts = agent.make(put_export(&v, 2, &[("host1", RO), ("host2", RW)]));
    assert_eq!(receipts, [], "a change of mode revokes nothing");
    assert!(node.fake.is_live(one) && node.fake.is_live(two));
    assert_eq!(node.fake.write(one, 1), Err(IoRefusal::WriteProtected));
    assert!(node.fake.write(two, 1).is_ok());
    agent.make(put_export(&v, 3, &[("host1", RW), ("host2", RW)]));
    assert!(node.fake.write(one, 1).is_ok() && node.fake.write(two, 1).is_ok());
}

#[test]
fn a_revoke_cuts_its_own_nexus_and_no_other() {
    let (node, v, w) = (Node::new(), volume(1), volume(2));
    let agent = node.start();
    for id in [&v, &w] {
        agent.make(put_volume(id, 1));
        agent.make(put_export(id, 1, &[("host1", RW), ("host2", RW)]));
    }
    let (one, two, other) = (
        node.login(&v, "host1").unwrap(),
        node.login(&v, "host2").unwrap(),
        node.login(&w, "host1").unwrap(),
    );
    let receipts = agent.make(put_export(&v, 2, &[("host2", RW)]));
    let [receipt] = receipts.as_slice() else { panic!("{receipts:?}") };
    assert!(receipt.proven && receipt.nexus_removed && receipt.ended_us >= receipt.began_us);
    assert_eq!((receipt.initiator.as_str(), receipt.may_still_land), (iqn("host1").as_str(), 0));
    assert_eq!(
        (receipt.sessions_cut.len(), receipt.sessions_cut[0].addresses.as_slice()),
        (1, &["10.10.0.11".to_owned()][..])
    );

    assert_eq!(node.fake.write(one, 1), Err(IoRefusal::SessionGone));
    assert_eq!(node.login(&v, "host1"), Err(LoginRefusal::NotAuthorized));
    assert!(node.fake.write(two, 1).is_ok() && node.fake.write(other, 1).is_ok());
    assert_eq!((node.reach(&v), node.reach(&w).len()), (vec!["host2 rw".to_owned()], 2));
}

#[test]
fn a_deleted_volume_is_wiped_and_leaves_nothing() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    assert!(node.fake.blocks().is_zeroed(device(&v)), "zeroed before it is ready");
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    assert_eq!(agent.switch.opened(), [(device(&v).display().to_string(), true)]);
    let one = node.login(&v, "host1").unwrap();
    node.fake.write(one, 1).unwrap();
    assert!(!node.fake.blocks().is_zeroed(device(&v)));
    agent.make(put_export(&v, 2, &[]));
    agent.make(delete_volume(&v, 2));
    let removed = [(format!("vg0/mooring-{v}"), Blocks::Zeroed)];
    assert_eq!(agent.switch.removed(), removed, "wiped before it was removed");
    node.assert_nothing_left(&v);
    assert_eq!(agent.list(), []);
}

#[test]
fn a_volume_taken_away_without_its_data_stays_as_an_orphan() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let mut take = delete_volume(&v, 2);
    take.wish = Some(mooring_api::v1::put_volume_request::Wish::Tombstone(mooring_api::v1::Tombstone {
        destroy_data: false,
        ..Default::default()
    }));
    agent.make(take);
    assert!(node.lvs().contains(&v));
    let listed = agent.list();
    assert_eq!(listed[0].volume.as_ref().unwrap().phase(), mooring_api::v1::Phase::Orphan);
}

#[test]
fn an_export_without_chap_admits_by_name_and_says_so_by_its_reach() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let mut spec = export_spec(&[("host1", RW)]);
    spec.grants[0].chap = None;
    agent.make(put_export_spec(&v, 1, spec));
    assert_eq!(node.reach(&v), ["host1 rw without CHAP"]);
    agent.make(put_export(&v, 2, &[("host1", RW)]));
    assert_eq!(node.reach(&v), ["host1 rw"]);
}
