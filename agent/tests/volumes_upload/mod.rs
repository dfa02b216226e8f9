//! Volumes that are copied to files: the steps, and the laws. From any prefix and past any kill,
//! the file is whole under its name, or absent. An existing file is never touched. Nothing is left
//! of a copy that failed or left the spec. The LV is only read.

use std::ops::ControlFlow;
use std::sync::Arc;

use mooring_agent::config::Wipe;
use mooring_agent::images::{Images, PartId, SeenPart};
use mooring_agent::lvm::{
    self, Error, Hands, LvId, Observer, VolumeOp, Wanted, Work, apply, apply_with, plan, plan_upload, view,
};
use mooring_host::BlockDevices;
use mooring_host::fake::{FakeImages, FakeMachine, PartDeath};
use mooring_model::{
    ByteSize, Chain, ImageFormat, ImageSource, Provisioning, Step, Upload, UploadId, VolumeSpec,
};

use super::{MIB, group, id, name, words};
use crate::volumes_machine::Machine;

const SIZE: u64 = 8 * MIB;

/// Size of a piece: small, so that a copy has several.
const PIECE: u64 = 2 * MIB;

const FORMATS: [ImageFormat; 2] = [ImageFormat::Raw, ImageFormat::Qcow2];

struct World {
    folder: tempfile::TempDir,
    machine: Machine,
    upload: Upload,
}

/// Distance between marks: one after each piece but the last.
const MARKED: u64 = PIECE;

/// Number of changes: creating the part, four pieces with three marks, finishing, naming.
const CHANGES: u64 = 10;

/// Content of the volume: data, zeros, and data at its very end.
fn content() -> Vec<u8> {
    let mut all = vec![0; 8 << 20];
    all[..3 << 20].fill(7);
    all[(8 << 20) - 1] = 9;
    all
}

impl World {
    fn new(format: ImageFormat) -> Self {
        let fake = FakeMachine::new();
        fake.add_vg("vg0", 1024 * MIB);
        let machine = Machine::new(&fake, vec![group("vg0", 0, Wipe::Zero)]);
        let image = ImageSource { name: "new.img".parse().unwrap(), format };
        let upload = Upload { image, id: UploadId::from_u128(5) };
        let world = Self { folder: tempfile::tempdir().unwrap(), machine, upload };
        world.make();
        world
    }

    /// Creates the volume, and writes to it.
    fn make(&self) {
        let (machine, fake) = (&self.machine, &self.machine.fake);
        let wanted = Wanted::Volume(VolumeSpec::new(
            id(1),
            "vg0".parse().unwrap(),
            ByteSize(SIZE),
            Provisioning::Thick,
        ));
        let made = plan(&wanted, &view(machine, &machine.groups).unwrap(), id(1));
        apply(&made, machine, machine, &mut ()).unwrap();
        let path = lvm::device_path("vg0", &name(1));
        for (offset, piece) in (0..).step_by(2 << 20).zip(content().chunks(2 << 20)) {
            fake.blocks().write(&path, offset, piece).unwrap();
        }
    }

    /// Images as a newly started agent has them.
    fn images(&self) -> Images {
        let folder = self.folder.path().to_owned();
        Images::new(folder.clone(), &folder, Arc::new(self.programs()))
    }

    fn programs(&self) -> FakeImages {
        self.machine.fake.images()
    }

    fn part(&self) -> PartId {
        PartId { volume: id(1), upload: self.upload.id }
    }

    /// Looks, plans and applies.
    fn pass(&self, images: &Images, watch: &mut Watch<'_>) -> Result<String, Error> {
        let lv = LvId { group: "vg0".parse().unwrap(), name: mooring_model::LvName::of(id(1)) };
        let seen = images.look_for(id(1), &self.upload)?;
        let plan = plan_upload(self.part(), (&lv, ByteSize(SIZE)), &self.upload, seen);
        let hands = Hands { commands: &self.machine, blocks: &self.machine, images: Some(images) };
        apply_with(&plan, hands, watch).map(|()| words(&plan))
    }

