//! Volumes that are reverted to a snapshot, through controller and agents.

use mooring_fleet::{Client, Fleet, Node, until};
use serde_json::json;

const GIB: u64 = 1 << 30;

fn fleet() -> Fleet {
    Fleet::builder().storage_with_thin("s1", &[("vg0", 100)], 60).host("h1").start()
}

fn snapshot(client: &Client, volume: &str) -> String {
    let body = json!({ "snapshot": { "volume_id": volume } });
    let id = client.at("3.66").post("/snapshots", &body).expect(202)["snapshot"]["id"].clone();
    let id = id.as_str().unwrap().to_owned();
    until("the snapshot is there", || {
        let seen = client.get(&format!("/snapshots/{id}")).expect(200)["snapshot"].clone();
        if seen["status"] == "available" { Ok(()) } else { Err(seen.to_string()) }
    });
    id
}

#[test]
fn a_volume_becomes_what_its_newest_snapshot_holds_under_the_same_names() {
    let fleet = fleet();
    let (member, node) = (fleet.member(), fleet.storage("s1"));
    fleet.admin().volume_type("thin", &[("provisioning:type", "thin")]);
    let volume = member.volume(Some("thin"), 1);
    let (old, new) = (snapshot(&member, &volume), snapshot(&member, &volume));
    let device = Node::device("vg0", &volume);
    node.machine().blocks().fill(&device);
    // It grows after the snapshot, and keeps that size.
    let path = format!("/volumes/{volume}");
    member.action(&path, "os-extend", &json!({ "new_size": 2 })).expect(202);
    member.until_status(&volume, "available");
    let stock = fleet.stock("node1");
    let attached = member.attach(&volume, &stock, None);
    let session = stock.login(&attached.info).unwrap();
    let at = member.at("3.40");
    at.action(&path, "revert", &json!({ "snapshot_id": new })).refused(409, "detach attachment");
    assert!(session.write().is_ok());
    member.delete(&format!("/attachments/{}", attached.id)).expect(200);
    member.until_status(&volume, "available");
    at.action(&path, "revert", &json!({ "snapshot_id": old })).refused(400, "not the latest one of volume");
    member
        .at("3.39")
        .action(&path, "revert", &json!({ "snapshot_id": new }))
        .refused(404, "could not be found");
    at.action(&path, "revert", &json!({ "snapshot_id": new })).expect(202);
    member.until_status(&volume, "available");
    assert_eq!(node.machine().blocks().zeroed_ranges(&device), [(0, 2 * GIB)]);
    assert_eq!(member.show(&volume)["size"], 2);
    // The names stay: a host that attaches again finds its disk.
    let again = member.attach(&volume, &stock, None);
    for key in ["target_iqn", "target_lun"] {
        assert_eq!(again.info["data"][key], attached.info["data"][key], "{key}");
    }
    assert!(stock.login(&again.info).unwrap().write().is_ok());
    let left = member.get(&format!("/snapshots/detail?volume_id={volume}")).expect(200);
    assert_eq!(left["snapshots"].as_array().unwrap().len(), 2);
    assert!(left["snapshots"].as_array().unwrap().iter().all(|one| one["status"] == "available"));
}
