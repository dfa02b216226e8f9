//! Hosts that never come back, driven through the service against agents in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{
    LONG, ON_POSTGRES, Rig, SHORT, admin, client, member, native, new_volume, put_forward, reserve, until,
};
use mooring_controller::domain::{FenceState, HostLoss, NewFence};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::quota::Key;
use mooring_controller::service::{FORGET_AFTER, Refusal};
use mooring_model::{AgentId, Cause, Mode, Proof, Receipt, VolumeId};

const SILENT: u64 = FORGET_AFTER.as_secs() + 1;

async fn forget(rig: &Rig, name: &str) -> Result<HostLoss, Refusal> {
    rig.service.forget_host(&admin(), name, name).await
}

async fn loss(rig: &Rig, name: &str) -> HostLoss {
    rig.service.host_loss(&admin(), name).await.unwrap()
}

async fn is_gone(rig: &Rig, volume: VolumeId) -> bool {
    matches!(rig.service.volume(&admin(), volume).await, Err(Refusal::NotFound { .. }))
}

fn is_never_proven(receipt: &Receipt) -> bool {
    receipt.proof == Proof::Unproven { in_flight: None } && receipt.cause == Cause::Forgotten
}

/// Makes the storage node silent for long enough to be forgotten.
async fn lose(rig: &Rig) {
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    put_forward(SILENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_with_all_that_it_has_and_comes_back_a_stranger() {
    let rig = Rig::new(2).await;
    let (one, two) = (rig.volume(true).await, rig.volume(true).await);
    let first = rig.attach(one, "host1", Mode::ReadWrite).await.attachment.id;
    let second = rig.attach(one, "host2", Mode::ReadOnly).await.attachment.id;
    let stock = rig.service.create_attachment(&admin(), client(two, 7), LONG).await.unwrap().id;
    let reserved = rig.service.create_attachment(&admin(), reserve(two), LONG).await.unwrap().id;

    // While it answers, and for a while after its last report, nothing is removed.
    assert!(loss(&rig, "storage").await.obstacle.unwrap().contains("answers"));
    assert!(matches!(forget(&rig, "storage").await, Err(Refusal::Conflict(why)) if why.contains("answers")));
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    put_forward(SILENT / 2);
    let early = forget(&rig, "storage").await.map_err(in_words).unwrap_err();
    assert!(matches!(&early, Refusal::Conflict(why) if why.contains("10 minutes")), "{early}");
    put_forward(SILENT / 2 + 1);
    let plan = loss(&rig, "storage").await;
    let total = plan.total();
    assert_eq!((total.volumes, total.snapshots, total.gib, total.attachments), (2, 0, 2, 4));
    assert_eq!((plan.projects.len(), plan.attached, &plan.obstacle), (1, 0, &None));
    for wrong in ["", "Storage", "host1"] {
        let refused =
            rig.service.forget_host(&admin(), "storage", wrong).await.map_err(in_words).unwrap_err();
        assert!(matches!(&refused, Refusal::Invalid(_)), "{refused}");
    }
    assert!(!is_gone(&rig, one).await, "a question takes nothing");

    assert_eq!(forget(&rig, "storage").await.unwrap(), plan);
    assert!(is_gone(&rig, one).await && is_gone(&rig, two).await);
    assert!(rig.service.volumes(&admin(), ListQuery::default()).await.unwrap().items.is_empty());
    let quotas = rig.service.quotas(&admin(), "p").await.unwrap();
    let used = |key: Key| quotas.iter().find(|entry| entry.key == key).unwrap().in_use;
    assert_eq!((used(Key::Volumes), used(Key::Gigabytes)), (0, 0));
    let records = rig.service.receipts(&admin(), None, None, 100).await.unwrap();
    assert_eq!(records.len(), 4);
    for record in &records {
        assert!(record.forced && record.user.as_deref() == Some("u"), "{record:?}");
        let never = record.receipt.as_ref().is_some_and(is_never_proven);
        assert_eq!(never, record.attachment != reserved, "{record:?}");
    }
    for id in [first, second, stock] {
        let receipt = rig.service.receipt(&admin(), id).await.unwrap().receipt.unwrap();
        assert!(is_never_proven(&receipt) && receipt.attachments == [id], "{receipt:?}");
    }
    // The node's hosts are told to disconnect.
    for host in &rig.hosts {
        until("the end of a connection", async || {
            let gone = host.state().connections.values().all(|kept| kept.spec.is_none());
            if gone { Ok(()) } else { Err("its spec is still there".to_owned()) }
        })
        .await;
    }

    // When it comes back, none of its objects is adopted, and no volume is placed there.
    let calls = rig.storage.state().calls.len();
    rig.storage.set_down(false);
    let said = "was forgotten as storage";
    rig.until_host("storage", |host| {
        !host.up && host.why_down.as_ref().is_some_and(|why| why.contains(said))
    })
    .await;
    assert!(matches!(forget(&rig, "storage").await, Err(Refusal::Conflict(why)) if why.contains("answers")));
    let homeless = rig.service.create_volume(&admin(), new_volume()).await.unwrap_err();
    assert!(matches!(homeless, Refusal::Unavailable(_)), "{homeless}");
    assert_eq!(rig.storage.state().calls.len(), calls);
    // With another store it is another agent: its old data is an orphan.
    rig.storage.state().id = AgentId::from_u128(0x58);
    rig.until_host("storage", |host| {
        host.up && host.problems.iter().any(|problem| problem.contains("no volume here"))
    })
    .await;
    rig.volume(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_is_finished_by_the_next_start() {
    let mut rig = Rig::new(1).await;
    let mut volumes = Vec::new();
    for _ in 0..5 {
        volumes.push(rig.service.create_volume(&admin(), new_volume()).await.unwrap().id);
    }
    let volume = rig.volume(true).await;
    volumes.push(volume);
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    lose(&rig).await;
    // A controller that died after its first transaction.
    let agent = rig.storage.state().id;
    let sql = format!(
        "INSERT INTO forgotten (agent_id, name, storage, open, by_user, by_request, forgotten_us) \
         VALUES ('{agent}', 'storage', 1, 1, 'u', 'r', 0); DELETE FROM agents WHERE name = 'storage';"
    );
    if ON_POSTGRES {
        drop(rig.psql(&sql));
    } else {
        rig.write(&sql);
    }
    rig.restart_on("state", false).await;
    for volume in volumes {
        until("the end of a volume", async || {
            if is_gone(&rig, volume).await { Ok(()) } else { Err(volume.to_string()) }
        })
        .await;
    }
    let receipt = rig.service.receipt(&admin(), id).await.unwrap().receipt.unwrap();
    assert!(is_never_proven(&receipt), "{receipt:?}");
    // A repeated call finishes it, and nothing is left.
    let again = forget(&rig, "storage").await.unwrap();
    assert_eq!((again.agent, again.projects.len()), (Some(agent), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_attaches_is_cut_off_with_proof_and_forgotten() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let goes = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let stays = rig.attach(volume, "host2", Mode::ReadWrite).await.attachment.id;
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    put_forward(SILENT);
    let plan = loss(&rig, "host1").await;
    assert_eq!((plan.attached, plan.projects.len()), (1, 0));
    forget(&rig, "host1").await.unwrap();
    rig.until_gone(goes).await;
    let receipt = rig.service.receipt(&admin(), goes).await.unwrap().receipt.unwrap();
    assert_eq!((receipt.proof, receipt.cause), (Proof::Proven, Cause::Revoke));
    assert_eq!(rig.storage.granted(volume), [rig.hosts[1].state().initiator.clone()]);
    let live = rig.service.live(&admin(), stays, None, SHORT).await.unwrap();
    assert_eq!(live.session, Some(true));
    let refused =
        rig.service.create_attachment(&admin(), native(volume, "host1", Mode::ReadOnly), LONG).await;
    assert!(refused.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_with_a_part_on_a_forgotten_node_is_never_proven() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    lose(&rig).await;
    let owner = admin();
    let fence = || rig.service.fence_host(&owner, "host1", NewFence::default(), SHORT);
    assert!(fence().await.unwrap().waits());
    forget(&rig, "storage").await.unwrap();
    let cut = fence().await.unwrap();
    assert!(
        matches!(&cut.parts[..], [part] if matches!(&part.state, FenceState::Unproven(receipt) if is_never_proven(receipt))),
        "{cut:?}"
    );
    // The node's other grants are unknown, too.
    assert!(!cut.is_proven() && cut.unknown.iter().any(|node| node.node == "storage"), "{cut:?}");
    let refused = rig.service.unfence_host(&admin(), "host1", false).await.map_err(in_words).unwrap_err();
    assert!(refused.to_string().contains("not proven"), "{refused}");
    rig.service.unfence_host(&admin(), "host1", true).await.unwrap();
    // A later fence takes the word of the operator who forgot the node.
    put_forward(1);
    assert!(fence().await.unwrap().is_proven());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_nobody_knows_is_not_forgotten_nor_by_everybody() {
    let rig = Rig::new(0).await;
    for name in ["nosuch", "", "storage "] {
        let refused = rig.service.host_loss(&admin(), name).await.unwrap_err();
        assert!(matches!(&refused, Refusal::NotFound { kind: "Host", .. }), "{name:?}: {refused}");
        let refused = forget(&rig, name).await.unwrap_err();
        assert!(matches!(&refused, Refusal::NotFound { kind: "Host", .. }), "{name:?}: {refused}");
    }
    assert!(matches!(rig.service.host_loss(&member("p"), "storage").await, Err(Refusal::Forbidden(_))));
    let refused = rig.service.forget_host(&member("p"), "storage", "storage").await;
    assert!(matches!(refused, Err(Refusal::Forbidden(_))));
}
