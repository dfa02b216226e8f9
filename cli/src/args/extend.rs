//! Arguments of `mooring volume extend`.
//!
//! What must never happen here: a size that is less than what was asked for.

use clap::Args;
use mooring_model::ByteSize;

use super::volume_size;
use crate::volume_ref::VolumeRef;

pub(super) const HELP: &str = "\
The added space is zeroed first; then every host that Mooring has attached sees the new size by
itself. Other clients must read the disk's size again, and each host's user grows what lies on the
disk (a file system). A volume never shrinks. Extending to the present size succeeds.

--cancel ends an extend that is still being zeroed, or has stopped: the volume keeps its old size.
A volume that has grown already stays as large as it is, and the command says so (exit code 4).

Examples:
  mooring volume extend data --size 20GiB
  mooring volume extend data --size 2TiB --timeout 3600
  mooring volume extend data --cancel";

/// `volume extend`.
#[derive(Debug, Args)]
pub struct ExtendArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The new size, for example 20GiB (units B, KiB, MiB, GiB, TiB)
    #[arg(
        long,
        value_parser = volume_size,
        allow_hyphen_values = true,
        required_unless_present = "cancel",
        conflicts_with = "cancel"
    )]
    pub size: Option<ByteSize>,
    /// Cancel an extend that is not complete yet
    #[arg(long)]
    pub cancel: bool,
}
