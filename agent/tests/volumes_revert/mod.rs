//! Reverts of a volume to a snapshot: the steps, and the laws. From any prefix, past any failure,
//! over a power cut and for any next spec, one of two contents is there and whole: the volume's old
//! one, or the snapshot's. The tag of the LV says which.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use mooring_agent::config::{Group, Wipe};
use mooring_agent::lvm::{self, Error, Observer, VolumeOp, Wanted, apply, plan, report, view, view_one};
use mooring_host::fake::FakeMachine;
use mooring_model::{
    BlockedKind, ByteSize, Cure, LV_TAG, LV_UNZEROED_TAG, LvName, Phase, Provisioning, Revert, RevertId,
    Source, Step, VolumeKind, VolumeSpec, lv_revert_tag,
};
use proptest::prelude::*;

use super::{MIB, deactivate, id, lvs, name, words};
use crate::volumes_machine::{Fault, Machine, run};

fn groups() -> Vec<Group> {
    let mut group = super::group("vg0", 16 * MIB, Wipe::Zero);
    group.thin_pool = Some(ByteSize(256 * MIB));
    vec![group]
}

fn thin(mib: u64, revert: Option<Revert>) -> VolumeSpec {
    let new = VolumeSpec::new(id(1), "vg0".parse().unwrap(), ByteSize(mib * MIB), Provisioning::Thin);
    VolumeSpec { revert, ..new }
}

/// The n-th revert to the snapshot.
fn revert(n: u128) -> Revert {
    Revert { snapshot: id(2), id: RevertId::from_u128(n) }
}

fn to(n: u128, export_gone: bool) -> Wanted {
    Wanted::Reverted { spec: thin(12, Some(revert(n))), export_gone }
}

fn copy() -> String {
    LvName::back_of(id(1)).as_str().to_owned()
}

fn make(fake: &FakeMachine, wanted: &Wanted, of: mooring_model::VolumeId) {
    let seen = view(&fake.lvm(), &groups()).unwrap();
    apply(&plan(wanted, &seen, of), &fake.lvm(), &fake.blocks(), &mut ()).unwrap();
}

/// A volume of 8 MiB of zeros and its snapshot. The volume then grew to 12 MiB, and data was
/// written all over it.
fn world() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_vg("vg0", 1024 * MIB);
    make(&fake, &Wanted::Volume(thin(8, None)), id(1));
    let snapshot = VolumeSpec {
        id: id(2),
        kind: VolumeKind::Snapshot,
        source: Some(Source::Volume(id(1))),
        ..thin(8, None)
    };
    make(&fake, &Wanted::Volume(snapshot), id(2));
    make(&fake, &Wanted::Volume(thin(12, None)), id(1));
    fake.blocks().fill(lvm::device_path("vg0", &name(1)));
    fake
}

/// Changes a tag by hand.
fn tag(fake: &FakeMachine, verb: &str, tag: &str, lv: &str) {
    run(fake, &format!("lvchange {verb} {tag} vg0/{lv}"));
}

/// The world, in one state of a revert.
fn stands(state: &str) -> FakeMachine {
    let fake = world();
    let tags = [lv_revert_tag(RevertId::from_u128(1)), lv_revert_tag(RevertId::from_u128(9))];
    match state {
        "before" => {}
        "no snapshot" => fake.lvm().lose_volume("vg0", LvName::snapshot_of(id(2)).as_str()),
        "inactive" => deactivate(&fake, "vg0", &name(1)),
        "done" => {
            make(&fake, &to(1, true), id(1));
            make(&fake, &to(1, true), id(1));
        }
        _ => {
            make(&fake, &to(1, false), id(1));
            match state {
                "prepared" => {}
                "exchanging" => fake.lvm().lose_volume("vg0", &name(1)),
                "unfinished" => tag(&fake, "--addtag", LV_UNZEROED_TAG, &copy()),
                "of another" => {
                    tag(&fake, "--deltag", &tags[0], &copy());
                    tag(&fake, "--addtag", &tags[1], &copy());
                }
                "not ours" => tag(&fake, "--deltag", LV_TAG, &copy()),
                other => unreachable!("{other}"),
            }
        }
    }
    fake
}

