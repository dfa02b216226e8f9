//! `mooring volume import`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;
use serde_json::json;

const WORDS: [&str; 11] = [
    "volume",
    "import",
    "root",
    "--image",
    "debian.qcow2",
    "--format",
    "qcow2",
    "--size",
    "3GiB",
    "--host",
    "storage",
];

#[test]
fn an_image_becomes_a_volume_once_however_often_it_is_asked_for() {
    let rig = Rig::new();
    let first = rig.json(&WORDS);
    assert_eq!((&first["done"], &first["volume"]["name"]), (&json!(true), &json!("root")));
    let mut sent = rig.fake.state().bodies[0].clone();
    assert!(sent["volume"]["request_key"].as_str().unwrap().len() == 36);
    sent["volume"].as_object_mut().unwrap().remove("request_key");
    let body = json!({ "volume": {
        "name": "root", "size": 3, "metadata": { "imported-from": "storage:debian.qcow2:qcow2" },
        "image": { "host": "storage", "name": "debian.qcow2", "format": "qcow2" },
    } });
    assert_eq!(sent, body);
    let again = rig.json(&WORDS);
    assert_eq!((&again["volume"]["id"], rig.fake.state().count("POST")), (&first["volume"]["id"], 1));
    // Another image, or another format, makes another volume.
    for (at, word) in [(4, "other.qcow2"), (6, "raw"), (8, "4GiB")] {
        let mut other = WORDS;
        other[at] = word;
        rig.run(&other).refused(4, &["a volume named \"root\" exists"]);
    }
}

#[test]
fn a_lost_answer_makes_no_second_volume() {
    let rig = Rig::new();
    rig.fake.state().knobs.lost = 1;
    let made = rig.json(&WORDS);
    assert_eq!((&made["done"], rig.fake.state().volumes.len()), (&json!(true), 1));
}

#[test]
fn wrong_words_are_refused_with_what_is_wanted() {
    let rig = Rig::new();
    for (at, word, status, says) in [
        (4, "../etc/shadow", 2, "no path"),
        (4, "/dev/sda", 2, "no path"),
        (6, "vmdk", 2, "want raw or qcow2"),
        (6, "auto", 2, "want raw or qcow2"),
        (8, "3GB", 2, "--size"),
        (8, "1536MiB", 2, "whole GiB"),
        (10, "nosuch", 3, "nosuch"),
    ] {
        let mut wrong = WORDS;
        wrong[at] = word;
        rig.run(&wrong).refused(status, &[says]);
    }
    rig.run(&WORDS[..5]).refused(2, &["--format", "--size", "--host"]);
    assert_eq!(rig.fake.state().volumes.len(), 0);
}

#[test]
fn what_fails_says_where_the_reason_is() {
    let rig = Rig::new();
    rig.fake.state().knobs.volume_ends = Some("error".to_owned());
    rig.run(&WORDS).refused(1, &["did not become volume", "mooring volume show", "mooring volume delete"]);
}
