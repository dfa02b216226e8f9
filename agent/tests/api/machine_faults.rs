//! Faults of the machine: modules that are not loaded, LVM that fails or hangs, foreign objects in
//! the way, a reboot.

use std::collections::BTreeMap;

use mooring_api::v1;
use mooring_host::{Tree, TreePath};
use tonic::Code;

use crate::rig::*;
use crate::switch::Blocks;

#[test]
fn without_configfs_the_module_is_named_until_the_export_can_be_made() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    node.fake.unload_configfs();
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let answer = agent.put_export(put_export(&v, 1, &[("host1", RW)])).unwrap();
    let report = answer.report.unwrap();
    assert!(!answer.done && !report.in_force);
    let problem = report.problems.iter().find(|problem| problem.text.contains("modprobe target_core_mod"));
    assert_eq!(problem.expect("the module").cure(), v1::Cure::Operator, "{report:?}");
    node.fake.load_configfs();
    eventually("the export comes true by itself", || node.reach(&v) == ["host1 rw"]);
    eventually("and says so", || agent.get(&v).unwrap().export.unwrap().in_force);
}

#[test]
fn without_lvm_its_package_is_named() {
    let node = Node::new();
    node.fake.lvm().set_missing(true);
    let agent = node.start();
    let refused = agent.put_volume(put_volume(&volume(1), 1));
    assert_refused(refused, Code::Unavailable, "operator", &["LVM is not installed", "lvm2"]);
    assert_eq!(agent.list(), []);
}

#[test]
fn a_revoke_does_not_wait_for_lvm() {
    // The disk is ill, LVM hangs with it, and somebody wants a host off the volume: this is when it
    // matters.
    for ill in [
        |node: &Node| node.fake.lvm().set_broken(Some("  unreadable")),
        |node: &Node| {
            node.fake.lvm().set_hanging(true);
        },
    ] {
        let (node, v) = (Node::new(), volume(1));
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
        agent.crash();
        // With knowledge of the LV, the agent would not need LVM.
        node.forget_lvs();
        ill(&node);
        let agent = node.start();
        let receipts = agent.make(put_export(&v, 2, &[("host2", RO)]));
        assert!(receipts[0].proven);
        assert_eq!(node.reach(&v), ["host2 ro"]);
        // A new grant on an export that is served does not wait for LVM either.
        agent.make(put_export(&v, 3, &[("host2", RW)]));
        assert_eq!(node.reach(&v), ["host2 rw"]);
        let report = agent.get(&v).unwrap().volume.unwrap();
        assert!(report.phase() != v1::Phase::Ready && !report.problems.is_empty(), "{report:?}");
    }
}

#[test]
fn a_volume_that_is_not_ready_is_not_exported() {
    let (node, v) = (Node::new(), volume(1));
    node.fake.blocks().fail_zeroing(Some(mooring_host::Errno::EIO));
    let agent = node.start();
    let answer = agent.put_volume(put_volume(&v, 1)).unwrap();
    assert!(
        !answer.done && answer.report.unwrap().problems[0].text.contains("cannot zero /dev/vg0/mooring-")
    );
    let mut put = put_export(&v, 1, &[("host1", RW)]);
    put.deadline_ms = 3000;
    let answer = agent.put_export(put).unwrap();
    assert!(
        !answer.done
            && answer.report.is_some_and(|report| report.problems[0].text.contains("waits for the volume"))
    );
    assert!(!node.tree().contains(&v));
    node.fake.blocks().fail_zeroing(None);
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    assert_eq!(agent.switch.opened(), [(device(&v).display().to_string(), true)]);
}

#[test]
fn a_foreign_lv_under_our_name_is_refused_and_kept() {
    let (node, v) = (Node::new(), volume(1));
    node.fake.lvm().add_volume("vg0", &format!("mooring-{v}"), SIZE, &["theirs"]);
    let (agent, before) = (node.start(), node.lvs());
    let refused = agent.put_volume(put_volume(&v, 1));
    assert_refused(refused, Code::AlreadyExists, "operator", &[&v, "without the tag mooring"]);
    agent.make(delete_volume(&v, 2));
    assert_eq!(node.lvs(), before, "a tombstone does not touch it either");
}

