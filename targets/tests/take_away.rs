//! The laws of `take_away`, on the behaving fake of LIO: from two specs alone it takes what the
//! newer one does not give, and leaves the rest to the plan.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;

use crate::common::fc::{Node, port, shared};
use crate::common::*;
use crate::fc_laws::{self, differences};
use crate::laws::{config, damage, some_damage, some_spec};
use mooring_host::fake::{FakeMachine, Reach, SessionId};
use mooring_host::{Tree, TreePath};
use mooring_model::{
    BarrierId, ExportIdentity, ExportSpec, FcExportSpec, FcGrant, Grant, Mode, Plan, Step, Tuning,
};
use mooring_targets::{LeadsTo, Observer, Op, Wanted, apply, fc, layout, take_away};
use proptest::prelude::*;

fn spec(grants: &[Grant], fc: &[FcGrant]) -> ExportSpec {
    ExportSpec {
        volume: volume(),
        identity: ExportIdentity::Derived,
        portals: Vec::new(),
        grants: grants.to_vec(),
        fc: FcExportSpec { ports: Vec::new(), grants: fc.to_vec() },
        tuning: Tuning::default(),
    }
}

/// The operations between two specs over iSCSI; none if there was no export.
fn taken(a: &Wanted, b: &Wanted) -> Vec<Op> {
    let of = |wanted: &Wanted| matches!(wanted, Wanted::Present { .. }).then(|| spec(wanted.grants(), &[]));
    of(a).map_or_else(Vec::new, |was| take_away(&names(), &[], &was, of(b).as_ref()))
}

/// The operations between two specs over one Fibre Channel port; none if there was no export.
fn fc_taken(a: &fc::Wanted, b: &fc::Wanted) -> Vec<Op> {
    let of = |wanted: &fc::Wanted| {
        matches!(wanted, fc::Wanted::Present { .. }).then(|| spec(&[], wanted.grants()))
    };
    let port = a.names().port;
    of(a).map_or_else(Vec::new, |was| take_away(&names(), &[port], &was, of(b).as_ref()))
}

/// Runs each operation as a plan of its own, as the agent does: one that fails holds up no other.
fn run(tree: &dyn Tree, ops: Vec<Op>, observer: &mut dyn Observer) {
    for op in ops {
        let mut plan = Plan::default();
        plan.step(op, "taken away");
        drop(apply(&plan, tree, observer));
    }
}

/// Logs in everybody who can.
fn log_in(machine: &FakeMachine, wanted: &Wanted) -> Vec<SessionId> {
    let Some(portal) = wanted.doors().first() else { return Vec::new() };
    let session = |grant: &Grant| {
        let way = way_of(grant);
        let shown = way.credentials.as_ref().map(|(user, secret)| (user.as_str(), secret.as_str()));
        machine.login(&portal.to_string(), wanted.names().iqn.as_str(), &way.initiator, shown).unwrap()
    };
    wanted.grants().iter().map(session).collect()
}

/// The access that is left of `was` by a newer mode; `None` if there is none left.
fn left(was: Mode, is: Option<Mode>) -> Option<Mode> {
    is.map(|is| was.min(is))
}

/// The ways to the volume's disk.
fn reach(machine: &FakeMachine) -> BTreeSet<(String, String, u64, Mode)> {
    let ours = |reach: &Reach| reach.device.to_str() == Some(DEVICE);
    let way = |reach: Reach| (reach.target, reach.initiator, reach.lun, mode_of(reach.mode));
    machine.reachable().into_iter().filter(ours).map(way).collect()
}

/// Nothing is given by an operation: each way after it was there before it, with this mode or a
/// wider one.
fn gives_nothing(machine: &FakeMachine, ops: Vec<Op>) {
    let mut before = reach(machine);
    let mut watch = Each(|step: &Step<Op>| {
        let now = reach(machine);
        for (target, initiator, lun, mode) in &now {
            let was = |(a, b, c, wider): &&(String, String, u64, Mode)| {
                (a, b, c) == (target, initiator, lun) && mode <= wider
            };
            assert!(before.iter().any(|way| was(&way)), "{initiator} {lun} {mode:?} after {}", step.op);
        }
        before = now;
    });
    run(&machine.lio(), ops, &mut watch);
}

