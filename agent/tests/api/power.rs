//! Power failures right after an answer: changes of LVM that nobody flushed are gone from the
//! disks, and acknowledged changes are there in spite of it.

use mooring_api::v1;

use crate::gone::report;
use crate::manage::release;
use crate::revert::{done_or_dead, node, snapshot, thin};
use crate::rig::*;
use crate::switch::Kill;

/// Cuts the power; the disks lose everything that was not flushed.
fn power_cut(node: &Node, agent: Agent) -> Agent {
    agent.crash();
    node.fake.lvm().forget_unflushed();
    node.fake.reboot();
    node.start()
}

#[test]
fn what_lvm_was_told_and_nobody_has_flushed_is_gone() {
    let node = node();
    node.lvm("lvcreate --yes --wipesignatures n --name somebodys --size 4194304B vg0");
    assert!(node.lvs().contains("somebodys"));
    node.fake.lvm().forget_unflushed();
    node.fake.reboot();
    assert!(!node.lvs().contains("somebodys"), "{}", node.lvs());
}

#[test]
fn a_thin_volume_and_a_snapshot_that_were_answered_are_there() {
    let (node, v, s) = (node(), volume(1), volume(2));
    let agent = node.start();
    agent.make(put_volume_spec(&v, 1, thin()));
    let agent = power_cut(&node, agent);
    eventually("the volume is ready", || report(&agent, &v).phase() == v1::Phase::Ready);
    agent.make(snapshot(&s, &v));
    let agent = power_cut(&node, agent);
    for id in [&v, &s] {
        eventually("both are ready", || report(&agent, id).phase() == v1::Phase::Ready);
    }
}

#[test]
fn an_agent_that_died_before_it_flushed_is_no_excuse() {
    let mut points = 0;
    loop {
        let (node, v) = (node(), volume(1));
        let agent = node.start_with(Some(Kill::After(points + 1)));
        let answered = agent.is_up() && done_or_dead(&agent, put_volume_spec(&v, 1, thin()));
        agent.crash();
        if answered {
            break;
        }
        points += 1;
        // The next agent finds the volume made, and says so.
        let agent = node.start();
        agent.make(put_volume_spec(&v, 1, thin()));
        let agent = power_cut(&node, agent);
        eventually("it is ready", || report(&agent, &v).phase() == v1::Phase::Ready);
    }
    assert!(points > 1, "killed at {points} calls");
}

#[test]
fn what_was_unmanaged_stays_unmanaged() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(release(&v, 2));
    agent.crash();
    node.fake.lvm().forget_unflushed();
    assert!(
        node.lvs().contains(&format!("mooring-{v}")) && !node.lvs().contains("\"mooring\""),
        "{}",
        node.lvs()
    );
}
