//! Agents killed at every step: the successor looks, plans, and ends where the specs say.
//! Acknowledged changes hold. At no step does an initiator reach a volume without a grant, and no
//! LV is exported that is not zeroed. Deleted volumes are wiped as their group says.

use std::collections::BTreeSet;

use crate::rig::*;
use crate::switch::{Blocks, Kill};

/// One step of the cycle, and the initiators that may reach the volume after it.
struct Step {
    put: Put,
    reach: &'static [&'static str],
}

fn cycle(v: &str) -> Vec<Step> {
    let export = |counter, grants: &[(&str, mooring_api::v1::Mode)], reach| Step {
        put: put_export(v, counter, grants).into(),
        reach,
    };
    vec![
        Step { put: put_volume(v, 1).into(), reach: &[] },
        export(1, &[("host1", RW)], &["host1 rw"]),
        export(2, &[("host1", RW), ("host2", RO)], &["host1 rw", "host2 ro"]),
        export(3, &[("host1", RO), ("host2", RW)], &["host1 ro", "host2 rw"]),
        Step {
            put: put_export_spec(v, 4, with_barrier(export_spec(&[("host1", RO), ("host2", RW)]))).into(),
            reach: &["host1 ro", "host2 rw"],
        },
        // The volume grows while its grants stay.
        Step { put: put_volume_spec(v, 2, volume_spec(2 * SIZE)).into(), reach: &["host1 ro", "host2 rw"] },
        export(5, &[("host2", RW)], &["host2 rw"]),
        export(6, &[], &[]),
        Step { put: delete_volume(v, 3).into(), reach: &[] },
    ]
}

/// Puts a barrier on the first grant.
fn with_barrier(mut spec: mooring_api::v1::ExportSpec) -> mooring_api::v1::ExportSpec {
    spec.grants[0].barrier = mooring_model::BarrierId::from_u128(1).to_string();
    spec
}

/// The cycle of changes, with grants over iSCSI and over Fibre Channel.
fn cycle_over_fc(v: &str) -> Vec<Step> {
    let export = |counter, fc: &[FcGrant], iscsi: &[(&str, mooring_api::v1::Mode)], reach| Step {
        put: put_export_spec(v, counter, over_fc(export_spec(iscsi), fc)).into(),
        reach,
    };
    vec![
        Step { put: put_volume(v, 1).into(), reach: &[] },
        export(1, &[(1, 1, RW)], &[], &["fc1 rw"]),
        export(2, &[(1, 1, RW), (2, 7, RO)], &[("host1", RW)], &["fc1 rw", "fc2 ro", "host1 rw"]),
        export(3, &[(1, 1, RO), (2, 7, RW)], &[("host1", RW)], &["fc1 ro", "fc2 rw", "host1 rw"]),
        export(4, &[(2, 8, RW)], &[("host1", RW)], &["fc2 rw", "host1 rw"]),
        export(5, &[], &[("host1", RW)], &["host1 rw"]),
        export(6, &[], &[], &[]),
        Step { put: delete_volume(v, 2).into(), reach: &[] },
    ]
}

/// Node and cycle of changes of one test.
#[derive(Clone, Copy)]
struct World {
    node: fn() -> Node,
    cycle: fn(&str) -> Vec<Step>,
    receipts: usize,
    /// State of the blocks when the LV is removed.
    wiped: Blocks,
}

const ISCSI: World = World { node: Node::new, cycle, receipts: 2, wiped: Blocks::Zeroed };
const BOTH: World = World { node: Node::with_fc, cycle: cycle_over_fc, receipts: 3, ..ISCSI };
const DISCARDED: World = World { node: || Node::with_wipe("discard"), wiped: Blocks::Discarded, ..ISCSI };
const LEFT: World = World { node: || Node::with_wipe("none"), wiped: Blocks::Data, ..ISCSI };

/// Asserts who may reach the volume while the node goes from one step to the next: an initiator
/// needs the very same access in one of the two. A mode may shrink before it is reported, and
/// nobody may have more than either step gives.
fn assert_allowed(node: &Node, v: &str, before: &[&str], after: &[&str]) {
    let allowed: BTreeSet<&str> = before.iter().chain(after).copied().collect();
    for reach in node.reach(v) {
        assert!(allowed.contains(reach.as_str()), "{reach} is neither in {before:?} nor in {after:?}");
    }
}

/// How often a change is sent again that is not done at its deadline; a busy machine may need this.
const SENT_MAX: u32 = 10;

/// Sends a change until it is acknowledged as done, or the process is dead. `true` if it was
/// acknowledged.
fn send(agent: &Agent, put: &Put) -> bool {
    let mut client = agent.client();
    let mut died = agent.switch.died();
    agent.wait(async move {
        let answers = async {
            for _ in 0..SENT_MAX {
                let done = match put.clone() {
                    Put::Volume(put) => client.put_volume(put).await.unwrap().into_inner().done,
                    Put::Export(put) => {
                        let answer = client.put_export(put).await.unwrap().into_inner();
                        answer.done && answer.receipts.iter().all(|receipt| receipt.proven)
                    }
                };
                if done {
                    return true;
                }
            }
            panic!("sent {SENT_MAX} times and not true");
        };
        tokio::select! {
            biased;
            _ = died.wait_for(|died| *died) => false,
            done = answers => done,
        }
    })
}

