//! Attachments, the records of detached ones, and the credentials of their nexuses.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use mooring_model::{
    AgentId, AttachmentId, ByteSize, Cache, Chap, ChapSide, Generation, Iqn, Lun, Mode, VolumeId,
};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::receipts::decoded;
use super::sql::{Row, SqlError, Value as Bound, values};
use super::standing::Access;
use super::{Db, micros};
use crate::domain::{AttachmentStatus, DetachRecord};
use crate::initiators::Initiators;
use crate::rules::Existing;

/// An attachment as the database holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in `domain::Attachment` and in the schema")]
pub(crate) struct AttachmentRow {
    pub(crate) id: AttachmentId,
    pub(crate) volume: VolumeId,
    pub(crate) project: String,
    pub(crate) instance: Option<Uuid>,
    pub(crate) mode: Mode,
    pub(crate) status: AttachmentStatus,
    pub(crate) connector: Option<Connector>,
    pub(crate) initiator: Option<Initiators>,
    pub(crate) host: Option<String>,
    pub(crate) mountpoint: Option<String>,
    pub(crate) native: Option<AgentId>,
    /// The attachment's grant and path; `standing` moves them.
    pub(crate) access: Access,
    /// Generation of the export's spec since which the grant is in it, or gone from it. Zero: the
    /// next spec's.
    pub(crate) in_spec_since: Generation,
    pub(crate) steps: Vec<(String, u64)>,
    pub(crate) created_at: SystemTime,
    pub(crate) attached_at: Option<SystemTime>,
    pub(crate) fault: Option<String>,
    /// `true` if the attachment's maker, or an operator, named its mode.
    pub(crate) mode_asked: bool,
    /// `true` until `os-attach` names the server of a connection that `os-initialize_connection`
    /// made.
    pub(crate) legacy: bool,
    pub(crate) asked: Option<Asked>,
    /// The LUN under which the host sees the volume over Fibre Channel.
    pub(crate) lun: Option<Lun>,
    /// `true` if only a user named the attachment's host: no service, admin or enrolled agent did.
    pub(crate) claimed: bool,
    /// The desired page cache of the attachment's disk.
    pub(crate) cache: Cache,
}

/// A client's connector, in the text that the database holds. Most readers of a row do not look
/// into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connector(Arc<str>);

impl Connector {
    /// Makes the text of a connector. Equal connectors have one text.
    pub(crate) fn of(map: &Map<String, Value>) -> Self {
        Self(Value::Object(map.clone()).to_string().into())
    }

    /// The connector. Empty if its text is no JSON object, which no release has written.
    pub(crate) fn map(&self) -> Map<String, Value> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Returns `true` if the connector says `true` to this key.
    pub(crate) fn says(&self, key: &str) -> bool {
        self.map().get(key).and_then(Value::as_bool) == Some(true)
    }
}

/// The request to end an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The user.
    pub(crate) user: String,
    /// The request's id.
    pub(crate) request: String,
    /// The time of the request.
    pub(crate) at: SystemTime,
}

impl AttachmentRow {
    /// The part of the row that the rules look at.
    pub(crate) fn existing(&self) -> Existing {
        Existing {
            id: self.id,
            status: self.status,
            instance: self.instance,
            mode: self.mode,
            initiator: self.initiator.clone(),
            host: self.host.clone(),
            wants_grant: self.wants_grant(),
        }
    }

    /// Returns `true` if the attachment is where `old` was: the server, and the host with its
    /// names.
    pub(crate) fn is_in_place_of(&self, old: &Self) -> bool {
        let place = |row: &Self| (row.id, row.volume, row.instance, row.native);
        place(self) == place(old)
            && (&self.project, &self.initiator, &self.host) == (&old.project, &old.initiator, &old.host)
            && (&self.connector, &self.mountpoint) == (&old.connector, &old.mountpoint)
    }

