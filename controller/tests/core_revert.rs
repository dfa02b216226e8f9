//! Reverts of volumes to a snapshot: the state that is shown meanwhile, the spec at the storage
//! agent, and the end of a revert that fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_api::v1;
use mooring_controller::domain::{VolumeAction, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};
use tonic::Code;

/// A storage agent with a thin pool, a thin volume, and snapshots of it, the oldest first.
pub(crate) async fn rig(snapshots: usize) -> (Rig, VolumeId, Vec<VolumeId>) {
    Rig::thin(snapshots).await
}

pub(crate) async fn until_snapshot(rig: &Rig, id: VolumeId, want: VolumeStatus) {
    rig.until_snapshot(id, want).await;
}

async fn revert(rig: &Rig, id: VolumeId, to: VolumeId) -> Result<(), Refusal> {
    rig.service.volume_action(&admin(), id, VolumeAction::Revert(Some(to))).await
}

/// The revert in the volume's spec at the storage agent.
fn told(rig: &Rig, id: VolumeId) -> Option<v1::Revert> {
    rig.storage.state().volumes[&id.to_string()].spec.as_ref().unwrap().revert.clone()
}

fn conflict(refused: Result<(), Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Conflict(text)) if text.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

fn invalid(refused: Result<(), Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Invalid(text)) if text.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_reverting_until_its_agent_says_that_it_is_done() {
    let (rig, id, snapshots) = rig(2).await;
    rig.storage.state().knobs.reverts.hold = true;
    revert(&rig, id, snapshots[1]).await.unwrap();
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().status, VolumeStatus::Reverting);
    until_snapshot(&rig, snapshots[1], VolumeStatus::Restoring).await;
    until("the agent's spec", async || told(&rig, id).map(drop).ok_or_else(|| "none".to_owned())).await;
    assert_eq!(told(&rig, id).unwrap().snapshot_id, snapshots[1].to_string());
    // Meanwhile the volume is not attached, and no snapshot is deleted.
    let refused = rig
        .service
        .create_attachment(&admin(), native(id, "host1", Mode::ReadWrite), LONG)
        .await
        .map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Invalid(text)) if text.contains("reverting")), "{refused:?}");
    let deleted = rig.service.delete_snapshot(&admin(), snapshots[1]).await.map_err(in_words);
    assert!(matches!(&deleted, Err(Refusal::Invalid(_))), "{deleted:?}");
    conflict(revert(&rig, id, snapshots[1]).await, "current status is: reverting");
    rig.storage.state().knobs.reverts.hold = false;
    rig.until_volume(id, VolumeStatus::Available).await;
    until_snapshot(&rig, snapshots[1], VolumeStatus::Available).await;
    // The spec loses the revert, and a host attaches the volume as ever.
    until("the end of it in the spec", async || {
        told(&rig, id).map_or(Ok(()), |revert| Err(format!("{revert:?}")))
    })
    .await;
    rig.attach(id, "host1", Mode::ReadWrite).await;
    assert!(rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_with_what_has_to_go() {
    let (rig, id, snapshots) = rig(2).await;
    let none = rig.service.volume_action(&admin(), id, VolumeAction::Revert(None)).await;
    invalid(none, &format!("Specified snapshot None is None or not the latest one of volume {id}."));
    invalid(revert(&rig, id, snapshots[0]).await, "not the latest one of volume");
    let other = rig.volume(false).await;
    invalid(revert(&rig, other, snapshots[1]).await, &format!("Volume {other} has no snapshots."));
    let attachment = rig.attach(id, "host1", Mode::ReadOnly).await.attachment.id;
    conflict(revert(&rig, id, snapshots[1]).await, &format!("detach attachment {attachment} on host host1"));
    assert_eq!(told(&rig, id), None);
    let stranger =
        rig.service.volume_action(&member("q"), id, VolumeAction::Revert(Some(snapshots[1]))).await;
    assert!(matches!(stranger, Err(Refusal::NotFound { .. })), "{stranger:?}");
    rig.service.delete_attachment(&admin(), attachment, false, LONG).await.unwrap();
    revert(&rig, id, snapshots[1]).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
}

/// Asserts that the volume is in error with its old data, that its spec has no revert, and that an
/// operator can reset it.
async fn failed(rig: &Rig, id: VolumeId, snapshot: VolumeId, why: &str) {
    let volume = rig.until_volume(id, VolumeStatus::Error).await;
    assert!(volume.fault.as_ref().is_some_and(|fault| fault.contains(why)), "{volume:?}");
    until_snapshot(rig, snapshot, VolumeStatus::Available).await;
    let messages = rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items;
    assert!(messages[0].text.starts_with("revert volume to snapshot: ") && messages[0].text.contains(why));
    until("the end of it in the spec", async || {
        told(rig, id).map_or(Ok(()), |revert| Err(format!("{revert:?}")))
    })
    .await;
    let reset = VolumeAction::ResetStatus { status: Some(VolumeStatus::Available), attached: None };
    rig.service.volume_action(&admin(), id, reset).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_its_agent_cannot_do_is_withdrawn() {
    let (rig, id, snapshots) = rig(1).await;
    let problem = v1::Problem {
        object: "thin pool vg0/mooring-pool".to_owned(),
        text: "it is full".to_owned(),
        cure: v1::Cure::Operator.into(),
    };
    rig.storage.state().knobs.reverts.problem = Some(problem);
    revert(&rig, id, snapshots[0]).await.unwrap();
    failed(&rig, id, snapshots[0], "it is full").await;
    rig.storage.state().knobs.reverts.problem = None;
    // The control: the same revert succeeds now.
    revert(&rig, id, snapshots[0]).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_cure_itself_is_not_waited_for_for_ever() {
    let (rig, id, snapshots) = rig(1).await;
    let problem = v1::Problem {
        object: "volume".to_owned(),
        text: "its LV is in use".to_owned(),
        cure: v1::Cure::Retry.into(),
    };
    rig.storage.state().knobs.reverts.problem = Some(problem);
    revert(&rig, id, snapshots[0]).await.unwrap();
    until("the agent is asked again", async || {
        let calls = rig.storage.state().calls.iter().filter(|call| call.contains(&id.to_string())).count();
        if calls > 4 { Ok(()) } else { Err(format!("{calls} calls")) }
    })
    .await;
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().status, VolumeStatus::Reverting);
    set_clock(-7_200);
    put_forward(61);
    failed(&rig, id, snapshots[0], "in use").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_its_agent_refuses_is_withdrawn() {
    let (rig, id, snapshots) = rig(1).await;
    let refused = cured(Code::FailedPrecondition, "the snapshot is not there", "operator");
    let before = rig.storage.state().calls.len();
    rig.storage.state().knobs.refuse_volume = Some(refused);
    revert(&rig, id, snapshots[0]).await.unwrap();
    until("it is refused", async || {
        let calls = rig.storage.state().calls.len() - before;
        if calls > 1 { Ok(()) } else { Err(format!("{calls} calls")) }
    })
    .await;
    rig.storage.state().knobs.refuse_volume = None;
    failed(&rig, id, snapshots[0], "the snapshot is not there").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_knows_nothing_of_it_is_not_believed() {
    let (rig, id, snapshots) = rig(1).await;
    rig.storage.state().knobs.reverts.ignores = true;
    revert(&rig, id, snapshots[0]).await.unwrap();
    failed(&rig, id, snapshots[0], "its release cannot revert volumes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_done_while_it_was_withdrawn_is_done() {
    let (rig, id, snapshots) = rig(1).await;
    {
        let mut state = rig.storage.state();
        state.knobs.reverts.problem = Some(v1::Problem {
            object: "it".to_owned(),
            text: "waits".to_owned(),
            cure: v1::Cure::Operator.into(),
        });
        state.knobs.reverts.late = true;
    }
    revert(&rig, id, snapshots[0]).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
    assert!(rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_killed_goes_on() {
    let (mut rig, id, snapshots) = rig(1).await;
    rig.storage.state().knobs.reverts.hold = true;
    revert(&rig, id, snapshots[0]).await.unwrap();
    rig.restart().await;
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().status, VolumeStatus::Reverting);
    rig.storage.state().knobs.reverts.hold = false;
    rig.until_volume(id, VolumeStatus::Available).await;
    until_snapshot(&rig, snapshots[0], VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attachment_that_holds_nothing_holds_up_no_revert() {
    let (rig, id, snapshots) = rig(1).await;
    let failed = rig.failed(id).await;
    rig.until_nothing_is_held(failed).await;
    rig.until_volume(id, VolumeStatus::Available).await;
    revert(&rig, id, snapshots[0]).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
    rig.service.attachment(&admin(), failed).await.unwrap();
}
