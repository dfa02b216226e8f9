//! Operators' actions on snapshots: what a status may be set to, what goes although its storage
//! agent is down, and what stays when a snapshot is unmanaged.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::core_revert::{rig, until_snapshot};
use crate::support::*;
use mooring_controller::domain::{NewSnapshot, SnapshotAction, VolumeAction, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::VolumeId;
use tonic::Code;

async fn act(rig: &Rig, id: VolumeId, action: SnapshotAction) -> Result<(), Refusal> {
    rig.service.snapshot_action(&admin(), id, action).await
}

async fn reset(rig: &Rig, id: VolumeId, status: VolumeStatus) -> Result<(), Refusal> {
    act(rig, id, SnapshotAction::ResetStatus(status)).await
}

async fn update(rig: &Rig, id: VolumeId, status: VolumeStatus) -> Result<(), Refusal> {
    act(rig, id, SnapshotAction::UpdateStatus(status)).await
}

async fn take(rig: &Rig, volume: VolumeId) -> VolumeId {
    let new = NewSnapshot { volume, name: None, description: None, metadata: [].into(), in_use: false };
    rig.service.create_snapshot(&admin(), new).await.unwrap().id
}

async fn status(rig: &Rig, id: VolumeId) -> VolumeStatus {
    rig.service.snapshot(&admin(), id).await.unwrap().status
}

async fn until_gone(rig: &Rig, id: VolumeId) {
    until("the end of the snapshot", async || match rig.service.snapshot(&admin(), id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

fn invalid(refused: Result<(), Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Invalid(text)) if text.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

/// The words of the puts that an agent got for a volume or snapshot: `volume`, `release`, `delete`.
fn puts(rig: &Rig, id: VolumeId) -> Vec<String> {
    let id = id.to_string();
    let calls = rig.storage.state().calls.clone();
    let of = |call: &String| {
        let mut words = call.split(' ');
        let what = words.next()?.to_owned();
        (words.next()? == id).then_some(what)
    };
    calls.iter().filter_map(of).collect()
}

async fn storage_is_down(rig: &Rig) {
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
}

async fn storage_is_up(rig: &Rig) {
    rig.storage.set_down(false);
    rig.until_host("storage", |host| host.up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_was_never_sent_goes_at_once() {
    let (rig, volume, _) = rig(0).await;
    storage_is_down(&rig).await;
    let (forced, given_up, kept) =
        (take(&rig, volume).await, take(&rig, volume).await, take(&rig, volume).await);
    invalid(rig.service.delete_snapshot(&admin(), forced).await, "status must be available or error");
    act(&rig, forced, SnapshotAction::ForceDelete).await.unwrap();
    until_gone(&rig, forced).await;
    // Set to error it is deleted as any other, and goes at once, too.
    reset(&rig, given_up, VolumeStatus::Error).await.unwrap();
    let seen = rig.service.snapshot(&admin(), given_up).await.unwrap();
    assert_eq!(seen.status, VolumeStatus::Error);
    assert!(seen.fault.as_deref().is_some_and(|why| why.contains("is not made")), "{seen:?}");
    rig.service.delete_snapshot(&admin(), given_up).await.unwrap();
    until_gone(&rig, given_up).await;
    // The control: the third is made when its agent is back, and that agent never hears of the
    // others.
    storage_is_up(&rig).await;
    until_snapshot(&rig, kept, VolumeStatus::Available).await;
    assert_eq!((puts(&rig, forced), puts(&rig, given_up)), (Vec::new(), Vec::new()));
    rig.service.delete_snapshot(&admin(), kept).await.unwrap();
    until_gone(&rig, kept).await;
    rig.service.delete_volume(&admin(), volume).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_may_be_at_its_agent_waits_for_the_agent() {
    let (rig, volume, _) = rig(0).await;
    rig.storage.state().knobs.pending = true;
    let (doomed, comes) = (take(&rig, volume).await, take(&rig, volume).await);
    for id in [doomed, comes] {
        until(
            "the agent's spec",
            async || {
                if puts(&rig, id).is_empty() { Err("none".to_owned()) } else { Ok(()) }
            },
        )
        .await;
    }
    storage_is_down(&rig).await;
    act(&rig, doomed, SnapshotAction::ForceDelete).await.unwrap();
    act(&rig, doomed, SnapshotAction::ForceDelete).await.unwrap();
    reset(&rig, comes, VolumeStatus::Error).await.unwrap();
    assert_eq!(
        (status(&rig, doomed).await, status(&rig, comes).await),
        (VolumeStatus::Deleting, VolumeStatus::Error)
    );
    // The agent decides what has become of each: one goes, the other is there after all.
    rig.storage.state().knobs.pending = false;
    storage_is_up(&rig).await;
    until_gone(&rig, doomed).await;
    until_snapshot(&rig, comes, VolumeStatus::Available).await;
    assert_eq!(rig.service.snapshot(&admin(), comes).await.unwrap().fault, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_set_where_no_work_says_otherwise() {
    let (rig, id, snapshots) = rig(1).await;
    let one = snapshots[0];
    for (said, ok) in [
        (VolumeStatus::Available, true),
        (VolumeStatus::Error, true),
        (VolumeStatus::Error, true),
        (VolumeStatus::Creating, false),
        (VolumeStatus::Deleting, false),
        (VolumeStatus::ErrorDeleting, false),
        (VolumeStatus::Available, true),
        (VolumeStatus::Unmanaging, false),
    ] {
        let before = status(&rig, one).await;
        let answer = reset(&rig, one, said).await;
        assert_eq!(answer.is_ok(), ok, "{said}: {answer:?}");
        assert_eq!(status(&rig, one).await, if ok { said } else { before }, "{said}");
    }
    // One that its agent has nothing of keeps its status until the agent has spoken.
    let refused = cured(Code::ResourceExhausted, "the thin pool is full", "retry");
    rig.storage.state().knobs.refuse_volume = Some(refused);
    let comes = take(&rig, id).await;
    invalid(reset(&rig, comes, VolumeStatus::Available).await, "because of what its storage agent does");
    // The map of changes of the Block Storage API, and what only the agent says.
    update(&rig, comes, VolumeStatus::Creating).await.unwrap();
    invalid(update(&rig, comes, VolumeStatus::Available).await, "only its storage agent says");
    invalid(
        update(&rig, comes, VolumeStatus::Deleting).await,
        "Provided snapshot status deleting not allowed",
    );
    invalid(update(&rig, one, VolumeStatus::Error).await, "Snapshot status available not allowed");
    update(&rig, comes, VolumeStatus::Error).await.unwrap();
    assert_eq!(status(&rig, comes).await, VolumeStatus::Error);
    rig.storage.state().knobs.refuse_volume = None;
    rig.storage.publish(&id.to_string());
    // A volume that is made from a snapshot, or reverted to it, holds the snapshot.
    rig.storage.state().knobs.reverts.hold = true;
    act(&rig, comes, SnapshotAction::ForceDelete).await.unwrap();
    until_gone(&rig, comes).await;
    let to = mooring_controller::domain::VolumeAction::Revert(Some(one));
    rig.service.volume_action(&admin(), id, to).await.unwrap();
    for action in [SnapshotAction::ForceDelete, SnapshotAction::Unmanage] {
        invalid(act(&rig, one, action).await, "is being reverted to it");
    }
    invalid(reset(&rig, one, VolumeStatus::Available).await, "because of what its storage agent does");
    rig.storage.state().knobs.reverts.hold = false;
    rig.until_volume(id, VolumeStatus::Available).await;
    until_snapshot(&rig, one, VolumeStatus::Available).await;
    // Members do none of it but the update of drivers, by the policies' defaults.
    for action in [
        SnapshotAction::ForceDelete,
        SnapshotAction::Unmanage,
        SnapshotAction::ResetStatus(VolumeStatus::Error),
    ] {
        let refused = rig.service.snapshot_action(&member("p"), one, action).await;
        assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{action:?}: {refused:?}");
        let hidden = rig.service.snapshot_action(&member("q"), one, action).await;
        assert!(matches!(hidden, Err(Refusal::NotFound { .. })), "{action:?}: {hidden:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_unmanaged_is_let_go_and_not_deleted() {
    let (rig, volume, snapshots) = rig(2).await;
    let (first, second) = (snapshots[0], snapshots[1]);
    reset(&rig, first, VolumeStatus::Error).await.unwrap();
    invalid(act(&rig, first, SnapshotAction::Unmanage).await, "current status is: error");
    reset(&rig, first, VolumeStatus::Available).await.unwrap();
    act(&rig, first, SnapshotAction::Unmanage).await.unwrap();
    until_gone(&rig, first).await;
    assert_eq!(puts(&rig, first).last().map(String::as_str), Some("release"));
    // An agent of an older release refuses, and the snapshot is as it was: it can be deleted still.
    rig.storage.state().knobs.keeps_released = true;
    act(&rig, second, SnapshotAction::Unmanage).await.unwrap();
    until_snapshot(&rig, second, VolumeStatus::ErrorUnmanaging).await;
    act(&rig, second, SnapshotAction::ForceDelete).await.unwrap();
    until_gone(&rig, second).await;
    assert!(!puts(&rig, first).contains(&"delete".to_owned()), "{:?}", puts(&rig, first));
    assert_eq!(puts(&rig, second).last().map(String::as_str), Some("delete"));
    // Neither holds the volume up.
    rig.service.delete_volume(&admin(), volume).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_unmanaged_is_not_deleted_by_force() {
    let (rig, _, snapshots) = rig(2).await;
    let volume = rig.volume(false).await;
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    act(&rig, snapshots[0], SnapshotAction::Unmanage).await.unwrap();
    rig.service.unmanage_volume(&admin(), volume).await.unwrap();
    for refused in [
        act(&rig, snapshots[0], SnapshotAction::ForceDelete).await,
        rig.service.force_delete_volume(&admin(), volume, false).await,
        rig.service.volume_action(&admin(), volume, VolumeAction::ForceDelete).await,
    ] {
        assert!(
            matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("nothing is deleted")),
            "{refused:?}"
        );
    }
    // The control: a deletion that goes on is one, whoever asks again.
    for _ in 0..2 {
        act(&rig, snapshots[1], SnapshotAction::ForceDelete).await.unwrap();
    }
    // What goes is unmanaged, and not destroyed.
    rig.storage.set_down(false);
    until_gone(&rig, snapshots[0]).await;
    assert!(!puts(&rig, snapshots[0]).contains(&"delete".to_owned()), "{:?}", puts(&rig, snapshots[0]));
}
