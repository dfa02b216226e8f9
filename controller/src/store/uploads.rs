//! The last image export of a volume. A finished one stays, so that its result can be queried.
//!
//! What must never happen here: an export that is over and counts as one in progress.

use mooring_model::{ImageSource, Upload};
use serde_json::{Value, json};

use super::Db;
use super::operations::KeptOperation;
use super::sql::SqlError;
use super::volumes::VolumeRow;

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

impl KeptUpload {
    /// The export as JSON.
    pub(super) fn payload(&self) -> Value {
        let Upload { image, id } = &self.upload;
        json!({
            "id": id.to_string(), "name": image.name.as_str(), "format": image.format.as_str(),
            "withdrawn": self.withdrawn, "cancelled": self.cancelled, "ended": self.ended,
        })
    }

    /// Reads JSON; `None` if it is no export.
    pub(super) fn read(payload: &Value) -> Option<Self> {
        let text = |key: &str| payload[key].as_str();
        let image = ImageSource { name: text("name")?.parse().ok()?, format: text("format")?.parse().ok()? };
        Some(Self {
            upload: Upload { image, id: text("id")?.parse().ok()? },
            withdrawn: text("withdrawn").map(str::to_owned),
            cancelled: payload["cancelled"] == true,
            ended: payload["ended"] == true,
        })
    }
}

impl VolumeRow {
    /// The last image export, in progress or over.
    pub(crate) fn upload(&self) -> Option<KeptUpload> {
        self.kept.iter().find_map(|kept| match kept {
            KeptOperation::Upload(upload) => Some(upload.clone()),
            _ => None,
        })
    }
}

impl Db<'_> {
    /// Stores the image export of a volume that was read in this transaction.
    pub(crate) fn keep_upload(&self, volume: &VolumeRow, kept: &KeptUpload) -> Result<(), SqlError> {
        self.keep_operation(volume.id, &KeptOperation::Upload(kept.clone()))
    }
}
