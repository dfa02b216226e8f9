//! Volumes that are copied from images: the steps, and the laws. From any prefix, past any failure
//! and any piece, the volume converges to the bytes of the image and zeros. It is not usable before
//! it is whole. Nothing is created for a refused image, and a half copied image is taken for
//! nothing else.

mod marks;

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mooring_agent::config::Wipe;
use mooring_agent::images::Images;
use mooring_agent::lvm::{
    self, Error, Hands, Observer, VolumeOp, Wanted, Work, apply, apply_with, plan, report, view,
};
use mooring_host::fake::{FakeImages, FakeMachine};
use mooring_model::{
    BlockedKind, ByteSize, Cure, ImageFormat, ImageSource, LV_IMPORTING_TAG, LV_TAG, LV_UNZEROED_TAG,
    LV_ZEROED_MARK, Phase, Provisioning, Step, VolumeSpec,
};
use proptest::prelude::*;

use super::{MIB, group, id, name, words};
use crate::volumes_machine::{Fault, Machine, run};

const SIZE: u64 = 8 * MIB;

/// Size of a piece: small, so that a copy has several.
const PIECE: u64 = 2 * MIB;

fn groups() -> Vec<mooring_agent::config::Group> {
    let mut group = group("vg0", 0, Wipe::Zero);
    group.thin_pool = Some(ByteSize(256 * MIB));
    vec![group]
}

/// Distance between marks: one piece, so that a copy has marks.
const MARKED: u64 = PIECE;

/// Content of the image: a piece of data, one with a single byte, and one of zeros.
fn content(seed: u8) -> Vec<u8> {
    let mut all = vec![0; 5 << 20];
    all[..256 << 10].fill(seed);
    all[(3 << 20) + 5] = seed;
    all
}

/// Content of another image, with zeros where the first has data.
fn other() -> Vec<u8> {
    let mut all = vec![0; 4 << 20];
    all[15 << 18..].fill(9);
    all
}

struct World {
    folder: tempfile::TempDir,
    machine: Machine,
    wanted: Wanted,
}

impl World {
    fn new(format: ImageFormat, provisioning: Provisioning) -> Self {
        let fake = FakeMachine::new();
        fake.add_vg("vg0", 1024 * MIB);
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
            machine: Machine::new(&fake, groups()),
            wanted: spec(format, provisioning),
        };
        world.put(&content(7));
        world
    }

    /// Stores an image in the format of the spec.
    fn put(&self, content: &[u8]) {
        let bytes = match self.image().format {
            ImageFormat::Raw => content.to_vec(),
            ImageFormat::Qcow2 => FakeImages::qcow2(content.len() as u64, content),
        };
        std::fs::write(self.folder.path().join("image"), bytes).unwrap();
    }

    fn image(&self) -> ImageSource {
        let Wanted::Volume(spec) = &self.wanted else { unreachable!() };
        spec.image.clone().unwrap()
    }

    fn images(&self) -> Images {
        let folder = self.folder.path().to_owned();
        Images::new(folder.clone(), &folder, Arc::new(self.machine.fake.images()))
    }

    fn pass(&self, wanted: &Wanted, watch: &mut Watch<'_>) -> Result<(), Error> {
        let seen = view(&self.machine, &self.machine.groups).unwrap();
        let images = self.images();
        let hands = Hands { commands: &self.machine, blocks: &self.machine, images: Some(&images) };
        let applied = apply_with(&plan(wanted, &seen, id(1)), hands, watch);
        watch.check();
        applied
    }

    fn watch(&self) -> Watch<'_> {
        Watch { world: self, stop_at: None, steps: 0, piece: None, pieces: 0, killed: None, done: Vec::new() }
    }

    fn settle(&self) {
        for _ in 0..3 {
            self.pass(&self.wanted, &mut self.watch()).unwrap();
        }
    }

    /// Asserts that the volume holds `content`, then zeros; that it is ready and quiet; and that it
    /// has only Mooring's tag.
    fn check_end(&self, content: &[u8]) {
        let seen = view(&self.machine.fake.lvm(), &groups()).unwrap();
        assert!(plan(&self.wanted, &seen, id(1)).is_quiet());
        assert_eq!(report(&self.wanted, &seen, id(1)).phase, Phase::Ready);
        let tags: Vec<_> = seen.lvs_of(id(1))[0].tags.iter().cloned().collect();
        assert_eq!(tags, [LV_TAG]);
        let there = self.machine.fake.blocks().contents(lvm::device_path("vg0", &name(1)));
        assert!(there.len() as u64 == SIZE && there.starts_with(content), "not the image");
        assert!(there[content.len()..].iter().all(|byte| *byte == 0), "no zeros behind it");
        assert_eq!(*self.machine.broken_rules.lock().unwrap(), Vec::<String>::new());
    }
}

