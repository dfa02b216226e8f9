//! Volumes that grow under their sessions: served throughout, revoked in time, and whole again
//! after any crash.

use mooring_api::v1;
use tonic::Code;

use crate::rig::*;
use crate::switch::{Kill, Switch};

fn growth(id: &str) -> String {
    format!("/dev/vg0/mooring-grow-{id}")
}

fn zeroing(id: &str) -> String {
    format!("zero {}", growth(id))
}

fn put_size(id: &str, counter: u64, mib: u64) -> v1::PutVolumeRequest {
    put_volume_spec(id, counter, volume_spec(mib * MIB))
}

/// True if the part by which a volume of 8 MiB has grown reads as zeros.
fn tail_is_zeroed(node: &Node, id: &str, mib: u64) -> bool {
    let ranges = node.fake.blocks().zeroed_ranges(device(id));
    ranges.iter().any(|(from, to)| *from <= SIZE && *to == mib * MIB)
}

/// An agent with one volume of 8 MiB, which host1 writes to.
fn exported(node: &Node, v: &str) -> (Agent, mooring_host::fake::SessionId) {
    let agent = node.start();
    agent.make(put_volume(v, 1));
    agent.make(put_export(v, 1, &[("host1", RW)]));
    let one = node.login(v, "host1").unwrap();
    node.fake.write(one, 1).unwrap();
    (agent, one)
}

