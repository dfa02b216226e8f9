//! Fibre Channel, case by case: drains and hangs, owners of ACLs, places that are taken, a port
//! that must be found again, and reports.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use crate::common::fc::*;
use crate::common::{DEVICE, Each, StopAfter, dump_all, run_script, text};
use mooring_host::fake::{Faulty, IoRefusal};
use mooring_host::{Errno, Tree};
use mooring_model::{BlockedKind, FcFabric, Lun, Mode, PortLun, Step};
use mooring_targets::fc::{self, FcLive, Wanted};
use mooring_targets::{Error, Op, apply};

const FC: FcFabric = FcFabric::TcmFc;

fn rw(number: u16, lun: u16) -> mooring_model::FcGrant {
    grant(number, lun, Mode::ReadWrite)
}

/// A revoke waits only for the commands of its own nexus: not for another initiator of this volume,
/// and not for this initiator's commands to another volume.
#[test]
fn a_revoke_drains_exactly_its_nexus() {
    let machine = bare(FC);
    let (ours, other) = (Node::new(&machine), Node::new(&machine));
    ours.settle(&present(FC, vec![rw(1, 1), rw(2, 1)]));
    other.settle(&of_other(FC, vec![rw(1, 2)]));
    let sessions = ours.log_in_all(FC);
    machine.hold(DEVICE);
    machine.hold(OTHER_DEVICE);
    machine.start_write(sessions[1].1, 1).unwrap();
    machine.start_write(sessions[0].1, 2).unwrap();
    // Neither command belongs to the nexus (volume, 1): its revoke returns although both disks
    // hang.
    ours.settle(&present(FC, vec![rw(2, 1)]));
    assert_eq!(machine.in_flight(DEVICE), 1);
    assert_eq!(machine.in_flight(OTHER_DEVICE), 1);
    // The revoke of (volume, 2) waits for its command, in the step that says so.
    let wanted = present(FC, vec![]);
    let steps = ours.plan(&wanted);
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            apply(&steps, &machine.lio(), &mut Each(|step: &Step<Op>| done.push(fc::drains(step).is_some())))
        });
        while machine.waiting() == 0 && !run.is_finished() {
            std::thread::yield_now();
        }
        assert!(!run.is_finished() && machine.landed(DEVICE) == 0);
        assert_eq!(machine.start_write(sessions[1].1, 1), Err(IoRefusal::NoLun), "cut off meanwhile");
        machine.release(DEVICE);
        run.join().unwrap().unwrap();
    });
    assert_eq!((done.iter().filter(|drains| **drains).count(), machine.landed(DEVICE)), (1, 1));
    // An initiator's ACL, and with it its session, goes with its last volume.
    let live: Vec<bool> = sessions.iter().map(|(_, session)| machine.is_live(*session)).collect();
    assert_eq!(live, [true, false]);
}

