//! The deletion of a volume together with its snapshots: the volume goes last.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_controller::domain::{NewSnapshot, VolumeAction, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::VolumeId;
use tonic::Code;

/// The places of the agent's calls that delete this volume or snapshot.
fn deletions(rig: &Rig, id: VolumeId) -> Vec<usize> {
    let word = format!("delete {id} ");
    let state = rig.storage.state();
    let calls = state.calls.iter().enumerate();
    calls.filter(|(_, call)| call.starts_with(&word)).map(|(at, _)| at).collect()
}

/// Returns `true` if the agent has the volume, and was sent no tombstone of its export.
fn keeps(rig: &Rig, id: VolumeId) -> bool {
    let (key, state) = (id.to_string(), rig.storage.state());
    let volume = state.volumes.get(&key).is_some_and(|volume| volume.spec.is_some());
    volume && state.exports.get(&key).is_none_or(|export| export.spec.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_stays_while_one_of_its_snapshots_cannot_go() {
    let (rig, id, snapshots) = Rig::thin(2).await;
    let refused = cured(Code::FailedPrecondition, "its LV is in use", "operator");
    rig.storage.state().knobs.refuse_delete = Some((snapshots[0], refused));
    rig.service.delete_volume_with_snapshots(&admin(), id).await.unwrap();
    rig.until_snapshot(snapshots[0], VolumeStatus::ErrorDeleting).await;
    let volume = rig.until_volume(id, VolumeStatus::ErrorDeleting).await;
    let fault = volume.fault.unwrap();
    assert!(fault.contains(&snapshots[0].to_string()) && fault.contains("its LV is in use"), "{fault}");
    rig.until_deleted(snapshots[1]).await;
    rig.until_quiet().await;
    assert_eq!(rig.service.snapshot(&admin(), snapshots[0]).await.unwrap().volume, id);
    assert!(keeps(&rig, id) && deletions(&rig, id).is_empty(), "{:?}", rig.storage.state().calls);
    // Without its snapshot it is not deleted either; asked again, both go in their order.
    let alone = rig.service.delete_volume(&admin(), id).await.map_err(in_words);
    assert!(matches!(&alone, Err(Refusal::Invalid(text)) if text.contains("have snapshots")), "{alone:?}");
    rig.storage.state().knobs.refuse_delete = None;
    rig.service.delete_volume_with_snapshots(&admin(), id).await.unwrap();
    rig.until_deleted(id).await;
    rig.until_deleted(snapshots[0]).await;
    let (of_snapshot, of_volume) = (deletions(&rig, snapshots[0]), deletions(&rig, id));
    assert!(of_snapshot.last() < of_volume.first(), "{:?}", rig.storage.state().calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cascade_names_the_snapshot_that_refuses_it() {
    let (rig, id, snapshots) = Rig::thin(2).await;
    let stuck = snapshots[1];
    let word = "error_unmanaging";
    rig.write(&format!("UPDATE volumes SET operation = '{word}', status = '{word}' WHERE id = '{stuck}'"));
    for refused in [
        rig.service.delete_volume_with_snapshots(&admin(), id).await,
        rig.service.force_delete_volume(&admin(), id, true).await,
    ] {
        let refused = refused.map_err(in_words);
        let Err(Refusal::Invalid(text)) = &refused else { panic!("{refused:?}") };
        assert!(text.contains("Snapshot status must be available or error or error_deleting."), "{text}");
        assert!(text.contains(&format!("Snapshot {stuck} is {word}.")), "{text}");
    }
    // The refusal has begun nothing.
    let status = rig.service.snapshot(&admin(), snapshots[0]).await.unwrap().status;
    assert_eq!(status, VolumeStatus::Available);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_cascade_leaves_what_a_revert_reads() {
    let (rig, id, snapshots) = Rig::thin(2).await;
    rig.storage.state().knobs.reverts.hold = true;
    let revert = VolumeAction::Revert(Some(snapshots[1]));
    rig.service.volume_action(&admin(), id, revert).await.unwrap();
    rig.until_snapshot(snapshots[1], VolumeStatus::Restoring).await;
    let refused = rig.service.force_delete_volume(&admin(), id, true).await.map_err(in_words);
    let Err(Refusal::Invalid(text)) = &refused else { panic!("{refused:?}") };
    assert!(text.contains(&format!("Snapshot {} is restoring.", snapshots[1])), "{text}");
    // The refusal has begun nothing, and the revert ends as if nobody had asked.
    let status = rig.service.snapshot(&admin(), snapshots[0]).await.unwrap().status;
    assert_eq!(status, VolumeStatus::Available);
    rig.storage.state().knobs.reverts.hold = false;
    rig.storage.publish(&id.to_string());
    rig.until_volume(id, VolumeStatus::Available).await;
    rig.service.force_delete_volume(&admin(), id, true).await.unwrap();
    rig.until_deleted(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_forced_cascade_tries_a_failed_snapshot_again() {
    let (rig, id, snapshots) = Rig::thin(1).await;
    let refused = cured(Code::FailedPrecondition, "its LV is in use", "operator");
    rig.storage.state().knobs.refuse_delete = Some((snapshots[0], refused));
    rig.service.force_delete_volume(&admin(), id, true).await.unwrap();
    rig.until_snapshot(snapshots[0], VolumeStatus::ErrorDeleting).await;
    rig.until_volume(id, VolumeStatus::ErrorDeleting).await;
    rig.storage.state().knobs.refuse_delete = None;
    rig.service.force_delete_volume(&admin(), id, true).await.unwrap();
    rig.until_deleted(snapshots[0]).await;
    rig.until_deleted(id).await;
    assert!(deletions(&rig, snapshots[0]).last() < deletions(&rig, id).first());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_waits_for_its_snapshots_through_a_restart() {
    let (mut rig, id, snapshots) = Rig::thin(2).await;
    let busy = cured(Code::Unavailable, "LVM does not answer", "retry");
    rig.storage.state().knobs.refuse_delete = Some((snapshots[1], busy));
    rig.service.delete_volume_with_snapshots(&admin(), id).await.unwrap();
    rig.until_deleted(snapshots[0]).await;
    rig.restart().await;
    let before = deletions(&rig, snapshots[1]).len();
    until("the snapshot is tried again", async || match deletions(&rig, snapshots[1]).len() {
        now if now > before => Ok(()),
        now => Err(format!("{now} tries")),
    })
    .await;
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().status, VolumeStatus::Deleting);
    assert!(keeps(&rig, id) && deletions(&rig, id).is_empty(), "{:?}", rig.storage.state().calls);
    rig.storage.state().knobs.refuse_delete = None;
    rig.until_deleted(id).await;
    assert!(deletions(&rig, snapshots[1]).last() < deletions(&rig, id).first());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cascade_that_an_earlier_release_began_is_asked_for_again() {
    let (rig, id, snapshots) = Rig::thin(1).await;
    let refused = cured(Code::FailedPrecondition, "its LV is in use", "operator");
    rig.storage.state().knobs.refuse_delete = Some((snapshots[0], refused));
    rig.service.delete_volume_with_snapshots(&admin(), id).await.unwrap();
    rig.until_volume(id, VolumeStatus::ErrorDeleting).await;
    // An earlier release does not tell the volume that its snapshot stays.
    rig.write(&format!("UPDATE volumes SET operation = 'deleting', status = 'deleting' WHERE id = '{id}'"));
    rig.storage.state().knobs.refuse_delete = None;
    rig.service.delete_volume_with_snapshots(&admin(), id).await.unwrap();
    rig.until_deleted(snapshots[0]).await;
    rig.until_deleted(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_no_agent_has_holds_up_nothing() {
    let (rig, id, _) = Rig::thin(0).await;
    let taken = cured(Code::AlreadyExists, "volume V would have NAA N, which volume W has", "fix_spec");
    rig.storage.state().knobs.refuse_volume = Some(taken);
    let mut nowhere = Vec::new();
    for _ in 0..2 {
        let new =
            NewSnapshot { volume: id, name: None, description: None, metadata: [].into(), in_use: false };
        let snapshot = rig.service.create_snapshot(&admin(), new).await.unwrap().id;
        rig.until_snapshot(snapshot, VolumeStatus::Error).await;
        nowhere.push(snapshot);
    }
    rig.storage.state().knobs.refuse_volume = None;
    rig.service.delete_snapshot(&admin(), nowhere[0]).await.unwrap();
    rig.until_deleted(nowhere[0]).await;
    rig.service.delete_volume_with_snapshots(&admin(), id).await.unwrap();
    rig.until_deleted(nowhere[1]).await;
    rig.until_deleted(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_a_snapshot_held_up_follows_it_by_itself() {
    let (rig, id, snapshots) = Rig::thin(1).await;
    let refused = cured(Code::FailedPrecondition, "its LV is in use", "operator");
    rig.storage.state().knobs.refuse_delete = Some((snapshots[0], refused));
    rig.service.delete_volume_with_snapshots(&admin(), id).await.unwrap();
    rig.until_snapshot(snapshots[0], VolumeStatus::ErrorDeleting).await;
    let fault = rig.until_volume(id, VolumeStatus::ErrorDeleting).await.fault.unwrap();
    assert!(fault.contains("delete that snapshot: the volume follows by itself"), "{fault}");
    rig.storage.state().knobs.refuse_delete = None;
    rig.service.delete_snapshot(&admin(), snapshots[0]).await.unwrap();
    rig.until_deleted(snapshots[0]).await;
    rig.until_deleted(id).await;
}
