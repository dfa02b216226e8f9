//! Mooring's own API, which the command `mooring` uses.

use std::time::{Duration, SystemTime};

use mooring_controller::domain::{DetachRecord, VolumeStatus};
use mooring_controller::service::Way;
use mooring_model::{AttachmentId, ByteSize, Mode, VolumeId};
use serde_json::json;

use crate::client::{Api, DEAD, keys, words};

const LIVE: &str = "id volume_id volume_name host mode cache cache_in_force hints effective_mode status native initiator transport session \
                    session_missing session_addresses sessions unlisted_sessions storage_host counters last_activity \
                    looked_at host_phase device_path disk secret_rotation secret_rotated_at problems steps_ms fault created_at attached_at \
                    revision";
const RECEIPT: &str = "attachment_id volume_id initiator attachment_ids generation revoked sessions_cut proof \
                       may_still_land began ended held_reservation cause";

/// Time that the last call was allowed to wait, and the revision for which it waited.
fn asked(api: &Api) -> (Option<Duration>, Option<u64>) {
    let state = api.fake.state();
    (state.wait, state.newer_than)
}

#[tokio::test]
async fn hosts() {
    let api = Api::new();
    let answer = api.call("GET", "/mooring/v1/hosts").send().await;
    assert_eq!(answer.status, 200);
    let report = json!({
        "kernel_release": "6.1.0-40-amd64",
        "multiattach": false,
        "access_modes": ["ro", "rw"],
        "persistent_reservations": false,
        "persistent_reservations_kept": null,
        "read_only_sealed": null,
        "initiators_per_volume_max": null,
        "attachments_per_connection_max": null,
        "cache_off": null,
        "fc_initiator_ports": [],
        "transports": [
            {
                "protocol": "iscsi", "ready": false, "portals": ["10.0.0.1:3260"], "ports": [],
                "links": [{ "portal": "10.0.0.1:3260", "interface": "eth1", "up": true, "mtu": 9000 }],
                "digests": { "header": "CRC32C,None", "data": "CRC32C,None" },
                "volumes_per_initiator_max": null,
                "health": { "level": "failed", "reasons": [{
                    "code": "module_missing", "level": "failed", "object": "kernel target",
                    "text": "the module iscsi_target_mod is not loaded: run modprobe iscsi_target_mod",
                }] },
            },
            {
                "protocol": "fc", "ready": false, "portals": [], "links": [],
                "ports": [{ "port": "fc/20:00:52:54:00:14:00:0a", "state": "Online" }],
                "digests": null, "volumes_per_initiator_max": null, "health": null,
            },
        ],
        "modules": [{
            "name": "iscsi_target_mod", "needed_for": "iSCSI targets", "state": "loadable",
            "remedy": "modprobe iscsi_target_mod",
        }],
    });
    assert_eq!(
        answer.body,
        json!({ "hosts": [{
            "name": "host1",
            "address": "unix:/run/mooring/agent.sock",
            "agent_id": "00000000-0000-0000-0000-000000000007",
            "initiator": "iqn.2026-11.dev.mooring:host.7",
            "enrolment": {
                "roles": ["host"],
                "joined_at": "1970-01-01T00:00:00.000000Z",
                "expires_at": "1970-01-01T00:00:00.000000Z",
            },
            "zone": "nova",
            "disabled": false,
            "disabled_reason": null,
            "drained": false,
            "up": true,
            "why_down": null,
            "last_report": "1970-01-01T00:00:00.000000Z",
            "health": null,
            "report": report,
            "pools": [{
                "name": "vg0", "total_bytes": 10, "free_bytes": 4, "thick": false, "provisioned_bytes": 0,
                "reserved_bytes": null, "snapshots": null, "online_extend": null, "discard": null, "wipe": null,
                "health": null,
            }],
            "problems": [],
        }] })
    );
}

