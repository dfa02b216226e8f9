//! Retypes of volumes with snapshots: a snapshot has the type of its volume.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;

use crate::support::*;
use mooring_controller::domain::{AttachAction, Caller, NewVolume, VolumeStatus, VolumeType};
use mooring_controller::http::in_words;
use mooring_controller::quota::{Key, Limit};
use mooring_controller::rules::retype::MigrationPolicy;
use mooring_controller::service::Refusal;
use mooring_model::{Source, VolumeId};

async fn kind(rig: &Rig, name: &str, multiattach: bool) -> VolumeType {
    let flag = multiattach.then(|| ("multiattach".to_owned(), "<is> True".to_owned()));
    let specs: BTreeMap<_, _> = flag.into_iter().collect();
    rig.service.create_type(&admin(), name, None, true, specs).await.unwrap()
}

async fn retype(rig: &Rig, id: VolumeId, to: &str) -> Result<(), Refusal> {
    rig.service.retype_volume(&admin(), id, to, MigrationPolicy::Never).await
}

/// A thin volume of the type `old` with two snapshots.
async fn made(rig: &Rig) -> (VolumeId, Vec<VolumeId>) {
    let new = NewVolume { volume_type: Some("old".to_owned()), ..new_volume() };
    let id = rig.service.create_volume(&admin(), new).await.unwrap().id;
    rig.until_volume(id, VolumeStatus::Available).await;
    (id, vec![rig.snapshot(id).await, rig.snapshot(id).await])
}

/// Volumes, snapshots and GiB of a type.
async fn used(rig: &Rig, name: &str) -> [u64; 3] {
    let quotas = rig.service.quotas(&admin(), "p").await.unwrap();
    let of = |key: &Key| quotas.iter().find(|entry| entry.key == *key).unwrap().in_use;
    [
        of(&Key::VolumesOf(name.to_owned())),
        of(&Key::SnapshotsOf(name.to_owned())),
        of(&Key::GigabytesOf(name.to_owned())),
    ]
}

