//! The reports of this agent: who watches them, the health, and counters.
//!
//! What must never happen here: a wait for a watcher.

use std::sync::Mutex;

use mooring_api::v1;
use tokio::sync::broadcast;

use super::counts::Done;
use super::{Change, lock};

/// Reports that a watcher may lag behind before its stream ends.
const REPORTS_QUEUED_MAX: usize = 4096;

/// The reports of this agent, and facts that only reports need.
pub(super) struct Reports {
    changes: broadcast::Sender<Change>,
    /// The health that was reported last. `None` if nobody has asked.
    health: Mutex<Option<v1::Health>>,
    /// Counters of what was done since the start.
    done: Done,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self {
            changes: broadcast::Sender::new(REPORTS_QUEUED_MAX),
            health: Mutex::default(),
            done: Done::default(),
        }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    pub(super) fn publish(&self, change: Change) {
        // A change without a watcher is no error.
        drop(self.changes.send(change));
    }

    pub(super) fn health(&self) -> Option<v1::Health> {
        lock(&self.health).clone()
    }

    pub(super) fn note_health(&self, health: Option<&v1::Health>) {
        *lock(&self.health) = health.cloned();
    }

    pub(super) fn done(&self) -> &Done {
        &self.done
    }
}
