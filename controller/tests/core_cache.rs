//! The cache flag of attachments: the type's default, the flags that hosts get, the states that are
//! shown, and the refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_controller::domain::{AttachmentLive, NewAttachment, NewConnector, NewVolume, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::service::{Refusal, Way};
use mooring_model::{AttachmentId, ByteSize, Cache, DiskAccess, Mode, VolumeId};

/// The cache flags of a volume in a host's spec, by attachment.
fn told(rig: &Rig, host: usize, id: VolumeId) -> Vec<(String, bool)> {
    let state = rig.hosts[host].state();
    let spec = state.connections[&id.to_string()].spec.as_ref().unwrap();
    spec.attachments.iter().map(|content| (content.attachment_id.clone(), content.cache_off)).collect()
}

fn on_host1(volume: VolumeId, cache: Option<Cache>) -> NewAttachment {
    let connector = NewConnector::Native { host: "host1".to_owned(), transport: None, cache };
    NewAttachment { connector, ..native(volume, "host1", Mode::ReadWrite) }
}

async fn attach(rig: &Rig, volume: VolumeId, cache: Option<Cache>) -> AttachmentLive {
    let made = rig.service.create_attachment(&admin(), on_host1(volume, cache), LONG).await.unwrap();
    rig.until_attached(made.id).await
}

fn flags(live: &AttachmentLive) -> (Cache, Option<Cache>) {
    (live.attachment.cache, live.cache_in_force)
}

