//! Volumes: the scheduler places them by the agents' last reports; the agents make and wipe them.

use std::collections::{BTreeMap, BTreeSet};

use mooring_model::limit::VOLUME_BYTES_MAX;
use mooring_model::{AgentId, Source, VolumeId};

use super::pools::GET_POOLS;
use super::{
    Refusal, Service, TEXT_CHARS_MAX, failed, images, manage, snapshots, text_limit, told, types, view,
};
use crate::domain::{AttachStatus, Caller, Hints, NewVolume, Volume, VolumeStatus, VolumeType, WantedId};
use crate::error::announced_attachments;
use crate::flow::place::{nowhere, zone_of};
use crate::flow::{self, Facts, volume_specs};
use crate::policy::Target;
use crate::rules::{self, Operation};
use crate::schedule::PoolRef;
use crate::store::{Abort, AttachmentRow, Db, Event, KeptOperations, Place, VolumeRow, id_is_taken};

/// Most keys in a volume's metadata.
const METADATA_KEYS_MAX: usize = 128;

/// Policy for choosing the id of a new volume. An id is part of names on disks and on the wire.
/// Hosts and storage nodes that this database does not know may know that id.
const CHOOSE_ID: &str = "mooring:choose_id";

/// The message of an accepted volume without a place.
pub(super) const NOWHERE: &str = "No valid backend was found";

/// Most bytes of metadata: as many pairs as there may be, each key and value as long as it may be.
/// Agents store it for a rebuild if it fits; see [`crate::kept`].
const METADATA_BYTES_MAX: usize = METADATA_KEYS_MAX * 2 * TEXT_CHARS_MAX;

/// The volume, if this caller may see it.
pub(super) fn find(facts: &Facts, db: &Db<'_>, caller: &Caller, id: VolumeId) -> Result<VolumeRow, Abort> {
    let may = |volume: &VolumeRow| facts.policies().allows("volume:get", caller, &target(volume));
    let found = db.volume(id)?.filter(|row| row.snapshot_of.is_none()).filter(may);
    Ok(found.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: id.to_string() })?)
}

/// Refuses while another volume is being made from this one.
pub(super) fn not_a_source(db: &Db<'_>, id: VolumeId) -> Result<(), Abort> {
    match db.being_made_from(id)? {
        Some(made) => Err(Refusal::Invalid(format!("Invalid volume: {made} is being made from it.")).into()),
        None => Ok(()),
    }
}

/// Refuses a snapshot or growth of a volume whose pool takes nothing new: its agent would refuse it
/// after the call was accepted. The reason is that of the agent's last report.
pub(super) fn not_closed(facts: &Facts, caller: &Caller, volume: &VolumeRow) -> Result<(), Refusal> {
    let agent = facts.agents.by_id(volume.agent);
    let Some(why) = agent.and_then(|agent| agent.closed(&volume.pool)) else { return Ok(()) };
    let next = if told::reads(facts, caller) { why } else { "ask the operator for room".to_owned() };
    Err(Refusal::Invalid(format!(
        "Invalid volume: the pool of volume {} is almost full, and takes no snapshot and no growth: {next}. Try again some \
         seconds after there is room in it",
        volume.id
    )))
}

/// A volume, in the form in which policies see it.
pub(super) fn target(volume: &VolumeRow) -> Target<'_> {
    Target { project: Some(&volume.project), user: Some(&volume.user) }
}

/// Checks the policies of a change. Metadata has policies of its own: for added, changed and
/// removed keys.
pub(super) fn may_update(
    facts: &Facts,
    caller: &Caller,
    row: &VolumeRow,
    named: bool,
    metadata: Option<&BTreeMap<String, String>>,
) -> Result<(), Refusal> {
    let (policies, target) = (facts.policies(), target(row));
    if named || metadata.is_none() {
        policies.check("volume:update", caller, &target)?;
    }
    let Some(new) = metadata else { return Ok(()) };
    let added = new.keys().any(|key| !row.metadata.contains_key(key));
    let taken = row.metadata.keys().any(|key| !new.contains_key(key));
    let changed = new.iter().any(|(key, value)| row.metadata.get(key).is_some_and(|old| old != value));
    if added {
        policies.check("volume:create_volume_metadata", caller, &target)?;
    }
    if taken {
        policies.check("volume:delete_volume_metadata", caller, &target)?;
    }
    if changed || !(added || taken) {
        policies.check("volume:update_volume_metadata", caller, &target)?;
    }
    Ok(())
}

