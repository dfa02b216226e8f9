//! The revert of a volume that is in progress, kept with the hints of the volume's place.
//!
//! What must never happen here: another hint lost.

use mooring_model::Revert;
use serde_json::{Map, Value, json};

use super::Db;
use super::sql::{SqlError, values};
use super::volumes::VolumeRow;

/// The hint's key.
const REVERT: &str = "revert";

/// A revert in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptRevert {
    /// The snapshot to revert to.
    pub(crate) revert: Revert,
    /// The reason why the revert is no longer in the spec; `None` while it is.
    pub(crate) withdrawn: Option<String>,
}

impl VolumeRow {
    /// The revert in progress.
    pub(crate) fn revert(&self) -> Option<KeptRevert> {
        let kept = self.hints.get(REVERT)?;
        let revert = Revert {
            snapshot: kept["snapshot"].as_str()?.parse().ok()?,
            id: kept["id"].as_str()?.parse().ok()?,
        };
        Some(KeptRevert { revert, withdrawn: kept["withdrawn"].as_str().map(str::to_owned) })
    }
}

fn hints(before: &Map<String, Value>, kept: Option<&KeptRevert>) -> Map<String, Value> {
    let mut hints = before.clone();
    hints.remove(REVERT);
    if let Some(kept) = kept {
        let Revert { snapshot, id } = kept.revert;
        let value =
            json!({ "snapshot": snapshot.to_string(), "id": id.to_string(), "withdrawn": kept.withdrawn });
        hints.insert(REVERT.to_owned(), value);
    }
    hints
}

impl Db<'_> {
    /// Stores the revert of a volume that was read in this transaction; `None` if it is over.
    pub(crate) fn keep_revert(&self, volume: &VolumeRow, kept: Option<&KeptRevert>) -> Result<(), SqlError> {
        let text = Value::Object(hints(&volume.hints, kept)).to_string();
        self.run("UPDATE volumes SET hints = ?2 WHERE id = ?1", &values![volume.id, text]).map(drop)
    }
}
