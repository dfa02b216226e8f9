//! Changes the type of an existing volume in one transaction, without moving the volume.
//!
//! What must never happen here: a type without its flag, or the flag without its type (both, and
//! the spec that carries them, are one commit); a flag that changes while a grant lives, whatever
//! the status says; a snapshot of another type than its volume.

use std::collections::BTreeSet;

use mooring_model::{AgentId, AttachmentId, VolumeId};

use super::{Refusal, Service, not_in_review, quotas, told, types, volumes};
use crate::domain::{AttachmentStatus, Caller, VolumeStatus, VolumeType};
use crate::error::RuleAnswer;
use crate::flow::{Facts, place, volume_specs};
use crate::policy::Target;
use crate::quota::Delta;
use crate::rules::retype::{self, MigrationPolicy, Refused, Retype};
use crate::rules::tuning;
use crate::schedule::capabilities::{self, Placed, Settings};
use crate::schedule::{self, PoolRef, Request};
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Forbidden(policy) => {
                Self::Forbidden(format!("Policy doesn't allow {policy} to be performed."))
            }
            Refused::NotFound(what) => {
                let id = what.parse::<uuid::Uuid>().is_ok();
                Self::NotFound {
                    kind: "Volume type",
                    what: if id { what } else { format!("with name {what}") },
                }
            }
            Refused::Rule(violation) => violation.into(),
        }
    }
}

/// The type that the call names. `None`: the caller can see no such type.
fn wanted(db: &Db<'_>, caller: &Caller, named: &str) -> Result<Option<VolumeType>, Abort> {
    match types::find(db, caller, named) {
        Ok(found) => Ok(Some(found)),
        Err(Abort::Refused(Refusal::NotFound { .. })) => Ok(None),
        Err(abort) => Err(abort),
    }
}

/// The reason why the volume's own pool cannot serve the new type, by the last report. `None`: it
/// can. The volume exists, and needs no more space.
fn unfit(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    new_type: &VolumeType,
) -> Result<Option<String>, Abort> {
    let place = PoolRef { agent: volume.agent, pool: volume.pool.clone() };
    let mut request =
        Request::new(u64::from(volume.size_gib) * volume_specs::GIB, new_type.extra_specs.clone());
    (request.pool, request.resides) = (Some(place.clone()), Some(place.clone()));
    let row = db.agents()?.into_iter().find(|row| row.id == volume.agent);
    let Some((row, report)) = row.as_ref().and_then(|row| Some((row, row.capabilities.as_ref()?))) else {
        return Ok(Some("its agent has never reported".to_owned()));
    };
    let Some(agent) = facts.agents.named(&row.name) else {
        return Ok(Some(format!("agent {} is not enrolled any more", row.name)));
    };
    let settings = Settings { zone: volume.zone.clone(), ..place::settings(facts, &agent) };
    let agent = place::agent_of(row, &agent, &settings, db, report);
    let Some(reported) = report.pools.iter().find(|pool| pool.name == volume.pool) else {
        return Ok(Some(format!("agent {} reports no pool {}", row.name, volume.pool)));
    };
    let pool = capabilities::pool(&agent, reported, Placed::default());
    Ok(schedule::fits(&pool, &request).err().map(|rejected| rejected.to_string()))
}

/// The status that decides. A failed attachment does not count in the volume's own status, and its
/// grant may live.
fn status(volume: &VolumeRow, rows: &[AttachmentRow]) -> VolumeStatus {
    if volume.status == VolumeStatus::Available && rows.iter().any(|row| row.existing().is_live()) {
        return VolumeStatus::InUse;
    }
    volume.status
}

/// The attachment that keeps the volume from resting, or else one that reaches it. `None`: there is
/// none.
fn in_the_way(rows: &[AttachmentRow]) -> Option<AttachmentId> {
    use AttachmentStatus::{Attaching, Detaching, Reserved};
    let moves = |row: &&AttachmentRow| matches!(row.status, Reserved | Attaching | Detaching);
    let found = rows.iter().find(moves).or_else(|| rows.iter().find(|row| row.existing().is_live()));
    found.map(|row| row.id)
}

