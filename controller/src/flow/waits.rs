//! Times for which this controller has waited for something, and ends of states that last for a
//! while.
//!
//! Everything here is measured by the monotonic clock, and starts anew when the controller starts.
//! The time that an earlier run waited is not known, and the wall clock cannot tell it: it may have
//! been set in between.
//!
//! What must never happen here: an end that is lost because a clock steps back; a wait that is
//! given up because a clock was set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use mooring_model::{AgentId, AttachmentId, RevertId, VolumeId};

use super::{AGAIN, Flow, lock};
use crate::clock::Clock;
use crate::store::Db;

/// A wait that nobody has asked about for this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

/// An event that this controller waits for, and gives up after a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Waiting {
    /// A host gets its device for this attachment.
    Device(AttachmentId),
    /// A revert that may cure itself is done.
    Revert(RevertId),
    /// An agent to which this volume was never sent comes up again.
    Unsent(VolumeId, AgentId),
}

#[derive(Debug)]
struct Wait {
    began: Duration,
    asked: Duration,
}

/// The events that this controller waits for.
#[derive(Debug)]
pub(crate) struct Waits {
    clock: Clock,
    since: Mutex<HashMap<Waiting, Wait>>,
    /// Announced detaches whose end is armed here, each with the time of its last announcement.
    holds: Mutex<HashMap<VolumeId, Option<SystemTime>>>,
}

impl Waits {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, since: Mutex::default(), holds: Mutex::default() }
    }

    /// Returns the time since this event was first asked about.
    pub(super) fn waited_for(&self, what: Waiting) -> Duration {
        let now = self.clock.monotonic();
        let mut since = lock(&self.since);
        if !since.contains_key(&what) {
            since.retain(|_, wait| now.saturating_sub(wait.asked) < FORGOTTEN_AFTER);
        }
        let wait = since.entry(what).or_insert(Wait { began: now, asked: now });
        wait.asked = now;
        now.saturating_sub(wait.began)
    }

    /// Forgets a wait: the event came, or nobody waits for it any more.
    pub(super) fn waits_no_more(&self, what: Waiting) {
        lock(&self.since).remove(&what);
    }
}

impl Flow {
    /// Arms the end of announced detaches, with the full time from now. `mark`: the time of the
    /// last announcement; a later announcement has its own end. Does nothing if that end is armed
    /// already.
    pub(crate) fn arm_hold(self: &Arc<Self>, volume: VolumeId, mark: Option<SystemTime>) {
        if lock(&self.facts.waits.holds).insert(volume, mark) == Some(mark) {
            return;
        }
        let flow = Arc::clone(self);
        self.tasks.spawn(async move {
            tokio::time::sleep(flow.facts.options.hold).await;
            flow.end_hold(volume, mark).await;
        });
    }

    async fn end_hold(&self, volume: VolumeId, mark: Option<SystemTime>) {
        loop {
            let write = move |db: &Db<'_>| Ok(db.expire_holds(volume, mark)?);
            match self.unleased.write("end an announced detach", write).await {
                Ok(ended) => {
                    let mut holds = lock(&self.facts.waits.holds);
                    if holds.get(&volume) == Some(&mark) {
                        holds.remove(&volume);
                    }
                    drop(holds);
                    if ended {
                        self.touch(volume);
                    }
                    return;
                }
                Err(refusal) => {
                    tracing::warn!(%volume, error = %refusal, "cannot end an announced detach yet");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }
}
