//! What a look and a change cost, in counted operations, and that it does not depend on other exports. The numbers are
//! written down here; a change of one is a change of a promise.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::*;
use mooring_host::fake::{Counted, FakeLio, FakeMachine};
use mooring_model::{Mode, VolumeId};
use mooring_targets::{Known, Wanted, apply, plan, read_sessions};

const PORTALS: [&str; 1] = ["10.10.0.10:3260"];

/// Operations of a look, and of doing the plan that follows from it.
fn cost(tree: &Counted<FakeLio>, wanted: &Wanted) -> (u64, u64) {
    tree.reset();
    let view = look(tree, wanted);
    let looked = tree.total();
    let steps = plan(wanted, &view);
    tree.reset();
    apply(&steps, tree, &mut ()).unwrap();
    assert_eq!(tree.total(), steps.steps.len() as u64, "one step is one operation");
    assert!(plan_now(tree, wanted).is_quiet());
    (looked, steps.steps.len() as u64)
}

/// A machine with this many exports of other volumes, each with two grants, all over the HBAs: some share ours.
fn beside(others: u128) -> FakeMachine {
    let machine = machine();
    for number in 0..others {
        let volume = VolumeId::from_u128(((number % 3 * 0x20 + 0x80) << 120) | (number + 1));
        let device = format!("/dev/vg0/other{number}");
        machine.add_device(&device, 1 << 30);
        let chap = Some(chap("user", "secret-1234567"));
        let grants = vec![grant(1, 1, Mode::ReadWrite, chap.clone()), grant(2, 1, Mode::ReadOnly, chap)];
        pass(&machine.lio(), &present_as(names_of(volume), &device, &PORTALS, grants)).unwrap();
    }
    machine
}

/// Cost of: first grant, further grant, a look at two grants, sessions of two grants, mode change, revoke, tombstone.
fn costs(machine: &FakeMachine) -> Vec<(&'static str, u64, u64)> {
    let tree = Counted::new(machine.lio());
    let chap = Some(chap("user", "secret-1234567"));
    let one = vec![grant(1, 1, Mode::ReadWrite, chap.clone())];
    let two = vec![one[0].clone(), grant(2, 1, Mode::ReadOnly, chap.clone())];
    let both_rw = vec![one[0].clone(), grant(2, 1, Mode::ReadWrite, chap)];
    let mut costs = Vec::new();
    for (name, wanted) in [
        ("first grant", present(&PORTALS, one.clone())),
        ("further grant", present(&PORTALS, two.clone())),
        ("nothing to do, two grants", present(&PORTALS, two)),
        ("mode change", present(&PORTALS, both_rw.clone())),
        ("revoke of one of two", present(&PORTALS, one)),
    ] {
        let (looked, done) = cost(&tree, &wanted);
        costs.push((name, looked, done));
    }
    let wanted = present(&PORTALS, both_rw);
    cost(&tree, &wanted);
    let view = look(&tree, &wanted);
    tree.reset();
    read_sessions(&tree, &names(), &view).unwrap();
    costs.push(("sessions and counters, two grants", tree.total(), 0));
    let (looked, done) = cost(&tree, &absent());
    costs.push(("tombstone, two grants", looked, done));
    costs
}

/// Law 8: the operations of every change are equal with 1 and with 200 other exports, and are these.
#[test]
fn cost_does_not_depend_on_other_exports() {
    let alone = costs(&beside(1));
    assert_eq!(
        alone,
        [
            ("first grant", 4, 25),
            ("further grant", 23, 6),
            ("nothing to do, two grants", 31, 0),
            ("mode change", 31, 1),
            ("revoke of one of two", 31, 3),
            ("sessions and counters, two grants", 8, 0),
            ("tombstone, two grants", 31, 14),
        ]
    );
    assert_eq!(alone, costs(&beside(200)));
}

/// Operations of a narrow change: looking before, doing it, looking after.
fn narrow_cost(tree: &Counted<FakeLio>, known: Known, wanted: &Wanted) -> (u64, Known) {
    tree.reset();
    let narrow = known.narrow(wanted).unwrap();
    let steps = plan(&narrow.wanted, &narrow.look(tree).unwrap());
    apply(&steps, tree, &mut ()).unwrap();
    let seen = narrow.look(tree).unwrap();
    let known = narrow.widen(wanted, &seen).unwrap();
    let cost = tree.total();
    assert!(plan_now(tree, wanted).is_quiet());
    (cost, known)
}

/// Invariant 12: what a further grant, a mode change and a revoke cost does not depend on how many hosts share the volume.
#[test]
fn a_narrow_change_does_not_depend_on_other_attachments() {
    let costs = |others: usize| {
        let machine = machine();
        let tree = Counted::new(machine.lio());
        let chap = Some(chap("user", "secret-1234567"));
        let wish = |last: Option<Mode>| {
            let others = (2..others + 2).map(|number| grant(number, 1, Mode::ReadOnly, chap.clone()));
            present(&PORTALS, others.chain(last.map(|mode| grant(1, 1, mode, chap.clone()))).collect())
        };
        pass(&tree, &wish(None)).unwrap();
        let known = Known::new(&wish(None), look(&tree, &wish(None))).unwrap();
        let (granted, known) = narrow_cost(&tree, known, &wish(Some(Mode::ReadOnly)));
        let (changed, known) = narrow_cost(&tree, known, &wish(Some(Mode::ReadWrite)));
        let (revoked, _) = narrow_cost(&tree, known, &wish(None));
        [granted, changed, revoked]
    };
    assert_eq!(costs(1), [15, 17, 12]);
    assert_eq!(costs(100), costs(1));
}
