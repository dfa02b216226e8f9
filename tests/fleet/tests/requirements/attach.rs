//! Attachments while they are being made, and the status of the volume meanwhile.

use std::collections::BTreeSet;

use mooring_fleet::Fleet;
use serde_json::{Value, json};

use crate::{OTHER_SERVER, SERVER, at_once, attached_at_once, granted, shared};

#[test]
fn s18_second_attach_leaves_the_first_active_and_uninterrupted() {
    let (fleet, volume) = shared();
    let (member, one, two) = (fleet.member(), fleet.stock("node1"), fleet.stock("node2"));
    let first = member.attach(&volume, &one, None);
    let session = one.login(&first.info).unwrap();
    session.write().unwrap();
    // Step by step: the first continues at each of them.
    let id = member.reserve(&volume, None);
    session.write().unwrap();
    let info = member.connect(&id, &two.connector());
    session.write().unwrap();
    let other = two.login(&info).unwrap();
    other.write().unwrap();
    member.complete(&id);
    assert!(session.is_live() && session.write().is_ok() && session.serial().unwrap() == volume);
    assert_eq!(member.show_attachment(&first.id)["status"], "attached");
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
    assert_eq!(fleet.storage("s1").sessions(&volume).len(), 2);
}

#[test]
fn s18_a_volume_in_use_stays_in_use_while_another_host_attaches() {
    let (fleet, volume) = shared();
    let (member, two) = (fleet.member(), fleet.stock("node2"));
    let reserved = member.reserve(&volume, Some(SERVER));
    assert_eq!(member.status(&volume), "reserved");
    member.connect(&reserved, &fleet.stock("node1").connector());
    assert_eq!(member.status(&volume), "attaching");
    member.complete(&reserved);
    assert_eq!(member.status(&volume), "in-use");
    let id = member.reserve(&volume, Some(OTHER_SERVER));
    assert_eq!(member.status(&volume), "in-use", "reserved beside attached");
    member.connect(&id, &two.connector());
    assert_eq!(member.status(&volume), "in-use", "attaching beside attached");
    let shown = member.show(&volume);
    assert_eq!(shown["attachments"].as_array().unwrap().len(), 1, "only what is attached is shown");
    member.complete(&id);
    assert_eq!(member.show(&volume)["attachments"].as_array().unwrap().len(), 2);
    member.detach(&reserved);
    assert_eq!(member.status(&volume), "in-use");
    // An attachment that was abandoned blocks nobody.
    let dead = member.reserve(&volume, None);
    member.detach(&id);
    assert_eq!(member.status(&volume), "reserved");
    member.detach(&dead);
    assert_eq!(member.status(&volume), "available");
}

