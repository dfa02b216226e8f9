//! Fences, driven through the service against agents in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{LONG, Rig, SHORT, admin, client, cured, member, native, reserve, until};
use mooring_api::v1;
use mooring_controller::domain::{
    Attachment, AttachmentStatus, FencePart, FenceState, HostFence, NewConnector, NewFence, VolumeStatus,
};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::{Refusal, Wait};
use mooring_model::{AttachmentId, Cause, Mode, Proof, VolumeId};
use tonic::Code;

fn because(reason: &str) -> NewFence {
    NewFence { reason: Some(reason.to_owned()), ..NewFence::default() }
}

async fn fence(rig: &Rig, name: &str, wait: Wait) -> HostFence {
    rig.service.fence_host(&admin(), name, because("its kernel hangs"), wait).await.unwrap()
}

fn parts(fence: &HostFence) -> Vec<AttachmentId> {
    let mut parts: Vec<_> = fence.parts.iter().map(|part| part.attachment).collect();
    parts.sort_unstable();
    parts
}

fn sorted<const N: usize>(mut ids: [AttachmentId; N]) -> Vec<AttachmentId> {
    ids.sort_unstable();
    ids.to_vec()
}

fn is_cut(fence: &HostFence) -> bool {
    let proven = |part: &FencePart| matches!(&part.state, FenceState::Cut(Some(receipt)) if receipt.proof == Proof::Proven);
    fence.is_proven() && fence.parts.iter().all(proven)
}

