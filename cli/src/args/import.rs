//! Arguments of `mooring volume import`.
//!
//! What must never happen here: a format that is guessed from a file's name.

use clap::Args;
use mooring_model::{ByteSize, ImageFormat, ImageName};

use crate::select::VolumeName;

/// `volume import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A name for people
    pub name: VolumeName,
    /// The file in the storage node's folder of images: its name, no path
    #[arg(long, value_name = "FILE")]
    pub image: ImageName,
    /// What the file is: raw or qcow2. It is never guessed
    #[arg(long)]
    pub format: ImageFormat,
    /// The storage node that has it, as `mooring host list` calls it
    #[arg(long)]
    pub host: String,
    /// The volume's size, in whole GiB: no less than the image's disk
    #[arg(long)]
    pub size: ByteSize,
    /// The volume type: its name or id
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
}
