//! Durations of a scenario's phases: boot, install, work, end.
//!
//! A scenario whose times matter runs in a process of its own, so the sums are the process's.

use std::fmt::{self, Display, Formatter};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// A part of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// VMs start, until they accept commands; boots after a power cut are part of the scenario's
    /// work.
    Boot,
    /// The product is installed in the VMs and their disks are made.
    Install,
    /// VMs and their files are removed.
    End,
}

/// Time spent in each phase by this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    boot: Duration,
    install: Duration,
    end: Duration,
}

static SPENT: Mutex<Phases> =
    Mutex::new(Phases { boot: Duration::ZERO, install: Duration::ZERO, end: Duration::ZERO });

/// Adds the time since `began` to a phase.
pub fn add(phase: Phase, began: Instant) {
    let mut spent = lock(&SPENT);
    let part = match phase {
        Phase::Boot => &mut spent.boot,
        Phase::Install => &mut spent.install,
        Phase::End => &mut spent.end,
    };
    *part += began.elapsed();
}

/// Returns the time spent since the last call.
pub fn take() -> Phases {
    std::mem::take(&mut *lock(&SPENT))
}

impl Phases {
    /// Describes a scenario that took `all`; the time outside the other phases is work.
    pub fn of(self, all: Duration) -> impl Display {
        struct Split(Phases, Duration);
        impl Display for Split {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                let Self(Phases { boot, install, end }, work) = self;
                let [boot, install, work, end] = [boot, install, work, end].map(Duration::as_secs_f64);
                write!(f, "boot {boot:.1}, install {install:.1}, work {work:.1}, end {end:.1}")
            }
        }
        Split(self, all.saturating_sub(self.boot + self.install + self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_other_phase_is_work() {
        let phases = Phases {
            boot: Duration::from_secs(5),
            install: Duration::from_millis(1500),
            end: Duration::from_millis(300),
        };
        let text = phases.of(Duration::from_mins(1)).to_string();
        assert_eq!(text, "boot 5.0, install 1.5, work 53.2, end 0.3");
    }
}
