//! Isolated volumes: nothing reaches their disks.
//!
//! What must never happen here: a rule.

use std::time::SystemTime;

/// A request about a volume's isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationChange {
    /// Isolate the volume.
    Isolate {
        /// `true` to isolate it even if hosts have grants: their reads and writes end with errors.
        force: bool,
    },
    /// End the isolation.
    End,
}

/// The isolation of a volume: desired, in force, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeIsolation {
    /// `true` if the agent reports it in force: nothing reaches the disk.
    pub in_force: bool,
    /// The time since which it is desired; `None` if it no longer is.
    pub since: Option<SystemTime>,
}
