//! Modes that change while the attachment stays: what is told to whom, what is refused, what is waited for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use mooring_controller::domain::{AttachmentStatus, NewAttachment};
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};
use support::*;

/// The modes that the storage agent was told, by initiator.
fn told(rig: &Rig, id: VolumeId) -> Vec<(String, i32)> {
    let state = rig.storage.state();
    let spec = state.exports[&id.to_string()].spec.as_ref().unwrap();
    spec.grants.iter().map(|grant| (grant.initiator.clone(), grant.mode)).collect()
}

fn of(volume: VolumeId, mode: Mode, node: u32) -> NewAttachment {
    NewAttachment { mode: Some(mode), ..client(volume, node) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mode_changes_both_ways_and_others_keep_theirs() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let one = rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 1), LONG).await.unwrap();
    rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 2), LONG).await.unwrap();
    let before = told(&rig, volume);
    for mode in [Mode::ReadOnly, Mode::ReadOnly, Mode::ReadWrite] {
        let live = rig.service.set_mode(&admin(), one.id, mode, LONG).await.unwrap();
        assert_eq!((live.attachment.mode, live.effective_mode), (mode, Some(mode)));
        assert_eq!(live.attachment.status, one.status);
        let now = told(&rig, volume);
        assert_eq!((now.len(), &now[1]), (2, &before[1]));
        assert_eq!(now[0] == before[0], mode == Mode::ReadWrite);
    }
    // What was asked for stays, whatever a connector says later.
    let shown = rig.service.attachment(&admin(), one.id).await.unwrap();
    assert_eq!(shown.mode, Mode::ReadWrite);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nexus_is_as_wide_as_the_widest_of_it() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let one = rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 1), LONG).await.unwrap();
    let two = rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 1), LONG).await.unwrap();
    let live = rig.service.set_mode(&admin(), one.id, Mode::ReadOnly, LONG).await.unwrap();
    assert_eq!((live.attachment.mode, live.effective_mode), (Mode::ReadOnly, Some(Mode::ReadWrite)));
    let live = rig.service.set_mode(&admin(), two.id, Mode::ReadOnly, LONG).await.unwrap();
    assert_eq!(live.effective_mode, Some(Mode::ReadOnly));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_not_be_is_refused_and_changes_nothing() {
    let rig = Rig::new(0).await;
    let volume = rig.strict_volume().await;
    let one = rig.service.create_attachment(&admin(), of(volume, Mode::ReadOnly, 1), LONG).await.unwrap();
    rig.service.create_attachment(&admin(), of(volume, Mode::ReadOnly, 1), LONG).await.unwrap();
    let before = told(&rig, volume);
    let mixed = rig.service.set_mode(&admin(), one.id, Mode::ReadWrite, LONG).await;
    assert!(matches!(&mixed, Err(Refusal::Conflict(text)) if text.contains("does not allow")), "{mixed:?}");
    let other = rig.service.set_mode(&member("q"), one.id, Mode::ReadWrite, LONG).await;
    assert!(matches!(other, Err(Refusal::NotFound { kind: "Attachment", .. })), "{other:?}");
    rig.write("UPDATE volumes SET readonly = 1");
    let flagged = rig.service.set_mode(&admin(), one.id, Mode::ReadWrite, LONG).await;
    assert!(matches!(&flagged, Err(Refusal::Invalid(text)) if text.contains("read only")), "{flagged:?}");
    assert_eq!(told(&rig, volume), before);
    let other = rig.service.create_attachment(&admin(), of(volume, Mode::ReadOnly, 2), LONG).await.unwrap();
    rig.storage.state().knobs.unproven = true;
    rig.force(other.id).await;
    let late = rig.service.set_mode(&admin(), other.id, Mode::ReadOnly, LONG).await;
    assert!(matches!(&late, Err(Refusal::Conflict(text)) if text.contains("detaching")), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_in_force_when_it_is_answered_and_goes_on_by_itself() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let one = rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 1), LONG).await.unwrap();
    rig.storage.state().knobs.pending = true;
    let waits = rig.service.set_mode(&admin(), one.id, Mode::ReadOnly, SHORT).await;
    assert!(matches!(&waits, Err(Refusal::Pending(text)) if text.contains("ask again")), "{waits:?}");
    rig.storage.state().knobs.pending = false;
    rig.storage.publish(&volume.to_string());
    let live = rig.service.set_mode(&admin(), one.id, Mode::ReadOnly, LONG).await.unwrap();
    assert_eq!(live.effective_mode, Some(Mode::ReadOnly));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_only_reserved_comes_with_its_new_mode() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let made = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    let live = rig.service.set_mode(&admin(), made.id, Mode::ReadOnly, LONG).await.unwrap();
    assert_eq!((live.attachment.mode, live.attachment.status), (Mode::ReadOnly, AttachmentStatus::Reserved));
    let made = rig.service.update_attachment(&admin(), made.id, connector(1), LONG).await.unwrap();
    assert_eq!((made.mode, &made.connection_info.unwrap()["access_mode"]), (Mode::ReadOnly, &"ro".into()));
}
