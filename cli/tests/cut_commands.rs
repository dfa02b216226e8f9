//! `mooring volume cut` and `uncut`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;
use serde_json::{Value, json};

#[test]
fn a_volume_is_cut_off_and_given_back() {
    let rig = Rig::new();
    let id = rig.volume("data");
    let cut = rig.json(&["volume", "cut", "data"]);
    // The isolation was pending, and the command waited for it.
    let want = json!({ "state": "in_force", "since": "2026-11-22T10:00:00Z" });
    assert_eq!((&cut["done"], &cut["cut"], &cut["volume_id"]), (&json!(true), &want, &json!(id)));
    assert_eq!(rig.fake.state().bodies.last(), Some(&json!({ "force": false })));
    rig.json(&["volume", "cut", "data", "--force"]);
    assert_eq!(rig.fake.state().bodies.last(), Some(&json!({ "force": true })));
    assert_eq!(rig.json(&["volume", "show", "data"])["cut"], want);
    let shown = rig.run(&["volume", "show", "data"]).out;
    assert!(shown.contains("it is cut off from its disk (asked for at 2026-11-22T10:00:00Z)"), "{shown}");
    let uncut = rig.json(&["volume", "uncut", "data"]);
    assert_eq!((&uncut["done"], &uncut["cut"]), (&json!(true), &Value::Null));
    assert!(!rig.run(&["volume", "show", "data"]).out.contains("cut off"));
    rig.run(&["volume", "cut", "nosuch"]).refused(3, &["nosuch"]);
}
