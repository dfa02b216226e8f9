//! The laws of Fibre Channel exports, on the behaving fake: our volume shares a port with another
//! volume of ours that has the same initiators, and with somebody else. The laws are those of
//! `laws.rs`; where a law could be empty, a control shows the run that breaks it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common;

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::common::fc::*;
use crate::common::{DEVICE, Each, StopAfter, dump_all, text};
use mooring_host::fake::{FakeMachine, Faulty, IoRefusal};
use mooring_host::{Errno, Tree};
use mooring_model::{FcFabric, FcGrant, Mode, Plan, Step};
use mooring_targets::fc::{self, Wanted};
use mooring_targets::{Error, Observer, Op, apply};
use proptest::prelude::*;

/// Cases per law: proptest's default (256), or `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

pub(crate) fn some_fabric() -> impl Strategy<Value = FcFabric> {
    prop::sample::select(FcFabric::ALL.to_vec())
}

fn some_grant(number: u16) -> impl Strategy<Value = Option<FcGrant>> {
    let mode = prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)];
    let made = (prop_oneof![3 => Just(1u16), 1 => Just(2u16)], mode)
        .prop_map(move |(lun, mode)| Some(grant(number, lun, mode)));
    prop_oneof![1 => Just(None), 2 => made]
}

/// A spec; `None` if the export is absent.
pub(crate) fn some_spec() -> impl Strategy<Value = Option<Vec<FcGrant>>> {
    let grants = (some_grant(1), some_grant(2), some_grant(3));
    prop_oneof![
        1 => Just(None),
        8 => grants.prop_map(|(a, b, c)| Some([a, b, c].into_iter().flatten().collect()))
    ]
}

pub(crate) fn spec(fabric: FcFabric, grants: Option<&Vec<FcGrant>>) -> Wanted {
    grants.map_or_else(|| absent(fabric), |grants| present(fabric, grants.clone()))
}

/// Returns the lines in which two dumps differ.
pub(crate) fn differences(first: &str, second: &str) -> Vec<String> {
    let (a, b): (BTreeSet<_>, BTreeSet<_>) = (first.lines().collect(), second.lines().collect());
    let gone = a.difference(&b).map(|line| format!("- {line}"));
    gone.chain(b.difference(&a).map(|line| format!("+ {line}"))).collect()
}

/// Damage by people and by crashes of other programs. No damage makes an object foreign.
const DAMAGE: [&str; 12] = [
    "unlink $L/mooring",
    "unlink $M/mooring",
    "rmdir $M",
    "rmdir $L",
    "rmdir $A",
    "mkdir $L",
    "mkdir $A",
    "mkdir $M",
    "write $M/write_protect = 0",
    "write $M/write_protect = 1",
    "write $L/alua_tg_pt_offline = 1",
    "link $L/by-hand -> $B",
];

/// Does the damage at places where the spec has grants, and skips what the kernel refuses.
pub(crate) fn damage(machine: &FakeMachine, fabric: FcFabric, wanted: &Wanted, which: &[(usize, usize)]) {
    let tree = machine.lio();
    for (line, number) in which {
        let Some(place) = wanted.places().into_iter().nth(*number) else { continue };
        let line = DAMAGE[*line]
            .replace("$L", lun_of(fabric, place).as_str())
            .replace("$M", mapped_of(fabric, place).as_str())
            .replace("$A", fc::acl(port(fabric), place.initiator).as_str())
            .replace("$B", mooring_targets::layout::backstore(&wanted.names().export).as_str());
        let (verb, rest) = line.split_once(' ').unwrap();
        drop(match verb {
            "mkdir" => tree.mkdir(&common::path(rest)),
            "rmdir" => tree.rmdir(&common::path(rest)),
            "unlink" => tree.unlink(&common::path(rest)),
            "link" => {
                let (link, target) = rest.split_once(" -> ").unwrap();
                tree.symlink(&common::path(target), &common::path(link))
            }
            _ => {
                let (at, value) = rest.split_once(" = ").unwrap();
                tree.write(&common::path(at), value.as_bytes())
            }
        });
    }
}

pub(crate) fn some_damage() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0..DAMAGE.len(), 0usize..3), 0..6)
}

/// True if one of the specs gives this access, with this mode or a wider one.
fn is_given(way: &Way, specs: &[&Wanted]) -> bool {
    specs
        .iter()
        .flat_map(|spec| spec.grants())
        .map(way_of)
        .any(|given| given.initiator == way.initiator && given.lun == way.lun && way.mode <= given.mode)
}

