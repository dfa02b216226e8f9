//! Detaches: who may be detached by force, which attachments go together, what waits for what, and
//! the records.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::sync::Arc;

use crate::support::{
    LONG, POLICIES, Rig, SHORT, admin, client, connector, cured, member, native, new_volume, put_forward,
    reserve, set_clock, until,
};
use mooring_api::v1;
use mooring_controller::domain::{
    AttachAction, AttachmentStatus, Caller, NewAttachment, NewConnector, VolumeAction, VolumeStatus,
};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::policy::Policies;
use mooring_controller::service::{Refusal, Way};
use mooring_model::{AttachmentId, Mode, Proof, ReservationsChange, VolumeId};
use tonic::Code;
use uuid::Uuid;

const USER: &str = "0123456789abcdef";

/// An attached client of a server.
async fn attached(rig: &Rig, volume: VolumeId, node: u32, server: u128) -> AttachmentId {
    let new = NewAttachment { instance: Some(Uuid::from_u128(server)), ..client(volume, node) };
    let made = rig.service.create_attachment(&admin(), new, LONG).await.unwrap();
    rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    made.id
}

fn log_in(rig: &Rig, volume: VolumeId, node: u32, yes: bool) {
    let key = (volume.to_string(), format!("iqn.2026-01.org.example:node{node}"));
    let mut sessions = rig.world.sessions.lock().unwrap();
    if yes {
        sessions.insert(key)
    } else {
        sessions.remove(&key)
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_keeps_its_disk_while_its_session_is_live_or_nobody_can_tell() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let conflict = |answer: Result<_, Refusal>| {
        let answer = answer.map_err(in_words);
        assert!(matches!(&answer, Err(Refusal::Conflict(text)) if text.contains("Compute API")));
    };
    let id = attached(&rig, volume, 1, 1).await;
    log_in(&rig, volume, 1, true);
    conflict(rig.service.delete_attachment(&admin(), id, false, LONG).await.map(drop));
    assert_eq!(rig.service.attachment(&admin(), id).await.unwrap().status, AttachmentStatus::Attached);
    assert_eq!(rig.storage.granted(volume).len(), 1);
    // Another client's session does not count for this one.
    log_in(&rig, volume, 1, false);
    let other = attached(&rig, volume, 2, 2).await;
    log_in(&rig, volume, 2, true);
    rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    log_in(&rig, volume, 2, false);
    conflict(rig.service.delete_attachment(&admin(), other, false, SHORT).await.map(drop));
    rig.storage.set_down(false);
    rig.until_host("storage", |host| host.up).await;
    // The compute service decides by itself.
    log_in(&rig, volume, 2, true);
    let service = Caller { service: true, ..admin() };
    rig.service.delete_attachment(&service, other, false, LONG).await.unwrap();
    // An attachment that was never connected, and one of no server.
    let new = NewAttachment { instance: Some(Uuid::from_u128(3)), ..reserve(volume) };
    let made = rig.service.create_attachment(&admin(), new, LONG).await.unwrap();
    rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
    let made = rig.service.create_attachment(&admin(), client(volume, 4), LONG).await.unwrap();
    log_in(&rig, volume, 4, true);
    rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
}

/// The agent answers, and its look at the sessions has come to no end, or it is an older one, which
/// does not say: what an earlier look saw says nothing of now.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_keeps_its_disk_while_its_agent_cannot_look() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let looks = |looked_now| rig.storage.state().knobs.looked_now = looked_now;
    let unknown = |answer: Result<(), Refusal>| {
        let answer = answer.map_err(in_words);
        let is_said = |text: &str| text.contains("does not say whether a session is live");
        assert!(matches!(&answer, Err(Refusal::Conflict(text)) if is_said(text)), "{answer:?}");
    };
    for (node, looked_now) in [(1, Some(false)), (2, None)] {
        let id = attached(&rig, volume, node, u128::from(node)).await;
        looks(looked_now);
        unknown(rig.service.delete_attachment(&admin(), id, false, LONG).await.map(drop));
        let detach = AttachAction::Detach { attachment: Some(id), force: false };
        let close = AttachAction::TerminateConnection { connector: Some(connector(node)) };
        for action in [detach, close] {
            unknown(rig.service.attach_action(&admin(), volume, action, LONG).await.map(drop));
        }
        assert_eq!(rig.service.attachment(&admin(), id).await.unwrap().status, AttachmentStatus::Attached);
        assert_eq!(rig.storage.granted(volume).len(), 1);
        // The compute service decides by itself.
        let service = Caller { service: true, ..admin() };
        let nova = attached(&rig, volume, node + 10, u128::from(node + 10)).await;
        rig.service.delete_attachment(&service, nova, false, LONG).await.unwrap();
        // The control: a look that has come to its end.
        looks(Some(true));
        rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
        assert!(rig.storage.granted(volume).is_empty());
    }
}

