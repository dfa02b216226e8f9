//! The clocks that the agent reads itself. A time that it reports as seen is of the machine's clock
//! (`Machine::clock`), which a test may set.
//!
//! What must never happen here: a duration measured with the wall clock, which may jump both ways.

use std::time::{Instant as StdInstant, SystemTime};

use tokio::time::Instant;

/// Returns the moment by tokio's clock: for ages and for the time that work takes. A test that
/// pauses this clock moves it itself.
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Returns the moment by the system's clock, which no test pauses. Condition variables, sockets and
/// the kernel's work know no other.
pub(crate) fn std_instant() -> StdInstant {
    StdInstant::now()
}

/// Returns the time of day: for dates that the store keeps, and for those of certificates.
pub(crate) fn system_time() -> SystemTime {
    SystemTime::now()
}
