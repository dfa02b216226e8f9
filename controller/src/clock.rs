//! The wall clock. One, injected: tests and the simulation say what time it is.
//!
//! What must never happen here: a duration measured with it (it may jump; durations are measured with tokio's clock).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Says what time it is. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// This machine's.
    pub fn system() -> Self {
        Self::new(SystemTime::now)
    }

    /// Another one.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Now, UTC.
    pub fn now(&self) -> SystemTime {
        (self.0)()
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
