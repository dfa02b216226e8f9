//! Absence removes nothing: neither an empty store nor a silent controller cuts anybody off.

use mooring_api::v1;
use mooring_host::fake::Access;
use mooring_host::{Tree, TreePath};
use tonic::Code;

use crate::rig::*;

/// A node with two exported volumes and live sessions, whose agent has lost its database.
fn node_with_lost_store() -> (Node, [String; 2], Vec<mooring_host::fake::SessionId>) {
    let (node, volumes) = (Node::new(), [volume(1), volume(2)]);
    let agent = node.start();
    let mut sessions = Vec::new();
    for id in &volumes {
        agent.make(put_volume(id, 1));
        agent.make(put_export(id, 1, &[("host1", RW), ("host2", RO)]));
        sessions.extend([node.login(id, "host1").unwrap(), node.login(id, "host2").unwrap()]);
    }
    agent.crash();
    std::fs::remove_dir_all(&node.config.state_dir).unwrap();
    (node, volumes, sessions)
}

#[test]
fn an_agent_without_its_database_touches_nothing_and_reports_orphans() {
    let (node, volumes, sessions) = node_with_lost_store();
    let tree = node.tree();
    let agent = node.start();
    let listed = agent.list();
    assert_eq!(listed.iter().map(|status| status.volume_id.clone()).collect::<Vec<_>>(), volumes);
    for status in &listed {
        let report = status.volume.as_ref().unwrap();
        assert_eq!((report.phase(), report.size_bytes), (v1::Phase::Orphan, SIZE));
        assert!(status.volume_stamp.is_none() && status.export_stamp.is_none());
    }
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
    assert_eq!(node.tree(), tree, "byte for byte");
    assert!(sessions.iter().all(|session| node.fake.is_live(*session)));
}

#[test]
fn the_same_specs_again_adopt_without_a_write() {
    let (node, volumes, sessions) = node_with_lost_store();
    let agent = node.start();
    let (tree, changes) = (node.tree(), agent.switch.changes());
    for id in &volumes {
        agent.make(put_volume(id, 1));
        agent.make(put_export(id, 1, &[("host1", RW), ("host2", RO)]));
    }
    assert_eq!((node.tree(), agent.switch.changes()), (tree, changes));
    assert!(
        sessions.iter().all(|session| node.fake.write(*session, 1).is_ok() || node.fake.is_live(*session))
    );
    let status = agent.get(&volumes[0]).unwrap();
    assert_eq!(status.volume.unwrap().phase(), v1::Phase::Ready);
    let export = status.export.unwrap();
    assert!(export.in_force && export.grants.iter().all(|grant| grant.sessions.len() == 1));
}

#[test]
fn a_volume_that_only_the_kernel_knows_to_be_granted_is_not_deleted() {
    let (node, [v, _], sessions) = node_with_lost_store();
    let agent = node.start();
    let tree = node.tree();
    let refused = agent.put_volume(delete_volume(&v, 2));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &[&v, "2 initiator(s)", "tombstone"]);
    assert_eq!(node.tree(), tree);
    assert!(sessions.iter().all(|session| node.fake.is_live(*session)));
    // Said in so many words, it goes.
    agent.make(delete_export(&v, 2));
    agent.make(delete_volume(&v, 2));
    node.assert_nothing_left(&v);
    assert_eq!(node.fake.reachable().len(), 2, "the other volume's");
}

#[test]
fn what_is_not_ours_is_never_touched() {
    let node = Node::new();
    let lio = node.fake.lio();
    lio.mkdir(&TreePath::new("iscsi")).unwrap();
    // A target of somebody else, one under our prefix that no volume has, and LVs of both kinds.
    for path in [
        "iscsi/iqn.2003-01.org.other:a",
        "iscsi/iqn.2003-01.org.other:a/tpgt_1",
        "core/iblock_0",
        "core/iblock_0/a",
    ] {
        lio.mkdir(&TreePath::new(path)).unwrap();
    }
    let stranger = format!("iscsi/{}", target(&volume(7)));
    for path in [stranger.clone(), format!("{stranger}/tpgt_1")] {
        lio.mkdir(&TreePath::new(&path)).unwrap();
    }
    node.fake.lvm().add_volume("vg0", "somebodys", 8 * MIB, &[]);
    node.fake.lvm().add_volume("vg0", &format!("mooring-{}", volume(8)), 8 * MIB, &[]);
    let before = (node.tree(), node.lvs());

    let agent = node.start();
    let v = volume(1);
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    assert_eq!(node.fake.reachable().iter().map(|reach| reach.mode).collect::<Vec<_>>(), [Access::ReadWrite]);
    agent.make(put_export(&v, 2, &[]));
    agent.make(delete_volume(&v, 2));
    agent.crash();
    drop(node.start());
    assert_eq!((node.tree(), node.lvs()), before);
}

#[test]
fn an_orphan_is_adopted_with_its_data_and_dropped_from_the_list_when_it_is_gone() {
    let (node, v, w) = (Node::with("resync_seconds = 1"), volume(1), volume(2));
    for id in [&v, &w] {
        assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{id}"), SIZE, &["mooring"]));
    }
    let agent = node.start();
    assert_eq!(agent.list().len(), 2);
    agent.make(put_volume(&v, 1));
    assert!(!node.fake.blocks().is_zeroed(device(&v)), "its data is there");
    assert_eq!(agent.get(&v).unwrap().volume.unwrap().phase(), v1::Phase::Ready);
    node.fake.lvm().lose_volume("vg0", &format!("mooring-{w}"));
    eventually("the orphan is gone", || agent.list().len() == 1);
}
