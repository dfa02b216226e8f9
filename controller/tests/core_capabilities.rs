//! An agent that does not report its capabilities because its LVM hangs: it counts as up, its
//! volumes are granted and revoked, and its last report stands.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support;

use std::time::{Duration, Instant};

use crate::support::{LONG, Rig, admin};
use mooring_api::v1;
use mooring_controller::domain::{HealthLevel, Host, PoolFilter};
use mooring_model::Mode;

/// Time within which a controller goes on without an agent that never answers. A busy machine needs
/// most of it.
const SOON: Duration = Duration::from_secs(30);

fn says(host: &Host, words: &str) -> bool {
    host.problems.iter().any(|problem| problem.contains(words))
}

async fn storage(rig: &Rig) -> Host {
    let hosts = rig.service.hosts(&admin()).await.unwrap();
    hosts.into_iter().find(|host| host.name == "storage").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_say_what_it_can_do_is_used_all_the_same() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let before = storage(&rig).await.pools;
    rig.storage.state().knobs.silent = true;

    let began = Instant::now();
    rig.restart().await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(storage(&rig).await.pools, before, "what it said last");
    let began = Instant::now();
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.service.delete_attachment(&admin(), live.attachment.id, false, LONG).await.unwrap();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());

    let words = "capabilities: the agent has not said what it can do for ";
    rig.until_host("storage", |host| says(host, words)).await;
    let host = storage(&rig).await;
    assert!(host.up && says(&host, "its pools are as they were "), "{host:?}");
    // The agent's reports go on meanwhile, in the same stream.
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.service.delete_attachment(&admin(), live.attachment.id, false, LONG).await.unwrap();

    {
        let mut state = rig.storage.state();
        state.knobs.silent = false;
        state.pools[0].free_bytes -= 1 << 30;
    }
    let free = before[0].free - (1 << 30);
    rig.until_host("storage", |host| host.pools[0].free == free && !says(host, words)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_know_its_pools_takes_none_away() {
    let mut rig = Rig::new(0).await;
    let before = storage(&rig).await.pools;
    assert_eq!(before.len(), 1);
    {
        let mut state = rig.storage.state();
        state.pools.clear();
        state.problems.push(v1::Problem {
            object: "LVM".to_owned(),
            text: "does not answer since 2026-11-21T15:00:13Z".to_owned(),
            cure: v1::Cure::Operator.into(),
        });
    }
    rig.restart().await;
    rig.until_host("storage", |host| says(host, "LVM: does not answer since 2026-11-21T15:00:13Z")).await;
    assert_eq!(storage(&rig).await.pools, before, "seen before");
    // The next start does not forget them either.
    rig.restart().await;
    assert_eq!(storage(&rig).await.pools, before);
    rig.volume(false).await;
}

fn health(level: v1::HealthLevel) -> v1::Health {
    let problem = Some(v1::Problem { object: "volume group vg0".to_owned(), ..v1::Problem::default() });
    let reason = v1::HealthReason { code: "group_unusable".to_owned(), level: level.into(), problem };
    v1::Health { level: level.into(), reasons: vec![reason] }
}

/// A value of the pool in the answer of `get_pools`.
async fn shown(rig: &Rig, key: &str) -> serde_json::Value {
    let pools = rig.service.pools(&admin(), PoolFilter::default()).await.unwrap();
    pools[0].capabilities.get(key).cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_has_failed_takes_no_volume_until_it_is_well() {
    let mut rig = Rig::new(0).await;
    let said = |level: HealthLevel| {
        move |host: &Host| host.pools[0].health.as_ref().is_some_and(|health| health.level == level)
    };
    rig.storage.state().pools[0].health = Some(health(v1::HealthLevel::Failed));
    rig.restart().await;
    rig.until_host("storage", said(HealthLevel::Failed)).await;
    assert_eq!(storage(&rig).await.pools[0].health.as_ref().unwrap().reasons[0].code, "group_unusable");
    assert_eq!(shown(&rig, "backend_state").await, "down");
    let refused = rig.service.create_volume(&admin(), support::new_volume()).await.unwrap_err().to_string();
    assert!(refused.contains("state: it has failed: group_unusable"), "{refused}");

    rig.storage.state().pools[0].health = Some(health(v1::HealthLevel::Degraded));
    rig.restart().await;
    rig.until_host("storage", said(HealthLevel::Degraded)).await;
    assert_eq!(
        (shown(&rig, "backend_state").await, shown(&rig, "mooring_health").await),
        ("up".into(), "degraded".into())
    );
    rig.volume(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_an_earlier_release_is_used_as_before() {
    let rig = Rig::new(1).await;
    let host = storage(&rig).await;
    assert_eq!((host.health, host.pools[0].health.clone(), host.pools[0].snapshots), (None, None, None));
    assert_eq!(shown(&rig, "online_extend_support").await, true);
    assert_eq!(
        (shown(&rig, "mooring_discard").await, shown(&rig, "backend_state").await),
        (serde_json::Value::Null, "up".into())
    );
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discards_are_offered_to_guests_where_the_pool_takes_them() {
    let mut rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let reserved = rig.service.create_attachment(&admin(), support::reserve(volume), LONG).await.unwrap();
    let made =
        rig.service.update_attachment(&admin(), reserved.id, support::connector(1), LONG).await.unwrap();
    assert_eq!(support::connection_info(&made)["discard"], false, "nothing is said of it");
    for (said, offered) in [(Some(true), true), (Some(false), false)] {
        rig.storage.state().pools[0].discard = said;
        rig.restart().await;
        rig.until_host("storage", |host| host.pools[0].discard == said).await;
        let seen = rig.service.attachment(&admin(), made.id).await.unwrap();
        assert_eq!(support::connection_info(&seen)["discard"], offered, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_show_that_the_pool_of_their_volume_has_failed() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let made = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let problem = v1::Problem {
        object: "thin pool vg0/mooring-pool".to_owned(),
        text: "it is full".to_owned(),
        cure: v1::Cure::Operator.into(),
    };
    let level = v1::HealthLevel::Failed.into();
    let reason = v1::HealthReason { code: "thin_pool_full".to_owned(), level, problem: Some(problem) };
    for (health, shown) in [(Some(v1::Health { level, reasons: vec![reason] }), true), (None, false)] {
        rig.storage.state().pools[0].health = health;
        // An agent that comes up again is asked for its pools.
        rig.storage.set_down(true);
        rig.until_host("storage", |host| !host.up).await;
        rig.storage.set_down(false);
        rig.until_host("storage", |host| host.up).await;
        support::until("the state of the pool", async || {
            let problems =
                rig.service.live(&support::admin(), made, None, support::SHORT).await.unwrap().problems;
            let full = problems.iter().any(|text| text.contains("thin_pool_full: it is full"));
            if full == shown { Ok(()) } else { Err(format!("{problems:?}")) }
        })
        .await;
    }
}
