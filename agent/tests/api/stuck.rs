//! Kernel calls that do not return: the call is named, its volume reports it at once, and nothing
//! else waits for it.

use std::time::{Duration, Instant};

use mooring_agent::standing::Standing;
use mooring_api::v1;
use mooring_host::{Tree, TreePath};
use tonic::Code;

use crate::rig::*;
use crate::switch::Blocks;

/// A volume whose revoke hangs in the kernel, and is known to be stuck.
fn stuck_volume() -> (Node, Agent, String) {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let one = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    assert!(!agent.put_export(brief(put_export(&v, 2, &[]))).unwrap().done);
    eventually("it is known to be stuck", || agent.get(&v).unwrap().export.unwrap().stuck.is_some());
    (node, agent, v)
}

#[test]
fn a_stuck_volume_says_which_call_it_is() {
    let (node, agent, v) = stuck_volume();
    let export = agent.get(&v).unwrap().export.unwrap();
    let stuck = export.stuck.unwrap();
    assert_eq!(stuck.step, format!("rmdir iscsi/{}/tpgt_1/acls/{}", target(&v), iqn("host1")));
    assert!(stuck.since_ms >= 2000 && !export.in_force);
    let planned = agent.plan("");
    assert!(
        planned.blocked.iter().any(|problem| problem.object.contains(&v) && problem.text.contains("rmdir")),
        "{planned:?}"
    );
    node.fake.release(device(&v));
    eventually("it goes on", || agent.get(&v).unwrap().export.unwrap().in_force);
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
}

#[test]
fn the_status_line_says_what_waits_and_what_is_wrong() {
    let node = Node::new();
    let agent = node.start();
    let line = |agent: &Agent| Standing::of(&agent.engine(), None).to_string();
    assert_eq!(line(&agent), "0 exports");
    agent.make(put_volume(&volume(1), 1));
    assert_eq!(line(&agent), "0 exports", "a volume that nobody is granted");
    drop(agent);
    let (node, agent, v) = stuck_volume();
    assert_eq!(line(&agent), "1 export (1 waiting), 1 problem");
    agent.make(put_volume(&volume(2), 1));
    agent.make(put_export(&volume(2), 1, &[("host1", RW)]));
    assert_eq!(line(&agent), "2 exports (1 waiting), 1 problem");
    node.fake.release(device(&v));
    eventually("it goes on", || line(&agent) == "2 exports");
}

#[test]
fn however_often_a_stuck_volume_is_asked_for_others_are_served() {
    let (node, agent, v) = stuck_volume();
    let w = volume(2);
    agent.make(put_volume(&w, 1));
    // Each of these calls would lose a thread if it went into the stuck folder.
    let mut clients = Vec::new();
    for n in 0..700 {
        let (mut client, v) = (agent.client(), v.clone());
        clients.push(agent.spawn(async move {
            match n % 3 {
                0 => client.get_volume(v1::GetVolumeRequest { volume_id: v }).await.map(drop),
                1 => client.plan(v1::PlanRequest { volume_id: v }).await.map(drop),
                _ => client.list_volumes(v1::ListVolumesRequest::default()).await.map(drop),
            }
        }));
    }
    agent.wait(async {
        for call in clients {
            call.await.unwrap().unwrap();
        }
    });
    agent.make(put_export(&w, 1, &[("host1", RW)]));
    assert_eq!(node.reach(&w), ["host1 rw"]);
    node.fake.release(device(&v));
}

