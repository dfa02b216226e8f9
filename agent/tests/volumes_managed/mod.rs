//! Foreign LVs that become volumes, and volumes that are unmanaged: the steps, and the laws. The
//! data stays, only the requested LV is touched, and any prefix and any failure ends in the same
//! state.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use mooring_agent::config::{Group, Wipe};
use mooring_agent::lvm::{
    self, Error, Observer, SeenLv, VolumeOp, Wanted, apply, candidates, plan, report, view, view_one,
};
use mooring_host::BlockDevices;
use mooring_host::fake::FakeMachine;
use mooring_model::{
    ByteSize, Cure, ExistingLv, LV_TAG, LV_UNZEROED_TAG, LvName, Phase, Provisioning, Step, VolumeSpec,
};
use proptest::prelude::*;

use super::{MIB, Row, deactivate, id, lvs, name, words};
use crate::volumes_machine::{Fault, Machine, run};

fn groups() -> Vec<Group> {
    let mut group = super::group("vg0", 0, Wipe::Zero);
    group.thin_pool = Some(ByteSize(256 * MIB));
    vec![group, super::group("vg1", 0, Wipe::Zero)]
}

/// States of the foreign LV.
const STATES: [&str; 14] = [
    "plain",
    "inactive",
    "thin",
    "thin elsewhere",
    "thin unzeroed",
    "in use",
    "raid1",
    "tagged",
    "to be zeroed",
    "read-only",
    "skipped",
    "larger",
    "renamed",
    "absent",
];

/// vg0 with somebody's `data` (8 MiB, in this state), somebody's `other`, and our volume 2 with
/// data.
fn world(state: &str) -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_vg("vg0", 1024 * MIB);
    fake.add_vg("vg1", 1024 * MIB);
    let lvm = fake.lvm();
    lvm.add_volume("vg0", "other", 8 * MIB, &[]);
    lvm.add_volume("vg0", &name(2), 8 * MIB, &[LV_TAG]);
    run(
        &fake,
        "lvcreate --yes --type thin-pool --zero y --size 256m --name mooring-pool --addtag mooring vg0",
    );
    run(&fake, "lvcreate --yes --type thin-pool --zero y --size 16m --name theirs vg0");
    let path = Path::new("/dev/vg0/data");
    let linear = |mib: u64, tags: &[&str]| assert!(lvm.add_volume("vg0", "data", mib * MIB, tags));
    let thin = |pool: &str| {
        run(&fake, &format!("lvcreate --yes --type thin --virtualsize 8m --thinpool {pool} --name data vg0"));
        fake.blocks().fill(path);
    };
    match state {
        "plain" => linear(8, &[]),
        "inactive" => {
            linear(8, &[]);
            deactivate(&fake, "vg0", "data");
        }
        "thin" => thin("mooring-pool"),
        "thin elsewhere" => thin("theirs"),
        "thin unzeroed" => {
            thin("mooring-pool");
            run(&fake, "lvchange --zero n vg0/mooring-pool");
        }
        "in use" => {
            linear(8, &[]);
            fake.set_busy(path, true);
        }
        "raid1" => {
            linear(8, &[]);
            lvm.set_type("vg0", "data", "raid1", 'r');
        }
        "tagged" => linear(8, &[LV_TAG]),
        "to be zeroed" => linear(8, &[LV_UNZEROED_TAG]),
        "read-only" => {
            linear(8, &[]);
            run(&fake, "lvchange --permission r vg0/data");
        }
        "skipped" => {
            thin("mooring-pool");
            run(
                &fake,
                "lvcreate --yes --snapshot --setactivationskip y --permission rw --name copy vg0/data",
            );
            run(&fake, "lvremove --yes --force vg0/data");
            run(&fake, "lvrename --yes vg0/copy vg0/data");
        }
        "larger" => linear(12, &[]),
        // The state that a crash between the two steps leaves.
        "renamed" => {
            linear(8, &[]);
            run(&fake, &format!("lvrename --yes vg0/data vg0/{}", name(1)));
        }
        "absent" => {}
        other => unreachable!("{other}"),
    }
    fake
}

fn uuid_of(fake: &FakeMachine, lv: &str) -> String {
    lvs(fake)
        .into_iter()
        .find(|row| row["lv_name"] == lv)
        .map_or_else(|| "none".to_owned(), |row| row["lv_uuid"].clone())
}

