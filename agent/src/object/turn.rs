//! The turn of one object: says if a pass over it follows, is at work, or is tried again later.
//!
//! ```text
//!            ask                    begin
//!    Idle ─────────────▶ Queued ────────────▶ Running
//!     ▲                   ▲  ▲                 │   │
//!     │                   │  │    end, asked   │   │ end, not asked
//!     │                   │  └─────────────────┘   │
//!     │                   │                        ▼
//!     │                   │                       Idle, and then by what the pass has left (plan):
//!     │                   │                        │
//!     ├───────────────────┼────────────── done ────┤
//!     │                   ├── ask ── Waiting ◀─────┤ failed: a timer asks again
//!     │                   └── ask ── Late ◀────────┘ failed, and only one look for all late objects can help
//! ```
//!
//! A timer knows the number of the pass that it follows. It asks only if the object still waits
//! behind that very pass.
//!
//! What must never happen here: two passes of one object at work at once; a request that no pass
//! follows which began later.

use std::time::Duration;

/// Time until a failed object is tried again, after its first failure. The time doubles with each
/// failure, up to [`RETRY_MAX`] or less.
const RETRY_FIRST: Duration = Duration::from_millis(500);

/// The longest time that a failed object waits.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(30);

/// Returns the time until an object that has failed `failures` times is tried again.
pub(crate) fn retry_delay(failures: u32, at_most: Duration) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(at_most)
}

/// Work that a pass, or one half of it, has left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: the object is as it is wanted.
    Nothing,
    /// Something that may succeed later by itself: it is tried again.
    Again,
    /// Something that is not tried again by itself.
    #[default]
    Unfinished,
}

/// A request for a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Request {
    /// A look whether all is as it was: the job at work goes on for a while.
    Look,
    /// Something that the pass at work does not know, as a newer spec: the job at work gives way at
    /// once.
    Anew,
}

/// The phase that an object is in.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No pass is at work, and none is to follow.
    #[default]
    Idle,
    /// A pass is to follow.
    Queued(Request),
    /// A pass is at work; `again` is what was asked for since it began.
    Running { again: Option<Request> },
    /// The last pass failed, and a timer asks for the next one.
    Waiting,
    /// The last pass failed, and the next look for all late objects asks for another, if it shows
    /// anything new.
    Late,
}

/// The turn of one object.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    phase: Phase,
    /// Passes that have begun.
    passes: u64,
    /// Passes that failed, one after another.
    failures: u32,
}

/// A pass that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    /// The pass's number.
    pub(crate) pass: u64,
    /// `true` if somebody asked for something new; `false` if the pass only looks whether all is as
    /// it was.
    pub(crate) anew: bool,
}

/// The outcome of a pass, as far as it decides what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is left to do, or nothing that another pass could do.
    Done,
    /// Something failed that another pass may do.
    Failed,
    /// Something failed, and only a look for all late objects can help.
    Late,
}

/// The plan for what follows a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, or what was asked for meanwhile.
    Nothing,
    /// A look for all late objects.
    Late,
    /// A timer, which asks again if the object still waits behind this pass. `failures` counts the
    /// passes that failed in a row, this one included.
    Retry { pass: u64, failures: u32 },
}

impl Turn {
    /// Asks for a look. `true` if the caller has to see to it that a pass runs, `false` if the
    /// thread of the pass at work does.
    pub(crate) fn ask(&mut self) -> bool {
        self.request(Request::Look);
        !self.is_running()
    }

    /// Asks for a pass for something new: the job at work gives way. The caller sees to it that the
    /// pass runs.
    pub(crate) fn ask_anew(&mut self) {
        self.request(Request::Anew);
    }

    fn request(&mut self, request: Request) {
        self.phase = match self.phase {
            Phase::Idle | Phase::Waiting | Phase::Late => Phase::Queued(request),
            Phase::Queued(before) => Phase::Queued(before.max(request)),
            Phase::Running { again } => Phase::Running { again: again.max(Some(request)) },
        };
    }

    /// Begins the pass that was asked for. `None` if none was, or one is at work.
    pub(crate) fn begin(&mut self) -> Option<Begun> {
        let Phase::Queued(request) = self.phase else { return None };
        self.phase = Phase::Running { again: None };
        self.passes += 1;
        Some(Begun { pass: self.passes, anew: request == Request::Anew })
    }

    /// Ends the pass at work.
    pub(crate) fn end(&mut self) {
        if let Phase::Running { again } = self.phase {
            self.phase = again.map_or(Phase::Idle, Phase::Queued);
        }
    }

    /// Plans what follows a pass that has ended with this outcome. A request that came meanwhile
    /// goes before any retry.
    pub(crate) fn plan(&mut self, outcome: Outcome) -> Next {
        let failed = outcome != Outcome::Done;
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        match (self.phase, outcome) {
            (Phase::Idle, Outcome::Failed) => {
                self.phase = Phase::Waiting;
                Next::Retry { pass: self.passes, failures: self.failures }
            }
            (Phase::Idle, Outcome::Late) => {
                self.phase = Phase::Late;
                Next::Late
            }
            _ => Next::Nothing,
        }
    }

    /// Says whether the object still waits behind this pass: then its timer asks.
    pub(crate) fn is_due(&self, pass: u64) -> bool {
        self.phase == Phase::Waiting && self.passes == pass
    }

