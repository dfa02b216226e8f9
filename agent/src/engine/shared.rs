//! Parts of the state that all clones of the engine share, grouped by the work that they serve.

use std::collections::BTreeMap;
use std::sync::Mutex;

use mooring_api::v1;
use mooring_bus::Units;
use mooring_host::LocalAddress;
use mooring_model::VgName;
use tokio::sync::{broadcast, watch};

use super::look::{disks, knock, orphaned_targets, pulse, silence, sweep, watched};
use super::{Change, counts};
use crate::lvm::Unread;

/// Reports that a watcher may lag behind before its stream ends.
const REPORTS_QUEUED_MAX: usize = 4096;

/// State of the work that watches this host beside the passes.
pub(super) struct Watchers {
    pub(super) pulse: Mutex<pulse::Pulse>,
    pub(super) ears: Mutex<silence::Ears>,
    pub(super) knocks: Mutex<knock::Knocks>,
    pub(super) late: Mutex<sweep::Late>,
    /// The groups at which the last look of LVM hung. Looks at volumes of other groups leave them
    /// out; sweeps, and looks at their own volumes, ask for them again.
    pub(super) hung: Mutex<BTreeMap<VgName, Unread>>,
    /// The watch of the volume groups' disks.
    pub(super) watch: Mutex<disks::Watch>,
    /// The watches of exports in the kernel's tree.
    pub(super) watches: Mutex<watched::Watches>,
    /// The addresses of this host, as the last look saw them.
    pub(super) addresses: Mutex<Vec<LocalAddress>>,
    /// The states of systemd's units. `None` if this agent has no bus.
    pub(super) units: Option<watch::Receiver<Option<Units>>>,
}

impl Watchers {
    pub(super) fn new(addresses: Vec<LocalAddress>, units: Option<watch::Receiver<Option<Units>>>) -> Self {
        Self {
            pulse: Mutex::default(),
            ears: Mutex::default(),
            knocks: Mutex::default(),
            late: Mutex::default(),
            hung: Mutex::default(),
            watch: Mutex::default(),
            watches: Mutex::default(),
            addresses: Mutex::new(addresses),
            units,
        }
    }
}

/// The reports of this agent, and facts that only reports need.
pub(super) struct Reports {
    pub(super) changes: broadcast::Sender<Change>,
    /// The health that was reported last. `None` if nobody has asked.
    pub(super) health: Mutex<Option<v1::Health>>,
    /// Counters of what was done since the start.
    pub(super) done: counts::Done,
    /// A target of ours that the last look found: it shows what targets offer. `None` if there was
    /// none.
    pub(super) seen_target: Mutex<Option<String>>,
    /// Targets of ours that no spec names.
    pub(super) orphaned_targets: Mutex<Vec<orphaned_targets::OrphanedTarget>>,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self {
            changes: broadcast::Sender::new(REPORTS_QUEUED_MAX),
            health: Mutex::default(),
            done: counts::Done::default(),
            seen_target: Mutex::default(),
            orphaned_targets: Mutex::default(),
        }
    }
}
