//! The copy of a volume's persistent reservations, as its storage agent keeps them: with the hints of its place, as a revert is.
//! The agent's own text, which nobody here reads.
//!
//! What must never happen here: another hint lost.

use mooring_model::VolumeId;
use serde_json::Value;

use super::Db;
use super::sql::{SqlError, values};
use super::volumes::VolumeRow;

/// The hint.
const COPY: &str = "reservations";

impl VolumeRow {
    /// The copy; empty: there is nothing to keep.
    pub(crate) fn reservations_copy(&self) -> &str {
        self.hints.get(COPY).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Db<'_> {
    /// Keeps what the agent keeps now. A volume that is gone has nothing.
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
