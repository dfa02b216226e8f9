//! `mooring volume rotate-secrets`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;
use serde_json::json;

#[test]
fn secrets_are_rotated_once_and_shown() {
    let rig = Rig::new();
    let id = rig.volume("data");
    let attached = rig.json(&["attach", "data", "--host", "host1"])["attachment"]["id"].clone();
    let attached = attached.as_str().unwrap();
    let done = rig.json(&["volume", "rotate-secrets", "data"]);
    assert_eq!((&done["done"], &done["volume_id"]), (&json!(true), &json!(id)));
    assert_eq!(done["attachments"][0]["secret_rotated_at"], "2026-11-22T10:00:00Z");
    assert_eq!(rig.fake.state().bodies.last(), Some(&json!({})));
    let said = rig.run(&["volume", "rotate-secrets", "data", "--attachment", attached, "--force"]).out;
    assert!(
        said.contains("the old ones are no longer valid") && said.contains("2026-11-22T10:00:00Z"),
        "{said}"
    );
    let body = json!({ "attachment": attached, "force": true });
    assert_eq!(rig.fake.state().bodies.last(), Some(&body));
    let shown = rig.run(&["attachment", "show", attached]).out;
    assert!(shown.contains("rotated 2026-11-22T10:00:00Z"), "{shown}");

    // A late answer: the request is not repeated.
    rig.fake.change(|state| state.knobs.rotates_slowly = true);
    let asked = rig.fake.state().bodies.len();
    let waits = rig.run(&["volume", "rotate-secrets", "data"]);
    assert!(waits.out.contains("both secrets are good") && waits.out.contains("host"), "{}", waits.out);
    assert_eq!((waits.code, rig.fake.state().bodies.len()), (5, asked + 1));
    assert!(rig.run(&["attachment", "show", attached]).out.contains("being rotated"));
    rig.run(&["volume", "rotate-secrets", "nosuch"]).refused(3, &["nosuch"]);
    rig.run(&["volume", "rotate-secrets", "data", "--attachment", "x"]).refused(2, &["--attachment"]);
}
