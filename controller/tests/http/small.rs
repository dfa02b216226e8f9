//! Small collections, snapshots where there are none, and metadata with its tag.

use serde_json::{Value, json};

use mooring_controller::domain::{
    Health, HealthLevel, HealthReason, HostModule, HostReport, HostTransport, ModuleState, PortalLink,
};
use mooring_model::Mode;

use crate::client::{Api, DEAD};

#[tokio::test]
async fn what_tools_ask_first() {
    let api = Api::new();
    let zones = api.get("/os-availability-zone").await;
    let zone = json!({ "zoneName": "nova", "zoneState": { "available": true } });
    assert_eq!(zones.body, json!({ "availabilityZoneInfo": [zone] }));
    let all = api.get("/extensions").await;
    let aliases: Vec<_> =
        all.body["extensions"].as_array().unwrap().iter().map(|one| one["alias"].clone()).collect();
    assert!(aliases.contains(&json!("os-types-extra-specs")));
    assert!(aliases.contains(&json!("scheduler-stats")));
    assert!(!aliases.contains(&json!("backups")), "what is not there is not listed");
    let one = api.get("/extensions/os-hosts").await;
    assert_eq!(one.body["extension"]["name"], "Hosts");
    assert_eq!(api.get("/extensions/backups").await.status, 404);

    let filters = api.v3("3.33", "GET", "/resource_filters?resource=attachment", None).await;
    let wanted = json!({ "resource": "attachment", "filters": ["volume_id", "status", "instance_id", "attach_status"] });
    assert_eq!(filters.body, json!({ "resource_filters": [wanted] }));
    assert_eq!(api.v3("3.32", "GET", "/resource_filters", None).await.status, 404);

    let hosts = api.get("/os-hosts").await;
    let host = json!({
        "host_name": "storage1@lvm", "service": "cinder-volume", "zone": "nova", "service-status": "available",
        "service-state": "disabled", "last-update": "1970-01-01T00:00:00.000000",
    });
    assert_eq!(hosts.body, json!({ "hosts": [host] }));
    let total = &api.get("/os-hosts/storage1@lvm").await.body["host"][0]["resource"];
    assert_eq!((&total["project"], &total["volume_count"]), (&json!("(total)"), &json!("4")));
    assert_eq!(api.get("/os-hosts/nosuch").await.status, 404);
}

/// These collections have no makers: empty for readers, refused for writers.
#[tokio::test]
async fn what_is_empty() {
    let api = Api::new();
    for (path, list) in [
        ("/backups", "backups"),
        ("/backups/detail", "backups"),
        ("/groups/detail", "groups"),
        ("/os-volume-transfer/detail", "transfers"),
        ("/volume-transfers", "transfers"),
        ("/qos-specs", "qos_specs"),
        ("/snapshots", "snapshots"),
        ("/snapshots/detail", "snapshots"),
    ] {
        assert_eq!(api.get(path).await.body, json!({ list: [] }), "{path}");
    }
    for (path, text) in [
        ("backups", format!("Backup {DEAD} could not be found.")),
        ("groups", format!("Group {DEAD} could not be found.")),
        ("messages", format!("Message {DEAD} could not be found.")),
        ("qos-specs", format!("No such QoS spec {DEAD}.")),
        ("snapshots", format!("Snapshot {DEAD} could not be found.")),
    ] {
        api.get(&format!("/{path}/{DEAD}")).await.is_fault(404, "itemNotFound", &text);
        api.delete(&format!("/{path}/{DEAD}")).await.is_fault(404, "itemNotFound", &text);
    }
    for path in ["/backups", "/groups", "/qos-specs", "/volume-transfers"] {
        assert_eq!(api.post(path, json!({})).await.status, 501, "{path}");
    }
    assert_eq!(api.post(&format!("/backups/{DEAD}/restore"), json!({})).await.status, 404);
}

