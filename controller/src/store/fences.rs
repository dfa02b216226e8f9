//! Fences of hosts: the initiators that a fence concerns, and the attachments that it ended.
//!
//! What must never happen here: two fences of one name in force; a fence that is deleted when it is
//! lifted (it is the record of who fenced whom).

use std::collections::BTreeSet;
use std::time::SystemTime;

use mooring_model::{AttachmentId, Initiator, VolumeId};
use uuid::Uuid;

use super::Db;
use super::attachments::Asked;
use super::sql::{Row, SqlError, values};
use crate::initiators::Initiators;

/// A fence as the database holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FenceRow {
    /// The fence's id.
    pub(crate) id: Uuid,
    /// The name of the host or initiator, as it was requested.
    pub(crate) name: String,
    /// A reason for people.
    pub(crate) reason: Option<String>,
    /// The operator who requested the fence, and the time since which it holds.
    pub(crate) asked: Asked,
    /// The time at which the fence was lifted; `None` while it is in force.
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

/// Condition of attachments that count when another host asks for their initiator name.
const COUNTS: &str = "a.access >= 10 AND (a.claimed = 0 OR a.volume_id = ?3 OR ?4 = 1)";

/// The statement for an attachment of another host than `?2` under the iSCSI name `?1`. It comes
/// from both sides, so that the many rows of the host itself are not read.
fn of_other_host() -> String {
    let side = |order: &str| {
        format!("SELECT a.id FROM attachments a WHERE a.initiator = ?1 AND a.host {order} ?2 AND {COUNTS}")
    };
    format!("{} UNION ALL {} LIMIT 1", side("<"), side(">"))
}

/// Volumes of an iSCSI name.
const OF_INITIATOR: &str =
    "SELECT DISTINCT volume_id FROM attachments WHERE initiator = ?1 ORDER BY volume_id";