#[test]
fn it_grows_under_its_session_and_what_it_grows_by_is_zeroed() {
    let (node, v) = (Node::new(), volume(1));
    let (agent, one) = exported(&node, &v);
    let tree = node.tree();
    agent.switch.forget_log();
    agent.make(put_size(&v, 2, 20));
    let seen = agent.get(&v).unwrap().volume.unwrap();
    assert_eq!((seen.size_bytes, seen.phase()), (20 * MIB, v1::Phase::Ready));
    assert!(tail_is_zeroed(&node, &v, 20));
    assert!(!node.lvs().contains("mooring-grow"), "{}", node.lvs());
    // The target has nothing to do, and the session goes on.
    assert_eq!(node.tree(), tree);
    node.fake.write(one, 1).unwrap();
    let log = agent.switch.log();
    let lvm: Vec<_> = log.iter().filter_map(|call| call.strip_prefix("lvm ")).collect();
    let verbs: Vec<_> = lvm.iter().map(|line| line.split(' ').next().unwrap()).collect();
    // A look, the LV's identity before its zeroing, the place of its extents, and a second look.
    let expected = ["vgs", "lvs", "lvcreate", "lvs", "lvchange", "lvs", "lvremove", "lvextend", "vgs", "lvs"];
    assert_eq!(verbs, expected, "{log:?}");
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
    // A further grant does not ask LVM again.
    agent.switch.forget_log();
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
    assert!(!agent.switch.log().iter().any(|call| call.starts_with("lvm ")));
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_kept_of_it() {
    let (node, v) = (Node::new(), volume(1));
    let (agent, one) = exported(&node, &v);
    for (mib, code, cure, words) in [
        (4, Code::FailedPrecondition, "fix_spec", "a volume never shrinks"),
        (2000, Code::ResourceExhausted, "operator", "more are wanted for volume"),
    ] {
        assert_refused(agent.put_volume(put_size(&v, 2, mib)), code, cure, &[words]);
        let kept = agent.get(&v).unwrap();
        assert_eq!(kept.volume_stamp.unwrap().generation.unwrap().counter, 1);
        assert_eq!(kept.volume.unwrap().size_bytes, 8 * MIB);
    }
    assert!(!node.lvs().contains("mooring-grow"));
    node.fake.write(one, 1).unwrap();
}

#[test]
fn a_revoke_does_not_wait_for_a_growth() {
    let (node, v) = (Node::new(), volume(1));
    let (agent, _) = exported(&node, &v);
    agent.switch.pause_before(&zeroing(&v));
    agent.begin_to_pause("it zeroes", put_size(&v, 2, 900));
    let report = agent.get(&v).unwrap().volume.unwrap();
    assert!(report.phase() == v1::Phase::Ready && report.size_bytes == 8 * MIB, "{report:?}");
    // The export is still reported meanwhile.
    assert_eq!(agent.get(&v).unwrap().export.unwrap().grants.len(), 1);
    let mut client = agent.client();
    let put = put_export(&v, 2, &[]);
    let revoke = agent.spawn(async move { client.put_export(put).await });
    let rmdir = format!("rmdir iscsi/{}/tpgt_1/acls/{}", target(&v), iqn("host1"));
    eventually("the revoke is taken", || {
        agent.get(&v).unwrap().export_stamp.unwrap().generation.unwrap().counter == 2
    });
    // The zeroing goes on, piece by piece, until it gives way.
    eventually("the grant goes", || {
        agent.switch.let_one_go();
        agent.switch.log().contains(&rmdir)
    });
    assert!(!agent.switch.log().iter().any(|call| call.contains("lvextend")), "it has not ended before");
    let revoked = agent.wait(revoke).unwrap().unwrap().into_inner();
    assert!(revoked.receipts.iter().all(|receipt| receipt.proven), "{revoked:?}");
    assert_eq!(node.reach(&v), Vec::<String>::new());
    // The zeroing then resumes where it was.
    agent.switch.go_on();
    eventually("it grows", || agent.get(&v).unwrap().volume.unwrap().size_bytes == 900 * MIB);
    let zeroings = agent.switch.log().iter().filter(|call| **call == zeroing(&v)).count();
    assert!(zeroings <= 57, "{zeroings} pieces of 16 MiB were zeroed for 892 MiB");
    assert!(tail_is_zeroed(&node, &v, 900));
}

#[test]
fn after_a_reboot_it_is_served_before_it_goes_on_growing() {
    for autoactivation in [true, false] {
        let (node, v) = (Node::new(), volume(1));
        node.fake.set_autoactivation(autoactivation);
        let (agent, _) = exported(&node, &v);
        agent.switch.pause_before(&zeroing(&v));
        agent.begin_to_pause("it zeroes", put_size(&v, 2, 20));
        agent.crash();
        node.fake.reboot();
        let switch = Switch::new(&node.fake, None);
        switch.pause_before(&zeroing(&v));
        let agent = node.start_on(switch);
        eventually("it is served", || node.reach(&v) == ["host1 rw"]);
        eventually("it zeroes again", || agent.switch.paused().is_some());
        assert_eq!(agent.get(&v).unwrap().volume.unwrap().size_bytes, 8 * MIB);
        node.login(&v, "host1").unwrap();
        agent.switch.go_on();
        eventually("it grows", || agent.get(&v).unwrap().volume.unwrap().size_bytes == 20 * MIB);
        assert!(tail_is_zeroed(&node, &v, 20));
    }
}

#[test]
fn what_is_in_the_way_of_its_growth_is_said_and_it_is_served_as_it_is() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    let (agent, one) = exported(&node, &v);
    node.fake.lvm().fail_next("lvcreate", 5, "  Cannot change VG vg0 while PVs are missing.\n");
    let answer = agent.put_volume(put_size(&v, 2, 20)).unwrap();
    let report = answer.report.unwrap();
    assert!(!answer.done && report.phase() == v1::Phase::Ready && report.size_bytes == 8 * MIB, "{report:?}");
    assert!(report.problems[0].text.contains("PVs are missing"), "{report:?}");
    node.fake.write(one, 1).unwrap();
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
    // Once the obstacle is gone, the growth goes on by itself.
    eventually("it grows", || agent.get(&v).unwrap().volume.unwrap().size_bytes == 20 * MIB);
    assert_eq!(agent.get(&v).unwrap().volume.unwrap().problems, []);
}

#[test]
fn a_volume_that_is_doomed_while_it_grows_leaves_nothing() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.switch.pause_before(&zeroing(&v));
    agent.begin_to_pause("it zeroes", put_size(&v, 2, 900));
    let mut client = agent.client();
    let doom = delete_volume(&v, 3);
    let doomed = agent.spawn(async move { client.put_volume(doom).await });
    eventually("it is taken", || {
        agent.get(&v).unwrap().volume_stamp.unwrap().generation.unwrap().counter == 3
    });
    agent.switch.go_on();
    assert!(agent.wait(doomed).unwrap().unwrap().into_inner().done);
    node.assert_nothing_left(&v);
    assert!(!node.lvs().contains("mooring-"), "{}", node.lvs());
}

/// An agent whose volume of 8 MiB is to have 900 MiB; it is zeroing the new blocks.
fn zeroes(node: &Node, v: &str) -> (Agent, mooring_host::fake::SessionId) {
    let (agent, one) = exported(node, v);
    agent.switch.pause_before(&zeroing(v));
    agent.begin_to_pause("it zeroes", put_size(v, 2, 900));
    (agent, one)
}

