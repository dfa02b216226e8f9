//! Time of the run: virtual, with a wall clock for each process that may be wrong.
//!
//! What must never happen here: the machine's own time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_controller::clock::Clock;
use tokio::time::Instant;

/// Wall-clock time at which a run begins, since 1970.
const BEGINNING: Duration = Duration::from_secs(1_795_000_000);

/// The clock of one process; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct WallClock {
    born: Instant,
    wrong_by_ms: Arc<AtomicI64>,
}

impl WallClock {
    /// Creates a clock; must be called inside the run's runtime.
    pub(crate) fn new() -> Self {
        Self { born: Instant::now(), wrong_by_ms: Arc::default() }
    }

    pub(crate) fn set_wrong_by(&self, milliseconds: i64) {
        self.wrong_by_ms.store(milliseconds, Ordering::Release);
    }

    fn read(&self) -> SystemTime {
        let right = UNIX_EPOCH + BEGINNING + self.born.elapsed();
        let wrong = self.wrong_by_ms.load(Ordering::Acquire);
        let by = Duration::from_millis(wrong.unsigned_abs());
        if wrong < 0 { right - by } else { right + by }
    }

    pub(crate) fn for_controller(&self) -> Clock {
        let clock = self.clone();
        Clock::new(move || clock.read())
    }
}

impl mooring_host::Clock for WallClock {
    fn now(&self) -> SystemTime {
        self.read()
    }

    fn instant(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}