/// Only these mapped LUNs differ between two dumps.
fn only_within(before: &str, after: &str, mapped: &BTreeSet<TreePath>) {
    for line in differences(before, after) {
        let at = path(line.split(' ').nth(1).unwrap());
        assert!(mapped.iter().any(|ours| at.is_within(ours)), "{line}");
    }
}

proptest! {
    #![proptest_config(config())]

    /// On any tree: what is taken away first, and then the plan, end as the plan alone, with the
    /// same sessions. The tree has traces of a spec `before` the other two, which is often the
    /// newest one once more (`None`): its barriers were done, and must be done anew.
    #[test]
    fn taking_away_first_ends_as_the_plan_alone(
        before in prop::option::of(some_spec().boxed()),
        a in some_spec().boxed(),
        harm in some_damage(),
        b in some_spec().boxed(),
    ) {
        let (alone, first) = (machine_beside_foreign(), machine_beside_foreign());
        let sessions = [&alone, &first].map(|machine| {
            settle(machine, before.as_ref().unwrap_or(&b));
            settle(machine, &a);
            let sessions = log_in(machine, &a);
            damage(machine, &harm);
            sessions
        });
        run(&first.lio(), taken(&a, &b), &mut ());
        for machine in [&alone, &first] {
            pass(&machine.lio(), &b).unwrap();
            prop_assert!(plan_now(&machine.lio(), &b).is_quiet());
        }
        prop_assert_eq!(differences(&dump_all(&alone.lio()), &dump_all(&first.lio())), Vec::<String>::new());
        let [of_alone, of_first] = sessions;
        for (one, other) in of_alone.into_iter().zip(of_first) {
            prop_assert_eq!(alone.is_live(one), first.is_live(other));
        }
    }

    /// On any tree: nothing is given, and nothing is touched but the mapped LUNs of those who lose
    /// something.
    #[test]
    fn taking_away_gives_nothing_and_keeps_what_both_have(a in some_spec(), harm in some_damage(), b in some_spec()) {
        let machine = machine_beside_foreign();
        settle(&machine, &a);
        log_in(&machine, &a);
        damage(&machine, &harm);
        let before = dump_all(&machine.lio());
        gives_nothing(&machine, taken(&a, &b));
        let is = |grant: &Grant| b.grants().iter().find(|one| one.initiator == grant.initiator);
        let losers = a.grants().iter().filter(|grant| left(grant.mode, is(grant).map(|is| is.mode)) != Some(grant.mode));
        let mapped = |grant: &Grant| layout::acl(&names(), grant.initiator.as_str()).join(layout::lun_name(grant.lun));
        only_within(&before, &dump_all(&machine.lio()), &losers.map(mapped).collect());
    }

    /// On the tree of the older spec: what the newer one does not give is gone, on live sessions,
    /// and the rest is as it was.
    #[test]
    fn all_that_is_lost_is_taken_away(a in some_spec(), b in some_spec()) {
        let machine = machine_beside_foreign();
        settle(&machine, &a);
        log_in(&machine, &a);
        let before = reach(&machine);
        run(&machine.lio(), taken(&a, &b), &mut ());
        let is = |initiator: &str| b.grants().iter().find(|grant| grant.initiator.as_str() == initiator);
        let after = before.into_iter().filter_map(|(target, initiator, lun, mode)| {
            let mode = left(mode, is(&initiator).map(|is| is.mode))?;
            Some((target, initiator, lun, mode))
        });
        prop_assert_eq!(reach(&machine), after.collect::<BTreeSet<_>>());
    }

    /// The laws over Fibre Channel, on a port that others share.
    #[test]
    fn taking_away_keeps_its_laws_over_fibre_channel(
        fabric in fc_laws::some_fabric(),
        a in fc_laws::some_spec(),
        harm in fc_laws::some_damage(),
        b in fc_laws::some_spec(),
    ) {
        let (alone, first) = (shared(fabric), shared(fabric));
        let (a, b) = (fc_laws::spec(fabric, a.as_ref()), fc_laws::spec(fabric, b.as_ref()));
        let nodes = [Node::new(&alone), Node::new(&first)];
        for node in &nodes {
            node.settle(&a);
            node.log_in_all(fabric);
            fc_laws::damage(node.machine, fabric, &a, &harm);
        }
        let (was, before) = (reach(&first), dump_all(&first.lio()));
        gives_nothing(&first, fc_taken(&a, &b));
        let is = |initiator: &str| b.grants().iter().find(|grant| grant.initiator.to_string() == initiator);
        if harm.is_empty() {
            let after = was.into_iter().filter_map(|(target, initiator, lun, mode)| {
                let mode = left(mode, is(&initiator).map(|is| is.mode))?;
                Some((target, initiator, lun, mode))
            });
            prop_assert_eq!(reach(&first), after.collect::<BTreeSet<_>>());
        }
        let losers = a.grants().iter().filter(|grant| {
            left(grant.mode, is(&grant.initiator.to_string()).map(|is| is.mode)) != Some(grant.mode)
        });
        let mapped = |grant: &FcGrant| fc::mapped(port(fabric), grant.initiator, grant.lun);
        only_within(&before, &dump_all(&first.lio()), &losers.map(mapped).collect());
        for node in &nodes {
            node.settle(&b);
        }
        prop_assert_eq!(differences(&dump_all(&alone.lio()), &dump_all(&first.lio())), Vec::<String>::new());
    }
}

