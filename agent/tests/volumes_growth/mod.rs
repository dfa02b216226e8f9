//! Volumes that grow: the steps, what is never shown, and the progress of a zeroing.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::time::Duration;

use mooring_agent::lvm::{self, Error, Observer, Wanted, Work, apply, report};
use mooring_host::fake::FakeMachine;
use mooring_host::{Command, CommandError, CommandOutput, Commands};
use mooring_model::{ByteSize, Cure, LV_TAG, Phase};

use super::{Growth, MIB, id, look, machine, name, plan_of, spec, words};

/// Growth of a volume of 8 MiB: state of the LV beside it that holds the new blocks / spec of the
/// volume: steps.
const GROWTHS: &str = "\
zeroed / 12 MiB: append
zeroed / 8 MiB: drop
zeroed / 16 MiB: drop create zero unmark append
zeroed / doomed: drop mark zero remove
unzeroed / 12 MiB: zero unmark append
unzeroed / 8 MiB: drop
unzeroed / 16 MiB: drop create zero unmark append
unzeroed / doomed: drop mark zero remove
unzeroed, inactive / 12 MiB: activate zero unmark append
unzeroed, inactive / 8 MiB: drop
unzeroed, inactive / 16 MiB: drop create zero unmark append
unzeroed, inactive / doomed: drop mark zero remove
not ours / 12 MiB: Foreign
not ours / 8 MiB: -
not ours / 16 MiB: Foreign
not ours / doomed: mark zero remove
";

#[test]
fn the_table_of_growths() {
    let mut table = String::new();
    for (state, tagged, zeroed, active) in [
        ("zeroed", true, true, true),
        ("unzeroed", true, false, true),
        ("unzeroed, inactive", true, false, false),
        ("not ours", false, true, true),
    ] {
        let volume = |mib| Wanted::Volume(spec(1, "vg0", mib));
        for (what, wanted) in [
            ("12 MiB", volume(12)),
            ("8 MiB", volume(8)),
            ("16 MiB", volume(16)),
            ("doomed", Wanted::Doomed { export_gone: true }),
        ] {
            let fake = machine();
            fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[LV_TAG]);
            Growth { group: "vg0", mib: 4, tagged, zeroed, active }.build(&fake, 1);
            let plan = plan_of(&fake, &wanted);
            let done = words(&plan);
            writeln!(table, "{state} / {what}: {done}").unwrap();
        }
    }
    assert_eq!(table, GROWTHS);
}

#[test]
fn a_volume_grows_under_its_export_and_what_it_grows_by_is_zeroed() {
    let fake = machine();
    let grown = Wanted::Volume(spec(1, "vg0", 20));
    fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[LV_TAG]);
    fake.lvm().add_volume("vg0", "neighbour", 8 * MIB, &[]);
    let path = lvm::device_path("vg0", &name(1));
    fake.set_busy(&path, true);
    apply(&plan_of(&fake, &grown), &fake.lvm(), &fake.blocks(), &mut ()).unwrap();
    assert_eq!(fake.blocks().zeroed_ranges(&path), [(8 * MIB, 20 * MIB)]);
    assert!(plan_of(&fake, &grown).is_quiet());
    assert_eq!(report(&grown, &look(&fake), id(1)).size, ByteSize(20 * MIB));
    // The control: extents that nobody zeroed, as LVM alone would add them.
    let args = ["lvextend", "--yes", "--extents", "+1", &format!("vg0/{}", name(1)), "/dev/sdb:200-200"];
    let args = args.map(str::to_owned).to_vec();
    fake.lvm().run(&Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) }).unwrap();
    assert_eq!(fake.blocks().zeroed_ranges(&path), [(8 * MIB, 20 * MIB)]);
    assert_eq!(look(&fake).lvs_of(id(1))[0].size, ByteSize(24 * MIB));
}

