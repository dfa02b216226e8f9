//! Volumes at which a later release has begun an operation.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{LONG, Rig, SHORT, admin, client};
use mooring_controller::domain::{AttachmentStatus, VolumeAction, VolumeStatus};
use mooring_controller::list::ListQuery;
use mooring_model::{AttachmentId, Mode};

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_at_work_in_an_unknown_way_is_listed_and_left_alone() {
    let rig = Rig::new(1).await;
    let (volume, other) = (rig.volume(true).await, rig.volume(true).await);
    let made = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    rig.until_quiet().await;
    rig.write(&format!("UPDATE volumes SET operation = 'freezing', status = 'frozen' WHERE id = '{volume}'"));
    let puts = || *rig.world.puts.borrow();
    let before = puts();
    // It hides no other volume, and is shown in error, with the reason.
    let all = ListQuery { all_projects: true, ..ListQuery::default() };
    let listed = rig.service.volumes(&admin(), all).await.unwrap().items;
    assert_eq!(listed.len(), 2, "{listed:?}");
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!(seen.status, VolumeStatus::Error);
    assert!(seen.fault.as_ref().is_some_and(|why| why.contains("freezing")), "{:?}", seen.fault);
    let extend = VolumeAction::Extend { size_gib: 2, online: true };
    for (verb, refused) in [
        ("attach", rig.service.create_attachment(&admin(), client(volume, 1), SHORT).await.map(drop)),
        ("detach", rig.service.delete_attachment(&admin(), made, false, SHORT).await.map(drop)),
        ("extend", rig.service.volume_action(&admin(), volume, extend).await),
        ("delete", rig.service.delete_volume(&admin(), volume).await),
        ("delete by force", rig.service.force_delete_volume(&admin(), volume, true).await),
        ("confirm", rig.service.confirm_review(&admin(), volume).await),
    ] {
        assert!(refused.is_err(), "{verb}");
    }
    // A new name is kept, and told nobody.
    let name = Some(Some("other".to_owned()));
    rig.service.update_volume(&admin(), volume, name, None, None).await.unwrap();
    rig.storage.publish(&volume.to_string());
    rig.hosts[0].publish_connection(&volume.to_string());
    rig.until_quiet().await;
    assert_eq!(puts(), before, "{:?}", rig.storage.state().calls);
    // The control: others are served, and so is this one when the operation is over.
    rig.attach(other, "host1", Mode::ReadWrite).await;
    rig.write(&format!("UPDATE volumes SET operation = NULL, status = 'in-use' WHERE id = '{volume}'"));
    rig.service.delete_attachment(&admin(), made, false, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_in_an_unknown_status_hides_no_other() {
    let rig = Rig::new(1).await;
    let (volume, other) = (rig.volume(true).await, rig.volume(true).await);
    let odd = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let own = rig.attach(other, "host1", Mode::ReadWrite).await.attachment.id;
    rig.until_quiet().await;
    rig.write(&format!(
        "PRAGMA ignore_check_constraints = ON; UPDATE attachments SET status = 'lent' WHERE id = '{odd}'"
    ));
    let all = || ListQuery { all_projects: true, ..ListQuery::default() };
    let listed = rig.service.attachments(&admin(), all()).await.unwrap().items;
    assert_eq!(listed.len(), 2, "{listed:?}");
    let status = |id: AttachmentId| listed.iter().find(|one| one.id == id).map(|one| one.status);
    assert_eq!(status(odd), Some(AttachmentStatus::ErrorDetaching));
    assert_eq!(status(own), Some(AttachmentStatus::Attached));
    assert_eq!(rig.service.volumes(&admin(), all()).await.unwrap().items.len(), 2);
    // The control: the other one goes, and so does this one once its status is known.
    rig.service.delete_attachment(&admin(), own, false, LONG).await.unwrap();
    rig.write(&format!("UPDATE attachments SET status = 'attached' WHERE id = '{odd}'"));
    rig.service.delete_attachment(&admin(), odd, false, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_a_later_release_is_not_reset() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let words = "operation = 'freezing', status = 'frozen', said_status = 'cold'";
    rig.write(&format!("UPDATE volumes SET {words} WHERE id = '{volume}'"));
    let reset = |status| VolumeAction::ResetStatus { status: Some(status), attached: None };
    for status in [VolumeStatus::Available, VolumeStatus::Error] {
        assert!(rig.service.volume_action(&admin(), volume, reset(status)).await.is_err(), "{status}");
    }
    let stored =
        format!("SELECT operation || ' ' || status || ' ' || said_status FROM volumes WHERE id = '{volume}'");
    assert_eq!(rig.texts(&stored), ["freezing frozen cold"]);
    // The control: a status of this release is set and taken back.
    rig.write(&format!(
        "UPDATE volumes SET operation = NULL, status = 'available', said_status = NULL WHERE id = '{volume}'"
    ));
    rig.service.volume_action(&admin(), volume, reset(VolumeStatus::Error)).await.unwrap();
    rig.service.volume_action(&admin(), volume, reset(VolumeStatus::Available)).await.unwrap();
}
