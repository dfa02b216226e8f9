//! The laws of the volumes domain, on the fake LVM: converge, any prefix, quiet, ours only, no data
//! loss, never usable while not zeroed, wiped as configured, any call may fail.
#![allow(clippy::unwrap_used, reason = "tests")]

mod volumes_growth;
mod volumes_images;
mod volumes_lost_tags;
mod volumes_machine;
mod volumes_made;
mod volumes_managed;
mod volumes_marks;
mod volumes_revert;
mod volumes_thin;
mod volumes_upload;
mod volumes_wipe;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mooring_agent::config::{Group, Wipe};
use mooring_agent::lvm::{
    self, Beside, Error, Observer, SeenLv, VolumeOp, VolumesView, Wanted, apply, plan, report, view, view_one,
};
use mooring_host::fake::FakeMachine;
use mooring_host::{BlockDevices, Command, Commands, Errno};
use mooring_model::{
    BlockedKind, ByteSize, Cure, LV_TAG, LV_UNZEROED_TAG, LV_ZEROED_MARK, LvName, Phase, Plan, Provisioning,
    Step, VolumeId, VolumeSpec, lv_volume_tag,
};
use proptest::prelude::*;

use crate::volumes_machine::{Fault, Machine};

const MIB: u64 = 1 << 20;

fn id(n: u128) -> VolumeId {
    VolumeId::from_u128(n)
}

fn name(n: u128) -> String {
    LvName::of(id(n)).as_str().to_owned()
}

fn groups() -> Vec<Group> {
    groups_with([Wipe::Zero, Wipe::Zero])
}

fn groups_with([zeroth, first]: [Wipe; 2]) -> Vec<Group> {
    vec![group("vg0", 16 * MIB, zeroth), group("vg1", 0, first)]
}

fn group(name: &str, reserve: u64, wipe: Wipe) -> Group {
    let (name, reserve) = (name.parse().unwrap(), ByteSize(reserve));
    Group { name, reserve, wipe, discard: false, thin_pool: None }
}

fn spec(n: u128, group: &str, mib: u64) -> VolumeSpec {
    VolumeSpec::new(id(n), group.parse().unwrap(), ByteSize(mib * MIB), Provisioning::Thick)
}

type Row = BTreeMap<String, String>;

type Ranges = Vec<(u64, u64)>;

/// By device path: LVM's row, the ranges that read as zeros, and the ranges that were discarded.
type Snapshot = BTreeMap<String, (String, Ranges, Ranges)>;

fn lvs(fake: &FakeMachine) -> Vec<Row> {
    let fields = "lv_name,lv_uuid,vg_name,lv_size,lv_tags,lv_active,lv_path,pool_lv";
    let args = ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", fields];
    let args = args.map(str::to_owned).to_vec();
    let out =
        fake.lvm().run(&Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) }).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    serde_json::from_value(json["report"][0]["lv"].clone()).unwrap()
}

/// Returns everything visible of every LV, including its blocks. LVM's identities are left out,
/// because an interrupted run may create its LVs in another order.
fn snapshot(fake: &FakeMachine) -> Snapshot {
    let one = |mut row: Row| {
        let path = row["lv_path"].clone();
        row.remove("lv_uuid");
        let blocks = fake.blocks();
        (path.clone(), (format!("{row:?}"), blocks.zeroed_ranges(&path), blocks.discarded_ranges(&path)))
    };
    lvs(fake).into_iter().map(one).collect()
}

fn deactivate(fake: &FakeMachine, group: &str, lv: &str) {
    let args = ["lvchange", "--activate", "n", &format!("{group}/{lv}")].map(str::to_owned).to_vec();
    let out =
        fake.lvm().run(&Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) }).unwrap();
    assert_eq!(out.status, 0);
}

/// State of the LV that has a volume's name at first.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "notes of a test")]
struct Before {
    group: &'static str,
    mib: u64,
    tagged: bool,
    unzeroed: bool,
    /// `true` if the LV carries a mark that its first 4 MiB are zeroed. The mark is true on an
    /// unzeroed LV, and outdated on one with data.
    marked: bool,
    active: bool,
    /// `true` if the LV has another name, and the tag with the volume's id.
    adopted: bool,
}

/// Returns the name of an adopted LV.
fn site(id: VolumeId) -> String {
    format!("site-{id}")
}

/// State of the LV that has the name of a volume's growth at first.
#[derive(Debug, Clone)]
struct Growth {
    group: &'static str,
    mib: u64,
    tagged: bool,
    zeroed: bool,
    active: bool,
}

