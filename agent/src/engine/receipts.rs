//! The receipts of one volume, as far as its engine needs them at hand.
//!
//! What must never happen here: a receipt taken for proven before the store or the kernel says so.

use std::time::SystemTime;

use mooring_model::{Generation, Initiator, Proof, Receipt};

/// A receipt that the store has as unproven. Once the draining call has returned it is proven here, until the store knows.
#[derive(Debug, Clone)]
pub(crate) struct OpenReceipt {
    /// The row in the store.
    pub(crate) row: i64,
    pub(crate) receipt: Receipt,
    /// When it began, by the monotonic clock. `None`: before the agent's start.
    pub(crate) began: Option<std::time::Instant>,
}

impl OpenReceipt {
    /// Says whether nobody knows yet that the nexus has drained, as far as a pass for this generation may say.
    pub(crate) fn is_unproven(&self, generation: Generation) -> bool {
        matches!(self.receipt.proof, Proof::Unproven { .. }) && self.receipt.generation <= generation
    }
}

/// The receipts of one volume.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    open: Vec<OpenReceipt>,
    /// Those of the export's newest generation, as the store has them, newest first: an answer need not read them.
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

    /// Takes note of the receipts of a generation that the store has now.
    pub(super) fn set_newest(&mut self, generation: Generation, receipts: Vec<Receipt>) {
        self.newest = Some((generation, receipts));
    }

    /// The receipts of this generation. `None` if the store has to be read for them.
    pub(super) fn newest(&self, generation: Generation) -> Option<&[Receipt]> {
        self.newest.as_ref().filter(|(of, _)| *of == generation).map(|(_, receipts)| receipts.as_slice())
    }

    /// Proves the open receipts up to this generation whose nexus has `drained`, and calls `proven` with each initiator. Returns
    /// all that are proven and that the store does not know to be.
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

    /// Takes note that the store has a receipt as proven.
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
