//! Volumes: their rows, and the one place that writes their status.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use mooring_model::{AgentId, ExistingLv, Iqn, Naa, PoolName, Portal, Source, VolumeId, VolumeKind, Wwpn};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::Db;
use super::identities::naa_of;
use super::operations::{self, KeptOperation, KeptOperations};
use super::reviews::{self, Review};
use super::sql::{Row, SqlError, Value as Bound, values};
use crate::domain::{AttachStatus, AttachmentStatus, Hints, HostImage, VolumeStatus};
use crate::rules::Operation;
use crate::rules::promised::{Announced, Promised, derived};

/// A volume as the database holds it.
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
    /// The Fibre Channel ports that last showed the volume.
    pub(crate) fc_ports: BTreeSet<Wwpn>,
    pub(crate) review: Option<Review>,
    pub(crate) created_at: SystemTime,
    pub(crate) updated_at: Option<SystemTime>,
    pub(crate) fault: Option<String>,
    pub(crate) bootable: bool,
    pub(crate) readonly: Option<bool>,
    pub(crate) zone: String,
    pub(crate) reserved: u32,
    pub(crate) reserved_until: Option<SystemTime>,
    pub(crate) holds: u32,
    pub(crate) holds_until: Option<SystemTime>,
    pub(crate) said_status: Option<VolumeStatus>,
    pub(crate) hints: Hints,
    pub(crate) tried: Vec<Tried>,
    /// The present size in GiB while the volume grows to `size_gib`; otherwise `None`.
    pub(crate) grows_from: Option<u32>,
    /// The volume that this snapshot belongs to; `None` if the row is a volume.
    pub(crate) snapshot_of: Option<VolumeId>,
    /// The source of the volume's contents.
    pub(crate) source: Option<Source>,
    /// `true` if the agent is known to have the volume.
    pub(crate) taken: bool,
    /// The rows of `volume_operations`.
    pub(crate) kept: KeptOperations,
}

/// A pool that could not take a volume, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// The pool's agent.
    pub(crate) agent: AgentId,
    /// The pool's name at the agent.
    pub(crate) pool: String,
    /// The agent's error text.
    pub(crate) why: String,
}

impl VolumeRow {
    /// Returns `true` if the volume is on a pool. A volume that never found a place is in error,
    /// and no agent knows of it.
    pub(crate) fn is_placed(&self) -> bool {
        !self.pool.is_empty()
    }

    /// Returns `true` if the volume's pool could not make it. The agent first removes what it has
    /// of the volume; then the volume moves to another pool.
    pub(crate) fn is_leaving(&self) -> bool {
        self.operation == Some(Operation::Creating) && self.was_tried()
    }

    /// Returns `true` if the volume's present pool failed to make it.
    pub(crate) fn was_tried(&self) -> bool {
        self.tried.iter().any(|tried| tried.agent == self.agent && tried.pool == self.pool)
    }

    /// The size that users have, in GiB: the old size until the growth is complete.
    pub(crate) fn served_gib(&self) -> u32 {
        self.grows_from.unwrap_or(self.size_gib)
    }

    /// Returns `true` if the volume exists and its exports have specs: it has no operation, or only
    /// grows.
    pub(crate) fn is_served(&self) -> bool {
        self.operation.is_none_or(Operation::is_served)
    }

    /// The volume that this volume was made from.
    pub(crate) fn made_from_volume(&self) -> Option<VolumeId> {
        match self.source {
            Some(Source::Volume(id)) if self.snapshot_of.is_none() => Some(id),
            _ => None,
        }
    }

    /// The snapshot that this volume was made from.
    pub(crate) fn made_from_snapshot(&self) -> Option<VolumeId> {
        match self.source {
            Some(Source::Snapshot(id)) => Some(id),
            _ => None,
        }
    }

    /// The foreign LV that this volume is to become, until the agent has taken it over.
    pub(crate) fn takes(&self) -> Option<ExistingLv> {
        let taken_over = self.kept.iter().find_map(|kept| match kept {
            KeptOperation::Takes(lv) => Some(lv.clone()),
            _ => None,
        });
        taken_over.filter(|_| !self.taken)
    }

