//! Complete LVs as LVM showed them, and the fact that a volume was made. The first helps a start,
//! and holds for one generation of a volume's spec. The second stays as long as the volume, and
//! keeps its LV from being recreated.
//!
//! What must never happen here: a row that is used for another generation than the one that it was
//! written for; a volume that counts as made by its LV for a spec that has ended since.

use mooring_model::{ByteSize, Generation, VolumeId};
use rusqlite::{Connection, params};

use super::sum::{self, Sql};
use super::{Store, StoreError};
use crate::lvm::Whole;

/// Memory of a volume's LV, with the generation of its spec. `None`: there is none any more.
pub type WholeRow = (VolumeId, Option<(Generation, Whole)>);

static REMEMBER: Sql = Sql::new(|| sum::WHOLE_LVS.insert());

static MADE: Sql = Sql::new(|| {
    let set = sum::SPECS.set(&[("made", "1")]);
    format!(
        "UPDATE specs SET {set} \
         WHERE volume_id = ?1 AND kind = 'volume' AND tombstone = 0 AND epoch = ?2 AND counter = ?3"
    )
});

impl Store {
    /// Returns the memory of all volumes. Leaves out a row that cannot be read: then LVM is asked
    /// about that volume.
    pub fn whole_lvs(&self) -> Result<Vec<(VolumeId, Generation, Whole)>, StoreError> {
        let read = |conn: &rusqlite::Connection| {
            let sql = "SELECT volume_id, epoch, counter, mapping, size, reverted FROM whole_lvs";
            let mut statement = conn.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| {
                let generation = Generation {
                    epoch: row.get::<_, i64>(1)?.cast_unsigned(),
                    counter: row.get::<_, i64>(2)?.cast_unsigned(),
                };
                let size = ByteSize(row.get::<_, i64>(4)?.cast_unsigned());
                Ok((row.get(0)?, generation, row.get(3)?, size, row.get(5)?))
            })?;
            rows.collect::<Result<Vec<(String, _, String, _, Option<String>)>, _>>()
        };
        let rows = self.read(|| "read what is remembered of logical volumes".to_owned(), read)?;
        let parsed = rows.into_iter().filter_map(|(volume, generation, mapping, size, reverted)| {
            let reverted = reverted.map(|id| id.parse()).transpose().ok()?;
            Some((volume.parse().ok()?, generation, Whole { mapping, size, reverted }))
        });
        Ok(parsed.collect())
    }

    /// Stores or removes the memory of these volumes, all in one transaction.
    pub fn keep_whole_lvs(&self, rows: Vec<WholeRow>) -> Result<(), StoreError> {
        let count = rows.len();
        self.write(|| format!("remember {count} logical volumes"), move |conn| write_whole(conn, &rows))
    }

    /// Records that these volumes were made, and stores their memory, all in one transaction.
    /// Returns the volumes whose spec still has the given generation.
    ///
    /// Each volume comes with the generation of the spec that its LV was complete for. Nothing is
    /// stored for the others.
    pub fn keep_made(
        &self,
        made: &[(VolumeId, Generation)],
        rows: Vec<WholeRow>,
    ) -> Result<Vec<VolumeId>, StoreError> {
        let op = || match made {
            [(volume, _)] => format!("keep that volume {volume} was made"),
            _ => format!("keep that {} volumes were made", made.len()),
        };
        let of = made.to_vec();
        self.write(op, move |conn| {
            let mut update = conn.prepare_cached(&MADE)?;
            let mut kept = Vec::with_capacity(of.len());
            for (volume, Generation { epoch, counter }) in &of {
                let row = params![volume.to_string(), epoch.cast_signed(), counter.cast_signed()];
                if update.execute(row)? > 0 {
                    kept.push(*volume);
                }
            }
            write_whole(conn, &rows)?;
            Ok(kept)
        })
    }
}

fn write_whole(conn: &Connection, rows: &[WholeRow]) -> rusqlite::Result<()> {
    let mut forget = conn.prepare_cached("DELETE FROM whole_lvs WHERE volume_id = ?1")?;
    let mut insert = conn.prepare_cached(&REMEMBER)?;
    for (volume, row) in rows {
        let volume = volume.to_string();
        forget.execute([&volume])?;
        let Some((Generation { epoch, counter }, whole)) = row else { continue };
        let reverted = whole.reverted.map(|id| id.to_string());
        let (epoch, counter) = (epoch.cast_signed(), counter.cast_signed());
        let size = whole.size.0.cast_signed();
        insert.execute(params![volume, epoch, counter, whole.mapping, size, reverted])?;
    }
    Ok(())
}
