//! Checks the identity of a session's disk, after each recovery and whenever its target says that
//! the LUNs have changed.
//!
//! A check runs on a thread that can be lost, because INQUIRY of a blocked device hangs. A session
//! has one such thread at most.
//!
//! A disk that does not say who it is goes offline after a minute (`Timing::identity_within`), and
//! is asked on. It runs while it is asked, because an offline disk answers nothing: for one
//! INQUIRY, or a second at most.
//!
//! What must never happen here: two threads of checks; I/O that goes on to another disk, or for
//! long to one that nobody could identify.

use std::time::{Duration, Instant};

use mooring_host::{KernelSession, Tree};

use super::flood::{Flood, LUNS_CHANGED_MAX, Reaction};
use super::identity::Verdict;
use super::journal::EntryState;
use super::session::{Phase, Session, Wake};
use super::steps::{Step, Steps};
use super::sysfs;
use crate::device;
use crate::wire::SessionState;

/// Checks of one session's disk.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Number of the last check.
    number: u64,
    /// Number of the check whose thread is at work; `None`: none is.
    at_work: Option<u64>,
    /// Time at which the next check is due; `None`: none is.
    due: Option<Instant>,
    /// Begin of the present check; `None`: none is going on.
    since: Option<Instant>,
    /// Time of the checks before it that have learnt nothing.
    unknown_for: Duration,
    /// The disk is offline because nobody has learnt who it is.
    off: bool,
    /// Counts of the target's messages.
    pub(super) flood: Flood,
}

impl Checks {
    /// Returns the time at which the next check is due; `None`: none is.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records that the thread of this check has answered.
    pub(super) fn answered(&mut self, check: u64) {
        if self.at_work == Some(check) {
            self.at_work = None;
        }
    }

    /// Forgets the thread that is at work: its answer does not come here any more.
    pub(super) fn forget_thread(&mut self) {
        self.at_work = None;
    }

    /// Forgets the disk, which has gone with its kernel session: the next one runs.
    pub(super) fn forget_disk(&mut self) {
        self.off = false;
    }

    /// Records that the identity is known.
    pub(super) fn known(&mut self, now: Instant) {
        self.unknown_for = Duration::ZERO;
        self.since = self.since.map(|_| now);
    }

