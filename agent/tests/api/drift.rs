//! Changes of volume groups by somebody else. The agent sees them when the group's disk is written
//! to, and does not ask LVM again and again.

use std::fs;
use std::path::PathBuf;

use mooring_host::{Tree, TreePath};

use crate::rig::*;

/// A node whose group lies on a disk with a device node that can be watched.
pub(crate) fn watched(lines: &str) -> (Node, PathBuf) {
    let node = Node::with(lines);
    let disk = node.config.state_dir.with_file_name("disk");
    fs::write(&disk, "metadata").unwrap();
    node.fake.lvm().set_disk("vg0", &disk);
    (node, disk)
}

/// Touches the disk as LVM does at the end of every change.
pub(crate) fn commit(disk: &PathBuf) {
    drop(fs::OpenOptions::new().write(true).open(disk).unwrap());
}

fn asked(node: &Node) -> usize {
    node.fake.lvm().log().iter().filter(|line| line.starts_with("vgs")).count()
}

/// Waits until the agent has listed the disks, and has looked once with the watch in place.
pub(crate) fn stands(node: &Node) {
    stands_since(node, 0);
}

/// Does as [`stands`], for an agent that started when LVM had been asked `before` times.
fn stands_since(node: &Node, before: usize) {
    let seen = || {
        let log = &node.fake.lvm().log()[before..];
        let listed = log.iter().position(|line| line.starts_with("pvs"))?;
        log[listed..].iter().any(|line| line.starts_with("lvs")).then_some(())
    };
    eventually("the watch stands", || seen().is_some());
}

#[test]
fn one_that_somebody_made_under_our_name_is_an_orphan_in_a_moment() {
    let (node, disk) = watched("resync_seconds = 3600");
    let agent = node.start();
    stands(&node);
    let v = volume(7);
    assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{v}"), 8 * MIB, &["mooring"]));
    commit(&disk);
    eventually("the orphan is reported", || agent.get(&v).is_ok());
}

#[test]
fn while_the_watch_stands_a_resync_looks_at_the_kernel_alone() {
    let (node, _disk) = watched("resync_seconds = 1");
    // The watch of disks stands. Changes of exports are not told.
    node.fake.set_watches_max(0);
    let agent = node.start();
    let v = volume(1);
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RO)]));
    stands(&node);
    let protect = format!("iscsi/{}/tpgt_1/acls/{}/lun_1/write_protect", target(&v), iqn("host1"));
    // A resync that began before the watch was in place ends after the first round.
    let mut before = 0;
    for round in 0..4 {
        node.fake.lio().write(&TreePath::new(&protect), b"0").unwrap();
        eventually("a resync has put it right", || node.reach(&v) == ["host1 ro"]);
        if round == 0 {
            before = asked(&node);
        }
    }
    assert_eq!(asked(&node), before, "{:?}", node.fake.lvm().log());
}

#[test]
fn a_disk_that_cannot_be_watched_has_lvm_asked_at_every_resync() {
    let (node, disk) = watched("resync_seconds = 1");
    fs::remove_file(&disk).unwrap();
    let _agent = node.start();
    let before = asked(&node);
    eventually("LVM is asked three times more", || asked(&node) >= before + 3);
}

#[test]
fn a_disk_that_goes_ends_the_watch_and_lvm_is_asked_again() {
    let (node, disk) = watched("resync_seconds = 1");
    let _agent = node.start();
    stands(&node);
    fs::remove_file(&disk).unwrap();
    let before = asked(&node);
    eventually("LVM is asked three times more", || asked(&node) >= before + 3);
}

/// Volumes that existed, were exported, and are gone.
const GONE: std::ops::Range<u8> = 0..8;

/// A node whose agent was restarted after the end of all its volumes; the watch of its disk is in
/// place.
fn with_tombstones() -> (Node, PathBuf, Agent) {
    let (node, disk) = watched("resync_seconds = 1");
    let agent = node.start();
    for v in GONE.map(volume) {
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &[("host1", RW)]));
        agent.make(delete_export(&v, 2));
        assert!(agent.put_volume(delete_volume(&v, 2)).unwrap().done);
    }
    agent.crash();
    let before = node.fake.lvm().log().len();
    let agent = node.start();
    stands_since(&node, before);
    (node, disk, agent)
}

#[test]
fn a_lost_volume_costs_a_start_no_look_at_lvm_and_a_resync_nothing() {
    let (_node, _disk, agent) = with_tombstones();
    let resyncs = |log: &[String]| log.iter().filter(|call| *call == "list iscsi").count();
    let of_one = |call: &&String| GONE.map(volume).any(|v| call.contains(&v));
    let before = agent.switch.log().len();
    eventually("resyncs", || resyncs(&agent.switch.log()[before..]) >= 4);
    let log = agent.switch.log();
    let lvm: Vec<_> = log.iter().filter(|call| call.starts_with("lvm ")).filter(of_one).collect();
    assert!(lvm.is_empty(), "{lvm:?}");
    // Every tenth resync looks at one of them. Its turn depends on how long the start took.
    let parts = log[before..].split(|call| call == "list iscsi").take(10);
    let looks = parts.filter(|part| part.iter().any(|call| of_one(&call))).count();
    assert!(looks <= 1, "{looks} resyncs looked: {:?}", &log[before..]);
}

#[test]
fn what_comes_back_of_a_volume_that_is_gone_goes_again() {
    let (node, disk, agent) = with_tombstones();
    let v = volume(3);
    assert!(node.fake.lvm().add_volume("vg0", &format!("mooring-{v}"), 8 * MIB, &["mooring"]));
    commit(&disk);
    let removed = |call: &String| call.starts_with("lvm lvremove") && call.contains(&v);
    eventually("its LV is removed", || agent.switch.log().iter().any(removed));
    let made = TreePath::new(&format!("iscsi/{}", target(&v)));
    node.fake.lio().mkdir(&made).unwrap();
    eventually("its target is removed", || node.fake.lio().list(&made).is_err());
}