/// While one volume's revoke hangs, another volume's revoke of the same initiator ends. The ACL
/// stays, because the folder of the mapped LUN that has not drained holds it. Without that folder,
/// the second revoke would hang, too (control).
#[test]
fn a_hung_volume_holds_up_no_other_of_its_initiator() {
    let machine = bare(FC);
    let (ours, other) = (Node::new(&machine), Node::new(&machine));
    ours.settle(&present(FC, vec![rw(1, 1)]));
    other.settle(&of_other(FC, vec![rw(1, 2)]));
    let session = ours.log_in_all(FC)[0].1;
    machine.hold(DEVICE);
    machine.start_write(session, 1).unwrap();
    let acl = fc::acl(port(FC), initiator(1));
    let former = ours.former.borrow().clone();
    std::thread::scope(|scope| {
        let hung =
            scope.spawn(|| Node { machine: &machine, former: former.clone().into() }.settle(&absent(FC)));
        while machine.waiting() == 0 {
            std::thread::yield_now();
        }
        let gone = Wanted::Absent { names: names(FC, other_volume()) };
        let done = other.settle(&gone);
        assert!(done.steps.iter().any(|step| step.op == Op::Prune { path: acl.clone() }), "it tried");
        assert!(!hung.is_finished() && machine.lio().is_dir(&acl).unwrap() && machine.is_live(session));
        machine.release(DEVICE);
        hung.join().unwrap();
    });
    assert!(!machine.lio().is_dir(&acl).unwrap(), "the last one takes it");
    // Control: an ACL without a mapped LUN waits for all commands of its sessions, whatever their
    // LUN.
    ours.settle(&present(FC, vec![rw(1, 1)]));
    let session = ours.log_in_all(FC)[0].1;
    machine.hold(DEVICE);
    machine.start_write(session, 1).unwrap();
    let mapped = mapped_of(FC, place(1, 1));
    machine.lio().unlink(&mapped.join("mooring")).unwrap();
    machine.lio().rmdir(&mapped).unwrap();
    std::thread::scope(|scope| {
        let rmdir = scope.spawn(|| machine.lio().rmdir(&acl));
        while machine.waiting() == 0 && !rmdir.is_finished() {
            std::thread::yield_now();
        }
        assert!(!rmdir.is_finished());
        machine.release(DEVICE);
        rmdir.join().unwrap().unwrap();
    });
}

/// An ACL is made with the first volume of its initiator and goes with the last; nothing else is
/// left.
#[test]
fn an_acl_lives_as_long_as_a_volume_needs_it() {
    for fabric in FcFabric::ALL {
        let machine = bare(fabric);
        let before = dump_all(&machine.lio());
        let there = || machine.lio().is_dir(&fc::acl(port(fabric), initiator(1))).unwrap();
        let (ours, other) = (Node::new(&machine), Node::new(&machine));
        ours.settle(&present(fabric, vec![rw(1, 1)]));
        other.settle(&of_other(fabric, vec![rw(1, 2)]));
        ours.settle(&present(fabric, vec![]));
        assert!(there());
        ours.settle(&present(fabric, vec![rw(1, 1)]));
        other.settle(&Wanted::Absent { names: names(fabric, other_volume()) });
        assert!(there());
        ours.settle(&absent(fabric));
        assert!(!there());
        assert_eq!(dump_all(&machine.lio()), before);
    }
}

/// The ACL goes between another plan's look and its steps: that pass fails with a cure, and the
/// next one makes the ACL.
#[test]
fn an_acl_that_goes_meanwhile_is_made_again() {
    let machine = bare(FC);
    let (ours, other) = (Node::new(&machine), Node::new(&machine));
    other.settle(&of_other(FC, vec![rw(1, 2)]));
    let wanted = present(FC, vec![rw(1, 1)]);
    let plan = ours.plan(&wanted);
    let made = plan.steps.iter().position(|step| *step.op.path() == fc::acl(port(FC), initiator(1))).unwrap();
    ours.former.borrow_mut().extend(wanted.places());
    assert!(matches!(apply(&plan, &machine.lio(), &mut StopAfter(made + 1)), Err(Error::Stopped { .. })));
    other.settle(&Wanted::Absent { names: names(FC, other_volume()) });
    let rest =
        mooring_model::Plan { steps: plan.steps[made + 1..].to_vec(), ..mooring_model::Plan::default() };
    let error = apply(&rest, &machine.lio(), &mut ()).unwrap_err();
    assert!(error.to_string().contains("the ACL went"), "{error}");
    assert_eq!(error.cure(), mooring_model::Cure::Retry);
    ours.settle(&wanted);
    assert_eq!(ways(&machine, FC), wanted_ways(&wanted));
}

