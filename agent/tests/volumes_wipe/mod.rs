//! Wiping of blocks at a deletion, as the group's configuration says.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use mooring_agent::config::Wipe;
use mooring_agent::lvm::{
    self, DISCARD_CHUNK, Error, Observer, VolumesView, Wanted, Work, ZERO_CHUNK, apply, plan, view,
};
use mooring_host::Errno;
use mooring_host::fake::FakeMachine;
use mooring_model::{Cure, LV_TAG, LV_UNZEROED_TAG};

use super::{Growth, MIB, deactivate, groups_with, id, machine, name, word, words};

const DOOMED: Wanted = Wanted::Doomed { export_gone: true };

fn look_with(fake: &FakeMachine, wipe: Wipe) -> VolumesView {
    view(&fake.lvm(), &groups_with([wipe, Wipe::Zero])).unwrap()
}

fn delete(fake: &FakeMachine, wipe: Wipe, observer: &mut dyn Observer) -> Result<(), Error> {
    apply(&plan(&DOOMED, &look_with(fake, wipe), id(1)), &fake.lvm(), &fake.blocks(), observer)
}

/// State of a doomed volume, in a group with vg0's configuration: steps.
const TABLE: &str = "\
ready / None: remove
ready / Zero: mark zero remove
ready / Discard: mark discard remove
inactive / None: remove
inactive / Zero: mark activate zero remove
inactive / Discard: mark activate discard remove
unzeroed / None: remove
unzeroed / Zero: zero remove
unzeroed / Discard: discard remove
unzeroed, inactive / None: remove
unzeroed, inactive / Zero: activate zero remove
unzeroed, inactive / Discard: activate discard remove
with a growth / None: drop remove
with a growth / Zero: drop mark zero remove
with a growth / Discard: drop mark discard remove
not ours / None: -
not ours / Zero: -
not ours / Discard: -
";

#[test]
fn the_table_of_wipes() {
    let mut table = String::new();
    let states: [(&str, &[&str], bool, bool); 6] = [
        ("ready", &[LV_TAG], true, false),
        ("inactive", &[LV_TAG], false, false),
        ("unzeroed", &[LV_TAG, LV_UNZEROED_TAG], true, false),
        ("unzeroed, inactive", &[LV_TAG, LV_UNZEROED_TAG], false, false),
        ("with a growth", &[LV_TAG], true, true),
        ("not ours", &[], true, false),
    ];
    for (state, tags, active, growth) in states {
        for wipe in [Wipe::None, Wipe::Zero, Wipe::Discard] {
            let fake = machine();
            fake.lvm().add_volume("vg0", &name(1), 8 * MIB, tags);
            if !active {
                deactivate(&fake, "vg0", &name(1));
            }
            if growth {
                Growth { group: "vg0", mib: 4, tagged: true, zeroed: false, active: true }.build(&fake, 1);
            }
            let plan = plan(&DOOMED, &look_with(&fake, wipe), id(1));
            assert_eq!(plan.blocked, []);
            let done = words(&plan);
            writeln!(table, "{state} / {wipe:?}: {done}").unwrap();
        }
    }
    assert_eq!(table, TABLE);
}

#[test]
fn it_is_the_group_of_the_volume_that_decides() {
    let fake = machine();
    fake.lvm().add_volume("vg1", &name(1), 8 * MIB, &[LV_TAG]);
    let seen = view(&fake.lvm(), &groups_with([Wipe::None, Wipe::Discard])).unwrap();
    let done: Vec<_> = plan(&DOOMED, &seen, id(1)).steps.iter().map(|step| word(&step.op)).collect();
    assert_eq!(done, ["mark", "discard", "remove"]);
}

/// Records the progress, and stops at one point.
#[derive(Default)]
struct Stops {
    at: Option<u64>,
    kept: Option<(Work, u64)>,
    begun: Vec<(Work, u64)>,
}

impl Observer for Stops {
    fn resume(&mut self, work: Work, _: &str) -> u64 {
        self.kept.take().filter(|(of, _)| *of == work).map_or(0, |(_, bytes)| bytes)
    }

