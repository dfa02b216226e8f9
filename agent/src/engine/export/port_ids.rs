//! The relative target port id of each export, on a kernel whose portal groups have one of their
//! own (`rtpi`; decision 56).
//!
//! The id is a function of the volume (`mooring_targets::port_ids`). An id with which a look saw
//! the export enabled is kept, and takes precedence: the kernel may have chosen it before this
//! agent asked for one, or somebody else may have had the first choice. A kernel without `rtpi` is
//! known by its version, or by the first look at a portal group; then the agent asks for no id.
//!
//! What must never happen here: an id asked for that another volume of ours has; an id that changes
//! while its export is enabled; an export that does not come up because of its id.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mooring_model::{Chain, ExportNames, Generation, VolumeId};
use mooring_targets::{Wanted, port_ids};

use super::fabrics::{View, Wanteds};
use crate::engine::cell::Cell;
use crate::engine::pass::Made;
use crate::engine::{Engine, lock};
use crate::store::StoreError;

/// Ids that are tried in one pass. Of 64,000 a machine uses a few: a later refusal has another
/// reason.
const TRIES: usize = 8;

/// The port ids of all exports, as far as they are known.
#[derive(Debug, Default)]
pub(in crate::engine) struct PortIds {
    /// `true` if the kernel has `rtpi` as far as its version tells, `false` if it has none by its
    /// version or by a look. `None`: it was not asked yet.
    supported: Option<bool>,
    /// The ids that the store has.
    of: HashMap<VolumeId, u16>,
    taken: HashMap<u16, VolumeId>,
}

impl PortIds {
    fn note(&mut self, volume: VolumeId, id: Option<u16>) {
        if let Some(old) = self.of.remove(&volume) {
            self.taken.remove(&old);
        }
        let Some(id) = id else { return };
        self.of.insert(volume, id);
        if let Some(other) = self.taken.insert(id, volume) {
            self.of.remove(&other);
        }
    }

    /// The id to ask for: the kept one, or the one that registrations were made with, or the first
    /// of the volume's own that no other volume is known to have. `None` if there is none.
    fn choose(&self, volume: VolumeId, registered: Option<u16>, refused: &BTreeSet<u16>) -> Option<u16> {
        if self.supported == Some(false) {
            return None;
        }
        let free =
            |id: &u16| !refused.contains(id) && self.taken.get(id).is_none_or(|other| *other == volume);
        let kept = self.of.get(&volume).copied();
        kept.into_iter().chain(registered).chain(port_ids(volume)).find(free)
    }
}

impl Engine {
    /// Reads the ids that the store has.
    pub(in crate::engine) fn load_port_ids(&self) -> Result<(), StoreError> {
        let kept = self.shared.store.port_ids()?;
        let mut ids = lock(&self.shared.export_memory.port_ids);
        for (volume, id) in kept {
            ids.note(volume, Some(id));
        }
        Ok(())
    }

    /// The id for an export when it is enabled. `None` if the kernel takes none.
    pub(in crate::engine) fn port_id(
        &self,
        cell: &Cell,
        names: &ExportNames,
        refused: &BTreeSet<u16>,
    ) -> Option<u16> {
        let asked = lock(&self.shared.export_memory.port_ids).supported.is_some();
        if !asked && let Ok(may) = mooring_targets::may_have_port_ids(&*self.shared.machine.target) {
            // A look meanwhile may have shown that the kernel has none.
            lock(&self.shared.export_memory.port_ids).supported.get_or_insert(may);
        }
        let registered = cell.state().registered_port(names);
        lock(&self.shared.export_memory.port_ids).choose(cell.id, registered, refused)
    }

    /// Notes from a look whether the kernel has ids.
    pub(in crate::engine) fn learn_port_ids(&self, wanted: &Wanteds, seen: &View) {
        let asked = wanted.iscsi.port_id().is_some();
        if asked && seen.iscsi.tpg().is_some_and(|tpg| tpg.port_id.is_none()) {
            lock(&self.shared.export_memory.port_ids).supported = Some(false);
        }
    }

