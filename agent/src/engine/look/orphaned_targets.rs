//! Orphaned targets: targets under our prefix that no spec names, because their volume's spec was
//! lost or another store made them. The agent reports them and leaves them as they are: an
//! initiator may be logged in.
//!
//! What must never happen here: a write; a target of somebody else called ours.

use std::collections::BTreeSet;

use mooring_host::EntryKind;
use mooring_model::{Cure, ExportIdentity, Problem, VolumeId};
use mooring_targets::layout;

use crate::engine::{Engine, lock};

/// Orphaned targets that are reported one by one. After the loss of a store all targets are
/// orphans, until the specs come again.
const TOLD_MAX: usize = 16;

/// One orphaned target, as the last look saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OrphanedTarget {
    /// The volume that the target's name tells.
    id: VolumeId,
    /// Initiators that have an ACL.
    grants: usize,
}

impl Engine {
    /// The names of all targets. Notes those of ours that no spec explains. `None` if they cannot
    /// be listed.
    pub(in crate::engine) fn note_targets(&self) -> Option<BTreeSet<String>> {
        let tree = &*self.shared.machine.target;
        // Without the folder there is no target. Each export reports other problems of the tree.
        let entries = tree.list(&layout::fabric()).ok()?;
        let names = entries.into_iter().filter(|entry| entry.kind == EntryKind::Dir).map(|entry| entry.name);
        let names: BTreeSet<_> = names.collect();
        self.note_orphaned_targets(&names);
        let ours = names.iter().find(|name| self.shared.config.iqn_prefix.volume(name).is_some());
        *lock(&self.shared.look_memory.seen_target) = ours.cloned();
        Some(names)
    }

    /// A target of ours. `None` if the last look found none.
    pub(crate) fn seen_target(&self) -> Option<String> {
        lock(&self.shared.look_memory.seen_target).clone()
    }

    fn note_orphaned_targets(&self, targets: &BTreeSet<String>) {
        let tree = &*self.shared.machine.target;
        let prefix = &self.shared.config.iqn_prefix;
        let orphan = |id| {
            let names = ExportIdentity::Derived.names(id, prefix);
            OrphanedTarget {
                id,
                grants: mooring_targets::read_initiators(tree, &names).map_or(0, |names| names.len()),
            }
        };
        let mut orphans: Vec<_> = targets
            .iter()
            .filter_map(|name| prefix.volume(name))
            .filter(|id| !self.explains_target(*id))
            .map(orphan)
            .collect();
        orphans.sort_unstable_by_key(|orphan| orphan.id);
        let mut known = lock(&self.shared.look_memory.orphaned_targets);
        for new in orphans.iter().filter(|orphan| !known.contains(orphan)) {
            tracing::warn!(volume = %new.id, initiators = new.grants, "an orphaned target: left as it is");
        }
        if *known != orphans {
            *known = orphans;
            self.lvm().tell();
        }
    }

    /// Removes a target from the orphans if a spec that was taken explains it.
    pub(in crate::engine) fn explain_orphaned_target(&self, id: VolumeId) {
        let mut known = lock(&self.shared.look_memory.orphaned_targets);
        let count = known.len();
        known.retain(|orphan| orphan.id != id || !self.explains_target(id));
        if known.len() < count {
            self.lvm().tell();
        }
    }

    /// Says whether the last look found a target of this volume that no spec has explained since.
    pub(in crate::engine) fn is_orphaned_target(&self, id: VolumeId) -> bool {
        lock(&self.shared.look_memory.orphaned_targets).iter().any(|orphan| orphan.id == id)
    }

    /// Says whether the agent has a spec or tombstone of the export, or a tombstone of its volume.
    fn explains_target(&self, id: VolumeId) -> bool {
        self.known_cell(id).is_some_and(|cell| {
            let state = cell.state();
            state.export().is_some() || crate::engine::is_tombstone(state.volume())
        })
    }

    /// Problems for the targets of ours that the last look found, and that no spec has explained
    /// since.
    pub(crate) fn orphaned_targets(&self) -> Vec<Problem> {
        let orphans = lock(&self.shared.look_memory.orphaned_targets).clone();
        let prefix = &self.shared.config.iqn_prefix;
        let problem = |OrphanedTarget { id, grants }: &OrphanedTarget| Problem {
            object: format!("orphaned target {}", prefix.target(*id)),
            text: format!(
                "no spec of volume {id}'s export is kept here, and the kernel serves it to {grants} initiator(s): it is left as \
                 it is. If the store was lost, its controller sends the spec again; if nobody wants it, log its initiators \
                 out and remove the target by hand (targetcli, configfs)"
            ),
            cure: Cure::Operator,
        };
        let mut told: Vec<_> = orphans.iter().take(TOLD_MAX).map(problem).collect();
        if let Some(more) = orphans.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
            told.push(Problem {
                object: "orphaned targets".to_owned(),
                text: format!("there are {more} more targets of ours that no spec names"),
                cure: Cure::Operator,
            });
        }
        told
    }
}
