//! Exports of volumes to files of their storage nodes.
//!
//! What must never happen here: a rule.

use mooring_model::{ImageSource, UploadId};

/// What is asked about the export of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportAsk {
    /// It is to begin.
    Begin {
        /// Its id: a request that is repeated with the same one begins nothing twice.
        id: Option<UploadId>,
        /// The file, in the folder of images of the volume's storage node, and what it becomes.
        image: ImageSource,
    },
    /// It is to end, and its file not to be.
    Cancel,
    /// How it stands.
    Look,
}

/// The last export of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeExport {
    /// Which one.
    pub id: UploadId,
    /// The file.
    pub image: ImageSource,
    /// The storage node, as the configuration calls it.
    pub host: Option<String>,
    /// Where it stands.
    pub state: ExportState,
    /// Why it did not come to be.
    pub why: Option<String>,
}

/// Where an export stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportState {
    /// It goes on.
    Exporting,
    /// It is being ended.
    Ending,
    /// The file is there, whole.
    Done,
    /// It could not be done: nothing is left of it.
    Failed,
    /// It was ended by request.
    Cancelled,
}

impl ExportState {
    /// The API's word.
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
