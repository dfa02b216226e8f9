//! RESERVE(6): the agent sees and names the host that has reserved a volume. A reservation of a
//! host that may only read ends with its session. A reservation of a host that may write is left to
//! an operator.

use mooring_api::v1;
use mooring_api::v1::change_reservations_request::Change;
use mooring_host::fake::{IoRefusal, PrOut, SessionId};
use tonic::Code;

use crate::reservations::until;
use crate::rig::*;
use crate::switch::Kill;

const CLEAR: Change = Change::Clear(v1::ClearReservations {});
const HOSTS: [(&str, v1::Mode); 3] = [("host1", RW), ("host2", RO), ("host3", RW)];

/// Short report of a reservation of host2 alone.
const HELD: &str = "host2 0: ";

/// A volume with two writers, and one reader: host2.
fn shared(node: &Node) -> (Agent, String, [SessionId; 3]) {
    let v = volume(1);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &HOSTS));
    let sessions = HOSTS.map(|(host, _)| node.login(&v, host).unwrap());
    (agent, v, sessions)
}

fn may_write(node: &Node, session: SessionId) -> bool {
    match node.fake.write(session, 1) {
        Ok(_) => true,
        Err(IoRefusal::ReservationConflict) => false,
        Err(refusal) => panic!("{refusal:?}"),
    }
}

/// Receipts of nexuses that were revoked for their reservation, newest first.
fn cuts(agent: &Agent, v: &str) -> Vec<v1::Receipt> {
    let receipts = agent.get(v).unwrap().receipts;
    receipts.into_iter().filter(|one| one.cause() != v1::Cause::Unspecified).collect()
}

fn problems(agent: &Agent, v: &str) -> Vec<String> {
    agent.get(v).unwrap().export.unwrap().problems.into_iter().map(|problem| problem.text).collect()
}

#[test]
fn a_reader_that_reserves_is_cut_and_everybody_else_goes_on() {
    let node = Node::new();
    let (agent, v, [one, two, three]) = shared(&node);
    for time in 1..=2 {
        let reader = if time == 1 { two } else { node.login(&v, "host2").unwrap() };
        node.fake.reserve_6(reader, 1).unwrap();
        assert!(!may_write(&node, one), "the kernel lets a reader reserve");
        eventually("it is cut", || cuts(&agent, &v).len() == time && cuts(&agent, &v)[0].proven);
        assert!(may_write(&node, one) && may_write(&node, three), "and nobody else was");
        assert!(!node.fake.is_live(reader));
        let cut = cuts(&agent, &v).remove(0);
        assert_eq!((cut.initiator.as_str(), cut.cause()), (iqn("host2").as_str(), v1::Cause::Reservation));
        assert_eq!((cut.held_reservation, cut.nexus_removed), (Some(0), true));
        until(&agent, &v, "");
        // The grant is made anew after the proof.
        eventually("its grant stands", || node.reach(&v) == ["host1 rw", "host2 ro", "host3 rw"]);
        eventually("nothing is said", || problems(&agent, &v).is_empty());
    }
    // The receipt is stored, and does not count as a revoke.
    agent.crash();
    let agent = node.start();
    assert_eq!(cuts(&agent, &v).len(), 2);
    eventually("all are let in", || node.reach(&v) == ["host1 rw", "host2 ro", "host3 rw"]);
}

#[test]
fn kept_out_until_it_is_granted_anew() {
    let node = Node::with("ro_reservation = \"revoke\"");
    let (agent, v, [one, two, _]) = shared(&node);
    node.fake.reserve_6(two, 1).unwrap();
    eventually("it is cut", || cuts(&agent, &v).first().is_some_and(|cut| cut.proven));
    assert_eq!(cuts(&agent, &v)[0].cause(), v1::Cause::ReservationKeptOut);
    assert!(may_write(&node, one));
    let is_out = |agent: &Agent| {
        assert_eq!(node.reach(&v), ["host1 rw", "host3 rw"]);
        assert!(node.login(&v, "host2").is_err());
        // The receipt appears at once; the report of the export changes at the end of that pass.
        let says_so = |text: &String| text.contains("host2") && text.contains("kept out");
        eventually("it is said", || problems(agent, &v).iter().any(says_so));
    };
    is_out(&agent);
    // Neither a restart nor another host's grant lets it in.
    agent.crash();
    let agent = node.start();
    eventually("the export", || agent.plan(&v).steps.is_empty());
    is_out(&agent);
    let put = put_export(&v, 2, &[HOSTS[0], HOSTS[1], HOSTS[2], ("host4", RW)]);
    assert!(agent.put_export(put).unwrap().done, "and nobody waits for it");
    assert_eq!(node.reach(&v), ["host1 rw", "host3 rw", "host4 rw"]);
    agent.make(put_export(&v, 3, &HOSTS[..1]));
    agent.make(put_export(&v, 4, &HOSTS[..2]));
    assert_eq!(node.reach(&v), ["host1 rw", "host2 ro"]);
    assert_eq!(problems(&agent, &v), Vec::<String>::new());
    agent.crash();
    let _agent = node.start();
    // A restarted agent first renews a proof that was not durable yet, as for every receipt.
    eventually("it is let in", || node.reach(&v) == ["host1 rw", "host2 ro"]);
}