pub(super) fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Refusal> {
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

/// The place of a new volume. `Ok(None)`: there is none, and the volume's status tells it later.
fn place(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    new: &NewVolume,
    volume_type: &VolumeType,
    source: Option<&VolumeRow>,
) -> Result<Option<Place>, Abort> {
    if let Some(zone) = &new.hints.zone
        && !facts.agents.all().iter().any(|agent| zone_of(agent) == zone)
    {
        let shown: String = zone.chars().take(TEXT_CHARS_MAX).collect();
        return Err(Refusal::Invalid(format!("Availability zone '{shown}' is invalid.")).into());
    }
    for id in new.hints.same_host.iter().chain(&new.hints.different_host) {
        // Another project's volume is refused, too: its place is not the caller's business.
        find(facts, db, caller, *id).map_err(|abort| match abort {
            Abort::Refused(Refusal::NotFound { .. }) => Refusal::Invalid(format!(
                "Invalid input received: scheduler hints: volume {id} could not be found."
            ))
            .into(),
            other => other,
        })?;
    }
    let size_gib = new.size_gib.unwrap_or_default();
    let mut request = flow::place::request(facts, db, size_gib, volume_type.extra_specs.clone(), &new.hints)?;
    // A copy shares blocks with its source, and lies in the same pool.
    request.pool = source.map(|of| PoolRef { agent: of.agent, pool: of.pool.clone() });
    if source.is_some() || new.hints.image.is_some() {
        request.zone.clone_from(&new.hints.zone);
    }
    let none = match flow::place::choose(facts, db, &request)? {
        Ok(place) => return Ok(Some(place)),
        Err(none) => none,
    };
    if !none.reported {
        return Err(Refusal::Unavailable(none.summary()).into());
    }
    tracing::info!(request = caller.request, %none, "no pool can take a volume");
    if !facts.options.scheduler.fast_fail {
        return Ok(None);
    }
    // Only a caller who may list pools gets their names and space.
    let may_see = facts.policies().check(GET_POOLS, caller, &Target::default()).is_ok();
    Err(Refusal::Invalid(if may_see { none.to_string() } else { none.summary() }).into())
}

fn check(new: &NewVolume) -> Result<(), Refusal> {
    text_limit("name", new.name.as_deref().unwrap_or_default())?;
    text_limit("description", new.description.as_deref().unwrap_or_default())?;
    check_metadata(&new.metadata)?;
    let wrong = |size_gib| u64::from(size_gib) * volume_specs::GIB > VOLUME_BYTES_MAX || size_gib == 0;
    let size_gib = new.size_gib.or(new.source.map(|_| 1)).unwrap_or_default();
    if wrong(size_gib) {
        return Err(Refusal::Invalid(format!(
            "Invalid input received: Volume size '{size_gib}' must be an integer and greater than 0"
        )));
    }
    Ok(())
}

/// The source of a new volume, if it is usable. `None`: the volume has no source.
fn source(facts: &Facts, db: &Db<'_>, caller: &Caller, new: &NewVolume) -> Result<Option<VolumeRow>, Abort> {
    let invalid = |text: String| Err(Refusal::Invalid(text).into());
    let (row, what) = match new.source {
        None => return Ok(None),
        Some(Source::Volume(id)) => {
            let row = find(facts, db, caller, id)?;
            let ready = matches!(row.status, VolumeStatus::Available | VolumeStatus::InUse);
            if !ready {
                return invalid(format!(
                    "Invalid volume: Volume {id} status must be available or in-use to make another from it, but current \
                     status is: {}.{}",
                    row.status,
                    announced_attachments(row.reserved)
                ));
            }
            (row, "original volume size ")
        }
        Some(Source::Snapshot(id)) => {
            let (row, _) = snapshots::find(facts, db, caller, id)?;
            if row.status != VolumeStatus::Available {
                return invalid(
                    "Invalid snapshot: Originating snapshot status must be one of 'available' values"
                        .to_owned(),
                );
            }
            (row, "the snapshot size")
        }
    };
    super::not_in_review(&row)?;
    super::isolate::not_isolated(&row)?;
    if !row.is_thin() {
        return invalid(snapshots::thick(row.id));
    }
    if let Some(size_gib) = new.size_gib.filter(|size_gib| *size_gib < row.size_gib) {
        return invalid(format!(
            "Invalid input received: Volume size '{size_gib}'GB cannot be smaller than {what} {}GB. They must be >= original \
             {}size.",
            row.size_gib,
            if row.snapshot_of.is_some() { "snapshot " } else { "volume " }
        ));
    }
    Ok(Some(row))
}

/// Inserts the row of a new volume.
fn insert(
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    (new, size_gib, volume_type): (NewVolume, u32, VolumeType),
    (place, found, source): (&Place, bool, Option<&VolumeRow>),
) -> Result<(), Abort> {
    let at = (place.agent, place.pool.clone(), place.zone.clone());
    db.insert_volume(&VolumeRow {
        name: new.name,
        description: new.description,
        operation: Some(if found { Operation::Creating } else { Operation::Error }),
        metadata: new.metadata,
        bootable: source.is_some_and(|of| of.bootable),
        hints: new.hints,
        source: new.source,
        ..new_row(db, caller, id, size_gib, &volume_type, at)
    })
}

/// The row of a caller's volume that is being made: of this type and size (GiB), by this agent, in
/// this pool and zone. It has no attachments.
pub(super) fn new_row(
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    size_gib: u32,
    volume_type: &VolumeType,
    (agent, pool, zone): (AgentId, String, String),
) -> VolumeRow {
    VolumeRow {
        id,
        name: None,
        description: None,
        size_gib,
        type_id: volume_type.id,
        multiattach: rules::is_multiattach(&volume_type.extra_specs),
        operation: Some(Operation::Creating),
        status: VolumeStatus::Creating,
        attach_status: AttachStatus::Detached,
        project: caller.project.clone(),
        user: caller.user.clone(),
        metadata: BTreeMap::new(),
        agent,
        pool,
        target: None,
        naa: None,
        portals: Vec::new(),
        fc_ports: BTreeSet::new(),
        review: None,
        created_at: db.now,
        updated_at: None,
        fault: None,
        bootable: false,
        readonly: None,
        zone,
        reserved: 0,
        reserved_until: None,
        holds: 0,
        holds_until: None,
        said_status: None,
        hints: Hints::default(),
        tried: Vec::new(),
        grows_from: None,
        snapshot_of: None,
        source: None,
        taken: false,
        kept: KeptOperations::default(),
    }
}

/// The id of a requested volume.
enum Id {
    /// No volume has had this id.
    New(VolumeId),
    /// An earlier request with the same key made the volume.
    Made(VolumeId),
}

/// Chooses the id of a new volume, or takes the requested one. 409 for an id that any volume has or
/// had. 503 while an agent has not been heard since the database was restored: it may have a volume
/// with this id.
fn id(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    new: &NewVolume,
    volume_type: &VolumeType,
) -> Result<Id, Abort> {
    let Some(wanted) = &new.id else { return Ok(Id::New(VolumeId::random())) };
    let (id, taken) = match wanted {
        WantedId::Given(id) => (*id, id_is_taken(*id)),
        WantedId::Key(key) => {
            let text = format!(
                "the request key {:?} was used for another volume, or for one that is gone: choose another",
                key.as_str()
            );
            (key.volume(facts.cluster, &caller.project), Refusal::Conflict(text))
        }
    };
    if matches!(wanted, WantedId::Key(_))
        && let Some(kept) = db.volume(id)?
    {
        let same = Some(kept.size_gib) == new.size_gib
            && kept.project == caller.project
            && kept.snapshot_of.is_none()
            && kept.source == new.source
            && kept.hints.image == new.hints.image
            && kept.type_id == volume_type.id
            && kept.name == new.name;
        return if same { Ok(Id::Made(id)) } else { Err(taken.into()) };
    }
    if db.is_known_id(id)? {
        return Err(taken.into());
    }
    let all = facts.agents.all();
    let enrolled = all.iter().map(|agent| agent.entry.name.as_str());
    if let Some(agent) = db.unheard_since_restore(enrolled)? {
        let why = format!(
            "agent {agent} was not heard since the controller's database was restored, and may have a volume of this id: wait for it, \
             or ask without an id and without a request key"
        );
        return Err(told::unheard(facts, caller, why).into());
    }
    Ok(Id::New(id))
}

fn create(facts: &Facts, db: &Db<'_>, caller: &Caller, mut new: NewVolume) -> Result<VolumeId, Abort> {
    let source = source(facts, db, caller, &new)?;
    let like = source.as_ref().filter(|_| new.volume_type.is_none());
    let volume_type = match like {
        Some(of) => db.type_by_id(of.type_id)?.ok_or_else(|| view::without_type(of.id))?,
        None => types::of_new(db, caller, new.volume_type.as_deref())?,
    };
    new.size_gib = new.size_gib.or(source.as_ref().map(|of| of.size_gib));
    let size_gib = new.size_gib.unwrap_or_default();
    if rules::is_multiattach(&volume_type.extra_specs) {
        facts.policies().check("volume:multiattach", caller, &Target::own(caller))?;
    }
    let id = match id(facts, db, caller, &new, &volume_type)? {
        Id::New(id) => id,
        Id::Made(id) => return Ok(id),
    };
    types::check_new(facts, db, caller, &volume_type, size_gib)?;
    let place = place(facts, db, caller, &new, &volume_type, source.as_ref())?;
    let found = place.is_some();
    let place = place.unwrap_or_else(nowhere);
    insert(db, caller, id, (new, size_gib, volume_type), (&place, found, source.as_ref()))?;
    if !found {
        // Kept in the words that a refusal would have for a user.
        db.keep_message(Event::Schedule, &caller.project, id, NOWHERE)?;
        db.set_operation(id, Some(Operation::Error), Some(NOWHERE))?;
    } else if !place.sent {
        db.mark_unsent(id)?;
    }
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(id)
}

/// The refusal of a delete. `held_by`: the attachment that is all that holds the volume up. No list
/// may show it: its attach failed, or the volume's status is an error.
fn not_deletable(facts: &Facts, caller: &Caller, held_by: Option<&AttachmentRow>) -> String {
    let who = held_by.map(|row| {
        let who = told::who(facts, caller, row);
        format!(" It has {who}: detach it first, by force if its host does not answer.")
    });
    format!(
        "Invalid volume: Volume status must be available or error or error_restoring or error_extending or error_managing \
         and must not be migrating, attached, belong to a group, have snapshots, awaiting a transfer, or be disassociated \
         from snapshots after volume transfer.{}",
        who.unwrap_or_default()
    )
}

/// Begins to delete these snapshots. Returns their ids.
pub(super) fn delete_snapshots(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    snapshots: &[VolumeRow],
) -> Result<Vec<VolumeId>, Abort> {
    for snapshot in snapshots {
        snapshots::begin_delete(facts, db, caller, snapshot)?;
    }
    Ok(snapshots.iter().map(|snapshot| snapshot.id).collect())
}

/// Repeats the deletion of a volume. With `cascade`, snapshots that hold it up are tried again.
/// Returns their ids.
pub(super) fn delete_again(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    cascade: bool,
) -> Result<Vec<VolumeId>, Abort> {
    let failed = |one: &VolumeRow| cascade && one.operation == Some(Operation::ErrorDeleting);
    let again: Vec<_> = db.snapshots_of(id)?.into_iter().filter(failed).collect();
    delete_snapshots(facts, db, caller, &again)
}

impl Service {
    /// Creates a volume: `creating` at once, `available` when its agent has made it. 400 if no
    /// reporting agent can take it; 503 if none has ever reported.
    pub async fn create_volume(&self, caller: &Caller, new: NewVolume) -> Result<Volume, Refusal> {
        self.facts.policies().check("volume:create", caller, &Target::own(caller))?;
        if matches!(new.id, Some(WantedId::Given(_))) {
            self.facts.policies().check(CHOOSE_ID, caller, &Target::own(caller))?;
        }
        check(&new)?;
        if let Some(of) = &new.hints.image {
            images::check(&self.facts, caller, of)?;
        }
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let id = create(&facts, db, &caller, new.clone())?;
            view::volume(&facts, db, find(&facts, db, &caller, id)?)
        };
        let volume = self.store.write("create a volume", write).await?;
        self.flow.go(volume.id, &BTreeSet::new());
        Ok(volume)
    }

    /// One volume. 404 for another project's volume.
    pub async fn volume(&self, caller: &Caller, id: VolumeId) -> Result<Volume, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| view::volume(&facts, db, find(&facts, db, &caller, id)?);
        self.store.read_one("read a volume", read).await
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
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let mut row = find(&facts, db, &caller, id)?;
            may_update(&facts, &caller, &row, name.is_some() || description.is_some(), metadata.as_ref())?;
            row.name = name.clone().unwrap_or(row.name);
            row.description = description.clone().unwrap_or(row.description);
            row.metadata = metadata.clone().unwrap_or(row.metadata);
            db.update_volume(&row)?;
            volume_specs::renew_unless_in_review(db, &row)?;
            view::volume(&facts, db, find(&facts, db, &caller, id)?)
        };
        let volume = self.store.write("change a volume", write).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(volume)
    }

    /// Begins to delete a volume: `deleting` at once, gone when its agent has wiped it. 400 while
    /// it is attached, or has snapshots.
    pub async fn delete_volume(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.delete(caller, id, false).await
    }

    /// As [`Service::delete_volume`], together with the volume's snapshots. The volume goes last;
    /// it stays, in `error_deleting`, if a snapshot cannot go.
    pub async fn delete_volume_with_snapshots(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        self.delete(caller, id, true).await
    }

    async fn delete(&self, caller: &Caller, id: VolumeId, cascade: bool) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let row = find(&facts, db, &caller, id)?;
            facts.policies().check("volume:delete", &caller, &target(&row))?;
            if row.operation == Some(Operation::Deleting) {
                return delete_again(&facts, db, &caller, id, cascade);
            }
            super::not_in_review(&row)?;
            super::isolate::not_isolated(&row)?;
            let snapshots = db.snapshots_of(id)?;
            not_a_source(db, id)?;
            let ok = matches!(
                row.status,
                VolumeStatus::Available
                    | VolumeStatus::Error
                    | VolumeStatus::ErrorExtending
                    | VolumeStatus::ErrorDeleting
                    | VolumeStatus::ErrorManaging
            );
            let kept = !ok || (!cascade && !snapshots.is_empty());
            // A failed attachment counts, too, while its grant may not be revoked.
            let attached = failed::end(db, &caller, id)?;
            if kept || !attached.is_empty() {
                let text = not_deletable(&facts, &caller, attached.first().filter(|_| !kept));
                let announced = announced_attachments(row.reserved);
                return Err(Refusal::Invalid(format!("{text}{announced}")).into());
            }
            if !row.is_placed() {
                // No agent has any part of this volume.
                db.delete_volume(id)?;
                return Ok(Vec::new());
            }
            let begun = delete_snapshots(&facts, db, &caller, &snapshots)?;
            db.set_operation(id, Some(manage::leaving(&row)), None)?;
            volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
            Ok(begun)
        };
        for gone in self.store.write("delete a volume", write).await? {
            self.flow.go(gone, &BTreeSet::new());
        }
        self.flow.go(id, &BTreeSet::new());
        Ok(())
    }
}
