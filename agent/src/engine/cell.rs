//! What the agent knows of one volume. Derived from the store and from looking; nothing here is durable.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use mooring_model::{
    ExportReport, ExportSpec, FcPort, Generation, Initiator, Problem, Proof, Receipt, RevertId, Stamp,
    StuckStep, VolumeId, VolumeReport, VolumeSpec,
};
use mooring_targets::Known;
use mooring_targets::fc::Place;
use tokio::sync::watch;
use tokio::time::Instant;

use super::busy::Counted;
use super::cut::Table;
use super::jobs::{Job, Stopped};
use super::kept_look::KeptLook;
use super::pulse::Lives;
use super::reservations::Held;
use super::reserve::Asked;
use super::watched::Watched;
use crate::turn::Turns;
use crate::volumes::{VolumesView, Whole};

/// A kernel call takes micro- to milliseconds, and some an RCU grace period. After this long a drain is at work, and
/// whoever walks into its folders waits with it.
pub(super) const BLOCKED_AFTER: Duration = Duration::from_millis(200);

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
    Tombstone {
        destroy: bool,
    },
    /// Volumes: the LV is nobody's from now on.
    Released,
}

impl<S> Wish<S> {
    pub(crate) fn spec(&self) -> Option<&S> {
        match &self.kind {
            WishKind::Spec(spec) => Some(spec),
            WishKind::Tombstone { .. } | WishKind::Released => None,
        }
    }
}

/// A receipt that the store has as unproven. Once the draining call has returned it is proven here, until the store knows.
#[derive(Debug, Clone)]
pub(crate) struct OpenReceipt {
    /// Its row in the store.
    pub(crate) row: i64,
    pub(crate) receipt: Receipt,
    /// When it began, by the monotonic clock. `None`: before the agent's start.
    pub(crate) began: Option<std::time::Instant>,
}

impl OpenReceipt {
    /// Whether nobody knows yet that the nexus has drained, as far as a pass for this generation may say.
    pub(crate) fn is_unproven(&self, generation: Generation) -> bool {
        matches!(self.receipt.proof, Proof::Unproven { .. }) && self.receipt.generation <= generation
    }
}

/// A step at work.
#[derive(Debug, Clone)]
pub(crate) struct AtWork {
    pub(crate) step: String,
    pub(crate) began: Instant,
}

/// What one half of a pass, the volume's or the export's, has left.
#[derive(Debug, Clone)]
pub(crate) struct End<R> {
    /// The number of the pass; 0: there was none.
    pub(crate) pass: u64,
    /// The generation that it worked on.
    pub(crate) generation: Option<Generation>,
    pub(crate) report: Option<R>,
    /// Nothing is left to do.
    pub(crate) done: bool,
    /// Something failed that may succeed later by itself.
    pub(crate) retry: bool,
    /// When it ended.
    pub(crate) at: Option<Instant>,
    /// Operations on the kernel's tree that it took.
    pub(crate) operations: u64,
}

impl<R> Default for End<R> {
    fn default() -> Self {
        Self { pass: 0, generation: None, report: None, done: false, retry: false, at: None, operations: 0 }
    }
}

impl<R> End<R> {
    /// Whether a pass that began later than pass `after` worked on this generation or a newer one, and waiting longer is
    /// of no use.
    pub(crate) fn is_settled(&self, generation: Generation, after: u64) -> bool {
        self.pass > after && self.generation >= Some(generation) && (self.done || !self.retry)
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) volume: Option<Wish<VolumeSpec>>,
    pub(crate) export: Option<Wish<ExportSpec>>,
    /// The LV was seen there, active and zeroed, since the last tick or failure: a grant need not ask LVM again.
    pub(crate) ready: Option<VolumeReport>,
    /// LVM has shown since that this is not so: the next pass asks it, whatever the one before it has said.
    pub(super) contradicted: bool,
    /// Its LV was whole once for what is wished, or for a wish before that with no end between them, and the store has that: hosts
    /// may have written to it, so that it is never made again.
    pub(super) made: bool,
    /// Its LV as LVM showed it when it was whole, and for which generation of its wish that was.
    pub(super) whole: Option<(Generation, Whole)>,
    /// LVM's identity of its LV and of the group, as that was shown whole last: whatever tags somebody takes from it.
    pub(super) identity: Option<String>,
    /// What admission, or a sweep, saw of the volume groups a moment ago: the pass behind it need not ask LVM again.
    pub(crate) looked: Option<VolumesView>,
    /// What LVM showed for a wish whose sender did not wait for it.
    pub(super) kept_look: Option<KeptLook>,
    /// The export as it was seen in force since the last tick or failure: a change of grants need not look at all of it.
    pub(crate) known: Option<Known>,
    /// The watch of the export's folders.
    pub(super) watched: Watched,
    /// Where the volume may be shown over Fibre Channel: the places of every spec since the last that was seen in force.
    pub(crate) former: BTreeSet<Place>,
    /// The places that the store has.
    pub(crate) kept_places: BTreeSet<Place>,
    /// The places that the last look saw showing the volume, less those that have drained since.
    pub(crate) linked: BTreeSet<(FcPort, Place)>,
    /// An orphan: an LV of ours that no spec names.
    pub(crate) orphan: Option<VolumeReport>,
    pub(crate) running: bool,
    /// Another pass is to follow.
    pub(crate) dirty: bool,
    /// That is because somebody wants something else than the pass at work knows: its job gives way at once.
    pub(crate) wanted_anew: bool,
    /// A smaller size is looked into: nothing makes the volume larger meanwhile.
    pub(super) held_small: bool,
    /// The pass in which a step that makes the volume larger was begun last.
    pub(super) growing: Option<u64>,
    /// Passes that have begun.
    pub(crate) passes: u64,
    pub(crate) at_work: Option<AtWork>,
    /// When the looks beside a pass began that have not ended.
    pub(crate) looks: Vec<Instant>,
    /// When the pulse's look began, if it has not ended.
    pub(crate) felt: Option<Instant>,
    /// Since when its device does not answer: its portals are withheld.
    pub(super) silent: Option<SystemTime>,
    /// An agent before this one has left the export; nobody has heard yet whether its device answers.
    pub(super) unheard: bool,
    /// What was live at the last look.
    pub(super) lives: Option<Lives>,
    /// The long work of the pass.
    pub(crate) job: Option<Job>,
    /// Place among the work that a shutdown waits for.
    pub(super) busy: Option<Counted>,
    /// One that was stopped for something newer.
    pub(crate) stopped: Option<Stopped>,
    /// The revert that made the volume's LV, as LVM showed it last.
    pub(crate) reverted: Option<RevertId>,
    /// The copy to a file that was seen last.
    pub(crate) uploading: Option<super::upload::Uploading>,
    /// What is known of the table of the volume's LV.
    pub(super) table: Table,
    /// The export is out of the kernel while the volume's LV is exchanged.
    pub(crate) apart: bool,
    pub(crate) volume_end: End<VolumeReport>,
    pub(crate) export_end: End<ExportReport>,
    /// Its persistent reservations.
    pub(super) held: Held,
    /// What is to be taken away of them.
    pub(super) asked: Option<Asked>,
    pub(crate) open_receipts: Vec<OpenReceipt>,
    /// Those that have a grant and are not let in: they had reserved the volume, and may only read.
    pub(super) kept_out: BTreeSet<Initiator>,
    /// When somebody's session was cut last for what he had reserved.
    pub(super) reader_cut: Option<Instant>,
    /// The receipts of the export's newest generation, as the store has them, newest first: an answer need not read them.
    pub(crate) receipts: Option<(Generation, Vec<Receipt>)>,
    pub(crate) failures: u32,
    /// The export waits for its LV, and nothing can be done for that but to look again: one look for all volumes like it.
    pub(crate) late: bool,
    /// The export was made in bulk work. It is looked at when the others are made, too.
    pub(crate) look_later: bool,
    /// Why the store did not take the last change.
    pub(crate) store_failed: Option<Problem>,
    /// The newest retry that was planned.
    pub(crate) retry: u64,
}