#[tokio::test]
async fn native_attach_and_what_is_live_of_it() {
    let api = Api::new();
    let volume = api.call("POST", "/v3/volumes").json(&json!({ "volume": { "size": 1, "name": "v" } }));
    let volume = volume.send().await.body["volume"]["id"].as_str().unwrap().to_owned();
    let own = "b0c1d2e3-0001-4002-8003-00000000000a";
    let body = json!({ "attachment": { "id": own, "volume": volume, "host": "host1", "mode": "ro" } });
    let made = api.call("POST", "/mooring/v1/attachments").json(&body).send().await;
    assert_eq!(made.status, 202);
    let live = &made.body["attachment"];
    assert_eq!(keys(live), words(LIVE));
    for (key, value) in [
        ("id", json!(own)),
        ("volume_id", json!(volume)),
        ("volume_name", json!("v")),
        ("host", json!("host1")),
        ("mode", json!("ro")),
        ("effective_mode", json!("ro")),
        ("cache", json!("on")),
        ("cache_in_force", json!("on")),
        ("hints", json!(null)),
        ("status", json!("attaching")),
        ("native", json!(true)),
        ("session", json!(true)),
        ("host_phase", json!("ready")),
        ("steps_ms", json!({ "granted": 3, "done": 40 })),
        ("attached_at", json!(null)),
    ] {
        assert_eq!(live[key], value, "{key}");
    }
    assert!(live["created_at"].as_str().unwrap().ends_with('Z'));

    let path = format!("/mooring/v1/attachments/{own}");
    let once = api.call("GET", &path).send().await;
    assert_eq!(once.body, made.body);
    assert_eq!(asked(&api), (Some(Duration::ZERO), None));
    api.call("GET", &format!("{path}?after=7&wait_ms=1500")).send().await;
    assert_eq!(asked(&api), (Some(Duration::from_millis(1500)), Some(7)));
    api.call("GET", &format!("{path}?after=7&wait_ms=999999999999999999999")).send().await;
    assert_eq!(api.fake.state().wait, Some(Duration::from_mins(1)));

    let list = api.call("GET", "/mooring/v1/attachments").send().await;
    assert_eq!(list.body["attachments"][0], *live);
    let none = api.call("GET", &format!("/mooring/v1/attachments?volume={DEAD}")).send().await;
    assert_eq!(none.body, json!({ "attachments": [] }));
    let some = api.call("GET", &format!("/mooring/v1/attachments?volume={volume}")).send().await;
    assert_eq!(some.body["attachments"].as_array().unwrap().len(), 1);

    let put =
        |body: serde_json::Value| api.call("PUT", &format!("{path}/mode?wait_ms=20")).json(&body).send();
    let set = put(json!({ "mode": "rw" })).await;
    assert_eq!((set.status.as_u16(), &set.body["barrier"]), (200, &json!(false)));
    assert_eq!(set.body["attachment"]["mode"], "rw");
    assert_eq!(api.fake.state().wait, Some(Duration::from_millis(20)));
    for (asked, barrier) in [(json!(true), true), (json!(false), false)] {
        let set = put(json!({ "mode": "ro", "barrier": asked })).await;
        assert_eq!((&set.body["barrier"], &set.body["attachment"]["mode"]), (&json!(barrier), &json!("ro")));
    }
    for wrong in [
        json!({}),
        json!({ "mode": "wr" }),
        json!({ "mode": null }),
        json!({ "mode": "ro", "x": 1 }),
        json!({ "mode": "ro", "barrier": "yes" }),
        json!({ "mode": "ro", "barrier": null }),
    ] {
        assert_eq!(put(wrong.clone()).await.status.as_u16(), 400, "{wrong}");
    }
}

