//! Agents that operators have given up, and the rest of them in the other tables.
//!
//! What must never happen here: an agent forgotten twice under two names; a receipt that was proven
//! and no longer is.

use std::time::SystemTime;

use jiff::Timestamp;
use mooring_api::{Message, v1};
use mooring_model::{AgentId, Cause, Initiator, Proof, Receipt, VolumeId};

use super::attachments::{self, Asked, AttachmentRow};
use super::receipts::{Stater, other_agent};
use super::sql::{Row, SqlError, values};
use super::takings::{self, Taking};
use super::volumes::VolumeRow;
use super::{Abort, Db};

/// An agent that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForgottenRow {
    /// The agent's id. An agent that answers with it is refused as a stranger.
    pub(crate) agent: AgentId,
    /// The agent's name at that time.
    pub(crate) name: String,
    /// True if the agent served volumes.
    pub(crate) storage: bool,
    /// `true` if rows of the agent are left in other tables.
    pub(crate) open: bool,
    /// The operator who requested it, and the time.
    pub(crate) asked: Asked,
}

impl ForgottenRow {
    /// The reason for refusing an agent that answers with this id, and the remedy.
    pub(crate) fn why_refused(&self) -> String {
        let Self { agent, name, asked, .. } = self;
        let at = Timestamp::try_from(asked.at)
            .map(|at| at.strftime("%Y-%m-%d %H:%M UTC").to_string())
            .unwrap_or_default();
        format!(
            "its agent, {agent}, was forgotten as {name} ({at}, by {}): nothing that it reports or serves is taken in. To take the machine \
             in as a new one: stop mooring-agent there, move its state_dir (/var/lib/mooring) away, restart the machine, and let it join with \
             a new token; logical volumes that it still has are listed as orphans then",
            asked.user
        )
    }
}

const COLUMNS: &str = "agent_id, name, storage, open, by_user, by_request, forgotten_us";

fn forgotten(row: &mut Row) -> Result<ForgottenRow, SqlError> {
    Ok(ForgottenRow {
        agent: row.parsed(0)?,
        name: row.get(1)?,
        storage: row.get(2)?,
        open: row.get(3)?,
        asked: Asked { user: row.get(4)?, request: row.get(5)?, at: row.time(6)? },
    })
}

