//! The state of one connection in memory, derived from the store and from looks. Nothing here is
//! durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mooring_connectors::wire::SessionStatus;
use mooring_connectors::{Memory, same};
use mooring_model::{
    Cache, ConnectionReport, ConnectionSpec, Generation, Problem, Stamp, StuckStep, VolumeId,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::object::turn::Turn;
use crate::turn::Turns;
use crate::workers::LOST_AFTER;

/// A connection's spec, or its tombstone. `revoked` says that the target has revoked this host.
#[derive(Debug, Clone)]
pub(crate) enum WishKind {
    Spec(Box<ConnectionSpec>),
    Tombstone { revoked: bool },
}

/// The spec or tombstone of a connection, and the stamp that fences it.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) stamp: Stamp,
    pub(crate) kind: WishKind,
    pub(crate) opaque: Vec<u8>,
}

impl Wish {
    pub(crate) fn spec(&self) -> Option<&ConnectionSpec> {
        match &self.kind {
            WishKind::Spec(spec) => Some(spec),
            WishKind::Tombstone { .. } => None,
        }
    }
}

/// A call at work.
#[derive(Debug, Clone)]
pub(crate) struct AtWork {
    step: String,
    began: Instant,
}

/// The result of a pass.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "not one state yet")]
pub(crate) struct End {
    /// The number of the pass; 0 if there was none.
    pub(crate) pass: u64,
    /// The generation that the pass worked on. `None` if there was no pass.
    pub(crate) generation: Option<Generation>,
    pub(crate) report: Option<ConnectionReport>,
    /// `true` if the spec or tombstone is carried out.
    pub(crate) done: bool,
    /// `true` if a little longer wait may help.
    pub(crate) hope: bool,
    /// `true` if the agent tries again by itself.
    pub(crate) retry: bool,
    /// `true` if `mooring-sessiond` did not answer.
    pub(crate) down: bool,
}

impl End {
    /// Says whether a pass that began later than pass `after` worked on this generation or a newer
    /// one, and a longer wait is of no use.
    pub(crate) fn is_settled(&self, generation: Generation, after: u64) -> bool {
        self.pass > after && self.generation >= Some(generation) && (self.done || !self.hope)
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
pub(crate) struct Told(pub(crate) Option<SessionStatus>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) wish: Option<Wish>,
    /// `true` if the sender asked once more for the same spec: a failure for good is tried again.
    pub(crate) anew: bool,
    /// The turn of the connection's passes.
    pub(crate) turn: Turn,
    pub(crate) at_work: Option<AtWork>,
    /// The memory of a pass for the next one; a pass at work has it.
    pub(crate) memory: Memory,
    /// Bytes that the page cache had not written when a call beside a pass ended the session.
    pub(crate) unwritten: Option<u64>,
    /// The last look at the users of the disk.
    pub(crate) audit: Audit,
    /// The session as the last pass saw it.
    pub(crate) seen: Option<SessionStatus>,
    /// The session as `mooring-sessiond` reported it during the pass at work. `None` if it did not.
    pub(crate) told: Option<Told>,
    /// `true` if a disk came during the pass at work.
    pub(crate) arrived: bool,
    pub(crate) end: End,
}

impl State {
    /// Asks for another pass if a report during the last one differs from what that pass saw.
    /// Called when no pass is at work, under the lock that shows this: no report is lost between
    /// two passes.
    pub(crate) fn heed(&mut self) {
        let news = self.told.take().is_some_and(|told| !same(told.0.as_ref(), self.seen.as_ref()));
        let arrived = std::mem::take(&mut self.arrived) && !self.end.done;
        if news || arrived {
            self.turn.ask();
        }
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
        self.state().at_work = Some(AtWork { step, began: Instant::now() });
    }

    /// Wakes those who wait for a change.
    pub(crate) fn changed(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
