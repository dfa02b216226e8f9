//! Operations of volumes and their results, in the table `volume_operations`: one row for each kind
//! that a volume has. `volumes.operation` says which exclusive operation runs. A row holds the
//! payload of that operation, a result that outlives it, or a fact beside it.
//!
//! What must never happen here: a row of a volume that another kind's change takes away.

use std::time::SystemTime;

use mooring_model::{ExistingLv, LvName, VolumeId};
use serde_json::{Value, json};

use super::reverts::KeptRevert;
use super::sql::{Row, SqlError, values};
use super::uploads::KeptUpload;
use super::{Db, time_of};

/// A kind of row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OperationKind {
    /// The volume is to be isolated from its disk.
    Isolation,
    /// The volume's growth is to be taken back.
    GrowthTakenBack,
    /// The storage agent's copy of the volume's persistent reservations.
    Reservations,
    /// The revert in progress.
    Revert,
    /// The foreign logical volume that the volume is to take over.
    Takes,
    /// The last image export, in progress or over.
    Upload,
}

impl OperationKind {
    /// All kinds.
    pub(super) const ALL: [Self; 6] =
        [Self::Isolation, Self::GrowthTakenBack, Self::Reservations, Self::Revert, Self::Takes, Self::Upload];

    /// The word in the database.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Isolation => "cut",
            Self::GrowthTakenBack => "growth_taken_back",
            Self::Reservations => "reservations",
            Self::Revert => "revert",
            Self::Takes => "takes",
            Self::Upload => "upload",
        }
    }
}

/// One row: a kind with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeptOperation {
    /// The time since which the volume is to be isolated.
    Isolation(SystemTime),
    /// The volume's growth is to be taken back.
    GrowthTakenBack,
    /// The agent's text.
    Reservations(String),
    /// The revert.
    Revert(KeptRevert),
    /// The foreign logical volume.
    Takes(ExistingLv),
    /// The image export.
    Upload(KeptUpload),
}

impl KeptOperation {
    /// The kind.
    pub(super) fn kind(&self) -> OperationKind {
        match self {
            Self::Isolation(_) => OperationKind::Isolation,
            Self::GrowthTakenBack => OperationKind::GrowthTakenBack,
            Self::Reservations(_) => OperationKind::Reservations,
            Self::Revert(_) => OperationKind::Revert,
            Self::Takes(_) => OperationKind::Takes,
            Self::Upload(_) => OperationKind::Upload,
        }
    }

    /// The payload as the database has it. The kind and the time say all of an isolation.
    fn payload(&self) -> Value {
        match self {
            Self::Isolation(_) | Self::GrowthTakenBack => Value::Bool(true),
            Self::Reservations(text) => Value::from(text.as_str()),
            Self::Revert(kept) => kept.payload(),
            Self::Takes(lv) => json!({ "name": lv.name.as_str(), "uuid": lv.uuid }),
            Self::Upload(kept) => kept.payload(),
        }
    }

    /// Reads a row. `None` if the payload is not that of its kind: the row counts as missing, so
    /// that one row hides no volume.
    fn read(kind: OperationKind, since: SystemTime, payload: &Value) -> Option<Self> {
        Some(match kind {
            OperationKind::Isolation => Self::Isolation(since),
            OperationKind::GrowthTakenBack => Self::GrowthTakenBack,
            OperationKind::Reservations => Self::Reservations(payload.as_str()?.to_owned()),
            OperationKind::Revert => Self::Revert(KeptRevert::read(payload)?),
            OperationKind::Takes => {
                let name = LvName::existing(payload["name"].as_str()?).ok()?;
                Self::Takes(ExistingLv { name, uuid: payload["uuid"].as_str()?.to_owned() })
            }
            OperationKind::Upload => Self::Upload(KeptUpload::read(payload)?),
        })
    }
}

/// The rows of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct KeptOperations(Vec<KeptOperation>);

impl KeptOperations {
    /// The rows, at most one of each kind.
    pub(super) fn iter(&self) -> impl Iterator<Item = &KeptOperation> {
        self.0.iter()
    }

    /// Puts a row in the place of the one of its kind.
    pub(super) fn put(&mut self, kept: KeptOperation) {
        self.0.retain(|other| other.kind() != kept.kind());
        self.0.push(kept);
    }
}

/// Reads a column of [`super::volumes::COLUMNS`]: JSON of (kind, since, payload), NULL
/// without rows.
pub(super) fn read(row: &mut Row, index: usize) -> Result<KeptOperations, SqlError> {
    let rows: Option<Vec<(String, i64, Value)>> = row.json_opt(index)?;
    let one = |(word, since, payload): (String, i64, Value)| {
        let kind = OperationKind::ALL.into_iter().find(|kind| kind.as_str() == word)?;
        KeptOperation::read(kind, time_of(since), &payload)
    };
    Ok(KeptOperations(rows.into_iter().flatten().filter_map(one).collect()))
}

impl Db<'_> {
    /// Stores a row in the place of the one of its kind. The volume is there.
    pub(super) fn keep_operation(&self, id: VolumeId, kept: &KeptOperation) -> Result<(), SqlError> {
        let since = if let KeptOperation::Isolation(since) = kept { *since } else { self.now };
        let sql = "INSERT INTO volume_operations (volume_id, kind, since_us, payload) VALUES (?1, ?2, ?3, ?4) \
                   ON CONFLICT (volume_id, kind) DO UPDATE SET since_us = excluded.since_us, payload = excluded.payload";
        self.run(sql, &values![id, kept.kind().as_str(), since, kept.payload().to_string()]).map(drop)
    }

    /// Deletes a row.
    pub(super) fn drop_operation(&self, id: VolumeId, kind: OperationKind) -> Result<(), SqlError> {
        let sql = "DELETE FROM volume_operations WHERE volume_id = ?1 AND kind = ?2";
        self.run(sql, &values![id, kind.as_str()]).map(drop)
    }
}
