//! The clocks: the wall clock gives the time of day, the monotonic clock measures durations. Both
//! are injected, so that tests and the simulation control them.
//!
//! What must never happen here: a duration measured with the wall clock, which may jump both ways.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The time for which the wall clock must have run evenly before ages are read from it.
const STEADY_FOR: Duration = Duration::from_hours(24);

/// The difference to the monotonic clock from which on the wall clock was set. Corrections by time
/// daemons are smaller.
const SET_BY: Duration = Duration::from_hours(1);

/// The two clocks. Cheap to clone.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    monotonic: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Clock {
    /// The machine's clocks.
    pub fn system() -> Self {
        Self::new(SystemTime::now)
    }

    /// Another wall clock, beside tokio's monotonic clock.
    pub fn new(wall: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        let origin = Instant::now();
        Self::with_monotonic(wall, move || origin.elapsed())
    }

    /// Other clocks. `monotonic` counts from any origin and never goes back.
    pub fn with_monotonic(
        wall: impl Fn() -> SystemTime + Send + Sync + 'static,
        monotonic: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        Self { wall: Arc::new(wall), monotonic: Arc::new(monotonic) }
    }

    /// The present time, in UTC.
    pub fn now(&self) -> SystemTime {
        (self.wall)()
    }

    /// The monotonic time. The difference of two readings in one process is a duration.
    pub fn monotonic(&self) -> Duration {
        (self.monotonic)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// A watch over the wall clock, for whoever deletes by age.
///
/// A clock that is a year ahead makes everything old. Rows cannot show that: the same clock wrote
/// the newest of them. So the wall clock counts once this process has seen it run evenly for a day,
/// in which time somebody can set it right. This needs no state outside of the process.
#[derive(Debug)]
pub(crate) struct SteadyClock {
    clock: Clock,
    since: Mutex<Reading>,
}

/// The two clocks, read together.
#[derive(Debug, Clone, Copy)]
struct Reading {
    wall: SystemTime,
    monotonic: Duration,
}

impl Reading {
    fn of(clock: &Clock) -> Self {
        Self { wall: clock.now(), monotonic: clock.monotonic() }
    }
}

impl SteadyClock {
    /// Begins to watch.
    pub(crate) fn new(clock: Clock) -> Self {
        let since = Mutex::new(Reading::of(&clock));
        Self { clock, since }
    }

    /// The present time, in UTC. `None` while the wall clock has not run evenly for a day.
    pub(crate) fn now(&self) -> Option<SystemTime> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let read = Reading::of(&self.clock);
        let passed = read.monotonic.saturating_sub(since.monotonic);
        let expected = since.wall.checked_add(passed).unwrap_or(since.wall);
        let off = read.wall.duration_since(expected).unwrap_or_else(|behind| behind.duration());
        if off >= SET_BY {
            *since = read;
            return None;
        }
        (passed >= STEADY_FOR).then_some(read.wall)
    }
}