    /// Passes that have begun.
    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }

    /// The number of the pass at work. `None` if none is.
    pub(crate) fn running(&self) -> Option<u64> {
        self.is_running().then_some(self.passes)
    }

    /// Says whether a pass is at work.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    fn requested(&self) -> Option<Request> {
        match self.phase {
            Phase::Queued(request) => Some(request),
            Phase::Running { again } => again,
            Phase::Idle | Phase::Waiting | Phase::Late => None,
        }
    }

    /// Says whether a pass is to follow.
    pub(crate) fn is_queued(&self) -> bool {
        self.requested().is_some()
    }

    /// Says whether a pass is to follow for something new.
    pub(crate) fn is_queued_anew(&self) -> bool {
        self.requested() == Some(Request::Anew)
    }

    /// Says whether no pass is at work, and none was asked for: the object may wait for a retry.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_running() && !self.is_queued()
    }

    /// Says whether no pass is at work, and no pass has begun since this many had begun.
    pub(crate) fn rests_since(&self, passes: u64) -> bool {
        self.passes == passes && !self.is_running()
    }

    /// Says whether the object waits for a look for all late objects.
    pub(crate) fn is_late(&self) -> bool {
        self.phase == Phase::Late
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Phase::{Idle, Late, Queued, Running, Waiting};
    use super::Request::{Anew, Look};
    use super::*;

    const PHASES: [Phase; 8] = [
        Idle,
        Queued(Look),
        Queued(Anew),
        Running { again: None },
        Running { again: Some(Look) },
        Running { again: Some(Anew) },
        Waiting,
        Late,
    ];

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Ask,
        AskAnew,
        Begin,
        End,
        Plan(Outcome),
    }

    const EVENTS: [Event; 7] = [
        Event::Ask,
        Event::AskAnew,
        Event::Begin,
        Event::End,
        Event::Plan(Outcome::Done),
        Event::Plan(Outcome::Failed),
        Event::Plan(Outcome::Late),
    ];

    /// The phase behind each event, in the order of `EVENTS`.
    fn row(phase: Phase) -> [Phase; 7] {
        let (look, anew) = (Running { again: Some(Look) }, Running { again: Some(Anew) });
        let begun = Running { again: None };
        match phase {
            Idle => [Queued(Look), Queued(Anew), Idle, Idle, Idle, Waiting, Late],
            Queued(Look) => {
                [Queued(Look), Queued(Anew), begun, Queued(Look), Queued(Look), Queued(Look), Queued(Look)]
            }
            Queued(Anew) => {
                [Queued(Anew), Queued(Anew), begun, Queued(Anew), Queued(Anew), Queued(Anew), Queued(Anew)]
            }
            Running { again: None } => [look, anew, begun, Idle, begun, begun, begun],
            Running { again: Some(Look) } => [look, anew, look, Queued(Look), look, look, look],
            Running { again: Some(Anew) } => [anew, anew, anew, Queued(Anew), anew, anew, anew],
            Waiting => [Queued(Look), Queued(Anew), Waiting, Waiting, Waiting, Waiting, Waiting],
            Late => [Queued(Look), Queued(Anew), Late, Late, Late, Late, Late],
        }
    }

    #[test]
    fn each_phase_goes_where_the_table_says_at_each_event() {
        for phase in PHASES {
            for (event, behind) in EVENTS.into_iter().zip(row(phase)) {
                let case = format!("{event:?} in {phase:?}");
                let mut turn = Turn { phase, passes: 3, failures: 2 };
                let running = turn.is_running();
                match event {
                    Event::Ask => assert_eq!(turn.ask(), !running, "{case}"),
                    Event::AskAnew => turn.ask_anew(),
                    Event::Begin => {
                        let anew = phase == Queued(Anew);
                        let begun = matches!(phase, Queued(_)).then_some(Begun { pass: 4, anew });
                        assert_eq!(turn.begin(), begun, "{case}");
                    }
                    Event::End => turn.end(),
                    Event::Plan(outcome) => {
                        let next = match (behind == phase, outcome) {
                            (false, Outcome::Failed) => Next::Retry { pass: 3, failures: 3 },
                            (false, Outcome::Late) => Next::Late,
                            (false, Outcome::Done) | (true, _) => Next::Nothing,
                        };
                        assert_eq!(turn.plan(outcome), next, "{case}");
                        assert_eq!(turn.failures, if outcome == Outcome::Done { 0 } else { 3 }, "{case}");
                    }
                }
                assert_eq!(turn.phase, behind, "{case}");
                let due = [2, 3].map(|pass| turn.is_due(pass));
                assert_eq!(due, [false, behind == Waiting], "{case}: only the last pass's timer");
            }
        }
    }

    proptest! {
        /// Law: passes of one object never overlap. A pass that began later follows each request,
        /// and knows whether anything of the request was new.
        #[test]
        fn each_request_is_followed_by_a_pass(events in prop::collection::vec(0..EVENTS.len(), 0..60)) {
            let mut turn = Turn::default();
            let (mut at_work, mut asked) = (false, None);
            for event in events {
                match EVENTS[event] {
                    Event::Ask => {
                        turn.ask();
                        asked = asked.or(Some(false));
                    }
                    Event::AskAnew => {
                        turn.ask_anew();
                        asked = Some(true);
                    }
                    Event::Begin => {
                        let begun = turn.begin();
                        prop_assert_eq!(begun.is_some(), !at_work && asked.is_some());
                        if let Some(begun) = begun {
                            prop_assert_eq!(Some(begun.anew), asked.take());
                            at_work = true;
                        }
                    }
                    Event::End => {
                        turn.end();
                        at_work = false;
                    }
                    Event::Plan(outcome) => {
                        let next = turn.plan(outcome);
                        prop_assert!(next == Next::Nothing || !at_work && asked.is_none());
                    }
                }
                prop_assert_eq!((turn.is_running(), turn.is_queued()), (at_work, asked.is_some()));
                prop_assert_eq!(turn.is_queued_anew(), asked == Some(true));
            }
        }
    }
}
