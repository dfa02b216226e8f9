//! Identities on the wire: the NAA of each volume, and all ids that ever were a volume's.
//!
//! An NAA is made of the first 25 hex digits of an id. A host that meets two disks with one NAA
//! takes them for two paths to one disk.
//!
//! What must never happen here: an NAA that two new volumes get; an id forgotten that an agent may
//! still have data under.

use mooring_model::{Generation, Naa, VolumeId};

use super::sql::{SqlError, Value, values};
use super::volumes::VolumeRow;
use super::{Abort, Db};
use crate::error::Refusal;

/// The number of identities that one statement stores.
const NOTED_AT_ONCE: usize = 100;

/// The NAA of a volume whose export was not adopted.
pub(crate) fn naa_of(id: VolumeId) -> Naa {
    Naa::of_serial(&id.to_string())
}

/// The refusal of a chosen id that is taken. It is equal in all cases, and so reveals nothing about
/// the volume that has the id.
pub(crate) fn id_is_taken(id: VolumeId) -> Refusal {
    Refusal::Conflict(format!("the id {id} is in use, or was once: choose another"))
}

impl Db<'_> {
    /// Returns `true` if this id, or another with its NAA, ever was a volume's or a snapshot's,
    /// here or at an agent.
    pub(crate) fn is_known_id(&self, id: VolumeId) -> Result<bool, SqlError> {
        // The specs count too: controllers of earlier releases store no identities.
        let sql = "SELECT (SELECT COUNT(*) FROM identities WHERE naa = ?1) + \
                   (SELECT COUNT(*) FROM volumes WHERE id = ?2 OR naa = ?1) + \
                   (SELECT COUNT(*) FROM specs WHERE volume_id = ?2)";
        let naa = naa_of(id);
        Ok(self.one(sql, &values![naa.as_str(), id], |row| row.get::<u64>(0))?.unwrap_or(0) > 0)
    }

    /// Stores a new volume or snapshot under an unused identity. Refuses with 409 if the identity
    /// is taken.
    pub(crate) fn insert_volume(&self, new: &VolumeRow) -> Result<(), Abort> {
        let sql = "INSERT INTO identities (naa, volume_id) VALUES (?1, ?2) ON CONFLICT (naa) DO NOTHING";
        let naa = naa_of(new.id);
        if self.run(sql, &values![naa.as_str(), new.id])? == 0 {
            return Err(id_is_taken(new.id).into());
        }
        Ok(self.insert_found_volume(new)?)
    }

    /// Keeps the newest generation of an id whose specs are deleted.
    pub(super) fn keep_generation(&self, id: VolumeId, newest: Generation) -> Result<(), SqlError> {
        let sql = "INSERT INTO identities (naa, volume_id, epoch, counter) VALUES (?1, ?2, ?3, ?4) \
                   ON CONFLICT (naa) DO UPDATE SET epoch = excluded.epoch, counter = excluded.counter WHERE \
                   (COALESCE(identities.epoch, 0), COALESCE(identities.counter, 0)) < (excluded.epoch, excluded.counter)";
        let naa = naa_of(id);
        self.run(sql, &values![naa.as_str(), id, newest.epoch, newest.counter]).map(drop)
    }

    /// The newest generation of an id whose specs were deleted; zero if none were.
    pub(super) fn pruned_generation(&self, id: VolumeId) -> Result<Generation, SqlError> {
        let sql = "SELECT epoch, counter FROM identities WHERE naa = ?1 AND epoch IS NOT NULL";
        let naa = naa_of(id);
        let found = self.one(sql, &values![naa.as_str()], |row| row.generation(0, 1))?;
        Ok(found.unwrap_or(Generation::ZERO))
    }

    /// Stores identities that were found at agents, or that rebuilt volumes have. Stored ones stay
    /// unchanged.
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

    /// Another volume with this volume's NAA. Such a pair exists only if both are older than the
    /// rule against it.
    pub(crate) fn twin_of(&self, volume: &VolumeRow) -> Result<Option<VolumeId>, SqlError> {
        let naa = volume.naa.clone().unwrap_or_else(|| naa_of(volume.id));
        let sql =
            "SELECT id FROM volumes WHERE naa = ?1 AND id <> ?2 AND snapshot_of IS NULL ORDER BY id LIMIT 1";
        self.one(sql, &values![naa.as_str(), volume.id], |row| row.parsed(0))
    }

    /// All volumes that share an NAA with another volume, each with that NAA.
    pub(crate) fn twins(&self) -> Result<Vec<(String, VolumeId)>, SqlError> {
        let sql = "SELECT naa, id FROM volumes WHERE snapshot_of IS NULL AND naa IN (SELECT naa FROM volumes \
                   WHERE snapshot_of IS NULL GROUP BY naa HAVING COUNT(*) > 1) ORDER BY naa, id";
        self.all(sql, &[], |row| Ok((row.get(0)?, row.parsed(1)?)))
    }
}
