//! Tests of which changes by somebody else are reported, and of which volumes a resync skips.

use mooring_host::fake::PrOut;
use mooring_host::{Noted, Tree};
use mooring_model::Mode;

use super::*;
use crate::engine::cell::{KeptSpec, SpecKind};
use crate::engine::testing::{HOST, Node, eventually};

/// An act of somebody else.
type Act = fn(&Node);

impl Node {
    /// Somebody takes the host's LUN away. No pass begins between the two steps.
    fn unmap(&self) {
        let _state = self.cell.state();
        let (lio, mapped) = (self.fake.lio(), self.path(&format!("acls/{HOST}/lun_1")));
        for entry in lio.list(&mapped).unwrap() {
            if entry.kind == mooring_host::EntryKind::Link {
                lio.unlink(&mapped.join(entry.name)).unwrap();
            }
        }
        lio.rmdir(&mapped).unwrap();
    }

    fn stands(&self) -> bool {
        self.cell.state().knowledge.is_unchanged()
    }

    /// Makes resyncs until the export is watched. Returns their number.
    fn until_watched(&self) -> usize {
        for resyncs in 1..=5 {
            self.resync();
            if self.stands() {
                return resyncs;
            }
        }
        panic!("still not watched");
    }

    /// The kernel's configuration, without its counters.
    fn tree(&self) -> Vec<String> {
        let dump = mooring_host::dump(&self.fake.lio());
        dump.lines().filter(|line| !line.contains("/statistics/")).map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_export_is_left_alone_but_for_one_resync_of_many() {
    let node = Node::new();
    // The look behind the steps that make it begins the watch.
    assert_eq!(node.until_watched(), 1);
    for _ in 0..2 {
        let looks: u64 = (0..LOOKED_AT_EVERY).map(|_| node.resync()).sum();
        assert_eq!(looks, 1, "it has its turn once");
    }
    assert!(node.stands(), "a look that found nothing ends no watch");
}

#[test]
fn shares_are_of_one_size() {
    // Random ids, and ids that people count up.
    let random: Vec<_> = (0..12_700).map(|_| VolumeId::random()).collect();
    let counted: Vec<_> = (0..12_700).map(|n| VolumeId::from_u128((n % 256) << 120 | n << 32)).collect();
    for ids in [random, counted] {
        let mut sizes = vec![0; usize::try_from(LOOKED_AT_EVERY).unwrap()];
        for id in ids {
            sizes[usize::try_from(Share::of(id).0).unwrap()] += 1;
        }
        assert!(sizes.iter().all(|size| (1..150).contains(size)), "{sizes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_does_is_put_right_without_a_resync() {
    let done: [(&str, Act); 6] = [
        ("opened", |node| node.fake.lio().write(&node.protect(), b"0").unwrap()),
        ("disabled", |node| node.fake.lio().write(&node.path("enable"), b"0").unwrap()),
        ("credentials", |node| {
            node.fake.lio().write(&node.path(&format!("acls/{HOST}/auth/userid")), b"other").unwrap();
        }),
        ("unmapped", Node::unmap),
        ("stranger", |node| node.fake.lio().mkdir(&node.path("acls/iqn.2026-01.lab:stranger")).unwrap()),
        ("attribute", |node| node.fake.lio().write(&node.path("attrib/generate_node_acls"), b"1").unwrap()),
    ];
    for (what, act) in done {
        let node = Node::new();
        node.until_watched();
        let (before, passes) = (node.tree(), node.cell.state().turn.passes());
        act(&node);
        eventually(what, || node.cell.state().turn.passes() > passes);
        node.settle();
        assert!(node.tree() == before, "{what}: not put right");
        // The steps that mend it are ours, and wake nobody.
        eventually(what, || node.stands());
        assert!(node.cell.state().turn.passes() <= passes + 3, "{what}");
    }
}

/// A pass that looks at the changed grants only ends the watch, and its steps are told, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_undone_right_after_a_grant_is_put_right_without_a_resync() {
    let node = Node::new();
    node.until_watched();
    node.regrant(Mode::ReadWrite);
    node.engine.wake(&node.cell);
    node.settle();
    let before = node.tree();
    node.fake.lio().write(&node.protect(), b"1").unwrap();
    eventually("it is writable again", || node.tree() == before);
    eventually("it is watched again", || node.stands());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_watched_is_seen_by_a_resync_only() {
    // The control of the tests before.
    let node = Node::new();
    node.fake.set_watches_max(0);
    node.resync();
    let passes = node.cell.state().turn.passes();
    node.fake.lio().write(&node.protect(), b"0").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(node.cell.state().turn.passes(), passes);
    node.resync();
    assert_eq!(node.fake.lio().read_text(&node.protect()).unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_nothing_tells_is_seen_by_a_resync() {
    let node = Node::with(Mode::ReadWrite);
    node.until_watched();
    let session = node.log_in();
    let register = |key| PrOut::Register { key, new: key + 0xab, durable: false };
    node.fake.persistent_reserve(session, 1, register(0)).unwrap();
    assert_eq!(node.resync(), 1, "a pass has taken note of it");
    assert!(node.cell.state().held.said().0.is_some());
    assert!(node.stands(), "the export is as it was");
    // If the pulse knows that no command has come, nothing has registered: no look is made.
    node.engine.feel(&node.cell);
    assert_eq!(node.resync(), 0);
    let said = || node.cell.state().held.said().0;
    let before = said();
    node.fake.persistent_reserve(session, 1, register(0xab)).unwrap();
    assert_eq!((node.resync(), said() == before), (0, true), "the pulse has not come by");
    node.engine.feel(&node.cell);
    assert_eq!((node.resync(), said() == before), (1, false));
    assert_eq!(node.resync(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_more_folders_can_be_watched_every_resync_looks() {
    let node = Node::new();
    node.fake.set_watches_max(3);
    for _ in 0..5 {
        assert_eq!(node.resync(), 1);
        assert!(!node.stands());
    }
    assert!(node.fake.watched_folders() == 0, "what is of no use is not watched");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_more_has_changed_than_was_told_everything_is_looked_at() {
    let node = Node::new();
    node.until_watched();
    let passes = node.cell.state().turn.passes();
    node.fake.lose_folder_changes();
    eventually("it is looked at", || node.cell.state().turn.passes() > passes);
    node.settle();
    assert!(node.stands(), "one look that found nothing, with all folders watched");
}

#[tokio::test(flavor = "multi_thread")]
async fn unexported_volume_is_skipped_until_its_target_or_lv_changes() {
    for ended in [false, true] {
        let node = Node::new();
        {
            // Never exported, or no longer exported.
            let mut state = node.cell.state();
            let tombstone = SpecKind::Tombstone { destroy: false };
            let kept_spec = state.export().cloned().filter(|_| ended);
            state.replace_export(kept_spec.map(|kept_spec| KeptSpec { kind: tombstone, ..kept_spec }));
        }
        for _ in 0..3 {
            node.resync();
        }
        let looks: u64 = (0..LOOKED_AT_EVERY).map(|_| node.resync()).sum();
        assert_eq!(looks, 1, "it has its turn once");
        let target = node.engine.config().iqn_prefix.target(node.cell.id);
        let target = TreePath::new(&format!("iscsi/{target}"));
        node.fake.lio().mkdir(&target).unwrap();
        assert!(node.resync() > 0, "somebody has made its target");
        // An earlier export is taken away; a target that no spec ever named is left as it is.
        assert_eq!(node.fake.lio().list(&target).is_err(), ended);
        if !ended {
            node.fake.lio().rmdir(&target).unwrap();
        }
        for _ in 0..3 {
            node.resync();
        }
        assert_eq!(node.resync(), 0);
        let passes = node.cell.state().turn.passes();
        node.by_hand(&["lvchange", "--activate", "n", &node.lv()]);
        node.engine.look_for_drift();
        node.settle();
        assert!(node.cell.state().turn.passes() > passes, "somebody has changed its LV");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_volume_is_looked_at_by_every_resync() {
    let node = Node::new();
    node.until_watched();
    assert_eq!(node.resync(), 0, "the control");
    if let Some(spec) = node.cell.state().volume_spec_mut() {
        spec.cut = Some(std::time::SystemTime::UNIX_EPOCH);
    }
    for _ in 0..3 {
        assert!(node.resync() > 0, "nobody tells who puts its table back");
    }
}

fn wanted(node: &Node) -> Wanteds {
    let (volume, export) = node.cell.state().specs();
    node.engine.wanted_export(&node.cell, volume.as_ref(), export.as_ref()).unwrap()
}

/// Looks at the whole export, as a pass does. Returns the moment at which the look began.
fn whole_look(node: &Node) -> Moment {
    let wanted = wanted(node);
    let listening = node.engine.begin_watch(&node.cell, &wanted);
    let began = node.cell.state().knowledge.begin_look();
    let before = |folder: &TreePath| listening.watch(folder);
    let view = wanted.look(&Noted::new(node.fake.lio(), before)).unwrap();
    node.engine.end_watch(&node.cell, listening, true);
    assert!(wanted.plan(&view).is_quiet());
    began
}

/// Somebody opens the LUN, and that is told.
fn open_and_tell(node: &Node) {
    node.fake.lio().write(&node.protect(), b"0").unwrap();
    let folders = node.cell.state().knowledge.watched().folders.clone();
    let folders = folders.into_iter().map(|folder| (folder, false)).collect();
    node.engine.note_changes(&FolderChanges { folders, lost: false });
}

/// `Step`: the kernel reports each step of ours, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_ours_is_not_taken_for_a_change_by_somebody_else() {
    let node = Node::new();
    node.until_watched();
    let passes = node.cell.state().turn.passes();
    let folders = node.cell.state().knowledge.watched().folders.clone();
    assert!(!folders.is_empty(), "the control");
    // The whole look has something to do.
    node.cell.state().knowledge.forget(Stale::Swept);
    node.regrant(Mode::ReadWrite);
    node.engine.wake(&node.cell);
    node.settle();
    assert!(node.stands(), "the look behind the step begins the watch");
    let folders = folders.into_iter().map(|folder| (folder, false)).collect();
    node.engine.note_changes(&FolderChanges { folders, lost: false });
    node.settle();
    assert_eq!(node.cell.state().turn.passes(), passes + 1, "nobody else has changed it");
}

/// `NarrowStep`: the kernel reports each step of ours, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_narrow_step_is_not_taken_for_a_change_by_somebody_else() {
    let node = Node::new();
    node.until_watched();
    let passes = node.cell.state().turn.passes();
    // The look that follows the narrow pass is left out.
    node.cell.state().knowledge.watched_mut().look_is_planned = true;
    node.regrant(Mode::ReadWrite);
    node.engine.wake(&node.cell);
    node.settle();
    node.engine.note_changes(&FolderChanges { lost: true, ..FolderChanges::default() });
    node.settle();
    assert_eq!(node.cell.state().turn.passes(), passes + 1, "nobody else has changed it");
}

/// `FoundOtherwise`: the pass that a look has woken must not be narrow.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_callers_look_finds_changed_is_put_right() {
    let node = Node::new();
    // Only the caller's look sees it.
    node.fake.set_watches_max(0);
    node.resync();
    node.fake.lio().write(&node.protect(), b"0").unwrap();
    node.engine.status(node.cell.id).await.unwrap();
    node.settle();
    assert_eq!(node.fake.lio().read_text(&node.protect()).unwrap(), "1");
}

/// `ExportTold`: a change behind the read of a look is told before the look has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_a_change_overtakes_begins_no_watch() {
    for changed in [false, true] {
        let node = Node::new();
        node.until_watched();
        {
            let mut state = node.cell.state();
            state.knowledge.watched_mut().look_is_planned = true;
            state.knowledge.forget(Stale::NarrowStep);
        }
        let began = whole_look(&node);
        if changed {
            open_and_tell(&node);
        }
        node.engine.watch_export(&node.cell, began);
        assert_eq!(node.stands(), !changed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_a_change_overtakes_is_followed_by_another() {
    let node = Node::new();
    node.until_watched();
    node.cell.state().knowledge.forget(Stale::NarrowStep);
    let began = whole_look(&node);
    open_and_tell(&node);
    assert!(!node.stands(), "the control: nobody wakes a pass for it");
    node.engine.watch_export(&node.cell, began);
    eventually("it is put right", || {
        node.fake.lio().read_text(&node.protect()).is_ok_and(|mode| mode == "1")
    });
    eventually("it is watched", || node.stands());
}

/// `OtherFolders`: of folders that are not watched any more nothing is told.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_with_a_folder_that_is_gone_counts_as_watched_no_longer() {
    for is_gone in [true, false] {
        let node = Node::new();
        node.until_watched();
        let wanted = wanted(&node);
        let listening = node.engine.begin_watch(&node.cell, &wanted);
        listening.watch(&node.path(&format!("acls/{HOST}")));
        if is_gone {
            listening.watch(&node.path("acls/iqn.2026-01.lab:gone"));
        }
        // Otherwise the look fails in its midst.
        node.engine.end_watch(&node.cell, listening, is_gone);
        assert!(!node.stands());
        assert_eq!(node.fake.watched_folders(), usize::from(!is_gone));
        assert!(node.resync() > 0, "a resync looks at it");
        assert!(node.stands());
    }
}
