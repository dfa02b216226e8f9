//! Manages existing LVs: they become volumes with their data. Unmanages volumes: their LVs stay.
//!
//! The storage agent is asked for its LVs. Its answer applies to LVM's identity of an LV (the
//! uuid): another LV that has the name later is not taken.
//!
//! What must never happen here: a volume of another size than its LV; an LV taken that its agent
//! calls unsafe; data destroyed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mooring_api::v1;
use mooring_model::{AgentId, ByteSize, ExistingLv, LvName, PoolName, VolumeId};

use super::volumes::{check_metadata, not_a_source};
use super::{Refusal, Service, failed, not_in_review, text_limit, told, types, view, volumes};
use crate::agents::Agent;
use crate::agents::calls::CallError;
use crate::domain::{Caller, Hints, LvReference, ManageVolume, ManageableVolume, Volume, VolumeStatus};
use crate::error::announced_attachments;
use crate::flow::place::zone_of;
use crate::flow::volume_specs::GIB;
use crate::flow::{Facts, place, volume_specs};
use crate::policy::Target;
use crate::rules::{self, Operation};
use crate::schedule::PoolRef;
use crate::schedule::capabilities::BACKEND;
use crate::store::{Abort, Db, VolumeRow};

/// Time limit for an agent's list of LVs: it asks LVM.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// The operation that removes a volume. The LV of a volume that was never fully taken over, or that
/// is being unmanaged, is not destroyed.
pub(super) fn leaving(row: &VolumeRow) -> Operation {
    match row.operation {
        Some(
            Operation::Managing
            | Operation::ErrorManaging
            | Operation::Unmanaging
            | Operation::ErrorUnmanaging,
        ) => Operation::Unmanaging,
        _ => Operation::Deleting,
    }
}

/// The reason why an LV cannot become a volume, in Cinder's words.
fn bad_reference(shown: &str, why: &str) -> Refusal {
    let shown: String = shown.chars().take(super::TEXT_CHARS_MAX).collect();
    Refusal::Invalid(format!("Manage existing volume failed due to invalid backend reference {shown}: {why}"))
}

impl LvReference {
    fn shown(&self) -> &str {
        match self {
            Self::Name(text) | Self::Uuid(text) => text,
        }
    }

    fn is(&self, lv: &ManageableVolume) -> bool {
        match self {
            Self::Name(name) => *name == lv.name || *name == lv.path(),
            Self::Uuid(uuid) => *uuid == lv.uuid,
        }
    }
}

/// The one LV that a reference names.
fn meant(lvs: Vec<ManageableVolume>, reference: &LvReference) -> Result<ManageableVolume, Refusal> {
    let mut found: Vec<_> = lvs.into_iter().filter(|lv| reference.is(lv)).collect();
    let paths: Vec<_> = found.iter().map(ManageableVolume::path).collect();
    match (found.pop(), found.is_empty()) {
        (Some(lv), true) => match &lv.unsafe_because {
            Some(why) => Err(bad_reference(reference.shown(), why)),
            None => Ok(lv),
        },
        (Some(_), false) => {
            let why = format!("there are {}: say GROUP/LV", paths.join(" and "));
            Err(bad_reference(reference.shown(), &why))
        }
        (None, _) => {
            let why =
                "no such LV is in the groups that its agent serves (mooring volume manageable lists them)";
            Err(bad_reference(reference.shown(), why))
        }
    }
}

fn shown(lv: v1::Lv) -> ManageableVolume {
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    let whole = lv.size_bytes.is_multiple_of(GIB);
    let uneven = || {
        let missing = lv.size_bytes.next_multiple_of(GIB) - lv.size_bytes;
        format!(
            "it has {} ({} bytes), and volumes have whole GiB: lvextend --size +{missing}b {}/{}",
            ByteSize(lv.size_bytes),
            lv.size_bytes,
            lv.group,
            lv.name
        )
    };
    ManageableVolume {
        unsafe_because: text(lv.unsafe_because.clone()).or_else(|| (!whole).then(uneven)),
        volume: lv.volume_id.parse().ok(),
        bytes: lv.size_bytes,
        group: lv.group,
        name: lv.name,
        uuid: lv.uuid,
        thin: lv.thin,
    }
}

