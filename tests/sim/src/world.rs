//! Whole world of one run: the controller, the storage nodes, the network, the clients, and the
//! model.
//!
//! What must never happen here: a lock that is held while something of the product runs that takes
//! it, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use mooring_controller::domain::{AttachmentStatus, VolumeStatus};
use mooring_controller::list::ListQuery;
use mooring_controller::service::Service;
use mooring_host::fake::Access;
use mooring_model::{AttachmentId, IqnPrefix, LvName, Mode, VolumeId};

use crate::calls::Calls;
use crate::control::{Control, admin};
use crate::model::{Model, initiator_of};
use crate::node::{Node, device_of};
use crate::{Broken, hand, lock};

/// Number of storage nodes of a run.
const NODES: u8 = 2;

/// State that clients and the driver share; clones are the same world.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) nodes: Arc<Vec<Mutex<Node>>>,
    pub(crate) model: Arc<Mutex<Model>>,
    pub(crate) calls: Calls,
}

/// An attachment as the controller's API shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) volume: VolumeId,
    pub(crate) initiator: Option<String>,
    pub(crate) mode: Mode,
    pub(crate) status: AttachmentStatus,
    /// `true` if the attachment has its connection info, so that a client may log in.
    pub(crate) connected: bool,
}

/// A volume as the controller's API shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) status: VolumeStatus,
    pub(crate) attach_status: mooring_controller::domain::AttachStatus,
    pub(crate) attachments: Vec<AttachmentStatus>,
    /// Reason for an error or a review; `None` without one.
    pub(crate) fault: Option<String>,
    pub(crate) size_gib: u32,
}

impl Shown {
    /// True if the volume has its data, as far as the controller was told.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(
            self.status,
            VolumeStatus::Available
                | VolumeStatus::Reserved
                | VolumeStatus::Attaching
                | VolumeStatus::InUse
                | VolumeStatus::Detaching
        )
    }
}

/// One read of the controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) volumes: BTreeMap<VolumeId, Shown>,
    pub(crate) rows: BTreeMap<AttachmentId, Row>,
}

/// Access in all kernels: the mode by volume and initiator.
pub(crate) type Kernel = BTreeMap<(VolumeId, String), Mode>;

impl World {
    pub(crate) fn new(dir: &Path, calls: Calls, broken: Option<Broken>) -> Result<Self> {
        let nodes: Result<Vec<_>> =
            (1..=NODES).map(|n| Node::new(n, dir, &calls, broken).map(Mutex::new)).collect();
        Ok(Self { nodes: Arc::new(nodes?), model: Arc::new(Mutex::new(Model::new())), calls })
    }

    pub(crate) fn control(&self, dir: &Path) -> Result<Control> {
        let wires = self.nodes.iter().map(|node| {
            let node = lock(node);
            (node.name.clone(), node.wire.clone())
        });
        Control::new(dir, wires.collect())
    }

    pub(crate) fn say(&self, what: impl AsRef<str>) {
        lock(&self.model).say(what);
    }

    /// Returns the index of the node that has a volume's LV; `None` if no node has one.
    pub(crate) fn node_of(&self, volume: VolumeId) -> Option<usize> {
        self.nodes.iter().position(|node| {
            let blocks = lock(node).machine.blocks();
            mooring_host::BlockDevices::size(&blocks, &device_of(volume)).is_ok_and(|size| size.is_some())
        })
    }

    /// Returns the size of a volume's LV in whole GiB, rounded up; `None` if the LV is missing.
    pub(crate) fn lv_gib(&self, volume: VolumeId) -> Option<u32> {
        let name = LvName::of(volume);
        let size =
            self.nodes.iter().find_map(|node| hand::sizes(&lock(node).machine).get(name.as_str()).copied());
        size.and_then(|size| u32::try_from(size.div_ceil(1 << 30)).ok())
    }

    pub(crate) fn has_lv(&self, lv: &LvName) -> bool {
        self.nodes.iter().any(|node| hand::sizes(&lock(node).machine).contains_key(lv.as_str()))
    }

