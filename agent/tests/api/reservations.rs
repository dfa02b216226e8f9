//! Persistent reservations: what initiators do is reported. Durable registrations outlive a loss of
//! power, each is restored once, and only for initiators that still have a grant.

use mooring_agent::store::Store;
use mooring_api::v1;
use mooring_host::fake::{IoRefusal, PrOut, SessionId};
use mooring_host::{Tree, TreePath};

use crate::rig::*;
use crate::switch::Kill;

const ALL: [(&str, v1::Mode); 3] = [("host1", RW), ("host2", RW), ("host3", RW)];

/// Returns the agent's report of a volume's reservations, in short: the holder with its type, and
/// all keys.
pub(crate) fn said(agent: &Agent, v: &str) -> String {
    let status = agent.get(v).unwrap();
    let seen = status.export.unwrap_or_default().reservations.unwrap_or_default();
    let short = |initiator: &str| initiator.rsplit('.').next().unwrap_or_default().to_owned();
    let keys = |all: &[v1::Registration]| {
        let mut all: Vec<_> =
            all.iter().map(|one| format!("{}={:x}", short(&one.initiator), one.key)).collect();
        all.sort();
        all.join(" ")
    };
    let holder = seen
        .holder
        .map_or_else(String::new, |holder| format!("{} {}: ", short(&holder.initiator), holder.r#type));
    let lost = if seen.lost.is_empty() { String::new() } else { format!(" lost {}", keys(&seen.lost)) };
    format!("{holder}{}{lost}", keys(&seen.registrations))
}

pub(crate) fn until(agent: &Agent, v: &str, wanted: &str) {
    eventually(&format!("{wanted:?}"), || said(agent, v) == wanted);
}

pub(crate) fn register(node: &Node, session: SessionId, key: u64, durable: bool) {
    node.fake.persistent_reserve(session, 1, PrOut::Register { key: 0, new: key, durable }).unwrap();
}

/// A volume of three hosts: the first two have registered, and the first has reserved the volume
/// for registrants.
pub(crate) fn reserved(node: &Node, durable: bool) -> (Agent, String, [SessionId; 3]) {
    let v = volume(1);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &ALL));
    let sessions = ALL.map(|(host, _)| node.login(&v, host).unwrap());
    register(node, sessions[0], 0xa, durable);
    register(node, sessions[1], 0xb, durable);
    node.fake.persistent_reserve(sessions[0], 1, PrOut::Reserve { key: 0xa, kind: 5 }).unwrap();
    (agent, v, sessions)
}

/// True if a host that logs in anew cannot write.
pub(crate) fn is_fenced(node: &Node, v: &str, host: &str) -> bool {
    let session = node.login(v, host).unwrap();
    node.fake.write(session, 1) == Err(IoRefusal::ReservationConflict)
}

pub(crate) fn restart(node: &Node, agent: Agent) -> Agent {
    agent.crash();
    node.fake.reboot();
    node.start()
}

pub(crate) const HELD: &str = "host1 5: host1=a host2=b";

#[test]
fn what_initiators_do_is_reported_and_outlives_a_loss_of_power() {
    let node = Node::new();
    let (agent, v, sessions) = reserved(&node, true);
    until(&agent, &v, HELD);
    assert_eq!(node.fake.write(sessions[2], 1), Err(IoRefusal::ReservationConflict));
    // A restart of the agent alone touches nothing.
    agent.crash();
    let agent = node.start();
    until(&agent, &v, HELD);
    let agent = restart(&node, agent);
    until(&agent, &v, HELD);
    assert!(is_fenced(&node, &v, "host3"));
    assert_eq!(agent.get(&v).unwrap().export.unwrap().problems, []);
    // A second loss of power restores what the first one restored.
    let agent = restart(&node, agent);
    until(&agent, &v, HELD);
    assert!(is_fenced(&node, &v, "host3"));
}

/// The control: if the store has nothing, nothing is restored.
#[test]
fn without_what_was_kept_nothing_comes_back() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    agent.crash();
    node.fake.reboot();
    Store::open(&node.config.state_dir).unwrap().keep_reservations(v.parse().unwrap(), &[]).unwrap();
    let agent = node.start();
    eventually("the export", || node.reach(&v).len() == 3);
    assert!(!is_fenced(&node, &v, "host3"));
    assert_eq!(said(&agent, &v), "");
}

#[test]
fn what_was_not_asked_to_outlive_it_does_not() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, false);
    until(&agent, &v, HELD);
    let agent = restart(&node, agent);
    eventually("the export", || node.reach(&v).len() == 3);
    assert!(!is_fenced(&node, &v, "host3"));
    assert_eq!(said(&agent, &v), "");
}

