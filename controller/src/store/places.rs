//! The use of pools by volumes, in numbers, and the move of a volume to another pool while it is
//! being made.
//!
//! What must never happen here: a volume that changes its place while its agent may have it (the
//! callers' conditions are part of the statements).

use mooring_model::{AgentId, VolumeId};

use super::Db;
use super::sql::{Row, SqlError, values};
use super::volumes::Tried;

/// Volumes of one size on one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The pool's agent.
    pub(crate) agent: AgentId,
    /// The pool.
    pub(crate) pool: String,
    /// The size of each, in GiB.
    pub(crate) size_gib: u64,
    /// The number of volumes.
    pub(crate) volumes: u64,
}

fn taken(row: &mut Row) -> Result<Taken, SqlError> {
    Ok(Taken { agent: row.parsed(0)?, pool: row.get(1)?, size_gib: row.get(2)?, volumes: row.get(3)? })
}

/// A pool in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The pool's agent.
    pub(crate) agent: AgentId,
    /// The pool's name at the agent.
    pub(crate) pool: String,
    /// The zone of agent and pool.
    pub(crate) zone: String,
    /// `true` if the volume's spec may reach the agent from now on.
    pub(crate) sent: bool,
}

impl Db<'_> {
    /// All volumes, by pool and size.
    pub(crate) fn taken(&self) -> Result<Vec<Taken>, SqlError> {
        let sql = "SELECT agent_id, pool, size_gib, COUNT(*) FROM volumes \
                   WHERE snapshot_of IS NULL GROUP BY agent_id, pool, size_gib";
        self.all(sql, &[], taken)
    }

    /// Volumes that the last reports do not show, or may not show: their agents were not known to
    /// have them before the reports were requested.
    pub(crate) fn promised(&self) -> Result<Vec<Taken>, SqlError> {
        let sql = "SELECT agent_id, pool, size_gib, COUNT(*) FROM volumes \
                   WHERE operation = 'creating' AND taken_us IS NULL GROUP BY agent_id, pool, size_gib \
                   UNION ALL \
                   SELECT v.agent_id, v.pool, v.size_gib, COUNT(*) FROM agents a JOIN volumes v \
                   ON v.agent_id = a.agent_id AND v.taken_us >= COALESCE(a.report_us, 0) \
                   GROUP BY v.agent_id, v.pool, v.size_gib";
        self.all(sql, &[], taken)
    }

    /// Notes that the agent has the volume.
    pub(crate) fn note_taken(&self, id: VolumeId) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET taken_us = ?2 WHERE id = ?1 AND taken_us IS NULL";
        self.run(sql, &values![id, self.now]).map(drop)
    }

    /// Returns `true` if the agent is known to have the volume.
    pub(crate) fn is_taken(&self, id: VolumeId) -> Result<bool, SqlError> {
        let sql = "SELECT COUNT(*) FROM volumes WHERE id = ?1 AND taken_us IS NOT NULL";
        Ok(self.one(sql, &values![id], |row| row.get::<u64>(0))?.unwrap_or(0) > 0)
    }

    /// Returns `true` if the volume's spec may have reached its agent.
    pub(crate) fn may_be_sent(&self, id: VolumeId) -> Result<bool, SqlError> {
        let sql = "SELECT sent FROM volumes WHERE id = ?1";
        Ok(self.one(sql, &values![id], |row| row.get(0))?.unwrap_or(true))
    }

    /// Volumes that are being made and whose specs were never sent.
    pub(crate) fn unsent(&self) -> Result<Vec<VolumeId>, SqlError> {
        let sql = "SELECT id FROM volumes WHERE operation = 'creating' AND sent = 0";
        self.all(sql, &[], |row| row.parsed(0))
    }

    /// Notes that the volume's spec may reach this agent from now on. `false` if the volume is no
    /// longer on this pool.
    pub(crate) fn mark_sent(&self, id: VolumeId, agent: AgentId, pool: &str) -> Result<bool, SqlError> {
        let sql = "UPDATE volumes SET sent = 1 WHERE id = ?1 AND agent_id = ?2 AND pool = ?3";
        Ok(self.run(sql, &values![id, agent, pool])? > 0)
    }

    /// Stores which pools were tried, and why they failed.
    pub(crate) fn set_tried(&self, id: VolumeId, tried: &[Tried]) -> Result<(), SqlError> {
        let text = serde_json::to_value(tried).unwrap_or_default().to_string();
        self.run("UPDATE volumes SET tried = ?2 WHERE id = ?1", &values![id, text]).map(drop)
    }

    /// Moves a volume that is being made to another pool, which has nothing of it.
    pub(crate) fn move_volume(&self, id: VolumeId, to: &Place) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET agent_id = ?2, pool = ?3, zone = ?4, sent = ?5, taken_us = NULL, \
                   updated_us = ?6 WHERE id = ?1 AND operation = 'creating'";
        self.run(sql, &values![id, to.agent, &to.pool, &to.zone, to.sent, self.now]).map(drop)
    }

    /// Notes, until [`Db::mark_sent`], that the volume's agent is down and certainly has nothing of
    /// it.
    pub(crate) fn mark_unsent(&self, id: VolumeId) -> Result<(), SqlError> {
        self.run("UPDATE volumes SET sent = 0 WHERE id = ?1", &values![id]).map(drop)
    }
}
