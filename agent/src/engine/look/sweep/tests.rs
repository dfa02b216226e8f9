//! Tests of observations that a look at all LVs makes stale.

use mooring_host::Tree;
use mooring_model::{ByteSize, Phase};

use crate::engine::lock;
use crate::engine::testing::{Node, eventually};

/// `LvDrifted`: nothing tells of a change of an export whose folders cannot be watched. Whoever
/// changes an LV by hand may have changed its export, too. The LV stays ready all the while: it is
/// smaller than its volume shall be, before and after.
#[tokio::test(flavor = "multi_thread")]
async fn an_lv_changed_by_hand_has_its_export_looked_at_as_a_whole() {
    let node = Node::new();
    node.fake.set_watches_max(0);
    node.resync();
    node.cell.state().volume_spec_mut().unwrap().size = ByteSize(16 << 20);
    node.fake.lio().write(&node.protect(), b"0").unwrap();
    node.by_hand(&["lvextend", "--extents", "+1", &node.lv(), "/dev/sdb:0-255"]);
    node.engine.look_for_drift();
    node.settle();
    assert_eq!(node.fake.lio().read_text(&node.protect()).unwrap(), "1");
}

/// `LvmFailed`: a volume that was ready may be so no longer.
#[tokio::test(flavor = "multi_thread")]
async fn no_volume_is_called_ready_once_lvm_cannot_be_queried() {
    let node = Node::new();
    node.resync();
    let phase = || node.cell.volume_report().phase;
    assert_eq!(phase(), Phase::Ready, "the control");
    node.fake.lvm().set_broken(Some("  Metadata cannot be read."));
    node.engine.sweep();
    node.rest();
    assert_eq!(phase(), Phase::Failed);
}

/// `LateInVain`: nobody wakes a late volume behind such a look, so the view would be old by the
/// time of its next pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_volume_is_not_judged_by_a_look_that_was_in_vain() {
    let node = Node::new();
    node.fake.lvm().hide_group("vg0");
    // Only this test looks for late volumes.
    lock(&node.engine.shared.look_memory.late).planned = true;
    node.engine.sweep();
    eventually("its group is not there", || node.cell.state().turn.is_late());
    node.engine.look_for_late();
    node.fake.lvm().show_group("vg0");
    node.engine.wake(&node.cell);
    node.rest();
    assert_eq!(node.cell.volume_report().phase, Phase::Ready, "that pass has asked LVM");
}
