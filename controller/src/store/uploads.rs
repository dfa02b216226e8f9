//! The last image export of a volume, kept with the hints of its place. A finished one stays there,
//! so that its result can be queried.
//!
//! What must never happen here: another hint lost.

use mooring_model::{ImageSource, Upload};
use serde_json::{Map, Value, json};

use super::Db;
use super::sql::{SqlError, values};
use super::volumes::VolumeRow;

/// The hint's key.
const UPLOAD: &str = "upload";

/// An image export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptUpload {
    /// The destination.
    pub(crate) upload: Upload,
    /// The reason why the export is no longer in the spec; `None` while it is.
    pub(crate) withdrawn: Option<String>,
    /// `true` if a user cancelled the export.
    pub(crate) cancelled: bool,
    /// `true` if the export is over, and nothing of it is in the spec.
    pub(crate) ended: bool,
}

impl VolumeRow {
    /// The last image export, in progress or over.
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
    /// Stores the image export of a volume that was read in this transaction.
    pub(crate) fn keep_upload(&self, volume: &VolumeRow, kept: &KeptUpload) -> Result<(), SqlError> {
        let text = Value::Object(hints(&volume.hints, kept)).to_string();
        self.run("UPDATE volumes SET hints = ?2 WHERE id = ?1", &values![volume.id, text]).map(drop)
    }
}
