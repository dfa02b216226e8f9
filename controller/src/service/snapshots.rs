//! Snapshots: the state of a volume at one moment, in the volume's own thin pool. A snapshot is a
//! row as a volume is (with its place, its spec, its review). No host attaches it; volumes are made
//! from it.
//!
//! What must never happen here: a snapshot shown as there that its agent has not reported; one
//! deleted while a volume is being made from it; a lost snapshot that is taken again, from newer
//! data of its volume.

use std::collections::{BTreeMap, BTreeSet};

use mooring_model::{Source, VolumeId};

use super::lists::{found, metadata_after, seen_by};
use super::volumes::check_metadata;
use super::{Refusal, Service, not_in_review, quotas, text_limit, view, volumes};
use crate::domain::{AttachStatus, Caller, Hints, MetadataChange, NewSnapshot, Snapshot, VolumeStatus};
use crate::error::announced_attachments;
use crate::flow::{Facts, volume_specs};
use crate::list::{ListQuery, Page};
use crate::policy::Target;
use crate::quota::Delta;
use crate::rules::Operation;
use crate::store::{Abort, Db, KeptOperations, VolumeRow};

fn not_found(id: VolumeId) -> Refusal {
    Refusal::NotFound { kind: "Snapshot", what: id.to_string() }
}

/// The reason why a thick volume has no snapshots, and is no source for other volumes.
pub(super) fn thick(id: VolumeId) -> String {
    format!(
        "Invalid volume: Volume {id} is thick: only thin volumes have snapshots and copies. Give its type provisioning:type = \
         thin before you make the volume."
    )
}

/// The snapshot, if this caller may see it, and its volume.
pub(super) fn find(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
) -> Result<(VolumeRow, VolumeId), Abort> {
    let row = db.volume(id)?.and_then(|row| row.snapshot_of.map(|of| (row, of)));
    let may = |row: &VolumeRow| facts.policies().allows("volume:get_snapshot", caller, &volumes::target(row));
    Ok(row.filter(|(row, _)| may(row)).ok_or_else(|| not_found(id))?)
}

fn create(facts: &Facts, db: &Db<'_>, caller: &Caller, new: NewSnapshot) -> Result<VolumeId, Abort> {
    let volume = volumes::find(facts, db, caller, new.volume)?;
    facts.policies().check("volume:create_snapshot", caller, &volumes::target(&volume))?;
    not_in_review(&volume)?;
    super::isolate::not_isolated(&volume)?;
    let ready = match volume.status {
        VolumeStatus::Available => true,
        VolumeStatus::InUse => new.in_use,
        _ => false,
    };
    if !ready {
        return Err(Refusal::Invalid(format!(
            "Invalid volume: Volume {} status must be available, but current status is: {}.{}",
            volume.id,
            volume.status,
            announced_attachments(volume.reserved)
        ))
        .into());
    }
    if !volume.is_thin() {
        return Err(Refusal::Invalid(thick(volume.id)).into());
    }
    volumes::not_closed(facts, caller, &volume)?;
    let type_name = db.type_by_id(volume.type_id)?.map_or_else(String::new, |found| found.name);
    quotas::check(facts, db, &volume.project, &Delta::snapshot(&type_name, volume.size_gib))?;
    let (id, at) = (VolumeId::random(), volume.agent);
    db.insert_volume(&VolumeRow {
        id,
        name: new.name,
        description: new.description,
        metadata: new.metadata,
        operation: Some(Operation::Creating),
        status: VolumeStatus::Creating,
        attach_status: AttachStatus::Detached,
        user: caller.user.clone(),
        target: None,
        naa: None,
        portals: Vec::new(),
        fc_ports: BTreeSet::new(),
        created_at: db.now,
        updated_at: None,
        fault: None,
        readonly: None,
        reserved: 0,
        reserved_until: None,
        holds: 0,
        holds_until: None,
        said_status: None,
        hints: Hints::default(),
        tried: Vec::new(),
        snapshot_of: Some(volume.id),
        source: Some(Source::Volume(volume.id)),
        taken: false,
        kept: KeptOperations::default(),
        ..volume
    })?;
    if facts.agents.up(at).is_err() {
        // Until its agent is up nobody has any part of the snapshot: it can be taken back at once.
        db.mark_unsent(id)?;
    }
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(id)
}

/// Begins to delete a snapshot.
pub(super) fn begin_delete(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    row: &VolumeRow,
) -> Result<(), Abort> {
    facts.policies().check("volume:delete_snapshot", caller, &volumes::target(row))?;
    if row.operation == Some(Operation::Deleting) {
        return Ok(());
    }
    not_in_review(row)?;
    let ok =
        matches!(row.status, VolumeStatus::Available | VolumeStatus::Error | VolumeStatus::ErrorDeleting);
    if !ok {
        // Names the snapshot: a deletion of a volume and its snapshots asks for none of them by id.
        let text = format!(
            "Invalid snapshot: Snapshot status must be available or error or error_deleting. Snapshot {} is {}.",
            row.id, row.status
        );
        return Err(Refusal::Invalid(text).into());
    }
    if let Some(made) = db.being_made_from(row.id)? {
        let text = format!("Invalid snapshot: volume {made} is being made from snapshot {}.", row.id);
        return Err(Refusal::Invalid(text).into());
    }
    if !row.is_placed() {
        // No agent has any part of this snapshot.
        return Ok(db.delete_volume(row.id)?);
    }
    db.set_operation(row.id, Some(Operation::Deleting), None)?;
    volume_specs::apply(db, row.id, &mut [], &BTreeSet::new())?;
    Ok(())
}

