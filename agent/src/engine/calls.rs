//! The calls of one volume into the kernel or LVM that have not returned.
//!
//! What must never happen here: a call that counts as returned and has not.

use tokio::time::Instant;

use crate::clock;

/// A step at work.
#[derive(Debug, Clone)]
struct AtWork {
    step: String,
    began: Instant,
}

/// The calls of one volume that have not returned: those of its pass, and the looks beside it.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    at_work: Option<AtWork>,
    /// Times at which the looks beside a pass began, oldest first.
    looks: Vec<Instant>,
    /// Time at which the pulse's look began.
    pulse: Option<Instant>,
}

impl Calls {
    /// Begins a step of the pass.
    pub(super) fn begin(&mut self, step: String) {
        self.at_work = Some(AtWork { step, began: clock::instant() });
    }

    /// Starts the time of the step at work anew, because the step makes progress.
    pub(super) fn renew(&mut self, now: Instant) {
        if let Some(at_work) = &mut self.at_work {
            at_work.began = now;
        }
    }

    /// Ends the step of the pass.
    pub(super) fn end(&mut self) {
        self.at_work = None;
    }

    /// Begins a look beside the pass.
    pub(super) fn begin_look(&mut self, began: Instant) {
        self.looks.push(began);
    }

    /// Ends the look that began then.
    pub(super) fn end_look(&mut self, began: Instant) {
        if let Some(at) = self.looks.iter().position(|one| *one == began) {
            self.looks.remove(at);
        }
    }

    /// The oldest look beside the pass, and when it began. `None` if none is at work.
    pub(super) fn look(&self) -> Option<(&str, Instant)> {
        self.looks.first().map(|began| ("look at the export", *began))
    }

    /// Begins the pulse's look.
    pub(super) fn begin_pulse(&mut self, began: Instant) {
        self.pulse = Some(began);
    }

    /// Ends the pulse's look.
    pub(super) fn end_pulse(&mut self) {
        self.pulse = None;
    }

    /// Says whether the pulse's look is at work.
    pub(super) fn is_in_pulse(&self) -> bool {
        self.pulse.is_some()
    }

    /// The oldest call but for the pulse's, and when it began. `None` if none is at work.
    pub(super) fn oldest(&self) -> Option<(&str, Instant)> {
        let step = self.at_work.as_ref().map(|at_work| (at_work.step.as_str(), at_work.began));
        step.into_iter().chain(self.look()).min_by_key(|(_, began)| *began)
    }
}
