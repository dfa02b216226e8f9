//! `mooring volume manageable`, `manage` and `unmanage`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::Rig;
use serde_json::json;

#[test]
fn lvs_are_listed_with_the_reason_why_not() {
    let rig = Rig::new();
    let listed = rig.run(&["volume", "manageable"]);
    for words in ["vg0/data", "2 GiB", "yes", "vg0/mounted", "it is in use", "is volume 5a5a"] {
        assert!(listed.out.contains(words), "{words}: {}", listed.out);
    }
    let one = rig.json(&["volume", "manageable", "--host", "storage"]);
    assert_eq!(one["lvs"].as_array().unwrap().len(), 3, "{one}");
    let data = json!({ "host": "storage", "lv": "vg0/data", "size_gib": 2, "provisioning": "thick", "manageable": true,
                       "reason": null, "volume_id": null });
    assert_eq!(one["lvs"][0], data);
    rig.run(&["volume", "manageable", "--host", "nosuch"]).refused(3, &["nosuch@lvm"]);
}

#[test]
fn an_lv_becomes_a_volume_once_however_often_it_is_asked_for() {
    let rig = Rig::new();
    let first = rig.json(&["volume", "manage", "vg0/data", "--host", "storage", "--bootable"]);
    assert_eq!((&first["done"], &first["volume"]["name"]), (&json!(true), &json!("data")));
    assert_eq!(first["volume"]["size_gib"], 2);
    let sent = rig.fake.state().bodies[0].clone();
    let body = json!({ "volume": {
        "host": "storage@lvm", "ref": { "source-name": "vg0/data" }, "name": "data", "bootable": true,
        "metadata": { "managed-from": "storage:vg0/data" },
    } });
    assert_eq!(sent, body);
    let again = rig.json(&["volume", "manage", "vg0/data", "--host", "storage", "--bootable"]);
    assert_eq!((&again["volume"]["id"], rig.fake.state().count("POST")), (&first["volume"]["id"], 1));
    // A volume of that name that was made otherwise is another one.
    rig.volume("other");
    rig.run(&["volume", "manage", "vg0/data", "--host", "storage", "--name", "other"])
        .refused(4, &["a volume named \"other\" exists", "--name"]);
    rig.run(&["volume", "manage", "vg0/mounted", "--host", "storage"]).refused(4, &["it is in use"]);
    rig.run(&["volume", "manage", "data", "--host", "storage"]).refused(2, &["want GROUP/LV"]);
    rig.run(&["volume", "manage", "vg0/data"]).refused(2, &["--host"]);
}

#[test]
fn a_lost_answer_makes_no_second_volume() {
    let rig = Rig::new();
    rig.fake.state().knobs.lost = 1;
    let made = rig.json(&["volume", "manage", "vg0/data", "--host", "storage"]);
    assert_eq!((&made["done"], rig.fake.state().volumes.len()), (&json!(true), 1));
}

#[test]
fn what_fails_says_how_to_give_up() {
    let rig = Rig::new();
    rig.fake.state().knobs.volume_ends = Some("error_managing".to_owned());
    rig.run(&["volume", "manage", "vg0/data", "--host", "storage"])
        .refused(1, &["did not become volume", "error_managing", "mooring volume delete", "its data stays"]);
}

#[test]
fn a_volume_is_unmanaged_and_its_data_stays() {
    let rig = Rig::new();
    let id = rig.volume("data");
    let gone = rig.json(&["volume", "unmanage", "data"]);
    assert_eq!((&gone["done"], &gone["lv"]), (&json!(true), &json!(format!("mooring-{id}"))));
    assert_eq!(rig.fake.state().count("DELETE"), 0);
    assert_eq!(rig.json(&["volume", "unmanage", &id])["status"], "gone", "again");
    rig.run(&["volume", "unmanage", "data"]).refused(3, &["no volume is named"]);
    rig.volume("held");
    rig.fake.state().knobs.volume_ends = Some("error_unmanaging".to_owned());
    rig.run(&["volume", "unmanage", "held"]).refused(1, &["is not unmanaged", "error_unmanaging"]);
    let agent = ["--agent", "unix:/nosuch.sock", "volume", "unmanage", "held"];
    rig.run(&agent).refused(2, &["works against the controller"]);
}