/// A number that belongs to another volume is not touched, and is named. The other grants come into
/// force. When the other volume has gone, the obstacle is gone, too.
#[test]
fn a_place_that_is_taken_is_left_and_named() {
    let machine = bare(FC);
    let (ours, other) = (Node::new(&machine), Node::new(&machine));
    other.settle(&of_other(FC, vec![rw(1, 1)]));
    let session = other.log_in_all(FC)[0].1;
    let wanted = present(FC, vec![rw(1, 1), rw(2, 1)]);
    let plan = ours.pass(&machine.lio(), &wanted).unwrap();
    assert_eq!(plan.blocked.len(), 1, "{}", text(&plan));
    assert_eq!(
        (plan.blocked[0].kind, plan.blocked[0].object.as_str()),
        (BlockedKind::Foreign, lun_of(FC, place(1, 1)).as_str())
    );
    assert_eq!(ways(&machine, FC), wanted_ways(&present(FC, vec![rw(2, 1)])));
    assert!(machine.write(session, 1).is_ok() && machine.landed(OTHER_DEVICE) == 1);
    let again = ours.plan(&wanted);
    assert!(again.steps.is_empty() && again.blocked.len() == 1, "{}", text(&again));
    // A revoke does not take it from the other volume either, although `former` contains it.
    let gone = ours.pass(&machine.lio(), &present(FC, vec![rw(2, 1)])).unwrap();
    assert!(gone.steps.is_empty(), "{}", text(&gone));
    assert!(machine.write(session, 1).is_ok());
    ours.former.borrow_mut().extend(wanted.places());
    other.settle(&Wanted::Absent { names: names(FC, other_volume()) });
    ours.settle(&wanted);
    assert_eq!(ways(&machine, FC), wanted_ways(&wanted));
}

/// One spec moves numbers: an initiator's slot goes to another one, and a second initiator gets a
/// new slot. One pass does it, and drains the old holder before it maps the new one.
#[test]
fn numbers_change_hands() {
    for fabric in FcFabric::ALL {
        let machine = bare(fabric);
        let node = Node::new(&machine);
        node.settle(&present(fabric, vec![rw(1, 1), rw(2, 1)]));
        let slot = |mut grant: mooring_model::FcGrant, slot: u16| {
            grant.slot = mooring_model::InitiatorSlot::new(slot).unwrap();
            grant
        };
        // Initiator 3 takes the slot of 1, which goes; 2 gets another slot.
        let wanted = present(fabric, vec![slot(grant(3, 1, Mode::ReadOnly), 1), slot(rw(2, 1), 9)]);
        let done = node.settle(&wanted);
        assert!(done.blocked.is_empty(), "{}", text(&done));
        assert_eq!(ways(&machine, fabric), wanted_ways(&wanted));
        for stop in 0..done.steps.len() {
            let machine = bare(fabric);
            let node = Node::new(&machine);
            node.settle(&present(fabric, vec![rw(1, 1), rw(2, 1)]));
            let plan = node.plan(&wanted);
            node.former.borrow_mut().extend(wanted.places());
            apply(&plan, &machine.lio(), &mut StopAfter(stop)).unwrap_err();
            node.settle(&wanted);
            assert_eq!(ways(&machine, fabric), wanted_ways(&wanted), "stopped after {stop}");
        }
        node.settle(&absent(fabric));
        assert_eq!(dump_all(&machine.lio()), dump_all(&bare(fabric).lio()));
    }
}

/// A LUN number that no grant may have is refused by name, and delays no other grant.
#[test]
fn a_lun_out_of_range_is_the_specs_fault() {
    let machine = bare(FC);
    let mut wrong = rw(1, 1);
    wrong.lun = Lun(256);
    let wanted = present(FC, vec![wrong, rw(2, 1)]);
    let plan = Node::new(&machine).pass(&machine.lio(), &wanted).unwrap();
    assert_eq!(plan.blocked[0].kind.cure(), mooring_model::Cure::FixSpec);
    assert_eq!(ways(&machine, FC), wanted_ways(&present(FC, vec![rw(2, 1)])));
}