proptest! {
    #![proptest_config(config())]

    /// Laws 1, 3, 4: one pass leads from any spec, damaged in any way, to any other. Nothing is
    /// left to do, exactly the new grants are reachable, and foreign objects are byte for byte as
    /// before. A tombstone leaves nothing.
    #[test]
    fn converges_and_touches_only_ours(fabric in some_fabric(), a in some_spec(), harm in some_damage(), b in some_spec()) {
        let machine = shared(fabric);
        let (tree, node) = (machine.lio(), Node::new(&machine));
        let (before, foreign) = (dump_all(&tree), dump_foreign(&tree, fabric));
        let (a, b) = (spec(fabric, a.as_ref()), spec(fabric, b.as_ref()));
        node.settle(&a);
        damage(&machine, fabric, &a, &harm);
        node.settle(&b);
        prop_assert_eq!(differences(&foreign, &dump_foreign(&tree, fabric)), Vec::<String>::new());
        prop_assert_eq!(ways(&machine, fabric), wanted_ways(&b));
        node.settle(&absent(fabric));
        prop_assert_eq!(differences(&before, &dump_all(&tree)), Vec::<String>::new());
    }

    /// Law 2: after a stop at any step, a new look and plan end in the same tree as a run without
    /// the stop.
    #[test]
    fn any_prefix_then_again_ends_the_same(fabric in some_fabric(), a in some_spec(), harm in some_damage(), b in some_spec(), stop in any::<prop::sample::Index>()) {
        let (straight, broken) = (shared(fabric), shared(fabric));
        let (a, b) = (spec(fabric, a.as_ref()), spec(fabric, b.as_ref()));
        let nodes = [Node::new(&straight), Node::new(&broken)];
        for node in &nodes {
            node.settle(&a);
            damage(node.machine, fabric, &a, &harm);
        }
        nodes[0].settle(&b);
        let whole = nodes[1].plan(&b);
        nodes[1].former.borrow_mut().extend(b.places());
        let stop = stop.index(whole.steps.len() + 1);
        let stopped = apply(&whole, &broken.lio(), &mut StopAfter(stop));
        prop_assert_eq!(stopped.is_err(), stop < whole.steps.len());
        nodes[1].settle(&b);
        let differ = differences(&dump_all(&straight.lio()), &dump_all(&broken.lio()));
        prop_assert_eq!(differ, Vec::<String>::new(), "stopped after {} of\n{}", stop, text(&whole));
    }

    /// Law 5, with every initiator logged in: after every step, the old or the new spec gives each
    /// access to our volume, with at most that mode. Access that the new spec does not give goes
    /// once and never comes back. The moment between a link and its `write_protect` is no
    /// exception.
    #[test]
    fn nothing_is_exposed_early(fabric in some_fabric(), a in some_spec(), b in some_spec()) {
        let machine = shared(fabric);
        let node = Node::new(&machine);
        let (a, b) = (spec(fabric, a.as_ref()), spec(fabric, b.as_ref()));
        node.settle(&a);
        node.log_in_all(fabric);
        let steps = node.plan(&b);
        let (mut refused, mut before) = (BTreeSet::new(), ways(&machine, fabric));
        apply(&steps, &machine.lio(), &mut Each(|step: &Step<Op>| {
            let now = ways(&machine, fabric);
            for way in &now {
                assert!(is_given(way, &[&a, &b]), "{way:?} after {}\n{}", step.op, text(&steps));
                assert!(!refused.contains(way), "{way:?} is back after {}\n{}", step.op, text(&steps));
            }
            refused.extend(before.difference(&now).filter(|way| !is_given(way, &[&b])).cloned());
            before = now;
        })).unwrap();
        prop_assert_eq!(ways(&machine, fabric), wanted_ways(&b));
    }

    /// Law 6: any call may fail with any error. The pass then ends and names its step, or the error
    /// says that the step is already done. The next passes converge.
    #[test]
    fn any_step_may_fail(fabric in some_fabric(), a in some_spec(), b in some_spec(), at in any::<prop::sample::Index>(), errno in some_errno()) {
        let machine = shared(fabric);
        let node = Node::new(&machine);
        let (a, b) = (spec(fabric, a.as_ref()), spec(fabric, b.as_ref()));
        node.settle(&a);
        let whole = node.plan(&b);
        let calls: Vec<_> = whole.steps.iter().filter(|step| !matches!(step.op, Op::Expect { .. })).collect();
        if calls.is_empty() {
            return Ok(());
        }
        let at = at.index(calls.len());
        let faulty = Faulty::new(machine.lio());
        faulty.fail_nth(at as u64 + 1, errno);
        node.former.borrow_mut().extend(b.places());
        match apply(&whole, &faulty, &mut ()) {
            Ok(()) | Err(Error::Unexpected { .. }) => {}
            Err(Error::Step { source, step, .. }) => {
                // A false error "it is so already" may make a later step fail.
                if source.errno == errno {
                    prop_assert!(whole.steps.iter().any(|planned| planned.op.to_string() == step));
                }
            }
            Err(other) => prop_assert!(false, "{other:?}"),
        }
        for _ in 0..3 {
            if node.plan(&b).is_quiet() {
                break;
            }
            drop(node.pass(&machine.lio(), &b));
        }
        node.settle(&b);
        prop_assert_eq!(ways(&machine, fabric), wanted_ways(&b));
    }

    /// Law 7: every nexus that goes is unmapped, then drained, then its folders go, then (at most)
    /// its ACL. All are unmapped, and all modes shrunk, before the first call that may block.
    /// Nothing is given before the last drain.
    #[test]
    fn revokes_come_first_and_in_order(fabric in some_fabric(), a in some_spec(), b in some_spec()) {
        let machine = shared(fabric);
        let node = Node::new(&machine);
        let (a, b) = (spec(fabric, a.as_ref()), spec(fabric, b.as_ref()));
        node.settle(&a);
        let steps = node.plan(&b).steps;
        let first = steps.iter().position(|step| fc::drains(step).is_some());
        let last = steps.iter().rposition(|step| fc::drains(step).is_some());
        let find = |op: Op| steps.iter().position(|step| step.op == op);
        for place in a.places().difference(&b.places()) {
            let (lun, mapped) = (lun_of(fabric, *place), mapped_of(fabric, *place));
            let unmap = find(Op::Unlink { path: mapped.join("mooring") });
            let drain = find(Op::Unlink { path: lun.join("mooring") });
            let folders = [find(Op::Rmdir { path: mapped.clone() }), find(Op::Rmdir { path: lun })];
            prop_assert!(unmap.is_some() && unmap < first && unmap < drain);
            prop_assert!(folders.iter().all(|folder| folder.is_some() && drain < *folder));
            let prune = find(Op::Prune { path: mapped.parent() });
            prop_assert!(prune.is_none_or(|prune| folders[0].unwrap() < prune));
            prop_assert!(fc::drains(&steps[drain.unwrap()]).unwrap().is(port(fabric), *place));
        }
        for (index, step) in steps.iter().enumerate() {
            let gives = matches!(step.op, Op::Link { .. } | Op::Mkdir { .. });
            prop_assert!(!gives || last.is_none_or(|last| last < index), "{} comes too early", step.op);
        }
    }

    /// A change ends no session: neither of initiators that stay, nor of those that go, because
    /// their other volumes need it.
    #[test]
    fn no_session_is_dropped_and_other_volumes_work(fabric in some_fabric(), a in some_spec(), b in some_spec()) {
        let machine = shared(fabric);
        let node = Node::new(&machine);
        let (a, b) = (spec(fabric, a.as_ref()), spec(fabric, b.as_ref()));
        node.settle(&a);
        let sessions = node.log_in_all(fabric);
        let steps = node.plan(&b);
        apply(&steps, &machine.lio(), &mut Each(|step: &Step<Op>| {
            for (number, session) in &sessions {
                assert!(machine.is_live(*session), "{number} is out after {}", step.op);
            }
            assert!(machine.write(sessions[0].1, 7).is_ok(), "after {}", step.op);
            assert_eq!(machine.write(sessions[1].1, 7), Err(IoRefusal::WriteProtected), "after {}", step.op);
        })).unwrap();
    }

    /// A look at some of the grants plans those alone: a change costs what changes, not what the
    /// volume has.
    #[test]
    fn a_narrow_look_plans_the_same(fabric in some_fabric(), a in some_spec(), b in some_spec()) {
        let machine = shared(fabric);
        let node = Node::new(&machine);
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        node.settle(&present(fabric, a.clone()));
        let changed: Vec<_> = b.iter().filter(|grant| !a.contains(grant)).cloned().collect();
        let gone = a.iter().filter(|grant| !b.contains(grant)).map(fc::Place::of).collect();
        let narrow = present(fabric, changed);
        let view = fc::View::read(&machine.lio(), &narrow, &gone).unwrap();
        let (part, whole) = (fc::plan(&narrow, &view), node.plan(&present(fabric, b)));
        // Pruning of an ACL depends on the grants that stay; pruning an ACL in use does nothing.
        let pruned = |plan: &Plan<Op>| {
            plan.steps.iter().filter(|step| !matches!(step.op, Op::Prune { .. })).cloned().collect::<Vec<_>>()
        };
        let whole = Plan { steps: pruned(&whole), ..Plan::default() };
        prop_assert_eq!(text(&Plan { steps: pruned(&part), ..Plan::default() }), text(&whole));
    }

    /// Read-only from the first command. A logged-in initiator writes after any steps of the grant,
    /// at once or with data that come as late as possible, and the agent may die after any step. No
    /// write lands, and the grant comes into force once the initiator is quiet for a moment.
    #[test]
    fn read_only_from_the_first_command(fabric in some_fabric(), stop in prop::option::of(0usize..18), asks in prop::collection::vec((0usize..18, any::<bool>()), 0..4)) {
        prop_assert_eq!(lands(fabric, stop, &asks, |plan| plan), 0);
    }
}

