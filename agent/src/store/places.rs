//! Places where volumes were ever granted over Fibre Channel, and the ports of them.
//!
//! What must never happen here: a place that is dropped before a later spec was seen in force.

use std::collections::BTreeSet;

use mooring_model::{FcPort, InitiatorSlot, Lun, VolumeId};
use mooring_targets::fc::Place;
use rusqlite::params;

use super::sum::{self, Sql};
use super::{Store, StoreError, meta, set_meta};

const PORTS: &str = "fc_ports";

static INSERT: Sql = Sql::new(|| sum::FC_PLACES.insert());

impl Store {
    /// Returns the ports that ever served.
    pub fn fc_ports(&self) -> Result<BTreeSet<FcPort>, StoreError> {
        let text = self.read(|| "read the Fibre Channel ports".to_owned(), |conn| meta(conn, PORTS))?;
        let ports = text.as_deref().unwrap_or_default().split_whitespace().map(str::parse);
        ports
            .collect::<Result<_, _>>()
            .map_err(|_| StoreError::Row { what: "the Fibre Channel ports".to_owned() })
    }

    /// Stores the ports.
    pub fn keep_fc_ports(&self, ports: &BTreeSet<FcPort>) -> Result<(), StoreError> {
        let text = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        self.write(|| "keep the Fibre Channel ports".to_owned(), move |conn| set_meta(conn, PORTS, &text))
    }

    /// Returns the places of all volumes.
    pub fn fc_places(&self) -> Result<Vec<(VolumeId, Place)>, StoreError> {
        let read = |conn: &rusqlite::Connection| {
            let sql = "SELECT volume_id, initiator, slot, lun FROM fc_places";
            let mut statement = conn.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(3)?))
            })?;
            rows.collect::<Result<Vec<(String, String, u16, u16)>, _>>()
        };
        let rows = self.read(|| "read the Fibre Channel places".to_owned(), read)?;
        let place = |(volume, initiator, slot, lun): (String, String, u16, u16)| {
            let slot = InitiatorSlot::new(slot)?;
            Some((volume.parse().ok()?, Place { initiator: initiator.parse().ok()?, slot, lun: Lun(lun) }))
        };
        let unreadable = || StoreError::Row { what: "a Fibre Channel place".to_owned() };
        rows.into_iter().map(|row| place(row).ok_or_else(unreadable)).collect()
    }

    /// Replaces the places of a volume by exactly these.
    pub fn keep_fc_places(&self, volume: VolumeId, places: &BTreeSet<Place>) -> Result<(), StoreError> {
        let places = places.clone();
        self.write(
            || format!("keep the Fibre Channel places of volume {volume}"),
            move |conn| {
                let volume = volume.to_string();
                conn.prepare_cached("DELETE FROM fc_places WHERE volume_id = ?1")?.execute([&volume])?;
                let mut insert = conn.prepare_cached(&INSERT)?;
                for place in &places {
                    let initiator = place.initiator.to_string();
                    insert.execute(params![volume, place.slot.get(), place.lun.0, initiator])?;
                }
                Ok(())
            },
        )
    }
}
