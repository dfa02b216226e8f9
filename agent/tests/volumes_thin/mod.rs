//! Thin volumes, snapshots and clones: the steps, and the laws: converge from any prefix and past
//! any failure, nothing lost, nothing usable before it is finished, no snapshot with a device.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use mooring_agent::config::{Group, Wipe};
use mooring_agent::lvm::{self, Error, Observer, VolumeOp, Wanted, apply, plan, report, view, view_one};
use mooring_host::BlockDevices;
use mooring_host::fake::FakeMachine;
use mooring_model::{
    BlockedKind, ByteSize, Cure, LV_TAG, LV_UNZEROED_TAG, LvName, Phase, Provisioning, Source, Step,
    VolumeId, VolumeKind, VolumeSpec, lv_volume_tag,
};
use proptest::prelude::*;

use super::{MIB, deactivate, id, lvs, name, word, words};
use crate::volumes_machine::{Fault, Machine, run};

/// Groups: vg0 gets a thin pool with its first thin volume; vg1 has none. A deletion zeroes thick
/// volumes.
fn groups() -> Vec<Group> {
    let mut group = super::group("vg0", 16 * MIB, Wipe::Zero);
    group.thin_pool = Some(ByteSize(256 * MIB));
    vec![group, super::group("vg1", 0, Wipe::Zero)]
}

fn machine() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_vg("vg0", 1024 * MIB);
    fake.add_vg("vg1", 1024 * MIB);
    fake
}

fn thin(n: u128, mib: u64, source: Option<Source>) -> VolumeSpec {
    let new = VolumeSpec::new(id(n), "vg0".parse().unwrap(), ByteSize(mib * MIB), Provisioning::Thin);
    VolumeSpec { source, ..new }
}

fn snapshot_of(n: u128, volume: u128, mib: u64) -> VolumeSpec {
    VolumeSpec { kind: VolumeKind::Snapshot, ..thin(n, mib, Some(Source::Volume(id(volume)))) }
}

/// Reaches a volume's spec, and fills all of its blocks with data.
fn make(fake: &FakeMachine, spec: VolumeSpec) {
    let of = spec.id;
    let wanted = Wanted::Volume(spec);
    let seen = view(&fake.lvm(), &groups()).unwrap();
    apply(&plan(&wanted, &seen, of), &fake.lvm(), &fake.blocks(), &mut ()).unwrap();
    fake.blocks().fill(lvm::device_path("vg0", LvName::of(of).as_str()));
}

/// A thick volume 9, a thin volume 1 of 8 MiB, a snapshot 2 of it, and volume 3 as the case says.
fn world(third: &str) -> FakeMachine {
    let fake = machine();
    fake.lvm().add_volume("vg0", &name(9), 8 * MIB, &[LV_TAG]);
    make(&fake, thin(1, 8, None));
    make(&fake, snapshot_of(2, 1, 8));
    let from = Some(Source::Snapshot(id(2)));
    let tag = |verb: &str, tag: &str| run(&fake, &format!("lvchange {verb} {tag} vg0/{}", name(3)));
    match third {
        "absent" => {}
        "there" => make(&fake, thin(3, 8, from)),
        "unfinished" => {
            make(&fake, thin(3, 8, from));
            tag("--addtag", LV_UNZEROED_TAG);
        }
        "inactive" => {
            make(&fake, thin(3, 8, from));
            deactivate(&fake, "vg0", &name(3));
        }
        "not ours" => {
            make(&fake, thin(3, 8, from));
            tag("--deltag", LV_TAG);
        }
        "thick" => assert!(fake.lvm().add_volume("vg0", &name(3), 8 * MIB, &[LV_TAG])),
        other => unreachable!("{other}"),
    }
    fake
}

