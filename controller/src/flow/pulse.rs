//! Revisions of something that changes, with followers that are woken in the order in which they
//! began to wait.
//!
//! (tokio's `watch` wakes its followers in a random order: no run of a simulation would repeat
//! another.)
//!
//! What must never happen here: a change between two looks that a follower does not see.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mooring_model::VolumeId;
use tokio::sync::Notify;

use super::lock;

#[derive(Debug)]
struct Shared {
    revision: AtomicU64,
    changed: Notify,
}

/// The revision of something that changes.
#[derive(Debug)]
struct Pulse(Arc<Shared>);

impl Pulse {
    /// Starts with this revision.
    pub(super) fn new(revision: u64) -> Self {
        Self(Arc::new(Shared { revision: AtomicU64::new(revision), changed: Notify::new() }))
    }

    pub(super) fn revision(&self) -> u64 {
        self.0.revision.load(Ordering::Acquire)
    }

    /// Announces that something may have changed. Returns the new revision.
    pub(super) fn beat(&self) -> u64 {
        let revision = self.0.revision.fetch_add(1, Ordering::AcqRel) + 1;
        self.0.changed.notify_waiters();
        revision
    }

    /// Makes a follower that sees every change from now on.
    pub(super) fn follow(&self) -> Follower {
        Follower { seen: self.revision(), pulse: Arc::clone(&self.0) }
    }
}

/// The revisions of all volumes that changed, or that somebody followed.
#[derive(Debug)]
pub(crate) struct Pulses {
    /// The first revision of each volume.
    born: u64,
    /// Ordered, so that followers are always woken in the same order.
    all: Mutex<BTreeMap<VolumeId, Pulse>>,
}

impl Pulses {
    pub(super) fn new(born: u64) -> Self {
        Self { born, all: Mutex::default() }
    }

    /// Announces that something of a volume may have changed. Returns its new revision.
    pub(super) fn beat(&self, volume: VolumeId) -> u64 {
        lock(&self.all).entry(volume).or_insert_with(|| Pulse::new(self.born)).beat()
    }

    /// Announces that something of every volume may have changed.
    pub(super) fn beat_all(&self) {
        for pulse in lock(&self.all).values() {
            pulse.beat();
        }
    }

    /// Follows a volume's changes from now on.
    pub(super) fn follow(&self, volume: VolumeId) -> Follower {
        lock(&self.all).entry(volume).or_insert_with(|| Pulse::new(self.born)).follow()
    }

    /// Returns the revision of a volume.
    pub(super) fn revision(&self, volume: VolumeId) -> u64 {
        lock(&self.all).get(&volume).map_or(self.born, Pulse::revision)
    }
}

/// A follower of something that changes.
#[derive(Debug)]
pub(crate) struct Follower {
    pulse: Arc<Shared>,
    seen: u64,
}

impl Follower {
    /// Returns the revision of the follower's last look.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Waits for a revision other than that of the last look.
    pub(crate) async fn changed(&mut self) {
        let seen = self.seen;
        self.seen = self.wait_for(|revision| *revision != seen).await;
    }

    /// Waits for a revision for which `wanted` is true, and returns it.
    pub(crate) async fn wait_for(&mut self, wanted: impl Fn(&u64) -> bool) -> u64 {
        loop {
            // Registered before the look: a change after the look wakes this follower.
            let mut changed = std::pin::pin!(self.pulse.changed.notified());
            changed.as_mut().enable();
            let revision = self.pulse.revision.load(Ordering::Acquire);
            if wanted(&revision) {
                return revision;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_change_is_missed_and_none_is_seen_twice() {
        let pulse = Pulse::new(7);
        let mut follower = pulse.follow();
        pulse.beat();
        follower.changed().await;
        let quiet = tokio::time::timeout(Duration::from_secs(1), follower.changed()).await;
        assert!(quiet.is_err(), "seen twice");
        pulse.beat();
        assert_eq!(follower.wait_for(|revision| *revision == 9).await, 9);
    }
}
