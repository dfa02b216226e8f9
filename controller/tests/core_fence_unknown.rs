//! Fences by a database that does not know all grants of its agents, and force detaches from
//! volumes in review.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{LONG, Rig, SHORT, admin, client, until};
use mooring_api::v1;
use mooring_controller::domain::{AttachAction, FenceState, HostFence, NewFence};
use mooring_controller::http::in_words;
use mooring_controller::service::{Refusal, Wait, Way};
use mooring_model::{AttachmentId, Mode, Proof, Receipt, VolumeId};

async fn fence(rig: &Rig, name: &str, wait: Wait) -> HostFence {
    rig.service.fence_host(&admin(), name, NewFence::default(), wait).await.unwrap()
}

/// The exports of a fence, each with its receipt: all are proven.
fn proven(fence: &HostFence) -> Vec<(VolumeId, Receipt)> {
    assert!(fence.is_proven(), "{fence:?}");
    let one = |export: &mooring_controller::domain::FencedExport| match &export.state {
        FenceState::Cut(Some(receipt)) if receipt.proof == Proof::Proven => (export.volume, receipt.clone()),
        other => panic!("{other:?}"),
    };
    fence.exports.iter().map(one).collect()
}

async fn in_review(rig: &Rig, volume: VolumeId) {
    rig.until_host("storage", |host| {
        let of_it = |text: &String| text.contains("in review") && text.contains(&volume.to_string());
        host.up && host.problems.iter().any(of_it)
    })
    .await;
}

async fn is_in_review(rig: &Rig, volume: VolumeId) -> bool {
    rig.service.volume_state(&admin(), volume).await.unwrap().review.is_some()
}

fn names(rig: &Rig, host: usize) -> String {
    rig.hosts[host].state().initiator.clone()
}

/// A database from before both hosts were attached, and one from before the volume was made.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_takes_what_no_row_knows_and_nothing_else() {
    let mut rig = Rig::new(2).await;
    let kept = rig.volume(true).await;
    rig.backup("old");
    let made = rig.volume(true).await;
    for volume in [kept, made] {
        rig.attach(volume, "host1", Mode::ReadWrite).await;
        rig.attach(volume, "host2", Mode::ReadWrite).await;
    }
    rig.restart_on("old", true).await;
    for name in ["storage", "host1", "host2"] {
        rig.until_host(name, |host| host.up).await;
    }
    in_review(&rig, kept).await;
    let cut = fence(&rig, "host1", LONG).await;
    let mut volumes: Vec<_> = proven(&cut)
        .into_iter()
        .map(|(volume, receipt)| {
            assert_eq!((receipt.sessions.len(), receipt.initiator.to_string()), (1, names(&rig, 0)));
            volume
        })
        .collect();
    volumes.sort_unstable();
    let mut both = vec![kept, made];
    both.sort_unstable();
    assert_eq!((volumes, cut.parts.len()), (both.clone(), 0), "{cut:?}");
    for volume in both {
        // The control: the other host keeps its access and its session.
        assert_eq!(rig.storage.granted(volume), [names(&rig, 1)]);
        assert!(rig.world.sessions.lock().unwrap().contains(&(volume.to_string(), names(&rig, 1))));
    }
    assert!(is_in_review(&rig, kept).await);
    // A rebuild from the agent's data leaves no attachment without a grant.
    let beside = rig.storage.state().exports[&kept.to_string()].opaque.clone();
    let beside: serde_json::Value = serde_json::from_slice(&beside).unwrap();
    assert_eq!(beside["attachments"].as_array().unwrap().len(), 1, "{beside}");
    // A repeated call gets the same answer.
    assert_eq!(fence(&rig, "host1", LONG).await, cut);
    rig.service.unfence_host(&admin(), "host1", false).await.unwrap();
}

/// Receipts of grants that no row knows count as much as any.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_unproven_while_commands_of_an_unknown_grant_may_land() {
    let mut rig = Rig::new(1).await;
    rig.backup("old");
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.restart_on("old", true).await;
    rig.until_host("storage", |host| host.up).await;
    rig.storage.state().knobs.unproven = true;
    let open = until("a receipt", async || {
        let cut = fence(&rig, "host1", SHORT).await;
        if cut.waits() { Err(format!("{cut:?}")) } else { Ok(cut) }
    })
    .await;
    assert!(!open.is_proven() && rig.storage.granted(volume).is_empty(), "{open:?}");
    let FenceState::Unproven(receipt) = &open.exports[0].state else { panic!("{open:?}") };
    assert_eq!(receipt.proof, Proof::Unproven { in_flight: Some(3) });
    rig.storage.prove();
    until("the proof", async || {
        let fence = rig.service.fence(&admin(), "host1").await.unwrap();
        if fence.is_proven() { Ok(()) } else { Err(format!("{fence:?}")) }
    })
    .await;
}

