//! Attachments, as recorded.

use serde_json::{Value, json};

use crate::client::{Api, DEAD, INSTANCE, keys, words};
use crate::fake::SECRET;
use mooring_controller::service::Refusal;

const SHOWN: &str = "id status instance volume_id attached_at detached_at attach_mode connection_info";

/// The connection info that a client needs, flat.
const INFO: &str = "target_discovered target_iqn target_portal target_lun volume_id auth_method auth_username \
                    auth_password encrypted qos_specs access_mode cacheable driver_volume_type attachment_id \
                    enforce_multipath";

/// A connector as os-brick makes it.
fn connector(node: u32) -> Value {
    json!({
        "platform": "x86_64",
        "os_type": "linux",
        "ip": format!("192.0.2.1{node}"),
        "host": format!("node{node}"),
        "multipath": false,
        "initiator": format!("iqn.2026-01.org.example:node{node}"),
        "do_local_attach": false,
        "system uuid": DEAD,
        "mountpoint": "/dev/vdb",
    })
}

#[tokio::test]
async fn reserve_connect_complete_delete() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let body = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": INSTANCE } });
    let made = api.post("/attachments", body).await;
    assert_eq!((made.status.as_u16(), made.keys("attachment")), (200, words(SHOWN)));
    let attachment = &made.body["attachment"];
    let id = attachment["id"].as_str().unwrap().to_owned();
    for (key, value) in [
        ("status", json!("reserved")),
        ("instance", json!(INSTANCE)),
        ("volume_id", json!(volume)),
        ("attached_at", json!("")),
        ("detached_at", json!("")),
        // Cinder answers with "null" as a text here.
        ("attach_mode", json!("rw")),
        ("connection_info", json!({})),
    ] {
        assert_eq!(attachment[key], value, "{key}");
    }
    let path = format!("/attachments/{id}");
    assert_eq!(api.get(&path).await.body, made.body);

    let connected = api.put(&path, json!({ "attachment": { "connector": connector(1) } })).await;
    assert_eq!((connected.status.as_u16(), connected.keys("attachment")), (200, words(SHOWN)));
    let info = &connected.body["attachment"]["connection_info"];
    assert_eq!(keys(info), words(INFO));
    assert_eq!((&info["attachment_id"], &info["auth_password"]), (&json!(id), &json!(SECRET)));
    // Cinder answers with the status before the call; this one answers with the status after it.
    assert_eq!(connected.body["attachment"]["status"], "attaching");

    for nothing in [json!(id), json!({}), json!(null)] {
        let done = api.post(&format!("{path}/action"), json!({ "os-complete": nothing })).await;
        assert_eq!((done.status.as_u16(), done.body), (204, json!(null)));
    }
    let shown = api.get(&path).await;
    assert_eq!(shown.body["attachment"]["status"], "attached");
    assert_ne!(shown.body["attachment"]["attached_at"], "");

    let list = api.get("/attachments").await;
    assert_eq!(keys(&list.body), ["attachments"]);
    assert_eq!(keys(&list.body["attachments"][0]), words("id status instance volume_id"));
    let detail = api.get("/attachments/detail").await;
    assert_eq!(detail.body["attachments"][0], shown.body["attachment"]);

    let gone = api.delete(&path).await;
    assert_eq!((gone.status.as_u16(), gone.body), (200, json!({ "attachments": [] })));
    let text = format!("Volume attachment could not be found with filter: attachment_id = {id}.");
    for answer in [
        api.get(&path).await,
        api.delete(&path).await,
        api.put(&path, json!({ "attachment": { "connector": connector(1) } })).await,
        api.post(&format!("{path}/action"), json!({ "os-complete": id })).await,
    ] {
        answer.is_fault(404, "itemNotFound", &text);
    }
}

#[tokio::test]
async fn a_second_attach_of_a_plain_volume() {
    let api = Api::new();
    let volume = api.volume("v").await;
    api.reserved(&volume).await;
    let body = json!({ "attachment": { "volume_uuid": volume, "connector": connector(2) } });
    let text = format!(
        "Invalid volume: Volume {volume} status must be available or downloading to reserve, but the current status is \
         reserved."
    );
    api.post("/attachments", body).await.is_fault(400, "badRequest", &text);
}