    fn watch(&self) -> Watch<'_> {
        Watch { world: self, stop_at: None, steps: 0, piece: None, pieces: 0, done: Vec::new() }
    }

    fn names(&self) -> Vec<String> {
        let all = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Asserts that the file is whole or does not have its name yet, and that the LV is unchanged.
    fn check(&self) {
        if let Ok(bytes) = std::fs::read(self.folder.path().join("new.img")) {
            let whole = match self.upload.image.format {
                ImageFormat::Raw => bytes == content(),
                ImageFormat::Qcow2 => {
                    let whole = FakeImages::qcow2(SIZE, &content());
                    bytes == whole
                }
            };
            assert!(whole, "it has its name and is not whole");
        }
        let lv = self.machine.fake.blocks().contents(lvm::device_path("vg0", &name(1)));
        assert!(lv == content(), "the LV was written to");
    }

    /// Asserts that the copy is complete, and stays when its part is removed from the spec.
    fn check_end(&self, images: &Images) {
        assert_eq!(images.look_for(id(1), &self.upload).unwrap().part, SeenPart::Whole);
        assert_eq!(self.pass(images, &mut self.watch()).unwrap(), "-");
        for part in images.parts().unwrap() {
            assert_eq!(part, self.part());
            self.programs().dies(None);
            mooring_host::ImageServers::remove_part(&self.programs(), self.folder.path(), &part.to_string())
                .unwrap();
        }
        self.check();
        assert_eq!(self.names(), ["new.img"]);
    }
}

struct Watch<'a> {
    world: &'a World,
    stop_at: Option<usize>,
    steps: usize,
    piece: Option<usize>,
    pieces: usize,
    /// Progress in bytes at each report.
    done: Vec<u64>,
}

