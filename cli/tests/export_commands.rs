//! `mooring volume export`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;
use serde_json::json;

const WORDS: [&str; 7] = ["volume", "export", "data", "--image", "new.qcow2", "--format", "qcow2"];

fn rig() -> Rig {
    let rig = Rig::new();
    rig.volume("data");
    rig
}

#[test]
fn a_volume_is_copied_to_a_file() {
    let rig = rig();
    let done = rig.json(&WORDS);
    assert_eq!(
        (&done["done"], &done["status"], &done["storage_host"]),
        (&json!(true), &json!("done"), &json!("storage"))
    );
    let mut sent = rig.fake.state().bodies.last().cloned().unwrap();
    assert_eq!(sent["export"]["id"].as_str().unwrap().len(), 36);
    sent["export"].as_object_mut().unwrap().remove("id");
    let image = json!({ "name": "new.qcow2", "format": "qcow2" });
    assert_eq!((&sent, &done["image"]), (&json!({ "export": { "image": image } }), &image));
    // A finished export does not count as the requested one.
    let posts = rig.fake.state().count("POST");
    let said = rig.run(&WORDS);
    assert!(said.out.contains("is copied to new.qcow2 (qcow2) on storage"), "{}", said.out);
    assert_eq!(rig.fake.state().count("POST"), posts + 1);
}

#[test]
fn what_goes_on_is_waited_for_by_the_same_words_and_cancelled_by_others() {
    let rig = rig();
    rig.fake.state().knobs.looks = 1_000_000;
    let before = rig.fake.state().count("POST");
    let hurried: Vec<_> = WORDS.into_iter().chain(["--timeout", "4"]).collect();
    for _ in 0..2 {
        let said = rig.run(&hurried);
        assert!(
            said.out.contains("accepted, not finished yet") && said.out.contains("--cancel"),
            "{}",
            said.out
        );
    }
    assert_eq!(rig.fake.state().count("POST"), before + 1, "it was begun once");
    let mut other = hurried.clone();
    other[4] = "other.qcow2";
    rig.run(&other).refused(4, &["it is uploading"]);
    let ended = rig.json(&["volume", "export", "data", "--cancel"]);
    assert_eq!((&ended["done"], &ended["status"]), (&json!(true), &json!("cancelled")));
    rig.run(&["volume", "export", "data", "--cancel"]).refused(3, &["is not being exported"]);
}

#[test]
fn a_lost_answer_begins_no_second_one() {
    let rig = rig();
    rig.fake.state().knobs.lost = 1;
    assert_eq!(rig.json(&WORDS)["done"], true);
    let bodies = rig.fake.state().bodies.clone();
    let ids: std::collections::BTreeSet<_> =
        bodies.iter().filter_map(|body| body["export"]["id"].as_str().map(str::to_owned)).collect();
    assert_eq!(ids.len(), 1, "{bodies:?}");
}

#[test]
fn wrong_words_are_refused_with_what_is_wanted() {
    let rig = rig();
    for (at, word, status, says) in [
        (2, "nosuch", 3, "no volume is named"),
        (4, "../etc/shadow", 2, "no path"),
        (4, ".hidden", 2, "no path"),
        (6, "vmdk", 2, "want raw or qcow2"),
    ] {
        let mut wrong = WORDS;
        wrong[at] = word;
        rig.run(&wrong).refused(status, &[says]);
    }
    rig.run(&WORDS[..3]).refused(2, &["--image", "--format"]);
    rig.run(&WORDS[..5]).refused(2, &["--format"]);
    let both: Vec<_> = WORDS.into_iter().chain(["--cancel"]).collect();
    rig.run(&both).refused(2, &["--cancel"]);
    let agent = ["--agent", "unix:/nosuch.sock"].into_iter().chain(WORDS).collect::<Vec<_>>();
    rig.run(&agent).refused(2, &["works against the controller"]);
}

#[test]
fn what_fails_says_why() {
    let rig = rig();
    rig.fake.state().knobs.volume_ends = Some("failed".to_owned());
    rig.run(&WORDS).refused(1, &["is not copied to new.qcow2", "nothing is left", "new is there already"]);
}
