//! Revisions of something that changes, with followers that are woken in the order in which they
//! began to wait.
//!
//! (tokio's `watch` wakes its followers in a random order: no run of a simulation would repeat
//! another.)
//!
//! What must never happen here: a change between two looks that a follower does not see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

#[derive(Debug)]
struct Shared {
    revision: AtomicU64,
    changed: Notify,
}

/// The revision of something that changes.
#[derive(Debug)]
pub(crate) struct Pulse(Arc<Shared>);

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
