//! Order of specs: a generation never goes back, and one generation means one content.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Generation of one object's spec. Ordered by epoch (raised when a controller database is
/// restored), then by counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation {
    /// Raised by every restore of the controller's database.
    pub epoch: u64,
    /// Raised by every change of the object.
    pub counter: u64,
}

impl Generation {
    /// The generation before any spec.
    pub const ZERO: Self = Self { epoch: 0, counter: 0 };

    /// The next generation in the same epoch.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { epoch: self.epoch, counter: self.counter.saturating_add(1) }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

/// The sender's digest of a spec. Agents compare it and never compute it: a newer sender's spec may
/// have fields that an older agent does not know.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(Vec<u8>);

impl Digest {
    /// Longest digest taken, in bytes (SHA-512).
    pub const BYTES_MAX: usize = 64;

    /// Makes a digest; `None` unless it has 16 to 64 bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = bytes.into();
        (16..=Self::BYTES_MAX).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// Makes a SHA-256 digest.
    pub fn of_sha256(bytes: [u8; 32]) -> Self {
        Self(bytes.to_vec())
    }

    /// The digest's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter().take(8) {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Identity of a spec's content: its generation and its sender's digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The object's generation.
    pub generation: Generation,
    /// The sender's digest of the content.
    pub digest: Digest,
}

/// Relation of an arriving stamp to the stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Newer: take it.
    Newer,
    /// Identical: a retry; answer as the first time.
    Same,
    /// Older: refuse.
    Stale,
    /// Equal generation, another digest: there are two writers; refuse.
    Conflict,
}

impl Stamp {
    /// Compares the arriving stamp with the stored one (`None`: nothing is stored).
    pub fn fence(&self, kept: Option<&Self>) -> Fence {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let Some(kept) = kept else { return Fence::Newer };
        match self.generation.cmp(&kept.generation) {
            Greater => Fence::Newer,
            Less => Fence::Stale,
            Equal if self.digest == kept.digest => Fence::Same,
            Equal => Fence::Conflict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: u64, counter: u64, byte: u8) -> Stamp {
        Stamp { generation: Generation { epoch, counter }, digest: Digest::new([byte; 32]).unwrap() }
    }

    #[test]
    fn fence_table() {
        let kept = stamp(2, 5, 1);
        for (arrives, want) in [
            (stamp(2, 6, 9), Fence::Newer),
            (stamp(3, 1, 9), Fence::Newer),
            (stamp(2, 5, 1), Fence::Same),
            (stamp(2, 5, 2), Fence::Conflict),
            (stamp(2, 4, 1), Fence::Stale),
            (stamp(1, 99, 1), Fence::Stale),
        ] {
            assert_eq!(arrives.fence(Some(&kept)), want, "{arrives:?}");
        }
        assert_eq!(kept.fence(None), Fence::Newer);
    }
}
