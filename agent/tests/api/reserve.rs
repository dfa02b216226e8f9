//! Persistent reservations that an operator takes away: no others are touched, APTPL stays as it
//! was, and no access of the agent's own is left behind.

use mooring_api::v1;
use mooring_api::v1::change_reservations_request::Change;
use mooring_host::fake::{IoRefusal, PrOut, Reach};
use mooring_host::{Tree, TreePath};
use tonic::Code;

use crate::reservations::*;
use crate::rig::*;
use crate::switch::Kill;

const CLEAR: Change = Change::Clear(v1::ClearReservations {});
const OWN: &str = "iqn.2026-11.dev.mooring:pr.";
const HOSTS: [(&str, v1::Mode); 3] = [("host1", RW), ("host2", RW), ("host3", RW)];

fn preempt(key: u64) -> Change {
    Change::Preempt(v1::PreemptReservations { key, abort: false })
}

/// Asserts that only the hosts could reach the volume, and that none of the agent's own names is in
/// the tree.
#[track_caller]
fn assert_shut(node: &Node, v: &str) {
    assert_eq!(node.reach(v), ["host1 rw", "host2 rw", "host3 rw"]);
    assert!(!node.tree().contains(OWN), "{}", node.tree());
}

fn attribute(node: &Node, v: &str, name: &str) -> String {
    let tree = node.tree();
    let line = tree.lines().find(|line| line.contains(v) && line.contains(&format!("pr/{name}")));
    line.unwrap_or_else(|| panic!("no {name}: {tree}")).to_owned()
}

/// Returns the registrations that the kernel has for the hosts of [`reserved`], in the words of
/// [`said`]. Only host1 ever held the reservation.
fn in_kernel(node: &Node, v: &str) -> &'static str {
    let listed = attribute(node, v, "res_pr_registered_i_pts");
    match ["host1", "host2"].map(|host| listed.contains(&iqn(host))) {
        [true, true] => HELD,
        [false, true] => "host2=b",
        [false, false] => "",
        [true, false] => panic!("host2 alone is gone: {listed}"),
    }
}

/// Reservations in the agent's store; `None` if the agent has not looked at the export yet.
fn kept(agent: &Agent, v: &str) -> Option<String> {
    agent.get(v).unwrap().export?.kept_reservations
}

fn keys(of: Option<&v1::Reservations>) -> Vec<u64> {
    let mut keys: Vec<_> =
        of.into_iter().flat_map(|of| &of.registrations).map(|registration| registration.key).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn cleared_there_is_nothing_and_asked_again_that_is_said() {
    let node = Node::new();
    let (agent, v, sessions) = reserved(&node, true);
    until(&agent, &v, HELD);
    let changed = agent.change_reservations(&v, CLEAR).unwrap();
    assert_eq!((keys(changed.before.as_ref()), changed.now), (vec![0xa, 0xb], None));
    assert_eq!(said(&agent, &v), "");
    assert!(node.fake.write(sessions[2], 1).is_ok());
    assert_shut(&node, &v);
    assert_eq!(agent.get(&v).unwrap().export.unwrap().problems, []);
    agent.switch.forget_log();
    assert_eq!(agent.change_reservations(&v, CLEAR).unwrap(), v1::ChangeReservationsResponse::default());
    let log = agent.switch.log();
    assert!(!log.iter().any(|call| call.contains("log in") || call.starts_with("mkdir")), "{log:?}");
    // Cleared reservations stay cleared after a loss of power, and the hosts may register anew.
    let agent = restart(&node, agent);
    eventually("the export", || node.reach(&v).len() == 3);
    assert_eq!(said(&agent, &v), "");
    register(&node, node.login(&v, "host2").unwrap(), 0xb, true);
    until(&agent, &v, "host2=b");
}

#[test]
fn preempted_one_key_goes_and_the_others_stay_and_are_kept() {
    let node = Node::new();
    let (agent, v, sessions) = reserved(&node, true);
    until(&agent, &v, HELD);
    let active = attribute(&node, &v, "res_aptpl_active");
    assert!(active.contains("Activated"), "{active}");
    // Preempting the holder's key releases its reservation.
    let changed = agent.change_reservations(&v, preempt(0xa)).unwrap();
    assert_eq!((keys(changed.before.as_ref()), keys(changed.now.as_ref())), (vec![0xa, 0xb], vec![0xb]));
    let now = changed.now.unwrap();
    assert!(now.durable && now.holder.is_none() && now.lost.is_empty(), "{now:?}");
    assert_eq!(said(&agent, &v), "host2=b");
    assert_eq!(attribute(&node, &v, "res_aptpl_active"), active);
    assert_shut(&node, &v);
    assert!(node.fake.write(sessions[2], 1).is_ok(), "nobody holds it");
    let agent = restart(&node, agent);
    until(&agent, &v, "host2=b");
}

#[test]
fn of_those_who_do_not_hold_it_the_holder_keeps_it() {
    for (kind, durable) in [(1, true), (3, false), (5, true), (6, false), (7, true), (8, false)] {
        let node = Node::new();
        let v = volume(1);
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &HOSTS));
        let sessions = HOSTS.map(|(host, _)| node.login(&v, host).unwrap());
        for (session, key) in sessions.iter().zip([0xa, 0xb, 0xb]) {
            register(&node, *session, key, durable);
        }
        node.fake.persistent_reserve(sessions[0], 1, PrOut::Reserve { key: 0xa, kind }).unwrap();
        let held = format!("host1 {kind}: host1=a");
        until(&agent, &v, &format!("{held} host2=b host3=b"));
        let active = attribute(&node, &v, "res_aptpl_active");
        // Exactly the two initiators with this key are preempted.
        let changed = agent.change_reservations(&v, preempt(0xb)).unwrap();
        assert_eq!(keys(changed.now.as_ref()), [0xa]);
        assert_eq!(said(&agent, &v), held);
        assert_eq!(attribute(&node, &v, "res_aptpl_active"), active);
        assert_eq!(node.fake.write(sessions[1], 1), Err(IoRefusal::ReservationConflict));
        assert!(node.fake.write(sessions[0], 1).is_ok());
        assert_shut(&node, &v);
    }
}

