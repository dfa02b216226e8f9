//! Starts before LVM has answered: what the agent serves, what it does not serve, and the effect of
//! LVM's later answer.

use mooring_api::v1;

use crate::boot::{MANY, are_served, make_in, node};
use crate::rig::*;
use crate::switch::{Kill, Switch};

/// A booted node with `count` remembered exports, whose agent has not been started yet.
fn booted(count: u8) -> Node {
    let node = node("");
    let agent = node.start();
    make_in(&agent, "vg0", 0..count);
    agent.remembers(count.into());
    agent.crash();
    node.fake.reboot();
    node
}

fn lv(n: u8) -> String {
    format!("vg0/mooring-{}", volume(n))
}

/// True if each of these volumes has had its first pass, while LVM was asked and has not answered.
fn all_had_a_pass(agent: &Agent, mut numbers: std::ops::Range<u8>) -> bool {
    let said =
        |n| agent.get(&volume(n)).is_ok_and(|status| status.export.is_some_and(|export| export.in_force));
    let waits = |n| {
        let status = agent.get(&volume(n)).unwrap();
        status.volume.is_some_and(|volume| !volume.problems.is_empty())
    };
    numbers.all(|n| said(n) || waits(n))
}

#[test]
fn exports_come_back_while_lvm_hangs() {
    let node = booted(MANY);
    node.fake.lvm().set_hanging(true);
    let agent = node.start();
    eventually("all are served", || are_served(&node, 0..MANY));
    eventually("and seen to be", || all_had_a_pass(&agent, 0..MANY));
    let status = agent.get(&volume(0)).unwrap();
    assert_eq!(status.volume.unwrap().phase(), v1::Phase::Ready);
    assert!(status.export.unwrap().in_force);
    // Exports can be granted and revoked.
    agent.make(put_export(&volume(0), 2, &[("host2", RO)]));
    assert_eq!(node.reach(&volume(0)), ["host2 ro"]);
    agent.crash();
    // The control: if nothing is remembered, nothing is served.
    node.forget_lvs();
    node.fake.reboot();
    let agent = node.start();
    eventually("each had its pass", || all_had_a_pass(&agent, 0..MANY));
    assert_eq!(node.fake.reachable(), []);
    node.fake.lvm().set_hanging(false);
    eventually("they are served when LVM answers", || are_served(&node, 1..MANY));
}

#[test]
fn who_needs_no_word_of_lvm_does_not_wait_for_those_who_do() {
    let node = booted(MANY);
    let agent = node.start();
    eventually("they are served", || are_served(&node, 0..MANY));
    let log = agent.switch.log();
    let vgs = log.iter().find(|call| call.starts_with("lvm vgs")).unwrap().clone();
    // One more volume, of which the store remembers nothing yet when the agent is killed.
    agent.make(put_volume(&volume(MANY), 1));
    agent.make(put_export(&volume(MANY), 1, &[("host1", RW), ("host2", RO)]));
    agent.crash();
    let store = mooring_agent::store::Store::open(&node.config.state_dir).unwrap();
    store.keep_whole_lvs(vec![(volume(MANY).parse().unwrap(), None)]).unwrap();
    drop(store);
    node.fake.reboot();
    // LVM is asked at once, even before the first export is made; and it takes its time.
    let switch = Switch::new(&node.fake, None);
    switch.pause_before(&vgs);
    let agent = node.start_on(switch);
    eventually("LVM is asked", || agent.switch.paused().is_some());
    eventually("the others are served", || are_served(&node, 0..MANY));
    assert_eq!(node.reach(&volume(MANY)), Vec::<String>::new());
    agent.switch.go_on();
    eventually("the last one is served", || are_served(&node, MANY..MANY + 1));
}

