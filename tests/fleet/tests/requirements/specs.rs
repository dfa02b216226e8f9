//! Extra specs beside sharing in a type, and when they may still be changed.

use mooring_fleet::{Client, Fleet};
use serde_json::{Value, json};

use crate::granted;

const SHARED: (&str, &str) = ("multiattach", "<is> True");

fn type_id(admin: &Client, name: &str) -> String {
    let types = admin.get("/types?is_public=None").expect(200);
    let found = types["volume_types"].as_array().unwrap().iter().find(|kind| kind["name"] == name).cloned();
    found.unwrap()["id"].as_str().unwrap().to_owned()
}

#[test]
fn s15_the_specs_of_a_type_do_not_change_under_its_volumes() {
    let fleet = Fleet::small();
    let (admin, member) = (fleet.admin(), fleet.member());
    let (plain, shared) = (admin.volume_type("plain", &[]), fleet.shared_type());
    let (one, two) = (member.volume(Some(&plain), 1), member.volume(Some(&shared), 1));
    member.attach(&two, &fleet.stock("node1"), None);
    let in_use = "Volume Type is currently in use.";
    let multiattach = |value: &str| json!({ "multiattach": value });
    let specs = format!("/types/{}/extra_specs", type_id(&admin, &plain));
    admin.post(&specs, &json!({ "extra_specs": multiattach("<is> True") })).refused(400, in_use);
    admin.put(&format!("{specs}/multiattach"), &multiattach("<is> True")).refused(400, in_use);
    let specs = format!("/types/{}/extra_specs", type_id(&admin, &shared));
    admin.put(&format!("{specs}/multiattach"), &multiattach("<is> False")).refused(400, in_use);
    admin.delete(&format!("{specs}/multiattach")).refused(400, in_use);
    admin.delete(&format!("/types/{}", type_id(&admin, &shared))).refused(400, "in use");
    // Both are what they were, in fact.
    member.attach(&one, &fleet.stock("node1"), None);
    let second =
        json!({ "attachment": { "volume_uuid": one, "connector": fleet.stock("node2").connector() } });
    member.post("/attachments", &second).expect(400);
    member.attach(&two, &fleet.stock("node2"), None);
    assert_eq!(granted(&fleet, &one), ["node1 LUN 1 rw"]);
    assert_eq!(granted(&fleet, &two), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

/// On every path that writes specs, in both orders: refused, and nothing is written.
fn never_together(fleet: &Fleet, other: (&str, &str)) {
    let admin = fleet.admin();
    let both = json!({ SHARED.0: SHARED.1, other.0: other.1 });
    let create = json!({ "volume_type": { "name": "both", "extra_specs": both } });
    admin.post("/types", &create).refused(400, "together");
    for (first, second) in [(SHARED, other), (other, SHARED)] {
        let name = admin.volume_type(&format!("{} {}", first.0, first.1), &[first]);
        let specs = format!("/types/{}/extra_specs", type_id(&admin, &name));
        let more = json!({ second.0: second.1 });
        admin.post(&specs, &json!({ "extra_specs": more })).refused(400, "together");
        admin.put(&format!("{specs}/{}", second.0), &more).refused(400, "together");
        admin.post(&specs, &json!({ "extra_specs": both })).refused(400, "together");
        assert_eq!(admin.get(&specs).expect(200)["extra_specs"].as_object().unwrap().len(), 1);
        let id = type_id(&admin, &name);
        admin.delete(&format!("/types/{id}")).expect(202);
    }
    let types = admin.get("/types?is_public=None").expect(200);
    assert!(types["volume_types"].as_array().unwrap().iter().all(|kind| kind["name"] != "both"));
}

#[test]
fn s16_shared_volumes_are_not_cached_on_any_path() {
    let fleet = Fleet::small();
    for spelling in ["<is> True", "<is> true", "True", "true"] {
        never_together(&fleet, ("cacheable", spelling));
    }
    // The answers to hosts, on a shared volume and on one that is not.
    let member = fleet.member();
    for kind in [Some(fleet.shared_type()), None] {
        let volume = member.volume(kind.as_deref(), 1);
        let attached = member.attach(&volume, &fleet.stock("node1"), None);
        assert_eq!(attached.info["cacheable"], false);
        assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    }
}

#[test]
fn s16_a_host_of_a_shared_volume_reads_nothing_ahead() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").start();
    let (admin, h1) = (fleet.admin(), fleet.host("h1"));
    let shared = admin.volume(Some(&fleet.shared_type()), 1);
    let alone = admin.volume(None, 1);
    let id = admin.attach_natively(&shared, "h1", "rw");
    admin.attach_natively(&alone, "h1", "rw");
    assert_eq!((h1.read_ahead(&shared), h1.read_ahead(&alone)), (Some(0), Some(256)));
    let (path, session) = (format!("/mooring/v1/attachments/{id}/cache"), h1.path_of(&id));
    for (word, sectors) in [("on", 256), ("on", 256), ("off", 0)] {
        let set = admin.put(&path, &json!({ "cache": word })).expect(200)["attachment"].take();
        assert_eq!((&set["cache"], &set["cache_in_force"]), (&json!(word), &json!(word)));
        assert_eq!((h1.read_ahead(&shared), h1.path_of(&id)), (Some(sectors), session.clone()));
    }
    admin.put(&path, &json!({ "cache": "none" })).refused(400, "want on or off");
    admin.put(&path, &json!({})).refused(400, "required");
    let wrong = json!({ "attachment": { "volume": shared, "host": "h1", "cache": "no" } });
    admin.post("/mooring/v1/attachments", &wrong).refused(400, "want on or off");
}

#[test]
fn s17_shared_volumes_are_not_encrypted_on_any_path() {
    let fleet = Fleet::small();
    let admin = fleet.admin();
    for spelling in ["<is> True", "True", "luks"] {
        never_together(&fleet, ("encryption", spelling));
    }
    let encryption = json!({ "encryption": { "provider": "luks", "control_location": "front-end" } });
    let id = type_id(&admin, &fleet.shared_type());
    assert_eq!(admin.post(&format!("/types/{id}/encryption"), &encryption).status, 501);
    // No node encrypts: a type that requires it makes no volume, and accepts none.
    let kind = admin.volume_type("encrypted", &[("encryption", "<is> True")]);
    let body = json!({ "volume": { "size": 1, "volume_type": kind } });
    admin.post("/volumes", &body).refused(400, "capabilities");
    let volume = admin.volume(Some(&fleet.shared_type()), 1);
    let retyped = admin.action(&format!("/volumes/{volume}"), "os-retype", &json!({ "new_type": kind }));
    assert_eq!(retyped.status, 400, "{retyped:?}");
    let attached = admin.attach(&volume, &fleet.stock("node1"), None);
    assert_eq!(
        (&attached.info["encrypted"], &admin.show(&volume)["encrypted"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(
        admin.get(&format!("/volumes/{volume}/encryption")).expect(200)["encryption_key_id"],
        Value::Null
    );
}
