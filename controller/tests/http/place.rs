//! Pools, capabilities, services, zones, hints: Cinder's words for them.

use std::time::{Duration, SystemTime};

use mooring_controller::domain::{
    DisputedInitiator, FencePart, FenceState, FencedExport, HostChange, PoolFilter, UnknownNode,
};
use mooring_model::{AttachmentId, Generation, Proof, Receipt, Revoked, VolumeId};
use serde_json::{Value, json};

use crate::client::{Api, DEAD, keys, words};

#[tokio::test]
async fn pools_by_name_or_in_detail() {
    let api = Api::new();
    let names = api.get("/scheduler-stats/get_pools").await;
    assert_eq!(names.status, 200);
    assert_eq!(names.body, json!({ "pools": [{ "name": "storage1@lvm#vg0" }] }));
    let detail = api.get("/scheduler-stats/get_pools?detail=true").await;
    let want = json!({ "name": "storage1@lvm#vg0", "capabilities": { "free_capacity_gb": 4.0 } });
    assert_eq!(detail.body, json!({ "pools": [want] }));
    let wrong = api.get("/scheduler-stats/get_pools?detail=maybe").await;
    wrong.is_fault(400, "badRequest", "Value 'maybe' for 'detail' is not a boolean.");
    let wrong = api.get("/scheduler-stats/get_pools?volume_type=nosuch").await;
    wrong.is_fault(
        400,
        "badRequest",
        "The server could not comply with the request since it is either malformed or otherwise incorrect.",
    );
    assert_eq!(api.post("/scheduler-stats/get_pools", json!({})).await.status, 404);
}

#[tokio::test]
async fn filters_of_pools_came_with_versions() {
    let api = Api::new();
    let path = "/scheduler-stats/get_pools?name=a&multiattach=true&volume_type=t&detail=true";
    let equal = vec![("name".to_owned(), "a".to_owned()), ("multiattach".to_owned(), "true".to_owned())];
    for (version, filter) in [
        ("3.27", PoolFilter::default()),
        ("3.28", PoolFilter { volume_type: None, equal: equal.clone() }),
        ("3.34", PoolFilter { volume_type: None, equal: equal.clone() }),
        ("3.35", PoolFilter { volume_type: Some("t".to_owned()), equal }),
    ] {
        assert_eq!(api.v3(version, "GET", path, None).await.status, 200);
        assert_eq!(api.fake.state().pool_filter, filter, "{version}");
    }
}

#[tokio::test]
async fn capabilities_of_a_host() {
    let api = Api::new();
    assert_eq!(api.get("/capabilities/storage1@lvm").await.body, json!({ "vendor_name": "Mooring" }));
    let unknown = api.get("/capabilities/nosuch").await;
    unknown.is_fault(404, "itemNotFound", "Can't find service: nosuch");
}

#[tokio::test]
async fn zones() {
    let api = Api::new();
    let answer = api.get("/os-availability-zone").await;
    assert_eq!(
        answer.body,
        json!({ "availabilityZoneInfo": [{ "zoneName": "nova", "zoneState": { "available": true } }] })
    );
}

#[tokio::test]
async fn services_grow_with_versions() {
    const ALL: &str = "binary host zone status state updated_at disabled_reason";
    const VOLUME: &str = "replication_status active_backend_id frozen";
    let api = Api::new();
    for (version, more, backend) in
        [("3.0", "", ""), ("3.7", "cluster", ""), ("3.49", "cluster", "backend_state")]
    {
        let services = api.v3(version, "GET", "/os-services", None).await.body["services"].clone();
        assert_eq!(keys(&services[0]), words(&format!("{ALL} {more}")), "{version}");
        assert_eq!(keys(&services[1]), words(&format!("{ALL} {VOLUME} {more} {backend}")), "{version}");
        assert_eq!(services[1]["updated_at"], "1970-01-01T00:00:00.000000");
    }
    for (filter, count) in [
        ("binary=cinder-scheduler", 1),
        ("binary=nosuch", 0),
        ("host=storage1", 1),
        ("host=storage1@lvm", 1),
        ("host=storage1@lvm&binary=cinder-scheduler", 0),
    ] {
        let services = api.get(&format!("/os-services?{filter}")).await.body["services"].clone();
        assert_eq!(services.as_array().unwrap().len(), count, "{filter}");
    }
}