#[test]
fn a_revoke_takes_registrations_away_for_good() {
    let node = Node::new();
    let (agent, v, sessions) = reserved(&node, true);
    until(&agent, &v, HELD);
    agent.make(put_export(&v, 2, &ALL[1..]));
    until(&agent, &v, "host2=b");
    assert!(node.fake.write(sessions[2], 1).is_ok(), "what the victim held is released");
    // The kernel's file still has the victim. Neither the agent nor a new grant restores it.
    agent.make(put_export(&v, 3, &ALL));
    until(&agent, &v, "host2=b");
    let agent = restart(&node, agent);
    until(&agent, &v, "host2=b");
    assert!(!is_fenced(&node, &v, "host1"));
}

/// Receipts of other initiators do not mention the reservation, and a registration alone is no
/// reservation.
#[test]
fn a_receipt_says_that_its_initiator_held_the_reservation() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    let held = |receipts: Vec<v1::Receipt>| -> Vec<(String, Option<u32>)> {
        receipts.into_iter().map(|one| (one.initiator, one.held_reservation)).collect()
    };
    let revoke =
        |counter, stay: &[_]| held(agent.put_export(put_export(&v, counter, stay)).unwrap().receipts);
    assert_eq!(revoke(2, &ALL[..2]), [(iqn("host3"), None)]);
    assert_eq!(revoke(3, &ALL[1..2]), [(iqn("host1"), Some(5))]);
    assert_eq!(revoke(4, &[]), [(iqn("host2"), None)], "what host1 held is nobody's by now");
    let all = [(iqn("host2"), None), (iqn("host1"), Some(5)), (iqn("host3"), None)];
    assert_eq!(held(agent.get(&v).unwrap().receipts), all);
    // The stored receipt is the one that was answered.
    agent.crash();
    let agent = node.start();
    assert_eq!(held(agent.get(&v).unwrap().receipts), all);
}

#[test]
fn the_whole_export_gone_takes_all_away() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    agent.make(delete_export(&v, 2));
    agent.make(put_export(&v, 3, &ALL));
    eventually("the export", || node.reach(&v).len() == 3);
    assert_eq!(said(&agent, &v), "");
    let file = |v: &str| node.dir.path().join(format!("root/var/target/pr/aptpl_{v}"));
    assert!(!file(&v).exists(), "the kernel leaves its file behind");
    drop(agent);
    assert_eq!(Store::open(&node.config.state_dir).unwrap().reservations().unwrap(), []);
}

#[test]
fn a_command_that_takes_them_away_is_no_loss() {
    let node = Node::new();
    let (agent, v, sessions) = reserved(&node, true);
    until(&agent, &v, HELD);
    let preempt = PrOut::Preempt { key: 0xb, victim: 0xa, kind: 5 };
    node.fake.persistent_reserve(sessions[1], 1, preempt).unwrap();
    until(&agent, &v, "host2 5: host2=b");
    node.fake.persistent_reserve(sessions[1], 1, PrOut::Clear { key: 0xb }).unwrap();
    until(&agent, &v, "");
    let agent = restart(&node, agent);
    eventually("the export", || node.reach(&v).len() == 3);
    assert_eq!(said(&agent, &v), "");
}

/// A host that unregisters has lost nothing, although PRGENERATION does not change. This holds for
/// the last registrant, and for one of many.
#[test]
fn who_unregisters_has_lost_nothing() {
    let node = Node::new();
    let (agent, v, sessions) = reserved(&node, true);
    until(&agent, &v, HELD);
    let unregister = |at: usize, key| {
        let command = PrOut::Register { key, new: 0, durable: true };
        node.fake.persistent_reserve(sessions[at], 1, command).unwrap();
    };
    unregister(1, 0xb);
    until(&agent, &v, "host1 5: host1=a");
    unregister(0, 0xa);
    until(&agent, &v, "");
    assert_eq!(agent.get(&v).unwrap().export.unwrap().problems, []);
    let agent = restart(&node, agent);
    eventually("the export", || node.reach(&v).len() == 3);
    assert_eq!(said(&agent, &v), "");
}

/// Somebody removes the LUN's link by hand. The kernel then forgets all registrations, and accepts
/// none back while the LUN is exported.
#[test]
fn what_the_kernel_loses_is_a_problem_until_it_is_registered_anew() {
    let node = Node::with("resync_seconds = 1");
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    let lun = TreePath::new(&format!("iscsi/{}/tpgt_1/lun/lun_1/mooring", target(&v)));
    node.fake.lio().unlink(&lun).unwrap();
    until(&agent, &v, " lost host1=a host2=b");
    // A question looks beside the passes, and must not add its answer to the problems.
    for _ in 0..50 {
        let problems = agent.get(&v).unwrap().export.unwrap().problems;
        assert!(problems.len() == 1 && problems[0].text.contains("register it again"), "{problems:?}");
    }
    eventually("all are mapped again", || node.reach(&v).len() == 3);
    for (host, key) in [("host1", 0xa), ("host2", 0xb)] {
        // An initiator keeps its ISID. Each session of the fake gets a new one, which is another
        // port.
        let session = node.login(&v, host).unwrap();
        register(&node, session, key, true);
    }
    agent.make(put_export(&v, 2, &[]));
    until(&agent, &v, "");
    assert_eq!(agent.get(&v).unwrap().export.unwrap().problems, []);
}

