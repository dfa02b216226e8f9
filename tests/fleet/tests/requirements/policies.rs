//! Permission to share: the policies of shared volumes, at their defaults and by an operator's
//! file.

use mooring_controller::policy::EXAMPLE;
use mooring_fleet::Fleet;
use serde_json::{Value, json};

use crate::{attached_at_once, granted};

const SHARING: &str = "Policy doesn't allow volume:multiattach to be performed.";
const BOOTABLE: &str = "Policy doesn't allow volume:multiattach_bootable_volume to be performed.";

fn volumes(fleet: &Fleet) -> Value {
    fleet.admin().get("/volumes?all_tenants=1").expect(200)["volumes"].take()
}

fn retype(fleet: &Fleet, volume: &str, to: &str) -> mooring_fleet::Answer {
    fleet.member().action(&format!("/volumes/{volume}"), "os-retype", &json!({ "new_type": to }))
}

#[test]
fn s10_a_policy_decides_who_makes_shared_volumes() {
    let fleet = Fleet::ruled("\"volume:multiattach\": \"role:admin\"");
    let (admin, member, shared) = (fleet.admin(), fleet.member(), fleet.shared_type());
    let before = fleet.storage("s1").tree();
    let body = json!({ "volume": { "size": 1, "volume_type": shared } });
    member.post("/volumes", &body).refused(403, SHARING);
    // Refused at once and without a trace.
    assert_eq!((volumes(&fleet), fleet.storage("s1").tree()), (json!([]), before));
    // A retype to sharing is refused as well; this policy does not cover one away from it.
    let plain = member.volume(None, 1);
    retype(&fleet, &plain, &shared).refused(403, SHARING);
    assert_eq!(member.show(&plain)["multiattach"], false);
    let volume = admin.volume(Some(&shared), 1);
    retype(&fleet, &volume, "__DEFAULT__").expect(202);
    assert_eq!(member.show(&volume)["multiattach"], false);
    // An allowed caller gets a working one.
    let volume = admin.volume(Some(&shared), 1);
    for node in ["node1", "node2"] {
        // The policy covers only creation: a member attaches it.
        member.attach(&volume, &fleet.stock(node), None);
    }
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

#[test]
fn s11_everybody_may_share_and_one_line_makes_it_admins_only() {
    let fleet = Fleet::small();
    let volume = fleet.member().volume(Some(&fleet.shared_type()), 1);
    assert_eq!(fleet.member().show(&volume)["multiattach"], true);
    // The line that operators find in the example.
    let line = EXAMPLE.lines().find(|line| line.starts_with("# \"volume:multiattach\":")).expect("the line");
    let fleet = Fleet::ruled(line.trim_start_matches("# "));
    let shared = fleet.shared_type();
    let body = json!({ "volume": { "size": 1, "volume_type": shared } });
    for client in [fleet.member(), fleet.stranger()] {
        client.post("/volumes", &body).refused(403, SHARING);
    }
    // Callers who may make no volume at all.
    for client in [fleet.reader(), fleet.service()] {
        client.post("/volumes", &body).refused(403, "Policy doesn't allow volume:");
    }
    let volume = fleet.admin().volume(Some(&shared), 1);
    for node in ["node1", "node2"] {
        fleet.admin().attach(&volume, &fleet.stock(node), None);
    }
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

/// A shared volume that is bootable.
fn bootable(fleet: &Fleet) -> String {
    let volume = fleet.member().volume(Some(&fleet.shared_type()), 1);
    let flag = json!({ "bootable": true });
    fleet.member().action(&format!("/volumes/{volume}"), "os-set_bootable", &flag).expect(200);
    assert_eq!(fleet.member().show(&volume)["bootable"], "true");
    volume
}

#[test]
fn s12_sharing_a_bootable_volume_has_a_policy_of_its_own() {
    let fleet = Fleet::ruled("\"volume:multiattach_bootable_volume\": \"role:admin\"");
    let (member, volume) = (fleet.member(), bootable(&fleet));
    let first = member.attach(&volume, &fleet.stock("node1"), None);
    let more =
        json!({ "attachment": { "volume_uuid": volume, "connector": fleet.stock("node2").connector() } });
    member.post("/attachments", &more).refused(403, BOOTABLE);
    member.post("/attachments", &json!({ "attachment": { "volume_uuid": volume } })).refused(403, BOOTABLE);
    // The older calls check the same policy.
    let path = format!("/volumes/{volume}");
    member.action(&path, "os-reserve", &Value::Null).refused(403, BOOTABLE);
    let connector = json!({ "connector": fleet.stock("node2").connector() });
    member.action(&path, "os-initialize_connection", &connector).refused(403, BOOTABLE);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    fleet.admin().attach(&volume, &fleet.stock("node2"), None);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
    // A single attachment is not affected, and at the default every member may share.
    member.detach(&first.id);
    let fleet = Fleet::small();
    let volume = bootable(&fleet);
    for node in ["node1", "node2"] {
        fleet.member().attach(&volume, &fleet.stock(node), None);
    }
    assert_eq!(granted(&fleet, &volume).len(), 2);
}

#[test]
fn s12_of_many_at_once_exactly_one_gets_a_bootable_volume() {
    let fleet = Fleet::ruled("\"volume:multiattach_bootable_volume\": \"!\"");
    for _ in 0..3 {
        let volume = bootable(&fleet);
        let codes = attached_at_once(&fleet, &volume);
        assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == 403).count(), 7, "{codes:?}");
        assert_eq!(fleet.storage("s1").grants(&volume).len(), 1);
    }
}
