//! Ways past `write_protect` for commands that claim to read (lio.md, t). They are shut before
//! anybody is mapped, also on exports of an earlier agent, and shut again when somebody has opened
//! one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use mooring_host::Tree;
use mooring_host::fake::FakeMachine;
use mooring_model::Mode;
use mooring_targets::{Wanted, apply, layout, plan};

const PORTAL: &str = "10.10.0.10:3260";

fn spec() -> Wanted {
    present(&[PORTAL], vec![grant(1, 1, Mode::ReadWrite, None), grant(2, 1, Mode::ReadOnly, None)])
}

/// Opens all of them, as an agent that knew none of them would leave them.
fn unseal(machine: &FakeMachine) {
    for (name, _, _) in layout::SEALS {
        let path = layout::backstore(&names()).join("attrib").join(name);
        machine.lio().write(&path, b"1").unwrap();
    }
}

#[test]
fn a_standing_export_is_sealed_first_and_no_session_is_cut() {
    let machine = machine();
    settle(&machine, &spec());
    let sessions =
        [1, 2].map(|number| machine.login(PORTAL, names().iqn.as_str(), &host(number), None).unwrap());
    unseal(&machine);
    assert_ne!(ways(&machine), wanted_ways(&spec()), "the control: the host that may only read can write");
    let steps = plan_now(&machine.lio(), &spec());
    let paths: Vec<_> = steps.steps.iter().map(|step| step.op.path().name().to_owned()).collect();
    assert_eq!(paths, layout::SEALS.map(|(name, ..)| name));
    apply(&steps, &machine.lio(), &mut ()).unwrap();
    assert_eq!(ways(&machine), wanted_ways(&spec()));
    assert!(sessions.iter().all(|session| machine.is_live(*session)));
    assert!(plan_now(&machine.lio(), &spec()).is_quiet());
}

#[test]
fn one_seal_that_is_broken_is_the_only_step() {
    for (name, _, _) in layout::SEALS {
        let machine = machine();
        settle(&machine, &spec());
        let path = layout::backstore(&names()).join("attrib").join(name);
        machine.lio().write(&path, b"1").unwrap();
        let steps = plan_now(&machine.lio(), &spec());
        assert_eq!(text(&steps).lines().next().unwrap(), format!("write {path} = 0"), "{}", text(&steps));
        assert_eq!(steps.steps.len(), 1);
        settle(&machine, &spec());
        assert_eq!(ways(&machine), wanted_ways(&spec()));
    }
}

/// Data of a command that claims to read are refused from the first login on, whatever a volume
/// type says.
#[test]
fn immediate_data_is_never_agreed_on() {
    let machine = machine();
    for wanted in [spec(), tuned(spec(), &[("immediate_data", "yes")])] {
        settle(&machine, &wanted);
        let param = layout::tpg(&names()).join("param").join("ImmediateData");
        assert_eq!(machine.lio().read_text(&param).unwrap(), "No");
        machine.lio().write(&param, b"Yes").unwrap();
        assert_ne!(
            ways(&machine),
            wanted_ways(&wanted),
            "the control: who may only read can have it done twice"
        );
        assert_eq!(settle(&machine, &wanted).steps.len(), 1);
    }
}

/// Seals only take away, and wait for nothing: they come before a revoke that may wait for a disk.
#[test]
fn seals_stand_before_a_revoke() {
    let machine = machine();
    settle(&machine, &spec());
    unseal(&machine);
    let revoke = present(&[PORTAL], vec![grant(2, 1, Mode::ReadOnly, None)]);
    let steps = plan(&revoke, &look(&machine.lio(), &revoke));
    let first: Vec<_> = steps.steps.iter().take(3).map(|step| step.op.path().name().to_owned()).collect();
    assert_eq!(first, layout::SEALS.map(|(name, ..)| name));
    assert!(steps.steps.len() > 3);
}