    fn plan(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Returns the time for which nobody has learnt the identity. The time while the session was
    /// lost does not count.
    fn unknown_for(&self, now: Instant) -> Duration {
        self.unknown_for + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// Sets the disk's device to `running`. A disk that error handling has set offline does not come
/// back by itself; nor does one that this daemon has set offline. It may hang like a check: newer
/// kernels ask the disk while they set it.
pub(super) fn set_running(sys: &dyn Tree, steps: &Steps, kernel: KernelSession, lun: u16) {
    let state = sysfs::unit_path(kernel.host, kernel.sid, lun).join("state");
    if sys.read_text(&state).is_ok_and(|state| state == "offline")
        && let Err(error) = steps.step(Step::DeviceState, || sys.write(&state, device::RUNNING))
    {
        tracing::warn!(sid = kernel.sid, %error, "the disk's state cannot be set");
    }
}

impl Session {
    /// Asks the disk for its identity, and waits for the answer or for something more urgent.
    pub(super) fn check(&mut self) -> Phase {
        let Some(kernel) = self.live.as_ref().map(|live| live.kernel) else { return Phase::Connect };
        self.checks.since = Some(self.context.now());
        let phase = self.check_once(kernel);
        self.checks.unknown_for = self.checks.unknown_for(self.context.now());
        self.checks.since = None;
        if matches!(phase, Phase::Up) {
            self.checks.unknown_for = Duration::ZERO;
        }
        phase
    }

    fn check_once(&mut self, kernel: KernelSession) -> Phase {
        self.checks.number += 1;
        self.checks.due = None;
        let check = self.checks.number;
        let mut asked = self.ask(kernel);
        let mut until = self.context.now() + self.window();
        loop {
            let wake = match self.next(until) {
                Ok(wake) => wake,
                Err(out) => return self.left(out),
            };
            let phase = match wake {
                Wake::Checked(number, verdict) if number == check => {
                    return self.judge(kernel, verdict);
                }
                // The thread of an earlier check has ended.
                Wake::Checked(..) => {
                    if !asked {
                        asked = self.ask(kernel);
                        until = self.context.now() + self.window();
                    }
                    None
                }
                Wake::Ensured => None,
                Wake::Timeout => {
                    // The session may have been lost without an event.
                    let lost = self.look();
                    if lost.is_none() {
                        until = self.no_answer(kernel);
                    }
                    lost
                }
                Wake::Event(event) => self.happened(&event),
                Wake::Look => self.look(),
            };
            if let Some(phase) = phase {
                return phase;
            }
        }
    }

    /// Starts the thread of the present check. `false`: an earlier one is at work still.
    fn ask(&mut self, kernel: KernelSession) -> bool {
        if self.checks.at_work.is_some() {
            return false;
        }
        let check = self.checks.number;
        self.checks.at_work = Some(check);
        // The thread sets the disk running before it asks.
        self.checks.off = false;
        self.context.check_identity(kernel, &self.entry.spec, check, self.to_self.clone());
        true
    }

    /// Returns the time for which a check is waited for at first.
    fn window(&self) -> Duration {
        let timing = &self.context.timing;
        let late = self.checks.unknown_for(self.context.now()) >= timing.identity_within;
        if late { timing.recheck } else { timing.check_within }
    }

    fn judge(&mut self, kernel: KernelSession, verdict: Verdict) -> Phase {
        match verdict {
            // The disk was switched off while the answer was under way: the next check sets it
            // running.
            Verdict::Right | Verdict::Absent if self.checks.off => {
                self.checks.known(self.context.now());
                Phase::Check
            }
            Verdict::Right | Verdict::Absent => {
                if verdict == Verdict::Right {
                    self.status.verified += 1;
                }
                self.logged_in();
                Phase::Up
            }
            Verdict::Wrong(text) => self.wrong_disk(kernel, text),
            Verdict::Unknown(why) => {
                self.unknown(kernel, format!("the disk's identity is not known: {why}"));
                self.pause_or_phase().unwrap_or(Phase::Check)
            }
        }
    }

    /// Shows that a check has not answered. Returns the time until which it is waited for.
    fn no_answer(&mut self, kernel: KernelSession) -> Instant {
        let (now, timing) = (self.context.now(), self.context.timing);
        let unknown_for = self.checks.unknown_for(now);
        if self.checks.off {
            // A thread that was slow may have set it running after it was switched off.
            self.checks.off = self.set_offline(kernel);
        } else {
            self.unknown(
                kernel,
                format!("the disk has not identified itself for {} s", unknown_for.as_secs()),
            );
        }
        // The thread of the check is still at work: no second one.
        let wait = if self.checks.off {
            timing.check_within
        } else {
            timing.identity_within.saturating_sub(unknown_for).max(timing.recheck)
        };
        now + wait
    }

    /// Shows that the disk's identity is not known. When that has lasted for too long, it switches
    /// the disk off: nobody's I/O goes on to a disk that might be another.
    fn unknown(&mut self, kernel: KernelSession, mut problem: String) {
        let timing = self.context.timing;
        if self.checks.unknown_for(self.context.now()) >= timing.identity_within {
            if !self.checks.off {
                self.checks.off = self.set_offline(kernel);
            }
            if self.checks.off {
                tracing::warn!(volume = %self.volume(), sid = kernel.sid, problem, "the disk is switched off");
                problem.push_str("; the disk is offline until it identifies itself; asked again");
                // Users' I/O fails: "logged in" would be no word for it.
                self.status.state = SessionState::Recovering;
            }
        }
        self.status.problem = Some(problem);
        self.show();
    }

    /// Pauses between two checks. Returns the phase that ends the pause early; `None`: it is over.
    fn pause_or_phase(&mut self) -> Option<Phase> {
        let timing = self.context.timing;
        // A disk that is off runs while it is asked: seldom.
        let pause = if self.checks.off { timing.check_within } else { timing.recheck };
        let until = self.context.now() + pause;
        loop {
            let phase = match self.next(until) {
                Ok(Wake::Timeout) => return None,
                Ok(Wake::Event(event)) => self.happened(&event),
                Ok(Wake::Look) => self.look(),
                Ok(Wake::Checked(..) | Wake::Ensured) => None,
                Err(out) => Some(self.left(out)),
            };
            if phase.is_some() {
                return phase;
            }
        }
    }

    /// Handles the target's message that its LUNs have changed. Returns the next phase; `None`: the
    /// session stays logged in, and a check may be due.
    pub(super) fn luns_changed(&mut self) -> Option<Phase> {
        let now = self.context.now();
        match self.checks.flood.luns_changed(now) {
            Reaction::Check => self.checks.plan(now),
            Reaction::Later => self.checks.plan(now + self.context.timing.recheck),
            Reaction::Reconnect => {
                let problem = format!(
                    "the target has said more than {LUNS_CHANGED_MAX} times in a second that its LUNs have changed: the \
                     session is logged in anew"
                );
                tracing::warn!(volume = %self.volume(), problem, "a flood of messages");
                self.status.problem = Some(problem);
                return Some(Phase::Recover(Duration::ZERO));
            }
        }
        None
    }

    /// Sets the disk's device offline. `false`: that failed.
    fn set_offline(&self, kernel: KernelSession) -> bool {
        let state = sysfs::unit_path(kernel.host, kernel.sid, self.entry.spec.lun.0).join("state");
        let sys = self.context.sys();
        let written = self.context.steps.step(Step::DeviceState, || sys.write(&state, device::OFFLINE));
        if let Err(error) = &written {
            tracing::warn!(volume = %self.volume(), %error, "the disk's state cannot be set");
        }
        written.is_ok()
    }

    fn wrong_disk(&mut self, kernel: KernelSession, text: String) -> Phase {
        tracing::error!(volume = %self.volume(), sid = kernel.sid, text, "another disk answers");
        // Commands that are queued for the former disk must not reach this one.
        self.set_offline(kernel);
        self.give_up(EntryState::WrongDisk, text)
    }
}