impl Db<'_> {
    /// Gives an agent up for good.
    pub(crate) fn forget(&self, row: &ForgottenRow) -> Result<(), SqlError> {
        let sql = "INSERT INTO forgotten (agent_id, name, storage, open, by_user, by_request, forgotten_us) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let Asked { user, request, at } = &row.asked;
        self.run(sql, &values![row.agent, &row.name, row.storage, row.open, user, request, *at]).map(drop)
    }

    /// The given-up agent with this id.
    pub(crate) fn forgotten(&self, agent: AgentId) -> Result<Option<ForgottenRow>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM forgotten WHERE agent_id = ?1");
        self.one(&sql, &values![agent], forgotten)
    }

    /// The agent that was last given up under this name.
    pub(crate) fn forgotten_named(&self, name: &str) -> Result<Option<ForgottenRow>, SqlError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM forgotten WHERE name = ?1 ORDER BY forgotten_us DESC, agent_id LIMIT 1"
        );
        self.one(&sql, &values![name], forgotten)
    }

    /// Given-up agents with rows left in other tables.
    pub(crate) fn forgotten_open(&self) -> Result<Vec<ForgottenRow>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM forgotten WHERE open = 1 ORDER BY agent_id");
        self.all(&sql, &[], forgotten)
    }

    /// Storage nodes given up since this time.
    pub(crate) fn nodes_forgotten_since(&self, then: SystemTime) -> Result<Vec<ForgottenRow>, SqlError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM forgotten WHERE storage = 1 AND forgotten_us >= ?1 ORDER BY name, agent_id"
        );
        self.all(&sql, &values![then], forgotten)
    }

    /// Notes that no other rows of the agent are left, and deletes its Fibre Channel LUNs and
    /// slots.
    pub(crate) fn close_forgotten(&self, agent: AgentId) -> Result<(), SqlError> {
        self.run("DELETE FROM fc_luns WHERE agent_id = ?1", &values![agent])?;
        self.run("DELETE FROM fc_slots WHERE agent_id = ?1", &values![agent])?;
        self.run("UPDATE forgotten SET open = 0 WHERE agent_id = ?1", &values![agent]).map(drop)
    }

    /// At most `limit` volumes and snapshots of an agent.
    pub(crate) fn some_volumes_on(&self, agent: AgentId, limit: u32) -> Result<Vec<VolumeRow>, SqlError> {
        self.volumes_where("WHERE agent_id = ?1 ORDER BY id LIMIT ?2", &values![agent, limit])
    }

    /// At most `limit` attachments of a host's agent that are not being detached by force.
    pub(crate) fn some_unforced_on(&self, host: AgentId, limit: u32) -> Result<Vec<AttachmentRow>, SqlError> {
        let sql = format!(
            "SELECT {} FROM attachments WHERE native = ?1 AND access < 50 ORDER BY id LIMIT ?2",
            attachments::COLUMNS
        );
        self.all(&sql, &values![host, limit], attachments::attachment)
    }

    /// The project of each attachment of a host's agent, with the agent that serves its volume.
    pub(crate) fn attachments_at(&self, host: AgentId) -> Result<Vec<(String, AgentId)>, SqlError> {
        let sql = "SELECT a.project, v.agent_id FROM attachments a JOIN volumes v ON v.id = a.volume_id \
                   WHERE a.native = ?1 ORDER BY a.id";
        self.all(sql, &values![host], |row| Ok((row.get(0)?, row.parsed(1)?)))
    }

    /// The number of attachments of an agent's volumes, per project.
    pub(crate) fn attached_on(&self, agent: AgentId) -> Result<Vec<(String, u32)>, SqlError> {
        let sql = "SELECT a.project, COUNT(*) FROM attachments a JOIN volumes v ON v.id = a.volume_id \
                   WHERE v.agent_id = ?1 GROUP BY a.project ORDER BY a.project";
        self.all(sql, &values![agent], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Nexuses whose revocation at an agent is not complete.
    pub(crate) fn open_takings_at(&self, agent: AgentId) -> Result<Vec<Taking>, SqlError> {
        let sql = format!(
            "SELECT {} FROM takings WHERE agent_id = ?1 AND done = 0 AND receipt IS NULL \
             ORDER BY volume_id, initiator, taker",
            takings::COLUMNS
        );
        self.all(&sql, &values![agent], takings::taking)
    }

    /// Deletes the specs that a storage agent was sent for a volume.
    pub(crate) fn drop_storage_specs(&self, volume: VolumeId) -> Result<(), SqlError> {
        let sql = "DELETE FROM specs WHERE volume_id = ?1 AND kind IN ('volume', 'export')";
        self.run(sql, &values![volume]).map(drop)
    }

    /// Stores a receipt that will never be proven, unless an equal one exists: then that one
    /// stands. Returns the receipt's row.
    pub(crate) fn never_prove(&self, by: Stater, receipt: &Receipt) -> Result<i64, Abort> {
        let receipt = Receipt { cause: Cause::Forgotten, ended: None, ..receipt.clone() };
        let sql = "INSERT INTO receipts (volume_id, initiator, epoch, counter, body, proven, kept_us, other_agent) \
                   VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7) \
                   ON CONFLICT (volume_id, initiator, other_agent, epoch, counter) \
                   DO UPDATE SET body = excluded.body, kept_us = excluded.kept_us WHERE receipts.proven = 0";
        let (at, body) = (receipt.generation, v1::Receipt::from(&receipt).encode_to_vec());
        let (volume, initiator, other) = (receipt.volume, &receipt.initiator, other_agent(by));
        self.run(sql, &values![volume, initiator, at.epoch, at.counter, body, self.now, other.as_str()])?;
        let sql = "SELECT id FROM receipts WHERE volume_id = ?1 AND initiator = ?2 AND other_agent = ?3 \
                   AND epoch = ?4 AND counter = ?5";
        let found =
            self.one(sql, &values![volume, initiator, other, at.epoch, at.counter], |row| row.get(0))?;
        Ok(found.ok_or(SqlError::Column { index: 0, what: "no row of a receipt" })?)
    }

    /// The receipts of a nexus that wait for their proof by this agent.
    pub(crate) fn unproven_of(
        &self,
        by: Stater,
        volume: VolumeId,
        of: &Initiator,
    ) -> Result<Vec<Receipt>, SqlError> {
        let sql = "SELECT id, body FROM receipts WHERE volume_id = ?1 AND initiator = ?2 AND other_agent = ?3 \
                   AND proven = 0 ORDER BY epoch, counter";
        let all = self.all(sql, &values![volume, of, other_agent(by)], super::receipts::receipt)?;
        Ok(all.into_iter().map(|(_, receipt)| receipt).filter(|one| one.proof != Proof::Proven).collect())
    }
}