/// Writes the changes that users may make to a snapshot, if their policies allow it.
fn keep(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    row: &VolumeRow,
    policy: &'static str,
) -> Result<(), Abort> {
    facts.policies().check(policy, caller, &volumes::target(row))?;
    db.update_volume(row)?;
    volume_specs::renew_unless_in_review(db, row)
}

fn page(db: &Db<'_>, query: &ListQuery) -> Result<Page<Snapshot>, Abort> {
    let rows = found("Snapshot", query, db.snapshot_page(query)?)?;
    let shown = |row: VolumeRow| row.snapshot_of.map(|of| view::snapshot_of(row, of));
    let count = if query.count { Some(db.snapshot_count(query)?) } else { None };
    Ok(Page { items: rows.into_iter().filter_map(shown).collect(), count })
}

impl Service {
    /// Takes a snapshot of a volume: `creating` at once, `available` when its agent reports it. 400
    /// for a thick volume, and for a volume in use unless the request allows that.
    pub async fn create_snapshot(&self, caller: &Caller, new: NewSnapshot) -> Result<Snapshot, Refusal> {
        text_limit("name", new.name.as_deref().unwrap_or_default())?;
        text_limit("description", new.description.as_deref().unwrap_or_default())?;
        check_metadata(&new.metadata)?;
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let id = create(&facts, db, &caller, new.clone())?;
            let row = db.volume(id)?.ok_or_else(|| not_found(id))?;
            Ok(view::snapshot_of(row, new.volume))
        };
        let snapshot = self.store.write("take a snapshot", write).await?;
        self.flow.go(snapshot.id, &BTreeSet::new());
        Ok(snapshot)
    }

    /// One snapshot. 404 for another project's snapshot.
    pub async fn snapshot(&self, caller: &Caller, id: VolumeId) -> Result<Snapshot, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let (row, of) = find(&facts, db, &caller, id)?;
            Ok(view::snapshot_of(row, of))
        };
        self.store.read_one("read a snapshot", read).await
    }

    /// One page of snapshots.
    pub async fn snapshots(&self, caller: &Caller, query: ListQuery) -> Result<Page<Snapshot>, Refusal> {
        self.facts.policies().check("volume:get_all_snapshots", caller, &Target::own(caller))?;
        let query = seen_by(caller, query);
        self.store.read("list snapshots", move |db| page(db, &query)).await
    }

    /// Changes name and description.
    pub async fn update_snapshot(
        &self,
        caller: &Caller,
        id: VolumeId,
        name: Option<Option<String>>,
        description: Option<Option<String>>,
    ) -> Result<Snapshot, Refusal> {
        text_limit("name", name.iter().flatten().next().map_or("", String::as_str))?;
        text_limit("description", description.iter().flatten().next().map_or("", String::as_str))?;
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let (mut row, of) = find(&facts, db, &caller, id)?;
            row.name = name.clone().unwrap_or(row.name);
            row.description = description.clone().unwrap_or(row.description);
            keep(&facts, db, &caller, &row, "volume:update_snapshot")?;
            let (row, _) = find(&facts, db, &caller, id)?;
            Ok(view::snapshot_of(row, of))
        };
        let snapshot = self.store.write("change a snapshot", write).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(snapshot)
    }

    /// Changes a snapshot's metadata, and returns the new metadata.
    pub async fn change_snapshot_metadata(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: MetadataChange,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let (mut row, _) = find(&facts, db, &caller, id)?;
            let policy = match change {
                MetadataChange::Remove(_) => "volume:delete_snapshot_metadata",
                MetadataChange::Merge(_) | MetadataChange::Replace(_) => "volume:update_snapshot_metadata",
            };
            metadata_after(id, &mut row.metadata, &change)?;
            check_metadata(&row.metadata)?;
            keep(&facts, db, &caller, &row, policy)?;
            Ok(row.metadata)
        };
        let metadata = self.store.write("change a snapshot's metadata", write).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(metadata)
    }

    /// Begins to delete a snapshot: `deleting` at once, gone when its agent has removed it. Volumes
    /// that were made from it stay as they are.
    pub async fn delete_snapshot(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let (row, of) = find(&facts, db, &caller, id)?;
            begin_delete(&facts, db, &caller, &row)?;
            Ok((!row.is_placed()).then_some(of))
        };
        let gone = self.store.write("delete a snapshot", write).await?;
        self.flow.go(id, &BTreeSet::new());
        if let Some(of) = gone {
            // The volume may wait for the end of this snapshot, which had no job.
            self.flow.wake(of, &BTreeSet::new());
        }
        Ok(())
    }
}
