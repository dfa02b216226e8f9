//! Image exports: who may export, what is shown meanwhile, how long the spec has the export, and
//! how an export that fails or is cancelled ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_api::v1;
use mooring_controller::domain::{ExportAsk, ExportState, VolumeAction, VolumeExport, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::Refusal;
use mooring_model::{ImageFormat, ImageSource, Mode, UploadId, VolumeId};
use tonic::Code;

fn image(name: &str) -> ImageSource {
    ImageSource { name: name.parse().unwrap(), format: ImageFormat::Raw }
}

async fn begin(rig: &Rig, id: VolumeId, name: &str) -> Result<VolumeExport, Refusal> {
    rig.service.volume_export(&admin(), id, ExportAsk::Begin { id: None, image: image(name) }).await
}

async fn seen(rig: &Rig, id: VolumeId) -> VolumeExport {
    rig.service.volume_export(&admin(), id, ExportAsk::Look).await.unwrap()
}

/// The export in the volume's spec at the storage agent.
fn told(rig: &Rig, id: VolumeId) -> Option<v1::Upload> {
    rig.storage.state().volumes[&id.to_string()].spec.as_ref().unwrap().upload.clone()
}

async fn until_told(rig: &Rig, id: VolumeId, want: bool) {
    until("the agent's spec", async || match told(rig, id) {
        content if content.is_some() == want => Ok(()),
        content => Err(format!("{content:?}")),
    })
    .await;
}

fn conflict<T: std::fmt::Debug>(refused: Result<T, Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Conflict(text)) if text.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

fn problem(text: &str, cure: v1::Cure) -> v1::Problem {
    v1::Problem { object: "the copy".to_owned(), text: text.to_owned(), cure: cure.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_uploading_until_its_agent_says_that_it_is_done() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.storage.state().knobs.reverts.hold_uploads = true;
    let begun = begin(&rig, id, "new.raw").await.unwrap();
    assert_eq!(
        (begun.state, begun.host.as_deref(), &begun.why),
        (ExportState::Exporting, Some("storage"), &None)
    );
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().status, VolumeStatus::Uploading);
    until_told(&rig, id, true).await;
    let content = told(&rig, id).unwrap();
    assert_eq!((content.upload_id, content.image.unwrap().name.as_str()), (begun.id.to_string(), "new.raw"));
    // Meanwhile the volume is not attached, and no other operation begins.
    let refused = rig
        .service
        .create_attachment(&admin(), native(id, "host1", Mode::ReadWrite), LONG)
        .await
        .map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Invalid(text)) if text.contains("uploading")), "{refused:?}");
    for action in [
        VolumeAction::Extend { size_gib: 9, online: true },
        VolumeAction::Revert(Some(VolumeId::random())),
        VolumeAction::ResetStatus { status: Some(VolumeStatus::Available), attached: None },
    ] {
        rig.service.volume_action(&admin(), id, action).await.unwrap_err();
    }
    rig.service.delete_volume(&admin(), id).await.unwrap_err();
    rig.service.unmanage_volume(&admin(), id).await.unwrap_err();
    conflict(begin(&rig, id, "other.raw").await, "it is uploading");
    // A repeated call with the same id is the same export.
    let again = |name| ExportAsk::Begin { id: Some(begun.id), image: image(name) };
    assert_eq!(rig.service.volume_export(&admin(), id, again("new.raw")).await.unwrap(), begun);
    conflict(rig.service.volume_export(&admin(), id, again("b.raw")).await, "is one to image new.raw");
    rig.storage.state().knobs.reverts.hold_uploads = false;
    rig.until_volume(id, VolumeStatus::Available).await;
    assert_eq!(seen(&rig, id).await.state, ExportState::Done);
    assert_eq!(
        rig.service.volume_export(&admin(), id, again("new.raw")).await.unwrap().state,
        ExportState::Done
    );
    until_told(&rig, id, false).await;
    rig.attach(id, "host1", Mode::ReadWrite).await;
    assert!(rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_with_what_has_to_go() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    let attachment = rig.attach(id, "host1", Mode::ReadOnly).await.attachment.id;
    let refused = begin(&rig, id, "new.raw").await;
    conflict(refused, &format!("Detach attachment {attachment} on host host1"));
    conflict(begin(&rig, id, "new.raw").await, "made from a snapshot");
    rig.service.delete_attachment(&admin(), attachment, false, LONG).await.unwrap();
    let qcow2 = ImageSource { format: ImageFormat::Qcow2, ..image("new.qcow2") };
    let ask = || ExportAsk::Begin { id: Some(UploadId::random()), image: qcow2.clone() };
    let refused = rig.service.volume_export(&admin(), id, ask()).await.map_err(in_words);
    assert!(
        matches!(&refused, Err(Refusal::Invalid(why)) if why.contains("cannot read qcow2 images")),
        "{refused:?}"
    );
    let refused = rig.service.volume_export(&member("p"), id, ask()).await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(_) | Refusal::NotFound { .. })), "{refused:?}");
    let refused = rig.service.volume_export(&admin(), id, ExportAsk::Look).await;
    assert!(matches!(&refused, Err(Refusal::NotFound { kind: "Export", .. })), "{refused:?}");
    assert_eq!(told(&rig, id), None);
    // The control.
    begin(&rig, id, "new.raw").await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
}

