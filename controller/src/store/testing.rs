//! Rows for the tests of modules above the store, and a count of statements.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use mooring_model::{AgentId, AttachmentId, VolumeId};
use mooring_systemd::sealing::Origin;

use super::sql::{EachRow, Sql, SqlError, Value};
use super::{AttachmentRow, DEFAULT_TYPE, Database, Db, KeptOperations, PostgresOptions, VolumeRow};
use crate::domain::{AttachStatus, Hints, VolumeStatus};

struct Counting<'a> {
    sql: &'a dyn Sql,
    count: Cell<usize>,
}

impl Sql for Counting<'_> {
    fn each(&self, sql: &str, values: &[Value], work: EachRow<'_>) -> Result<(), SqlError> {
        self.count.set(self.count.get() + 1);
        self.sql.each(sql, values, work)
    }

    fn run(&self, sql: &str, values: &[Value]) -> Result<u64, SqlError> {
        self.count.set(self.count.get() + 1);
        self.sql.run(sql, values)
    }
}

/// A database of the server. Its controllers share their keys, from a file whose permissions are
/// not checked.
pub(crate) fn postgres(options: PostgresOptions) -> Database {
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/sealing.key");
    Database::Postgres { options: Box::new(options), keys: Origin::Credential(keys) }
}

/// The number of statements that the work runs.
pub(crate) fn counted<T>(db: &Db<'_>, work: impl FnOnce(&Db<'_>) -> T) -> (T, usize) {
    let counting = Counting { sql: db.sql, count: Cell::new(0) };
    let done = work(&Db { sql: &counting, keys: db.keys, now: db.now });
    (done, counting.count.get())
}

/// An existing volume, shown by these Fibre Channel ports.
pub(crate) fn volume(id: VolumeId, fc_ports: &[&str]) -> VolumeRow {
    VolumeRow {
        id,
        name: Some(format!("volume {id}")),
        description: None,
        size_gib: 1,
        type_id: uuid::Uuid::nil(),
        multiattach: true,
        operation: None,
        grows_from: None,
        snapshot_of: None,
        source: None,
        taken: false,
        status: VolumeStatus::Available,
        attach_status: AttachStatus::Detached,
        project: "p".to_owned(),
        user: "u".to_owned(),
        metadata: BTreeMap::new(),
        agent: AgentId::from_u128(1),
        pool: "vg0".to_owned(),
        target: None,
        naa: None,
        portals: Vec::new(),
        fc_ports: fc_ports.iter().filter_map(|port| port.parse().ok()).collect(),
        review: None,
        created_at: SystemTime::UNIX_EPOCH,
        updated_at: None,
        fault: None,
        bootable: false,
        readonly: None,
        zone: "nova".to_owned(),
        reserved: 0,
        reserved_until: None,
        holds: 0,
        holds_until: None,
        said_status: None,
        hints: Hints::default(),
        tried: Vec::new(),
        kept: KeptOperations::default(),
    }
}

/// Stores an existing volume.
pub(crate) fn insert_volume(
    db: &Db<'_>,
    id: VolumeId,
    agent: AgentId,
    metadata: &BTreeMap<String, String>,
) -> Result<(), SqlError> {
    let type_id = db.type_by_name(DEFAULT_TYPE)?.map(|kind| kind.id).unwrap_or_default();
    let metadata = metadata.clone();
    db.insert_found_volume(&VolumeRow { type_id, agent, metadata, created_at: db.now, ..volume(id, &[]) })
}

/// Stores a reserved attachment.
pub(crate) fn insert_attachment(db: &Db<'_>, id: AttachmentId, volume: VolumeId) -> Result<(), SqlError> {
    db.put_attachment(&AttachmentRow::reserved(id, volume, "p", db.now))
}