/// An unheard storage node is no proof. A host without volumes that is down hides nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_unproven_while_a_storage_node_was_not_heard() {
    let mut rig = Rig::new(2).await;
    rig.backup("old");
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.storage.set_down(true);
    rig.hosts[0].set_down(true);
    rig.restart_on("old", true).await;
    rig.until_host("host2", |host| host.up).await;
    rig.until_host("storage", |host| host.why_down.is_some()).await;
    let cut = fence(&rig, "host1", SHORT).await;
    assert!(!cut.is_proven() && cut.parts.is_empty() && cut.exports.is_empty(), "{cut:?}");
    let [unknown] = cut.unknown.as_slice() else { panic!("{cut:?}") };
    assert!(unknown.node == "storage" && unknown.why.contains("down"), "{unknown:?}");
    assert_eq!(rig.storage.granted(volume), [names(&rig, 0)]);
    let refused = rig.service.unfence_host(&admin(), "host1", false).await.map_err(in_words).unwrap_err();
    assert!(matches!(&refused, Refusal::Conflict(why) if why.contains("it is not known what storage")));
    // The fence goes on by itself.
    rig.storage.set_down(false);
    let cut = until("the proof", async || {
        let fence = rig.service.fence(&admin(), "host1").await.unwrap();
        if fence.is_proven() { Ok(fence) } else { Err(format!("{fence:?}")) }
    })
    .await;
    assert_eq!(proven(&cut).len(), 1);
    assert!(rig.storage.granted(volume).is_empty());
    // A controller that has not heard the node since its start no longer knows its grants.
    rig.storage.set_down(true);
    rig.restart_on("old", false).await;
    assert!(!rig.service.fence(&admin(), "host1").await.unwrap().is_proven());
}

/// An operator gave the host access at the agent itself, while this controller was up.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_takes_what_was_granted_behind_the_controller() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    {
        let mut state = rig.storage.state();
        let kept = state.exports.get_mut(&volume.to_string()).unwrap();
        let initiator = rig.hosts[0].state().initiator.clone();
        let (spec, stamp) = (kept.spec.as_mut().unwrap(), kept.stamp.as_mut().unwrap());
        let grant = v1::Grant { initiator, attachment_ids: Vec::new(), ..spec.grants[0].clone() };
        spec.grants.push(grant);
        stamp.generation.as_mut().unwrap().counter += 5;
        stamp.digest = vec![7; 32];
    }
    rig.storage.publish(&volume.to_string());
    until("the report", async || {
        let cut = fence(&rig, "host1", LONG).await;
        if cut.exports.is_empty() { Err(format!("{cut:?}")) } else { Ok(()) }
    })
    .await;
    let cut = fence(&rig, "host1", LONG).await;
    assert_eq!(proven(&cut).len(), 1);
    assert_eq!(rig.storage.granted(volume), [names(&rig, 1)]);
}

/// Rows of a volume in review are parts like any others.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_takes_from_a_volume_in_review() {
    let mut rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let known = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    rig.backup("old");
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    rig.restart_on("old", true).await;
    for name in ["storage", "host1", "host2"] {
        rig.until_host(name, |host| host.up).await;
    }
    in_review(&rig, volume).await;
    let cut = fence(&rig, "host1", LONG).await;
    assert!(cut.is_proven() && cut.parts.len() == 1 && cut.parts[0].attachment == known, "{cut:?}");
    assert!(matches!(&cut.parts[0].state, FenceState::Cut(Some(_))), "{cut:?}");
    assert_eq!(rig.storage.granted(volume), [names(&rig, 1)]);
    assert!(is_in_review(&rig, volume).await);
}

/// A volume in review whose agent has one attachment that this database knows, and others that it
/// does not know.
async fn reviewed(before: &str, after: &[&str]) -> (Rig, VolumeId, AttachmentId) {
    let mut rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let known = rig.attach(volume, before, Mode::ReadWrite).await.attachment.id;
    rig.backup("old");
    for host in after {
        rig.attach(volume, host, Mode::ReadWrite).await;
    }
    rig.restart_on("old", true).await;
    for name in ["storage", "host1", "host2"] {
        rig.until_host(name, |host| host.up).await;
    }
    in_review(&rig, volume).await;
    (rig, volume, known)
}

