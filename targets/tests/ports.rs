//! The relative port id of an export: the id of the spec, whichever target is enabled first. The id
//! never changes under its users. On a kernel without `rtpi`, the id in the spec has no effect.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use mooring_host::Tree;
use mooring_host::fake::{Counted, FakeMachine};
use mooring_model::{Grant, Mode};
use mooring_targets::{Known, Op, Wanted, apply, layout, plan};

const PORTALS: [&str; 1] = ["10.10.0.10:3260"];
const OWN: u16 = 4660;

fn grants() -> Vec<Grant> {
    vec![grant(1, 1, Mode::ReadWrite, Some(chap("user", "secret-1234567")))]
}

fn spec(port_id: u16) -> Wanted {
    with_port(present(&PORTALS, grants()), port_id)
}

/// A later kernel, with a foreign target that nobody gave an id.
fn later() -> FakeMachine {
    let machine = machine();
    machine.set_port_ids(true);
    foreign(&machine, None);
    machine
}

fn foreign(machine: &FakeMachine, port_id: Option<u16>) {
    let group = format!("iscsi/{OTHER_TARGET}/tpgt_1");
    let written = port_id.map_or(String::new(), |id| format!("write {group}/rtpi = {id}\n"));
    let target = if machine.lio().is_dir(&path(&group)).unwrap() {
        format!("write {group}/enable = 0\n")
    } else {
        format!("mkdir iscsi/{OTHER_TARGET}\nmkdir {group}\n")
    };
    run_script(&machine.lio(), &format!("{target}{written}write {group}/enable = 1"));
}

fn port_id(machine: &FakeMachine) -> String {
    machine.lio().read_text(&layout::tpg(&names()).join("rtpi")).unwrap()
}

/// The control: without an id in the spec, the export gets the id that the order of enabling
/// leaves.
#[test]
fn without_an_id_in_the_spec_the_order_decides() {
    let machine = later();
    settle(&machine, &present(&PORTALS, grants()));
    assert_eq!(port_id(&machine), "0x2");
    machine.reboot();
    settle(&machine, &present(&PORTALS, grants()));
    assert_eq!(port_id(&machine), "0x1");
}

/// A run that stops before any step and is planned anew gives the same id, also after a loss of
/// power. The id is written before the LUN is linked.
#[test]
fn it_is_the_wanted_one_whatever_was_begun() {
    let wanted = spec(OWN);
    let steps = plan_now(&later().lio(), &wanted);
    let at = |what: &dyn Fn(&Op) -> bool| steps.steps.iter().position(|step| what(&step.op)).unwrap();
    let written = at(&|op| op.path().name() == "rtpi");
    let linked = at(&|op| matches!(op, Op::Link { .. }));
    assert!(written < linked && linked < steps.steps.len() - 1);
    for stop in 0..=steps.steps.len() {
        let machine = later();
        let mut first = plan_now(&machine.lio(), &wanted);
        first.steps.truncate(stop);
        apply(&first, &machine.lio(), &mut ()).unwrap();
        settle(&machine, &wanted);
        assert_eq!(port_id(&machine), "0x1234", "after {stop} steps");
        machine.reboot();
        settle(&machine, &wanted);
        assert_eq!(port_id(&machine), "0x1234", "after {stop} steps and a boot");
    }
}

/// An upgrade: an export without an id of ours keeps its present id, and its sessions.
#[test]
fn a_group_that_is_enabled_is_left_alone() {
    let machine = later();
    settle(&machine, &present(&PORTALS, grants()));
    let session = machine.login(PORTALS[0], names().iqn.as_str(), &host(1), Some(("user", "secret-1234567")));
    let session = session.unwrap();
    assert!(plan_now(&machine.lio(), &spec(OWN)).is_quiet());
    assert_eq!((port_id(&machine).as_str(), machine.is_live(session)), ("0x2", true));
    assert_eq!(look(&machine.lio(), &spec(OWN)).tpg().unwrap().port_id, Some(2));
}

