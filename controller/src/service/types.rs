//! Volume types, their extra specs, the projects that may use private ones, and the projects'
//! default types.
//!
//! What must never happen here: a private type that shows to a project without access, if only by
//! another error than 404; a set of specs written that was not normalised and checked as a whole.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Refusal, Service, quotas, text_limit};
use crate::domain::{Caller, VolumeType};
use crate::error::RuleAnswer;
use crate::flow::Facts;
use crate::policy::Target;
use crate::quota::Delta;
use crate::rules;
use crate::store::{Abort, DEFAULT_TYPE, Db};

/// Longest extra spec key and value, in bytes (Cinder's columns).
const SPEC_BYTES_MAX: usize = 255;

fn not_found(what: &dyn std::fmt::Display) -> Refusal {
    let what = format!("{what}");
    Refusal::NotFound { kind: "Volume type", what }
}

fn visible(db: &Db<'_>, caller: &Caller, found: &VolumeType) -> Result<bool, Abort> {
    Ok(caller.admin || found.is_public || db.has_type_access(found.id, &caller.project)?)
}

/// A type by its id, if this caller may see it.
fn visible_by_id(db: &Db<'_>, caller: &Caller, id: Uuid) -> Result<VolumeType, Abort> {
    let found = by_id(db, id)?;
    if visible(db, caller, &found)? { Ok(found) } else { Err(not_found(&id).into()) }
}

/// A type by its id, else by its name.
pub(super) fn find(db: &Db<'_>, caller: &Caller, name_or_id: &str) -> Result<VolumeType, Abort> {
    let found = match name_or_id.parse() {
        Ok(id) => db.type_by_id(id)?,
        Err(_) => None,
    };
    let found = match found {
        None => db.type_by_name(name_or_id)?,
        found => found,
    };
    let is_id = name_or_id.parse::<Uuid>().is_ok();
    let what = if is_id { name_or_id.to_owned() } else { format!("with name {name_or_id}") };
    match found {
        Some(found) if visible(db, caller, &found)? => Ok(found),
        _ => Err(not_found(&what).into()),
    }
}

/// The default type: the project's own, else the one that was made with the database.
fn default(db: &Db<'_>, caller: &Caller) -> Result<VolumeType, Abort> {
    if let Some(id) = db.default_type_of(&caller.project)?
        && let Some(found) = db.type_by_id(id)?
        && visible(db, caller, &found)?
    {
        return Ok(found);
    }
    Ok(db.type_by_name(DEFAULT_TYPE)?.ok_or_else(|| not_found(&DEFAULT_TYPE))?)
}

/// The type of a new volume.
pub(super) fn of_new(db: &Db<'_>, caller: &Caller, named: Option<&str>) -> Result<VolumeType, Abort> {
    named.map_or_else(|| default(db, caller), |named| find(db, caller, named))
}

/// Refuses a new volume whose type or size breaks a rule, or that exceeds its project's quotas. A
/// type may be older than a rule about types, so the rules are checked again here.
pub(super) fn check_new(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    volume_type: &VolumeType,
    size_gib: u32,
) -> Result<(), Abort> {
    let specs = &volume_type.extra_specs;
    rules::types::check_encryption(specs)
        .map_err(|violation| Refusal::rule(RuleAnswer::InvalidVolume, violation))?;
    rules::types::check_size(specs, &volume_type.name, size_gib)?;
    quotas::check(facts, db, &caller.project, &Delta::volume(&volume_type.name, size_gib))
}

fn by_id(db: &Db<'_>, id: Uuid) -> Result<VolumeType, Abort> {
    Ok(db.type_by_id(id)?.ok_or_else(|| not_found(&id))?)
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if name.trim().is_empty() {
        let text = "An invalid 'name' value was provided. The 'name' can not be empty.";
        return Err(Refusal::Invalid(text.to_owned()));
    }
    text_limit("name", name)
}

fn check_keys(specs: &BTreeMap<String, String>) -> Result<(), Refusal> {
    for (key, value) in specs {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b':' | b'.' | b' ');
        if key.is_empty() || key.len() > SPEC_BYTES_MAX || !key.bytes().all(plain) {
            let shown: String = key.chars().take(80).collect();
            return Err(Refusal::Invalid(format!(
                "Invalid input for field/attribute extra_specs: key {shown:?}: want 1 to 255 of letters, digits and -_:. "
            )));
        }
        if value.len() > SPEC_BYTES_MAX {
            return Err(Refusal::Invalid(format!(
                "Invalid input for field/attribute {key}: the value has more than {SPEC_BYTES_MAX} bytes"
            )));
        }
    }
    Ok(())
}

fn check_unused(db: &Db<'_>, id: Uuid) -> Result<(), Abort> {
    if db.is_type_used(id)? {
        return Err(Refusal::Invalid("Volume Type is currently in use.".to_owned()).into());
    }
    Ok(())
}

impl Service {
    /// Checks a policy about types. Types belong to no project: the policy looks at the caller's
    /// own.
    pub(super) fn may(&self, policy: &'static str, caller: &Caller) -> Result<(), Refusal> {
        self.facts.policies().check(policy, caller, &Target::own(caller))
    }

