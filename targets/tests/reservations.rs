//! Persistent reservations: texts of the kernel, what the agent stores of them, and the plan that
//! restores them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use mooring_host::fake::FakeMachine;
use mooring_host::{Tree, TreePath};
use mooring_model::{
    ExportIdentity, ExportNames, Grant, Initiator, IqnPrefix, LUN_DEFAULT, Mode, Registration,
    ReservationHolder, ReservationType, Reservations, Tuning, VolumeId,
};
use mooring_targets::reservations::{
    Before, Kept, format_kept, keep, parse_file, parse_kept, read_reservations,
};
use mooring_targets::{Device, ExportView, Op, Wanted, apply, plan};
use proptest::prelude::*;

/// File as the kernel wrote it (Linux 6.1, two initiators, the second one added by hand to a second
/// block).
const FILE: &str = "PR_REG_START: 0\ninitiator_fabric=iSCSI\ninitiator_node=iqn.2026-01.test.mooring:host1\n\
    initiator_sid=00023d000001\nsa_res_key=171\nres_holder=1\nres_type=08\nres_scope=00\nres_all_tg_pt=0\nmapped_lun=1\n\
    target_fabric=iSCSI\ntarget_node=iqn.2026-11.dev.mooring:t\ntpgt=1\nport_rtpi=1\ntarget_lun=1\nPR_REG_END: 0\n\
    PR_REG_START: 1\ninitiator_fabric=iSCSI\ninitiator_node=iqn.2026-01.test.mooring:host2\n\
    sa_res_key=18446744073709551615\nres_holder=0\nres_all_tg_pt=1\nmapped_lun=1\n\
    target_fabric=iSCSI\ntarget_node=iqn.2026-11.dev.mooring:t\ntpgt=1\nport_rtpi=2\ntarget_lun=1\nPR_REG_END: 1\n\0";

#[test]
fn the_kernels_file_is_read_and_put_back_as_it_takes_it() {
    let all = parse_file(FILE);
    let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "initiator_fabric=iSCSI,initiator_node=iqn.2026-01.test.mooring:host1,initiator_sid=00023d000001,\
             sa_res_key=171,res_holder=1,res_type=8,res_scope=0,res_all_tg_pt=0,mapped_lun=1,target_fabric=iSCSI,\
             target_node=iqn.2026-11.dev.mooring:t,tpgt=1,port_rtpi=1,target_lun=1",
            "initiator_fabric=iSCSI,initiator_node=iqn.2026-01.test.mooring:host2,\
             sa_res_key=18446744073709551615,res_holder=0,res_type=0,res_scope=0,res_all_tg_pt=1,mapped_lun=1,\
             target_fabric=iSCSI,target_node=iqn.2026-11.dev.mooring:t,tpgt=1,port_rtpi=2,target_lun=1",
        ]
    );
    assert_eq!(parse_kept(&format_kept(&all)), Some(all));
    for nothing in
        ["No Registrations or Reservations", "", "\0", "PR_REG_START: 0\nsa_res_key=1\nPR_REG_END: 0\n"]
    {
        assert_eq!(parse_file(nothing), [], "{nothing:?}");
    }
}

fn initiator(n: u8) -> Initiator {
    format!("iqn.2026-01.lab:host{n}").parse().unwrap()
}

fn registration(n: u8, key: u64) -> Registration {
    Registration { initiator: initiator(n), isid: Some(format!("8001234500{n:02x}")), key }
}

fn kept(n: u8, key: u64, holds: Option<ReservationType>) -> Kept {
    Kept {
        registration: registration(n, key),
        fabric: "iSCSI".to_owned(),
        holds,
        all_ports: false,
        mapped_lun: 1,
        target_fabric: "iSCSI".to_owned(),
        target: "iqn.2026-11.dev.mooring:t".to_owned(),
        tpg: 1,
        rtpi: 1,
        target_lun: 1,
        lost: false,
    }
}

const WERO: Option<ReservationType> = Some(ReservationType::WriteExclusiveRegistrantsOnly);

fn seen(generation: u32, live: &[(u8, u64)], holder: Option<u8>) -> Reservations {
    let holder = holder.map(|n| ReservationHolder {
        initiator: initiator(n),
        isid: registration(n, 1).isid,
        kind: WERO,
        since: None,
    });
    let registrations = live.iter().map(|(n, key)| registration(*n, *key)).collect();
    Reservations { generation, registrations, holder, durable: true, ..Reservations::default() }
}