impl Observer for Watch<'_> {
    fn before(&mut self, _: usize, _: &Step<VolumeOp>) -> ControlFlow<()> {
        self.world.check();
        if self.stop_at == Some(self.steps) {
            return ControlFlow::Break(());
        }
        self.steps += 1;
        ControlFlow::Continue(())
    }

    fn after(&mut self, _: usize, _: &Step<VolumeOp>) {
        self.world.check();
    }

    fn piece(&mut self, _: Work, most: u64) -> u64 {
        most.min(PIECE)
    }

    fn mark_every(&mut self, every: u64) -> u64 {
        assert_eq!(every, lvm::MARK_BYTES);
        MARKED
    }

    fn done(&mut self, work: Work, _: &str, bytes: u64) -> ControlFlow<()> {
        assert_eq!(work, Work::Export);
        self.world.check();
        self.done.push(bytes);
        self.pieces += 1;
        if self.piece.is_some_and(|piece| self.pieces > piece) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn a_volume_becomes_a_file_in_both_formats() {
    for format in FORMATS {
        let world = World::new(format);
        let images = world.images();
        assert_eq!(world.pass(&images, &mut world.watch()).unwrap(), "make copy name");
        world.check_end(&images);
        // The file has holes where the volume has zeros.
        if format == ImageFormat::Raw {
            let meta = std::fs::metadata(world.folder.path().join("new.img")).unwrap();
            let used = std::os::unix::fs::MetadataExt::blocks(&meta) * 512;
            assert!((3 * MIB..4 * MIB).contains(&used), "{used} bytes are used");
        }
    }
}

#[test]
fn killed_around_any_change_an_image_is_whole_or_absent() {
    for format in FORMATS {
        let mut deaths = 0;
        for at in 1.. {
            let mut died = false;
            for death in [PartDeath::Before(at), PartDeath::After(at)] {
                let world = World::new(format);
                world.programs().dies(Some(death));
                let mut watch = world.watch();
                died |= world.pass(&world.images(), &mut watch).is_err();
                let came = watch.done.last().copied().unwrap_or(0);
                world.check();
                world.programs().dies(None);
                let left = world.images();
                let seen = left.look_for(id(1), &world.upload).unwrap();
                let mut watch = world.watch();
                let planned = world.pass(&left, &mut watch).unwrap();
                let expected = match seen.part {
                    SeenPart::Whole => "-",
                    SeenPart::Left => "remove make copy name",
                    SeenPart::Marked => "go on copy name",
                    _ => "make copy name",
                };
                assert_eq!(planned, expected, "{death:?}");
                if let Some(began) = watch.done.first() {
                    assert!(came.saturating_sub(*began) <= MARKED, "{death:?}: {began} of {came}");
                    assert_eq!(*began > 0, seen.part == SeenPart::Marked);
                }
                assert_eq!(world.programs().untrue_marks(), 0, "{death:?}");
                world.check_end(&left);
            }
            if !died {
                break;
            }
            deaths += 1;
        }
        assert_eq!(deaths, CHANGES);
    }
}

#[test]
fn killed_around_any_change_and_out_of_the_spec_only_whole_images_stay() {
    for format in FORMATS {
        for at in 1..=CHANGES {
            for death in [PartDeath::Before(at), PartDeath::After(at)] {
                let world = World::new(format);
                world.programs().dies(Some(death));
                world.pass(&world.images(), &mut world.watch()).unwrap_err();
                world.programs().dies(None);
                for part in world.images().parts().unwrap() {
                    let of = part.to_string();
                    mooring_host::ImageServers::remove_part(&world.programs(), world.folder.path(), &of)
                        .unwrap();
                }
                world.check();
                let whole: &[&str] = if death == PartDeath::After(CHANGES) { &["new.img"] } else { &[] };
                assert_eq!(world.names(), whole, "{death:?}");
            }
        }
    }
}

#[test]
fn what_is_stopped_for_something_newer_goes_on_where_it_was() {
    for format in FORMATS {
        for piece in 0..=4 {
            let world = World::new(format);
            let images = world.images();
            let stopped = world.pass(&images, &mut Watch { piece: Some(piece), ..world.watch() });
            assert!(matches!(stopped, Err(Error::Stopped { .. })), "{stopped:?}");
            let mut watch = world.watch();
            assert_eq!(world.pass(&images, &mut watch).unwrap(), "copy name");
            assert_eq!(watch.pieces, 5 - piece, "the others were copied before");
            world.check_end(&images);
        }
        for step in 0..3 {
            let world = World::new(format);
            let images = world.images();
            world.pass(&images, &mut Watch { stop_at: Some(step), ..world.watch() }).unwrap_err();
            world.pass(&images, &mut world.watch()).unwrap();
            world.check_end(&images);
        }
    }
}

/// The world that an agent leaves when it is killed after three pieces.
fn left(format: ImageFormat) -> World {
    let world = World::new(format);
    let stopped = world.pass(&world.images(), &mut Watch { piece: Some(3), ..world.watch() });
    assert!(matches!(stopped, Err(Error::Stopped { .. })), "{stopped:?}");
    world
}

/// Returns the steps of the next agent, and the offset where it begins to copy.
fn goes_on(world: &World) -> (String, u64) {
    let (images, mut watch) = (world.images(), world.watch());
    let done = world.pass(&images, &mut watch).unwrap();
    world.check_end(&images);
    (done, watch.done[0])
}

#[test]
fn what_is_on_the_disk_is_not_copied_again() {
    for format in FORMATS {
        let world = left(format);
        assert_eq!(world.programs().puts(), 3);
        assert_eq!(goes_on(&world), ("go on copy name".to_owned(), 3 * PIECE), "{format}");
        assert_eq!((world.programs().puts(), world.programs().untrue_marks()), (4, 0), "the last piece");
    }
}

#[test]
fn what_is_not_as_its_mark_says_is_begun_anew() {
    type Spoil = fn(&World, &std::path::Path, &std::path::Path);
    let anew: [(&str, &str, Spoil); 9] = [
        ("no mark", "remove make copy name", |_, _, mark| std::fs::remove_file(mark).unwrap()),
        ("an empty mark", "remove make copy name", |_, _, mark| std::fs::write(mark, b"").unwrap()),
        ("a mark of anything", "remove make copy name", |_, _, mark| {
            std::fs::write(mark, [b'7'; 512]).unwrap();
        }),
        ("another number in the mark", "remove make copy name", |_, _, mark| {
            let said = String::from_utf8(std::fs::read(mark).unwrap()).unwrap();
            std::fs::write(mark, said.replace(" 6291456 ", " 8388608 ")).unwrap();
        }),
        ("a part that was cut off", "go on copy name", |_, part, _| {
            let part = std::fs::OpenOptions::new().write(true).open(part).unwrap();
            part.set_len(5 * MIB).unwrap();
        }),
        ("a part that is longer", "go on copy name", |_, part, _| {
            let part = std::fs::OpenOptions::new().write(true).open(part).unwrap();
            part.set_len(20 * MIB).unwrap();
        }),
        ("no part", "go on copy name", |_, part, _| std::fs::remove_file(part).unwrap()),
        ("a part that has another name as well", "go on copy name", |world, part, _| {
            std::fs::hard_link(part, world.folder.path().join("theirs")).unwrap();
        }),
        ("another LV under the name", "go on copy name", |world, _, _| {
            crate::volumes_machine::run(
                &world.machine.fake,
                &format!("lvremove --yes --force vg0/{}", name(1)),
            );
            world.make();
        }),
    ];
    for format in FORMATS {
        for (what, planned, spoil) in anew {
            let world = left(format);
            let of = world.part().to_string();
            let file = |ends| world.folder.path().join(format!(".mooring-{of}.{ends}"));
            spoil(&world, &file("part"), &file("mark"));
            let theirs = world.folder.path().join("theirs");
            let before = std::fs::read(&theirs).ok();
            let (images, mut watch) = (world.images(), world.watch());
            assert_eq!(world.pass(&images, &mut watch).unwrap(), planned, "{what}");
            assert_eq!(watch.done[0], 0, "{what}");
            assert!(before == std::fs::read(&theirs).ok(), "it was written to under another name");
            if before.is_some() {
                std::fs::remove_file(theirs).unwrap();
            }
            world.check_end(&images);
        }
        // The control: the part as the agent left it.
        assert_eq!(goes_on(&left(format)).1, 3 * PIECE);
    }
}

#[test]
fn a_name_that_is_taken_is_refused_before_anything_is_made() {
    for format in FORMATS {
        let world = World::new(format);
        std::fs::write(world.folder.path().join("new.img"), b"theirs").unwrap();
        let seen = world.images().look_for(id(1), &world.upload).unwrap();
        let lv = LvId { group: "vg0".parse().unwrap(), name: mooring_model::LvName::of(id(1)) };
        let plan = plan_upload(world.part(), (&lv, ByteSize(SIZE)), &world.upload, seen);
        assert_eq!(words(&plan), "Foreign");
        assert!(plan.blocked[0].why.contains("new.img exists already"), "{}", plan.blocked[0].why);
        assert_eq!(world.names(), ["new.img"]);
        // A file that appears meanwhile stays, too, and the part goes.
        std::fs::remove_file(world.folder.path().join("new.img")).unwrap();
        let images = world.images();
        world.pass(&images, &mut Watch { piece: Some(2), ..world.watch() }).unwrap_err();
        let lvs = world.images();
        assert_eq!(lvs.look_for(id(1), &world.upload).unwrap().part, SeenPart::Marked);
        let late = Late { world: &world };
        let hands = Hands { commands: &world.machine, blocks: &world.machine, images: Some(&images) };
        let seen = images.look_for(id(1), &world.upload).unwrap();
        let plan = plan_upload(world.part(), (&lv, ByteSize(SIZE)), &world.upload, seen);
        let error = apply_with(&plan, hands, &mut { late }).unwrap_err();
        assert!(Chain(&error).to_string().contains("is there already"), "{}", Chain(&error));
        assert_eq!(world.names(), ["new.img"]);
        assert_eq!(std::fs::read(world.folder.path().join("new.img")).unwrap(), b"theirs");
    }
}

/// Creates a file of that name before the last step.
struct Late<'a> {
    world: &'a World,
}