#[tokio::test]
async fn snapshots_are_asked_for_in_the_apis_words() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let snapshot = async |version: &str, body: Value| {
        api.v3(version, "POST", "/snapshots", Some(json!({ "snapshot": body }))).await
    };
    let fine = json!({ "volume_id": volume, "name": "s", "metadata": { "a": "b" } });
    let made = snapshot("3.60", fine).await;
    assert_eq!(made.status, 202);
    assert_eq!(made.body["snapshot"]["status"], "creating");
    let id = made.body["snapshot"]["id"].as_str().unwrap().to_owned();
    let unknown = format!("Volume {DEAD} could not be found.");
    snapshot("3.60", json!({ "volume_id": DEAD })).await.is_fault(404, "itemNotFound", &unknown);
    let missing = "Invalid input for field/attribute snapshot. Value: {}. 'volume_id' is a required property";
    snapshot("3.60", json!({})).await.is_fault(400, "badRequest", missing);
    let none = api.post("/snapshots", json!({})).await;
    none.is_fault(400, "badRequest", "'snapshot' is a required property");
    let force = "Since microversion 3.66 the 'force' flag is invalid for this request.  For backward compatability, \
                 however, when the 'force' flag is passed with a value evaluating to True, it is silently ignored.";
    let not_forced = json!({ "volume_id": volume, "force": false });
    snapshot("3.66", not_forced.clone()).await.is_fault(400, "badRequest", force);
    assert_eq!(snapshot("3.65", not_forced).await.status, 202);

    // Keys come with their versions, and a plain list has fewer of them.
    let keys = async |version: &str, path: &str, at: &str| {
        let answer = api.v3(version, "GET", path, None).await.body;
        let of = answer.pointer(at).unwrap().as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        ["group_snapshot_id", "user_id", "consumes_quota", "os-extended-snapshot-attributes:progress"]
            .map(|key| of.iter().any(|one| one == key))
    };
    let path = format!("/snapshots/{id}");
    assert_eq!(keys("3.0", &path, "/snapshot").await, [false, false, false, true]);
    assert_eq!(keys("3.14", &path, "/snapshot").await, [true, false, false, true]);
    assert_eq!(keys("3.41", &path, "/snapshot").await, [true, true, false, true]);
    assert_eq!(keys("3.65", "/snapshots/detail", "/snapshots/0").await, [true, true, true, true]);
    assert_eq!(keys("3.65", "/snapshots", "/snapshots/0").await, [false; 4]);

    assert_eq!(api.put(&path, json!({ "snapshot": {} })).await.status, 400);
    assert_eq!(
        api.put(&path, json!({ "snapshot": { "display_name": "t" } })).await.body["snapshot"]["name"],
        "t"
    );
    assert_eq!(api.get(&format!("{path}/metadata/a")).await.body, json!({ "meta": { "a": "b" } }));
    assert_eq!(api.get(&format!("{path}/metadata/x")).await.status, 404);
    let wrong = api.put(&format!("{path}/metadata/a"), json!({ "meta": { "b": "c" } })).await;
    wrong.is_fault(400, "badRequest", "Request body and URI mismatch");
    assert_eq!(api.delete(&path).await.status, 202);
    assert_eq!(api.get(&path).await.status, 404);
}

