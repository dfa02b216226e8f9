//! A device that does not answer: the volume's portals are off before its host logs in again, and
//! logins to other volumes do not wait. The controls show what the kernel does if nobody removes
//! the portals (lio.md, u).

use std::time::{Duration, Instant};

use mooring_api::v1;
use mooring_host::fake::{LoginRefusal, SessionId};
use mooring_host::{Tree, TreePath};
use mooring_model::Cure;

use crate::rig::*;

/// An agent notices a silent device within this time, also on a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

struct Two {
    node: Node,
    /// Volume whose device hangs.
    hung: String,
    other: String,
    session: SessionId,
}

/// Two volumes of two hosts on one portal; the first has a write in flight that does not end.
fn hangs() -> (Two, Agent) {
    let (node, hung, other) = (Node::new(), volume(1), volume(2));
    let agent = node.start();
    for (id, host) in [(&hung, "host1"), (&other, "host2")] {
        agent.make(put_volume(id, 1));
        agent.make(put_export(id, 1, &[(host, RW)]));
    }
    let session = node.login(&hung, "host1").unwrap();
    eventually("the login is seen", || sessions(&agent, &hung) == 1);
    node.fake.hold(device(&hung));
    node.fake.start_write(session, 1).unwrap();
    (Two { node, hung, other, session }, agent)
}

fn portals(node: &Node, id: &str) -> usize {
    let folder = TreePath::new(&format!("iscsi/{}/tpgt_1/np", target(id)));
    node.fake.lio().list(&folder).unwrap().len()
}

impl Two {
    fn is_withheld(&self) -> bool {
        portals(&self.node, &self.hung) == 0
    }

    fn log_in_to_other(&self) -> Result<SessionId, LoginRefusal> {
        self.node.login(&self.other, "host2")
    }

    fn release(&self) {
        self.node.fake.release(device(&self.hung));
    }

    /// Asserts that the volume works as before the hang.
    fn assert_is_back(&self, agent: &Agent) {
        eventually("its portals are back", || !self.is_withheld());
        eventually("nothing is said any more", || export(agent, &self.hung).problems.is_empty());
        self.node.login(&self.hung, "host1").unwrap();
        assert!(agent.plan("").steps.is_empty());
    }
}

fn export(agent: &Agent, id: &str) -> v1::ExportReport {
    agent.get(id).unwrap().export.unwrap()
}

fn sessions(agent: &Agent, id: &str) -> usize {
    export(agent, id).grants.iter().map(|grant| grant.sessions.len()).sum()
}

fn codes(agent: &Agent) -> Vec<String> {
    let health = agent.capabilities().health.unwrap();
    health.reasons.into_iter().map(|reason| reason.code).collect()
}

#[test]
fn a_hung_volume_loses_its_portals_and_others_log_in() {
    let (two, agent) = hangs();
    let (began, portals) = (Instant::now(), export(&agent, &two.hung).portals);
    eventually("its portals are off", || two.is_withheld());
    assert!(began.elapsed() < NOTICED_WITHIN, "{:?}", began.elapsed());
    assert!(two.node.fake.is_live(two.session), "the session that stands goes on");
    assert_eq!(two.node.login(&two.hung, "host1"), Err(LoginRefusal::NoTarget));
    two.log_in_to_other().unwrap();
    eventually("it is said", || !export(&agent, &two.hung).problems.is_empty());
    let report = export(&agent, &two.hung);
    let [problem] = report.problems.as_slice() else { panic!("{report:?}") };
    assert!(
        problem.object.contains(&two.hung) && problem.text.contains("does not answer since 20"),
        "{problem:?}"
    );
    assert_eq!((problem.cure(), report.in_force), (v1::Cure::from(Cure::Operator), true));
    assert_eq!(report.portals, portals, "its place does not change");
    assert_eq!(codes(&agent), ["device_silent"]);
    assert!(agent.plan("").steps.is_empty(), "that is what is wanted now");
    two.release();
    two.assert_is_back(&agent);
    eventually("the host is healthy", || codes(&agent).is_empty());
    assert!(two.node.fake.is_live(two.session) || two.node.fake.landed(device(&two.hung)) > 0);
}

