//! Snapshots.
//!
//! What must never happen here: a rule.

use std::collections::BTreeMap;
use std::time::SystemTime;

use mooring_model::VolumeId;

use super::VolumeStatus;

/// What a volume held at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: VolumeId,
    /// Its volume.
    pub volume: VolumeId,
    /// For people; need not be unique.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// GiB, as its volume had when it was taken.
    pub size_gib: u32,
    /// `creating`, `available`, `deleting`, `error` or `error_deleting`.
    pub status: VolumeStatus,
    /// Owner.
    pub project: String,
    /// Creator.
    pub user: String,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// UTC.
    pub created_at: SystemTime,
    /// UTC.
    pub updated_at: Option<SystemTime>,
    /// Why its status is an error, or what it waits for.
    pub fault: Option<String>,
}

/// `POST /snapshots`, checked for form only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Of which volume.
    pub volume: VolumeId,
    /// For people.
    pub name: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// The users' own keys.
    pub metadata: BTreeMap<String, String>,
    /// Also while the volume is in use.
    pub in_use: bool,
}
