//! Attachments that failed: which of them hold up a verb on their volume.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_controller::domain::{
    AttachAction, AttachmentStatus, Caller, ExportAsk, VolumeAction, VolumeStatus,
};
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::{AttachmentId, ImageFormat, ImageSource, VolumeId};
use tonic::Code;

/// A verb that ends a volume.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Delete,
    ForceDelete,
    Unmanage,
}

const VERBS: [Verb; 3] = [Verb::Delete, Verb::ForceDelete, Verb::Unmanage];

async fn call(rig: &Rig, verb: Verb, id: VolumeId) -> Result<(), Refusal> {
    match verb {
        Verb::Delete => rig.service.delete_volume(&admin(), id).await,
        Verb::ForceDelete => rig.service.volume_action(&admin(), id, VolumeAction::ForceDelete).await,
        Verb::Unmanage => rig.service.unmanage_volume(&admin(), id).await,
    }
}

async fn until_gone(rig: &Rig, id: VolumeId) {
    until("the end of the volume", async || match rig.service.volume(&admin(), id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

fn is_named(refused: Result<(), Refusal>, id: AttachmentId) {
    match refused.map_err(in_words) {
        Err(Refusal::Invalid(text)) => {
            let named = text.contains(&id.to_string()) && text.contains("error_attaching");
            assert!(named && text.contains("detach it first"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attachment_that_holds_nothing_goes_with_its_volume() {
    let rig = Rig::new(1).await;
    for verb in VERBS {
        let volume = rig.volume(false).await;
        let id = rig.failed(volume).await;
        rig.until_nothing_is_held(id).await;
        // It is in no list of the volume, which is available.
        rig.until_volume(volume, VolumeStatus::Available).await;
        call(&rig, verb, volume).await.unwrap_or_else(|refusal| panic!("{verb:?}: {refusal}"));
        until_gone(&rig, volume).await;
        // The attachment has ended, and that is on record.
        let seen = rig.service.attachment(&admin(), id).await;
        assert!(matches!(seen, Err(Refusal::NotFound { .. })), "{verb:?}: {seen:?}");
        let records = rig.service.receipts(&admin(), Some(volume), Some(id), 10).await.unwrap();
        assert!(matches!(&records[..], [one] if !one.forced && one.receipt.is_none()), "{records:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attachment_that_holds_its_grant_is_named() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let silent = cured(Code::Unavailable, "its disk does not answer", "retry");
    rig.storage.state().knobs.refuse_revoke = Some(silent);
    let id = rig.failed(volume).await;
    rig.until_volume(volume, VolumeStatus::Available).await;
    assert_eq!(rig.storage.granted(volume).len(), 1);
    for verb in VERBS {
        is_named(call(&rig, verb, volume).await, id);
    }
    // Operators are told its host, and its project is not.
    let refused = async |caller: &Caller| {
        rig.service.delete_volume(caller, volume).await.map_err(in_words).unwrap_err().to_string()
    };
    let (ours, theirs) = (refused(&admin()).await, refused(&member("p")).await);
    assert!(ours.contains(&format!("attachment {id} on host ")), "{ours}");
    assert!(theirs.contains(&format!("attachment {id} (error_attaching)")), "{theirs}");
    // A refused verb has ended nothing.
    let seen = rig.service.attachment(&admin(), id).await.unwrap();
    assert_eq!((seen.status, rig.storage.granted(volume).len()), (AttachmentStatus::ErrorAttaching, 1));
    rig.storage.state().knobs.refuse_revoke = None;
    rig.storage.publish(&volume.to_string());
    rig.until_nothing_is_held(id).await;
    call(&rig, Verb::Delete, volume).await.unwrap();
    until_gone(&rig, volume).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attachment_that_holds_nothing_holds_up_no_other_verb() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let id = rig.failed(volume).await;
    rig.until_nothing_is_held(id).await;
    rig.until_volume(volume, VolumeStatus::Available).await;
    let detached = VolumeAction::ResetStatus { status: None, attached: Some(false) };
    rig.service.volume_action(&admin(), volume, detached).await.unwrap();
    let image = ImageSource { name: "new.raw".parse().unwrap(), format: ImageFormat::Raw };
    let ask = ExportAsk::Begin { id: None, image };
    rig.service.volume_export(&admin(), volume, ask).await.unwrap();
    rig.until_volume(volume, VolumeStatus::Available).await;
    // It stays until it is deleted: nobody has seen why it failed otherwise.
    let seen = rig.service.attachment(&admin(), id).await.unwrap();
    assert_eq!(seen.status, AttachmentStatus::ErrorAttaching);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attachment_that_holds_nothing_is_not_one_of_several() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let failed = rig.failed(volume).await;
    rig.until_nothing_is_held(failed).await;
    let act = async |action| rig.service.attach_action(&admin(), volume, action, LONG).await.unwrap();
    let is_gone = async |id| {
        let seen = rig.service.attachment(&admin(), id).await;
        assert!(matches!(seen, Err(Refusal::NotFound { .. })), "{seen:?}");
    };
    let detach = AttachAction::Detach { attachment: None, force: false };
    for action in [AttachAction::TerminateConnection { connector: None }, detach.clone()] {
        let own = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap().id;
        act(action).await;
        is_gone(own).await;
    }
    // Alone it is the one that a call means.
    let seen = rig.service.attachment(&admin(), failed).await.unwrap();
    assert_eq!(seen.status, AttachmentStatus::ErrorAttaching);
    act(detach).await;
    is_gone(failed).await;
}
