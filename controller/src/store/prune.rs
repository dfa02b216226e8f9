//! Old records, which go by age: ended fences, detached attachments, receipts, and the specs of
//! volumes that are gone.
//!
//! A spec of a gone volume is a tombstone, and goes when its agents had the time to forget theirs.
//! The newest generation of its id stays with the identity, so that no later spec is older.
//!
//! What must never happen here: a record deleted that something open still needs; a tombstone
//! deleted whose agent was not heard since and may come back; an id that may be used again.

use std::time::SystemTime;

use mooring_model::VolumeId;
use uuid::Uuid;

use super::Db;
use super::audit::PRUNE_ROWS_MAX;
use super::sql::{SqlError, values};

/// The most fences that one transaction prunes: each has many parts.
const FENCES_MAX: u32 = 20;

/// Volumes that are gone since before a time (`?1`), and of which nothing is open. Each tombstone
/// is known to be true, and its agent was heard after that, or was given up before that time: such
/// an agent is never taken in again. Of a volume without a known storage agent, all agents were
/// heard.
const GONE: &str = "SELECT g.volume_id FROM gone g WHERE g.gone_us < ?1 \
                    AND NOT EXISTS (SELECT 1 FROM volumes v WHERE v.id = g.volume_id) \
                    AND NOT EXISTS (SELECT 1 FROM takings t WHERE t.volume_id = g.volume_id AND t.done = 0) \
                    AND NOT EXISTS (SELECT 1 FROM specs s WHERE s.volume_id = g.volume_id AND (s.body IS NOT NULL \
                    OR (s.kind = 'connection' AND (s.settled = 0 OR NOT EXISTS \
                    (SELECT 1 FROM agents a WHERE a.agent_id = s.agent_id AND a.heard_us > g.gone_us)) AND NOT EXISTS \
                    (SELECT 1 FROM forgotten f WHERE f.agent_id = s.agent_id AND f.open = 0 AND f.forgotten_us < ?1)) \
                    OR (s.kind <> 'connection' AND g.agent_id IS NOT NULL AND NOT EXISTS \
                    (SELECT 1 FROM agents a WHERE a.agent_id = g.agent_id AND a.heard_us > g.gone_us) AND NOT EXISTS \
                    (SELECT 1 FROM forgotten f WHERE f.agent_id = g.agent_id AND f.open = 0 AND f.forgotten_us < ?1)) \
                    OR (s.kind <> 'connection' AND g.agent_id IS NULL AND EXISTS \
                    (SELECT 1 FROM agents a WHERE COALESCE(a.heard_us, 0) <= g.gone_us)))) \
                    ORDER BY g.gone_us LIMIT ?2";

/// Tombstones of connections to volumes that are there, of hosts that were given up before a time
/// (`?1`). The newest generation of a volume's specs stays.
///
/// Those of other hosts stay as long as the volume: no row says when one came true, and there is
/// one at most for each pair of volume and host.
const FORGOTTEN: &str = "DELETE FROM specs WHERE kind = 'connection' AND (volume_id, agent_id) IN \
                         (SELECT s.volume_id, s.agent_id FROM specs s JOIN forgotten f ON f.agent_id = s.agent_id \
                         WHERE s.kind = 'connection' AND s.body IS NULL AND f.open = 0 AND f.forgotten_us < ?1 \
                         AND EXISTS (SELECT 1 FROM volumes v WHERE v.id = s.volume_id) \
                         AND EXISTS (SELECT 1 FROM specs n WHERE n.volume_id = s.volume_id \
                         AND (n.epoch, n.counter) > (s.epoch, s.counter)) LIMIT ?2)";

/// Receipts from before a time (`?1`) that no record names. While a volume is there, its storage
/// agent's newest receipt of each initiator stays, and so does every unproven one of that agent.
const RECEIPTS: &str = "DELETE FROM receipts WHERE id IN (SELECT r.id FROM receipts r WHERE r.kept_us < ?1 \
                        AND NOT EXISTS (SELECT 1 FROM detached d WHERE d.receipt = r.id) \
                        AND NOT EXISTS (SELECT 1 FROM takings t WHERE t.receipt = r.id) \
                        AND (r.other_agent <> '' OR NOT EXISTS (SELECT 1 FROM volumes v WHERE v.id = r.volume_id) \
                        OR (r.proven = 1 AND EXISTS (SELECT 1 FROM receipts n WHERE n.volume_id = r.volume_id \
                        AND n.initiator = r.initiator AND n.other_agent = '' AND (n.epoch, n.counter) > (r.epoch, r.counter)))) \
                        ORDER BY r.kept_us LIMIT ?2)";