    /// A new attachment of this volume, without server, host or connector yet.
    pub(crate) fn reserved(id: AttachmentId, volume: VolumeId, project: &str, now: SystemTime) -> Self {
        Self {
            id,
            volume,
            project: project.to_owned(),
            instance: None,
            mode: Mode::ReadWrite,
            status: AttachmentStatus::Reserved,
            connector: None,
            initiator: None,
            host: None,
            mountpoint: None,
            native: None,
            access: Access::NONE,
            in_spec_since: Generation::ZERO,
            steps: Vec::new(),
            created_at: now,
            attached_at: None,
            fault: None,
            mode_asked: false,
            legacy: false,
            asked: None,
            lun: None,
            claimed: false,
            cache: Cache::On,
        }
    }
}

/// The record of a detached attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detached {
    /// The attachment's volume.
    pub(crate) volume: VolumeId,
    /// The attachment's project.
    pub(crate) project: String,
    /// The row of the receipt.
    pub(crate) receipt: Option<i64>,
}

/// A filter of detach records. A record must match all of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct DetachedFilter {
    /// The project, if only one is wanted.
    pub(crate) project: Option<String>,
    /// The volume, if only one is wanted.
    pub(crate) volume: Option<VolumeId>,
    /// The attachment, if only one is wanted.
    pub(crate) attachment: Option<AttachmentId>,
}

/// Credentials of one nexus.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Nexus(pub(crate) Chap);

impl fmt::Debug for Nexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nexus(***)")
    }
}

pub(super) const COLUMNS: &str = "id, volume_id, project, instance, mode, status, connector, initiator, host, mountpoint, native, \
                       access, wish_epoch, wish_counter, steps, created_us, attached_us, fault, mode_asked, legacy, asked_user, \
                       asked_request, asked_us, fc_lun, claimed, cache";

/// Condition of attachments whose grant is being revoked. Its first part is the one of index
/// `attachments_moving`.
pub(super) const GOING: &str = "WHERE moving = 1 AND access >= 40";

/// Volumes with work under way. The first part is found by index `attachments_moving`, the last by
/// index `takings_open`. What was open at a forgotten agent stays open for ever.
pub(super) const IN_MOTION: &str = "SELECT DISTINCT volume_id FROM attachments WHERE moving = 1 \
                         UNION SELECT volume_id FROM nexuses WHERE rotation IS NOT NULL \
                         UNION SELECT id FROM volumes WHERE operation IN ('creating', 'extending', 'deleting', 'managing', \
                         'unmanaging') \
                         UNION SELECT t.volume_id FROM takings t WHERE t.done = 0 \
                         AND NOT EXISTS (SELECT 1 FROM forgotten f WHERE f.agent_id = t.agent_id)";

/// Reads an attachment's status. One of a later release is an error, and hides no other row.
pub(super) fn status(row: &mut Row, index: usize) -> Result<AttachmentStatus, SqlError> {
    Ok(known_status(row, index)?.unwrap_or(AttachmentStatus::ErrorDetaching))
}

/// Reads an attachment's status. `None`: the word is of a later release.
fn known_status(row: &mut Row, index: usize) -> Result<Option<AttachmentStatus>, SqlError> {
    let word: String = row.get(index)?;
    Ok(AttachmentStatus::from_word(&word))
}

pub(super) fn attachment(row: &mut Row) -> Result<AttachmentRow, SqlError> {
    let known = known_status(row, 5)?;
    let access = u8::try_from(row.get::<u32>(11)?).ok().and_then(Access::of_number);
    let found = AttachmentRow {
        id: row.parsed(0)?,
        volume: row.parsed(1)?,
        project: row.get(2)?,
        instance: row.parsed_opt(3)?,
        mode: row.parsed(4)?,
        status: known.unwrap_or(AttachmentStatus::ErrorDetaching),
        connector: row.get::<Option<String>>(6)?.map(|text| Connector(text.into())),
        initiator: row.parsed_opt(7)?,
        host: row.get(8)?,
        mountpoint: row.get(9)?,
        native: row.parsed_opt(10)?,
        access: access.ok_or(ILLEGAL)?,
        in_spec_since: row.generation(12, 13)?,
        steps: row.json(14)?,
        created_at: row.time(15)?,
        attached_at: row.time_opt(16)?,
        fault: row.get(17)?,
        mode_asked: row.get(18)?,
        legacy: row.get(19)?,
        asked: asked(row, 20)?,
        lun: lun(row, 23)?,
        claimed: row.get(24)?,
        cache: row.parsed(25)?,
    };
    // Only that release knows what goes with a status of its own.
    if known.is_none() || found.is_legal() { Ok(found) } else { Err(ILLEGAL) }
}