#[derive(Debug, Clone)]
struct World {
    volumes: Vec<(Option<Before>, Option<Growth>, Wanted)>,
    /// Wipe settings of vg0 and vg1.
    wipes: [Wipe; 2],
    /// `true` if the disk of vg0 takes discards.
    discards: bool,
}

fn any_before() -> impl Strategy<Value = Option<Before>> {
    let group = prop_oneof![4 => Just("vg0"), 1 => Just("vg1"), 1 => Just("other")];
    let mib = prop_oneof![Just(8_u64), Just(12), Just(200)];
    let adopted = prop::bool::weighted(0.3);
    let flags = (prop::bool::weighted(0.8), any::<bool>(), prop::bool::weighted(0.3), any::<bool>(), adopted);
    let before = (group, mib, flags).prop_map(|(group, mib, (tagged, unzeroed, marked, active, adopted))| {
        Before { group, mib, tagged, unzeroed, marked, active, adopted }
    });
    prop::option::weighted(0.6, before)
}

fn any_growth() -> impl Strategy<Value = Option<Growth>> {
    let group = prop_oneof![4 => Just("vg0"), 1 => Just("vg1"), 1 => Just("other")];
    let mib = prop_oneof![Just(4_u64), Just(8), Just(188)];
    let growth = (group, mib, prop::bool::weighted(0.8), any::<bool>(), any::<bool>())
        .prop_map(|(group, mib, tagged, zeroed, active)| Growth { group, mib, tagged, zeroed, active });
    prop::option::weighted(0.4, growth)
}

fn any_wanted(n: u128) -> impl Strategy<Value = Wanted> {
    let group = prop_oneof![6 => Just("vg0"), 2 => Just("vg1"), 1 => Just("other"), 1 => Just("nowhere")];
    let mib = prop_oneof![Just(8_u64), Just(9), Just(12), Just(200), Just(5000)];
    let adopted = (prop_oneof![4 => Just("vg0"), 1 => Just("vg1")], prop_oneof![Just(8_u64), Just(12)]);
    prop_oneof![
        4 => (group, mib).prop_map(move |(group, mib)| Wanted::Volume(spec(n, group, mib))),
        2 => adopted.prop_map(move |(group, mib)| {
            Wanted::Adopted(spec(n, group, mib), LvName::existing(&site(id(n))).unwrap())
        }),
        2 => any::<bool>().prop_map(|export_gone| Wanted::Doomed { export_gone }),
        1 => any::<bool>().prop_map(|export_gone| Wanted::Released { export_gone }),
        1 => Just(Wanted::Nothing),
    ]
}

fn any_world() -> impl Strategy<Value = World> {
    let one = |n| (any_before(), any_growth(), any_wanted(n));
    let wipe = || prop_oneof![Just(Wipe::None), Just(Wipe::Zero), Just(Wipe::Discard)];
    let wipes = (wipe(), wipe()).prop_map(<[Wipe; 2]>::from);
    (one(1), one(2), one(3), wipes, any::<bool>()).prop_map(|(a, b, c, wipes, discards)| World {
        volumes: vec![a, b, c],
        wipes,
        discards,
    })
}

impl Growth {
    fn build(&self, fake: &FakeMachine, n: u128) {
        let name = LvName::growth_of(id(n));
        let tags: &[&str] = match (self.tagged, self.zeroed) {
            (true, true) => &[LV_TAG],
            (true, false) => &[LV_TAG, LV_UNZEROED_TAG],
            (false, _) => &[],
        };
        assert!(fake.lvm().add_volume(self.group, name.as_str(), self.mib * MIB, tags));
        if self.zeroed {
            let path = lvm::device_path(self.group, name.as_str());
            fake.blocks().zero(&path, 0, self.mib * MIB).unwrap();
        }
        if !self.active {
            deactivate(fake, self.group, name.as_str());
        }
    }
}

