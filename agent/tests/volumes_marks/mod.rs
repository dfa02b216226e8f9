//! Marks of a long zeroing on its LV: after a crash the zeroing resumes there, and tags are true
//! whenever they are believed.

use std::ops::ControlFlow;

use mooring_agent::config::Wipe;
use mooring_agent::lvm::{self, Error, MARK_BYTES, Observer, Wanted, Work, apply, plan, report, view};
use mooring_host::fake::FakeMachine;
use mooring_model::{ByteSize, LV_TAG, LV_UNZEROED_TAG, LV_ZEROED_MARK, Phase, Step};

use super::{MIB, VolumeOp, groups_with, id, look, name, plan_of, spec, word};

const GIB: u64 = 1 << 30;
const DOOMED: Wanted = Wanted::Doomed { export_gone: true };

fn large() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_vg("vg0", 200 * GIB);
    fake.add_vg("vg1", GIB);
    fake
}

fn mark(mib: u64) -> String {
    format!("{LV_ZEROED_MARK}{mib}")
}

/// Stops at one point, and keeps nothing in memory, as a crash does.
#[derive(Default)]
struct Stops {
    at: Option<u64>,
    begun: Vec<(Work, u64)>,
    steps: Option<usize>,
}

impl Observer for Stops {
    fn before(&mut self, index: usize, _: &Step<VolumeOp>) -> ControlFlow<()> {
        if self.steps.is_some_and(|steps| index >= steps) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn done(&mut self, work: Work, _: &str, bytes: u64) -> ControlFlow<()> {
        self.begun.push((work, bytes));
        if Some(bytes) == self.at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn at(bytes: u64) -> Stops {
    Stops { at: Some(bytes), ..Stops::default() }
}

fn make(fake: &FakeMachine, wanted: &Wanted, stops: &mut Stops) -> Result<(), Error> {
    apply(&plan_of(fake, wanted), &fake.lvm(), &fake.blocks(), stops)
}

fn tags(fake: &FakeMachine, volume: u128) -> Vec<String> {
    look(fake).lvs_of(id(volume))[0].tags.iter().cloned().collect()
}

fn is_stopped(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Stopped { .. }))
}

#[test]
fn after_a_crash_a_long_zeroing_goes_on_near_where_it_was() {
    let (fake, wanted) = (large(), Wanted::Volume(spec(1, "vg0", 4 * 1024)));
    assert!(is_stopped(&make(&fake, &wanted, &mut at(2 * GIB + GIB / 2))));
    assert_eq!(tags(&fake, 1), [LV_TAG.to_owned(), LV_UNZEROED_TAG.to_owned(), mark(2048)]);
    assert_eq!(report(&wanted, &look(&fake), id(1)).phase, Phase::Creating, "it is not usable");
    let words = plan_of(&fake, &wanted).steps[0].op.to_string();
    assert!(words.starts_with("zero 4 GiB of ") && words.ends_with(", of which 2 GiB are"), "{words}");
    let mut stops = Stops::default();
    make(&fake, &wanted, &mut stops).unwrap();
    assert_eq!(stops.begun[0], (Work::Zero, 2 * GIB));
    assert!(fake.blocks().is_zeroed(lvm::device_path("vg0", &name(1))));
    assert_eq!(tags(&fake, 1), [LV_TAG], "nothing of it is left");
    assert_eq!(report(&wanted, &look(&fake), id(1)).phase, Phase::Ready);
    // The control: without a mark, the zeroing begins at the start.
    let other = Wanted::Volume(spec(2, "vg0", 4 * 1024));
    assert!(is_stopped(&apply(
        &plan(&other, &look(&fake), id(2)),
        &fake.lvm(),
        &fake.blocks(),
        &mut at(GIB - 16 * MIB)
    )));
    let mut stops = Stops::default();
    apply(&plan(&other, &look(&fake), id(2)), &fake.lvm(), &fake.blocks(), &mut stops).unwrap();
    assert_eq!(stops.begun[0], (Work::Zero, 0));
}

#[test]
fn a_growth_is_marked_as_well() {
    let fake = large();
    make(&fake, &Wanted::Volume(spec(1, "vg0", 8)), &mut Stops::default()).unwrap();
    let grown = Wanted::Volume(spec(1, "vg0", 8 + 3 * 1024));
    assert!(is_stopped(&make(&fake, &grown, &mut at(GIB + 16 * MIB))));
    let mut stops = Stops::default();
    make(&fake, &grown, &mut stops).unwrap();
    assert_eq!(stops.begun[0], (Work::Zero, GIB));
    let zeroed = fake.blocks().zeroed_ranges(lvm::device_path("vg0", &name(1)));
    assert_eq!(zeroed, [(0, 8 * MIB + 3 * GIB)]);
    assert_eq!(tags(&fake, 1), [LV_TAG]);
}

#[test]
fn there_are_few_marks_however_large_it_is() {
    let fake = large();
    fake.lvm().clear_log();
    make(&fake, &Wanted::Volume(spec(1, "vg0", 128 * 1024)), &mut Stops::default()).unwrap();
    let commands = fake.lvm().log().len();
    // A first look, the LV, its identity, a mark for each 2 GiB but the last, the end.
    assert_eq!(commands, 2 + 1 + 1 + 63 + 1);
    assert_eq!(MARK_BYTES, GIB);
}

/// A volume with data that carries an old mark.
fn stale(fake: &FakeMachine, unzeroed: bool) {
    let mark = mark(4);
    let tags = if unzeroed { vec![LV_TAG, LV_UNZEROED_TAG, &mark] } else { vec![LV_TAG, &mark] };
    fake.lvm().add_volume("vg0", &name(1), 64 * MIB, &tags);
    if unzeroed {
        use mooring_host::BlockDevices;
        fake.blocks().zero(&lvm::device_path("vg0", &name(1)), 0, 4 * MIB).unwrap();
    }
}

#[test]
fn what_was_written_since_is_wiped_whatever_the_marks_say() {
    let words = ["forget", "mark", "zero", "remove"];
    for stop in 0..=words.len() {
        let fake = large();
        stale(&fake, false);
        let doom = plan_of(&fake, &DOOMED);
        assert_eq!(doom.steps.iter().map(|step| word(&step.op)).collect::<Vec<_>>(), words);
        let mut stops = Stops { steps: Some(stop), ..Stops::default() };
        let stopped = apply(&doom, &fake.lvm(), &fake.blocks(), &mut stops);
        assert_eq!(is_stopped(&stopped), stop < words.len());
        // The deletion is cancelled or resumed there: written data are never taken for zeros.
        if stop < 4 {
            let mut whole = Stops::default();
            let path = lvm::device_path("vg0", &name(1));
            let seen = look(&fake);
            let unzeroed = seen.lvs_of(id(1))[0].is_unzeroed();
            make(&fake, &Wanted::Volume(spec(1, "vg0", 64)), &mut whole).unwrap();
            assert_eq!(unzeroed, fake.blocks().is_zeroed(&path), "after {stop} steps");
            make(&fake, &DOOMED, &mut Stops::default()).unwrap();
        }
        assert_eq!(look(&fake).lvs_of(id(1)), []);
    }
}

#[test]
fn a_wipe_resumes_where_a_zeroing_was_and_a_discard_leaves_no_mark() {
    let fake = large();
    stale(&fake, true);
    let zero: Vec<_> = plan_of(&fake, &DOOMED).steps.iter().map(|step| word(&step.op)).collect();
    assert_eq!(zero, ["zero", "remove"]);
    let mut stops = at(20 * MIB);
    assert!(is_stopped(&make(&fake, &DOOMED, &mut stops)));
    assert_eq!(stops.begun[0], (Work::Zero, 4 * MIB), "nobody has written to it");

    fake.lvm().set_discards("vg0", true);
    let seen = || view(&fake.lvm(), &groups_with([Wipe::Discard, Wipe::Zero])).unwrap();
    let discard = plan(&DOOMED, &seen(), id(1));
    let words: Vec<_> = discard.steps.iter().map(|step| word(&step.op)).collect();
    assert_eq!(words, ["forget", "discard", "remove"]);
    assert!(is_stopped(&apply(&discard, &fake.lvm(), &fake.blocks(), &mut at(64 * MIB))));
    assert_eq!(tags(&fake, 1), [LV_TAG, LV_UNZEROED_TAG]);
    let mut stops = Stops::default();
    make(&fake, &Wanted::Volume(spec(1, "vg0", 64)), &mut stops).unwrap();
    assert_eq!(stops.begun[0], (Work::Zero, 0));
    assert!(fake.blocks().is_zeroed(lvm::device_path("vg0", &name(1))));
}

#[test]
fn a_mark_beyond_the_volume_or_without_a_number_is_not_believed() {
    for tag in [mark(65), format!("{LV_ZEROED_MARK}x"), mark(u64::MAX), LV_ZEROED_MARK.to_owned()] {
        let fake = large();
        fake.lvm().add_volume("vg0", &name(1), 64 * MIB, &[LV_TAG, LV_UNZEROED_TAG, &tag]);
        let mut stops = Stops::default();
        make(&fake, &Wanted::Volume(spec(1, "vg0", 64)), &mut stops).unwrap();
        assert_eq!(stops.begun[0], (Work::Zero, 0), "{tag}");
        assert!(fake.blocks().is_zeroed(lvm::device_path("vg0", &name(1))));
    }
}

#[test]
fn the_farther_of_two_marks_counts_and_a_failed_mark_costs_only_time() {
    let fake = large();
    let (one, two) = (mark(4), mark(8));
    fake.lvm().add_volume("vg0", &name(1), 64 * MIB, &[LV_TAG, LV_UNZEROED_TAG, &one, &two]);
    let mut stops = Stops::default();
    make(&fake, &Wanted::Volume(spec(1, "vg0", 64)), &mut stops).unwrap();
    assert_eq!((stops.begun[0], tags(&fake, 1)), ((Work::Zero, 8 * MIB), vec![LV_TAG.to_owned()]));

    let wanted = Wanted::Volume(spec(2, "vg0", 3 * 1024));
    let seen = look(&fake);
    fake.lvm().fail_next("lvchange", 5, "  Cannot change VG vg0 while PVs are missing.\n");
    apply(&plan(&wanted, &seen, id(2)), &fake.lvm(), &fake.blocks(), &mut Stops::default()).unwrap();
    assert_eq!(tags(&fake, 2), [LV_TAG]);
    let report = report(&wanted, &look(&fake), id(2));
    assert_eq!((report.phase, report.size), (Phase::Ready, ByteSize(3 * GIB)));
}
