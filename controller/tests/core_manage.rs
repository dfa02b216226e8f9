//! Managed and unmanaged LVs: the state that is shown meanwhile, the spec at the storage agent, and
//! the end of an LV that the agent refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_api::v1;
use mooring_controller::domain::{LvReference, ManageVolume, PoolFilter, Volume, VolumeAction, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::quota::{Key, Limit};
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};
use tonic::Code;

const GIB: u64 = 1 << 30;

fn lv(name: &str, size_bytes: u64, unsafe_because: &str) -> v1::Lv {
    v1::Lv {
        group: "vg0".to_owned(),
        name: name.to_owned(),
        uuid: format!("uuid-of-{name}"),
        size_bytes,
        unsafe_because: unsafe_because.to_owned(),
        ..Default::default()
    }
}

async fn rig(hosts: usize) -> Rig {
    let rig = Rig::new(hosts).await;
    let ours = v1::Lv {
        volume_id: VolumeId::from_u128(7).to_string(),
        ..lv("mooring-x", GIB, "it is a volume already")
    };
    rig.storage.state().lvs = vec![
        lv("data", 2 * GIB, ""),
        lv("mounted", GIB, "it is in use on this host"),
        lv("uneven", GIB + (4 << 20), ""),
        v1::Lv { group: "vg1".to_owned(), uuid: "other".to_owned(), ..lv("data2", GIB, "") },
        ours,
    ];
    rig
}

fn content(name: &str) -> ManageVolume {
    ManageVolume {
        host: "storage@lvm#vg0".to_owned(),
        reference: LvReference::Name(name.to_owned()),
        name: Some("old data".to_owned()),
        description: None,
        volume_type: None,
        metadata: [("from".to_owned(), "before".to_owned())].into(),
        zone: None,
        bootable: true,
    }
}

async fn manage(rig: &Rig, new: ManageVolume) -> Result<Volume, Refusal> {
    rig.service.manage_volume(&admin(), new).await
}

async fn managed(rig: &Rig) -> VolumeId {
    let id = manage(rig, content("data")).await.unwrap().id;
    rig.until_volume(id, VolumeStatus::Available).await;
    id
}

fn told(rig: &Rig, id: VolumeId) -> Option<v1::VolumeSpec> {
    rig.storage.state().volumes.get(&id.to_string())?.spec.clone()
}

fn calls(rig: &Rig, id: VolumeId) -> Vec<String> {
    let id = id.to_string();
    let calls = rig.storage.state().calls.clone();
    let word = |call: &String| call.split(' ').next().unwrap().to_owned();
    calls.iter().filter(|call| call.contains(&id)).map(word).collect()
}

