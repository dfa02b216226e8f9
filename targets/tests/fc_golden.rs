//! Golden plans over Fibre Channel, on tcm_fc and on qla2xxx: the snapshots in `snapshots/` are
//! read by people. `P` is the port's portal group, `B` our backstore, `HBA` its folder, `T` our
//! iSCSI target. `INSTA_UPDATE=always` accepts a change.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common;

use crate::common::fc::*;
use crate::common::{DEVICE, look, names_of, text, volume};
use mooring_host::Tree;
use mooring_model::{FcFabric, Mode, Plan};
use mooring_targets::fc::{self, Wanted};
use mooring_targets::{Exports, Op, layout, plan_exports};

const BOTH: [FcFabric; 2] = [FcFabric::TcmFc, FcFabric::Qla2xxx];

fn shorten(fabric: FcFabric, plan: &Plan<Op>) -> String {
    let names = names_of(volume());
    text(plan)
        .replace(fc::tpg(port(fabric)).as_str(), "P")
        .replace(layout::target(&names).as_str(), "T")
        .replace(layout::backstore(&names).as_str(), "B")
        .replace(layout::hba(&names).as_str(), "HBA")
        .replace("20:00:52:54:00:14:01:0", "initiator-")
}

/// Plans from one spec to another, on each driver; `harm` is done in between.
fn case(name: &str, before: Grants<'_>, harm: fn(&dyn Tree, FcFabric), after: Grants<'_>) {
    let spec = |fabric, grants: Grants<'_>| match grants {
        Some(grants) => {
            let made = grants.iter().map(|(number, lun, mode)| grant(*number, *lun, *mode));
            present(fabric, made.collect())
        }
        None => absent(fabric),
    };
    for fabric in BOTH {
        let machine = bare(fabric);
        let node = Node::new(&machine);
        node.settle(&spec(fabric, before));
        harm(&machine.lio(), fabric);
        let wanted = spec(fabric, after);
        let plan = node.plan(&wanted);
        node.settle(&wanted);
        insta::assert_snapshot!(format!("{name}-{fabric}"), shorten(fabric, &plan));
    }
}

/// Initiator, LUN, mode.
type Grant = (u16, u16, Mode);
/// Grants of a spec; `None` if the export is absent.
type Grants<'a> = Option<&'a [Grant]>;

const RO: Mode = Mode::ReadOnly;
const RW: Mode = Mode::ReadWrite;

fn no_harm(_: &dyn Tree, _: FcFabric) {}

#[test]
fn grants() {
    case("01-first-grant", None, no_harm, Some(&[(1, 1, RW)]));
    case("02-first-grant-read-only", None, no_harm, Some(&[(1, 1, RO)]));
    case("03-further-grant-read-only", Some(&[(1, 1, RW)]), no_harm, Some(&[(1, 1, RW), (2, 1, RO)]));
}

#[test]
fn changes() {
    case("04-modes-change", Some(&[(1, 1, RW), (2, 1, RO)]), no_harm, Some(&[(1, 1, RO), (2, 1, RW)]));
    case("05-lun-changes", Some(&[(1, 1, RW)]), no_harm, Some(&[(1, 2, RO)]));
    case("06-revoke-one-of-two", Some(&[(1, 1, RW), (2, 1, RO)]), no_harm, Some(&[(1, 1, RW)]));
    case("07-absent", Some(&[(1, 1, RW), (2, 1, RO)]), no_harm, None);
}

#[test]
fn repairs() {
    let shut = |tree: &dyn Tree, fabric| {
        tree.write(&lun_of(fabric, place(1, 1)).join(fc::SHUT), b"1").unwrap();
    };
    case("10-found-shut-read-only", Some(&[(1, 1, RO)]), shut, Some(&[(1, 1, RO)]));
    case("11-found-shut-read-write", Some(&[(1, 1, RW)]), shut, Some(&[(1, 1, RW)]));
    let stale = |tree: &dyn Tree, fabric| {
        tree.unlink(&lun_of(fabric, place(1, 1)).join("mooring")).unwrap();
    };
    case("12-stale-mapping", Some(&[(1, 1, RO)]), stale, Some(&[(1, 1, RO)]));
    let half = |tree: &dyn Tree, fabric| {
        let (lun, mapped) = (lun_of(fabric, place(1, 1)), mapped_of(fabric, place(1, 1)));
        tree.unlink(&mapped.join("mooring")).unwrap();
        tree.unlink(&lun.join("mooring")).unwrap();
        tree.rmdir(&mapped).unwrap();
    };
    case("13-half-revoked", Some(&[(1, 1, RW)]), half, Some(&[]));
}

/// A read-only LUN that was asked while it was writable is removed, still shut, and made anew.
#[test]
fn asked_while_writable() {
    for fabric in BOTH {
        let machine = bare(fabric);
        let node = Node::new(&machine);
        node.settle(&present(fabric, vec![grant(1, 1, RO)]));
        let session = node.log_in_all(fabric)[0].1;
        machine.lio().write(&lun_of(fabric, place(1, 1)).join(fc::SHUT), b"1").unwrap();
        machine.read(session, 1).unwrap_err();
        let wanted = present(fabric, vec![grant(1, 1, RO)]);
        let plan = node.plan(&wanted);
        node.settle(&wanted);
        insta::assert_snapshot!(format!("14-asked-while-writable-{fabric}"), shorten(fabric, &plan));
    }
}

#[test]
fn obstacles() {
    for fabric in BOTH {
        let machine = bare(fabric);
        Node::new(&machine).settle(&of_other(fabric, vec![grant(1, 1, RW)]));
        let wanted = present(fabric, vec![grant(1, 1, RW), grant(2, 1, RW)]);
        let plan = Node::new(&machine).plan(&wanted);
        insta::assert_snapshot!(format!("20-place-taken-{fabric}"), shorten(fabric, &plan));
    }
}

/// One volume over iSCSI and Fibre Channel: made, one removed, both.
#[test]
fn beside_iscsi() {
    let fabric = FcFabric::TcmFc;
    let machine = bare(fabric);
    let tree = machine.lio();
    let iscsi = common::present(&["10.10.0.10:3260"], vec![common::grant(1, 1, RO, None)]);
    let over_fc = present(fabric, vec![grant(1, 1, RW)]);
    for (name, iscsi, over_fc) in [
        ("30-both", iscsi.clone(), over_fc.clone()),
        ("31-iscsi-goes", common::absent(), over_fc.clone()),
        ("32-both-again", iscsi, over_fc.clone()),
        ("33-both-go", common::absent(), absent(fabric)),
    ] {
        let (view, fc_view) =
            (look(&tree, &iscsi), fc::View::read(&tree, &over_fc, &present_places(fabric)).unwrap());
        let plan = plan_exports(&Exports { iscsi: Some((&iscsi, &view)), fc: vec![(&over_fc, &fc_view)] });
        mooring_targets::apply(&plan, &tree, &mut ()).unwrap();
        insta::assert_snapshot!(name, shorten(fabric, &plan));
    }
    assert_eq!(machine.landed(DEVICE), 0);
}

fn present_places(fabric: FcFabric) -> std::collections::BTreeSet<fc::Place> {
    Wanted::places(&present(fabric, vec![grant(1, 1, RW)]))
}