/// State of volume 3 / spec: steps.
const TABLE: &str = "\
absent / empty: thin
absent / of the volume: clone unmark
absent / of the snapshot, larger: clone extend unmark
absent / of the snapshot, smaller: Birth
absent / of nothing: Missing
absent / of a thick one: Birth
absent / doomed: -
there / empty: -
there / of the volume: -
there / of the snapshot, larger: extend
there / of the snapshot, smaller: Birth
there / of nothing: -
there / of a thick one: -
there / doomed: remove
unfinished / empty: unmark
unfinished / of the volume: unmark
unfinished / of the snapshot, larger: extend unmark
unfinished / of the snapshot, smaller: Birth
unfinished / of nothing: unmark
unfinished / of a thick one: unmark
unfinished / doomed: remove
inactive / empty: activate
inactive / of the volume: activate
inactive / of the snapshot, larger: activate
inactive / of the snapshot, smaller: activate
inactive / of nothing: activate
inactive / of a thick one: activate
inactive / doomed: remove
not ours / empty: Foreign
not ours / of the volume: Foreign
not ours / of the snapshot, larger: Foreign
not ours / of the snapshot, smaller: Foreign
not ours / of nothing: Foreign
not ours / of a thick one: Foreign
not ours / doomed: -
thick / empty: Birth
thick / of the volume: Birth
thick / of the snapshot, larger: Birth
thick / of the snapshot, smaller: Birth
thick / of nothing: Birth
thick / of a thick one: Birth
thick / doomed: mark zero remove
";

#[test]
fn the_table_of_thin_volumes() {
    let mut table = String::new();
    for third in ["absent", "there", "unfinished", "inactive", "not ours", "thick"] {
        let of = |source, mib| Wanted::Volume(thin(3, mib, Some(source)));
        for (what, wanted) in [
            ("empty", Wanted::Volume(thin(3, 8, None))),
            ("of the volume", of(Source::Volume(id(1)), 8)),
            ("of the snapshot, larger", of(Source::Snapshot(id(2)), 12)),
            ("of the snapshot, smaller", of(Source::Snapshot(id(2)), 4)),
            ("of nothing", of(Source::Snapshot(id(7)), 8)),
            ("of a thick one", of(Source::Volume(id(9)), 8)),
            ("doomed", Wanted::Doomed { export_gone: true }),
        ] {
            let fake = world(third);
            let plan = plan(&wanted, &view(&fake.lvm(), &groups()).unwrap(), id(3));
            let done = words(&plan);
            writeln!(table, "{third} / {what}: {done}").unwrap();
        }
    }
    assert_eq!(table, TABLE);
}

/// Checks each reason why the first thin volume of a group is refused.
#[test]
fn the_pool_is_made_once_and_only_where_it_is_configured() {
    let steps = |fake: &FakeMachine, spec: &VolumeSpec| {
        let seen = view(&fake.lvm(), &groups()).unwrap();
        let plan = plan(&Wanted::Volume(spec.clone()), &seen, spec.id);
        let blocked: Vec<_> =
            plan.blocked.iter().map(|b| (b.kind, format!("{}: {}", b.object, b.why))).collect();
        (plan.steps.iter().map(|step| word(&step.op)).collect::<Vec<_>>(), blocked)
    };
    let fake = machine();
    assert_eq!(steps(&fake, &thin(1, 8, None)), (vec!["pool", "thin"], Vec::new()));
    make(&fake, thin(1, 8, None));
    assert_eq!(steps(&fake, &thin(2, 8, None)), (vec!["thin"], Vec::new()));
    assert!(fake.lvm().log().iter().any(|line| line.contains("--config activation/error_when_full=1")));

    let elsewhere = VolumeSpec { group: "vg1".parse().unwrap(), ..thin(3, 8, None) };
    let (none, blocked) = steps(&fake, &elsewhere);
    assert!(none.is_empty() && blocked[0].0 == BlockedKind::Missing, "{blocked:?}");
    assert!(blocked[0].1.contains("say thin_pool = \"SIZE\" under [[groups]] of vg1"), "{blocked:?}");

    let full = machine();
    full.lvm().add_volume("vg0", "theirs", 800 * MIB, &[]);
    let (none, blocked) = steps(&full, &thin(1, 8, None));
    assert!(none.is_empty() && blocked[0].0 == BlockedKind::Full, "{blocked:?}");

    let taken = machine();
    taken.lvm().add_volume("vg0", "mooring-pool", 8 * MIB, &[]);
    let (none, blocked) = steps(&taken, &thin(1, 8, None));
    assert!(none.is_empty() && blocked[0].0 == BlockedKind::Foreign, "{blocked:?}");
    taken.lvm().lose_volume("vg0", "mooring-pool");
    taken.lvm().add_volume("vg0", "mooring-pool", 8 * MIB, &[LV_TAG]);
    let (none, blocked) = steps(&taken, &thin(1, 8, None));
    assert!(none.is_empty() && blocked[0].1.contains("is no thin pool (linear): rename it"), "{blocked:?}");
}

