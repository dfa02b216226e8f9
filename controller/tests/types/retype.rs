//! Retypes, end to end: every answer of the table, and no change after a refusal.

use std::sync::Arc;
use std::time::Duration;

use mooring_controller::domain::{NewAttachment, NewConnector, NewVolume, Volume, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::policy::Policies;
use mooring_controller::rules::retype::MigrationPolicy;
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{Answer, Api, DEAD, kind, of_project};
use crate::support::{LONG, Rig, admin, client, new_volume, reserve, until};

const SHARED: &[(&str, &str)] = &[("multiattach", "<is> True")];

async fn made(rig: &Rig, kind: &str, size_gib: u32) -> VolumeId {
    let new = NewVolume { volume_type: Some(kind.to_owned()), size_gib: Some(size_gib), ..new_volume() };
    let id = rig.service.create_volume(&admin(), new).await.unwrap().id;
    rig.until_volume(id, VolumeStatus::Available).await;
    id
}

async fn retype(api: &Api, id: VolumeId, content: Value) -> Answer {
    api.post(&format!("/volumes/{id}/action"), json!({ "os-retype": content })).await
}

/// Waits until the agent's data for a rebuild has this type and flag.
async fn until_told(rig: &Rig, id: VolumeId, kind: &str, multiattach: bool) {
    until("the spec at the agent", async || {
        let state = rig.storage.state();
        let kept = state.volumes.get(&id.to_string()).map(|kept| kept.opaque.clone()).unwrap_or_default();
        let kept: Value = serde_json::from_slice(&kept).unwrap_or_default();
        if kept["type"] == kind && kept["multiattach"] == multiattach {
            Ok(())
        } else {
            Err(kept.to_string())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_type_flag_and_spec_change_together() {
    let rig = Rig::new(1).await;
    let api = Api::of(&rig);
    kind(&rig, "a", &[]).await;
    let shared = kind(&rig, "shared", SHARED).await;
    let id = made(&rig, "a", 1).await;
    let done = retype(&api, id, json!({ "new_type": "shared" })).await;
    assert_eq!((done.status.as_u16(), done.body), (202, Value::Null));
    let volume = rig.service.volume(&admin(), id).await.unwrap();
    assert_eq!(
        (volume.volume_type.id, volume.multiattach, volume.status),
        (shared.id, true, VolumeStatus::Available)
    );
    until_told(&rig, id, "shared", true).await;
    // The volume is really shared: two attachments at once.
    let first = rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    let second = rig.service.create_attachment(&admin(), client(id, 2), LONG).await.unwrap();
    for gone in [first.id, second.id] {
        rig.service.delete_attachment(&admin(), gone, false, LONG).await.unwrap();
    }
    // Back again, by id.
    let back = rig.service.volume_type(&admin(), "a").await.unwrap().id.to_string();
    assert_eq!(retype(&api, id, json!({ "new_type": back, "migration_policy": "never" })).await.status, 202);
    until_told(&rig, id, "a", false).await;
    rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    rig.service.create_attachment(&admin(), client(id, 2), LONG).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_its_code_and_changes_nothing() {
    let rig = Rig::new(1).await;
    let api = Api::of(&rig);
    let a = kind(&rig, "a", &[]).await;
    kind(&rig, "b", &[]).await;
    kind(&rig, "shared", SHARED).await;
    kind(&rig, "large", &[("provisioning:min_vol_size", "5")]).await;
    kind(&rig, "large-shared", &[("provisioning:min_vol_size", "5"), ("multiattach", "<is> True")]).await;
    kind(&rig, "elsewhere", &[("volume_backend_name", "other")]).await;
    kind(&rig, "full", &[]).await;
    let limit = mooring_controller::quota::Limit::At(0);
    let full = mooring_controller::quota::Key::VolumesOf("full".to_owned());
    rig.service.set_quotas(&admin(), "p", [(full, limit)].into()).await.unwrap();
    let id = made(&rig, "a", 2).await;
    let unchanged = async |code: &str| {
        let volume = rig.service.volume(&admin(), id).await.unwrap();
        assert_eq!((volume.volume_type.id, volume.multiattach), (a.id, false), "{code}");
    };
    let long = "x".repeat(256);
    for (content, code, part) in [
        (json!({}), 400, "'new_type' is a required property"),
        (json!(null), 400, "is not of type 'object'"),
        (json!({ "new_type": null }), 400, "is not of type 'string'"),
        (json!({ "new_type": "" }), 400, "should be non-empty"),
        (json!({ "new_type": long }), 400, "is too long"),
        (json!({ "new_type": 5 }), 400, "is not of type 'string'"),
        (json!({ "new_type": "b", "other": 1 }), 400, "Additional properties are not allowed"),
        (
            json!({ "new_type": "b", "migration_policy": "bogus" }),
            400,
            "is not one of ['on-demand', 'never']",
        ),
        (json!({ "new_type": "b", "migration_policy": 1 }), 400, "is not one of ['on-demand', 'never']"),
        (
            json!({ "new_type": DEAD }),
            404,
            "Volume type 00000000-0000-4000-8000-00000000dead could not be found.",
        ),
        (json!({ "new_type": "nosuch" }), 404, "Volume type with name nosuch could not be found."),
        (json!({ "new_type": "large" }), 400, "less than the minimum required size"),
        (json!({ "new_type": "full" }), 413, "exceeded"),
        (json!({ "new_type": "a" }), 400, "requested type has to be different"),
        (json!({ "new_type": "elsewhere" }), 400, "migration_policy is never"),
        (json!({ "new_type": "elsewhere", "migration_policy": "on-demand" }), 501, "another pool yet"),
    ] {
        retype(&api, id, content.clone()).await.is(code, part);
        unchanged(&content.to_string()).await;
    }
    api.post(&format!("/volumes/{DEAD}/action"), json!({ "os-retype": { "new_type": "b" } }))
        .await
        .is(404, DEAD);

    let held = rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    rig.service.complete_attachment(&admin(), held.id).await.unwrap();
    let flag = "the specified volume however currently has a status of: in-use.";
    retype(&api, id, json!({ "new_type": "shared" })).await.is(400, flag);
    // The size is checked before the flag.
    retype(&api, id, json!({ "new_type": "large-shared" })).await.is(400, "minimum required size");
    unchanged("in use").await;
    // Without a change of the flag the volume may be in use.
    assert_eq!(retype(&api, id, json!({ "new_type": "b" })).await.status, 202);
    let volume = rig.service.volume(&admin(), id).await.unwrap();
    assert_eq!((volume.volume_type.name.as_str(), volume.status), ("b", VolumeStatus::InUse));
    // A volume in error is refused, whoever set the error.
    let reset = json!({ "os-reset_status": { "status": "error" } });
    assert_eq!(api.post(&format!("/volumes/{id}/action"), reset).await.status, 202);
    retype(&api, id, json!({ "new_type": "a" })).await.is(400, "available or in-use state");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_decide_who() {
    let file = "\"volume:retype\": \"role:changer\"\n\"volume:multiattach\": \"role:sharer\"\n";
    let policies = Arc::new(Policies::parse(file, "policy.yaml", true).unwrap());
    let rig = Rig::quiet_with(0, move |options| options.policies = Arc::clone(&policies));
    rig.up().await;
    kind(&rig, "b", &[]).await;
    kind(&rig, "shared", SHARED).await;
    let id = made(&rig, "__DEFAULT__", 1).await;
    let with = |roles: &[&str]| mooring_controller::domain::Caller {
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        ..of_project("p")
    };
    let retype = async |roles: &[&str], to: &str| {
        rig.service.retype_volume(&with(roles), id, to, MigrationPolicy::Never).await
    };
    let forbidden = |answer: Result<(), Refusal>, policy: &str| match answer {
        Err(Refusal::Forbidden(text)) => {
            assert_eq!(text, format!("Policy doesn't allow {policy} to be performed."));
        }
        other => panic!("{other:?}"),
    };
    forbidden(retype(&["member", "reader"], "b").await, "volume:retype");
    forbidden(retype(&["member", "reader"], "nosuch").await, "volume:retype");
    forbidden(retype(&["reader", "changer"], "shared").await, "volume:multiattach");
    retype(&["reader", "changer"], "b").await.unwrap();
    retype(&["reader", "changer", "sharer"], "shared").await.unwrap();
    // The way back needs no policy about sharing.
    retype(&["reader", "changer"], "b").await.unwrap();
    // Another project's volume is hidden.
    let stranger = of_project("q");
    let unseen = rig.service.retype_volume(&stranger, id, "shared", MigrationPolicy::Never).await;
    assert!(matches!(unseen, Err(Refusal::NotFound { .. })), "{unseen:?}");
    // A private type does not exist for the caller.
    let hidden =
        rig.service.create_type(&admin(), "hidden", None, false, crate::api::specs(&[])).await.unwrap();
    let unseen = retype(&["reader", "changer"], &hidden.id.to_string()).await;
    assert!(matches!(unseen, Err(Refusal::NotFound { .. })), "{unseen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_moves_with_the_type() {
    let rig = Rig::new(0).await;
    kind(&rig, "a", &[]).await;
    kind(&rig, "b", &[]).await;
    let id = made(&rig, "a", 3).await;
    rig.service.retype_volume(&admin(), id, "b", MigrationPolicy::Never).await.unwrap();
    let shown = rig.service.quotas(&admin(), "p").await.unwrap();
    let used = |key: &str| shown.iter().find(|entry| entry.key.to_string() == key).unwrap().in_use;
    assert_eq!((used("gigabytes"), used("gigabytes_a"), used("gigabytes_b")), (3, 0, 3));
    assert_eq!((used("volumes"), used("volumes_a"), used("volumes_b")), (1, 0, 1));
}

/// A type that demands one mode for all attachments of a host is refused while a host has two.
#[tokio::test(flavor = "multi_thread")]
async fn a_strict_type_does_not_come_over_mixed_modes() {
    let rig = Rig::new(1).await;
    kind(&rig, "mixed", SHARED).await;
    kind(&rig, "strict", &[("multiattach", "<is> True"), ("mooring:mixed_modes", "<is> False")]).await;
    let id = made(&rig, "mixed", 1).await;
    let attach = async |mode: Mode, instance: u128| {
        let new =
            NewAttachment { mode: Some(mode), instance: Some(Uuid::from_u128(instance)), ..client(id, 1) };
        rig.service.create_attachment(&admin(), new, LONG).await.unwrap().id
    };
    attach(Mode::ReadWrite, 1).await;
    let other = attach(Mode::ReadOnly, 2).await;
    let retype = async || rig.service.retype_volume(&admin(), id, "strict", MigrationPolicy::Never).await;
    let refused = retype().await.map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    rig.service.delete_attachment(&admin(), other, true, LONG).await.ok();
    let unchanged = rig.service.volume(&admin(), id).await.unwrap();
    assert_eq!(unchanged.volume_type.name, "mixed");
}

/// A type's session settings are in the spec of every export of its volumes, also settings that it
/// no longer has. They change only while nothing is attached.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_type_says_about_sessions_is_in_the_spec() {
    let rig = Rig::new(1).await;
    kind(&rig, "plain", &[]).await;
    kind(&rig, "checked", &[("mooring:data_digest", "crc32c"), ("mooring:queue_depth", "128")]).await;
    let said = |id: VolumeId| {
        let state = rig.storage.state();
        let spec = state.exports.get(&id.to_string()).and_then(|kept| kept.spec.clone()).unwrap();
        spec.tuning.into_iter().map(|one| (one.name, one.value)).collect::<Vec<_>>()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let (plain, id) = (made(&rig, "plain", 1).await, made(&rig, "checked", 1).await);
    let in_spec = [pair("data_digest", "crc32c"), pair("queue_depth", "128")];
    let new = |volume| NewAttachment { instance: Some(Uuid::from_u128(1)), ..client(volume, 1) };
    let attachment = rig.service.create_attachment(&admin(), new(id), LONG).await.unwrap().id;
    assert_eq!(said(id), in_spec);
    let untuned = rig.service.create_attachment(&admin(), new(plain), LONG).await.unwrap().id;
    assert_eq!(said(plain), [], "without extra specs the spec is as before");
    let retype =
        async |id, to: &str| rig.service.retype_volume(&admin(), id, to, MigrationPolicy::Never).await;
    for (id, to) in [(id, "plain"), (plain, "checked")] {
        let refused = retype(id, to).await.map_err(in_words);
        assert!(
            matches!(&refused, Err(Refusal::Invalid(why)) if why.contains("how iSCSI sessions are negotiated")),
            "{refused:?}"
        );
    }
    for gone in [attachment, untuned] {
        rig.service.delete_attachment(&admin(), gone, true, LONG).await.unwrap();
    }
    retype(id, "plain").await.unwrap();
    retype(plain, "checked").await.unwrap();
    let again = rig.service.create_attachment(&admin(), new(id), LONG).await.unwrap().id;
    assert_eq!(said(id), [pair("data_digest", "crc32c,none"), pair("queue_depth", "64")]);
    rig.service.create_attachment(&admin(), new(plain), LONG).await.unwrap();
    assert_eq!(said(plain), in_spec);
    // The setting stays.
    rig.service.delete_attachment(&admin(), again, true, LONG).await.unwrap();
    rig.service.create_attachment(&admin(), new(id), LONG).await.unwrap();
    assert_eq!(said(id), [pair("data_digest", "crc32c,none"), pair("queue_depth", "64")]);
}

fn contradiction(volume: &Volume) -> Option<String> {
    let typed = volume.volume_type.extra_specs.contains_key("multiattach");
    let several = volume.attachments.len() > 1;
    (typed != volume.multiattach || (several && !volume.multiattach)).then(|| format!("{volume:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn retype_racing_attaches_never_leaves_flag_and_attachments_apart() {
    let rig = Rig::new(0).await;
    kind(&rig, "plain", &[]).await;
    kind(&rig, "shared", SHARED).await;
    let (mut refused, mut done) = (0, 0);
    let id = made(&rig, "shared", 1).await;
    for round in 0..40_u64 {
        let instance = |n: u128| NewAttachment { instance: Some(Uuid::from_u128(n)), ..reserve(id) };
        assert_eq!(instance(1).connector, NewConnector::None);
        let attach = |n| {
            let (service, new) = (rig.service.clone(), instance(n));
            tokio::spawn(async move { service.create_attachment(&admin(), new, LONG).await })
        };
        let service = rig.service.clone();
        let to_plain = tokio::spawn(async move {
            // Sometimes before the attaches, sometimes after them.
            tokio::time::sleep(Duration::from_micros(round * 40)).await;
            service.retype_volume(&admin(), id, "plain", MigrationPolicy::Never).await
        });
        let (one, two) = (attach(1), attach(2));
        let (one, two) = (one.await.unwrap(), two.await.unwrap());
        match to_plain.await.unwrap().map_err(in_words) {
            Ok(()) => done += 1,
            Err(Refusal::Invalid(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        let volume = rig.service.volume(&admin(), id).await.unwrap();
        assert_eq!(contradiction(&volume), None, "round {round}");
        for attachment in one.into_iter().chain(two) {
            rig.service.delete_attachment(&admin(), attachment.id, false, LONG).await.unwrap();
        }
        if !volume.multiattach {
            rig.service.retype_volume(&admin(), id, "shared", MigrationPolicy::Never).await.unwrap();
        }
    }
    assert!(refused + done == 40 && refused > 0, "{refused} refused, {done} done");
}
