//! Marks: tags on the LV that say how far a copy has come, and of which file. After a crash the
//! copy resumes at its mark, and copies nothing before the last mark again. A mark of another file,
//! of another time or without a meaning is never believed.

use std::sync::atomic::Ordering;

use mooring_agent::config::Wipe;
use mooring_agent::lvm::{self, Copied, Error, Wanted, apply, plan, view};
use mooring_host::BlockDevices;
use mooring_model::{
    ByteSize, ImageFormat, LV_COPIED_MARK, LV_IMPORTING_TAG, LV_UNZEROED_TAG, Plan, Provisioning,
};

use super::super::{id, name, words};
use super::{BOTH, FORMATS, MARKED, PIECE, SIZE, Watch, World, content, groups, other, tag};
use crate::volumes_machine::Fault;

/// Stops after this number of pieces, and leaves nothing in memory.
fn stop(world: &World, pieces: usize) {
    let stopped = world.pass(&world.wanted, &mut Watch { piece: Some(pieces), ..world.watch() });
    assert!(matches!(stopped, Err(Error::Stopped { .. })), "{stopped:?}");
}

fn tags(world: &World) -> Vec<String> {
    view(&world.machine.fake.lvm(), &groups()).unwrap().lvs_of(id(1))[0].tags.iter().cloned().collect()
}

/// Returns the tag that says how far the copy has come.
fn mark(world: &World) -> String {
    let marks: Vec<_> = tags(world).into_iter().filter(|tag| tag.starts_with(LV_COPIED_MARK)).collect();
    assert_eq!(marks.len(), 1, "{marks:?}");
    marks[0].clone()
}

/// Runs the next agent until the volume has this content. Returns the offset where it began to
/// copy.
fn goes_on_at(world: &World, content: &[u8]) -> u64 {
    let mut watch = world.watch();
    world.pass(&world.wanted, &mut watch).unwrap();
    let began = watch.done[0];
    world.settle();
    world.check_end(content);
    began
}

/// Each format with one kind of volume.
fn cases() -> impl Iterator<Item = (ImageFormat, Provisioning)> {
    FORMATS.into_iter().zip(BOTH)
}

#[test]
fn killed_around_any_change_only_the_last_piece_is_copied_twice() {
    for (format, provisioning) in cases() {
        let mut kills = 0;
        for at in 0.. {
            let mut died = false;
            for fault in [Fault::Before, Fault::After] {
                let world = World::new(format, provisioning);
                world.machine.fail(at, fault);
                let mut watch = Watch { killed: Some(at), ..world.watch() };
                died |= world.pass(&world.wanted, &mut watch).is_err();
                let came = watch.done.last().copied().unwrap_or(0);
                // The last piece may have been written without a report of its progress.
                let most = came.saturating_sub(MARKED)..=came + PIECE;
                *world.machine.fault.lock().unwrap() = None;
                let mut watch = world.watch();
                let again = world.pass(&world.wanted, &mut watch);
                again.unwrap();
                if let Some(began) = watch.done.first() {
                    assert!(most.contains(began), "{format} {at} {fault:?}: at {began} and not in {most:?}");
                }
                world.settle();
                world.check_end(&content(7));
            }
            if !died {
                break;
            }
            kills += 1;
        }
        // Creating the LV, four pieces with a mark after each but the last, and the end. A thin
        // volume also has a pool, and needs no zeros.
        let expected = if provisioning == Provisioning::Thin { 2 + 2 + 3 + 1 } else { 1 + 4 + 3 + 1 };
        assert_eq!(kills, expected, "{format} {provisioning:?}");
    }
}

#[test]
fn it_goes_on_at_the_mark_and_nothing_of_it_is_left_in_the_end() {
    for (format, provisioning) in cases() {
        let world = World::new(format, provisioning);
        stop(&world, 3);
        let tag = mark(&world);
        assert!(tag.ends_with("-6") && tag.starts_with(&format!("{LV_COPIED_MARK}{format}:")), "{tag}");
        assert_eq!(tags(&world).len(), 4, "{:?}", tags(&world));
        assert_eq!(goes_on_at(&world, &content(7)), 3 * PIECE);
    }
}

