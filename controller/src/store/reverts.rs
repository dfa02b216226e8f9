//! The revert of a volume that goes on: kept with the hints of its place, as an LV that is to be taken over is.
//!
//! What must never happen here: another hint lost.

use mooring_model::Revert;
use serde_json::{Map, Value, json};

use super::Db;
use super::sql::{SqlError, values};
use super::volumes::VolumeRow;

/// The hint.
const REVERT: &str = "revert";

/// A revert that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptRevert {
    /// To what.
    pub(crate) revert: Revert,
    /// It is not wished any more, for this reason.
    pub(crate) withdrawn: Option<String>,
}

impl VolumeRow {
    /// The revert that goes on.
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
    /// Keeps the revert of a volume that was read in this transaction; `None`: it is over.
    pub(crate) fn keep_revert(&self, volume: &VolumeRow, kept: Option<&KeptRevert>) -> Result<(), SqlError> {
        let text = Value::Object(hints(&volume.hints, kept)).to_string();
        self.run("UPDATE volumes SET hints = ?2 WHERE id = ?1", &values![volume.id, text]).map(drop)
    }
}
