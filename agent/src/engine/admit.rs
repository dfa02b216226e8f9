//! Admission: what changes of volumes and exports have in common. Each change is checked, and made
//! durable by one write.
//!
//! What must never happen here: a change written before every check has passed; an answer before it
//! is written.

use mooring_model::limit::OPAQUE_BYTES_MAX;
use mooring_model::{ClusterId, Fence, Naa, Stamp};

use super::cell::Cell;
use super::{Engine, Refusal};
use crate::object::admission::Claim;
use crate::store::{Kind, NewReceipt, StoredContent};

/// The parameters of an admission's write.
pub(super) struct Keep<'a> {
    pub(super) sender: ClusterId,
    pub(super) kind: Kind,
    pub(super) stamp: &'a Stamp,
    pub(super) content: &'a StoredContent,
    pub(super) opaque: &'a [u8],
    pub(super) receipts: &'a [NewReceipt],
    /// The identity on the wire that the volume gets with the change.
    pub(super) naa: Option<Naa>,
}

impl Engine {
    pub(crate) fn check_sender(&self, sender: ClusterId) -> Result<(), Refusal> {
        match self.shared.store.cluster().map_err(Refusal::Store)? {
            Some(pinned) if pinned != sender => Err(Refusal::OtherCluster { pinned, sender }),
            Some(_) | None => Ok(()),
        }
    }

    /// Writes an admission to the store, once every check has passed. Returns the receipts' rows.
    pub(super) fn keep(&self, cell: &Cell, kept: &Keep<'_>, claim: &Claim) -> Result<Vec<i64>, Refusal> {
        if !claim.take() {
            return Err(Refusal::busy(cell.id, cell.state().stuck()));
        }
        let store = &self.shared.store;
        // The first sender whose spec is taken pins the agent, before the write: after a crash
        // between the two, this sender can go on. Another sender may have been first meanwhile.
        self.check_sender(kept.sender)?;
        store.pin(kept.sender).map_err(Refusal::Store)?;
        let claimed = kept.naa.as_ref().map(|naa| self.claim_naa(cell, naa)).transpose()?.unwrap_or(false);
        let rows = store.put_spec(kept.kind, cell.id, kept.stamp, kept.content, kept.opaque, kept.receipts);
        if let (Err(_), Some(naa), true) = (&rows, &kept.naa, claimed) {
            self.shared.naas.take_back(naa);
        }
        rows.map_err(Refusal::Store)
    }

    /// Gives a volume its identity on the wire. `false` if the volume has it already.
    fn claim_naa(&self, cell: &Cell, naa: &Naa) -> Result<bool, Refusal> {
        let claimed = self.shared.naas.claim(naa, cell.id);
        claimed.map_err(|other| Refusal::NaaCollision { volume: cell.id, naa: naa.clone(), other })
    }

    pub(super) fn check_naa(&self, cell: &Cell, naa: &Naa) -> Result<(), Refusal> {
        match self.shared.naas.volume(naa) {
            Some(other) if other != cell.id => {
                Err(Refusal::NaaCollision { volume: cell.id, naa: naa.clone(), other })
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) fn check_fence(object: &str, stamp: &Stamp, kept: Option<&Stamp>) -> Result<Fence, Refusal> {
        let fence = stamp.fence(kept);
        let kept = kept.map_or(stamp.generation, |kept| kept.generation);
        match fence {
            Fence::Newer | Fence::Same => Ok(fence),
            Fence::Stale => {
                Err(Refusal::Stale { object: object.to_owned(), arrived: stamp.generation, kept })
            }
            Fence::Conflict => Err(Refusal::Conflict { object: object.to_owned(), generation: kept }),
        }
    }

    pub(crate) fn check_opaque(opaque: &[u8]) -> Result<(), Refusal> {
        if opaque.len() > OPAQUE_BYTES_MAX {
            return Err(Refusal::field(
                "opaque",
                format!("{} bytes are more than {OPAQUE_BYTES_MAX}", opaque.len()),
            ));
        }
        Ok(())
    }
}