/// Detached attachments from before a time (`?1`): neither a part of a fence, nor with a receipt
/// that may still be proven.
const DETACHED: &str = "DELETE FROM detached WHERE id IN (SELECT d.id FROM detached d WHERE d.detached_us < ?1 \
                        AND NOT EXISTS (SELECT 1 FROM receipts r WHERE r.id = d.receipt AND r.proven = 0 \
                        AND EXISTS (SELECT 1 FROM volumes v WHERE v.id = r.volume_id)) \
                        AND NOT EXISTS (SELECT 1 FROM takings t WHERE t.taker = d.id AND t.done = 0) \
                        AND d.id NOT IN (SELECT attachment_id FROM fence_parts) \
                        ORDER BY d.detached_us LIMIT ?2)";

/// Nexuses that were taken for something that has no record any more.
const TAKINGS: &str = "DELETE FROM takings WHERE done = 1 \
                       AND NOT EXISTS (SELECT 1 FROM fences f WHERE f.id = takings.taker) \
                       AND NOT EXISTS (SELECT 1 FROM detached d WHERE d.id = takings.taker) \
                       AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.id = takings.taker)";

/// Numbers of records that one transaction deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pruned {
    /// Fences that were lifted.
    pub(crate) fences: u64,
    /// Records of detached attachments.
    pub(crate) detached: u64,
    /// Receipts.
    pub(crate) receipts: u64,
    /// Volumes and snapshots whose specs were deleted.
    pub(crate) volumes: u64,
    /// Tombstones of connections that hosts had which were given up.
    pub(crate) connections: u64,
}

impl Pruned {
    /// The number of all of them.
    pub(crate) fn count(self) -> u64 {
        self.fences + self.detached + self.receipts + self.volumes + self.connections
    }
}

impl Db<'_> {
    /// Deletes old records: those from before `before`, and specs from before `specs_before`. The
    /// oldest go first, a bounded number at a time.
    pub(crate) fn prune_records(
        &self,
        before: SystemTime,
        specs_before: SystemTime,
    ) -> Result<Pruned, SqlError> {
        // Each of these may be the last that names the next.
        let fences = self.prune_fences(before)?;
        let detached = self.run(DETACHED, &values![before, PRUNE_ROWS_MAX])?;
        self.run(TAKINGS, &[])?;
        let receipts = self.run(RECEIPTS, &values![before, PRUNE_ROWS_MAX])?;
        let volumes = self.prune_gone(specs_before)?;
        let connections = self.run(FORGOTTEN, &values![specs_before, PRUNE_ROWS_MAX])?;
        Ok(Pruned { fences, detached, receipts, volumes, connections })
    }

    /// Deletes fences that were lifted, with what they took. A fence that still takes something
    /// stays.
    fn prune_fences(&self, before: SystemTime) -> Result<u64, SqlError> {
        let sql = "SELECT f.id FROM fences f WHERE f.lifted_us < ?1 AND NOT EXISTS \
                   (SELECT 1 FROM takings t WHERE t.taker = f.id AND t.done = 0) ORDER BY f.lifted_us LIMIT ?2";
        let ids = self.all(sql, &values![before, FENCES_MAX], |row| row.parsed::<Uuid>(0))?;
        let mut count = 0;
        for id in ids {
            for part in [
                "DELETE FROM takings WHERE taker = ?1",
                "DELETE FROM fence_nodes WHERE fence_id = ?1",
                "DELETE FROM fence_parts WHERE fence_id = ?1",
                "DELETE FROM fenced WHERE fence_id = ?1",
                "DELETE FROM fences WHERE id = ?1",
            ] {
                self.run(part, &values![id])?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Deletes the specs of volumes that are gone, and keeps the newest generation of each.
    fn prune_gone(&self, before: SystemTime) -> Result<u64, SqlError> {
        let ids = self.all(GONE, &values![before, PRUNE_ROWS_MAX], |row| row.parsed::<VolumeId>(0))?;
        let sql =
            "SELECT epoch, counter FROM specs WHERE volume_id = ?1 ORDER BY epoch DESC, counter DESC LIMIT 1";
        let mut count = 0;
        for id in ids {
            if let Some(newest) = self.one(sql, &values![id], |row| row.generation(0, 1))? {
                self.keep_generation(id, newest)?;
            }
            self.run("DELETE FROM specs WHERE volume_id = ?1", &values![id])?;
            self.run("DELETE FROM gone WHERE volume_id = ?1", &values![id])?;
            count += 1;
        }
        Ok(count)
    }
}
