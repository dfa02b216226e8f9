//! Placement of volumes: the storage nodes' capabilities, and the answer when none fits.

use mooring_fleet::{Answer, Fleet, until};
use serde_json::{Value, json};

use crate::granted;

fn create(size: u64, kind: Option<&str>) -> Value {
    json!({ "volume": { "name": "v", "size": size, "volume_type": kind } })
}

fn id_of(made: &Value) -> String {
    made["volume"]["id"].as_str().unwrap().to_owned()
}

/// The flag `multiattach` of each pool, by the pool's name.
fn flags(pools: Answer) -> Vec<(String, Value)> {
    let pools = pools.expect(200)["pools"].take();
    let flag = |pool: &Value| {
        (pool["name"].as_str().unwrap().to_owned(), pool["capabilities"]["multiattach"].clone())
    };
    let mut flags: Vec<_> = pools.as_array().unwrap().iter().map(flag).collect();
    flags.sort_by(|one, other| one.0.cmp(&other.0));
    flags
}

#[test]
fn s05_every_pool_says_whether_it_can_share() {
    let plan = Fleet::builder().storage("shares", &[("vg0", 10), ("vg1", 10)]);
    let fleet = plan.storage_without_target("keeps", &[("vg0", 10)]).start();
    let admin = fleet.admin();
    let pool = |name: &str, shares: bool| (name.to_owned(), json!(shares));
    let both = [pool("keeps@lvm#vg0", false), pool("shares@lvm#vg0", true), pool("shares@lvm#vg1", true)];
    assert_eq!(flags(admin.get("/scheduler-stats/get_pools?detail=true")), both);
    // Other programs choose by this key.
    let one = flags(admin.get("/scheduler-stats/get_pools?detail=true&multiattach=False"));
    assert_eq!(one, both[..1]);
    fleet.member().get("/scheduler-stats/get_pools").refused(403, "scheduler_stats:get_pools");
    // Their capabilities are true: the kernel that lacks the target exports nothing.
    let volume = fleet.member().volume(Some(&fleet.shared_type()), 1);
    fleet.member().attach(&volume, &fleet.stock("node1"), None);
    assert!(fleet.storage("shares").has_export(&volume) && !fleet.storage("keeps").has_export(&volume));
}

#[test]
fn s07_with_the_switch_a_create_that_nobody_can_satisfy_ends_in_an_error() {
    let plan = Fleet::builder().storage_without_target("s1", &[("vg0", 100)]);
    let fleet = plan.tuned(|options| options.scheduler.fast_fail = false).start();
    let (member, shared) = (fleet.member(), fleet.shared_type());
    let id = id_of(&member.post("/volumes", &create(1, Some(&shared))).expect(202));
    member.until_status(&id, "error");
    assert!(!fleet.storage("s1").has_volume("vg0", &id) && !fleet.storage("s1").has_export(&id));
    let messages = member.get("/messages").expect(200);
    let mine = |message: &&Value| message["resource_uuid"] == id.as_str();
    let told = messages["messages"].as_array().unwrap().iter().find(mine).expect("a message");
    assert!(told["user_message"].as_str().unwrap().contains("No valid backend"), "{told}");
    let reserve = json!({ "attachment": { "volume_uuid": id } });
    member.post("/attachments", &reserve).refused(400, "current status is error");
    member.delete(&format!("/volumes/{id}")).expect(202);
    member.until_deleted(&id);
    // Control: a volume that fits is placed.
    let plain = member.volume(None, 1);
    assert!(fleet.storage("s1").has_volume("vg0", &plain));
}

#[test]
fn s06_a_shared_volume_is_placed_only_where_sharing_works() {
    let plan =
        Fleet::builder().storage_without_target("big", &[("vg0", 1000)]).storage("small", &[("vg0", 20)]);
    let fleet = plan.start();
    let member = fleet.member();
    let shared = member.volume(Some(&fleet.shared_type()), 1);
    assert!(fleet.storage("small").has_volume("vg0", &shared));
    assert!(!fleet.storage("big").has_volume("vg0", &shared));
    // Control: without the spec the larger pool is taken.
    let plain = member.volume(None, 1);
    assert!(
        fleet.storage("big").has_volume("vg0", &plain) && !fleet.storage("small").has_volume("vg0", &plain)
    );
}

#[test]
fn s08_a_create_that_nobody_can_satisfy_is_refused_at_once() {
    let fleet = Fleet::builder().storage_without_target("s1", &[("vg0", 100)]).start();
    let (member, shared) = (fleet.member(), fleet.shared_type());
    let create = |size: u64, kind: &str| json!({ "volume": { "size": size, "volume_type": kind } });
    member.post("/volumes", &create(1, &shared)).refused(400, "capabilities");
    // From the cached report: the agent need not be up.
    fleet.storage("s1").kill();
    member.post("/volumes", &create(1, &shared)).refused(400, "capabilities");
    let volumes = member.get("/volumes").expect(200);
    assert_eq!(volumes["volumes"], json!([]), "a refused create leaves nothing");
}

#[test]
fn s08_too_large_is_refused_at_once_too() {
    let fleet = Fleet::small();
    fleet.member().post("/volumes", &json!({ "volume": { "size": 101 } })).refused(400, "capacity");
    fleet.member().volume(None, 99);
}

#[test]
fn s09_placement_asks_the_last_report_and_no_agent() {
    let fleet = Fleet::small();
    let (member, shared) = (fleet.member(), fleet.shared_type());
    let decides = || {
        member.post("/volumes", &create(101, Some(&shared))).refused(400, "capacity");
        id_of(&member.post("/volumes", &create(1, Some(&shared))).expect(202))
    };
    // No agent can be asked.
    fleet.storage("s1").kill();
    let first = decides();
    // A controller that has never spoken to an agent knows the last report to its predecessor.
    fleet.control().restart();
    let second = decides();
    let listed = member.get("/volumes").expect(200);
    assert_eq!(listed["volumes"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(
        (member.status(&first), member.status(&second)),
        ("creating".to_owned(), "creating".to_owned())
    );
    fleet.storage("s1").start();
    for volume in [first, second] {
        member.until_status(&volume, "available");
        assert!(fleet.storage("s1").has_volume("vg0", &volume));
        member.attach(&volume, &fleet.stock("node1"), None);
        assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    }
}

#[test]
fn s09_without_any_report_the_answer_is_503() {
    for fast_fail in [true, false] {
        let plan = Fleet::builder().storage("s1", &[("vg0", 100)]).asleep();
        let fleet = plan.tuned(move |options| options.scheduler.fast_fail = fast_fail).start();
        let member = fleet.member();
        member.post("/volumes", &create(1, None)).refused(503, "report");
        assert_eq!(member.get("/volumes").expect(200)["volumes"], json!([]));
        // The first report ends it.
        fleet.storage("s1").start();
        let made = until("a volume", || {
            let answer = member.post("/volumes", &create(1, None));
            if answer.status == 202 { Ok(answer.body) } else { Err(format!("{answer:?}")) }
        });
        member.until_status(&id_of(&made), "available");
        assert!(fleet.storage("s1").has_volume("vg0", &id_of(&made)));
    }
}