/// Error of a row whose status, grant and path do not go together.
const ILLEGAL: SqlError =
    SqlError::Column { index: 11, what: "a grant and a path that do not go with the status" };

fn lun(row: &mut Row, index: usize) -> Result<Option<Lun>, SqlError> {
    let number: Option<u32> = row.get(index)?;
    let lun = |number| {
        u16::try_from(number).map(Lun).map_err(|_| SqlError::Column { index, what: "a LUN that is none" })
    };
    number.map(lun).transpose()
}

/// Reads three columns that say who requested a detach.
fn asked(row: &mut Row, first: usize) -> Result<Option<Asked>, SqlError> {
    let user: Option<String> = row.get(first)?;
    let request: Option<String> = row.get(first + 1)?;
    let at = row.time_opt(first + 2)?;
    let asked = |user| Some(Asked { user, request: request?, at: at? });
    Ok(user.and_then(asked))
}

fn record(row: &mut Row) -> Result<DetachRecord, SqlError> {
    let asked = asked(row, 8)?;
    let body: Option<Vec<u8>> = row.get(12)?;
    Ok(DetachRecord {
        attachment: row.parsed(0)?,
        volume: row.parsed(1)?,
        project: row.get(2)?,
        initiator: row.parsed_opt(3)?,
        instance: row.parsed_opt(4)?,
        host: row.get(5)?,
        mode: row.parsed_opt(6)?,
        forced: row.get(7)?,
        user: asked.as_ref().map(|asked| asked.user.clone()),
        request: asked.as_ref().map(|asked| asked.request.clone()),
        asked_at: asked.map(|asked| asked.at),
        detached_at: row.time_opt(11)?,
        receipt: body.as_deref().map(decoded).transpose()?,
        unwritten: row.get::<Option<u64>>(13)?.map(ByteSize),
    })
}