#[test]
fn a_growth_that_is_not_the_volumes_yet_is_taken_back() {
    let (node, v) = (Node::new(), volume(1));
    let (agent, one) = zeroes(&node, &v);
    let tree = node.tree();
    assert!(node.lvs().contains("mooring-grow"), "the control");
    let below = agent.put_volume(put_size(&v, 3, 4));
    assert_refused(below, Code::FailedPrecondition, "fix_spec", &["has 8 MiB", "a volume never shrinks"]);
    let mut client = agent.client();
    let back = put_size(&v, 3, 8);
    let back = agent.spawn(async move { client.put_volume(back).await });
    eventually("it is taken", || {
        agent.get(&v).unwrap().volume_stamp.unwrap().generation.unwrap().counter == 3
    });
    agent.switch.go_on();
    let answer = agent.wait(back).unwrap().unwrap().into_inner();
    let report = answer.report.unwrap();
    assert!(answer.done && report.size_bytes == 8 * MIB && report.phase() == v1::Phase::Ready, "{report:?}");
    assert!(!node.lvs().contains("mooring-grow"), "{}", node.lvs());
    let calls = agent.switch.log();
    assert!(!calls.iter().any(|call| call.contains("lvextend")));
    let zeroings = calls.iter().filter(|call| **call == zeroing(&v)).count();
    assert!(zeroings <= 2, "{zeroings} pieces were zeroed after all");
    // The host notices nothing, and the volume can grow again.
    assert_eq!(node.tree(), tree);
    node.fake.write(one, 1).unwrap();
    agent.make(put_size(&v, 4, 20));
    assert!(tail_is_zeroed(&node, &v, 20));
    node.fake.write(one, 1).unwrap();
}

#[test]
fn what_has_grown_already_stays_and_what_is_just_growing_is_not_cut_off() {
    let (node, v) = (Node::new(), volume(1));
    let (agent, one) = exported(&node, &v);
    let append = format!("lvm lvremove --yes --force --config devices/issue_discards=0 vg0/mooring-grow-{v}");
    agent.switch.pause_before(&append);
    agent.begin_to_pause("it is appended", put_size(&v, 2, 20));
    let refused = agent.put_volume(put_size(&v, 3, 8));
    assert_refused(refused, Code::FailedPrecondition, "retry", &["is being made larger at this moment"]);
    agent.switch.go_on();
    eventually("it has grown", || agent.get(&v).unwrap().volume.unwrap().size_bytes == 20 * MIB);
    let refused = agent.put_volume(put_size(&v, 3, 8));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["has 20 MiB", "a volume never shrinks"]);
    assert_eq!(agent.get(&v).unwrap().volume_stamp.unwrap().generation.unwrap().counter, 2);
    assert!(tail_is_zeroed(&node, &v, 20));
    node.fake.write(one, 1).unwrap();
}

#[test]
fn killed_at_every_change_a_growth_that_is_taken_back_is_so_in_the_end() {
    for at in 1.. {
        let mut died = false;
        for kill in [Kill::Before(at), Kill::After(at)] {
            let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
            zeroes(&node, &v).0.crash();
            // Nothing of the growth is appended before the cancellation.
            let switch = Switch::new(&node.fake, Some(kill));
            switch.pause_before(&zeroing(&v));
            let agent = node.start_on(switch);
            let mut alive = agent.is_up();
            if alive {
                agent.begin(put_size(&v, 3, 8));
                agent.switch.go_on();
                let dead = agent.switch.died();
                eventually("it is taken back, or the agent has died", || {
                    *dead.borrow() || !node.lvs().contains("mooring-grow")
                });
                alive = !*dead.borrow();
            }
            agent.crash();
            died |= !alive;
            let switch = Switch::new(&node.fake, None);
            switch.pause_before(&zeroing(&v));
            let agent = node.start_on(switch);
            agent.begin(put_size(&v, 3, 8));
            agent.switch.go_on();
            agent.make(put_size(&v, 3, 8));
            let seen = agent.get(&v).unwrap().volume.unwrap();
            assert_eq!((seen.size_bytes, seen.phase()), (8 * MIB, v1::Phase::Ready), "{kill:?}");
            // The volume matches its spec; a later look removes what lies beside it.
            eventually("nothing is left of the growth", || !node.lvs().contains("mooring-grow"));
            assert_eq!(node.reach(&v), ["host1 rw"]);
        }
        if !died {
            assert!(at > 1, "nothing was killed");
            return;
        }
    }
}
