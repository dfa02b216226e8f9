//! Changes the mode of an existing attachment from rw to ro or back, without a detach.
//!
//! The target changes the right to write first: it enforces the mode. The host is told at the same
//! time. A command that the target had received before may still land after the answer (the
//! kernel's `write_protect` is no barrier). A caller who must exclude that asks for a barrier. The
//! storage agent then drops the host's sessions once and waits for their commands in flight. The
//! answer comes when the agent reports that wait as done (decision 38). A barrier that is
//! impossible is refused with the reason.
//!
//! What must never happen here: an answer before the target enforces the new mode, or before the
//! barrier that was asked for is reported; writes to a volume whose flag says read only; a mixture
//! of modes on one host that the type forbids.

use std::collections::BTreeSet;
use std::time::Duration;

use mooring_model::{
    AgentId, AttachmentId, BarrierId, ConnectionPhase, ExportReport, Generation, Initiator, Iqn, Mode,
    Reservations, VolumeId,
};
use tokio::time::Instant;

use super::{Refusal, Service, Wait, attach, not_in_review, obstacle};
use crate::domain::{AttachmentLive, AttachmentStatus, Caller};
use crate::flow::Facts;
use crate::flow::seen::{seen_mode, wanted_mode};
use crate::flow::volume_specs::{self, SpecChanges};
use crate::initiators::Initiators;
use crate::permits;
use crate::policy::Target;
use crate::rules;
use crate::store::{Abort, AttachmentRow, Db, Kind, VolumeRow};

/// The new mode of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMode {
    /// Access mode.
    pub mode: Mode,
    /// `true`: the answer comes only when no write in flight can land any more. Only with
    /// [`Mode::ReadOnly`].
    pub barrier: bool,
}

impl From<Mode> for NewMode {
    /// A mode without a barrier.
    fn from(mode: Mode) -> Self {
        Self { mode, barrier: false }
    }
}

/// The reports that prove that the new mode is in force.
#[derive(Clone)]
struct Wanted {
    volume: VolumeId,
    storage: AgentId,
    /// The mode of each initiator of the nexus: the widest of its attachments. `None`: the
    /// initiator has no grant.
    modes: Vec<(Initiator, Option<Mode>)>,
    /// Generation of the export's spec. `connection` has the host and the generation of its spec.
    export: Generation,
    connection: Option<(AgentId, Generation)>,
    barrier: Option<(Iqn, BarrierId)>,
}

/// The initiator that a barrier of this attachment drains, or the refusal with the reason why none
/// is possible.
fn drained(
    facts: &Facts,
    row: &AttachmentRow,
    volume: &VolumeRow,
    rows: &[AttachmentRow],
) -> Result<Iqn, Refusal> {
    let refuse = |why: &str| {
        let text = format!(
            "attachment {}: no barrier: {why}. Without a barrier the mode can be changed; a detach by force answers with a receipt",
            row.id
        );
        Err(Refusal::Conflict(text))
    };
    let iqn = match &row.initiator {
        Some(Initiators::Iscsi(iqn)) if row.wants_grant() => iqn.clone(),
        Some(Initiators::Fc(_)) if row.wants_grant() => {
            return refuse(
                "over Fibre Channel the kernel drains one host only by taking the LUN from it, and its reads would fail",
            );
        }
        _ => return refuse("it is not connected, nothing of it can be in flight"),
    };
    let initiator = Initiator::Iscsi(iqn.clone());
    let shares = |other: &&AttachmentRow| {
        other.wants_grant()
            && other.mode == Mode::ReadWrite
            && other.initiator.as_ref().is_some_and(|own| own.has(&initiator))
    };
    if let Some(other) = rows.iter().find(shares) {
        return refuse(&format!(
            "attachment {} of the same host writes, and they share its access",
            other.id
        ));
    }
    if row.connector.as_ref().is_some_and(|connector| connector.says("multipath")) {
        return refuse(
            "its host reaches the volume through multipath, and whether the map is closed cannot be seen from here",
        );
    }
    let seen = facts.agents.up(volume.agent).ok().and_then(|agent| agent.export(volume.id)?.reservations);
    // The kernel's list is cut short: the registrations that it lacks may be this host's.
    let has = |seen: Reservations| {
        let registered = seen.registrations.iter().any(|one| one.initiator == initiator);
        registered || seen.truncated || seen.is_held_by(&initiator)
    };
    if seen.is_some_and(has) {
        return refuse(
            "its host has registered a persistent reservation, which would be lost: let it unregister first",
        );
    }
    Ok(iqn)
}

/// `true` if the storage agent reports the barrier as done, or none was asked for.
fn is_drained(report: &ExportReport, barrier: Option<&(Iqn, BarrierId)>) -> bool {
    barrier.is_none_or(|(iqn, id)| {
        report.grants.iter().any(|grant| grant.initiator == *iqn && grant.barrier == Some(*id))
    })
}

/// The host that gave up because it was refused while its access was made again. It tries again at
/// a newer spec. `None`: no host gave up.
fn gave_up(facts: &Facts, row: &AttachmentRow) -> Option<AgentId> {
    let host = row.native.filter(|_| row.wants_path())?;
    let report = facts.agents.up(host).ok()?.connection(row.volume).report?;
    (report.phase == ConnectionPhase::Forbidden).then_some(host)
}

