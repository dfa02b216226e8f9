//! Arguments of `mooring snapshot`.
//!
//! What must never happen here: a secret as an argument.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use crate::volume_ref::{VolumeName, VolumeRef};

/// Snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot of a volume, also while it is attached
    #[command(after_help = "\
A snapshot keeps the volume's content at that moment: all writes that were acknowledged before, as
after a power cut. It takes no time, and no space at first. Only thin volumes have snapshots: their
type has provisioning:type=thin, or their storage node has a thin pool and chooses it.

A name is used once per volume: a repeated command finds the snapshot that it made.

Examples:
  mooring snapshot create data before-upgrade
  mooring snapshot create data nightly-1 --timeout 60
  mooring volume create copy --snapshot before-upgrade")]
    Create(SnapshotCreateArgs),
    /// List snapshots: of one volume, or all
    #[command(after_help = "\
Examples:
  mooring snapshot list
  mooring snapshot list data --json | jq -r '.snapshots[].name'")]
    List(SnapshotListArgs),
    /// Show one snapshot
    #[command(after_help = "\
Examples:
  mooring snapshot show before-upgrade
  mooring snapshot show b0c1d2e3-0001-4002-8003-0000000000aa --json")]
    Show(SnapshotArg),
    /// Delete a snapshot; volumes that were made from it are kept
    #[command(after_help = "\
Repeating a delete succeeds.

--force also deletes a snapshot that is being taken: at once if its storage node was never asked for
it, else as soon as that node is up. It is for administrators. Refused while a volume is made from
the snapshot or reverted to it.

Examples:
  mooring snapshot delete before-upgrade
  mooring snapshot delete b0c1d2e3-0001-4002-8003-0000000000aa
  mooring snapshot delete before-upgrade --force")]
    Delete(SnapshotDeleteArgs),
    /// Set the status of a snapshot to error, or clear that
    #[command(after_help = "\
A snapshot that is being taken and is set to error can be deleted. If its storage node takes it
after all, it is available.

Examples:
  mooring snapshot reset-status before-upgrade error
  mooring snapshot reset-status before-upgrade available")]
    ResetStatus(SnapshotResetArgs),
    /// Forget a snapshot and keep its logical volume
    #[command(after_help = "\
The data stays in the logical volume mooring-snap-ID, which is nobody's from then on and has no
device until lvchange --setactivationskip n. Repeating an unmanage by the snapshot's id succeeds.

Examples:
  mooring snapshot unmanage before-upgrade
  mooring snapshot unmanage b0c1d2e3-0001-4002-8003-0000000000aa --timeout 300")]
    Unmanage(SnapshotArg),
}

/// `snapshot create`.
#[derive(Debug, Args)]
pub struct SnapshotCreateArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// A name for people; no two snapshots of one volume share it
    pub name: VolumeName,
}

/// `snapshot list`.
#[derive(Debug, Args)]
pub struct SnapshotListArgs {
    /// Only snapshots of this volume: its id, or its name where that is unique
    pub volume: Option<VolumeRef>,
}

/// One snapshot.
#[derive(Debug, Args)]
pub struct SnapshotArg {
    /// The snapshot: its id, or its name where that is unique
    pub snapshot: VolumeRef,
}

/// `snapshot delete`.
#[derive(Debug, Args)]
pub struct SnapshotDeleteArgs {
    /// The snapshot: its id, or its name where that is unique
    pub snapshot: VolumeRef,
    /// Delete the snapshot whatever its status is
    #[arg(long)]
    pub force: bool,
}

/// `snapshot reset-status`.
#[derive(Debug, Args)]
pub struct SnapshotResetArgs {
    /// The snapshot: its id, or its name where that is unique
    pub snapshot: VolumeRef,
    /// error, or what its storage node says: available
    #[arg(value_parser = PossibleValuesParser::new(["error", "available"]))]
    pub status: String,
}
