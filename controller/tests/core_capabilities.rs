//! An agent that does not say what it can do, because its LVM hangs: it is up all the same, what it serves is granted and
//! revoked, and what it said last stands.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod support;

use std::time::{Duration, Instant};

use mooring_api::v1;
use mooring_controller::domain::Host;
use mooring_model::Mode;
use support::{LONG, Rig, admin};

/// An agent is not waited for longer than this, with a busy machine's slack; it does not answer at all here.
const SOON: Duration = Duration::from_secs(4);

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
    // Its reports go on meanwhile, and the stream of reports is the same.
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
    // Nor does the next start forget them.
    rig.restart().await;
    assert_eq!(storage(&rig).await.pools, before);
    rig.volume(false).await;
}
