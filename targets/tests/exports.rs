//! One volume over iSCSI and over Fibre Channel at once. Both share one backstore, which is made
//! before what shows it and removed after it. A change on one transport is not noticed on the
//! other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common;

use std::collections::BTreeSet;

use crate::common::fc as port;
use crate::common::{DEVICE, Each, StopAfter, dump_all, look, text};
use mooring_host::fake::{FakeMachine, SessionId};
use mooring_host::{Errno, Tree};
use mooring_model::{BarrierId, FcFabric, FcGrant, FcNames, FcPort, Grant, Mode, Plan, Step};
use mooring_targets::fc::{self, Place};
use mooring_targets::{Error, Exports, Op, Wanted, apply, drains, layout, plan_exports};
use proptest::prelude::*;

const FC: FcFabric = FcFabric::TcmFc;
const PORTAL: &str = "10.10.0.10:3260";

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// A spec for both transports; `None` if the export is absent.
#[derive(Debug, Clone)]
struct Both {
    iscsi: Option<Vec<Grant>>,
    fc: Option<Vec<FcGrant>>,
}

impl Both {
    fn iscsi(&self) -> Wanted {
        self.iscsi.clone().map_or_else(common::absent, |grants| common::present(&[PORTAL], grants))
    }

    fn fc(&self) -> fc::Wanted {
        self.fc.clone().map_or_else(|| port::absent(FC), |grants| port::present(FC, grants))
    }
}

fn some_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)]
}

fn some_spec() -> impl Strategy<Value = Both> {
    let iscsi =
        |number| prop::option::of(some_mode().prop_map(move |mode| common::grant(number, 1, mode, None)));
    let fc = |number| prop::option::of(some_mode().prop_map(move |mode| port::grant(number, 1, mode)));
    let iscsi = (iscsi(1), iscsi(2)).prop_map(|(a, b)| a.into_iter().chain(b).collect::<Vec<_>>());
    let fc = (fc(1), fc(2)).prop_map(|(a, b)| a.into_iter().chain(b).collect::<Vec<_>>());
    (prop::option::of(iscsi), prop::option::of(fc)).prop_map(|(iscsi, fc)| Both { iscsi, fc })
}

struct Node {
    machine: FakeMachine,
    former: BTreeSet<Place>,
}

impl Node {
    /// A node with another volume on the port, and a target of somebody else.
    fn new() -> Self {
        let machine = port::shared(FC);
        Self { machine, former: BTreeSet::new() }
    }

    fn plan(&self, spec: &Both) -> Plan<Op> {
        let (iscsi, fc) = (spec.iscsi(), spec.fc());
        let tree = self.machine.lio();
        let (view, fc_view) = (look(&tree, &iscsi), fc::View::read(&tree, &fc, &self.former).unwrap());
        plan_exports(&Exports { iscsi: Some((&iscsi, &view)), fc: vec![(&fc, &fc_view)] })
    }

    fn settle(&mut self, spec: &Both) -> Plan<Op> {
        let plan = self.plan(spec);
        self.former.extend(spec.fc().places());
        apply(&plan, &self.machine.lio(), &mut ()).unwrap();
        let left = self.plan(spec);
        assert!(left.is_quiet(), "not quiet:\n{}\nfirst:\n{}", text(&left), text(&plan));
        self.former = spec.fc().places();
        self.is_reached(spec);
        plan
    }

    /// Asserts that exactly the spec is reachable, over both transports.
    fn is_reached(&self, spec: &Both) {
        assert_eq!(common::ways(&self.machine), common::wanted_ways(&spec.iscsi()));
        assert_eq!(port::ways(&self.machine, FC), port::wanted_ways(&spec.fc()));
    }

    /// Logs in every initiator over both transports. Returns the session, `true` for iSCSI, and the
    /// initiator.
    fn log_in(&self, spec: &Both) -> Vec<(SessionId, bool, String)> {
        let target = common::names().iqn;
        let over_iscsi = spec.iscsi.iter().flatten().map(|grant| {
            let name = grant.initiator.to_string();
            (self.machine.login(PORTAL, target.as_str(), &name, None).unwrap(), true, name)
        });
        let over_fc = spec.fc.iter().flatten().map(|grant| {
            let name = grant.initiator.to_string();
            (self.machine.plogi(&port::port(FC).to_string(), &name).unwrap(), false, name)
        });
        over_iscsi.chain(over_fc).collect()
    }
}