/// With a type that all registrants hold, a preempted one leaves the reservation to the others.
#[test]
fn what_all_hold_stays_with_the_others() {
    let node = Node::new();
    let (agent, v, sessions) = reserved(&node, true);
    node.fake.persistent_reserve(sessions[0], 1, PrOut::Release { key: 0xa, kind: 5 }).unwrap();
    node.fake.persistent_reserve(sessions[0], 1, PrOut::Reserve { key: 0xa, kind: 7 }).unwrap();
    until(&agent, &v, "host1 7: host1=a host2=b");
    agent.change_reservations(&v, preempt(0xa)).unwrap();
    assert_eq!(said(&agent, &v), "host2 7: host2=b");
    assert_eq!(node.fake.write(sessions[0], 1), Err(IoRefusal::ReservationConflict));
    assert!(node.fake.write(sessions[1], 1).is_ok());
}

#[test]
fn what_cannot_be_done_is_refused_and_touches_nothing() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    let tree = node.tree();
    let refused = |answer, words: &[&str]| {
        assert_refused(answer, Code::FailedPrecondition, "fix_spec", words);
    };
    refused(agent.change_reservations(&v, preempt(0xc)), &["0xc", "registered: 0xa, 0xb"]);
    assert_refused(agent.change_reservations(&v, preempt(0)), Code::InvalidArgument, "fix_spec", &["key"]);
    assert_refused(agent.change_reservations(&volume(9), CLEAR), Code::NotFound, "fix_spec", &["not known"]);
    assert_eq!(node.tree(), tree);
    let other = volume(2);
    agent.make(put_volume(&other, 1));
    refused(agent.change_reservations(&other, CLEAR), &["not exported"]);
    // No portal of the export is on this host.
    node.fake.set_addresses(["127.0.0.1".parse().unwrap()]);
    assert_refused(
        agent.change_reservations(&v, CLEAR),
        Code::FailedPrecondition,
        "operator",
        &["no portal", "10.0.0.1", "sg_persist"],
    );
    assert!(!node.tree().contains(OWN));
    node.fake.set_addresses(["127.0.0.1", "10.0.0.1"].map(|ip| ip.parse().unwrap()));
    let mut grants = export_spec(&HOSTS);
    grants.grants[0].initiator = format!("{OWN}0a0b0c0d-0000-4000-8000-000000000001");
    let put = put_export_spec(&v, 2, grants);
    assert_refused(agent.put_export(put), Code::FailedPrecondition, "fix_spec", &["reservations"]);
    until(&agent, &v, HELD);
}

/// The kernel lists at most one page. Only the target's answer tells of keys beyond that page.
#[test]
fn a_key_beyond_the_page_is_preempted_and_one_that_nobody_has_is_refused() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    for key in 0x100..0x140 {
        register(&node, node.login(&v, "host1").unwrap(), key, true);
    }
    // Nothing is listed before the agent's first read.
    let full = |listed: v1::Reservations| listed.truncated && !keys(Some(&listed)).contains(&0x13f);
    eventually("the page is full", || agent.get(&v).unwrap().export.unwrap().reservations.is_some_and(full));
    let changed = agent.change_reservations(&v, preempt(0x13f)).unwrap();
    assert_eq!(keys(changed.before.as_ref()), keys(changed.now.as_ref()), "nothing that is listed");
    for unknown in [0x13f, 0x140] {
        assert_refused(
            agent.change_reservations(&v, preempt(unknown)),
            Code::FailedPrecondition,
            "fix_spec",
            &["reservation conflict"],
        );
    }
    assert_shut(&node, &v);
    agent.change_reservations(&v, CLEAR).unwrap();
    assert_eq!(said(&agent, &v), "");
}

