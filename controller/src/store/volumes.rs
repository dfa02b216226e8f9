//! Volumes: rows, and the one place where their status is written.

use std::collections::BTreeMap;
use std::time::SystemTime;

use mooring_model::{AgentId, Iqn, Naa, Portal, VolumeId};
use rusqlite::{OptionalExtension, Row, ToSql, params};
use uuid::Uuid;

use super::{Db, json, micros, parsed, parsed_opt, time_of, time_opt, word};
use crate::domain::{AttachStatus, VolumeStatus};
use crate::rules::{self, Operation};

/// A volume as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in `domain::Volume` and in the schema")]
pub(crate) struct VolumeRow {
    pub(crate) id: VolumeId,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) size_gib: u32,
    pub(crate) type_id: Uuid,
    pub(crate) multiattach: bool,
    pub(crate) operation: Option<Operation>,
    pub(crate) status: VolumeStatus,
    pub(crate) attach_status: AttachStatus,
    pub(crate) project: String,
    pub(crate) user: String,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) agent: AgentId,
    pub(crate) pool: String,
    pub(crate) target: Option<Iqn>,
    pub(crate) naa: Option<Naa>,
    pub(crate) portals: Vec<Portal>,
    pub(crate) review: Option<String>,
    pub(crate) created_at: SystemTime,
    pub(crate) updated_at: Option<SystemTime>,
    pub(crate) fault: Option<String>,
}

const COLUMNS: &str = "id, name, description, size_gib, type_id, multiattach, operation, status, attach_status, project, \
                       user, metadata, agent_id, pool, target, naa, portals, review, created_us, updated_us, fault";

fn volume(row: &Row<'_>) -> rusqlite::Result<VolumeRow> {
    let operation: Option<String> = row.get(6)?;
    let naa: Option<String> = row.get(15)?;
    let portals: String = row.get(16)?;
    Ok(VolumeRow {
        id: parsed(row, 0)?,
        name: row.get(1)?,
        description: row.get(2)?,
        size_gib: row.get(3)?,
        type_id: parsed(row, 4)?,
        multiattach: row.get(5)?,
        operation: operation.as_deref().and_then(Operation::from_word),
        status: word(row, 7, VolumeStatus::from_word)?,
        attach_status: word(row, 8, AttachStatus::from_word)?,
        project: row.get(9)?,
        user: row.get(10)?,
        metadata: json(row, 11)?,
        agent: parsed(row, 12)?,
        pool: row.get(13)?,
        target: parsed_opt(row, 14)?,
        naa: naa.as_deref().and_then(Naa::from_hex),
        portals: portals.split_whitespace().filter_map(|portal| portal.parse().ok()).collect(),
        review: row.get(17)?,
        created_at: time_of(row.get(18)?),
        updated_at: time_opt(row, 19)?,
        fault: row.get(20)?,
    })
}

