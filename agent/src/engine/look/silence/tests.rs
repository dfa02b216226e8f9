//! Tests of when a device counts as silent and as answering again, and of what the engine does
//! then.

use proptest::prelude::*;

use super::*;
use crate::engine::testing::{Node, eventually};
use mooring_host::{Tree as _, TreePath};
use mooring_model::Mode;

const BUSY: fn(u64) -> Flow = |ended| Flow::Busy { ended };

/// The results of an ear for a device that is looked at each second.
fn heard(flows: impl IntoIterator<Item = Flow>) -> Vec<bool> {
    let (mut ear, start) = (Ear::default(), Instant::now());
    let looks = flows.into_iter().zip(0_u32..);
    looks.map(|(flow, at)| ear.hear(start + LOOKS_EVERY * at, flow).is_some()).collect()
}

/// The states of a device that takes `took` milliseconds for each write, with one write always in
/// flight.
fn slow(took: u64, seconds: u64) -> Vec<Flow> {
    (0..seconds).map(|at| BUSY(at * 1000 / took)).collect()
}

#[test]
fn a_device_that_ends_nothing_is_silent_by_the_third_look() {
    assert_eq!(heard([Flow::Idle, BUSY(7), BUSY(7), BUSY(7), BUSY(7)]), [false, false, false, true, true]);
    assert_eq!(heard([Flow::Suspended; 4]), [false, false, true, true], "held back by device-mapper");
    // The controls: nothing in flight, and something that ends each second.
    assert!(!heard([Flow::Idle; 60]).contains(&true));
    assert!(!heard((0..60).map(BUSY)).contains(&true));
}

#[test]
fn a_silent_device_answers_at_rest_or_at_the_second_end() {
    let silent = [BUSY(7), BUSY(7), BUSY(7)];
    assert_eq!(heard(silent.into_iter().chain([Flow::Idle]))[2..], [true, false]);
    assert_eq!(heard(silent.into_iter().chain([BUSY(8), BUSY(9)]))[2..], [true, true, false]);
    // One answer and then none: the device stays silent.
    assert_eq!(heard(silent.into_iter().chain([BUSY(8), BUSY(8), BUSY(8)]))[2..], [true; 4]);
    // A suspended device has answered nothing, however often it is suspended.
    let held = [Flow::Suspended, BUSY(7), Flow::Suspended];
    assert_eq!(heard(silent.into_iter().chain(held))[2..], [true; 4]);
}

#[test]
fn a_slow_device_is_taken_for_silent_once_at_most() {
    for took in [900, 1500, 1799] {
        assert!(!heard(slow(took, 300)).contains(&true), "{took} ms");
    }
    for took in [2, 3, 4] {
        let heard = heard(slow(took * 1000, 600));
        let changes = heard.windows(2).filter(|two| two[0] != two[1]).count();
        assert!(changes <= 2 && !heard[30..].contains(&true), "{took} s: {changes} changes");
    }
    // The control: a device that takes longer is silent each time.
    let heard = heard(slow(30_000, 600));
    assert!(heard.iter().filter(|silent| **silent).count() > 500, "{heard:?}");
}

#[test]
fn a_device_that_was_slow_long_ago_is_given_no_more_time() {
    let quiet = vec![Flow::Idle; usize::try_from(SLOW_FOR.as_secs()).unwrap()];
    let hangs = [BUSY(0); 4];
    let after = |quiet: &[Flow]| {
        let all = slow(4000, 40).into_iter().chain(quiet.iter().copied()).chain(hangs);
        heard(all).iter().rev().take(hangs.len()).any(|silent| *silent)
    };
    assert!(after(&quiet));
    assert!(!after(&quiet[..60]), "the control: it was slow a minute ago");
}

proptest! {
    /// Law: a device is silent only if it has ended nothing for long enough, and never if it is at
    /// rest.
    #[test]
    fn only_who_ends_nothing_is_silent(steps in prop::collection::vec(0u8..5, 1..80)) {
        let (mut ear, start) = (Ear::default(), Instant::now());
        let (mut ended, mut since, mut last) = (0, start, Flow::Idle);
        let mut was_silent = false;
        for (step, at) in steps.into_iter().zip(0_u32..) {
            let now = start + LOOKS_EVERY * at;
            ended += u64::from(step == 0);
            let flow = match step { 1 => Flow::Idle, 2 => Flow::Suspended, _ => Flow::Busy { ended } };
            if flow != last {
                (since, last) = (now, flow);
            }
            let silent = ear.hear(now, flow).is_some();
            prop_assert!(!(silent && flow == Flow::Idle));
            prop_assert!(!silent || was_silent || now.duration_since(since) >= SILENT_AFTER);
            was_silent = silent;
        }
    }
}

/// Listens each second to the devices in use, and to no other.
fn listen(node: &Node, seconds: u32) {
    for _ in 0..seconds {
        node.engine.listen();
        std::thread::sleep(LOOKS_EVERY);
    }
}

fn is_listened_to(node: &Node) -> bool {
    lock(&node.engine.shared.look_memory.ears).listened.contains_key(&node.cell.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_nobody_uses_is_not_listened_to() {
    let node = Node::with(Mode::ReadWrite);
    node.resync();
    let (engine, cell) = (&node.engine, &node.cell);
    engine.feel(cell);
    assert!(is_listened_to(&node), "at first nobody knows");
    engine.listen();
    assert!(!is_listened_to(&node), "nobody is there, and nothing is in flight");
    let session = node.log_in();
    engine.follow_callers();
    engine.feel(cell);
    engine.listen();
    assert!(is_listened_to(&node));
    node.fake.hold(node.device());
    node.fake.start_write(session, 1).unwrap();
    node.fake.logout(session);
    engine.follow_callers();
    engine.feel(cell);
    engine.listen();
    assert!(is_listened_to(&node), "he has gone, and something of his is in flight");
    node.fake.release(node.device());
    engine.listen();
    assert!(!is_listened_to(&node));
}

/// `BesidePass`: LVM hangs with the disk, and the volume's pass with LVM: the portals are taken off
/// beside that pass.
#[tokio::test(flavor = "multi_thread")]
async fn portals_are_taken_off_beside_a_pass_that_hangs() {
    let node = Node::with(Mode::ReadWrite);
    // Where folders are watched, the kernel tells that the portals have gone.
    node.fake.set_watches_max(0);
    node.resync();
    let session = node.log_in();
    node.engine.feel(&node.cell);
    node.fake.hold(node.device());
    node.fake.start_write(session, 1).unwrap();
    // A pass that does not end.
    node.cell.state().turn.ask();
    assert!(node.cell.state().begin_pass().is_some());
    listen(&node, 4);
    let target = node.engine.config().iqn_prefix.target(node.cell.id);
    let portals = || {
        let path = format!("iscsi/{target}/tpgt_1/np");
        node.fake.lio().list(&TreePath::new(&path)).unwrap().len()
    };
    eventually("the portals are taken off", || portals() == 0);
    assert!(node.fake.is_live(session));
    node.fake.release(node.device());
    listen(&node, 1);
    assert_eq!(portals(), 0, "they come back by a pass");
    node.cell.state().turn.end();
    node.engine.wake(&node.cell);
    node.settle();
    assert_eq!(portals(), 1);
}
