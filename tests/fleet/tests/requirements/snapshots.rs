//! Snapshots: the rules of the request are the API's, and no storage agent makes any yet.

use mooring_fleet::Client;
use serde_json::json;

use crate::shared;

/// What a request for a snapshot is answered.
fn snapshot(client: &Client, volume: &str, force: Option<bool>) -> mooring_fleet::Answer {
    let mut wanted = json!({ "volume_id": volume, "name": "before" });
    if let Some(force) = force {
        wanted["force"] = json!(force);
    }
    client.post("/snapshots", &json!({ "snapshot": wanted }))
}

#[test]
fn s56_a_snapshot_of_a_shared_volume_passes_the_rules_and_is_refused_for_want_of_agents_that_make_it() {
    let (fleet, volume) = shared();
    let (member, node) = (fleet.member(), fleet.storage("s1"));
    for host in ["node1", "node2"] {
        member.attach(&volume, &fleet.stock(host), None);
    }
    let (shown, tree) = (member.show(&volume), node.tree());
    // In use it took `force` before 3.66, and takes no word of it since.
    let (old, new) = (member.at("3.65"), member.at("3.66"));
    snapshot(&old, &volume, None).refused(400, "must be available, but current status is: in-use");
    snapshot(&new, &volume, Some(false)).refused(400, "the 'force' flag is invalid");
    snapshot(&fleet.stranger(), &volume, None).refused(404, &volume);
    // Whoever passes is told what is missing, and nothing was begun.
    for asked in [snapshot(&old, &volume, Some(true)), snapshot(&new, &volume, None)] {
        asked.refused(501, "snapshots of volumes");
    }
    assert_eq!(member.get("/snapshots/detail").expect(200)["snapshots"], json!([]));
    assert_eq!(member.show(&volume), shown, "the volume stays in use, with both attachments");
    assert_eq!(node.tree(), tree);
}
