//! systemd and logind over D-Bus: the states of units, kept up to date by signals, and a lock that delays a shutdown while work lasts.
//! Every call ends in time. A machine without a bus is an ordinary machine: nothing is known of its units, and no shutdown is delayed.
//!
//! What must never happen here: a call without a deadline; a state that is told although nobody can be asked any more; a unit that is
//! loaded, started or stopped because somebody looked at it.

#[cfg(feature = "fake")]
pub mod fake;
mod inhibit;
mod link;
mod units;

pub use inhibit::delay_shutdown;
pub use link::{Bus, Error};
pub use units::{Unit, Units, follow};
