//! `attachment`: which one, and what it is to be.

use clap::Args;
use mooring_model::{AttachmentId, Cache, Mode};

use crate::select::VolumeRef;

/// `attachment list`.
#[derive(Debug, Args)]
pub struct AttachmentListArgs {
    /// Of one volume only: its id, or its name where that is unique
    pub volume: Option<VolumeRef>,
}

/// `attachment show`.
#[derive(Debug, Args)]
pub struct AttachmentShowArgs {
    /// The attachment's id
    #[arg(value_name = "ATTACHMENT")]
    pub id: AttachmentId,
}

/// `attachment mode`.
#[derive(Debug, Args)]
pub struct AttachmentModeArgs {
    /// The attachment's id
    #[arg(value_name = "ATTACHMENT")]
    pub id: AttachmentId,
    /// rw: reads and writes; ro: reads only, enforced by the target
    #[arg(value_name = "rw|ro")]
    pub mode: Mode,
    /// With ro: return when nothing that was in flight lands any more
    #[arg(long)]
    pub barrier: bool,
}

/// `attachment cache`.
#[derive(Debug, Args)]
pub struct AttachmentCacheArgs {
    /// The attachment's id
    #[arg(value_name = "ATTACHMENT")]
    pub id: AttachmentId,
    /// off: drop the page cache at each attach and detach, and never read ahead; on: as Linux does it
    #[arg(value_name = "on|off")]
    pub cache: Cache,
}
