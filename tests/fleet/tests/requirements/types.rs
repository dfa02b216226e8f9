//! Types and creation: how a volume becomes shareable, and who sees it.

use mooring_fleet::Fleet;
use mooring_host::{Tree, TreePath};
use serde_json::{Value, json};

use crate::shared;

#[test]
fn s01_only_a_type_that_says_is_true_makes_volumes_shareable() {
    let fleet = Fleet::small();
    let admin = fleet.admin();
    let (yes, no) = (["<is> True", "<is> true", " <IS>  TRUE "], ["<is> False", " <is> no "]);
    // A value that is neither yes nor no is refused: nobody shall believe that it shares.
    for spec in ["True", "<is>", "", "<in> True", "<is> perhaps"] {
        let body = json!({ "volume_type": { "name": "wrong", "extra_specs": { "multiattach": spec } } });
        admin.post("/types", &body).refused(400, "multiattach is");
    }
    for (spec, shareable) in yes.iter().map(|spec| (spec, true)).chain(no.iter().map(|spec| (spec, false))) {
        let name = admin.volume_type(&format!("type {spec:?}"), &[("multiattach", spec)]);
        let volume = admin.volume(Some(&name), 1);
        assert_eq!(admin.show(&volume)["multiattach"], shareable, "{spec:?}");
        let node = fleet.stock("node1");
        admin.attach(&volume, &node, None);
        let body =
            json!({ "attachment": { "volume_uuid": volume, "connector": fleet.stock("node2").connector() } });
        let second = admin.post("/attachments", &body);
        assert_eq!(second.status, if shareable { 200 } else { 400 }, "{spec:?}: {second:?}");
        assert_eq!(fleet.storage("s1").grants(&volume).len(), if shareable { 2 } else { 1 }, "{spec:?}");
    }
}

#[test]
fn s02_the_flag_comes_from_the_type_at_create_and_from_nothing_else() {
    let fleet = Fleet::small();
    let admin = fleet.admin();
    let plain = admin.volume(None, 1);
    assert_eq!(admin.show(&plain)["multiattach"], false);
    admin.put(
        &format!("/volumes/{plain}"),
        &json!({ "volume": { "name": "n", "metadata": { "multiattach": "<is> True" } } }),
    );
    let changed = admin.put(&format!("/volumes/{plain}"), &json!({ "volume": { "multiattach": true } }));
    assert_eq!(changed.status, 400);
    assert_eq!(admin.show(&plain)["multiattach"], false);
    let shared = admin.volume(Some(&fleet.shared_type()), 1);
    assert_eq!(admin.show(&shared)["multiattach"], true);
}

#[test]
fn s03_a_volume_without_a_type_of_its_own_is_not_shareable() {
    let fleet = Fleet::small();
    let (admin, volume) = (fleet.admin(), fleet.admin().volume(None, 1));
    admin.attach(&volume, &fleet.stock("node1"), None);
    let second = admin.post("/attachments", &json!({ "attachment": { "volume_uuid": volume } }));
    second
        .refused(400, "status must be available or downloading to reserve, but the current status is in-use");
}

#[test]
fn s04_the_old_flag_of_a_create_is_refused() {
    let fleet = Fleet::small();
    let member = fleet.member();
    for flag in [json!(true), json!("true"), json!("1"), json!("yes")] {
        let body = json!({ "volume": { "size": 1, "multiattach": flag } });
        member.post("/volumes", &body).refused(400, "multiattach parameter has been removed");
    }
    for flag in [json!(false), Value::Null, json!("false")] {
        let body = json!({ "volume": { "size": 1, "multiattach": flag } });
        let made = member.post("/volumes", &body).expect(202);
        assert_eq!(made["volume"]["multiattach"], false);
    }
}

#[test]
fn s13_volumes_show_whether_they_are_shareable() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    assert_eq!(member.show(&volume)["multiattach"], true);
    let plain = member.volume(None, 1);
    let listed = member.get("/volumes/detail").expect(200);
    let flag = |id: &str| {
        let found = listed["volumes"].as_array().unwrap().iter().find(|volume| volume["id"] == id).unwrap();
        found["multiattach"].clone()
    };
    assert_eq!((flag(&volume), flag(&plain)), (json!(true), json!(false)));
}

#[test]
fn s14_everybody_sees_which_type_is_shareable_and_nothing_else_of_it() {
    let fleet = Fleet::small();
    let specs = [("multiattach", "<is> True"), ("capabilities:volume_backend_name", "s1")];
    fleet.admin().volume_type("shared", &specs);
    let specs_for = |client: &mooring_fleet::Client| {
        let types = client.get("/types").expect(200);
        let types = types["volume_types"].as_array().unwrap().clone();
        types.into_iter().find(|kind| kind["name"] == "shared").unwrap()["extra_specs"].take()
    };
    for client in [fleet.member(), fleet.stranger()] {
        assert_eq!(specs_for(&client), json!({ "multiattach": "<is> True" }));
    }
    assert_eq!(specs_for(&fleet.admin()).as_object().unwrap().len(), 2);
}

/// The storage node's kernel negotiates logins by the type's tuning. That changes with the type,
/// and only while no host is attached.
#[test]
fn a_type_says_how_sessions_are_negotiated() {
    let fleet = Fleet::small();
    let admin = fleet.admin();
    let said = [("mooring:max_burst", "8192"), ("mooring:queue_depth", "16"), ("mooring:initial_r2t", "no")];
    let tuned = admin.volume_type("tuned", &said);
    let plain = admin.volume_type("plain", &[]);
    let (volume, node) = (admin.volume(Some(&tuned), 1), fleet.stock("node1"));
    let read = |volume: &str, name: &str| {
        let target = format!("iscsi/iqn.2026-11.dev.mooring:{volume}/tpgt_1/{name}");
        fleet.storage("s1").machine().lio().read_text(&TreePath::new(&target)).unwrap()
    };
    let seen = |volume: &str| {
        ["param/MaxBurstLength", "attrib/default_cmdsn_depth", "param/InitialR2T"]
            .map(|name| read(volume, name))
    };
    let attachment = admin.attach(&volume, &node, None).id;
    assert_eq!(seen(&volume), ["8192", "16", "No"]);
    // Control: another type's volume has the kernel's defaults.
    let other = admin.volume(Some(&plain), 1);
    admin.attach(&other, &node, None);
    assert_eq!(seen(&other), ["262144", "64", "Yes"]);
    let retype = json!({ "new_type": plain, "migration_policy": "never" });
    let refused = admin.action(&format!("/volumes/{volume}"), "os-retype", &retype);
    refused.refused(400, "how iSCSI sessions are negotiated");
    admin.delete(&format!("/attachments/{attachment}")).expect(200);
    let done = admin.action(&format!("/volumes/{volume}"), "os-retype", &retype);
    assert_eq!(done.status, 202, "{done:?}");
    admin.attach(&volume, &node, None);
    assert_eq!(seen(&volume), ["262144", "64", "Yes"]);
}
