//! Volumes whose LV is gone. An LV that was once whole is never recreated on the agent's own
//! initiative, whatever happens to the LV, the agent or the spec. An LV that reappears is served
//! again. An LV that was never whole is still completed.

use std::path::PathBuf;

use mooring_api::v1;
use tonic::Code;

use crate::drift::{commit, stands, watched};
use crate::rig::*;
use crate::switch::Kill;

pub(crate) fn lv(id: &str) -> String {
    format!("vg0/mooring-{id}")
}

/// Number of LVs that any agent has made for the volume so far.
fn made(node: &Node, id: &str) -> usize {
    let log = node.fake.lvm().log();
    log.iter().filter(|line| line.starts_with("lvcreate") && line.contains(id)).count()
}

pub(crate) fn report(agent: &Agent, id: &str) -> v1::VolumeReport {
    agent.get(id).unwrap().volume.unwrap()
}

/// Asserts that the agent reports the LV as gone, says what to do, and has made none in its place.
fn is_said_to_be_gone(node: &Node, agent: &Agent, id: &str) {
    eventually("it is said", || report(agent, id).phase() == v1::Phase::Failed);
    let told = report(agent, id);
    let [problem] = told.problems.as_slice() else { panic!("{told:?}") };
    assert_eq!((problem.object.clone(), problem.cure()), (format!("LV {}", lv(id)), v1::Cure::Operator));
    for words in ["its LV is gone", "Nothing was made in its place", "taken up as soon as it is there"] {
        assert!(problem.text.contains(words), "{problem:?}");
    }
    assert!(told.device.is_empty() && told.size_bytes == 0, "{told:?}");
    assert!(!node.lvs().contains(&format!("mooring-{id}\"")), "{}", node.lvs());
}

/// A node with one volume full of data, granted to host1 if `exported`, and the watched disk of its
/// group.
fn with_data(exported: bool) -> (Node, PathBuf, Agent, String) {
    let (node, disk) = watched("resync_seconds = 3600");
    let (agent, v) = (node.start(), volume(1));
    stands(&node);
    agent.make(put_volume(&v, 1));
    if exported {
        agent.make(put_export(&v, 1, &[("host1", RW)]));
    }
    node.fake.blocks().fill(device(&v));
    (node, disk, agent, v)
}

#[test]
fn a_removed_lv_is_not_recreated_by_any_agent_nor_for_any_later_spec() {
    let (node, disk, agent, v) = with_data(false);
    node.lvm(&format!("lvremove --yes {}", lv(&v)));
    commit(&disk);
    is_said_to_be_gone(&node, &agent, &v);
    // A new grant waits for the LV.
    agent.make_not_done(brief(put_export(&v, 1, &[("host1", RW)])));
    agent.crash();
    let agent = node.start();
    is_said_to_be_gone(&node, &agent, &v);
    agent.crash();
    node.fake.reboot();
    let agent = node.start();
    is_said_to_be_gone(&node, &agent, &v);
    // The next spec is of the same volume. A larger size is refused, and the store keeps nothing of
    // it.
    let larger = agent.put_volume(put_volume_spec(&v, 2, volume_spec(2 * SIZE)));
    assert_refused(larger, Code::FailedPrecondition, "operator", &["its LV is gone", &lv(&v)]);
    assert!(!agent.put_volume(put_volume(&v, 2)).unwrap().done);
    is_said_to_be_gone(&node, &agent, &v);
    agent.crash();
    let agent = node.start();
    is_said_to_be_gone(&node, &agent, &v);
    let planned = agent.plan("");
    assert!(planned.steps.iter().all(|step| !step.step.starts_with("create")), "{planned:?}");
    assert_eq!((made(&node, &v), node.fake.reachable()), (1, vec![]));
    // Somebody has restored the group's metadata: the LV is there, with its data.
    assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{v}"), SIZE, &["mooring"]));
    stands(&node);
    commit(&disk);
    eventually("it is served again", || node.reach(&v) == ["host1 rw"]);
    eventually("and said to be", || report(&agent, &v).phase() == v1::Phase::Ready);
    assert!(!node.fake.blocks().is_zeroed(device(&v)), "nothing was written to it");
    assert_eq!(made(&node, &v), 1);
}

#[test]
fn a_renamed_exported_lv_is_served_and_comes_back_by_its_name() {
    let (node, disk, agent, v) = with_data(true);
    let session = node.login(&v, "host1").unwrap();
    node.lvm(&format!("lvrename --yes {} vg0/aside", lv(&v)));
    commit(&disk);
    is_said_to_be_gone(&node, &agent, &v);
    assert!(node.fake.is_live(session), "who has it open has it");
    agent.crash();
    let agent = node.start();
    is_said_to_be_gone(&node, &agent, &v);
    assert!(node.fake.is_live(session));
    agent.crash();
    // After a boot there is nothing to serve, and nothing else is served in its place.
    node.fake.reboot();
    let agent = node.start();
    is_said_to_be_gone(&node, &agent, &v);
    assert_eq!(node.fake.reachable(), []);
    node.lvm(&format!("lvrename --yes vg0/aside {}", lv(&v)));
    eventually("it is served again", || node.reach(&v) == ["host1 rw"]);
    assert!(!node.fake.blocks().is_zeroed(device(&v)) && made(&node, &v) == 1, "it is what it was");
}

