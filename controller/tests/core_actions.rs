//! The older calls for attachments, and their announcements: the same attachments, by the same
//! rules.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::time::{Duration, Instant};

use crate::support::{LONG, Rig, admin, client, connector, new_volume, reserve, set_clock, until};
use mooring_api::v1;
use mooring_controller::domain::{
    AttachAction, AttachmentStatus, Caller, NewAttachment, NewVolume, VolumeAction, VolumeStatus,
};
use mooring_controller::error::RuleAnswer;
use mooring_controller::http::in_words;
use mooring_controller::service::{Refusal, Way};
use mooring_model::{AttachmentId, Mode, Source, VolumeId};
use serde_json::Value;
use uuid::Uuid;

type Done = Result<Option<serde_json::Map<String, Value>>, Refusal>;

async fn act(rig: &Rig, volume: VolumeId, action: AttachAction) -> Done {
    rig.service.attach_action(&service(), volume, action, LONG).await
}

fn service() -> Caller {
    Caller { service: true, ..admin() }
}

fn attach(server: u128) -> AttachAction {
    let instance = Some(Uuid::from_u128(server));
    AttachAction::Attach { instance, host: None, mountpoint: "/dev/vdb".to_owned(), mode: None }
}

fn open(node: u32) -> AttachAction {
    AttachAction::InitializeConnection { connector: connector(node) }
}

fn close(node: u32) -> AttachAction {
    AttachAction::TerminateConnection { connector: Some(connector(node)) }
}

const fn detach(attachment: Option<AttachmentId>) -> AttachAction {
    AttachAction::Detach { attachment, force: false }
}

async fn status(rig: &Rig, volume: VolumeId) -> VolumeStatus {
    rig.service.volume(&admin(), volume).await.unwrap().status
}

fn is_invalid(done: &Done) {
    let invalid = matches!(done, Err(Refusal::Invalid(_) | Refusal::Rule(RuleAnswer::Invalid, _)));
    assert!(invalid, "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_way_in_and_out() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    act(&rig, volume, AttachAction::Reserve).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Attaching);
    is_invalid(&act(&rig, volume, AttachAction::Reserve).await);
    let refused = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    let info = act(&rig, volume, open(1)).await.unwrap().unwrap();
    assert_eq!(info["access_mode"], "rw");
    assert_eq!(act(&rig, volume, open(1)).await.unwrap().unwrap(), info, "found, not made again");
    is_invalid(&act(&rig, volume, open(2)).await);
    assert_eq!(rig.storage.granted(volume).len(), 1);
    act(&rig, volume, attach(7)).await.unwrap();
    act(&rig, volume, attach(7)).await.unwrap();
    is_invalid(&act(&rig, volume, attach(8)).await);
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!((seen.status, seen.attachments.len()), (VolumeStatus::InUse, 1));
    let own = &seen.attachments[0];
    assert_eq!((own.instance, own.mountpoint.as_deref()), (Some(Uuid::from_u128(7)), Some("/dev/vdb")));

    act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Detaching);
    is_invalid(&act(&rig, volume, AttachAction::BeginDetaching).await);
    act(&rig, volume, AttachAction::RollDetaching).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::InUse);
    act(&rig, volume, AttachAction::RollDetaching).await.unwrap();
    act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
    // The connection ends; the attachment stays until it is detached, and can be connected again.
    act(&rig, volume, close(1)).await.unwrap();
    assert_eq!((rig.storage.granted(volume).len(), status(&rig, volume).await), (0, VolumeStatus::Detaching));
    assert!(act(&rig, volume, open(1)).await.unwrap().is_some());
    assert_eq!(rig.storage.granted(volume).len(), 1);
    act(&rig, volume, close(1)).await.unwrap();
    act(&rig, volume, detach(None)).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Available);
    act(&rig, volume, detach(Some(own.id))).await.unwrap();
    act(&rig, volume, detach(None)).await.unwrap();
    assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, 0, "used by the detach");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_does_not_come_leaves_nothing() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    act(&rig, volume, AttachAction::Reserve).await.unwrap();
    act(&rig, volume, AttachAction::Unreserve).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Available);
    act(&rig, volume, AttachAction::Unreserve).await.unwrap();
    act(&rig, volume, AttachAction::Reserve).await.unwrap();
    act(&rig, volume, open(1)).await.unwrap();
    act(&rig, volume, close(1)).await.unwrap();
    act(&rig, volume, AttachAction::Unreserve).await.unwrap();
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!((seen.status, seen.attachments.len()), (VolumeStatus::Available, 0));
    // Without a connection, the call names the server and grants nothing.
    act(&rig, volume, attach(7)).await.unwrap();
    assert_eq!((status(&rig, volume).await, rig.storage.granted(volume).len()), (VolumeStatus::InUse, 0));
    act(&rig, volume, AttachAction::Detach { attachment: None, force: true }).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Available);
}

