//! A Fibre Channel zone: ports of hosts that see the ports of storage nodes.
//!
//! Without a zone a test chooses what a host's port sees ([`Node::fabric`](crate::Node::fabric)).
//!
//! What must never happen here: a disk that the target does not show to this host's port.

use std::collections::{BTreeMap, BTreeSet};

use mooring_connectors::fake::{FcWorld, Rport, Unit};
use mooring_host::BlockDevices;
use mooring_host::fake::{Access, FakeMachine, Reach};
use mooring_model::Wwpn;

/// A port of a host that sees a port of a storage node.
pub(crate) struct Sight {
    host: FcWorld,
    initiator: Wwpn,
    machine: FakeMachine,
    target: Wwpn,
    /// LUNs that the target shows to the host.
    shown: BTreeSet<u16>,
}

impl Sight {
    /// Lets the two ports meet. `number` is the target's number at the host.
    pub(crate) fn new(
        host: &FcWorld,
        initiator: Wwpn,
        machine: &FakeMachine,
        target: Wwpn,
        number: i32,
    ) -> Self {
        host.meet(Rport { name: target, state: "Online", target: number, luns: BTreeMap::new() });
        Self { host: host.clone(), initiator, machine: machine.clone(), target, shown: BTreeSet::new() }
    }

    /// Shows to the host what the target grants to its port now, and nothing else.
    pub(crate) fn refresh(&mut self) {
        let (initiator, target) = (self.initiator.to_string(), self.target.to_string());
        let mut units = BTreeMap::new();
        for reach in self.machine.reachable() {
            if reach.initiator != initiator || reach.target != target {
                continue;
            }
            if let (Ok(lun), Some(unit)) = (u16::try_from(reach.lun), self.unit(&reach)) {
                units.insert(lun, unit);
            }
        }
        for gone in self.shown.iter().filter(|lun| !units.contains_key(*lun)) {
            self.host.shows(self.target, *gone, None);
        }
        self.shown = units.keys().copied().collect();
        for (lun, unit) in units {
            self.host.shows(self.target, lun, Some(unit));
        }
    }

    /// The disk behind a grant; `None` if it is no volume of ours.
    fn unit(&self, reach: &Reach) -> Option<Unit> {
        let volume = reach.device.file_name()?.to_str()?.strip_prefix("mooring-")?.parse().ok()?;
        let size = self.machine.blocks().size(&reach.device).ok()??;
        Some(Unit { protected: reach.mode == Access::ReadOnly, ..Unit::of(volume, size) })
    }
}