fn spec(format: ImageFormat, provisioning: Provisioning) -> Wanted {
    let image = Some(ImageSource { name: "image".parse().unwrap(), format });
    let new = VolumeSpec::new(id(1), "vg0".parse().unwrap(), ByteSize(SIZE), provisioning);
    Wanted::Volume(VolumeSpec { image, ..new })
}

/// Checks around every step and every piece that the volume is not usable before all of it was
/// copied.
struct Watch<'a> {
    world: &'a World,
    stop_at: Option<usize>,
    steps: usize,
    piece: Option<usize>,
    pieces: usize,
    /// Number of the last change of the machine before the kill; `None` for no kill.
    killed: Option<u32>,
    /// Progress in bytes at each report.
    done: Vec<u64>,
}

impl Watch<'_> {
    fn is_killed(&self) -> bool {
        self.killed.is_some_and(|at| self.world.machine.changes.load(Ordering::Relaxed) > at)
    }

    fn check(&self) {
        let seen = view(&self.world.machine.fake.lvm(), &groups()).unwrap();
        for lv in seen.lvs_of(id(1)).iter().filter(|lv| lv.is_ready()) {
            let there =
                self.world.machine.fake.blocks().contents(lvm::device_path(&lv.group, lv.name.as_str()));
            let is =
                |image: &[u8]| there.starts_with(image) && there[image.len()..].iter().all(|byte| *byte == 0);
            let whole = is(&content(7)) || is(&content(8)) || is(&other());
            self.world.machine.rule(whole, "it is usable and is not its image".to_owned());
        }
    }
}

