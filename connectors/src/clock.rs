//! The clocks that connectors and the sessions' daemon read.
//!
//! What must never happen here: a duration measured with the wall clock, which may jump both ways.

use std::time::Instant;
#[cfg(feature = "fake")]
use std::time::SystemTime;

/// Returns the moment by the system's clock, which no test pauses. Condition variables, sockets and
/// the kernel's work know no other.
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Returns the time of day: the fake shows since when a session is logged in.
#[cfg(feature = "fake")]
pub(crate) fn system_time() -> SystemTime {
    SystemTime::now()
}