#[test]
fn foreign_objects_under_our_target_are_named_and_not_touched() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    let lio = node.fake.lio();
    let tpg = format!("iscsi/{}/tpgt_1", target(&v));
    for path in ["iscsi".to_owned(), format!("iscsi/{}", target(&v)), tpg.clone(), format!("{tpg}/lun/lun_7")]
    {
        lio.mkdir(&TreePath::new(&path)).unwrap();
    }
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let before = node.tree();
    let answer = agent.put_export(put_export(&v, 1, &[("host1", RW)])).unwrap();
    let report = answer.report.unwrap();
    let problem = &report.problems[0];
    assert!(
        !answer.done && problem.object.ends_with("lun/lun_7") && problem.text.contains("did not make"),
        "{problem:?}"
    );
    assert_eq!(problem.cure(), v1::Cure::Operator);
    assert_eq!(node.tree(), before);
    lio.rmdir(&TreePath::new(&format!("{tpg}/lun/lun_7"))).unwrap();
    eventually("the export comes true when it is out of the way", || node.reach(&v) == ["host1 rw"]);
}

#[test]
fn a_teardown_that_was_blocked_finishes_by_itself() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[]));
    // A foreign LUN in our portal group keeps the group, the target and the volume.
    let foreign = TreePath::new(&format!("iscsi/{}/tpgt_1/lun/lun_7", target(&v)));
    node.fake.lio().mkdir(&foreign).unwrap();
    let answer = agent.put_volume(delete_volume(&v, 2)).unwrap();
    let report = answer.report.unwrap();
    assert_eq!((answer.done, report.phase()), (false, v1::Phase::Deleting));
    assert!(report.problems[0].text.contains("the kernel still exports it"), "{report:?}");
    assert!(node.lvs().contains(&v));
    node.fake.lio().rmdir(&foreign).unwrap();
    eventually("the volume is gone", || !node.lvs().contains(&v));
    node.assert_nothing_left(&v);
    assert_eq!(agent.switch.removed(), [(format!("vg0/mooring-{v}"), Blocks::Zeroed)]);
}

#[test]
fn a_failed_teardown_is_tried_again_by_itself() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[]));
    node.fake.lvm().fail_next("lvremove", 5, "  Logical volume is used by another device.\n");
    // The LV is held for a moment: the agent repeats the removal within the call.
    let answer = agent.put_volume(delete_volume(&v, 2)).unwrap();
    assert!(answer.done, "{answer:?}");
    let removals = node.fake.lvm().log().iter().filter(|call| call.contains("lvremove")).count();
    assert_eq!(removals, 2, "one that failed, one that did not");
    node.assert_nothing_left(&v);
}

#[test]
fn after_a_reboot_restoring_exports_has_a_linear_cost() {
    let cost = |count: u8| {
        let node = Node::new();
        let agent = node.start();
        for id in (1..=count).map(volume) {
            agent.make(put_volume(&id, 1));
            agent.make(put_export(&id, 1, &[("host1", RW), ("host2", RO)]));
        }
        agent.crash();
        node.fake.reboot();
        assert_eq!(node.fake.reachable(), []);
        let agent = node.start();
        let all = usize::from(count) * 2;
        eventually("the exports are back", || {
            node.fake.reachable().len() == all
                && agent
                    .list()
                    .iter()
                    .all(|status| status.export.as_ref().is_some_and(|export| export.in_force))
        });
        // Leave out the cost of the questions above.
        agent.crash();
        node.fake.reboot();
        let agent = node.start();
        eventually("the exports are back", || node.fake.reachable().len() == all);
        eventually("each was looked at again", || {
            looks(&agent.switch.log()).values().filter(|looks| **looks >= 2).count() == usize::from(count)
        });
        // A look ends with the mapped LUN of the last ACL.
        let last = format!("/{}/lun_1/write_protect", iqn("host2"));
        let is_over = |log: &[String], id: &str| {
            let of = log.iter().rfind(|call| call.contains(id) && !is_pulse(call));
            of.is_some_and(|call| call.ends_with(&last))
        };
        eventually("each look is over", || {
            let log = agent.switch.log();
            (1..=count).map(volume).all(|id| is_over(&log, &id))
        });
        let log = agent.switch.log();
        let looks = looks(&log);
        assert!(looks.values().all(|looks| *looks == 2), "{looks:?}");
        let lvm = log.iter().filter(|call| call.starts_with("lvm")).count();
        assert_eq!(lvm, 2, "one look at all groups and volumes");
        let of = |id: &str| log.iter().filter(|call| call.contains(id) && !is_pulse(call)).count();
        let each: Vec<_> = (1..=count).map(volume).map(|id| of(&id)).collect();
        assert!(each.iter().all(|calls| *calls == each[0]), "{each:?}");
        each[0]
    };
    assert_eq!(cost(3), cost(50), "calls for each volume");
}