/// An adopted volume stays in its pool, and takes no more space of it: LVM would take that space
/// without a word.
#[test]
fn an_adopted_volume_of_another_pool_neither_grows_nor_is_copied() {
    let fake = world("absent");
    run(&fake, "lvcreate --yes --type thin-pool --zero y --size 64m --name theirs vg0");
    let tags = format!("--addtag {LV_TAG} --addtag {}", lv_volume_tag(id(3)));
    run(
        &fake,
        &format!("lvcreate --yes --type thin --virtualsize 8m --thinpool theirs --name data {tags} vg0"),
    );
    let adopted = |mib| Wanted::Adopted(thin(3, mib, None), LvName::existing("data").unwrap());
    let planned = |wanted: &Wanted, n: u128| {
        let one = view_one(&fake.lvm(), &groups(), id(n), &wanted.beside()).unwrap();
        let plan = plan(wanted, &one, id(n));
        assert_eq!(plan, lvm::plan(wanted, &view(&fake.lvm(), &groups()).unwrap(), id(n)));
        (words(&plan), plan.blocked.first().map(|blocked| blocked.why.clone()).unwrap_or_default())
    };
    assert_eq!(planned(&adopted(8), 3).0, "-");
    let copies = "have snapshots and clones";
    for (wanted, n, may) in [
        (adopted(12), 3, "grow"),
        (Wanted::Volume(thin(3, 12, None)), 3, "grow"),
        (Wanted::Volume(snapshot_of(4, 3, 8)), 4, copies),
        (Wanted::Volume(thin(4, 8, Some(Source::Volume(id(3))))), 4, copies),
    ] {
        let why = format!(
            "its LV vg0/data lies in the thin pool vg0/theirs, and only volumes in vg0/mooring-pool {may}: copy it to a new \
             volume on a host"
        );
        assert_eq!(planned(&wanted, n), ("Birth".to_owned(), why));
    }
    // The volume is served as it is, also after a boot.
    let seen = view(&fake.lvm(), &groups()).unwrap();
    assert_eq!(report(&adopted(12), &seen, id(3)).phase, Phase::Ready);
    deactivate(&fake, "vg0", "data");
    assert_eq!(planned(&adopted(12), 3).0, "activate");
}

#[test]
fn a_pool_that_fills_is_a_warning_in_time() {
    let fake = world("absent");
    let warning = || {
        let seen = view(&fake.lvm(), &groups()).unwrap();
        let group = &seen.groups()[0];
        group.pool.as_ref().unwrap().advice(&group.name)
    };
    fake.lvm().set_pool_used("vg0", 200 * MIB);
    assert_eq!(warning(), None);
    fake.lvm().set_pool_used("vg0", 208 * MIB);
    let said = warning().unwrap();
    assert!(said.starts_with("81 % of it are taken, 48"), "{said}");
    assert!(said.contains("lvextend --size +SIZE vg0/mooring-pool"), "{said}");
}

