//! The older calls for attachments: codes and bodies.

use mooring_controller::domain::{AttachAction, VolumeAction};
use mooring_controller::service::Refusal;
use serde_json::json;

use crate::client::{Api, DEAD, INSTANCE};
use crate::fake::SECRET;

#[tokio::test]
async fn each_answers_as_clients_know_it() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let path = format!("/volumes/{volume}/action");
    for (name, bodies) in [
        ("os-reserve", vec![json!(null), json!({}), json!("x")]),
        ("os-unreserve", vec![json!(null), json!({})]),
        ("os-begin_detaching", vec![json!(null), json!({})]),
        ("os-roll_detaching", vec![json!(null), json!({})]),
        (
            "os-attach",
            vec![
                json!({ "instance_uuid": INSTANCE, "mountpoint": "/dev/vdb" }),
                json!({ "host_name": "node1", "mountpoint": "/dev/vdb", "mode": "ro" }),
            ],
        ),
        (
            "os-detach",
            vec![json!(null), json!({}), json!({ "attachment_id": null }), json!({ "attachment_id": DEAD })],
        ),
        (
            "os-force_detach",
            vec![json!({ "attachment_id": DEAD, "connector": null }), json!({ "connector": {} })],
        ),
        (
            "os-terminate_connection",
            vec![json!(null), json!({}), json!({ "connector": { "initiator": "x" } })],
        ),
    ] {
        for body in bodies {
            let answer = api.post(&path, json!({ name: body })).await;
            assert_eq!((answer.status.as_u16(), answer.body), (202, json!(null)), "{name} {body}");
        }
    }
    assert!(matches!(
        api.fake.state().action,
        Some(AttachAction::TerminateConnection { connector: Some(_) })
    ));
    let body =
        json!({ "os-initialize_connection": { "connector": { "initiator": "iqn.2026-01.org.example:n" } } });
    let answer = api.post(&path, body.clone()).await;
    let data = json!({ "target_lun": 1, "auth_password": SECRET });
    let info = json!({ "driver_volume_type": "iscsi", "data": data, "enforce_multipath": false });
    assert_eq!((answer.status.as_u16(), answer.body), (200, json!({ "connection_info": info })));
    let unknown = api.post(&format!("/volumes/{DEAD}/action"), body).await;
    unknown.is_fault(404, "itemNotFound", &format!("Volume {DEAD} could not be found."));
    for (refusal, code) in [
        (Refusal::Invalid("no".to_owned()), 400),
        (Refusal::Forbidden("no".to_owned()), 403),
        (Refusal::Conflict("no".to_owned()), 409),
        (Refusal::Pending("no".to_owned()), 504),
    ] {
        api.fake.state().refuse = Some(refusal);
        assert_eq!(api.post(&path, json!({ "os-detach": {} })).await.status.as_u16(), code);
    }
    for wrong in
        [json!({}), json!([]), json!({ "os-detach": {}, "os-attach": {} }), json!({ "os-attach": null })]
    {
        assert_eq!(api.post(&path, wrong.clone()).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_revert_names_a_snapshot_from_3_40_on() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let path = format!("/volumes/{volume}/action");
    let body = json!({ "revert": { "snapshot_id": DEAD } });
    let early = api.v3("3.39", "POST", &path, Some(body.clone())).await;
    early.is_fault(404, "itemNotFound", "The resource could not be found.");
    for (body, named) in [
        (body.clone(), Some(DEAD.parse().unwrap())),
        (json!({ "revert": { "snapshot_id": null } }), None),
        (json!({ "revert": {} }), None),
    ] {
        let answer = api.v3("3.40", "POST", &path, Some(body.clone())).await;
        assert_eq!((answer.status.as_u16(), answer.body), (202, json!(null)), "{body}");
        let asked = api.fake.state().actions.pop();
        assert!(matches!(asked, Some(VolumeAction::Revert(id)) if id == named), "{asked:?}");
    }
    for wrong in [json!(null), json!("x"), json!({ "snapshot_id": "one" }), json!({ "snapshot_id": 7 })] {
        let answer = api.v3("3.40", "POST", &path, Some(json!({ "revert": wrong }))).await;
        assert_eq!(answer.status.as_u16(), 400, "{wrong}");
    }
    for (refusal, code) in
        [(Refusal::Invalid("no".to_owned()), 400), (Refusal::Conflict("no".to_owned()), 409)]
    {
        api.fake.state().refuse = Some(refusal);
        assert_eq!(api.v3("3.40", "POST", &path, Some(body.clone())).await.status.as_u16(), code);
    }
}
