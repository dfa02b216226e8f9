//! Arguments of `mooring volume import`.
//!
//! What must never happen here: a format that is guessed from a file's name.

use clap::Args;
use mooring_model::{ByteSize, ImageFormat, ImageName};

use crate::volume_ref::VolumeName;

/// `volume import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A name for people
    pub name: VolumeName,
    /// The file in the storage node's image folder: its name, not a path
    #[arg(long, value_name = "FILE")]
    pub image: ImageName,
    /// Format of the file: raw or qcow2. It is never guessed
    #[arg(long)]
    pub format: ImageFormat,
    /// The storage node that has it, as named by `mooring host list`
    #[arg(long)]
    pub host: String,
    /// The volume's size, in whole GiB: at least that of the image's disk
    #[arg(long)]
    pub size: ByteSize,
    /// The volume type: its name or id
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
}