/// Fills the pool of 256 MiB up to these levels, in parts of 10,000.
fn fill(fake: &FakeMachine, data: u64, metadata: u32) {
    fake.lvm().set_pool_used("vg0", (256 * MIB * data).div_ceil(10_000));
    fake.lvm().set_pool_metadata("vg0", metadata);
}

#[test]
fn a_pool_that_is_almost_full_takes_nothing_new_until_there_is_room() {
    let fake = world("there");
    let of_snapshot = Some(Source::Snapshot(id(2)));
    let asked = [
        (thin(5, 8, None), "thin"),
        (snapshot_of(6, 1, 8), "snapshot"),
        (thin(7, 8, of_snapshot), "clone"),
        (thin(1, 12, None), "extend"),
    ];
    let open_at = |data: u64, metadata: u32| {
        fill(&fake, data, metadata);
        let seen = view(&fake.lvm(), &groups()).unwrap();
        let open = |(spec, what): &(VolumeSpec, &str)| {
            let plan = plan(&Wanted::Volume(spec.clone()), &seen, spec.id);
            let full = plan.blocked.iter().any(|blocked| blocked.kind == BlockedKind::Full);
            assert_eq!((plan.blocked.len(), plan.steps.is_empty()), (usize::from(full), full), "{what}");
            !full
        };
        let open: Vec<_> = asked.iter().map(open).collect();
        assert!(open.iter().all(|one| *one == open[0]), "all or none: {open:?}");
        open[0]
    };
    assert!(open_at(7_999, 7_999) && open_at(8_000, 8_000) && open_at(9_499, 0) && open_at(0, 8_999));
    for (data, metadata) in [(9_500, 0), (0, 9_000), (10_000, 0), (0, 10_000)] {
        assert!(!open_at(data, metadata), "{data} {metadata}");
        assert!(open_at(0, 0), "there is room again");
    }
    // What frees blocks goes on.
    fill(&fake, 10_000, 10_000);
    let seen = view(&fake.lvm(), &groups()).unwrap();
    assert_eq!(plan(&Wanted::Doomed { export_gone: true }, &seen, id(3)).blocked, []);
}

#[test]
fn a_full_pool_is_a_problem_of_its_volumes() {
    let fake = world("there");
    let problems = |n: u128, provisioning: Provisioning| {
        let spec = VolumeSpec::new(id(n), "vg0".parse().unwrap(), ByteSize(8 * MIB), provisioning);
        let wanted = Wanted::Made { spec, export_gone: false };
        let said = report(&wanted, &view(&fake.lvm(), &groups()).unwrap(), id(n));
        let one = view_one(&fake.lvm(), &groups(), id(n), &wanted.beside()).unwrap();
        assert_eq!(said, report(&wanted, &one, id(n)), "a look at one volume says the same");
        assert_eq!(said.phase, Phase::Ready, "{said:?}");
        said.problems.into_iter().map(|problem| problem.object).collect::<Vec<_>>()
    };
    let says = "thin pool vg0/mooring-pool";
    for (data, metadata, health, full) in [
        (9_999, 9_999, "", false),
        (10_000, 0, "", true),
        (0, 10_000, "", true),
        (9_999, 0, "out_of_data", true),
        (0, 10_000, "metadata_read_only", true),
        (0, 100, "metadata_read_only", true),
        (0, 0, "", false),
    ] {
        fill(&fake, data, metadata);
        fake.lvm().set_pool_health("vg0", health);
        let want = if full { vec![says] } else { Vec::new() };
        assert_eq!(problems(1, Provisioning::Thin), want, "{data} {metadata} {health}");
        assert!(problems(9, Provisioning::Thick).is_empty(), "it is not in the pool");
    }
}