#[test]
fn of_a_file_that_was_changed_or_exchanged_nothing_is_believed() {
    for (format, provisioning) in cases() {
        let world = World::new(format, provisioning);
        stop(&world, 3);
        let was = mark(&world);
        world.put(&other());
        assert_eq!(goes_on_at(&world, &other()), 0, "another one under the name");
        // The first file is restored after a part of the other was copied: its mark was removed
        // before that.
        let world = World::new(format, provisioning);
        let (path, aside) = (world.folder.path().join("image"), world.folder.path().join("aside"));
        stop(&world, 3);
        std::fs::rename(&path, &aside).unwrap();
        world.put(&other());
        stop(&world, 2);
        assert!(mark(&world).ends_with("-4") && mark(&world) != was);
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(goes_on_at(&world, &content(7)), 0, "{format}");
        // The control: a first file that is restored before anything else was copied keeps its
        // mark.
        let world = World::new(format, provisioning);
        let (path, aside) = (world.folder.path().join("image"), world.folder.path().join("aside"));
        stop(&world, 3);
        std::fs::rename(&path, &aside).unwrap();
        world.pass(&world.wanted, &mut world.watch()).unwrap_err();
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(goes_on_at(&world, &content(7)), 3 * PIECE, "{format}");
    }
}

#[test]
fn killed_around_a_change_of_file_no_mark_of_the_first_file_is_believed() {
    for fault in [Fault::Before, Fault::After] {
        for at in 0..6 {
            let world = World::new(ImageFormat::Raw, Provisioning::Thick);
            let (path, aside) = (world.folder.path().join("image"), world.folder.path().join("aside"));
            stop(&world, 3);
            std::fs::rename(&path, &aside).unwrap();
            world.put(&other());
            world.machine.fail(at, fault);
            let killed = Some(world.machine.changes.load(Ordering::Relaxed) + at);
            let _ = world.pass(&world.wanted, &mut Watch { killed, ..world.watch() });
            *world.machine.fault.lock().unwrap() = None;
            std::fs::rename(&aside, &path).unwrap();
            let began = goes_on_at(&world, &content(7));
            // Nothing else was copied before the mark was removed.
            let kept = at == 0 && fault == Fault::Before;
            assert_eq!(began, if kept { 3 * PIECE } else { 0 }, "{at} {fault:?}");
        }
    }
}

#[test]
fn what_is_no_mark_of_this_file_is_not_believed() {
    for (format, provisioning) in cases() {
        let other = if format == ImageFormat::Raw { "qcow2" } else { "raw" };
        for (bad, is_a_mark) in [
            // Beyond the LV.
            ("OF-9", true),
            ("OF-17592186044416", true),
            // Another format, another state of the file, another file.
            ("OTHER-6", true),
            ("OF1-6", true),
            ("mooring-copied-x-6", true),
            // Not written as marks are.
            ("OF-06", false),
            ("OF-+6", false),
            ("OF-x", false),
            ("OF-", false),
            ("OF", false),
            ("mooring-copied-/-6", false),
            (LV_COPIED_MARK, false),
        ] {
            let world = World::new(format, provisioning);
            stop(&world, 0);
            let of = of_file(&world);
            let bad = bad.replace("OF", &of).replace("OTHER", &of.replace(&format.to_string(), other));
            tag(&world.machine.fake, &["--addtag", &bad]);
            let mut watch = Watch { piece: Some(1), ..world.watch() };
            assert!(matches!(world.pass(&world.wanted, &mut watch), Err(Error::Stopped { .. })));
            assert_eq!(watch.done[0], 0, "{bad}");
            assert_eq!(tags(&world).contains(&bad), !is_a_mark, "{bad}");
            tag(&world.machine.fake, &["--deltag", &bad]);
            assert_eq!(goes_on_at(&world, &content(7)), PIECE);
        }
        // The control.
        let world = World::new(format, provisioning);
        stop(&world, 3);
        tag(&world.machine.fake, &["--deltag", &mark(&world), "--addtag", &format!("{}-4", of_file(&world))]);
        assert_eq!(goes_on_at(&world, &content(7)), 2 * PIECE);
    }
}

