//! Arguments of `mooring volume cut`.
//!
//! What must never happen here: a default that gives hosts errors although no user asked for it.

use clap::Args;

use crate::volume_ref::VolumeRef;

/// `volume cut`.
#[derive(Debug, Args)]
pub struct CutArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// Isolate the volume also while hosts are attached: their reads and writes fail
    #[arg(long)]
    pub force: bool,
}