#[tokio::test]
async fn the_users_of_an_attachments_disk() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let body = json!({ "attachment": { "volume": volume, "host": "host1" } });
    let made = api.call("POST", "/mooring/v1/attachments").json(&body).send().await;
    let id = made.body["attachment"]["id"].as_str().unwrap().to_owned();
    let answer = api.call("GET", &format!("/mooring/v1/attachments/{id}/check")).send().await;
    assert_eq!(answer.status, 200);
    let check = &answer.body["check"];
    assert_eq!((&check["attachment_id"], &check["host"]), (&json!(id), &json!("host1")));
    let process = json!({ "device": "sda", "kind": "process", "name": "dd", "pid": 7, "access": "buffered", "filesystem": null });
    let mount = json!({ "device": "sda", "kind": "mount", "name": "/data", "pid": null, "access": null, "filesystem": "ext4" });
    assert_eq!(check["users"], json!([process, mount]));
    assert_eq!(check["problems"], json!([{ "code": "buffered_io", "text": "dd" }]));
    assert_eq!(check["unseen"], json!(["what processes have mapped"]));
    let answer = api.call("GET", &format!("/mooring/v1/attachments/{DEAD}/check")).send().await;
    assert_eq!(answer.status, 404);
    let answer = api.call("GET", "/mooring/v1/attachments/x/check").send().await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn secrets_are_rotated_by_volume_or_attachment() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let body = json!({ "attachment": { "volume": volume, "host": "host1" } });
    let made = api.call("POST", "/mooring/v1/attachments").json(&body).send().await;
    let id = &made.body["attachment"]["id"];
    let path = format!("/mooring/v1/volumes/{volume}/rotate-secrets?wait_ms=20");
    let post = |body: serde_json::Value| api.call("POST", &path).json(&body).send();
    for (body, rotated) in [
        (json!({}), 1),
        (json!({ "attachment": id }), 1),
        (json!({ "attachment": id, "force": true }), 1),
        (json!({ "attachment": DEAD }), 0),
    ] {
        let answer = post(body.clone()).await;
        let all = answer.body["attachments"].as_array().unwrap();
        assert_eq!((answer.status.as_u16(), all.len()), (200, rotated), "{body}");
        assert!(all.iter().all(|live| keys(live) == words(LIVE)));
        assert!(all.iter().all(|live| live["secret_rotation"] == "host"), "{all:?}");
    }
    assert_eq!(api.fake.state().wait, Some(Duration::from_millis(20)));
    for wrong in [
        json!({ "attachment": "x" }),
        json!({ "attachment": 7 }),
        json!({ "force": "yes" }),
        json!({ "force": null }),
        json!({ "secret": "mine" }),
        json!([]),
    ] {
        assert_eq!(post(wrong.clone()).await.status.as_u16(), 400, "{wrong}");
    }
    let unknown = format!("/mooring/v1/volumes/{DEAD}/rotate-secrets");
    assert_eq!(api.call("POST", &unknown).json(&json!({})).send().await.status, 404);
}

#[tokio::test]
async fn the_cache_flag_of_an_attachment() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let new = |cache: serde_json::Value| {
        let body = json!({ "attachment": { "volume": volume, "host": "host1", "cache": cache } });
        api.call("POST", "/mooring/v1/attachments").json(&body).send()
    };
    for wrong in [json!(""), json!("none"), json!("OFF"), json!(false), json!(null)] {
        assert_eq!(new(wrong.clone()).await.status.as_u16(), 400, "{wrong}");
    }
    let made = new(json!("off")).await;
    assert_eq!(made.status, 202);
    let live = &made.body["attachment"];
    assert_eq!((&live["cache"], &live["cache_in_force"]), (&json!("off"), &json!("off")));
    assert_eq!(live["hints"], json!({ "cache": "none", "io": "native" }));
    let path = format!("/mooring/v1/attachments/{}/cache?wait_ms=20", live["id"].as_str().unwrap());
    let put = |body: serde_json::Value| api.call("PUT", &path).json(&body).send();
    let set = put(json!({ "cache": "on" })).await;
    assert_eq!(set.status, 200);
    assert_eq!(
        (&set.body["attachment"]["cache"], &set.body["attachment"]["hints"]),
        (&json!("on"), &json!(null))
    );
    assert_eq!(api.fake.state().wait, Some(Duration::from_millis(20)));
    for wrong in
        [json!({}), json!({ "cache": "yes" }), json!({ "cache": null }), json!({ "cache": "on", "x": 1 })]
    {
        assert_eq!(put(wrong.clone()).await.status.as_u16(), 400, "{wrong}");
    }
}

