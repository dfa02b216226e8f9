//! The isolation of a volume from its disk, kept with the hints of the volume's place.
//!
//! What must never happen here: another hint lost.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::sql::{SqlError, values};
use super::volumes::VolumeRow;
use super::{Db, micros};

/// The hint's key.
const CUT: &str = "cut";

impl VolumeRow {
    /// The time since which the volume is to be isolated; `None` if it is not.
    pub(crate) fn cut(&self) -> Option<SystemTime> {
        let us = self.hints.get(CUT)?["since_us"].as_u64()?;
        UNIX_EPOCH.checked_add(Duration::from_micros(us))
    }

    /// Notes the isolation that an agent stores, in microseconds since 1970; 0 changes nothing.
    pub(crate) fn note_cut(&mut self, since_us: i64) {
        if since_us > 0 {
            self.hints.insert(CUT.to_owned(), json!({ "since_us": since_us }));
        }
    }
}

impl Db<'_> {
    /// Stores the time since which a volume is to be isolated; `None` if it is not. The volume was
    /// read in this transaction.
    pub(crate) fn keep_cut(&self, volume: &VolumeRow, since: Option<SystemTime>) -> Result<(), SqlError> {
        let mut hints = volume.hints.clone();
        hints.remove(CUT);
        if let Some(since) = since {
            hints.insert(CUT.to_owned(), json!({ "since_us": micros(since) }));
        }
        let text = Value::Object(hints).to_string();
        self.run("UPDATE volumes SET hints = ?2 WHERE id = ?1", &values![volume.id, text]).map(drop)
    }
}
