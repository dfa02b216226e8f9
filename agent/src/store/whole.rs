//! LVs as LVM showed them when they were whole.
//!
//! What must never happen here: a row that is said of another generation than the one that it was written for.

use mooring_model::{ByteSize, Generation, VolumeId};
use rusqlite::params;

use super::{Store, StoreError};
use crate::volumes::Whole;

/// What is remembered of a volume: for which generation of its wish, and what. `None`: nothing any more.
pub type WholeRow = (VolumeId, Option<(Generation, Whole)>);

impl Store {
    /// What is remembered of all volumes. A row that cannot be read is none: LVM is asked of that volume.
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

    /// Remembers this of these volumes, or nothing any more: all of it in one transaction.
    pub fn keep_whole_lvs(&self, rows: Vec<WholeRow>) -> Result<(), StoreError> {
        let count = rows.len();
        self.write(
            || format!("remember {count} logical volumes"),
            move |conn| {
                let mut forget = conn.prepare_cached("DELETE FROM whole_lvs WHERE volume_id = ?1")?;
                let sql = "INSERT INTO whole_lvs (volume_id, epoch, counter, mapping, size, reverted)
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
                let mut insert = conn.prepare_cached(sql)?;
                for (volume, row) in &rows {
                    let volume = volume.to_string();
                    forget.execute([&volume])?;
                    let Some((Generation { epoch, counter }, whole)) = row else { continue };
                    let reverted = whole.reverted.map(|id| id.to_string());
                    let (epoch, counter) = (epoch.cast_signed(), counter.cast_signed());
                    insert.execute(params![
                        volume,
                        epoch,
                        counter,
                        whole.mapping,
                        whole.size.0.cast_signed(),
                        reverted
                    ])?;
                }
                Ok(())
            },
        )
    }
}