impl State {
    /// Somebody wants something: a pass has to follow, and what is at work gives way.
    pub(crate) fn want_pass(&mut self) {
        self.dirty = true;
        self.wanted_anew = true;
    }

    /// What a pass that begins now may hold for ready.
    pub(super) fn ready_now(&mut self) -> Option<VolumeReport> {
        if std::mem::take(&mut self.contradicted) {
            self.ready = None;
        }
        self.ready.clone()
    }

    /// The kernel call of this volume that has not returned for so long that somebody should know.
    pub(crate) fn stuck(&self) -> Option<StuckStep> {
        let (step, began) = self.oldest_call()?;
        let since = began.elapsed();
        (since >= crate::workers::LOST_AFTER).then(|| StuckStep { step: step.to_owned(), since })
    }

    /// Whether a look at the target now may not come back. A zeroing or a discard is no call on the target.
    pub(crate) fn is_blocked(&self) -> bool {
        let step = self.at_work.as_ref().filter(|_| self.job.is_none()).map(|at_work| at_work.began);
        let began = step.into_iter().chain(self.looks.first().copied()).min();
        began.is_some_and(|began| began.elapsed() >= BLOCKED_AFTER)
    }

    /// Whether no pass is at work, and none has begun since so many had.
    pub(super) fn rests_since(&self, passes: u64) -> bool {
        self.passes == passes && !self.running
    }

    /// Whether no pass is at work on the export: none runs, or the one that runs has done its export.
    pub(crate) fn is_export_still(&self) -> bool {
        !self.running || self.export_end.pass == self.passes
    }

    /// A receipt has been written down as proven.
    pub(crate) fn receipt_is_proven(&mut self, row: i64, receipt: &Receipt) {
        self.open_receipts.retain(|open| open.row != row);
        if let Some((generation, receipts)) = &mut self.receipts
            && *generation == receipt.generation
            && let Some(kept) = receipts.iter_mut().find(|kept| kept.initiator == receipt.initiator)
        {
            kept.clone_from(receipt);
        }
    }

    /// Whether the last pass worked on the export's wish of now: of one that came since, nothing is known.
    pub(crate) fn is_export_current(&self) -> bool {
        self.export_end.generation == self.export.as_ref().map(|wish| wish.stamp.generation)
    }

    /// Whether the export's wish of now is true.
    pub(crate) fn is_export_done(&self) -> bool {
        self.export_end.done && self.is_export_current()
    }

    /// Whether nothing was left of the volume when a pass worked on this tombstone.
    pub(crate) fn has_ended_by(&self, wish: &Wish<VolumeSpec>) -> bool {
        let end = &self.volume_end;
        wish.spec().is_none() && end.done && end.generation == Some(wish.stamp.generation)
    }

    fn oldest_call(&self) -> Option<(&str, Instant)> {
        let step = self.at_work.as_ref().map(|at_work| (at_work.step.as_str(), at_work.began));
        let look = self.looks.first().map(|began| ("look at the export", *began));
        step.into_iter().chain(look).min_by_key(|(_, began)| *began)
    }
}

/// One volume's place in the engine.
pub(crate) struct Cell {
    pub(crate) id: VolumeId,
    state: Mutex<State>,
    /// Changes of this volume are taken one by one.
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

    /// The state. Never hold the guard across a kernel call, a command or the store.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which step is at work from now on.
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
