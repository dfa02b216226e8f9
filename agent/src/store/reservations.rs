//! Persistent reservations that survive a loss of power.
//!
//! What must never happen here: a row that cannot be read and counts as none.

use mooring_model::VolumeId;
use mooring_targets::reservations::{Kept, format_kept, parse_kept};

use super::sum::{self, Sql};
use super::{Store, StoreError};

static KEEP: Sql = Sql::new(|| {
    let insert = sum::RESERVATIONS.insert();
    format!("{insert} ON CONFLICT (volume_id) DO UPDATE SET kept = excluded.kept, sum = excluded.sum")
});

impl Store {
    /// Returns the registrations of all volumes that have some.
    pub fn reservations(&self) -> Result<Vec<(VolumeId, Vec<Kept>)>, StoreError> {
        let read = |conn: &rusqlite::Connection| {
            let mut statement = conn.prepare_cached("SELECT volume_id, kept FROM reservations")?;
            let rows =
                statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        let rows = self.read(|| "read the persistent reservations".to_owned(), read)?;
        let row = |(volume, kept): (String, String)| Some((volume.parse().ok()?, parse_kept(&kept)?));
        let unreadable = || StoreError::Row { what: "the persistent reservations of a volume".to_owned() };
        rows.into_iter().map(|found| row(found).ok_or_else(unreadable)).collect()
    }

    /// Replaces the registrations of a volume by exactly these.
    pub fn keep_reservations(&self, volume: VolumeId, kept: &[Kept]) -> Result<(), StoreError> {
        let kept = format_kept(kept);
        self.write(
            || format!("keep the persistent reservations of volume {volume}"),
            move |conn| {
                let volume = volume.to_string();
                if kept.is_empty() {
                    return conn
                        .prepare_cached("DELETE FROM reservations WHERE volume_id = ?1")?
                        .execute([&volume])
                        .map(drop);
                }
                conn.prepare_cached(&KEEP)?.execute([&volume, &kept]).map(drop)
            },
        )
    }
}
