//! Says that something may have changed, to all who follow it, in the order in which they began to wait.
//!
//! (tokio's `watch` tells its followers in a random order: no run of a simulation would be like another.)
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

/// Something that changes.
#[derive(Debug)]
pub(crate) struct Pulse(Arc<Shared>);

impl Pulse {
    /// With this revision at first.
    pub(super) fn new(revision: u64) -> Self {
        Self(Arc::new(Shared { revision: AtomicU64::new(revision), changed: Notify::new() }))
    }

    pub(super) fn revision(&self) -> u64 {
        self.0.revision.load(Ordering::Acquire)
    }

    /// It may have changed. Returns its new revision.
    pub(super) fn beat(&self) -> u64 {
        let revision = self.0.revision.fetch_add(1, Ordering::AcqRel) + 1;
        self.0.changed.notify_waiters();
        revision
    }

    /// Follows it from now on.
    pub(super) fn follow(&self) -> Follower {
        Follower { seen: self.revision(), pulse: Arc::clone(&self.0) }
    }
}

/// Follows something that changes.
#[derive(Debug)]
pub(crate) struct Follower {
    pulse: Arc<Shared>,
    seen: u64,
}

impl Follower {
    /// The revision that it was looked at.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Waits until it has changed since it was looked at.
    pub(crate) async fn changed(&mut self) {
        let seen = self.seen;
        self.seen = self.wait_for(|revision| *revision != seen).await;
    }

    /// Waits until its revision is such a one, and returns it.
    pub(crate) async fn wait_for(&mut self, wanted: impl Fn(&u64) -> bool) -> u64 {
        loop {
            // Before the look: whoever says so after it wakes this one.
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
