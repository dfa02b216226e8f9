//! Isolated volumes: who may isolate one, whose hosts would get errors, and the calls that are
//! refused until it is reconnected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_controller::domain::{IsolationChange, VolumeAction, VolumeIsolation};
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};

const CUT: IsolationChange = IsolationChange::Isolate { force: false };
const FORCED: IsolationChange = IsolationChange::Isolate { force: true };

async fn cut(rig: &Rig, id: VolumeId) -> Option<VolumeIsolation> {
    rig.service.volume_state(&admin(), id).await.unwrap().cut
}

async fn until_cut(rig: &Rig, id: VolumeId, want: Option<bool>) {
    until("the cut", async || match cut(rig, id).await {
        seen if seen.map(|cut| cut.in_force) == want => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// The isolation in the volume's spec at the storage agent.
fn told(rig: &Rig, id: VolumeId) -> i64 {
    rig.storage.state().volumes[&id.to_string()].spec.as_ref().unwrap().cut_us
}

fn conflict<T: std::fmt::Debug>(refused: Result<T, Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Conflict(text)) if text.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_pending_until_its_agent_shows_it_so() {
    let rig = Rig::quiet(1);
    rig.up().await;
    let id = rig.volume(false).await;
    assert_eq!(cut(&rig, id).await, None);
    rig.storage.state().knobs.reverts.hold = true;
    rig.service.set_isolation(&admin(), id, CUT).await.unwrap();
    until_cut(&rig, id, Some(false)).await;
    until("the spec", async || if told(&rig, id) > 0 { Ok(()) } else { Err("none".to_owned()) }).await;
    let since = cut(&rig, id).await.unwrap().since.unwrap();
    rig.storage.state().knobs.reverts.hold = false;
    rig.storage.publish(&id.to_string());
    until_cut(&rig, id, Some(true)).await;
    // A repeated order is the same order.
    rig.service.set_isolation(&admin(), id, FORCED).await.unwrap();
    assert_eq!(cut(&rig, id).await.unwrap().since, Some(since));
    rig.service.set_isolation(&admin(), id, IsolationChange::End).await.unwrap();
    until_cut(&rig, id, None).await;
    assert_eq!(told(&rig, id), 0);
    rig.service.set_isolation(&admin(), id, IsolationChange::End).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_hosts_would_notice_is_said_first() {
    let rig = Rig::quiet(1);
    rig.up().await;
    let id = rig.volume(false).await;
    let attachment = rig.attach(id, "host1", Mode::ReadWrite).await.attachment.id;
    conflict(
        rig.service.set_isolation(&admin(), id, CUT).await,
        &format!("attachment {attachment} on host host1"),
    );
    assert_eq!((told(&rig, id), cut(&rig, id).await), (0, None));
    rig.service.set_isolation(&admin(), id, FORCED).await.unwrap();
    until_cut(&rig, id, Some(true)).await;
    // No new attachment is made; existing ones may be detached.
    let again = rig.service.create_attachment(&admin(), native(id, "host1", Mode::ReadWrite), LONG).await;
    conflict(again, "is cut off from its disk");
    rig.service.delete_attachment(&admin(), attachment, false, LONG).await.unwrap();
    assert!(cut(&rig, id).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_is_done_to_it_until_it_is_given_back() {
    let rig = Rig::quiet(1);
    rig.up().await;
    let id = rig.volume(false).await;
    rig.service.set_isolation(&admin(), id, CUT).await.unwrap();
    until_cut(&rig, id, Some(true)).await;
    let words = format!("mooring volume uncut {id}");
    conflict(rig.service.delete_volume(&admin(), id).await, &words);
    let extend = VolumeAction::Extend { size_gib: 9, online: false };
    conflict(rig.service.volume_action(&admin(), id, extend).await, &words);
    conflict(rig.service.volume_action(&admin(), id, VolumeAction::ForceDelete).await, &words);
    rig.service.set_isolation(&admin(), id, IsolationChange::End).await.unwrap();
    rig.service.delete_volume(&admin(), id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operator_cuts() {
    let rig = Rig::quiet(1);
    rig.up().await;
    let id = rig.volume(false).await;
    let refused = rig.service.set_isolation(&member("p"), id, CUT).await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(text)) if text.contains("mooring:cut")), "{refused:?}");
    assert_eq!((told(&rig, id), cut(&rig, id).await), (0, None));
}