/// Waits until the agent's data for a rebuild has this type.
async fn until_told(rig: &Rig, id: VolumeId, name: &str) {
    until("the type at the agent", async || {
        let state = rig.storage.state();
        let kept = state.volumes.get(&id.to_string()).map(|kept| kept.opaque.clone()).unwrap_or_default();
        let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap_or_default();
        if kept["type"] == name { Ok(()) } else { Err(kept.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retype_takes_the_snapshots_of_a_volume_along() {
    let (mut rig, _, _) = Rig::thin(0).await;
    let (old, new) = (kind(&rig, "old", false).await, kind(&rig, "new", true).await);
    let (id, snapshots) = made(&rig).await;
    assert_eq!((used(&rig, "old").await, used(&rig, "new").await), ([1, 2, 3], [0, 0, 0]));
    retype(&rig, id, "new").await.unwrap();
    assert_eq!((used(&rig, "old").await, used(&rig, "new").await), ([0, 0, 0], [1, 2, 3]));
    let flags = format!("SELECT multiattach || '' FROM volumes WHERE '{id}' IN (id, snapshot_of)");
    assert_eq!(rig.texts(&flags), ["1", "1", "1"]);
    // Nothing has the old type, and what is made from a snapshot has the new one with its flag.
    rig.service.delete_type(&admin(), old.id).await.unwrap();
    let source = Some(Source::Snapshot(snapshots[0]));
    let copy = rig.service.create_volume(&admin(), NewVolume { source, ..new_volume() }).await.unwrap();
    assert_eq!((copy.volume_type.id, copy.multiattach), (new.id, true));
    rig.until_volume(copy.id, VolumeStatus::Available).await;
    for one in snapshots.iter().chain([&id]) {
        until_told(&rig, *one, "new").await;
    }
    rig.rebuild("rebuilt").await.unwrap();
    rig.restart_on("rebuilt", false).await;
    rig.until_host("storage", |host| host.up).await;
    assert_eq!(used(&rig, "new").await, [2, 2, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_shared_volume_has_its_flag() {
    let (rig, _, _) = Rig::thin(0).await;
    for (name, multiattach, flag) in [("old", true, "1"), ("other", false, "0")] {
        kind(&rig, name, multiattach).await;
        let new = NewVolume { volume_type: Some(name.to_owned()), ..new_volume() };
        let id = rig.service.create_volume(&admin(), new).await.unwrap().id;
        rig.until_volume(id, VolumeStatus::Available).await;
        rig.snapshot(id).await;
        let flags = format!("SELECT multiattach || '' FROM volumes WHERE '{id}' IN (id, snapshot_of)");
        assert_eq!(rig.texts(&flags), [flag, flag], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retype_counts_the_snapshots_of_a_volume() {
    let (rig, _, _) = Rig::thin(0).await;
    for name in ["old", "new"] {
        kind(&rig, name, false).await;
    }
    let (id, _) = made(&rig).await;
    for key in [Key::SnapshotsOf("new".to_owned()), Key::GigabytesOf("new".to_owned())] {
        let all_but_one = if matches!(key, Key::SnapshotsOf(_)) { 1 } else { 2 };
        let limit = |most| BTreeMap::from([(key.clone(), most)]);
        rig.service.set_quotas(&admin(), "p", limit(Limit::At(all_but_one))).await.unwrap();
        let refused = retype(&rig, id, "new").await;
        assert!(refused.is_err(), "{key}");
        assert_eq!((used(&rig, "old").await, used(&rig, "new").await), ([1, 2, 3], [0, 0, 0]), "{key}");
        rig.service.set_quotas(&admin(), "p", limit(Limit::Unlimited)).await.unwrap();
    }
    retype(&rig, id, "new").await.unwrap();
    assert_eq!(used(&rig, "new").await, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_retype_names_no_pool_to_a_project() {
    let rig = Rig::new(0).await;
    let specs = BTreeMap::from([("volume_backend_name".to_owned(), "other".to_owned())]);
    rig.service.create_type(&admin(), "elsewhere", None, true, specs).await.unwrap();
    let id = rig.volume(false).await;
    let pool = rig.texts(&format!("SELECT pool FROM volumes WHERE id = '{id}'")).remove(0);
    let told = async |caller: &Caller| {
        let refused = rig.service.retype_volume(caller, id, "elsewhere", MigrationPolicy::Never).await;
        match refused.map_err(in_words) {
            Err(Refusal::Invalid(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    let text = told(&member("p")).await;
    assert!(text.contains("choose another type") && !text.contains(&format!("#{pool}")), "{text}");
    assert!(!text.contains("capabilities"), "{text}");
    // The control: who may list pools reads the name.
    let text = told(&admin()).await;
    assert!(text.contains(&format!("#{pool}")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_retype_names_the_attachment_in_the_way() {
    let rig = Rig::new(0).await;
    kind(&rig, "new", false).await;
    let id = rig.volume(false).await;
    let words = async || match retype(&rig, id, "new").await.map_err(in_words) {
        Err(Refusal::Invalid(text)) => text,
        other => panic!("{other:?}"),
    };
    let held = rig.service.create_attachment(&admin(), reserve(id), LONG).await.unwrap().id;
    let text = words().await;
    assert!(text.contains(&format!("Attachment {held} is in the way")), "{text}");
    rig.service.delete_attachment(&admin(), held, false, LONG).await.unwrap();
    rig.service.attach_action(&admin(), id, AttachAction::Reserve, LONG).await.unwrap();
    let text = words().await;
    assert!(text.contains("1 announced by os-reserve did not come"), "{text}");
    assert!(!text.contains("is in the way"), "{text}");
    // The control: nothing is in the way.
    rig.service.attach_action(&admin(), id, AttachAction::Unreserve, LONG).await.unwrap();
    retype(&rig, id, "new").await.unwrap();
}
