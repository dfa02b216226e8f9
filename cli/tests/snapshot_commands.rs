//! `mooring snapshot`, and volumes that are made from other objects, against a controller in
//! memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;

#[test]
fn a_snapshot_is_taken_once_however_often_it_is_asked_for() {
    let rig = Rig::new();
    let volume = rig.volume("data");
    let first = rig.json(&["snapshot", "create", "data", "before"]);
    assert_eq!(
        (first["done"].as_bool(), first["snapshot"]["volume_id"].as_str()),
        (Some(true), Some(&*volume))
    );
    assert_eq!(
        rig.json(&["snapshot", "create", &volume, "before"])["snapshot"]["id"],
        first["snapshot"]["id"]
    );
    assert_eq!(rig.json(&["snapshot", "list", "data"])["snapshots"].as_array().unwrap().len(), 1);
    rig.json(&["snapshot", "create", "data", "after"]);
    let listed = rig.run(&["snapshot", "list"]);
    for words in ["before", "after", "available", &*volume] {
        assert!(listed.out.contains(words), "{words}: {}", listed.out);
    }
    let shown = rig.run(&["snapshot", "show", "before"]);
    assert!(shown.out.contains("STATUS") && shown.out.contains(&volume), "{}", shown.out);
}

#[test]
fn volumes_are_made_from_snapshots_and_volumes() {
    let rig = Rig::new();
    let volume = rig.volume("data");
    let snapshot = rig.json(&["snapshot", "create", "data", "before"])["snapshot"]["id"].clone();
    let copy = rig.json(&["volume", "create", "copy", "--snapshot", "before"]);
    assert_eq!((&copy["volume"]["snapshot_id"], &copy["volume"]["size_gib"]), (&snapshot, &1.into()));
    // The same arguments find it again, others do not.
    assert_eq!(
        rig.json(&["volume", "create", "copy", "--snapshot", "before"])["volume"]["id"],
        copy["volume"]["id"]
    );
    rig.run(&["volume", "create", "copy", "--size", "1GiB"])
        .refused(4, &["another name, size, type or source"]);
    let clone = rig.json(&["volume", "create", "clone", "--from", "data", "--size", "2GiB"]);
    assert_eq!(clone["volume"]["source_volume_id"], volume.as_str());
    let shown = rig.run(&["volume", "show", "clone"]);
    assert!(shown.out.contains(&format!("volume {volume}")), "{}", shown.out);
    rig.run(&["volume", "create", "x", "--snapshot", "nosuch"]).refused(3, &["no snapshot is named"]);
    rig.run(&["volume", "create", "x", "--snapshot", "before", "--from", "data"])
        .refused(2, &["cannot be used with"]);
    rig.run(&["volume", "create", "x"]).refused(2, &["--size"]);
}

#[test]
fn what_is_gone_is_deleted() {
    let rig = Rig::new();
    rig.volume("data");
    let id =
        rig.json(&["snapshot", "create", "data", "before"])["snapshot"]["id"].as_str().unwrap().to_owned();
    assert_eq!(rig.json(&["snapshot", "delete", "before"])["status"], "gone");
    assert_eq!(rig.json(&["snapshot", "delete", &id])["done"], true);
    rig.run(&["snapshot", "delete", "before"]).refused(3, &["no snapshot is named"]);
    rig.run(&["snapshot", "show", &id]).refused(3, &[&id]);
}

#[test]
fn a_refusal_keeps_the_controllers_words_and_an_ambiguous_name_fails() {
    let rig = Rig::new();
    let volume = rig.volume("data");
    rig.volume("other");
    rig.json(&["snapshot", "create", "data", "before"]);
    rig.json(&["snapshot", "create", "other", "before"]);
    rig.run(&["snapshot", "delete", "before"]).refused(2, &["2 snapshots are named"]);
    rig.fake.state().volumes.get_mut(&volume).unwrap()["volume_type"] = "thick".into();
    rig.run(&["snapshot", "create", "data", "again"]).refused(4, &["only thin volumes have snapshots"]);
    rig.run(&["--agent", "unix:/nowhere", "snapshot", "list"]).refused(2, &["--controller"]);
}

#[test]
fn an_operator_resets_unmanages_and_deletes_by_force() {
    let rig = Rig::new();
    rig.volume("data");
    let taken = |name: &str| {
        rig.json(&["snapshot", "create", "data", name])["snapshot"]["id"].as_str().unwrap().to_owned()
    };
    let (one, two) = (taken("one"), taken("two"));
    let reset = rig.json(&["snapshot", "reset-status", "one", "error"]);
    assert_eq!((reset["id"].as_str(), reset["status"].as_str()), (Some(&*one), Some("error")));
    assert_eq!(rig.json(&["snapshot", "reset-status", &one, "available"])["status"], "available");
    rig.run(&["snapshot", "reset-status", "one", "creating"]).refused(2, &["possible values"]);
    // The control: a forced delete is another request than a plain one.
    let deletes = rig.fake.state().count("DELETE");
    assert_eq!(rig.json(&["snapshot", "delete", "one", "--force"])["status"], "gone");
    assert_eq!(rig.fake.state().count("DELETE"), deletes);
    assert_eq!(rig.json(&["snapshot", "delete", &one, "--force"])["done"], true, "again");
    // What is unmanaged is not deleted.
    let gone = rig.json(&["snapshot", "unmanage", "two"]);
    assert_eq!(
        (gone["done"].as_bool(), gone["lv"].as_str()),
        (Some(true), Some(&*format!("mooring-snap-{two}")))
    );
    assert_eq!(rig.json(&["snapshot", "unmanage", &two])["status"], "gone", "again");
    assert_eq!(rig.fake.state().count("DELETE"), deletes);
    taken("held");
    rig.fake.state().knobs.volume_ends = Some("error_unmanaging".to_owned());
    rig.run(&["snapshot", "unmanage", "held"])
        .refused(1, &["is not unmanaged", "error_unmanaging", "by force"]);
}
