//! Attach and detach, driven through the service against agents in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use crate::support::{
    LONG, Rig, SHORT, admin, client, connection_info, connector, cured, member, native, new_volume, reserve,
    until,
};
use mooring_controller::domain::{
    AttachmentStatus, NewAttachment, NewConnector, NewVolume, RequestKey, VolumeStatus, WantedId,
};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::{Refusal, Wait};
use mooring_model::{AttachmentId, Mode, Proof, Revoked, VolumeId};
use tonic::Code;
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread")]
async fn a_native_attach_goes_all_the_way_and_back() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let id = live.attachment.id;
    assert_eq!(live.host_phase.as_deref(), Some("ready"));
    assert_eq!(live.device_path, Some(format!("/run/mooring/attachments/{id}")));
    assert_eq!(live.disk.as_deref(), Some("/dev/sda"));
    let steps: Vec<_> = live.steps_ms.iter().map(|(step, _)| step.as_str()).collect();
    assert_eq!(steps, ["granted", "logged_in", "device_ready", "done"]);
    assert!(live.steps_ms.is_sorted_by_key(|(_, at)| *at), "{live:?}");
    let live = rig.service.live(&admin(), id, None, SHORT).await.unwrap();
    assert_eq!((live.session, live.effective_mode), (Some(true), Some(Mode::ReadWrite)));
    assert!(live.attachment.connection_info.is_none(), "a native attachment's secret is its host's");
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!((seen.status, seen.place.host.as_deref()), (VolumeStatus::InUse, Some("storage@lvm#vg0")));
    {
        let state = rig.hosts[0].state();
        let spec = state.connections[&volume.to_string()].spec.clone().unwrap();
        assert_eq!(spec.serial, volume.to_string());
        let chap = spec.chap.unwrap();
        assert!(chap.mutual.is_some() && chap.initiator.unwrap().secret.len() >= 32);
    }
    let (receipt, others) = rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
    assert!(others.is_empty());
    let receipt = receipt.receipt.unwrap();
    assert_eq!(
        (receipt.proof, receipt.revoked, receipt.attachments),
        (Proof::Proven, Revoked::Nexus, vec![id])
    );
    assert!(receipt.sessions.is_empty(), "the host had logged out before");
    assert_eq!(rig.storage.granted(volume), Vec::<String>::new());
    rig.until_volume(volume, VolumeStatus::Available).await;
    assert!(rig.hosts[0].state().connections[&volume.to_string()].spec.is_none());
    // The host ends its connection first, then the target revokes.
    let calls = rig.storage.state().calls.clone();
    assert!(calls.last().unwrap().ends_with("refuse"), "{calls:?}");
    assert!(matches!(
        rig.service.delete_attachment(&admin(), id, false, SHORT).await,
        Err(Refusal::NotFound { kind: "Attachment", .. })
    ));
    assert_eq!(rig.service.receipt(&admin(), id).await.unwrap().receipt.unwrap().proof, Proof::Proven);
    rig.service.delete_volume(&admin(), volume).await.unwrap();
    until("the end of the volume", async || match rig.service.volume(&admin(), volume).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(rig.storage.state().volumes[&volume.to_string()].spec.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_target_is_there_before_the_first_attach() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    until("the export", async || {
        let state = rig.storage.state();
        let spec = state.exports.get(&volume.to_string()).and_then(|export| export.spec.clone());
        spec.filter(|spec| spec.grants.is_empty()).map(drop).ok_or_else(|| format!("{:?}", state.calls))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_attaches_of_a_shared_volume_at_once() {
    let rig = Rig::new(20).await;
    let volume = rig.volume(true).await;
    let mut going = tokio::task::JoinSet::new();
    for number in 1..=20 {
        let service = rig.service.clone();
        let new = native(volume, &format!("host{number}"), Mode::ReadWrite);
        going.spawn(async move { service.create_attachment(&admin(), new, LONG).await.unwrap().id });
    }
    let ids = going.join_all().await;
    for id in &ids {
        rig.until_attached(*id).await;
    }
    assert_eq!(rig.storage.granted(volume).len(), 20);
    let mut going = tokio::task::JoinSet::new();
    for id in ids {
        let service = rig.service.clone();
        going.spawn(async move { service.delete_attachment(&admin(), id, false, LONG).await.unwrap().0 });
    }
    for receipt in going.join_all().await {
        assert_eq!(receipt.receipt.unwrap().attachments, [receipt.attachment]);
    }
    assert_eq!(rig.storage.granted(volume).len(), 0);
    rig.until_volume(volume, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_volume_has_one_attachment() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    for new in [native(volume, "host2", Mode::ReadOnly), reserve(volume), client(volume, 1)] {
        let refused = rig.service.create_attachment(&admin(), new, LONG).await.map_err(in_words).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "Invalid volume: Volume {volume} status must be available or downloading to reserve, but the current \
                 status is in-use."
            )
        );
    }
    assert_eq!(rig.storage.granted(volume).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_what_it_needs_to_log_in() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let instance = Some(Uuid::from_u128(7));
    let reserved = mooring_controller::domain::NewAttachment { instance, ..reserve(volume) };
    let reserved = rig.service.create_attachment(&admin(), reserved, LONG).await.unwrap();
    assert_eq!(reserved.status, AttachmentStatus::Reserved);
    rig.until_volume(volume, VolumeStatus::Reserved).await;
    let made = rig.service.update_attachment(&admin(), reserved.id, connector(1), LONG).await.unwrap();
    let info = connection_info(&made);
    let target = format!("iqn.2026-11.dev.mooring:{volume}");
    for (key, want) in [
        ("driver_volume_type", serde_json::json!("iscsi")),
        ("target_discovered", serde_json::json!(false)),
        ("target_iqn", serde_json::json!(target)),
        ("target_portal", serde_json::json!("10.10.0.10:3260")),
        ("target_lun", serde_json::json!(1)),
        ("volume_id", serde_json::json!(volume)),
        ("auth_method", serde_json::json!("CHAP")),
        ("access_mode", serde_json::json!("rw")),
        ("encrypted", serde_json::json!(false)),
        ("qos_specs", serde_json::Value::Null),
        ("attachment_id", serde_json::json!(made.id)),
    ] {
        assert_eq!(info.get(key), Some(&want), "{key}");
    }
    let sent = rig.storage.state().exports[&volume.to_string()].spec.clone().unwrap().grants[0].clone();
    let chap = sent.chap.unwrap();
    assert_eq!(info["auth_password"], chap.initiator.unwrap().secret);
    assert!(chap.mutual.is_none());
    // The same connector again gets the same answer. Another one is refused.
    let again = rig.service.update_attachment(&admin(), made.id, connector(1), LONG).await.unwrap();
    assert_eq!(again.connection_info, made.connection_info);
    let other = rig
        .service
        .update_attachment(&admin(), made.id, connector(2), LONG)
        .await
        .map_err(in_words)
        .unwrap_err();
    assert!(matches!(other, Refusal::Conflict(_)), "{other}");
    rig.until_volume(volume, VolumeStatus::Attaching).await;
    rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    rig.until_volume(volume, VolumeStatus::InUse).await;
    let (receipt, _) = rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
    assert_eq!(receipt.receipt.unwrap().proof, Proof::Proven);
    rig.until_volume(volume, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_secret_is_its_own_and_new_each_time() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let one = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    let two = rig.service.create_attachment(&admin(), client(volume, 2), LONG).await.unwrap();
    let secret = |info: &serde_json::Map<String, serde_json::Value>| info["auth_password"].clone();
    let first = secret(connection_info(&one));
    assert_ne!(first, secret(connection_info(&two)));
    rig.service.delete_attachment(&admin(), one.id, false, LONG).await.unwrap();
    let again = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    assert_ne!(first, secret(connection_info(&again)));
    // No printed part of the service has the secret.
    let text = first.as_str().unwrap();
    assert!(!format!("{:?}", rig.service).contains(text));
    let shared = rig.service.attachments(&admin(), ListQuery::attachments_of(volume)).await.unwrap().items;
    assert_eq!(shared.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_are_each_attachments_own_and_a_nexus_has_the_widest() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let ro = rig.attach(volume, "host1", Mode::ReadOnly).await;
    assert_eq!(ro.effective_mode, Some(Mode::ReadOnly));
    let other = rig.attach(volume, "host2", Mode::ReadWrite).await;
    assert_eq!(other.effective_mode, Some(Mode::ReadWrite));
    let rw = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let seen = rig.service.live(&admin(), ro.attachment.id, None, SHORT).await.unwrap();
    assert_eq!((seen.attachment.mode, seen.effective_mode), (Mode::ReadOnly, Some(Mode::ReadWrite)));
    // By force, one of two attachments of a nexus goes only with the other.
    let refused = rig
        .service
        .delete_attachment(&admin(), ro.attachment.id, true, LONG)
        .await
        .map_err(in_words)
        .unwrap_err();
    assert!(matches!(&refused, Refusal::Conflict(text) if text.contains(&rw.attachment.id.to_string())));
    // Without force it goes alone, and no grant is revoked.
    let (receipt, others) =
        rig.service.delete_attachment(&admin(), rw.attachment.id, false, LONG).await.unwrap();
    assert!(receipt.receipt.is_none() && others.len() == 2);
    let seen = rig.service.live(&admin(), ro.attachment.id, None, SHORT).await.unwrap();
    assert_eq!((seen.session, seen.effective_mode), (Some(true), Some(Mode::ReadOnly)));
    assert_eq!(rig.storage.granted(volume).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn force_cuts_at_the_target_first_and_tells_the_host_afterwards() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let stays = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let goes = rig.attach(volume, "host2", Mode::ReadWrite).await;
    rig.hosts[1].state().knobs.holders = vec!["qemu (pid 4711)".to_owned()];
    rig.until_quiet().await;
    let before = rig.hosts[1].state().calls.len();
    let (receipt, others) =
        rig.service.delete_attachment(&admin(), goes.attachment.id, true, LONG).await.unwrap();
    let receipt = receipt.receipt.unwrap();
    assert_eq!((receipt.proof, receipt.sessions.len()), (Proof::Proven, 1));
    assert_eq!(others.iter().map(|other| other.id).collect::<Vec<_>>(), [stays.attachment.id]);
    assert!(rig.storage.state().calls.last().unwrap().ends_with("cut"));
    until("the host's tombstone", async || {
        let state = rig.hosts[1].state();
        let kept = &state.connections[&volume.to_string()];
        if kept.hard && kept.spec.is_none() { Ok(()) } else { Err(format!("{:?}", state.calls)) }
    })
    .await;
    assert_eq!(rig.hosts[1].state().calls.len(), before + 1);
    let seen = rig.service.live(&admin(), stays.attachment.id, None, SHORT).await.unwrap();
    assert_eq!(seen.session, Some(true));
    // A repeated call gets the same receipt.
    let (again, _) = rig.service.delete_attachment(&admin(), goes.attachment.id, true, LONG).await.unwrap();
    assert_eq!(again.receipt, Some(receipt));
}

#[tokio::test(flavor = "multi_thread")]
async fn force_takes_a_sibling_along_that_is_leaving_anyway() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let leaving = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let forced = rig.attach(volume, "host1", Mode::ReadOnly).await.attachment.id;
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    let waits = rig.service.delete_attachment(&admin(), leaving, false, SHORT).await.unwrap_err();
    assert!(matches!(waits, Refusal::Pending(_)), "{waits}");
    // The sibling still holds the grant, and would have kept the nexus alive.
    assert_eq!(rig.storage.granted(volume).len(), 1);
    let (receipt, _) = rig.service.delete_attachment(&admin(), forced, true, LONG).await.unwrap();
    assert_eq!(receipt.receipt.unwrap().proof, Proof::Proven);
    assert!(rig.storage.granted(volume).is_empty());
    rig.until_gone(leaving).await;
    assert_eq!(rig.service.receipt(&admin(), leaving).await.unwrap().receipt.unwrap().proof, Proof::Proven);
    rig.until_volume(volume, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unproven_receipt_is_said_as_such_and_the_attachment_stays() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let id = live.attachment.id;
    rig.storage.state().knobs.unproven = true;
    for _ in 0..2 {
        assert_eq!(rig.force(id).await.proof, Proof::Unproven { in_flight: Some(3) });
        let seen = rig.service.attachment(&admin(), id).await.unwrap();
        assert_eq!(seen.status, AttachmentStatus::Detaching);
    }
    rig.until_volume(volume, VolumeStatus::Detaching).await;
    rig.storage.prove();
    rig.until_gone(id).await;
    assert_eq!(rig.service.receipt(&admin(), id).await.unwrap().receipt.unwrap().proof, Proof::Proven);
    rig.until_volume(volume, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detach_is_not_acknowledged_without_its_receipt() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let id = live.attachment.id;
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up && host.why_down.is_some()).await;
    for force in [false, false, true] {
        let pending = rig.service.delete_attachment(&admin(), id, force, SHORT).await.unwrap_err();
        assert!(matches!(&pending, Refusal::Pending(text) if text.contains("storage is down")), "{pending}");
        let seen = rig.service.attachment(&admin(), id).await.unwrap();
        assert_eq!(seen.status, AttachmentStatus::Detaching);
    }
    let live = rig.service.live(&admin(), id, None, SHORT).await.unwrap();
    assert!(live.session.is_none() && live.problems.iter().any(|text| text.contains("storage is down")));
    rig.storage.set_down(false);
    rig.until_gone(id).await;
    assert_eq!(rig.service.receipt(&admin(), id).await.unwrap().receipt.unwrap().proof, Proof::Proven);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_the_disk_is_named_and_keeps_it() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let id = live.attachment.id;
    rig.hosts[0].state().knobs.holders = vec!["qemu-system-x86 (pid 4711)".to_owned()];
    let refused =
        rig.service.delete_attachment(&admin(), id, false, LONG).await.map_err(in_words).unwrap_err();
    assert!(matches!(&refused, Refusal::Conflict(text) if text.contains("pid 4711")), "{refused}");
    let live = rig.until_attached(id).await;
    assert_eq!(live.session, Some(true));
    assert_eq!(rig.storage.granted(volume).len(), 1);
    rig.hosts[0].state().knobs.holders.clear();
    rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_down_or_unknown_is_refused_at_once_and_leaves_nothing() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(false).await;
    rig.hosts[1].set_down(true);
    rig.until_host("host2", |host| !host.up).await;
    let refused =
        rig.service.create_attachment(&admin(), native(volume, "host2", Mode::ReadWrite), LONG).await;
    assert!(matches!(refused, Err(Refusal::Unavailable(text)) if text.contains("host2 is down")));
    let refused =
        rig.service.create_attachment(&admin(), native(volume, "nosuch", Mode::ReadWrite), LONG).await;
    assert!(matches!(refused, Err(Refusal::NotFound { kind: "Host", .. })));
    let refused = rig
        .service
        .create_attachment(&admin(), native(volume, "storage", Mode::ReadWrite), LONG)
        .await
        .map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Invalid(_))));
    let nowhere = VolumeId::from_u128(5);
    let refused =
        rig.service.create_attachment(&admin(), native(nowhere, "host1", Mode::ReadWrite), LONG).await;
    assert!(matches!(refused, Err(Refusal::NotFound { kind: "Volume", .. })));
    let refused = rig.service.delete_attachment(&admin(), AttachmentId::from_u128(1), true, SHORT).await;
    assert!(matches!(refused, Err(Refusal::NotFound { .. })));
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!((seen.status, seen.attachments.len()), (VolumeStatus::Available, 0));
    // Other hosts are not delayed.
    rig.attach(volume, "host1", Mode::ReadWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_cannot_be_says_why_and_holds_nothing() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let problem = mooring_api::v1::Problem {
        object: "portal 10.10.0.10:3260".into(),
        text: "the target refused the credentials (0x0201)".into(),
        cure: mooring_api::v1::Cure::Operator.into(),
    };
    rig.hosts[0].state().knobs.broken = Some((mooring_api::v1::ConnectionPhase::Failed, problem));
    let made = rig
        .service
        .create_attachment(&admin(), native(volume, "host1", Mode::ReadWrite), LONG)
        .await
        .unwrap();
    let live =
        rig.until_live(made.id, |live| live.attachment.status == AttachmentStatus::ErrorAttaching).await;
    assert!(live.attachment.fault.unwrap().contains("0x0201"));
    until("the end of the grant", async || {
        let left = rig.storage.granted(volume);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    // The failed attachment blocks no other one, and goes when it is detached.
    rig.until_volume(volume, VolumeStatus::Available).await;
    rig.hosts[0].state().knobs.broken = None;
    rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
    rig.attach(volume, "host1", Mode::ReadWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_grant_ends_its_attachment_and_no_other() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let stays = rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.storage.state().knobs.refuse_export =
        Some(cured(Code::FailedPrecondition, "the volume is quarantined", "retry"));
    let refused =
        rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.map_err(in_words).unwrap_err();
    assert!(matches!(&refused, Refusal::Invalid(text) if text.contains("quarantined")), "{refused}");
    // The client never learned the id: no part of the attachment stays.
    until("the end of what could not be", async || {
        let left = rig.service.attachments(&admin(), ListQuery::attachments_of(volume)).await.unwrap().items;
        if left.len() == 1 { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert_eq!(rig.storage.granted(volume).len(), 1);
    rig.service.delete_attachment(&admin(), stays.attachment.id, false, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_with_a_key_or_id_of_its_own_is_one() {
    let rig = Rig::new(1).await;
    let id = Some(WantedId::Key(RequestKey::new("again").unwrap()));
    let new = || NewVolume { id: id.clone(), ..new_volume() };
    let one = rig.service.create_volume(&admin(), new()).await.unwrap();
    let two = rig.service.create_volume(&admin(), new()).await.unwrap();
    assert_eq!(one.id, two.id);
    let other =
        rig.service.create_volume(&admin(), NewVolume { size_gib: Some(2), ..new() }).await.map_err(in_words);
    assert!(matches!(other, Err(Refusal::Conflict(_))));
    rig.until_volume(one.id, VolumeStatus::Available).await;
    let id = Some(AttachmentId::from_u128(0x99));
    let new = || mooring_controller::domain::NewAttachment { id, ..native(one.id, "host1", Mode::ReadWrite) };
    let made = rig.service.create_attachment(&admin(), new(), LONG).await.unwrap();
    assert_eq!(rig.service.create_attachment(&admin(), new(), LONG).await.unwrap().id, made.id);
    rig.until_attached(made.id).await;
    rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
    let late = rig.service.create_attachment(&admin(), new(), LONG).await.map_err(in_words);
    assert!(matches!(late, Err(Refusal::Conflict(_))), "a late repeat attaches nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_project_has_is_not_there() {
    let rig = Rig::new(1).await;
    let (mine, theirs) = (member("mine"), member("theirs"));
    let volume = rig.service.create_volume(&theirs, new_volume()).await.unwrap().id;
    rig.until_volume(volume, VolumeStatus::Available).await;
    let made = rig.service.create_attachment(&theirs, client(volume, 1), LONG).await.unwrap();
    let gone = |refused: Refusal| assert!(matches!(refused, Refusal::NotFound { .. }), "{refused}");
    gone(rig.service.volume(&mine, volume).await.unwrap_err());
    gone(rig.service.delete_volume(&mine, volume).await.unwrap_err());
    gone(rig.service.update_volume(&mine, volume, None, None, None).await.unwrap_err());
    gone(rig.service.attachment(&mine, made.id).await.unwrap_err());
    gone(rig.service.create_attachment(&mine, reserve(volume), LONG).await.unwrap_err());
    gone(rig.service.update_attachment(&mine, made.id, connector(1), LONG).await.unwrap_err());
    gone(rig.service.complete_attachment(&mine, made.id).await.unwrap_err());
    gone(rig.service.delete_attachment(&mine, made.id, true, SHORT).await.unwrap_err());
    gone(rig.service.live(&mine, made.id, None, SHORT).await.unwrap_err());
    gone(rig.service.receipt(&mine, made.id).await.unwrap_err());
    let everything = ListQuery { all_projects: true, ..ListQuery::default() };
    assert!(rig.service.volumes(&mine, everything).await.unwrap().items.is_empty());
    assert!(
        rig.service.attachments(&mine, ListQuery::attachments_of(volume)).await.unwrap().items.is_empty()
    );
    assert!(rig.service.live_all(&mine).await.unwrap().is_empty());
    assert!(matches!(rig.service.hosts(&mine).await, Err(Refusal::Forbidden(_))));
    rig.service.delete_attachment(&theirs, made.id, false, LONG).await.unwrap();
    gone(rig.service.delete_attachment(&mine, made.id, true, SHORT).await.unwrap_err());
    gone(rig.service.receipt(&mine, made.id).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_ends_with_the_change_or_at_its_time() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.hosts[0].state().knobs.pending = true;
    let made = rig
        .service
        .create_attachment(&admin(), native(volume, "host1", Mode::ReadWrite), LONG)
        .await
        .unwrap();
    rig.until_live(made.id, |live| live.host_phase.as_deref() == Some("connecting")).await;
    rig.hosts[0].state().knobs.pending = false;
    rig.hosts[0].publish_connection(&volume.to_string());
    let live = rig.until_attached(made.id).await;
    let quiet =
        rig.service.live(&admin(), made.id, Some(live.revision), Wait(Duration::from_millis(1))).await;
    assert_eq!(quiet.unwrap().attachment.id, made.id);
}

/// An attached host without a session shows at once: in the attachment, in the list, and as a
/// problem of the storage node.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_missing_is_seen_at_once() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let now = async || rig.service.live(&admin(), id, None, SHORT).await.unwrap();
    let of_node = async || {
        let hosts = rig.service.hosts(&admin()).await.unwrap();
        hosts.into_iter().find(|host| host.name == "storage").unwrap().problems
    };
    let live = now().await;
    let nexus = live.nexus.unwrap();
    assert_eq!((live.session, nexus.missing, nexus.storage.as_str()), (Some(true), false, "storage"));
    assert_eq!((nexus.sessions.len(), nexus.sessions[0].addresses[0].as_str()), (1, "10.10.0.11:45678"));
    assert!(nexus.looked.is_some() && nexus.sessions[0].since.is_some());
    assert!(live.problems.is_empty() && of_node().await.is_empty());
    // The session's addresses are hidden from a plain member.
    let seen = rig.service.live(&member("p"), id, None, SHORT).await.unwrap();
    assert_eq!((seen.session, seen.nexus.unwrap().sessions), (Some(true), Vec::new()));

    rig.world.sessions.lock().unwrap().clear();
    let live = now().await;
    assert_eq!((live.session, live.nexus.unwrap().missing), (Some(false), true));
    assert!(
        live.problems.iter().any(|text| text.contains("should be logged in and is not")),
        "{:?}",
        live.problems
    );
    assert!(rig.service.live_all(&admin()).await.unwrap()[0].nexus.as_ref().unwrap().missing);
    let problems = of_node().await;
    assert!(problems.len() == 1 && problems[0].contains(&id.to_string()), "{problems:?}");

    // A report without the time of its look raises no alarm.
    rig.storage.state().knobs.blind = true;
    let live = now().await;
    assert_eq!((live.session, live.nexus.unwrap().missing), (Some(false), false));
    assert!(live.problems.is_empty() && of_node().await.is_empty());
}

/// As the test above, over Fibre Channel: a host counts as logged in if one of its ports is logged
/// in at one of the target's. Its counters are the sum over all ports.
#[tokio::test(flavor = "multi_thread")]
async fn over_fibre_channel_the_same_is_live_and_missing() {
    let rig = Rig::quiet(0);
    let (first, second) = ("20:00:52:54:00:14:00:0b", "20:00:52:54:00:14:00:0c");
    let targets = ["fc/20:00:52:54:00:14:00:01", "fc/20:00:52:54:00:14:00:02"];
    let login = |logins: [&[&str]; 2]| {
        let names = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        rig.storage.state().knobs.fc.0 =
            targets.iter().zip(logins).map(|(port, of)| ((*port).to_owned(), names(of))).collect();
    };
    login([&[], &[second]]);
    rig.up().await;
    let volume = rig.volume(false).await;
    let connector = serde_json::json!({ "host": "node1", "wwpns": [first, second], "wwnns": [first] });
    let connector = NewConnector::Client(connector.as_object().unwrap().clone());
    let new = NewAttachment { connector, ..client(volume, 1) };
    let id = rig.service.create_attachment(&admin(), new, LONG).await.unwrap().id;
    let now = async || rig.service.live(&admin(), id, None, SHORT).await.unwrap();
    let of_node = async || {
        let hosts = rig.service.hosts(&admin()).await.unwrap();
        hosts.into_iter().find(|host| host.name == "storage").unwrap().problems
    };
    login([&[], &[]]);
    let live = now().await;
    assert_eq!((live.session, live.nexus.unwrap().missing), (Some(false), false), "it is not complete yet");
    rig.service.complete_attachment(&admin(), id).await.unwrap();

    login([&[], &[second]]);
    let live = now().await;
    assert_eq!((live.session, live.effective_mode), (Some(true), Some(Mode::ReadWrite)));
    let nexus = live.nexus.unwrap();
    assert_eq!((nexus.missing, nexus.storage.as_str(), nexus.sessions.len()), (false, "storage", 0));
    let done = nexus.counters;
    assert_eq!(
        (done.commands, done.read_mib, done.written_mib),
        (60, 12, 18),
        "two ports, at two ports each"
    );
    assert_eq!(done.active, Some(SystemTime::UNIX_EPOCH + Duration::from_micros(1_790_000_000_000_002)));
    assert!(nexus.looked.is_some() && live.problems.is_empty() && of_node().await.is_empty());

    // Another host's login does not count for this one.
    login([&["20:00:52:54:00:14:00:0d"], &[]]);
    let live = now().await;
    assert_eq!((live.session, live.nexus.unwrap().missing), (Some(false), true));
    let says = format!("storage: {first},{second} should be logged in and is not");
    assert!(live.problems.iter().any(|text| text.starts_with(&says)), "{:?}", live.problems);
    let problems = of_node().await;
    assert!(problems.len() == 1 && problems[0].contains(&id.to_string()), "{problems:?}");

    // No alarm for a grant that no port shows, nor without a look.
    rig.storage.state().knobs.pending = true;
    let live = now().await;
    assert_eq!((live.session, live.nexus.unwrap().missing), (Some(false), false));
    rig.storage.state().knobs.pending = false;
    rig.storage.state().knobs.blind = true;
    assert!(!now().await.nexus.unwrap().missing && of_node().await.is_empty());
}