#[tokio::test]
async fn receipts() {
    let api = Api::new();
    for (query, proof, land) in [("", "proven", 0), ("?force=true&wait_ms=5", "unproven", 2)] {
        let volume = api.volume("v").await;
        let id = api.reserved(&volume).await;
        let connector = json!({ "initiator": "iqn.2026-01.org.example:a", "host": "a" });
        api.put(&format!("/attachments/{id}"), json!({ "attachment": { "connector": connector } })).await;
        let path = format!("/mooring/v1/attachments/{id}");
        let gone = api.call("DELETE", &format!("{path}{query}")).send().await;
        assert_eq!((gone.status.as_u16(), gone.keys("receipt")), (200, words(RECEIPT)));
        let receipt = &gone.body["receipt"];
        for (key, value) in [
            ("attachment_id", json!(id)),
            ("volume_id", json!(volume)),
            ("initiator", json!("iqn.2026-01.org.example:a")),
            ("attachment_ids", json!([id])),
            ("generation", json!("1.4")),
            ("revoked", json!("nexus")),
            ("proof", json!(proof)),
            ("may_still_land", json!(land)),
            (
                "sessions_cut",
                json!([{
                    "initiator": "iqn.2026-01.org.example:a", "isid": "80123d000001", "addresses": ["10.0.0.2"],
                    "in_flight": 2,
                }]),
            ),
        ] {
            assert_eq!(receipt[key], value, "{key}");
        }
        assert_eq!(receipt["ended"].is_null(), proof == "unproven");
        assert_eq!(receipt["held_reservation"], "exclusive access, registrants only");
        // The answer was lost: a repeated call gets it again.
        let again = api.call("DELETE", &format!("{path}{query}")).send().await;
        assert_eq!((again.status.as_u16(), &again.body["receipt"]), (200, &gone.body["receipt"]));
        let shown = api.call("GET", &format!("{path}/receipt")).send().await;
        assert_eq!(shown.body["receipt"], gone.body["receipt"]);
        assert!(gone.body["warnings"][0].as_str().unwrap().contains("holds it"), "what the host takes along");
    }
    // The attachment never had a grant.
    let id = api.reserved(&api.volume("v").await).await;
    let gone = api.call("DELETE", &format!("/mooring/v1/attachments/{id}")).send().await;
    assert_eq!((gone.status.as_u16(), &gone.body["receipt"]), (200, &json!(null)));
}

#[tokio::test]
async fn wrong_requests() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let long = "h".repeat(256);
    for attachment in [
        json!({}),
        json!({ "volume": volume }),
        json!({ "host": "host1" }),
        json!({ "volume": "v", "host": "host1" }),
        json!({ "volume": volume, "host": "" }),
        json!({ "volume": volume, "host": 1 }),
        json!({ "volume": volume, "host": long }),
        json!({ "volume": volume, "host": "a\u{0}b" }),
        json!({ "volume": volume, "host": "host1", "mode": "w" }),
        json!({ "volume": volume, "host": "host1", "id": "1" }),
        json!({ "volume": volume, "host": "host1", "force": true }),
    ] {
        let call = api.call("POST", "/mooring/v1/attachments").json(&json!({ "attachment": attachment }));
        let answer = call.send().await;
        assert_eq!(answer.status, 400, "{attachment}");
        assert!(answer.body["badRequest"]["message"].is_string(), "{attachment}");
    }
    let unknown = |volume: &str, host: &str| json!({ "attachment": { "volume": volume, "host": host } });
    for (body, text) in [
        (unknown(DEAD, "host1"), format!("Volume {DEAD} could not be found.")),
        (unknown(&volume, "nosuch"), "Host nosuch could not be found.".to_owned()),
    ] {
        // Only addresses of the other API name the project.
        let call = api.call("POST", "/mooring/v1/attachments").json(&body);
        call.send().await.is_fault(404, "itemNotFound", &text);
    }
    for (method, path, code, fault) in [
        ("GET", format!("/mooring/v1/attachments/{DEAD}"), 404, "itemNotFound"),
        ("DELETE", format!("/mooring/v1/attachments/{DEAD}"), 404, "itemNotFound"),
        ("GET", format!("/mooring/v1/attachments/{DEAD}/receipt"), 404, "itemNotFound"),
        ("GET", "/mooring/v1/attachments/x".to_owned(), 404, "itemNotFound"),
        ("GET", "/mooring/v1/attachments?volume=x".to_owned(), 404, "itemNotFound"),
        ("GET", format!("/mooring/v1/attachments/{DEAD}?after=x"), 400, "badRequest"),
        ("GET", format!("/mooring/v1/attachments/{DEAD}?wait_ms=-1"), 400, "badRequest"),
        ("DELETE", format!("/mooring/v1/attachments/{DEAD}?force=perhaps"), 400, "badRequest"),
        ("GET", "/mooring/v1/nosuch".to_owned(), 404, "itemNotFound"),
        ("PATCH", "/mooring/v1/hosts".to_owned(), 405, "badMethod"),
    ] {
        let answer = api.call(method, &path).send().await;
        assert_eq!(
            (answer.status.as_u16(), answer.body[fault]["code"].as_u64()),
            (code, Some(code.into())),
            "{path}"
        );
    }
}