/// LVM's identity of `data`, whatever its present name is.
fn data(fake: &FakeMachine) -> String {
    let renamed = uuid_of(fake, &name(1));
    if renamed == "none" { uuid_of(fake, "data") } else { renamed }
}

fn taking(uuid: &str, provisioning: Provisioning) -> Wanted {
    let takes = ExistingLv { name: LvName::existing("data").unwrap(), uuid: uuid.to_owned() };
    let spec = VolumeSpec::new(id(1), "vg0".parse().unwrap(), ByteSize(8 * MIB), provisioning);
    Wanted::Volume(VolumeSpec { takes: Some(takes), ..spec })
}

/// State of `data` / spec: steps.
const TABLE: &str = "\
plain / thick: rename own
plain / thin: Birth
plain / another: Foreign
inactive / thick: rename own activate
inactive / thin: Birth
inactive / another: Foreign
thin / thick: Birth
thin / thin: rename own
thin / another: Foreign
thin elsewhere / thick: Birth
thin elsewhere / thin: Birth
thin elsewhere / another: Foreign
thin unzeroed / thick: Missing
thin unzeroed / thin: Missing
thin unzeroed / another: Foreign
in use / thick: Held
in use / thin: Held
in use / another: Foreign
raid1 / thick: Birth
raid1 / thin: Birth
raid1 / another: Foreign
tagged / thick: Foreign
tagged / thin: Foreign
tagged / another: Foreign
to be zeroed / thick: Foreign
to be zeroed / thin: Foreign
to be zeroed / another: Foreign
read-only / thick: Birth
read-only / thin: Birth
read-only / another: Foreign
skipped / thick: Birth
skipped / thin: Birth
skipped / another: Foreign
larger / thick: Birth
larger / thin: Birth
larger / another: Foreign
renamed / thick: own
renamed / thin: Birth
renamed / another: Foreign
absent / thick: Missing
absent / thin: Missing
absent / another: Missing
";

fn done(wanted: &Wanted, fake: &FakeMachine, n: u128) -> String {
    words(&plan(wanted, &view(&fake.lvm(), &groups()).unwrap(), id(n)))
}

#[test]
fn the_table_of_lvs_to_be_taken() {
    let mut table = String::new();
    for state in STATES {
        let fake = world(state);
        for (what, wanted) in [
            ("thick", taking(&data(&fake), Provisioning::Thick)),
            ("thin", taking(&data(&fake), Provisioning::Thin)),
            ("another", taking("another-uuid", Provisioning::Thick)),
        ] {
            writeln!(table, "{state} / {what}: {}", done(&wanted, &fake, 1)).unwrap();
            // A look at this volume alone shows the same.
            let one = view_one(&fake.lvm(), &groups(), id(1), &wanted.beside()).unwrap();
            let whole = view(&fake.lvm(), &groups()).unwrap();
            assert_eq!(plan(&wanted, &one, id(1)), plan(&wanted, &whole, id(1)), "{state}");
            assert_eq!(
                plan(&wanted, &whole.of(id(1), &wanted.beside()), id(1)),
                plan(&wanted, &whole, id(1))
            );
        }
    }
    assert_eq!(table, TABLE);
}