impl Observer for Watch<'_> {
    fn before(&mut self, _: usize, _: &Step<VolumeOp>) -> ControlFlow<()> {
        self.check();
        if self.stop_at == Some(self.steps) || self.is_killed() {
            return ControlFlow::Break(());
        }
        self.steps += 1;
        ControlFlow::Continue(())
    }

    fn after(&mut self, _: usize, _: &Step<VolumeOp>) {
        self.check();
    }

    fn piece(&mut self, _: Work, most: u64) -> u64 {
        most.min(PIECE)
    }

    fn mark_every(&mut self, every: u64) -> u64 {
        assert_eq!(every, lvm::MARK_BYTES);
        MARKED
    }

    fn done(&mut self, work: Work, _: &str, bytes: u64) -> ControlFlow<()> {
        assert_eq!(work, Work::Import);
        self.check();
        if self.is_killed() {
            return ControlFlow::Break(());
        }
        self.done.push(bytes);
        self.pieces += 1;
        if self.piece.is_some_and(|piece| self.pieces > piece) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

const FORMATS: [ImageFormat; 2] = [ImageFormat::Raw, ImageFormat::Qcow2];
const BOTH: [Provisioning; 2] = [Provisioning::Thick, Provisioning::Thin];

/// State of the volume / spec: steps.
const TABLE: &str = "\
thick, absent / the image: look space import imported
thick, absent / nothing: create zero unmark
thick, begun / the image: import imported
thick, begun / nothing: Birth
thick, zeroing / the image: forget mark importing import imported
thick, ready / the image: -
thick, ready / nothing: -
thin, absent / the image: look pool space import imported
thin, absent / nothing: pool thin
thin, begun / the image: import imported
thin, begun / nothing: Birth
thin, zeroing / the image: forget mark importing import imported
thin, ready / the image: -
thin, ready / nothing: -
";

#[test]
fn the_table_of_images() {
    let mut table = String::new();
    for provisioning in BOTH {
        for state in ["absent", "begun", "zeroing", "ready"] {
            let world = World::new(ImageFormat::Raw, provisioning);
            let stop = match state {
                "absent" => None,
                "begun" => Some(if provisioning == Provisioning::Thin { 3 } else { 2 }),
                _ => Some(usize::MAX),
            };
            if let Some(stop) = stop {
                let _ = world.pass(&world.wanted, &mut Watch { stop_at: Some(stop), ..world.watch() });
            }
            if state == "zeroing" {
                // The state that a zeroing for an earlier spec leaves.
                let mark = format!("{LV_ZEROED_MARK}16");
                tag(&world.machine.fake, &["--addtag", LV_UNZEROED_TAG, "--addtag", &mark]);
            }
            let Wanted::Volume(spec) = world.wanted.clone() else { unreachable!() };
            let nothing = Wanted::Volume(VolumeSpec { image: None, ..spec });
            for (what, wanted) in [("the image", &world.wanted), ("nothing", &nothing)] {
                if state == "zeroing" && what == "nothing" {
                    continue;
                }
                let seen = view(&world.machine.fake.lvm(), &groups()).unwrap();
                let plan = plan(wanted, &seen, id(1));
                let done = words(&plan);
                let kind = if provisioning == Provisioning::Thin { "thin" } else { "thick" };
                writeln!(table, "{kind}, {state} / {what}: {done}").unwrap();
            }
        }
    }
    assert_eq!(table, TABLE);
}

fn tag(fake: &FakeMachine, options: &[&str]) {
    run(fake, &format!("lvchange {} vg0/{}", options.join(" "), name(1)));
}

#[test]
fn what_is_imported_in_part_is_never_taken_for_a_volume_of_zeros() {
    for provisioning in BOTH {
        let world = World::new(ImageFormat::Raw, provisioning);
        let stopped = world.pass(&world.wanted, &mut Watch { piece: Some(1), ..world.watch() });
        assert!(matches!(stopped, Err(Error::Stopped { .. })), "{stopped:?}");
        let Wanted::Volume(spec) = world.wanted.clone() else { unreachable!() };
        let nothing = Wanted::Volume(VolumeSpec { image: None, ..spec });
        world.pass(&nothing, &mut world.watch()).unwrap();
        let seen = view(&world.machine.fake.lvm(), &groups()).unwrap();
        let said = report(&nothing, &seen, id(1));
        assert_eq!(
            (said.phase, plan(&nothing, &seen, id(1)).blocked[0].kind),
            (Phase::Failed, BlockedKind::Birth)
        );
        assert!(said.problems[0].text.contains(LV_IMPORTING_TAG), "{said:?}");
        // The volume can be deleted, and created from its image again.
        world.settle();
        world.check_end(&content(7));
        for _ in 0..2 {
            let seen = view(&world.machine, &groups()).unwrap();
            let doomed = plan(&Wanted::Doomed { export_gone: true }, &seen, id(1));
            apply(&doomed, &world.machine, &world.machine, &mut ()).unwrap();
        }
        assert!(view(&world.machine.fake.lvm(), &groups()).unwrap().lvs_of(id(1)).is_empty());
    }
}

#[test]
fn an_image_that_was_exchanged_in_the_middle_is_the_one_that_is_there() {
    for (format, provisioning) in FORMATS.into_iter().flat_map(|format| BOTH.map(|of| (format, of))) {
        let world = World::new(format, provisioning);
        // A newer spec stops the copy after the first piece, which holds data of the old image.
        let stopped = world.pass(&world.wanted, &mut Watch { piece: Some(1), ..world.watch() });
        assert!(matches!(stopped, Err(Error::Stopped { .. })));
        world.put(&other());
        world.settle();
        world.check_end(&other());
    }
}

/// Writes to the image while it is read.
struct Writer<'a>(&'a World, bool);

