//! Nexuses that are being revoked at a storage agent, whether or not an attachment of this database
//! has them; and the storage nodes that were compared with a fence.
//!
//! What must never happen here: a nexus called done with an unproven receipt; a comparison from
//! before a restore that still counts after it.

use std::collections::BTreeSet;

use mooring_model::{AgentId, AttachmentId, Initiator, VolumeId};
use uuid::Uuid;

use super::Db;
use super::sql::{Row, SqlError, values};

/// The cause for which a nexus is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Taker {
    /// A fence of the nexus's host.
    Fence(Uuid),
    /// A forced detach of this attachment, which revokes everything of its host at the volume.
    Widened(AttachmentId),
}

impl Taker {
    fn text(self) -> String {
        match self {
            Self::Fence(id) => id.to_string(),
            Self::Widened(id) => id.to_string(),
        }
    }
}

/// A nexus that is being revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taking {
    /// The storage agent that grants it.
    pub(crate) agent: AgentId,
    /// The volume, which need not be one of this database.
    pub(crate) volume: VolumeId,
    /// The initiator that loses its grant.
    pub(crate) initiator: Initiator,
    /// `true` once the agent no longer grants the nexus, and commands in flight have ended.
    pub(crate) done: bool,
    /// The row of the nexus's newest receipt.
    pub(crate) receipt: Option<i64>,
    /// The reason why it is not done.
    pub(crate) fault: Option<String>,
}

pub(super) const COLUMNS: &str = "agent_id, volume_id, initiator, done, receipt, fault";

pub(super) fn taking(row: &mut Row) -> Result<Taking, SqlError> {
    Ok(Taking {
        agent: row.parsed(0)?,
        volume: row.parsed(1)?,
        initiator: row.parsed(2)?,
        done: row.get(3)?,
        receipt: row.get(4)?,
        fault: row.get(5)?,
    })
}

impl Db<'_> {
    /// Begins to revoke a nexus. A nexus that had gone and came back is revoked again.
    pub(crate) fn take_nexus(
        &self,
        taker: Taker,
        agent: AgentId,
        volume: VolumeId,
        initiator: &Initiator,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO takings (taker, agent_id, volume_id, initiator) VALUES (?1, ?2, ?3, ?4) \
                   ON CONFLICT (taker, agent_id, volume_id, initiator) DO UPDATE SET done = 0, receipt = NULL, fault = NULL \
                   WHERE takings.done = 1";
        self.run(sql, &values![taker.text(), agent, volume, initiator]).map(drop)
    }

    /// Also revokes the nexus of another port, for each cause that revokes the first port's nexus.
    pub(crate) fn take_nexus_along(
        &self,
        agent: AgentId,
        volume: VolumeId,
        of: &Initiator,
        with: &Initiator,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO takings (taker, agent_id, volume_id, initiator) \
                   SELECT taker, agent_id, volume_id, ?4 FROM takings WHERE agent_id = ?1 AND volume_id = ?2 \
                   AND initiator = ?3 AND done = 0 ON CONFLICT (taker, agent_id, volume_id, initiator) \
                   DO UPDATE SET done = 0, receipt = NULL, fault = NULL";
        self.run(sql, &values![agent, volume, of, with]).map(drop)
    }

    /// A volume's nexuses that are still being revoked: each once, for whatever cause.
    pub(crate) fn takings_of(&self, volume: VolumeId) -> Result<Vec<Taking>, SqlError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM takings WHERE volume_id = ?1 AND done = 0 ORDER BY agent_id, initiator, taker"
        );
        let mut all = self.all(&sql, &values![volume], taking)?;
        all.dedup_by(|a, b| (a.agent, &a.initiator) == (b.agent, &b.initiator));
        Ok(all)
    }

    /// The nexuses that were or are being revoked for this cause.
    pub(crate) fn takings_for(&self, taker: Taker) -> Result<Vec<Taking>, SqlError> {
        let sql =
            format!("SELECT {COLUMNS} FROM takings WHERE taker = ?1 ORDER BY volume_id, initiator, agent_id");
        self.all(&sql, &values![taker.text()], taking)
    }

    /// Volumes with a nexus that is still being revoked at this agent.
    pub(crate) fn takings_at(&self, agent: AgentId) -> Result<Vec<VolumeId>, SqlError> {
        let sql =
            "SELECT DISTINCT volume_id FROM takings WHERE agent_id = ?1 AND done = 0 ORDER BY volume_id";
        self.all(sql, &values![agent], |row| row.parsed(0))
    }

    /// Stores the progress of a nexus, for all its causes.
    pub(crate) fn keep_taking(&self, now: &Taking) -> Result<(), SqlError> {
        let Taking { agent, volume, initiator, done, receipt, fault } = now;
        let sql = "UPDATE takings SET done = ?4, receipt = ?5, fault = ?6 WHERE agent_id = ?1 AND volume_id = ?2 \
                   AND initiator = ?3 AND done = 0";
        self.run(sql, &values![*agent, *volume, initiator, *done, *receipt, fault.as_deref()]).map(drop)
    }

    /// Notes that a storage node's exports were compared with this fence.
    pub(crate) fn note_fence_node(&self, fence: Uuid, node: &str) -> Result<(), SqlError> {
        let sql = "INSERT INTO fence_nodes (fence_id, node) VALUES (?1, ?2) ON CONFLICT (fence_id, node) DO NOTHING";
        self.run(sql, &values![fence, node]).map(drop)
    }

    /// Storage nodes whose exports were compared with this fence.
    pub(crate) fn fence_nodes(&self, fence: Uuid) -> Result<BTreeSet<String>, SqlError> {
        let sql = "SELECT node FROM fence_nodes WHERE fence_id = ?1";
        Ok(self.all(sql, &values![fence], |row| row.get(0))?.into_iter().collect())
    }

    /// Begins another history of this database: former comparisons no longer count.
    pub(crate) fn forget_fence_nodes(&self) -> Result<(), SqlError> {
        self.run("DELETE FROM fence_nodes", &[]).map(drop)
    }

    /// Agents that may serve a volume of this database: its spec may have reached them.
    pub(crate) fn serving_agents(&self) -> Result<BTreeSet<AgentId>, SqlError> {
        let sql = "SELECT DISTINCT agent_id FROM volumes WHERE sent = 1";
        Ok(self.all(sql, &[], |row| row.parsed(0))?.into_iter().collect())
    }
}