#[test]
fn s19_many_attaches_and_detaches_of_one_volume_are_in_flight_at_once() {
    let (fleet, volume) = shared();
    let nodes: Vec<_> = (1..=8).map(|n| fleet.stock(&format!("node{n}"))).collect();
    let (member, at) = (fleet.member(), volume.as_str());
    let attached: Vec<_> = std::thread::scope(|scope| {
        let attach = nodes.iter().map(|node| {
            let member = member.clone();
            scope.spawn(move || member.attach(at, node, None))
        });
        let running: Vec<_> = attach.collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let ids: BTreeSet<_> = attached.iter().map(|attached| attached.id.clone()).collect();
    assert_eq!((ids.len(), fleet.storage("s1").grants(&volume).len()), (8, 8));
    let sessions: Vec<_> =
        nodes.iter().zip(&attached).map(|(node, attached)| node.login(&attached.info).unwrap()).collect();
    assert!(sessions.iter().all(|session| session.write().is_ok()));
    // Half are detached, and four more attached, all at once.
    let more: Vec<_> = (9..=12).map(|n| fleet.stock(&format!("node{n}"))).collect();
    std::thread::scope(|scope| {
        for gone in &attached[..4] {
            let member = member.clone();
            scope.spawn(move || member.detach(&gone.id));
        }
        for node in &more {
            let member = member.clone();
            scope.spawn(move || member.attach(at, node, None));
        }
    });
    let left: Vec<_> = sessions.iter().map(mooring_fleet::Session::is_live).collect();
    assert_eq!(left, [false, false, false, false, true, true, true, true]);
    assert!(sessions[4..].iter().all(|session| session.write().is_ok()));
    let names: BTreeSet<_> = fleet.storage("s1").grants(&volume).into_keys().collect();
    let wanted: BTreeSet<_> =
        nodes[4..].iter().chain(&more).map(|node| node.initiator().to_owned()).collect();
    assert_eq!(names, wanted);
    assert_eq!(member.status(&volume), "in-use");
}

#[test]
fn s20_a_volume_that_is_not_shareable_is_attached_once() {
    let fleet = Fleet::small();
    let (member, volume) = (fleet.member(), fleet.member().volume(None, 1));
    let first = member.reserve(&volume, Some(SERVER));
    let again = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": OTHER_SERVER } });
    member.post("/attachments", &again).refused(400, "the current status is reserved");
    member.connect(&first, &fleet.stock("node1").connector());
    member.post("/attachments", &again).refused(400, "the current status is attaching");
    member.complete(&first);
    member.post("/attachments", &again).refused(400, "the current status is in-use");
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
}

#[test]
fn s20_of_many_who_want_it_at_once_exactly_one_gets_it() {
    let fleet = Fleet::small();
    let volume = fleet.member().volume(None, 1);
    let codes = attached_at_once(&fleet, &volume);
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 400).count(), 7, "{codes:?}");
    assert_eq!(fleet.storage("s1").grants(&volume).len(), 1);
}

#[test]
fn s21_one_server_may_hold_two_attachments_while_it_moves() {
    let fleet = Fleet::small();
    let (member, volume) = (fleet.member(), fleet.member().volume(None, 1));
    let (here, there) = (fleet.stock("node1"), fleet.stock("node2"));
    let first = member.reserve(&volume, Some(SERVER));
    let info = member.connect(&first, &here.connector());
    member.complete(&first);
    let session = here.login(&info).unwrap();
    let second = member.reserve(&volume, Some(SERVER));
    let duplicate = json!({ "attachment": { "connector": here.connector() } });
    member.put(&format!("/attachments/{second}"), &duplicate).refused(409, "duplicate connectors");
    let info = member.connect(&second, &there.connector());
    assert!(there.login(&info).unwrap().write().is_ok() && session.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

#[test]
fn s22_a_shareable_volume_in_use_takes_new_attachments_and_connectors() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    member.attach(&volume, &fleet.stock("node1"), None);
    let reserved = member.reserve(&volume, None);
    member.connect(&reserved, &fleet.stock("node2").connector());
    member.complete(&reserved);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

#[test]
fn s24_an_attachment_is_an_object_of_its_own() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let id = member.reserve(&volume, Some(SERVER));
    let reserved = member.show_attachment(&id);
    assert_eq!((&reserved["status"], &reserved["attached_at"]), (&json!("reserved"), &json!("")));
    assert_eq!((&reserved["volume_id"], &reserved["instance"]), (&json!(volume), &json!(SERVER)));
    assert_eq!(reserved["connection_info"], json!({}));
    member.connect(&id, &node.connector());
    member.complete(&id);
    let seen = member.show_attachment(&id);
    assert_eq!((&seen["status"], &seen["attach_mode"]), (&json!("attached"), &json!("rw")));
    assert!(seen["attached_at"].as_str().is_some_and(|time| time.len() == 26), "{seen}");
    let info = &seen["connection_info"];
    assert_eq!((&info["attachment_id"], &info["driver_volume_type"]), (&json!(id), &json!("iscsi")));
    // The volume shows where it is attached; only admins see the host.
    let entry = fleet.admin().show(&volume)["attachments"][0].take();
    assert_eq!((&entry["attachment_id"], &entry["server_id"]), (&json!(id), &json!(SERVER)));
    assert_eq!((&entry["host_name"], &entry["device"]), (&json!("node1"), &json!("/dev/vdb")));
    assert_eq!(member.show(&volume)["attachments"][0]["host_name"], Value::Null);
    // Its server and its volume find it, and no other project does.
    for filter in
        [format!("volume_id={volume}"), format!("instance_id={SERVER}"), "status=attached".to_owned()]
    {
        let found = member.get(&format!("/attachments?{filter}")).expect(200);
        assert_eq!(found["attachments"][0]["id"], json!(id), "{filter}");
    }
    let none = member.get(&format!("/attachments?instance_id={OTHER_SERVER}")).expect(200);
    assert_eq!(none["attachments"], json!([]));
    fleet.stranger().get(&format!("/attachments/{id}")).expect(404);
}

#[test]
fn s25_one_volume_is_on_one_host_once_for_one_server() {
    let fleet = Fleet::small();
    for kind in [Some(fleet.shared_type()), None] {
        let (member, volume) = (fleet.member(), fleet.member().volume(kind.as_deref(), 1));
        let node = fleet.stock("node1");
        let first = member.reserve(&volume, Some(SERVER));
        member.connect(&first, &node.connector());
        member.complete(&first);
        let second = member.reserve(&volume, Some(SERVER));
        let path = format!("/attachments/{second}");
        let same = json!({ "attachment": { "connector": node.connector() } });
        member.put(&path, &same).refused(409, "duplicate connectors");
        // The name identifies the host, whatever its initiator is called.
        let mut renamed = fleet.stock("node1-again").connector();
        renamed["host"] = json!("node1");
        let renamed = json!({ "attachment": { "connector": renamed } });
        member.put(&path, &renamed).refused(409, "duplicate connectors");
        // In one call it is a wrong request, like everything that cannot be reserved.
        let at_once = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": SERVER,
            "connector": node.connector() } });
        member.post("/attachments", &at_once).refused(400, "duplicate connectors");
        assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
        // Another host is another place.
        member.connect(&second, &fleet.stock("node2").connector());
        assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
    }
}