fn is_conflict(done: &Done, words: &str) {
    match done {
        Err(Refusal::Conflict(text)) if text.contains(words) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_that_never_was_cannot_be_detached() {
    let rig = Rig::new(0).await;
    let (volume, other) = (rig.volume(false).await, rig.volume(false).await);
    let never = AttachmentId::from_u128(1);
    for force in [false, true] {
        let named = AttachAction::Detach { attachment: Some(never), force };
        is_conflict(&act(&rig, volume, named).await, "no record of one");
        let unnamed = AttachAction::Detach { attachment: None, force };
        is_conflict(&act(&rig, volume, unnamed).await, "no record of one");
    }
    // A reservation is no attachment: it is taken back, and not detached.
    act(&rig, volume, AttachAction::Reserve).await.unwrap();
    is_conflict(&act(&rig, volume, detach(None)).await, "no record of one");
    // One that is gone counts as detached, with its id and without; one of another volume does not.
    act(&rig, volume, attach(7)).await.unwrap();
    let own = rig.service.volume(&admin(), volume).await.unwrap().attachments[0].id;
    for attachment in [None, None, Some(own), Some(own)] {
        act(&rig, volume, detach(attachment)).await.unwrap();
        assert_eq!(status(&rig, volume).await, VolumeStatus::Available);
    }
    is_conflict(&act(&rig, other, detach(Some(own))).await, "no record of one");
    is_conflict(&act(&rig, volume, detach(Some(never))).await, "no record of one");
    // Its record went by age: nobody knows any more that it was there, and the text says no more.
    rig.write(&format!("DELETE FROM detached WHERE id = '{own}'"));
    is_conflict(&act(&rig, volume, detach(Some(own))).await, "no record of one");
    is_conflict(&act(&rig, volume, detach(None)).await, "no record of one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_connector_ends_the_connection_that_it_names() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    for node in [1, 2] {
        rig.service.create_attachment(&admin(), client(volume, node), LONG).await.unwrap();
    }
    let as_user = async |action| rig.service.attach_action(&admin(), volume, action, LONG).await;
    is_conflict(&as_user(AttachAction::TerminateConnection { connector: None }).await, "names none");
    is_conflict(&as_user(close_by(&["host"])).await, "names none");
    assert_eq!(rig.storage.granted(volume).len(), 2);
    // A repeated call finds it ended.
    for _ in 0..2 {
        as_user(close(1)).await.unwrap();
        let left = rig.storage.granted(volume);
        assert!(left.len() == 1 && left[0].ends_with("node2"), "{left:?}");
    }
    // Two attachments share the connection of one host, and the connector names both.
    for node in [1, 1] {
        rig.service.create_attachment(&admin(), client(volume, node), LONG).await.unwrap();
    }
    is_conflict(&as_user(close(1)).await, "share this connector's initiator");
    as_user(close(2)).await.unwrap();
    let left = rig.storage.granted(volume);
    assert!(left.len() == 1 && left[0].ends_with("node1"), "{left:?}");
}

/// Ends a connection by a connector with only these keys of node 1's.
fn close_by(keys: &[&str]) -> AttachAction {
    let words = connector(1).into_iter().filter(|(key, _)| keys.contains(&key.as_str())).collect();
    AttachAction::TerminateConnection { connector: Some(words) }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_the_one_that_is_meant_is_said() {
    let rig = Rig::new(0).await;
    let (volume, other) = (rig.volume(true).await, rig.volume(false).await);
    for node in [1, 2] {
        act(&rig, volume, AttachAction::Reserve).await.unwrap();
        act(&rig, volume, open(node)).await.unwrap();
    }
    // Two connections wait, and a server's id does not say which one is meant.
    is_invalid(&act(&rig, volume, attach(7)).await);
    for (node, narrow) in [(1, 1), (2, 2)] {
        let host = Some(format!("node{node}"));
        let mountpoint = "/dev/vdb".to_owned();
        let action = AttachAction::Attach { instance: None, host, mountpoint, mode: Some(Mode::ReadOnly) };
        act(&rig, volume, action).await.unwrap();
        // The grant was wider: at the answer it no longer is.
        let export = rig.storage.state().exports[&volume.to_string()].spec.clone().unwrap();
        let read_only = |grant: &&v1::Grant| grant.mode() == v1::Mode::ReadOnly;
        assert_eq!(export.grants.iter().filter(read_only).count(), narrow, "{export:?}");
    }
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert!(seen.attachments.iter().all(|one| one.mode == Mode::ReadOnly));
    is_invalid(&act(&rig, volume, detach(None)).await);
    is_invalid(&act(&rig, volume, AttachAction::Detach { attachment: None, force: true }).await);
    let ids: Vec<_> = seen.attachments.iter().map(|one| one.id).collect();
    is_invalid(&act(&rig, other, detach(Some(ids[0]))).await);
    let unnamed = AttachAction::TerminateConnection { connector: None };
    let user = rig.service.attach_action(&admin(), volume, unnamed, LONG).await;
    is_conflict(&user, "has 2 attachments, and this call names none");
    assert_eq!(rig.storage.granted(volume).len(), 2);
    let forced = AttachAction::Detach { attachment: Some(ids[0]), force: true };
    act(&rig, volume, forced.clone()).await.unwrap();
    act(&rig, volume, forced).await.unwrap();
    assert_eq!(rig.storage.granted(volume).len(), 1);
    act(&rig, volume, detach(Some(ids[1]))).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Available);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_detach_of_a_shared_volume_holds_up_other_servers_only() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let of = |server: u128| NewAttachment { instance: Some(Uuid::from_u128(server)), ..reserve(volume) };
    let mut ids = Vec::new();
    for server in [1, 2] {
        let made = rig.service.create_attachment(&admin(), of(server), LONG).await.unwrap();
        rig.service.complete_attachment(&admin(), made.id).await.unwrap();
        ids.push(made.id);
    }
    act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::InUse);
    let refused = rig.service.create_attachment(&admin(), of(3), LONG).await.map_err(in_words);
    assert!(
        matches!(&refused, Err(Refusal::Invalid(text)) if text.contains("begin_detaching")),
        "{refused:?}"
    );
    let moves = rig.service.create_attachment(&admin(), of(1), LONG).await.unwrap();
    rig.service.delete_attachment(&admin(), moves.id, false, LONG).await.unwrap();
    assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, 1, "a reservation was none");
    // The detach that was announced begins.
    rig.service.delete_attachment(&admin(), ids[0], false, LONG).await.unwrap();
    assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, 0);
    rig.service.create_attachment(&admin(), of(3), LONG).await.unwrap();
}

