//! The last export of a volume to a file: kept with the hints of its place, as a revert is; it stays there when it is over, for
//! whoever asks how it ended.
//!
//! What must never happen here: another hint lost.

use mooring_model::{ImageSource, Upload};
use serde_json::{Map, Value, json};

use super::Db;
use super::sql::{SqlError, values};
use super::volumes::VolumeRow;

/// The hint.
const UPLOAD: &str = "upload";

/// An export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptUpload {
    /// To what.
    pub(crate) upload: Upload,
    /// It is not wished any more, for this reason.
    pub(crate) withdrawn: Option<String>,
    /// Somebody asked for that.
    pub(crate) cancelled: bool,
    /// It is over, and nothing is wished of it.
    pub(crate) ended: bool,
}

impl VolumeRow {
    /// The last export, whether it goes on or is over.
    pub(crate) fn upload(&self) -> Option<KeptUpload> {
        let kept = self.hints.get(UPLOAD)?;
        let text = |key: &str| kept[key].as_str();
        let image = ImageSource { name: text("name")?.parse().ok()?, format: text("format")?.parse().ok()? };
        Some(KeptUpload {
            upload: Upload { image, id: text("id")?.parse().ok()? },
            withdrawn: text("withdrawn").map(str::to_owned),
            cancelled: kept["cancelled"] == true,
            ended: kept["ended"] == true,
        })
    }
}

fn hints(before: &Map<String, Value>, kept: &KeptUpload) -> Map<String, Value> {
    let Upload { image, id } = &kept.upload;
    let value = json!({
        "id": id.to_string(), "name": image.name.as_str(), "format": image.format.as_str(),
        "withdrawn": kept.withdrawn, "cancelled": kept.cancelled, "ended": kept.ended,
    });
    let mut hints = before.clone();
    hints.insert(UPLOAD.to_owned(), value);
    hints
}

impl Db<'_> {
    /// Keeps the export of a volume that was read in this transaction.
    pub(crate) fn keep_upload(&self, volume: &VolumeRow, kept: &KeptUpload) -> Result<(), SqlError> {
        let text = Value::Object(hints(&volume.hints, kept)).to_string();
        self.run("UPDATE volumes SET hints = ?2 WHERE id = ?1", &values![volume.id, text]).map(drop)
    }
}
