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

use mooring_model::{AgentId, AttachmentId, Generation, RevertId, VolumeId};

use super::{AGAIN, Flow, lock};
use crate::clock::Clock;
use crate::rules::promised::Announced;
use crate::store::{Abort, Db};

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
    /// A host that its target shut out, at this generation of its connection, is told anew.
    ShutOut(VolumeId, AgentId, Generation),
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
    /// Announcements whose end is armed here, each with the mark of the last one.
    announced: Mutex<HashMap<(VolumeId, Announced), Option<SystemTime>>>,
}

impl Waits {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, since: Mutex::default(), announced: Mutex::default() }
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

    /// Begins a wait anew: the time counts from now.
    pub(super) fn waits_anew(&self, what: Waiting) {
        let now = self.clock.monotonic();
        lock(&self.since).insert(what, Wait { began: now, asked: now });
    }

    /// Forgets a wait: the event came, or nobody waits for it any more.
    pub(super) fn waits_no_more(&self, what: Waiting) {
        lock(&self.since).remove(&what);
    }
}

impl Flow {
    /// Arms the end of announcements, with the full time from now. `mark`: that of the last one; a
    /// later announcement has its own end. Does nothing if that end is armed already.
    pub(crate) fn arm_announced(
        self: &Arc<Self>,
        volume: VolumeId,
        what: Announced,
        mark: Option<SystemTime>,
    ) {
        if lock(&self.facts.waits.announced).insert((volume, what), mark) == Some(mark) {
            return;
        }
        let flow = Arc::clone(self);
        self.tasks.spawn(async move {
            tokio::time::sleep(flow.facts.options.lifetime(what)).await;
            flow.end_announced(volume, what, mark).await;
        });
    }

    /// Arms the ends of all announcements that the database has.
    pub(crate) fn arm_all(self: &Arc<Self>, announced: AllAnnounced) {
        for (what, volumes) in announced {
            for (volume, mark) in volumes {
                self.arm_announced(volume, what, mark);
            }
        }
    }

    async fn end_announced(&self, volume: VolumeId, what: Announced, mark: Option<SystemTime>) {
        loop {
            let write = move |db: &Db<'_>| Ok(db.expire_announced(volume, what, mark)?);
            match self.unleased.write("end an announcement", write).await {
                Ok(ended) => {
                    let mut announced = lock(&self.facts.waits.announced);
                    if announced.get(&(volume, what)) == Some(&mark) {
                        announced.remove(&(volume, what));
                    }
                    drop(announced);
                    if ended {
                        tracing::info!(%volume, ?what, "what was announced did not come, and is not waited for any more");
                        self.touch(volume);
                    }
                    return;
                }
                Err(refusal) => {
                    tracing::warn!(%volume, error = %refusal, "cannot end an announcement yet");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }
}

/// Announcements by kind, each volume with the mark of its last one.
pub(crate) type AllAnnounced = Vec<(Announced, Vec<(VolumeId, Option<SystemTime>)>)>;

/// Reads all announcements.
pub(crate) fn announced(db: &Db<'_>) -> Result<AllAnnounced, Abort> {
    Announced::ALL.into_iter().map(|what| Ok((what, db.volumes_announced(what)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_wait_counts_from_its_first_question_or_from_its_new_begin() {
        let seconds = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&seconds);
        let monotonic = move || Duration::from_secs(read.load(Ordering::SeqCst));
        let waits = Waits::new(Clock::with_monotonic(SystemTime::now, monotonic));
        let what = Waiting::Unsent(VolumeId::from_u128(1), AgentId::from_u128(2));
        let waited_at = |now: u64| {
            seconds.store(now, Ordering::SeqCst);
            waits.waited_for(what).as_secs()
        };
        assert_eq!((waited_at(10), waited_at(15)), (0, 5));
        waits.waits_anew(what);
        assert_eq!(waited_at(35), 20);
        // The control: a wait that is forgotten begins with the next question.
        waits.waits_no_more(what);
        assert_eq!((waited_at(55), waited_at(56)), (0, 1));
    }
}