/// Asserts that an export has failed for this reason, that the volume is as before, and that its
/// spec has no export.
async fn failed(rig: &Rig, id: VolumeId, why: &str) {
    let volume = rig.until_volume(id, VolumeStatus::Available).await;
    assert_eq!(volume.fault, None);
    let export = seen(rig, id).await;
    assert!(export.state == ExportState::Failed && export.why.as_ref().unwrap().contains(why), "{export:?}");
    let messages = rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items;
    assert!(messages[0].text.starts_with("copy volume to image: ") && messages[0].text.contains(why));
    until_told(rig, id, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_its_agent_cannot_do_is_withdrawn_and_the_volume_is_as_it_was() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.storage.state().knobs.reverts.upload_problem =
        Some(problem("new.raw is there already", v1::Cure::Operator));
    begin(&rig, id, "new.raw").await.unwrap();
    failed(&rig, id, "new.raw is there already").await;
    rig.storage.state().knobs.reverts.upload_problem = None;
    // The control: another export succeeds.
    begin(&rig, id, "other.raw").await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
    let export = seen(&rig, id).await;
    assert_eq!(
        (export.state, export.image.name.as_str(), export.why),
        (ExportState::Done, "other.raw", None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_its_agent_refuses_or_knows_nothing_of_is_withdrawn() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    let before = rig.storage.state().calls.len();
    rig.storage.state().knobs.refuse_volume =
        Some(cured(Code::FailedPrecondition, "it is granted", "fix_spec"));
    begin(&rig, id, "new.raw").await.unwrap();
    until("it is refused", async || {
        let calls = rig.storage.state().calls.len() - before;
        if calls > 1 { Ok(()) } else { Err(format!("{calls} calls")) }
    })
    .await;
    rig.storage.state().knobs.refuse_volume = None;
    failed(&rig, id, "it is granted").await;
    rig.storage.state().knobs.reverts.ignores = true;
    begin(&rig, id, "new.raw").await.unwrap();
    failed(&rig, id, "its release cannot export volumes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_cancelled_and_that_is_no_failure() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.storage.state().knobs.reverts.hold_uploads = true;
    begin(&rig, id, "new.raw").await.unwrap();
    until_told(&rig, id, true).await;
    let ending = rig.service.volume_export(&admin(), id, ExportAsk::Cancel).await.unwrap();
    assert_eq!((ending.state, ending.why.as_deref()), (ExportState::Ending, Some("it was cancelled")));
    rig.until_volume(id, VolumeStatus::Available).await;
    assert_eq!(seen(&rig, id).await.state, ExportState::Cancelled);
    until_told(&rig, id, false).await;
    assert!(rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items.is_empty());
    // An export that is over stays as it ended.
    let after = rig.service.volume_export(&admin(), id, ExportAsk::Cancel).await.unwrap();
    assert_eq!(after.state, ExportState::Cancelled);
    rig.attach(id, "host1", Mode::ReadWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_by_force_ends_it() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.storage.state().knobs.reverts.hold_uploads = true;
    begin(&rig, id, "new.raw").await.unwrap();
    until_told(&rig, id, true).await;
    rig.service.volume_action(&admin(), id, VolumeAction::ForceDelete).await.unwrap();
    until("it is gone", async || match rig.service.volume(&admin(), id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_killed_goes_on() {
    let mut rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.storage.state().knobs.reverts.hold_uploads = true;
    let begun = begin(&rig, id, "new.raw").await.unwrap();
    rig.restart().await;
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().status, VolumeStatus::Uploading);
    rig.storage.state().knobs.reverts.hold_uploads = false;
    rig.until_volume(id, VolumeStatus::Available).await;
    let export = seen(&rig, id).await;
    assert_eq!((export.id, export.state), (begun.id, ExportState::Done));
}
