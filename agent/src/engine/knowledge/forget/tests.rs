//! Tests of what each reason forgets, and of looks that end late.

use mooring_model::{ByteSize, VolumeReport};
use mooring_targets::Known;

use super::*;
use crate::engine::testing::{Node, eventually};
use crate::engine::volume::preflight::KeptLook;
use crate::lvm::{self, VolumesView};
use crate::object::seen::{Moment, Seen};

#[test]
fn each_reason_is_listed_once_under_a_name_of_its_own() {
    for (at, (reason, name)) in Stale::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, at, "{name}");
        assert_eq!(Stale::named(name), Some(reason));
    }
    assert_eq!(Stale::named("no such reason"), None);
}

#[cfg(feature = "faults")]
#[path = "../../../../tests/api/stale.rs"]
mod stale;

#[cfg(feature = "faults")]
#[test]
fn each_reason_has_a_row_whose_test_sees_it_switched_off() {
    let rows: Vec<_> = stale::rows().into_iter().map(|row| row.reason).collect();
    assert_eq!(rows, Stale::ALL.map(|(_, name)| name));
    // The others are in the tests `api`, which run them.
    let (count, unseen) = stale::unseen(|module| module != "fencing");
    assert_eq!((count, unseen), (rows.len() - 2, Vec::new()));
}

/// Observations of one volume that these tests learn, beside that its export is unchanged.
struct Learnt {
    ready: VolumeReport,
    /// The LV as a look shows it that ends late.
    late: VolumeReport,
    known: Known,
    view: VolumesView,
}

impl Learnt {
    fn of(node: &Node) -> Self {
        let mut state = node.cell.state();
        let ready = state.knowledge.ready().cloned().expect("LVM has shown it");
        let known = state.knowledge.take_known().expect("the kernel has shown it").into_value();
        let view = lvm::view(&node.fake.lvm(), &node.engine.config().groups).unwrap();
        Self { late: VolumeReport { size: ByteSize(1), ..ready.clone() }, ready, known, view }
    }

    fn learn(&self, knowledge: &mut Knowledge, began: Moment, ready: &VolumeReport) {
        knowledge.learn_ready(Seen::new(began, ready.clone()));
        knowledge.learn_looked(Seen::new(began, self.view.clone()));
        knowledge.learn_kept_look(Seen::new(began, KeptLook::of(self.view.clone())));
        knowledge.learn_known(Seen::new(began, self.known.clone()));
        knowledge.learn_unchanged(began);
    }
}

/// The observations that are held.
fn held(knowledge: &Knowledge) -> Vec<Observation> {
    let held = [
        (Observation::Ready, knowledge.ready().is_some()),
        (Observation::Looked, knowledge.looked.get().is_some()),
        (Observation::KeptLook, knowledge.kept_look.get().is_some()),
        (Observation::Known, knowledge.known.get().is_some()),
        (Observation::Unchanged, knowledge.is_unchanged()),
    ];
    held.into_iter().filter(|(_, held)| *held).map(|(observation, _)| observation).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observation_ends_with_its_reasons_and_so_does_a_look_at_work() {
    let node = Node::new();
    node.resync();
    let learnt = Learnt::of(&node);
    for (reason, name) in Stale::ALL {
        let falsifies = |observation| reason.falsifies().contains(&observation);
        let mut knowledge = Knowledge::default();
        let began = knowledge.begin_look();
        learnt.learn(&mut knowledge, began, &learnt.ready);
        let all = held(&knowledge);
        assert_eq!(all.len(), 5, "{name}: the control");
        knowledge.forget(reason);
        let left: Vec<_> = all.iter().copied().filter(|observation| !falsifies(*observation)).collect();
        assert_eq!(held(&knowledge), left, "{name}");
        // The observation of a look that began before.
        learnt.learn(&mut knowledge, began, &learnt.late);
        assert_eq!(held(&knowledge), left, "{name}: a late look");
        let refused = falsifies(Observation::Ready) || falsifies(Observation::LooksForReady);
        assert_eq!(knowledge.ready() != Some(&learnt.late), refused, "{name}: a late look for ready");
        let began = knowledge.begin_look();
        learnt.learn(&mut knowledge, began, &learnt.late);
        assert_eq!(held(&knowledge), all, "{name}: the next look");
        assert_eq!(knowledge.ready(), Some(&learnt.late), "{name}: the next look for ready");
    }
}

/// A sweep looks at LVM for many volumes, and its look may end long behind that of a pass which
/// began later.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_ends_late_does_not_undo_a_later_one() {
    let node = Node::new();
    node.resync();
    let ready = node.cell.state().knowledge.ready().cloned().expect("LVM has shown it");
    let ends = |looks: [(usize, bool); 2]| {
        let mut knowledge = Knowledge::default();
        let began = [(); 2].map(|()| knowledge.begin_look());
        for (look, shows) in looks {
            let shown = shows.then(|| ready.clone());
            knowledge.learn_if_ready(began[look], shown, Stale::LvNotReady);
        }
        knowledge.ready().is_some()
    };
    // Somebody made the volume after the first look, or it has gone; the looks end in either
    // order.
    assert!(ends([(0, false), (1, true)]) && ends([(1, true), (0, false)]));
    assert!(!ends([(0, true), (1, false)]) && !ends([(1, false), (0, true)]));
}

