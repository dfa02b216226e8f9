//! The first spec of a volume: taken only if nothing is known of its id. Ids come from senders, and
//! a sender with a restored database may reuse the id of a volume with data. The agent would hand
//! that volume to whoever asked for a new one.
//!
//! A spec that is sent again finds itself in the store. Before that write, LVM has nothing of the
//! volume: the first step comes after the write.
//!
//! What must never happen here: a new volume made of what is here already; a repeated spec refused
//! because of its own work.

use mooring_model::{ExportSpec, Fence, Stamp, VolumeId, VolumeSpec};

use crate::engine::cell::{Cell, KeptSpec};
use crate::engine::{Engine, Refusal};
use crate::store::Kind;

pub(in crate::engine) fn refuse<T>(volume: VolumeId, known: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::KnownId { volume, known: known.into() })
}

impl Engine {
    /// Refuses a new volume whose id this agent knows: from its store, from what LVM showed, or
    /// from the kernel's target.
    pub(in crate::engine) fn check_unknown(
        &self,
        cell: &Cell,
        stamp: &Stamp,
        (volume, export): (Option<&KeptSpec<VolumeSpec>>, Option<&KeptSpec<ExportSpec>>),
    ) -> Result<(), Refusal> {
        let id = cell.id;
        if let Some(kept) = volume {
            let same = stamp.fence(Some(&kept.stamp)) == Fence::Same;
            let text = || format!("this agent keeps generation {} of its spec", kept.stamp.generation);
            return if same { Ok(()) } else { refuse(id, text()) };
        }
        if export.is_some() {
            return refuse(id, "this agent keeps a spec of its export");
        }
        if let Some(orphan) = cell.state().knowledge.orphan() {
            return refuse(id, format!("an LV of volume group {} is here under its id", orphan.group));
        }
        if self.is_orphaned_target(id) {
            return refuse(id, "the kernel has a target under its id");
        }
        if self.store().spec(Kind::Connection, id).map_err(Refusal::Store)?.is_some() {
            return refuse(id, "this host keeps a spec of a connection to it");
        }
        Ok(())
    }
}
