//! Modes that change while the attachment stays: the specs of each agent, the refusals, and the
//! waits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_api::v1;
use mooring_controller::domain::{AttachmentStatus, NewAttachment, NewConnector};
use mooring_controller::http::in_words;
use mooring_controller::service::{NewMode, Refusal, Wait};
use mooring_model::{Mode, VolumeId};

/// The modes in the export's spec at the storage agent, by initiator.
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
    // The requested mode stays, whatever a connector says later.
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
    let mixed = rig.service.set_mode(&admin(), one.id, Mode::ReadWrite, LONG).await.map_err(in_words);
    assert!(matches!(&mixed, Err(Refusal::Conflict(text)) if text.contains("does not allow")), "{mixed:?}");
    let other = rig.service.set_mode(&member("q"), one.id, Mode::ReadWrite, LONG).await;
    assert!(matches!(other, Err(Refusal::NotFound { kind: "Attachment", .. })), "{other:?}");
    rig.write("UPDATE volumes SET readonly = 1");
    let flagged = rig.service.set_mode(&admin(), one.id, Mode::ReadWrite, LONG).await.map_err(in_words);
    assert!(matches!(&flagged, Err(Refusal::Invalid(text)) if text.contains("read only")), "{flagged:?}");
    assert_eq!(told(&rig, volume), before);
    let other = rig.service.create_attachment(&admin(), of(volume, Mode::ReadOnly, 2), LONG).await.unwrap();
    rig.storage.state().knobs.unproven = true;
    rig.force(other.id).await;
    let late = rig.service.set_mode(&admin(), other.id, Mode::ReadOnly, LONG).await.map_err(in_words);
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

/// The barriers in the export's spec at the storage agent, in the order of [`told`].
fn barriers(rig: &Rig, id: VolumeId) -> Vec<String> {
    let state = rig.storage.state();
    let spec = state.exports[&id.to_string()].spec.as_ref().unwrap();
    spec.grants.iter().map(|grant| grant.barrier.clone()).collect()
}

const BARRIER: NewMode = NewMode { mode: Mode::ReadOnly, barrier: true };

