//! Calls for an attachment that is already connected: the same words get the same answer, other
//! words are applied or refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use mooring_api::v1;
use mooring_controller::domain::{AttachAction, Attachment, NewAttachment, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::{AttachmentId, Mode, VolumeId};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::support::*;

/// A connector of node 1 with other words in it.
fn saying(words: &Value) -> Map<String, Value> {
    let mut connector = connector(1);
    connector.extend(words.as_object().unwrap().clone());
    connector
}

/// The modes in the export's spec at the storage agent.
fn told(rig: &Rig, volume: VolumeId) -> Vec<v1::Mode> {
    let state = rig.storage.state();
    let spec = state.exports[&volume.to_string()].spec.as_ref().unwrap();
    spec.grants.iter().map(v1::Grant::mode).collect()
}

async fn put(rig: &Rig, id: AttachmentId, words: Value) -> Result<Attachment, Refusal> {
    rig.service.update_attachment(&admin(), id, saying(&words), LONG).await
}

/// A connected attachment whose maker named no mode.
async fn connected(rig: &Rig, volume: VolumeId, words: Value) -> AttachmentId {
    let made = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    put(rig, made.id, words).await.unwrap().id
}

fn is_conflict(answer: &Result<Attachment, Refusal>, words: &str) {
    assert!(matches!(answer, Err(Refusal::Conflict(text)) if text.contains(words)), "{words}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_given_again_applies_its_mode_at_the_target() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let id = connected(&rig, volume, json!({ "mode": "rw" })).await;
    for complete in [false, true] {
        if complete {
            rig.service.complete_attachment(&admin(), id).await.unwrap();
        }
        for (mode, word, at_target) in [
            (Mode::ReadOnly, "ro", v1::Mode::ReadOnly),
            (Mode::ReadOnly, "ro", v1::Mode::ReadOnly),
            (Mode::ReadWrite, "rw", v1::Mode::ReadWrite),
        ] {
            let seen = put(&rig, id, json!({ "mode": word })).await.unwrap();
            assert_eq!((seen.mode, &seen.connection_info.unwrap()["access_mode"]), (mode, &word.into()));
            assert_eq!(told(&rig, volume), [at_target], "in force when it is answered");
        }
    }
    rig.until_volume(volume, VolumeStatus::InUse).await;
    // Until the target enforces the mode, no call succeeds, however often it is repeated.
    rig.storage.state().knobs.pending = true;
    for _ in 0..2 {
        let late = rig.service.update_attachment(&admin(), id, saying(&json!({ "mode": "ro" })), SHORT).await;
        assert!(matches!(late, Err(Refusal::Pending(_))), "{late:?}");
    }
    rig.storage.state().knobs.pending = false;
    rig.storage.publish(&volume.to_string());
    assert_eq!(put(&rig, id, json!({ "mode": "ro" })).await.unwrap().mode, Mode::ReadOnly);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_given_again_applies_its_paths_and_mountpoint() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let id = connected(&rig, volume, json!({})).await;
    let stamp = || rig.storage.state().exports[&volume.to_string()].stamp.clone();
    let first = stamp();
    let words = json!({ "mountpoint": "/dev/vdc", "multipath": true, "enforce_multipath": true });
    for _ in 0..2 {
        let seen = put(&rig, id, words.clone()).await.unwrap();
        let info = seen.connection_info.unwrap();
        assert_eq!((seen.mountpoint.as_deref(), seen.mode), (Some("/dev/vdc"), Mode::ReadWrite));
        assert_eq!(info["enforce_multipath"], true);
        assert!(info["target_portals"].is_array(), "{info:?}");
    }
    // The data that the agent stores for a rebuild follows.
    let before = until("the agent is told", async || {
        let now = stamp();
        if now == first { Err(format!("{now:?}")) } else { Ok(now) }
    })
    .await;
    // The control: the same words change nothing, not even at the agent.
    put(&rig, id, words).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(stamp(), before);
    let shown = rig.service.attachment(&admin(), id).await.unwrap();
    assert_eq!(shown.connector.unwrap()["multipath"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_given_again_is_refused_where_it_cannot_be_applied() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let asked = NewAttachment { mode: Some(Mode::ReadOnly), ..reserve(volume) };
    let made = rig.service.create_attachment(&admin(), asked, LONG).await.unwrap();
    put(&rig, made.id, json!({})).await.unwrap();
    is_conflict(&put(&rig, made.id, json!({ "mode": "rw" })).await, "with mode ro");
    is_conflict(&put(&rig, made.id, json!({ "host": "elsewhere" })).await, "connected already");
    is_conflict(&put(&rig, made.id, json!({ "storage_protocol": "FC" })).await, "asks for FC");
    assert_eq!(told(&rig, volume), [v1::Mode::ReadOnly]);
    let shown = rig.service.attachment(&admin(), made.id).await.unwrap();
    assert_eq!((shown.mode, shown.connector), (Mode::ReadOnly, Some(connector(1))));
    rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
    // The volume's flag and the type's rule apply to a mode from a connector, too.
    let id = connected(&rig, volume, json!({ "mode": "ro" })).await;
    rig.write("UPDATE volumes SET readonly = 1");
    let refused = put(&rig, id, json!({ "mode": "rw" })).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Invalid(text)) if text.contains("read only")), "{refused:?}");
    assert_eq!(told(&rig, volume), [v1::Mode::ReadOnly]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mode_that_an_operator_set_is_not_undone_by_a_connector() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    // Before the attachment is connected, and after.
    let made = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    rig.service.set_mode(&admin(), made.id, Mode::ReadOnly, LONG).await.unwrap();
    let seen = put(&rig, made.id, json!({ "mode": "rw" })).await.unwrap();
    assert_eq!((seen.mode, &seen.connection_info.unwrap()["access_mode"]), (Mode::ReadOnly, &"ro".into()));
    assert_eq!(told(&rig, volume), [v1::Mode::ReadOnly]);
    put(&rig, made.id, json!({})).await.unwrap();
    is_conflict(&put(&rig, made.id, json!({ "mode": "rw" })).await, "with mode ro");
    assert_eq!(told(&rig, volume), [v1::Mode::ReadOnly]);
}

fn attach(words: &Value) -> AttachAction {
    let text = |key: &str| words[key].as_str().map(str::to_owned);
    AttachAction::Attach {
        instance: words["server"].as_u64().map(|server| Uuid::from_u128(server.into())),
        host: text("host"),
        mountpoint: text("mountpoint").unwrap_or_else(|| "/dev/vdb".to_owned()),
        mode: text("mode").map(|mode| mode.parse().unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn os_attach_given_again_is_applied_or_refused() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let act = async |action| rig.service.attach_action(&admin(), volume, action, LONG).await;
    act(AttachAction::InitializeConnection { connector: connector(1) }).await.unwrap();
    act(attach(&json!({ "server": 7 }))).await.unwrap();
    act(attach(&json!({ "server": 7, "mode": "ro", "mountpoint": "/dev/vdc" }))).await.unwrap();
    let seen = rig.service.volume(&admin(), volume).await.unwrap().attachments.remove(0);
    assert_eq!((seen.mode, seen.mountpoint.as_deref()), (Mode::ReadOnly, Some("/dev/vdc")));
    assert_eq!(told(&rig, volume), [v1::Mode::ReadOnly], "in force when it is answered");
    let elsewhere = act(attach(&json!({ "server": 7, "host": "elsewhere" }))).await.map_err(in_words);
    assert!(
        matches!(&elsewhere, Err(Refusal::Invalid(text)) if text.contains("on host node1")),
        "{elsewhere:?}"
    );
    // A call without a mode leaves the mode alone, and the same words get the same answer.
    act(attach(&json!({ "server": 7, "mountpoint": "/dev/vdc" }))).await.unwrap();
    let again = rig.service.volume(&admin(), volume).await.unwrap().attachments.remove(0);
    assert_eq!((again.mode, again.mountpoint.as_deref()), (Mode::ReadOnly, Some("/dev/vdc")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_opened_again_applies_its_connector() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let open = async |words| {
        let action = AttachAction::InitializeConnection { connector: saying(&words) };
        rig.service.attach_action(&admin(), volume, action, LONG).await
    };
    let first = open(json!({})).await.unwrap().unwrap();
    let again = open(json!({ "mode": "ro", "multipath": true })).await.unwrap().unwrap();
    assert_eq!((&first["access_mode"], &again["access_mode"]), (&"rw".into(), &"ro".into()));
    assert!(again["target_portals"].is_array(), "{again:?}");
    assert_eq!(told(&rig, volume), [v1::Mode::ReadOnly], "in force when it is answered");
    let elsewhere = open(json!({ "host": "elsewhere" })).await.map_err(in_words);
    assert!(
        matches!(&elsewhere, Err(Refusal::Invalid(text)) if text.contains("connected already")),
        "{elsewhere:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_attachment_asked_for_again_otherwise_is_refused() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let of = |mode| NewAttachment { id: Some(AttachmentId::from_u128(5)), ..native(volume, "host1", mode) };
    rig.service.create_attachment(&admin(), of(Mode::ReadOnly), LONG).await.unwrap();
    rig.service.create_attachment(&admin(), of(Mode::ReadOnly), LONG).await.unwrap();
    let unsaid = NewAttachment { mode: None, ..of(Mode::ReadOnly) };
    rig.service.create_attachment(&admin(), unsaid, LONG).await.unwrap();
    let other = rig.service.create_attachment(&admin(), of(Mode::ReadWrite), LONG).await;
    is_conflict(&other, "with mode ro");
    rig.until_attached(AttachmentId::from_u128(5)).await;
    assert_eq!(told(&rig, volume), [v1::Mode::ReadOnly]);
}