/// With a wrong device behind our backstore, nothing is opened; revokes and shrunken modes go
/// through.
#[test]
fn behind_a_wrong_backstore_only_access_is_taken_away() {
    let machine = bare(FC);
    let node = Node::new(&machine);
    node.settle(&present(FC, vec![rw(1, 1), rw(2, 1)]));
    let grants = vec![grant(1, 1, Mode::ReadOnly), rw(3, 1)];
    let wanted = Wanted::Present { names: names(FC, common::volume()), device: OTHER_DEVICE.into(), grants };
    let plan = node.pass(&machine.lio(), &wanted).unwrap();
    assert_eq!(plan.blocked.iter().map(|blocked| blocked.kind).collect::<Vec<_>>(), [BlockedKind::Birth]);
    assert!(plan.blocked[0].why.contains("2 initiators"), "{}", plan.blocked[0].why);
    assert_eq!(ways(&machine, FC), wanted_ways(&present(FC, vec![grant(1, 1, Mode::ReadOnly)])));
}

/// A portal group of an adapter that admits too much is tightened by any volume's plan, and no
/// session is dropped for it.
#[test]
fn an_adapters_group_is_tightened() {
    let fabric = FcFabric::Qla2xxx;
    let machine = bare(fabric);
    let node = Node::new(&machine);
    let wanted = present(fabric, vec![rw(1, 1)]);
    node.settle(&wanted);
    let session = node.log_in_all(fabric)[0].1;
    let group = fc::tpg(port(fabric));
    for (name, value) in [("generate_node_acls", "1"), ("demo_mode_login_only", "0")] {
        machine.lio().write(&group.join("attrib").join(name), value.as_bytes()).unwrap();
    }
    assert!(ways(&machine, fabric).iter().any(|way| way.initiator == "*"), "the control: strangers see it");
    let done = node.settle(&wanted);
    assert_eq!(done.steps.len(), 2);
    assert_eq!(ways(&machine, fabric), wanted_ways(&wanted));
    assert!(machine.is_live(session));
    machine.lio().write(&group.join("enable"), b"0").unwrap();
    node.settle(&wanted);
    assert_eq!(ways(&machine, fabric), wanted_ways(&wanted));
}

/// A disk that takes EXTENDED COPY (set by an older agent, or by hand) stops doing so, before
/// anybody is mapped and under live sessions. Otherwise a host could write to a disk that it may
/// only read, from another of its disks.
#[test]
fn no_disk_of_a_port_takes_copies() {
    let machine = bare(FC);
    let (node, other) = (Node::new(&machine), Node::new(&machine));
    let read = present(FC, vec![grant(1, 1, Mode::ReadOnly)]);
    let written = of_other(FC, vec![rw(1, 7)]);
    node.settle(&read);
    other.settle(&written);
    let session = node.log_in_all(FC)[0].1;
    assert_eq!(ways(&machine, FC), wanted_ways(&read));
    let copies =
        mooring_targets::layout::backstore(&written.names().export).join("attrib").join("emulate_3pc");
    machine.lio().write(&copies, b"1").unwrap();
    assert_ne!(ways(&machine, FC), wanted_ways(&read), "the control: the host can write by a copy");
    let done = other.settle(&written);
    assert_eq!(done.steps.len(), 1, "{}", text(&done));
    assert_eq!(ways(&machine, FC), wanted_ways(&read));
    assert!(machine.is_live(session));
}

/// A driver that lacks an attribute is not asked for it again and again.
#[test]
fn an_attribute_that_a_driver_lacks_is_not_missed() {
    let machine = common::machine();
    machine.add_fc_port(&port(FcFabric::Efct).to_string());
    let tree = Faulty::new(machine.lio());
    tree.fail_when(Errno::ENOENT, |_, path| path.name() == "cache_dynamic_acls");
    fc::prepare(&tree, port(FcFabric::Efct)).unwrap_err();
    fc::prepare(&tree, port(FcFabric::Efct)).unwrap();
    let wanted = present(FcFabric::Efct, vec![rw(1, 1)]);
    let view = fc::View::read(&tree, &wanted, &BTreeSet::new()).unwrap();
    apply(&fc::plan(&wanted, &view), &tree, &mut ()).unwrap();
    assert!(fc::plan(&wanted, &fc::View::read(&tree, &wanted, &BTreeSet::new()).unwrap()).is_quiet());
}