#[tokio::test]
async fn a_list_without_a_collection_drops_no_key() {
    let api = Api::new();
    for (path, list, filter, key) in [
        ("/os-services", "services", "binary=cinder-volume", "state=down"),
        ("/os-services", "services", "host=storage1", "status=enabled"),
        ("/os-hosts", "hosts", "zone=nova", "service=cinder-volume"),
        ("/os-hosts", "hosts", "zone=", "host_name=storage1"),
    ] {
        let ask =
            async |version: &str, query: &str| api.v3(version, "GET", &format!("{path}?{query}"), None).await;
        // The control: what is known is applied, and keys of pages leave nothing out.
        for known in [filter, "limit=1000", "sort_dir=asc&all_tenants=true"] {
            let all = ask("3.31", known).await.body[list].clone();
            assert!(!all.as_array().unwrap().is_empty(), "{path} {known}: {all}");
        }
        for query in [key.to_owned(), format!("{filter}&{key}")] {
            let older = ask("3.30", &query).await;
            assert_eq!((older.status.as_u16(), &older.body[list]), (200, &json!([])), "{path} {query}");
            let name = key.split('=').next().unwrap();
            let text = format!("Invalid filters {name} are found in query options.");
            ask("3.31", &query).await.is_fault(400, "badRequest", &text);
        }
    }
    assert_eq!(api.get("/os-hosts?zone=elsewhere").await.body["hosts"], json!([]));
    let text = "Invalid filters type are found in query options.";
    api.get("/resource_filters?resource=volume&type=x").await.is_fault(400, "badRequest", text);
}