impl World {
    fn build(&self) -> FakeMachine {
        let fake = FakeMachine::new();
        for group in ["vg0", "vg1", "other"] {
            // The largest world fits: three volumes of 200 MiB, each with its growth.
            fake.add_vg(group, 1280 * MIB);
        }
        let lvm = fake.lvm();
        lvm.set_discards("vg0", self.discards);
        // Not ours: a foreign name, a name of no volume, an unlisted group, an id not canonical.
        lvm.add_volume("vg0", "root", 64 * MIB, &[]);
        lvm.add_volume("vg0", "theirs", 8 * MIB, &[LV_TAG, LV_UNZEROED_TAG]);
        lvm.add_volume("vg1", "mooring-save-00000000-0000-0000-0000-000000000001", 8 * MIB, &[LV_TAG]);
        lvm.add_volume("vg0", "mooring-A0000000-0000-0000-0000-00000000000A", 8 * MIB, &[LV_TAG]);
        for (index, (before, growth, _)) in self.volumes.iter().enumerate() {
            if let Some(growth) = growth {
                growth.build(&fake, index as u128 + 1);
            }
            let Some(before) = before else { continue };
            let mut tags = Vec::new();
            if before.tagged {
                tags.push(LV_TAG);
            }
            if before.unzeroed {
                tags.push(LV_UNZEROED_TAG);
            }
            let n = index as u128 + 1;
            let (name, tag) = (if before.adopted { site(id(n)) } else { name(n) }, lv_volume_tag(id(n)));
            if before.adopted {
                tags.push(&tag);
            }
            let mark = format!("{LV_ZEROED_MARK}4");
            if before.marked {
                tags.push(&mark);
            }
            assert!(lvm.add_volume(before.group, &name, before.mib * MIB, &tags));
            if before.marked && before.unzeroed {
                fake.blocks().zero(&lvm::device_path(before.group, &name), 0, 4 * MIB).unwrap();
            }
            if !before.active {
                deactivate(&fake, before.group, &name);
            }
        }
        fake
    }

    /// The machine with this world's LVs, and with the groups as its configuration has them.
    fn on(&self, fake: &FakeMachine) -> Machine {
        Machine::new(fake, groups_with(self.wipes))
    }

    fn specs(&self) -> impl Iterator<Item = (VolumeId, &Wanted)> {
        self.volumes.iter().enumerate().map(|(index, (_, _, wanted))| (id(index as u128 + 1), wanted))
    }

    /// Returns whether this LV may be changed at all, and its end: `Some(true)` if it must go,
    /// `Some(false)` if it must stay, `None` if it may do either because it holds nobody's data.
    fn rights(&self, row: &Row) -> (bool, Option<bool>) {
        let listed = row["vg_name"] != "other";
        let tagged = row["lv_tags"].split(',').any(|tag| tag == LV_TAG);
        let wanted_of = |name: fn(VolumeId) -> LvName| {
            self.specs().find(|(id, _)| name(*id).as_str() == row["lv_name"]).map(|(_, wanted)| wanted)
        };
        if let Some(wanted) = wanted_of(LvName::growth_of) {
            let gone = matches!(wanted, Wanted::Doomed { export_gone: true });
            let there = matches!(wanted, Wanted::Volume(_) | Wanted::Adopted(..));
            let released = matches!(wanted, Wanted::Released { export_gone: true });
            let ours = listed && tagged && (gone || released || there);
            return (ours, if gone || !ours { Some(gone && ours) } else { None });
        }
        let adopted = self.specs().find(|(id, _)| site(*id) == row["lv_name"]).map(|(_, wanted)| wanted);
        let wanted = wanted_of(LvName::of).or(adopted);
        let ours = listed && tagged && wanted.is_some();
        (ours, Some(ours && matches!(wanted, Some(Wanted::Doomed { export_gone: true }))))
    }
}

/// Checks after every step that nothing usable shows old blocks.
struct Watch<'a> {
    machine: &'a Machine,
    /// Devices that were usable from the beginning, and their sizes: up to there they hold their
    /// owner's data.
    usable_before: &'a Usable,
    stop_at: Option<usize>,
    steps: usize,
}

