//! How Mooring's daemons live under systemd: their configuration and state files, `sd_notify`, and the folders, groups and
//! units that they are installed with.
//!
//! What must never happen here: an error because there is no systemd (containers, tests, a shell: everything is a no-op
//! then); a unit whose stop is a detach.

pub mod certificates;
pub mod config;
pub mod cores;
pub mod folder;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod notify;
pub mod paths;
pub mod places;
#[cfg(feature = "sealing")]
pub mod sealing;
