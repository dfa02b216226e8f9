//! Image exports: copies of volumes to files of their storage nodes.
//!
//! What must never happen here: a rule.

use mooring_model::{ImageSource, UploadId};

/// A request about the image export of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportAsk {
    /// Begin an export.
    Begin {
        /// The export's id: a repeated request with this id begins nothing twice.
        id: Option<UploadId>,
        /// The file in the image folder of the volume's storage node, and its format.
        image: ImageSource,
    },
    /// Cancel the export, and leave no file.
    Cancel,
    /// Show its state.
    Look,
}

/// The last image export of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeExport {
    /// The export's id.
    pub id: UploadId,
    /// The file.
    pub image: ImageSource,
    /// The storage node's name in the configuration.
    pub host: Option<String>,
    /// The export's state.
    pub state: ExportState,
    /// The reason why there is no file.
    pub why: Option<String>,
}

/// The state of an image export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportState {
    /// The export is in progress.
    Exporting,
    /// The export is being cancelled.
    Ending,
    /// The file is there and complete.
    Done,
    /// The export failed, and left nothing behind.
    Failed,
    /// The export was cancelled by request.
    Cancelled,
}

impl ExportState {
    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exporting => "exporting",
            Self::Ending => "ending",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}