/// Returns the mode of an initiator in a spec; `None` if it has no grant.
fn mode(spec: &Both, iscsi: bool, name: &str) -> Option<Mode> {
    if iscsi {
        spec.iscsi.iter().flatten().find(|grant| grant.initiator.as_str() == name).map(|grant| grant.mode)
    } else {
        spec.fc.iter().flatten().find(|grant| grant.initiator.to_string() == name).map(|grant| grant.mode)
    }
}

proptest! {
    #![proptest_config(config())]

    /// One pass leads from any spec over both transports to any other. The backstore is there while
    /// a transport has a grant, and goes with the last export. In the end nothing else has changed.
    #[test]
    fn both_converge_on_one_backstore(specs in prop::collection::vec(some_spec(), 1..4)) {
        let mut node = Node::new();
        let before = dump_all(&node.machine.lio());
        let backstore = layout::backstore(&common::names());
        for spec in &specs {
            node.settle(spec);
            let there = node.machine.lio().is_dir(&backstore).unwrap();
            prop_assert!(there || spec.fc.as_ref().is_none_or(Vec::is_empty) && spec.iscsi.is_none());
            prop_assert!(!there || spec.fc.is_some() || spec.iscsi.is_some());
        }
        node.settle(&Both { iscsi: None, fc: None });
        prop_assert_eq!(dump_all(&node.machine.lio()), before);
    }

    /// An initiator with a grant in both specs works on through every step, on both transports. No
    /// session ends, and no I/O fails that both specs allow. At no step has anybody more than one
    /// of the specs gives.
    #[test]
    fn one_fabric_does_not_notice_the_other(a in some_spec(), b in some_spec()) {
        let mut node = Node::new();
        node.settle(&a);
        let sessions = node.log_in(&a);
        let steps = node.plan(&b);
        apply(&steps, &node.machine.lio(), &mut Each(|step: &Step<Op>| {
            for (session, iscsi, name) in &sessions {
                let Some((old, new)) = mode(&a, *iscsi, name).zip(mode(&b, *iscsi, name)) else { continue };
                assert!(node.machine.is_live(*session), "{name} is out after {}\n{}", step.op, text(&steps));
                assert!(node.machine.read(*session, 1).is_ok(), "{name} after {}", step.op);
                let wrote = node.machine.write(*session, 1).is_ok();
                assert!(wrote || old.min(new) == Mode::ReadOnly, "{name} cannot write after {}", step.op);
                assert!(!wrote || old.max(new) == Mode::ReadWrite, "{name} writes after {}", step.op);
            }
            let given = |way: &port::Way| {
                let given = [&a, &b].map(|spec| mode(spec, false, &way.initiator));
                given.into_iter().flatten().any(|mode| way.mode <= mode)
            };
            assert!(port::ways(&node.machine, FC).iter().all(given), "after {}\n{}", step.op, text(&steps));
        })).unwrap();
        node.is_reached(&b);
    }

    /// Any prefix, and any failed call, ends in the same state after another pass.
    #[test]
    fn any_prefix_then_again_ends_the_same(a in some_spec(), b in some_spec(), stop in any::<prop::sample::Index>()) {
        let (mut straight, mut broken) = (Node::new(), Node::new());
        straight.settle(&a);
        broken.settle(&a);
        straight.settle(&b);
        let whole = broken.plan(&b);
        broken.former.extend(b.fc().places());
        let stop = stop.index(whole.steps.len() + 1);
        let stopped = apply(&whole, &broken.machine.lio(), &mut StopAfter(stop));
        prop_assert_eq!(stopped.is_err(), stop < whole.steps.len());
        broken.settle(&b);
        prop_assert_eq!(dump_all(&broken.machine.lio()), dump_all(&straight.machine.lio()));
    }

    /// Steps that take access away precede all that give it, on both transports. Among them, those
    /// that cannot block precede those that can. The backstore is made before access is given, and
    /// removed last.
    #[test]
    fn the_parts_stand_in_order(a in some_spec(), b in some_spec()) {
        let mut node = Node::new();
        node.settle(&a);
        let steps = node.plan(&b).steps;
        let backstore = layout::backstore(&common::names());
        let blocks = |step: &Step<Op>| fc::drains(step).is_some() || drains(step).is_some();
        let gives = |step: &Step<Op>| {
            matches!(step.op, Op::Link { .. } | Op::Mkdir { .. }) && !step.op.path().is_within(&backstore)
        };
        let first_gift = steps.iter().position(gives).unwrap_or(steps.len());
        let first_block = steps.iter().position(blocks).unwrap_or(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let unmaps = matches!(step.op, Op::Unlink { .. }) && step.op.path().as_str().contains("/acls/");
            prop_assert!(!unmaps || index < first_block, "{} is late", step.op);
            prop_assert!(!blocks(step) || index < first_gift, "{} is late", step.op);
        }
        if let Some(removed) = steps.iter().position(|step| step.op == Op::Rmdir { path: backstore.clone() }) {
            prop_assert_eq!(removed, steps.len() - 2, "only the HBA comes after it");
        }
    }
}

