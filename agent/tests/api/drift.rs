//! Changes of volume groups by somebody else: seen when the group's disk is written to, and LVM is not asked for them again
//! and again.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use mooring_api::v1;
use mooring_host::{Command, Commands, Tree, TreePath};

use crate::rig::*;

/// A node whose group lies on a disk with a device node that can be watched.
fn watched(lines: &str) -> (Node, PathBuf) {
    let node = Node::with(lines);
    let disk = node.config.state_dir.with_file_name("disk");
    fs::write(&disk, "metadata").unwrap();
    node.fake.lvm().set_disk("vg0", &disk);
    (node, disk)
}

/// What LVM does at the end of every change.
fn commit(disk: &PathBuf) {
    drop(fs::OpenOptions::new().write(true).open(disk).unwrap());
}

fn asked(node: &Node) -> usize {
    node.fake.lvm().log().iter().filter(|line| line.starts_with("vgs")).count()
}

/// The agent has listed the disks, and has looked once the watch stood.
fn stands(node: &Node) {
    let seen = |node: &Node| {
        let log = node.fake.lvm().log();
        let listed = log.iter().position(|line| line.starts_with("pvs"))?;
        log[listed..].iter().any(|line| line.starts_with("lvs")).then_some(())
    };
    eventually("the watch stands", || seen(node).is_some());
}

#[test]
fn a_tag_that_somebody_took_away_is_seen_when_the_disk_is_written() {
    // No resync comes within this test.
    let (node, disk) = watched("resync_seconds = 3600");
    let agent = node.start();
    stands(&node);
    let v = volume(1);
    agent.make(put_volume(&v, 1));
    let lv = format!("vg0/mooring-{v}");
    let untag = Command {
        program: "/sbin/lvm",
        args: ["lvchange", "--deltag", "mooring", &lv].map(str::to_owned).to_vec(),
        timeout: Duration::from_secs(1),
    };
    assert_eq!(node.fake.lvm().run(&untag).unwrap().status, 0);
    let ready = || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Ready;
    assert!(ready(), "nobody has told");
    commit(&disk);
    eventually("the loss of the tag is seen", || !ready());
    let problems = agent.get(&v).unwrap().volume.unwrap().problems;
    assert!(problems.iter().any(|problem| problem.text.contains("tag")), "{problems:?}");
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
    let agent = node.start();
    let v = volume(1);
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RO)]));
    stands(&node);
    let protect = format!("iscsi/{}/tpgt_1/acls/{}/lun_1/write_protect", target(&v), iqn("host1"));
    // A resync that had begun before the watch stood has ended after the first of these.
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
