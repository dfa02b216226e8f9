//! Hosts that their target shut out although their grants hold.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{Rig, admin, put_forward, until};
use mooring_api::v1;
use mooring_model::{Mode, VolumeId};

/// The generation of the connection's spec at the host.
fn told(rig: &Rig, volume: VolumeId) -> Option<v1::Generation> {
    rig.hosts[0].state().connections[&volume.to_string()].stamp.clone().unwrap().generation
}

/// Lets the host report that it has ended its session in this phase.
fn ends(rig: &Rig, volume: VolumeId, phase: v1::ConnectionPhase) {
    let refused = v1::Problem {
        object: "the session".into(),
        text: "the target has no ACL for its name".into(),
        cure: v1::Cure::Operator.into(),
    };
    rig.hosts[0].state().knobs.broken = Some((phase, refused));
    rig.hosts[0].publish_connection(&volume.to_string());
}

/// Lets time pass, and the host report again: its job looks again.
fn later(rig: &Rig, volume: VolumeId) {
    put_forward(21);
    rig.hosts[0].publish_connection(&volume.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_shut_out_is_told_anew_when_its_access_is_back() {
    let cases = [(v1::ConnectionPhase::Forbidden, "forbidden"), (v1::ConnectionPhase::Failed, "failed")];
    for (phase, word) in cases {
        let rig = Rig::new(1).await;
        let volume = rig.volume(false).await;
        let made = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
        rig.until_quiet().await;
        let before = told(&rig, volume);
        // Somebody takes the ACL away by hand, and the host gives up.
        rig.storage.state().knobs.pending = true;
        rig.storage.publish(&volume.to_string());
        ends(&rig, volume, phase);
        rig.until_live(made, |live| live.host_phase.as_deref() == Some(word)).await;
        // The control: the target is looked at, and does not show the access.
        let looks = rig.storage.state().looks;
        until("looks at the target", async || {
            later(&rig, volume);
            let now = rig.storage.state().looks;
            if now > looks + 1 { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
        assert_eq!(told(&rig, volume), before, "{word}");
        // The agent puts it back, and the host goes on being refused: it is told anew.
        rig.storage.state().knobs.pending = false;
        until("a newer spec", async || {
            later(&rig, volume);
            if told(&rig, volume) == before { Err(format!("{before:?}")) } else { Ok(()) }
        })
        .await;
        // Refused for another reason, it is told no more until a longer pause is over.
        rig.until_quiet().await;
        let again = told(&rig, volume);
        for _ in 0..10 {
            rig.hosts[0].publish_connection(&volume.to_string());
        }
        rig.until_quiet().await;
        assert_eq!(told(&rig, volume), again, "{word}");
        // Admitted at last, it has its disk again.
        rig.hosts[0].state().knobs.broken = None;
        let status = rig.service.attachment(&admin(), made).await.unwrap().status;
        assert_eq!(status, mooring_controller::domain::AttachmentStatus::Attached);
        rig.hosts[0].publish_connection(&volume.to_string());
        rig.until_live(made, |live| live.host_phase.as_deref() == Some("ready")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_recovers_or_is_detached_is_not_told_anew() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let made = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    rig.until_quiet().await;
    let before = told(&rig, volume);
    // It tries by itself: each of these reports is one more pass of its job.
    ends(&rig, volume, v1::ConnectionPhase::Recovering);
    rig.until_live(made, |live| live.host_phase.as_deref() == Some("recovering")).await;
    for _ in 0..3 {
        later(&rig, volume);
        rig.until_quiet().await;
    }
    assert_eq!(told(&rig, volume), before);
    // Forced away, it gets a tombstone and nothing after it.
    ends(&rig, volume, v1::ConnectionPhase::Forbidden);
    rig.force(made).await;
    rig.until_gone(made).await;
    let is_told = |call: &String| call.starts_with("connection ") && call.ends_with(" revoked");
    until("the tombstone", async || {
        let calls = rig.hosts[0].state().calls.clone();
        if calls.last().is_some_and(is_told) { Ok(()) } else { Err(format!("{calls:?}")) }
    })
    .await;
    for _ in 0..3 {
        later(&rig, volume);
        rig.until_quiet().await;
    }
    let calls = rig.hosts[0].state().calls.clone();
    assert!(calls.last().is_some_and(is_told), "{calls:?}");
}