const ERRNOS: [Errno; 10] = [
    Errno::EIO,
    Errno::EINVAL,
    Errno::ENOENT,
    Errno::EEXIST,
    Errno::EBUSY,
    Errno::ENODEV,
    Errno::ENOMEM,
    Errno::ENOTEMPTY,
    Errno::EACCES,
    Errno::EINTR,
];

fn some_errno() -> impl Strategy<Value = Errno> {
    prop::sample::select(ERRNOS.to_vec())
}

/// Calls back after every step, and stops after this many; `None` does not stop.
struct EachUntil<F>(Option<usize>, F);

impl<F: FnMut()> Observer for EachUntil<F> {
    fn before(&mut self, index: usize, _step: &Step<Op>) -> ControlFlow<()> {
        if self.0.is_some_and(|stop| index >= stop) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn after(&mut self, _index: usize, _step: &Step<Op>) {
        (self.1)();
    }
}

/// Grants an initiator read-only while it is logged in and writes after the given steps (`true`:
/// with late data). Returns the number of writes that landed.
fn lands(
    fabric: FcFabric,
    stop: Option<usize>,
    asks: &[(usize, bool)],
    change: fn(Plan<Op>) -> Plan<Op>,
) -> u64 {
    let machine = shared(fabric);
    let node = Node::new(&machine);
    let sessions = node.log_in_all(fabric);
    let session = sessions[0].1;
    let wanted = present(fabric, vec![grant(1, 1, Mode::ReadOnly)]);
    let plan = change(node.plan(&wanted));
    node.former.borrow_mut().extend(wanted.places());
    let (mut index, mut late) = (0, Vec::new());
    let mut ask = EachUntil(stop, || {
        for (_, is_late) in asks.iter().filter(|(at, _)| *at == index) {
            if *is_late {
                late.extend(machine.begin_write(session, 1).ok());
            } else {
                drop(machine.write(session, 1));
            }
        }
        index += 1;
    });
    match apply(&plan, &machine.lio(), &mut ask) {
        Ok(()) | Err(Error::Unexpected { .. } | Error::Stopped { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    // If the next pass drains, the late data come during the drain.
    std::thread::scope(|scope| {
        let pass = scope.spawn(|| {
            let node = Node::new(&machine);
            node.pass(&machine.lio(), &wanted).unwrap();
        });
        while machine.waiting() == 0 && !pass.is_finished() {
            std::thread::yield_now();
        }
        for write in late.drain(..) {
            drop(machine.send_data(write));
        }
        pass.join().unwrap();
    });
    assert!(node.plan(&wanted).is_quiet());
    assert_eq!(ways(&machine, fabric), wanted_ways(&wanted));
    machine.landed(DEVICE)
}

/// Returns the index of the step after which the new LUN is mapped and not yet protected.
fn window(fabric: FcFabric) -> usize {
    let machine = shared(fabric);
    let plan = Node::new(&machine).plan(&present(fabric, vec![grant(1, 1, Mode::ReadOnly)]));
    let mapped = mapped_of(fabric, place(1, 1)).join("mooring");
    plan.steps.iter().position(|step| *step.op.path() == mapped).unwrap()
}

fn without(plan: Plan<Op>, gone: fn(&Op) -> bool) -> Plan<Op> {
    Plan { steps: plan.steps.into_iter().filter(|step| !gone(&step.op)).collect(), ..plan }
}

/// Tries the critical moments exhaustively: writes in the window or right after it, at once or
/// late, and a death of the agent after any later step.
#[test]
fn a_late_write_lands_after_no_crash() {
    for fabric in FcFabric::ALL {
        let at = window(fabric);
        for stop in (at + 1..=at + 5).map(Some).chain([None]) {
            for asks in
                [[(at, true), (at, false)], [(at, true), (at + 1, true)], [(at + 2, true), (at + 2, false)]]
            {
                assert_eq!(
                    lands(fabric, stop, &asks, |plan| plan),
                    0,
                    "{fabric}: {asks:?}, stopped {stop:?}"
                );
            }
        }
    }
}

/// Control: without the gate, a write in the window lands (on tcm_fc, whose portal group has no
/// second lock).
#[test]
fn without_the_gate_a_write_lands() {
    let at = window(FcFabric::TcmFc);
    assert_eq!(lands(FcFabric::TcmFc, None, &[(at, false)], |plan| plan), 0);
    let landed = lands(FcFabric::TcmFc, None, &[(at - 1, false)], |plan| {
        without(plan, |op| op.path().name() == fc::SHUT || matches!(op, Op::Expect { .. }))
    });
    assert_eq!(landed, 1);
}

/// Control: with the gate and without the expectation, a write that was taken in the window lands
/// when its data come.
#[test]
fn without_the_expectation_a_late_write_lands() {
    let at = window(FcFabric::TcmFc);
    assert_eq!(lands(FcFabric::TcmFc, None, &[(at, true)], |plan| plan), 0);
    let landed = lands(FcFabric::TcmFc, None, &[(at, true)], |plan| {
        without(plan, |op| matches!(op, Op::Expect { .. }))
    });
    assert_eq!(landed, 1);
}

/// On adapters, `prod_mode_write_protect` is a second lock: nothing lands without gate and
/// expectation either.
#[test]
fn adapters_have_a_second_lock() {
    for fabric in [FcFabric::Qla2xxx, FcFabric::Efct] {
        let at = window(fabric);
        let landed = lands(fabric, None, &[(at - 1, false), (at - 1, true)], |plan| {
            without(plan, |op| op.path().name() == fc::SHUT || matches!(op, Op::Expect { .. }))
        });
        assert_eq!(landed, 0, "{fabric}");
    }
}

/// Specs of the exhaustive run: every kind of change is a step from one to the next.
fn chain(fabric: FcFabric) -> Vec<Wanted> {
    let (rw, ro) = (Mode::ReadWrite, Mode::ReadOnly);
    vec![
        present(fabric, vec![grant(1, 1, rw), grant(2, 1, ro), grant(3, 1, rw)]),
        present(fabric, vec![grant(1, 1, ro), grant(2, 1, rw), grant(3, 2, ro)]),
        present(fabric, vec![grant(2, 1, ro)]),
        absent(fabric),
    ]
}

/// Law 2, exhaustively: every change of the chain, stopped after every number of steps, ends in the
/// same tree as without a stop.
#[test]
fn every_stop_of_the_chain() {
    for fabric in FcFabric::ALL {
        let straight = bare(fabric);
        let whole = Node::new(&straight);
        for (number, spec) in chain(fabric).iter().enumerate() {
            let steps = whole.settle(spec).steps.len();
            let end = dump_all(&straight.lio());
            for stop in 0..steps {
                let machine = bare(fabric);
                let node = Node::new(&machine);
                chain(fabric)[..number].iter().for_each(|before| drop(node.settle(before)));
                let plan = node.plan(spec);
                node.former.borrow_mut().extend(spec.places());
                apply(&plan, &machine.lio(), &mut StopAfter(stop)).unwrap_err();
                node.settle(spec);
                let differ = differences(&end, &dump_all(&machine.lio()));
                assert_eq!(
                    differ,
                    Vec::<String>::new(),
                    "spec {number} stopped after {stop}\n{}",
                    text(&plan)
                );
            }
        }
    }
}