fn both(iscsi: Mode, fc: Mode) -> Both {
    Both { iscsi: Some(vec![common::grant(1, 1, iscsi, None)]), fc: Some(vec![port::grant(1, 1, fc)]) }
}

/// One disk over both transports, each with its own mode. Removing either leaves the other, in
/// either order.
#[test]
fn one_disk_over_two_fabrics() {
    for iscsi_goes in [true, false] {
        let mut node = Node::new();
        let spec = both(Mode::ReadOnly, Mode::ReadWrite);
        node.settle(&spec);
        let sessions = node.log_in(&spec);
        let seen: Vec<_> =
            sessions.iter().map(|(session, ..)| node.machine.inquire(*session, 1).unwrap()).collect();
        assert_eq!((&seen[0].naa, &seen[0].serial), (&seen[1].naa, &seen[1].serial));
        assert_eq!((seen[0].write_protected, seen[1].write_protected), (true, false));
        let left = if iscsi_goes { Both { iscsi: None, ..spec } } else { Both { fc: None, ..spec } };
        let done = node.settle(&left);
        assert!(!text(&done).contains("core/"), "the backstore is not touched:\n{}", text(&done));
        let stays = sessions[usize::from(iscsi_goes)].0;
        assert!(node.machine.read(stays, 1).is_ok());
        node.settle(&Both { iscsi: None, fc: None });
        assert!(!node.machine.lio().is_dir(&layout::backstore(&common::names())).unwrap());
    }
}

/// A wrong device behind the backstore is named once for all transports, and each still revokes
/// what must go.
#[test]
fn a_wrong_backstore_is_named_once() {
    let mut node = Node::new();
    node.settle(&both(Mode::ReadWrite, Mode::ReadWrite));
    let iscsi = common::present_as(common::names(), port::OTHER_DEVICE, &[PORTAL], vec![]);
    let fc = fc::Wanted::Present {
        names: port::names(FC, common::volume()),
        device: port::OTHER_DEVICE.into(),
        grants: vec![port::grant(1, 1, Mode::ReadOnly)],
    };
    let tree = node.machine.lio();
    let (view, fc_view) = (look(&tree, &iscsi), fc::View::read(&tree, &fc, &node.former).unwrap());
    let plan = plan_exports(&Exports { iscsi: Some((&iscsi, &view)), fc: vec![(&fc, &fc_view)] });
    assert_eq!(plan.blocked.len(), 1, "{}", text(&plan));
    apply(&plan, &tree, &mut ()).unwrap();
    assert!(common::ways(&node.machine).is_empty());
    assert_eq!(port::ways(&node.machine, FC), port::wanted_ways(&fc));
}

/// A transport that cannot give access does not keep another from revoking: a portal that is taken
/// fails after the revoke over Fibre Channel.
#[test]
fn a_failing_gift_comes_after_every_revoke() {
    let mut node = Node::new();
    node.settle(&both(Mode::ReadWrite, Mode::ReadWrite));
    node.machine.occupy("10.20.0.10:3260".parse().unwrap());
    let iscsi =
        common::present(&[PORTAL, "10.20.0.10:3260"], vec![common::grant(1, 1, Mode::ReadWrite, None)]);
    let fc = port::present(FC, vec![]);
    let tree = node.machine.lio();
    let (view, fc_view) = (look(&tree, &iscsi), fc::View::read(&tree, &fc, &node.former).unwrap());
    let plan = plan_exports(&Exports { iscsi: Some((&iscsi, &view)), fc: vec![(&fc, &fc_view)] });
    let error = apply(&plan, &tree, &mut ()).unwrap_err();
    assert!(matches!(error, Error::Step { ref source, .. } if source.errno == Errno::EINVAL), "{error}");
    assert!(port::ways(&node.machine, FC).is_empty());
    assert_eq!(node.machine.landed(DEVICE), 0);
}

