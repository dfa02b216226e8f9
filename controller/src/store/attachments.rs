//! Attachments, those that are gone, and the credentials of their nexuses.

use std::fmt;
use std::time::SystemTime;

use mooring_model::{AgentId, AttachmentId, Chap, ChapSide, Generation, Iqn, Mode, Secret, VolumeId};
use rusqlite::{OptionalExtension, Row, ToSql, params};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{Db, generation, json, micros, parsed, parsed_opt, signed, time_of, time_opt, word};
use crate::domain::AttachmentStatus;
use crate::rules::Existing;

/// An attachment as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in `domain::Attachment` and in the schema")]
pub(crate) struct AttachmentRow {
    pub(crate) id: AttachmentId,
    pub(crate) volume: VolumeId,
    pub(crate) project: String,
    pub(crate) instance: Option<Uuid>,
    pub(crate) mode: Mode,
    pub(crate) status: AttachmentStatus,
    pub(crate) connector: Option<Map<String, Value>>,
    pub(crate) initiator: Option<Iqn>,
    pub(crate) host: Option<String>,
    pub(crate) mountpoint: Option<String>,
    pub(crate) native: Option<AgentId>,
    pub(crate) grant_wanted: bool,
    pub(crate) granted: bool,
    pub(crate) held: bool,
    pub(crate) connect_wanted: bool,
    pub(crate) connect_ever: bool,
    pub(crate) forced: bool,
    pub(crate) wished_at: Generation,
    pub(crate) steps: Vec<(String, u64)>,
    pub(crate) created_at: SystemTime,
    pub(crate) attached_at: Option<SystemTime>,
    pub(crate) fault: Option<String>,
}

impl AttachmentRow {
    /// What the rules look at.
    pub(crate) fn existing(&self) -> Existing {
        Existing {
            id: self.id,
            status: self.status,
            instance: self.instance,
            mode: self.mode,
            initiator: self.initiator.clone(),
            host: self.host.clone(),
            granted: self.grant_wanted,
        }
    }

    /// It is on its way out: nothing new is wanted for it.
    pub(crate) fn is_going(&self) -> bool {
        matches!(self.status, AttachmentStatus::Detaching | AttachmentStatus::ErrorAttaching)
    }
}

/// An attachment that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detached {
    /// Its volume.
    pub(crate) volume: VolumeId,
    /// Whose it was.
    pub(crate) project: String,
    /// The receipt's row.
    pub(crate) receipt: Option<i64>,
}

/// Credentials of one nexus.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Nexus(pub(crate) Chap);

impl fmt::Debug for Nexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nexus(***)")
    }
}

const COLUMNS: &str = "id, volume_id, project, instance, mode, status, connector, initiator, host, mountpoint, native, \
                       grant_wanted, granted, held, connect_wanted, connect_ever, forced, wish_epoch, wish_counter, steps, \
                       created_us, attached_us, fault";

fn attachment(row: &Row<'_>) -> rusqlite::Result<AttachmentRow> {
    let connector: Option<String> = row.get(6)?;
    Ok(AttachmentRow {
        id: parsed(row, 0)?,
        volume: parsed(row, 1)?,
        project: row.get(2)?,
        instance: parsed_opt(row, 3)?,
        mode: parsed(row, 4)?,
        status: word(row, 5, AttachmentStatus::from_word)?,
        connector: connector.is_some().then(|| json(row, 6)).transpose()?,
        initiator: parsed_opt(row, 7)?,
        host: row.get(8)?,
        mountpoint: row.get(9)?,
        native: parsed_opt(row, 10)?,
        grant_wanted: row.get(11)?,
        granted: row.get(12)?,
        held: row.get(13)?,
        connect_wanted: row.get(14)?,
        connect_ever: row.get(15)?,
        forced: row.get(16)?,
        wished_at: generation(row, 17, 18)?,
        steps: json(row, 19)?,
        created_at: time_of(row.get(20)?),
        attached_at: time_opt(row, 21)?,
        fault: row.get(22)?,
    })
}

