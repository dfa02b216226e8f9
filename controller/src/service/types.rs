//! Volume types and their extra specs.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Refusal, Service, allowed, text_limit};
use crate::domain::{Caller, VolumeType};
use crate::rules;
use crate::store::{Abort, DEFAULT_TYPE, Db};

/// Longest extra spec key and value, in bytes (Cinder's columns).
const SPEC_BYTES_MAX: usize = 255;

fn not_found(what: &dyn std::fmt::Display) -> Refusal {
    let what = format!("{what}");
    Refusal::NotFound { kind: "Volume type", what }
}

fn visible(caller: &Caller, found: &VolumeType) -> bool {
    caller.admin || found.is_public
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
    Ok(found.filter(|found| visible(caller, found)).ok_or_else(|| not_found(&what))?)
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
    /// All types, by name.
    pub async fn types(&self, caller: &Caller) -> Result<Vec<VolumeType>, Refusal> {
        let caller = caller.clone();
        let read =
            move |db: &Db<'_>| Ok(db.types()?.into_iter().filter(|found| visible(&caller, found)).collect());
        self.inner.store.read("list types", read).await
    }

    /// One type, by name or id.
    pub async fn volume_type(&self, caller: &Caller, name_or_id: &str) -> Result<VolumeType, Refusal> {
        let (caller, name_or_id) = (caller.clone(), name_or_id.to_owned());
        self.inner.store.read("read a type", move |db| find(db, &caller, &name_or_id)).await
    }

    /// The type of those who name none.
    pub async fn default_type(&self, _caller: &Caller) -> Result<VolumeType, Refusal> {
        let read =
            |db: &Db<'_>| Ok(db.type_by_name(DEFAULT_TYPE)?.ok_or_else(|| not_found(&DEFAULT_TYPE))?);
        self.inner.store.read("read the default type", read).await
    }

    /// Makes a type. Admins only. 409 for a name that is taken.
    pub async fn create_type(
        &self,
        caller: &Caller,
        name: &str,
        description: Option<&str>,
        is_public: bool,
        extra_specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        allowed(caller, "volume_extension:type_create")?;
        check_name(name)?;
        text_limit("description", description.unwrap_or_default())?;
        check_keys(&extra_specs)?;
        rules::check_specs(&extra_specs).map_err(Refusal::Invalid)?;
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
            Ok(new)
        };
        self.inner.store.write("make a type", write).await
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
        allowed(caller, "volume_extension:type_update")?;
        if name.is_none() && description.is_none() && is_public.is_none() {
            let text = "Specify volume type name, description, is_public or a combination thereof.";
            return Err(Refusal::Invalid(text.to_owned()));
        }
        name.map(check_name).transpose()?;
        text_limit("description", description.unwrap_or_default())?;
        let (name, description) = (name.map(str::to_owned), description.map(str::to_owned));
        let write = move |db: &Db<'_>| {
            let mut changed = by_id(db, id)?;
            if let Some(name) = name {
                if db.type_by_name(&name)?.is_some_and(|other| other.id != id) {
                    return Err(Refusal::Conflict(format!("Volume Type {name} already exists.")).into());
                }
                if changed.name == DEFAULT_TYPE && name != DEFAULT_TYPE {
                    let text =
                        format!("Invalid volume type: {DEFAULT_TYPE} is the default type and keeps its name");
                    return Err(Refusal::Invalid(text).into());
                }
                changed.name = name;
            }
            changed.description = description.or(changed.description);
            changed.is_public = is_public.unwrap_or(changed.is_public);
            db.update_type(&changed)?;
            Ok(changed)
        };
        self.inner.store.write("change a type", write).await
    }

    /// Deletes a type; 400 while volumes use it, and for the default type.
    pub async fn delete_type(&self, caller: &Caller, id: Uuid) -> Result<(), Refusal> {
        allowed(caller, "volume_extension:type_delete")?;
        let write = move |db: &Db<'_>| {
            if by_id(db, id)?.name == DEFAULT_TYPE {
                let text = format!("The volume type {id} is the default volume type and cannot be deleted.");
                return Err(Refusal::Invalid(text).into());
            }
            if db.is_type_used(id)? {
                return Err(Refusal::Invalid("Target volume type is still in use.".to_owned()).into());
            }
            Ok(db.delete_type(id)?)
        };
        self.inner.store.write("delete a type", write).await
    }

    /// Sets extra specs; 400 while volumes use the type, and for `multiattach` together with `cacheable`.
    pub async fn set_extra_specs(
        &self,
        caller: &Caller,
        id: Uuid,
        specs: BTreeMap<String, String>,
    ) -> Result<VolumeType, Refusal> {
        allowed(caller, "volume_extension:types_extra_specs:create")?;
        check_keys(&specs)?;
        let write = move |db: &Db<'_>| {
            let mut changed = by_id(db, id)?;
            check_unused(db, id)?;
            changed.extra_specs.extend(specs.clone());
            rules::check_specs(&changed.extra_specs).map_err(Refusal::Invalid)?;
            db.set_specs(id, &specs)?;
            Ok(changed)
        };
        self.inner.store.write("set extra specs", write).await
    }

    /// Takes one extra spec away; 404 when it is not there.
    pub async fn delete_extra_spec(&self, caller: &Caller, id: Uuid, key: &str) -> Result<(), Refusal> {
        allowed(caller, "volume_extension:types_extra_specs:delete")?;
        let key = key.to_owned();
        let write = move |db: &Db<'_>| {
            by_id(db, id)?;
            check_unused(db, id)?;
            if !db.delete_spec(id, &key)? {
                let what = format!("{id} with extra spec {}", key.chars().take(80).collect::<String>());
                return Err(not_found(&what).into());
            }
            Ok(())
        };
        self.inner.store.write("take an extra spec away", write).await
    }
}