/// Returns the beginning of every mark of this world's file.
fn of_file(world: &World) -> String {
    let image = world.image();
    let open = world.images().open(&image, ByteSize(SIZE)).unwrap();
    format!("{LV_COPIED_MARK}{}", open.identity())
}

#[test]
fn a_mark_without_its_tag_or_of_the_time_before_is_not_believed_and_goes() {
    for provisioning in BOTH {
        // A volume with data carries a true mark of its own import. It is to be imported into as if
        // it were new.
        let world = World::new(ImageFormat::Raw, provisioning);
        world.settle();
        let old = format!("{}-6", of_file(&world));
        let path = lvm::device_path("vg0", &name(1));
        world.machine.fake.blocks().write(&path, 0, &vec![0xee; 2 << 20]).unwrap();
        tag(&world.machine.fake, &["--addtag", LV_UNZEROED_TAG, "--addtag", &old]);
        let seen = view(&world.machine, &groups()).unwrap();
        assert_eq!(words(&plan(&world.wanted, &seen, id(1))), "forget mark importing import imported");
        assert_eq!(goes_on_at(&world, &content(7)), 0);
        // The control: with the tag of an import, the mark is believed.
        tag(
            &world.machine.fake,
            &["--addtag", LV_UNZEROED_TAG, "--addtag", LV_IMPORTING_TAG, "--addtag", &old],
        );
        assert_eq!(goes_on_at(&world, &content(7)), 3 * PIECE);
    }
}

#[test]
fn a_deletion_leaves_no_mark_to_go_on_from() {
    for wipe in [Wipe::Zero, Wipe::Discard, Wipe::None] {
        for steps in 0..4 {
            let mut world = World::new(ImageFormat::Raw, Provisioning::Thick);
            world.machine.groups[0].wipe = wipe;
            world.machine.fake.lvm().set_discards("vg0", true);
            stop(&world, 3);
            let doomed = Wanted::Doomed { export_gone: true };
            let seen = view(&world.machine, &world.machine.groups).unwrap();
            let planned = plan(&doomed, &seen, id(1));
            let expected = match wipe {
                Wipe::Zero => "forget zero remove",
                Wipe::Discard => "forget discard remove",
                Wipe::None => "remove",
            };
            assert_eq!(words(&planned), expected);
            let short = Plan { steps: planned.steps.into_iter().take(steps).collect(), blocked: Vec::new() };
            apply(&short, &world.machine, &world.machine, &mut ()).unwrap();
            // The deletion is cancelled: the spec is now the volume with its whole image.
            let began = goes_on_at(&world, &content(7));
            assert_eq!(began, if steps == 0 { 3 * PIECE } else { 0 }, "{wipe:?} {steps}");
        }
    }
}

#[test]
fn a_mark_that_fails_costs_nothing_but_time() {
    let world = World::new(ImageFormat::Raw, Provisioning::Thick);
    stop(&world, 1);
    world.machine.fake.lvm().fail_next("lvchange", 5, "  Cannot change VG vg0 while PVs are missing.\n");
    stop(&world, 1);
    assert!(mark(&world).ends_with("-2"));
    assert_eq!(goes_on_at(&world, &content(7)), PIECE);
}

#[test]
fn a_tag_is_read_as_it_is_written_and_no_other_one() {
    let world = World::new(ImageFormat::Raw, Provisioning::Thick);
    stop(&world, 2);
    let seen = view(&world.machine, &groups()).unwrap();
    let copied: Vec<Copied> = seen.lvs_of(id(1))[0].copied();
    assert_eq!(copied.iter().map(ToString::to_string).collect::<Vec<_>>(), [mark(&world)]);
}