/// Counts the steps that changed something, and those that were skipped.
#[derive(Default)]
struct Count {
    done: usize,
    skipped: usize,
}

impl Observer for Count {
    fn after(&mut self, _index: usize, _step: &Step<Op>) {
        self.done += 1;
    }

    fn skipped(&mut self, _index: usize, _step: &Step<Op>) {
        self.skipped += 1;
    }
}

/// A link's target decides, and not its name. The cases that act are the control of those that do
/// not.
#[test]
fn a_mapped_lun_that_leads_elsewhere_is_skipped() {
    let spec = present(&[], vec![grant(1, 1, Mode::ReadWrite, None)]);
    let mapped = layout::acl(&names(), &host(1)).join("lun_1");
    let (lun, backstore) = (layout::lun(&names()), layout::backstore(&names()));
    let other = layout::tpg(&names()).join("lun").join("lun_9");
    let by_hand =
        format!("unlink {mapped}/mooring\nlink {mapped}/by-hand -> {lun}\nwrite {mapped}/write_protect = 0");
    let half = format!("unlink {mapped}/mooring");
    for (script, lun, backstore, acts) in [
        ("", &lun, None, true),
        ("", &lun, Some(&backstore), true),
        (&*by_hand, &lun, None, true),
        (&*half, &lun, None, false),
        ("", &other, None, false),
        ("", &lun, Some(&path("core/iblock_1160/foreign")), false),
    ] {
        let leads_to = LeadsTo { lun: lun.clone(), backstore: backstore.cloned() };
        for op in [
            Op::UnlinkIf { path: mapped.clone(), leads_to: leads_to.clone() },
            Op::ProtectIf { path: mapped.clone(), leads_to: leads_to.clone(), tag: None },
        ] {
            let machine = machine_beside_foreign();
            settle(&machine, &spec);
            run_script(&machine.lio(), script);
            let (before, text, mut count) = (dump_all(&machine.lio()), op.to_string(), Count::default());
            run(&machine.lio(), vec![op], &mut count);
            assert_eq!((count.done, count.skipped), (usize::from(acts), usize::from(!acts)), "{text}");
            assert_eq!(dump_all(&machine.lio()) != before, acts, "{text}");
        }
    }
}

/// The host could write between the two barriers of one name. `write_protect` alone hides that; the
/// control is a spec that asks for no barrier.
#[test]
fn a_barrier_from_before_a_write_is_not_done_by_what_is_taken_away() {
    let spec = |mode, barrier: Option<u128>| {
        let barrier = barrier.map(BarrierId::from_u128);
        present(&[], vec![Grant { barrier, ..grant(1, 1, mode, None) }])
    };
    for (barrier, drains) in [(Some(1), true), (None, false)] {
        let machine = machine_beside_foreign();
        let (open, closed) = (spec(Mode::ReadWrite, None), spec(Mode::ReadOnly, barrier));
        for wanted in [&spec(Mode::ReadOnly, Some(1)), &open] {
            settle(&machine, wanted);
        }
        run(&machine.lio(), taken(&open, &closed), &mut ());
        let steps = plan_now(&machine.lio(), &closed).steps;
        assert_eq!(steps.iter().any(|step| mooring_targets::drains(step).is_some()), drains, "{steps:?}");
    }
}