    /// Keeps the id with which a look saw an export enabled.
    pub(in crate::engine) fn keep_port_id(&self, cell: &Cell, made: &Made) {
        let tpg = made.view.as_ref().and_then(|seen| seen.iscsi.tpg()).filter(|tpg| tpg.enabled);
        let Some(id) = tpg.and_then(|tpg| tpg.port_id).filter(|id| *id > 0) else { return };
        let kept = lock(&self.shared.export_memory.port_ids).of.get(&cell.id).copied();
        if kept == Some(id) {
            return;
        }
        if let Some(kept) = kept {
            tracing::warn!(
                volume = %cell.id, was = kept, is = id,
                "the relative port id of an export has changed: another target of this machine has the old one, and initiators that \
                 have written it down do not find it"
            );
        }
        self.write_port_id(cell.id, Some(id));
    }

    /// Forgets the id of a volume of which nothing is left.
    pub(in crate::engine) fn forget_port_id(&self, volume: VolumeId) {
        let known = lock(&self.shared.export_memory.port_ids).of.contains_key(&volume);
        if known {
            self.write_port_id(volume, None);
        }
    }

    /// Writes an id to the store. After an error the next look tries again.
    fn write_port_id(&self, volume: VolumeId, id: Option<u16>) {
        match self.shared.store.keep_port_id(volume, id) {
            Ok(()) => lock(&self.shared.export_memory.port_ids).note(volume, id),
            Err(error) => {
                tracing::warn!(%volume, error = %Chain(&error), "cannot keep the relative port id of an export");
            }
        }
    }

    /// Enables an export under one of its next ids, if another target has the one that it asked
    /// for.
    pub(in crate::engine) fn with_another_port_id(
        &self,
        cell: &Arc<Cell>,
        wanted: &Wanteds,
        mut made: Made,
        generation: Generation,
    ) -> Made {
        let mut refused = BTreeSet::new();
        let mut asked = wanted.clone();
        while refused.len() < TRIES {
            let taken = matches!(&made.left, Err(error) if error.is_port_taken(wanted.names()));
            let (true, Some(id)) = (taken, asked.iscsi.port_id()) else { break };
            let Some(view) = made.view.take() else { break };
            tracing::info!(volume = %cell.id, id, "another target of this machine has this relative port id");
            refused.insert(id);
            let next = self.port_id(cell, wanted.names(), &refused);
            if let Wanted::Present { port_id, .. } = &mut asked.iscsi {
                *port_id = next;
            }
            made = self.apply_export(cell, &asked, view, generation);
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(number: u128) -> VolumeId {
        VolumeId::from_u128(number)
    }

    #[test]
    fn what_is_kept_wins_and_one_id_is_one_volumes() {
        let (mut ids, nobody) = (PortIds::default(), BTreeSet::new());
        let own: Vec<_> = port_ids(volume(1)).take(2).collect();
        assert_eq!(ids.choose(volume(1), None, &nobody), Some(own[0]));
        assert_eq!(ids.choose(volume(1), Some(3), &nobody), Some(3), "what registrations were made with");
        ids.note(volume(2), Some(3));
        ids.note(volume(3), Some(own[0]));
        assert_eq!(ids.choose(volume(1), Some(3), &nobody), Some(own[1]));
        ids.note(volume(1), Some(7));
        assert_eq!(ids.choose(volume(1), Some(3), &nobody), Some(7));
        assert_eq!(ids.choose(volume(1), None, &[7].into()), Some(own[1]), "somebody else has it");
        // The kernel shows which volume has it.
        ids.note(volume(2), Some(7));
        assert_eq!(ids.choose(volume(1), None, &nobody), Some(own[1]));
        assert_eq!(ids.choose(volume(2), None, &nobody), Some(7));
        ids.note(volume(2), None);
        ids.note(volume(3), None);
        assert!(ids.of.is_empty() && ids.taken.is_empty());
        ids.supported = Some(false);
        assert_eq!(ids.choose(volume(1), Some(3), &nobody), None);
    }
}