/// The list agrees with the plan, and each refusal states its reason.
#[test]
fn the_list_says_of_each_lv_whether_and_why_not() {
    let said: Vec<_> = STATES
        .into_iter()
        .filter_map(|state| {
            let fake = world(state);
            let seen = view(&fake.lvm(), &groups()).unwrap();
            let found = candidates(&seen).into_iter().find(|lv| lv.uuid == data(&fake))?;
            let provisioning = if found.thin { Provisioning::Thin } else { Provisioning::Thick };
            let plan = plan(&taking(&found.uuid, provisioning), &seen, id(1));
            if state != "larger" {
                assert_eq!(plan.blocked.is_empty(), found.unsafe_because.is_none(), "{state}: {plan:?}");
            }
            Some((state, found.unsafe_because.unwrap_or_default()))
        })
        .collect();
    let part = |state: &str| said.iter().find(|(of, _)| *of == state).unwrap().1.clone();
    for free in ["plain", "inactive", "thin", "larger", "renamed"] {
        assert_eq!(part(free), "", "{free}");
    }
    for (state, text) in [
        ("thin elsewhere", "it lies in the thin pool theirs, and Mooring serves vg0/mooring-pool only"),
        (
            "thin unzeroed",
            "its thin pool vg0/mooring-pool is not well: it does not zero what it gives to volumes: run lvchange --zero y \
             vg0/mooring-pool",
        ),
        (
            "in use",
            "it is in use on this host (mounted, exported, swap, or below another device): see lsblk /dev/vg0/data",
        ),
        ("raid1", "it is of the type raid1, and only linear and thin LVs become volumes"),
        ("tagged", "it carries the tag mooring, which is Mooring's: lvchange --deltag mooring vg0/data"),
        ("to be zeroed", "it carries the tag mooring-unzeroed"),
        ("read-only", "it is read-only: lvchange --permission rw vg0/data"),
        ("skipped", "it is skipped by activation"),
    ] {
        assert!(part(state).starts_with(text), "{state}: {}", part(state));
    }
    let seen = view(&world("plain").lvm(), &groups()).unwrap();
    let all: Vec<_> = candidates(&seen)
        .into_iter()
        .map(|lv| (lv.name, lv.volume, lv.unsafe_because.unwrap_or_default()))
        .collect();
    let pool = "it is of the type thin-pool, and only linear and thin LVs become volumes".to_owned();
    assert_eq!(
        all,
        [
            ("data".to_owned(), None, String::new()),
            (name(2), Some(id(2)), "it is a volume already".to_owned()),
            ("other".to_owned(), None, String::new()),
            ("theirs".to_owned(), None, pool),
        ]
    );
}

/// State of volume 2 / end of its export: steps of the unmanage.
#[test]
fn the_table_of_what_is_unmanaged() {
    let released = |export_gone| Wanted::Released { export_gone };
    let fake = world("absent");
    assert_eq!(done(&released(false), &fake, 2), "Missing");
    assert_eq!(done(&released(true), &fake, 2), "disown");
    fake.lvm().add_volume("vg0", LvName::growth_of(id(2)).as_str(), 4 * MIB, &[LV_TAG]);
    assert_eq!(done(&released(true), &fake, 2), "drop disown");
    run(&fake, &format!("lvchange --addtag {LV_UNZEROED_TAG} vg0/{}", name(2)));
    assert_eq!(done(&released(true), &fake, 2), "Birth", "half-wiped, or never zeroed");
    run(&fake, &format!("lvchange --deltag {LV_TAG} vg0/{}", name(2)));
    assert_eq!(done(&released(true), &fake, 2), "drop", "not ours");
    fake.lvm().lose_volume("vg0", &name(2));
    fake.lvm().lose_volume("vg0", LvName::growth_of(id(2)).as_str());
    assert_eq!(done(&released(true), &fake, 2), "-");
    fake.lvm().lose_group("vg1");
    assert_eq!(done(&released(true), &fake, 2), "Missing", "it may be there");
    let fake = world("absent");
    let snapshot = LvName::snapshot_of(id(5));
    fake.lvm().add_volume("vg0", snapshot.as_str(), 4 * MIB, &[LV_TAG]);
    assert_eq!(done(&released(true), &fake, 5), "disown", "a snapshot");
    run(&fake, &format!("lvchange --addtag {LV_UNZEROED_TAG} vg0/{snapshot}"));
    assert_eq!(done(&released(true), &fake, 5), "Birth", "not finished");
}

/// Refuses a name that another LV has taken between the look and the step.
#[test]
fn an_lv_that_changes_places_is_not_taken() {
    let fake = world("plain");
    let wanted = taking(&data(&fake), Provisioning::Thick);
    let plan = plan(&wanted, &view(&fake.lvm(), &groups()).unwrap(), id(1));
    run(&fake, "lvrename --yes vg0/data vg0/away");
    run(&fake, "lvrename --yes vg0/other vg0/data");
    let error = apply(&plan, &fake.lvm(), &fake.blocks(), &mut ()).unwrap_err();
    assert!(matches!(&error, Error::Changed { .. }) && error.cure() == Cure::Retry, "{error}");
    assert!(lvs(&fake).iter().all(|row| row["lv_name"] != name(1)));
}

/// Volume 1 takes `data`; volume 2 is unmanaged, doomed, or left.
#[derive(Debug, Clone)]
struct Case {
    state: &'static str,
    first: Wanted,
    second: Wanted,
}

