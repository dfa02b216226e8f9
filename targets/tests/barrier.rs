//! Barriers on the behaving fake. At every prefix of a plan, writes in flight have landed before a
//! report says so, and the initiator notices only the end of its session. The controls: a plain
//! change lets such writes land later, and the name on an ACL that was writable does not count.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::thread;

use crate::common::*;
use mooring_host::fake::{Answer, FakeMachine, IoRefusal, SessionId};
use mooring_host::{Tree, TreePath};
use mooring_model::{BarrierId, Chap, Grant, Mode, Step};
use mooring_targets::{Op, Wanted, apply, drains, layout, report};

const PORTAL: &str = "10.10.0.10:3260";

fn side_of(number: usize) -> (String, String) {
    (format!("user-{number}"), format!("secret-of-host-{number}"))
}

fn chap_of(number: usize) -> Chap {
    let (user, secret) = side_of(number);
    chap(&user, &secret)
}

/// A spec for host 1 with these values, and for host 2, which writes.
fn spec(mode: Mode, barrier: Option<u128>, with_chap: bool) -> Wanted {
    let first = grant(1, 1, mode, with_chap.then(|| chap_of(1)));
    let first = Grant { barrier: barrier.map(BarrierId::from_u128), ..first };
    present(&[PORTAL], vec![first, grant(2, 1, Mode::ReadWrite, Some(chap_of(2)))])
}

fn login(machine: &FakeMachine, number: usize, with_chap: bool) -> Option<SessionId> {
    let (user, secret) = side_of(number);
    let shown = with_chap.then_some((user.as_str(), secret.as_str()));
    machine.login(PORTAL, names().iqn.as_str(), &host(number), shown).ok()
}

fn said(machine: &FakeMachine, wanted: &Wanted) -> Option<BarrierId> {
    let facts = report(wanted, &look(&machine.lio(), wanted), &BTreeMap::new());
    facts.grants.iter().find(|grant| grant.initiator.as_str() == host(1)).unwrap().barrier
}

fn acl() -> TreePath {
    layout::acl(&names(), &host(1))
}

/// Both hosts write. Host 1 has eight writes in flight to a disk that does not answer.
fn with_writes() -> (FakeMachine, SessionId, SessionId) {
    let machine = machine_beside_foreign();
    settle(&machine, &spec(Mode::ReadWrite, None, true));
    let (one, two) = (login(&machine, 1, true).unwrap(), login(&machine, 2, true).unwrap());
    machine.hold(DEVICE);
    for _ in 0..8 {
        machine.start_write(one, 1).unwrap();
    }
    (machine, one, two)
}

#[test]
fn a_plain_change_lets_what_is_in_flight_land_and_a_barrier_waits_for_it() {
    // The control.
    let (machine, one, _) = with_writes();
    settle(&machine, &spec(Mode::ReadOnly, None, true));
    assert_eq!((machine.in_flight(DEVICE), machine.landed(DEVICE), machine.is_live(one)), (8, 0, true));
    machine.release(DEVICE);
    assert_eq!(machine.landed(DEVICE), 8, "after the change was in force");

    let (machine, one, two) = with_writes();
    let wanted = spec(Mode::ReadOnly, Some(1), true);
    let waits = {
        let (tree, wanted) = (machine.lio(), wanted.clone());
        thread::spawn(move || pass(&tree, &wanted).map(drop))
    };
    while machine.is_live(one) {
        thread::yield_now();
    }
    assert_eq!((machine.in_flight(DEVICE), machine.landed(DEVICE)), (8, 0));
    assert!(!waits.is_finished() && machine.is_live(two));
    assert_eq!(said(&machine, &wanted), None);
    // Nobody is refused meanwhile, and nothing is written.
    let again = login(&machine, 1, true).unwrap();
    assert_eq!(machine.write(again, 1), Err(IoRefusal::WriteProtected));
    machine.release(DEVICE);
    waits.join().unwrap().unwrap();
    assert_eq!((machine.in_flight(DEVICE), machine.landed(DEVICE)), (0, 8));
    assert_eq!(said(&machine, &wanted), Some(BarrierId::from_u128(1)));
    assert!(machine.is_live(two) && machine.write(two, 1).is_ok());
    let again = login(&machine, 1, true).unwrap();
    assert!(matches!(machine.read(again, 1), Ok(Answer::Device(_))));
    assert_eq!(machine.write(again, 1), Err(IoRefusal::WriteProtected));
    assert!(plan_now(&machine.lio(), &wanted).is_quiet());
}

/// A session may end by itself with writes in flight. A call that drops sessions does not wait for
/// it; the removal of the ACL does, so only the removal is a proof.
#[test]
fn a_session_that_was_ending_is_waited_for_too() {
    let (machine, one, two) = with_writes();
    machine.logout(one);
    let again = login(&machine, 1, true).unwrap();
    // The control: the call that only drops the sessions.
    machine.lio().write(&acl().join("cmdsn_depth"), b"7").unwrap();
    assert_eq!((machine.is_live(again), machine.in_flight(DEVICE)), (false, 8));
    let wanted = spec(Mode::ReadOnly, Some(1), true);
    let waits = {
        let (tree, wanted) = (machine.lio(), wanted.clone());
        thread::spawn(move || pass(&tree, &wanted).map(drop))
    };
    // Nobody can look into the folder that is being removed. Its initiator then reaches nothing.
    while machine.reachable().iter().any(|reach| reach.initiator == host(1)) {
        thread::yield_now();
    }
    thread::sleep(std::time::Duration::from_millis(30));
    assert!(!waits.is_finished() && machine.is_live(two));
    assert_eq!((machine.in_flight(DEVICE), machine.landed(DEVICE)), (8, 0));
    machine.release(DEVICE);
    waits.join().unwrap().unwrap();
    assert_eq!((machine.landed(DEVICE), said(&machine, &wanted)), (8, Some(BarrierId::from_u128(1))));
}

