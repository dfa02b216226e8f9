//! Snapshots of volumes, and volumes that are made from them, on the real agents and their fakes.

use mooring_fleet::{Answer, Client, Fleet, Node, until};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

/// A storage node with a thin pool, where every volume is thin unless its type says otherwise.
fn fleet() -> Fleet {
    Fleet::builder().storage_with_thin("s1", &[("vg0", 100)], 60).host("h1").start()
}

fn thin_type(fleet: &Fleet) -> String {
    let specs = [("multiattach", "<is> True"), ("provisioning:type", "thin")];
    fleet.admin().volume_type("thin", &specs);
    "thin".to_owned()
}

fn ask(client: &Client, volume: &str, force: Option<bool>) -> Answer {
    let mut wanted = json!({ "volume_id": volume, "name": "before", "metadata": { "a": "b" } });
    if let Some(force) = force {
        wanted["force"] = json!(force);
    }
    client.post("/snapshots", &json!({ "snapshot": wanted }))
}

fn shown(client: &Client, id: &str) -> Value {
    client.get(&format!("/snapshots/{id}")).expect(200)["snapshot"].clone()
}

fn until_snapshot(client: &Client, id: &str, status: &str) {
    until(&format!("snapshot {id} is {status}"), || {
        let seen = shown(client, id);
        if seen["status"] == status { Ok(()) } else { Err(seen.to_string()) }
    });
}

fn until_gone(client: &Client, path: &str) {
    until(&format!("{path} is gone"), || match client.get(path) {
        gone if gone.status == 404 => Ok(()),
        there => Err(there.body.to_string()),
    });
}

/// Takes a snapshot, and waits until it exists.
fn snapshot(client: &Client, volume: &str) -> String {
    let id = ask(&client.at("3.66"), volume, None).expect(202)["snapshot"]["id"].as_str().unwrap().to_owned();
    until_snapshot(client, &id, "available");
    id
}

/// Makes a volume from this source.
fn made_from(client: &Client, body: &Value) -> String {
    let id = client.post("/volumes", &json!({ "volume": body })).expect(202)["volume"]["id"].clone();
    let id = id.as_str().unwrap().to_owned();
    client.until_status(&id, "available");
    id
}

fn snapshot_lv(id: &str) -> String {
    format!("mooring-snap-{id}")
}

#[test]
fn s56_a_shared_volume_in_use_has_snapshots_and_its_hosts_notice_nothing() {
    let fleet = fleet();
    let (member, node) = (fleet.member(), fleet.storage("s1"));
    let volume = member.volume(Some(&thin_type(&fleet)), 1);
    let sessions = ["node1", "node2"].map(|host| {
        let stock = fleet.stock(host);
        stock.login(&member.attach(&volume, &stock, None).info).unwrap()
    });
    let tree = node.tree();
    // A volume in use needs `force` before 3.66; from then on it does not, and a `false` is
    // refused.
    let (old, new) = (member.at("3.65"), member.at("3.66"));
    ask(&old, &volume, None).refused(400, "must be available, but current status is: in-use");
    ask(&new, &volume, Some(false)).refused(400, "the 'force' flag is invalid");
    ask(&fleet.stranger(), &volume, None).refused(404, &volume);
    let forced = ask(&old, &volume, Some(true)).expect(202);
    assert_eq!(forced["snapshot"]["status"], "creating");
    let second = snapshot(&member, &volume);
    let seen = shown(&member, &second);
    assert_eq!((&seen["volume_id"], &seen["size"]), (&json!(volume), &json!(1)));
    assert_eq!(seen["metadata"], json!({ "a": "b" }));
    assert!(sessions.iter().all(|session| session.write().is_ok()));
    assert_eq!(node.tree(), tree, "the target has nothing to do");
    assert_eq!(member.show(&volume)["status"], "in-use");
    // A snapshot is granted to nobody, and this host has no device of it.
    let device = format!("/dev/vg0/{}", snapshot_lv(&second));
    assert_eq!(mooring_host::BlockDevices::size(&node.machine().blocks(), device.as_ref()).unwrap(), None);
    assert_eq!(member.get(&format!("/volumes/{second}")).status, 404, "a snapshot is no volume");
    assert_eq!(fleet.stranger().get("/snapshots/detail").expect(200)["snapshots"], json!([]));
    let listed = member.get(&format!("/snapshots/detail?volume_id={volume}")).expect(200);
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 2);
    assert_eq!(member.get("/volumes").expect(200)["volumes"].as_array().unwrap().len(), 1);
}