impl Watch<'_> {
    fn check(&self) {
        let seen = view(&self.machine.fake.lvm(), &self.machine.groups).unwrap();
        for lv in seen.ours().filter(|lv| lv.is_ready()) {
            let path = lvm::device_path(&lv.group, lv.name.as_str());
            let from = self.usable_before.get(&path.display().to_string()).copied().unwrap_or(0);
            let zeroed = self.machine.fake.blocks().zeroed_ranges(&path);
            let safe =
                from == lv.size.0 || zeroed.iter().any(|(start, end)| *start <= from && *end >= lv.size.0);
            self.machine.rule(safe, format!("{} is usable and shows old blocks", path.display()));
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

/// Runs one pass over every volume. Returns the errors, at most one for each volume.
fn pass(world: &World, machine: &Machine, usable_before: &Usable, stop_at: Option<usize>) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut watch = Watch { machine, usable_before, stop_at, steps: 0 };
    for (id, wanted) in world.specs() {
        let seen = view(machine, &machine.groups).unwrap();
        if let Err(error) = apply(&plan(wanted, &seen, id), machine, machine, &mut watch) {
            errors.push(error);
        }
    }
    watch.check();
    errors
}

/// Device paths, each with the number of bytes that hold somebody's data.
type Usable = BTreeMap<String, u64>;

/// Returns the devices that are usable at the beginning: tagged, and not marked as unzeroed.
fn usable(fake: &FakeMachine) -> Usable {
    let is = |row: &Row, tag: &str| row["lv_tags"].split(',').any(|t| t == tag);
    let usable = lvs(fake).into_iter().filter(|row| is(row, LV_TAG) && !is(row, LV_UNZEROED_TAG));
    usable.map(|row| (row["lv_path"].clone(), row["lv_size"].parse().unwrap())).collect()
}

fn settle(world: &World, machine: &Machine, usable_before: &Usable) {
    for _ in 0..3 {
        let errors = pass(world, machine, usable_before, None);
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// Asserts that the end is the spec, or a reason why not; and that LVs that are not ours or not
/// doomed are unchanged.
fn check_end(world: &World, machine: &Machine, before: &[Row], untouched: &Snapshot) {
    let seen = view(machine, &machine.groups).unwrap();
    for (id, wanted) in world.specs() {
        let plan = plan(wanted, &seen, id);
        assert!(plan.steps.is_empty(), "{wanted:?} is not quiet: {plan:?}");
        let report = report(wanted, &seen, id);
        let phase = match wanted {
            Wanted::Volume(_) | Wanted::Adopted(..) if plan.blocked.is_empty() => Phase::Ready,
            // The volume cannot grow, and is served as it is.
            Wanted::Volume(spec) | Wanted::Adopted(spec, _)
                if seen.lv(&spec.group, id).is_some_and(|lv| lv.is_ready() && lv.size < spec.size) =>
            {
                Phase::Ready
            }
            Wanted::Volume(_) | Wanted::Adopted(..) => Phase::Failed,
            Wanted::Doomed { .. } | Wanted::Released { .. } if plan.blocked.is_empty() => Phase::Gone,
            Wanted::Doomed { .. } | Wanted::Released { .. } => Phase::Deleting,
            Wanted::Reverted { .. } | Wanted::Made { .. } => unreachable!("they have laws of their own"),
            Wanted::Nothing if seen.lvs_of(id).iter().any(SeenLv::is_tagged) => Phase::Orphan,
            Wanted::Nothing => Phase::Gone,
        };
        assert_eq!(report.phase, phase, "{wanted:?} {report:?}");
        assert_eq!(report.problems.len(), plan.blocked.len());
        assert!(report.phase != Phase::Ready || report.device.is_some());
        if let (Wanted::Volume(spec), true) = (wanted, plan.blocked.is_empty()) {
            assert!(report.size >= spec.size && !seen.growth(&spec.group, id).is_some_and(SeenLv::is_tagged));
        }
    }
    let after = snapshot(&machine.fake);
    let rows = lvs(&machine.fake);
    for row in before {
        let (ours, doomed) = world.rights(row);
        let path = &row["lv_path"];
        if !ours {
            assert_eq!(after.get(path), untouched.get(path), "{path} is not ours and was changed");
        }
        let still = rows.iter().any(|now| now["lv_uuid"] == row["lv_uuid"]);
        let Some(doomed) = doomed else { continue };
        assert_eq!(still, !doomed, "{path}: there {still}, doomed {doomed}");
        let marked = row["lv_tags"].contains(LV_UNZEROED_TAG);
        if still && !marked && ours {
            let size: u64 = row["lv_size"].parse().unwrap();
            let (_, zeroed, discarded) = &after[path];
            assert!(zeroed.iter().all(|(from, _)| *from >= size), "{path} held data and was zeroed");
            assert_eq!(*discarded, [], "{path} held data and was discarded");
        }
    }
    assert_eq!(*machine.broken_rules.lock().unwrap(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn converge_quiet_ours_only_no_data_loss(world in any_world()) {
        let fake = world.build();
        let (before, untouched, usable) = (lvs(&fake), snapshot(&fake), usable(&fake));
        let machine = world.on(&fake);
        settle(&world, &machine, &usable);
        check_end(&world, &machine, &before, &untouched);
        // Quiet: a second look changes nothing, and asks LVM only for reports.
        let changes = machine.changes.load(Ordering::Relaxed);
        settle(&world, &machine, &usable);
        prop_assert_eq!(machine.changes.load(Ordering::Relaxed), changes);
    }

    #[test]
    fn any_prefix_then_again_ends_the_same(world in any_world(), stop in 0_usize..14) {
        let (straight, cut) = (world.build(), world.build());
        let (before, untouched, usable) = (lvs(&cut), snapshot(&cut), usable(&cut));
        settle(&world, &world.on(&straight), &usable);
        let machine = world.on(&cut);
        pass(&world, &machine, &usable, Some(stop));
        // The host was cut off, too: LVs that must be active may have no device now.
        let seen = view(&machine, &machine.groups).unwrap();
        for (id, wanted) in world.specs().filter(|_| stop % 2 == 0) {
            let Wanted::Volume(spec) = wanted else { continue };
            let lv = seen.lv(&spec.group, id).filter(|lv| lv.is_tagged());
            if let Some(lv) = lv.filter(|_| plan(wanted, &seen, id).blocked.is_empty()) {
                deactivate(&cut, spec.group.as_str(), lv.name.as_str());
            }
        }
        settle(&world, &machine, &usable);
        check_end(&world, &machine, &before, &untouched);
        prop_assert_eq!(snapshot(&cut), snapshot(&straight));
    }

    #[test]
    fn any_call_may_fail(world in any_world(), at in 0_u32..24, lost_answer in any::<bool>()) {
        let fake = world.build();
        let (before, untouched, usable) = (lvs(&fake), snapshot(&fake), usable(&fake));
        let machine = world.on(&fake);
        machine.fail(at, if lost_answer { Fault::After } else { Fault::Before });
        for error in pass(&world, &machine, &usable, None) {
            prop_assert!(error.cure() != Cure::Bug && !error.to_string().is_empty());
        }
        *machine.fault.lock().unwrap() = None;
        settle(&world, &machine, &usable);
        check_end(&world, &machine, &before, &untouched);
    }

    #[test]
    fn only_the_doomed_plan_a_removal(world in any_world()) {
        let fake = world.build();
        let seen = view(&fake.lvm(), &groups_with(world.wipes)).unwrap();
        for (id, wanted) in world.specs() {
            let plan = plan(wanted, &seen, id);
            let removes = plan.steps.iter().any(|step| matches!(step.op, VolumeOp::Remove { .. }));
            prop_assert!(!removes || *wanted == (Wanted::Doomed { export_gone: true }), "{:?} {:?}", wanted, plan);
            let wipes = |op: &VolumeOp| matches!(op, VolumeOp::MarkUnzeroed { .. } | VolumeOp::Discard { .. });
            prop_assert!(removes || !plan.steps.iter().any(|step| wipes(&step.op)), "{:?}", plan);
            for step in &plan.steps {
                let name = &step.op.lv().name;
                let adopted = name.as_str() == site(id);
                let (volume, growth) = (adopted || *name == LvName::of(id), *name == LvName::growth_of(id));
                // An adopted LV exists, or the volume has none.
                let made = matches!(&step.op, VolumeOp::Create { .. }) && !growth;
                prop_assert!(!made || (!adopted && matches!(wanted, Wanted::Volume(_))));
                match &step.op {
                    VolumeOp::RemoveGrowth { .. } => prop_assert!(growth),
                    VolumeOp::Append { growth, .. } => {
                        prop_assert!(volume && growth.name == LvName::growth_of(id));
                    }
                    VolumeOp::Remove { .. } | VolumeOp::Discard { .. } | VolumeOp::MarkUnzeroed { .. } => {
                        prop_assert!(volume);
                    }
                    _ => prop_assert!(volume || growth),
                }
            }
        }
    }

    #[test]
    fn one_volume_looks_as_in_the_whole(world in any_world()) {
        let fake = world.build();
        let whole = view(&fake.lvm(), &groups()).unwrap();
        for (id, wanted) in world.specs() {
            let one = view_one(&fake.lvm(), &groups(), id, &Beside::default()).unwrap();
            prop_assert_eq!(one.lvs_of(id), whole.lvs_of(id));
            prop_assert_eq!(one.growths_of(id), whole.growths_of(id));
            prop_assert_eq!(plan(wanted, &one, id), plan(wanted, &whole, id));
        }
    }
}

fn machine() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_vg("vg0", 1024 * MIB);
    fake.add_vg("vg1", 1024 * MIB);
    fake
}

fn look(fake: &FakeMachine) -> VolumesView {
    view(&fake.lvm(), &groups()).unwrap()
}

fn plan_of(fake: &FakeMachine, wanted: &Wanted) -> Plan<VolumeOp> {
    plan(wanted, &look(fake), id(1))
}

fn blocked(fake: &FakeMachine, wanted: &Wanted) -> (BlockedKind, String) {
    let plan = plan_of(fake, wanted);
    assert!(plan.steps.is_empty() && plan.blocked.len() == 1, "{plan:?}");
    let blocked = &plan.blocked[0];
    (blocked.kind, format!("{}: {}", blocked.object, blocked.why))
}

/// Whole table of a volume in an existing group: LV under its name / spec: steps.
const TABLE: &str = "\
absent / wanted: create zero unmark
absent / doomed: -
absent / exported: Missing
absent / nothing: -
ready / wanted: -
ready / doomed: mark zero remove
ready / exported: Missing
ready / nothing: -
inactive / wanted: activate
inactive / doomed: mark activate zero remove
inactive / exported: Missing
inactive / nothing: -
unzeroed / wanted: zero unmark
unzeroed / doomed: zero remove
unzeroed / exported: Missing
unzeroed / nothing: -
unzeroed, inactive / wanted: activate zero unmark
unzeroed, inactive / doomed: activate zero remove
unzeroed, inactive / exported: Missing
unzeroed, inactive / nothing: -
smaller / wanted: create zero unmark append
smaller / doomed: mark zero remove
smaller / exported: Missing
smaller / nothing: -
smaller, inactive / wanted: activate
smaller, inactive / doomed: mark activate zero remove
smaller, inactive / exported: Missing
smaller, inactive / nothing: -
smaller, unzeroed / wanted: zero unmark
smaller, unzeroed / doomed: zero remove
smaller, unzeroed / exported: Missing
smaller, unzeroed / nothing: -
larger / wanted: Birth
larger / doomed: mark zero remove
larger / exported: Missing
larger / nothing: -
not ours / wanted: Foreign
not ours / doomed: -
not ours / exported: Missing
not ours / nothing: -
";

fn word(op: &VolumeOp) -> &'static str {
    match op {
        VolumeOp::Create { .. } => "create",
        VolumeOp::CheckImage { .. } => "look",
        VolumeOp::CreateForImage { .. } => "space",
        VolumeOp::Import { .. } => "import",
        VolumeOp::Upload { op, .. } => match op {
            lvm::UploadOp::Remove => "remove",
            lvm::UploadOp::Make { .. } => "make",
            lvm::UploadOp::GoOn { .. } => "go on",
            lvm::UploadOp::Copy { .. } => "copy",
            lvm::UploadOp::Publish { .. } => "name",
        },
        VolumeOp::MarkImporting { .. } => "mark importing",
        VolumeOp::MarkImported { .. } => "imported",
        VolumeOp::Activate { .. } => "activate",
        VolumeOp::MarkUnzeroed { .. } => "mark",
        VolumeOp::Unmark { .. } => "forget",
        VolumeOp::Zero { .. } => "zero",
        VolumeOp::Discard { .. } => "discard",
        VolumeOp::MarkZeroed { .. } => "unmark",
        VolumeOp::Append { .. } => "append",
        VolumeOp::RemoveGrowth { .. } => "drop",
        VolumeOp::Remove { .. } => "remove",
        VolumeOp::Rename { .. } => "rename",
        VolumeOp::Own { .. } => "own",
        VolumeOp::Retag { .. } => "retag",
        VolumeOp::Disown { .. } => "disown",
        VolumeOp::CreatePool { .. } => "pool",
        VolumeOp::CreateThin { .. } => "thin",
        VolumeOp::Snapshot { .. } => "snapshot",
        VolumeOp::Clone { .. } => "clone",
        VolumeOp::Extend { .. } => "extend",
        VolumeOp::CloneForRevert { .. } => "copy",
        VolumeOp::RemoveCopy { .. } => "drop copy",
        VolumeOp::RemoveReverted { .. } => "exchange",
    }
}

/// Returns the steps and the obstacles of a plan in words; `-` if it has neither.
fn words(plan: &Plan<VolumeOp>) -> String {
    let steps = plan.steps.iter().map(|step| word(&step.op).to_owned());
    let blocked = plan.blocked.iter().map(|blocked| format!("{:?}", blocked.kind));
    let all: Vec<_> = steps.chain(blocked).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(" ") }
}

#[test]
fn the_table() {
    let mut table = String::new();
    let states: [(&str, u64, &[&str], bool); 10] = [
        ("absent", 0, &[], true),
        ("ready", 8, &[LV_TAG], true),
        ("inactive", 8, &[LV_TAG], false),
        ("unzeroed", 8, &[LV_TAG, LV_UNZEROED_TAG], true),
        ("unzeroed, inactive", 8, &[LV_TAG, LV_UNZEROED_TAG], false),
        ("smaller", 4, &[LV_TAG], true),
        ("smaller, inactive", 4, &[LV_TAG], false),
        ("smaller, unzeroed", 4, &[LV_TAG, LV_UNZEROED_TAG], true),
        ("larger", 12, &[LV_TAG], true),
        ("not ours", 8, &[LV_UNZEROED_TAG], true),
    ];
    for (state, mib, tags, active) in states {
        for (what, wanted) in [
            ("wanted", Wanted::Volume(spec(1, "vg0", 7))),
            ("doomed", Wanted::Doomed { export_gone: true }),
            ("exported", Wanted::Doomed { export_gone: false }),
            ("nothing", Wanted::Nothing),
        ] {
            let fake = machine();
            if mib > 0 {
                fake.lvm().add_volume("vg0", &name(1), mib * MIB, tags);
            }
            if !active {
                deactivate(&fake, "vg0", &name(1));
            }
            let plan = plan_of(&fake, &wanted);
            let done = words(&plan);
            writeln!(table, "{state} / {what}: {done}").unwrap();
        }
    }
    assert_eq!(table, TABLE);
}

#[test]
fn obstacles_say_what_was_found_and_what_to_do() {
    let fake = machine();
    let full = blocked(&fake, &Wanted::Volume(spec(1, "vg0", 1024)));
    assert_eq!(
        full,
        (
            BlockedKind::Full,
            "volume group vg0: 1 GiB are wanted for volume 00000000-0000-0000-0000-000000000001 and 1008 MiB of 1 GiB are \
             free (beside a reserve of 16 MiB): free some space, or extend the group"
                .to_owned()
        )
    );
    // A volume fits up to the last extent.
    assert_eq!(plan_of(&fake, &Wanted::Volume(spec(1, "vg0", 1008))).blocked, []);
    let (kind, text) = blocked(&fake, &Wanted::Volume(spec(1, "other", 8)));
    assert!(
        kind == BlockedKind::Missing
            && text.contains("the agent may not use volume group other: its configuration lists vg0, vg1"),
        "{text}"
    );

    fake.lvm().lose_group("vg1");
    fake.add_vg("data", 64 * MIB);
    let (kind, text) = blocked(&fake, &Wanted::Volume(spec(1, "vg1", 8)));
    assert_eq!(kind, BlockedKind::Missing);
    assert_eq!(
        text,
        "volume group vg1: volume group vg1 is not on this host (there is vg0, data); see pvs, vgscan and the disks"
    );
    let (_, text) = blocked(&fake, &Wanted::Doomed { export_gone: true });
    assert!(
        text.contains("it is not known whether its data is gone: volume group vg1 is not on this host"),
        "{text}"
    );

    fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[]);
    let (kind, text) = blocked(&fake, &Wanted::Volume(spec(1, "vg0", 8)));
    assert!(
        kind == BlockedKind::Foreign && text.contains("without the tag mooring: somebody else made it"),
        "{text}"
    );

    let fake = machine();
    fake.lvm().add_volume("vg1", &name(1), 8 * MIB, &[LV_TAG]);
    let (kind, text) = blocked(&fake, &Wanted::Volume(spec(1, "vg0", 8)));
    assert!(
        kind == BlockedKind::Birth && text.contains("it lies in volume group vg1, and its spec names vg0"),
        "{text}"
    );
    let (kind, text) = blocked(&fake, &Wanted::Volume(spec(1, "vg1", 1032)));
    assert!(kind == BlockedKind::Full && text.contains("1 GiB more are wanted for volume"), "{text}");
    let unmet = report(&Wanted::Volume(spec(1, "vg1", 1032)), &look(&fake), id(1));
    assert_eq!((unmet.phase, unmet.problems.len()), (Phase::Ready, 1), "it is served as it is");
    let (_, text) = blocked(&fake, &Wanted::Volume(spec(1, "vg1", 4)));
    assert!(text.contains("it has 8 MiB, and its spec says only 4 MiB: a volume never shrinks"), "{text}");
    fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[LV_TAG]);
    let (kind, text) = blocked(&fake, &Wanted::Doomed { export_gone: true });
    assert!(
        kind == BlockedKind::Foreign && text.contains("volume groups vg0, vg1 each have an LV"),
        "{text}"
    );
}