/// The folder went away under the agent, and came back without the file.
#[test]
fn what_cannot_be_kept_is_a_problem() {
    let node = Node::with("resync_seconds = 1");
    let (agent, v, sessions) = reserved(&node, true);
    until(&agent, &v, HELD);
    agent.crash();
    let pr = node.dir.path().join("root/var/target/pr");
    register(&node, sessions[2], 0xc, true);
    std::fs::remove_dir_all(&pr).unwrap();
    let agent = node.start();
    until(&agent, &v, "host1 5: host1=a host2=b host3=c");
    let problems = || agent.get(&v).unwrap().export.unwrap().problems;
    eventually("the problem", || problems().iter().any(|problem| problem.text.contains("cannot be read")));
    // The next command writes the file anew.
    node.fake
        .persistent_reserve(sessions[2], 1, PrOut::Register { key: 0xc, new: 0xd, durable: true })
        .unwrap();
    until(&agent, &v, "host1 5: host1=a host2=b host3=d");
    eventually("no problem", || problems().is_empty());
}

/// Kills at every step of the restart: each registration is restored once.
#[test]
fn killed_at_every_step_each_comes_back_once() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    agent.crash();
    for step in 1.. {
        node.fake.reboot();
        let agent = node.start_with(Some(Kill::Before(step)));
        eventually("a death or the end", || {
            agent.switch.is_dead() || (agent.is_up() && node.reach(&v).len() == 3 && said(&agent, &v) == HELD)
        });
        let died = agent.switch.is_dead();
        agent.crash();
        let agent = node.start();
        until(&agent, &v, HELD);
        assert!(is_fenced(&node, &v, "host3"), "step {step}");
        agent.crash();
        if !died {
            assert!(step > 10, "the restart takes more than {step} steps");
            return;
        }
    }
}

/// Returns a controller's copy of the reservations that this agent stores.
fn kept(agent: &Agent, v: &str) -> String {
    agent.get(v).unwrap().export.unwrap().kept_reservations.unwrap()
}

#[test]
fn a_copy_is_taken_by_an_agent_that_knows_nothing_of_the_export() {
    let node = Node::new();
    let (agent, v, _) = reserved(&node, true);
    until(&agent, &v, HELD);
    let copy = kept(&agent, &v);
    assert_eq!(copy.lines().count(), 2, "{copy}");
    agent.crash();
    node.fake.reboot();
    std::fs::remove_dir_all(&node.config.state_dir).unwrap();
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let put = put_export(&v, 1, &ALL);
    agent.make(v1::PutExportRequest { reservations_copy: copy.clone(), ..put });
    assert_eq!((kept(&agent, &v), is_fenced(&node, &v, "host3")), (copy.clone(), true));
    until(&agent, &v, HELD);

    // The copy is then stored like the agent's own record.
    let agent = restart(&node, agent);
    until(&agent, &v, HELD);
    // An agent that knows the export takes nobody's copy: no initiator is left that a copy could
    // fence.
    agent.make(put_export(&v, 2, &[]));
    until(&agent, &v, "");
    agent.make(v1::PutExportRequest { reservations_copy: copy, ..put_export(&v, 3, &ALL) });
    let agent = restart(&node, agent);
    eventually("the export", || node.reach(&v).len() == 3);
    assert_eq!((kept(&agent, &v), is_fenced(&node, &v, "host3")), (String::new(), false));
}

#[test]
fn an_unreadable_copy_is_refused_and_the_volume_is_not_exported_without() {
    let node = Node::new();
    let agent = node.start();
    let v = volume(1);
    agent.make(put_volume(&v, 1));
    for copy in ["nonsense", "sa_res_key=0x1,future=1", "\n"] {
        let put = v1::PutExportRequest { reservations_copy: copy.to_owned(), ..put_export(&v, 1, &ALL) };
        let refused = agent.put_export(put).unwrap_err();
        assert!(refused.message().contains("cannot read the controller's copy"), "{refused:?}");
    }
    assert!(node.reach(&v).is_empty() && agent.get(&v).unwrap().export.is_none());
    agent.make(put_export(&v, 1, &ALL));
    assert_eq!(kept(&agent, &v), "");
}