/// State of the revert / spec: steps.
const TABLE: &str = "\
before / exported: copy extend unmark
before / apart: copy extend unmark
before / withdrawn: -
before / doomed: remove
before / unmanaged: disown
no snapshot / exported: Missing
no snapshot / apart: Missing
no snapshot / withdrawn: -
no snapshot / doomed: remove
no snapshot / unmanaged: disown
inactive / exported: copy extend unmark
inactive / apart: copy extend unmark
inactive / withdrawn: activate
inactive / doomed: remove
inactive / unmanaged: disown
unfinished / exported: unmark
unfinished / apart: unmark
unfinished / withdrawn: drop copy
unfinished / doomed: drop copy remove
unfinished / unmanaged: drop copy disown
of another / exported: drop copy copy extend unmark
of another / apart: drop copy copy extend unmark
of another / withdrawn: drop copy
of another / doomed: drop copy remove
of another / unmanaged: drop copy disown
not ours / exported: Foreign
not ours / apart: Foreign
not ours / withdrawn: -
not ours / doomed: remove
not ours / unmanaged: disown
prepared / exported: -
prepared / apart: exchange rename
prepared / withdrawn: drop copy
prepared / doomed: drop copy remove
prepared / unmanaged: drop copy disown
exchanging / exported: rename
exchanging / apart: rename
exchanging / withdrawn: rename
exchanging / doomed: drop copy
exchanging / unmanaged: rename disown
done / exported: -
done / apart: -
done / withdrawn: -
done / doomed: remove
done / unmanaged: disown
";

#[test]
fn the_table_of_reverts() {
    let mut table = String::new();
    for state in [
        "before",
        "no snapshot",
        "inactive",
        "unfinished",
        "of another",
        "not ours",
        "prepared",
        "exchanging",
        "done",
    ] {
        for (what, wanted) in [
            ("exported", to(1, false)),
            ("apart", to(1, true)),
            ("withdrawn", Wanted::Volume(thin(12, None))),
            ("doomed", Wanted::Doomed { export_gone: true }),
            ("unmanaged", Wanted::Released { export_gone: true }),
        ] {
            let fake = stands(state);
            let seen = view_one(&fake.lvm(), &groups(), id(1), &wanted.beside()).unwrap();
            let plan = plan(&wanted, &seen, id(1));
            let done = words(&plan);
            writeln!(table, "{state} / {what}: {done}").unwrap();
        }
    }
    assert_eq!(table, TABLE);
}

#[test]
fn a_volume_becomes_what_its_snapshot_holds_and_keeps_its_size() {
    let fake = world();
    let snapshot = LvName::snapshot_of(id(2)).as_str().to_owned();
    assert!(fake.lvm().reads_zeros("vg0", &snapshot) && !fake.lvm().reads_zeros("vg0", &name(1)));
    make(&fake, &to(1, true), id(1));
    make(&fake, &to(1, true), id(1));
    let seen = view(&fake.lvm(), &groups()).unwrap();
    let done = report(&to(1, true), &seen, id(1));
    assert_eq!(
        (done.phase, done.size, done.reverted),
        (Phase::Ready, ByteSize(12 * MIB), Some(RevertId::from_u128(1)))
    );
    assert!(done.device.is_some() && fake.lvm().reads_zeros("vg0", &name(1)));
    // A revert is done once: later writes stay, and the snapshot keeps its content.
    fake.blocks().fill(lvm::device_path("vg0", &name(1)));
    make(&fake, &to(1, true), id(1));
    assert!(!fake.lvm().reads_zeros("vg0", &name(1)) && fake.lvm().reads_zeros("vg0", &snapshot));
    // A second revert to this snapshot is done again.
    make(&fake, &to(2, true), id(1));
    make(&fake, &to(2, true), id(1));
    assert!(fake.lvm().reads_zeros("vg0", &name(1)));
}