/// A port is prepared once, by itself or with the first grant. A group that must be enabled is
/// enabled last.
#[test]
fn a_port_is_made_once() {
    for fabric in FcFabric::ALL {
        let machine = common::machine();
        machine.add_fc_port(&port(fabric).to_string());
        let node = Node::new(&machine);
        assert!(node.plan(&present(fabric, vec![])).is_quiet(), "nothing is needed for nobody");
        assert!(node.plan(&absent(fabric)).is_quiet());
        let done = node.settle(&present(fabric, vec![grant(1, 1, Mode::ReadOnly)]));
        let enables =
            done.steps.iter().rposition(|step| step.op.path() == &fc::tpg(port(fabric)).join("enable"));
        assert_eq!(enables, (fabric != FC).then_some(done.steps.len() - 1));
        let stands = dump_all(&machine.lio());
        fc::prepare(&machine.lio(), port(fabric)).unwrap();
        assert_eq!(dump_all(&machine.lio()), stands);
    }
    let machine = common::machine();
    let error = fc::prepare(&machine.lio(), port(FcFabric::Qla2xxx)).unwrap_err();
    assert!(error.to_string().contains("no adapter"), "{error}");
}

/// The store is lost: one walk finds the places of every volume, and assigns no foreign place to
/// any.
#[test]
fn a_walk_over_the_port_finds_every_place() {
    for fabric in FcFabric::ALL {
        let machine = shared(fabric);
        let node = Node::new(&machine);
        let wanted = present(fabric, vec![rw(1, 1), grant(3, 2, Mode::ReadOnly)]);
        node.settle(&wanted);
        let index = fc::read_port(&machine.lio(), port(fabric)).unwrap();
        let backstore = |volume| mooring_targets::layout::backstore(&common::names_of(volume));
        let places = BTreeMap::from([
            (backstore(common::volume()), wanted.places()),
            (backstore(other_volume()), BTreeSet::from([place(1, 7), place(2, 7)])),
        ]);
        assert_eq!((index.exports, index.loose), (places, BTreeMap::new()));
        // The places that the walk found suffice for a revoke.
        let found = Node {
            machine: &machine,
            former:
                fc::read_port(&machine.lio(), port(fabric)).unwrap().exports[&backstore(common::volume())]
                    .clone()
                    .into(),
        };
        found.settle(&absent(fabric));
        assert_eq!(dump_all(&machine.lio()), dump_all(&shared(fabric).lio()));
    }
    let machine = common::machine();
    assert_eq!(fc::read_port(&machine.lio(), port(FC)).unwrap(), fc::PortIndex::default());
}

/// A TPG LUN that nobody is mapped to belongs to the initiator with its slot; without such an
/// initiator, it is loose.
#[test]
fn a_half_revoked_place_is_found_by_its_slot() {
    let machine = bare(FC);
    let node = Node::new(&machine);
    node.settle(&present(FC, vec![rw(1, 1), rw(2, 1)]));
    Node::new(&machine).settle(&of_other(FC, vec![rw(1, 2)]));
    for number in [1, 2] {
        machine.lio().unlink(&mapped_of(FC, place(number, 1)).join("mooring")).unwrap();
    }
    let index = fc::read_port(&machine.lio(), port(FC)).unwrap();
    let ours = mooring_targets::layout::backstore(&common::names_of(common::volume()));
    assert_eq!(index.exports[&ours], BTreeSet::from([place(1, 1)]));
    let loose = PortLun::of(place(2, 1).slot, Lun(1)).unwrap();
    assert_eq!(index.loose, BTreeMap::from([(ours, BTreeSet::from([loose]))]));
}