#[test]
fn extents_that_somebody_takes_are_not_given_and_the_growth_begins_again() {
    /// Runs somebody else's `lvcreate` between the two commands of an append.
    struct Thief(FakeMachine);
    impl Commands for Thief {
        fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
            if command.args[0] == "lvextend" {
                self.0.lvm().add_volume("vg0", "theirs", 4 * MIB, &[]);
            }
            self.0.lvm().run(command)
        }
    }
    let fake = machine();
    let grown = Wanted::Volume(spec(1, "vg0", 16));
    fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[LV_TAG]);
    let error = apply(&plan_of(&fake, &grown), &Thief(fake.clone()), &fake.blocks(), &mut ()).unwrap_err();
    assert!(matches!(&error, Error::Changed { .. }) && error.cure() == Cure::Retry, "{error}");
    let seen = report(&grown, &look(&fake), id(1));
    assert_eq!((seen.phase, seen.size), (Phase::Ready, ByteSize(8 * MIB)));
    apply(&plan_of(&fake, &grown), &fake.lvm(), &fake.blocks(), &mut ()).unwrap();
    let path = lvm::device_path("vg0", &name(1));
    assert_eq!(fake.blocks().zeroed_ranges(path), [(8 * MIB, 16 * MIB)]);
}

#[test]
fn a_zeroing_that_was_stopped_goes_on_only_on_the_same_lv() {
    struct Stops {
        at: u64,
        kept: Option<(String, u64)>,
        begun: Vec<u64>,
    }
    impl Observer for Stops {
        fn resume(&mut self, work: Work, uuid: &str) -> u64 {
            assert_eq!(work, Work::Zero);
            self.kept.take().filter(|(of, _)| of == uuid).map_or(0, |(_, bytes)| bytes)
        }
        fn done(&mut self, _: Work, uuid: &str, bytes: u64) -> ControlFlow<()> {
            self.begun.push(bytes / MIB);
            self.kept = Some((uuid.to_owned(), bytes));
            if bytes >= self.at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    let fake = machine();
    let wanted = Wanted::Volume(spec(1, "vg0", 64));
    let mut stops = Stops { at: 32 * MIB, kept: None, begun: Vec::new() };
    let again = |stops: &mut Stops| apply(&plan_of(&fake, &wanted), &fake.lvm(), &fake.blocks(), stops);
    assert!(matches!(again(&mut stops), Err(Error::Stopped { step: 2, of: 3 })));
    assert_eq!(report(&wanted, &look(&fake), id(1)).phase, Phase::Creating);
    stops.at = u64::MAX;
    again(&mut stops).unwrap();
    assert_eq!(stops.begun, [0, 16, 32, 32, 48, 64]);
    assert!(fake.blocks().is_zeroed(lvm::device_path("vg0", &name(1))));
    // Another LV under this name is zeroed from its beginning.
    fake.lvm().lose_volume("vg0", &name(1));
    stops.begun.clear();
    stops.kept = Some(("of the one before".to_owned(), 48 * MIB));
    again(&mut stops).unwrap();
    assert_eq!(stops.begun[0], 0);
}

#[test]
fn sizes_are_whole_extents_and_progress_is_told() {
    struct Progress(Vec<u64>);
    impl Observer for Progress {
        fn done(&mut self, _: Work, _: &str, bytes: u64) -> ControlFlow<()> {
            self.0.push(bytes / MIB);
            ControlFlow::Continue(())
        }
    }
    let fake = machine();
    let wanted = Wanted::Volume(spec(1, "vg0", 130));
    let mut progress = Progress(Vec::new());
    apply(&plan_of(&fake, &wanted), &fake.lvm(), &fake.blocks(), &mut progress).unwrap();
    assert_eq!(progress.0, [0, 16, 32, 48, 64, 80, 96, 112, 128, 132]);
    let report = report(&wanted, &look(&fake), id(1));
    assert_eq!((report.phase, report.size), (Phase::Ready, ByteSize(132 * MIB)));
    assert_eq!(report.device.unwrap(), format!("/dev/vg0/{}", name(1)));
}