impl Db<'_> {
    /// One attachment.
    pub(crate) fn attachment(&self, id: AttachmentId) -> Result<Option<AttachmentRow>, SqlError> {
        self.one(&format!("SELECT {COLUMNS} FROM attachments WHERE id = ?1"), &values![id], attachment)
    }

    fn attachments_where(&self, rest: &str, values: &[Bound]) -> Result<Vec<AttachmentRow>, SqlError> {
        self.all(&format!("SELECT {COLUMNS} FROM attachments {rest}"), values, attachment)
    }

    /// Attachments of one volume, oldest first.
    pub(crate) fn attachments_of(&self, volume: VolumeId) -> Result<Vec<AttachmentRow>, SqlError> {
        self.attachments_where("WHERE volume_id = ?1 ORDER BY created_us, id", &values![volume])
    }

    /// Attachments of one project, or all, oldest first.
    pub(crate) fn attachments(&self, project: Option<&str>) -> Result<Vec<AttachmentRow>, SqlError> {
        match project {
            Some(project) => {
                self.attachments_where("WHERE project = ?1 ORDER BY created_us, id", &values![project])
            }
            None => self.attachments_where("ORDER BY created_us, id", &[]),
        }
    }

    /// At most `limit` reserved attachments without a connector that were made until a time, oldest
    /// first. Leaves out those of volumes in review.
    pub(crate) fn reserved_until(
        &self,
        until: SystemTime,
        limit: u32,
    ) -> Result<Vec<AttachmentRow>, SqlError> {
        self.attachments_where(
            "WHERE status = 'reserved' AND connector IS NULL AND created_us <= ?1 \
             AND volume_id NOT IN (SELECT id FROM volumes WHERE review IS NOT NULL) ORDER BY created_us, id LIMIT ?2",
            &values![until, limit],
        )
    }

    /// Volumes with attachments of one project or all, and the agents that serve them.
    pub(crate) fn volumes_attached(
        &self,
        project: Option<&str>,
    ) -> Result<Vec<(VolumeId, AgentId)>, SqlError> {
        const SQL: &str =
            "SELECT DISTINCT v.id, v.agent_id FROM attachments a JOIN volumes v ON v.id = a.volume_id";
        let map = |row: &mut Row| Ok((row.parsed(0)?, row.parsed(1)?));
        match project {
            Some(project) => self.all(&format!("{SQL} WHERE a.project = ?1"), &values![project], map),
            None => self.all(SQL, &[], map),
        }
    }

    /// Volumes with attachments that are being attached, or whose grant is on its way; those with a
    /// rotation of secrets, and those at work.
    pub(crate) fn volumes_in_motion(&self) -> Result<Vec<VolumeId>, SqlError> {
        self.all(IN_MOTION, &[], |row| row.parsed(0))
    }

    /// Stores a new attachment, or all changeable fields of an existing one.
    pub(crate) fn put_attachment(&self, row: &AttachmentRow) -> Result<(), SqlError> {
        let sql = "INSERT INTO attachments (id, volume_id, project, instance, connector, initiator, host, mountpoint, native, \
                   created_us, mode, status, access, moving, wish_epoch, wish_counter, steps, attached_us, fault, mode_asked, \
                   legacy, asked_user, asked_request, asked_us, fc_lun, claimed, cache) VALUES \
                   (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, \
                   ?24, ?25, ?26, ?27) \
                   ON CONFLICT (id) DO UPDATE SET instance = excluded.instance, mode = excluded.mode, status = excluded.status, \
                   connector = excluded.connector, initiator = excluded.initiator, host = excluded.host, \
                   mountpoint = excluded.mountpoint, native = excluded.native, access = excluded.access, \
                   moving = excluded.moving, wish_epoch = excluded.wish_epoch, wish_counter = excluded.wish_counter, \
                   steps = excluded.steps, attached_us = excluded.attached_us, fault = excluded.fault, \
                   mode_asked = excluded.mode_asked, legacy = excluded.legacy, asked_user = excluded.asked_user, \
                   asked_request = excluded.asked_request, asked_us = excluded.asked_us, fc_lun = excluded.fc_lun, \
                   claimed = excluded.claimed, cache = excluded.cache";
        let place = values![
            row.id,
            row.volume,
            &row.project,
            row.instance,
            row.connector.as_ref().map(|connector| &*connector.0),
            row.initiator.as_ref(),
            row.host.as_deref(),
            row.mountpoint.as_deref(),
            row.native,
            row.created_at
        ];
        self.write_attachment(row, sql, place.into())
    }

    /// Does as [`Db::put_attachment`], for a row that this transaction has read and whose place it
    /// has not changed. No index of places is written: SQLite would write each of them anew with
    /// every upsert.
    pub(crate) fn put_attachment_in_place(&self, row: &AttachmentRow) -> Result<(), SqlError> {
        let sql = "UPDATE attachments SET mode = ?2, status = ?3, access = ?4, moving = ?5, wish_epoch = ?6, wish_counter = ?7, \
                   steps = ?8, attached_us = ?9, fault = ?10, mode_asked = ?11, legacy = ?12, asked_user = ?13, \
                   asked_request = ?14, asked_us = ?15, fc_lun = ?16, claimed = ?17, cache = ?18 WHERE id = ?1";
        self.write_attachment(row, sql, values![row.id].into())
    }

    /// Writes an attachment by a statement of these values, followed by those that may change while
    /// the place stays.
    fn write_attachment(
        &self,
        row: &AttachmentRow,
        sql: &str,
        mut values: Vec<Bound>,
    ) -> Result<(), SqlError> {
        if !row.is_legal() {
            return Err(ILLEGAL);
        }
        let asked = row.asked.as_ref();
        values.extend(values![
            row.mode,
            row.status.as_str(),
            u32::from(row.access.number()),
            row.is_moving(),
            row.in_spec_since.epoch,
            row.in_spec_since.counter,
            serde_json::to_value(&row.steps).unwrap_or_default().to_string(),
            row.attached_at,
            row.fault.as_deref(),
            row.mode_asked,
            row.legacy,
            asked.map(|asked| asked.user.as_str()),
            asked.map(|asked| asked.request.as_str()),
            asked.map(|asked| asked.at),
            row.lun.map(|lun| u32::from(lun.0)),
            row.claimed,
            row.cache.as_str()
        ]);
        self.run(sql, &values)?;
        if row.has_grant() { Ok(()) } else { self.release_fc_luns(row) }
    }

    /// Deletes an attachment and records whose it was, and whether it was `forced`. With the last
    /// attachment of a nexus go the credentials and the LUNs of that nexus.
    pub(crate) fn detach(
        &self,
        row: &AttachmentRow,
        receipt: Option<i64>,
        forced: bool,
    ) -> Result<(), SqlError> {
        self.run("DELETE FROM attachments WHERE id = ?1", &values![row.id])?;
        let sql = "INSERT INTO detached (id, volume_id, project, initiator, receipt, detached_us, instance, host, mode, \
                   forced, asked_user, asked_request, asked_us) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
        let initiator = row.initiator.as_ref();
        let asked = row.asked.as_ref();
        self.run(
            sql,
            &values![
                row.id,
                row.volume,
                &row.project,
                initiator,
                receipt,
                self.now,
                row.instance,
                row.host.as_deref(),
                row.mode,
                forced,
                asked.map(|asked| asked.user.as_str()),
                asked.map(|asked| asked.request.as_str()),
                asked.map(|asked| asked.at)
            ],
        )?;
        if let Some(initiator) = initiator {
            let sql = "DELETE FROM nexuses WHERE volume_id = ?1 AND initiator = ?2 AND NOT EXISTS \
                       (SELECT 1 FROM attachments WHERE volume_id = ?1 AND initiator = ?2)";
            self.run(sql, &values![row.volume, initiator])?;
        }
        self.release_fc_luns(row)
    }

    /// The record of a detached attachment.
    pub(crate) fn detached(&self, id: AttachmentId) -> Result<Option<Detached>, SqlError> {
        let sql = "SELECT volume_id, project, receipt FROM detached WHERE id = ?1";
        self.one(sql, &values![id], |row| {
            Ok(Detached { volume: row.parsed(0)?, project: row.get(1)?, receipt: row.get(2)? })
        })
    }

    /// Stores how many bytes a host had not written when its grant was revoked by force. The number
    /// goes to each record of a forced detach that has none yet.
    pub(crate) fn keep_unwritten(
        &self,
        volume: VolumeId,
        host: &str,
        bytes: ByteSize,
    ) -> Result<(), SqlError> {
        let sql = "UPDATE detached SET unwritten_bytes = ?3 WHERE volume_id = ?1 AND host = ?2 AND forced = 1 \
                   AND unwritten_bytes IS NULL";
        self.run(sql, &values![volume, host, bytes.0]).map(drop)
    }

    /// The records of completed detaches, newest first.
    pub(crate) fn detach_records(
        &self,
        filter: &DetachedFilter,
        limit: u32,
    ) -> Result<Vec<DetachRecord>, SqlError> {
        let mut terms = Vec::new();
        let mut values = Vec::new();
        let mut term = |column: &str, value: Bound| {
            values.push(value);
            terms.push(format!("{column} = ?{}", values.len()));
        };
        if let Some(project) = &filter.project {
            term("d.project", project.as_str().into());
        }
        if let Some(volume) = filter.volume {
            term("d.volume_id", volume.into());
        }
        if let Some(attachment) = filter.attachment {
            term("d.id", attachment.into());
        }
        let terms = if terms.is_empty() { String::new() } else { format!("WHERE {}", terms.join(" AND ")) };
        values.push(limit.into());
        let sql = format!(
            "SELECT d.id, d.volume_id, d.project, d.initiator, d.instance, d.host, d.mode, d.forced, d.asked_user, \
             d.asked_request, d.asked_us, d.detached_us, r.body, d.unwritten_bytes FROM detached d LEFT JOIN receipts r ON r.id = d.receipt \
             {terms} ORDER BY d.detached_us DESC, d.id DESC LIMIT ?{}",
            values.len()
        );
        self.all(&sql, &values, record)
    }

    /// Attachments whose grant is being revoked, newest first.
    pub(crate) fn attachments_going(&self) -> Result<Vec<AttachmentRow>, SqlError> {
        // SQLite would follow the index of ages for an `ORDER BY`, through all attachments.
        let mut rows = self.attachments_where(GOING, &[])?;
        rows.sort_by_key(|row| Reverse((micros(row.created_at), row.id)));
        Ok(rows)
    }

    /// The statuses of a volume's attachments.
    pub(crate) fn attachment_statuses(&self, volume: VolumeId) -> Result<Vec<AttachmentStatus>, SqlError> {
        let sql = "SELECT status FROM attachments WHERE volume_id = ?1";
        self.all(sql, &values![volume], |row| status(row, 0))
    }

    /// The credentials of a nexus.
    pub(crate) fn nexus(&self, volume: VolumeId, initiator: &Iqn) -> Result<Option<Nexus>, SqlError> {
        let sql = "SELECT chap_user, secret, mutual_user, mutual_secret FROM nexuses \
                   WHERE volume_id = ?1 AND initiator = ?2";
        let (id, name) = (volume.to_string(), initiator.to_string());
        self.one(sql, &values![volume, initiator], |row| {
            let kept: String = row.get(1)?;
            let own = ChapSide { user: row.get(0)?, secret: self.open_secret(&id, &name, &kept)? };
            let mutual = match (row.get::<Option<String>>(2)?, row.get::<Option<String>>(3)?) {
                (Some(user), Some(kept)) => {
                    Some(ChapSide { user, secret: self.open_mutual(&id, &name, &kept)? })
                }
                _ => None,
            };
            Ok(Nexus(Chap { initiator: own, mutual }))
        })
    }

    /// Stores the credentials of a new nexus.
    pub(crate) fn insert_nexus(
        &self,
        volume: VolumeId,
        initiator: &Iqn,
        nexus: &Nexus,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO nexuses (volume_id, initiator, chap_user, secret, mutual_user, mutual_secret) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let Chap { initiator: own, mutual } = &nexus.0;
        let (secret, mutual_secret) = self.seal_secrets(volume, initiator, &nexus.0)?;
        self.run(
            sql,
            &values![
                volume,
                initiator,
                &own.user,
                secret,
                mutual.as_ref().map(|side| side.user.as_str()),
                mutual_secret
            ],
        )
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::clock::Clock;
    use crate::store::{Database, ForgottenRow, Store, Taker, Taking, testing, time_of};

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
        (dir, store)
    }

    /// Beside it the control: the same statement with the order of the answer.
    #[test]
    fn attachments_that_move_or_go_are_found_by_their_index() {
        let (_dir, store) = store();
        let plan = |sql: &str| {
            let sql = format!("EXPLAIN QUERY PLAN {sql}");
            store.prepare("explain", move |db| Ok(db.all(&sql, &[], |row| row.get::<String>(3))?)).unwrap()
        };
        let uses = |plan: Vec<String>, index: &str| plan.iter().any(|step| step.contains(index));
        let by_index = |plan| uses(plan, "attachments_moving");
        let going = format!("SELECT {COLUMNS} FROM attachments {GOING}");
        for sql in [going.as_str(), IN_MOTION] {
            assert!(by_index(plan(sql)), "{:?}", plan(sql));
        }
        assert!(uses(plan(IN_MOTION), "takings_open"), "{:?}", plan(IN_MOTION));
        assert!(!by_index(plan(&format!("{going} ORDER BY created_us DESC, id DESC"))));
    }

    /// A volume is in motion as long as an agent has something to do for its attachment, whatever
    /// the status says.
    #[test]
    fn volumes_are_in_motion_while_a_grant_is_on_its_way() {
        let (_dir, store) = store();
        let (id, volume) = (AttachmentId::from_u128(1), VolumeId::from_u128(2));
        let try_all = move |db: &Db<'_>| {
            testing::insert_volume(db, volume, AgentId::from_u128(9), &BTreeMap::new())?;
            for (status, number) in Access::legal() {
                let row = AttachmentRow {
                    status,
                    access: Access::of(number),
                    initiator: "iqn.2026-01.lab:a".parse().ok(),
                    native: Some(AgentId::from_u128(3)),
                    ..AttachmentRow::reserved(id, volume, "p", db.now)
                };
                db.put_attachment(&row)?;
                let served = status == AttachmentStatus::Attached && matches!(number, 20 | 21);
                let rests = served || matches!(number, 0 | 2);
                assert_eq!(db.volumes_in_motion()?.is_empty(), rests, "{status:?} {number}");
                let goes = number >= 40;
                assert_eq!(db.attachments_going()?.len(), usize::from(goes), "{status:?} {number}");
            }
            Ok(())
        };
        store.prepare("try", try_all).unwrap();
    }

    /// A volume in motion need not be one of this database. At a forgotten agent nothing is done
    /// any more.
    #[test]
    fn volumes_are_in_motion_while_access_is_being_taken_away() {
        let (_dir, store) = store();
        let (agent, volume) = (AgentId::from_u128(9), VolumeId::from_u128(2));
        let try_all = move |db: &Db<'_>| {
            let (taker, one) = (Taker::Fence(uuid::Uuid::from_u128(5)), "iqn.2026-01.lab:a".parse().unwrap());
            db.take_nexus(taker, agent, volume, &one)?;
            assert_eq!(db.volumes_in_motion()?, [volume]);
            for taking in db.takings_of(volume)? {
                db.keep_taking(&Taking { done: true, ..taking })?;
            }
            assert_eq!(db.volumes_in_motion()?, []);
            db.take_nexus(taker, agent, volume, &one)?;
            let asked = Asked { user: "u".to_owned(), request: "r".to_owned(), at: db.now };
            db.forget(&ForgottenRow { agent, name: "node1".to_owned(), storage: true, open: false, asked })?;
            assert_eq!(db.volumes_in_motion()?, []);
            Ok(())
        };
        store.prepare("try", try_all).unwrap();
    }

    /// The short statement writes all that may change while the place stays.
    #[test]
    fn a_row_in_its_place_is_written_like_any_other() {
        let (_dir, store) = store();
        let volume = VolumeId::from_u128(2);
        let try_all = move |db: &Db<'_>| {
            testing::insert_volume(db, volume, AgentId::from_u128(9), &BTreeMap::new())?;
            // The database holds whole microseconds.
            let now = time_of(micros(db.now));
            for (status, number) in Access::legal() {
                let connected = AttachmentRow {
                    instance: Some(Uuid::from_u128(4)),
                    initiator: "iqn.2026-01.lab:a".parse().ok(),
                    host: Some("host1".to_owned()),
                    mountpoint: Some("/dev/vdb".to_owned()),
                    native: Some(AgentId::from_u128(3)),
                    connector: Some(Connector::of(&Map::new())),
                    ..AttachmentRow::reserved(AttachmentId::from_u128(1), volume, "p", now)
                };
                let changed = AttachmentRow {
                    mode: Mode::ReadOnly,
                    status,
                    access: Access::of(number),
                    in_spec_since: Generation { epoch: 5, counter: 6 },
                    steps: vec![("granted".to_owned(), 7)],
                    attached_at: Some(now),
                    fault: Some("why".to_owned()),
                    mode_asked: true,
                    legacy: true,
                    asked: Some(Asked { user: "u".to_owned(), request: "r".to_owned(), at: now }),
                    lun: Some(Lun(8)),
                    claimed: true,
                    cache: Cache::Off,
                    ..connected.clone()
                };
                assert!(changed.is_in_place_of(&connected));
                db.put_attachment(&connected)?;
                db.put_attachment_in_place(&changed)?;
                assert_eq!(db.attachment(changed.id)?, Some(changed));
                db.run("DELETE FROM attachments", &[])?;
            }
            Ok(())
        };
        store.prepare("try", try_all).unwrap();
    }

    #[test]
    fn a_row_in_its_place_writes_no_index_of_places() {
        let (dir, store) = store();
        let volume = VolumeId::from_u128(2);
        let row = AttachmentRow {
            instance: Some(Uuid::from_u128(4)),
            host: Some("host1".to_owned()),
            ..AttachmentRow::reserved(AttachmentId::from_u128(1), volume, "p", SystemTime::now())
        };
        let first = row.clone();
        let insert = move |db: &Db<'_>| {
            testing::insert_volume(db, volume, AgentId::from_u128(9), &BTreeMap::new())?;
            Ok(db.put_attachment(&first)?)
        };
        store.prepare("insert", insert).unwrap();
        // Pages of the database's log that a change writes.
        let pages = |in_place| {
            let log = || std::fs::metadata(dir.path().join("mooring-controller.db-wal")).unwrap().len();
            let (before, row) = (log(), row.clone());
            let change = move |db: &Db<'_>| {
                let put = if in_place { db.put_attachment_in_place(&row) } else { db.put_attachment(&row) };
                Ok(put?)
            };
            store.prepare("change", change).unwrap();
            (log() - before) / (4096 + 24)
        };
        let (short, whole) = (pages(true), pages(false));
        assert!(short <= 2 && short < whole, "{short} pages, {whole} by the upsert");
    }

    #[test]
    fn an_attachment_that_moves_is_not_in_its_place() {
        let row = AttachmentRow::reserved(
            AttachmentId::from_u128(1),
            VolumeId::from_u128(2),
            "p",
            SystemTime::now(),
        );
        let moved = [
            AttachmentRow { id: AttachmentId::from_u128(9), ..row.clone() },
            AttachmentRow { volume: VolumeId::from_u128(9), ..row.clone() },
            AttachmentRow { project: "q".to_owned(), ..row.clone() },
            AttachmentRow { instance: Some(Uuid::nil()), ..row.clone() },
            AttachmentRow { connector: Some(Connector::of(&Map::new())), ..row.clone() },
            AttachmentRow { initiator: "iqn.2026-01.lab:a".parse().ok(), ..row.clone() },
            AttachmentRow { host: Some("h".to_owned()), ..row.clone() },
            AttachmentRow { mountpoint: Some("/dev/vdb".to_owned()), ..row.clone() },
            AttachmentRow { native: Some(AgentId::from_u128(3)), ..row.clone() },
        ];
        assert!(row.is_in_place_of(&row));
        assert!(moved.iter().all(|moved| !moved.is_in_place_of(&row)), "{moved:?}");
    }

    #[test]
    fn a_state_that_does_not_exist_is_neither_written_nor_read() {
        let (_dir, store) = store();
        let (id, volume) = (AttachmentId::from_u128(1), VolumeId::from_u128(2));
        store
            .prepare("try", move |db| {
                testing::insert_volume(db, volume, AgentId::from_u128(9), &BTreeMap::new())?;
                let row = AttachmentRow::reserved(id, volume, "p", db.now);
                let illegal = AttachmentRow { status: AttachmentStatus::Attaching, ..row.clone() };
                assert!(matches!(db.put_attachment(&illegal), Err(SqlError::Column { .. })));
                db.put_attachment(&row)?;
                // The database itself refuses it. Without its constraint, the reader does.
                let wrong = "UPDATE attachments SET status = 'attaching'";
                assert!(matches!(db.run(wrong, &[]), Err(SqlError::Sqlite(_))));
                db.run("PRAGMA ignore_check_constraints = ON", &[])?;
                db.run(wrong, &[])?;
                assert!(matches!(db.attachment(id), Err(SqlError::Column { .. })));
                db.run("UPDATE attachments SET status = 'reserved', access = 13", &[])?;
                assert!(matches!(db.attachment(id), Err(SqlError::Column { .. })));
                db.run("UPDATE attachments SET access = 0", &[])?;
                assert!(db.attachment(id)?.is_some(), "the control");
                Ok(())
            })
            .unwrap();
    }
}
