//! The cache flag of attachments: what a type says of it, what hosts are told, what is shown and refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_controller::domain::{AttachmentLive, NewAttachment, NewConnector, NewVolume, VolumeStatus};
use mooring_controller::service::Refusal;
use mooring_model::{AttachmentId, Cache, Mode, VolumeId};

/// The flags that a host was told of a volume, by attachment.
fn told(rig: &Rig, host: usize, id: VolumeId) -> Vec<(String, bool)> {
    let state = rig.hosts[host].state();
    let spec = state.connections[&id.to_string()].spec.as_ref().unwrap();
    spec.attachments.iter().map(|wish| (wish.attachment_id.clone(), wish.cache_off)).collect()
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
    // Of a client that logs in by itself the flag is kept, and nobody knows what it does.
    let volume = rig.volume(true).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 7), LONG).await.unwrap();
    let live = rig.service.live(&admin(), made.id, None, LONG).await.unwrap();
    assert_eq!(flags(&live), (Cache::Off, None));
    let wrong = [("mooring:cache".to_owned(), "none".to_owned())].into();
    let refused = rig.service.create_type(&admin(), "wrong", None, true, wrong).await;
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
    // Taken back where it is: answered when the host says so, and the same again is the same.
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
    let other = rig.service.create_attachment(&admin(), new(Some(Cache::Off)), LONG).await;
    assert!(matches!(&other, Err(Refusal::Conflict(text)) if text.contains("/cache")), "{other:?}");
    // A restart keeps it.
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
    let refused = rig.service.create_attachment(&admin(), on_host1(volume, Some(Cache::Off)), LONG).await;
    assert!(
        matches!(&refused, Err(Refusal::Conflict(text)) if text.contains("earlier release")),
        "{refused:?}"
    );
    // Where nobody asked for it by name, the attach goes on, and says what is missing.
    let live = attach(&rig, volume, None).await;
    assert_eq!(flags(&live), (Cache::Off, None));
    assert!(live.problems.iter().any(|text| text.starts_with("cache_unsupported: host host1")), "{live:?}");
    let refused = rig.service.set_cache(&admin(), live.attachment.id, Cache::Off, LONG).await;
    assert!(matches!(refused, Err(Refusal::Conflict(_))), "{refused:?}");
    let live = rig.service.set_cache(&admin(), live.attachment.id, Cache::On, SHORT).await;
    // It says nothing of the cache, which is on.
    assert!(live.is_ok(), "{live:?}");
}
