//! Volume types and their extra specs.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use super::{Db, micros, parsed};
use crate::domain::VolumeType;

/// The type of those who name none; made with the database.
pub(crate) const DEFAULT_TYPE: &str = "__DEFAULT__";

const COLUMNS: &str = "id, name, description, is_public";

type Plain = (Uuid, String, Option<String>, bool);

fn plain(row: &rusqlite::Row<'_>) -> rusqlite::Result<Plain> {
    Ok((parsed(row, 0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

impl Db<'_> {
    pub(super) fn make_default_type(&self) -> rusqlite::Result<()> {
        if self.type_by_name(DEFAULT_TYPE)?.is_none() {
            self.insert_type(&VolumeType {
                id: Uuid::new_v4(),
                name: DEFAULT_TYPE.to_owned(),
                description: Some("Default Volume Type".to_owned()),
                is_public: true,
                extra_specs: BTreeMap::new(),
            })?;
        }
        Ok(())
    }

    fn with_specs(&self, (id, name, description, is_public): Plain) -> rusqlite::Result<VolumeType> {
        let mut query = self.conn.prepare_cached("SELECT key, value FROM extra_specs WHERE type_id = ?1")?;
        let rows = query.query_map([id.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(VolumeType { id, name, description, is_public, extra_specs: rows.collect::<Result<_, _>>()? })
    }

    /// All types, by name.
    pub(crate) fn types(&self) -> rusqlite::Result<Vec<VolumeType>> {
        let mut query =
            self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM volume_types ORDER BY name"))?;
        let rows = query.query_map([], plain)?.collect::<rusqlite::Result<Vec<_>>>()?;
        rows.into_iter().map(|row| self.with_specs(row)).collect()
    }

    /// One type.
    pub(crate) fn type_by_id(&self, id: Uuid) -> rusqlite::Result<Option<VolumeType>> {
        let mut query =
            self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM volume_types WHERE id = ?1"))?;
        query.query_row([id.to_string()], plain).optional()?.map(|row| self.with_specs(row)).transpose()
    }

    /// One type.
    pub(crate) fn type_by_name(&self, name: &str) -> rusqlite::Result<Option<VolumeType>> {
        let mut query =
            self.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM volume_types WHERE name = ?1"))?;
        query.query_row([name], plain).optional()?.map(|row| self.with_specs(row)).transpose()
    }

    /// Keeps a new type with its specs.
    pub(crate) fn insert_type(&self, new: &VolumeType) -> rusqlite::Result<()> {
        let sql = "INSERT INTO volume_types (id, name, description, is_public, created_us) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.conn.prepare_cached(sql)?.execute(params![
            new.id.to_string(),
            new.name,
            new.description,
            new.is_public,
            micros(self.now)
        ])?;
        self.set_specs(new.id, &new.extra_specs)
    }

    /// Changes what a type says of itself.
    pub(crate) fn update_type(&self, changed: &VolumeType) -> rusqlite::Result<()> {
        let sql = "UPDATE volume_types SET name = ?2, description = ?3, is_public = ?4 WHERE id = ?1";
        self.conn
            .prepare_cached(sql)?
            .execute(params![changed.id.to_string(), changed.name, changed.description, changed.is_public])
            .map(drop)
    }

    /// Takes a type away; its specs go with it.
    pub(crate) fn delete_type(&self, id: Uuid) -> rusqlite::Result<()> {
        self.conn
            .prepare_cached("DELETE FROM volume_types WHERE id = ?1")?
            .execute([id.to_string()])
            .map(drop)
    }

    /// Sets extra specs; others stay.
    pub(crate) fn set_specs(&self, id: Uuid, specs: &BTreeMap<String, String>) -> rusqlite::Result<()> {
        let sql = "INSERT INTO extra_specs (type_id, key, value) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (type_id, key) DO UPDATE SET value = excluded.value";
        let mut insert = self.conn.prepare_cached(sql)?;
        for (key, value) in specs {
            insert.execute(params![id.to_string(), key, value])?;
        }
        Ok(())
    }

    /// Takes one extra spec away; whether it was there.
    pub(crate) fn delete_spec(&self, id: Uuid, key: &str) -> rusqlite::Result<bool> {
        let sql = "DELETE FROM extra_specs WHERE type_id = ?1 AND key = ?2";
        Ok(self.conn.prepare_cached(sql)?.execute(params![id.to_string(), key])? > 0)
    }

    /// Whether volumes have this type.
    pub(crate) fn is_type_used(&self, id: Uuid) -> rusqlite::Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM volumes WHERE type_id = ?1)";
        self.conn.prepare_cached(sql)?.query_row([id.to_string()], |row| row.get(0))
    }
}
