//! Identities on the wire: which volume has an NAA, and which ids were ever a volume's.
//!
//! An NAA is made of the first 25 hex digits of an id. A host that meets two disks of one NAA takes them for two paths to one disk.
//!
//! What must never happen here: an NAA that two new volumes get; an id forgotten that an agent may still have data under.

use mooring_model::{Naa, VolumeId};

use super::sql::{SqlError, Value, values};
use super::volumes::VolumeRow;
use super::{Abort, Db};
use crate::error::Refusal;

/// Identities that one statement keeps.
const NOTED_AT_ONCE: usize = 100;

/// The NAA of a volume whose export was not adopted.
pub(crate) fn naa_of(id: VolumeId) -> Naa {
    Naa::of_serial(&id.to_string())
}

/// The answer to whoever chose an id that cannot be had. It is the same whoever has the id, and however: it tells nothing of them.
pub(crate) fn id_is_taken(id: VolumeId) -> Refusal {
    Refusal::Conflict(format!("the id {id} is in use, or was once: choose another"))
}

impl Db<'_> {
    /// Whether this id, or another of its NAA, was ever a volume's or a snapshot's, here or at an agent.
    pub(crate) fn is_known_id(&self, id: VolumeId) -> Result<bool, SqlError> {
        // The wishes are those of a controller of an earlier release, which keeps no identities.
        let sql = "SELECT (SELECT COUNT(*) FROM identities WHERE naa = ?1) + \
                   (SELECT COUNT(*) FROM volumes WHERE id = ?2 OR naa = ?1) + \
                   (SELECT COUNT(*) FROM specs WHERE volume_id = ?2)";
        let naa = naa_of(id);
        Ok(self.one(sql, &values![naa.as_str(), id], |row| row.get::<u64>(0))?.unwrap_or(0) > 0)
    }

    /// Keeps a new volume or snapshot under an identity that nobody has had. 409 where somebody has.
    pub(crate) fn insert_volume(&self, new: &VolumeRow) -> Result<(), Abort> {
        let sql = "INSERT INTO identities (naa, volume_id) VALUES (?1, ?2) ON CONFLICT (naa) DO NOTHING";
        let naa = naa_of(new.id);
        if self.run(sql, &values![naa.as_str(), new.id])? == 0 {
            return Err(id_is_taken(new.id).into());
        }
        Ok(self.insert_found_volume(new)?)
    }

    /// Keeps identities that were found: at agents, or of volumes that are rebuilt. Those that are kept already stay as they are.
    pub(crate) fn note_identities(&self, found: &[(Naa, VolumeId)]) -> Result<(), SqlError> {
        for part in found.chunks(NOTED_AT_ONCE) {
            let rows: Vec<_> = (0..part.len()).map(|n| format!("(?{}, ?{})", 2 * n + 1, 2 * n + 2)).collect();
            let sql = format!(
                "INSERT INTO identities (naa, volume_id) VALUES {} ON CONFLICT (naa) DO NOTHING",
                rows.join(", ")
            );
            let values: Vec<Value> = part.iter().flat_map(|(naa, id)| values![naa.as_str(), *id]).collect();
            self.run(&sql, &values)?;
        }
        Ok(())
    }

    /// Another volume of this one's NAA. There is one only if both are older than the rule that there is none.
    pub(crate) fn twin_of(&self, volume: &VolumeRow) -> Result<Option<VolumeId>, SqlError> {
        let naa = volume.naa.clone().unwrap_or_else(|| naa_of(volume.id));
        let sql =
            "SELECT id FROM volumes WHERE naa = ?1 AND id <> ?2 AND snapshot_of IS NULL ORDER BY id LIMIT 1";
        self.one(sql, &values![naa.as_str(), volume.id], |row| row.parsed(0))
    }

    /// All volumes that share an NAA with another one, each with that NAA.
    pub(crate) fn twins(&self) -> Result<Vec<(String, VolumeId)>, SqlError> {
        let sql = "SELECT naa, id FROM volumes WHERE snapshot_of IS NULL AND naa IN (SELECT naa FROM volumes \
                   WHERE snapshot_of IS NULL GROUP BY naa HAVING COUNT(*) > 1) ORDER BY naa, id";
        self.all(sql, &[], |row| Ok((row.get(0)?, row.parsed(1)?)))
    }
}