/// An LV with its place.
#[derive(Clone)]
struct Place {
    agent: AgentId,
    pool: String,
    zone: String,
    size_gib: u32,
    lv: ExistingLv,
}

fn insert(
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    new: ManageVolume,
    (place, volume_type): (Place, &crate::domain::VolumeType),
) -> Result<(), Abort> {
    let at = (place.agent, place.pool, place.zone);
    let mut row = VolumeRow {
        name: new.name,
        description: new.description,
        operation: Some(Operation::Managing),
        status: VolumeStatus::Managing,
        metadata: new.metadata,
        bootable: new.bootable,
        ..volumes::new_row(db, caller, id, place.size_gib, volume_type, at)
    };
    row.set_takes(&place.lv);
    db.insert_volume(&row)
}

fn manage(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    new: ManageVolume,
    to: Place,
) -> Result<VolumeId, Abort> {
    let volume_type = types::of_new(db, caller, new.volume_type.as_deref())?;
    if rules::is_multiattach(&volume_type.extra_specs) {
        facts.policies().check("volume:multiattach", caller, &Target::own(caller))?;
    }
    types::check_new(facts, db, caller, &volume_type, to.size_gib)?;
    // The LV stays where it is, and needs no more space there. All else that its type asks for must
    // be true of its pool.
    let hints = Hints { zone: new.zone.clone(), ..Hints::default() };
    let mut request = place::request(facts, db, to.size_gib, volume_type.extra_specs.clone(), &hints)?;
    let pool = PoolRef { agent: to.agent, pool: to.pool.clone() };
    request.zone.clone_from(&new.zone);
    request.pool = Some(pool.clone());
    request.resides = Some(pool);
    if let Err(none) = place::choose(facts, db, &request)? {
        let text = format!(
            "Manage existing volume failed due to volume type mismatch, or its storage host takes no volumes: {none}"
        );
        return Err(Refusal::Invalid(text).into());
    }
    let id = VolumeId::random();
    insert(db, caller, id, new, (to, &volume_type))?;
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(id)
}

/// Begins to unmanage a volume.
fn unmanage(facts: &Facts, db: &Db<'_>, caller: &Caller, id: VolumeId) -> Result<(), Abort> {
    let row = volumes::find(facts, db, caller, id)?;
    facts.policies().check("volume_extension:volume_unmanage", caller, &volumes::target(&row))?;
    if row.operation == Some(Operation::Unmanaging) {
        return Ok(());
    }
    not_in_review(&row)?;
    super::isolate::not_isolated(&row)?;
    not_a_source(db, id)?;
    let invalid = |text: String| Err(Refusal::Invalid(format!("Invalid volume: {text}")).into());
    let ok = matches!(
        row.status,
        VolumeStatus::Available | VolumeStatus::ErrorManaging | VolumeStatus::ErrorUnmanaging
    );
    if !ok {
        return invalid(format!(
            "Volume {id} status must be available or error_managing or error_unmanaging to unmanage, but current status is: {}.{}",
            row.status,
            announced_attachments(row.reserved)
        ));
    }
    if let Some(row) = failed::end(db, caller, id)?.first() {
        return invalid(format!(
            "Volume {id} is attached ({}): detach it first.",
            told::who(facts, caller, row)
        ));
    }
    if let Some(snapshot) = db.snapshots_of(id)?.first() {
        return invalid(format!(
            "Volume {id} has snapshots (the oldest is {}): delete them before it is unmanaged.",
            snapshot.id
        ));
    }
    db.set_operation(id, Some(Operation::Unmanaging), None)?;
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())?;
    Ok(())
}