#[tokio::test]
async fn actions_on_snapshots_are_read_in_the_apis_words() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let made = api.post("/snapshots", json!({ "snapshot": { "volume_id": volume } })).await;
    let path = format!("/snapshots/{}", made.body["snapshot"]["id"].as_str().unwrap());
    let act = async |body: Value| api.post(&format!("{path}/action"), body).await;
    for (body, status) in [
        (json!({ "os-reset_status": { "status": "error" } }), "error"),
        (json!({ "os-reset_status": { "status": "Error_Deleting" } }), "error_deleting"),
        (json!({ "os-update_snapshot_status": { "status": "creating", "progress": "73%" } }), "creating"),
        (json!({ "os-update_snapshot_status": { "status": "available", "progress": null } }), "available"),
    ] {
        let answer = act(body.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.body), (202, Value::Null), "{body}");
        assert_eq!(api.get(&path).await.body["snapshot"]["status"], status, "{body}");
    }
    for wrong in [
        json!({ "os-reset_status": {} }),
        json!({ "os-reset_status": null }),
        json!({ "os-reset_status": { "status": null } }),
        json!({ "os-reset_status": { "status": "in-use" } }),
        json!({ "os-reset_status": { "status": "error", "attach_status": "detached" } }),
        json!({ "os-update_snapshot_status": { "progress": "1%" } }),
        json!({ "os-update_snapshot_status": { "status": "error", "progress": "101%" } }),
        json!({ "os-update_snapshot_status": { "status": "error", "progress": "7" } }),
        json!({ "os-update_snapshot_status": { "status": "error", "progress": "%" } }),
        json!({ "os-update_snapshot_status": { "status": "error", "progress": 7 } }),
        json!({ "os-force_delete": {}, "os-unmanage": {} }),
        json!({ "os-migrate_volume": {} }),
        json!({}),
    ] {
        assert_eq!(act(wrong.clone()).await.status, 400, "{wrong}");
    }
    assert_eq!(
        api.get(&path).await.body["snapshot"]["status"],
        "available",
        "what is refused changes nothing"
    );
    assert_eq!(act(json!({ "os-unmanage": null })).await.status, 202);
    act(json!({ "os-force_delete": {} })).await.is_fault(
        404,
        "itemNotFound",
        &format!("Snapshot {} could not be found.", path.trim_start_matches("/snapshots/")),
    );
}

#[tokio::test]
async fn a_snapshot_of_no_volume_is_not_found() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let ask = async |id: Value| api.post("/snapshots", json!({ "snapshot": { "volume_id": id } })).await;
    ask(Value::Null).await.is_fault(404, "itemNotFound", "Volume None could not be found.");
    // The control: another text is the client's mistake, and a volume's id makes a snapshot.
    let wrong = "Invalid input for field/attribute volume_id. Value: x. 'x' is not a 'uuid'";
    ask(json!("x")).await.is_fault(400, "badRequest", wrong);
    assert_eq!(ask(json!(volume)).await.status, 202);
}

/// Cinder takes both forms of an id in addresses and bodies, and answers with the one.
#[tokio::test]
async fn an_id_of_32_digits_is_the_same_id() {
    let api = Api::new();
    let digits = |id: &str| id.replace('-', "");
    let volume = api.volume("v").await;
    for id in [volume.clone(), digits(&volume), digits(&volume).to_uppercase()] {
        assert_eq!(api.get(&format!("/volumes/{id}")).await.body["volume"]["id"], volume);
    }
    let made = api.post("/snapshots", json!({ "snapshot": { "volume_id": digits(&volume) } })).await;
    assert_eq!((made.status.as_u16(), &made.body["snapshot"]["volume_id"]), (202, &json!(volume)));
    let snapshot = made.body["snapshot"]["id"].as_str().unwrap();
    let shown = api.get(&format!("/snapshots/{}", digits(snapshot))).await;
    assert_eq!(shown.body["snapshot"]["id"], snapshot);
    let body = json!({ "attachment": { "volume_uuid": digits(&volume) } });
    let made = api.post("/attachments", body).await;
    assert_eq!((made.status.as_u16(), &made.body["attachment"]["volume_id"]), (200, &json!(volume)));
    let attachment = made.body["attachment"]["id"].as_str().unwrap();
    let shown = api.get(&format!("/attachments/{}", digits(attachment))).await;
    assert_eq!(shown.body["attachment"]["id"], attachment);
    // A refusal has the answer's form, too.
    let text = format!("Volume {DEAD} could not be found.");
    api.get(&format!("/volumes/{}", digits(DEAD))).await.is_fault(404, "itemNotFound", &text);
    // The control: no other text is an id.
    for other in [&digits(&volume)[1..], &format!("urn:uuid:{volume}"), &format!("%7B{volume}%7D")] {
        assert_eq!(api.get(&format!("/volumes/{other}")).await.status, 404, "{other}");
        let body = json!({ "attachment": { "volume_uuid": other } });
        assert_eq!(api.post("/attachments", body).await.status, 400, "{other}");
    }
}

