//! Duration of the calls of one machine. At first no call takes any time; later, by the seed's
//! choice, each may.
//!
//! What must never happen here: a time that does not follow from the seed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;

use crate::lock;

/// Calls that are slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    /// Some kernel calls take a moment, so that the calls of two jobs interleave.
    Calls,
    /// A command of LVM takes longer than most callers wait.
    Lvm,
}

/// Kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Kernel,
    Lvm,
    /// A command that the agent runs alone, behind its own lock.
    LvmAlone,
}

#[derive(Debug)]
struct State {
    slow: Slow,
    rng: Rng,
}

/// Pace of one machine; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace(Arc<Mutex<Option<State>>>);

impl Pace {
    pub(crate) fn set(&self, slow: Option<Slow>, rng: Rng) {
        *lock(&self.0) = slow.map(|slow| State { slow, rng });
    }

    pub(crate) fn is_slow(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Returns how long a call takes; `None` if it takes no time.
    pub(crate) fn of(&self, call: Call) -> Option<Duration> {
        let mut state = lock(&self.0);
        let State { slow, rng } = state.as_mut()?;
        let takes = match (slow, call) {
            (_, Call::LvmAlone) => None,
            (Slow::Calls, Call::Kernel | Call::Lvm) => (rng.u8(0..12) == 0).then(|| rng.u64(0..8)),
            (Slow::Lvm, Call::Lvm) => (rng.u8(0..3) > 0).then(|| rng.u64(1..9_000)),
            (Slow::Lvm, Call::Kernel) => (rng.u8(0..40) == 0).then(|| rng.u64(0..30)),
        };
        takes.map(Duration::from_millis)
    }
}