impl Db<'_> {
    /// The fence in force with this name.
    pub(crate) fn fence_named(&self, name: &str) -> Result<Option<FenceRow>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM fences f WHERE f.name = ?1 AND f.lifted_us IS NULL");
        self.one(&sql, &values![name], fence)
    }

    /// The fence in force that concerns one of these initiators, or their whole host.
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

    /// The names of the fences in force, oldest first, each with an initiator that it concerns if
    /// it knows one.
    pub(crate) fn fenced_now(&self) -> Result<Vec<(String, Option<Initiator>)>, SqlError> {
        let sql = "SELECT f.name, x.initiator FROM fences f LEFT JOIN fenced x ON x.fence_id = f.id \
                   WHERE f.lifted_us IS NULL ORDER BY f.fenced_us";
        self.all(sql, &[], |row| Ok((row.get(0)?, row.parsed_opt(1)?)))
    }

    /// Fences, newest first: all if `lifted`, else only those in force.
    pub(crate) fn fences(&self, lifted: bool, limit: u32) -> Result<Vec<FenceRow>, SqlError> {
        let which = if lifted { "" } else { "WHERE f.lifted_us IS NULL" };
        let sql = format!("SELECT {COLUMNS} FROM fences f {which} ORDER BY f.fenced_us DESC, f.id LIMIT ?1");
        self.all(&sql, &values![limit], fence)
    }

    /// Stores a new fence.
    pub(crate) fn insert_fence(&self, row: &FenceRow) -> Result<(), SqlError> {
        let sql = "INSERT INTO fences (id, name, reason, by_user, by_request, fenced_us, lifted_us) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let FenceRow { id, name, reason, asked, lifted_at } = row;
        let Asked { user, request, at } = asked;
        self.run(sql, &values![*id, name, reason.as_deref(), user, request, *at, *lifted_at]).map(drop)
    }

    /// Lifts a fence.
    pub(crate) fn lift_fence(&self, id: Uuid) -> Result<(), SqlError> {
        self.run("UPDATE fences SET lifted_us = ?2 WHERE id = ?1", &values![id, self.now]).map(drop)
    }

    /// Adds an initiator to those that a fence concerns.
    pub(crate) fn fence_initiator(&self, id: Uuid, initiator: &Initiator) -> Result<(), SqlError> {
        let sql = "INSERT INTO fenced (initiator, fence_id) VALUES (?1, ?2) \
                   ON CONFLICT (initiator, fence_id) DO NOTHING";
        self.run(sql, &values![initiator, id]).map(drop)
    }

    /// The initiators that a fence concerns.
    pub(crate) fn fenced_initiators(&self, id: Uuid) -> Result<Vec<Initiator>, SqlError> {
        let sql = "SELECT initiator FROM fenced WHERE fence_id = ?1 ORDER BY initiator";
        self.all(sql, &values![id], |row| row.parsed(0))
    }

    /// Adds an attachment to those that a fence ends.
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

    /// The attachments that a fence ended or is ending.
    pub(crate) fn fence_parts(&self, id: Uuid) -> Result<Vec<(AttachmentId, VolumeId)>, SqlError> {
        let sql =
            "SELECT attachment_id, volume_id FROM fence_parts WHERE fence_id = ?1 ORDER BY attachment_id";
        self.all(sql, &values![id], |row| Ok((row.parsed(0)?, row.parsed(1)?)))
    }

    /// The initiator names of a host in connectors, as services and admins gave them. A fence is
    /// rare: the statement may read every attachment.
    pub(crate) fn initiators_of_host(&self, host: &str) -> Result<Vec<Initiator>, SqlError> {
        let sql = "SELECT DISTINCT initiator FROM attachments WHERE host = ?1 AND initiator IS NOT NULL AND claimed = 0 \
                   ORDER BY initiator";
        let of_host = self.all(sql, &values![host], |row| row.parsed::<Initiators>(0))?;
        Ok(of_host.iter().flat_map(Initiators::each).collect())
    }

    /// The initiator names that only users gave for a host: one line for each attachment whose
    /// grant may be at an agent.
    pub(crate) fn claims_of_host(
        &self,
        host: &str,
    ) -> Result<Vec<(Initiators, AttachmentId, VolumeId)>, SqlError> {
        let sql = "SELECT initiator, id, volume_id FROM attachments WHERE host = ?1 AND initiator IS NOT NULL AND claimed = 1 \
                   AND access >= 10 ORDER BY initiator, id";
        self.all(sql, &values![host], |row| Ok((row.parsed(0)?, row.parsed(1)?, row.parsed(2)?)))
    }

    /// Hosts with this initiator name, as services, admins and enrolled agents say.
    pub(crate) fn hosts_under(&self, initiator: &Initiator) -> Result<BTreeSet<String>, SqlError> {
        // No name is part of another one's text, except in those of several ports.
        let sql = "SELECT DISTINCT host, initiator FROM attachments WHERE claimed = 0 AND host IS NOT NULL \
                   AND initiator IS NOT NULL AND REPLACE(initiator, ?1, '') <> initiator";
        let found = self
            .all(sql, &values![initiator], |row| Ok((row.get::<String>(0)?, row.parsed::<Initiators>(1)?)))?;
        let mut hosts: BTreeSet<_> =
            found.into_iter().filter(|(_, of)| of.has(initiator)).map(|(host, _)| host).collect();
        for agent in self.agents()? {
            if agent.initiators().contains(initiator) {
                hosts.insert(agent.name);
            }
        }
        Ok(hosts)
    }

    /// An attachment of another host under one of these initiator names. `claimed` is `true` if a
    /// user asks. For a service or an admin, users' claims about other volumes do not count.
    pub(crate) fn other_host(
        &self,
        initiators: &Initiators,
        host: &str,
        volume: VolumeId,
        claimed: bool,
    ) -> Result<Option<AttachmentId>, SqlError> {
        let values = |one: &Initiator| values![one, host, volume, claimed];
        for one in initiators.each() {
            let found = match &one {
                Initiator::Iscsi(_) => self.one(&of_other_host(), &values(&one), |row| row.parsed(0))?,
                Initiator::Fc(_) => {
                    let sql = format!(
                        "SELECT DISTINCT a.id, a.initiator FROM fc_luns l JOIN attachments a ON a.volume_id = l.volume_id \
                         WHERE l.wwpn = ?1 AND l.volume_id IS NOT NULL AND a.initiator IS NOT NULL AND a.host <> ?2 AND {COUNTS}"
                    );
                    let all = self
                        .all(&sql, &values(&one), |row| Ok((row.parsed(0)?, row.parsed::<Initiators>(1)?)))?;
                    all.into_iter().find(|(_, of)| of.has(&one)).map(|(id, _)| id)
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Volumes that a nexus of this initiator has an attachment to.
    pub(crate) fn volumes_of_initiator(&self, initiator: &Initiator) -> Result<Vec<VolumeId>, SqlError> {
        let sql = match initiator {
            Initiator::Iscsi(_) => OF_INITIATOR,
            // One of several ports: no name is part of another one.
            Initiator::Fc(_) => {
                "SELECT DISTINCT volume_id FROM attachments WHERE REPLACE(initiator, ?1, '') <> initiator ORDER BY volume_id"
            }
        };
        self.all(sql, &values![initiator], |row| row.parsed(0))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mooring_model::{AgentId, Lun, Wwpn};

    use super::*;
    use crate::clock::Clock;
    use crate::domain::AttachmentStatus;
    use crate::store::sql::Value;
    use crate::store::{Abort, Access, AttachmentRow, Database, Store, sqlite, testing};

    const VOLUMES: [VolumeId; 2] = [VolumeId::from_u128(1), VolumeId::from_u128(2)];
    const PORTS: &str = "20:00:52:54:00:14:00:0a,20:00:52:54:00:14:00:0b";
    const ONE: &str = "20:00:52:54:00:14:00:0b";

    fn put(
        db: &Db<'_>,
        id: u128,
        volume: VolumeId,
        initiators: &str,
        host: &str,
        claimed: bool,
    ) -> Result<AttachmentId, Abort> {
        let initiators: Initiators = initiators.parse().unwrap();
        let id = AttachmentId::from_u128(id);
        let lun = initiators.ports().map(|_| Lun(1));
        if let (Some(ports), Some(lun)) = (initiators.ports(), lun) {
            db.take_fc_lun(AgentId::from_u128(9), ports, lun, volume)?;
        }
        let reserved = AttachmentRow::reserved(id, volume, "p", db.now);
        db.put_attachment(&AttachmentRow {
            initiator: Some(initiators),
            host: Some(host.to_owned()),
            access: Access::of(20),
            status: AttachmentStatus::Attached,
            claimed,
            lun,
            ..reserved
        })?;
        Ok(id)
    }

    #[test]
    fn a_name_is_one_hosts_over_both_transports() {
        for (had, asked) in [
            ("iqn.2026-01.lab:a", "iqn.2026-01.lab:a"),
            // An iSCSI name, although it has the digits of a port.
            ("naa.200052540014000b", "naa.200052540014000b"),
            (PORTS, ONE),
            (ONE, PORTS),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let store =
                Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
            let work = move |db: &Db<'_>| {
                for volume in VOLUMES {
                    testing::insert_volume(db, volume, AgentId::from_u128(9), &BTreeMap::new())?;
                }
                let [own, other] = VOLUMES;
                let asked: Initiators = asked.parse().unwrap();
                let at = |host: &str, volume, claimed| db.other_host(&asked, host, volume, claimed);
                assert_eq!(at("host1", own, false)?, None);
                let claim = put(db, 1, own, had, "mine", true)?;
                // A user's claim counts for users, and for a caller that would share the nexus.
                assert_eq!((at("host1", own, false)?, at("host1", own, true)?), (Some(claim), Some(claim)));
                assert_eq!((at("host1", other, false)?, at("host1", other, true)?), (None, Some(claim)));
                assert_eq!(at("mine", other, true)?, None);
                let bound = put(db, 2, own, "iqn.2026-01.lab:ab", "host2", false)?;
                assert_eq!(at("host1", other, false)?, None, "{bound}: another name");
                db.detach(&db.attachment(claim)?.unwrap(), None, false)?;
                let bound = put(db, 3, own, had, "host2", false)?;
                for host in ["host1", "host3"] {
                    assert_eq!(at(host, other, false)?, Some(bound), "{host}");
                }
                assert_eq!(at("host2", other, false)?, None);
                let first = asked.each().last().unwrap();
                assert_eq!(db.hosts_under(&first)?, ["host2".to_owned()].into());
                Ok(())
            };
            store.prepare("try", work).unwrap();
        }
        assert!(ONE.parse::<Wwpn>().is_ok());
    }

    #[test]
    fn attachments_of_a_name_are_found_by_their_index() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
        let by_index = |sql: &str, values: &'static [&'static str]| {
            let sql = format!("EXPLAIN QUERY PLAN {sql}");
            let explain = move |db: &Db<'_>| {
                let values: Vec<_> = values.iter().copied().map(Value::from).collect();
                Ok(db.all(&sql, &values, |row| row.get::<String>(3))?)
            };
            let plan = store.prepare("explain", explain).unwrap();
            plan.iter().filter(|step| step.contains("attachments_by_initiator")).count()
        };
        // One search for each side.
        assert_eq!(by_index(&of_other_host(), &["iqn.2026-01.lab:a", "host1", "v", "0"]), 2);
        assert_eq!(by_index(OF_INITIATOR, &["iqn.2026-01.lab:a"]), 1);
    }

    #[test]
    fn rows_of_before_are_claims_where_two_disagree() {
        let dir = tempfile::tempdir().unwrap();
        let conn = rusqlite::Connection::open(dir.path().join(sqlite::FILE_NAME)).unwrap();
        let schemas = [
            include_str!("schema/1.sql"),
            include_str!("schema/2.sql"),
            include_str!("schema/3.sql"),
            include_str!("schema/4.sql"),
            include_str!("schema/5.sql"),
            include_str!("schema/6.sql"),
        ];
        for schema in schemas {
            conn.execute_batch(schema).unwrap();
        }
        let kind = Uuid::nil();
        conn.execute_batch(&format!(
            "INSERT INTO volume_types (id, name, is_public, created_us) VALUES ('{kind}', 'old', 1, 1); \
             INSERT INTO volumes (id, size_gib, type_id, multiattach, status, attach_status, project, user_id, metadata, \
             agent_id, pool, created_us) VALUES ('{}', 1, '{kind}', 1, 'in-use', 'attached', 'p', 'u', '{{}}', \
             '00000000-0000-0000-0000-000000000009', 'vg0', 1)",
            VOLUMES[0]
        ))
        .unwrap();
        for (id, initiator, host) in
            [(1, "a", "host1"), (2, "a", "host1"), (3, "b", "host2"), (4, "b", "host3")]
        {
            let id = AttachmentId::from_u128(id);
            conn.execute_batch(&format!(
                "INSERT INTO attachments (id, volume_id, project, mode, status, initiator, host, grant_wanted, granted, held, \
                 connect_wanted, connect_ever, forced, wish_epoch, wish_counter, steps, created_us) VALUES ('{id}', \
                 '{}', 'p', 'rw', 'attached', 'iqn.2026-01.lab:{initiator}', '{host}', 1, 1, 1, 0, 0, 0, 1, 1, '[]', 0)",
                VOLUMES[0]
            ))
            .unwrap();
        }
        conn.pragma_update(None, "user_version", 6).unwrap();
        drop(conn);
        let store = Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
        let claimed = |db: &Db<'_>| {
            let rows = db.attachments(None)?;
            Ok(rows.into_iter().filter(|row| row.claimed).map(|row| row.id).collect::<Vec<_>>())
        };
        assert_eq!(store.prepare("read", claimed).unwrap(), [3, 4].map(AttachmentId::from_u128));
    }
}
