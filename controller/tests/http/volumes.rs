//! Volumes and their metadata, as recorded.

use serde_json::{Value, json};

use crate::client::{Api, DEAD, INSTANCE, PROJECT, keys, words};

/// The keys of a volume at 3.0, in the answer to a create or update.
const BASE: &str = "id name description status size availability_zone created_at updated_at volume_type snapshot_id \
                    source_volid metadata links user_id bootable encrypted replication_status \
                    consistencygroup_id multiattach attachments migration_status";
const SHOWN: &str = "os-vol-tenant-attr:tenant_id os-vol-mig-status-attr:migstat os-vol-mig-status-attr:name_id \
                     os-vol-host-attr:host";

/// Keys that versions add.
const ADDED: [(&str, &str); 6] = [
    ("3.13", "group_id"),
    ("3.21", "provider_id"),
    ("3.48", "shared_targets service_uuid"),
    ("3.61", "cluster_name"),
    ("3.63", "volume_type_id"),
    ("3.65", "consumes_quota"),
];

fn is_naive_time(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000000"
}

#[tokio::test]
async fn from_create_to_delete() {
    let api = Api::new();
    let body = json!({ "volume": {
        "size": "1", "name": " v ", "description": "d", "metadata": { "a": "b" }, "volume_type": "__DEFAULT__",
    } });
    let made = api.post("/volumes", body).await;
    assert_eq!(made.status, 202);
    let until_60 = format!("{BASE} group_id provider_id shared_targets service_uuid");
    assert_eq!(made.keys("volume"), words(&until_60));
    let volume = &made.body["volume"];
    let id = volume["id"].as_str().unwrap().to_owned();
    for (key, value) in [
        ("status", json!("creating")),
        ("size", json!(1)),
        ("name", json!("v")),
        ("description", json!("d")),
        ("metadata", json!({ "a": "b" })),
        ("availability_zone", json!("nova")),
        ("volume_type", json!("__DEFAULT__")),
        ("bootable", json!("false")),
        ("encrypted", json!(false)),
        ("multiattach", json!(false)),
        ("attachments", json!([])),
        ("updated_at", json!(null)),
        ("user_id", json!("admin")),
        ("shared_targets", json!(false)),
        (
            "links",
            json!([
                { "rel": "self", "href": format!("http://localhost:8776/v3/{PROJECT}/volumes/{id}") },
                { "rel": "bookmark", "href": format!("http://localhost:8776/{PROJECT}/volumes/{id}") },
            ]),
        ),
    ] {
        assert_eq!(volume[key], value, "{key}");
    }
    assert!(is_naive_time(&volume["created_at"]), "{volume}");

    let path = format!("/volumes/{id}");
    let shown = api.get(&path).await;
    assert_eq!((shown.status.as_u16(), shown.keys("volume")), (200, words(&format!("{until_60} {SHOWN}"))));
    assert_eq!(shown.body["volume"]["status"], "available");
    assert_eq!(shown.body["volume"]["os-vol-tenant-attr:tenant_id"], PROJECT);
    assert!(is_naive_time(&shown.body["volume"]["updated_at"]));

    let updated = api.put(&path, json!({ "volume": { "name": "n2", "description": null } })).await;
    assert_eq!((updated.status.as_u16(), updated.keys("volume")), (200, words(&until_60)));
    assert_eq!(updated.body["volume"]["name"], "n2");
    assert_eq!(updated.body["volume"]["description"], json!(null));

    let gone = api.delete(&path).await;
    assert_eq!((gone.status.as_u16(), gone.body), (202, json!(null)));
    let text = format!("Volume {id} could not be found.");
    api.get(&path).await.is_fault(404, "itemNotFound", &text);
    api.delete(&path).await.is_fault(404, "itemNotFound", &text);
}

#[tokio::test]
async fn each_version_has_its_keys() {
    let api = Api::new();
    let path = format!("/volumes/{}", api.volume("v").await);
    let mut known = format!("{BASE} {SHOWN}");
    let mut before = "3.0".to_owned();
    for (version, added) in ADDED {
        let minor: u32 = version.strip_prefix("3.").unwrap().parse().unwrap();
        let just_before = format!("3.{}", minor - 1);
        for version in [before.as_str(), &just_before] {
            let shown = api.v3(version, "GET", &path, None).await;
            assert_eq!(shown.keys("volume"), words(&known), "{version}");
        }
        known = format!("{known} {added}");
        before = version.to_owned();
    }
    for version in ["3.65", "3.69", "latest"] {
        assert_eq!(api.v3(version, "GET", &path, None).await.keys("volume"), words(&known), "{version}");
    }
}

