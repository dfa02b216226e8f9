//! Progress of a storage agent's long-running work.
//!
//! What must never happen here: more done than there is to do.

use std::fmt;
use std::time::SystemTime;

use crate::{ByteSize, VolumeId};

/// The work that a job does on the blocks of its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Zeroes a new volume, before any host reaches it.
    Zero,
    /// Zeroes the blocks that a volume grows by.
    Grow,
    /// Zeroes a volume that is being deleted.
    Wipe,
    /// Tells the disk that the blocks of a volume that is being deleted are unused (UNMAP).
    Discard,
    /// Copies an image into a new volume, before any host reaches it.
    Import,
    /// Copies a volume to a file, while no host reaches it.
    Export,
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "zero",
            Self::Grow => "grow",
            Self::Wipe => "wipe",
            Self::Discard => "discard",
            Self::Import => "import",
            Self::Export => "export",
        })
    }
}

/// The report on one job. A volume has at most one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReport {
    /// The volume whose blocks are worked on.
    pub volume: VolumeId,
    /// The work.
    pub kind: JobKind,
    /// Bytes done.
    pub done: ByteSize,
    /// Bytes in all.
    pub total: ByteSize,
    /// Recent rate in bytes per second; `None`: not known yet.
    pub rate: Option<ByteSize>,
    /// Time when it began, or was resumed by this agent process.
    pub since: SystemTime,
    /// Bytes of `done` that an earlier agent process had finished.
    pub resumed: ByteSize,
    /// The agent's rate limit slows it.
    pub limited: bool,
}

impl JobReport {
    /// Progress in parts of 10,000, rounded down: only a finished job shows 10,000.
    pub fn parts(&self) -> u32 {
        parts(self.done.0, self.total.0)
    }

    /// Seconds left at this rate; `None`: not known.
    pub fn seconds_left(&self) -> Option<u64> {
        let rate = self.rate.filter(|rate| rate.0 > 0)?;
        Some(self.total.0.saturating_sub(self.done.0).div_ceil(rate.0))
    }
}

/// `done` of `total` in parts of 10,000, rounded down; 10,000 if `total` is 0.
fn parts(done: u64, total: u64) -> u32 {
    if total == 0 {
        return 10_000;
    }
    let parts = u128::from(done.min(total)) * 10_000 / u128::from(total);
    u32::try_from(parts).unwrap_or(10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_done_is_all_of_it() {
        assert_eq!(
            [(0, 3), (1, 3), (2, 3), (3, 3), (0, 0), (9, 3)].map(|(done, total)| parts(done, total)),
            [0, 3_333, 6_666, 10_000, 10_000, 10_000]
        );
        assert_eq!(parts(u64::MAX - 1, u64::MAX), 9_999);
    }

    #[test]
    fn what_is_left_is_told_by_the_rate() {
        let mut job = JobReport {
            volume: VolumeId::from_u128(1),
            kind: JobKind::Zero,
            done: ByteSize(5),
            total: ByteSize(20),
            rate: None,
            since: SystemTime::UNIX_EPOCH,
            resumed: ByteSize(0),
            limited: false,
        };
        assert_eq!((job.parts(), job.seconds_left()), (2_500, None));
        job.rate = Some(ByteSize(0));
        assert_eq!(job.seconds_left(), None, "it stands still: nobody knows");
        job.rate = Some(ByteSize(4));
        assert_eq!(job.seconds_left(), Some(4));
    }
}
