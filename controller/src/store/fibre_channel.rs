//! Fibre Channel numbers: slots of initiator ports, and the LUNs under which they see volumes.
//!
//! What must never happen here: a number given to another nexus while its first nexus may be in a
//! kernel; a slot given twice.

use std::collections::{BTreeMap, BTreeSet};

use mooring_model::{AgentId, Initiator, InitiatorSlot, Lun, VolumeId, Wwpn};

use super::Db;
use super::attachments::AttachmentRow;
use super::sql::{Row, SqlError, values};
use crate::initiators::{HostPorts, Initiators};
use crate::rules::numbers::KnownLun;

fn known(row: &mut Row) -> Result<KnownLun, SqlError> {
    let lun: u32 = row.get(1)?;
    Ok(KnownLun {
        port: row.parsed(0)?,
        lun: Lun(u16::try_from(lun).map_err(|_| SqlError::Column { index: 1, what: "a LUN that is none" })?),
        volume: row.parsed_opt(2)?,
        freed_at: row.time_opt(3)?,
    })
}

fn slot(row: &mut Row, index: usize) -> Result<InitiatorSlot, SqlError> {
    let number: u32 = row.get(index)?;
    let slot = u16::try_from(number).ok().and_then(InitiatorSlot::new);
    slot.ok_or(SqlError::Column { index, what: "a slot that is none" })
}

impl Db<'_> {
    /// Every LUN that one of these ports has or had on an agent.
    pub(crate) fn fc_luns(&self, agent: AgentId, ports: &HostPorts) -> Result<Vec<KnownLun>, SqlError> {
        let sql = "SELECT wwpn, lun, volume_id, freed_us FROM fc_luns WHERE agent_id = ?1 AND wwpn = ?2 ORDER BY lun";
        let mut all = Vec::new();
        for port in ports.iter() {
            all.extend(self.all(sql, &values![agent, port], known)?);
        }
        Ok(all)
    }

    /// Gives this volume a LUN at these ports.
    pub(crate) fn take_fc_lun(
        &self,
        agent: AgentId,
        ports: &HostPorts,
        lun: Lun,
        volume: VolumeId,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO fc_luns (agent_id, wwpn, lun, volume_id) VALUES (?1, ?2, ?3, ?4) \
                   ON CONFLICT (agent_id, wwpn, lun) DO UPDATE SET volume_id = excluded.volume_id, freed_us = NULL \
                   WHERE fc_luns.volume_id IS NULL OR fc_luns.volume_id = excluded.volume_id";
        for port in ports.iter() {
            if self.run(sql, &values![agent, port, u32::from(lun.0), volume])? == 0 {
                return Err(SqlError::Column { index: 2, what: "a LUN that is another volume's" });
            }
        }
        Ok(())
    }

    /// Frees the LUNs of an attachment that has nothing at its agent any more. LUNs that another
    /// attachment of the volume holds at the same port stay.
    pub(super) fn release_fc_luns(&self, row: &AttachmentRow) -> Result<(), SqlError> {
        let Some(ports) = row.initiator.as_ref().and_then(Initiators::ports) else { return Ok(()) };
        let others = self.attachments_of(row.volume)?;
        let held = |port: Wwpn| {
            let mut others = others.iter().filter(|other| other.id != row.id && other.has_grant());
            others.any(|other| other.initiator.as_ref().is_some_and(|of| of.has(&Initiator::Fc(port))))
        };
        let sql = "UPDATE fc_luns SET volume_id = NULL, freed_us = ?3 WHERE volume_id = ?1 AND wwpn = ?2";
        for port in ports.iter().filter(|port| !held(*port)) {
            self.run(sql, &values![row.volume, port, self.now])?;
        }
        Ok(())
    }

    /// The slot of an initiator port on an agent.
    pub(crate) fn fc_slot(&self, agent: AgentId, port: Wwpn) -> Result<Option<InitiatorSlot>, SqlError> {
        let sql = "SELECT slot FROM fc_slots WHERE agent_id = ?1 AND wwpn = ?2";
        self.one(sql, &values![agent, port], |row| slot(row, 0))
    }

    /// Every slot ever given on an agent.
    pub(crate) fn fc_slots(&self, agent: AgentId) -> Result<BTreeMap<Wwpn, InitiatorSlot>, SqlError> {
        let sql = "SELECT wwpn, slot FROM fc_slots WHERE agent_id = ?1";
        let all = self.all(sql, &values![agent], |row| Ok((row.parsed(0)?, slot(row, 1)?)))?;
        Ok(all.into_iter().collect())
    }

    /// Gives an initiator port a slot. Repeating the call changes nothing.
    pub(crate) fn keep_fc_slot(
        &self,
        agent: AgentId,
        port: Wwpn,
        slot: InitiatorSlot,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO fc_slots (agent_id, wwpn, slot) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (agent_id, wwpn) DO UPDATE SET slot = excluded.slot WHERE fc_slots.slot = excluded.slot";
        match self.run(sql, &values![agent, port, u32::from(slot.get())])? {
            0 => Err(SqlError::Column { index: 2, what: "another slot already" }),
            _ => Ok(()),
        }
    }

    /// Stores the ports that show a volume, as its agent reports them.
    pub(crate) fn set_fc_ports(&self, id: VolumeId, ports: &BTreeSet<Wwpn>) -> Result<(), SqlError> {
        let text = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        self.run("UPDATE volumes SET fc_ports = ?2 WHERE id = ?1", &values![id, text]).map(drop)
    }
}
