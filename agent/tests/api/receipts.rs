//! Receipts: proven when the kernel's draining call has returned, and not a moment before. Until
//! then this volume is in quarantine, and no other one.

use mooring_api::v1;
use tokio_stream::StreamExt;
use tonic::Code;

use crate::rig::*;
use crate::switch::Kill;

/// The quarantine begins after the agent's own deadline, which is as short as possible here.
const QUICK: &str = "answer_deadline_ms = 100";

/// A volume whose first host was revoked with `writes` writes in flight to a disk that does not
/// answer.
fn revoked_on_a_dead_disk(writes: usize) -> (Node, Agent, String, v1::PutExportResponse) {
    let (node, v) = (Node::with(QUICK), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    let one = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    for _ in 0..writes {
        node.fake.start_write(one, 1).unwrap();
    }
    let answer = agent.put_export(brief(put_export(&v, 2, &[("host2", RO)]))).unwrap();
    (node, agent, v, answer)
}

#[test]
fn with_a_dead_disk_the_answer_comes_at_the_deadline_and_proves_nothing() {
    let (node, agent, v, answer) = revoked_on_a_dead_disk(8);
    assert!(!answer.done && answer.report.as_ref().is_some_and(|report| !report.in_force));
    let [receipt] = answer.receipts.as_slice() else { panic!("{answer:?}") };
    assert!(!receipt.proven && receipt.ended_us == 0);
    assert_eq!((receipt.may_still_land, receipt.sessions_cut.len()), (8, 1));
    assert_eq!(node.fake.in_flight(device(&v)), 8);

    let mut reports = agent.watch();
    node.fake.release(device(&v));
    let proven = agent.wait(async {
        loop {
            let report = reports.next().await.unwrap().unwrap();
            if let Some(v1::report::What::Receipt(receipt)) = report.what
                && receipt.proven
            {
                return receipt;
            }
        }
    });
    assert_eq!((proven.initiator.as_str(), proven.may_still_land), (iqn("host1").as_str(), 0));
    assert!(proven.ended_us > 0);
    assert_eq!(agent.get(&v).unwrap().receipts, [proven]);
    assert_eq!(node.fake.landed(device(&v)), 8, "what was in flight has landed, and before the proof");
    assert_eq!(node.reach(&v), ["host2 ro"]);
}

#[test]
fn a_clock_that_is_set_back_ends_no_quarantine() {
    let (node, agent, v, _) = revoked_on_a_dead_disk(1);
    node.clock.set_back(7_200);
    let writer = || agent.put_export(put_export(&v, 3, &[("host2", RO), ("host3", RW)]));
    // Wait until the deadline of an answer has passed.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_refused(writer(), Code::FailedPrecondition, "retry", &[v.as_str(), "quarantined"]);
    // A quarantine from before the agent's start holds, too.
    agent.crash();
    let agent = node.start();
    let writer = agent.put_export(put_export(&v, 3, &[("host2", RO), ("host3", RW)]));
    assert_refused(writer, Code::FailedPrecondition, "retry", &[v.as_str(), "quarantined"]);
    node.fake.release(device(&v));
    eventually("the end of the quarantine", || {
        agent.put_export(put_export(&v, 3, &[("host2", RO), ("host3", RW)])).is_ok()
    });
}

#[test]
fn a_quarantined_volume_takes_no_new_writer_and_other_volumes_do() {
    let (node, agent, v, _) = revoked_on_a_dead_disk(1);
    eventually("the quarantine", || {
        let refused = agent.put_export(put_export(&v, 3, &[("host2", RO), ("host3", RW)]));
        refused.is_err_and(|status| status.code() == Code::FailedPrecondition)
    });
    let writer = agent.put_export(put_export(&v, 3, &[("host2", RO), ("host3", RW)]));
    let words = &[v.as_str(), "quarantined", &iqn("host1"), &iqn("host3")];
    assert_refused(writer, Code::FailedPrecondition, "retry", words);
    let promoted = agent.put_export(put_export(&v, 3, &[("host2", RW)]));
    assert_refused(promoted, Code::FailedPrecondition, "retry", &["quarantined"]);

    let w = volume(2);
    agent.make(put_volume(&w, 1));
    agent.make(put_export(&w, 1, &[("host3", RW)]));
    assert_eq!(node.reach(&w), ["host3 rw"]);

    let reader = agent.put_export(brief(put_export(&v, 3, &[("host2", RO), ("host3", RO)]))).unwrap();
    assert!(!reader.done, "durable; true as soon as the kernel's call has returned");
    node.fake.release(device(&v));
    eventually("the reader is in", || node.reach(&v) == ["host2 ro", "host3 ro"]);
    eventually("the end of the quarantine", || {
        agent.put_export(put_export(&v, 4, &[("host2", RO), ("host3", RW)])).is_ok()
    });
    eventually("the writer is in", || node.reach(&v) == ["host2 ro", "host3 rw"]);
}

#[test]
fn a_second_revoke_is_taken_while_the_first_hangs() {
    let (node, agent, v, _) = revoked_on_a_dead_disk(1);
    let mut put = put_export(&v, 3, &[]);
    put.deadline_ms = 3000;
    let answer = agent.put_export(put).unwrap();
    assert!(!answer.done && !answer.receipts[0].proven, "{answer:?}");
    // Nobody could look at the nexus, so the receipt does not say that no command may land.
    assert_eq!((answer.receipts[0].initiator.clone(), answer.receipts[0].uncounted), (iqn("host2"), true));
    // The revoke is unproven, and yet shuts the initiator out: it does not wait for the other
    // revoke's call.
    eventually("the second is shut out", || node.reach(&v) == [""; 0]);
    assert_eq!(agent.get(&v).unwrap().receipts.iter().filter(|receipt| receipt.proven).count(), 0);
    node.fake.release(device(&v));
    eventually("both are proven", || {
        agent.get(&v).unwrap().receipts.iter().filter(|r| r.proven).count() == 2
    });
    assert_eq!(node.reach(&v), [""; 0]);
}

#[test]
fn a_grant_that_comes_back_at_once_is_cut_all_the_same() {
    // The revoke is accepted and not carried out when the next spec grants the same initiator
    // again. Otherwise its receipt would never be proven, and the old session would go on under the
    // new attachment.
    let (node, v) = (Node::with(QUICK), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let old = node.login(&v, "host1").unwrap();
    agent.crash();
    // The agent is killed before it could do anything, and the revoke is durable.
    let agent = node.start_with(Some(Kill::Before(2)));
    let mut client = agent.client();
    let mut died = agent.switch.died();
    agent.wait(async move {
        tokio::select! {
            _ = client.put_export(put_export(&v, 2, &[])) => {}
            _ = died.wait_for(|died| *died) => {}
        }
    });
    let v = volume(1);
    agent.crash();
    assert!(node.fake.is_live(old));
    // The successor knows the new grant before its first pass can run, as after two quick requests.
    let store = mooring_agent::store::Store::open(&node.config.state_dir).unwrap();
    let again = put_export(&v, 3, &[("host1", RW)]);
    let Some(v1::put_export_request::Wish::Spec(spec)) = &again.wish else { panic!() };
    let stamp = mooring_api::stamp_from_wire(again.stamp.as_ref()).unwrap();
    let body = mooring_agent::store::StoredContent::Spec(mooring_api::Message::encode_to_vec(spec));
    store
        .put_spec(mooring_agent::store::Kind::Export, v.parse().unwrap(), &stamp, &body, b"opaque", &[])
        .unwrap();
    drop(store);
    let agent = node.start();
    agent.make(again);
    let receipts = agent.get(&v).unwrap().receipts;
    assert!(receipts.len() == 1 && receipts[0].proven, "{receipts:?}");
    assert!(!node.fake.is_live(old), "the revoked session is gone");
    assert_eq!(node.reach(&v), ["host1 rw"]);
}

#[test]
fn after_a_crash_a_receipt_is_proven_only_when_its_acl_is_gone() {
    let (node, v) = (Node::with(QUICK), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    agent.crash();
    let mut proofs = Proofs::default();
    for n in 2..10 {
        let counter = n * 10;
        let agent = node.start_with(Some(Kill::After(n)));
        let mut client = agent.client();
        let mut died = agent.switch.died();
        let put = put_export(&v, counter, &[]);
        agent.wait(async move {
            tokio::select! {
                _ = client.put_export(put) => {}
                _ = died.wait_for(|died| *died) => {}
            }
        });
        let killed = agent.switch.is_dead();
        agent.crash();
        let listed = node.tree().contains(&iqn("host1"));
        let stored = mooring_agent::store::Store::open(&node.config.state_dir).unwrap();
        let newest = stored.receipts(v.parse().unwrap(), 1).unwrap().remove(0);
        let proven = newest.proof == mooring_model::Proof::Proven;
        assert!(!(listed && proven), "proven while the ACL is listed, killed after change {n}");
        proofs.note(listed, proven);
        drop(stored);
        let agent = node.start();
        agent.make(put_export(&v, counter, &[]));
        assert!(agent.get(&v).unwrap().receipts.iter().all(|receipt| receipt.proven));
        assert!(!node.tree().contains(&iqn("host1")));
        agent.make(put_export(&v, counter + 1, &[("host1", RW)]));
        agent.crash();
        // The proof is stored with that change.
        let stored = mooring_agent::store::Store::open(&node.config.state_dir).unwrap();
        assert!(stored.unproven_receipts().unwrap().is_empty());
        proofs.proven += 1;
        drop(stored);
        if !killed {
            break;
        }
    }
    assert!(proofs.listed > 0 && proofs.gone_and_unproven > 0 && proofs.proven > 0, "{proofs:?}");
}

/// Counts the cases that the loop has seen.
#[derive(Debug, Default)]
struct Proofs {
    listed: u32,
    gone_and_unproven: u32,
    proven: u32,
}

impl Proofs {
    fn note(&mut self, listed: bool, proven: bool) {
        self.listed += u32::from(listed);
        self.gone_and_unproven += u32::from(!listed && !proven);
        self.proven += u32::from(proven);
    }
}

#[test]
fn who_wants_no_session_cut_is_told_where_it_comes_from() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    let one = node.login(&v, "host1").unwrap();
    let polite = |counter, grants: &[(&str, v1::Mode)]| v1::PutExportRequest {
        live_sessions: v1::LiveSessions::Refuse.into(),
        ..put_export(&v, counter, grants)
    };
    let (tree, stamp) = (node.tree(), agent.get(&v).unwrap().export_stamp);
    let words = &[iqn("host1"), v.clone(), "10.10.0.11".to_owned()];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_refused(
        agent.put_export(polite(2, &[("host2", RO)])),
        Code::FailedPrecondition,
        "fix_spec",
        &words,
    );
    let whole =
        v1::PutExportRequest { live_sessions: v1::LiveSessions::Refuse.into(), ..delete_export(&v, 2) };
    assert_refused(agent.put_export(whole), Code::FailedPrecondition, "fix_spec", &words);
    assert_eq!((node.tree(), agent.get(&v).unwrap().export_stamp), (tree, stamp), "nothing was stored");
    assert!(agent.get(&v).unwrap().receipts.is_empty() && node.fake.is_live(one));
    // The initiator that is not logged in may go, and so may the first one after its logout.
    agent.make(polite(2, &[("host1", RW)]));
    node.fake.logout(one);
    agent.make(polite(3, &[]));
}

#[test]
fn refusing_live_sessions_is_retried_when_nobody_could_look() {
    let (node, agent, v, _) = revoked_on_a_dead_disk(1);
    eventually("the call is known to be stuck", || agent.get(&v).unwrap().export.unwrap().stuck.is_some());
    let polite = v1::PutExportRequest {
        live_sessions: v1::LiveSessions::Refuse.into(),
        deadline_ms: 3000,
        ..put_export(&v, 3, &[])
    };
    assert_refused(agent.put_export(polite), Code::Unavailable, "retry", &[&v]);
    node.fake.release(device(&v));
    eventually("the export is at rest", || agent.get(&v).unwrap().export.unwrap().in_force);
    assert_eq!(node.reach(&v), ["host2 ro"], "the refused change was not taken later");
}

#[test]
fn a_revoke_of_what_never_was_in_the_kernel_says_so() {
    let node = Node::new();
    let agent = node.start();
    // A retry of the agent may run just when the revoke comes. It might be making the grant, and
    // then the receipt is cautious. This does not happen in all of ten revokes.
    let says_so = |n: u8| {
        let v = volume(n);
        agent.make(put_volume(&v, 1));
        node.fake.unload_configfs();
        assert!(!agent.put_export(put_export(&v, 1, &[("host1", RW)])).unwrap().done);
        // The revoke is stored before configfs is there: a retry must not make the grant first.
        assert!(!agent.put_export(brief(put_export(&v, 2, &[]))).unwrap().done);
        node.fake.load_configfs();
        let receipts = agent.make(put_export(&v, 2, &[]));
        assert!(receipts[0].proven, "{receipts:?}");
        !receipts[0].nexus_removed
    };
    assert!((1..=10).any(says_so));
}

#[test]
fn a_pass_of_an_older_spec_proves_no_newer_revoke() {
    // The older spec changes the LUN number, so its nexus is made anew: the ACL goes and comes
    // back. A revoke that arrives in between must not take this removal for its own.
    let (node, v) = (Node::with(QUICK), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let acl = format!("iscsi/{}/tpgt_1/acls/{}", target(&v), iqn("host1"));
    let removal = format!("rmdir {acl}");
    agent.switch.pause_before(&removal);
    let mut renumbered = export_spec(&[("host1", RW)]);
    renumbered.grants[0].lun = 2;
    assert!(!agent.put_export(brief(put_export_spec(&v, 2, renumbered))).unwrap().done);
    step_to(&agent, &removal);
    assert!(!agent.put_export(brief(put_export(&v, 3, &[]))).unwrap().done);
    let again = format!("mkdir {acl}/lun_2");
    step_to(&agent, &again);
    assert!(node.tree().contains(&iqn("host1")), "the older spec's ACL is there");
    let receipt = agent.get(&v).unwrap().receipts.remove(0);
    assert!(receipt.generation.unwrap().counter == 3 && !receipt.proven, "{receipt:?}");
    agent.switch.go_on();
    eventually("the revoke is carried out", || agent.get(&v).unwrap().receipts[0].proven);
    assert!(!node.tree().contains(&iqn("host1")));
}

/// Lets the process go on to exactly this call, and no further.
fn step_to(agent: &Agent, call: &str) {
    agent.switch.pause_before(call);
    eventually(call, || agent.switch.paused().as_deref() == Some(call));
}
