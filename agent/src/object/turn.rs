//! Whose turn it is at one object: whether a pass is to follow, is at work, or is tried again later.
//!
//! What must never happen here: two passes of one object at work at once; a request for a pass that no pass follows.

/// The turn of one object.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    running: bool,
    /// Another pass is to follow.
    queued: bool,
    /// The pass that is to follow is for a spec that the one at work does not know.
    anew: bool,
    /// Passes that have begun.
    passes: u64,
    /// Passes that failed, one after another.
    failures: u32,
    /// The object waits for what one look for all late objects shows.
    late: bool,
    /// The newest retry that was planned.
    retry: u64,
}

/// A pass that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    /// The pass's number.
    pub(crate) pass: u64,
    /// `true` if somebody asked for something; `false` if the pass only looks whether all is as it was.
    pub(crate) anew: bool,
}

/// What follows a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, or what was asked for meanwhile.
    Nothing,
    /// A look for all late objects.
    Late,
    /// A retry, after so many failures in a row.
    Retry { failures: u32, retry: u64 },
}

impl Turn {
    /// Asks for a pass. `true` if the caller has to see to it that it runs, `false` if the pass at work does.
    pub(crate) fn ask(&mut self) -> bool {
        self.queued = true;
        !self.running
    }

    /// Asks for a pass for something new: what is at work gives way.
    pub(crate) fn ask_anew(&mut self) {
        self.queued = true;
        self.anew = true;
    }

    /// Begins the pass that was asked for. `None` if none was, or one is at work.
    pub(crate) fn begin(&mut self) -> Option<Begun> {
        if self.running || !self.queued {
            return None;
        }
        self.running = true;
        self.queued = false;
        self.late = false;
        self.passes += 1;
        Some(Begun { pass: self.passes, anew: std::mem::take(&mut self.anew) })
    }

    /// Ends the pass at work.
    pub(crate) fn end(&mut self) {
        self.running = false;
    }

    /// Plans what follows a pass that has ended. `late`: nothing can be done for the object but to look again.
    pub(crate) fn plan(&mut self, failed: bool, late: bool) -> Next {
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        if !failed || self.queued || self.running {
            return Next::Nothing;
        }
        self.late = late;
        self.retry += 1;
        if late { Next::Late } else { Next::Retry { failures: self.failures, retry: self.retry } }
    }

    /// Whether this retry is the newest that was planned.
    pub(crate) fn is_due(&self, retry: u64) -> bool {
        self.retry == retry
    }

    /// Passes that have begun.
    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }

    /// The number of the pass at work. `None` if none is.
    pub(crate) fn running(&self) -> Option<u64> {
        self.running.then_some(self.passes)
    }

    /// Whether a pass is at work.
    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// Whether a pass is to follow.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued
    }

    /// Whether a pass is to follow for something that the one at work does not know.
    pub(crate) fn is_queued_anew(&self) -> bool {
        self.anew
    }

    /// Whether no pass is at work, and none is to follow.
    pub(crate) fn is_idle(&self) -> bool {
        !self.running && !self.queued
    }

    /// Whether no pass is at work, and none has begun since so many had.
    pub(crate) fn rests_since(&self, passes: u64) -> bool {
        self.passes == passes && !self.running
    }

    /// Whether the object waits for a look for all late objects.
    pub(crate) fn is_late(&self) -> bool {
        self.late && self.is_idle()
    }
}