#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_is_asked_for_once_and_answered_when_it_is_reported() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let one = rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 1), LONG).await.unwrap();
    rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 2), LONG).await.unwrap();
    rig.service.set_mode(&admin(), one.id, Mode::ReadOnly, LONG).await.unwrap();
    assert_eq!(barriers(&rig, volume), ["", ""], "only where it was asked for");
    rig.service.set_mode(&admin(), one.id, Mode::ReadWrite, LONG).await.unwrap();

    rig.storage.state().knobs.undrained = true;
    until("the reason", async || match rig.service.set_mode(&admin(), one.id, BARRIER, SHORT).await {
        Err(Refusal::Pending(text)) if text.contains("in flight") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let told_first = barriers(&rig, volume);
    assert!(!told_first[0].is_empty() && told_first[1].is_empty(), "{told_first:?}");
    // The mode is in force, and a call without a barrier is answered.
    rig.service.set_mode(&admin(), one.id, Mode::ReadOnly, LONG).await.unwrap();
    let waits = rig.service.set_mode(&admin(), one.id, BARRIER, SHORT).await;
    assert!(matches!(waits, Err(Refusal::Pending(_))), "{waits:?}");
    assert_eq!(barriers(&rig, volume), told_first, "asked again, it is the same");
    rig.storage.state().knobs.undrained = false;
    rig.storage.publish(&volume.to_string());
    let live = rig.service.set_mode(&admin(), one.id, BARRIER, LONG).await.unwrap();
    assert_eq!(live.effective_mode, Some(Mode::ReadOnly));
    // Others come and go meanwhile. The host writes again, and its writes in flight then need
    // another barrier.
    let three = rig.service.create_attachment(&admin(), of(volume, Mode::ReadOnly, 3), LONG).await.unwrap();
    assert_eq!(barriers(&rig, volume)[0], told_first[0]);
    rig.service.set_mode(&admin(), three.id, BARRIER, LONG).await.unwrap();
    rig.service.set_mode(&admin(), one.id, Mode::ReadWrite, LONG).await.unwrap();
    assert_eq!(barriers(&rig, volume)[0], "");
    rig.service.set_mode(&admin(), one.id, BARRIER, LONG).await.unwrap();
    let now = barriers(&rig, volume);
    assert!(!now[0].is_empty() && now[0] != told_first[0] && !now[2].is_empty(), "{now:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_barrier_is_refused_with_reason_and_changes_nothing() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let one = rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 1), LONG).await.unwrap();
    rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 1), LONG).await.unwrap();
    let mut paths = of(volume, Mode::ReadWrite, 2);
    if let NewConnector::Client(connector) = &mut paths.connector {
        connector.insert("multipath".to_owned(), true.into());
    }
    let paths = rig.service.create_attachment(&admin(), paths, LONG).await.unwrap();
    let keeps = rig.service.create_attachment(&admin(), of(volume, Mode::ReadWrite, 3), LONG).await.unwrap();
    let initiator = keeps.initiator.as_ref().unwrap().to_string();
    let registration = v1::Registration { initiator, isid: "800123450001".to_owned(), key: 0xab };
    rig.storage.state().knobs.reservations =
        Some(v1::Reservations { registrations: vec![registration], ..v1::Reservations::default() });
    rig.storage.publish(&volume.to_string());
    let reserved = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    let before = told(&rig, volume);
    let refused = async |id, words: &str| {
        let answer = rig.service.set_mode(&admin(), id, BARRIER, LONG).await.map_err(in_words);
        assert!(
            matches!(&answer, Err(Refusal::Conflict(text)) if text.contains(words)),
            "{words}: {answer:?}"
        );
    };
    refused(one.id, "share its access").await;
    refused(paths.id, "multipath").await;
    refused(reserved.id, "not connected").await;
    until("the reservation to be known", async || {
        let seen = rig.service.reservations(&admin(), volume).await.unwrap().seen;
        if seen.registrations.is_empty() { Err("nobody has registered".to_owned()) } else { Ok(()) }
    })
    .await;
    refused(keeps.id, "persistent reservation").await;
    let writes = NewMode { mode: Mode::ReadWrite, barrier: true };
    let wrong = rig.service.set_mode(&admin(), one.id, writes, LONG).await.map_err(in_words);
    assert!(matches!(&wrong, Err(Refusal::Invalid(text)) if text.contains("mode ro")), "{wrong:?}");
    assert_eq!(told(&rig, volume), before);
    assert!(barriers(&rig, volume).iter().all(String::is_empty));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_gave_up_meanwhile_is_told_anew_when_it_is_asked_again() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let one = rig
        .service
        .create_attachment(&admin(), native(volume, "host1", Mode::ReadWrite), LONG)
        .await
        .unwrap();
    rig.until_attached(one.id).await;
    let told = || rig.hosts[0].state().connections[&volume.to_string()].stamp.clone().unwrap().generation;
    let refused =
        v1::Problem { object: "the session".into(), text: "refused".into(), ..v1::Problem::default() };
    rig.hosts[0].state().knobs.broken = Some((v1::ConnectionPhase::Forbidden, refused));
    // Long enough for the host to be told.
    let wait = Wait(std::time::Duration::from_secs(3));
    let waits = rig.service.set_mode(&admin(), one.id, BARRIER, wait).await;
    assert!(matches!(waits, Err(Refusal::Pending(_))), "{waits:?}");
    // The control: without a barrier the host stays as the operator left it.
    let before = told();
    drop(rig.service.set_mode(&admin(), one.id, Mode::ReadOnly, SHORT).await);
    assert_eq!(told(), before);
    rig.hosts[0].state().knobs.broken = None;
    drop(rig.service.set_mode(&admin(), one.id, BARRIER, SHORT).await);
    until(
        "the host to be told anew",
        async || {
            if told() == before { Err("not yet".to_owned()) } else { Ok(()) }
        },
    )
    .await;
}
