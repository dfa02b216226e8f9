//! The receipts of one volume that its engine keeps in memory.
//!
//! What must never happen here: a receipt that counts as proven before the store or the kernel says
//! so.

use std::time::SystemTime;

use mooring_model::{Generation, Initiator, Proof, Receipt};

/// A receipt that the store has as unproven. Once the draining call has returned, memory has it as
/// proven until the store does.
#[derive(Debug, Clone)]
pub(crate) struct OpenReceipt {
    /// The row in the store.
    pub(crate) row: i64,
    pub(crate) receipt: Receipt,
    /// Time at which it began, by the monotonic clock. `None` if that was before the agent's start.
    pub(crate) began: Option<std::time::Instant>,
}

impl OpenReceipt {
    /// Says whether the nexus is not known to have drained. `false` for a receipt of a newer
    /// generation than this one.
    pub(crate) fn is_unproven(&self, generation: Generation) -> bool {
        matches!(self.receipt.proof, Proof::Unproven { .. }) && self.receipt.generation <= generation
    }
}

/// The receipts of one volume.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    open: Vec<OpenReceipt>,
    /// The receipts of the export's newest generation, as the store has them, newest first: an
    /// answer need not read them.
    newest: Option<(Generation, Vec<Receipt>)>,
}

impl Receipts {
    /// The receipts that the store has as unproven.
    pub(super) fn open(&self) -> &[OpenReceipt] {
        &self.open
    }

    /// Adds a receipt that the store has as unproven.
    pub(super) fn add_open(&mut self, open: OpenReceipt) {
        self.open.push(open);
    }

    /// Notes the receipts of a generation that the store has now.
    pub(super) fn set_newest(&mut self, generation: Generation, receipts: Vec<Receipt>) {
        self.newest = Some((generation, receipts));
    }

    /// The receipts of this generation. `None` if they have to be read from the store.
    pub(super) fn newest(&self, generation: Generation) -> Option<&[Receipt]> {
        self.newest.as_ref().filter(|(of, _)| *of == generation).map(|(_, receipts)| receipts.as_slice())
    }

    /// Proves the open receipts up to this generation whose nexus has `drained`, and calls `proven`
    /// with each initiator. Returns all receipts that are proven, and that the store does not have
    /// as proven.
    pub(super) fn prove(
        &mut self,
        generation: Generation,
        ended: SystemTime,
        drained: impl Fn(&Initiator) -> bool,
        mut proven: impl FnMut(&Initiator),
    ) -> Vec<OpenReceipt> {
        for open in &mut self.open {
            if open.is_unproven(generation) && drained(&open.receipt.initiator) {
                open.receipt.proof = Proof::Proven;
                open.receipt.ended = Some(ended);
                proven(&open.receipt.initiator);
            }
        }
        self.open.iter().filter(|open| open.receipt.proof == Proof::Proven).cloned().collect()
    }

    /// Notes that the store has a receipt as proven.
    pub(super) fn note_proven(&mut self, row: i64, receipt: &Receipt) {
        self.open.retain(|open| open.row != row);
        if let Some((generation, receipts)) = &mut self.newest
            && *generation == receipt.generation
            && let Some(kept) = receipts.iter_mut().find(|kept| kept.initiator == receipt.initiator)
        {
            kept.clone_from(receipt);
        }
    }
}
