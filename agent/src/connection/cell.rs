//! The state of one connection in memory, derived from the store and from looks. Nothing here is
//! durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mooring_connectors::wire::SessionStatus;
use mooring_connectors::{Memory, same};
use mooring_model::{
    Cache, ConnectionPhase, ConnectionReport, ConnectionSpec, Generation, Problem, Stamp, StuckStep, VolumeId,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock;
use crate::object::admission::Turns;
use crate::object::turn::{Begun, Turn};
use crate::workers::LOST_AFTER;

/// A connection's spec, or its tombstone. `revoked` says that the target has revoked this host.
#[derive(Debug, Clone)]
pub(crate) enum SpecKind {
    Spec(Box<ConnectionSpec>),
    Tombstone { revoked: bool },
}

/// The spec or tombstone of a connection, and the stamp that fences it.
#[derive(Debug, Clone)]
pub(crate) struct KeptSpec {
    pub(crate) stamp: Stamp,
    pub(crate) kind: SpecKind,
    pub(crate) opaque: Vec<u8>,
}

impl KeptSpec {
    pub(crate) fn spec(&self) -> Option<&ConnectionSpec> {
        match &self.kind {
            SpecKind::Spec(spec) => Some(spec),
            SpecKind::Tombstone { .. } => None,
        }
    }
}

/// A call at work.
#[derive(Debug, Clone)]
struct AtWork {
    step: String,
    began: Instant,
}

/// The work that is left after a pass.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: the spec or tombstone is carried out.
    Nothing,
    /// The agent tries again by itself, and a little longer wait may help.
    Soon,
    /// The agent tries again by itself, and an obstacle is in the way.
    Later,
    /// The agent does not try again by itself: the session has ended for good, or no pass has run.
    #[default]
    Ended,
}

/// The result of a pass.
#[derive(Debug, Clone, Default)]
pub(crate) struct End {
    /// The number of the pass; 0 if there was none.
    pub(crate) pass: u64,
    /// The generation that the pass worked on. `None` if there was no pass.
    pub(crate) generation: Option<Generation>,
    pub(crate) report: Option<ConnectionReport>,
    /// The work that is left.
    pub(crate) left: Left,
    /// `true` if `mooring-sessiond` did not answer.
    pub(crate) down: bool,
}

impl End {
    /// Says whether the spec or tombstone of the pass is carried out.
    pub(crate) fn is_true(&self) -> bool {
        self.left == Left::Nothing
    }

    /// Says whether the agent tries again by itself.
    pub(crate) fn is_tried_again(&self) -> bool {
        matches!(self.left, Left::Soon | Left::Later)
    }

    /// Says whether a pass that began later than pass `after` left this very generation true.
    pub(crate) fn is_done(&self, generation: Generation, after: u64) -> bool {
        self.is_true() && self.pass > after && self.generation == Some(generation)
    }

    /// Says whether a pass that began later than pass `after` worked on this generation or a newer
    /// one, and a longer wait is of no use.
    pub(crate) fn is_settled(&self, generation: Generation, after: u64) -> bool {
        self.pass > after && self.generation >= Some(generation) && self.left != Left::Soon
    }
}

/// The last look at the users of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    /// The disk's sequence number.
    pub(crate) sequence: u64,
    pub(crate) problems: Vec<Problem>,
}

impl Audit {
    /// The problems of a connection that reports this. Empty for another disk than the one looked
    /// at, and if the cache is on: then any use is allowed.
    pub(crate) fn problems_of(&self, report: &ConnectionReport) -> &[Problem] {
        let is_of = report.disk.as_ref().is_some_and(|disk| disk.sequence == self.sequence);
        if is_of && report.cache == Some(Cache::Off) { &self.problems } else { &[] }
    }
}

/// A session as `mooring-sessiond` reported it. `None` if it is gone.
#[derive(Debug, Clone)]
struct Told(Option<SessionStatus>);

/// The state of one connection.
#[derive(Debug, Default)]
pub(crate) struct State {
    kept_spec: Option<KeptSpec>,
    /// The turn of the connection's passes.
    pub(super) turn: Turn,
    at_work: Option<AtWork>,
    /// The memory of a pass for the next one; a pass at work has it.
    memory: Memory,
    /// Bytes that the page cache had not written when a call beside a pass ended the session.
    unwritten: Option<u64>,
    /// The last look at the users of the disk.
    audit: Audit,
    /// The session as the last pass saw it.
    seen: Option<SessionStatus>,
    /// The session as `mooring-sessiond` reported it during the pass at work. `None` if it did not.
    told: Option<Told>,
    /// `true` if a disk came during the pass at work.
    arrived: bool,
    end: End,
}

/// A pass that has begun, with what it works on.
#[derive(Debug)]
pub(super) struct Begins {
    pub(super) kept_spec: KeptSpec,
    /// The pass's number.
    pub(super) pass: u64,
    /// The memory of the pass before.
    pub(super) memory: Memory,
}

impl State {
    /// The spec or tombstone. `None` if there was never one.
    pub(super) fn kept_spec(&self) -> Option<&KeptSpec> {
        self.kept_spec.as_ref()
    }

    /// The spec. `None` if there is none, or a tombstone.
    pub(super) fn spec(&self) -> Option<&ConnectionSpec> {
        self.kept_spec.as_ref().and_then(KeptSpec::spec)
    }