#[tokio::test(flavor = "multi_thread")]
async fn force_takes_an_attachment_of_a_volume_in_review_away() {
    let (rig, volume, known) = reviewed("host1", &["host2"]).await;
    let refused = rig.service.delete_attachment(&admin(), known, false, SHORT).await;
    assert!(matches!(refused, Err(Refusal::Unavailable(_))), "{refused:?}");
    assert_eq!(rig.storage.granted(volume).len(), 2);
    let (gone, others) = rig.service.delete_attachment(&admin(), known, true, LONG).await.unwrap();
    let receipt = gone.receipt.unwrap();
    assert_eq!((receipt.proof, receipt.attachments.as_slice()), (Proof::Proven, &[known][..]));
    assert!(others.is_empty() && receipt.initiator.to_string() == names(&rig, 0));
    // No other part of the old state was sent, and the unknown host stays.
    assert_eq!(rig.storage.granted(volume), [names(&rig, 1)]);
    assert!(rig.world.sessions.lock().unwrap().contains(&(volume.to_string(), names(&rig, 1))));
    assert!(is_in_review(&rig, volume).await);
    // A repeated call gets the receipt again.
    let (again, _) = rig.service.delete_attachment(&admin(), known, true, LONG).await.unwrap();
    assert_eq!(again.receipt, Some(receipt));
    // The host hears of it when the review has ended.
    rig.world.sessions.lock().unwrap().clear();
    rig.service.confirm_review(&admin(), volume).await.unwrap();
    until("the host's end", async || {
        let state = rig.hosts[0].state();
        let kept = &state.connections[&volume.to_string()];
        if kept.spec.is_none() && kept.hard { Ok(()) } else { Err(format!("{:?}", state.calls)) }
    })
    .await;
    // The storage node is told, too, not the host alone.
    until("the end of its grants", async || {
        let left = rig.storage.granted(volume);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// No grant is revoked that no call named.
#[tokio::test(flavor = "multi_thread")]
async fn force_in_review_leaves_access_that_an_unknown_attachment_shares() {
    let (rig, volume, known) = reviewed("host1", &["host1"]).await;
    let waits = until("the reason", async || {
        match rig.service.delete_attachment(&admin(), known, true, SHORT).await {
            Err(Refusal::Pending(why)) if why.contains("widen=host") => Ok(why),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(waits.contains("does not know"), "{waits}");
    assert_eq!(rig.storage.granted(volume), [names(&rig, 0)]);
    let (gone, _) = rig.service.detach(&admin(), known, Way::Widened, LONG).await.unwrap();
    assert_eq!(gone.receipt.unwrap().attachments.len(), 2);
    assert!(rig.storage.granted(volume).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unproven_end_in_review_is_not_forgotten_by_its_confirmation() {
    let (rig, volume, known) = reviewed("host1", &["host2"]).await;
    rig.storage.state().knobs.unproven = true;
    let receipt = rig.force(known).await;
    assert_eq!(receipt.proof, Proof::Unproven { in_flight: Some(3) });
    rig.storage.state().knobs.unproven = false;
    rig.world.sessions.lock().unwrap().clear();
    rig.service.confirm_review(&admin(), volume).await.unwrap();
    until("the confirmed state", async || {
        let granted = rig.storage.granted(volume);
        if granted.is_empty() { Ok(()) } else { Err(format!("{granted:?}")) }
    })
    .await;
    assert_eq!(rig.force(known).await.generation, receipt.generation);
    assert!(rig.service.attachment(&admin(), known).await.is_ok(), "it is there until it is proven");
    rig.storage.prove();
    rig.until_gone(known).await;
    let kept = rig.service.receipt(&admin(), known).await.unwrap().receipt.unwrap();
    assert_eq!((kept.proof, kept.generation), (Proof::Proven, receipt.generation));
}

/// Right after a restore it is unknown if there was another history.
#[tokio::test(flavor = "multi_thread")]
async fn force_before_the_agent_is_heard_waits_for_it_and_overwrites_nothing() {
    for ahead in [false, true] {
        let mut rig = Rig::new(2).await;
        let volume = rig.volume(true).await;
        let known = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
        rig.backup("old");
        if ahead {
            rig.attach(volume, "host2", Mode::ReadWrite).await;
        }
        rig.storage.set_down(true);
        rig.restart_on("old", true).await;
        rig.until_host("storage", |host| host.why_down.is_some()).await;
        let refused = rig.service.delete_attachment(&admin(), known, true, SHORT).await.unwrap_err();
        assert!(matches!(&refused, Refusal::Pending(why) if why.contains("storage is down")), "{refused:?}");
        assert_eq!(rig.storage.granted(volume).len(), 1 + usize::from(ahead));
        rig.storage.set_down(false);
        rig.until_gone(known).await;
        let receipt = rig.service.receipt(&admin(), known).await.unwrap().receipt.unwrap();
        assert_eq!((receipt.proof, receipt.attachments.as_slice()), (Proof::Proven, &[known][..]));
        let left = if ahead { vec![names(&rig, 1)] } else { Vec::new() };
        assert_eq!(rig.storage.granted(volume), left);
        assert_eq!(is_in_review(&rig, volume).await, ahead);
    }
}

/// Hosts of old attachments: one is dead, and no configuration names another any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_confirmed_although_its_hosts_are_dead_or_unknown() {
    let mut rig = Rig::new(3).await;
    let volume = rig.volume(true).await;
    for host in ["host1", "host2", "host3"] {
        rig.attach(volume, host, Mode::ReadWrite).await;
    }
    let gone = rig.service.live_all(&admin()).await.unwrap();
    let of_two = gone.iter().find(|live| live.attachment.attached_host.as_deref() == Some("host2"));
    rig.service.delete_attachment(&admin(), of_two.unwrap().attachment.id, false, LONG).await.unwrap();
    rig.backup("old");
    let after = rig.service.create_attachment(&admin(), client(volume, 9), LONG).await.unwrap();
    rig.service.delete_attachment(&admin(), after.id, true, LONG).await.unwrap();
    // The first host is dead; the second had disconnected and is dead, too; no configuration names
    // the third.
    rig.hosts[0].set_down(true);
    rig.hosts[1].set_down(true);
    rig.names.retain(|name| name != "host3");
    rig.restart_on("old", true).await;
    in_review(&rig, volume).await;
    rig.service.confirm_review(&admin(), volume).await.unwrap();
    until("the confirmed state", async || {
        let granted = rig.storage.granted(volume);
        if granted.len() == 2 { Ok(()) } else { Err(format!("{granted:?}")) }
    })
    .await;
    // A dead host's old specs are older than the confirmed ones, and put nothing in review.
    rig.hosts[0].state().connections.values_mut().for_each(|kept| {
        let generation = kept.stamp.as_mut().unwrap().generation.as_mut().unwrap();
        generation.counter += 1_000;
    });
    rig.hosts[0].set_down(false);
    rig.hosts[1].set_down(false);
    rig.until_host("host1", |host| host.up).await;
    rig.until_host("host2", |host| host.up).await;
    let told = rig.hosts[0].state().id;
    until("the host is told anew", async || {
        let state = rig.hosts[0].state();
        let stamp = state.connections[&volume.to_string()].stamp.clone().unwrap();
        let (epoch, calls) = (stamp.generation.unwrap().epoch, &state.calls);
        if epoch > 1 { Ok(()) } else { Err(format!("{told}: {calls:?}")) }
    })
    .await;
    assert!(!is_in_review(&rig, volume).await);
    rig.attach(volume, "host2", Mode::ReadOnly).await;
}

/// Both attachments of a host have announced their detaches.
#[tokio::test(flavor = "multi_thread")]
async fn a_widened_force_in_review_uses_the_announcements_of_all_that_go() {
    let mut rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let mut ids = Vec::new();
    for host in ["host1", "host1"] {
        ids.push(rig.attach(volume, host, Mode::ReadWrite).await.attachment.id);
    }
    let twice = async |action: AttachAction| {
        for _ in 0..2 {
            rig.service.attach_action(&admin(), volume, action.clone(), LONG).await.unwrap();
        }
    };
    twice(AttachAction::BeginDetaching).await;
    rig.backup("old");
    twice(AttachAction::RollDetaching).await;
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    rig.restart_on("old", true).await;
    in_review(&rig, volume).await;
    assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, 2);
    rig.service.detach(&admin(), ids[0], Way::Widened, LONG).await.unwrap();
    assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().holds, 0);
}
