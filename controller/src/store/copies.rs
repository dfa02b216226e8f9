//! The copy of a volume's persistent reservations, as its storage agent stores them. The text is
//! the agent's own; nothing here reads it.
//!
//! What must never happen here: a text changed.

use mooring_model::VolumeId;

use super::Db;
use super::operations::{KeptOperation, OperationKind};
use super::sql::SqlError;
use super::volumes::VolumeRow;

impl VolumeRow {
    /// The copy; empty if there are no reservations.
    pub(crate) fn reservations_copy(&self) -> &str {
        let copy = self.kept.iter().find_map(|kept| match kept {
            KeptOperation::Reservations(text) => Some(text.as_str()),
            _ => None,
        });
        copy.unwrap_or_default()
    }
}

impl Db<'_> {
    /// Stores the agent's present copy. Does nothing for a volume that is gone.
    pub(crate) fn copy_reservations(&self, id: VolumeId, text: &str) -> Result<(), SqlError> {
        let Some(volume) = self.volume(id)? else { return Ok(()) };
        if volume.reservations_copy() == text {
            return Ok(());
        }
        if text.is_empty() {
            return self.drop_operation(id, OperationKind::Reservations);
        }
        self.keep_operation(id, &KeptOperation::Reservations(text.to_owned()))
    }
}
