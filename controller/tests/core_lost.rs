//! Agents that have lost their store: the controller still knows their identity, and sends their
//! specs again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support;

use crate::support::{Fake, LONG, Rig, admin, native, until};
use mooring_model::{AgentId, Mode, VolumeId};

/// Runs `happens` while the agent is away, and brings it back.
async fn while_away(rig: &Rig, name: &str, agent: &Fake, happens: impl FnOnce()) {
    agent.set_down(true);
    rig.until_host(name, |host| !host.up).await;
    happens();
    agent.set_down(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_without_its_store_gets_its_id_and_all_specs_back() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let made = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment;
    let (storage, host) = (rig.storage.state().id, rig.hosts[0].state().id);
    let initiator = rig.hosts[0].state().initiator.clone();
    let granted = rig.storage.granted(volume);
    while_away(&rig, "storage", &rig.storage, || rig.storage.state().lose_store(&[volume])).await;
    while_away(&rig, "host1", &rig.hosts[0], || rig.hosts[0].state().lose_store(&[])).await;
    until("everything as it was", async || {
        let told = rig.hosts[0].state().connections.contains_key(&volume.to_string());
        let now = rig.storage.granted(volume);
        if told && now == granted { Ok(()) } else { Err(format!("{told} {now:?}")) }
    })
    .await;
    assert_eq!((rig.storage.state().id, rig.hosts[0].state().id), (storage, host));
    assert_eq!(rig.hosts[0].state().initiator, initiator);
    assert_eq!(rig.storage.state().cluster, rig.service.cluster().to_string());
    let cut = rig.storage.state().calls.iter().any(|call| call.ends_with("cut"));
    assert!(!cut, "{:?}", rig.storage.state().calls);
    // The agent works as before.
    rig.until_host("host1", |host| host.up).await;
    rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
    assert!(rig.storage.granted(volume).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_agent_under_a_known_name_is_not_taken_for_it() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    for (name, agent) in [("storage", &rig.storage), ("host1", &rig.hosts[0])] {
        let (known, other) = (agent.state().id, AgentId::random());
        while_away(&rig, name, agent, || agent.state().id = other).await;
        // The other agent stores specs: it is an agent of its own.
        rig.until_host(name, |host| {
            let why = host.why_down.as_deref().unwrap_or_default();
            why.contains(&other.to_string()) && why.contains(&known.to_string())
        })
        .await;
        assert_eq!(agent.state().id, other);
        while_away(&rig, name, agent, || agent.state().id = known).await;
        rig.until_host(name, |host| host.up).await;
    }
    // This agent stores nothing, but it is another machine.
    let host = &rig.hosts[0];
    while_away(&rig, "host1", host, || {
        // Both changes under one lock: an answer on its way must not mix the two machines.
        let mut state = host.state();
        state.lose_store(&[]);
        state.machine = "another".to_owned();
    })
    .await;
    rig.until_host("host1", |host| host.why_down.as_deref().unwrap_or_default().contains("machine another"))
        .await;
    assert!(host.state().connections.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_which_nothing_is_known_may_become_another() {
    let rig = Rig::new(1).await;
    let other = AgentId::random();
    let host = &rig.hosts[0];
    host.state()
        .connections
        .insert("00000000-0000-4000-8000-000000000001".to_owned(), support::Object::default());
    while_away(&rig, "host1", host, || host.state().id = other).await;
    rig.until_host("host1", |host| host.up && host.agent == Some(other)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_disks_are_gone_with_the_store_is_not_made_again_empty() {
    let rig = Rig::new(1).await;
    let (kept, lost, back) = (rig.volume(false).await, rig.volume(false).await, rig.volume(false).await);
    while_away(&rig, "storage", &rig.storage, || rig.storage.state().lose_store(&[kept])).await;
    rig.until_host("storage", |host| {
        let why = |text: &String| text.contains("in review") && text.contains(&lost.to_string());
        host.up && host.problems.iter().any(why)
    })
    .await;
    rig.attach(kept, "host1", Mode::ReadWrite).await;
    let refused = rig.service.create_attachment(&admin(), native(lost, "host1", Mode::ReadWrite), LONG).await;
    assert!(refused.unwrap_err().to_string().contains("is in review"));
    let why = rig.service.volume(&admin(), lost).await.unwrap().fault;
    assert!(why.is_some_and(|why| why.contains("no data of this volume")));
    assert!(!rig.storage.state().volumes.contains_key(&lost.to_string()));
    rig.service.confirm_review(&admin(), lost).await.unwrap();
    rig.attach(lost, "host1", Mode::ReadWrite).await;
    // The disks of another volume are brought back: its review ends by itself.
    let none_of_it =
        rig.service.create_attachment(&admin(), native(back, "host1", Mode::ReadWrite), LONG).await;
    assert!(none_of_it.unwrap_err().to_string().contains("is in review"));
    while_away(&rig, "storage", &rig.storage, || rig.storage.state().orphans.extend([back.to_string()]))
        .await;
    rig.until_host("storage", |host| host.up && !host.problems.iter().any(|text| text.contains("in review")))
        .await;
    rig.attach(back, "host1", Mode::ReadWrite).await;
}

/// A slow LVM, or late disks: the agent finds the data after it has reported that it has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_its_agent_finds_later_is_lost_no_longer() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    let granted = rig.storage.granted(volume);
    while_away(&rig, "storage", &rig.storage, || rig.storage.state().lose_store(&[])).await;
    rig.until_host("storage", |host| host.up && host.problems.iter().any(|text| text.contains("in review")))
        .await;
    assert!(rig.storage.granted(volume).is_empty());
    // Data of another volume is no reason to end the review.
    rig.storage.publish_orphan(VolumeId::random());
    rig.storage.publish_orphan(volume);
    until("everything as it was", async || {
        let now = rig.storage.granted(volume);
        if now == granted { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    rig.until_host("storage", |host| host.up && !host.problems.iter().any(|text| text.contains("in review")))
        .await;
}

/// Each call makes the agent ask LVM anew: a call that waits long enough must succeed.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_lvm_keeps_no_volume_from_being_made_or_told_again() {
    let rig = Rig::new(1).await;
    rig.storage.state().knobs.slow_lvm.calls = 2;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    let granted = rig.storage.granted(volume);
    while_away(&rig, "storage", &rig.storage, || rig.storage.state().lose_store(&[volume])).await;
    until("everything as it was", async || {
        let now = rig.storage.granted(volume);
        if now == granted { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}
