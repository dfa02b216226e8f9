//! Hosts that are renamed and given up.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;
use serde_json::json;

#[test]
fn a_host_is_renamed() {
    let rig = Rig::new();
    let ran = rig.run(&["host", "rename", "storage", "rack4"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("storage is called rack4 from now on"), "{}", ran.out);
    assert!(ran.out.contains("to do: write it in the configuration"), "{}", ran.out);
    let said = rig.json(&["host", "rename", "storage", "rack4"]);
    assert_eq!((&said["renamed"], &said["name"]), (&json!("storage"), &json!("rack4")));
    rig.run(&["host", "rename", "storage", "taken"]).refused(4, &["is the name of another host"]);
    rig.run(&["host", "rename", "nosuch", "rack4"]).refused(3, &["nosuch"]);
    rig.run(&["host", "rename", "storage"]).refused(2, &["<NEW>"]);
}

/// A lost answer may have been a yes: the second one would say that there is no such host.
#[test]
fn a_new_name_is_not_asked_for_twice() {
    let rig = Rig::new();
    rig.fake.state().knobs.lost = 1;
    assert_ne!(rig.run(&["host", "rename", "storage", "rack4"]).code, 0);
    assert_eq!(rig.fake.state().count("POST /mooring/v1/hosts/storage/rename"), 1);
}

#[test]
fn nothing_is_forgotten_without_yes() {
    let rig = Rig::new();
    let ran = rig.run(&["host", "forget", "storage"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in [
        "2 volumes and 1 snapshot of 30 GiB with all their data",
        "3 attachments of theirs whose end is never proven",
        "lab      2        1          30   3",
        "nothing was done: `mooring host forget storage --yes` does it",
    ] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    assert_eq!(rig.json(&["host", "forget", "storage"])["loss"]["gib"], 30);
    let ran = rig.run(&["host", "forget", "host1"]);
    assert!(ran.out.contains("nothing would be: host host1 answers"), "{}", ran.out);
    assert_eq!(rig.fake.state().count("POST "), 0);
    rig.run(&["host", "forget", "nosuch"]).refused(3, &["nosuch"]);
}

#[test]
fn a_host_is_forgotten_by_its_name() {
    let rig = Rig::new();
    let ran = rig.run(&["host", "forget", "storage", "--yes"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.starts_with("storage is forgotten: 2 volumes"), "{}", ran.out);
    assert!(ran.out.contains("it is a stranger"), "{}", ran.out);
    assert_eq!(rig.fake.state().bodies, [json!({ "confirm": "storage" })]);
    assert_eq!(rig.json(&["host", "forget", "storage", "--yes"])["forgotten"]["volumes"], 2);
    rig.run(&["host", "forget", "host1", "--yes"]).refused(4, &["host1 answers"]);
    // A forget whose answer was lost is repeated: forgotten stays forgotten.
    rig.fake.state().knobs.lost = 1;
    assert_eq!(rig.run(&["host", "forget", "storage", "--yes"]).code, 0);
}
