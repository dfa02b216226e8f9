//! Arguments of `mooring volume export`.
//!
//! What must never happen here: a format that is guessed from a file's name.

use clap::Args;
use mooring_model::{ImageFormat, ImageName};

use crate::volume_ref::VolumeRef;

/// `volume export`.
#[derive(Debug, Args)]
pub struct VolumeExportArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The new file in the storage node's image folder: its name, not a path
    #[arg(long, value_name = "FILE", required_unless_present = "cancel", conflicts_with = "cancel")]
    pub image: Option<ImageName>,
    /// Format of the file: raw or qcow2
    #[arg(long, required_unless_present = "cancel", conflicts_with = "cancel")]
    pub format: Option<ImageFormat>,
    /// Stop the export that is at work; it leaves no file
    #[arg(long)]
    pub cancel: bool,
}