type Wrong = (Value, u16, String);

const MALFORMED: &str =
    "The server could not comply with the request since it is either malformed or otherwise incorrect.";
const SCHEMAS: &str = "is not valid under any of the given schemas";

fn field(text: &str) -> String {
    format!("Invalid input for field/attribute {text}")
}

/// The object below `volume`, the code, and the text.
fn wrong_sizes() -> Vec<Wrong> {
    vec![
        (json!(null), 400, field("volume. Value: None. None is not of type 'object'")),
        (json!([]), 400, field("volume. Value: []. [] is not of type 'object'")),
        (json!({}), 400, MALFORMED.to_owned()),
        (json!({ "size": null }), 400, MALFORMED.to_owned()),
        (json!({ "size": 0 }), 400, field("size. Value: 0. 0 is less than the minimum of 1")),
        (json!({ "size": -1 }), 400, field("size. Value: -1. -1 is less than the minimum of 1")),
        (json!({ "size": "abc" }), 400, field("size. Value: abc. 'abc' does not match '^[0-9]+$'")),
        (
            json!({ "size": 1.5 }),
            400,
            field("size. Value: 1.5. 1.5 is not of type 'integer', 'string', 'null'"),
        ),
        (
            json!({ "size": true }),
            400,
            field("size. Value: True. True is not of type 'integer', 'string', 'null'"),
        ),
        (
            json!({ "size": 2_147_483_648_u32 }),
            400,
            field("size. Value: 2147483648. 2147483648 is greater than the maximum of 2147483647"),
        ),
    ]
}

fn wrong_words() -> Vec<Wrong> {
    let long = "x".repeat(256);
    vec![
        (
            json!({ "size": 1, "name": long }),
            400,
            "Invalid input received: name has 256 characters, more than 255.".to_owned(),
        ),
        (
            json!({ "size": 1, "description": long }),
            400,
            "Invalid input received: description has 256 characters, more than 255.".to_owned(),
        ),
        (json!({ "size": 1, "volume_type": DEAD }), 404, format!("Volume type {DEAD} could not be found.")),
        (
            json!({ "size": 1, "volume_type": "no-such-type" }),
            404,
            "Volume type with name no-such-type could not be found.".to_owned(),
        ),
        (
            json!({ "size": 1, "availability_zone": "nowhere" }),
            400,
            "Availability zone 'nowhere' is invalid.".to_owned(),
        ),
        (json!({ "size": 1, "snapshot_id": DEAD }), 404, format!("Snapshot {DEAD} could not be found.")),
        (json!({ "size": 1, "source_volid": DEAD }), 404, format!("Volume {DEAD} could not be found.")),
        (
            json!({ "size": 1, "source_volid": "x" }),
            400,
            field(&format!("source_volid. Value: x. 'x' {SCHEMAS}")),
        ),
        (json!({ "size": 1, "id": "x" }), 400, field("id. Value: x. 'x' is not a 'uuid'")),
        (json!({ "size": 1, "request_key": "" }), 400, field("request_key. Value: . '' should be non-empty")),
        (
            json!({ "size": 1, "request_key": "k".repeat(65) }),
            400,
            field(&format!("request_key. Value: {0}. '{0}' is too long", "k".repeat(65))),
        ),
        (
            json!({ "size": 1, "request_key": "k", "id": DEAD }),
            400,
            "Invalid input received: id and request_key: the id follows from the request key.".to_owned(),
        ),
    ]
}