/// Somebody maps LUN 9 of an initiator to our TPG LUN, and makes a foreign LUN under a number like
/// ours. The walk takes neither for a place.
#[test]
fn a_walk_guesses_nothing() {
    let machine = bare(FC);
    Node::new(&machine).settle(&present(FC, vec![rw(1, 1)]));
    let script = "
        mkdir $P/acls/20:00:52:54:00:14:01:05
        mkdir $P/acls/20:00:52:54:00:14:01:05/lun_9
        link $P/acls/20:00:52:54:00:14:01:05/lun_9/x -> $P/lun/lun_257
        mkdir $P/lun/lun_1030
    ";
    run_script(&machine.lio(), &script.replace("$P", fc::tpg(port(FC)).as_str()));
    let index = fc::read_port(&machine.lio(), port(FC)).unwrap();
    assert_eq!(index.exports.into_values().collect::<Vec<_>>(), [BTreeSet::from([place(1, 1)])]);
    assert!(index.loose.is_empty());
}

/// Proof after a crash: a place has drained when its TPG LUN does not show our backstore, not when
/// it is unmapped.
#[test]
fn what_is_not_linked_has_drained() {
    let machine = bare(FC);
    let node = Node::new(&machine);
    let names = names(FC, common::volume());
    node.settle(&present(FC, vec![rw(1, 1)]));
    let wanted = present(FC, vec![]);
    let steps = node.plan(&wanted);
    let drain = steps.steps.iter().position(|step| fc::drains(step).is_some()).unwrap();
    for done in 0..=steps.steps.len() {
        let machine = bare(FC);
        let node = Node::new(&machine);
        node.settle(&present(FC, vec![rw(1, 1)]));
        drop(apply(&steps, &machine.lio(), &mut StopAfter(done)));
        let view = node.look(&machine.lio(), &wanted);
        assert_eq!(view.has_drained(&names, place(1, 1)), done > drain, "after {done}");
        assert!(!view.has_drained(&names, place(2, 1)), "what was not looked at is not proven");
    }
    machine.reboot();
    assert!(node.look(&machine.lio(), &wanted).has_drained(&names, place(1, 1)), "no port, no nexus");
    assert!(node.plan(&wanted).is_quiet());
}

/// A report says what the kernel enforces, what is live, and what is left of a revoke.
#[test]
fn a_report_says_what_is_enforced() {
    let machine = bare(FC);
    let node = Node::new(&machine);
    let wanted = present(FC, vec![rw(1, 1), grant(2, 1, Mode::ReadOnly)]);
    let report = |wanted: &Wanted| {
        let live = fc::read_live(&machine.lio(), wanted, &BTreeMap::new()).unwrap();
        fc::report(wanted, &node.look(&machine.lio(), wanted), &live, &node.plan(wanted))
    };
    let before = report(&wanted);
    assert!(!before.in_force && before.grants.iter().all(|grant| grant.seen.is_none()));
    node.settle(&wanted);
    let session = machine.plogi(&port(FC).to_string(), &initiator(1).to_string()).unwrap();
    machine.write(session, 1).unwrap();
    let after = report(&wanted);
    let seen: Vec<_> =
        after.grants.iter().map(|grant| (grant.seen, grant.logged_in, grant.counters.commands)).collect();
    assert_eq!(seen, [(Some(Mode::ReadWrite), true, 1), (Some(Mode::ReadOnly), false, 0)]);
    assert!(after.in_force && after.serves && after.problems.is_empty());
    // After the gate is closed by hand, the grant gives no access at all.
    machine.lio().write(&lun_of(FC, place(1, 1)).join(fc::SHUT), b"1").unwrap();
    assert_eq!((report(&wanted).grants[0].seen, report(&wanted).in_force), (None, false));
    let half = present(FC, vec![rw(1, 1)]);
    let left = report(&half);
    assert_eq!(left.problems.len(), 1, "{left:?}");
    assert_eq!(left.problems[0].object, initiator(2).to_string());
    assert_eq!(
        fc::read_live(&common::machine().lio(), &half, &BTreeMap::new()).unwrap()[&place(1, 1)],
        FcLive::default()
    );
}