/// Asserts the rules for every step of a barrier: nothing is written, no session finds its LUN
/// missing, and an initiator that can log in can read.
fn harmless(machine: &FakeMachine, live: SessionId, with_chap: bool, step: &Step<Op>) {
    let ok = |read| matches!(read, Ok(Answer::Device(_)) | Err(IoRefusal::SessionGone));
    assert!(ok(machine.read(live, 1)), "after {}", step.op);
    assert!(machine.write(live, 1).is_err(), "after {}", step.op);
    if let Some(session) = login(machine, 1, with_chap) {
        assert!(matches!(machine.read(session, 1), Ok(Answer::Device(_))), "after {}", step.op);
        assert_eq!(machine.write(session, 1), Err(IoRefusal::WriteProtected), "after {}", step.op);
    }
}

#[test]
fn at_every_step_nothing_is_written_and_no_read_fails_for_want_of_the_lun() {
    for (with_chap, before) in
        [(true, Mode::ReadWrite), (true, Mode::ReadOnly), (false, Mode::ReadWrite), (false, Mode::ReadOnly)]
    {
        let machine = machine_beside_foreign();
        settle(&machine, &spec(before, None, with_chap));
        let (one, two) = (login(&machine, 1, with_chap).unwrap(), login(&machine, 2, true).unwrap());
        let wanted = spec(Mode::ReadOnly, Some(1), with_chap);
        let plan = plan_now(&machine.lio(), &wanted);
        let drained = plan.steps.iter().position(|step| drains(step) == Some(host(1).as_str())).unwrap();
        let mut at = 0;
        let mut each = Each(|step: &Step<Op>| {
            harmless(&machine, one, with_chap, step);
            assert!(at >= drained || said(&machine, &wanted).is_none(), "after {}", step.op);
            at += 1;
        });
        apply(&plan, &machine.lio(), &mut each).unwrap();
        assert_eq!(said(&machine, &wanted), Some(BarrierId::from_u128(1)));
        assert!(!machine.is_live(one) && machine.is_live(two));
        assert!(plan_now(&machine.lio(), &wanted).is_quiet());
    }
}

/// Stops after any number of steps. The report says only what a removal of the ACL has proven, and
/// the next pass reaches the spec.
#[test]
fn after_any_prefix_nothing_is_said_that_was_not_drained() {
    let wanted = spec(Mode::ReadOnly, Some(2), true);
    let start = || {
        let machine = machine_beside_foreign();
        settle(&machine, &spec(Mode::ReadOnly, Some(1), true));
        let one = login(&machine, 1, true).unwrap();
        (machine, one)
    };
    let steps = plan_now(&start().0.lio(), &wanted).steps.len();
    for stop in 0..=steps {
        let (machine, one) = start();
        let plan = plan_now(&machine.lio(), &wanted);
        let _ = apply(&plan, &machine.lio(), &mut StopAfter(stop));
        if said(&machine, &wanted).is_some() {
            let drained = plan.steps[..stop].iter().any(|step| drains(step) == Some(host(1).as_str()));
            assert!(drained && !machine.is_live(one), "after {stop} of\n{}", text(&plan));
        }
        settle(&machine, &wanted);
        assert_eq!(said(&machine, &wanted), Some(BarrierId::from_u128(2)));
    }
}

/// Somebody makes the LUN writable by hand after its barrier. Later writes may be in flight, so the
/// ACL must drain again.
#[test]
fn an_acl_that_was_open_since_has_to_drain_again() {
    let wanted = spec(Mode::ReadOnly, Some(1), true);
    let start = || {
        let machine = machine_beside_foreign();
        settle(&machine, &wanted);
        machine.lio().write(&acl().join("lun_1").join("write_protect"), b"0").unwrap();
        let one = login(&machine, 1, true).unwrap();
        machine.write(one, 1).unwrap();
        (machine, one)
    };
    let (machine, _) = start();
    assert_eq!(said(&machine, &wanted), None);
    let steps = plan_now(&machine.lio(), &wanted).steps.len();
    for stop in 0..=steps {
        let (machine, one) = start();
        let plan = plan_now(&machine.lio(), &wanted);
        let _ = apply(&plan, &machine.lio(), &mut StopAfter(stop));
        assert!(said(&machine, &wanted).is_none() || !machine.is_live(one), "{stop} of\n{}", text(&plan));
        settle(&machine, &wanted);
        assert!(!machine.is_live(one), "after {stop} of\n{}", text(&plan));
        assert_eq!(said(&machine, &wanted), Some(BarrierId::from_u128(1)));
    }
}

/// A repeated barrier has nothing to do. A storage node that makes its ACLs anew has nothing in
/// flight.
#[test]
fn it_is_done_once_and_holds_for_an_acl_that_is_made_anew() {
    let machine = machine_beside_foreign();
    let wanted = spec(Mode::ReadOnly, Some(1), true);
    settle(&machine, &wanted);
    assert_eq!(said(&machine, &wanted), Some(BarrierId::from_u128(1)));
    let one = login(&machine, 1, true).unwrap();
    assert!(pass(&machine.lio(), &wanted).unwrap().steps.is_empty() && machine.is_live(one));
    // The session writes again, and only a new barrier ends it.
    settle(&machine, &spec(Mode::ReadWrite, None, true));
    assert!(machine.is_live(one) && machine.write(one, 1).is_ok());
    settle(&machine, &spec(Mode::ReadOnly, None, true));
    assert!(machine.is_live(one));
    settle(&machine, &spec(Mode::ReadOnly, Some(2), true));
    assert!(!machine.is_live(one));
}
