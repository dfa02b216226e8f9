//! Decides when a lost session is tried again, and when it is given up. Pure.
//!
//! What must never happen here: a host that is revoked and tries for ever; a host that a target
//! admitted once, given up before its refusals have lasted for the session's recovery time. A
//! target gives them while its ACL is away by somebody's hand, or is made anew, and a host whose
//! grant went for good is told.

use std::time::{Duration, Instant};

/// Kind of an attempt's failure, for the time of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody answered, or the connection broke.
    Unreachable,
    /// The target answered that it is not able, or not yet.
    Unable,
    /// The target refused this host: status 0x0201 or 0x0202.
    Refused,
}

/// Next step after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Try again after this time.
    After(Duration),
    /// The target's refusal counts: end the session.
    GiveUp,
}

/// Times of the retry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryTimes {
    /// Pause after the first failure; each further failure doubles it.
    pub(crate) first: Duration,
    /// The longest pause.
    pub(crate) longest: Duration,
    /// Time between two refusals after which the second one counts: the recovery time of the
    /// session.
    pub(crate) refused_for: Duration,
}

/// The failures since the last login.
#[derive(Debug, Clone, Default)]
pub(crate) struct Retry {
    failures: u32,
    refused_since: Option<Instant>,
}

impl Retry {
    /// Records a failed attempt at this time, and decides. `jitter` (any number) spreads the pauses
    /// of many sessions between half and all of their length.
    pub(crate) fn failed(&mut self, failure: Failure, now: Instant, times: &RetryTimes, jitter: u8) -> Next {
        let doubled = times.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1);
        let whole = doubled.min(times.longest);
        let pause = whole / 2 + whole / 2 * u32::from(jitter) / 255;
        match failure {
            // The failure does not tell whether the target admits this host.
            Failure::Unreachable => Next::After(pause),
            // The target is being changed: its earlier refusal no longer counts.
            Failure::Unable => {
                self.refused_since = None;
                Next::After(pause)
            }
            Failure::Refused => {
                let since = *self.refused_since.get_or_insert(now);
                let refused_for = now.saturating_duration_since(since);
                if refused_for >= times.refused_for {
                    return Next::GiveUp;
                }
                // The attempt that decides comes no later than it must.
                Next::After(pause.min(times.refused_for.saturating_sub(refused_for)))
            }
        }
    }

    /// Counts the attempts that failed.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Failure::{Refused, Unable, Unreachable};
    use super::*;

    const TIMES: RetryTimes = RetryTimes {
        first: Duration::from_millis(100),
        longest: Duration::from_secs(10),
        refused_for: Duration::from_mins(2),
    };

    #[test]
    fn pauses_double_up_to_their_longest() {
        let mut retry = Retry::default();
        let now = Instant::now();
        let mut pause = |jitter| match retry.failed(Failure::Unreachable, now, &TIMES, jitter) {
            Next::After(pause) => pause.as_millis(),
            Next::GiveUp => panic!("gave up without a refusal"),
        };
        let whole: Vec<_> = (0..9).map(|_| pause(255)).collect();
        assert_eq!(whole, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(pause(0), 5000);
        for _ in 0..100 {
            assert_eq!(pause(255), 10_000);
        }
    }

    #[test]
    fn refusals_that_last_for_the_recovery_time_are_the_end() {
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let run = |answers: &[(u64, Failure)]| {
            let mut retry = Retry::default();
            answers.iter().map(|(millis, failure)| retry.failed(*failure, at(*millis), &TIMES, 255)).last()
        };
        let after = |millis| Some(Next::After(Duration::from_millis(millis)));
        assert_eq!(run(&[(0, Refused)]), after(100));
        assert_eq!(run(&[(0, Refused), (27_000, Refused)]), after(200));
        assert_eq!(run(&[(0, Refused), (119_999, Refused)]), after(1));
        assert_eq!(run(&[(0, Refused), (119_999, Refused), (120_000, Refused)]), Some(Next::GiveUp));
        assert_eq!(run(&[(0, Refused), (100, Unreachable), (120_000, Refused)]), Some(Next::GiveUp));
        // The target answered something else in between: the count starts anew.
        assert_eq!(run(&[(0, Refused), (100, Unable), (120_000, Refused)]), after(400));
        assert_eq!(run(&[(0, Unreachable), (600_000, Refused)]), after(200));
        assert_eq!(run(&[(0, Unable), (600_000, Unable)]), after(200));
    }

    proptest! {
        #[test]
        fn it_is_given_up_by_nothing_but_refusals(answers in prop::collection::vec((0u64..20_000, 0usize..3, any::<u8>()), 1..40)) {
            let (mut retry, mut now) = (Retry::default(), Instant::now());
            let mut first_refusal = None;
            for (millis, kind, jitter) in answers {
                now += Duration::from_millis(millis);
                let failure = [Failure::Unreachable, Failure::Unable, Failure::Refused][kind];
                match failure {
                    Failure::Unreachable => {}
                    Failure::Unable => first_refusal = None,
                    Failure::Refused => { first_refusal.get_or_insert(now); }
                }
                let next = retry.failed(failure, now, &TIMES, jitter);
                let must = failure == Failure::Refused
                    && first_refusal.is_some_and(|first: Instant| now - first >= TIMES.refused_for);
                prop_assert_eq!(next == Next::GiveUp, must);
                if let Next::After(pause) = next {
                    prop_assert!(pause <= TIMES.longest);
                }
            }
        }
    }
}
