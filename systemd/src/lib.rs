//! How Mooring's daemons live under systemd: `sd_notify`, and the folders, groups and units that they are installed with.
//!
//! What must never happen here: an error because there is no systemd (containers, tests, a shell: everything is a no-op
//! then); a unit whose stop is a detach.

pub mod notify;
pub mod paths;
