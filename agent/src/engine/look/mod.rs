//! Looks beside the passes, at the kernel and at LVM: they feed what is known, and wake passes.
//!
//! What must never happen here: a grant made or taken away; an LV made, extended or removed.

pub(super) mod callers;
pub(super) mod disks;
pub(super) mod knock;
pub(super) mod orphaned_targets;
pub(super) mod pulse;
pub(super) mod silence;
pub(super) mod sweep;
pub(super) mod units;
pub(super) mod watched;

use std::collections::BTreeMap;
use std::sync::Mutex;

use mooring_bus::Units;
use mooring_model::VgName;
use tokio::sync::watch;

use crate::lvm::Unread;

/// The memory of all looks beside the passes. Its fields are private to this folder.
pub(super) struct LookMemory {
    pulse: Mutex<pulse::Pulse>,
    ears: Mutex<silence::Ears>,
    knocks: Mutex<knock::Knocks>,
    late: Mutex<sweep::Late>,
    /// The groups at which the last look of LVM hung. Looks at volumes of other groups leave them
    /// out; sweeps, and looks at their own volumes, ask for them again.
    hung: Mutex<BTreeMap<VgName, Unread>>,
    /// The watch of the volume groups' disks.
    watch: Mutex<disks::Watch>,
    /// The watches of exports in the kernel's tree.
    watches: Mutex<watched::Watches>,
    /// A target of ours that the last look found: it shows what targets offer. `None` if there was
    /// none.
    seen_target: Mutex<Option<String>>,
    /// Targets of ours that no spec names.
    orphaned_targets: Mutex<Vec<orphaned_targets::OrphanedTarget>>,
    /// The states of systemd's units. `None` if this agent has no bus.
    units: Option<watch::Receiver<Option<Units>>>,
}

impl LookMemory {
    pub(super) fn new(units: Option<watch::Receiver<Option<Units>>>) -> Self {
        Self {
            pulse: Mutex::default(),
            ears: Mutex::default(),
            knocks: Mutex::default(),
            late: Mutex::default(),
            hung: Mutex::default(),
            watch: Mutex::default(),
            watches: Mutex::default(),
            seen_target: Mutex::default(),
            orphaned_targets: Mutex::default(),
            units,
        }
    }
}
