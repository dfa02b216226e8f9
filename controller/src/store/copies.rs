//! The copy of a volume's persistent reservations, as its storage agent stores them, kept with the
//! hints of the volume's place. The text is the agent's own; nothing here reads it.
//!
//! What must never happen here: another hint lost.

use mooring_model::VolumeId;
use serde_json::Value;

use super::Db;
use super::sql::{SqlError, values};
use super::volumes::VolumeRow;

/// The hint's key.
const COPY: &str = "reservations";

impl VolumeRow {
    /// The copy; empty if there are no reservations.
    pub(crate) fn reservations_copy(&self) -> &str {
        self.hints.get(COPY).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Db<'_> {
    /// Stores the agent's present copy. Does nothing for a volume that is gone.
    pub(crate) fn copy_reservations(&self, id: VolumeId, text: &str) -> Result<(), SqlError> {
        let Some(mut volume) = self.volume(id)? else { return Ok(()) };
        if volume.reservations_copy() == text {
            return Ok(());
        }
        volume.hints.remove(COPY);
        if !text.is_empty() {
            volume.hints.insert(COPY.to_owned(), Value::from(text));
        }
        let hints = Value::Object(volume.hints).to_string();
        self.run("UPDATE volumes SET hints = ?2 WHERE id = ?1", &values![id, hints]).map(drop)
    }
}