/// A report that came between question and answer does not speak for the answer: most reports are
/// made without a look at the sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_keeps_its_disk_though_a_report_overtakes_the_look() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let id = attached(&rig, volume, 1, 1).await;
    log_in(&rig, volume, 1, true);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let before = {
        let mut state = rig.storage.state();
        state.knobs.gate_of_looks = Some(Arc::clone(&gate));
        state.looks
    };
    let service = rig.service.clone();
    let detach = tokio::spawn(async move { service.delete_attachment(&admin(), id, false, LONG).await });
    until("the look", async || match rig.storage.state().looks {
        looks if looks > before => Ok(()),
        looks => Err(format!("{looks} looks")),
    })
    .await;
    log_in(&rig, volume, 1, false);
    rig.storage.publish(&volume.to_string());
    until("the report", async || {
        let live = rig.service.live(&admin(), id, Some(0), SHORT).await.unwrap();
        if live.session == Some(false) { Ok(()) } else { Err(format!("{live:?}")) }
    })
    .await;
    gate.close();
    let answer = detach.await.unwrap().map(drop).map_err(in_words);
    assert!(matches!(&answer, Err(Refusal::Conflict(text)) if text.contains("Compute API")), "{answer:?}");
    // The control: what the next look sees.
    rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_one_dead_host_go_together() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let stays = rig.attach(volume, "host2", Mode::ReadWrite).await;
    let one = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let two = rig.attach(volume, "host1", Mode::ReadOnly).await.attachment.id;
    let refused =
        rig.service.delete_attachment(&admin(), one, true, LONG).await.map_err(in_words).unwrap_err();
    assert!(matches!(&refused, Refusal::Conflict(text) if text.contains(&two.to_string())), "{refused}");
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    for id in [one, two] {
        let waits = rig.service.delete_attachment(&admin(), id, false, SHORT).await;
        assert!(matches!(waits, Err(Refusal::Pending(_))), "{waits:?}");
    }
    let caller = Caller { user: USER.to_owned(), request: "req-force".to_owned(), ..admin() };
    let (forced, _) = rig.service.delete_attachment(&caller, one, true, LONG).await.unwrap();
    let receipt = forced.receipt.unwrap();
    assert_eq!(receipt.proof, Proof::Proven);
    rig.until_gone(two).await;
    let (again, _) = rig.service.delete_attachment(&caller, one, true, LONG).await.unwrap();
    assert_eq!(again.receipt.as_ref(), Some(&receipt));
    assert_eq!(rig.storage.granted(volume).len(), 1, "the other host keeps its access");
    let live = rig.service.live(&admin(), stays.attachment.id, None, SHORT).await.unwrap();
    assert_eq!(live.session, Some(true));
    let records = rig.service.receipts(&admin(), Some(volume), None, 10).await.unwrap();
    assert_eq!(records.len(), 2);
    for record in records {
        assert!(record.forced && record.detached_at.is_some() && record.receipt.as_ref() == Some(&receipt));
        assert_eq!((record.user.as_deref(), record.request.as_deref()), (Some(USER), Some("req-force")));
        assert_eq!((record.host.as_deref(), record.project.as_str()), (Some("host1"), "p"));
    }
    let own = rig.service.receipts(&admin(), None, Some(two), 10).await.unwrap();
    assert_eq!((own.len(), own[0].mode), (1, Some(Mode::ReadOnly)));
    assert!(rig.service.receipts(&member("other"), Some(volume), None, 10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn widened_force_takes_the_whole_host_and_no_other() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    let one = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let two = rig.attach(volume, "host1", Mode::ReadOnly).await.attachment.id;
    let (receipt, others) = rig.service.detach(&admin(), one, Way::Widened, LONG).await.unwrap();
    assert_eq!(receipt.receipt.unwrap().attachments.len(), 2);
    rig.until_gone(two).await;
    assert!(!others.is_empty());
    assert_eq!(rig.storage.granted(volume).len(), 1);
    // Force is for admins, and for the compute service.
    let user = Caller { project: "p".to_owned(), ..member("p") };
    let id = attached(&rig, volume, 5, 5).await;
    let refused = rig.service.detach(&user, id, Way::Forced, LONG).await;
    assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    let service = Caller { service: true, ..user };
    rig.service.detach(&service, id, Way::Forced, LONG).await.unwrap();
}

/// Two servers on one host; the connection of the first was terminated.
#[tokio::test(flavor = "multi_thread")]
async fn a_widened_force_ends_at_once_what_has_no_grant() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let ids = [attached(&rig, volume, 1, 1).await, attached(&rig, volume, 1, 2).await];
    let service = Caller { service: true, ..admin() };
    let ends = AttachAction::TerminateConnection { connector: Some(connector(1)) };
    rig.service.attach_action(&service, volume, ends, LONG).await.unwrap();
    assert_eq!(rig.storage.granted(volume).len(), 1, "the other server keeps its access");
    let (receipt, others) = rig.service.detach(&admin(), ids[1], Way::Widened, LONG).await.unwrap();
    assert!(receipt.receipt.is_some() && others.is_empty(), "{others:?}");
    rig.until_volume(volume, VolumeStatus::Available).await;
    let records = rig.service.receipts(&admin(), Some(volume), None, 10).await.unwrap();
    let without = |id| records.iter().find(|one| one.attachment == id).unwrap().receipt.is_none();
    assert_eq!((records.len(), ids.map(without)), (2, [true, false]));
    assert!(records.iter().all(|record| record.forced && record.detached_at.is_some()), "{records:?}");
}

