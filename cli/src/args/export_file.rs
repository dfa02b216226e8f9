//! Arguments of `mooring volume export`.
//!
//! What must never happen here: a format that is guessed from a file's name.

use clap::Args;
use mooring_model::{ImageFormat, ImageName};

use crate::select::VolumeRef;

/// `volume export`.
#[derive(Debug, Args)]
pub struct VolumeExportArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The new file in the storage node's folder of images: its name, no path
    #[arg(long, value_name = "FILE", required_unless_present = "cancel", conflicts_with = "cancel")]
    pub image: Option<ImageName>,
    /// What the file becomes: raw or qcow2
    #[arg(long, required_unless_present = "cancel", conflicts_with = "cancel")]
    pub format: Option<ImageFormat>,
    /// End the export that goes on: no file comes of it
    #[arg(long)]
    pub cancel: bool,
}