/// A rig on which announcements end after this time.
async fn holding(hold: Duration) -> Rig {
    let rig = Rig::quiet_with(0, move |options| (options.hold, options.reserve) = (hold, hold));
    rig.up().await;
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_detach_ends_although_the_clock_steps_back() {
    for step in [-7_200, 0, 7_200] {
        let rig = holding(Duration::from_secs(1)).await;
        let volume = rig.volume(true).await;
        let of = |server: u128| NewAttachment { instance: Some(Uuid::from_u128(server)), ..reserve(volume) };
        let made = rig.service.create_attachment(&admin(), of(1), LONG).await.unwrap();
        rig.service.complete_attachment(&admin(), made.id).await.unwrap();
        let began = Instant::now();
        act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
        set_clock(step);
        // The control: the announcement holds for its full time, and a clock that is set does not
        // end it.
        let refused = rig.service.create_attachment(&admin(), of(2), LONG).await.map_err(in_words);
        if began.elapsed() < Duration::from_secs(1) {
            assert!(matches!(refused, Err(Refusal::Invalid(_))), "{step}: {refused:?}");
        }
        until("the end of the announcement", async || {
            let made = rig.service.create_attachment(&admin(), of(2), LONG).await;
            made.map(drop).map_err(|refusal| refusal.to_string())
        })
        .await;
        assert!(began.elapsed() >= Duration::from_secs(1), "{step}");
        assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_detach_is_armed_anew_at_a_start() {
    let mut rig = holding(Duration::from_secs(1)).await;
    let volume = rig.volume(false).await;
    act(&rig, volume, attach(7)).await.unwrap();
    act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
    set_clock(-7_200);
    rig.service.stop().await;
    // It is there at the start, also if this thread was late and it has ended meanwhile.
    rig.write("UPDATE volumes SET holds = 1, holds_until_us = 5, status = 'detaching'");
    let began = Instant::now();
    rig.restart().await;
    rig.until_volume(volume, VolumeStatus::InUse).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "the time before the start does not count");
}

/// Each of the two servers of one host announces its detach, and the host is cut off as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_widened_force_uses_the_announcements_of_all_that_go() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let mut ids = Vec::new();
    for host in ["host1", "host1", "host2"] {
        ids.push(rig.attach(volume, host, Mode::ReadWrite).await.attachment.id);
    }
    // One announcement is of the other host.
    for holds in 1..=3 {
        act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
        assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, holds);
    }
    rig.service.detach(&admin(), ids[0], Way::Widened, LONG).await.unwrap();
    rig.until_gone(ids[1]).await;
    assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, 1);
    rig.service.detach(&admin(), ids[2], Way::Forced, LONG).await.unwrap();
    rig.attach(volume, "host1", Mode::ReadWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_announcement_ends_later() {
    let rig = holding(Duration::from_secs(1)).await;
    let volume = rig.volume(false).await;
    act(&rig, volume, attach(7)).await.unwrap();
    act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    act(&rig, volume, AttachAction::RollDetaching).await.unwrap();
    act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
    let began = Instant::now();
    rig.until_volume(volume, VolumeStatus::InUse).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "the end of the first is not its end");
}

