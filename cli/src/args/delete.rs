//! Arguments of `mooring volume delete`.
//!
//! What must never happen here: a default that ends work which a user waits for.

use clap::Args;

use crate::select::VolumeRef;

pub(super) const HELP: &str = "\
A volume that is attached, or granted to anybody, is not deleted: detach it (on an agent: revoke
its grants) first. Deleting what is gone already succeeds.

--force also takes a volume that is being made, imported, copied to a file or made larger: that ends,
and the volume is wiped and deleted. It is for administrators; an agent takes such a volume without it.

Examples:
  mooring volume delete data
  mooring volume delete b0c1d2e3-0001-4002-8003-00000000000a --timeout 300
  mooring volume delete data --force";

/// `volume delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// Whatever its status is: what is at work for it ends
    #[arg(long)]
    pub force: bool,
}