    /// The image that the volume is copied from, until the agent is known to have all of it.
    pub(crate) fn image(&self) -> Option<HostImage> {
        let coming = self.operation.is_some_and(Operation::is_coming);
        self.hints.image.clone().filter(|_| coming && self.snapshot_of.is_none())
    }

    /// Makes the volume take over this LV.
    pub(crate) fn set_takes(&mut self, lv: &ExistingLv) {
        self.kept.put(KeptOperation::Takes(lv.clone()));
    }

    /// The volume's kind at its agent.
    pub(crate) fn kind(&self) -> VolumeKind {
        if self.snapshot_of.is_some() { VolumeKind::Snapshot } else { VolumeKind::Volume }
    }

    /// The volume's pool, as its agent knows it; `None` without a pool, or if the name cannot be
    /// one.
    pub(crate) fn pool_name(&self) -> Option<PoolName> {
        self.pool.parse().ok()
    }

    /// Returns `true` if a thin pool holds the volume's blocks: it can have snapshots and be a
    /// source of volumes.
    pub(crate) fn is_thin(&self) -> bool {
        self.pool_name().is_some_and(|pool| pool.thin)
    }

    /// Returns `true` if a detach was announced (`os-begin_detaching`), and neither begun nor taken
    /// back.
    pub(crate) fn is_held(&self) -> bool {
        self.holds > 0
    }
}

pub(super) const COLUMNS: &str = "id, name, description, size_gib, type_id, multiattach, operation, status, \
                       attach_status, project, user_id, metadata, agent_id, pool, target, naa, portals, \
                       review, created_us, updated_us, fault, bootable, readonly, zone, reserved, holds, \
                       holds_until_us, said_status, placement_hints, tried, review_kind, grows_from, fc_ports, \
                       snapshot_of, source_volume, source_snapshot, taken_us, \
                       (SELECT '[' || string_agg('[\"' || o.kind || '\",' || CAST(o.since_us AS TEXT) || ',' || \
                       o.payload || ']', ',') || ']' FROM volume_operations o WHERE o.volume_id = volumes.id), reserved_until_us";

/// The statement for volumes with announcements of one kind. Each has an index of its own: every
/// controller asks again and again.
pub(super) const fn announced_sql(what: Announced) -> &'static str {
    match what {
        Announced::Attachments => "SELECT id, reserved_until_us FROM volumes WHERE reserved > 0",
        Announced::Detaches => "SELECT id, holds_until_us FROM volumes WHERE holds > 0",
    }
}