/// A session of the host's name is live at the target, and the host never got a connection: nobody
/// can be asked to log out. The grant is not given back, and goes when the session has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_detach_without_a_path_goes_on_when_the_session_ends() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.storage.state().knobs.pending = true;
    let new = native(volume, "host1", Mode::ReadWrite);
    let id = rig.service.create_attachment(&admin(), new, LONG).await.unwrap().id;
    until("the grant", async || {
        let granted = rig.storage.granted(volume);
        if granted.len() == 1 { Ok(()) } else { Err(format!("{granted:?}")) }
    })
    .await;
    let refusal = cured(Code::FailedPrecondition, "host1 is logged in", "fix_spec");
    rig.storage.state().knobs.refuse_revoke = Some(refusal);
    let waits = rig.service.delete_attachment(&admin(), id, false, SHORT).await;
    assert!(matches!(waits, Err(Refusal::Pending(_))), "{waits:?}");
    until("the reason", async || {
        let seen = rig.service.attachment(&admin(), id).await.unwrap();
        let says = seen.fault.as_ref().is_some_and(|fault| fault.contains("host1 is logged in"));
        if says && seen.status == AttachmentStatus::Detaching { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    rig.storage.state().knobs.refuse_revoke = None;
    rig.storage.state().knobs.pending = false;
    let (gone, _) = rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
    assert_eq!(gone.receipt.unwrap().proof, Proof::Proven);
    assert!(rig.storage.granted(volume).is_empty());
}

/// The row of a detach that an earlier release left, as the upgrade makes it: it is being revoked,
/// and the spec still has its grant. No look at that spec ends it; a repeated detach revokes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_detach_that_an_earlier_release_left_goes_on_when_repeated() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.storage.state().knobs.pending = true;
    let new = native(volume, "host1", Mode::ReadWrite);
    let id = rig.service.create_attachment(&admin(), new, LONG).await.unwrap().id;
    until("the grant", async || {
        let granted = rig.storage.granted(volume);
        if granted.len() == 1 { Ok(()) } else { Err(format!("{granted:?}")) }
    })
    .await;
    rig.service.stop().await;
    rig.write("UPDATE attachments SET status = 'detaching', access = 40, wish_epoch = 0, wish_counter = 0");
    rig.storage.state().knobs.pending = false;
    rig.restart().await;
    let (gone, _) = rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
    assert_eq!(gone.receipt.unwrap().proof, Proof::Proven);
    assert!(rig.storage.granted(volume).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unproven_end_is_in_the_records_as_such() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    rig.storage.state().knobs.unproven = true;
    rig.force(made.id).await;
    let records = rig.service.receipts(&admin(), Some(volume), None, 10).await.unwrap();
    assert_eq!((records.len(), records[0].detached_at), (1, None));
    assert_eq!(records[0].receipt.as_ref().unwrap().proof, Proof::Unproven { in_flight: Some(3) });
    rig.storage.prove();
    rig.until_gone(made.id).await;
    let records = rig.service.receipts(&admin(), Some(volume), None, 10).await.unwrap();
    assert_eq!(records[0].receipt.as_ref().unwrap().proof, Proof::Proven);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_unproven_end_does_not_cut_the_next() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let gone = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    let leaves = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    rig.storage.state().knobs.unproven = true;
    rig.force(gone.id).await;
    rig.storage.state().knobs.unproven = false;
    rig.service.delete_attachment(&admin(), leaves, false, LONG).await.unwrap();
    let calls = rig.storage.state().calls.clone();
    assert!(calls.iter().any(|call| call.ends_with("cut")), "{calls:?}");
    assert!(calls.last().unwrap().ends_with("refuse"), "{calls:?}");
    rig.storage.prove();
    rig.until_gone(gone.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_waits_for_the_end_of_a_revoke() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    rig.storage.state().knobs.unproven = true;
    let waits = rig.service.delete_attachment(&admin(), made.id, false, SHORT).await;
    assert!(matches!(waits, Err(Refusal::Pending(_))), "{waits:?}");
    let waits = rig.service.create_attachment(&admin(), client(volume, 1), SHORT).await;
    assert!(matches!(&waits, Err(Refusal::Pending(text)) if text.contains("taken away")), "{waits:?}");
    assert_eq!(
        rig.service.attachments(&admin(), ListQuery::attachments_of(volume)).await.unwrap().items.len(),
        1
    );
    let reserved = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    let service = rig.service.clone();
    let connects =
        tokio::spawn(
            async move { service.update_attachment(&admin(), reserved.id, connector(1), LONG).await },
        );
    // Another host does not wait for the revoke.
    rig.service.create_attachment(&admin(), client(volume, 2), LONG).await.unwrap();
    assert!(!connects.is_finished());
    rig.storage.prove();
    assert!(connects.await.unwrap().unwrap().connection_info.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_come_and_go_at_once() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let mut going = tokio::task::JoinSet::new();
    for number in 0..50_u32 {
        let service = rig.service.clone();
        going.spawn(async move {
            for _ in 0..3 {
                // Some clients share a host.
                let new = client(volume, number % 20);
                let made = service.create_attachment(&admin(), new, LONG).await.unwrap();
                service.complete_attachment(&admin(), made.id).await.unwrap();
                // Two detaches at once: one of them may find the attachment gone.
                let caller = admin();
                let (one, two) = tokio::join!(
                    service.delete_attachment(&caller, made.id, false, LONG),
                    service.delete_attachment(&caller, made.id, false, LONG)
                );
                assert!(one.is_ok() || two.is_ok(), "{one:?} {two:?}");
                for answer in [one, two] {
                    assert!(matches!(answer, Ok(_) | Err(Refusal::NotFound { .. })), "{answer:?}");
                }
            }
        });
    }
    going.join_all().await;
    rig.until_volume(volume, VolumeStatus::Available).await;
    assert!(rig.storage.granted(volume).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_a_connect_is_asked_for_again() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    rig.storage.state().knobs.pending = true;
    let new = || NewAttachment { instance: Some(Uuid::from_u128(1)), ..client(volume, 1) };
    let late = rig.service.create_attachment(&admin(), new(), SHORT).await;
    assert!(matches!(late, Err(Refusal::Pending(_))), "{late:?}");
    rig.storage.state().knobs.pending = false;
    let made = rig.service.create_attachment(&admin(), new(), LONG).await.unwrap();
    assert!(made.connection_info.is_some());
    assert_eq!(
        rig.service.attachments(&admin(), ListQuery::attachments_of(volume)).await.unwrap().items.len(),
        1
    );
    // Once it is attached, another attachment of the same server and host is refused, and not with
    // 409.
    rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    let twice = rig.service.create_attachment(&admin(), new(), LONG).await.map_err(in_words);
    assert!(matches!(twice, Err(Refusal::Invalid(_))), "{twice:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_by_argument_connector_and_flag() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let mut ro = connector(1);
    ro.insert("mode".to_owned(), "ro".into());
    let reserved = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    let made = rig.service.update_attachment(&admin(), reserved.id, ro.clone(), LONG).await.unwrap();
    assert_eq!((made.mode, &made.connection_info.unwrap()["access_mode"]), (Mode::ReadOnly, &"ro".into()));
    let asked = NewAttachment { mode: Some(Mode::ReadWrite), ..reserve(volume) };
    let reserved = rig.service.create_attachment(&admin(), asked, LONG).await.unwrap();
    ro.insert("initiator".to_owned(), "iqn.2026-01.org.example:node2".into());
    let made = rig.service.update_attachment(&admin(), reserved.id, ro, LONG).await.unwrap();
    assert_eq!(made.mode, Mode::ReadWrite, "what was said first");
    rig.write("UPDATE volumes SET readonly = 1");
    let made = rig.service.create_attachment(&admin(), client(volume, 3), LONG).await.unwrap();
    assert_eq!(made.mode, Mode::ReadOnly);
    let asked = NewAttachment { mode: Some(Mode::ReadWrite), ..client(volume, 4) };
    let refused = rig.service.create_attachment(&admin(), asked, LONG).await.map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    rig.write("UPDATE volumes SET readonly = 0");
    let made = rig.service.create_attachment(&admin(), client(volume, 4), LONG).await.unwrap();
    assert_eq!(made.mode, Mode::ReadWrite, "a flag that was taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_type_refuses_two_modes_on_one_host() {
    let rig = Rig::new(0).await;
    let volume = rig.strict_volume().await;
    let of = |mode, node| NewAttachment { mode: Some(mode), ..client(volume, node) };
    rig.service.create_attachment(&admin(), of(Mode::ReadOnly, 1), LONG).await.unwrap();
    let refused =
        rig.service.create_attachment(&admin(), of(Mode::ReadWrite, 1), LONG).await.map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    rig.service.create_attachment(&admin(), of(Mode::ReadOnly, 1), LONG).await.unwrap();
    rig.service.create_attachment(&admin(), of(Mode::ReadWrite, 2), LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootable_volume_is_shared_by_policy_only() {
    let text = "\"volume:multiattach_bootable_volume\": \"rule:admin_api\"\n";
    POLICIES.with(|set| set.set(Policies::parse(text, "test", false).unwrap()).unwrap());
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let user = member("p");
    for _ in 0..2 {
        rig.service.create_attachment(&user, reserve(volume), LONG).await.unwrap();
    }
    rig.write("UPDATE volumes SET bootable = 1");
    let refused = rig.service.create_attachment(&user, reserve(volume), LONG).await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(text)) if text.contains("bootable")), "{refused:?}");
    rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_delete_is_not_undone_by_a_pass_that_runs() {
    let rig = Rig::new(0).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    rig.storage.state().knobs.gate = Some(Arc::clone(&gate));
    let before = *rig.world.puts.borrow();
    let id = rig.service.create_volume(&admin(), new_volume()).await.unwrap().id;
    rig.world.puts.subscribe().wait_for(|puts| *puts > before).await.unwrap();
    rig.service.volume_action(&admin(), id, VolumeAction::ForceDelete).await.unwrap();
    gate.close();
    until("the end of the volume", async || match rig.service.volume(&admin(), id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        Ok(seen) if seen.status == VolumeStatus::Deleting => Err(format!("{seen:?}")),
        other => panic!("a deleted volume came back: {other:?}"),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_portal_that_never_answers_is_given_up() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let problem = mooring_api::v1::Problem {
        object: "portal 10.10.0.10:3260".into(),
        text: "no answer".into(),
        cure: mooring_api::v1::Cure::Retry.into(),
    };
    rig.hosts[0].state().knobs.broken = Some((mooring_api::v1::ConnectionPhase::Connecting, problem));
    let new = native(volume, "host1", Mode::ReadWrite);
    let made = rig.service.create_attachment(&admin(), new, LONG).await.unwrap();
    rig.until_live(made.id, |live| live.host_phase.as_deref() == Some("connecting")).await;
    // The control: setting the clock does not let time pass.
    set_clock(7_200);
    let passes = || rig.hosts[0].state().calls.len();
    let before = passes();
    until("two more passes", async || if passes() > before + 1 { Ok(()) } else { Err(passes().to_string()) })
        .await;
    assert_eq!(rig.service.attachment(&admin(), made.id).await.unwrap().status, AttachmentStatus::Attaching);
    // A clock that is set back delays no end.
    set_clock(-72_000);
    let fault = until("the end", async || {
        put_forward(61);
        let seen = rig.service.attachment(&admin(), made.id).await.unwrap();
        let over = seen.status == AttachmentStatus::ErrorAttaching;
        seen.fault.clone().filter(|_| over).ok_or_else(|| format!("{seen:?}"))
    })
    .await;
    assert!(fault.contains("given up after") && fault.contains("no answer"), "{fault}");
    rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_asks_only_for_what_is_old() {
    let rig = Rig::new(0).await;
    for node in 1..=3 {
        let volume = rig.volume(false).await;
        let made = rig.service.create_attachment(&admin(), client(volume, node), LONG).await.unwrap();
        rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    }
    let looks = || rig.storage.state().looks;
    // The looks that the attachments themselves caused have ended first.
    let before = until("no look for a moment", async || {
        let before = looks();
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        if looks() == before { Ok(before) } else { Err(before.to_string()) }
    })
    .await;
    assert_eq!(rig.service.live_all(&admin()).await.unwrap().len(), 3);
    assert_eq!(looks(), before + 3, "a login is not reported as it comes");
    assert_eq!(rig.service.live_all(&admin()).await.unwrap().len(), 3);
    assert_eq!(looks(), before + 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_volume_in_error_says_is_said() {
    let rig = Rig::new(0).await;
    rig.storage.state().knobs.fail_volumes = true;
    let id = rig.service.create_volume(&admin(), new_volume()).await.unwrap().id;
    rig.until_volume(id, VolumeStatus::Error).await;
    let state = rig.service.volume_state(&admin(), id).await.unwrap();
    assert!(state.volume.fault.unwrap().contains("a disk is missing"));
    let refused = rig.service.create_attachment(&admin(), reserve(id), LONG).await.map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    let new = NewAttachment { connector: NewConnector::Client(connector(1)), ..reserve(id) };
    let refused = rig.service.create_attachment(&admin(), new, LONG).await.map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
}

/// The holder of a volume's reservation is shown with its host, and once more when its attachment
/// is about to go.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_and_holds_the_reservation_is_told_of_it() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let one = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment;
    let two = rig.attach(volume, "host2", Mode::ReadWrite).await.attachment;
    let none = rig.service.reservations(&admin(), volume).await.unwrap();
    assert!(none.seen.is_empty() && none.storage == "storage");
    assert_eq!(rig.service.parting_words(&admin(), one.id).await.unwrap(), [""; 0]);
    let initiator = one.initiator.as_ref().unwrap().to_string();
    let registration =
        v1::Registration { initiator: initiator.clone(), isid: "800123450001".to_owned(), key: 0xab };
    rig.storage.state().knobs.reservations = Some(v1::Reservations {
        generation: 1,
        registrations: vec![registration],
        holder: Some(v1::ReservationHolder { initiator: initiator.clone(), r#type: 5, ..Default::default() }),
        durable: true,
        ..v1::Reservations::default()
    });
    let seen = rig.service.reservations(&admin(), volume).await.unwrap();
    assert_eq!((seen.seen.registrations[0].key, seen.seen.durable), (0xab, true));
    let holder = seen.seen.holder.unwrap().initiator;
    assert_eq!(seen.hosts.iter().find(|(one, _)| *one == holder).unwrap().1, "host1");
    let words = rig.service.parting_words(&admin(), one.id).await.unwrap();
    assert!(
        words.len() == 1 && words[0].contains(&initiator) && words[0].contains("registrants only"),
        "{words:?}"
    );
    assert_eq!(rig.service.parting_words(&admin(), two.id).await.unwrap(), [""; 0]);
    assert_eq!(rig.service.parting_words(&admin(), AttachmentId::from_u128(9)).await.unwrap(), [""; 0]);
    // The Block Storage calls have no field for warnings: the record of their detach has them, as
    // for every other call.
    for (gone, held) in [(two.id, None), (one.id, Some(5))] {
        let (detached, _) = rig.service.delete_attachment(&admin(), gone, false, LONG).await.unwrap();
        let records = rig.service.receipts(&admin(), None, Some(gone), 1).await.unwrap();
        for receipt in [detached.receipt.as_ref(), records[0].receipt.as_ref()] {
            let kind = receipt.unwrap().reservation.and_then(|held| held.kind);
            assert_eq!(kind.map(mooring_model::ReservationType::code), held, "{receipt:?}");
        }
    }
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    // The answer to an admin's change names the holder's host. The agent's refusal is passed on as
    // it is.
    let change = ReservationsChange::Preempt { key: 0xcd, abort: false };
    let refused = rig.service.change_reservations(&admin(), volume, change).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("nobody")), "{refused:?}");
    let change = ReservationsChange::Preempt { key: 0xab, abort: false };
    let [before, now] = rig.service.change_reservations(&admin(), volume, change).await.unwrap();
    assert_eq!((before.seen.registrations.len(), before.hosts.len(), now.seen.is_empty()), (1, 2, true));
    let clear = ReservationsChange::Clear;
    let [before, now] = rig.service.change_reservations(&admin(), volume, clear).await.unwrap();
    assert!(before.seen.is_empty() && now.seen.is_empty(), "asked for nothing, nothing is refused");
    // Only admins see other projects' initiators. An agent that does not answer is not "nobody".
    let user = Caller { admin: false, ..admin() };
    assert!(matches!(rig.service.reservations(&user, volume).await, Err(Refusal::Forbidden(_))));
    let refused = rig.service.change_reservations(&user, volume, clear).await;
    assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    assert!(matches!(rig.service.reservations(&admin(), volume).await, Err(Refusal::Unavailable(_))));
    let silent = rig.service.change_reservations(&admin(), volume, clear).await;
    assert!(matches!(silent, Err(Refusal::Unavailable(_))), "{silent:?}");
}
