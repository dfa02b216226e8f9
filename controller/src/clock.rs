//! The clocks: the wall clock gives the time of day, the monotonic clock measures durations. Both
//! are injected, so that tests and the simulation control them.
//!
//! What must never happen here: a duration measured with the wall clock, which may jump both ways.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

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
