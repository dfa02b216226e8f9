//! The revert of a volume that is in progress.
//!
//! What must never happen here: a revert that is over and is found again.

use mooring_model::Revert;
use serde_json::{Value, json};

use super::Db;
use super::operations::{KeptOperation, OperationKind};
use super::sql::SqlError;
use super::volumes::VolumeRow;

/// A revert in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptRevert {
    /// The snapshot to revert to.
    pub(crate) revert: Revert,
    /// The reason why the revert is no longer in the spec; `None` while it is.
    pub(crate) withdrawn: Option<String>,
}

impl KeptRevert {
    /// The revert as JSON.
    pub(super) fn payload(&self) -> Value {
        let Revert { snapshot, id } = self.revert;
        json!({ "snapshot": snapshot.to_string(), "id": id.to_string(), "withdrawn": self.withdrawn })
    }

    /// Reads JSON; `None` if it is no revert.
    pub(super) fn read(payload: &Value) -> Option<Self> {
        let revert = Revert {
            snapshot: payload["snapshot"].as_str()?.parse().ok()?,
            id: payload["id"].as_str()?.parse().ok()?,
        };
        Some(Self { revert, withdrawn: payload["withdrawn"].as_str().map(str::to_owned) })
    }
}

impl VolumeRow {
    /// The revert in progress.
    pub(crate) fn revert(&self) -> Option<KeptRevert> {
        self.kept.iter().find_map(|kept| match kept {
            KeptOperation::Revert(revert) => Some(revert.clone()),
            _ => None,
        })
    }
}

impl Db<'_> {
    /// Stores the revert of a volume that was read in this transaction; `None` if it is over.
    pub(crate) fn keep_revert(&self, volume: &VolumeRow, kept: Option<&KeptRevert>) -> Result<(), SqlError> {
        match kept {
            Some(kept) => self.keep_operation(volume.id, &KeptOperation::Revert(kept.clone())),
            None => self.drop_operation(volume.id, OperationKind::Revert),
        }
    }
}