#[test]
fn a_foreign_call_that_hangs_costs_at_most_two_threads_however_many_ask() {
    // Another program's rmdir hangs. The agent has nothing to do for the volume, and a look at it
    // does not return.
    let (node, v) = (Node::new(), volume(1));
    // No notice of the other program's steps has the agent look.
    node.fake.set_watches_max(0);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let looked_now = || agent.get(&v).unwrap().looked_now;
    eventually("nothing is exported, which needs no look", || looked_now() == Some(true));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RW)]));
    let one = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    let (lio, acl) = (node.fake.lio(), format!("iscsi/{}/tpgt_1/acls/{}", target(&v), iqn("host1")));
    let other = std::thread::spawn(move || {
        lio.unlink(&TreePath::new(&format!("{acl}/lun_1/mooring"))).unwrap();
        lio.rmdir(&TreePath::new(&format!("{acl}/lun_1"))).unwrap();
        lio.rmdir(&TreePath::new(&acl)).unwrap();
    });
    eventually("the other's call hangs", || !node.fake.is_live(one));
    eventually("a look has not come back", || agent.get(&v).unwrap().export.unwrap().stuck.is_some());
    assert_eq!(looked_now(), Some(false), "its sessions are those of an earlier look");
    let lists = |agent: &Agent| agent.switch.log().iter().filter(|call| call.ends_with("/acls")).count();
    let before = lists(&agent);
    for _ in 0..50 {
        agent.get(&v).unwrap();
    }
    assert_eq!(lists(&agent), before, "no more looks into the folder that hangs");
    node.fake.release(device(&v));
    other.join().unwrap();
    eventually("its state is seen again", || agent.get(&v).unwrap().export.unwrap().stuck.is_none());
    eventually("it is looked at", || looked_now() == Some(true));
}

#[test]
fn a_change_that_could_not_be_checked_is_not_taken_later() {
    // The agent tells the caller that the change was not accepted, and never carries it out.
    let (node, v) = (Node::new(), volume(1));
    // No notice of the other program's steps has the agent look.
    node.fake.set_watches_max(0);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RW)]));
    let one = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    // Another program hangs in an rmdir of that ACL. A look at the sessions waits with it.
    let (lio, acl) = (node.fake.lio(), format!("iscsi/{}/tpgt_1/acls/{}", target(&v), iqn("host1")));
    let other = std::thread::spawn(move || {
        lio.unlink(&TreePath::new(&format!("{acl}/lun_1/mooring"))).unwrap();
        lio.rmdir(&TreePath::new(&format!("{acl}/lun_1"))).unwrap();
        lio.rmdir(&TreePath::new(&acl)).unwrap();
    });
    eventually("the other's call hangs", || !node.fake.is_live(one));
    let mut put = put_export(&v, 2, &[("host2", RW)]);
    put.deadline_ms = 500;
    let refused = agent.put_export(put);
    assert_refused(refused, Code::Unavailable, "retry", &[&v, "is busy", "was not taken"]);
    node.fake.release(device(&v));
    other.join().unwrap();
    let status = agent.get(&v).unwrap();
    assert_eq!(status.export_stamp.unwrap().generation.unwrap().counter, 1);
    assert_eq!(status.receipts, []);
    // A second request succeeds.
    assert!(agent.make(put_export(&v, 2, &[("host2", RW)]))[0].proven);
    assert_eq!(node.reach(&v), ["host2 rw"]);
}

/// A revoke by force of host1 whose kernel call has begun, and does not return until the device is
/// released.
struct SlowRevoke {
    node: Node,
    agent: Agent,
    volume: String,
    /// Time before the call began.
    began: Instant,
    answer: tokio::task::JoinHandle<Result<v1::PutExportResponse, tonic::Status>>,
}

impl SlowRevoke {
    fn begin() -> Self {
        let (node, v) = (Node::new(), volume(1));
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RW)]));
        let one = node.login(&v, "host1").unwrap();
        node.fake.hold(device(&v));
        node.fake.start_write(one, 1).unwrap();
        let began = Instant::now();
        let (mut client, put) = (agent.client(), put_export(&v, 2, &[("host2", RW)]));
        let answer =
            agent.spawn(async move { client.put_export(put).await.map(tonic::Response::into_inner) });
        eventually("the call has begun", || !node.fake.is_live(one));
        // Now it is in the way of a look.
        std::thread::sleep(Duration::from_millis(300));
        Self { node, agent, volume: v, began, answer }
    }

    /// Lets the call return, and gives the revoke's answer.
    fn end(self) -> (Node, v1::PutExportResponse) {
        self.node.fake.release(device(&self.volume));
        (self.node, self.agent.wait(self.answer).unwrap().unwrap())
    }
}

