//! Long work of a storage agent, as it stands.
//!
//! What must never happen here: more done than there is to do.

use std::fmt;
use std::time::SystemTime;

use crate::{ByteSize, VolumeId};

/// What a job does to the blocks of its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Zeroes a new volume, before anybody reaches it.
    Zero,
    /// Zeroes what a volume grows by.
    Grow,
    /// Zeroes a volume that is deleted.
    Wipe,
    /// Tells the disk that nobody needs the blocks of a volume that is deleted.
    Discard,
    /// Copies an image into a new volume, before anybody reaches it.
    Import,
    /// Copies a volume to a file, while nobody reaches it.
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

/// One job. A volume has one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReport {
    /// Whose blocks.
    pub volume: VolumeId,
    /// What is done to them.
    pub kind: JobKind,
    /// Bytes that are done.
    pub done: ByteSize,
    /// Bytes in all.
    pub total: ByteSize,
    /// Bytes a second, lately; `None`: not known yet.
    pub rate: Option<ByteSize>,
    /// When it began, or was taken up again by this agent.
    pub since: SystemTime,
    /// Of what is done, what an agent before this one had done.
    pub resumed: ByteSize,
    /// The agent's limit slows it.
    pub limited: bool,
}

impl JobReport {
    /// How much is done, in parts of 10,000, rounded down: only what is done is 10,000.
    pub fn parts(&self) -> u32 {
        parts(self.done.0, self.total.0)
    }

    /// Seconds that are left at this rate; `None`: not known.
    pub fn seconds_left(&self) -> Option<u64> {
        let rate = self.rate.filter(|rate| rate.0 > 0)?;
        Some(self.total.0.saturating_sub(self.done.0).div_ceil(rate.0))
    }
}

/// `done` of `total`, in parts of 10,000, rounded down. Of nothing, all is done.
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