/// Gives an attachment another mode, if the volume's flag and the type's rule for one host allow
/// it. The caller writes the row.
pub(super) fn change(
    db: &Db<'_>,
    volume: &VolumeRow,
    row: &mut AttachmentRow,
    mode: Mode,
    before: &[AttachmentRow],
) -> Result<(), Abort> {
    let mode = rules::mode(Some(mode), None, None, &[], volume.readonly == Some(true));
    row.mode = mode?;
    if let Some(initiator) = &row.initiator
        && let Some(volume_type) = db.type_by_id(volume.type_id)?
    {
        let existing: Vec<_> = before.iter().map(AttachmentRow::existing).collect();
        rules::may_mix(&volume_type.extra_specs, Some(row.id), initiator, row.mode, &existing)?;
    }
    Ok(())
}

fn begin(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    new: NewMode,
) -> Result<(Option<Wanted>, VolumeId, SpecChanges), Abort> {
    let mut row = attach::find(db, caller, id)?;
    facts.policies().check("volume:attachment_update", caller, &Target::of(&row.project))?;
    let volume = attach::volume_of(db, &row)?;
    not_in_review(&volume)?;
    if row.is_going() || row.status == AttachmentStatus::ErrorDetaching {
        let text = format!("attachment {id} is {}: its mode is not changed any more", row.status);
        return Err(Refusal::Conflict(text).into());
    }
    if new.barrier && new.mode == Mode::ReadWrite {
        let text = "Invalid input received: a barrier needs mode ro: an attachment that may write always has commands in flight";
        return Err(Refusal::Invalid(text.to_owned()).into());
    }
    let before = db.attachments_of(volume.id)?;
    change(db, &volume, &mut row, new.mode, &before)?;
    row.mode_asked = true;
    let mut changed = [row];
    let mut spec_changes = volume_specs::apply_to(db, &volume, before, &mut changed, &BTreeSet::new())?;
    let [row] = changed;
    let rows = db.attachments_of(volume.id)?;
    let barrier = if new.barrier {
        let iqn = drained(facts, &row, &volume, &rows)?;
        let (id, changed) = volume_specs::barrier(db, volume.id, &iqn)?;
        spec_changes.storage |= changed;
        if let Some(host) = gave_up(facts, &row) {
            db.renew(volume.id, Kind::Connection(host), Generation::ZERO)?;
            spec_changes.hosts.insert(host);
        }
        Some((iqn, id))
    } else {
        None
    };
    if !row.wants_grant() {
        return Ok((None, volume.id, spec_changes));
    }
    let generation = |kind| Ok::<_, Abort>(db.spec_stamp(volume.id, kind)?.map(|stamp| stamp.generation));
    let connection = match row.native.filter(|_| row.wants_path()) {
        Some(host) => generation(Kind::Connection(host))?.map(|generation| (host, generation)),
        None => None,
    };
    let export = generation(Kind::Export)?.unwrap_or(Generation::ZERO);
    let names = row.initiator.iter().flat_map(Initiators::each);
    let modes = names.map(|name| (name.clone(), wanted_mode(&rows, &name))).collect();
    let wanted = Wanted { volume: volume.id, storage: volume.agent, modes, export, connection, barrier };
    Ok((Some(wanted), volume.id, spec_changes))
}

/// Ok if the agents report the new mode; else the reason why they do not yet.
fn seen(facts: &Facts, wanted: &Wanted) -> Result<(), String> {
    let storage = facts.agents.up(wanted.storage)?;
    let name = &storage.entry.name;
    let report = storage.export(wanted.volume).filter(|report| report.generation >= wanted.export);
    let Some(report) = report else { return Err(format!("agent {name} is working on it")) };
    if !wanted.modes.iter().all(|(name, mode)| seen_mode(&report, name) == *mode) {
        return Err(
            obstacle(name, &report.problems).unwrap_or_else(|| format!("agent {name} is working on it"))
        );
    }
    if !is_drained(&report, wanted.barrier.as_ref()) {
        return Err(obstacle(name, &report.problems)
            .unwrap_or_else(|| format!("agent {name} has not reported yet that no command is in flight")));
    }
    let Some((host, generation)) = wanted.connection else { return Ok(()) };
    let mode = wanted.modes.first().and_then(|(_, mode)| *mode);
    let host = facts.agents.up(host)?;
    let name = &host.entry.name;
    match host.connection(wanted.volume).report {
        Some(report) if report.generation >= generation && report.mode == mode => Ok(()),
        Some(report) if report.generation >= generation => Err(obstacle(name, &report.problems)
            .unwrap_or_else(|| format!("the disk of host {name} does not have its new mode yet"))),
        _ => Err(format!("host {name} is working on it")),
    }
}

impl Service {
    /// Changes the mode of an existing attachment. Answers when the target enforces the mode and
    /// the host, if it is an enrolled one, follows it; else `Pending`. The work goes on by itself,
    /// and the same call again gets the same answer. Without a barrier, writes in flight at a
    /// change to read only may still land. With one, each has landed or never will.
    pub async fn set_mode(
        &self,
        caller: &Caller,
        id: AttachmentId,
        new: impl Into<NewMode>,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        let new = new.into();
        let deadline = Instant::now() + wait.0;
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| begin(&facts, db, &owner, id, new);
        let (wanted, volume, spec_changes) = self.store.write("change an attachment's mode", write).await?;
        let mut changes = self.flow.follow(volume);
        self.flow.go(volume, &spec_changes.hosts);
        while let Some(why) = wanted.as_ref().and_then(|wanted| seen(&self.facts, wanted).err()) {
            if permits::until(deadline, changes.changed()).await.is_err() {
                let why = self.waits_for(caller, why);
                return Err(Refusal::Pending(format!(
                    "attachment {id} is not {} yet: {why}; it goes on, ask again",
                    new.mode
                )));
            }
        }
        self.live(caller, id, None, Wait(Duration::ZERO)).await
    }
}
