//! The isolation of a volume from its disk.
//!
//! What must never happen here: another time than that at which the isolation was asked for.

use std::time::SystemTime;

use super::operations::{KeptOperation, OperationKind};
use super::sql::SqlError;
use super::volumes::VolumeRow;
use super::{Db, time_of};

impl VolumeRow {
    /// The time since which the volume is to be isolated; `None` if it is not.
    pub(crate) fn isolated_since(&self) -> Option<SystemTime> {
        self.kept.iter().find_map(|kept| match kept {
            KeptOperation::Isolation(since) => Some(*since),
            _ => None,
        })
    }

    /// Notes the isolation that an agent stores, in microseconds since 1970; 0 changes nothing.
    pub(crate) fn note_isolation(&mut self, since_us: i64) {
        if since_us > 0 {
            self.kept.put(KeptOperation::Isolation(time_of(since_us)));
        }
    }
}

impl Db<'_> {
    /// Stores the time since which a volume is to be isolated; `None` if it is not. The volume was
    /// read in this transaction.
    pub(crate) fn keep_isolation(
        &self,
        volume: &VolumeRow,
        since: Option<SystemTime>,
    ) -> Result<(), SqlError> {
        match since {
            Some(since) => self.keep_operation(volume.id, &KeptOperation::Isolation(since)),
            None => self.drop_operation(volume.id, OperationKind::Isolation),
        }
    }
}