#[tokio::test]
async fn the_others_remain() {
    let api = Api::new();
    let kind = json!({ "volume_type": { "name": "shared", "extra_specs": { "multiattach": "<is> True" } } });
    api.post("/types", kind).await;
    let made = api.post("/volumes", json!({ "volume": { "size": 1, "volume_type": "shared" } })).await;
    let volume = &made.body["volume"]["id"];
    assert_eq!(made.body["volume"]["multiattach"], true);
    let mut ids = Vec::new();
    for (node, mode) in [(1, "rw"), (2, "ro")] {
        let body =
            json!({ "attachment": { "volume_uuid": volume, "mode": mode, "connector": connector(node) } });
        let answer = api.post("/attachments", body).await;
        assert_eq!(answer.body["attachment"]["attach_mode"], mode);
        assert_eq!(answer.body["attachment"]["connection_info"]["access_mode"], mode);
        ids.push(answer.body["attachment"]["id"].as_str().unwrap().to_owned());
    }
    let gone = api.delete(&format!("/attachments/{}", ids[0])).await;
    let others = gone.body["attachments"].as_array().unwrap();
    assert_eq!((others.len(), &others[0]["id"]), (1, &json!(ids[1])));
    assert_eq!(keys(&others[0]), words("id status instance volume_id"));
    assert_eq!(api.fake.state().forced, Some(false));
    assert_eq!(api.delete(&format!("/attachments/{}?force=true", ids[1])).await.status, 200);
    assert_eq!(api.fake.state().forced, Some(true));
}

#[tokio::test]
async fn wrong_bodies() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let field = |text: &str| format!("Invalid input for field/attribute {text}");
    for (attachment, text) in [
        (json!({}), field("attachment. Value: {}. 'volume_uuid' is a required property")),
        (json!(null), field("attachment. Value: None. None is not of type 'object'")),
        (json!({ "volume_uuid": "x" }), field("volume_uuid. Value: x. 'x' is not a 'uuid'")),
        (json!({ "volume_uuid": null }), field("volume_uuid. Value: None. None is not of type 'string'")),
        (
            json!({ "volume_uuid": volume, "instance_uuid": null }),
            field("instance_uuid. Value: None. None is not of type 'string'"),
        ),
        (
            json!({ "volume_uuid": volume, "mode": null }),
            field("mode. Value: None. None is not one of ['rw', 'ro']"),
        ),
        (
            json!({ "volume_uuid": volume, "mode": "rwx" }),
            field("mode. Value: rwx. 'rwx' is not one of ['rw', 'ro']"),
        ),
        (
            json!({ "volume_uuid": volume, "connector": [SECRET] }),
            field("connector. It is not of type 'object', 'null'"),
        ),
    ] {
        api.post("/attachments", json!({ "attachment": attachment })).await.is_fault(
            400,
            "badRequest",
            &text,
        );
    }
    // The mode came with 3.54, and native hosts are not part of this API.
    for (version, extra, code) in [
        ("3.53", json!({ "mode": "ro" }), 400),
        ("3.54", json!({ "host": "host1" }), 400),
        ("3.54", json!({ "id": DEAD }), 400),
        ("3.54", json!({ "mode": "ro", "connector": null }), 200),
    ] {
        let mut attachment = json!({ "volume_uuid": volume });
        attachment.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = api.v3(version, "POST", "/attachments", Some(json!({ "attachment": attachment }))).await;
        assert_eq!(answer.status, code, "{version} {extra}");
    }
    let id = api.fake.state().attachments[0].id;
    for attachment in
        [json!({}), json!({ "connector": {} }), json!({ "connector": null }), json!({ "connector": "x" })]
    {
        let answer = api.put(&format!("/attachments/{id}"), json!({ "attachment": attachment })).await;
        assert_eq!(answer.status, 400, "{attachment}");
    }
    for body in [json!({}), json!({ "os-complete": 1, "x": 2 }), json!([]), json!({ "os-nosuch": {} })] {
        let answer = api.post(&format!("/attachments/{id}/action"), body.clone()).await;
        assert_eq!(answer.status, 400, "{body}");
    }
    let unknown = api.post("/attachments", json!({ "attachment": { "volume_uuid": DEAD } })).await;
    unknown.is_fault(404, "itemNotFound", &format!("Volume {DEAD} could not be found."));
    let text = "Volume attachment could not be found with filter: attachment_id = not-a-uuid.";
    api.get("/attachments/not-a-uuid").await.is_fault(404, "itemNotFound", text);
}

/// Nova asks again after 504 and 500.
#[tokio::test]
async fn what_is_not_done_yet_is_504() {
    let api = Api::new();
    let id = api.reserved(&api.volume("v").await).await;
    let path = format!("/attachments/{id}");
    for (refusal, code, fault) in [
        (Refusal::Pending("later".to_owned()), 504, "gatewayTimeout"),
        (Refusal::Unavailable("later".to_owned()), 503, "serviceUnavailable"),
        (Refusal::Conflict("later".to_owned()), 409, "conflictingRequest"),
        (Refusal::Forbidden("later".to_owned()), 403, "forbidden"),
    ] {
        api.fake.state().refuse = Some(refusal);
        api.delete(&path).await.is_fault(code, fault, "later");
    }
    assert_eq!(api.delete(&path).await.status, 200);
}

/// The cause of a failure goes to the log only.
#[tokio::test]
async fn the_inside_of_a_failure_is_not_told() {
    let api = Api::new();
    api.fake.state().refuse = Some(Refusal::Internal("the store at /var/lib failed".to_owned()));
    let text = "The server has either erred or is incapable of performing the requested operation.";
    api.get("/attachments").await.is_fault(500, "computeFault", text);
}
