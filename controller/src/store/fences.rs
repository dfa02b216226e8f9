//! Hosts that are cut off: whom a fence concerns, and what it took away.
//!
//! What must never happen here: two fences of one name in force; a fence that is forgotten when it is lifted (it is the record
//! of who cut off whom).

use std::time::SystemTime;

use mooring_model::{AttachmentId, Initiator, VolumeId};
use uuid::Uuid;

use super::Db;
use super::attachments::Asked;
use super::sql::{Row, SqlError, values};
use crate::initiators::Initiators;

/// A fence as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FenceRow {
    /// Its id.
    pub(crate) id: Uuid,
    /// As it was asked for: the name of a host, or of an initiator.
    pub(crate) name: String,
    /// Why, for people.
    pub(crate) reason: Option<String>,
    /// Who wanted it, and since when it holds.
    pub(crate) asked: Asked,
    /// Since when it does not hold any more.
    pub(crate) lifted_at: Option<SystemTime>,
}

const COLUMNS: &str = "f.id, f.name, f.reason, f.by_user, f.by_request, f.fenced_us, f.lifted_us";

fn fence(row: &mut Row) -> Result<FenceRow, SqlError> {
    Ok(FenceRow {
        id: row.parsed(0)?,
        name: row.get(1)?,
        reason: row.get(2)?,
        asked: Asked { user: row.get(3)?, request: row.get(4)?, at: row.time(5)? },
        lifted_at: row.time_opt(6)?,
    })
}

impl Db<'_> {
    /// The fence of this name that is in force.
    pub(crate) fn fence_named(&self, name: &str) -> Result<Option<FenceRow>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM fences f WHERE f.name = ?1 AND f.lifted_us IS NULL");
        self.one(&sql, &values![name], fence)
    }

    /// The fence in force that concerns one of these initiators, or all of their host.
    pub(crate) fn fence_of(
        &self,
        initiators: &Initiators,
        host: Option<&str>,
    ) -> Result<Option<FenceRow>, SqlError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM fences f WHERE f.lifted_us IS NULL AND (f.name = ?2 OR EXISTS \
             (SELECT 1 FROM fenced x WHERE x.initiator = ?1 AND x.fence_id = f.id)) ORDER BY f.fenced_us LIMIT 1"
        );
        for initiator in initiators.each() {
            let found = self.one(&sql, &values![initiator, host], fence)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Whom the fences in force concern, oldest fence first: its name, and an initiator of it if it knows any.
    pub(crate) fn fenced_now(&self) -> Result<Vec<(String, Option<Initiator>)>, SqlError> {
        let sql = "SELECT f.name, x.initiator FROM fences f LEFT JOIN fenced x ON x.fence_id = f.id \
                   WHERE f.lifted_us IS NULL ORDER BY f.fenced_us";
        self.all(sql, &[], |row| Ok((row.get(0)?, row.parsed_opt(1)?)))
    }

    /// Fences, newest first: those in force, or all that ever were.
    pub(crate) fn fences(&self, lifted: bool, limit: u32) -> Result<Vec<FenceRow>, SqlError> {
        let which = if lifted { "" } else { "WHERE f.lifted_us IS NULL" };
        let sql = format!("SELECT {COLUMNS} FROM fences f {which} ORDER BY f.fenced_us DESC, f.id LIMIT ?1");
        self.all(&sql, &values![limit], fence)
    }

    /// Keeps a new fence.
    pub(crate) fn insert_fence(&self, row: &FenceRow) -> Result<(), SqlError> {
        let sql = "INSERT INTO fences (id, name, reason, by_user, by_request, fenced_us, lifted_us) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let FenceRow { id, name, reason, asked, lifted_at } = row;
        let Asked { user, request, at } = asked;
        self.run(sql, &values![*id, name, reason.as_deref(), user, request, *at, *lifted_at]).map(drop)
    }

    /// It does not hold any more.
    pub(crate) fn lift_fence(&self, id: Uuid) -> Result<(), SqlError> {
        self.run("UPDATE fences SET lifted_us = ?2 WHERE id = ?1", &values![id, self.now]).map(drop)
    }

    /// It concerns this initiator.
    pub(crate) fn fence_initiator(&self, id: Uuid, initiator: &Initiator) -> Result<(), SqlError> {
        let sql = "INSERT INTO fenced (initiator, fence_id) VALUES (?1, ?2) \
                   ON CONFLICT (initiator, fence_id) DO NOTHING";
        self.run(sql, &values![initiator, id]).map(drop)
    }

    /// Whom it concerns.
    pub(crate) fn fenced_initiators(&self, id: Uuid) -> Result<Vec<Initiator>, SqlError> {
        let sql = "SELECT initiator FROM fenced WHERE fence_id = ?1 ORDER BY initiator";
        self.all(sql, &values![id], |row| row.parsed(0))
    }

    /// It takes this attachment away.
    pub(crate) fn fence_part(
        &self,
        id: Uuid,
        attachment: AttachmentId,
        volume: VolumeId,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO fence_parts (fence_id, attachment_id, volume_id) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (fence_id, attachment_id) DO NOTHING";
        self.run(sql, &values![id, attachment, volume]).map(drop)
    }

    /// What it took away, or is taking away.
    pub(crate) fn fence_parts(&self, id: Uuid) -> Result<Vec<(AttachmentId, VolumeId)>, SqlError> {
        let sql =
            "SELECT attachment_id, volume_id FROM fence_parts WHERE fence_id = ?1 ORDER BY attachment_id";
        self.all(sql, &values![id], |row| Ok((row.parsed(0)?, row.parsed(1)?)))
    }

    /// Under which names a host of connectors logs in. A fence is rare: it may look at every attachment.
    pub(crate) fn initiators_of_host(&self, host: &str) -> Result<Vec<Initiator>, SqlError> {
        let sql = "SELECT DISTINCT initiator FROM attachments WHERE host = ?1 AND initiator IS NOT NULL \
                   ORDER BY initiator";
        let of_host = self.all(sql, &values![host], |row| row.parsed::<Initiators>(0))?;
        Ok(of_host.iter().flat_map(Initiators::each).collect())
    }

    /// Volumes that a nexus of this initiator has an attachment of.
    pub(crate) fn volumes_of_initiator(&self, initiator: &Initiator) -> Result<Vec<VolumeId>, SqlError> {
        let sql = match initiator {
            Initiator::Iscsi(_) => {
                "SELECT DISTINCT volume_id FROM attachments WHERE initiator = ?1 ORDER BY volume_id"
            }
            // One of several ports: no name is a part of another one.
            Initiator::Fc(_) => {
                "SELECT DISTINCT volume_id FROM attachments WHERE REPLACE(initiator, ?1, '') <> initiator ORDER BY volume_id"
            }
        };
        self.all(sql, &values![initiator], |row| row.parsed(0))
    }
}
