//! Discards of initiators: passed through if the spec says so and the device takes them, and never
//! changed under a LUN.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use mooring_host::Tree;
use mooring_host::fake::FakeMachine;
use mooring_model::Mode;
use mooring_targets::{Device, ExportView, Wanted, apply, layout, plan};

fn spec(discards: bool) -> Wanted {
    let chap = Some(chap("user", "secret-1234567"));
    match present(&["10.10.0.10:3260"], vec![grant(1, 1, Mode::ReadWrite, chap)]) {
        Wanted::Present { names, device, portals, withheld, grants, tuning, port_id } => {
            let device = Device { discards, ..device };
            Wanted::Present { names, device, portals, withheld, grants, tuning, port_id }
        }
        absent @ Wanted::Absent { .. } => absent,
    }
}

/// Looks, plans, applies, and asserts that the next plan is quiet.
fn make(machine: &FakeMachine, wanted: &Wanted) {
    let lio = machine.lio();
    let look = || ExportView::read(&lio, wanted.names()).unwrap();
    apply(&plan(wanted, &look()), &lio, &mut ()).unwrap();
    assert!(plan(wanted, &look()).is_quiet());
}

/// Returns `emulate_tpu`, `emulate_tpws` and `unmap_zeroes_data`.
fn attributes(machine: &FakeMachine) -> String {
    let attrib = layout::backstore(&names()).join("attrib");
    let read = |name: &str| machine.lio().read_text(&attrib.join(name)).unwrap();
    ["emulate_tpu", "emulate_tpws", "unmap_zeroes_data"].map(read).join(" ")
}

#[test]
fn they_are_passed_through_where_that_is_wanted() {
    for (discards, attribs) in [(true, "1 0 0"), (false, "0 0 0")] {
        let machine = machine();
        make(&machine, &spec(discards));
        assert_eq!(attributes(&machine), attribs);
    }
}

#[test]
fn a_device_that_takes_none_is_exported_without() {
    let machine = machine();
    machine.set_discards(DEVICE, false);
    make(&machine, &spec(true));
    assert_eq!(attributes(&machine), "0 0 0");
    assert_eq!(machine.reachable().len(), 1);
}

#[test]
fn nothing_changes_under_a_lun_and_the_next_export_has_it() {
    for (first, attribs, other) in [(false, "0 0 0", "1 0 0"), (true, "1 0 0", "0 0 0")] {
        let machine = machine();
        make(&machine, &spec(first));
        let look = ExportView::read(&machine.lio(), &names()).unwrap();
        assert!(plan(&spec(!first), &look).is_quiet());
        // A change of something else does not change it either.
        let mut more = spec(!first);
        if let Wanted::Present { grants, .. } = &mut more {
            grants.clear();
        }
        make(&machine, &more);
        assert_eq!(attributes(&machine), attribs);
        make(&machine, &absent());
        make(&machine, &spec(!first));
        assert_eq!(attributes(&machine), other);
    }
}

#[test]
fn a_backstore_that_is_not_exported_yet_is_put_right() {
    for (found, discards, attribs) in [("1", false, "0 0 0"), ("0", true, "1 0 0")] {
        let machine = machine();
        make(&machine, &spec(false));
        // The state that a crash between two steps leaves, of an agent with another configuration.
        let (lun, tpg) = (layout::lun(&names()), layout::tpg(&names()));
        let script = format!(
            "unlink {tpg}/acls/{host}/lun_1/{link}\nunlink {lun}/{link}\nwrite {store}/attrib/emulate_tpu = {found}",
            host = host(1),
            link = layout::LINK,
            store = layout::backstore(&names()),
        );
        run_script(&machine.lio(), &script);
        make(&machine, &spec(discards));
        assert_eq!(attributes(&machine), attribs);
    }
}
