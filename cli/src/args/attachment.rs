//! Arguments of `attachment`.

use clap::Args;
use mooring_model::{AttachmentId, Cache, Mode};

use crate::volume_ref::VolumeRef;

/// `attachment list`.
#[derive(Debug, Args)]
pub struct AttachmentListArgs {
    /// Only attachments of this volume: its id, or its name where that is unique
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
    /// With ro: return once no write that was in flight can land any more
    #[arg(long)]
    pub barrier: bool,
}

/// The line of `attachment check` in the list of commands.
pub(super) const CHECK: &str = "Check now who uses an attachment's disk on its host, and how";

/// The long help of `attachment check`.
pub(super) const CHECK_MORE: &str = "\
The host's agent checks all processes (open with O_DIRECT, open without, mapped), file systems
mounted from the disk in any mount namespace, swap areas, and devices on top (dm, md, loop, LIO)
with their own users. It lists the parts that it cannot check: they may hide users.

With the cache off two uses are problems: buffered_io (a program reads or writes through the page
cache: it may see old blocks) and unshared_filesystem (ext4, xfs, btrfs, swap: only one host can use
them; GFS2 and OCFS2 are made for sharing). The agent also checks by itself once a minute and after
changes, and shows the problems at the attachment.

Exit code 1: there are problems.

Examples:
  mooring attachment check b0c1d2e3-0001-4002-8003-0000000000aa
  mooring attachment check b0c1d2e3-0001-4002-8003-0000000000aa --json | jq '.check.users'";

/// `attachment check`.
#[derive(Debug, Args)]
pub struct AttachmentCheckArgs {
    /// The attachment's id
    #[arg(value_name = "ATTACHMENT")]
    pub id: AttachmentId,
}

/// `attachment cache`.
#[derive(Debug, Args)]
pub struct AttachmentCacheArgs {
    /// The attachment's id
    #[arg(value_name = "ATTACHMENT")]
    pub id: AttachmentId,
    /// off: drop the page cache at each attach and detach, and never read ahead; on: Linux's
    /// default
    #[arg(value_name = "on|off")]
    pub cache: Cache,
}