#[test]
fn a_device_that_is_not_the_lv_waits_for_lvm() {
    let node = booted(MANY);
    let fakes = node.fake.lvm();
    // Somebody made LVs again under these names: one that is not zeroed, and one without our tag. A
    // third LV is larger than before.
    for (n, tags) in [(0, &["mooring", "mooring-unzeroed"][..]), (1, &[])] {
        fakes.lose_volume("vg0", &format!("mooring-{}", volume(n)));
        assert!(fakes.add_volume("vg0", &format!("mooring-{}", volume(n)), SIZE, tags));
    }
    node.lvm(&format!("lvextend --yes --alloc normal --extents +2 {} /dev/sdb:100-101", lv(2)));
    node.lvm(&format!("lvchange --activate n {}", lv(3)));
    fakes.set_hanging(true);
    let agent = node.start();
    eventually("the others are served", || are_served(&node, 4..MANY));
    eventually("each had its pass", || all_had_a_pass(&agent, 0..MANY));
    for n in 0..4 {
        assert_eq!(node.reach(&volume(n)), Vec::<String>::new(), "{n}");
    }
    fakes.set_hanging(false);
    // An LV of ours is finished and served. A foreign one is not, and is reported.
    eventually("those that can be are served", || [0, 3].iter().all(|n| node.reach(&volume(*n)).len() == 2));
    assert!(agent.switch.opened().contains(&(format!("/dev/{}", lv(0)), true)), "it was zeroed before");
    for (n, words) in [(1, "without the tag mooring"), (2, "a volume never shrinks")] {
        eventually("it is said what is the matter", || {
            let problems = agent.get(&volume(n)).unwrap().volume.unwrap().problems;
            problems.iter().any(|problem| problem.text.contains(words))
        });
        assert_eq!(node.reach(&volume(n)), Vec::<String>::new());
    }
}

#[test]
fn a_tag_removed_while_no_agent_ran_is_restored_after_the_first_look() {
    let node = booted(MANY);
    node.lvm(&format!("lvchange --deltag mooring {}", lv(0)));
    let agent = node.start();
    // The device is the remembered LV, and its identity is unchanged.
    eventually("all are served", || are_served(&node, 0..MANY));
    eventually("it has its tag", || tags(&node, &volume(0)).contains("mooring\""));
    eventually("it is ready", || agent.get(&volume(0)).unwrap().volume.unwrap().phase() == v1::Phase::Ready);
    agent.remembers(usize::from(MANY));
}

#[test]
fn what_lvm_says_otherwise_is_drift_and_is_not_believed_again() {
    let node = booted(MANY);
    // Somebody is about to change the LV, and marks this with a tag of ours.
    node.lvm(&format!("lvchange --addtag mooring-unzeroed {}", lv(0)));
    node.fake.lvm().fail_next("lvchange", 5, "Command failed.");
    let agent = node.start();
    eventually("all others are served", || are_served(&node, 1..MANY));
    agent.remembers(usize::from(MANY) - 1);
    agent.crash();
    node.fake.reboot();
    node.fake.lvm().set_hanging(true);
    let agent = node.start();
    eventually("the others are served", || are_served(&node, 1..MANY));
    eventually("each had its pass", || all_had_a_pass(&agent, 0..MANY));
    assert_eq!(node.reach(&volume(0)), Vec::<String>::new());
}

#[test]
fn what_a_look_has_shown_is_written_once() {
    let node = booted(MANY);
    let agent = node.start();
    eventually("they are served", || are_served(&node, 0..MANY));
    let commits = || agent.engine().store().commits();
    let before = commits();
    agent.make(put_volume(&volume(MANY), 1));
    agent.remembers(usize::from(MANY) + 1);
    // The volume's spec, and the knowledge of its LV. The looks of the start have written nothing.
    assert_eq!(commits() - before, 2);
}

/// Returns an LV's tags, as LVM lists them.
pub(crate) fn tags(node: &Node, id: &str) -> String {
    let lvs = node.lvs();
    let at = lvs.find(&format!("mooring-{id}\"")).map_or("", |at| &lvs[at..]);
    at.split('}').next().unwrap_or_default().to_owned()
}

/// An agent with a volume that is zeroed, served, remembered, and then granted to nobody.
fn about_to_be_doomed(node: &Node, v: &str) -> Agent {
    let agent = node.start();
    agent.make(put_volume(v, 1));
    agent.make(put_export(v, 1, &[("host1", RW)]));
    agent.remembers(1);
    agent.make(put_export(v, 2, &[]));
    agent.switch.forget_log();
    agent
}

/// Returns the numbers (from 1) of a deletion's changes, beginning where the volume's blocks are
/// about to be wiped.
fn changes_of_a_deletion() -> Vec<u64> {
    let (node, v) = (Node::new(), volume(1));
    let agent = about_to_be_doomed(&node, &v);
    agent.make(delete_volume(&v, 2));
    let looks =
        ["read ", "list ", "readlink ", "lvm vgs", "lvm lvs", "mapped ", "size ", "discards ", "flush "];
    let changes: Vec<_> = agent.switch.log();
    let changes = changes.iter().filter(|call| !looks.iter().any(|look| call.starts_with(look)));
    let numbered: Vec<_> = (1..).zip(changes).collect();
    let wiped = numbered.iter().position(|(_, call)| call.contains("--addtag mooring-unzeroed")).unwrap();
    numbered[wiped..].iter().map(|(number, _)| *number).collect()
}

