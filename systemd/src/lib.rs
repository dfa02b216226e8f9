//! The life of Mooring's daemons under systemd: configuration and state files, `sd_notify`, entries
//! of the journal, and the folders, groups and units of an installation.
//!
//! What must never happen here: an error because there is no systemd (in containers, tests and
//! shells everything is a no-op); a unit whose stop is a detach.

pub mod certificates;
pub mod config;
pub mod cores;
pub mod folder;
pub mod journal;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod notify;
pub mod paths;
pub mod places;
pub mod private;
#[cfg(feature = "sealing")]
pub mod sealing;
