//! Operators' actions on volumes, and the flags of volumes.

use mooring_controller::domain::{VolumeAction, VolumeStatus};
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};
use serde_json::{Value, json};

use crate::api::{Answer, Api, of_project};
use crate::support::{LONG, Rig, admin, client, new_volume, until};

async fn act(api: &Api, id: VolumeId, name: &str, value: Value) -> Answer {
    api.post(&format!("/volumes/{id}/action"), json!({ name: value })).await
}

async fn until_gone(rig: &Rig, id: VolumeId) {
    until("the end of the volume", async || match rig.service.volume(&admin(), id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flags() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let id = rig.volume(false).await;
    for bootable in [json!(true), json!("False"), json!("1")] {
        let done = act(&api, id, "os-set_bootable", json!({ "bootable": bootable })).await;
        assert_eq!((done.status.as_u16(), done.body), (200, Value::Null));
    }
    for (said, set) in
        [(json!("on"), true), (json!("False"), false), (json!("0"), false), (json!(true), true)]
    {
        let done = act(&api, id, "os-update_readonly_flag", json!({ "readonly": said })).await;
        assert_eq!(done.status, 202, "{said}");
        assert_eq!(rig.service.volume(&admin(), id).await.unwrap().readonly, Some(set), "{said}");
    }
    // The flag decides for an attachment without a mode.
    let attached = rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    assert_eq!(attached.mode, Mode::ReadOnly);
    rig.service.complete_attachment(&admin(), attached.id).await.unwrap();
    let refused = act(&api, id, "os-update_readonly_flag", json!({ "readonly": false })).await;
    refused.is(400, "status must be available to update readonly flag, but current status is: in-use.");
    for (name, key) in [("os-set_bootable", "bootable"), ("os-update_readonly_flag", "readonly")] {
        for bad in [
            json!(null),
            json!({}),
            json!([]),
            json!({ key: null }),
            json!({ key: "maybe" }),
            json!({ key: 2 }),
            json!({ key: true, "x": 1 }),
        ] {
            assert_eq!(act(&api, id, name, bad.clone()).await.status, 400, "{name} {bad}");
        }
    }
    let stranger = rig.service.volume_action(&of_project("q"), id, VolumeAction::SetBootable(true)).await;
    assert!(matches!(stranger, Err(Refusal::NotFound { .. })), "{stranger:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_is_said_holds_until_the_next_event() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let id = rig.volume(false).await;
    let reset = async |value: Value| act(&api, id, "os-reset_status", value).await;
    let status = async || rig.service.volume(&admin(), id).await.unwrap().status;
    for (bad, part) in [
        (json!(null), "is not of type 'object'"),
        (json!({}), "Must specify"),
        (json!({ "status": null }), "Must specify"),
        (json!({ "status": "nosuch" }), "is not one of"),
        (json!({ "status": 5 }), "is not one of"),
        (json!({ "status": "deleting" }), "Cannot reset-state to deleting"),
        (json!({ "status": "error_deleting" }), "Cannot reset-state to error_deleting"),
        (json!({ "status": "detaching" }), "Cannot reset-state to detaching"),
        (json!({ "status": "in-use" }), "it cannot be in-use"),
        (json!({ "status": "creating" }), "cannot be set to creating"),
        (json!({ "attach_status": "nosuch" }), "is not one of"),
        (json!({ "attach_status": "attached" }), "attach it instead"),
        (json!({ "migration_status": "migrating" }), "is not one of"),
        (json!({ "status": "error", "x": 1 }), "Additional properties"),
        (json!({ "status": "error", "attach_status": "attached" }), "attach it instead"),
    ] {
        reset(bad.clone()).await.is(400, part);
        assert_eq!(status().await, VolumeStatus::Available, "{bad}");
    }
    assert_eq!(reset(json!({ "status": "ERROR" })).await.status, 202);
    assert_eq!(status().await, VolumeStatus::Error);
    assert_eq!(reset(json!({ "status": "available", "attach_status": "detached" })).await.status, 202);
    assert_eq!(status().await, VolumeStatus::Available);
    assert_eq!(reset(json!({ "migration_status": "none" })).await.status, 202);

    let attached = rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    rig.service.complete_attachment(&admin(), attached.id).await.unwrap();
    // Removing a record would revoke no access.
    reset(json!({ "attach_status": "detached" })).await.is(400, "os-force_detach");
    reset(json!({ "status": "available" })).await.is(400, "its attachments say that it is in-use");
    reset(json!({ "status": "available", "attach_status": "detached" })).await.is(400, "os-force_detach");
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().attachments.len(), 1);
    assert_eq!(reset(json!({ "attach_status": "attached" })).await.status, 202);
    assert_eq!(reset(json!({ "status": "in-use" })).await.status, 202);
    assert_eq!(status().await, VolumeStatus::InUse);
    assert_eq!(reset(json!({ "status": "error" })).await.status, 202);
    assert_eq!(status().await, VolumeStatus::Error);
    // At the next event, the derived status applies again.
    rig.service.delete_attachment(&admin(), attached.id, false, LONG).await.unwrap();
    assert_eq!(status().await, VolumeStatus::Available);
    let action = VolumeAction::ResetStatus { status: Some(VolumeStatus::Error), attached: None };
    let refused = rig.service.volume_action(&of_project("p"), id, action).await;
    assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_is_at_is_not_covered() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    rig.storage.state().knobs.pending = true;
    let id = rig.service.create_volume(&admin(), new_volume()).await.unwrap().id;
    for said in ["available", "error"] {
        let refused = act(&api, id, "os-reset_status", json!({ "status": said })).await;
        refused.is(400, "its status cannot be reset");
    }
    assert_eq!(act(&api, id, "os-reset_status", json!({ "status": "creating" })).await.status, 202);
    // A delete demands a status that allows it; a forced one accepts any.
    assert_eq!(api.delete(&format!("/volumes/{id}")).await.status, 400);
    assert_eq!(act(&api, id, "os-force_delete", Value::Null).await.status, 202);
    rig.storage.state().knobs.pending = false;
    until_gone(&rig, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_delete_never_takes_an_attachment_along() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let id = rig.volume(false).await;
    let attached = rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    let path = format!("/volumes/{id}?force=true");
    act(&api, id, "os-force_delete", json!({})).await.is(400, "is attached");
    api.delete(&path).await.is(400, "is attached");
    api.delete(&format!("/volumes/{id}")).await.is(400, "Volume status must be available or error");
    assert!(rig.storage.state().volumes[&id.to_string()].spec.is_some());
    for refused in [
        rig.service.volume_action(&of_project("p"), id, VolumeAction::ForceDelete).await,
        rig.service.force_delete_volume(&of_project("p"), id, false).await,
    ] {
        assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    }
    rig.service.delete_attachment(&admin(), attached.id, false, LONG).await.unwrap();
    // Before 3.23 `force` has no effect.
    assert_eq!(act(&api, id, "os-reset_status", json!({ "status": "error" })).await.status, 202);
    assert_eq!(api.delete(&path).await.status, 202);
    until_gone(&rig, id).await;
    let other = rig.volume(false).await;
    let held = rig.service.create_attachment(&admin(), client(other, 1), LONG).await.unwrap();
    let plain = api.call("3.22", "DELETE", &format!("/volumes/{other}?force=true"), None).await;
    plain.is(400, "Volume status must be available or error");
    rig.service.delete_attachment(&admin(), held.id, false, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_delete_with_cascade_takes_the_snapshots_first() {
    let (rig, id, snapshots) = Rig::thin(2).await;
    let api = Api::of(&rig);
    let path = format!("/volumes/{id}");
    // The controls: without `force` the status refuses it, without `cascade` the snapshots do.
    assert_eq!(act(&api, id, "os-reserve", json!({})).await.status, 202);
    api.delete(&format!("{path}?cascade=true")).await.is(400, "Volume status must be available or error");
    api.delete(&format!("{path}?force=true")).await.is(400, "has snapshots");
    let refused = rig.service.force_delete_volume(&of_project("p"), id, true).await;
    assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    assert_eq!(api.delete(&format!("{path}?force=true&cascade=true")).await.status, 202);
    until_gone(&rig, id).await;
    let calls = rig.storage.state().calls.clone();
    let deletions = |of: VolumeId| {
        let word = format!("delete {of} ");
        let all = calls.iter().enumerate().filter(|(_, call)| call.starts_with(&word));
        all.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let of_volume = deletions(id).first().copied();
    for snapshot in snapshots {
        let last = deletions(snapshot).last().copied();
        assert!(last.is_some() && last < of_volume, "{snapshot}: {calls:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extend_checks_everything_first() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let id = rig.volume(false).await;
    for bad in [
        json!(null),
        json!({}),
        json!({ "new_size": 0 }),
        json!({ "new_size": -1 }),
        json!({ "new_size": "x" }),
        json!({ "new_size": 1.5 }),
        json!({ "new_size": 2_147_483_648_u64 }),
        json!({ "new_size": 2, "x": 1 }),
    ] {
        assert_eq!(act(&api, id, "os-extend", bad.clone()).await.status, 400, "{bad}");
    }
    act(&api, id, "os-extend", json!({ "new_size": 1 })).await.is(400, "must be greater than current size");
    act(&api, id, "os-extend", json!({ "new_size": 1001 })).await.is(413, "xceed");
    assert_eq!(act(&api, id, "os-extend", json!({ "new_size": "2" })).await.status, 202);
    assert_eq!(rig.until_volume(id, VolumeStatus::Available).await.size_gib, 2);
    let held = rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    rig.service.complete_attachment(&admin(), held.id).await.unwrap();
    let path = format!("/volumes/{id}/action");
    let old = api.call("3.41", "POST", &path, Some(json!({ "os-extend": { "new_size": 3 } }))).await;
    old.is(400, "status must be available to extend, currently in-use");
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().size_gib, 2);
    assert_eq!(act(&api, id, "os-extend", json!({ "new_size": 3 })).await.status, 202);
    assert_eq!(rig.until_volume(id, VolumeStatus::InUse).await.size_gib, 3);
    for later in
        ["os-set_image_metadata", "os-show_image_metadata", "os-unset_image_metadata", "os-migrate_volume"]
    {
        act(&api, id, later, json!({})).await.is(501, "does not implement");
    }
}
