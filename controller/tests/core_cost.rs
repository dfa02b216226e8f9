//! Cost of requests: counted, not timed. Each transaction that changes something is one sync.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::time::Duration;

use crate::support::{LONG, Rig, admin, connector, reserve};
use mooring_model::VolumeId;

/// One attachment of a client, from its reservation to its receipt.
async fn cycle(rig: &Rig, volume: VolumeId) {
    let made = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    let connected = rig.service.update_attachment(&admin(), made.id, connector(1), LONG).await.unwrap();
    assert!(connected.connection_info.is_some());
    rig.service.complete_attachment(&admin(), made.id).await.unwrap();
    let (receipt, _) = rig.service.delete_attachment(&admin(), made.id, false, LONG).await.unwrap();
    assert!(receipt.receipt.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_of_a_client_is_five_syncs() {
    const CYCLES: u64 = 20;
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    cycle(&rig, volume).await;
    // The rest of the first cycle's work has ended.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = rig.service.commits().unwrap();
    for _ in 0..CYCLES {
        cycle(&rig, volume).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let commits = rig.service.commits().unwrap() - before;
    // On a busy machine a client may be slower than the time for which a grant waits for others.
    assert!(commits <= 6 * CYCLES, "{commits} transactions for {CYCLES} cycles");
}
