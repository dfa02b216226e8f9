//! Cost of one change of grants, counted: looks at the kernel's tree, changes in it, LVM commands,
//! syncs of the store, and hand-overs to other threads. A counted cost cannot grow unnoticed: a
//! changed number is a changed promise.

use crate::rig::*;

/// Cost of one change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Reads, listings and links that were followed.
    looks: usize,
    /// Calls that change the tree.
    changes: usize,
    lvm: usize,
    /// Commits of the store; each of them is one sync.
    syncs: u64,
    /// Jobs that were given to another thread.
    hand_overs: u64,
}

const fn cost(looks: usize, changes: usize) -> Cost {
    Cost { looks, changes, lvm: 0, syncs: 1, hand_overs: 1 }
}

/// True if the call is one of the pulse, which looks at sessions by the clock.
fn is_of_the_pulse(call: &str) -> bool {
    call.contains("/statistics/")
}

fn cost_of(agent: &Agent, put: mooring_api::v1::PutExportRequest) -> Cost {
    let engine = agent.engine();
    agent.switch.forget_log();
    let (syncs, hand_overs) = (engine.store().commits(), engine.hand_overs());
    let answer = agent.put_export(put).unwrap();
    assert!(answer.done, "{answer:?}");
    // The agent does not count the fake's own calls.
    let calls: Vec<_> = agent.switch.log().into_iter().filter(|call| !is_of_the_pulse(call)).collect();
    let begins =
        |words: &[&str]| calls.iter().filter(|call| words.iter().any(|word| call.starts_with(word))).count();
    Cost {
        looks: begins(&["read ", "list ", "readlink "]),
        changes: begins(&["mkdir ", "rmdir ", "symlink ", "unlink ", "write "]),
        lvm: begins(&["lvm "]),
        syncs: engine.store().commits() - syncs,
        hand_overs: engine.hand_overs() - hand_overs,
    }
}

/// Returns the smallest cost of several rounds. Some rounds also contain work that comes by the
/// clock: the pulse, and the proof of a revoke that is stored later.
fn costs_beside(others: usize) -> Vec<(&'static str, Cost)> {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let names: Vec<_> = (0..others).map(|n| format!("other{n}")).collect();
    let others: Vec<_> = names.iter().map(|name| (name.as_str(), RO)).collect();
    let with = |mode: Option<mooring_api::v1::Mode>| -> Vec<_> {
        others.iter().copied().chain(mode.map(|mode| ("host1", mode))).collect()
    };
    agent.make(put_export(&v, 1, &with(None)));
    let mut generation = 1;
    let mut all: Vec<(&str, Vec<Cost>)> = Vec::new();
    for _ in 0..5 {
        for (at, (name, mode)) in
            [("grant", Some(RO)), ("mode", Some(RW)), ("revoke", None)].into_iter().enumerate()
        {
            generation += 1;
            let cost = cost_of(&agent, put_export(&v, generation, &with(mode)));
            match all.get_mut(at) {
                Some((_, costs)) => costs.push(cost),
                None => all.push((name, vec![cost])),
            }
        }
    }
    all.into_iter().map(|(name, costs)| (name, costs.into_iter().min().unwrap())).collect()
}

#[test]
fn a_change_of_a_grant_costs_so_much() {
    let costs = costs_beside(1);
    // Two of the looks read reservations. One look of a revoke reads the sessions that it would cut
    // off.
    assert_eq!(costs, [("grant", cost(11, 6)), ("mode", cost(18, 1)), ("revoke", cost(12, 3))]);
    assert_eq!(costs, costs_beside(24), "whoever else is granted the volume");
}