    /// Says whether the target has revoked this host, and no newer spec came.
    pub(super) fn is_revoked(&self) -> bool {
        matches!(
            self.kept_spec.as_ref().map(|kept_spec| &kept_spec.kind),
            Some(SpecKind::Tombstone { revoked: true })
        )
    }

    /// Takes the spec or tombstone as the store has it.
    pub(super) fn set_spec(&mut self, kept_spec: KeptSpec) {
        self.kept_spec = Some(kept_spec);
    }

    /// Begins a pass. `None` if none was asked for, one is at work, or nothing is wanted.
    pub(super) fn begin_pass(&mut self) -> Option<Begins> {
        let kept_spec = self.kept_spec.clone()?;
        if self.turn.is_running() {
            return None;
        }
        self.heed();
        let Begun { pass, .. } = self.turn.begin()?;
        let mut memory = std::mem::take(&mut self.memory);
        memory.unwritten = memory.unwritten.max(self.unwritten.take());
        Some(Begins { kept_spec, pass, memory })
    }

    /// Asks for another pass if a report during the last one differs from what that pass saw.
    /// Called when no pass is at work, under the lock that shows this: no report is lost between
    /// two passes.
    fn heed(&mut self) {
        let news = self.told.take().is_some_and(|told| !same(told.0.as_ref(), self.seen.as_ref()));
        let arrived = std::mem::take(&mut self.arrived) && !self.end.is_true();
        if news || arrived {
            self.turn.ask();
        }
    }

    /// Keeps the results of the pass at work.
    pub(super) fn leave(&mut self, end: End, memory: Memory) {
        self.memory = memory;
        self.end = end;
    }

    /// Keeps the session as a pass saw it. `None` if there is none.
    pub(super) fn learn_seen(&mut self, seen: Option<SessionStatus>) {
        self.seen = seen;
    }

    /// Ends the pass at work, however it went.
    pub(super) fn end_pass(&mut self) {
        self.turn.end();
        self.end_call();
    }

    /// The end of the last pass.
    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// The report of the last pass. `None` if there was none.
    pub(super) fn last_report(&self) -> Option<&ConnectionReport> {
        self.end.report.as_ref()
    }

    /// Says whether nothing is left of the connection, and its tombstone is the newest that came.
    pub(super) fn is_gone(&self) -> bool {
        let current = self.kept_spec.as_ref().map(|kept_spec| kept_spec.stamp.generation);
        self.end.is_true()
            && self.end.generation == current
            && self.last_report().is_some_and(|report| report.phase == ConnectionPhase::Gone)
    }

    /// Takes note of the bytes that were not written when the session was cut beside a pass. A
    /// later call finds no session, and so no bytes.
    pub(super) fn note_unwritten(&mut self, unwritten: Option<u64>) {
        self.unwritten = self.unwritten.max(unwritten);
    }

    /// The last look at the users of the disk.
    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Keeps a look at the users of the disk.
    pub(super) fn set_audit(&mut self, audit: Audit) {
        self.audit = audit;
    }

    /// The session as the last pass saw it. `None` if there was none.
    pub(super) fn seen(&self) -> Option<&SessionStatus> {
        self.seen.as_ref()
    }

    /// Notes a reported session. `true` if a pass must look at it now; during a pass, the next one
    /// looks.
    pub(super) fn tell(&mut self, status: Option<&SessionStatus>) -> bool {
        if self.turn.is_running() {
            self.told = Some(Told(status.cloned()));
            return false;
        }
        !same(status, self.seen.as_ref())
    }

    /// Notes that a disk came. `true` if a pass must look at it now. As a rule, a pass at work sees
    /// the disk by itself.
    pub(super) fn arrive(&mut self) -> bool {
        self.arrived = self.turn.is_running();
        !self.arrived && !self.end.is_true()
    }

    fn begin_call(&mut self, step: String) {
        self.at_work = Some(AtWork { step, began: clock::instant() });
    }

    fn end_call(&mut self) {
        self.at_work = None;
    }

    /// The call of this connection that has not returned for [`LOST_AFTER`]. `None` if there is
    /// none.
    pub(crate) fn stuck(&self) -> Option<StuckStep> {
        let at_work = self.at_work.as_ref()?;
        let since = at_work.began.elapsed();
        (since >= LOST_AFTER).then(|| StuckStep { step: at_work.step.clone(), since })
    }
}

/// One connection in the host's role: its state, and those who wait for a change of it.
pub(crate) struct Cell {
    pub(crate) id: VolumeId,
    state: Mutex<State>,
    /// The turn of admissions: changes of this connection are taken one by one.
    pub(crate) admission: Turns,
    version: watch::Sender<u64>,
}

impl Cell {
    pub(crate) fn new(id: VolumeId) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::default(),
            admission: Turns::default(),
            version: watch::Sender::new(0),
        })
    }

    /// Locks the state. Never hold the guard across a call of the kernel, of `mooring-sessiond` or
    /// of the store.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this call is at work from now on.
    pub(crate) fn begin(&self, step: String) {
        self.state().begin_call(step);
    }

    /// Says that the call at work has returned.
    pub(crate) fn end(&self) {
        self.state().end_call();
    }

    /// Wakes those who wait for a change.
    pub(crate) fn changed(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_revoke_keeps_the_number_of_unwritten_bytes() {
        let mut state = State::default();
        state.note_unwritten(Some(4096));
        // The session is gone: nothing is counted.
        state.note_unwritten(None);
        assert_eq!(state.unwritten, Some(4096));
        state.note_unwritten(Some(8192));
        assert_eq!(state.unwritten, Some(8192));
    }
}