#[test]
fn what_is_kept() {
    let file = [kept(1, 10, WERO), kept(2, 20, None)];
    let none = Before { kept: &[], generation: None };
    let everybody = |_: &Initiator| true;
    let all = |generation, live: &[(u8, u64)], holder| seen(generation, live, holder);

    // Live registrations are stored, with their details from the file. The kernel's view decides
    // about the holder.
    let live = all(2, &[(1, 10), (2, 20)], Some(1));
    assert_eq!(keep(none, &live, Some(&file), everybody, true), file);
    let passed_on = all(2, &[(1, 10), (2, 20)], Some(2));
    assert_eq!(keep(none, &passed_on, Some(&file), everybody, true), [kept(1, 10, None), kept(2, 20, WERO)]);
    // A revoked registration is still in the file.
    assert_eq!(keep(none, &all(2, &[(2, 20)], None), Some(&file), everybody, true), [kept(2, 20, None)]);
    // A registration that is not durable is not stored.
    let short = Reservations { durable: false, ..live.clone() };
    let before = Before { kept: &file, generation: Some(2) };
    assert_eq!(keep(before, &short, Some(&file), everybody, true), []);

    // A restored registration that is not mapped yet waits. Without a grant it does not.
    let before = Before { kept: &file, generation: None };
    let half = all(1, &[(1, 10)], Some(1));
    assert_eq!(keep(before, &half, None, everybody, false), file);
    assert_eq!(keep(before, &half, None, |one| *one == initiator(1), false), [kept(1, 10, WERO)]);
    // All are mapped, and one is missing: it is lost, unless commands came meanwhile.
    let lost = |n, key| Kept { lost: true, ..kept(n, key, None) };
    assert_eq!(keep(before, &half, None, everybody, true), [kept(1, 10, WERO), lost(2, 20)]);
    assert_eq!(keep(before, &all(3, &[(1, 10)], Some(1)), None, everybody, true), [kept(1, 10, WERO)]);
    // The same rules hold in the life of one backstore.
    let before = Before { kept: &file, generation: Some(7) };
    assert_eq!(keep(before, &all(8, &[(1, 10)], Some(1)), Some(&file), everybody, true), [kept(1, 10, WERO)]);
    assert_eq!(
        keep(before, &all(7, &[(1, 10)], Some(1)), Some(&file), everybody, true),
        [kept(1, 10, WERO), lost(2, 20)]
    );
    // An initiator that unregisters moves no counter, and is no longer in the file. In a file from
    // before a loss of power, this means nothing.
    let rest = [kept(1, 10, WERO)];
    assert_eq!(keep(before, &all(7, &[(1, 10)], Some(1)), Some(&rest), everybody, true), rest);
    let none = Reservations { durable: false, ..all(7, &[], None) };
    assert_eq!(keep(before, &none, Some(&[]), everybody, true), []);
    assert_eq!(keep(before, &none, Some(&[]), everybody, false), file, "it may not be mapped yet");
    let anew = Before { kept: &file, generation: None };
    assert_eq!(keep(anew, &half, Some(&rest), everybody, true), [kept(1, 10, WERO), lost(2, 20)]);
    // A lost registration stays lost until its initiator registers anew or loses its grant.
    let gone = [kept(1, 10, WERO), lost(2, 20)];
    let before = Before { kept: &gone, generation: Some(7) };
    assert_eq!(keep(before, &all(9, &[(1, 10)], Some(1)), Some(&file), everybody, true), gone);
    assert_eq!(keep(before, &live, Some(&file), everybody, true), file);
    assert_eq!(
        keep(before, &all(9, &[(1, 10)], Some(1)), Some(&file), |one| *one == initiator(1), true),
        [kept(1, 10, WERO)]
    );
}

proptest! {
    /// Nothing is stored for initiators without a grant, and nothing twice.
    #[test]
    fn only_the_granted_and_once(
        before in proptest::collection::btree_map(0u8..6, 1u64..9, 0..5),
        live in proptest::collection::btree_map(0u8..6, 1u64..9, 0..5),
        granted in proptest::collection::btree_set(0u8..6, 0..6),
        generation in proptest::option::of(0u32..4),
        now in 0u32..4,
        durable in any::<bool>(),
        in_force in any::<bool>(),
    ) {
        let before: Vec<_> = before.iter().map(|(n, key)| kept(*n, *key, None)).collect();
        // Every live registration has a grant.
        let live: Vec<_> = live.into_iter().filter(|(n, _)| granted.contains(n)).collect();
        let file: Vec<_> = live.iter().map(|(n, key)| kept(*n, *key, None)).collect();
        let seen = Reservations { durable, ..seen(now, &live, None) };
        let may = |one: &Initiator| granted.iter().any(|n| initiator(*n) == *one);
        let after = keep(Before { kept: &before, generation }, &seen, Some(&file), may, in_force);
        for (index, one) in after.iter().enumerate() {
            prop_assert!(may(&one.registration.initiator));
            prop_assert!(!after[..index].iter().any(|other| other.is_of(&one.registration)));
        }
        // A second step without any change gives the same result.
        let again = keep(Before { kept: &after, generation: Some(now) }, &seen, Some(&file), may, in_force);
        prop_assert_eq!(again, after);
    }
}