#[tokio::test]
async fn services_are_changed_and_say_so() {
    let api = Api::new();
    let body = json!({ "binary": "cinder-volume", "host": "storage1@lvm" });
    let answer = api.put("/os-services/disable", body.clone()).await;
    let want = json!({
        "host": "storage1@lvm", "service": "cinder-volume", "binary": "cinder-volume", "disabled": true,
        "status": "disabled",
    });
    assert_eq!((answer.status.as_u16(), answer.body), (200, want));
    assert_eq!(api.fake.state().said, Some(("storage1".to_owned(), HostChange::Disable(None))));
    let why = json!({ "binary": "cinder-volume", "host": "storage1@lvm", "disabled_reason": " a disk " });
    let answer = api.put("/os-services/disable-log-reason", why).await;
    assert_eq!(answer.body["disabled_reason"], "a disk");
    let said = HostChange::Disable(Some("a disk".to_owned()));
    assert_eq!(api.fake.state().said, Some(("storage1".to_owned(), said)));
    // In the words of older clients.
    let old = json!({ "service": "cinder-volume", "host": "storage1@lvm" });
    let answer = api.put("/os-services/enable", old).await;
    assert_eq!(
        (answer.body["disabled"].clone(), answer.body["status"].clone()),
        (json!(false), json!("enabled"))
    );
    assert_eq!(api.fake.state().said, Some(("storage1".to_owned(), HostChange::Enable)));
    for word in ["freeze", "thaw", "failover_host", "failover"] {
        let answer = api.put(&format!("/os-services/{word}"), json!({ "host": "storage1@lvm" })).await;
        assert_eq!(answer.status, 501, "{word}");
        let unknown = api.put(&format!("/os-services/{word}"), json!({ "host": "nosuch@lvm" })).await;
        let text = "Invalid input received: Service cinder-volume could not be found on host nosuch@lvm.";
        unknown.is_fault(400, "badRequest", text);
    }
    let unknown = json!({ "binary": "cinder-volume", "host": "nosuch@x" });
    let unknown = api.put("/os-services/disable", unknown).await;
    unknown.is_fault(404, "itemNotFound", "Service cinder-volume could not be found on host nosuch@x.");
    let none = api.put("/os-services/nosuch", body).await;
    assert_eq!((none.status.as_u16(), none.header("openstack-api-version")), (404, None));
    for wrong in [
        json!([]),
        json!({ "binary": "cinder-volume" }),
        json!({ "binary": "cinder-volume", "host": 7 }),
        json!({ "binary": "cinder-volume", "host": "" }),
        json!({ "binary": ["cinder-volume"], "host": "storage1@lvm" }),
        json!({ "binary": "cinder-volume", "host": "storage1@lvm" }),
        json!({ "binary": "cinder-volume", "host": "storage1@lvm", "disabled_reason": null }),
        json!({ "binary": "cinder-volume", "host": "storage1@lvm", "disabled_reason": "  " }),
        json!({ "binary": "cinder-volume", "host": "storage1@lvm", "disabled_reason": "x".repeat(256) }),
    ] {
        let answer = api.put("/os-services/disable-log-reason", wrong.clone()).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn hints_are_one_id_or_several() {
    let api = Api::new();
    let (a, b) = (api.volume("a").await, api.volume("b").await);
    let body = json!({
        "volume": { "size": 1, "availability_zone": "nova" },
        "OS-SCH-HNT:scheduler_hints": { "same_host": a, "different_host": [a, b] },
    });
    let made = api.post("/volumes", body).await;
    assert_eq!(made.status, 202);
    let placement = api.call(
        "GET",
        &format!("/mooring/v1/volumes/{}/placement", made.body["volume"]["id"].as_str().unwrap()),
    );
    assert_eq!(
        placement.send().await.body["placement"],
        json!({
            "volume_id": made.body["volume"]["id"], "pool": "storage1@lvm#vg0", "zone": "nova", "asked_zone": "nova",
            "same_host": [a], "different_host": [a, b],
            "tried": [{ "pool": "storage2@lvm#vg0", "why": "storage2: no room" }],
        })
    );
    for hints in [
        json!("x"),
        json!([]),
        json!({ "same_host": "x" }),
        json!({ "same_host": 7 }),
        json!({ "same_host": {} }),
        json!({ "different_host": [a, "x"] }),
        json!({ "different_host": [[a]] }),
        json!({ "different_host": vec![DEAD; 101] }),
    ] {
        let body = json!({ "volume": { "size": 1 }, "OS-SCH-HNT:scheduler_hints": hints });
        assert_eq!(api.post("/volumes", body.clone()).await.status, 400, "{body}");
    }
}

#[tokio::test]
async fn operators_say_what_becomes_of_a_host() {
    let api = Api::new();
    let change = |word: &str| format!("/mooring/v1/hosts/host1/{word}");
    for (word, body, said) in [
        ("disable", json!({}), HostChange::Disable(None)),
        ("disable", json!({ "reason": "a disk" }), HostChange::Disable(Some("a disk".to_owned()))),
        ("enable", json!({}), HostChange::Enable),
        ("drain", json!({}), HostChange::Drain),
        ("undrain", json!({}), HostChange::Undrain),
    ] {
        let answer = api.call("POST", &change(word)).json(&body).send().await;
        assert_eq!(answer.status, 200, "{word}");
        assert_eq!(answer.body["host"]["name"], "host1");
        assert_eq!(api.fake.state().said, Some(("host1".to_owned(), said)));
    }
    let wrong = api.call("POST", &change("drain")).json(&json!({ "reason": "x" })).send().await;
    assert_eq!(wrong.status, 400);
    assert_eq!(api.call("POST", &change("explode")).json(&json!({})).send().await.status, 404);
    assert_eq!(api.call("POST", "/mooring/v1/hosts/nosuch/drain").json(&json!({})).send().await.status, 404);
    for (name, status) in [("host1", 200), ("00000000-0000-0000-0000-000000000007", 200), ("nosuch", 404)] {
        assert_eq!(
            api.call("GET", &format!("/mooring/v1/hosts/{name}")).send().await.status,
            status,
            "{name}"
        );
    }
}

/// A proven receipt for everything that a fence took.
fn proven() -> Receipt {
    Receipt {
        volume: VolumeId::from_u128(2),
        initiator: "iqn.2026-11.dev.mooring:host.7".parse().unwrap(),
        attachments: vec![AttachmentId::from_u128(1)],
        generation: Generation { epoch: 1, counter: 2 },
        revoked: Revoked::Nexus,
        sessions: Vec::new(),
        proof: Proof::Proven,
        began: SystemTime::UNIX_EPOCH,
        ended: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(3)),
        reservation: None,
        cause: mooring_model::Cause::Revoke,
    }
}

#[tokio::test]
async fn a_host_is_fenced_and_the_fence_is_as_good_as_its_worst_part() {
    let api = Api::new();
    let post = |path: &str, body: Value| {
        let call = api.call("POST", &format!("/mooring/v1/hosts/{path}")).json(&body);
        async move { call.send().await }
    };
    let fence = post("host1/fence?wait_ms=700", json!({ "reason": "it hangs" })).await;
    assert_eq!(fence.status, 200);
    let of = &fence.body["fence"];
    assert_eq!(
        (&of["host"], &of["reason"], &of["proof"]),
        (&json!("host1"), &json!("it hangs"), &json!("proven"))
    );
    assert_eq!((&of["parts"], &of["ended"]), (&json!([]), &of["fenced_at"]));
    assert_eq!(api.fake.state().wait, Some(Duration::from_millis(700)));
    let proven = proven();
    let unproven =
        |in_flight| Receipt { proof: Proof::Unproven { in_flight }, ended: None, ..proven.clone() };
    let part = |state: FenceState| FencePart {
        attachment: AttachmentId::from_u128(1),
        volume: VolumeId::from_u128(2),
        state,
        warnings: vec!["it held it".to_owned()],
    };
    let cut = part(FenceState::Cut(Some(proven.clone())));
    for (second, word, landing) in [
        (FenceState::Cut(None), "cut", json!(0)),
        (FenceState::Unproven(unproven(Some(4))), "unproven", json!(4)),
        (FenceState::Unproven(unproven(None)), "unproven", Value::Null),
        (FenceState::Waits("storage is down".to_owned()), "waiting", Value::Null),
    ] {
        let good = word == "cut";
        api.fake.state().fence_parts = vec![cut.clone(), part(second)];
        let of = post("host1/fence", json!({})).await.body["fence"].clone();
        assert_eq!(of["proof"], if good { "proven" } else { "unproven" });
        assert_eq!((&of["may_still_land"], of["ended"].is_null()), (&landing, !good), "{of}");
        assert_eq!((&of["parts"][0]["state"], &of["parts"][1]["state"]), (&json!("cut"), &json!(word)));
        assert_eq!(of["parts"][0]["receipt"]["proof"], "proven");
        assert_eq!(of["parts"][1]["waits_for"].is_string(), word == "waiting");
        assert_eq!(of["parts"][1]["warnings"], json!(["it held it"]));
    }
    assert_eq!(
        api.call("GET", "/mooring/v1/fences?all=true").send().await.body["fences"].as_array().unwrap().len(),
        1
    );
    assert_eq!(api.call("GET", "/mooring/v1/hosts/host1/fence").send().await.status, 200);
    assert_eq!(post("host1/unfence", json!({})).await.status, 409);
    for (path, body) in [
        ("host1/fence", json!({ "why": "x" })),
        ("host1/fence", json!({ "reason": 7 })),
        ("host1/unfence", json!({ "anyway": "perhaps" })),
        ("host1/unfence", json!({ "force": true })),
    ] {
        assert_eq!(post(path, body.clone()).await.status, 400, "{body}");
    }
    let lifted = post("host1/unfence", json!({ "anyway": true })).await;
    assert!(lifted.status == 200 && lifted.body["fence"]["lifted_at"].is_string());
    assert_eq!(post("host1/unfence", json!({})).await.status, 404);
    assert_eq!(post("nosuch/fence", json!({})).await.status, 404);
}

/// Access that no attachment explains counts as much as any; and an unknown node is no proof.
#[tokio::test]
async fn a_fence_is_no_better_than_what_nobody_knows() {
    let api = Api::new();
    let fence = |body: Value| {
        let call = api.call("POST", "/mooring/v1/hosts/host1/fence").json(&body);
        async move { call.send().await }
    };
    let proven = proven();
    let unproven = Receipt { proof: Proof::Unproven { in_flight: Some(2) }, ended: None, ..proven.clone() };
    let export = |state: FenceState| FencedExport {
        node: "storage".to_owned(),
        volume: VolumeId::from_u128(3),
        initiator: proven.initiator.clone(),
        state,
    };
    let unknown = UnknownNode { node: "other".to_owned(), why: "agent other is down".to_owned() };
    for (state, unknown, word) in [
        (FenceState::Cut(Some(proven.clone())), vec![], "proven"),
        (FenceState::Unproven(unproven), vec![], "unproven"),
        (FenceState::Waits("it is at it".to_owned()), vec![], "unproven"),
        (FenceState::Cut(Some(proven.clone())), vec![unknown], "unproven"),
    ] {
        let nodes = unknown.len();
        {
            let mut fake = api.fake.state();
            (fake.fence_exports, fake.fence_unknown) = (vec![export(state)], unknown);
        }
        let of = fence(json!({})).await.body["fence"].clone();
        assert_eq!((&of["proof"], of["ended"].is_null()), (&json!(word), word != "proven"), "{of}");
        let shown = &of["exports"][0];
        assert_eq!((&shown["node"], &shown["initiator"]), (&json!("storage"), &of["initiators"][0]));
        assert_eq!(of["unknown"].as_array().unwrap().len(), nodes);
    }
    api.fake.state().fence_unknown.clear();
    for (hosts, word) in [(vec![], "unproven"), (vec!["host2".to_owned()], "proven")] {
        api.fake.state().fence_disputed = vec![DisputedInitiator {
            initiator: "iqn.2026-01.lab:x".parse().unwrap(),
            hosts: hosts.clone(),
            attachments: vec![(AttachmentId::from_u128(1), VolumeId::from_u128(2))],
        }];
        let body = json!({ "also": ["iqn.2026-01.lab:y", "20:00:52:54:00:14:00:0b"] });
        let of = fence(body).await.body["fence"].clone();
        let shown = &of["disputed"][0];
        assert_eq!((&of["proof"], &shown["hosts"]), (&json!(word), &json!(hosts)), "{of}");
        assert_eq!(shown["attachments"][0]["volume_id"], VolumeId::from_u128(2).to_string());
        assert_eq!(api.fake.state().also.len(), 2);
    }
    for also in
        [json!("iqn.2026-01.lab:y"), json!(["host2"]), json!([7]), json!(vec!["iqn.2026-01.lab:y"; 65])]
    {
        assert_eq!(fence(json!({ "also": also })).await.status, 400, "{also}");
    }
}