impl Service {
    /// The agent of `host@lvm` or `host@lvm#pool`, and the pool if one is named.
    fn storage_of(&self, host: &str) -> Result<(Arc<Agent>, Option<PoolName>), Refusal> {
        let missing = || {
            let what = host.chars().take(super::TEXT_CHARS_MAX).collect();
            Refusal::NotFound { kind: "Service", what }
        };
        let (backend, pool) = host.split_once('#').map_or((host, None), |(host, pool)| (host, Some(pool)));
        let name = backend.strip_suffix(BACKEND).and_then(|host| host.strip_suffix('@'));
        let agent = name.and_then(|name| self.facts.agents.named(name)).ok_or_else(missing)?;
        let pool = pool.map(|pool| pool.parse().map_err(|_| missing())).transpose()?;
        Ok((agent, pool))
    }

    async fn lvs_of(&self, agent: &Agent, pool: Option<&PoolName>) -> Result<Vec<ManageableVolume>, Refusal> {
        let group = pool.map_or_else(String::new, |pool| pool.group.to_string());
        let listed = agent.list_lvs(group, LIST_LIMIT).await.map_err(|error| match error {
            CallError::Refused { text, .. } => {
                Refusal::Invalid(format!("Service is unavailable at this time. {text}"))
            }
            CallError::Lost(text) | CallError::Stale(text) => Refusal::Unavailable(text),
        })?;
        Ok(listed.lvs.into_iter().map(shown).collect())
    }

    /// The LVs in the groups of a storage agent, or in the group of one of its pools. The agent is
    /// asked. 404 for an agent that is not enrolled; 503 if it does not answer.
    pub async fn manageable_volumes(
        &self,
        caller: &Caller,
        host: &str,
    ) -> Result<Vec<ManageableVolume>, Refusal> {
        self.facts.policies().check("volume_extension:list_manageable", caller, &Target::own(caller))?;
        let (agent, pool) = self.storage_of(host)?;
        self.lvs_of(&agent, pool.as_ref()).await
    }

    /// Makes an LV a volume, with its data: `managing` at once, `available` when its agent has
    /// taken it over. 400 for an LV that its agent calls unsafe, and for a type whose demands its
    /// pool does not meet.
    pub async fn manage_volume(&self, caller: &Caller, new: ManageVolume) -> Result<Volume, Refusal> {
        self.facts.policies().check("volume_extension:volume_manage", caller, &Target::own(caller))?;
        text_limit("name", new.name.as_deref().unwrap_or_default())?;
        text_limit("description", new.description.as_deref().unwrap_or_default())?;
        check_metadata(&new.metadata)?;
        let (agent, pool) = self.storage_of(&new.host)?;
        let Some(id) = agent.id() else {
            return Err(Refusal::Invalid("Service is unavailable at this time.".to_owned()));
        };
        let lv = meant(self.lvs_of(&agent, pool.as_ref()).await?, &new.reference)?;
        let wrong = |why: String| bad_reference(new.reference.shown(), &why);
        let name = LvName::existing(&lv.name).map_err(|error| wrong(error.to_string()))?;
        let group = lv.group.parse().map_err(|_| wrong(format!("{} is no volume group", lv.group)))?;
        let size_gib = u32::try_from(lv.bytes / GIB).ok().filter(|gib| i32::try_from(*gib).is_ok());
        let place = Place {
            agent: id,
            pool: PoolName { group, thin: lv.thin }.to_string(),
            zone: zone_of(&agent).to_owned(),
            size_gib: size_gib.ok_or_else(|| wrong(format!("{} are too many", ByteSize(lv.bytes))))?,
            lv: ExistingLv { name, uuid: lv.uuid },
        };
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let id = manage(&facts, db, &caller, new.clone(), place.clone())?;
            view::volume(&facts, db, volumes::find(&facts, db, &caller, id)?)
        };
        let volume = self.store.write("take over an LV", write).await?;
        self.flow.go(volume.id, &BTreeSet::new());
        Ok(volume)
    }

    /// Unmanages a volume: `unmanaging` at once, gone here when its agent has forgotten it. The LV
    /// stays with its data. 400 while the volume is attached, has snapshots, or is a source of a
    /// volume in the making.
    pub async fn unmanage_volume(&self, caller: &Caller, id: VolumeId) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| unmanage(&facts, db, &caller, id);
        self.store.write("unmanage a volume", write).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(())
    }
}