    /// One type, by name or id.
    pub async fn volume_type(&self, caller: &Caller, name_or_id: &str) -> Result<VolumeType, Refusal> {
        self.may("volume_extension:type_get", caller)?;
        let (caller, name_or_id) = (caller.clone(), name_or_id.to_owned());
        self.store.read("read a type", move |db| find(db, &caller, &name_or_id)).await
    }

    /// The default type of the caller's project.
    pub async fn default_type(&self, caller: &Caller) -> Result<VolumeType, Refusal> {
        self.may("volume_extension:type_get", caller)?;
        let caller = caller.clone();
        let read = move |db: &Db<'_>| default(db, &caller);
        self.store.read("read the default type", read).await
    }

    /// Makes a type. 409 if the name is taken.
    pub async fn create_type(
        &self,
        caller: &Caller,
        name: &str,
        description: Option<&str>,
        is_public: bool,
        extra_specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        self.may("volume_extension:type_create", caller)?;
        check_name(name)?;
        text_limit("description", description.unwrap_or_default())?;
        check_keys(&extra_specs)?;
        let extra_specs = rules::types::normalise(extra_specs)?;
        rules::check_specs(&extra_specs)?;
        let new = VolumeType {
            id: Uuid::new_v4(),
            name: name.to_owned(),
            description: description.map(str::to_owned),
            is_public,
            extra_specs,
        };
        let write = move |db: &Db<'_>| {
            if db.type_by_name(&new.name)?.is_some() {
                return Err(Refusal::Conflict(format!("Volume Type {} already exists.", new.name)).into());
            }
            db.insert_type(&new)?;
            Ok(new.clone())
        };
        self.store.write("make a type", write).await
    }

    /// Changes name, description or visibility.
    pub async fn update_type(
        &self,
        caller: &Caller,
        id: Uuid,
        name: Option<&str>,
        description: Option<&str>,
        is_public: Option<bool>,
    ) -> Result<VolumeType, Refusal> {
        self.may("volume_extension:type_update", caller)?;
        if name.is_none() && description.is_none() && is_public.is_none() {
            let text = "Specify volume type name, description, is_public or a combination thereof.";
            return Err(Refusal::Invalid(text.to_owned()));
        }
        name.map(check_name).transpose()?;
        text_limit("description", description.unwrap_or_default())?;
        let (name, description) = (name.map(str::to_owned), description.map(str::to_owned));
        let write = move |db: &Db<'_>| {
            let mut changed = by_id(db, id)?;
            if let Some(name) = &name {
                if db.type_by_name(name)?.is_some_and(|other| other.id != id) {
                    return Err(Refusal::Conflict(format!("Volume Type {name} already exists.")).into());
                }
                if changed.name == DEFAULT_TYPE && name != DEFAULT_TYPE {
                    let text =
                        format!("Invalid volume type: {DEFAULT_TYPE} is the default type and keeps its name");
                    return Err(Refusal::Invalid(text).into());
                }
                if changed.name != *name {
                    db.rename_type_limits(&changed.name, name)?;
                }
                changed.name.clone_from(name);
            }
            changed.description = description.clone().or(changed.description);
            changed.is_public = is_public.unwrap_or(changed.is_public);
            db.update_type(&changed)?;
            Ok(changed)
        };
        self.store.write("change a type", write).await
    }

    /// Deletes a type. 400 while volumes use it, and for the default type.
    pub async fn delete_type(&self, caller: &Caller, id: Uuid) -> Result<(), Refusal> {
        self.may("volume_extension:type_delete", caller)?;
        let write = move |db: &Db<'_>| {
            let gone = by_id(db, id)?;
            if gone.name == DEFAULT_TYPE || db.is_default_somewhere(id)? {
                let text = format!("The volume type {id} is the default volume type and cannot be deleted.");
                return Err(Refusal::Invalid(text).into());
            }
            if db.is_type_used(id)? {
                return Err(Refusal::Invalid("Target volume type is still in use.".to_owned()).into());
            }
            db.delete_type_limits(&gone.name)?;
            Ok(db.delete_type(id)?)
        };
        self.store.write("delete a type", write).await
    }

    /// Sets extra specs. 400 while volumes use the type, and for `multiattach` together with
    /// `cacheable`.
    pub async fn set_extra_specs(
        &self,
        caller: &Caller,
        id: Uuid,
        specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        check_keys(&specs)?;
        let specs = rules::types::normalise(specs)?;
        let write = move |db: &Db<'_>| {
            // A caller who may not change specs must learn nothing of a type that he may not see.
            let mut changed = visible_by_id(db, &caller, id)?;
            let (policies, own) = (facts.policies(), Target::own(&caller));
            if specs.keys().any(|key| changed.extra_specs.contains_key(key)) {
                policies.check("volume_extension:types_extra_specs:update", &caller, &own)?;
            }
            if !specs.keys().all(|key| changed.extra_specs.contains_key(key)) {
                policies.check("volume_extension:types_extra_specs:create", &caller, &own)?;
            }
            check_unused(db, id)?;
            changed.extra_specs.extend(specs.clone());
            rules::check_specs(&changed.extra_specs)?;
            db.set_specs(id, &specs)?;
            Ok(changed)
        };
        self.store.write("set extra specs", write).await
    }

    /// Deletes one extra spec. 404 if the type does not have it.
    pub async fn delete_extra_spec(&self, caller: &Caller, id: Uuid, key: &str) -> Result<(), Refusal> {
        self.may("volume_extension:types_extra_specs:delete", caller)?;
        let key = key.to_owned();
        let write = move |db: &Db<'_>| {
            let mut left = by_id(db, id)?.extra_specs;
            check_unused(db, id)?;
            left.remove(&key);
            rules::tuning::check(&left)?;
            if !db.delete_spec(id, &key)? {
                let what = format!("{id} with extra spec {}", key.chars().take(80).collect::<String>());
                return Err(not_found(&what).into());
            }
            Ok(())
        };
        self.store.write("take an extra spec away", write).await
    }

    /// The projects that may use a private type. 404 for a public type: it has no such list.
    pub async fn type_access(&self, caller: &Caller, id: Uuid) -> Result<Vec<String>, Refusal> {
        self.may("volume_extension:volume_type_access:get_all_for_type", caller)?;
        let caller = caller.clone();
        let read = move |db: &Db<'_>| {
            if visible_by_id(db, &caller, id)?.is_public {
                let kind = "Access list of the public volume type";
                return Err(Refusal::NotFound { kind, what: id.to_string() }.into());
            }
            Ok(db.type_projects(id)?)
        };
        self.store.read("read who may use a type", read).await
    }

    /// Gives a project access to a private type, or revokes it. 409 if the project has access
    /// already; 404 if it has none to revoke.
    pub async fn set_type_access(
        &self,
        caller: &Caller,
        id: Uuid,
        project: &str,
        allowed: bool,
    ) -> Result<(), Refusal> {
        if allowed {
            self.may("volume_extension:volume_type_access:addProjectAccess", caller)?;
        } else {
            self.may("volume_extension:volume_type_access:removeProjectAccess", caller)?;
        }
        let (caller, project) = (caller.clone(), project.to_owned());
        let write = move |db: &Db<'_>| {
            if visible_by_id(db, &caller, id)?.is_public {
                let text =
                    "Invalid volume type: Type access modification is not applicable to public volume type.";
                return Err(Refusal::Invalid(text.to_owned()).into());
            }
            if allowed && !db.add_type_access(id, &project)? {
                let text = format!("Volume type access for {id} / {project} combination already exists.");
                return Err(Refusal::Conflict(text).into());
            }
            if !allowed && !db.remove_type_access(id, &project)? {
                let what = format!("{id} / {project} combination");
                return Err(Refusal::NotFound { kind: "Volume type access", what }.into());
            }
            Ok(())
        };
        self.store.write("change who may use a type", write).await
    }

    /// The defaults that operators have set: projects, each with its type.
    pub async fn default_types(&self, caller: &Caller) -> Result<Vec<(String, Uuid)>, Refusal> {
        self.may("volume_extension:default_get_all", caller)?;
        self.store.read("list default types", |db| Ok(db.default_types()?)).await
    }

    /// A project's default type. 404 if none is set.
    pub async fn project_default(&self, caller: &Caller, project: &str) -> Result<Uuid, Refusal> {
        let target = Target::of(project);
        self.facts.policies().check("volume_extension:default_get", caller, &target)?;
        let project = project.to_owned();
        let read = move |db: &Db<'_>| {
            let found = db.default_type_of(&project)?;
            Ok(found.ok_or(Refusal::NotFound { kind: "Default type for project", what: project })?)
        };
        self.store.read("read a default type", read).await
    }

    /// Sets a project's default type. The project must have access to it.
    pub async fn set_project_default(
        &self,
        caller: &Caller,
        project: &str,
        name_or_id: &str,
    ) -> Result<Uuid, Refusal> {
        let target = Target::of(project);
        self.facts.policies().check("volume_extension:default_set_or_update", caller, &target)?;
        let (caller, project, name_or_id) = (caller.clone(), project.to_owned(), name_or_id.to_owned());
        let write = move |db: &Db<'_>| {
            let found = find(db, &caller, &name_or_id)?;
            if !found.is_public && !db.has_type_access(found.id, &project)? {
                let text =
                    format!("Invalid volume type: project {project} may not use the type {}.", found.name);
                return Err(Refusal::Invalid(text).into());
            }
            db.set_default_type(&project, found.id)?;
            Ok(found.id)
        };
        self.store.write("set a default type", write).await
    }

    /// Deletes a project's default type.
    pub async fn unset_project_default(&self, caller: &Caller, project: &str) -> Result<(), Refusal> {
        let target = Target::of(project);
        self.facts.policies().check("volume_extension:default_unset", caller, &target)?;
        let project = project.to_owned();
        let write = move |db: &Db<'_>| Ok(db.unset_default_type(&project)?);
        self.store.write("take a default type away", write).await
    }
}