#[test]
fn looking_at_one_volume_costs_the_same_among_many() {
    let fake = machine();
    fake.lvm().add_volume("vg0", &name(1), 4 * MIB, &[LV_TAG]);
    fake.lvm().add_volume("vg0", &site(id(200)), 4 * MIB, &[LV_TAG, &lv_volume_tag(id(200))]);
    let cost = || {
        fake.lvm().clear_log();
        // An LV with the volume's name, an adopted LV, and a missing LV.
        for n in [1, 200, 300] {
            view_one(&fake.lvm(), &groups(), id(n), &Beside::default()).unwrap();
        }
        fake.lvm().log().len()
    };
    let alone = cost();
    for n in 2..100 {
        fake.lvm().add_volume("vg0", &name(n), 4 * MIB, &[LV_TAG]);
    }
    assert_eq!(cost(), alone);
}

#[test]
fn orphans_are_ours_without_a_spec() {
    let fake = machine();
    fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[LV_TAG]);
    fake.lvm().add_volume("vg0", &name(2), 8 * MIB, &[]);
    fake.lvm().add_volume("vg0", "somebody", 8 * MIB, &[LV_TAG]);
    let seen = look(&fake);
    assert_eq!(seen.ours().map(|lv| lv.name.to_string()).collect::<Vec<_>>(), [name(1)]);
    assert_eq!(report(&Wanted::Nothing, &seen, id(1)).phase, Phase::Orphan);
    assert_eq!(report(&Wanted::Nothing, &seen, id(2)).phase, Phase::Gone);
}