fn any_case() -> impl Strategy<Value = Case> {
    let provisioning = prop_oneof![3 => Just(Provisioning::Thick), 1 => Just(Provisioning::Thin)];
    let second = prop_oneof![
        3 => Just(Wanted::Released { export_gone: true }),
        1 => Just(Wanted::Released { export_gone: false }),
        1 => Just(Wanted::Nothing),
        1 => Just(Wanted::Doomed { export_gone: true }),
    ];
    let first = prop_oneof![4 => Just("take"), 1 => Just("another"), 1 => Just("release"), 1 => Just("doom")];
    (prop::sample::select(&STATES[..]), provisioning, first, second).prop_map(
        |(state, provisioning, first, second)| {
            let first = match first {
                "take" => taking(&data(&world(state)), provisioning),
                "another" => taking("another-uuid", provisioning),
                "release" => Wanted::Released { export_gone: true },
                _ => Wanted::Doomed { export_gone: true },
            };
            Case { state, first, second }
        },
    )
}

impl Case {
    fn specs(&self) -> [(u128, &Wanted); 2] {
        [(1, &self.first), (2, &self.second)]
    }
}

/// Stops at a step. Checks after each other step that no LV of ours is unusable.
struct Watch<'a> {
    machine: &'a Machine,
    stop_at: Option<usize>,
    steps: usize,
}

impl Observer for Watch<'_> {
    fn before(&mut self, _: usize, _: &Step<VolumeOp>) -> ControlFlow<()> {
        if self.stop_at == Some(self.steps) {
            return ControlFlow::Break(());
        }
        self.steps += 1;
        ControlFlow::Continue(())
    }

    fn after(&mut self, _: usize, step: &Step<VolumeOp>) {
        let seen = view(&self.machine.fake.lvm(), &groups()).unwrap();
        let half = seen.ours().any(SeenLv::is_unzeroed)
            && !matches!(step.op, VolumeOp::MarkUnzeroed { .. } | VolumeOp::Zero { .. });
        self.machine.rule(!half, format!("{} makes something unusable", step.op));
    }
}

fn pass(machine: &Machine, case: &Case, stop_at: Option<usize>) -> Vec<Error> {
    let mut watch = Watch { machine, stop_at, steps: 0 };
    let mut errors = Vec::new();
    for (n, wanted) in case.specs() {
        let seen = view_one(machine, &groups(), id(n), &wanted.beside()).unwrap();
        errors.extend(apply(&plan(wanted, &seen, id(n)), machine, machine, &mut watch).err());
    }
    errors
}

fn settle(machine: &Machine, case: &Case) {
    for _ in 0..4 {
        let errors = pass(machine, case, None);
        assert!(errors.is_empty(), "{errors:?}");
    }
}

fn by_uuid(fake: &FakeMachine) -> BTreeMap<String, Row> {
    lvs(fake).into_iter().map(|row| (row["lv_uuid"].clone(), row)).collect()
}

