//! Arguments of `mooring snapshot`.
//!
//! What must never happen here: a secret as an argument.

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

Examples:
  mooring snapshot delete before-upgrade
  mooring snapshot delete b0c1d2e3-0001-4002-8003-0000000000aa")]
    Delete(SnapshotArg),
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