    /// Returns the access that all kernels give now.
    pub(crate) fn kernel(&self) -> Kernel {
        let mut all = Kernel::new();
        for node in self.nodes.iter() {
            let machine = lock(node).machine.clone();
            for reach in machine.reachable() {
                let volume = reach.target.rsplit(':').next().and_then(|id| id.parse().ok());
                let Some(volume) = volume.filter(|_| reach.authenticated && reach.initiator != "*") else {
                    lock(&self.model)
                        .violated(format!("open to anybody: {} of {}", reach.initiator, reach.target));
                    continue;
                };
                let mode = match reach.mode {
                    Access::ReadOnly => Mode::ReadOnly,
                    Access::ReadWrite => Mode::ReadWrite,
                };
                let kept = all.entry((volume, reach.initiator)).or_insert(mode);
                *kept = (*kept).max(mode);
            }
        }
        all
    }

    /// True if a node has this grant in its kernel, and no portal for it: the device does not
    /// answer, or the agent has not heard it since. The check at rest shows that portals come back.
    pub(crate) fn is_withheld(&self, volume: VolumeId, initiator: &str) -> bool {
        let target = IqnPrefix::default().target(volume).to_string();
        self.nodes.iter().any(|node| lock(node).machine.is_withheld(&target, initiator))
    }

    /// Records a change of a whole node that its agent may not see at once.
    pub(crate) fn touch_node(&self, at: usize) {
        let mut model = lock(&self.model);
        let volumes: Vec<_> = model.volumes.keys().copied().collect();
        for volume in volumes {
            model.touch(at, volume);
        }
    }

    /// Records that an agent has lost its knowledge of its volumes.
    pub(crate) fn store_was_lost(&self) {
        lock(&self.model).volumes.values_mut().for_each(|known| known.hand.unmade = true);
    }

    /// Gives renamed LVs their names again. `false` if this node has none.
    pub(crate) fn bring_back(&self, at: usize) -> bool {
        let away = |(id, known): (&VolumeId, &crate::model::KnownVolume)| known.hand.away.then_some(*id);
        let volumes: Vec<_> = lock(&self.model).volumes.iter().filter_map(away).collect();
        let node = lock(&self.nodes[at]);
        let mut any = false;
        for volume in volumes {
            if hand::bring_back(&node.machine, volume) {
                any = true;
                node.disk_written();
                let mut model = lock(&self.model);
                model.touch(at, volume);
                if let Some(known) = model.volumes.get_mut(&volume) {
                    known.hand.away = false;
                }
                let text = format!("  by hand: the LV of {} has its name again", model.name(volume));
                model.say(text);
            }
        }
        any
    }

    /// Reads the controller as an admin; `None` if it does not answer now.
    pub(crate) async fn snapshot(&self, service: &Service) -> Option<Snapshot> {
        let all = || ListQuery { all_projects: true, ..ListQuery::default() };
        let (volumes, attachments) = loop {
            let volumes = service.volumes(&admin(), all()).await.ok()?.items;
            let attachments = service.attachments(&admin(), all()).await.ok()?.items;
            // Nothing may have changed between the two reads.
            if service.volumes(&admin(), all()).await.ok()?.items == volumes {
                break (volumes, attachments);
            }
        };
        let mut snapshot = Snapshot::default();
        for volume in volumes {
            let own = attachments.iter().filter(|attachment| attachment.volume == volume.id);
            let shown = Shown {
                status: volume.status,
                attach_status: volume.attach_status,
                attachments: own.map(|attachment| attachment.status).collect(),
                fault: volume.fault,
                size_gib: volume.size_gib,
            };
            snapshot.volumes.insert(volume.id, shown);
        }
        for attachment in attachments {
            let row = Row {
                volume: attachment.volume,
                initiator: attachment.initiator.as_ref().map(ToString::to_string),
                mode: attachment.mode,
                status: attachment.status,
                connected: attachment.connection_info.is_some(),
            };
            snapshot.rows.insert(attachment.id, row);
        }
        Some(snapshot)
    }

    /// Records that a client was told the end of its attachment. From then on its host reaches
    /// nothing by it.
    pub(crate) fn acknowledged(&self, id: AttachmentId) {
        let kernel = self.kernel();
        let mut model = lock(&self.model);
        let step = model.step;
        let shares = model.shares(id);
        let Some(known) = model.attachments.get_mut(&id) else { return };
        known.gone = Some(step);
        let (name, nexus) = (known.name.clone(), (known.volume, initiator_of(known.node)));
        if !shares
            && kernel.contains_key(&nexus)
            && !model.volumes.get(&nexus.0).is_some_and(|known| known.lost)
        {
            model.violated(format!("the detach of {name} was acknowledged, and its grant is in the kernel"));
        }
    }
}