impl Db<'_> {
    /// One attachment.
    pub(crate) fn attachment(&self, id: AttachmentId) -> rusqlite::Result<Option<AttachmentRow>> {
        let mut query =
            self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM attachments WHERE id = ?1"))?;
        query.query_row([id.to_string()], attachment).optional()
    }

    fn attachments_where(&self, rest: &str, values: &[&dyn ToSql]) -> rusqlite::Result<Vec<AttachmentRow>> {
        let mut query = self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM attachments {rest}"))?;
        query.query_map(values, attachment)?.collect()
    }

    /// Attachments of one volume, oldest first.
    pub(crate) fn attachments_of(&self, volume: VolumeId) -> rusqlite::Result<Vec<AttachmentRow>> {
        self.attachments_where("WHERE volume_id = ?1 ORDER BY created_us, id", &[&volume.to_string()])
    }

    /// Attachments of one project, or all, oldest first.
    pub(crate) fn attachments(&self, project: Option<&str>) -> rusqlite::Result<Vec<AttachmentRow>> {
        match project {
            Some(project) => {
                self.attachments_where("WHERE project = ?1 ORDER BY created_us, id", &[&project])
            }
            None => self.attachments_where("ORDER BY created_us, id", &[]),
        }
    }

    /// Volumes with attachments that are on their way in or out.
    pub(crate) fn volumes_in_motion(&self) -> rusqlite::Result<Vec<VolumeId>> {
        let sql = "SELECT DISTINCT volume_id FROM attachments WHERE status NOT IN ('attached', 'reserved') \
                   UNION SELECT id FROM volumes WHERE operation IN ('creating', 'deleting')";
        let mut query = self.conn.prepare_cached(sql)?;
        query.query_map([], |row| parsed(row, 0))?.collect()
    }

    /// Keeps a new attachment, or all that may change of one.
    pub(crate) fn put_attachment(&self, row: &AttachmentRow) -> rusqlite::Result<()> {
        let sql = "INSERT INTO attachments (id, volume_id, project, instance, mode, status, connector, initiator, host, \
                   mountpoint, native, grant_wanted, granted, held, connect_wanted, connect_ever, forced, wish_epoch, \
                   wish_counter, steps, created_us, attached_us, fault) VALUES \
                   (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23) \
                   ON CONFLICT (id) DO UPDATE SET mode = excluded.mode, status = excluded.status, \
                   connector = excluded.connector, initiator = excluded.initiator, host = excluded.host, \
                   mountpoint = excluded.mountpoint, native = excluded.native, grant_wanted = excluded.grant_wanted, \
                   granted = excluded.granted, held = excluded.held, connect_wanted = excluded.connect_wanted, \
                   connect_ever = excluded.connect_ever, forced = excluded.forced, wish_epoch = excluded.wish_epoch, \
                   wish_counter = excluded.wish_counter, steps = excluded.steps, attached_us = excluded.attached_us, \
                   fault = excluded.fault";
        let text = |map: &Map<String, Value>| Value::Object(map.clone()).to_string();
        self.conn
            .prepare_cached(sql)?
            .execute(params![
                row.id.to_string(),
                row.volume.to_string(),
                row.project,
                row.instance.map(|id| id.to_string()),
                row.mode.to_string(),
                row.status.as_str(),
                row.connector.as_ref().map(text),
                row.initiator.as_ref().map(Iqn::as_str),
                row.host,
                row.mountpoint,
                row.native.map(|id| id.to_string()),
                row.grant_wanted,
                row.granted,
                row.held,
                row.connect_wanted,
                row.connect_ever,
                row.forced,
                signed(row.wished_at.epoch),
                signed(row.wished_at.counter),
                serde_json::to_value(&row.steps).unwrap_or_default().to_string(),
                micros(row.created_at),
                row.attached_at.map(micros),
                row.fault,
            ])
            .map(drop)
    }

    /// Takes an attachment away and remembers whose it was. The credentials of its nexus go with the last one.
    pub(crate) fn detach(&self, row: &AttachmentRow, receipt: Option<i64>) -> rusqlite::Result<()> {
        self.conn.prepare_cached("DELETE FROM attachments WHERE id = ?1")?.execute([row.id.to_string()])?;
        let sql = "INSERT INTO detached (id, volume_id, project, initiator, receipt, detached_us) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.conn.prepare_cached(sql)?.execute(params![
            row.id.to_string(),
            row.volume.to_string(),
            row.project,
            row.initiator.as_ref().map(Iqn::as_str),
            receipt,
            micros(self.now)
        ])?;
        if let Some(initiator) = &row.initiator {
            let sql = "DELETE FROM nexuses WHERE volume_id = ?1 AND initiator = ?2 AND NOT EXISTS \
                       (SELECT 1 FROM attachments WHERE volume_id = ?1 AND initiator = ?2)";
            self.conn.prepare_cached(sql)?.execute(params![row.volume.to_string(), initiator.as_str()])?;
        }
        Ok(())
    }

    /// An attachment that is gone.
    pub(crate) fn detached(&self, id: AttachmentId) -> rusqlite::Result<Option<Detached>> {
        let sql = "SELECT volume_id, project, receipt FROM detached WHERE id = ?1";
        self.conn
            .prepare_cached(sql)?
            .query_row([id.to_string()], |row| {
                Ok(Detached { volume: parsed(row, 0)?, project: row.get(1)?, receipt: row.get(2)? })
            })
            .optional()
    }

    /// The credentials of a nexus.
    pub(crate) fn nexus(&self, volume: VolumeId, initiator: &Iqn) -> rusqlite::Result<Option<Nexus>> {
        let sql = "SELECT user, secret, mutual_user, mutual_secret FROM nexuses WHERE volume_id = ?1 AND initiator = ?2";
        self.conn
            .prepare_cached(sql)?
            .query_row(params![volume.to_string(), initiator.as_str()], |row| {
                let side = |user: Option<String>, secret: Option<String>| {
                    Some(ChapSide { user: user?, secret: Secret::new(secret?) })
                };
                let initiator = ChapSide { user: row.get(0)?, secret: Secret::new(row.get::<_, String>(1)?) };
                Ok(Nexus(Chap { initiator, mutual: side(row.get(2)?, row.get(3)?) }))
            })
            .optional()
    }

    /// Keeps the credentials of a new nexus.
    pub(crate) fn insert_nexus(
        &self,
        volume: VolumeId,
        initiator: &Iqn,
        nexus: &Nexus,
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO nexuses (volume_id, initiator, user, secret, mutual_user, mutual_secret) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let Chap { initiator: own, mutual } = &nexus.0;
        self.conn
            .prepare_cached(sql)?
            .execute(params![
                volume.to_string(),
                initiator.as_str(),
                own.user,
                own.secret.expose(),
                mutual.as_ref().map(|side| &side.user),
                mutual.as_ref().map(|side| side.secret.expose()),
            ])
            .map(drop)
    }
}