fn is_deletion(put: &Put) -> bool {
    use mooring_api::v1::put_volume_request::Wish;
    matches!(put, Put::Volume(put) if matches!(put.wish, Some(Wish::Tombstone(_))))
}

/// Runs the cycle with one kill. `false` if the process was never killed, because it had nothing
/// left to do.
fn run(world: World, kill: Kill, reboots: bool) -> bool {
    let (node, v) = ((world.node)(), volume(1));
    let mut agent = node.start_with(Some(kill));
    let mut killed = false;
    let mut before: &[&str] = &[];
    let assert_zeroed = |agent: &Agent| {
        for (device, zeroed) in agent.switch.opened() {
            assert!(zeroed, "{device} was exported with old data after {kill:?}");
        }
    };
    for step in (world.cycle)(&v) {
        if is_deletion(&step.put) {
            assert_zeroed(&agent);
            node.fake.blocks().fill(device(&v));
        }
        while !agent.is_up() || !send(&agent, &step.put) {
            assert!(!killed, "killed once");
            killed = true;
            assert_allowed(&node, &v, before, step.reach);
            agent.crash();
            if reboots {
                node.fake.lvm().forget_unflushed();
                node.fake.reboot();
                assert_eq!(node.fake.reachable(), []);
            }
            agent = node.start();
            assert_allowed(&node, &v, before, step.reach);
        }
        assert_eq!(node.reach(&v), step.reach, "{kill:?}");
        before = step.reach;
    }
    node.assert_nothing_left(&v);
    let removed = agent.switch.removed();
    assert!(
        removed.iter().all(|(lv, blocks)| lv.contains("-grow-") || *blocks == world.wiped),
        "{removed:?} {kill:?}"
    );
    if !killed {
        return agent.switch.is_dead();
    }
    // After any kill, nothing is left to do, and no receipt is left open.
    agent.crash();
    let agent = node.start();
    assert_eq!(agent.plan(""), mooring_api::v1::PlanResponse::default());
    let receipts = agent.get(&v).unwrap().receipts;
    assert_eq!(receipts.len(), world.receipts);
    assert!(receipts.iter().all(|receipt| receipt.proven), "{receipts:?}");
    true
}

fn at_every_step(world: World, kill: fn(u64) -> Kill, reboots: bool) {
    let mut steps = 0;
    for n in 1.. {
        if !run(world, kill(n), reboots) {
            break;
        }
        steps = n;
    }
    println!("killed at each of {steps} steps");
    assert!(steps > 50, "the cycle has more steps than {steps}");
}

#[test]
fn killed_before_every_step_the_successor_ends_as_specified() {
    at_every_step(ISCSI, Kill::Before, false);
}

#[test]
fn fc_agent_killed_before_every_step_ends_as_specified() {
    at_every_step(BOTH, Kill::Before, false);
}

#[test]
fn fc_machine_killed_at_every_step_ends_as_specified() {
    at_every_step(BOTH, Kill::After, true);
}

#[test]
fn killed_after_every_step_the_successor_ends_as_specified() {
    at_every_step(ISCSI, Kill::After, false);
}

#[test]
fn killed_with_the_whole_machine_at_every_step_it_ends_as_specified() {
    at_every_step(ISCSI, Kill::After, true);
}

#[test]
fn where_deletions_discard_killed_at_every_step_it_ends_as_specified() {
    at_every_step(DISCARDED, Kill::Before, false);
    at_every_step(DISCARDED, Kill::After, true);
}

#[test]
fn where_deletions_wipe_nothing_killed_at_every_step_it_ends_as_specified() {
    at_every_step(LEFT, Kill::Before, false);
    at_every_step(LEFT, Kill::After, true);
}

#[test]
fn an_acknowledged_revoke_never_comes_alive_again() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    agent.make(put_export(&v, 2, &[("host2", RO)]));
    agent.crash();
    let agent = node.start();
    assert_eq!(node.reach(&v), ["host2 ro"]);
    agent.crash();
    node.fake.reboot();
    let agent = node.start();
    eventually("the export is restored", || !node.fake.reachable().is_empty());
    assert_eq!(node.reach(&v), ["host2 ro"]);
    assert!(agent.get(&v).unwrap().receipts[0].proven);
}

#[test]
fn a_half_made_volume_is_zeroed_before_it_is_exported() {
    let (node, v) = (Node::new(), volume(1));
    // `lvcreate` is the first call that changes the machine after the folder of the transport.
    let agent = node.start_with(Some(Kill::After(2)));
    assert!(!send(&agent, &put_volume(&v, 1).into()));
    agent.crash();
    assert!(node.lvs().contains("mooring-unzeroed") && !node.fake.blocks().is_zeroed(device(&v)));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    assert!(node.fake.blocks().is_zeroed(device(&v)));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    assert_eq!(agent.switch.opened(), [(device(&v).display().to_string(), true)]);
}