#[tokio::test]
async fn encryption_of_what_is_not_encrypted() {
    let api = Api::new();
    let path = format!("/volumes/{}/encryption", api.volume("v").await);
    assert_eq!(api.get(&path).await.body, json!({ "encryption_key_id": null }));
    assert_eq!(api.get(&format!("/volumes/{DEAD}/encryption")).await.status, 404);
}

#[tokio::test]
async fn metadata_has_a_tag() {
    let api = Api::new();
    let path = format!("/v3/{}/volumes/{}/metadata", crate::client::PROJECT, api.volume("v").await);
    let call = |method: &str, tag: Option<&str>, path: &str, body: Value| {
        let call = api.call(method, path).version("3.15");
        let call = if let Some(tag) = tag { call.header("if-match", tag) } else { call };
        if body.is_null() { call.send() } else { call.json(&body).send() }
    };
    let body = |value: &str| json!({ "metadata": { "k": value } });
    assert_eq!(call("PUT", None, &path, body("1")).await.status, 200);
    let read = call("GET", None, &path, Value::Null).await;
    let first = read.header("etag").unwrap().to_owned();
    let second = call("PUT", Some(&first), &path, body("2")).await;
    assert_eq!(second.status, 200);
    let tag = second.header("etag").unwrap().to_owned();
    assert_ne!(tag, first);
    for (method, path, body) in [
        ("PUT", path.clone(), body("3")),
        ("POST", path.clone(), body("3")),
        ("PUT", format!("{path}/k"), json!({ "meta": { "k": "3" } })),
        ("DELETE", format!("{path}/k"), Value::Null),
    ] {
        assert_eq!(call(method, Some(&first), &path, body).await.status, 412, "{method}");
    }
    assert_eq!(call("GET", None, &path, Value::Null).await.body, body("2"));
    let either = format!("{first}, {}", tag.trim_matches('"'));
    assert_eq!(call("POST", Some(&either), &path, body("3")).await.status, 200);
    assert_eq!(call("DELETE", Some("*"), &format!("{path}/k"), Value::Null).await.status, 200);
    let before = api.call("GET", &path).version("3.14").send().await;
    assert_eq!(before.header("etag"), None);
}

/// The report of an agent that lacks a module.
pub(crate) fn host_report() -> HostReport {
    let reason = HealthReason {
        code: "module_missing".to_owned(),
        level: HealthLevel::Failed,
        object: "kernel target".to_owned(),
        text: "the module iscsi_target_mod is not loaded: run modprobe iscsi_target_mod".to_owned(),
    };
    let transport = HostTransport {
        protocol: "iscsi".to_owned(),
        portals: vec!["10.0.0.1:3260".to_owned()],
        links: vec![PortalLink {
            portal: "10.0.0.1:3260".to_owned(),
            interface: "eth1".to_owned(),
            up: true,
            mtu: Some(9000),
        }],
        digests: Some(("CRC32C,None".to_owned(), "CRC32C,None".to_owned())),
        health: Some(Health { level: HealthLevel::Failed, reasons: vec![reason] }),
        ..HostTransport::default()
    };
    let port = ("fc/20:00:52:54:00:14:00:0a".to_owned(), "Online".to_owned());
    HostReport {
        kernel_release: "6.1.0-40-amd64".to_owned(),
        modes: vec![Mode::ReadOnly, Mode::ReadWrite],
        reservations: Some(false),
        transports: vec![
            transport,
            HostTransport { protocol: "fc".to_owned(), ports: vec![port], ..HostTransport::default() },
        ],
        modules: vec![HostModule {
            name: "iscsi_target_mod".to_owned(),
            needed_for: "iSCSI targets".to_owned(),
            state: ModuleState::Loadable,
            remedy: Some("modprobe iscsi_target_mod".to_owned()),
        }],
        ..HostReport::default()
    }
}
