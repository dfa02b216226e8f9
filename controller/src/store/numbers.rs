//! Fibre Channel LUNs, given in the transaction that grants. The rules are in
//! [`crate::rules::numbers`].
//!
//! What must never happen here: a grant before its LUN is stored.

use mooring_model::{AgentId, InitiatorSlot, Lun, Wwpn};

use super::{Abort, Db, VolumeRow};
use crate::error::Refusal;
use crate::initiators::HostPorts;
use crate::rules::numbers;

/// Gives a host its LUN of a volume, and each of its ports a slot at the volume's agent. A host
/// that has a LUN keeps it.
pub(crate) fn take(db: &Db<'_>, volume: &VolumeRow, ports: &HostPorts) -> Result<Lun, Abort> {
    let known = db.fc_luns(volume.agent, ports)?;
    let lun = numbers::lun(volume.id, ports, &known)?;
    db.take_fc_lun(volume.agent, ports, lun, volume.id)?;
    for port in ports.iter() {
        give_slot(db, volume.agent, port)?;
    }
    Ok(lun)
}

fn give_slot(db: &Db<'_>, agent: AgentId, port: Wwpn) -> Result<(), Abort> {
    if db.fc_slot(agent, port)?.is_some() {
        return Ok(());
    }
    let taken = db.fc_slots(agent)?.into_values().map(InitiatorSlot::get).collect();
    let slot = numbers::slot(port, &taken).ok_or_else(|| {
        Refusal::Conflict("the storage agent has met as many Fibre Channel ports as it can number".to_owned())
    })?;
    Ok(db.keep_fc_slot(agent, port, slot)?)
}