async fn until_gone(rig: &Rig, id: VolumeId) {
    until("the end of the volume", async || match rig.service.volume(&admin(), id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

fn invalid<T: std::fmt::Debug>(refused: Result<T, Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Invalid(text)) if text.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_lv_becomes_a_volume_with_its_size_and_no_spec_asks_for_it_twice() {
    let rig = rig(1).await;
    rig.storage.state().knobs.pending = true;
    let volume = manage(&rig, content("vg0/data")).await.unwrap();
    assert_eq!((volume.status, volume.size_gib, volume.bootable), (VolumeStatus::Managing, 2, true));
    let id = volume.id;
    until("the storage agent's spec", async || told(&rig, id).map(drop).ok_or_else(|| "none".to_owned()))
        .await;
    let spec = told(&rig, id).unwrap();
    let takes = spec.takes.clone().unwrap();
    assert_eq!(
        (takes.name.as_str(), takes.uuid.as_str(), spec.size_bytes),
        ("data", "uuid-of-data", 2 * GIB)
    );
    assert_eq!((spec.group.as_str(), spec.provisioning()), ("vg0", v1::Provisioning::Thick));
    // No host may attach it, and no call may destroy it.
    let refused = rig.service.create_attachment(&admin(), native(id, "host1", Mode::ReadWrite), LONG).await;
    invalid(refused, "managing");
    invalid(rig.service.delete_volume(&admin(), id).await, "Volume status must be available");
    invalid(rig.service.unmanage_volume(&admin(), id).await, "current status is: managing");

    rig.storage.state().knobs.pending = false;
    rig.storage.publish(&id.to_string());
    rig.until_volume(id, VolumeStatus::Available).await;
    rig.attach(id, "host1", Mode::ReadWrite).await;
    // The spec no longer names the LV's old name, so that a lost LV is never looked for under that
    // name.
    until("a spec without it", async || match told(&rig, id).unwrap().takes {
        None => Ok(()),
        takes => Err(format!("{takes:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thin_lv_is_a_volume_of_the_thin_pool() {
    let rig = rig(0).await;
    let thin = v1::Pool { name: "vg0:thin".to_owned(), thick: false, ..rig.storage.state().pools[0].clone() };
    rig.storage.state().pools.push(thin);
    rig.storage.state().lvs = vec![v1::Lv { thin: true, ..lv("data", GIB, "") }];
    let (service, caller) = (&rig.service, admin());
    // The agent reports its capabilities when it is asked anew; nothing is asked of it before that.
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    rig.storage.set_down(false);
    rig.until_host("storage", |host| host.up).await;
    until("the pools", async || match service.pools(&caller, PoolFilter::default()).await.unwrap().len() {
        2 => Ok(()),
        pools => Err(format!("{pools} pools")),
    })
    .await;
    let id = managed(&rig).await;
    assert_eq!(told(&rig, id).unwrap().provisioning(), v1::Provisioning::Thin);
    let specs = [("provisioning:type".to_owned(), "thick".to_owned())].into();
    rig.service.create_type(&admin(), "thick", None, true, specs).await.unwrap();
    rig.storage.state().lvs = vec![v1::Lv { thin: true, ..lv("more", GIB, "") }];
    let new = ManageVolume { volume_type: Some("thick".to_owned()), ..content("more") };
    invalid(manage(&rig, new).await, "volume type mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_volume_is_refused_before_anything_is_kept() {
    let rig = rig(0).await;
    let bad = "Manage existing volume failed due to invalid backend reference";
    invalid(manage(&rig, content("mounted")).await, &format!("{bad} mounted: it is in use on this host"));
    invalid(manage(&rig, content("nosuch")).await, "no such LV is in the groups that its agent serves");
    invalid(manage(&rig, content("data2")).await, "no such LV");
    invalid(manage(&rig, content("mooring-x")).await, "it is a volume already");
    invalid(manage(&rig, content("uneven")).await, "lvextend --size +1069547520b vg0/uneven");
    let host = |host: &str| ManageVolume { host: host.to_owned(), ..content("data") };
    for other in ["nosuch@lvm", "storage", "storage@lvm#/", ""] {
        let refused = manage(&rig, host(other)).await;
        assert!(matches!(&refused, Err(Refusal::NotFound { kind: "Service", .. })), "{other}: {refused:?}");
    }
    let refused = rig.service.manage_volume(&member("p"), content("data")).await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    let refused = rig.service.manageable_volumes(&member("p"), "storage@lvm").await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(_))), "{refused:?}");

    rig.service.set_quotas(&admin(), "p", [(Key::Gigabytes, Limit::At(1))].into()).await.unwrap();
    let refused = manage(&rig, content("data")).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Exceeded(_))), "{refused:?}");
    assert!(rig.service.volumes(&admin(), ListQuery::default()).await.unwrap().items.is_empty());
    assert!(rig.storage.state().volumes.is_empty(), "the agent was told nothing");

    let of = |all: Vec<mooring_controller::domain::ManageableVolume>| {
        all.into_iter().map(|lv| (lv.path(), lv.unsafe_because.is_none())).collect::<Vec<_>>()
    };
    let all = of(rig.service.manageable_volumes(&admin(), "storage@lvm").await.unwrap());
    assert_eq!(
        all,
        [
            ("vg0/data".to_owned(), true),
            ("vg0/mounted".to_owned(), false),
            ("vg0/uneven".to_owned(), false),
            ("vg1/data2".to_owned(), true),
            ("vg0/mooring-x".to_owned(), false),
        ]
    );
    assert_eq!(of(rig.service.manageable_volumes(&admin(), "storage@lvm#vg1").await.unwrap()).len(), 1);
    rig.storage.set_down(true);
    let refused = rig.service.manageable_volumes(&admin(), "storage@lvm").await;
    assert!(matches!(&refused, Err(Refusal::Unavailable(_))), "{refused:?}");
}

/// By LVM's uuid, too, which is unique where a name is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_in_two_groups_says_which() {
    let rig = rig(0).await;
    rig.storage.state().lvs[3].name = "data".to_owned();
    let anywhere = ManageVolume { host: "storage@lvm".to_owned(), ..content("data") };
    invalid(manage(&rig, anywhere.clone()).await, "there are vg0/data and vg1/data: say GROUP/LV");
    let by_uuid = ManageVolume { reference: LvReference::Uuid("uuid-of-data".to_owned()), ..anywhere };
    let id = manage(&rig, by_uuid).await.unwrap().id;
    rig.until_volume(id, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_lv_that_the_agent_does_not_take_is_given_back_and_never_destroyed() {
    let rig = rig(0).await;
    let refusal = cured(Code::FailedPrecondition, "LV vg0/data: it is in use on this host", "operator");
    rig.storage.state().knobs.refuse_volume = Some(refusal);
    let id = manage(&rig, content("data")).await.unwrap().id;
    let volume = rig.until_volume(id, VolumeStatus::ErrorManaging).await;
    assert!(
        volume.fault.as_deref().is_some_and(|why| why.contains("it is in use on this host")),
        "{volume:?}"
    );
    let messages = rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items;
    assert!(messages.iter().any(|one| one.resource_id == Some(id.to_string())), "{messages:?}");
    // A delete unmanages it, as Cinder does.
    rig.storage.state().knobs.refuse_volume = None;
    rig.service.delete_volume(&admin(), id).await.unwrap();
    until_gone(&rig, id).await;
    assert!(!calls(&rig, id).contains(&"delete".to_owned()), "{:?}", calls(&rig, id));

    // A forced delete does so, too, for one that fails later.
    rig.storage.state().knobs.fail_volumes = true;
    let id = manage(&rig, content("data")).await.unwrap().id;
    rig.until_volume(id, VolumeStatus::ErrorManaging).await;
    rig.storage.state().knobs.fail_volumes = false;
    rig.service.volume_action(&admin(), id, VolumeAction::ForceDelete).await.unwrap();
    until_gone(&rig, id).await;
    assert_eq!(calls(&rig, id).iter().filter(|word| *word == "delete").count(), 0);
    assert!(calls(&rig, id).contains(&"release".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_unmanaged_is_let_go_and_not_deleted() {
    let rig = rig(1).await;
    let id = managed(&rig).await;
    let live = rig.attach(id, "host1", Mode::ReadWrite).await;
    invalid(rig.service.unmanage_volume(&admin(), id).await, "current status is: in-use");
    rig.service.delete_attachment(&admin(), live.attachment.id, false, LONG).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
    let refused = rig.service.unmanage_volume(&member("p"), id).await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    rig.service.unmanage_volume(&admin(), id).await.unwrap();
    until_gone(&rig, id).await;
    // The export went first, and the data stays.
    let words = calls(&rig, id);
    assert_eq!(words.last().map(String::as_str), Some("release"), "{words:?}");
    assert!(
        !words.contains(&"delete".to_owned()) && rig.storage.state().exports[&id.to_string()].spec.is_none()
    );
    let name = format!("mooring-{id}");
    assert!(rig.storage.state().lvs.iter().any(|lv| lv.name == name));
    // The volume's quota is free again, and the LV can be managed again under its present name.
    let quotas = rig.service.quotas(&admin(), "p").await.unwrap();
    assert_eq!(quotas.iter().find(|entry| entry.key == Key::Gigabytes).unwrap().in_use, 0);
    let again = manage(&rig, content(&name)).await.unwrap();
    assert_ne!(again.id, id);
    rig.until_volume(again.id, VolumeStatus::Available).await;
    // The control: a volume that is deleted is destroyed.
    rig.service.delete_volume(&admin(), again.id).await.unwrap();
    until_gone(&rig, again.id).await;
    assert_eq!(calls(&rig, again.id).last().map(String::as_str), Some("delete"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_let_go_is_not_believed() {
    let rig = rig(0).await;
    let id = managed(&rig).await;
    rig.storage.state().knobs.keeps_released = true;
    rig.service.unmanage_volume(&admin(), id).await.unwrap();
    let volume = rig.until_volume(id, VolumeStatus::ErrorUnmanaging).await;
    assert!(
        volume.fault.as_deref().is_some_and(|why| why.contains("its release cannot unmanage volumes")),
        "{volume:?}"
    );
    invalid(rig.service.delete_volume(&admin(), id).await, "Volume status must be available");
    rig.storage.state().knobs.keeps_released = false;
    rig.service.unmanage_volume(&admin(), id).await.unwrap();
    until_gone(&rig, id).await;
}

/// At every state of the controller's knowledge when it died.
#[tokio::test(flavor = "multi_thread")]
async fn both_go_on_after_a_restart() {
    let mut rig = rig(0).await;
    rig.storage.state().knobs.pending = true;
    let id = manage(&rig, content("data")).await.unwrap().id;
    rig.restart().await;
    rig.storage.state().knobs.pending = false;
    // The fake may be asked once more just before the restart, and answer with the old state. An
    // agent reports the end by itself, whoever has asked.
    until("the volume", async || {
        rig.storage.publish(&id.to_string());
        let volume = rig.service.volume(&admin(), id).await.unwrap();
        if volume.status == VolumeStatus::Available { Ok(()) } else { Err(format!("{volume:?}")) }
    })
    .await;
    rig.storage.state().knobs.lose_deletes = true;
    rig.service.unmanage_volume(&admin(), id).await.unwrap();
    rig.until_volume(id, VolumeStatus::Unmanaging).await;
    rig.restart().await;
    rig.storage.state().knobs.lose_deletes = false;
    until_gone(&rig, id).await;
    assert!(!calls(&rig, id).contains(&"delete".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_brings_managed_volumes_back_and_those_that_are_on_their_way() {
    let mut rig = rig(0).await;
    let there = managed(&rig).await;
    let coming = {
        rig.storage.state().lvs.push(lv("late", GIB, ""));
        rig.storage.state().knobs.fail_volumes = true;
        let id =
            manage(&rig, ManageVolume { name: Some("late".to_owned()), ..content("late") }).await.unwrap().id;
        rig.until_volume(id, VolumeStatus::ErrorManaging).await;
        id
    };
    rig.rebuild("rebuilt").await.unwrap();
    rig.restart_on("rebuilt", false).await;
    rig.until_host("storage", |host| host.up).await;
    let volume = rig.until_volume(coming, VolumeStatus::ErrorManaging).await;
    assert_eq!((volume.name.as_deref(), volume.size_gib), (Some("late"), 1));
    rig.storage.state().knobs.fail_volumes = false;
    rig.storage.publish(&coming.to_string());
    rig.until_volume(coming, VolumeStatus::Available).await;
    let volume = rig.until_volume(there, VolumeStatus::Available).await;
    assert_eq!((volume.name.as_deref(), volume.size_gib, volume.bootable), (Some("old data"), 2, true));
    rig.service.unmanage_volume(&admin(), there).await.unwrap();
    until_gone(&rig, there).await;
}
