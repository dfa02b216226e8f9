//! Arguments of `volume create`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use mooring_model::{ByteSize, VgName, VolumeId};

use super::volume_size;
use crate::volume_ref::{VolumeName, VolumeRef};

/// `volume create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// A name for people; no two volumes share it
    pub name: VolumeName,
    /// The size, for example 10GiB (units B, KiB, MiB, GiB, TiB); without it the size of the source
    #[arg(long, value_parser = volume_size, allow_hyphen_values = true, required_unless_present_any = ["snapshot", "from"])]
    pub size: Option<ByteSize>,
    /// Create it from this snapshot: its id, or its name where that is unique (controller)
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "from")]
    pub snapshot: Option<VolumeRef>,
    /// Create it from the present content of this volume: its id, or its name where that is unique
    /// (controller)
    #[arg(long, value_name = "VOLUME")]
    pub from: Option<VolumeRef>,
    /// The volume's type, by name or id; without it the source's type, or the controller's default
    #[arg(long = "type", value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub kind: Option<String>,
    /// The volume group (with --agent); needed only where the agent has several
    #[arg(long, value_name = "VG")]
    pub group: Option<VgName>,
    /// The volume's id, never used before; without it a new one (controller: for admins)
    #[arg(long, value_name = "UUID")]
    pub id: Option<VolumeId>,
    /// A key of your own for this request, 1 to 64 characters: a repetition with the key finds the
    /// same volume (controller)
    #[arg(long, value_name = "KEY", value_parser = request_key, conflicts_with_all = ["id", "group"])]
    pub request_key: Option<String>,
}

fn request_key(text: &str) -> Result<String, String> {
    match text.chars().count() {
        1..=64 => Ok(text.to_owned()),
        count => Err(format!("{count} characters: want 1 to 64")),
    }
}
