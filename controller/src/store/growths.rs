//! A volume's growth that is to be taken back. Until the agent has reported how the growth ended,
//! the volume counts with the size that it was to have.
//!
//! What must never happen here: a size that the agent may still have, counted as free.

use super::Db;
use super::operations::{KeptOperation, OperationKind};
use super::sql::SqlError;
use super::volumes::VolumeRow;

impl VolumeRow {
    /// Returns `true` if the volume's growth is to be taken back.
    pub(crate) fn growth_is_taken_back(&self) -> bool {
        let taken_back = self.kept.iter().any(|kept| kept.kind() == OperationKind::GrowthTakenBack);
        self.grows_from.is_some() && taken_back
    }

    /// The size in the volume's spec, in GiB.
    pub(crate) fn spec_gib(&self) -> u32 {
        if self.growth_is_taken_back() { self.served_gib() } else { self.size_gib }
    }
}

impl Db<'_> {
    /// Stores whether a volume's growth is to be taken back. The volume was read in this
    /// transaction.
    pub(crate) fn take_growth_back(&self, volume: &VolumeRow, back: bool) -> Result<(), SqlError> {
        if back {
            self.keep_operation(volume.id, &KeptOperation::GrowthTakenBack)
        } else {
            self.drop_operation(volume.id, OperationKind::GrowthTakenBack)
        }
    }
}
