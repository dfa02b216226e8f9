//! Access to systemd and logind over D-Bus: the states of units, updated by signals, and a lock
//! that delays a shutdown while work lasts. Every call has a deadline. A machine without a bus is
//! an ordinary machine: its units' states are unknown, and no shutdown is delayed.
//!
//! What must never happen here: a call without a deadline; a state that is reported although nobody
//! can be asked any more; a unit that a look loads, starts or stops.

#[cfg(feature = "fake")]
pub mod fake;
mod inhibit;
mod link;
mod units;

pub use inhibit::delay_shutdown;
pub use link::{Bus, Error};
pub use units::{Unit, Units, follow};
