//! Killed at every step: the agent's successor looks, plans, and ends where the specs say. What was acknowledged holds;
//! nobody reaches a volume that its spec does not give it, at no step; nothing is exported that is not zeroed.

use std::collections::BTreeSet;

use crate::rig::*;
use crate::switch::Kill;

/// One step of the cycle, and who may reach the volume when it is true.
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
        export(4, &[("host2", RW)], &["host2 rw"]),
        export(5, &[], &[]),
        Step { put: delete_volume(v, 2).into(), reach: &[] },
    ]
}

/// Who may be able to reach the volume while the node goes from one step to the next: whoever has the very same in one
/// of them. A mode may shrink before it is reported; nobody may have more than either step gives.
fn assert_allowed(node: &Node, v: &str, before: &[&str], after: &[&str]) {
    let allowed: BTreeSet<&str> = before.iter().chain(after).copied().collect();
    for reach in node.reach(v) {
        assert!(allowed.contains(reach.as_str()), "{reach} is neither in {before:?} nor in {after:?}");
    }
}

/// Sends until it is acknowledged, or the process is dead.
fn send(agent: &Agent, put: &Put) -> bool {
    let mut client = agent.client();
    let put = put.clone();
    let mut died = agent.switch.died();
    agent.wait(async move {
        let answer = async move {
            match put {
                Put::Volume(put) => client.put_volume(put).await.map(|answer| answer.into_inner().done),
                Put::Export(put) => {
                    let answer = client.put_export(put).await.map(tonic::Response::into_inner);
                    answer.map(|answer| answer.done && answer.receipts.iter().all(|receipt| receipt.proven))
                }
            }
        };
        tokio::select! {
            biased;
            _ = died.wait_for(|died| *died) => false,
            answer = answer => {
                assert!(answer.unwrap(), "acknowledged and not true");
                true
            }
        }
    })
}

/// Runs the cycle with one kill; `false` when the process was never killed, because it had nothing left to do.
fn run(kill: Kill, reboots: bool) -> bool {
    let (node, v) = (Node::new(), volume(1));
    let mut agent = node.start_with(Some(kill));
    let mut killed = false;
    let mut before: &[&str] = &[];
    for step in cycle(&v) {
        while !agent.is_up() || !send(&agent, &step.put) {
            assert!(!killed, "killed once");
            killed = true;
            assert_allowed(&node, &v, before, step.reach);
            agent.crash();
            if reboots {
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
    for (device, zeroed) in agent.switch.opened() {
        assert!(zeroed, "{device} was exported with old data after {kill:?}");
    }
    assert!(agent.switch.removed().iter().all(|(_, zeroed)| *zeroed), "{kill:?}");
    if !killed {
        return agent.switch.is_dead();
    }
    // Whatever was killed, nothing is left to do, and no receipt is left open.
    agent.crash();
    let agent = node.start();
    assert_eq!(agent.plan(""), mooring_api::v1::PlanResponse::default());
    let receipts = agent.get(&v).unwrap().receipts;
    assert_eq!(receipts.len(), 2);
    assert!(receipts.iter().all(|receipt| receipt.proven), "{receipts:?}");
    true
}

fn at_every_step(kill: fn(u64) -> Kill, reboots: bool) {
    let mut steps = 0;
    for n in 1.. {
        if !run(kill(n), reboots) {
            break;
        }
        steps = n;
    }
    println!("killed at each of {steps} steps");
    assert!(steps > 50, "the cycle has more steps than {steps}");
}

#[test]
fn killed_before_every_step_the_successor_ends_as_specified() {
    at_every_step(Kill::Before, false);
}

#[test]
fn killed_after_every_step_the_successor_ends_as_specified() {
    at_every_step(Kill::After, false);
}

#[test]
fn killed_with_the_whole_machine_at_every_step_it_ends_as_specified() {
    at_every_step(Kill::After, true);
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
    // lvcreate is the first call that changes the machine after the fabric's folder.
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
