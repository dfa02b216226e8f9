//! Wall clock and a clock that never goes back, behind a trait so that tests can hold them.

use std::time::{Instant, SystemTime};

/// Reads the time.
pub trait Clock: Send + Sync {
    /// Returns the time of day.
    fn now(&self) -> SystemTime;
    /// Returns monotonic time.
    fn instant(&self) -> Instant;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }
}