impl Observer for Writer<'_> {
    fn done(&mut self, _: Work, _: &str, bytes: u64) -> ControlFlow<()> {
        if bytes > 0 && !std::mem::replace(&mut self.1, true) {
            self.0.put(&other());
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn an_image_that_changes_while_it_is_read_is_read_again() {
    let world = World::new(ImageFormat::Raw, Provisioning::Thick);
    let images = world.images();
    let hands = Hands { commands: &world.machine, blocks: &world.machine, images: Some(&images) };
    let seen = view(&world.machine, &groups()).unwrap();
    let error =
        apply_with(&plan(&world.wanted, &seen, id(1)), hands, &mut Writer(&world, false)).unwrap_err();
    assert!(matches!(error, Error::Image(_)) && error.cure() == Cure::Retry, "{error}");
    let seen = view(&world.machine, &groups()).unwrap();
    assert!(seen.lvs_of(id(1))[0].is_unzeroed() && seen.lvs_of(id(1))[0].is_importing());
    world.settle();
    world.check_end(&other());
}

#[test]
fn nothing_is_made_for_an_image_that_is_refused() {
    let mut backed = FakeImages::qcow2(MIB, b"");
    (backed[15], backed[19]) = (112, 11);
    let large = FakeImages::qcow2(SIZE + 1, b"");
    for provisioning in BOTH {
        for (bytes, why) in [
            (Some(backed.clone()), "backing file"),
            (Some(large.clone()), "make it larger"),
            (None, "is not there"),
        ] {
            let world = World::new(ImageFormat::Qcow2, provisioning);
            let path = world.folder.path().join("image");
            match bytes {
                Some(bytes) => std::fs::write(path, bytes).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            let error = world.pass(&world.wanted, &mut world.watch()).unwrap_err();
            assert_eq!(error.cure(), Cure::Operator);
            let said = mooring_model::Chain(&error).to_string();
            assert!(said.contains(why), "{said}");
            assert_eq!(world.machine.changes.load(Ordering::Relaxed), 0, "nothing was changed");
            assert_eq!(world.machine.fake.images().served(), 0, "no program has seen it");
            // Once the image is acceptable, the copy succeeds by itself.
            world.put(&content(7));
            world.settle();
            world.check_end(&content(7));
        }
    }
    // A host without a folder of images.
    let world = World::new(ImageFormat::Raw, Provisioning::Thick);
    let seen = view(&world.machine, &groups()).unwrap();
    let hands = Hands { commands: &world.machine, blocks: &world.machine, images: None };
    let error = apply_with(&plan(&world.wanted, &seen, id(1)), hands, &mut ()).unwrap_err();
    assert!(error.to_string().contains("images_dir"), "{error}");
    assert_eq!(world.machine.changes.load(Ordering::Relaxed), 0);
}

fn any_case() -> impl Strategy<Value = (ImageFormat, Provisioning)> {
    (prop::sample::select(&FORMATS[..]), prop::sample::select(&BOTH[..]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn images_go_on_from_any_prefix_and_piece(
        (format, provisioning) in any_case(),
        stop in 0_usize..7,
        piece in prop::option::of(0_usize..4),
        reboot in any::<bool>(),
    ) {
        let world = World::new(format, provisioning);
        let _ = world.pass(&world.wanted, &mut Watch { stop_at: Some(stop), piece, ..world.watch() });
        if reboot {
            world.machine.fake.reboot();
        }
        world.settle();
        world.check_end(&content(7));
        let changes = world.machine.changes.load(Ordering::Relaxed);
        world.settle();
        prop_assert_eq!(world.machine.changes.load(Ordering::Relaxed), changes);
    }

    #[test]
    fn images_go_on_past_any_failure(
        (format, provisioning) in any_case(),
        at in 0_u32..12,
        lost in any::<bool>(),
        dies in prop::option::of(0_u64..3),
    ) {
        let world = World::new(format, provisioning);
        world.machine.fail(at, if lost { Fault::After } else { Fault::Before });
        world.machine.fake.images().dies_after(dies);
        if let Err(error) = world.pass(&world.wanted, &mut world.watch()) {
            prop_assert!(error.cure() != Cure::Bug);
        }
        *world.machine.fault.lock().unwrap() = None;
        world.machine.fake.images().dies_after(None);
        world.settle();
        world.check_end(&content(7));
    }
}
