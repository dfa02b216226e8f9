//! Rate limit: does a thing at most once in a span of time.
//!
//! What must never happen here: a thing left undone for good because a clock was set back.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The moment at which a thing was done last.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<Option<SystemTime>>);

impl RateLimit {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_lets_work_through_when_due_failed_or_the_clock_was_set_back() {
        let (limit, hour) = (RateLimit::default(), Duration::from_hours(1));
        let begin = SystemTime::UNIX_EPOCH + hour * 1000;
        let is_done = |now, works: bool| {
            let mut done = false;
            let answer = limit.when_due(now, hour, || {
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
