//! Commands whose controller is lost after it has accepted the change, against a controller in
//! memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::{Rig, end};
use serde_json::{Value, json};

/// Commands that wait for what the controller has accepted.
const WAIT: [&[&str]; 14] = [
    &["volume", "create", "new", "--size", "1GiB"],
    &["volume", "create", "copy", "--snapshot", "before"],
    &["volume", "extend", "data", "--size", "2GiB"],
    &["volume", "extend", "grows", "--cancel"],
    &["volume", "delete", "data"],
    &["volume", "revert", "data", "--to", "before"],
    &["volume", "unmanage", "data"],
    &["volume", "manage", "vg0/data", "--host", "storage", "--name", "taken"],
    &[
        "volume", "import", "root", "--image", "a.raw", "--format", "raw", "--size", "3GiB", "--host",
        "storage",
    ],
    &["volume", "export", "data", "--image", "new.raw", "--format", "raw"],
    &["volume", "cut", "data", "--force"],
    &["snapshot", "create", "data", "after"],
    &["snapshot", "delete", "before"],
    &["snapshot", "unmanage", "before"],
];

/// A volume with a snapshot, and one that grows for ever.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.volume("data");
    rig.json(&["snapshot", "create", "data", "before"]);
    let grows = rig.json(&["volume", "create", "grows", "--size", "1GiB"])["volume"]["id"].clone();
    rig.fake.change(|state| {
        state.knobs.looks = u32::MAX;
        let grows = state.volumes.get_mut(grows.as_str().unwrap()).unwrap();
        (grows["status"], grows["wanted"], grows["looks"]) = ("extending".into(), 2.into(), 0.into());
    });
    rig
}

/// Runs all commands at once, each with a controller of its own. Returns the errors.
fn lost(set: fn(&Rig)) -> Vec<(String, i32, Value)> {
    let rigs: Vec<_> = WAIT.iter().map(|_| rig()).collect();
    rigs.iter().for_each(set);
    let start = |(rig, words): (&Rig, &&[&str])| rig.start(&[*words, &["--timeout", "4", "--json"]].concat());
    let children: Vec<_> = rigs.iter().zip(&WAIT).map(start).collect();
    let ended = children.into_iter().zip(&WAIT).map(|(child, words)| {
        let ran = end(child);
        let error = serde_json::from_str(&ran.err).unwrap_or_else(|_| panic!("{words:?}: {ran:?}"));
        (words.join(" "), ran.code, error)
    });
    ended.collect()
}

#[test]
fn what_was_accepted_is_pending_when_the_controller_is_lost() {
    for (words, code, error) in lost(|rig| rig.fake.state().knobs.leaves = true) {
        assert_eq!((code, &error["kind"]), (5, &json!("pending")), "{words}: {error}");
        assert_eq!(error["http_status"], 503, "{words}: {error}");
        let (says, advice) = (error["error"].as_str().unwrap(), error["advice"].as_str().unwrap());
        assert!(says.contains("not known what becomes of"), "{words}: {says}");
        assert!(advice.contains("goes on without this program"), "{words}: {advice}");
    }
    // The control: a controller that was lost before has accepted nothing.
    for (words, code, error) in lost(|rig| rig.fake.state().knobs.unavailable = u32::MAX) {
        assert_eq!((code, &error["kind"]), (6, &json!("unreachable")), "{words}: {error}");
    }
}
