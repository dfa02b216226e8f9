//! Many exports after a boot: the number of looks, what is late, and the kernel's grace periods.

use std::collections::BTreeMap;

use mooring_agent::standing::Standing;
use mooring_host::{KernelTree, Tree, TreePath};

use crate::rig::*;

/// Number of exports that are made after a boot in these tests: enough to be bulk work.
pub(crate) const MANY: u8 = 24;

const HOSTS: [(&str, mooring_api::v1::Mode); 2] = [("host1", RW), ("host2", RO)];

/// A node whose `/sys` has the kernel's switch for grace periods.
pub(crate) fn node(of_group: &str) -> Node {
    let node = Node::with_group(of_group);
    std::fs::create_dir_all(node.dir.path().join("sys/kernel")).unwrap();
    std::fs::write(node.dir.path().join("sys/kernel/rcu_expedited"), "0\n").unwrap();
    node
}

fn switch(node: &Node) -> String {
    let sys = KernelTree::new(node.dir.path().join("sys"));
    sys.read_text(&TreePath::new("kernel/rcu_expedited")).unwrap()
}

fn record(node: &Node) -> std::path::PathBuf {
    node.config.run_dir.join("rcu_expedited")
}

pub(crate) fn make_in(agent: &Agent, group: &str, numbers: std::ops::Range<u8>) {
    for n in numbers {
        let spec = mooring_api::v1::VolumeSpec { group: group.to_owned(), ..volume_spec(SIZE) };
        agent.make(put_volume_spec(&volume(n), 1, spec));
        agent.make(put_export(&volume(n), 1, &HOSTS));
    }
}

pub(crate) fn are_served(node: &Node, numbers: std::ops::Range<u8>) -> bool {
    are_served_from(node, "vg0", numbers)
}

/// True if both hosts reach each of these volumes.
fn are_served_from(node: &Node, group: &str, mut numbers: std::ops::Range<u8>) -> bool {
    let reachable = node.fake.reachable();
    numbers.all(|n| {
        let device = std::path::PathBuf::from(format!("/dev/{group}/mooring-{}", volume(n)));
        reachable.iter().filter(|reach| reach.device == device).count() == HOSTS.len()
    })
}

/// True if the bulk work of an agent has begun and ended: the agent has written the switch twice
/// more.
fn bulk_has_ended(node: &Node, writes_before: u64) -> bool {
    node.sys.mutations() == writes_before + 2 && !record(node).exists()
}

/// Knowledge of the LVs that the agent has after the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// The agent has seen the LVs whole before the boot.
    Kept,
    /// The agent must ask LVM first.
    Lost,
}

/// Boots a node with `count` exports. Returns every call until all of them are served, without
/// those of the pulse.
fn calls_of_a_boot(count: u8, memory: Memory) -> Vec<String> {
    let node = node("");
    let agent = node.start();
    make_in(&agent, "vg0", 0..count);
    assert_eq!(node.sys.mutations(), 0, "no single grant touches the switch");
    agent.remembers(count.into());
    agent.crash();
    if memory == Memory::Lost {
        node.forget_lvs();
    }
    node.fake.reboot();
    let agent = node.start();
    eventually("the bulk work ends", || bulk_has_ended(&node, 0));
    assert!(are_served(&node, 0..count));
    // Last call of a pass that has looked at an export: reservations are read after the look.
    let looked = |n: u8, log: &[String]| {
        log.iter().any(|call| call.contains(&volume(n)) && call.ends_with("/pr/res_holder"))
    };
    eventually("all are looked at", || {
        let log = agent.switch.log();
        (0..count).all(|n| looked(n, &log))
    });
    eventually("LVM is asked", || agent.switch.log().iter().any(|call| call.starts_with("lvm lvs")));
    eventually("no export waits for its pass", || {
        let standing = Standing::of(&agent.engine(), None);
        standing.waiting == 0 && standing.restored.is_none()
    });
    // A pass still reads reservations after its look, so the last look in the log is not yet the
    // end.
    eventually("nothing more comes", || {
        let calls = agent.switch.log().len();
        std::thread::sleep(std::time::Duration::from_millis(250));
        agent.switch.log().len() == calls
    });
    let of_the_pulse =
        |call: &String| call.contains("/statistics/") || call.ends_with("/info") && call.contains("/acls/");
    agent.switch.log().into_iter().filter(|call| !of_the_pulse(call)).collect()
}

