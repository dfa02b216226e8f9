//! Arguments of `mooring volume rotate-secrets`.
//!
//! What must never happen here: a secret as an argument; a default that shuts a client out although
//! no user asked for it.

use clap::Args;
use mooring_model::AttachmentId;

use crate::volume_ref::VolumeRef;

/// `volume rotate-secrets`.
#[derive(Debug, Args)]
pub struct RotateArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// Only this attachment, and those that share its session; without it all of the volume
    #[arg(long, value_name = "ID")]
    pub attachment: Option<AttachmentId>,
    /// Include clients that log in by themselves: they have the old secret until they get the new
    /// one
    #[arg(long)]
    pub force: bool,
}