pub(super) fn volume(row: &mut Row) -> Result<VolumeRow, SqlError> {
    // One row with a word of a later release must hide no other row.
    let word: Option<String> = row.get(6)?;
    let operation = word.as_deref().map(Operation::from_stored);
    let attached: String = row.get(8)?;
    let attach_status = AttachStatus::from_word(&attached);
    let unknown = word
        .filter(|_| operation == Some(Operation::Unknown))
        .or_else(|| Some(attached).filter(|_| attach_status.is_none()));
    let is_unknown = unknown.is_some();
    let operation = if is_unknown { Some(Operation::Unknown) } else { operation };
    let status: String = row.get(7)?;
    let status = VolumeStatus::from_word(&status).filter(|_| !is_unknown).unwrap_or(VolumeStatus::Error);
    let naa: Option<String> = row.get(15)?;
    let portals: String = row.get(16)?;
    let said: Option<String> = row.get(27)?;
    let fc_ports: String = row.get(32)?;
    let snapshot_of: Option<VolumeId> = row.parsed_opt(33)?;
    let made_from = row.parsed_opt(34)?.map(Source::Volume);
    let source = snapshot_of.map(Source::Volume).or(made_from).or(row.parsed_opt(35)?.map(Source::Snapshot));
    Ok(VolumeRow {
        id: row.parsed(0)?,
        name: row.get(1)?,
        description: row.get(2)?,
        size_gib: row.get(3)?,
        type_id: row.parsed(4)?,
        multiattach: row.get(5)?,
        operation,
        status,
        // A volume that may be attached is shown as attached.
        attach_status: attach_status.unwrap_or(AttachStatus::Attached),
        project: row.get(9)?,
        user: row.get(10)?,
        metadata: row.json(11)?,
        agent: row.parsed(12)?,
        pool: row.get(13)?,
        target: row.parsed_opt(14)?,
        naa: naa.as_deref().and_then(Naa::from_hex),
        portals: portals.split_whitespace().filter_map(|portal| portal.parse().ok()).collect(),
        review: reviews::review(row, 17, 30)?.or_else(|| unknown.as_deref().map(Review::of_unknown)),
        created_at: row.time(18)?,
        updated_at: row.time_opt(19)?,
        fault: row.get(20)?,
        bootable: row.get(21)?,
        readonly: row.get(22)?,
        zone: row.get(23)?,
        reserved: row.get(24)?,
        reserved_until: row.time_opt(38)?,
        holds: row.get(25)?,
        holds_until: row.time_opt(26)?,
        said_status: said.as_deref().map(|word| VolumeStatus::from_word(word).unwrap_or(VolumeStatus::Error)),
        hints: Hints::from_kept(&row.json(28)?),
        tried: row.json(29)?,
        grows_from: row.get(31)?,
        fc_ports: fc_ports.split_whitespace().filter_map(|port| port.parse().ok()).collect(),
        snapshot_of,
        source,
        taken: row.time_opt(36)?.is_some(),
        kept: operations::read(row, 37)?,
    })
}

