//! Snapshots.
//!
//! What must never happen here: a rule.

use std::collections::BTreeMap;
use std::time::SystemTime;

use mooring_model::VolumeId;

use super::VolumeStatus;

/// The contents of a volume at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The snapshot's id.
    pub id: VolumeId,
    /// The snapshot's volume.
    pub volume: VolumeId,
    /// For people; need not be unique.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// The size in GiB that the volume had at that moment.
    pub size_gib: u32,
    /// `creating`, `available`, `deleting`, `restoring`, `unmanaging`, `error`, `error_deleting` or
    /// `error_unmanaging`.
    pub status: VolumeStatus,
    /// The project that owns it.
    pub project: String,
    /// The user who created it.
    pub user: String,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// The time of creation, in UTC.
    pub created_at: SystemTime,
    /// The time of the last change, in UTC.
    pub updated_at: Option<SystemTime>,
    /// The reason for an error status, or for a wait.
    pub fault: Option<String>,
}

/// `POST /snapshots`, checked for form only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// The volume.
    pub volume: VolumeId,
    /// For people.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// `true` if the volume may be in use.
    pub in_use: bool,
}

/// Actions on a snapshot, by operators and by drivers of compute services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotAction {
    /// Sets a status by an operator's word.
    ResetStatus(VolumeStatus),
    /// Deletes the snapshot, whatever its status.
    ForceDelete,
    /// Sets a status by the word of a driver that takes snapshots itself.
    UpdateStatus(VolumeStatus),
    /// Forgets the snapshot, and keeps its LV with its data.
    Unmanage,
}