#[test]
fn a_boot_looks_at_each_object_at_most_twice_and_asks_lvm_once() {
    for memory in [Memory::Kept, Memory::Lost] {
        let calls = calls_of_a_boot(MANY, memory);
        let mut looks = BTreeMap::<_, u32>::new();
        for call in &calls {
            let look = ["read ", "list ", "readlink ", "mapped "].iter().any(|look| call.starts_with(look));
            // A pass looks into shared folders once for each export.
            if look && (0..MANY).any(|n| call.contains(&volume(n))) {
                *looks.entry(call.as_str()).or_default() += 1;
            }
        }
        let most = looks.iter().max_by_key(|(_, count)| **count).unwrap();
        assert_eq!(*most.1, 2, "{most:?}");
        let lvm: Vec<_> = calls.iter().filter(|call| call.starts_with("lvm ")).collect();
        assert_eq!(lvm.len(), 2, "{lvm:?}");
        // Each device is looked at once if the agent remembers its LV, and otherwise never.
        let devices: Vec<_> = looks.iter().filter(|(call, _)| call.starts_with("mapped ")).collect();
        let expected = if memory == Memory::Kept { usize::from(MANY) } else { 0 };
        assert_eq!(devices.len(), expected, "{memory:?}");
        assert!(devices.iter().all(|(_, count)| **count == 1), "{devices:?}");
    }
}

fn last_enable(calls: &[String]) -> Option<usize> {
    calls.iter().rposition(|call| call.starts_with("write iscsi/") && call.ends_with("/tpgt_1/enable"))
}

#[test]
fn exports_are_made_before_any_of_them_is_looked_at_again() {
    for memory in [Memory::Kept, Memory::Lost] {
        let calls = calls_of_a_boot(3 * MANY, memory);
        let made = last_enable(&calls).unwrap();
        let looked = |call: &&String| call.starts_with("list iscsi/") && call.ends_with("/acls");
        assert_eq!(calls[..made].iter().filter(looked).count(), 0);
        assert_eq!(calls.iter().filter(looked).count(), usize::from(3 * MANY));
    }
}

#[test]
fn lvm_is_asked_after_the_exports_unless_all_of_them_wait_for_it() {
    let asked = |calls: &[String]| calls.iter().position(|call| call.starts_with("lvm "));
    let calls = calls_of_a_boot(MANY, Memory::Kept);
    assert!(asked(&calls) > last_enable(&calls), "{calls:?}");
    let calls = calls_of_a_boot(MANY, Memory::Lost);
    assert!(asked(&calls) < calls.iter().position(|call| call.starts_with("mkdir iscsi/")), "{calls:?}");
}

#[test]
fn the_cost_of_a_boot_is_linear() {
    // Looks at the whole node also come by the clock. Their number does not depend on the number of
    // volumes.
    let of_the_node = |call: &String| {
        ["read dbroot", "read version", "list iscsi"].contains(&call.as_str()) || call.starts_with("lvm ")
    };
    // A resync by the clock reads the reservations of the exports that are watched by then.
    let of_reservations = |call: &String| call.contains("/pr/");
    for memory in [Memory::Kept, Memory::Lost] {
        let [one, two, three] = [1, 2, 3].map(|times| {
            let calls = calls_of_a_boot(times * MANY, memory).into_iter();
            let calls = calls.filter(|call| !of_reservations(call));
            let (node, volumes): (Vec<_>, Vec<_>) = calls.partition(of_the_node);
            assert!(node.len() < usize::from(MANY), "{node:?}");
            volumes.len()
        });
        assert_eq!(two - one, three - two, "{memory:?}: {one} {two} {three}");
    }
}