/// A barrier waits for the disk: revokes over Fibre Channel come before that.
#[test]
fn a_barrier_holds_up_no_revoke_over_another_fabric() {
    let barrier = Some(BarrierId::from_u128(1));
    let first = Grant { barrier, ..common::grant(1, 1, Mode::ReadOnly, None) };
    for fc in [vec![], vec![port::grant(1, 1, Mode::ReadOnly)]] {
        let mut node = Node::new();
        node.settle(&both(Mode::ReadWrite, Mode::ReadWrite));
        let spec = Both { iscsi: Some(vec![first.clone()]), fc: Some(fc) };
        let plan = node.plan(&spec);
        let waits = |step: &Step<Op>| step.op.path().name() == "cmdsn_depth";
        let waits = plan.steps.iter().position(waits).unwrap();
        apply(&plan, &node.machine.lio(), &mut StopAfter(waits)).unwrap_err();
        assert_eq!(port::ways(&node.machine, FC), port::wanted_ways(&spec.fc()), "{}", text(&plan));
        node.settle(&spec);
    }
}

/// A portal that somebody holds delays no grant over Fibre Channel, and a missing adapter delays
/// none over iSCSI.
#[test]
fn one_fabric_that_cannot_give_holds_up_no_other() {
    let node = Node::new();
    node.machine.occupy("10.10.0.10:3261".parse().unwrap());
    let tree = node.machine.lio();
    let none = BTreeSet::new();
    let give = |iscsi: &Wanted, fc: &fc::Wanted| {
        let (view, fc_view) = (look(&tree, iscsi), fc::View::read(&tree, fc, &none).unwrap());
        let plan = plan_exports(&Exports { iscsi: Some((iscsi, &view)), fc: vec![(fc, &fc_view)] });
        apply(&plan, &tree, &mut ()).unwrap_err()
    };
    let grants = vec![common::grant(1, 1, Mode::ReadWrite, None)];
    let over_fc = port::present(FC, vec![port::grant(1, 1, Mode::ReadOnly)]);
    let error = give(&common::present(&["10.10.0.10:3261"], grants.clone()), &over_fc);
    assert!(error.to_string().contains("the port is taken"), "{error}");
    assert_eq!(port::ways(&node.machine, FC), port::wanted_ways(&over_fc));
    let over_iscsi = common::present(&[PORTAL], grants);
    let error = give(&over_iscsi, &port::present(FcFabric::Efct, vec![port::grant(1, 1, Mode::ReadOnly)]));
    assert!(error.to_string().contains("no adapter"), "{error}");
    assert_eq!(common::ways(&node.machine), common::wanted_ways(&over_iscsi));
}

/// Two ports of one node show the volume under the same numbers, and go one by one.
#[test]
fn two_ports_of_one_volume() {
    let machine = port::bare(FC);
    let qla = FcFabric::Qla2xxx;
    let second = FcPort { fabric: qla, wwpn: "21:00:00:24:ff:00:00:01".parse().unwrap() };
    machine.add_fc_port(&second.to_string());
    let names = FcNames { port: second, ..port::names(qla, common::volume()) };
    let grants = vec![port::grant(1, 1, Mode::ReadOnly)];
    let specs = [
        port::present(FC, grants.clone()),
        fc::Wanted::Present { names: names.clone(), device: DEVICE.into(), grants },
    ];
    let tree = machine.lio();
    let step = |specs: &[fc::Wanted], former: &BTreeSet<Place>| {
        let views: Vec<_> = specs.iter().map(|spec| fc::View::read(&tree, spec, former).unwrap()).collect();
        let plan = plan_exports(&Exports { iscsi: None, fc: specs.iter().zip(&views).collect() });
        apply(&plan, &tree, &mut ()).unwrap();
        plan
    };
    let former = specs[0].places();
    step(&specs, &former);
    assert!(step(&specs, &former).is_quiet());
    assert_eq!(machine.reachable().len(), 2);
    let half = [port::absent(FC), specs[1].clone()];
    step(&half, &former);
    assert!(step(&half, &former).is_quiet());
    assert_eq!(machine.reachable().len(), 1);
    step(&[port::absent(FC), fc::Wanted::Absent { names }], &former);
    assert!(machine.reachable().is_empty());
    assert!(!tree.is_dir(&layout::backstore(&common::names())).unwrap());
}
