//! The controller dies, its database is lost or old, or agents are not who they should be.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::time::Duration;

use crate::support;

use crate::support::{LONG, Rig, SHORT, admin, client, native, new_volume, until};
use mooring_api::v1;
use mooring_controller::domain::{AttachmentStatus, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::quota::{Key, Limit};
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};

/// Waits until this many puts have reached all agents together, or until all is done and no more
/// come.
async fn until_puts(rig: &Rig, count: usize) {
    let mut puts = rig.world.puts.subscribe();
    // A put that was counted for a detach may be the last one of its attach here.
    let _ = tokio::time::timeout(Duration::from_secs(5), puts.wait_for(|puts| *puts >= count)).await;
}

fn puts(rig: &Rig) -> usize {
    *rig.world.puts.borrow()
}

/// Number of puts that an attach takes, and number that its detach takes.
async fn length() -> (usize, usize) {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    settle(&rig, volume).await;
    let before = puts(&rig);
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let attached = puts(&rig);
    rig.service.delete_attachment(&admin(), live.attachment.id, false, LONG).await.unwrap();
    (attached - before, puts(&rig) - attached)
}

/// Waits until the export that follows a volume's creation has been sent.
async fn settle(rig: &Rig, volume: VolumeId) {
    until("the first export", async || {
        let state = rig.storage.state();
        if state.exports.contains_key(&volume.to_string()) {
            Ok(())
        } else {
            Err(format!("{:?}", state.calls))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_any_call_it_goes_on() {
    let (attach, detach) = length().await;
    assert!(attach >= 2 && detach >= 2, "an attach takes {attach} puts, a detach {detach}");
    for killed_at in 0..=attach {
        let mut rig = Rig::new(1).await;
        let volume = rig.volume(false).await;
        settle(&rig, volume).await;
        let before = puts(&rig);
        let new = native(volume, "host1", Mode::ReadWrite);
        let id = rig.service.create_attachment(&admin(), new, LONG).await.unwrap().id;
        until_puts(&rig, before + killed_at).await;
        rig.restart().await;
        let live = rig.until_attached(id).await;
        assert!(live.device_path.is_some(), "killed at {killed_at}");
        assert_eq!(rig.storage.granted(volume).len(), 1);
    }
    for force in [false, true] {
        for killed_at in 0..=detach {
            let mut rig = Rig::new(1).await;
            let volume = rig.volume(false).await;
            let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
            let before = puts(&rig);
            let service = rig.service.clone();
            let asked =
                tokio::spawn(async move { service.delete_attachment(&admin(), id, force, LONG).await });
            if killed_at == 0 {
                until("the beginning", async || match rig.service.attachment(&admin(), id).await {
                    Ok(seen) if seen.status == AttachmentStatus::Attached => Err("attached".to_owned()),
                    _ => Ok(()),
                })
                .await;
            }
            until_puts(&rig, before + killed_at).await;
            asked.abort();
            let _ = asked.await;
            rig.restart().await;
            rig.until_gone(id).await;
            let receipt = rig.service.receipt(&admin(), id).await.unwrap().receipt.unwrap();
            assert_eq!(receipt.attachments, [id], "killed at {killed_at}");
            assert_eq!(rig.storage.granted(volume).len(), 0);
            rig.until_volume(volume, VolumeStatus::Available).await;
            until("the host's end", async || {
                let state = rig.hosts[0].state();
                let kept = state.connections[&volume.to_string()].spec.is_none();
                if kept { Ok(()) } else { Err(format!("{:?}", state.calls)) }
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_is_told_what_it_missed_and_nothing_else() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.restart().await;
    rig.until_quiet().await;
    let before = puts(&rig);
    rig.restart().await;
    let live = rig.service.live_all(&admin()).await.unwrap();
    assert_eq!(live.len(), 1);
    assert_eq!(live[0].session, Some(true));
    assert_eq!(puts(&rig), before, "what is true is not sent again: {:?}", rig.storage.state().calls);
    // The agent lost its store: all its specs are sent anew.
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    rig.storage.state().lose_store(&[volume]);
    rig.storage.set_down(false);
    until("the grant", async || {
        let granted = rig.storage.granted(volume);
        if granted.len() == 1 { Ok(()) } else { Err(format!("{granted:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_cuts_nobody_off() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let initiator = live.attachment.initiator.unwrap().to_string();
    rig.until_quiet().await;
    let before = puts(&rig);
    rig.restart_on("another", false).await;
    rig.until_host("storage", |host| host.up).await;
    rig.until_host("host1", |host| host.up).await;
    rig.until_host("storage", |host| {
        host.problems.iter().any(|text| text.contains(&volume.to_string()) && text.contains("1 grant"))
    })
    .await;
    rig.until_host("host1", |host| host.problems.iter().any(|text| text.contains(&volume.to_string()))).await;
    // The controller works, and leaves alone what it does not know.
    let other = rig.volume(false).await;
    rig.attach(other, "host1", Mode::ReadWrite).await;
    let calls: Vec<_> = [rig.storage.state().calls.clone(), rig.hosts[0].state().calls.clone()].concat();
    let of_it = calls.iter().filter(|call| call.contains(&volume.to_string())).count();
    assert_eq!(of_it, before, "nothing was sent for it: {calls:?}");
    assert_eq!(rig.storage.granted(volume), std::slice::from_ref(&initiator));
    assert!(rig.world.sessions.lock().unwrap().contains(&(volume.to_string(), initiator)));
}

async fn revoked_after_the_backup(said: bool) {
    let mut rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let untouched = rig.volume(false).await;
    let gone = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    rig.backup("old");
    rig.service.delete_attachment(&admin(), gone, false, LONG).await.unwrap();
    let after = rig.attach(volume, "host2", Mode::ReadWrite).await.attachment;
    let granted = rig.storage.granted(volume);
    rig.restart_on("old", said).await;
    for name in ["storage", "host1", "host2"] {
        rig.until_host(name, |host| host.up).await;
    }
    // The old state has the first host attached. Its grant does not return, and the unknown one
    // stays.
    rig.until_host("storage", |host| {
        host.problems.iter().any(|text| text.contains("in review") && text.contains(&volume.to_string()))
    })
    .await;
    rig.until_quiet().await;
    let before = puts(&rig);
    let live = rig.service.live(&admin(), gone, None, SHORT).await.unwrap();
    assert!(live.problems.iter().any(|text| text.contains("in review")), "{live:?}");
    for refused in [
        rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.map(drop),
        rig.service.delete_attachment(&admin(), gone, false, SHORT).await.map(drop),
        rig.service.delete_volume(&admin(), volume).await,
    ] {
        assert!(matches!(refused, Err(Refusal::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(puts(&rig), before);
    assert_eq!(rig.storage.granted(volume), granted);
    assert_eq!(granted, [after.initiator.unwrap().to_string()]);
    // An unchanged volume is not delayed, and its specs are newer than all before.
    rig.attach(untouched, "host1", Mode::ReadWrite).await;
    let calls = rig.storage.state().calls.clone();
    assert!(calls.last().unwrap().contains(&format!("export {untouched} 2.")), "{calls:?}");
    // Only an operator brings the old state back; and not even that ends a session that this
    // database does not know.
    let refused = rig.service.confirm_review(&admin(), volume).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Conflict(why)) if why.contains(&granted[0])), "{refused:?}");
    assert_eq!(rig.storage.granted(volume), granted);
    rig.world.sessions.lock().unwrap().clear();
    rig.service.confirm_review(&admin(), volume).await.unwrap();
    let first = live.attachment.initiator.as_ref().unwrap().to_string();
    until("the confirmed grant", async || {
        let now = rig.storage.granted(volume);
        if now == [first.clone()] { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_brings_no_revoked_grant_back() {
    revoked_after_the_backup(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_nobody_said_is_noticed() {
    revoked_after_the_backup(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_deleted_after_the_backup_does_not_return() {
    let mut rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    settle(&rig, volume).await;
    rig.backup("old");
    rig.service.delete_volume(&admin(), volume).await.unwrap();
    until("its end", async || match rig.service.volume(&admin(), volume).await {
        Err(_) => Ok(()),
        Ok(seen) => Err(format!("{seen:?}")),
    })
    .await;
    rig.restart_on("old", true).await;
    rig.until_host("storage", |host| host.problems.iter().any(|text| text.contains("in review"))).await;
    assert!(rig.storage.state().volumes[&volume.to_string()].spec.is_none());
}

async fn delete(rig: &Rig, volume: VolumeId) {
    rig.service.delete_volume(&admin(), volume).await.unwrap();
    until("its end", async || match rig.service.volume(&admin(), volume).await {
        Err(_) => Ok(()),
        Ok(seen) => Err(format!("{seen:?}")),
    })
    .await;
}

/// Waits until the volume is there at its agent, and nothing is in review.
async fn until_made_again(rig: &Rig, volume: VolumeId) {
    until("the volume that an operator wants again", async || {
        let problems: Vec<_> =
            rig.service.hosts(&admin()).await.unwrap().into_iter().flat_map(|host| host.problems).collect();
        let there = rig.storage.state().volumes[&volume.to_string()].spec.is_some();
        if there && problems.is_empty() { Ok(()) } else { Err(format!("{there} {problems:?}")) }
    })
    .await;
}

/// The copy is restored twice: the second time its epoch is in use already, and the agent keeps a
/// tombstone with it.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_was_restored_before_a_review_is_confirmed_once() {
    let mut rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    settle(&rig, volume).await;
    for copy in ["first", "second", "third"] {
        rig.backup(copy);
    }
    delete(&rig, volume).await;
    for copy in ["first", "second", "third"] {
        // The third time the start does not say that it is a copy.
        rig.restart_on(copy, copy != "third").await;
        rig.until_host("storage", |host| {
            host.up && host.problems.iter().any(|text| text.contains("keeps that this volume was deleted"))
        })
        .await;
        let before = puts(&rig);
        rig.service.confirm_review(&admin(), volume).await.unwrap();
        until_made_again(&rig, volume).await;
        rig.until_volume(volume, VolumeStatus::Available).await;
        let calls = rig.storage.state().calls.clone();
        let sent = &calls[before.min(calls.len())..];
        assert_eq!(sent.iter().filter(|call| call.starts_with("volume ")).count(), 1, "{copy}: {calls:?}");
        delete(&rig, volume).await;
    }
}

/// Raises the generation of a spec at its agent, as somebody does who changes it there by hand.
fn change(stamp: Option<&mut v1::Stamp>) -> u64 {
    let generation = stamp.and_then(|stamp| stamp.generation.as_mut()).unwrap();
    generation.counter += 5;
    generation.counter
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_are_generations_ahead_are_confirmed_once() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.until_quiet().await;
    let key = volume.to_string();
    // No report and no refusal says how far ahead they are.
    let (made, export) = {
        let mut state = rig.storage.state();
        let made = change(state.volumes.get_mut(&key).unwrap().stamp.as_mut());
        (made, change(state.exports.get_mut(&key).unwrap().stamp.as_mut()))
    };
    let connection = change(rig.hosts[0].state().connections.get_mut(&key).unwrap().stamp.as_mut());
    drop(rig.service.create_attachment(&admin(), client(volume, 2), SHORT).await);
    rig.until_host("storage", |host| {
        host.problems.iter().any(|text| text.contains("in review") && text.contains(&key))
    })
    .await;
    rig.service.confirm_review(&admin(), volume).await.unwrap();
    let counter = |stamp: Option<&v1::Stamp>| stamp.and_then(|stamp| stamp.generation).unwrap().counter;
    until("newer specs at every agent", async || {
        let now = {
            let state = rig.storage.state();
            (counter(state.volumes[&key].stamp.as_ref()), counter(state.exports[&key].stamp.as_ref()))
        };
        let host = counter(rig.hosts[0].state().connections[&key].stamp.as_ref());
        let newer = now.0 > made && now.1 > export && host > connection;
        if newer { Ok(()) } else { Err(format!("{now:?} {host}, were {made} {export} {connection}")) }
    })
    .await;
    assert_eq!(rig.storage.granted(volume).len(), 2);
}

/// An operator starts an old copy as if it were the current database.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_deleted_since_an_old_copy_is_not_called_lost() {
    let mut rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    settle(&rig, volume).await;
    rig.backup("old");
    delete(&rig, volume).await;
    rig.restart_on("old", false).await;
    rig.until_host("storage", |host| {
        let said = |text: &&String| text.contains("in review") && text.contains(&volume.to_string());
        host.problems.iter().find(said).is_some_and(|text| {
            let words = ["was deleted", "older than its agents", "--restored", "confirm"];
            words.iter().all(|word| text.contains(word)) && !text.contains("lost its store")
        })
    })
    .await;
    assert!(rig.storage.state().volumes[&volume.to_string()].spec.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_database_does_not_remake_a_volume_its_agent_lost() {
    let mut rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    settle(&rig, volume).await;
    rig.backup("old");
    // The volume was deleted later and its tombstone is forgotten by now, or its agent has lost
    // everything.
    rig.storage.state().volumes.remove(&volume.to_string());
    rig.restart_on("old", true).await;
    rig.until_host("storage", |host| {
        host.up && host.problems.iter().any(|text| text.contains("has nothing of"))
    })
    .await;
    assert!(!rig.storage.state().volumes.contains_key(&volume.to_string()), "made again, empty");
    rig.service.confirm_review(&admin(), volume).await.unwrap();
    until("the volume that an operator wants again", async || {
        let there = rig.storage.state().volumes.contains_key(&volume.to_string());
        if there { Ok(()) } else { Err("not there".to_owned()) }
    })
    .await;
}

/// The backup is from the time when the volume was being made: it has no spec of an export, and the
/// agent keeps one.
#[tokio::test(flavor = "multi_thread")]
async fn attachment_survives_a_restore_from_before_its_volume_was_made() {
    for said in [true, false] {
        let mut rig = Rig::new(1).await;
        let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
        rig.storage.state().knobs.gate = Some(gate.clone());
        let volume = rig.service.create_volume(&admin(), new_volume()).await.unwrap().id;
        rig.backup("old");
        gate.close();
        rig.until_volume(volume, VolumeStatus::Available).await;
        rig.attach(volume, "host1", Mode::ReadWrite).await;
        let granted = rig.storage.granted(volume);
        assert_eq!(granted.len(), 1);
        rig.until_quiet().await;
        let before = puts(&rig);
        rig.restart_on("old", said).await;
        rig.until_host("storage", |host| {
            let why = |text: &String| text.contains("in review") && text.contains("of the export");
            host.up && host.problems.iter().any(why)
        })
        .await;
        assert_eq!(puts(&rig), before, "{:?}", rig.storage.state().calls);
        assert_eq!(rig.storage.granted(volume), granted);
        // An operator confirms the old state, which does not know the host that is logged in.
        let refused = rig.service.confirm_review(&admin(), volume).await.map_err(in_words).unwrap_err();
        let Refusal::Conflict(why) = &refused else { panic!("{refused:?}") };
        assert!(why.contains(&granted[0]) && why.contains("export revoke"), "{why}");
        assert_eq!((puts(&rig), rig.storage.granted(volume)), (before, granted));
        // The host logs out: the volume is available, and no host has it.
        rig.world.sessions.lock().unwrap().clear();
        rig.service.confirm_review(&admin(), volume).await.unwrap();
        rig.until_volume(volume, VolumeStatus::Available).await;
        until("the confirmed state", async || {
            let now = rig.storage.granted(volume);
            if now.is_empty() { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_names_for_one_agent_or_initiator_are_refused() {
    let rig = Rig::quiet(4);
    let id = rig.hosts[0].state().id;
    rig.hosts[1].state().id = id;
    let initiator = rig.hosts[2].state().initiator.clone();
    rig.hosts[3].state().initiator = initiator;
    rig.service.start();
    for (pair, reason) in
        [(["host1", "host2"], "has the same id"), (["host3", "host4"], "same initiator name")]
    {
        until("one of two, and the reason", async || {
            let hosts = rig.service.hosts(&admin()).await.unwrap();
            let two: Vec<_> = hosts.iter().filter(|host| pair.contains(&host.name.as_str())).collect();
            let why: Vec<_> = two.iter().filter_map(|host| host.why_down.as_ref()).collect();
            let up = two.iter().filter(|host| host.up).count();
            let says = |word: &str| why.len() == 1 && why[0].contains(word);
            if up == 1 && says(reason) && says("move its mooring-agent.db* away") {
                Ok(())
            } else {
                Err(format!("{two:?}"))
            }
        })
        .await;
    }
    rig.until_host("storage", |host| host.up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_another_cluster_is_left_alone() {
    let rig = Rig::quiet(1);
    rig.hosts[0].state().cluster = "00000000-0000-4000-8000-0000000000ff".to_owned();
    rig.service.start();
    rig.until_host("host1", |host| {
        host.why_down
            .as_ref()
            .is_some_and(|why| why.contains("belongs to cluster 00000000-0000-4000-8000-0000000000ff"))
    })
    .await;
    rig.until_host("storage", |host| host.up).await;
    assert!(rig.hosts[0].state().calls.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn placement_asks_the_last_reports() {
    let mut rig = Rig::quiet(0);
    let refused = rig.service.create_volume(&admin(), new_volume()).await.unwrap_err();
    assert!(matches!(refused, Refusal::Unavailable(_)), "{refused}");
    rig.up().await;
    // This test is about pools, not about a project's quotas.
    let limits = [(Key::Gigabytes, Limit::Unlimited)].into();
    rig.service.set_quotas(&admin(), "p", limits).await.unwrap();
    let huge = mooring_controller::domain::NewVolume { size_gib: Some(4096), ..new_volume() };
    let refused = rig.service.create_volume(&admin(), huge.clone()).await.map_err(in_words).unwrap_err();
    assert!(matches!(refused, Refusal::Invalid(_)), "{refused}");
    let none = mooring_controller::domain::NewVolume { volume_type: Some("nosuch".into()), ..new_volume() };
    let refused = rig.service.create_volume(&admin(), none).await.map_err(in_words).unwrap_err();
    assert_eq!(refused.to_string(), "Volume type with name nosuch could not be found.");
    // Also after a restart with the agent down: the stored report decides, and the volume waits for
    // its agent.
    rig.storage.set_down(true);
    rig.restart_on("state", false).await;
    let refused = rig.service.create_volume(&admin(), huge).await.map_err(in_words).unwrap_err();
    assert!(matches!(refused, Refusal::Invalid(_)), "{refused}");
    let made = rig.service.create_volume(&admin(), new_volume()).await.unwrap();
    assert_eq!(made.status, VolumeStatus::Creating);
    rig.storage.set_down(false);
    rig.until_volume(made.id, VolumeStatus::Available).await;
    // Without the capability no shared volume is placed.
    rig.storage.state().multiattach = false;
    rig.restart().await;
    let volume_type = Some(rig.shared_type().await);
    let shared = mooring_controller::domain::NewVolume { volume_type, ..new_volume() };
    let refused = rig.service.create_volume(&admin(), shared).await.map_err(in_words).unwrap_err();
    assert!(matches!(&refused, Refusal::Invalid(text) if text.contains("multiattach")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_cannot_be_made_says_why() {
    let rig = Rig::new(0).await;
    rig.storage.state().knobs.fail_volumes = true;
    let made = rig.service.create_volume(&admin(), new_volume()).await.unwrap();
    let seen = rig.until_volume(made.id, VolumeStatus::Error).await;
    assert!(seen.fault.unwrap().contains("a disk is missing"));
    let refused = rig
        .service
        .create_attachment(&admin(), client(made.id, 1), LONG)
        .await
        .map_err(in_words)
        .unwrap_err();
    assert!(refused.to_string().contains("the current status is error"), "{refused}");
    rig.service.delete_volume(&admin(), made.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_controller_on_the_same_database_is_refused() {
    if support::ON_POSTGRES {
        // PostgreSQL allows it: see `many`.
        return;
    }
    let rig = Rig::new(0).await;
    let options = mooring_controller::service::ServiceOptions::new(rig.path("state"));
    let refused = mooring_controller::service::Service::open(options.clone()).unwrap_err();
    let text = mooring_model::Chain(&refused).to_string();
    assert!(text.contains("another controller uses"), "{text}");
    // No other user can read it.
    for (name, want) in [("state", 0o700), ("state/mooring-controller.db", 0o600)] {
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(rig.path(name)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, want, "{name}");
    }
}
