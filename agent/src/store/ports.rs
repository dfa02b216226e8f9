//! Relative target port ids of exports.
//!
//! What must never happen here: one id stored for two volumes.

use mooring_model::VolumeId;
use rusqlite::params;

use super::sum::{self, Sql};
use super::{Store, StoreError};

static KEEP: Sql = Sql::new(|| sum::PORT_IDS.insert());

impl Store {
    /// Returns the ids of all volumes that have one.
    pub fn port_ids(&self) -> Result<Vec<(VolumeId, u16)>, StoreError> {
        let read = |conn: &rusqlite::Connection| {
            let mut statement = conn.prepare_cached("SELECT volume_id, port_id FROM port_ids")?;
            let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
            rows.collect::<Result<Vec<(String, u16)>, _>>()
        };
        let rows = self.read(|| "read the relative port ids".to_owned(), read)?;
        let unreadable = || StoreError::Row { what: "the relative port id of a volume".to_owned() };
        rows.into_iter().map(|(volume, id)| Ok((volume.parse().map_err(|_| unreadable())?, id))).collect()
    }

    /// Stores exactly this id of a volume, or none. Takes the id from the volume that had it: the
    /// kernel gives each id to one.
    pub fn keep_port_id(&self, volume: VolumeId, id: Option<u16>) -> Result<(), StoreError> {
        self.write(
            || format!("keep the relative port id of volume {volume}"),
            move |conn| {
                let volume = volume.to_string();
                conn.prepare_cached("DELETE FROM port_ids WHERE volume_id = ?1 OR port_id = ?2")?
                    .execute(params![volume, id])?;
                if let Some(id) = id {
                    conn.prepare_cached(&KEEP)?.execute(params![volume, id])?;
                }
                Ok(())
            },
        )
    }
}
