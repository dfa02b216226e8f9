//! A volume's growth that is to be taken back, kept with the hints of the volume's place. Until the
//! agent has reported how the growth ended, the volume counts with the size that it was to have.
//!
//! What must never happen here: another hint lost.

use serde_json::{Value, json};

use super::Db;
use super::sql::{SqlError, values};
use super::volumes::VolumeRow;

/// The hint's key.
const TAKEN_BACK: &str = "growth_taken_back";

impl VolumeRow {
    /// Returns `true` if the volume's growth is to be taken back.
    pub(crate) fn growth_is_taken_back(&self) -> bool {
        self.grows_from.is_some() && self.hints.contains_key(TAKEN_BACK)
    }

    /// The size in the volume's spec, in GiB.
    pub(crate) fn wished_gib(&self) -> u32 {
        if self.growth_is_taken_back() { self.served_gib() } else { self.size_gib }
    }
}

impl Db<'_> {
    /// Stores whether a volume's growth is to be taken back. The volume was read in this
    /// transaction.
    pub(crate) fn take_growth_back(&self, volume: &VolumeRow, back: bool) -> Result<(), SqlError> {
        let mut hints = volume.hints.clone();
        hints.remove(TAKEN_BACK);
        if back {
            hints.insert(TAKEN_BACK.to_owned(), json!(true));
        }
        let text = Value::Object(hints).to_string();
        self.run("UPDATE volumes SET hints = ?2 WHERE id = ?1", &values![volume.id, text]).map(drop)
    }
}