/// Kills the agent of such a volume after change `doom` of its deletion. Then cancels the deletion,
/// and kills the next agent before change `calling_off` of its own; 0 does not kill it.
///
/// Returns whether that agent has accepted the specs and was not killed, and whether the volume is
/// served after the next boot, by an agent whose LVM hangs.
fn called_off(doom: u64, calling_off: u64) -> (bool, bool) {
    let (node, v) = (Node::new(), volume(1));
    let agent = about_to_be_doomed(&node, &v);
    agent.switch.kill_from_now(Kill::After(doom));
    let (mut client, delete) = (agent.client(), delete_volume(&v, 2));
    drop(agent.spawn(async move { client.put_volume(delete).await }));
    eventually("it is killed", || agent.switch.is_dead());
    agent.crash();
    let mut taken = false;
    let agent = node.start_with((calling_off > 0).then_some(Kill::Before(calling_off)));
    if agent.is_up() {
        let mut client = agent.client();
        let (volume, export) = (put_volume(&v, 3), put_export(&v, 3, &[("host1", RW)]));
        let sent = agent.spawn(async move {
            let taken = client.put_volume(volume).await;
            (taken, client.put_export(export).await)
        });
        eventually("it is killed, or done", || agent.switch.is_dead() || sent.is_finished());
        if !agent.switch.is_dead() {
            // While the LV is being removed, the agent refuses the specs.
            taken = agent.wait(sent).unwrap().1.is_ok();
            agent.remembers(usize::from(taken));
        }
    }
    agent.crash();
    node.fake.reboot();
    node.fake.lvm().set_hanging(true);
    let agent = node.start();
    // The start has looked at devices, and has asked LVM in vain. Each known volume has had its
    // pass.
    eventually("it had its pass, or is not wanted", || {
        agent.get(&v).map_or(true, |status| status.export.is_none() || all_had_a_pass(&agent, 1..2))
    });
    let served = !node.reach(&v).is_empty();
    node.fake.lvm().set_hanging(false);
    let at = format!("doomed at {doom}, called off until {calling_off}");
    assert!(!served || !tags(&node, &v).contains("unzeroed"), "{at}: {}", node.lvs());
    for (device, zeroed) in agent.switch.opened() {
        assert!(zeroed, "{at}: {device} is exported with old data");
    }
    (taken, served)
}

#[test]
fn a_deletion_that_was_called_off_leaves_nothing_that_is_believed() {
    let changes = changes_of_a_deletion();
    let ends: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (changes.iter())
            .flat_map(|doom| (0..6).map(|calling_off| (*doom, calling_off)))
            .map(|(doom, calling_off)| scope.spawn(move || called_off(doom, calling_off)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    // The control: an agent that was not killed has made the volume whole again, and remembers
    // that.
    assert!(ends.contains(&(true, true)) && ends.contains(&(false, false)), "{ends:?}");
    assert!(!ends.contains(&(true, false)), "{ends:?}");
}

#[test]
fn what_is_remembered_of_another_spec_is_worth_nothing() {
    let node = booted(MANY);
    let store = mooring_agent::store::Store::open(&node.config.state_dir).unwrap();
    let ids: Vec<mooring_model::VolumeId> = (0..3).map(|n| volume(n).parse().unwrap()).collect();
    let rows = store.whole_lvs().unwrap().into_iter().filter(|(volume, ..)| ids.contains(volume));
    // Knowledge of an earlier spec, of a later one, and of one of another database of the
    // controller.
    let rows = rows.map(|(volume, mut generation, whole)| {
        match ids.iter().position(|id| *id == volume) {
            Some(0) => generation.counter -= 1,
            Some(1) => generation.counter += 1,
            _ => generation.epoch -= 1,
        }
        (volume, Some((generation, whole)))
    });
    store.keep_whole_lvs(rows.collect()).unwrap();
    drop(store);
    node.fake.lvm().set_hanging(true);
    let agent = node.start();
    eventually("the others are served", || are_served(&node, 3..MANY));
    eventually("each had its pass", || all_had_a_pass(&agent, 0..MANY));
    for n in 0..3 {
        assert_eq!(node.reach(&volume(n)), Vec::<String>::new(), "{n}");
    }
    agent.remembers(usize::from(MANY) - 3);
}