/// True for looks at sessions and counters, which come by the clock, and for looks at reservations,
/// which follow each pass.
fn is_pulse(call: &str) -> bool {
    call.contains("/statistics/")
        || call.contains("/pr/")
        || (call.contains("/acls/") && call.ends_with("/info"))
}

/// Number of looks at each target.
fn looks(log: &[String]) -> BTreeMap<&str, u32> {
    let mut looks = BTreeMap::new();
    for call in log {
        if let Some(target) =
            call.strip_prefix("list iscsi/iqn.2026-11.dev.mooring:").filter(|rest| !rest.contains('/'))
        {
            *looks.entry(target).or_default() += 1;
        }
    }
    looks
}

#[test]
fn after_a_reboot_without_autoactivation_volumes_are_activated_and_served() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    agent.crash();
    node.fake.set_autoactivation(false);
    node.fake.reboot();
    let _agent = node.start();
    eventually("the export is back", || node.reach(&v) == ["host1 rw"]);
}

#[test]
fn a_sweep_puts_right_what_somebody_has_changed_behind_our_back() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    node.fake.set_watches_max(0);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RO)]));
    let protect = format!("iscsi/{}/tpgt_1/acls/{}/lun_1/write_protect", target(&v), iqn("host1"));
    node.fake.lio().write(&TreePath::new(&protect), b"0").unwrap();
    assert_eq!(node.reach(&v), ["host1 rw"]);
    eventually("read-only again", || node.reach(&v) == ["host1 ro"]);
}

#[test]
fn a_grant_costs_the_same_with_one_attachment_and_with_many() {
    let cost = |hosts: usize, others: u8| {
        let (node, v) = (Node::new(), volume(1));
        let agent = node.start();
        for id in (2..2 + others).map(volume) {
            agent.make(put_volume(&id, 1));
            agent.make(put_export(&id, 1, &[("host1", RW)]));
        }
        let names: Vec<String> = (0..=hosts).map(|n| format!("h{n}")).collect();
        let mut grants: Vec<(&str, v1::Mode)> =
            names[..hosts].iter().map(|name| (name.as_str(), RO)).collect();
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &grants));
        // The smallest of several runs leaves out the pulse, and other work by the clock.
        let calls = |generation: u64, grants: &[(&str, v1::Mode)]| {
            agent.switch.forget_log();
            agent.make(put_export(&v, generation, grants));
            agent.switch.log().len()
        };
        let mut least = (usize::MAX, usize::MAX);
        for round in 1..=4 {
            grants.push((&names[hosts], RW));
            least.0 = least.0.min(calls(2 * round, &grants));
            grants.pop();
            least.1 = least.1.min(calls(2 * round + 1, &grants));
        }
        least
    };
    assert_eq!(cost(1, 0), cost(30, 10), "calls for a grant and for a revoke");
}

#[test]
fn a_lost_state_folder_is_noticed_and_nothing_more_is_taken() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let session = node.login(&v, "host1").unwrap();
    let (folder, aside) = (&node.config.state_dir, node.config.state_dir.with_extension("aside"));
    std::fs::rename(folder, &aside).unwrap();
    let texts = ["is not there any more", "restart the agent", folder.to_str().unwrap()];
    let refused = || {
        assert_refused(agent.put_export(put_export(&v, 2, &[])), Code::Unavailable, "operator", &texts);
        assert_refused(agent.put_volume(put_volume(&volume(2), 1)), Code::Unavailable, "operator", &texts);
        assert!(node.fake.is_live(session));
    };
    refused();
    // The report of the export and the report of the host both say this.
    let export = agent.get(&v).unwrap().export.unwrap();
    assert!(export.problems.iter().any(|problem| problem.text.contains(texts[0])), "{export:?}");
    let told = agent.capabilities().problems;
    assert!(told.iter().any(|problem| problem.text.contains(texts[0])), "{told:?}");
    eventually("the log says so", || logs().contains("no change is taken any more"));
    // Another folder in its place is not accepted.
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("mooring-agent.db"), "").unwrap();
    refused();
    // After the folder is restored, nothing of the refused changes is stored, and everything goes
    // on.
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::rename(&aside, folder).unwrap();
    let receipts = agent.make(put_export(&v, 2, &[]));
    assert!(receipts[0].proven && receipts[0].sessions_cut.len() == 1, "{receipts:?}");
    assert_eq!(agent.get(&v).unwrap().export.unwrap().problems, []);
    assert_eq!(agent.capabilities().problems, []);
}
