//! Arguments of `mooring volume delete`.
//!
//! What must never happen here: a default that ends work which a user waits for.

use clap::Args;

use crate::volume_ref::VolumeRef;

pub(super) const HELP: &str = "\
Refused while the volume is attached or granted: detach it (on an agent: revoke its grants) first.
Repeating a delete succeeds.

--force also deletes a volume that is being made, imported, exported to a file or extended: that
work ends, and the volume is wiped and deleted. It is for administrators; an agent deletes such a
volume without it.

Examples:
  mooring volume delete data
  mooring volume delete b0c1d2e3-0001-4002-8003-00000000000a --timeout 300
  mooring volume delete data --force";

/// `volume delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// Delete the volume whatever its status is; work on it ends
    #[arg(long)]
    pub force: bool,
}
