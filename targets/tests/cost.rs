//! Cost of a look and of a change in counted operations, which does not depend on other exports.
//! The numbers are pinned here: a changed number is a changed promise.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use crate::common::*;
use mooring_host::fake::{Counted, FakeLio, FakeMachine};
use mooring_model::{FcFabric, Mode, VolumeId};
use mooring_targets::{Known, Wanted, apply, count_commands, plan, read_live};

const PORTALS: [&str; 1] = ["10.10.0.10:3260"];

/// Operations of a look, and of applying the plan that follows from it.
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

/// A machine with this many exports of other volumes, each with two grants, all over the HBAs: some
/// share ours.
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

/// Cost of: first grant, further grant, a look at two grants, sessions of two grants, mode change,
/// revoke, tombstone.
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
    tree.reset();
    let live = read_live(&tree, &wanted, &BTreeMap::new()).unwrap();
    costs.push(("sessions and counters, two grants", tree.total(), 0));
    tree.reset();
    assert_eq!(read_live(&tree, &wanted, &live).unwrap(), live);
    costs.push(("the same again, both idle", tree.total(), 0));
    let session = machine.login(PORTALS[0], names().iqn.as_str(), &host(1), Some(("user", "secret-1234567")));
    machine.write(session.unwrap(), 1).unwrap();
    tree.reset();
    read_live(&tree, &wanted, &live).unwrap();
    costs.push(("the same again, one at work", tree.total(), 0));
    tree.reset();
    assert_eq!(count_commands(&tree, wanted.names()).unwrap(), Some(1));
    costs.push(("commands of both, in one number", tree.total(), 0));
    let (looked, done) = cost(&tree, &absent());
    costs.push(("tombstone, two grants", looked, done));
    costs
}

/// Law 8: every change takes the same number of operations with 1 and with 200 other exports, and
/// these are the numbers.
#[test]
fn cost_does_not_depend_on_other_exports() {
    let alone = costs(&beside(1));
    assert_eq!(
        alone,
        [
            ("first grant", 4, 30),
            ("further grant", 27, 6),
            ("nothing to do, two grants", 35, 0),
            ("mode change", 35, 1),
            ("revoke of one of two", 35, 3),
            ("sessions and counters, two grants", 8, 0),
            ("the same again, both idle", 4, 0),
            ("the same again, one at work", 6, 0),
            ("commands of both, in one number", 1, 0),
            ("tombstone, two grants", 35, 14),
        ]
    );
    assert_eq!(alone, costs(&beside(200)));
}

/// Operations of a narrow change: the look before, the steps, the look after.
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

/// Invariant 12: the cost of a further grant, a mode change and a revoke does not depend on how
/// many hosts share the volume.
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

/// A port with this many other volumes on it, each granted to the same initiators as ours.
fn port_beside(others: u16) -> FakeMachine {
    let machine = fc::bare(FcFabric::TcmFc);
    for number in 0..others {
        let volume =
            VolumeId::from_u128((u128::from(number % 3) * 0x20 + 0x80) << 120 | u128::from(number + 1));
        let device = format!("/dev/vg0/fc{number}");
        machine.add_device(&device, 1 << 30);
        let grants =
            vec![fc::grant(1, 2 + number, Mode::ReadWrite), fc::grant(2, 2 + number, Mode::ReadOnly)];
        let names = fc::names(FcFabric::TcmFc, volume);
        let wanted = fc::Wanted::Present { names, device: device.into(), grants };
        fc::Node::new(&machine).pass(&machine.lio(), &wanted).unwrap();
    }
    machine
}

/// Operations of a look over Fibre Channel, and of applying the plan that follows from it.
fn fc_cost(tree: &Counted<FakeLio>, node: &fc::Node<'_>, wanted: &fc::Wanted) -> (u64, u64) {
    tree.reset();
    let view = node.look(tree, wanted);
    let looked = tree.total();
    let steps = mooring_targets::fc::plan(wanted, &view);
    tree.reset();
    apply(&steps, tree, &mut ()).unwrap();
    assert_eq!(tree.total(), steps.steps.len() as u64, "one step is one operation");
    node.settle(wanted);
    (looked, steps.steps.len() as u64)
}

/// Law 8 on a port that all volumes share: the cost of a look and of a change does not depend on
/// how many volumes there are.
#[test]
fn cost_does_not_depend_on_other_volumes_of_the_port() {
    let costs = |others| {
        let machine = port_beside(others);
        let (tree, node) = (Counted::new(machine.lio()), fc::Node::new(&machine));
        let (rw, ro) = (fc::grant(1, 1, Mode::ReadWrite), fc::grant(2, 1, Mode::ReadOnly));
        let present = |grants| fc::present(FcFabric::TcmFc, grants);
        let wishes = [
            ("first grant", present(vec![rw.clone()])),
            ("further grant, read-only", present(vec![rw.clone(), ro.clone()])),
            ("nothing to do, two grants", present(vec![rw.clone(), ro])),
            ("mode change", present(vec![rw.clone(), fc::grant(2, 1, Mode::ReadWrite)])),
            ("revoke of one of two", present(vec![rw])),
            ("tombstone, one grant", fc::absent(FcFabric::TcmFc)),
        ];
        wishes
            .into_iter()
            .map(|(name, wanted)| {
                let (looked, done) = fc_cost(&tree, &node, &wanted);
                (name, looked, done)
            })
            .collect::<Vec<_>>()
    };
    let alone = costs(1);
    assert_eq!(
        alone,
        [
            ("first grant", 8, 17),
            ("further grant, read-only", 16, 9),
            ("nothing to do, two grants", 15, 0),
            ("mode change", 15, 1),
            ("revoke of one of two", 15, 5),
            ("tombstone, one grant", 11, 7),
        ]
    );
    assert_eq!(alone, costs(200));
}