#[test]
fn volumes_are_made_from_snapshots_and_volumes() {
    let fleet = fleet();
    let (member, node) = (fleet.member(), fleet.storage("s1"));
    let volume = member.volume(Some(&thin_type(&fleet)), 1);
    node.machine().blocks().fill(Node::device("vg0", &volume));
    let taken = snapshot(&member, &volume);
    let copy = made_from(&member, &json!({ "name": "copy", "snapshot_id": taken, "size": 3 }));
    let clone = made_from(&member, &json!({ "name": "clone", "source_volid": volume }));
    let (seen, of_clone) = (member.show(&copy), member.show(&clone));
    assert_eq!((&seen["snapshot_id"], &seen["source_volid"]), (&json!(taken), &Value::Null));
    assert_eq!((&of_clone["source_volid"], &of_clone["size"]), (&json!(volume), &json!(1)));
    assert_eq!((&seen["volume_type"], &seen["multiattach"]), (&json!("thin"), &json!(true)));
    // The copy has the snapshot's content, and zeros after it.
    let zeroed = node.machine().blocks().zeroed_ranges(Node::device("vg0", &copy));
    assert_eq!(zeroed, [(GIB, 3 * GIB)]);
    let attached = member.attach(&copy, &fleet.stock("node1"), None);
    assert!(fleet.stock("node1").login(&attached.info).unwrap().write().is_ok());

    member.post("/volumes", &json!({ "volume": { "snapshot_id": copy } })).refused(404, &copy);
    let small = made_from(&member, &json!({ "name": "big", "size": 4, "volume_type": "thin" }));
    let of_big = snapshot(&member, &small);
    let body = json!({ "volume": { "snapshot_id": of_big, "size": 1 } });
    member.post("/volumes", &body).refused(400, "cannot be smaller than the snapshot size 4GB");
    let both = json!({ "volume": { "snapshot_id": taken, "source_volid": volume } });
    member.post("/volumes", &both).refused(400, "a volume has one source");
    let foreign = json!({ "volume": { "snapshot_id": taken } });
    fleet.stranger().post("/volumes", &foreign).refused(404, &taken);
}

#[test]
fn a_thick_volume_has_no_snapshots_and_says_what_has() {
    let fleet = fleet();
    let member = fleet.member();
    fleet.admin().volume_type("thick", &[("provisioning:type", "thick")]);
    let volume = member.volume(Some("thick"), 1);
    assert!(fleet.admin().show(&volume)["os-vol-host-attr:host"].to_string().ends_with("#vg0\""));
    ask(&member, &volume, None).refused(400, "provisioning:type = thin");
    let body = json!({ "volume": { "source_volid": volume } });
    member.post("/volumes", &body).refused(400, "only thin volumes have snapshots and copies");
    // A copy cannot be thick: it shares blocks.
    let thin = member.volume(Some(&thin_type(&fleet)), 1);
    let body = json!({ "volume": { "source_volid": thin, "volume_type": "thick" } });
    assert_eq!(member.post("/volumes", &body).status, 400);
}

#[test]
fn what_depends_on_a_snapshot_is_asked_before_anything_goes() {
    let fleet = fleet();
    let (member, node) = (fleet.member(), fleet.storage("s1"));
    let volume = member.volume(Some(&thin_type(&fleet)), 1);
    let (first, second) = (snapshot(&member, &volume), snapshot(&member, &volume));
    let copy = made_from(&member, &json!({ "name": "copy", "snapshot_id": first }));
    member.delete(&format!("/volumes/{volume}")).refused(400, "have snapshots");
    let force = fleet.admin().action(&format!("/volumes/{volume}"), "os-force_delete", &json!({}));
    force.refused(400, "has snapshots");
    member.delete(&format!("/snapshots/{first}")).expect(202);
    until_gone(&member, &format!("/snapshots/{first}"));
    assert!(node.has_volume("vg0", &copy), "what was made from it stays");
    fleet.stranger().delete(&format!("/snapshots/{second}")).refused(404, &second);
    member.delete(&format!("/volumes/{volume}?cascade=true")).expect(202);
    member.until_deleted(&volume);
    until_gone(&member, &format!("/snapshots/{second}"));
    assert!(!node.has_volume("vg0", &volume) && node.has_volume("vg0", &copy));
}