/// Asserts that the end is the spec, or a reason why not; that only doomed data is lost; and that
/// foreign LVs are unchanged.
fn check_end(machine: &Machine, case: &Case, before: &BTreeMap<String, Row>) {
    let fake = &machine.fake;
    let (seen, after) = (view(&fake.lvm(), &groups()).unwrap(), by_uuid(fake));
    for (n, wanted) in case.specs() {
        let plan = plan(wanted, &seen, id(n));
        assert!(plan.steps.is_empty(), "{wanted:?} is not quiet: {plan:?}");
        let report = report(wanted, &seen, id(n));
        match wanted {
            Wanted::Volume(spec) if plan.blocked.is_empty() => {
                assert_eq!((report.phase, report.size), (Phase::Ready, spec.size));
                assert_eq!(seen.lv(&spec.group, id(n)).unwrap().uuid, spec.takes.as_ref().unwrap().uuid);
            }
            Wanted::Volume(_) | Wanted::Adopted(..) | Wanted::Reverted { .. } | Wanted::Made { .. } => {
                assert_eq!(report.phase, Phase::Failed);
            }
            Wanted::Doomed { export_gone: true } | Wanted::Released { export_gone: true } => {
                assert_eq!(report.phase, Phase::Gone);
            }
            Wanted::Doomed { .. } | Wanted::Released { .. } => assert_eq!(report.phase, Phase::Deleting),
            Wanted::Nothing => assert_eq!(report.phase, Phase::Orphan),
        }
    }
    for (uuid, row) in before {
        let lv = &row["lv_name"];
        let second = *lv == name(2);
        if second && case.second == (Wanted::Doomed { export_gone: true }) {
            assert!(!after.contains_key(uuid), "{lv} was doomed");
            continue;
        }
        assert!(after.contains_key(uuid), "{lv} is lost");
        let now = &after[uuid];
        assert_eq!(row["lv_size"], now["lv_size"]);
        let pool = ["mooring-pool", "theirs"].contains(&lv.as_str());
        assert!(pool || !fake.lvm().reads_zeros("vg0", &now["lv_name"]), "{lv} has lost its data");
        match (lv.as_str(), &case.second) {
            (_, Wanted::Released { export_gone: true }) if second => {
                assert_eq!((&now["lv_name"], now["lv_tags"].as_str()), (lv, ""), "unmanaged, under its name");
            }
            ("data", _) if row != now => {
                // It may have been given up under its new name. The tag goes only together with
                // that name.
                let tags = ["", LV_TAG];
                assert!(now["lv_name"] == name(1) && tags.contains(&now["lv_tags"].as_str()), "{now:?}");
            }
            (lv, _) if lv != name(1) => assert_eq!(row, now),
            _ => {}
        }
    }
    assert_eq!(*machine.broken_rules.lock().unwrap(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn managed_converges_and_is_quiet(case in any_case()) {
        let fake = world(case.state);
        let (machine, before) = (Machine::new(&fake, groups()), by_uuid(&fake));
        settle(&machine, &case);
        check_end(&machine, &case, &before);
        let changes = machine.changes.load(Ordering::Relaxed);
        settle(&machine, &case);
        prop_assert_eq!(machine.changes.load(Ordering::Relaxed), changes);
    }

    #[test]
    fn managed_goes_on_from_any_prefix(case in any_case(), stop in 0_usize..6) {
        let fake = world(case.state);
        let (machine, before) = (Machine::new(&fake, groups()), by_uuid(&fake));
        pass(&machine, &case, Some(stop));
        settle(&machine, &case);
        check_end(&machine, &case, &before);
    }

    #[test]
    fn managed_goes_on_past_any_failure(case in any_case(), at in 0_u32..6, lost in any::<bool>()) {
        let fake = world(case.state);
        let (machine, before) = (Machine::new(&fake, groups()), by_uuid(&fake));
        machine.fail(at, if lost { Fault::After } else { Fault::Before });
        for error in pass(&machine, &case, None) {
            prop_assert!(error.cure() != Cure::Bug);
        }
        *machine.fault.lock().unwrap() = None;
        settle(&machine, &case);
        check_end(&machine, &case, &before);
    }

    /// A takeover that is given up half-way (an unmanage of a volume that could not be taken over)
    /// leaves nothing of ours, and loses no data.
    #[test]
    fn managed_may_be_given_up_at_any_step(stop in 0_usize..4, state in prop::sample::select(&STATES[..])) {
        let fake = world(state);
        let before = by_uuid(&fake);
        let machine = Machine::new(&fake, groups());
        let take = Case { state, first: taking(&data(&fake), Provisioning::Thick), second: Wanted::Nothing };
        pass(&machine, &take, Some(stop));
        let leave = Case { first: Wanted::Released { export_gone: true }, ..take };
        settle(&machine, &leave);
        check_end(&machine, &leave, &before);
        let seen = view(&fake.lvm(), &groups()).unwrap();
        prop_assert_eq!(report(&Wanted::Nothing, &seen, id(1)).phase, Phase::Gone, "no orphan");
        // A later deletion has nothing to destroy.
        let doomed = plan(&Wanted::Doomed { export_gone: true }, &seen, id(1));
        prop_assert!(doomed.is_quiet());
        // A returned LV can be taken again, under its present name.
        let again = candidates(&seen).into_iter().find(|lv| lv.uuid == data(&fake));
        let free = ["plain", "inactive", "thin", "larger", "renamed"].contains(&state);
        prop_assert_eq!(again.is_some_and(|lv| lv.unsafe_because.is_none()), free);
    }
}

/// The control of "no data is lost": doomed data is lost.
#[test]
fn what_is_doomed_and_not_unmanaged_is_removed() {
    let fake = world("plain");
    let machine = Machine::new(&fake, groups());
    let case = Case {
        state: "plain",
        first: taking(&data(&fake), Provisioning::Thick),
        second: Wanted::Doomed { export_gone: true },
    };
    settle(&machine, &case);
    assert_eq!(fake.blocks().size(&lvm::device_path("vg0", &name(2))).unwrap(), None);
    assert_eq!(fake.blocks().size(&lvm::device_path("vg0", &name(1))).unwrap(), Some(8 * MIB));
}