#[test]
fn what_is_open_is_not_exchanged() {
    let fake = stands("prepared");
    let path = lvm::device_path("vg0", &name(1));
    fake.set_busy(&path, true);
    let seen = view(&fake.lvm(), &groups()).unwrap();
    let refused = apply(&plan(&to(1, true), &seen, id(1)), &fake.lvm(), &fake.blocks(), &mut ()).unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    assert!(!fake.lvm().reads_zeros("vg0", &name(1)), "it is what it was");
    fake.set_busy(&path, false);
    make(&fake, &to(1, true), id(1));
    assert!(fake.lvm().reads_zeros("vg0", &name(1)));
}

#[test]
fn a_volume_that_cannot_be_reverted_is_served_as_it_is() {
    let fake = stands("no snapshot");
    let seen = view(&fake.lvm(), &groups()).unwrap();
    let said = report(&to(1, true), &seen, id(1));
    assert_eq!((said.phase, said.reverted), (Phase::Ready, None));
    assert!(said.problems[0].text.contains("is to be reverted to it"), "{said:?}");
    let adopted = Wanted::Adopted(thin(12, Some(revert(1))), LvName::existing(&name(1)).unwrap());
    let blocked = plan(&adopted, &view(&world().lvm(), &groups()).unwrap(), id(1)).blocked;
    assert_eq!(blocked.iter().map(|blocked| blocked.kind).collect::<Vec<_>>(), [BlockedKind::Birth]);
}

/// Checks around every step that the volume's content is there, under one of its two names.
struct Watch<'a> {
    machine: &'a Machine,
    stop_at: Option<usize>,
    steps: usize,
    apart: bool,
    doomed: bool,
}

impl Watch<'_> {
    fn check(&self) {
        let fake = &self.machine.fake;
        let seen = view(&fake.lvm(), &groups()).unwrap();
        let group = "vg0".parse().unwrap();
        let (there, copy_there) = (seen.lv(&group, id(1)), seen.back(&group, id(1)));
        let finished = copy_there.is_some_and(|copy| !copy.is_unzeroed() && copy.size == ByteSize(12 * MIB));
        self.machine.rule(self.doomed || there.is_some() || finished, "neither content is there".to_owned());
        if let Some(there) = there {
            let zeros = fake.lvm().reads_zeros("vg0", &name(1));
            self.machine
                .rule(there.reverted().is_some() == zeros, "its tag says what it does not hold".to_owned());
            self.machine.rule(there.size == ByteSize(12 * MIB), "it has another size".to_owned());
        }
        let snapshot = LvName::snapshot_of(id(2));
        self.machine
            .rule(fake.lvm().reads_zeros("vg0", snapshot.as_str()), "the snapshot has changed".to_owned());
    }
}

impl Observer for Watch<'_> {
    fn before(&mut self, _: usize, step: &Step<VolumeOp>) -> ControlFlow<()> {
        self.check();
        let exchange = matches!(step.op, VolumeOp::RemoveReverted { .. });
        self.machine.rule(!exchange || self.apart, "exchanged below its export".to_owned());
        let removes = matches!(step.op, VolumeOp::Remove { .. });
        self.machine.rule(!removes || self.doomed, "removed, and not doomed".to_owned());
        if self.stop_at == Some(self.steps) {
            return ControlFlow::Break(());
        }
        self.steps += 1;
        ControlFlow::Continue(())
    }

    fn after(&mut self, _: usize, _: &Step<VolumeOp>) {
        self.check();
    }
}

fn pass(machine: &Machine, wanted: &Wanted, stop_at: Option<usize>) -> Option<Error> {
    let apart = matches!(wanted, Wanted::Reverted { export_gone: true, .. });
    let doomed = matches!(wanted, Wanted::Doomed { .. });
    let mut watch = Watch { machine, stop_at, steps: 0, apart, doomed };
    let seen = view_one(machine, &groups(), id(1), &wanted.beside()).unwrap();
    let error = apply(&plan(wanted, &seen, id(1)), machine, machine, &mut watch).err();
    watch.check();
    error
}