#[test]
fn a_snapshot_keeps_what_its_volume_had() {
    let fake = world("absent");
    assert!(!fake.lvm().reads_zeros("vg0", LvName::snapshot_of(id(2)).as_str()));
    make(&fake, snapshot_of(4, 1, 8));
    fake.blocks().zero(&lvm::device_path("vg0", &name(1)), 0, 8 * MIB).unwrap();
    assert!(fake.lvm().reads_zeros("vg0", &name(1)), "the volume is overwritten");
    assert!(!fake.lvm().reads_zeros("vg0", LvName::snapshot_of(id(4)).as_str()), "its snapshot is not");
}

/// A spec of one of the ids 1 to 4.
fn any_wanted(n: u128) -> impl Strategy<Value = Wanted> {
    let source = prop_oneof![
        Just(None),
        (1..5_u128).prop_map(|of| Some(Source::Volume(id(of)))),
        (1..5_u128).prop_map(|of| Some(Source::Snapshot(id(of)))),
    ];
    let mib = prop_oneof![Just(8_u64), Just(12)];
    let volume = (source, mib).prop_map(move |(source, mib)| {
        let source = source.filter(|source| source.id() != id(n));
        Wanted::Volume(thin(n, mib, source))
    });
    let snapshot = (1..5_u128)
        .prop_filter_map("of itself", move |of| (of != n).then(|| Wanted::Volume(snapshot_of(n, of, 8))));
    prop_oneof![4 => volume, 3 => snapshot, 2 => Just(Wanted::Doomed { export_gone: true })]
}

fn any_specs() -> impl Strategy<Value = Vec<Wanted>> {
    (any_wanted(1), any_wanted(2), any_wanted(3), any_wanted(4)).prop_map(|(a, b, c, d)| vec![a, b, c, d])
}

/// Checks around every step that nothing is usable before it is finished, and that no snapshot has
/// a device.
struct Watch<'a> {
    machine: &'a Machine,
    specs: &'a [Wanted],
    stop_at: Option<usize>,
    steps: usize,
}

impl Watch<'_> {
    fn check(&self) {
        let seen = view(&self.machine.fake.lvm(), &groups()).unwrap();
        for lv in seen.ours() {
            let path = lvm::device_path(&lv.group, lv.name.as_str());
            let device = self.machine.fake.blocks().size(&path).unwrap();
            self.machine.rule(!lv.snapshot || device.is_none(), format!("{} has a device", lv.name));
        }
        for (n, wanted) in (1..).zip(self.specs) {
            let Wanted::Volume(spec) = wanted else { continue };
            let ready = report(wanted, &seen, id(n)).phase == Phase::Ready;
            let lv = seen.lv_of(&spec.group, id(n), spec.kind);
            // Volume 1 existed with 8 MiB: it is served before it grows.
            let small = lv.is_some_and(|lv| lv.size < spec.size) && spec.kind == VolumeKind::Volume && n != 1;
            self.machine.rule(!(ready && small), format!("{n} is ready before it is finished"));
        }
    }
}

