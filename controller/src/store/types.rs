//! Volume types and their extra specs.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Db;
use super::sql::{Row, SqlError, Value, values};
use crate::domain::VolumeType;

/// The type of requests that name none; made with the database.
pub(crate) const DEFAULT_TYPE: &str = "__DEFAULT__";

pub(super) const COLUMNS: &str = "id, name, description, is_public";

pub(super) type Plain = (Uuid, String, Option<String>, bool);

pub(super) fn plain(row: &mut Row) -> Result<Plain, SqlError> {
    Ok((row.parsed(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

impl Db<'_> {
    pub(super) fn make_default_type(&self) -> Result<(), SqlError> {
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

    /// The extra specs of the type with this id. Empty if there is no such type.
    pub(crate) fn extra_specs(&self, id: Uuid) -> Result<BTreeMap<String, String>, SqlError> {
        let sql = "SELECT key, value FROM extra_specs WHERE type_id = ?1";
        Ok(self.all(sql, &values![id], |row| Ok((row.get(0)?, row.get(1)?)))?.into_iter().collect())
    }

    /// Reads one type with its extra specs, in one statement.
    fn one_type(&self, condition: &str, value: Value) -> Result<Option<VolumeType>, SqlError> {
        let sql = format!(
            "SELECT {COLUMNS}, s.key, s.value FROM volume_types t LEFT JOIN extra_specs s ON s.type_id = t.id WHERE {condition}"
        );
        let mut found: Option<VolumeType> = None;
        self.sql.each(&sql, &[value], &mut |row| {
            let (id, name, description, is_public) = plain(row)?;
            let spec = row.get::<Option<String>>(4)?.zip(row.get(5)?);
            let extra_specs = BTreeMap::new();
            let found = found.get_or_insert(VolumeType { id, name, description, is_public, extra_specs });
            found.extra_specs.extend(spec);
            Ok(())
        })?;
        Ok(found)
    }

    /// The names of all types.
    pub(crate) fn type_names(&self) -> Result<Vec<String>, SqlError> {
        self.all("SELECT name FROM volume_types ORDER BY name", &[], |row| row.get(0))
    }

    /// The type with this id.
    pub(crate) fn type_by_id(&self, id: Uuid) -> Result<Option<VolumeType>, SqlError> {
        self.one_type("t.id = ?1", id.into())
    }

    /// The type with this name.
    pub(crate) fn type_by_name(&self, name: &str) -> Result<Option<VolumeType>, SqlError> {
        self.one_type("t.name = ?1", name.into())
    }

    /// Keeps a new type with its specs.
    pub(crate) fn insert_type(&self, new: &VolumeType) -> Result<(), SqlError> {
        let sql = "INSERT INTO volume_types (id, name, description, is_public, created_us) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.run(sql, &values![new.id, &new.name, new.description.as_deref(), new.is_public, self.now])?;
        self.set_specs(new.id, &new.extra_specs)
    }

    /// Changes a type's own fields.
    pub(crate) fn update_type(&self, changed: &VolumeType) -> Result<(), SqlError> {
        let sql = "UPDATE volume_types SET name = ?2, description = ?3, is_public = ?4 WHERE id = ?1";
        let description = changed.description.as_deref();
        self.run(sql, &values![changed.id, &changed.name, description, changed.is_public]).map(drop)
    }

    /// Deletes a type with its specs.
    pub(crate) fn delete_type(&self, id: Uuid) -> Result<(), SqlError> {
        self.run("DELETE FROM volume_types WHERE id = ?1", &values![id]).map(drop)
    }

    /// Sets extra specs; others stay.
    pub(crate) fn set_specs(&self, id: Uuid, specs: &BTreeMap<String, String>) -> Result<(), SqlError> {
        let sql = "INSERT INTO extra_specs (type_id, key, value) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (type_id, key) DO UPDATE SET value = excluded.value";
        for (key, value) in specs {
            self.run(sql, &values![id, key, value])?;
        }
        Ok(())
    }

    /// Deletes one extra spec. Returns `true` if it existed.
    pub(crate) fn delete_spec(&self, id: Uuid, key: &str) -> Result<bool, SqlError> {
        let sql = "DELETE FROM extra_specs WHERE type_id = ?1 AND key = ?2";
        Ok(self.run(sql, &values![id, key])? > 0)
    }

    /// The projects that may use a private type.
    pub(crate) fn type_projects(&self, id: Uuid) -> Result<Vec<String>, SqlError> {
        let sql = "SELECT project FROM type_projects WHERE type_id = ?1 ORDER BY project";
        self.all(sql, &values![id], |row| row.get(0))
    }

    /// Returns `true` if a project may use a private type.
    pub(crate) fn has_type_access(&self, id: Uuid, project: &str) -> Result<bool, SqlError> {
        let sql = "SELECT 1 FROM type_projects WHERE type_id = ?1 AND project = ?2";
        Ok(self.one(sql, &values![id, project], |row| row.get::<i64>(0))?.is_some())
    }

    /// Lets a project use a private type. Returns `true` if that is new.
    pub(crate) fn add_type_access(&self, id: Uuid, project: &str) -> Result<bool, SqlError> {
        let sql = "INSERT INTO type_projects (type_id, project) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        Ok(self.run(sql, &values![id, project])? > 0)
    }

    /// Takes a private type from a project. Returns `true` if the project had it.
    pub(crate) fn remove_type_access(&self, id: Uuid, project: &str) -> Result<bool, SqlError> {
        let sql = "DELETE FROM type_projects WHERE type_id = ?1 AND project = ?2";
        Ok(self.run(sql, &values![id, project])? > 0)
    }

    /// The default type of a project's volumes, if an operator has set one.
    pub(crate) fn default_type_of(&self, project: &str) -> Result<Option<Uuid>, SqlError> {
        let sql = "SELECT type_id FROM default_types WHERE project = ?1";
        self.one(sql, &values![project], |row| row.parsed(0))
    }

    /// All projects' default types, by project.
    pub(crate) fn default_types(&self) -> Result<Vec<(String, Uuid)>, SqlError> {
        let sql = "SELECT project, type_id FROM default_types ORDER BY project";
        self.all(sql, &[], |row| Ok((row.get(0)?, row.parsed(1)?)))
    }

    /// Sets a project's default type.
    pub(crate) fn set_default_type(&self, project: &str, id: Uuid) -> Result<(), SqlError> {
        let sql = "INSERT INTO default_types (project, type_id) VALUES (?1, ?2) \
                   ON CONFLICT (project) DO UPDATE SET type_id = excluded.type_id";
        self.run(sql, &values![project, id]).map(drop)
    }

    /// Removes a project's default type.
    pub(crate) fn unset_default_type(&self, project: &str) -> Result<(), SqlError> {
        self.run("DELETE FROM default_types WHERE project = ?1", &values![project]).map(drop)
    }

    /// Returns `true` if the type is some project's default type.
    pub(crate) fn is_default_somewhere(&self, id: Uuid) -> Result<bool, SqlError> {
        let sql = "SELECT 1 FROM default_types WHERE type_id = ?1 LIMIT 1";
        Ok(self.one(sql, &values![id], |row| row.get::<i64>(0))?.is_some())
    }

    /// Returns `true` if volumes have this type.
    pub(crate) fn is_type_used(&self, id: Uuid) -> Result<bool, SqlError> {
        let sql = "SELECT 1 FROM volumes WHERE type_id = ?1 LIMIT 1";
        Ok(self.one(sql, &values![id], |row| row.get::<i64>(0))?.is_some())
    }
}
