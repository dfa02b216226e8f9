//! The status of a volume and of its attachments.

use std::time::Duration;

use mooring_fleet::{Client, Fleet, Node, until};
use serde_json::{Value, json};

use crate::{OTHER_SERVER, SERVER, granted, shared};

/// Requests a detach that no agent can do now.
fn ask_to_detach(client: &Client, attachment: &str) {
    let path = format!("/mooring/v1/attachments/{attachment}?wait_ms=50");
    assert_eq!(client.delete(&path).status, 504);
}

fn until_gone(client: &Client, attachment: &str) {
    until("the end of the attachment", || {
        let seen = client.get(&format!("/attachments/{attachment}"));
        if seen.status == 404 { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

#[test]
fn s32_the_status_is_the_highest_of_its_attachments() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let reserved = member.reserve(&volume, None);
    assert_eq!(member.status(&volume), "reserved");
    let (one, two) = (member.reserve(&volume, None), member.reserve(&volume, None));
    member.connect(&one, &fleet.stock("node1").connector());
    member.connect(&two, &fleet.stock("node2").connector());
    assert_eq!(member.status(&volume), "attaching", "over reserved");
    member.complete(&one);
    assert_eq!(member.status(&volume), "in-use", "over all others");
    // From here on the storage node does not answer: requests stay pending.
    fleet.storage("s1").kill();
    ask_to_detach(&member, &one);
    assert_eq!(member.status(&volume), "attaching", "over detaching");
    ask_to_detach(&member, &two);
    assert_eq!(member.status(&volume), "detaching", "over reserved");
    assert_eq!(granted(&fleet, &volume).len(), 2, "a status is no proof");
    fleet.control().restart();
    assert_eq!(member.status(&volume), "detaching");
    fleet.storage("s1").start();
    until_gone(&member, &one);
    until_gone(&member, &two);
    assert_eq!(member.status(&volume), "reserved");
    assert!(granted(&fleet, &volume).is_empty());
    member.detach(&reserved);
    assert_eq!(member.status(&volume), "available");
}

#[test]
fn s33_attachments_say_that_they_are_attaching_or_detaching() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let says = |id: &str, status: &str| {
        assert_eq!(member.show_attachment(id)["status"], status);
        let found = member.get(&format!("/attachments?volume_id={volume}&status={status}")).expect(200);
        assert_eq!(
            (found["attachments"].as_array().unwrap().len(), &found["attachments"][0]["id"]),
            (1, &json!(id))
        );
    };
    let id = member.reserve(&volume, None);
    says(&id, "reserved");
    member.connect(&id, &fleet.stock("node1").connector());
    says(&id, "attaching");
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    member.complete(&id);
    says(&id, "attached");
    fleet.storage("s1").kill();
    ask_to_detach(&member, &id);
    says(&id, "detaching");
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"], "until the receipt is there");
    fleet.storage("s1").start();
    until_gone(&member, &id);
    assert!(granted(&fleet, &volume).is_empty());
}

/// Makes a volume in quarantine: commands of a host that was forced off may still land.
fn quarantined(fleet: &Fleet, volume: &str) {
    let (admin, node) = (fleet.admin(), fleet.stock("node9"));
    let attached = admin.attach(volume, &node, None);
    let session = node.login(&attached.info).unwrap();
    fleet.storage("s1").machine().hold(Node::device("vg0", volume));
    session.start_write().unwrap();
    let forced = format!("/mooring/v1/attachments/{}?force=true&wait_ms=1000", attached.id);
    assert_eq!(admin.delete(&forced).expect(200)["receipt"]["proof"], "unproven");
}

#[test]
fn s34_a_failed_attachment_holds_nothing_and_stays_until_deleted() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    quarantined(&fleet, &volume);
    let id = member.reserve(&volume, Some(SERVER));
    let connector = json!({ "attachment": { "connector": fleet.stock("node1").connector() } });
    let refused = member.put(&format!("/attachments/{id}"), &connector);
    assert!(matches!(refused.status, 400 | 409), "{refused:?}");
    assert_eq!(member.show_attachment(&id)["status"], "error_attaching");
    until("the end of the grant", || {
        let left = granted(&fleet, &volume);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    fleet.storage("s1").machine().release(Node::device("vg0", &volume));
    // It counts in no status, blocks nobody, and is deleted on request.
    member.until_status(&volume, "available");
    until("the end of the quarantine", || {
        let body = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": OTHER_SERVER,
            "connector": fleet.stock("node2").connector() } });
        let made = member.post("/attachments", &body);
        if made.status == 200 { Ok(()) } else { Err(format!("{made:?}")) }
    });
    assert_eq!(member.show_attachment(&id)["status"], "error_attaching");
    member.detach(&id);
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
}

#[test]
fn s34_what_could_not_be_detached_yet_goes_on_and_never_ends_in_an_error() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let attached = member.attach(&volume, &node, None);
    let session = node.login(&attached.info).unwrap();
    fleet.storage("s1").kill();
    for _ in 0..3 {
        ask_to_detach(&member, &attached.id);
        assert_eq!(member.show_attachment(&attached.id)["status"], "detaching");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Its host still has the disk: nothing says that it is free.
    assert!(session.is_live() && granted(&fleet, &volume) == ["node1 LUN 1 rw"]);
    assert_eq!(member.status(&volume), "detaching");
    member.delete(&format!("/volumes/{volume}")).expect(400);
    fleet.storage("s1").start();
    until_gone(&member, &attached.id);
    assert!(!session.is_live() && granted(&fleet, &volume).is_empty());
}

#[test]
fn s35_a_volume_shows_every_attachment_that_is_attached() {
    let (fleet, volume) = shared();
    let member = fleet.member();
    let mut wanted = Vec::new();
    for (node, server) in [("node1", Some(SERVER)), ("node2", Some(OTHER_SERVER)), ("node3", None)] {
        let id = member.reserve(&volume, server);
        member.connect(&id, &fleet.stock(node).connector());
        member.complete(&id);
        wanted.push((id, server.map(str::to_owned), node.to_owned()));
    }
    // An unfinished attachment is not shown yet.
    let id = member.reserve(&volume, None);
    member.connect(&id, &fleet.stock("node4").connector());
    wanted.sort();
    let entries = |volume: &Value, admin: bool| {
        let entries = volume["attachments"].as_array().unwrap().iter();
        let mut seen: Vec<_> = entries
            .map(|entry| {
                assert_eq!((&entry["id"], &entry["volume_id"]), (&volume["id"], &volume["id"]));
                assert_eq!((&entry["device"], entry["host_name"].is_string()), (&json!("/dev/vdb"), admin));
                let text = |key: &str| entry[key].as_str().map(str::to_owned);
                let host = text("host_name").unwrap_or_default();
                (text("attachment_id").unwrap(), text("server_id"), host)
            })
            .collect();
        seen.sort();
        seen
    };
    assert_eq!(entries(&fleet.admin().show(&volume), true), wanted);
    let hidden: Vec<_> =
        wanted.iter().map(|(id, server, _)| (id.clone(), server.clone(), String::new())).collect();
    assert_eq!(entries(&member.show(&volume), false), hidden);
    let listed = member.get("/volumes/detail").expect(200);
    assert_eq!(entries(&listed["volumes"][0], false), hidden);
    let hosts = ["node1 LUN 1 rw", "node2 LUN 1 rw", "node3 LUN 1 rw", "node4 LUN 1 rw"];
    assert_eq!(granted(&fleet, &volume), hosts);
}