#[tokio::test]
async fn who_has_reserved_a_volume() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let path = format!("/mooring/v1/volumes/{volume}/reservations");
    let answer = api.call("GET", &path).send().await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let seen = &answer.body["reservations"];
    assert_eq!((&seen["volume_id"], &seen["storage_host"]), (&json!(volume), &json!("storage1")));
    let holder = json!({
        "initiator": "iqn.2026-01.lab:one", "isid": "800123450001", "host": "host1", "type": 5,
        "type_name": "write exclusive, registrants only", "since": "1970-01-01T00:00:00.000000Z",
    });
    assert_eq!((&seen["holder"], &seen["durable"], &seen["generation"]), (&holder, &json!(true), &json!(3)));
    let registrations = &seen["registrations"];
    assert_eq!(
        (&registrations[0]["key"], &registrations[0]["host"]),
        (&json!("0xffffffffffffffff"), &json!("host1"))
    );
    assert_eq!(
        (&registrations[1]["key"], &registrations[1]["host"]),
        (&json!("0x00000000000000ab"), &json!(null))
    );
    assert_eq!(seen["lost"][0]["key"], "0x00000000000000cd");
    let missing = api.call("GET", &format!("/mooring/v1/volumes/{DEAD}/reservations")).send().await;
    assert_eq!(missing.status, 404);
}

#[tokio::test]
async fn reservations_are_cleared_and_preempted() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let path = format!("/mooring/v1/volumes/{volume}/reservations");
    let cleared = api.call("POST", &path).json(&json!({ "clear": true })).send().await;
    assert_eq!(cleared.status, 200, "{}", cleared.body);
    assert_eq!(cleared.body["before"]["registrations"][1]["key"], "0x00000000000000ab");
    let now = &cleared.body["reservations"];
    assert_eq!(
        (&now["registrations"], &now["holder"], &now["volume_id"]),
        (&json!([]), &json!(null), &json!(volume))
    );
    // The same key in each spelling; `abort` is passed on as the call has it.
    for (key, abort) in [("0xab", false), ("0x00000000000000AB", true)] {
        let preempted = api.call("POST", &path).json(&json!({ "preempt": key, "abort": abort })).send().await;
        assert_eq!(preempted.status, 200, "{}", preempted.body);
        let now = &preempted.body["reservations"];
        assert_eq!((now["registrations"].as_array().unwrap().len(), &now["durable"]), (1, &json!(!abort)));
    }
    for wrong in [
        json!({}),
        json!({ "clear": false }),
        json!({ "clear": true, "preempt": "0xab" }),
        json!({ "clear": true, "abort": true }),
        json!({ "clear": 1 }),
        json!({ "preempt": "171" }),
        json!({ "preempt": 171 }),
        json!({ "preempt": "0x" }),
        json!({ "preempt": "0x0" }),
        json!({ "preempt": "0x+b" }),
        json!({ "preempt": "0x10000000000000000" }),
        json!({ "preempt": "0xab", "abort": "yes" }),
        json!({ "preempt": "0xab", "type": 5 }),
    ] {
        let answer = api.call("POST", &path).json(&wrong).send().await;
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.body);
    }
    let missing = api.call("POST", &format!("/mooring/v1/volumes/{DEAD}/reservations"));
    assert_eq!(missing.json(&json!({ "clear": true })).send().await.status, 404);
}

#[tokio::test]
async fn jobs_are_listed_and_limited() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let answer = api.call("GET", "/mooring/v1/jobs").send().await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let job = &answer.body["jobs"][0];
    assert_eq!((&job["volume_id"], &job["volume_name"]), (&json!(volume), &json!("v")));
    assert_eq!(
        (&job["kind"], &job["percent"], &job["seconds_left"]),
        (&json!("zero"), &json!(33.33), &json!(21))
    );
    assert_eq!((&job["done_bytes"], &job["total_bytes"]), (&json!(1_u64 << 30), &json!(3_u64 << 30)));
    assert_eq!((&job["bytes_per_second"], &job["limited"]), (&json!(100 << 20), &json!(false)));
    let hosts = json!([
        { "name": "storage1", "bytes_per_second": null, "problem": null },
        { "name": "storage2", "bytes_per_second": null, "problem": "down" },
    ]);
    assert_eq!(answer.body["hosts"], hosts);
    let shown = api.call("GET", &format!("/mooring/v1/volumes/{volume}")).send().await;
    assert_eq!(shown.body["volume"]["job"], *job);

    let path = "/mooring/v1/hosts/storage1/job-limit";
    for (bytes, limited) in [(json!(50 << 20), true), (json!(null), false)] {
        let set = api.call("PUT", path).json(&json!({ "bytes_per_second": bytes })).send().await;
        assert_eq!(
            (set.status.as_u16(), &set.body["host"]["bytes_per_second"]),
            (200, &bytes),
            "{}",
            set.body
        );
        let answer = api.call("GET", "/mooring/v1/jobs").send().await;
        assert_eq!(answer.body["jobs"][0]["limited"], limited);
    }
    for wrong in [
        json!({}),
        json!({ "bytes_per_second": 0 }),
        json!({ "bytes_per_second": "fast" }),
        json!({ "bytes_per_second": -1 }),
        json!({ "bytes_per_second": 1.5 }),
        json!({ "bytes_per_second": null, "x": 1 }),
    ] {
        let refused = api.call("PUT", path).json(&wrong).send().await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
    }
    let missing = api.call("PUT", "/mooring/v1/hosts/x/job-limit").json(&json!({ "bytes_per_second": null }));
    assert_eq!(missing.send().await.status, 404);
}

