//! Reports about objects that are not the agent's own: they decide nothing, and are counted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use mooring_api::v1;
use mooring_controller::metrics::Metrics;
use mooring_model::{Mode, Proof, VolumeId};

use crate::support::*;

/// A proven receipt for an initiator of node 1.
fn proven(volume: VolumeId, counter: u64) -> v1::Receipt {
    v1::Receipt {
        volume_id: volume.to_string(),
        initiator: connector(1)["initiator"].as_str().unwrap().to_owned(),
        generation: Some(v1::Generation { epoch: 1, counter }),
        nexus_removed: true,
        proven: true,
        began_us: 1_790_000_000_000_000,
        ended_us: 1_790_000_000_000_900,
        ..Default::default()
    }
}

/// Number of an agent's dropped reports of this kind.
async fn dropped(rig: &Rig, agent: &str, kind: &str) -> u64 {
    let text = Metrics::new(rig.service.clone()).text().await.unwrap();
    let name = format!("agent_words_dropped_total{{agent=\"{agent}\",kind=\"{kind}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix("mooring_controller_")?.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
}

/// Takes the agent down and up again, so that it lists its objects.
async fn comes_back(rig: &Rig, host: usize) {
    let name = format!("host{}", host + 1);
    rig.hosts[host].set_down(true);
    rig.until_host(&name, |host| !host.up).await;
    rig.hosts[host].set_down(false);
    rig.until_host(&name, |host| host.up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_of_an_agent_without_the_volume_proves_nothing() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    // An enrolled host claims, for each possible revoke, that it was done: in its list, and by
    // itself.
    {
        let mut state = rig.hosts[0].state();
        state.receipts = (1..40).map(|counter| proven(volume, counter)).collect();
        let kept = Object { stamp: None, spec: None, opaque: Vec::new(), hard: false };
        state.volumes.insert(volume.to_string(), kept);
    }
    rig.hosts[0].publish(&volume.to_string());
    comes_back(&rig, 0).await;
    assert!(dropped(&rig, "host1", "receipt").await >= 39);
    rig.storage.state().knobs.unproven = true;
    let receipt = rig.force(made.id).await;
    assert!(matches!(receipt.proof, Proof::Unproven { .. }), "{receipt:?}");
    // The control: the report of the agent that serves the volume counts.
    rig.storage.prove();
    let receipt = until("the proof", async || {
        let receipt = rig.service.receipt(&admin(), made.id).await.map_err(|refusal| refusal.to_string())?;
        let receipt = receipt.receipt.unwrap();
        if receipt.proof == Proof::Proven { Ok(receipt) } else { Err(format!("{receipt:?}")) }
    })
    .await;
    assert!(receipt.generation.counter > 0);
    assert_eq!(dropped(&rig, "storage", "receipt").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_others_objects_are_dropped_and_counted() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    assert_eq!(dropped(&rig, "host2", "volume").await + dropped(&rig, "host2", "connection").await, 0);
    // The second host reports that the volume is gone, and that it is connected to it.
    let connection = rig.hosts[0].state().connections[&volume.to_string()].clone();
    rig.hosts[1].state().connections.insert(volume.to_string(), connection);
    rig.hosts[1].publish(&volume.to_string());
    rig.hosts[1].publish_connection(&volume.to_string());
    until("both are dropped", async || {
        let seen = (dropped(&rig, "host2", "volume").await, dropped(&rig, "host2", "connection").await);
        if seen.0 > 0 && seen.1 > 0 { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert_eq!(rig.service.volume(&admin(), volume).await.unwrap().attachments.len(), 1);
    assert_eq!(dropped(&rig, "host1", "connection").await, 0, "the one that is attached");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_ends_the_epochs() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let keeps = |epoch, counter| {
        let stamp = v1::Stamp { generation: Some(v1::Generation { epoch, counter }), digest: vec![1; 32] };
        let kept = Object { stamp: Some(stamp), spec: None, opaque: Vec::new(), hard: false };
        rig.hosts[0].state().volumes.insert("00000000-0000-4000-8000-00000000dead".to_owned(), kept);
    };
    // The control: an agent may be ahead by as many epochs as restores make.
    keeps(5, 1);
    comes_back(&rig, 0).await;
    assert_eq!(rig.service.raise_epoch(&admin()).await.unwrap(), 7);
    for (epoch, counter) in [(u64::MAX, 1), (1 << 40, 1), (7, u64::MAX)] {
        keeps(epoch, counter);
        rig.hosts[0].set_down(true);
        rig.until_host("host1", |host| !host.up).await;
        rig.hosts[0].set_down(false);
        rig.until_host("host1", |host| {
            host.why_down.as_ref().is_some_and(|why| why.contains("no history of restores"))
        })
        .await;
    }
    keeps(7, 1);
    rig.until_host("host1", |host| host.up).await;
    let epoch = rig.service.raise_epoch(&admin()).await.unwrap();
    assert!(epoch < 20, "{epoch}");
    // Other volumes were not affected.
    let made = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await;
    assert!(made.is_ok(), "{made:?}");
}