#[test]
fn s25_of_many_at_once_one_takes_the_place() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let ids: Vec<_> = (0..8).map(|_| member.reserve(&volume, Some(SERVER))).collect();
    let body = json!({ "attachment": { "connector": node.connector() } });
    let codes = at_once(ids.iter().map(|id| {
        let (member, body) = (member.clone(), &body);
        move || member.put(&format!("/attachments/{id}"), body).status
    }));
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 409).count(), 7, "{codes:?}");
    let connected = ids.iter().filter(|id| member.show_attachment(id)["status"] == "attaching").count();
    assert_eq!(connected, 1);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
}

#[test]
fn s54_a_host_without_a_server_attaches_by_the_api_and_natively() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").start();
    let (admin, volume) = (fleet.admin(), fleet.admin().volume(Some(&fleet.shared_type()), 1));
    let native = admin.attach_natively(&volume, "h1", "ro");
    let stock = fleet.stock("node1");
    let session = stock.login(&admin.attach(&volume, &stock, None).info).unwrap();
    session.write().unwrap();
    let shown = admin.show(&volume);
    let entries = shown["attachments"].as_array().unwrap();
    assert!(entries.len() == 2 && entries.iter().all(|entry| entry["server_id"].is_null()), "{shown}");
    assert!(fleet.host("h1").path_of(&native).is_some());
    assert_eq!(fleet.host("h1").is_read_only(&volume), Some(true));
    assert_eq!(fleet.storage("s1").grants(&volume).len(), 2);
    // It has no server: its owner may take it back, though its session is live.
    let id = entries.iter().find(|entry| entry["host_name"] == "node1").unwrap()["attachment_id"]
        .as_str()
        .unwrap();
    fleet.member().detach(id);
    assert!(!session.is_live() && fleet.storage("s1").grants(&volume).len() == 1);
    assert!(fleet.host("h1").path_of(&native).is_some());
}