/// Begins `act` beside a kernel call of the volume that is slow, and lets that call return. Gives
/// the answer. A machine that halts until the call counts as lost gets another try.
fn beside_a_slow_call<T: Send + 'static, F>(act: impl Fn(&Agent, &str) -> F) -> (Node, T)
where
    F: Future<Output = T> + Send + 'static,
{
    for _ in 0..20 {
        let slow = SlowRevoke::begin();
        let answer = slow.agent.spawn(act(&slow.agent, &slow.volume));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!answer.is_finished() || slow.began.elapsed() > Duration::from_secs(2), "it did not wait");
        slow.node.fake.release(device(&slow.volume));
        let in_time = slow.began.elapsed() < Duration::from_millis(1500);
        let answer = slow.agent.wait(answer).unwrap();
        if in_time {
            let (node, forced) = slow.end();
            assert!(forced.receipts[0].proven);
            return (node, answer);
        }
    }
    panic!("this machine halts for seconds, again and again");
}

#[test]
fn a_revoke_without_force_waits_for_a_call_that_returns_in_time() {
    let polite = |agent: &Agent, v: &str| {
        let put =
            v1::PutExportRequest { live_sessions: v1::LiveSessions::Refuse.into(), ..put_export(v, 3, &[]) };
        let mut client = agent.client();
        async move { client.put_export(put).await }
    };
    let (node, answer) = beside_a_slow_call(polite);
    let answer = answer.unwrap().into_inner();
    assert!(answer.done && answer.receipts[0].proven, "{answer:?}");
    assert_eq!(node.reach(&volume(1)), [""; 0]);
}

#[test]
fn a_look_waits_for_a_call_that_returns_in_time() {
    let look = |agent: &Agent, v: &str| {
        let (mut client, volume_id) = (agent.client(), v.to_owned());
        async move { client.get_volume(v1::GetVolumeRequest { volume_id }).await }
    };
    let (_node, answer) = beside_a_slow_call(look);
    assert_eq!(answer.unwrap().into_inner().looked_now, Some(true));
}

#[test]
fn a_revoke_without_force_names_the_call_that_does_not_return() {
    let slow = SlowRevoke::begin();
    let v = slow.volume.clone();
    let polite = v1::PutExportRequest {
        live_sessions: v1::LiveSessions::Refuse.into(),
        deadline_ms: 500,
        ..put_export(&v, 3, &[])
    };
    let named = format!("rmdir iscsi/{}/tpgt_1/acls/{} has not returned", target(&v), iqn("host1"));
    assert_refused(slow.agent.put_export(polite), Code::Unavailable, "retry", &[&v, &named, "was not taken"]);
    let (node, forced) = slow.end();
    assert!(forced.done);
    assert_eq!(node.reach(&v), ["host2 rw"], "it is not taken later");
}

#[test]
fn a_tombstone_of_a_stuck_export_says_its_reason_and_finishes_by_itself() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let one = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    let answer = agent.put_export(brief(delete_export(&v, 2))).unwrap();
    assert!(!answer.done && !answer.receipts[0].proven);
    let begun = agent.begin(delete_volume(&v, 2));
    eventually("it is being deleted", || {
        agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Deleting
    });
    agent.assert_not_done(begun);
    eventually("the stuck call is named", || {
        agent.get(&v).unwrap().export.is_some_and(|export| export.stuck.is_some())
    });
    assert!(node.lvs().contains(&v), "the data stays until the export is gone");
    node.fake.release(device(&v));
    eventually("all is gone", || !node.lvs().contains(&v));
    node.assert_nothing_left(&v);
    assert_eq!(agent.switch.removed(), [(format!("vg0/mooring-{v}"), Blocks::Zeroed)]);
    let status = agent.get(&v).unwrap();
    assert!(status.export.is_none() && status.receipts[0].proven);
}