#[test]
fn faults_of_the_machine() {
    let fake = machine();
    let wanted = Wanted::Volume(spec(1, "vg0", 8));
    let see = || view(&fake.lvm(), &groups()).unwrap_err();
    fake.lvm().set_missing(true);
    assert_eq!(
        see().to_string(),
        "cannot list the volume groups: LVM is not installed; install the package lvm2"
    );
    assert_eq!(see().cure(), Cure::Operator);
    fake.lvm().set_missing(false);
    fake.lvm().set_hanging(true);
    assert!(see().to_string().starts_with("cannot list the volume groups: LVM does not return"));
    assert_eq!(see().cure(), Cure::Retry);
    fake.lvm().set_hanging(false);
    fake.lvm().set_broken(Some("  /dev/mapper/control: open failed: No such device\n"));
    assert!(see().to_string().ends_with("run modprobe dm_mod"));
    fake.lvm().set_broken(None);

    let make = || apply(&plan_of(&fake, &wanted), &fake.lvm(), &fake.blocks(), &mut ());
    let stale = plan_of(&fake, &wanted);
    fake.lvm().fail_next(
        "lvcreate",
        5,
        "  Volume group \"vg0\" has insufficient free space (1 extents): 2 required.\n",
    );
    assert!(matches!(make(), Err(Error::NoSpace { .. })));
    fake.blocks().fail_zeroing(Some(Errno::EIO));
    let error = make().unwrap_err();
    assert!(matches!(&error, Error::Device { .. }) && error.cure() == Cure::Operator, "{error}");
    fake.blocks().fail_zeroing(None);
    // This plan is stale: the LV exists by now.
    let error = apply(&stale, &fake.lvm(), &fake.blocks(), &mut ()).unwrap_err();
    assert!(matches!(&error, Error::Changed { .. }) && error.cure() == Cure::Retry, "{error}");
    let path = lvm::device_path("vg0", &name(1));
    fake.set_busy(&path, true);
    let error = make().unwrap_err();
    assert!(matches!(&error, Error::InUse { .. }) && error.cure() == Cure::Retry, "{error}");
    fake.set_busy(&path, false);
    make().unwrap();
    assert!(plan_of(&fake, &wanted).is_quiet() && fake.blocks().is_zeroed(&path));

    // A doomed LV that is mounted here is neither wiped nor removed.
    fake.set_busy(&path, true);
    let doomed = plan_of(&fake, &Wanted::Doomed { export_gone: true });
    assert!(matches!(apply(&doomed, &fake.lvm(), &fake.blocks(), &mut ()), Err(Error::InUse { .. })));
    fake.set_busy(&path, false);
    fake.remove_device(&path);
    assert!(matches!(apply(&doomed, &fake.lvm(), &fake.blocks(), &mut ()), Err(Error::NoDevice { .. })));
    fake.add_device(&path, 4 * MIB);
    let error = apply(&doomed, &fake.lvm(), &fake.blocks(), &mut ()).unwrap_err();
    assert!(matches!(&error, Error::DeviceSize { found, .. } if *found == 4 * MIB), "{error}");
    assert_eq!(look(&fake).lvs_of(id(1)).len(), 1);
}