#[test]
fn grace_periods_are_short_while_many_exports_are_made() {
    let node = node("");
    let agent = node.start();
    make_in(&agent, "vg0", 0..MANY);
    agent.crash();
    // Nothing is missing in the kernel, so this start is no bulk work.
    node.start().make(put_export(&volume(0), 2, &[("host2", RO)]));
    assert_eq!((node.sys.mutations(), switch(&node).as_str()), (0, "0"));
    node.fake.reboot();
    let agent = node.start_with(None);
    eventually("the bulk work ends", || bulk_has_ended(&node, 0));
    assert!(are_served(&node, 1..MANY));
    assert_eq!(switch(&node), "0");
    drop(agent);
    // A few missing exports are no bulk work either.
    let few = self::node("");
    make_in(&few.start(), "vg0", 0..4);
    few.fake.reboot();
    let _agent = few.start();
    eventually("they are served", || are_served(&few, 0..4));
    assert_eq!(few.sys.mutations(), 0);
}

#[test]
fn killed_in_the_middle_its_successor_puts_grace_periods_back() {
    let node = node("");
    let agent = node.start();
    make_in(&agent, "vg0", 0..MANY);
    let changes = agent.switch.changes();
    agent.crash();
    node.fake.reboot();
    // The kill falls between the steps of one export.
    let agent = node.start_with(Some(crate::switch::Kill::Before(changes / 4)));
    eventually("it dies", || agent.switch.is_dead());
    assert_eq!((switch(&node).as_str(), record(&node).exists()), ("1", true));
    agent.crash();
    // The successor has no bulk work, because its database is gone.
    std::fs::remove_dir_all(&node.config.state_dir).unwrap();
    let _agent = node.start();
    assert_eq!((switch(&node).as_str(), record(&node).exists()), ("0", false));
}

#[test]
fn what_somebody_else_has_switched_on_stays_on() {
    let node = node("");
    let agent = node.start();
    make_in(&agent, "vg0", 0..MANY);
    agent.crash();
    node.fake.reboot();
    std::fs::write(node.dir.path().join("sys/kernel/rcu_expedited"), "1\n").unwrap();
    let _agent = node.start();
    eventually("they are served", || are_served(&node, 0..MANY));
    assert_eq!((node.sys.mutations(), switch(&node).as_str()), (0, "1"));
}

#[test]
fn a_late_volume_group_delays_nobody_and_is_served_when_it_comes() {
    let node = node("[[groups]]\nname = \"vg1\"\n");
    node.fake.add_vg("vg1", 1024 * MIB);
    let agent = node.start();
    make_in(&agent, "vg0", 0..MANY);
    make_in(&agent, "vg1", MANY..2 * MANY);
    agent.crash();
    node.fake.reboot();
    node.fake.lvm().hide_group("vg1");
    let agent = node.start();
    eventually("the others are served", || bulk_has_ended(&node, 0) && are_served(&node, 0..MANY));
    eventually("it is said which group is late", || {
        let problems = agent.get(&volume(MANY)).unwrap().volume.unwrap().problems;
        problems.iter().any(|problem| problem.text.contains("vg1"))
    });
    // The agent asks LVM for all late volumes together, not for one after another.
    eventually("it is looked for again", || {
        agent.switch.log().iter().filter(|call| call.starts_with("lvm vgs")).count() > 2
    });
    let one = (MANY..2 * MANY)
        .map(volume)
        .find(|id| agent.switch.log().iter().any(|call| call.starts_with("lvm lvs") && call.contains(id)));
    assert_eq!(one, None);
    node.fake.lvm().show_group("vg1");
    eventually("the late ones are served", || are_served_from(&node, "vg1", MANY..2 * MANY));
    let log = agent.switch.log();
    let activations = log.iter().filter(|call| call.starts_with("lvm lvchange")).count();
    assert_eq!(activations, 1, "all of them by one command");
    eventually("grace periods are normal", || bulk_has_ended(&node, 2));
}

#[test]
fn without_autoactivation_one_command_activates_all() {
    let node = node("");
    let agent = node.start();
    make_in(&agent, "vg0", 0..MANY);
    agent.crash();
    node.fake.set_autoactivation(false);
    node.fake.reboot();
    let agent = node.start();
    eventually("they are served", || bulk_has_ended(&node, 0) && are_served(&node, 0..MANY));
    let log = agent.switch.log();
    let lvm: Vec<_> = log.iter().filter(|call| call.starts_with("lvm ")).map(|call| &call[..10]).collect();
    assert_eq!(lvm, ["lvm vgs --", "lvm lvs --", "lvm lvchan", "lvm vgs --", "lvm lvs --"]);
}