/// The control, and the report if a login thread hangs in spite of everything: the agent was dead
/// meanwhile.
#[test]
fn a_login_thread_that_waits_all_the_same_is_named() {
    let (two, agent) = hangs();
    agent.crash();
    assert_eq!(two.node.login(&two.hung, "host1"), Err(LoginRefusal::NoAnswer));
    assert_eq!(two.log_in_to_other(), Err(LoginRefusal::NoAnswer), "nobody logs in to anything");
    let agent = two.node.start();
    eventually("the portal is named", || codes(&agent).contains(&"portal_blocked".to_owned()));
    eventually("and the volume", || {
        let said = agent.capabilities().problems;
        let blocked = said.iter().find(|problem| problem.object == format!("portal {PORTAL}"));
        blocked.is_some_and(|problem| {
            problem.text.contains(&two.hung) && problem.text.contains("answers no login since 20")
        })
    });
    // The volume's own portal cannot be removed any more: only that call hangs.
    eventually("the call is named", || {
        export(&agent, &two.hung).stuck.is_some_and(|stuck| stuck.step.contains("/np/"))
    });
    let third = volume(3);
    agent.make(put_volume(&third, 1));
    agent.make(put_export(&third, 1, &[("host1", RW)]));
    two.release();
    eventually("it answers again", || codes(&agent).is_empty());
    two.log_in_to_other().unwrap();
    two.assert_is_back(&agent);
}

#[test]
fn portals_that_were_withheld_come_back_only_when_the_device_is_heard() {
    let (two, agent) = hangs();
    eventually("its portals are off", || two.is_withheld());
    let agent = {
        agent.crash();
        two.node.start()
    };
    eventually("the new agent has looked", || agent.get(&two.hung).unwrap().export.is_some());
    for _ in 0..40 {
        assert!(two.is_withheld(), "a restart puts them back");
        two.log_in_to_other().unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    eventually("it is said", || export(&agent, &two.hung).problems.len() == 1);
    two.release();
    two.assert_is_back(&agent);
    // The control: portals that somebody else removed while nothing was in flight are restored at
    // once.
    agent.crash();
    let folder = format!("iscsi/{}/tpgt_1/np/{PORTAL}", target(&two.other));
    two.node.fake.lio().rmdir(&TreePath::new(&folder)).unwrap();
    let _agent = two.node.start();
    eventually("it is put back", || portals(&two.node, &two.other) == 1);
}

/// A revoke of the host whose commands hang stays unproven until they end, whether the portals are
/// there or not.
#[test]
fn a_receipt_waits_for_the_device_with_and_without_portals() {
    for withheld_first in [true, false] {
        let (two, agent) = hangs();
        if withheld_first {
            eventually("its portals are off", || two.is_withheld());
        }
        let answer = agent.put_export(brief(put_export(&two.hung, 2, &[]))).unwrap();
        assert!(!answer.done && !answer.receipts[0].proven && answer.receipts[0].may_still_land == 1);
        // The pass hangs in the revoke, so the portals go beside it.
        eventually("its portals are off", || two.is_withheld());
        two.log_in_to_other().unwrap();
        eventually("the call is named", || export(&agent, &two.hung).stuck.is_some());
        assert!(!agent.get(&two.hung).unwrap().receipts[0].proven);
        two.release();
        eventually("it is proven", || agent.get(&two.hung).unwrap().receipts[0].proven);
        eventually("its portals are back", || !two.is_withheld());
        assert_eq!(two.node.login(&two.hung, "host1"), Err(LoginRefusal::NotAuthorized));
    }
}

#[test]
fn a_node_whose_devices_all_hang_serves_again_when_they_answer() {
    let node = Node::new();
    let agent = node.start();
    let all: Vec<String> = (1..=8).map(volume).collect();
    let mut live = Vec::new();
    for id in &all {
        agent.make(put_volume(id, 1));
        agent.make(put_export(id, 1, &[("host1", RW)]));
        live.push(node.login(id, "host1").unwrap());
    }
    eventually("the logins are seen", || all.iter().all(|id| sessions(&agent, id) == 1));
    for (id, session) in all.iter().zip(&live) {
        node.fake.hold(device(id));
        node.fake.start_write(*session, 1).unwrap();
    }
    eventually("all portals are off", || all.iter().all(|id| portals(&node, id) == 0));
    // A new volume has no silent device, and is served.
    let new = volume(9);
    agent.make(put_volume(&new, 1));
    agent.make(put_export(&new, 1, &[("host2", RW)]));
    node.login(&new, "host2").unwrap();
    for id in &all {
        node.fake.release(device(id));
    }
    for (id, session) in all.iter().zip(&live) {
        eventually("it is served again", || node.login(id, "host1").is_ok());
        assert!(!node.fake.is_live(*session), "replaced by that login");
    }
    eventually("nothing is said any more", || codes(&agent).is_empty());
}