/// Each call of the change fails once. The agent's own access is still removed, and the answer is
/// true.
#[test]
fn whatever_fails_no_way_in_is_left() {
    for call in ["log in", "register", "clear", "preempt", "unregister"] {
        for change in [CLEAR, preempt(0xa)] {
            let node = Node::new();
            let (agent, v, _) = reserved(&node, true);
            until(&agent, &v, HELD);
            agent.switch.break_session_at(call);
            let answer = agent.change_reservations(&v, change);
            let gone = said(&agent, &v) != HELD;
            assert_eq!(answer.is_ok(), gone, "{call}: {answer:?}");
            assert_shut(&node, &v);
            let problems = agent.get(&v).unwrap().export.unwrap().problems;
            assert_eq!(problems, [], "{call}");
            // A second request does the change.
            if !gone {
                agent.change_reservations(&v, change).unwrap();
                assert!(["", "host2=b"].contains(&said(&agent, &v).as_str()));
                assert_shut(&node, &v);
            }
        }
    }
}

/// Kills before and after each call that changes anything. While the agent is down, nobody else can
/// use its access. The next agent removes that access, and its registrations.
#[test]
fn killed_at_every_step_nothing_of_the_agent_is_left() {
    for change in [CLEAR, preempt(0xa)] {
        let mut steps = 0;
        'steps: for step in 1.. {
            for kill in [Kill::Before(step), Kill::After(step)] {
                let node = Node::new();
                let (agent, v, _) = reserved(&node, true);
                until(&agent, &v, HELD);
                agent.crash();
                let agent = node.start();
                until(&agent, &v, HELD);
                eventually("it is quiet", || agent.plan(&v).steps.is_empty());
                agent.switch.kill_from_now(kill);
                let asked = agent.ask_reservations(&v, change);
                eventually("a death or the end", || agent.switch.is_dead() || asked.is_finished());
                let died = agent.switch.is_dead();
                let of_agent = |reach: &Reach| reach.initiator.starts_with(OWN);
                assert!(
                    node.fake.reachable().iter().filter(|one| of_agent(one)).all(|one| one.authenticated)
                );
                agent.crash();
                let agent = node.start();
                eventually("the way in is gone", || !node.tree().contains(OWN));
                assert_shut(&node, &v);
                let before = in_kernel(&node, &v);
                until(&agent, &v, before);
                // An empty report also precedes the first look, while the store still has what was
                // there before the change.
                eventually("it is kept", || {
                    kept(&agent, &v).is_some_and(|kept| kept.is_empty() == before.is_empty())
                });
                assert_eq!(agent.get(&v).unwrap().export.unwrap().problems, [], "{kill:?}");
                let active = attribute(&node, &v, "res_aptpl_active").contains("Activated");
                assert!(active || before.is_empty(), "{kill:?}: keeping is off");
                // The state that is then in the kernel outlives a loss of power.
                let agent = restart(&node, agent);
                eventually("the export", || node.reach(&v).len() == 3);
                until(&agent, &v, before);
                assert_eq!(in_kernel(&node, &v), before, "{kill:?}");
                if !died {
                    assert!(steps > 12, "it takes {steps} steps");
                    break 'steps;
                }
            }
            steps = step;
        }
    }
}

#[test]
fn no_secret_of_it_is_logged() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    agent.switch.pause_before("register");
    let asked = agent.ask_reservations(&v, CLEAR);
    eventually("it is logged in", || agent.switch.paused().is_some());
    let acl = format!("iscsi/{}/tpgt_1/acls/{OWN}{}", target(&v), agent.hello().agent_id);
    let secret = |name: &str| {
        let path = TreePath::new(&acl).join("auth").join(name);
        node.fake.lio().read_text(&path).unwrap().trim().to_owned()
    };
    let secrets = [secret("password"), secret("password_mutual")];
    assert!(secrets.iter().all(|secret| secret.len() == 48) && secrets[0] != secrets[1]);
    // An initiator that claims the name without the secret stays out.
    let name = acl.rsplit('/').next().unwrap();
    for shown in [None, Some(("agent", "guessed-guessed-1"))] {
        assert!(node.fake.login(PORTAL, &target(&v), name, shown).is_err());
    }
    agent.switch.go_on();
    agent.wait(asked).unwrap().unwrap();
    assert!(logs().contains("reservations taken away"));
    for secret in secrets {
        assert!(!logs().contains(&secret));
    }
}