impl Db<'_> {
    /// One volume.
    pub(crate) fn volume(&self, id: VolumeId) -> rusqlite::Result<Option<VolumeRow>> {
        let mut query = self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM volumes WHERE id = ?1"))?;
        query.query_row([id.to_string()], volume).optional()
    }

    fn volumes_where(&self, rest: &str, values: &[&dyn ToSql]) -> rusqlite::Result<Vec<VolumeRow>> {
        let mut query = self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM volumes {rest}"))?;
        query.query_map(values, volume)?.collect()
    }

    /// Volumes of one project, or of all, newest first.
    pub(crate) fn volumes(&self, project: Option<&str>) -> rusqlite::Result<Vec<VolumeRow>> {
        match project {
            Some(project) => {
                self.volumes_where("WHERE project = ?1 ORDER BY created_us DESC, id DESC", &[&project])
            }
            None => self.volumes_where("ORDER BY created_us DESC, id DESC", &[]),
        }
    }

    /// Volumes that one storage agent serves.
    pub(crate) fn volumes_on(&self, agent: AgentId) -> rusqlite::Result<Vec<VolumeRow>> {
        self.volumes_where("WHERE agent_id = ?1", &[&agent.to_string()])
    }

    /// Keeps a new volume.
    pub(crate) fn insert_volume(&self, new: &VolumeRow) -> rusqlite::Result<()> {
        let sql = "INSERT INTO volumes (id, name, description, size_gib, type_id, multiattach, operation, status, \
                   attach_status, project, user, metadata, agent_id, pool, created_us) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
        self.conn
            .prepare_cached(sql)?
            .execute(params![
                new.id.to_string(),
                new.name,
                new.description,
                new.size_gib,
                new.type_id.to_string(),
                new.multiattach,
                new.operation.map(|operation| operation.status().as_str()),
                new.status.as_str(),
                new.attach_status.as_str(),
                new.project,
                new.user,
                metadata_text(&new.metadata),
                new.agent.to_string(),
                new.pool,
                micros(new.created_at),
            ])
            .map(drop)
    }

    /// What users may change.
    pub(crate) fn update_volume(&self, changed: &VolumeRow) -> rusqlite::Result<()> {
        let sql =
            "UPDATE volumes SET name = ?2, description = ?3, metadata = ?4, updated_us = ?5 WHERE id = ?1";
        self.conn
            .prepare_cached(sql)?
            .execute(params![
                changed.id.to_string(),
                changed.name,
                changed.description,
                metadata_text(&changed.metadata),
                micros(self.now)
            ])
            .map(drop)
    }

    /// Begins or ends an operation, with its fault.
    pub(crate) fn set_operation(
        &self,
        id: VolumeId,
        operation: Option<Operation>,
        fault: Option<&str>,
    ) -> rusqlite::Result<()> {
        let word = operation.map(|operation| operation.status().as_str());
        let sql = "UPDATE volumes SET operation = ?2, fault = ?3 WHERE id = ?1";
        self.conn.prepare_cached(sql)?.execute(params![id.to_string(), word, fault])?;
        self.derive_status(id)
    }

    /// Derives the status from what is there now. Called in every transaction that changes an attachment or an operation.
    pub(crate) fn derive_status(&self, id: VolumeId) -> rusqlite::Result<()> {
        let Some(volume) = self.volume(id)? else { return Ok(()) };
        let statuses = self.attachments_of(id)?.into_iter().map(|attachment| attachment.status);
        let (status, attach_status) = rules::derive(volume.operation, statuses);
        if (status, attach_status) == (volume.status, volume.attach_status) {
            return Ok(());
        }
        let sql = "UPDATE volumes SET status = ?2, attach_status = ?3, updated_us = ?4 WHERE id = ?1";
        self.conn
            .prepare_cached(sql)?
            .execute(params![id.to_string(), status.as_str(), attach_status.as_str(), micros(self.now)])
            .map(drop)
    }

    /// Where the target of a volume is, as its agent says.
    pub(crate) fn set_target(
        &self,
        id: VolumeId,
        target: &Iqn,
        naa: &Naa,
        portals: &[Portal],
    ) -> rusqlite::Result<()> {
        let portals = portals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let sql = "UPDATE volumes SET target = ?2, naa = ?3, portals = ?4 WHERE id = ?1";
        self.conn
            .prepare_cached(sql)?
            .execute(params![id.to_string(), target.as_str(), naa.as_str(), portals])
            .map(drop)
    }

    /// Puts a volume in review, or takes it out.
    pub(crate) fn set_review(&self, id: VolumeId, why: Option<&str>) -> rusqlite::Result<()> {
        let sql = "UPDATE volumes SET review = ?2 WHERE id = ?1";
        self.conn.prepare_cached(sql)?.execute(params![id.to_string(), why]).map(drop)
    }

    /// Puts all volumes in review.
    pub(crate) fn review_all(&self, why: &str) -> rusqlite::Result<usize> {
        self.conn.execute("UPDATE volumes SET review = ?1", [why])
    }

    /// Takes a volume away that is gone at its agent.
    pub(crate) fn delete_volume(&self, id: VolumeId) -> rusqlite::Result<()> {
        self.conn.prepare_cached("DELETE FROM volumes WHERE id = ?1")?.execute([id.to_string()]).map(drop)
    }

    /// GiB of volumes on a pool that its last report may not show yet.
    pub(crate) fn creating_on(&self, agent: AgentId, pool: &str) -> rusqlite::Result<u64> {
        let sql = "SELECT COALESCE(SUM(size_gib), 0) FROM volumes WHERE agent_id = ?1 AND pool = ?2 AND operation = 'creating'";
        let gib: i64 =
            self.conn.prepare_cached(sql)?.query_row(params![agent.to_string(), pool], |row| row.get(0))?;
        Ok(u64::try_from(gib).unwrap_or(0))
    }
}

fn metadata_text(metadata: &BTreeMap<String, String>) -> String {
    serde_json::to_value(metadata).unwrap_or_default().to_string()
}
