//! The rows of snapshots and their metadata.

use super::operation::{Operation, op};
use crate::list::SNAPSHOTS;

/// Below `/v3`.
pub(super) const BLOCK_STORAGE: &[Operation] = &[
    op("GET", "/snapshots", "listSnapshotNames", "Snapshots")
        .policies(&["volume:get_all_snapshots"])
        .lists(&SNAPSHOTS)
        .gives("Snapshots"),
    op("POST", "/snapshots", "createSnapshot", "Take a snapshot of a thin volume")
        .policies(&["volume:create_snapshot"])
        .status(202)
        .takes("NewSnapshot")
        .gives("OneSnapshot"),
    op("GET", "/snapshots/detail", "listSnapshots", "Snapshots in full")
        .policies(&["volume:get_all_snapshots"])
        .lists(&SNAPSHOTS)
        .gives("Snapshots"),
    op("GET", "/snapshots/{id}", "showSnapshot", "One snapshot")
        .hides("volume:get_snapshot")
        .gives("OneSnapshot"),
    op("PUT", "/snapshots/{id}", "updateSnapshot", "Change name and description")
        .policies(&["volume:update_snapshot"])
        .takes("SnapshotUpdate")
        .gives("OneSnapshot"),
    op("DELETE", "/snapshots/{id}", "deleteSnapshot", "Delete a snapshot")
        .policies(&["volume:delete_snapshot"])
        .status(202),
    op("POST", "/snapshots/{id}/action", "actOnSnapshot", "Act on a snapshot")
        .open("each action has a row of its own")
        .status(202)
        .takes("SnapshotAction"),
    op("GET", "/snapshots/{id}/metadata", "listSnapshotMetadata", "The users' own keys")
        .policies(&["volume:get_snapshot_metadata"])
        .gives("Metadata"),
    op("POST", "/snapshots/{id}/metadata", "mergeSnapshotMetadata", "Set some keys")
        .policies(&["volume:update_snapshot_metadata"])
        .takes("NewMetadata")
        .gives("Metadata"),
    op("PUT", "/snapshots/{id}/metadata", "replaceSnapshotMetadata", "Set all keys")
        .policies(&["volume:update_snapshot_metadata"])
        .takes("NewMetadata")
        .gives("Metadata"),
    op("GET", "/snapshots/{id}/metadata/{key}", "showSnapshotMetadata", "One key")
        .policies(&["volume:get_snapshot_metadata"])
        .gives("Meta"),
    op("PUT", "/snapshots/{id}/metadata/{key}", "setSnapshotMetadata", "Set one key")
        .policies(&["volume:update_snapshot_metadata"])
        .takes("NewMeta")
        .gives("Meta"),
    op("DELETE", "/snapshots/{id}/metadata/{key}", "deleteSnapshotMetadata", "Delete one key")
        .policies(&["volume:delete_snapshot_metadata"]),
];