#[tokio::test]
async fn operators_words() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let epoch = api.call("POST", "/mooring/v1/epoch").json(&json!({})).send().await;
    assert_eq!((epoch.status.as_u16(), epoch.body), (200, json!({ "epoch": 2 })));
    for (id, code) in [(volume.as_str(), 204), (DEAD, 404)] {
        let path = format!("/mooring/v1/volumes/{id}/confirm-review");
        assert_eq!(api.call("POST", &path).json(&json!({})).send().await.status, code);
    }
    // A web page can send this much without a preflight request.
    assert_eq!(api.call("POST", "/mooring/v1/epoch").raw("text/plain", "{}").send().await.status, 415);
}

#[tokio::test]
async fn a_volume_is_cut_and_uncut() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let path = format!("/mooring/v1/volumes/{volume}/cut");
    let shown = api.call("GET", &format!("/mooring/v1/volumes/{volume}")).send().await;
    assert_eq!(shown.body["volume"]["cut"], serde_json::Value::Null);
    for (body, state) in [(json!({}), "pending"), (json!({ "force": true }), "in_force")] {
        let cut = api.call("PUT", &path).json(&body).send().await;
        assert_eq!(cut.status, 202, "{}", cut.body);
        assert_eq!(cut.body["volume"]["cut"]["state"], state);
        assert!(cut.body["volume"]["cut"]["since"].as_str().unwrap().starts_with("1970-01-01T00:00:00"));
    }
    for wrong in [json!({ "force": 1 }), json!({ "forced": true })] {
        assert_eq!(api.call("PUT", &path).json(&wrong).send().await.status, 400);
    }
    let uncut = api.call("DELETE", &path).send().await;
    assert_eq!((uncut.status.as_u16(), &uncut.body["volume"]["cut"]), (202, &serde_json::Value::Null));
    let dead = format!("/mooring/v1/volumes/{DEAD}/cut");
    assert_eq!(api.call("PUT", &dead).json(&json!({})).send().await.status, 404);
}

#[tokio::test]
async fn a_growth_is_taken_back() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let path = format!("/mooring/v1/volumes/{volume}/extend");
    let nothing = api.call("DELETE", &path).send().await;
    let said = nothing.body.to_string();
    assert!(nothing.status == 409 && said.contains("does not grow"), "{} {said}", nothing.status);
    api.fake.state().volumes[0].status = VolumeStatus::Extending;
    let back = api.call("DELETE", &path).send().await;
    assert_eq!((back.status.as_u16(), &back.body["volume"]["status"]), (202, &json!("extending")));
    assert_eq!(api.call("DELETE", &format!("/mooring/v1/volumes/{DEAD}/extend")).send().await.status, 404);
    // The action of the Block Storage API begins a growth.
    assert_eq!(api.call("POST", &path).json(&json!({})).send().await.status, 405);
}

