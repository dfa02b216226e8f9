//! Rotated secrets: the order in which agents are told, kills at each step, refusals, and waits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_api::v1;
use mooring_controller::domain::{AttachmentLive, NewAttachment, Rotating};
use mooring_controller::http::in_words;
use mooring_controller::service::{NewSecrets, Refusal, Wait, Way};
use mooring_model::{AttachmentId, Mode, VolumeId};

/// A pair of secrets, the initiator's and the target's.
type Pair = (String, Option<String>);

fn pair(chap: &v1::Chap) -> Pair {
    (chap.initiator.clone().unwrap().secret, chap.mutual.clone().map(|side| side.secret))
}

/// The secrets in the export's spec at the storage agent, by initiator.
fn at_target(rig: &Rig, id: VolumeId) -> Vec<Pair> {
    let state = rig.storage.state();
    let spec = state.exports[&id.to_string()].spec.clone().unwrap();
    spec.grants.iter().map(|grant| pair(grant.chap.as_ref().unwrap())).collect()
}

/// The secrets in a host's spec: the ones in use, and those beside them.
fn at_host(rig: &Rig, host: usize, id: VolumeId) -> (Pair, Option<Pair>) {
    let state = rig.hosts[host].state();
    let spec = state.connections[&id.to_string()].spec.clone().unwrap();
    (pair(spec.chap.as_ref().unwrap()), spec.other_chap.as_ref().map(pair))
}

async fn rotate(
    rig: &Rig,
    id: VolumeId,
    new: NewSecrets,
    wait: Wait,
) -> Result<Vec<AttachmentLive>, Refusal> {
    rig.service.rotate_secrets(&admin(), id, new, wait).await
}

fn of(id: AttachmentId) -> NewSecrets {
    NewSecrets { attachment: Some(id), force: false }
}

async fn live(rig: &Rig, id: AttachmentId) -> AttachmentLive {
    rig.service.live(&admin(), id, None, SHORT).await.unwrap()
}

fn all() -> NewSecrets {
    NewSecrets::default()
}

/// The new secrets, once the first host has them.
async fn until_offered(rig: &Rig, volume: VolumeId) -> Pair {
    until("the host is told", async || at_host(rig, 0, volume).1.ok_or_else(|| "one secret".to_owned())).await
}

