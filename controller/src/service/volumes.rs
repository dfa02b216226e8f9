//! Volumes: placed from the agents' last reports, made and wiped by them.

use std::collections::{BTreeMap, BTreeSet};

use mooring_model::limit::VOLUME_BYTES_MAX;
use mooring_model::{AgentId, VolumeId};

use super::{Refusal, Service, text_limit, types, view};
use crate::domain::{AttachStatus, Caller, NewVolume, Volume, VolumeStatus, VolumeType};
use crate::flow::{Inner, wishes};
use crate::rules::{self, Operation};
use crate::store::{Abort, DEFAULT_TYPE, Db, VolumeRow};

/// Keys of a volume's metadata. A wish carries them all.
const METADATA_KEYS_MAX: usize = 128;

/// Bytes of all of it: a part of what an agent takes for a rebuild, since JSON writes some characters longer.
const METADATA_BYTES_MAX: usize = mooring_model::limit::OPAQUE_BYTES_MAX / 4;

/// The volume, if this caller may see it.
pub(super) fn find(db: &Db<'_>, caller: &Caller, id: VolumeId) -> Result<VolumeRow, Abort> {
    let found = db.volume(id)?.filter(|volume| caller.admin || volume.project == caller.project);
    Ok(found.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: id.to_string() })?)
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if metadata.len() > METADATA_KEYS_MAX {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: more than {METADATA_KEYS_MAX} metadata keys"
        )));
    }
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: the metadata has {bytes} bytes, more than {METADATA_BYTES_MAX}"
        )));
    }
    for (key, value) in metadata {
        if key.is_empty() {
            return Err(Refusal::Invalid("Invalid input received: an empty metadata key".to_owned()));
        }
        text_limit("metadata key", key)?;
        text_limit("metadata value", value)?;
    }
    Ok(())
}

/// A pool that can take a volume.
struct Place {
    agent: AgentId,
    pool: String,
    up: bool,
    free: u64,
}

/// Chooses a pool from the last reports, also of agents that are down now: those last.
fn place(inner: &Inner, db: &Db<'_>, bytes: u64, volume_type: &VolumeType) -> Result<Place, Abort> {
    let multiattach = rules::is_multiattach(&volume_type.extra_specs);
    let mut reported = false;
    let mut best: Option<Place> = None;
    for row in db.agents()? {
        let Some(capabilities) = row.capabilities else { continue };
        let enrolled = inner.agents.all().iter().find(|agent| agent.entry.name == row.name);
        let Some(agent) = enrolled else { continue };
        reported |= !capabilities.pools.is_empty();
        if multiattach && !capabilities.multiattach {
            continue;
        }
        for pool in capabilities.pools {
            // What is being made may not be in the report yet. Whole extents are taken.
            let extent = pool.extent_bytes.max(1);
            let promised = db.creating_on(row.id, &pool.name)?.saturating_mul(wishes::GIB);
            let free = pool.free_bytes.saturating_sub(promised);
            let place = Place { agent: row.id, pool: pool.name, up: agent.is_up(), free };
            let better = best.as_ref().is_none_or(|best| (place.up, place.free) > (best.up, best.free));
            if free >= bytes.div_ceil(extent).saturating_mul(extent) && better {
                best = Some(place);
            }
        }
    }
    match best {
        Some(place) => Ok(place),
        None if !reported => {
            Err(Refusal::Unavailable("no storage agent has reported its pools yet: try again".to_owned())
                .into())
        }
        None => Err(Refusal::Invalid(format!(
            "Invalid input received: no valid backend: no reported pool has {} GiB free{}",
            bytes / wishes::GIB,
            if multiattach { " and the capability multiattach" } else { "" }
        ))
        .into()),
    }
}

fn check(new: &NewVolume) -> Result<u64, Refusal> {
    text_limit("name", new.name.as_deref().unwrap_or_default())?;
    text_limit("description", new.description.as_deref().unwrap_or_default())?;
    check_metadata(&new.metadata)?;
    let bytes = u64::from(new.size_gib) * wishes::GIB;
    if new.size_gib == 0 || bytes > VOLUME_BYTES_MAX {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: Volume size '{}' must be an integer and greater than 0",
            new.size_gib
        )));
    }
    Ok(bytes)
}

