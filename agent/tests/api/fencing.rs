//! Generations: an older one, or the same one with another content, is refused; a repetition
//! succeeds.

use mooring_api::v1;
use tonic::Code;

use crate::rig::*;

#[test]
fn stale_and_conflicting_generations_are_aborted_and_change_nothing() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 2));
    agent.make(put_export(&v, 5, &[("host1", RW)]));
    let (tree, changes) = (node.tree(), agent.switch.changes());

    assert_refused(agent.put_volume(put_volume(&v, 1)), Code::Aborted, "retry", &[&v, "1.1", "1.2"]);
    let stale = agent.put_export(put_export(&v, 4, &[("host2", RW)]));
    assert_refused(stale, Code::Aborted, "retry", &["the export of volume", &v, "1.4", "1.5"]);
    let conflict = agent.put_export(put_export(&v, 5, &[("host2", RW)]));
    assert_refused(conflict, Code::Aborted, "fix_spec", &[&v, "1.5", "another content"]);
    let mut conflict = put_volume(&v, 2);
    conflict.stamp.as_mut().unwrap().digest[0] ^= 1;
    assert_refused(agent.put_volume(conflict), Code::Aborted, "fix_spec", &[&v, "another content"]);

    assert_eq!((node.tree(), agent.switch.changes()), (tree, changes));
    assert_eq!(node.reach(&v), ["host1 rw"]);
}

#[test]
fn the_very_same_again_has_the_same_answer_and_writes_nothing() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RW)]));
    let first = agent.put_export(put_export(&v, 2, &[("host2", RW)])).unwrap();
    // Expected differences: the duration, and whether and when the sessions were looked at
    // meanwhile.
    let as_first = |mut again: v1::PutExportResponse| {
        again.timing.clone_from(&first.timing);
        let (report, first) = (again.report.as_mut().unwrap(), first.report.as_ref().unwrap());
        (report.looked_us, report.unlisted_sessions) = (first.looked_us, first.unlisted_sessions);
        again
    };
    let changes = agent.switch.changes();
    let again = as_first(agent.put_export(put_export(&v, 2, &[("host2", RW)])).unwrap());
    assert_eq!(again, first, "receipts included");
    let volume_answer = agent.put_volume(put_volume(&v, 1)).unwrap();
    assert!(volume_answer.done);
    assert_eq!(agent.switch.changes(), changes);
    // The agent's successor answers in the same way.
    agent.crash();
    let agent = node.start();
    let mut again = as_first(agent.put_export(put_export(&v, 2, &[("host2", RW)])).unwrap());
    // The proof was not stored yet: the successor gets it from the kernel, later.
    assert!(again.receipts[0].ended_us >= first.receipts[0].ended_us);
    again.receipts[0].ended_us = first.receipts[0].ended_us;
    assert_eq!(again, first);
    assert_eq!(agent.switch.changes(), 1, "the fabric's folder, which is there: {:?}", agent.switch.log());
}

#[test]
fn a_retry_is_answered_by_a_fresh_look_and_not_by_an_old_one() {
    let (node, v) = (Node::new(), volume(1));
    // Nothing but the retry sees what is done by hand.
    node.fake.set_watches_max(0);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    // Somebody has taken the target down behind our back.
    let acl = format!("iscsi/{}/tpgt_1/acls/{}", target(&v), iqn("host1"));
    for step in ["/lun_1/mooring", "/lun_1", ""] {
        let path = mooring_host::TreePath::new(&format!("{acl}{step}"));
        let lio = node.fake.lio();
        let done = if step.ends_with("mooring") {
            mooring_host::Tree::unlink(&lio, &path)
        } else {
            mooring_host::Tree::rmdir(&lio, &path)
        };
        done.unwrap();
    }
    assert_eq!(node.fake.reachable(), []);
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    assert_eq!(node.reach(&v), ["host1 rw"], "done was said of what is in force now");
}

#[test]
fn nothing_older_than_a_tombstone_comes_back() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    agent.make(delete_export(&v, 2));
    assert_refused(agent.put_export(put_export(&v, 1, &[("host1", RW)])), Code::Aborted, "retry", &[&v]);
    assert_eq!(node.fake.reachable(), []);
    agent.make(delete_volume(&v, 2));
    assert_refused(agent.put_volume(put_volume(&v, 1)), Code::Aborted, "retry", &[&v]);
    node.assert_nothing_left(&v);
    // A restart does not bring it back either; newer generations are accepted.
    agent.crash();
    let agent = node.start();
    assert_refused(agent.put_volume(put_volume(&v, 1)), Code::Aborted, "retry", &[&v]);
    agent.make(put_volume(&v, 3));
    agent.make(put_export(&v, 3, &[("host1", RO)]));
    assert_eq!(node.reach(&v), ["host1 ro"]);
}

#[test]
fn an_epoch_beats_every_counter() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1_000_000, &[("host1", RW)]));
    let with_epoch = |epoch, counter, grants: &[(&str, v1::Mode)]| {
        let mut put = put_export(&v, counter, grants);
        put.stamp.as_mut().unwrap().generation = Some(v1::Generation { epoch, counter });
        put
    };
    agent.make(with_epoch(2, 1, &[("host2", RW)]));
    assert_eq!(node.reach(&v), ["host2 rw"]);
    let old = agent.put_export(with_epoch(1, u64::MAX, &[("host1", RW)]));
    assert_refused(old, Code::Aborted, "retry", &["2.1"]);
    agent.make(with_epoch(u64::MAX, u64::MAX, &[("host3", RW)]));
    assert_eq!(node.reach(&v), ["host3 rw"]);
}

/// The rows whose test is in this file. The library's tests have the others.
#[cfg(feature = "faults")]
#[test]
fn each_test_of_fencing_sees_the_reason_of_its_row() {
    assert_eq!(crate::stale::unseen(|module| module == "fencing"), (2, Vec::new()));
}