async fn until_waits_for(rig: &Rig, id: AttachmentId, who: Option<Rotating>) {
    until("the rotation stands there", async || {
        let found = live(rig, id).await.secret_rotation;
        if found == who { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_knows_both_before_the_target_gets_the_new_one() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let one = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let two = rig.attach(volume, "host2", Mode::ReadOnly).await.attachment.id;
    assert_eq!(live(&rig, one).await.secret_rotated_at, None);
    let before = at_target(&rig, volume);
    assert!(before.iter().all(|(_, mutual)| mutual.is_some()), "hosts of ours prove the target");
    let (mine, other) = at_host(&rig, 0, volume);
    assert_eq!(other, None);

    // The host cannot store a second secret: the target's spec stays.
    rig.hosts[0].state().knobs.keeps_one_secret = true;
    let waits = rotate(&rig, volume, of(one), SHORT).await;
    let says = |text: &str| text.contains("host1 does not know") && text.contains("gets in");
    assert!(matches!(&waits, Err(Refusal::Pending(text)) if says(text)), "{waits:?}");
    assert_eq!(
        (at_target(&rig, volume), live(&rig, one).await.secret_rotation),
        (before.clone(), Some(Rotating::Host))
    );
    let new = until_offered(&rig, volume).await;
    let (own, _) = at_host(&rig, 0, volume);
    assert!(own == mine && new.0 != mine.0 && new.1 != mine.1, "both directions change");
    assert_eq!(at_host(&rig, 1, volume).1, None, "nothing of another host's");
    // A repeated call is the same rotation.
    assert!(matches!(rotate(&rig, volume, of(one), SHORT).await, Err(Refusal::Pending(_))));
    assert_eq!(at_host(&rig, 0, volume), (mine.clone(), Some(new.clone())));

    // The target does not switch: the host keeps both secrets.
    rig.storage.state().knobs.pending = true;
    rig.hosts[0].state().knobs.keeps_one_secret = false;
    rig.hosts[0].publish_connection(&volume.to_string());
    until_waits_for(&rig, one, Some(Rotating::Target)).await;
    until("both are told", async || {
        let told = (at_target(&rig, volume).contains(&new), at_host(&rig, 0, volume));
        if told == (true, (new.clone(), Some(mine.clone()))) { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
    let waits = rotate(&rig, volume, of(one), SHORT).await;
    assert!(matches!(&waits, Err(Refusal::Pending(text)) if text.contains("in its kernel")), "{waits:?}");
    rig.storage.state().knobs.pending = false;
    rig.storage.publish(&volume.to_string());
    until_waits_for(&rig, one, None).await;
    until("the host forgets the old one", async || {
        let told = at_host(&rig, 0, volume);
        if told == (new.clone(), None) { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
    assert!(live(&rig, one).await.secret_rotated_at.is_some());

    // A rotation of all: the answer has each of them.
    let rotated = rotate(&rig, volume, all(), LONG).await.unwrap();
    let ids: Vec<_> = rotated.iter().map(|live| live.attachment.id).collect();
    assert!(ids.len() == 2 && ids.contains(&one) && ids.contains(&two), "{ids:?}");
    assert!(rotated.iter().all(|live| live.secret_rotated_at.is_some() && live.secret_rotation.is_none()));
    let now = at_target(&rig, volume);
    assert!(now.iter().all(|pair| !before.contains(pair) && *pair != new), "{now:?}");
    // Users, modes and all else of the grants are as before.
    assert_eq!(rig.service.attachment(&admin(), two).await.unwrap().mode, Mode::ReadOnly);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_goes_on_after_a_kill_at_either_step() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let (old, _) = at_host(&rig, 0, volume);
    rig.hosts[0].state().knobs.keeps_one_secret = true;
    rig.storage.state().knobs.pending = true;
    assert!(rotate(&rig, volume, all(), SHORT).await.is_err());
    let new = until_offered(&rig, volume).await;
    rig.restart().await;
    assert_eq!(live(&rig, id).await.secret_rotation, Some(Rotating::Host));
    rig.hosts[0].state().knobs.keeps_one_secret = false;
    rig.hosts[0].publish_connection(&volume.to_string());
    until_waits_for(&rig, id, Some(Rotating::Target)).await;
    rig.restart().await;
    assert_eq!(live(&rig, id).await.secret_rotation, Some(Rotating::Target));
    rig.storage.state().knobs.pending = false;
    rig.storage.publish(&volume.to_string());
    until_waits_for(&rig, id, None).await;
    until("the host forgets the old one", async || {
        let told = at_host(&rig, 0, volume);
        if told == (new.clone(), None) { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
    assert_eq!(at_target(&rig, volume), [new]);
    assert_ne!(at_target(&rig, volume), [old]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_logs_in_by_itself_is_rotated_by_force_alone() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 7), LONG).await.unwrap();
    let secret = |info: &serde_json::Map<String, serde_json::Value>| info["auth_password"].clone();
    let old = secret(connection_info(&made));
    for new in [all(), of(made.id)] {
        let refused = rotate(&rig, volume, new, LONG).await.map_err(in_words);
        let says = |text: &str| text.contains("connection_info") && text.contains("force");
        assert!(matches!(&refused, Err(Refusal::Conflict(text)) if says(text)), "{refused:?}");
    }
    assert_eq!(at_target(&rig, volume)[0].0, old.as_str().unwrap());
    let forced = NewSecrets { force: true, ..all() };
    let rotated = rotate(&rig, volume, forced, LONG).await.unwrap();
    assert!(rotated[0].secret_rotated_at.is_some());
    let shown = rig.service.attachment(&admin(), made.id).await.unwrap();
    let new = secret(connection_info(&shown));
    assert_ne!(new, old);
    assert_eq!(at_target(&rig, volume), [(new.as_str().unwrap().to_owned(), None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_rotated_is_refused_and_changes_nothing() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let nothing = rotate(&rig, volume, all(), LONG).await.map_err(in_words);
    assert!(
        matches!(&nothing, Err(Refusal::Conflict(text)) if text.contains("nothing to rotate")),
        "{nothing:?}"
    );
    let unknown = rotate(&rig, VolumeId::from_u128(9), all(), LONG).await;
    assert!(matches!(unknown, Err(Refusal::NotFound { kind: "Volume", .. })), "{unknown:?}");
    let unknown = rotate(&rig, volume, of(AttachmentId::from_u128(9)), LONG).await;
    assert!(matches!(unknown, Err(Refusal::NotFound { kind: "Attachment", .. })), "{unknown:?}");
    let reserved = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    let refused = rotate(&rig, volume, of(reserved.id), LONG).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("reserved")), "{refused:?}");
    rig.hosts[0].state().knobs.knows_no_secrets = true;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let before = (at_target(&rig, volume), at_host(&rig, 0, volume));

    // A caller who may not see the volume learns nothing of it.
    let other = rig.service.rotate_secrets(&member("q"), volume, all(), LONG).await;
    assert!(matches!(other, Err(Refusal::NotFound { .. })), "{other:?}");
    // A host of an earlier release, and one that does not answer.
    let older = rotate(&rig, volume, all(), LONG).await.map_err(in_words);
    assert!(matches!(&older, Err(Refusal::Conflict(text)) if text.contains("earlier release")), "{older:?}");
    rig.hosts[0].state().knobs.knows_no_secrets = false;
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    let down = rotate(&rig, volume, all(), LONG).await;
    assert!(matches!(&down, Err(Refusal::Unavailable(text)) if text.contains("try again")), "{down:?}");
    rig.hosts[0].set_down(false);
    // Another operation is at work at the volume; the volume is in review.
    rig.write("UPDATE volumes SET operation = 'uploading'");
    let busy = rotate(&rig, volume, all(), LONG).await.map_err(in_words);
    assert!(
        matches!(&busy, Err(Refusal::Conflict(text)) if text.contains("an operation is running")),
        "{busy:?}"
    );
    rig.write("UPDATE volumes SET operation = NULL");
    assert_eq!((at_target(&rig, volume), at_host(&rig, 0, volume)), before);
    assert_eq!(live(&rig, id).await.secret_rotation, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detach_ends_a_rotation_and_leaves_nothing() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    rig.hosts[0].state().knobs.keeps_one_secret = true;
    assert!(matches!(rotate(&rig, volume, all(), SHORT).await, Err(Refusal::Pending(_))));
    rig.service.detach(&admin(), id, Way::Asked, LONG).await.unwrap();
    rig.until_gone(id).await;
    rig.hosts[0].state().knobs.keeps_one_secret = false;
    let again: NewAttachment = native(volume, "host1", Mode::ReadWrite);
    let made = rig.service.create_attachment(&admin(), again, LONG).await.unwrap();
    let live = rig.until_attached(made.id).await;
    assert_eq!((live.secret_rotation, live.secret_rotated_at), (None, None));
    assert_eq!(at_host(&rig, 0, volume).1, None);
    rotate(&rig, volume, all(), LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_keeps_what_the_target_has_and_the_host_forgets_the_other() {
    for reaches_the_target in [false, true] {
        let mut rig = Rig::new(1).await;
        let volume = rig.volume(true).await;
        let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
        let (old, _) = at_host(&rig, 0, volume);
        rig.hosts[0].state().knobs.keeps_one_secret = !reaches_the_target;
        rig.storage.state().knobs.pending = reaches_the_target;
        assert!(matches!(rotate(&rig, volume, all(), SHORT).await, Err(Refusal::Pending(_))));
        let want = if reaches_the_target {
            until("both agents have the new one", async || {
                let (own, targets) = (at_host(&rig, 0, volume).0, at_target(&rig, volume));
                if own != old && targets.contains(&own) { Ok(own) } else { Err(format!("{targets:?}")) }
            })
            .await
        } else {
            until_offered(&rig, volume).await;
            old.clone()
        };
        assert_eq!(at_host(&rig, 0, volume).0, want);
        rig.hosts[0].state().knobs.keeps_one_secret = false;
        rig.storage.state().knobs.pending = false;
        rig.rebuild("rebuilt").await.unwrap();
        rig.restart_on("rebuilt", false).await;
        for name in rig.names.clone() {
            rig.until_host(&name, |host| host.up).await;
        }
        until("the host forgets the other one", async || {
            let told = (at_target(&rig, volume), at_host(&rig, 0, volume));
            if told == (vec![want.clone()], (want.clone(), None)) { Ok(()) } else { Err(format!("{told:?}")) }
        })
        .await;
        let live = live(&rig, id).await;
        assert_eq!(
            (live.secret_rotation, live.secret_rotated_at),
            (None, None),
            "nobody knows that it was rotated"
        );
    }
}