#[test]
fn snapshots_are_renamed_marked_and_counted() {
    let fleet = fleet();
    let (admin, member) = (fleet.admin(), fleet.member());
    let volume = member.volume(Some(&thin_type(&fleet)), 2);
    let id = snapshot(&member, &volume);
    let path = format!("/snapshots/{id}");
    member.put(&path, &json!({ "snapshot": { "name": "other", "description": "d" } })).expect(200);
    assert_eq!(
        (&shown(&member, &id)["name"], &shown(&member, &id)["description"]),
        (&json!("other"), &json!("d"))
    );
    let metadata = format!("{path}/metadata");
    member.post(&metadata, &json!({ "metadata": { "c": "d" } })).expect(200);
    assert_eq!(member.get(&metadata).expect(200)["metadata"], json!({ "a": "b", "c": "d" }));
    member.put(&format!("{metadata}/c"), &json!({ "meta": { "c": "e" } })).expect(200);
    member.delete(&format!("{metadata}/a")).expect(200);
    member.delete(&format!("{metadata}/a")).refused(404, "a");
    assert_eq!(shown(&member, &id)["metadata"], json!({ "c": "e" }));
    member.action(&path, "os-reset_status", &json!({ "status": "error" })).refused(403, "reset_status");

    let project = member.project();
    let used = admin.get(&format!("/os-quota-sets/{project}?usage=true")).expect(200);
    let in_use = |key: &str| used["quota_set"][key]["in_use"].clone();
    assert_eq!((in_use("snapshots"), in_use("volumes"), in_use("gigabytes")), (json!(1), json!(1), json!(4)));
    let limit = json!({ "quota_set": { "snapshots": 1 } });
    admin.put(&format!("/os-quota-sets/{project}"), &limit).expect(200);
    ask(&member, &volume, None).refused(413, "napshot");
}

#[test]
fn snapshots_outlive_agents_controllers_and_their_databases() {
    let fleet = fleet();
    let (member, node) = (fleet.member(), fleet.storage("s1"));
    let volume = member.volume(Some(&thin_type(&fleet)), 1);
    let id = snapshot(&member, &volume);
    let before = shown(&member, &id);
    node.reboot();
    fleet.control().restart();
    fleet.until_up();
    assert_eq!(shown(&member, &id), before);
    // The volume's present content is another.
    node.machine().blocks().fill(Node::device("vg0", &volume));
    let copy = made_from(&member, &json!({ "name": "copy", "snapshot_id": id }));
    assert!(node.machine().blocks().is_zeroed(Node::device("vg0", &copy)));
}

#[test]
fn a_snapshot_that_is_lost_is_not_taken_anew() {
    let fleet = fleet();
    let (member, node) = (fleet.member(), fleet.storage("s1"));
    let volume = member.volume(Some(&thin_type(&fleet)), 1);
    let id = snapshot(&member, &volume);
    node.kill();
    node.machine().lvm().lose_volume("vg0", &snapshot_lv(&id));
    node.start();
    until_snapshot(&member, &id, "error");
    let taken = |line: &&String| line.starts_with("lvcreate") && line.contains(&id);
    assert_eq!(node.machine().lvm().log().iter().filter(taken).count(), 1);
    let body = json!({ "volume": { "snapshot_id": id } });
    member.post("/volumes", &body).refused(400, "snapshot status must be");
    member.delete(&format!("/snapshots/{id}")).expect(202);
    until_gone(&member, &format!("/snapshots/{id}"));
}

#[test]
fn a_snapshot_is_unmanaged_with_its_data_and_deleted_by_force() {
    let fleet = fleet();
    let (admin, member, node) = (fleet.admin(), fleet.member(), fleet.storage("s1"));
    let volume = member.volume(Some(&thin_type(&fleet)), 1);
    let (kept, gone) = (snapshot(&member, &volume), snapshot(&member, &volume));
    let (path, other) = (format!("/snapshots/{kept}"), format!("/snapshots/{gone}"));
    // LVs that are nobody's are listed, and snapshots are not.
    let is_nobodys = |id: &str| {
        let listed = admin.at("3.66").get("/manageable_volumes?host=s1@lvm%23vg0").expect(200);
        listed.to_string().contains(&snapshot_lv(id))
    };
    let is_removed = |id: &str| {
        let log = node.machine().lvm().log();
        log.iter().any(|line| line.starts_with("lvremove") && line.contains(&snapshot_lv(id)))
    };
    assert!(!is_nobodys(&kept) && !is_nobodys(&gone));
    for name in ["os-unmanage", "os-force_delete"] {
        member.action(&path, name, &json!({})).refused(403, "snapshot");
    }
    admin.action(&path, "os-unmanage", &json!({})).expect(202);
    until_gone(&member, &path);
    // An operator's word is taken back; a driver's word on what is there is refused.
    admin.action(&other, "os-reset_status", &json!({ "status": "error" })).expect(202);
    assert_eq!(shown(&member, &gone)["status"], "error");
    admin.action(&other, "os-reset_status", &json!({ "status": "available" })).expect(202);
    admin
        .action(&other, "os-update_snapshot_status", &json!({ "status": "error" }))
        .refused(400, "not allowed");
    admin.action(&other, "os-force_delete", &json!({})).expect(202);
    until_gone(&member, &other);
    assert!(is_nobodys(&kept) && !is_removed(&kept) && is_removed(&gone));
    // The volume goes without its snapshots, whose one is nobody's now.
    member.delete(&format!("/volumes/{volume}")).expect(202);
    member.until_deleted(&volume);
    assert!(is_nobodys(&kept) && !is_removed(&kept));
}