#[test]
fn where_it_is_only_reported_an_operator_clears_it() {
    let node = Node::with("ro_reservation = \"report\"");
    let (agent, v, [one, two, three]) = shared(&node);
    node.fake.reserve_6(two, 1).unwrap();
    until(&agent, &v, HELD);
    let holder = || agent.get(&v).unwrap().export.unwrap().reservations.unwrap().holder.unwrap();
    let since = holder().since_us;
    assert!(since > 0);
    let text = problems(&agent, &v).remove(0);
    assert!(text.contains("host2") && text.contains("may only read") && text.contains("--clear"), "{text}");
    // The agent does nothing by itself, whatever else changes; and it remains the same reservation.
    agent.make(put_export(&v, 2, &[HOSTS[0], HOSTS[1], HOSTS[2], ("host4", RW)]));
    assert!(!may_write(&node, one) && node.fake.is_live(two));
    assert_eq!((holder().since_us, cuts(&agent, &v)), (since, Vec::new()));
    let preempt = Change::Preempt(v1::PreemptReservations { key: 0xa, abort: false });
    let refused = agent.change_reservations(&v, preempt);
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["RESERVE(6)", "--clear"]);
    let changed = agent.change_reservations(&v, CLEAR).unwrap();
    assert_eq!(changed.before.unwrap().holder.unwrap().since_us, since);
    assert_eq!(changed.now, None);
    assert!(may_write(&node, one) && may_write(&node, three) && !node.fake.is_live(two));
    assert_eq!(cuts(&agent, &v).len(), 1);
    assert_eq!(problems(&agent, &v), Vec::<String>::new());
    assert_eq!(agent.change_reservations(&v, CLEAR).unwrap(), v1::ChangeReservationsResponse::default());
    assert!(node.login(&v, "host2").is_ok());
}

#[test]
fn what_a_writer_reserves_is_an_operators_matter() {
    let node = Node::new();
    let (agent, v, [one, two, three]) = shared(&node);
    node.fake.reserve_6(three, 1).unwrap();
    until(&agent, &v, "host3 0: ");
    agent.make(put_export(&v, 2, &HOSTS));
    assert!(node.fake.is_live(three) && !may_write(&node, one));
    assert_eq!((cuts(&agent, &v), problems(&agent, &v)), (Vec::new(), Vec::new()));
    agent.change_reservations(&v, CLEAR).unwrap();
    assert!(may_write(&node, one) && !node.fake.is_live(three) && node.fake.is_live(two));
    assert_eq!(cuts(&agent, &v)[0].initiator, iqn("host3"));
    // A detach ends the reservation as well, and its receipt says so.
    let three = node.login(&v, "host3").unwrap();
    node.fake.reserve_6(three, 1).unwrap();
    until(&agent, &v, "host3 0: ");
    let receipts = agent.put_export(put_export(&v, 3, &HOSTS[..2])).unwrap().receipts;
    assert_eq!((receipts[0].held_reservation, receipts[0].cause()), (Some(0), v1::Cause::Unspecified));
    assert!(may_write(&node, one));
    until(&agent, &v, "");
}

/// A persistent reservation of a host that became read-only belongs to its cluster: the agent does
/// not revoke it.
#[test]
fn what_was_registered_before_is_left_alone() {
    let node = Node::new();
    let (agent, v, [one, _, three]) = shared(&node);
    node.fake.persistent_reserve(three, 1, PrOut::Register { key: 0, new: 0xc, durable: false }).unwrap();
    node.fake.persistent_reserve(three, 1, PrOut::Reserve { key: 0xc, kind: 5 }).unwrap();
    until(&agent, &v, "host3 5: host3=c");
    agent.make(put_export(&v, 2, &[HOSTS[0], HOSTS[1], ("host3", RO)]));
    until(&agent, &v, "host3 5: host3=c");
    assert!(!may_write(&node, one) && node.fake.is_live(three));
    assert_eq!((cuts(&agent, &v), problems(&agent, &v)), (Vec::new(), Vec::new()));
    agent.change_reservations(&v, CLEAR).unwrap();
    assert!(may_write(&node, one));
}

#[test]
fn killed_at_every_step_a_cut_is_carried_out() {
    let mut steps = 0;
    'steps: for step in 1.. {
        for kill in [Kill::Before(step), Kill::After(step)] {
            let node = Node::with("ro_reservation = \"report\"");
            let (agent, v, [one, two, three]) = shared(&node);
            node.fake.reserve_6(two, 1).unwrap();
            until(&agent, &v, HELD);
            eventually("it is quiet", || agent.plan(&v).steps.is_empty());
            agent.switch.kill_from_now(kill);
            let asked = agent.ask_reservations(&v, CLEAR);
            eventually("a death or the end", || agent.switch.is_dead() || asked.is_finished());
            let died = agent.switch.is_dead();
            agent.crash();
            let agent = node.start();
            eventually("it is carried out, or was not begun", || {
                let cuts = cuts(&agent, &v);
                let done = cuts.iter().all(|cut| cut.proven) && cuts.len() < 2;
                done && node.reach(&v).len() == 3 && (cuts.is_empty() != may_write(&node, one))
            });
            assert!(node.fake.is_live(three), "{kill:?}");
            if !died {
                assert!(steps > 4, "it takes {steps} steps");
                break 'steps;
            }
        }
        steps = step;
    }
}