/// Refuses a type that demands one mode for all attachments of a host, if a host has two.
fn check_modes(new_type: &VolumeType, rows: &[AttachmentRow]) -> Result<(), Refusal> {
    let existing: Vec<_> = rows.iter().map(AttachmentRow::existing).collect();
    for one in &existing {
        if let Some(initiator) = one.initiator.as_ref().filter(|_| one.is_live()) {
            crate::rules::may_mix(&new_type.extra_specs, Some(one.id), initiator, one.mode, &existing)
                .map_err(|violation| Refusal::rule(RuleAnswer::InvalidVolume, violation))?;
        }
    }
    Ok(())
}

/// The change of the project's usage: the volume and its snapshots, each from the type that it has.
fn delta(
    db: &Db<'_>,
    (volume, old_name): (&VolumeRow, &str),
    snapshots: &[VolumeRow],
    new_name: &str,
) -> Result<Delta, Abort> {
    let mut delta = Delta::retype(old_name, new_name, volume.size_gib);
    for snapshot in snapshots {
        let old = db.type_by_id(snapshot.type_id)?.map_or_else(String::new, |found| found.name);
        delta = delta.and(Delta::retype_snapshot(&old, new_name, snapshot.size_gib));
    }
    Ok(delta)
}

/// Objects whose specs a retype has changed.
struct Retyped {
    hosts: BTreeSet<AgentId>,
    snapshots: Vec<VolumeId>,
}

fn write(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    named: &str,
    migration: MigrationPolicy,
) -> Result<Retyped, Abort> {
    let volume = volumes::find(facts, db, caller, id)?;
    let (rows, snapshots) = (db.attachments_of(id)?, db.snapshots_of(id)?);
    let new_type = wanted(db, caller, named)?;
    let (old_name, old_tuning) = db
        .type_by_id(volume.type_id)?
        .map(|found| (found.name, tuning::of(&found.extra_specs)))
        .unwrap_or_default();
    let (quota, unfit) = match &new_type {
        None => (Ok(()), None),
        Some(new_type) => {
            let delta = delta(db, (&volume, old_name.as_str()), &snapshots, &new_type.name)?;
            let unfit = unfit(facts, db, &volume, new_type)?.map(|why| told::unfit(facts, caller, why));
            (quotas::verdict(facts, db, &volume.project, &delta)?, unfit)
        }
    };
    let (policies, target) = (facts.policies(), volumes::target(&volume));
    let change = retype::retype(&Retype {
        may_retype: policies.allows("volume:retype", caller, &target),
        may_multiattach: policies.allows("volume:multiattach", caller, &Target::own(caller)),
        named,
        new_type: new_type.as_ref(),
        old_type: volume.type_id,
        multiattach: volume.multiattach,
        tuning: &old_tuning,
        size_gib: volume.size_gib,
        status: status(&volume, &rows),
        in_the_way: in_the_way(&rows),
        announced: volume.reserved,
        operation: volume.operation,
        quota,
        migration,
        unfit,
    })
    .map_err(Refusal::from)?;
    if let Some(new_type) = &new_type {
        check_modes(new_type, &rows)?;
    }
    not_in_review(&volume)?;
    snapshots.iter().try_for_each(not_in_review)?;
    db.set_type(id, change.type_id, change.multiattach)?;
    for snapshot in &snapshots {
        // With the flag, as when it was taken: what is kept for a rebuild may name the type by it.
        db.set_type(snapshot.id, change.type_id, change.multiattach)?;
        volume_specs::apply(db, snapshot.id, &mut [], &BTreeSet::new())?;
    }
    let hosts = volume_specs::apply(db, id, &mut [], &BTreeSet::new())?.hosts;
    Ok(Retyped { hosts, snapshots: snapshots.into_iter().map(|snapshot| snapshot.id).collect() })
}

impl Service {
    /// Gives a volume and its snapshots another type, where they are. Refused or done at once.
    pub async fn retype_volume(
        &self,
        caller: &Caller,
        id: VolumeId,
        new_type: &str,
        migration: MigrationPolicy,
    ) -> Result<(), Refusal> {
        let (facts, caller, named) = (self.facts.clone(), caller.clone(), new_type.to_owned());
        let write = move |db: &Db<'_>| write(&facts, db, &caller, id, &named, migration);
        let retyped = self.store.write("retype a volume", write).await?;
        for snapshot in retyped.snapshots {
            self.flow.go(snapshot, &BTreeSet::new());
        }
        self.flow.go(id, &retyped.hosts);
        Ok(())
    }
}