/// Asserts that a refusal names one announced attachment.
fn is_named<T: std::fmt::Debug>(refused: Result<T, Refusal>) {
    let refused = refused.map_err(in_words);
    let named = |text: &String| text.contains("1 announced by os-reserve");
    assert!(matches!(&refused, Err(Refusal::Invalid(text)) if named(text)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_attachment_ends_although_the_clock_steps_back() {
    for step in [-7_200, 0, 7_200] {
        let rig = holding(Duration::from_secs(1)).await;
        let volume = rig.volume(false).await;
        let began = Instant::now();
        act(&rig, volume, AttachAction::Reserve).await.unwrap();
        set_clock(step);
        // The control: the announcement holds for its full time.
        let refused = rig.service.volume_action(&admin(), volume, VolumeAction::SetReadonly(false)).await;
        if began.elapsed() < Duration::from_secs(1) {
            is_named(refused);
        }
        rig.until_volume(volume, VolumeStatus::Available).await;
        assert!(began.elapsed() >= Duration::from_secs(1), "{step}");
        assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().reserved, 0);
        rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_attachment_is_armed_anew_at_a_start() {
    // An earlier release kept no mark.
    for mark in ["5", "NULL"] {
        let mut rig = holding(Duration::from_secs(1)).await;
        let volume = rig.volume(false).await;
        act(&rig, volume, AttachAction::Reserve).await.unwrap();
        set_clock(-7_200);
        rig.service.stop().await;
        // It is there at the start, also if this thread was late and it has ended meanwhile.
        rig.write(&format!(
            "UPDATE volumes SET reserved = 1, reserved_until_us = {mark}, status = 'attaching', attach_status = 'attaching'"
        ));
        let began = Instant::now();
        rig.restart().await;
        rig.until_volume(volume, VolumeStatus::Available).await;
        assert!(began.elapsed() >= Duration::from_secs(1), "the time before the start does not count");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admins_reset_ends_what_was_announced() {
    let rig = Rig::new(0).await;
    let reset = |status, attached| VolumeAction::ResetStatus { status, attached };
    for (status_said, attached, ends) in [
        (Some(VolumeStatus::Available), None, VolumeStatus::Available),
        (Some(VolumeStatus::Error), None, VolumeStatus::Error),
        (None, Some(false), VolumeStatus::Available),
    ] {
        let volume = rig.volume(false).await;
        act(&rig, volume, AttachAction::Reserve).await.unwrap();
        // Whatever waits for the announced attachment says so.
        is_named(rig.service.delete_volume(&admin(), volume).await);
        is_named(rig.service.create_attachment(&admin(), reserve(volume), LONG).await);
        is_named(act(&rig, volume, AttachAction::Reserve).await);
        let extend = VolumeAction::Extend { size_gib: 2, online: true };
        is_named(rig.service.volume_action(&admin(), volume, extend).await);
        let copy = NewVolume { source: Some(Source::Volume(volume)), ..new_volume() };
        is_named(rig.service.create_volume(&admin(), copy).await);
        // A status in which no volume rests ends nothing.
        is_named(
            rig.service.volume_action(&admin(), volume, reset(Some(VolumeStatus::Reserved), None)).await,
        );
        rig.service.volume_action(&admin(), volume, reset(status_said, attached)).await.unwrap();
        assert_eq!(status(&rig, volume).await, ends);
        assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().reserved, 0);
        rig.service.delete_volume(&admin(), volume).await.unwrap();
    }
    // A detach that was announced and did not come ends, too.
    let volume = rig.volume(false).await;
    act(&rig, volume, attach(7)).await.unwrap();
    act(&rig, volume, AttachAction::BeginDetaching).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Detaching);
    rig.service.volume_action(&admin(), volume, reset(Some(VolumeStatus::InUse), None)).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::InUse);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_calls_and_the_newer_see_the_same_attachments() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    let info = act(&rig, volume, open(1)).await.unwrap().unwrap();
    assert_eq!(Some(info), made.connection_info);
    rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    act(&rig, volume, detach(None)).await.unwrap();
    until("the end", async || match rig.service.attachment(&admin(), made.id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    act(&rig, volume, open(2)).await.unwrap();
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!(seen.attachments[0].status, AttachmentStatus::Attaching);
    rig.service.delete_attachment(&admin(), seen.attachments[0].id, false, LONG).await.unwrap();
    assert_eq!(status(&rig, volume).await, VolumeStatus::Available);
}
