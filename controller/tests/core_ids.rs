//! Ids of volumes and their identities on the wire: who may choose them, and what happens to an id
//! that is or was in use.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::sync::Arc;

use mooring_controller::domain::{
    Caller, NewVolume, RequestKey, Volume, VolumeAction, VolumeStatus, WantedId,
};
use mooring_controller::http::in_words;
use mooring_controller::policy::Policies;
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};
use tonic::Code;

use crate::support::{Fake, LONG, ON_POSTGRES, Rig, admin, client, cured, member, native, new_volume, until};

fn of_id(id: VolumeId) -> NewVolume {
    NewVolume { id: Some(WantedId::Given(id)), ..new_volume() }
}

fn of_key(key: &str) -> NewVolume {
    NewVolume { id: Some(WantedId::Key(RequestKey::new(key).unwrap())), ..new_volume() }
}

async fn create(rig: &Rig, caller: &Caller, new: NewVolume) -> Result<Volume, Refusal> {
    rig.service.create_volume(caller, new).await
}

/// An id that differs from this one only after the digits that make the NAA.
fn twin_of(id: VolumeId) -> VolumeId {
    VolumeId::from_u128(u128::from_be_bytes(*id.as_bytes()) ^ 1)
}

#[track_caller]
fn conflict(answer: Result<Volume, Refusal>) -> String {
    match answer.map_err(in_words) {
        Err(Refusal::Conflict(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// Puts of this volume that reached the agent, as `volume` and `delete`.
fn calls(agent: &Fake, id: VolumeId) -> Vec<String> {
    let id = id.to_string();
    let of_it = |call: &&String| call.contains(&id) && !call.starts_with("export");
    let word = |call: &String| call.split(' ').next().unwrap().to_owned();
    agent.state().calls.iter().filter(of_it).map(word).collect()
}

async fn until_gone(rig: &Rig, id: VolumeId) {
    until("the end of the volume", async || match rig.service.volume(&admin(), id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_key_makes_one_volume_for_its_project_when_it_is_repeated() {
    let rig = Rig::new(0).await;
    let (mine, theirs) = (member("mine"), member("theirs"));
    let first = create(&rig, &mine, of_key("nightly")).await.unwrap();
    rig.until_volume(first.id, VolumeStatus::Available).await;
    assert_eq!(create(&rig, &mine, of_key("nightly")).await.unwrap().id, first.id);
    let other = create(&rig, &theirs, of_key("nightly")).await.unwrap();
    assert_ne!(other.id, first.id, "each project has keys of its own");
    assert_ne!(create(&rig, &mine, of_key("weekly")).await.unwrap().id, first.id);
    let text = conflict(create(&rig, &mine, NewVolume { size_gib: Some(2), ..of_key("nightly") }).await);
    assert!(text.contains("\"nightly\"") && text.contains("choose another"), "{text}");
    rig.service.delete_volume(&mine, first.id).await.unwrap();
    until_gone(&rig, first.id).await;
    assert_eq!(conflict(create(&rig, &mine, of_key("nightly")).await), text);
}

#[tokio::test(flavor = "multi_thread")]
async fn id_is_chosen_by_admins_alone_unless_a_policy_says_more() {
    let rig = Rig::new(0).await;
    let refused = create(&rig, &member("p"), of_id(VolumeId::random())).await;
    assert!(
        matches!(&refused, Err(Refusal::Forbidden(text)) if text.contains("mooring:choose_id")),
        "{refused:?}"
    );
    let id = VolumeId::random();
    assert_eq!(create(&rig, &admin(), of_id(id)).await.unwrap().id, id);
    let mut service = member("p");
    service.roles.push("service".to_owned());
    assert!(create(&rig, &service, of_id(VolumeId::random())).await.is_err());
    let file = "\"mooring:choose_id\": \"rule:admin_api or role:service\"\n";
    let policies = Arc::new(Policies::parse(file, "policy.yaml", true).unwrap());
    let rig = Rig::quiet_with(0, move |options| options.policies = Arc::clone(&policies));
    rig.up().await;
    assert_eq!(create(&rig, &service, of_id(id)).await.unwrap().id, id);
}

/// The sentence tells nothing of the id's holder: not even if there still is one.
#[tokio::test(flavor = "multi_thread")]
async fn id_that_anybody_has_or_had_is_refused_in_one_sentence() {
    let rig = Rig::quiet(1);
    let (orphan, late, tombstone, connection) =
        (VolumeId::random(), VolumeId::random(), VolumeId::random(), VolumeId::random());
    {
        let mut state = rig.storage.state();
        state.orphans.insert(orphan.to_string());
        state.volumes.insert(tombstone.to_string(), crate::support::Object::default());
    }
    rig.hosts[0].state().connections.insert(connection.to_string(), crate::support::Object::default());
    rig.up().await;
    let theirs = create(&rig, &member("theirs"), new_volume()).await.unwrap().id;
    rig.until_volume(theirs, VolumeStatus::Available).await;
    let gone = rig.volume(false).await;
    rig.service.delete_volume(&admin(), gone).await.unwrap();
    until_gone(&rig, gone).await;
    let own = create(&rig, &admin(), of_id(VolumeId::random())).await.unwrap().id;
    rig.storage.publish_orphan(late);
    // Reports are taken in order: when this volume is there, all earlier reports have been seen.
    rig.storage.state().knobs.pending = true;
    let behind = create(&rig, &admin(), new_volume()).await.unwrap().id;
    until(
        "the put",
        async || if calls(&rig.storage, behind).is_empty() { Err(String::new()) } else { Ok(()) },
    )
    .await;
    rig.storage.state().knobs.pending = false;
    rig.storage.publish(&behind.to_string());
    rig.until_volume(behind, VolumeStatus::Available).await;
    for id in [orphan, late, tombstone, connection, theirs, gone, own] {
        for known in [id, twin_of(id)] {
            let text = conflict(create(&rig, &admin(), of_id(known)).await);
            assert_eq!(
                text.replace(&known.to_string(), "X"),
                "the id X is in use, or was once: choose another"
            );
        }
    }
    // The control: an id that no volume had.
    create(&rig, &admin(), of_id(VolumeId::random())).await.unwrap();
}

/// Only the agent knows the id: the controller has not heard of it.
async fn refused_by_its_agent(refuse: impl FnOnce(&Rig, VolumeId)) {
    let rig = Rig::quiet(1);
    // Another pool could take it, and has less room.
    let mut pools = rig.storage.state().pools.clone();
    for pool in &mut pools {
        pool.free_bytes /= 2;
    }
    rig.hosts[0].state().pools = pools;
    rig.up().await;
    let id = VolumeId::random();
    refuse(&rig, id);
    create(&rig, &admin(), of_id(id)).await.unwrap();
    rig.until_volume(id, VolumeStatus::Error).await;
    let fault = rig.service.volume_state(&admin(), id).await.unwrap().volume.fault.unwrap();
    assert!(fault.contains("storage node storage") && fault.contains("another id"), "{fault}");
    rig.service.delete_volume(&admin(), id).await.unwrap();
    until_gone(&rig, id).await;
    assert_eq!(calls(&rig.storage, id), ["volume"], "what is there is not destroyed");
    assert_eq!(calls(&rig.hosts[0], id), Vec::<String>::new(), "and no second one is made elsewhere");
    conflict(create(&rig, &admin(), of_id(id)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_volume_ends_in_error_when_its_agent_knows_the_id() {
    refused_by_its_agent(|rig, id| {
        rig.storage.state().orphans.insert(id.to_string());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_volume_goes_to_no_other_node_when_its_naa_is_taken() {
    let taken = cured(Code::AlreadyExists, "volume V would have NAA N, which volume W has", "fix_spec");
    refused_by_its_agent(|rig, _| rig.storage.state().knobs.refuse_volume = Some(taken)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_is_destroyed_only_once_its_agent_was_seen_to_have_it() {
    for known in [true, false] {
        let rig = Rig::new(0).await;
        let lost = cured(Code::Unavailable, "the connection broke", "retry");
        rig.storage.state().knobs.refuse_volume = Some(lost);
        let id = create(&rig, &admin(), new_volume()).await.unwrap().id;
        until("a lost call", async || match calls(&rig.storage, id).len() {
            0 => Err(String::new()),
            _ => Ok(()),
        })
        .await;
        rig.service.volume_action(&admin(), id, VolumeAction::ForceDelete).await.unwrap();
        {
            let mut state = rig.storage.state();
            if known {
                state.orphans.insert(id.to_string());
            }
            state.knobs.refuse_volume = None;
        }
        until_gone(&rig, id).await;
        let deleted = calls(&rig.storage, id).iter().any(|call| call == "delete");
        assert_eq!(deleted, !known, "{:?}", rig.storage.state().calls);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_spec_stays_as_it_is_until_its_agent_has_the_volume() {
    let rig = Rig::new(0).await;
    rig.storage.state().knobs.slow_lvm.calls = 3;
    let id = create(&rig, &admin(), new_volume()).await.unwrap().id;
    let name = Some(Some("renamed".to_owned()));
    rig.service.update_volume(&admin(), id, name, None, None).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
    until("the new name at the agent", async || {
        let opaque = rig.storage.state().volumes[&id.to_string()].opaque.clone();
        let text = String::from_utf8(opaque).unwrap();
        if text.contains("renamed") { Ok(()) } else { Err(text) }
    })
    .await;
    let generations: std::collections::BTreeSet<_> =
        rig.storage.state().calls.iter().filter(|call| call.starts_with("volume")).cloned().collect();
    assert_eq!(generations.len(), 2, "{generations:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_database_hands_no_volume_to_another_project_by_its_id() {
    let mut rig = Rig::new(1).await;
    rig.backup("old");
    let theirs = create(&rig, &member("theirs"), of_key("data")).await.unwrap().id;
    rig.until_volume(theirs, VolumeStatus::Available).await;
    rig.storage.set_down(true);
    rig.restart_on("old", true).await;
    rig.until_host("host1", |host| host.up).await;
    // The agent's volumes are still unknown.
    for new in [of_id(theirs), of_key("data")] {
        let refused = create(&rig, &admin(), new).await;
        assert!(
            matches!(&refused, Err(Refusal::Unavailable(text)) if text.contains("agent storage") && text.contains("restored")),
            "{refused:?}"
        );
    }
    // A project is told of no agent.
    let told = create(&rig, &member("theirs"), of_key("data")).await;
    let Err(Refusal::Unavailable(text)) = &told else { panic!("{told:?}") };
    assert!(text.contains("restored") && text.contains("ask again later"), "{text}");
    assert!(!text.contains("agent storage"), "{text}");
    rig.storage.set_down(false);
    rig.until_host("storage", |host| host.up).await;
    let forbidden = create(&rig, &member("others"), of_id(theirs)).await;
    assert!(matches!(forbidden, Err(Refusal::Forbidden(_))), "{forbidden:?}");
    conflict(create(&rig, &admin(), of_id(theirs)).await);
    // The id is not reused for its own project's repeated request either.
    conflict(create(&rig, &member("theirs"), of_key("data")).await);
    let other = create(&rig, &member("others"), of_key("data")).await.unwrap().id;
    assert_ne!(other, theirs);
    rig.until_volume(other, VolumeStatus::Available).await;
    assert_eq!(calls(&rig.storage, theirs), ["volume"], "before the restore, and never again");
}

/// Volumes that share an NAA and are older than the rule stay.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_share_an_naa_are_attached_to_nobody_new() {
    let mut rig = Rig::new(1).await;
    let id = rig.volume(true).await;
    let made = rig.attach(id, "host1", Mode::ReadWrite).await.attachment.id;
    let twin = twin_of(id);
    let sql = format!(
        "CREATE TABLE copied AS SELECT * FROM volumes WHERE id = '{id}'; UPDATE copied SET id = '{twin}'; \
         INSERT INTO volumes SELECT * FROM copied; DROP TABLE copied; \
         INSERT INTO specs (volume_id, kind, agent_id, epoch, counter, digest, body, opaque, hard, settled) \
         SELECT '{twin}', kind, agent_id, epoch, counter, digest, body, opaque, hard, settled FROM specs \
         WHERE volume_id = '{id}' AND kind = 'volume';"
    );
    {
        let mut state = rig.storage.state();
        let kept = state.volumes[&id.to_string()].clone();
        state.volumes.insert(twin.to_string(), kept);
    }
    if ON_POSTGRES {
        rig.psql(&sql);
    } else {
        rig.write(&sql);
    }
    rig.restart().await;
    for volume in [id, twin] {
        for new in [native(volume, "host1", Mode::ReadWrite), client(volume, 2)] {
            let refused =
                rig.service.create_attachment(&admin(), new, LONG).await.map_err(in_words).unwrap_err();
            let text = refused.to_string();
            assert!(
                text.contains(&volume.to_string()) && text.contains("same identity on the wire"),
                "{text}"
            );
        }
    }
    // An existing attachment stays, and can be detached.
    assert_eq!(rig.storage.granted(id).len(), 1);
    rig.service.delete_attachment(&admin(), made, false, LONG).await.unwrap();
    // One of the remaining two is deleted, and the other becomes a volume like any other.
    let gone = format!("DELETE FROM volumes WHERE id = '{twin}'");
    if ON_POSTGRES {
        rig.psql(&gone);
    } else {
        rig.write(&gone);
    }
    rig.attach(id, "host1", Mode::ReadWrite).await;
}
