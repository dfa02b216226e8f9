//! Absence removes nothing: neither an empty store nor a silent controller cuts anybody off.

use mooring_api::v1;
use mooring_api::v1::report::What;
use mooring_host::fake::Access;
use mooring_host::{Tree, TreePath};
use tonic::Code;

use crate::rig::*;
use crate::watching;

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
    let told = agent.capabilities().problems;
    let of = |id: &String| told.iter().filter(|told| told.object.contains(id)).collect::<Vec<_>>();
    for id in &volumes {
        assert!(of(id).len() == 1 && of(id)[0].text.contains("2 initiator(s)"), "{told:?}");
    }
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
    assert_eq!(agent.capabilities().problems, [], "what a spec names is no orphan any more");
    assert!(
        sessions.iter().all(|session| node.fake.write(*session, 1).is_ok() || node.fake.is_live(*session))
    );
    let status = agent.get(&volumes[0]).unwrap();
    assert_eq!(status.volume.unwrap().phase(), v1::Phase::Ready);
    let export = status.export.unwrap();
    assert!(export.in_force && export.grants.iter().all(|grant| grant.sessions.len() == 1));
}

#[test]
fn an_agent_without_its_database_takes_its_id_back_and_keeps_it() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    let first = agent.hello();
    assert!(first.fresh && first.cluster_id.is_empty());
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let session = node.login(&v, "host1").unwrap();
    // An agent with anything in its store already has an identity.
    let somebody = "00000000-0000-4000-8000-00000000beef";
    let texts = [first.agent_id.as_str(), somebody];
    assert!(!agent.hello().fresh);
    assert_refused(agent.adopt(CLUSTER, somebody), Code::FailedPrecondition, "operator", &texts);
    agent.crash();
    let agent = node.start();
    assert!(!agent.hello().fresh && agent.hello().agent_id == first.agent_id);
    agent.crash();
    std::fs::remove_dir_all(&node.config.state_dir).unwrap();

    let agent = node.start();
    let (lost, tree) = (agent.hello(), node.tree());
    assert!(lost.fresh && lost.agent_id != first.agent_id);
    assert_refused(agent.adopt(CLUSTER, "nonsense"), Code::InvalidArgument, "fix_spec", &["agent_id"]);
    agent.adopt(CLUSTER, &first.agent_id).unwrap();
    // A repeated request succeeds, because its first answer may be lost. Another cluster cannot
    // take the agent.
    agent.adopt(CLUSTER, &first.agent_id).unwrap();
    let other = "00000000-0000-4000-8000-0000000000ff";
    assert_refused(agent.adopt(other, somebody), Code::PermissionDenied, "operator", &[CLUSTER]);
    for agent in [agent, node.start()] {
        let known = agent.hello();
        assert_eq!((&known.agent_id, known.cluster_id.as_str()), (&first.agent_id, CLUSTER));
        assert_eq!(agent.capabilities().agent_id, first.agent_id);
        agent.crash();
    }
    assert!(node.tree() == tree && node.fake.is_live(session));
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
    // The tombstone ends no live session unless it says so, and leaves a receipt for every
    // initiator.
    let spare =
        v1::PutExportRequest { live_sessions: v1::LiveSessions::Refuse.into(), ..delete_export(&v, 2) };
    let refused = agent.put_export(spare);
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["is logged in", "host1"]);
    assert_eq!(node.tree(), tree);
    assert!(sessions.iter().all(|session| node.fake.is_live(*session)));
    let receipts = agent.make(delete_export(&v, 2));
    let mut cut: Vec<_> = receipts.iter().map(|receipt| receipt.initiator.clone()).collect();
    cut.sort();
    assert_eq!(cut, [iqn("host1"), iqn("host2")]);
    for receipt in &receipts {
        assert!(receipt.proven && receipt.sessions_cut.len() == 1, "{receipt:?}");
    }
    // A newer tombstone finds nothing left to take away.
    assert_eq!(agent.make(delete_export(&v, 3)), []);
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
    // The agent reports objects under our names without a spec. It does not report foreign ones.
    eventually("it is told", || !agent.capabilities().problems.is_empty());
    let told = agent.capabilities().problems;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].object.ends_with(&target(&volume(7))) && told[0].text.contains("0 initiator(s)"),
        "{told:?}"
    );
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
fn an_orphan_is_adopted_with_its_data_and_unlisted_when_it_is_gone() {
    let (node, v, w) = (Node::with("resync_seconds = 1"), volume(1), volume(2));
    for id in [&v, &w] {
        assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{id}"), SIZE, &["mooring"]));
    }
    let agent = node.start();
    eventually("both are found", || agent.list().len() == 2);
    agent.make(put_volume(&v, 1));
    assert!(!node.fake.blocks().is_zeroed(device(&v)), "its data is there");
    assert_eq!(agent.get(&v).unwrap().volume.unwrap().phase(), v1::Phase::Ready);
    node.fake.lvm().lose_volume("vg0", &format!("mooring-{w}"));
    eventually("the orphan is gone", || agent.list().len() == 1);
}

/// A controller that has listed the volumes before LVM showed them is told of them.
#[test]
fn watchers_are_told_of_an_orphan_that_is_found_later() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    let agent = node.start();
    let mut reports = agent.watch();
    watching::first(&agent, &mut reports);
    assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{v}"), SIZE, &["mooring"]));
    loop {
        if let What::Volume(report) = watching::next(&agent, &mut reports) {
            assert_eq!((report.volume_id.as_str(), report.phase()), (v.as_str(), v1::Phase::Orphan));
            return;
        }
    }
}
