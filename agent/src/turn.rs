//! Turns of changes of one object, whatever the object is: changes are made one by one, the worker
//! that writes and the caller that gives up agree on the outcome, and failed changes are tried
//! again.
//!
//! What must never happen here: a change that is made after its caller was told that it was not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::workers;

/// Time until a failed object is tried again, after its first failure. The time doubles with each
/// failure, up to [`RETRY_MAX`] or less.
const RETRY_FIRST: Duration = Duration::from_millis(500);

/// The longest time that a failed object waits.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(30);

/// Returns the time until an object that has failed `failures` times is tried again.
pub(crate) fn retry_delay(failures: u32, at_most: Duration) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(at_most)
}

/// Rate limit: does a thing at most once in a span of time.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Option<SystemTime>>);

impl Seldom {
    /// Runs `work` unless it succeeded less than `every` before `now`. A failed `work` is due the
    /// next time.
    pub(crate) fn when_due<E>(
        &self,
        now: SystemTime,
        every: Duration,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back does not show how long ago the last run was.
        let lately = last.and_then(|last| now.duration_since(last).ok());
        if lately.is_none_or(|since| since >= every) {
            work()?;
            *last = Some(now);
        }
        Ok(())
    }
}

/// The turn of one object: held while a change of it is checked and made durable.
#[derive(Default)]
pub(crate) struct Turns(Mutex<()>);

impl Turns {
    /// Waits for the turn, at most until `deadline`. `None` if it did not come.
    pub(crate) fn take(&self, deadline: Duration) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + deadline;
        loop {
            match self.0.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                // Rare: two senders change one object at the same moment.
                Err(TryLockError::WouldBlock) => workers::wait(Duration::from_millis(1)),
            }
        }
    }
}

/// Decides once who settles a change: the worker that is about to write it, or the caller who gives
/// up.
#[derive(Default)]
pub(crate) struct Claim(AtomicBool);

impl Claim {
    /// Returns `true` for the first caller.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Returns `true` if somebody has taken the claim. To a worker that has not taken it, this
    /// means that the caller has given up.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Waits for the worker's answer. `None` if the worker did not begin the change before the
/// deadline; then it never begins it.
pub(crate) async fn answer<T>(
    mut result: oneshot::Receiver<T>,
    claim: &Arc<Claim>,
    deadline: Duration,
) -> Option<T> {
    match tokio::time::timeout(deadline, &mut result).await {
        Ok(answer) => answer.ok(),
        Err(_) if claim.take() => None,
        // The worker is writing the change: its outcome is worth the moment that a write takes.
        Err(_) => result.await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seldom_runs_again_when_due_or_failed_or_the_clock_was_set_back() {
        let (seldom, hour) = (Seldom::default(), Duration::from_hours(1));
        let begin = SystemTime::UNIX_EPOCH + hour * 1000;
        let is_done = |now, works: bool| {
            let mut done = false;
            let answer = seldom.when_due(now, hour, || {
                done = true;
                works.then_some(()).ok_or("it fails")
            });
            assert_eq!(answer.is_err(), done && !works);
            done
        };
        assert!(is_done(begin, false));
        assert!(is_done(begin, true));
        assert!(!is_done(begin + hour / 2, true));
        assert!(is_done(begin + hour, true));
        assert!(!is_done(begin + hour, true));
        assert!(is_done(begin, true));
    }
}