#[test]
fn an_acknowledged_volume_stays_made_through_a_crash_in_the_next_moment() {
    let v = volume(1);
    for provisioning in [v1::Provisioning::Thick, v1::Provisioning::Thin] {
        let node = match provisioning {
            v1::Provisioning::Thin => Node::with_group("thin_pool = \"256MiB\"\n"),
            _ => Node::new(),
        };
        let agent = node.start();
        let spec = v1::VolumeSpec { provisioning: provisioning.into(), ..volume_spec(SIZE) };
        agent.make(put_volume_spec(&v, 1, spec));
        // The agent crashes before any tick.
        agent.crash();
        node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
        is_said_to_be_gone(&node, &node.start(), &v);
    }
    // The control: a store without the record of a completed LV has nothing to lose.
    let node = Node::new();
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.crash();
    forget_made(&node);
    node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
    let agent = node.start();
    eventually("it is made", || report(&agent, &v).phase() == v1::Phase::Ready);
    assert_eq!(made(&node, &v), 2);
}

/// Makes the store one of an earlier release, which does not say which LVs were completed.
fn forget_made(node: &Node) {
    let file = node.config.state_dir.join(mooring_agent::store::FILE_NAME);
    let conn = rusqlite::Connection::open(file).unwrap();
    conn.execute_batch("UPDATE specs SET made = 0; DELETE FROM whole_lvs").unwrap();
    // In that schema, rows have no sum, and exports have no id.
    conn.execute_batch("DROP TABLE port_ids").unwrap();
    for table in ["meta", "specs", "receipts", "fc_places", "reservations", "whole_lvs"] {
        conn.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN sum")).unwrap();
    }
    conn.pragma_update(None, "user_version", 7).unwrap();
}

#[test]
fn what_an_earlier_release_has_made_is_known_by_the_first_look() {
    let node = Node::with("");
    let agent = node.start();
    let all = (0..4).map(volume).collect::<Vec<_>>();
    for v in &all {
        agent.make(put_volume(v, 1));
        agent.make(put_export(v, 1, &[("host1", RW)]));
    }
    agent.crash();
    forget_made(&node);
    let agent = node.start();
    let commits = agent.engine().store().commits();
    assert!(commits <= 2, "one transaction for all of them: {commits}");
    agent.crash();
    for v in &all {
        node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
    }
    node.fake.reboot();
    let agent = node.start();
    for v in &all {
        is_said_to_be_gone(&node, &agent, v);
        assert_eq!(made(&node, v), 1);
    }
}

#[test]
fn what_was_never_whole_goes_on_being_made() {
    let v = volume(1);
    for step in 1.. {
        let node = Node::new();
        let agent = node.start_with(Some(Kill::Before(step)));
        if !agent.is_up() {
            continue;
        }
        let (mut client, put) = (agent.client(), put_volume(&v, 1));
        let sent = agent.spawn(async move { client.put_volume(put).await });
        eventually("it is killed, or done", || agent.switch.is_dead() || sent.is_finished());
        if !agent.switch.is_dead() {
            break;
        }
        agent.crash();
        // Loses whatever there is of the LV.
        node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        assert!(node.fake.blocks().is_zeroed(device(&v)), "killed before step {step}");
    }
}

#[test]
fn one_that_ends_is_gone_and_the_next_one_of_its_id_is_new() {
    let (node, disk, agent, v) = with_data(false);
    node.lvm(&format!("lvremove --yes {}", lv(&v)));
    commit(&disk);
    is_said_to_be_gone(&node, &agent, &v);
    agent.make(delete_volume(&v, 2));
    agent.make(put_volume(&v, 3));
    assert!(node.fake.blocks().is_zeroed(device(&v)));
    assert_eq!(made(&node, &v), 2);
    agent.crash();
    // That LV is not made again either.
    node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
    is_said_to_be_gone(&node, &node.start(), &v);
}

#[test]
fn one_that_has_grown_is_the_same_volume() {
    let (node, _disk, agent, v) = with_data(true);
    agent.make(put_volume_spec(&v, 2, volume_spec(2 * SIZE)));
    agent.crash();
    node.fake.reboot();
    node.fake.lvm().lose_volume("vg0", &format!("mooring-{v}"));
    let agent = node.start();
    is_said_to_be_gone(&node, &agent, &v);
    assert_eq!(node.fake.reachable(), []);
}

#[test]
fn a_volume_is_not_ready_before_the_store_has_it_that_it_was_made() {
    let v = volume(1);
    let last = {
        let node = Node::new();
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        let untags = |call: &&String| call.contains("--deltag") && call.contains("mooring-unzeroed");
        agent.switch.log().iter().find(untags).unwrap().clone()
    };
    let node = Node::new();
    let agent = node.start();
    agent.switch.pause_before(&last);
    let (mut client, put) = (agent.client(), put_volume(&v, 1));
    let sent = agent.spawn(async move { client.put_volume(put).await });
    eventually("it is about to be whole", || agent.switch.paused().is_some());
    let (folder, aside) = (&node.config.state_dir, node.config.state_dir.with_extension("aside"));
    std::fs::rename(folder, &aside).unwrap();
    agent.switch.go_on();
    eventually("the store is waited for", || {
        let told = report(&agent, &v);
        told.phase() == v1::Phase::Creating && told.problems.iter().any(|it| it.object.contains("store"))
    });
    assert!(!sent.is_finished());
    std::fs::rename(&aside, folder).unwrap();
    assert!(agent.wait(sent).unwrap().unwrap().into_inner().done);
    assert_eq!(report(&agent, &v).problems, []);
}
