//! `mooring volume revert`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;
use serde_json::json;

fn rig() -> (Rig, String) {
    let rig = Rig::new();
    rig.volume("data");
    let snapshot = rig.json(&["snapshot", "create", "data", "before"])["snapshot"]["id"].clone();
    (rig, snapshot.as_str().unwrap().to_owned())
}

#[test]
fn a_volume_is_reverted_to_its_snapshot() {
    let (rig, snapshot) = rig();
    let done = rig.json(&["volume", "revert", "data", "--to", "before"]);
    assert_eq!((&done["done"], &done["status"]), (&json!(true), &json!("available")));
    assert_eq!(done["snapshot_id"], snapshot.as_str());
    let sent = rig.fake.state().bodies.last().cloned().unwrap();
    assert_eq!(sent, json!({ "revert": { "snapshot_id": snapshot } }));
    let said = rig.run(&["volume", "revert", "data", "--to", &snapshot]);
    assert!(said.out.contains("holds what its snapshot"), "{}", said.out);
    rig.run(&["volume", "revert", "data"]).refused(2, &["--to"]);
    rig.run(&["volume", "revert", "data", "--to", "nosuch"]).refused(3, &["no snapshot is named"]);
    let agent = ["--agent", "unix:/nosuch.sock", "volume", "revert", "data", "--to", "before"];
    rig.run(&agent).refused(2, &["works against the controller"]);
}

#[test]
fn what_fails_holds_what_it_held_and_says_so() {
    let (rig, _) = rig();
    rig.fake.state().knobs.volume_ends = Some("error".to_owned());
    rig.run(&["volume", "revert", "data", "--to", "before"])
        .refused(1, &["holds what it held", "mooring volume show", "reset-status"]);
}

#[test]
fn a_lost_answer_is_found_under_way() {
    let (rig, _) = rig();
    rig.fake.state().knobs.lost = 1;
    assert_eq!(rig.json(&["volume", "revert", "data", "--to", "before"])["done"], true);
}