    fn done(&mut self, work: Work, _: &str, bytes: u64) -> ControlFlow<()> {
        self.begun.push((work, bytes / MIB));
        self.kept = Some((work, bytes));
        if Some(bytes) == self.at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_discard_goes_piece_by_piece_and_goes_on_where_it_was_stopped() {
    let fake = machine();
    fake.lvm().set_discards("vg0", true);
    fake.lvm().add_volume("vg0", &name(1), 600 * MIB, &[LV_TAG]);
    let path = lvm::device_path("vg0", &name(1));
    let mut stops = Stops { at: Some(DISCARD_CHUNK), ..Stops::default() };
    assert!(matches!(delete(&fake, Wipe::Discard, &mut stops), Err(Error::Stopped { step: 2, of: 3 })));
    assert_eq!(fake.blocks().discarded_ranges(&path), [(0, DISCARD_CHUNK)]);
    let there = look_with(&fake, Wipe::Discard);
    assert!(there.lvs_of(id(1))[0].is_unzeroed(), "nobody gets what is left of it");
    stops.at = None;
    delete(&fake, Wipe::Discard, &mut stops).unwrap();
    let discard = |mib| (Work::Discard, mib);
    assert_eq!(stops.begun, [0, 256, 256, 512, 600].map(discard));
    assert_eq!(look_with(&fake, Wipe::Discard).lvs_of(id(1)), []);
}

#[test]
fn where_the_disk_takes_no_discards_it_is_zeroed() {
    let fake = machine();
    fake.lvm().add_volume("vg0", &name(1), 40 * MIB, &[LV_TAG]);
    let mut stops = Stops { at: Some(40 * MIB), ..Stops::default() };
    assert!(matches!(delete(&fake, Wipe::Discard, &mut stops), Err(Error::Stopped { .. })));
    assert!(fake.blocks().is_zeroed(lvm::device_path("vg0", &name(1))));
    let pieces: Vec<_> = stops.begun.iter().map(|(_, mib)| *mib).collect();
    assert_eq!(pieces, [0, 0, ZERO_CHUNK / MIB, 32, 40]);
}

#[test]
fn without_a_wipe_blocks_stay_and_the_next_volume_there_is_zeroed() {
    let fake = machine();
    fake.lvm().set_discards("vg0", true);
    fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[LV_TAG]);
    // A device that refuses everything is no obstacle, because nothing is asked of it.
    fake.blocks().fail_zeroing(Some(Errno::EIO));
    fake.blocks().fail_discarding(Some(Errno::EIO));
    delete(&fake, Wipe::None, &mut ()).unwrap();
    fake.blocks().fail_zeroing(None);
    let next = Wanted::Volume(super::spec(2, "vg0", 8));
    let make = plan(&next, &look_with(&fake, Wipe::None), id(2));
    let done: Vec<_> = make.steps.iter().map(|step| word(&step.op)).collect();
    assert_eq!(done, ["create", "zero", "unmark"]);
    apply(&make, &fake.lvm(), &fake.blocks(), &mut ()).unwrap();
    assert!(fake.blocks().is_zeroed(lvm::device_path("vg0", &name(2))));
}

#[test]
fn a_discard_that_fails_says_so_and_removes_nothing() {
    let fake = machine();
    fake.lvm().set_discards("vg0", true);
    fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[LV_TAG]);
    let path = lvm::device_path("vg0", &name(1));
    fake.blocks().fail_discarding(Some(Errno::EIO));
    let error = delete(&fake, Wipe::Discard, &mut ()).unwrap_err();
    assert_eq!(error.cure(), Cure::Operator);
    assert_eq!(
        error.to_string(),
        format!("cannot discard {}: see dmesg for the disk's errors", path.display())
    );
    fake.blocks().fail_discarding(None);
    fake.set_busy(&path, true);
    let error = delete(&fake, Wipe::Discard, &mut ()).unwrap_err();
    assert!(matches!(&error, Error::InUse { .. }) && error.cure() == Cure::Retry, "{error}");
    assert!(error.to_string().starts_with("cannot discard it: /dev/vg0/mooring-"), "{error}");
    assert_eq!(fake.blocks().discarded_ranges(&path), []);
    // Mounted here: without a wipe, LVM itself refuses the removal.
    let error = delete(&fake, Wipe::None, &mut ()).unwrap_err();
    assert!(matches!(&error, Error::InUse { .. }), "{error}");
    assert_eq!(look_with(&fake, Wipe::None).lvs_of(id(1)).len(), 1);
}