/// Specs that follow each other; one without a revert leaves the volume as it is.
fn any_specs() -> impl Strategy<Value = Vec<Wanted>> {
    let spec = prop_oneof![
        4 => (1_u128..4, any::<bool>()).prop_map(|(n, gone)| to(n, gone)),
        1 => Just(Wanted::Volume(thin(12, None))),
    ];
    prop::collection::vec(spec, 1..5)
}

/// Asserts that the last spec is reached, that the content is what the tag says, and that nothing
/// is left beside the volume.
fn check_end(machine: &Machine, last: &Wanted) {
    for _ in 0..4 {
        let error = pass(machine, last, None);
        assert!(error.is_none(), "{error:?}");
    }
    let changes = machine.changes.load(Ordering::Relaxed);
    pass(machine, last, None);
    assert_eq!(machine.changes.load(Ordering::Relaxed), changes, "quiet when true");
    let seen = view(&machine.fake.lvm(), &groups()).unwrap();
    let end = report(last, &seen, id(1));
    assert_eq!((end.phase, end.problems), (Phase::Ready, Vec::new()));
    let there = |lv: &str| lvs(&machine.fake).iter().any(|row| row["lv_name"] == lv);
    match last {
        Wanted::Reverted { spec, export_gone: true } => {
            assert_eq!(end.reverted, spec.revert.map(|revert| revert.id));
            assert!(!there(&copy()));
        }
        Wanted::Volume(_) => assert!(!there(&copy())),
        _ => {}
    }
    assert!(there(&name(1)) && there(LvName::snapshot_of(id(2)).as_str()));
    assert_eq!(*machine.broken_rules.lock().unwrap(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn a_revert_goes_on_from_any_prefix(
        specs in any_specs(),
        stops in prop::collection::vec((0_usize..6, any::<bool>()), 4),
    ) {
        let machine = Machine::new(&world(), groups());
        for (wanted, (stop, reboot)) in specs.iter().zip(stops) {
            pass(&machine, wanted, Some(stop));
            if reboot {
                machine.fake.reboot();
            }
        }
        check_end(&machine, specs.last().unwrap());
    }

    #[test]
    fn a_revert_goes_on_past_any_failure(specs in any_specs(), at in 0_u32..8, lost in any::<bool>()) {
        let machine = Machine::new(&world(), groups());
        machine.fail(at, if lost { Fault::After } else { Fault::Before });
        for wanted in &specs {
            for _ in 0..2 {
                if let Some(error) = pass(&machine, wanted, None) {
                    prop_assert!(error.cure() != Cure::Bug);
                }
            }
        }
        *machine.fault.lock().unwrap() = None;
        check_end(&machine, specs.last().unwrap());
    }

    /// Deletes or unmanages a volume in the middle of a revert. A deletion leaves nothing; an
    /// unmanaged LV is whole, and not ours.
    #[test]
    fn what_is_reverted_can_go(n in 0_usize..6, apart in any::<bool>(), release in any::<bool>()) {
        let machine = Machine::new(&world(), groups());
        pass(&machine, &to(1, apart), Some(n));
        pass(&machine, &to(1, apart), Some(n));
        let before = machine.fake.lvm().reads_zeros("vg0", &name(1)) || !lvs(&machine.fake).iter().any(|row| row["lv_name"] == name(1));
        let gone = if release { Wanted::Released { export_gone: true } } else { Wanted::Doomed { export_gone: true } };
        for _ in 0..3 {
            prop_assert!(pass(&machine, &gone, None).is_none());
        }
        let rows = lvs(&machine.fake);
        let left = rows.iter().find(|row| row["lv_name"] == name(1));
        prop_assert!(!rows.iter().any(|row| row["lv_name"] == copy()));
        prop_assert_eq!(left.is_some(), release);
        if let Some(left) = left {
            prop_assert!(!left["lv_tags"].split(',').any(|tag| tag == LV_TAG));
            prop_assert_eq!(machine.fake.lvm().reads_zeros("vg0", &name(1)), before);
        }
        prop_assert_eq!(&*machine.broken_rules.lock().unwrap(), &Vec::<String>::new());
    }
}