fn names() -> ExportNames {
    ExportIdentity::Derived.names(VolumeId::from_u128(7 << 96), &IqnPrefix::default())
}

/// A volume of host1 and host2, with the registrations that are to be restored.
fn wanted(back: Vec<Kept>) -> Wanted {
    let grant = |n: u8| Grant {
        initiator: initiator(n).iqn().unwrap().clone(),
        lun: LUN_DEFAULT,
        mode: Mode::ReadWrite,
        chap: None,
        attachments: Vec::new(),
        barrier: None,
    };
    Wanted::Present {
        names: names(),
        device: Device { reservations: back, ..Device::from("/dev/vg0/v") },
        portals: vec!["10.0.0.1:3260".parse().unwrap()],
        withheld: false,
        grants: vec![grant(1), grant(2)],
        tuning: Tuning::default(),
        port_id: None,
    }
}

fn back() -> Vec<Kept> {
    let target = names().iqn.to_string();
    [kept(1, 10, WERO), kept(2, 20, None)].map(|one| Kept { target: target.clone(), ..one }).into()
}

fn machine() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_device("/dev/vg0/v", 1 << 20);
    fake
}

/// A run that stops before any step is planned anew. The kernel then has each registration once,
/// and nobody could reach the volume before.
#[test]
fn stopped_at_any_step_each_comes_back_once() {
    let (wanted, names) = (wanted(back()), names());
    let steps = plan(&wanted, &ExportView::default()).steps.len();
    for stop in 0..=steps {
        let fake = machine();
        let lio = fake.lio();
        let mut first = plan(&wanted, &ExportView::read(&lio, &names).unwrap());
        first.steps.truncate(stop);
        apply(&first, &lio, &mut ()).unwrap();
        let found = read_reservations(&lio, &names).unwrap().unwrap_or_default();
        assert!(fake.reachable().is_empty() || found.is_held_by(&initiator(1)), "step {stop}: {found:?}");
        let rest = plan(&wanted, &ExportView::read(&lio, &names).unwrap());
        apply(&rest, &lio, &mut ()).unwrap();
        assert!(plan(&wanted, &ExportView::read(&lio, &names).unwrap()).is_quiet());
        let found = read_reservations(&lio, &names).unwrap().unwrap();
        assert_eq!(found.registrations, [registration(1, 10), registration(2, 20)], "step {stop}");
        assert_eq!((found.generation, found.durable, found.holder.unwrap().kind), (2, true, WERO));
    }
}

/// Registrations are restored after the serial and before `enable`; an existing export is left
/// alone.
#[test]
fn they_come_back_before_enable_and_never_later() {
    let fake = machine();
    let lio = fake.lio();
    let planned = plan(&wanted(back()), &ExportView::read(&lio, &names()).unwrap());
    let at = |suffix: &str| {
        let written = |op: &Op| matches!(op, Op::Write { path, .. } if path.as_str().ends_with(suffix));
        planned.steps.iter().position(|step| written(&step.op)).unwrap()
    };
    // The first `enable` of a plan is the backstore's.
    let (serial, first) = (at("wwn/vpd_unit_serial"), at("pr/res_aptpl_metadata"));
    assert_eq!((first, at("/enable")), (serial + 1, first + 2));
    let plain = wanted(Vec::new());
    apply(&plan(&plain, &ExportView::read(&lio, &names()).unwrap()), &lio, &mut ()).unwrap();
    assert!(plan(&wanted(back()), &ExportView::read(&lio, &names()).unwrap()).is_quiet());
}

#[test]
fn without_a_backstore_there_is_nothing_to_say() {
    let lio = machine().lio();
    assert_eq!(read_reservations(&lio, &names()).unwrap(), None);
    lio.mkdir(&TreePath::new("iscsi")).unwrap();
    assert_eq!(read_reservations(&lio, &names()).unwrap(), None);
}
