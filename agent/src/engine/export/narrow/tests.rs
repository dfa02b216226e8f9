//! Tests of what is known of an export beside narrow passes.

use mooring_host::Tree;
use mooring_model::Mode;

use crate::engine::pass;
use crate::engine::testing::Node;

/// `Narrowed`: the error may come from what a narrow look does not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_narrow_pass_that_fails_is_followed_by_a_whole_look() {
    let node = Node::new();
    // Where folders are watched, a whole look follows a narrow pass in any case.
    node.fake.set_watches_max(0);
    node.resync();
    // The kernel loses all exports. No look has shown that, and nothing tells of it.
    node.fake.unload_configfs();
    node.fake.load_configfs();
    pass::prepare(&node.engine).unwrap();
    node.regrant(Mode::ReadWrite);
    node.engine.wake(&node.cell);
    node.settle();
    assert_eq!(node.fake.lio().read_text(&node.protect()).unwrap(), "0");
}
