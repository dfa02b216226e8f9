//! The older calls, as actions of a volume: they make the same attachments, by the same rules.

use mooring_fleet::{Answer, Client, Fleet, Stock};
use serde_json::{Value, json};

use crate::{NOTHING, OTHER_SERVER, SERVER, granted, shared};

/// Calls actions of one volume.
struct Older<'a> {
    client: Client,
    volume: &'a str,
}

impl Older<'_> {
    fn act(&self, name: &str, body: &Value) -> Answer {
        self.client.action(&format!("/volumes/{}", self.volume), name, body)
    }

    /// Reserves, connects and attaches; the connection info is flat as in the newer calls.
    fn attach(&self, node: &Stock, server: &str, mode: &str) -> Value {
        self.act("os-reserve", &json!({})).expect(202);
        let connector = json!({ "connector": node.connector() });
        let info = self.act("os-initialize_connection", &connector).expect(200)["connection_info"].take();
        assert_eq!(info["driver_volume_type"], "iscsi");
        let said = json!({ "instance_uuid": server, "mountpoint": "/dev/vdb", "mode": mode });
        self.act("os-attach", &said).expect(202);
        info["data"].clone()
    }
}

#[test]
fn s23_the_older_calls_share_by_the_same_rules() {
    let (fleet, volume) = shared();
    let (one, two) = (fleet.stock("node1"), fleet.stock("node2"));
    // Nova makes these calls, with its own token beside the user's.
    let client = fleet.member().with("X-Service-Token", fleet.service().token());
    let older = Older { client: client.clone(), volume: &volume };
    let first = one.login(&older.attach(&one, SERVER, "rw")).unwrap();
    first.write().unwrap();
    assert_eq!(client.status(&volume), "in-use");
    let second = two.login(&older.attach(&two, OTHER_SERVER, "ro")).unwrap();
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 ro"]);
    assert!(first.write().is_ok() && second.read().is_ok() && second.write().is_err());
    // The newer calls show them.
    let listed = client.get(&format!("/attachments/detail?volume_id={volume}")).expect(200);
    let listed = listed["attachments"].as_array().unwrap();
    let of = |server: &str| listed.iter().find(|one| one["instance"] == server).unwrap();
    assert_eq!((&of(SERVER)["attach_mode"], &of(OTHER_SERVER)["attach_mode"]), (&json!("rw"), &json!("ro")));
    // With two, the one to detach must be named.
    older.act("os-detach", &Value::Null).refused(400, "attachment_id");
    older.act("os-terminate_connection", &json!({ "connector": one.connector() })).expect(202);
    assert!(!first.is_live() && second.is_live());
    older.act("os-detach", &json!({ "attachment_id": of(SERVER)["id"] })).expect(202);
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 ro"]);
    assert_eq!(client.status(&volume), "in-use");
    // With one, it need not be; and a newer call ends what an older one began.
    client.detach(of(OTHER_SERVER)["id"].as_str().unwrap());
    assert!(granted(&fleet, &volume).is_empty() && !second.is_live());
    assert_eq!(client.status(&volume), "available");
}

#[test]
fn s23_the_older_calls_do_not_share_what_is_not_shareable() {
    let fleet = Fleet::small();
    let volume = fleet.member().volume(None, 1);
    let older = Older { client: fleet.member(), volume: &volume };
    older.attach(&fleet.stock("node1"), SERVER, "rw");
    older.act("os-reserve", &Value::Null).refused(400, "current status is in-use");
    let connector = json!({ "connector": fleet.stock("node2").connector() });
    older.act("os-initialize_connection", &connector).refused(400, "current status is in-use");
    let said = json!({ "instance_uuid": OTHER_SERVER, "mountpoint": "/dev/vdb" });
    older.act("os-attach", &said).refused(400, "current status is in-use");
    let newer = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": OTHER_SERVER } });
    older.client.post("/attachments", &newer).refused(400, "current status is in-use");
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    // The older calls do not take what an attachment of the newer calls has.
    older.act("os-detach", &Value::Null).expect(202);
    older.client.reserve(&volume, Some(SERVER));
    older.act("os-reserve", &Value::Null).refused(400, "current status is reserved");
    assert!(granted(&fleet, &volume).is_empty());
}

#[test]
fn s23_an_older_detach_of_nothing_is_refused() {
    let fleet = Fleet::small();
    let volume = fleet.member().volume(None, 1);
    let older = Older { client: fleet.admin(), volume: &volume };
    for name in ["os-detach", "os-force_detach"] {
        older.act(name, &json!({ "attachment_id": NOTHING })).refused(409, "no record of one");
    }
    older.act("os-detach", &Value::Null).refused(409, "nothing to detach");
    // One that was is gone for good: the call may be repeated.
    let id = older.client.reserve(&volume, Some(SERVER));
    for _ in 0..2 {
        older.act("os-detach", &json!({ "attachment_id": id })).expect(202);
    }
    older.act("os-force_detach", &json!({ "attachment_id": id })).expect(202);
    older.act("os-detach", &json!({})).expect(202);
    assert_eq!(older.client.status(&volume), "available");
}