/// Somebody has disabled the group, so the kernel would choose a new id.
#[test]
fn it_comes_back_with_enable() {
    for chosen in [true, false] {
        let machine = later();
        let wanted = if chosen { present(&PORTALS, grants()) } else { spec(OWN) };
        settle(&machine, &wanted);
        let was = look(&machine.lio(), &spec(OWN)).tpg().unwrap().port_id.unwrap();
        let tpg = layout::tpg(&names());
        run_script(&machine.lio(), &format!("write {tpg}/enable = 0"));
        // The lowest id is free now, and the kernel would give it.
        run_script(&machine.lio(), &format!("write iscsi/{OTHER_TARGET}/tpgt_1/enable = 0"));
        settle(&machine, &spec(was));
        assert_eq!(port_id(&machine), format!("{was:#x}"), "chosen by the kernel: {chosen}");
    }
}

/// The group admitted strangers, whose sessions end by a moment without `enable`. The other
/// initiators find the port that they know.
#[test]
fn a_group_that_is_cut_for_strangers_keeps_its_own() {
    let machine = later();
    settle(&machine, &present(&PORTALS, grants()));
    let tpg = layout::tpg(&names());
    run_script(&machine.lio(), &format!("write {tpg}/attrib/generate_node_acls = 1"));
    run_script(&machine.lio(), &format!("write iscsi/{OTHER_TARGET}/tpgt_1/enable = 0"));
    settle(&machine, &spec(OWN));
    assert_eq!(port_id(&machine), "0x2");
}

/// Another target has the id: the plan stops at `enable`, and nobody reaches anything. With another
/// id the plan succeeds.
#[test]
fn an_id_that_is_taken_is_named_and_another_one_is_right() {
    let machine = later();
    foreign(&machine, Some(OWN));
    let tree = machine.lio();
    let error = pass(&tree, &spec(OWN)).unwrap_err();
    assert!(error.is_port_taken(&names()), "{error}");
    assert!(error.to_string().contains("relative port id (rtpi)"), "{error}");
    assert!(ways(&machine).is_empty());
    let again = pass(&tree, &spec(OWN)).unwrap_err();
    assert!(again.is_port_taken(&names()), "{again}");
    settle(&machine, &spec(OWN + 1));
    assert_eq!(port_id(&machine), "0x1235");
    // Another error, or an error of another step, says nothing about ids.
    let names = names();
    let faulty = mooring_host::fake::Faulty::new(self::later().lio());
    faulty.fail_when(mooring_host::Errno::EIO, |_, path| path.name() == "enable");
    assert!(!pass(&faulty, &spec(OWN)).unwrap_err().is_port_taken(&names));
}

/// A kernel without `rtpi`: one look, or one write, finds the attribute missing.
#[test]
fn on_a_kernel_without_it_nothing_is_planned() {
    let machine = machine();
    let first = settle(&machine, &spec(OWN));
    let said = first.steps.iter().filter(|step| step.op.path().name() == "rtpi").count();
    assert_eq!(said, 1, "it is not known yet");
    assert_eq!(look(&machine.lio(), &spec(OWN)).tpg().unwrap().port_id, None);
    run_script(&machine.lio(), &format!("write {}/enable = 0", layout::tpg(&names())));
    let again = settle(&machine, &spec(OWN));
    assert!(again.steps.iter().all(|step| step.op.path().name() != "rtpi"), "{}", text(&again));
}

/// Cost: one read if the spec has an id, otherwise none. A narrow change does not read the id.
#[test]
fn it_costs_one_look() {
    let machine = later();
    let tree = Counted::new(machine.lio());
    pass(&tree, &spec(OWN)).unwrap();
    let looks = |wanted: &Wanted| {
        tree.reset();
        look(&tree, wanted);
        tree.total()
    };
    assert_eq!(looks(&spec(OWN)), looks(&present(&PORTALS, grants())) + 1);
    let known = Known::new(&spec(OWN), look(&tree, &spec(OWN))).unwrap();
    // This also holds after the agent has learnt that the export has another id.
    let narrow = known.narrow(&spec(7)).unwrap();
    tree.reset();
    assert!(plan(&narrow.wanted, &narrow.look(&tree).unwrap()).is_quiet());
    assert_eq!(tree.total(), 0);
}
