//! Volumes that are cut off from their disks.
//!
//! What must never happen here: a rule.

use std::time::SystemTime;

/// What is wished of a volume's cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutWish {
    /// It is cut off from its disk.
    Cut {
        /// Also when hosts are granted it: their reads and writes end with errors.
        force: bool,
    },
    /// It is not.
    Uncut,
}

/// A volume that is cut off, or is to be, or still is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeCut {
    /// Its agent shows it so: nothing reaches the disk.
    pub in_force: bool,
    /// Since when it is wished; `None`: it is not any more.
    pub since: Option<SystemTime>,
}
