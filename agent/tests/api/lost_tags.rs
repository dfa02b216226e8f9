//! Tags of ours that somebody removed from a volume's LV. The agent restores them where LVM's
//! identity proves that the LV is the volume's, and reports any other case.

use mooring_api::v1;

use crate::drift::{commit, stands, watched};
use crate::early::tags;
use crate::gone::{lv, report};
use crate::manage::release;
use crate::rig::*;

fn is_ready(agent: &Agent, id: &str) -> bool {
    report(agent, id).phase() == v1::Phase::Ready
}

fn says(agent: &Agent, id: &str, words: &str) -> bool {
    report(agent, id).problems.iter().any(|problem| problem.text.contains(words))
}

/// Number of times that the LV got its tag back.
fn tagged(node: &Node, id: &str) -> usize {
    let log = node.fake.lvm().log();
    log.iter().filter(|line| line.starts_with("lvchange --addtag mooring ") && line.contains(id)).count()
}

fn has_tag(node: &Node, id: &str) -> bool {
    tags(node, id).contains("mooring\"")
}

#[test]
fn a_lost_tag_is_reported_and_restored_under_a_live_session() {
    // No resync runs in this test: the write to the disk triggers the look.
    let (node, disk) = watched("resync_seconds = 3600");
    let (agent, v) = (node.start(), volume(1));
    stands(&node);
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let session = node.login(&v, "host1").unwrap();
    node.fake.blocks().fill(device(&v));
    node.lvm(&format!("lvchange --deltag mooring {}", lv(&v)));
    assert!(is_ready(&agent, &v), "nobody has told");
    agent.switch.pause_before(&format!("lvm lvchange --addtag mooring {}", lv(&v)));
    commit(&disk);
    eventually("it is about to be given back", || agent.switch.paused().is_some());
    let told = report(&agent, &v);
    let [problem] = told.problems.as_slice() else { panic!("{told:?}") };
    assert_eq!((told.phase(), problem.object.clone()), (v1::Phase::Failed, format!("LV {}", lv(&v))));
    assert!(problem.text.contains("the tag mooring was removed"), "{problem:?}");
    agent.switch.go_on();
    eventually("the volume is ready again", || is_ready(&agent, &v));
    assert!(has_tag(&node, &v), "{}", tags(&node, &v));
    // The host's data are unchanged, and the host was not cut off.
    assert!(!node.fake.blocks().is_zeroed(device(&v)));
    assert!(node.fake.is_live(session));
    assert_eq!(node.reach(&v), ["host1 rw"]);
}

#[test]
fn so_is_that_of_a_thin_volume_and_of_a_snapshot_after_a_crash_too() {
    let (node, v, s) = (Node::with_group("thin_pool = \"256MiB\"\n"), volume(1), volume(2));
    let thin = || v1::VolumeSpec { provisioning: v1::Provisioning::Thin.into(), ..volume_spec(SIZE) };
    let agent = node.start();
    agent.make(put_volume_spec(&v, 1, thin()));
    let source = v1::VolumeSource { of: Some(v1::volume_source::Of::VolumeId(v.clone())) };
    let kind = v1::VolumeKind::Snapshot.into();
    agent.make(put_volume_spec(&s, 1, v1::VolumeSpec { kind, source: Some(source), ..thin() }));
    agent.remembers(2);
    agent.crash();
    let snapshot = format!("vg0/mooring-snap-{s}");
    for name in [&lv(&v), &snapshot] {
        node.lvm(&format!("lvchange --deltag mooring {name}"));
    }
    let agent = node.start();
    for id in [&v, &s] {
        eventually("it has its tag", || is_ready(&agent, id) && report(&agent, id).problems.is_empty());
    }
    let log = node.fake.lvm().log();
    for name in [&lv(&v), &snapshot] {
        assert!(log.contains(&format!("lvchange --addtag mooring {name}")), "{log:?}");
    }
}

#[test]
fn somebody_elses_lv_under_our_name_gets_none() {
    let (node, disk) = watched("resync_seconds = 3600");
    let (agent, v) = (node.start(), volume(1));
    stands(&node);
    agent.make(put_volume(&v, 1));
    node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
    assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{v}"), SIZE, &[]));
    commit(&disk);
    eventually("it is said", || says(&agent, &v, "without the tag mooring"));
    agent.make(put_volume(&volume(2), 1));
    agent.crash();
    let agent = node.start();
    eventually("it is said again", || says(&agent, &v, "without the tag mooring"));
    assert_eq!((tagged(&node, &v), has_tag(&node, &v)), (0, false));
}

#[test]
fn a_never_whole_lv_gets_no_tag_since_its_old_blocks_would_show() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&volume(2), 1));
    let zeroed = format!("lvm lvchange --deltag mooring-unzeroed {}", lv(&v));
    agent.switch.pause_before(&zeroed);
    let (mut client, put) = (agent.client(), put_volume(&v, 1));
    let sent = agent.spawn(async move { client.put_volume(put).await });
    eventually("it is about to be whole", || agent.switch.paused().is_some());
    node.lvm(&format!("lvchange --deltag mooring {}", lv(&v)));
    agent.switch.go_on();
    eventually("it is said", || says(&agent, &v, "without the tag mooring"));
    drop(agent.wait(sent));
    assert_eq!((tagged(&node, &v), has_tag(&node, &v)), (0, false));
}

#[test]
fn an_lvm_that_refuses_is_said_and_asked_again() {
    let (node, disk) = watched("resync_seconds = 1");
    let (agent, v) = (node.start(), volume(1));
    stands(&node);
    agent.make(put_volume(&v, 1));
    node.lvm(&format!("lvchange --deltag mooring {}", lv(&v)));
    node.fake.lvm().fail_next("lvchange", 5, "Cannot change tags of it now.");
    commit(&disk);
    eventually("it is said", || says(&agent, &v, "Cannot change tags of it now."));
    eventually("the volume is ready again", || is_ready(&agent, &v) && has_tag(&node, &v));
}

#[test]
fn a_volume_that_is_unmanaged_keeps_none() {
    let (node, disk) = watched("resync_seconds = 3600");
    let (agent, v) = (node.start(), volume(1));
    stands(&node);
    agent.make(put_volume(&v, 1));
    agent.make(release(&v, 2));
    eventually("it is nobody's", || !has_tag(&node, &v));
    commit(&disk);
    agent.make(put_volume(&volume(2), 1));
    assert_eq!((tagged(&node, &v), has_tag(&node, &v)), (0, false));
}
