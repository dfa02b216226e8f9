//! Limits that differ from the defaults, and a project's usage, counted from its volumes.
//!
//! What must never happen here: a count kept beside the rows that it counts; a count whose cost
//! grows with the volumes of other projects (an index alone answers it).

use std::collections::BTreeMap;

use super::Db;
use super::sql::{SqlError, values};
use crate::quota::{Key, Limit, Usage};

/// The default class, which stands in the place of a project.
const CLASS: &str = "";

impl Db<'_> {
    fn limits_in(&self, project: &str) -> Result<BTreeMap<Key, Limit>, SqlError> {
        let sql = "SELECT key, value FROM quotas WHERE project = ?1";
        let rows = self.all(sql, &values![project], |row| Ok((row.get::<String>(0)?, row.get::<i64>(1)?)))?;
        let known = |(key, value): (String, i64)| Some((Key::from_name(&key)?, Limit::from_number(value)?));
        Ok(rows.into_iter().filter_map(known).collect())
    }

    /// A project's own limits.
    pub(crate) fn project_limits(&self, project: &str) -> Result<BTreeMap<Key, Limit>, SqlError> {
        if project == CLASS { Ok(BTreeMap::new()) } else { self.limits_in(project) }
    }

    /// The limits of the default class.
    pub(crate) fn class_limits(&self) -> Result<BTreeMap<Key, Limit>, SqlError> {
        self.limits_in(CLASS)
    }

    /// Sets limits of a project, or of the default class if `None`; other limits stay.
    pub(crate) fn set_limits(
        &self,
        project: Option<&str>,
        limits: &BTreeMap<Key, Limit>,
    ) -> Result<(), SqlError> {
        let sql = "INSERT INTO quotas (project, key, value) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (project, key) DO UPDATE SET value = excluded.value";
        for (key, limit) in limits {
            self.run(sql, &values![project.unwrap_or(CLASS), key.to_string(), limit.number()])?;
        }
        Ok(())
    }

    /// Deletes a project's own limits: the defaults hold.
    pub(crate) fn delete_limits(&self, project: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM quotas WHERE project = ?1 AND project <> ''", &values![project]).map(drop)
    }

    /// Renames the limits of a renamed type.
    pub(crate) fn rename_type_limits(&self, old: &str, new: &str) -> Result<(), SqlError> {
        for (old, new) in Key::of_type(old).iter().zip(Key::of_type(new)) {
            // Left over from another type that had this name.
            self.run("DELETE FROM quotas WHERE key = ?1", &values![new.to_string()])?;
            let sql = "UPDATE quotas SET key = ?2 WHERE key = ?1";
            self.run(sql, &values![old.to_string(), new.to_string()])?;
        }
        Ok(())
    }

    /// Deletes the limits of a deleted type: another type of its name begins without them.
    pub(crate) fn delete_type_limits(&self, name: &str) -> Result<(), SqlError> {
        for key in Key::of_type(name) {
            self.run("DELETE FROM quotas WHERE key = ?1", &values![key.to_string()])?;
        }
        Ok(())
    }

    /// A project's usage, per type and in total.
    pub(crate) fn usage(&self, project: &str) -> Result<Usage, SqlError> {
        let sql = "SELECT t.name, u.volumes, u.snapshots, u.gib FROM \
                   (SELECT type_id, COUNT(*) - COUNT(snapshot_of) AS volumes, COUNT(snapshot_of) AS snapshots, \
                   CAST(SUM(size_gib) AS BIGINT) AS gib FROM volumes \
                   WHERE project = ?1 GROUP BY type_id) u JOIN volume_types t ON t.id = u.type_id";
        let rows = self.all(sql, &values![project], |row| {
            Ok((row.get::<String>(0)?, row.get::<u64>(1)?, row.get::<u64>(2)?, row.get::<u64>(3)?))
        })?;
        let mut usage = Usage::new();
        for (name, volumes, snapshots, gib) in rows {
            for (key, more) in [
                (Key::Snapshots, snapshots),
                (Key::SnapshotsOf(name.clone()), snapshots),
                (Key::Volumes, volumes),
                (Key::Gigabytes, gib),
                (Key::VolumesOf(name.clone()), volumes),
                (Key::GigabytesOf(name), gib),
            ] {
                let sum = usage.entry(key).or_default();
                *sum = sum.saturating_add(more);
            }
        }
        Ok(usage)
    }
}