async fn volume_of(rig: &Rig, name: &str, specs: &[(&str, &str)]) -> VolumeId {
    let specs = specs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    rig.service.create_type(&admin(), name, None, true, specs).await.unwrap();
    let new = NewVolume { volume_type: Some(name.to_owned()), ..new_volume() };
    let volume = rig.service.create_volume(&admin(), new).await.unwrap().id;
    rig.until_volume(volume, VolumeStatus::Available).await;
    volume
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_without_a_flag_gets_that_of_its_volumes_type() {
    let rig = Rig::new(1).await;
    let shared = ("multiattach", "<is> True");
    for (name, specs, wanted) in [
        ("alone", &[][..], Cache::On),
        ("shared", &[shared], Cache::Off),
        ("trusting", &[shared, ("mooring:cache", "on")], Cache::On),
        ("careful", &[("mooring:cache", "OFF")], Cache::Off),
    ] {
        let volume = volume_of(&rig, name, specs).await;
        let live = attach(&rig, volume, None).await;
        assert_eq!(flags(&live), (wanted, Some(wanted)), "{name}");
        assert_eq!(told(&rig, 0, volume)[0].1, wanted == Cache::Off, "{name}");
    }
    // For a client that logs in by itself, the flag is stored, and no report shows its effect.
    let volume = rig.volume(true).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 7), LONG).await.unwrap();
    let live = rig.service.live(&admin(), made.id, None, LONG).await.unwrap();
    assert_eq!(flags(&live), (Cache::Off, None));
    let wrong = [("mooring:cache".to_owned(), "none".to_owned())].into();
    let refused = rig.service.create_type(&admin(), "wrong", None, true, wrong).await.map_err(in_words);
    assert!(
        matches!(&refused, Err(Refusal::Invalid(text)) if text.contains("want 'on' or 'off'")),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stricter_of_a_hosts_attachments_is_in_force() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let on = attach(&rig, volume, Some(Cache::On)).await;
    assert_eq!(flags(&on), (Cache::On, Some(Cache::On)));
    let off = attach(&rig, volume, Some(Cache::Off)).await;
    assert_eq!(flags(&off), (Cache::Off, Some(Cache::Off)));
    let on = rig.service.live(&admin(), on.attachment.id, None, LONG).await.unwrap();
    assert_eq!(flags(&on), (Cache::On, Some(Cache::Off)), "it shares the disk");
    // Taken back without a detach: answered when the host reports it, and a repeated call gets the
    // same answer.
    for _ in 0..2 {
        let live = rig.service.set_cache(&admin(), off.attachment.id, Cache::On, LONG).await.unwrap();
        assert_eq!(flags(&live), (Cache::On, Some(Cache::On)));
    }
    assert!(told(&rig, 0, volume).iter().all(|(_, off)| !off));
    rig.hosts[0].state().knobs.pending = true;
    let waits = rig.service.set_cache(&admin(), off.attachment.id, Cache::Off, SHORT).await;
    assert!(matches!(&waits, Err(Refusal::Pending(text)) if text.contains("ask again")), "{waits:?}");
    let other = rig.service.set_cache(&member("q"), off.attachment.id, Cache::On, LONG).await;
    assert!(matches!(other, Err(Refusal::NotFound { kind: "Attachment", .. })), "{other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_is_repeated_keeps_its_flag() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let id = Some(AttachmentId::from_u128(5));
    let new = |cache| NewAttachment { id, ..on_host1(volume, cache) };
    let made = rig.service.create_attachment(&admin(), new(Some(Cache::On)), LONG).await.unwrap();
    rig.until_attached(made.id).await;
    for same in [None, Some(Cache::On)] {
        let again = rig.service.create_attachment(&admin(), new(same), LONG).await.unwrap();
        assert_eq!((again.id, again.cache), (made.id, Cache::On));
    }
    let other = rig.service.create_attachment(&admin(), new(Some(Cache::Off)), LONG).await.map_err(in_words);
    assert!(matches!(&other, Err(Refusal::Conflict(text)) if text.contains("/cache")), "{other:?}");
    // The flag survives a restart.
    rig.restart().await;
    assert_eq!(rig.service.attachment(&admin(), made.id).await.unwrap().cache, Cache::On);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_an_earlier_release_is_not_asked_for_what_it_cannot() {
    let rig = Rig::quiet(1);
    rig.hosts[0].state().knobs.knows_no_cache = true;
    rig.up().await;
    rig.until_host("host1", |host| host.report.is_some()).await;
    let volume = rig.volume(true).await;
    let refused = rig
        .service
        .create_attachment(&admin(), on_host1(volume, Some(Cache::Off)), LONG)
        .await
        .map_err(in_words);
    assert!(
        matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("earlier release")),
        "{refused:?}"
    );
    // An attach that does not name the flag succeeds, and shows the flag as unsupported.
    let live = attach(&rig, volume, None).await;
    assert_eq!(flags(&live), (Cache::Off, None));
    assert!(live.problems.iter().any(|text| text.starts_with("cache_unsupported: host1")), "{live:?}");
    let refused =
        rig.service.set_cache(&admin(), live.attachment.id, Cache::Off, LONG).await.map_err(in_words);
    assert!(matches!(refused, Err(Refusal::Conflict(_))), "{refused:?}");
    let live = rig.service.set_cache(&admin(), live.attachment.id, Cache::On, LONG).await;
    // The attachment shows no cache state; the cache is on.
    assert!(live.is_ok(), "{live:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_kept_no_flag_gets_it_once_it_is_updated() {
    let rig = Rig::quiet(1);
    rig.hosts[0].state().knobs.knows_no_cache = true;
    rig.up().await;
    rig.until_host("host1", |host| host.report.is_some()).await;
    let volume = rig.volume(true).await;
    let live = attach(&rig, volume, None).await;
    assert!(!told(&rig, 0, volume)[0].1, "an agent of an earlier release keeps what it knows");
    let stamp = |rig: &Rig| rig.hosts[0].state().connections[&volume.to_string()].stamp.clone();
    let before = stamp(&rig);
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    rig.hosts[0].state().knobs.knows_no_cache = false;
    rig.hosts[0].set_down(false);
    let live = until("the flag", async || {
        let live = rig.service.live(&admin(), live.attachment.id, None, SHORT).await.unwrap();
        if flags(&live) == (Cache::Off, Some(Cache::Off)) { Ok(live) } else { Err(format!("{live:?}")) }
    })
    .await;
    assert_eq!(live.problems, Vec::<String>::new());
    let after = stamp(&rig);
    assert_ne!(before, after);
    // The spec is sent once.
    tokio::time::sleep(SHORT.0).await;
    assert_eq!(stamp(&rig), after);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_that_cannot_be_seen_yet_is_not_answered_as_done() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let live = attach(&rig, volume, Some(Cache::Off)).await;
    let id = live.attachment.id;
    let problem = mooring_api::v1::Problem { text: "its session is lost".into(), ..Default::default() };
    rig.hosts[0].state().knobs.broken = Some((mooring_api::v1::ConnectionPhase::Recovering, problem));
    rig.hosts[0].publish_connection(&volume.to_string());
    for cache in [Cache::On, Cache::Off] {
        // Before the host has answered, nobody knows the reason.
        until("the host's reason", async || match rig.service.set_cache(&admin(), id, cache, SHORT).await {
            Err(Refusal::Pending(text)) if text.contains("session is lost") => Ok(()),
            Err(Refusal::Pending(text)) => Err(text),
            other => panic!("{other:?}"),
        })
        .await;
    }
    rig.hosts[0].state().knobs.broken = None;
    rig.hosts[0].publish_connection(&volume.to_string());
    let live = rig.service.set_cache(&admin(), id, Cache::Off, LONG).await.unwrap();
    assert_eq!(flags(&live), (Cache::Off, Some(Cache::Off)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserved_attachment_keeps_the_flag_that_it_was_given() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let reserved = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    assert_eq!(reserved.cache, Cache::Off, "the type's");
    rig.service.set_cache(&admin(), reserved.id, Cache::On, LONG).await.unwrap();
    let connected = rig.service.update_attachment(&admin(), reserved.id, connector(7), LONG).await.unwrap();
    assert_eq!(connected.cache, Cache::On);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_says_who_uses_the_disk() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let id = attach(&rig, volume, None).await.attachment.id;
    rig.hosts[0].state().knobs.holders = vec!["dd".to_owned()];
    let found = rig.service.check_disk(&admin(), id).await.unwrap();
    assert_eq!((found.attachment, found.volume, found.host.as_str()), (id, volume, "host1"));
    let names: Vec<_> = found.check.users.iter().map(|user| (user.name.as_str(), user.access)).collect();
    assert_eq!(names, [("dd", Some(DiskAccess::Buffered))]);
    // A caller who may not see the attachment may not see its users either.
    let hidden = rig.service.check_disk(&member("other"), id).await;
    assert!(matches!(hidden, Err(Refusal::NotFound { .. })), "{hidden:?}");
    let foreign = rig.service.create_attachment(&admin(), client(volume, 7), LONG).await.unwrap();
    let refused = rig.service.check_disk(&admin(), foreign.id).await.map_err(in_words);
    assert!(
        matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("not on an enrolled host")),
        "{refused:?}"
    );
    let problem = mooring_api::v1::Problem::default();
    rig.hosts[0].state().knobs.broken = Some((mooring_api::v1::ConnectionPhase::Recovering, problem));
    let refused = rig.service.check_disk(&admin(), id).await.map_err(in_words);
    assert!(
        matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("no verified disk")),
        "{refused:?}"
    );
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    let refused = rig.service.check_disk(&admin(), id).await;
    assert!(matches!(refused, Err(Refusal::Unavailable(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_an_earlier_release_cannot_look() {
    let rig = Rig::quiet(1);
    rig.hosts[0].state().knobs.knows_no_cache = true;
    rig.up().await;
    rig.until_host("host1", |host| host.report.is_some()).await;
    let volume = rig.volume(false).await;
    let id = attach(&rig, volume, None).await.attachment.id;
    let refused = rig.service.check_disk(&admin(), id).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("update it")), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_forced_detach_says_what_its_host_had_not_written() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    rig.hosts[0].state().knobs.unwritten = Some(4096);
    rig.hosts[1].state().knobs.unwritten = Some(8192);
    let forced = attach(&rig, volume, None).await.attachment.id;
    let other = native(volume, "host2", Mode::ReadWrite);
    let other = rig.service.create_attachment(&admin(), other, LONG).await.unwrap().id;
    rig.until_attached(other).await;
    rig.service.detach(&admin(), forced, Way::Forced, LONG).await.unwrap();
    rig.service.detach(&admin(), other, Way::Asked, LONG).await.unwrap();
    let records = until("what was not written", async || {
        let records = rig.service.receipts(&admin(), Some(volume), None, 10).await.unwrap();
        let has = records.iter().any(|record| record.unwritten.is_some());
        if has { Ok(records) } else { Err(format!("{records:?}")) }
    })
    .await;
    for record in records {
        let wanted = (record.attachment == forced).then_some(ByteSize(4096));
        assert_eq!(record.unwritten, wanted, "{record:?}");
    }
}