/// A detach with all attachments of its host is force, and the call says so.
#[tokio::test]
async fn the_way_of_a_detach() {
    let api = Api::new();
    let volume = api.volume("v").await;
    for (query, way) in [
        ("", Way::Asked),
        ("?force=false", Way::Asked),
        ("?force=true", Way::Forced),
        ("?force=true&widen=host", Way::Widened),
    ] {
        let id = api.reserved(&volume).await;
        let answer = api.call("DELETE", &format!("/mooring/v1/attachments/{id}{query}")).send().await;
        assert_eq!((answer.status.as_u16(), api.fake.state().way), (200, Some(way)), "{query}");
    }
    let id = api.reserved(&volume).await;
    for wrong in ["?widen=host", "?force=true&widen=all", "?force=false&widen=host", "?force=maybe"] {
        let answer = api.call("DELETE", &format!("/mooring/v1/attachments/{id}{wrong}")).send().await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn the_records_of_detaches() {
    let api = Api::new();
    let volume = VolumeId::from_u128(0x51);
    let record = |n: u128, forced| DetachRecord {
        attachment: AttachmentId::from_u128(n),
        volume,
        project: "p".to_owned(),
        initiator: "iqn.2026-01.org.example:node1".parse().ok(),
        instance: None,
        host: Some("node1".to_owned()),
        mode: Some(Mode::ReadOnly),
        forced,
        user: Some("u".to_owned()),
        request: Some("req-1".to_owned()),
        asked_at: Some(SystemTime::UNIX_EPOCH),
        detached_at: None,
        receipt: None,
        unwritten: forced.then_some(ByteSize(4096)),
    };
    api.fake.state().records = vec![record(1, true), record(2, false)];
    let all = api.call("GET", "/mooring/v1/receipts").send().await;
    assert_eq!(all.status, 200);
    let first = &all.body["receipts"][0];
    assert_eq!(
        keys(first),
        words(
            "attachment_id volume_id project_id initiator instance host mode forced user_id request_id asked_at \
             detached_at receipt unwritten_bytes"
        )
    );
    assert_eq!(first["unwritten_bytes"], 4096);
    assert_eq!((&first["forced"], &first["mode"]), (&json!(true), &json!("ro")));
    assert_eq!(first["asked_at"], "1970-01-01T00:00:00.000000Z");
    let count = async |query: &str| {
        let answer = api.call("GET", &format!("/mooring/v1/receipts{query}")).send().await;
        answer.body["receipts"].as_array().map(Vec::len)
    };
    assert_eq!(count(&format!("?volume={volume}")).await, Some(2));
    assert_eq!(count(&format!("?attachment={}", AttachmentId::from_u128(2))).await, Some(1));
    assert_eq!(count(&format!("?volume={DEAD}")).await, Some(0));
    assert_eq!(count("?limit=1").await, Some(1));
    assert_eq!(api.call("GET", "/mooring/v1/receipts?volume=x").send().await.status, 404);
}

#[tokio::test]
async fn our_lists_refuse_keys_that_they_do_not_know() {
    let api = Api::new();
    for (list, known) in [
        ("attachments", format!("volume={DEAD}")),
        ("receipts", format!("volume={DEAD}&attachment={DEAD}&limit=1")),
        (
            "audit",
            "since=2026-11-18T11:06:40Z&until=2026-11-18T11:06:40Z&user=u&object=o&limit=1&marker=1"
                .to_owned(),
        ),
        ("fences", "all=true".to_owned()),
        ("hosts", String::new()),
        ("jobs", String::new()),
    ] {
        let ask = async |query: &str| api.call("GET", &format!("/mooring/v1/{list}?{query}")).send().await;
        assert_eq!(ask(&known).await.status, 200, "{list}: the control");
        let refused = ask(&format!("{known}&status=attached")).await;
        let text = "The query string says 'status', which this list does not know.";
        refused.is_fault(400, "badRequest", text);
    }
}

#[tokio::test]
async fn a_volume_says_what_is_wrong_with_it() {
    let api = Api::new();
    let volume = api.volume("v").await;
    api.fake.state().volumes[0].fault = Some("volume group vg0: a disk is missing".to_owned());
    let mut answer = api.call("GET", &format!("/mooring/v1/volumes/{volume}")).send().await;
    let job = answer.body["volume"].as_object_mut().unwrap().remove("job").unwrap();
    assert_eq!(job["volume_id"], json!(volume));
    assert_eq!(
        answer.body,
        json!({ "volume": {
            "id": volume, "name": "v", "status": "available", "attach_status": "detached", "cut": null, "multiattach": false,
            "fault": "volume group vg0: a disk is missing", "in_review": false, "reserved": 1,
            "announced_detaches": 0,
        } })
    );
    assert_eq!(api.call("GET", &format!("/mooring/v1/volumes/{DEAD}")).send().await.status, 404);
}