impl Observer for Watch<'_> {
    fn before(&mut self, _: usize, _: &Step<VolumeOp>) -> ControlFlow<()> {
        self.check();
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

/// Runs one pass over every id.
fn pass(machine: &Machine, specs: &[Wanted], stop_at: Option<usize>) -> Vec<Error> {
    let mut watch = Watch { machine, specs, stop_at, steps: 0 };
    let mut errors = Vec::new();
    for (n, wanted) in (1..).zip(specs) {
        let seen = view_one(machine, &groups(), id(n), &wanted.beside()).unwrap();
        errors.extend(apply(&plan(wanted, &seen, id(n)), machine, machine, &mut watch).err());
    }
    watch.check();
    errors
}

/// A thin volume 1 with data, its snapshot 2, and a thick volume without a spec.
fn start() -> (FakeMachine, Machine) {
    let fake = world("absent");
    let machine = Machine::new(&fake, groups());
    (fake, machine)
}

fn settle(machine: &Machine, specs: &[Wanted]) {
    for _ in 0..5 {
        let errors = pass(machine, specs, None);
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// Asserts that the end is the spec, or a reason why not; and that everything not doomed keeps its
/// data.
fn check_end(machine: &Machine, specs: &[Wanted]) {
    let fake = &machine.fake;
    let seen = view(&fake.lvm(), &groups()).unwrap();
    for (n, wanted) in (1..).zip(specs) {
        let plan = plan(wanted, &seen, id(n));
        assert!(plan.steps.is_empty(), "{wanted:?} is not quiet: {plan:?}");
        let report = report(wanted, &seen, id(n));
        match wanted {
            Wanted::Volume(spec) if plan.blocked.is_empty() => {
                assert_eq!(report.phase, Phase::Ready);
                assert_eq!(report.device.is_some(), spec.kind == VolumeKind::Volume);
                assert!(report.size >= spec.size || spec.kind == VolumeKind::Snapshot);
            }
            Wanted::Volume(_) => assert!(matches!(report.phase, Phase::Failed | Phase::Ready), "{report:?}"),
            _ => assert_eq!(report.phase, Phase::Gone),
        }
    }
    let has_data = |lv: &str| !fake.lvm().reads_zeros("vg0", lv);
    let rows = lvs(fake);
    let there = |lv: &str| rows.iter().any(|row| row["lv_name"] == lv && row["vg_name"] == "vg0");
    let doomed =
        |n: u128| specs.get(usize::try_from(n).unwrap() - 1).is_some_and(|w| !matches!(w, Wanted::Volume(_)));
    for (lv, n) in [(name(1), 1), (LvName::snapshot_of(id(2)).as_str().to_owned(), 2), (name(9), 9)] {
        assert_eq!(there(&lv), !doomed(n), "{lv}");
        assert!(doomed(n) || has_data(&lv), "{lv} lost its data");
    }
    assert_eq!(*machine.broken_rules.lock().unwrap(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn thin_converges_and_is_quiet(specs in any_specs()) {
        let (_, machine) = start();
        settle(&machine, &specs);
        check_end(&machine, &specs);
        let changes = machine.changes.load(Ordering::Relaxed);
        settle(&machine, &specs);
        prop_assert_eq!(machine.changes.load(Ordering::Relaxed), changes);
    }

    #[test]
    fn thin_goes_on_from_any_prefix(specs in any_specs(), stop in 0_usize..10, reboot in any::<bool>()) {
        let (fake, machine) = start();
        pass(&machine, &specs, Some(stop));
        if reboot {
            fake.reboot();
        }
        settle(&machine, &specs);
        check_end(&machine, &specs);
    }

    #[test]
    fn thin_goes_on_past_any_failure(specs in any_specs(), at in 0_u32..12, lost in any::<bool>()) {
        let (_, machine) = start();
        machine.fail(at, if lost { Fault::After } else { Fault::Before });
        for error in pass(&machine, &specs, None) {
            prop_assert!(error.cure() != Cure::Bug);
        }
        *machine.fault.lock().unwrap() = None;
        settle(&machine, &specs);
        check_end(&machine, &specs);
    }

    /// Wipes nothing, and removes only what is doomed.
    #[test]
    fn thin_removes_only_what_is_doomed(specs in any_specs()) {
        let (fake, _) = start();
        let seen = view(&fake.lvm(), &groups()).unwrap();
        for (n, wanted) in (1..).zip(&specs) {
            for step in &plan(wanted, &seen, id(n)).steps {
                let words = ["remove", "thin", "clone", "snapshot", "extend", "activate", "unmark"];
                prop_assert!(words.contains(&word(&step.op)), "{:?}", step);
                let of = |id: VolumeId| [LvName::of(id), LvName::snapshot_of(id)];
                prop_assert!(of(id(n)).contains(&step.op.lv().name));
                let removes = matches!(step.op, VolumeOp::Remove { .. });
                prop_assert!(!removes || !matches!(wanted, Wanted::Volume(_)));
            }
        }
    }
}
