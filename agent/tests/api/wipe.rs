//! Wiping of blocks at a deletion, as the group's configuration says. Old blocks are never shown to
//! anybody.

use mooring_api::v1;

use crate::rig::*;
use crate::switch::Blocks;

fn discarding(id: &str) -> String {
    format!("discard {}", device(id).display())
}

/// Calls on the volume's device, without repetition, and the removals.
fn calls(agent: &Agent, id: &str) -> Vec<String> {
    let device = device(id).display().to_string();
    let of_device = |call: &str| call.strip_suffix(&device).map(|verb| verb.trim().to_owned());
    let is = |verb: &String| verb == "zero" || verb == "discard";
    let mut calls: Vec<String> = (agent.switch.log().iter())
        .filter_map(|call| {
            of_device(call).filter(is).or_else(|| call.contains("lvremove").then(|| call.clone()))
        })
        .collect();
    calls.dedup();
    calls
}

#[test]
fn a_deletion_does_what_its_group_says_and_never_what_lvm_is_set_to() {
    let remove =
        |v: &str| format!("lvm lvremove --yes --force --config devices/issue_discards=0 vg0/mooring-{v}");
    for (wipe, discards, blocks, done) in [
        ("zero", true, Blocks::Zeroed, &["zero"][..]),
        ("discard", true, Blocks::Discarded, &["discard"]),
        ("discard", false, Blocks::Zeroed, &["discard", "zero"]),
        ("none", true, Blocks::Data, &[]),
    ] {
        let (node, v) = (Node::with_wipe(wipe), volume(1));
        node.fake.lvm().set_discards("vg0", discards);
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        node.fake.blocks().fill(device(&v));
        agent.switch.forget_log();
        agent.make(delete_volume(&v, 2));
        assert_eq!(agent.switch.removed(), [(format!("vg0/mooring-{v}"), blocks)], "{wipe}");
        let expected: Vec<_> = done.iter().map(|verb| (*verb).to_owned()).chain([remove(&v)]).collect();
        assert_eq!(calls(&agent, &v), expected, "{wipe}");
        node.assert_nothing_left(&v);
        // The next volume on these blocks shows none of the old data.
        let w = volume(2);
        agent.make(put_volume(&w, 1));
        agent.make(put_export(&w, 1, &[("host1", RW)]));
        assert_eq!(agent.switch.opened(), [(device(&w).display().to_string(), true)], "{wipe}");
    }
}

#[test]
fn blocks_discarded_before_a_cancelled_deletion_do_not_count_as_zeroed() {
    let (node, v) = (Node::with_wipe("discard"), volume(1));
    let agent = node.start();
    let spec = |counter| put_volume_spec(&v, counter, volume_spec(600 * MIB));
    agent.make(spec(1));
    node.fake.blocks().fill(device(&v));
    agent.switch.pause_before(&discarding(&v));
    agent.begin_to_pause("it discards", delete_volume(&v, 2));
    // The data is to stay after all. The partly discarded rest is an orphan that nobody can use.
    let kept = v1::Tombstone { destroy_data: false, ..Default::default() };
    let keep = v1::PutVolumeRequest {
        stamp: Some(stamp(1, 3, &kept)),
        wish: Some(v1::put_volume_request::Wish::Tombstone(kept)),
        ..put_volume(&v, 3)
    };
    let mut client = agent.client();
    let keep = agent.spawn(async move { client.put_volume(keep).await });
    eventually("it is taken", || {
        agent.get(&v).unwrap().volume_stamp.unwrap().generation.unwrap().counter == 3
    });
    agent.switch.go_on();
    assert!(agent.wait(keep).unwrap().unwrap().into_inner().done);
    let discards = agent.switch.log().iter().filter(|call| **call == discarding(&v)).count();
    assert_eq!((discards, agent.switch.removed()), (1, Vec::new()), "it gives way after a piece");
    assert!(node.lvs().contains("mooring-unzeroed") && !node.fake.blocks().is_zeroed(device(&v)));
    agent.make(spec(4));
    assert!(node.fake.blocks().is_zeroed(device(&v)), "also where it was discarded");
    assert_eq!(agent.get(&v).unwrap().volume.unwrap().phase(), v1::Phase::Ready);
}

#[test]
fn a_disk_that_fails_a_discard_keeps_the_volume_and_says_why() {
    let (node, v) = (Node::with_wipe("discard"), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    node.fake.blocks().fail_discarding(Some(mooring_host::Errno::EIO));
    let answer = agent.put_volume(delete_volume(&v, 2)).unwrap();
    let report = answer.report.unwrap();
    assert!(!answer.done && report.phase() == v1::Phase::Deleting, "{report:?}");
    assert!(report.problems[0].text.starts_with("cannot discard /dev/vg0/mooring-"), "{report:?}");
    assert!(node.lvs().contains("mooring-unzeroed"), "nobody gets what is left of it");
    node.fake.blocks().fail_discarding(None);
    agent.make(delete_volume(&v, 3));
    node.assert_nothing_left(&v);
}
