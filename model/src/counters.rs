//! I/O counters of a nexus, the same for each transport.

use std::time::SystemTime;

/// I/O counters of a nexus since it was granted. The kernel resets them when the mapped LUN is
/// recreated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// SCSI commands.
    pub commands: u64,
    /// MiB read, rounded down.
    pub read_mib: u64,
    /// MiB written, rounded down.
    pub written_mib: u64,
    /// Time when the agent last saw the number of commands change. `None`: not since it began to
    /// look.
    pub active: Option<SystemTime>,
}