fn create(
    inner: &Inner,
    db: &Db<'_>,
    caller: &Caller,
    new: NewVolume,
    bytes: u64,
) -> Result<VolumeId, Abort> {
    let volume_type = types::find(db, caller, new.volume_type.as_deref().unwrap_or(DEFAULT_TYPE))?;
    let id = new.id.unwrap_or_else(VolumeId::random);
    if let Some(kept) = db.volume(id)? {
        // A repeated request. Of another project's volume nothing is said.
        let same = kept.project == caller.project
            && kept.size_gib == new.size_gib
            && kept.type_id == volume_type.id
            && kept.name == new.name;
        return if same {
            Ok(id)
        } else {
            Err(Refusal::Conflict(format!("the id {id} is taken by another volume")).into())
        };
    }
    if db.spec(id, crate::store::Kind::Volume)?.is_some() {
        return Err(
            Refusal::Conflict(format!("the id {id} was a volume that was deleted: choose another")).into()
        );
    }
    let place = place(inner, db, bytes, &volume_type)?;
    db.insert_volume(&VolumeRow {
        id,
        name: new.name,
        description: new.description,
        size_gib: new.size_gib,
        type_id: volume_type.id,
        multiattach: rules::is_multiattach(&volume_type.extra_specs),
        operation: Some(Operation::Creating),
        status: VolumeStatus::Creating,
        attach_status: AttachStatus::Detached,
        project: caller.project.clone(),
        user: caller.user.clone(),
        metadata: new.metadata,
        agent: place.agent,
        pool: place.pool,
        target: None,
        naa: None,
        portals: Vec::new(),
        review: None,
        created_at: db.now,
        updated_at: None,
        fault: None,
    })?;
    wishes::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(id)
}

impl Service {
    /// Creates a volume: `creating` at once, `available` when its agent has made it. 400 when no reporting agent can take
    /// it, 503 when none has ever reported.
    pub async fn create_volume(&self, caller: &Caller, new: NewVolume) -> Result<Volume, Refusal> {
        let bytes = check(&new)?;
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let id = create(&inner, db, &caller, new, bytes)?;
            view::volume(&inner, db, find(db, &caller, id)?)
        };
        let volume = self.inner.store.write("create a volume", write).await?;
        self.inner.go(volume.id, &BTreeSet::new());
        Ok(volume)
    }

    /// The caller's volumes (all projects': admins), newest first.
    pub async fn volumes(&self, caller: &Caller, all_projects: bool) -> Result<Vec<Volume>, Refusal> {
        let project = (!(all_projects && caller.admin)).then(|| caller.project.clone());
        let inner = self.inner.clone();
        let read = move |db: &Db<'_>| {
            let rows = db.volumes(project.as_deref())?;
            rows.into_iter().map(|row| view::volume(&inner, db, row)).collect()
        };
        self.inner.store.read("list volumes", read).await
    }

    /// One volume. 404 for another project's.
    pub async fn volume(&self, caller: &Caller, id: VolumeId) -> Result<Volume, Refusal> {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let read = move |db: &Db<'_>| view::volume(&inner, db, find(db, &caller, id)?);
        self.inner.store.read("read a volume", read).await
    }

    /// Changes name, description, metadata.
    pub async fn update_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        name: Option<Option<String>>,
        description: Option<Option<String>>,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<Volume, Refusal> {
        text_limit("name", name.iter().flatten().next().map_or("", String::as_str))?;
        text_limit("description", description.iter().flatten().next().map_or("", String::as_str))?;
        check_metadata(metadata.as_ref().unwrap_or(&BTreeMap::new()))?;
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let mut row = find(db, &caller, id)?;
            row.name = name.unwrap_or(row.name);
            row.description = description.unwrap_or(row.description);
            row.metadata = metadata.unwrap_or(row.metadata);
            db.update_volume(&row)?;
            // A wish carries them, so that a controller can be rebuilt. Nothing new is wished of what is in review.
            if row.review.is_none() {
                wishes::apply(db, id, &mut [], &BTreeSet::new())?;
            }
            view::volume(&inner, db, find(db, &caller, id)?)
        };
        let volume = self.inner.store.write("change a volume", write).await?;
        self.inner.go(id, &BTreeSet::new());
        Ok(volume)
    }

    /// Begins to delete a volume: `deleting` at once, gone when its agent has wiped it. 400 while it is attached.
    pub async fn delete_volume(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let caller = caller.clone();
        let write = move |db: &Db<'_>| {
            let row = find(db, &caller, id)?;
            if row.operation == Some(Operation::Deleting) {
                return Ok(());
            }
            super::not_in_review(&row)?;
            let ok = matches!(
                row.status,
                VolumeStatus::Available | VolumeStatus::Error | VolumeStatus::ErrorDeleting
            );
            // Also one that could not be attached: its grant may be on its way out still.
            if !ok || !db.attachments_of(id)?.is_empty() {
                let text = "Invalid volume: Volume status must be available or error or error_restoring or error_extending \
                            or error_managing and must not be migrating, attached, belong to a group, have snapshots, \
                            awaiting a transfer, or be disassociated from snapshots after volume transfer.";
                return Err(Refusal::Invalid(text.to_owned()).into());
            }
            db.set_operation(id, Some(Operation::Deleting), None)?;
            wishes::apply(db, id, &mut [], &BTreeSet::new())?;
            Ok(())
        };
        self.inner.store.write("delete a volume", write).await?;
        self.inner.go(id, &BTreeSet::new());
        Ok(())
    }
}