impl Observer for Late<'_> {
    fn before(&mut self, _: usize, step: &Step<VolumeOp>) -> ControlFlow<()> {
        if step.op.to_string().starts_with("name ") {
            std::fs::write(self.world.folder.path().join("new.img"), b"theirs").unwrap();
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn what_fails_says_why_and_leaves_nothing() {
    for format in FORMATS {
        for room in [0, PIECE, 3 * PIECE] {
            let world = World::new(format);
            let images = world.images();
            world.programs().set_room(Some(room));
            let error = world.pass(&images, &mut world.watch()).unwrap_err();
            let said = Chain(&error).to_string();
            assert!(said.contains("is full") && said.contains("make room"), "{said}");
            assert_eq!(error.cure(), mooring_model::Cure::Operator);
            assert_eq!(world.names(), Vec::<String>::new());
            // The control: with enough room the copy succeeds.
            world.programs().set_room(None);
            world.pass(&images, &mut world.watch()).unwrap();
            world.check_end(&images);
        }
    }
    let world = World::new(ImageFormat::Qcow2);
    world.programs().set_missing(true);
    let error = world.pass(&world.images(), &mut world.watch()).unwrap_err();
    assert!(Chain(&error).to_string().contains("install the package qemu-utils"), "{}", Chain(&error));
    assert_eq!(world.names(), Vec::<String>::new());
}