fn wrong_metadata_and_flags() -> Vec<Wrong> {
    let long = "x".repeat(256);
    vec![
        (
            json!({ "size": 1, "metadata": { "k": long } }),
            400,
            field(&format!("k. Value: {long}. '{long}' is too long")),
        ),
        (
            json!({ "size": 1, "metadata": { "": "x" } }),
            400,
            field(
                "metadata. Value: {'': 'x'}. '' does not match any of the regexes: '^[a-zA-Z0-9-_:. /]{1,255}$'",
            ),
        ),
        (
            json!({ "size": 1, "metadata": "x" }),
            400,
            field("metadata. Value: x. 'x' is not of type 'object', 'null'"),
        ),
        (
            json!({ "size": 1, "multiattach": true }),
            400,
            "multiattach parameter has been removed. The default behavior is to use multiattach enabled volume types. \
             Contact your administrator to create a multiattach enabled volume type and use it to create multiattach \
             volumes."
                .to_owned(),
        ),
        (
            json!({ "size": 1, "multiattach": "maybe" }),
            400,
            field(&format!("multiattach. Value: maybe. 'maybe' {SCHEMAS}")),
        ),
        (
            json!({ "size": 1, "nosuchfield": 1 }),
            400,
            field(
                "volume. Value: {'nosuchfield': 1, 'size': 1}. Additional properties are not allowed ('nosuchfield' \
                 was unexpected)",
            ),
        ),
    ]
}

#[tokio::test]
async fn wrong_creates() {
    let api = Api::new();
    let all = [wrong_sizes(), wrong_words(), wrong_metadata_and_flags()].concat();
    for (volume, code, text) in all {
        let fault = if code == 404 { "itemNotFound" } else { "badRequest" };
        api.post("/volumes", json!({ "volume": volume })).await.is_fault(code, fault, &text);
    }
    for body in [json!({}), json!({ "vol": { "size": 1 } })] {
        let answer = api.post("/volumes", body).await;
        answer.is_fault(400, "badRequest", "'volume' is a required property");
    }
    api.post("/volumes", json!([])).await.is_fault(400, "badRequest", "[] is not of type 'object'");
    assert!(api.fake.state().volumes.is_empty(), "nothing was made");
}

/// The real service decides who may give an id; this layer checks the form of both.
#[tokio::test]
async fn volume_is_asked_for_by_id_or_by_request_key() {
    use mooring_controller::domain::{RequestKey, WantedId};
    let api = Api::new();
    for (body, wanted) in [
        (json!({ "size": 1, "id": DEAD }), Some(WantedId::Given(DEAD.parse().unwrap()))),
        (json!({ "size": 1, "request_key": "nightly" }), RequestKey::new("nightly").map(WantedId::Key)),
        (json!({ "size": 1 }), None),
    ] {
        for version in ["3.0", "3.53"] {
            let made = api.v3(version, "POST", "/volumes", Some(json!({ "volume": body }))).await;
            assert_eq!(made.status, 202, "{}", made.body);
            assert_eq!(api.fake.state().wanted_id, wanted);
        }
    }
}

/// A request that cannot be granted is refused, not ignored.
#[tokio::test]
async fn requests_that_cannot_be_granted() {
    let api = Api::new();
    for volume in [json!({ "size": 1, "imageRef": DEAD }), json!({ "size": 1, "image_id": DEAD })] {
        assert_eq!(api.post("/volumes", json!({ "volume": volume })).await.status, 501, "{volume}");
    }
    for hint in ["local_to_instance", "query", "nosuch"] {
        let hints = json!({ "volume": { "size": 1 }, "OS-SCH-HNT:scheduler_hints": { hint: DEAD } });
        assert_eq!(api.post("/volumes", hints).await.status, 501, "{hint}");
    }
    assert_eq!(api.fake.state().volumes.len(), 0);
    // Old clients' values for "nothing"; and before 3.53 any unknown key.
    let nothing = json!({ "volume": {
        "size": 1, "name": null, "description": null, "volume_type": null, "availability_zone": null,
        "metadata": {}, "snapshot_id": null, "source_volid": null, "imageRef": null, "consistencygroup_id": null,
        "multiattach": false, "backup_id": null, "availability_zone": "nova",
    } });
    assert_eq!(api.post("/volumes", nothing).await.status, 202);
    let unknown = json!({ "volume": { "size": 1, "nosuchfield": 1 } });
    assert_eq!(api.v3("3.52", "POST", "/volumes", Some(unknown)).await.status, 202);
}