/// While a step of ours is at work, a look may show half of it: the observation before it
/// stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_lvm_beside_a_step_is_refused() {
    let node = Node::new();
    node.resync();
    let mut state = node.cell.state();
    let before = state.knowledge.ready().cloned().expect("LVM has shown it");
    let began = state.knowledge.begin_look();
    state.knowledge.forget(Stale::VolumeStep);
    let half = VolumeReport { size: ByteSize(1), ..before.clone() };
    state.knowledge.learn_if_ready(began, Some(half), Stale::LvNotReady);
    assert_eq!(state.knowledge.ready(), Some(&before));
}

/// A narrow pass takes what is known and puts back what follows from it. A sweep beside it
/// still gets its whole look.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_beside_a_narrow_pass_is_not_undone_by_it() {
    for swept in [false, true] {
        let node = Node::new();
        node.resync();
        let mut state = node.cell.state();
        let taken = state.knowledge.take_known().expect("it was seen in force");
        state.knowledge.forget(Stale::NarrowStep);
        if swept {
            state.knowledge.forget(Stale::Swept);
        }
        state.knowledge.learn_known(taken);
        assert_eq!(state.knowledge.take_known().is_none(), swept);
    }
}

/// `VolumeNotReady`: an export is not begun on an LV that a pass has seen gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_lv_that_a_pass_finds_gone_is_not_exported() {
    let node = Node::new();
    let export = node.cell.state().replace_export(None);
    node.resync();
    // The volume grows, so that the pass asks LVM. Somebody has removed its LV.
    node.cell.state().volume_spec_mut().unwrap().size = ByteSize(16 << 20);
    node.by_hand(&["lvremove", "--yes", "--force", &node.lv()]);
    node.engine.wake(&node.cell);
    node.rest();
    node.cell.state().replace_export(export);
    node.engine.wake(&node.cell);
    node.rest();
    let tree = mooring_host::dump(&node.fake.lio());
    assert!(!tree.contains(&node.cell.id.to_string()), "{tree}");
}

/// `ExportFailed`: the LV may have changed since, and the export may have failed for that.
#[tokio::test(flavor = "multi_thread")]
async fn the_try_behind_an_export_that_failed_asks_lvm_first() {
    let node = Node::new();
    let export = node.cell.state().replace_export(None);
    node.resync();
    // As after a start of the agent: LVM has not shown the LV, and somebody else holds it.
    node.cell.state().knowledge.forget(Stale::VolumeSpec);
    node.cell.state().replace_export(export);
    node.fake.set_busy(node.device(), true);
    node.engine.wake(&node.cell);
    node.rest();
    assert!(!node.cell.state().is_export_done(), "the kernel has refused the held device");
    // No pass begins between these two steps.
    eventually("no pass is at work", || {
        let mut state = node.cell.state();
        state.turn.is_idle() && state.turn.ask() && state.begin_pass().is_some()
    });
    node.fake.set_busy(node.device(), false);
    node.by_hand(&["lvchange", "--activate", "n", &node.lv()]);
    node.cell.state().turn.end();
    node.engine.wake(&node.cell);
    node.rest();
    assert!(node.cell.state().is_export_done(), "that pass has activated the LV before its export");
}
