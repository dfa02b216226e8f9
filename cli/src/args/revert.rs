//! Arguments of `mooring volume revert`.
//!
//! What must never happen here: a secret as an argument.

use clap::Args;

use crate::volume_ref::VolumeRef;

/// `volume revert`.
#[derive(Debug, Args)]
pub struct RevertArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The volume's newest snapshot: its id, or its name where that is unique
    #[arg(long, value_name = "SNAPSHOT")]
    pub to: VolumeRef,
}