impl Db<'_> {
    /// One volume.
    pub(crate) fn volume(&self, id: VolumeId) -> Result<Option<VolumeRow>, SqlError> {
        self.one(&format!("SELECT {COLUMNS} FROM volumes WHERE id = ?1"), &values![id], volume)
    }

    pub(super) fn volumes_where(&self, rest: &str, values: &[Bound]) -> Result<Vec<VolumeRow>, SqlError> {
        self.all(&format!("SELECT {COLUMNS} FROM volumes {rest}"), values, volume)
    }

    /// Volumes that one storage agent serves.
    pub(crate) fn volumes_on(&self, agent: AgentId) -> Result<Vec<VolumeRow>, SqlError> {
        self.volumes_where("WHERE agent_id = ?1", &values![agent])
    }

    /// A volume's snapshots, oldest first.
    pub(crate) fn snapshots_of(&self, volume: VolumeId) -> Result<Vec<VolumeRow>, SqlError> {
        self.volumes_where("WHERE snapshot_of = ?1 ORDER BY created_us, id", &values![volume])
    }

    /// A volume or snapshot that is at present being made from this source.
    pub(crate) fn being_made_from(&self, source: VolumeId) -> Result<Option<VolumeId>, SqlError> {
        let sql = "SELECT id FROM volumes WHERE operation = 'creating' AND \
                   (source_volume = ?1 OR source_snapshot = ?1 OR snapshot_of = ?1) LIMIT 1";
        self.one(sql, &values![source], |row| row.parsed(0))
    }

    /// Stores a volume or snapshot that exists already, with its identity, even if another row has
    /// that identity.
    pub(crate) fn insert_found_volume(&self, new: &VolumeRow) -> Result<(), SqlError> {
        let naa = new.naa.clone().unwrap_or_else(|| naa_of(new.id));
        self.note_identities(&[(naa_of(new.id), new.id), (naa.clone(), new.id)])?;
        let sql = "INSERT INTO volumes (id, name, description, size_gib, type_id, multiattach, operation, status, \
                   attach_status, project, user_id, metadata, agent_id, pool, created_us, bootable, readonly, zone, \
                   placement_hints, tried, grows_from, snapshot_of, source_volume, source_snapshot, naa) VALUES \
                   (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
                   ?22, ?23, ?24, ?25)";
        self.run(
            sql,
            &values![
                new.id,
                new.name.as_deref(),
                new.description.as_deref(),
                new.size_gib,
                new.type_id,
                new.multiattach,
                new.operation.map(|operation| operation.status().as_str()),
                new.status.as_str(),
                new.attach_status.as_str(),
                &new.project,
                &new.user,
                metadata_text(&new.metadata),
                new.agent,
                &new.pool,
                new.created_at,
                new.bootable,
                new.readonly,
                &new.zone,
                Value::Object(new.hints.kept()).to_string(),
                serde_json::to_value(&new.tried).unwrap_or_default().to_string(),
                new.grows_from,
                new.snapshot_of,
                new.made_from_volume(),
                new.made_from_snapshot(),
                naa.as_str()
            ],
        )?;
        new.kept.iter().try_for_each(|kept| self.keep_operation(new.id, kept))
    }

    /// Stores the fields that users may change.
    pub(crate) fn update_volume(&self, changed: &VolumeRow) -> Result<(), SqlError> {
        let sql =
            "UPDATE volumes SET name = ?2, description = ?3, metadata = ?4, updated_us = ?5 WHERE id = ?1";
        let (name, description) = (changed.name.as_deref(), changed.description.as_deref());
        self.run(sql, &values![changed.id, name, description, metadata_text(&changed.metadata), self.now])
            .map(drop)
    }

    /// Begins or ends an operation, with its fault.
    pub(crate) fn set_operation(
        &self,
        id: VolumeId,
        operation: Option<Operation>,
        fault: Option<&str>,
    ) -> Result<(), SqlError> {
        let word = operation.map(|operation| operation.status().as_str());
        // A volume without an operation exists at its agent.
        let taken = operation.is_none().then_some(self.now);
        let sql =
            "UPDATE volumes SET operation = ?2, fault = ?3, taken_us = COALESCE(taken_us, ?4) WHERE id = ?1";
        self.run(sql, &values![id, word, fault, taken])?;
        self.derive_status(id)
    }

    /// Begins a growth. The present size is kept beside the new one, and users see the present
    /// size.
    pub(crate) fn begin_growth(&self, id: VolumeId, to_gib: u32) -> Result<(), SqlError> {
        let sql =
            "UPDATE volumes SET grows_from = size_gib, size_gib = ?2 WHERE id = ?1 AND grows_from IS NULL";
        self.run(sql, &values![id, to_gib])?;
        self.set_operation(id, Some(Operation::Extending), None)
    }

    /// Completes a growth.
    pub(crate) fn end_growth(&self, id: VolumeId) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET grows_from = NULL, updated_us = ?2 WHERE id = ?1";
        self.run(sql, &values![id, self.now])?;
        self.set_operation(id, None, None)
    }

    /// Ends a growth that failed: the volume has its old size, and the old size is desired again.
    pub(crate) fn fail_growth(&self, id: VolumeId, why: &str) -> Result<(), SqlError> {
        let sql =
            "UPDATE volumes SET size_gib = COALESCE(grows_from, size_gib), grows_from = NULL WHERE id = ?1";
        self.run(sql, &values![id])?;
        self.set_operation(id, Some(Operation::ErrorExtending), Some(why))
    }

    /// Ends a growth that was taken back: the volume has its old size and no fault.
    pub(crate) fn return_growth(&self, id: VolumeId) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET size_gib = COALESCE(grows_from, size_gib), grows_from = NULL, updated_us = ?2 WHERE id = ?1";
        self.run(sql, &values![id, self.now])?;
        self.set_operation(id, None, None)
    }

    /// Derives the status from the present state. Every transaction that changes an attachment or
    /// an operation calls this.
    pub(crate) fn derive_status(&self, id: VolumeId) -> Result<(), SqlError> {
        let Some(volume) = self.volume(id)? else { return Ok(()) };
        self.derive_status_of(&volume, &self.attachment_statuses(id)?)
    }

    /// Derives the status of a volume that was read earlier in this transaction. The words of a
    /// later release stay as they are: that release derives them.
    pub(crate) fn derive_status_of(
        &self,
        volume: &VolumeRow,
        attachments: &[AttachmentStatus],
    ) -> Result<(), SqlError> {
        if volume.operation == Some(Operation::Unknown) {
            return Ok(());
        }
        let promised = Promised { reserved: volume.reserved, held: volume.is_held() };
        let (mut status, attach_status) = derived(volume.operation, attachments, promised);
        if volume.operation.is_none() {
            status = volume.said_status.unwrap_or(status);
        }
        if (status, attach_status) == (volume.status, volume.attach_status) {
            return Ok(());
        }
        let sql = "UPDATE volumes SET status = ?2, attach_status = ?3, updated_us = ?4 WHERE id = ?1";
        self.run(sql, &values![volume.id, status.as_str(), attach_status.as_str(), self.now]).map(drop)
    }

    /// Sets the number of expected attachments that have no row yet, with the mark of the last
    /// announcement. The mark is the wall-clock time at which the announcement would end. It
    /// identifies the announcement, and decides nothing.
    pub(crate) fn set_reserved(
        &self,
        id: VolumeId,
        count: u32,
        until: Option<SystemTime>,
    ) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET reserved = ?2, reserved_until_us = ?3 WHERE id = ?1";
        self.run(sql, &values![id, count, until.filter(|_| count > 0)])?;
        self.attachment_event(id)?;
        self.derive_status(id)
    }

    /// Sets the number of expected detaches, with the mark of the last announcement, as
    /// [`Db::set_reserved`] does.
    pub(crate) fn set_holds(
        &self,
        id: VolumeId,
        count: u32,
        until: Option<SystemTime>,
    ) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET holds = ?2, holds_until_us = ?3 WHERE id = ?1";
        self.run(sql, &values![id, count, until.filter(|_| count > 0)])?;
        self.attachment_event(id)?;
        self.derive_status(id)
    }

    /// Uses up one announced detach, which has begun.
    pub(crate) fn use_hold(&self, id: VolumeId) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET holds = holds - 1 WHERE id = ?1 AND holds > 0";
        self.run(sql, &values![id]).map(drop)
    }

    /// The storage agent of a volume.
    pub(crate) fn storage_of(&self, id: VolumeId) -> Result<Option<AgentId>, SqlError> {
        self.one("SELECT agent_id FROM volumes WHERE id = ?1", &values![id], |row| row.parsed(0))
    }

    /// Ends announcements of one kind, unless one was made after the one with this mark. Returns
    /// `true` if there were any.
    pub(crate) fn expire_announced(
        &self,
        id: VolumeId,
        what: Announced,
        mark: Option<SystemTime>,
    ) -> Result<bool, SqlError> {
        let sql = match what {
            Announced::Attachments => {
                "UPDATE volumes SET reserved = 0, reserved_until_us = NULL \
                 WHERE id = ?1 AND reserved > 0 AND COALESCE(reserved_until_us, 0) = ?2"
            }
            Announced::Detaches => {
                "UPDATE volumes SET holds = 0, holds_until_us = NULL \
                 WHERE id = ?1 AND holds > 0 AND COALESCE(holds_until_us, 0) = ?2"
            }
        };
        let expired = self.run(sql, &values![id, mark.unwrap_or(SystemTime::UNIX_EPOCH)])? > 0;
        self.derive_status(id)?;
        Ok(expired)
    }

    /// Volumes with announcements of one kind, and the marks of the last ones.
    pub(crate) fn volumes_announced(
        &self,
        what: Announced,
    ) -> Result<Vec<(VolumeId, Option<SystemTime>)>, SqlError> {
        self.all(announced_sql(what), &[], |row| Ok((row.parsed(0)?, row.time_opt(1)?)))
    }

    /// Ends a status that an operator set: it holds until the next event of the volume's
    /// attachments, which this is. The caller then derives the status.
    pub(crate) fn attachment_event(&self, id: VolumeId) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET said_status = NULL WHERE id = ?1 AND said_status IS NOT NULL";
        self.run(sql, &values![id]).map(drop)
    }

    /// Stores where the target of a volume is, as its agent reports it.
    pub(crate) fn set_target(
        &self,
        id: VolumeId,
        target: &Iqn,
        naa: &Naa,
        portals: &[Portal],
    ) -> Result<(), SqlError> {
        let portals = portals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        if *naa != naa_of(id) {
            self.note_identities(&[(naa.clone(), id)])?;
        }
        let sql = "UPDATE volumes SET target = ?2, naa = ?3, portals = ?4 WHERE id = ?1";
        self.run(sql, &values![id, target, naa.as_str(), portals]).map(drop)
    }

    /// Gives a volume another type, and the flag that goes with it.
    pub(crate) fn set_type(&self, id: VolumeId, type_id: Uuid, multiattach: bool) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET type_id = ?2, multiattach = ?3, updated_us = ?4 WHERE id = ?1";
        self.run(sql, &values![id, type_id, multiattach, self.now]).map(drop)
    }

    /// Sets whether servers may start from the volume.
    pub(crate) fn set_bootable(&self, id: VolumeId, bootable: bool) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET bootable = ?2, updated_us = ?3 WHERE id = ?1";
        self.run(sql, &values![id, bootable, self.now]).map(drop)
    }

    /// Sets the readonly flag: the mode of attachments that name none.
    pub(crate) fn set_readonly(&self, id: VolumeId, readonly: bool) -> Result<(), SqlError> {
        let sql = "UPDATE volumes SET readonly = ?2, updated_us = ?3 WHERE id = ?1";
        self.run(sql, &values![id, readonly, self.now]).map(drop)
    }

    /// Sets a status by an operator's word; `None` returns to the status that the attachments give.
    pub(crate) fn say_status(&self, id: VolumeId, said: Option<VolumeStatus>) -> Result<(), SqlError> {
        let word = said.map(VolumeStatus::as_str);
        self.run("UPDATE volumes SET said_status = ?2 WHERE id = ?1", &values![id, word])?;
        self.derive_status(id)
    }

    /// Takes a volume from a place that cannot have it. No agent has anything of it: its spec is
    /// deleted.
    pub(crate) fn unplace(&self, id: VolumeId) -> Result<(), SqlError> {
        self.forget_spec(id)?;
        let sql = "UPDATE volumes SET agent_id = ?2, pool = '' WHERE id = ?1";
        self.run(sql, &values![id, AgentId::from_u128(0)]).map(drop)
    }

    /// Deletes a volume that no longer exists at its agent. Its specs stay until they are old.
    pub(crate) fn delete_volume(&self, id: VolumeId) -> Result<(), SqlError> {
        let sql = "INSERT INTO gone (volume_id, agent_id, gone_us) \
                   SELECT v.id, v.agent_id, CAST(?2 AS BIGINT) FROM volumes v WHERE v.id = ?1 \
                   AND EXISTS (SELECT 1 FROM specs s WHERE s.volume_id = v.id) \
                   ON CONFLICT (volume_id) DO UPDATE SET agent_id = excluded.agent_id, gone_us = excluded.gone_us";
        self.run(sql, &values![id, self.now])?;
        self.run("DELETE FROM volumes WHERE id = ?1", &values![id]).map(drop)
    }
}

fn metadata_text(metadata: &BTreeMap<String, String>) -> String {
    serde_json::to_value(metadata).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::{Database, Store};

    #[test]
    fn volumes_with_announcements_are_found_by_their_index() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
        let cases = [(Announced::Attachments, "volumes_reserved"), (Announced::Detaches, "volumes_held")];
        for (what, index) in cases {
            let sql = format!("EXPLAIN QUERY PLAN {}", announced_sql(what));
            let explain = move |db: &Db<'_>| Ok(db.all(&sql, &[], |row| row.get::<String>(3))?);
            let plan = store.prepare("explain", explain).unwrap();
            assert!(plan.iter().any(|step| step.contains(index)), "{plan:?}");
        }
    }
}