#[tokio::test]
async fn wrong_updates() {
    let api = Api::new();
    let path = format!("/volumes/{}", api.volume("v").await);
    let nothing =
        "Invalid input for field/attribute volume. Value: {}. {} is not valid under any of the given schemas";
    api.put(&path, json!({ "volume": {} })).await.is_fault(400, "badRequest", nothing);
    let size = "Invalid input for field/attribute volume. Value: {'size': 5}. Additional properties are not allowed \
                ('size' was unexpected)";
    api.put(&path, json!({ "volume": { "size": 5 } })).await.is_fault(400, "badRequest", size);
    let long = "Invalid input received: name has 256 characters, more than 255.";
    let body = json!({ "volume": { "name": "x".repeat(256) } });
    api.put(&path, body).await.is_fault(400, "badRequest", long);
    for id in [DEAD, "not-a-uuid"] {
        let path = format!("/volumes/{id}");
        let text = format!("Volume {id} could not be found.");
        api.get(&path).await.is_fault(404, "itemNotFound", &text);
        api.delete(&path).await.is_fault(404, "itemNotFound", &text);
        api.put(&path, json!({ "volume": { "name": "x" } })).await.is_fault(404, "itemNotFound", &text);
    }
}

#[tokio::test]
async fn metadata() {
    let api = Api::new();
    let id = api.volume("v").await;
    let path = format!("/volumes/{id}/metadata");
    let set = api.put(&path, json!({ "metadata": { "a": "b" } })).await;
    assert_eq!((set.status.as_u16(), set.body), (200, json!({ "metadata": { "a": "b" } })));
    let merged = api.post(&path, json!({ "metadata": { "c": "d" } })).await;
    assert_eq!((merged.status.as_u16(), merged.body), (200, json!({ "metadata": { "a": "b", "c": "d" } })));
    let replaced = api.put(&path, json!({ "metadata": { "e": "f" } })).await;
    assert_eq!(replaced.body, json!({ "metadata": { "e": "f" } }));
    let one = api.put(&format!("{path}/e"), json!({ "meta": { "e": "g" } })).await;
    assert_eq!((one.status.as_u16(), one.body), (200, json!({ "meta": { "e": "g" } })));
    assert_eq!(api.get(&format!("{path}/e")).await.body, json!({ "meta": { "e": "g" } }));
    let missing = format!("Volume {id} has no metadata with key nosuch.");
    api.get(&format!("{path}/nosuch")).await.is_fault(404, "itemNotFound", &missing);
    let other = api.put(&format!("{path}/e"), json!({ "meta": { "x": "g" } })).await;
    other.is_fault(400, "badRequest", "Request body and URI mismatch");
    assert_eq!(api.delete(&format!("{path}/e")).await.status, 200);
    assert_eq!(api.get(&path).await.body, json!({ "metadata": {} }));
}

#[tokio::test]
async fn two_changes_of_metadata_are_both_kept() {
    let api = Api::new();
    let path = format!("/volumes/{}/metadata", api.volume("v").await);
    let changes = (0..16).map(|n| {
        let body = json!({ "metadata": { format!("k{n}"): "v" } });
        let (api, path) = (&api, &path);
        async move { assert_eq!(api.post(path, body).await.status, 200) }
    });
    let mut all = Vec::new();
    for change in changes {
        all.push(Box::pin(change));
    }
    // Polled together: each is somewhere in its middle when the next begins.
    std::future::poll_fn(|context| {
        all.retain_mut(|change| change.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(keys(&api.get(&path).await.body["metadata"]).len(), 16);
}

#[tokio::test]
async fn only_attached_attachments_are_shown() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let id = api.reserved(&volume).await;
    let path = format!("/volumes/{volume}");
    let reserved = api.get(&path).await;
    assert_eq!(reserved.body["volume"]["attachments"], json!([]));
    assert_eq!(reserved.body["volume"]["status"], "reserved");
    let connector =
        json!({ "initiator": "iqn.2026-01.org.example:a", "host": "node1", "mountpoint": "/dev/vdb" });
    let body = json!({ "attachment": { "connector": connector } });
    assert_eq!(api.put(&format!("/attachments/{id}"), body).await.status, 200);
    api.post(&format!("/attachments/{id}/action"), json!({ "os-complete": id })).await;
    let shown = api.get(&path).await;
    let attached = &shown.body["volume"]["attachments"][0];
    assert_eq!(keys(attached), words("id attachment_id volume_id server_id host_name device attached_at"));
    for (key, value) in [
        ("id", volume.as_str()),
        ("attachment_id", &id),
        ("volume_id", &volume),
        ("server_id", INSTANCE),
        ("host_name", "node1"),
        ("device", "/dev/vdb"),
    ] {
        assert_eq!(attached[key], value, "{key}");
    }
    assert!(is_naive_time(&attached["attached_at"]));
    assert_eq!(shown.body["volume"]["status"], "in-use");
}
