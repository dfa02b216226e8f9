//! What the agent knows of one connection. Derived from the store and from looking; nothing here is durable.

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

/// What is wanted of a connection.
#[derive(Debug, Clone)]
pub(crate) enum WishKind {
    Spec(Box<ConnectionSpec>),
    Tombstone { revoked: bool },
}

/// It, with the stamp that fences it.
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

/// What a pass has left.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "not one state yet")]
pub(crate) struct End {
    /// The number of the pass; 0: there was none.
    pub(crate) pass: u64,
    /// The generation that it worked on.
    pub(crate) generation: Option<Generation>,
    pub(crate) report: Option<ConnectionReport>,
    /// The wish is true.
    pub(crate) done: bool,
    /// Waiting a little longer may help.
    pub(crate) hope: bool,
    /// It is tried again by itself.
    pub(crate) retry: bool,
    /// `mooring-sessiond` did not answer.
    pub(crate) down: bool,
}

impl End {
    /// Whether a pass that began later than pass `after` worked on this generation or a newer one, and waiting longer is of
    /// no use.
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
    /// The problems of a connection as it is: of another disk nothing is known, and with the cache on nobody minds.
    pub(crate) fn problems_of(&self, report: &ConnectionReport) -> &[Problem] {
        let is_of = report.disk.as_ref().is_some_and(|disk| disk.sequence == self.sequence);
        if is_of && report.cache == Some(Cache::Off) { &self.problems } else { &[] }
    }
}

/// A session as `mooring-sessiond` told it: there, or gone.
#[derive(Debug, Clone)]
pub(crate) struct Told(pub(crate) Option<SessionStatus>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) wish: Option<Wish>,
    /// The same was asked for once more: what failed for good is tried again.
    pub(crate) anew: bool,
    /// The turn of its passes.
    pub(crate) turn: Turn,
    pub(crate) at_work: Option<AtWork>,
    /// What a pass remembers for the next; with the pass while one is at work.
    pub(crate) memory: Memory,
    /// Bytes that the page cache had not written when the session was cut beside a pass.
    pub(crate) unwritten: Option<u64>,
    /// The last look at the users of the disk.
    pub(crate) audit: Audit,
    /// The session as the last pass saw it.
    pub(crate) seen: Option<SessionStatus>,
    /// The session as `mooring-sessiond` told it while a pass was at work.
    pub(crate) told: Option<Told>,
    /// A disk came while a pass was at work.
    pub(crate) arrived: bool,
    pub(crate) end: End,
}

impl State {
    /// What was told while a pass was at work, and is not what it saw, is looked at by another one. Called when none is at
    /// work, under the same lock that says so: nothing that is told is lost between two passes.
    pub(crate) fn heed(&mut self) {
        let news = self.told.take().is_some_and(|told| !same(told.0.as_ref(), self.seen.as_ref()));
        let arrived = std::mem::take(&mut self.arrived) && !self.end.done;
        if news || arrived {
            self.turn.ask();
        }
    }

    /// The call of this connection that has not returned for so long that somebody should know.
    pub(crate) fn stuck(&self) -> Option<StuckStep> {
        let at_work = self.at_work.as_ref()?;
        let since = at_work.began.elapsed();
        (since >= LOST_AFTER).then(|| StuckStep { step: at_work.step.clone(), since })
    }
}

/// One connection's place in the engine.
pub(crate) struct Cell {
    pub(crate) id: VolumeId,
    state: Mutex<State>,
    /// Changes of this connection are taken one by one.
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

    /// The state. Never hold the guard across a call of the kernel, of `mooring-sessiond` or of the store.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which call is at work from now on.
    pub(crate) fn begin(&self, step: String) {
        self.state().at_work = Some(AtWork { step, began: Instant::now() });
    }

    /// Tells those who wait that something has changed.
    pub(crate) fn changed(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