/// A server's own attachment, connected by its hypervisor.
async fn stock(rig: &Rig, volume: VolumeId, number: u32) -> Attachment {
    rig.service.create_attachment(&admin(), client(volume, number), LONG).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_cuts_one_host_off_everywhere_and_nobody_else() {
    let rig = Rig::new(2).await;
    let (one, two) = (rig.volume(true).await, rig.volume(true).await);
    let first = rig.attach(one, "host1", Mode::ReadWrite).await.attachment.id;
    let sibling = rig.attach(one, "host1", Mode::ReadOnly).await.attachment.id;
    let second = rig.attach(two, "host1", Mode::ReadOnly).await.attachment.id;
    let stays = rig.attach(one, "host2", Mode::ReadWrite).await.attachment.id;
    let calls = rig.hosts[1].state().calls.len();

    let cut = fence(&rig, "host1", LONG).await;
    assert_eq!(parts(&cut), sorted([first, sibling, second]));
    assert!(is_cut(&cut), "{cut:?}");
    assert_eq!(cut.initiators, [rig.hosts[0].state().initiator.parse::<mooring_model::Initiator>().unwrap()]);
    assert_eq!((cut.reason.as_deref(), cut.user.as_str()), (Some("its kernel hangs"), "u"));
    assert_eq!(rig.storage.granted(one), [rig.hosts[1].state().initiator.clone()]);
    assert!(rig.storage.granted(two).is_empty());
    rig.until_volume(two, VolumeStatus::Available).await;
    let other = rig.service.live(&admin(), stays, None, SHORT).await.unwrap();
    assert_eq!((other.session, rig.hosts[1].state().calls.len()), (Some(true), calls));

    // The fenced host gets nothing new; the other hosts get all.
    let refused = rig.service.create_attachment(&admin(), native(two, "host1", Mode::ReadOnly), LONG).await;
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("host unfence host1") && why.contains("its kernel hangs"), "{why}");
    rig.attach(two, "host2", Mode::ReadOnly).await;
    let hosts = rig.service.hosts(&admin()).await.unwrap();
    let said = |name: &str| hosts.iter().find(|host| host.name == name).unwrap().problems.join(" ");
    assert!(said("host1").contains("fenced") && !said("host2").contains("fenced"), "{hosts:?}");

    // A repeated call gets the same fence and the same receipt.
    let again = fence(&rig, "host1", LONG).await;
    assert_eq!(again, cut);
    assert_eq!(rig.service.fences(&admin(), false).await.unwrap(), std::slice::from_ref(&cut));

    let lifted = rig.service.unfence_host(&admin(), "host1", false).await.unwrap();
    assert!(lifted.lifted_at.is_some() && lifted.id == cut.id);
    assert!(rig.service.fences(&admin(), false).await.unwrap().is_empty());
    assert_eq!(rig.service.fences(&admin(), true).await.unwrap().len(), 1);
    assert!(matches!(
        rig.service.unfence_host(&admin(), "host1", false).await,
        Err(Refusal::NotFound { kind: "Fence", .. })
    ));
    // The host's former access does not come back; it may be granted anew.
    assert_eq!(rig.storage.granted(one).len(), 1);
    rig.attach(one, "host1", Mode::ReadWrite).await;
    assert_eq!(rig.storage.granted(one).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_connectors_is_fenced_by_its_name_or_by_its_initiator() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let (one, two) = (stock(&rig, volume, 1).await, stock(&rig, volume, 2).await);
    let host = one.attached_host.clone().unwrap();
    let cut = fence(&rig, &host, LONG).await;
    assert_eq!((parts(&cut), cut.initiators.len()), (vec![one.id], 1));
    assert!(is_cut(&cut), "{cut:?}");
    assert_eq!(rig.storage.granted(volume), [two.initiator.as_ref().unwrap().to_string()]);
    // A reserved attachment is not connected, neither by the host's name nor with its initiator
    // under another name.
    let reserved = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    let NewConnector::Client(connector) = client(volume, 1).connector else { panic!("no connector") };
    for (key, value) in [("host", "another"), ("initiator", "iqn.2026-01.org.example:another")] {
        let mut connector = connector.clone();
        connector.insert(key.to_owned(), value.into());
        let refused = rig
            .service
            .update_attachment(&admin(), reserved.id, connector, LONG)
            .await
            .map_err(in_words)
            .unwrap_err();
        assert!(matches!(&refused, Refusal::Conflict(why) if why.contains("is fenced")), "{refused:?}");
    }
    let initiator = two.initiator.as_ref().unwrap().to_string();
    let cut = fence(&rig, &initiator, LONG).await;
    assert_eq!((parts(&cut), cut.name.as_str()), (vec![two.id], initiator.as_str()));
    assert!(rig.storage.granted(volume).is_empty());
    // A host that no row names is a wrong name. An initiator may be fenced before it comes.
    let unknown = rig.service.fence_host(&admin(), "nosuch", NewFence::default(), LONG).await;
    assert!(matches!(unknown, Err(Refusal::NotFound { kind: "Host", .. })), "{unknown:?}");
    let cut = fence(&rig, "iqn.2026-01.org.example:node7", LONG).await;
    assert!(cut.parts.is_empty() && cut.is_proven());
    let refused =
        rig.service.create_attachment(&admin(), client(volume, 7), LONG).await.map_err(in_words).unwrap_err();
    assert!(refused.to_string().contains("is fenced"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_unproven_while_one_part_is() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    rig.storage.state().knobs.unproven = true;
    let cut = until("a receipt", async || {
        let cut = fence(&rig, "host1", SHORT).await;
        if cut.waits() { Err(format!("{cut:?}")) } else { Ok(cut) }
    })
    .await;
    let FenceState::Unproven(receipt) = &cut.parts[0].state else { panic!("{cut:?}") };
    assert_eq!((receipt.proof, cut.parts[0].attachment), (Proof::Unproven { in_flight: Some(3) }, id));
    assert!(!cut.is_proven());
    let refused = rig.service.unfence_host(&admin(), "host1", false).await.map_err(in_words).unwrap_err();
    assert!(matches!(&refused, Refusal::Conflict(why) if why.contains("1 of 1")), "{refused:?}");
    rig.storage.prove();
    until("the proof", async || {
        let fence = rig.service.fence(&admin(), "host1").await.unwrap();
        if is_cut(&fence) { Ok(()) } else { Err(format!("{fence:?}")) }
    })
    .await;
    rig.service.unfence_host(&admin(), "host1", false).await.unwrap();
}

/// A fence's part says it as its receipt does, proven or not. The parts of other hosts say nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_says_that_its_host_held_the_reservation() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    let initiator = rig.hosts[0].state().initiator.clone();
    {
        let knobs = &mut rig.storage.state().knobs;
        knobs.unproven = true;
        knobs.reservations = Some(v1::Reservations {
            holder: Some(v1::ReservationHolder {
                initiator: initiator.clone(),
                r#type: 7,
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    let says = |fence: &HostFence| {
        let [part] = fence.parts.as_slice() else { panic!("{fence:?}") };
        let [words] = part.warnings.as_slice() else { panic!("{fence:?}") };
        assert!(words.contains(&format!("{initiator} held the volume's reservation")), "{words}");
        assert!(words.contains("all registrants"), "{words}");
    };
    let open = until("a receipt", async || {
        let cut = fence(&rig, "host1", SHORT).await;
        if cut.waits() { Err(format!("{cut:?}")) } else { Ok(cut) }
    })
    .await;
    assert!(!open.is_proven(), "{open:?}");
    says(&open);
    rig.storage.prove();
    let cut = until("the proof", async || {
        let cut = fence(&rig, "host1", SHORT).await;
        if is_cut(&cut) { Ok(cut) } else { Err(format!("{cut:?}")) }
    })
    .await;
    says(&cut);
    rig.storage.state().knobs.unproven = false;
    let other = fence(&rig, "host2", LONG).await;
    assert!(is_cut(&other) && other.parts[0].warnings.is_empty(), "{other:?}");
}

/// Without a receipt yet, the part has the storage node's last report.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_waits_says_that_its_host_holds_the_reservation() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    let initiator = rig.hosts[0].state().initiator.clone();
    {
        let knobs = &mut rig.storage.state().knobs;
        let holder = v1::ReservationHolder { initiator: initiator.clone(), r#type: 5, ..Default::default() };
        knobs.reservations = Some(v1::Reservations { holder: Some(holder), ..Default::default() });
        knobs.refuse_revoke = Some(cured(Code::Unavailable, "its disk does not answer", "retry"));
    }
    rig.storage.publish(&volume.to_string());
    let says = |fence: &HostFence, held: &str| {
        let [part] = fence.parts.as_slice() else { panic!("{fence:?}") };
        let said = format!("{initiator} {held} the volume's reservation");
        part.warnings.len() == 1
            && part.warnings[0].contains(&said)
            && part.warnings[0].contains("registrants")
    };
    let waits = until("the note", async || {
        let cut = fence(&rig, "host1", SHORT).await;
        if says(&cut, "holds") { Ok(cut) } else { Err(format!("{cut:?}")) }
    })
    .await;
    assert!(waits.waits() && rig.storage.granted(volume).contains(&initiator), "{waits:?}");
    // The control: another part that waits and holds nothing.
    let other = fence(&rig, "host2", SHORT).await;
    assert!(other.waits() && other.parts[0].warnings.is_empty(), "{other:?}");

    rig.storage.state().knobs.refuse_revoke = None;
    let cut = until("the proof", async || {
        let cut = fence(&rig, "host1", SHORT).await;
        if is_cut(&cut) { Ok(cut) } else { Err(format!("{cut:?}")) }
    })
    .await;
    assert!(says(&cut, "held"), "{cut:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_outlives_the_controller_and_reaches_a_node_that_was_away() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up && host.why_down.is_some()).await;
    let cut = fence(&rig, "host1", SHORT).await;
    let FenceState::Waits(why) = &cut.parts[0].state else { panic!("{cut:?}") };
    assert!(why.contains("storage is down") && cut.waits(), "{why}");
    assert_eq!(rig.storage.granted(volume).len(), 1, "nothing is said to be gone that is there");
    // Although the fence is lifted, the attachment still ends.
    assert!(rig.service.unfence_host(&admin(), "host1", false).await.is_err());
    rig.service.unfence_host(&admin(), "host1", true).await.unwrap();
    let cut = fence(&rig, "host1", SHORT).await;
    assert_eq!(cut.parts.len(), 1);

    rig.restart_on("state", false).await;
    assert!(!rig.service.fence(&admin(), "host1").await.unwrap().is_proven());
    rig.storage.set_down(false);
    until("the proof", async || {
        let fence = rig.service.fence(&admin(), "host1").await.unwrap();
        if is_cut(&fence) { Ok(()) } else { Err(format!("{fence:?}")) }
    })
    .await;
    assert!(rig.storage.granted(volume).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_fence_and_with_which_words() {
    let rig = Rig::new(1).await;
    let user = member("p");
    for refused in [
        rig.service.fence_host(&user, "host1", NewFence::default(), SHORT).await.map(drop),
        rig.service.unfence_host(&user, "host1", true).await.map(drop),
        rig.service.fence(&user, "host1").await.map(drop),
        rig.service.fences(&user, true).await.map(drop),
    ] {
        assert!(
            matches!(&refused, Err(Refusal::Forbidden(why)) if why.contains("mooring:fence")),
            "{refused:?}"
        );
    }
    let long = "x".repeat(256);
    let refused = rig.service.fence_host(&admin(), "host1", because(&long), SHORT).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Invalid(why)) if why.contains("255")), "{refused:?}");
    assert!(rig.service.fences(&admin(), true).await.unwrap().is_empty());
    // A fence without a reason.
    let cut = rig.service.fence_host(&admin(), "host1", because("  "), LONG).await.unwrap();
    assert!(cut.reason.is_none() && cut.is_proven());
}

#[tokio::test(flavor = "multi_thread")]
async fn attaches_that_race_a_fence_end_without_a_grant() {
    let rig = Rig::new(1).await;
    let volumes: Vec<_> = {
        let mut made = Vec::new();
        for _ in 0..6 {
            made.push(rig.volume(true).await);
        }
        made
    };
    let mut going = tokio::task::JoinSet::new();
    for volume in &volumes {
        let service = rig.service.clone();
        let new = native(*volume, "host1", Mode::ReadWrite);
        going.spawn(async move { drop(service.create_attachment(&admin(), new, SHORT).await) });
    }
    let cut = fence(&rig, "host1", LONG).await;
    going.join_all().await;
    until("nothing of the host", async || {
        let left: Vec<_> = volumes.iter().flat_map(|volume| rig.storage.granted(*volume)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} after {cut:?}")) }
    })
    .await;
    until("the proof", async || {
        let fence = rig.service.fence(&admin(), "host1").await.unwrap();
        if fence.is_proven() { Ok(()) } else { Err(format!("{fence:?}")) }
    })
    .await;
}

fn generation_of(rig: &Rig, volume: VolumeId) -> Option<v1::Generation> {
    rig.storage.state().exports[&volume.to_string()].stamp.as_ref().and_then(|stamp| stamp.generation)
}

/// The session of a reader without write access was ended when another host reserved the volume,
/// and its grant stands. No detach happens, and the project gets one message, however often the
/// agent reports it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_reader_is_told_to_its_project_once() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    let reader = rig.attach(volume, "host2", Mode::ReadOnly).await.attachment;
    let cut = v1::Receipt {
        volume_id: volume.to_string(),
        initiator: reader.initiator.as_ref().unwrap().to_string(),
        attachment_ids: vec![reader.id.to_string()],
        generation: generation_of(&rig, volume),
        nexus_removed: true,
        held_reservation: Some(0),
        cause: v1::Cause::Reservation.into(),
        ..Default::default()
    };
    rig.storage.state().receipts.push(cut);
    let id = volume.to_string();
    rig.storage.publish(&id);
    rig.storage.prove();
    let messages = async || rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items;
    let told = until("the message", async || {
        let told = messages().await;
        if told.is_empty() { Err("none".to_owned()) } else { Ok(told) }
    })
    .await;
    for words in ["reserve volume: ", "RESERVE(6)", "its session was ended", "may log in again", "(host2)"] {
        assert!(told[0].text.contains(words), "{words:?} is not in {:?}", told[0].text);
    }
    rig.storage.publish(&id);
    rig.storage.publish(&id);
    let shown = rig.service.attachment(&admin(), reader.id).await.unwrap();
    assert_eq!(shown.status, AttachmentStatus::Attached);
    assert_eq!(messages().await.len(), 1);
    // A detach has a receipt of its own.
    let (detached, _) = rig.service.delete_attachment(&admin(), reader.id, false, LONG).await.unwrap();
    assert_eq!(detached.receipt.unwrap().cause, Cause::Revoke);
}
