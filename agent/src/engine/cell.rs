//! What the agent knows of one volume. Derived from the store and from looking; nothing here is durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use mooring_model::{
    ExportReport, ExportSpec, Generation, Receipt, Stamp, StuckStep, VolumeId, VolumeReport, VolumeSpec,
};
use tokio::sync::watch;

/// What is wanted of one object, and the stamp that fences it.
#[derive(Debug, Clone)]
pub(crate) struct Wish<S> {
    pub(crate) stamp: Stamp,
    pub(crate) kind: WishKind<S>,
    pub(crate) opaque: Vec<u8>,
}

/// A spec, or the tombstone of one.
#[derive(Debug, Clone)]
pub(crate) enum WishKind<S> {
    Spec(S),
    Tombstone { destroy: bool },
}

impl<S> Wish<S> {
    pub(crate) fn spec(&self) -> Option<&S> {
        match &self.kind {
            WishKind::Spec(spec) => Some(spec),
            WishKind::Tombstone { .. } => None,
        }
    }
}

/// A receipt whose draining call had not returned when it was written down.
#[derive(Debug, Clone)]
pub(crate) struct OpenReceipt {
    /// Its row in the store.
    pub(crate) row: i64,
    pub(crate) receipt: Receipt,
}

/// A step at work.
#[derive(Debug, Clone)]
pub(crate) struct AtWork {
    pub(crate) step: String,
    pub(crate) began: Instant,
}

/// What a finished pass has left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) volume: Option<VolumeReport>,
    pub(crate) export: Option<ExportReport>,
    /// Generations that the pass worked on.
    pub(crate) volume_generation: Option<Generation>,
    pub(crate) export_generation: Option<Generation>,
    /// Nothing is left to do for the volume, for the export.
    pub(crate) volume_done: bool,
    pub(crate) export_done: bool,
    /// Something failed that may succeed later by itself.
    pub(crate) retry: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) volume: Option<Wish<VolumeSpec>>,
    pub(crate) export: Option<Wish<ExportSpec>>,
    /// The LV was seen there, active and zeroed, since the last tick or failure: a grant need not ask LVM again.
    pub(crate) ready: Option<VolumeReport>,
    /// An orphan: an LV or target of ours that no spec names.
    pub(crate) orphan: Option<VolumeReport>,
    pub(crate) running: bool,
    pub(crate) dirty: bool,
    pub(crate) at_work: Option<AtWork>,
    pub(crate) zeroed: Option<u64>,
    pub(crate) outcome: Outcome,
    pub(crate) open_receipts: Vec<OpenReceipt>,
    pub(crate) failures: u32,
}

impl State {
    pub(crate) fn stuck(&self) -> Option<StuckStep> {
        let at_work = self.at_work.as_ref()?;
        let since = at_work.began.elapsed();
        (since >= crate::workers::LOST_AFTER).then(|| StuckStep { step: at_work.step.clone(), since })
    }
}

/// One volume's place in the engine.
pub(crate) struct Cell {
    pub(crate) id: VolumeId,
    state: Mutex<State>,
    /// Held while a change of this volume is checked and made durable: changes of one volume are taken one by one.
    admission: Mutex<()>,
    version: watch::Sender<u64>,
}

impl Cell {
    pub(crate) fn new(id: VolumeId) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::default(),
            admission: Mutex::default(),
            version: watch::Sender::new(0),
        })
    }

    /// The state. Never hold the guard across a kernel call, a command or the store.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this volume's turn to take a change, at most so long.
    pub(crate) fn admit_one_by_one(&self, deadline: Duration) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + deadline;
        loop {
            match self.admission.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                // Rare: two senders change one volume at the same moment.
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Tells those who wait that something has changed.
    pub(crate) fn changed(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
