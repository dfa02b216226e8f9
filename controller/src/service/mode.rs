//! The mode of an attachment that is there: rw becomes ro, or ro becomes rw, and nobody is detached for it.
//!
//! The target takes or gives the right to write first of all: it is the one that enforces. The host is told at the same time.
//! A command that was in the target before may still land after the answer (the kernel's `write_protect` is no barrier):
//! whoever needs that excluded detaches by force, for a receipt, and attaches anew.
//!
//! What must never happen here: an answer before the target enforces the new mode; writes of a volume whose flag says read
//! only; a mixture of modes on one host that the type forbids.

use std::collections::BTreeSet;
use std::time::Duration;

use mooring_model::{AgentId, AttachmentId, Generation, Initiator, Mode, VolumeId};
use tokio::time::Instant;

use super::{Refusal, Service, Wait, attach, not_in_review, obstacle};
use crate::domain::{AttachmentLive, AttachmentStatus, Caller};
use crate::flow::Inner;
use crate::flow::seen::{seen_mode, wanted_mode};
use crate::flow::wishes::{self, Rewished};
use crate::initiators::Initiators;
use crate::policy::Target;
use crate::rules;
use crate::store::{Abort, AttachmentRow, Db, Kind};

/// What has to be seen before the new mode is in force.
#[derive(Clone)]
struct Wanted {
    volume: VolumeId,
    storage: AgentId,
    /// What each initiator of the nexus may do afterwards: as the widest of its attachments.
    modes: Vec<(Initiator, Option<Mode>)>,
    /// The export's wish, and the host's.
    export: Generation,
    connection: Option<(AgentId, Generation)>,
}

fn begin(
    inner: &Inner,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    mode: Mode,
) -> Result<(Option<Wanted>, VolumeId, Rewished), Abort> {
    let mut row = attach::find(db, caller, id)?;
    inner.policies().check("volume:attachment_update", caller, &Target::of(&row.project))?;
    let volume = attach::volume_of(db, &row)?;
    not_in_review(&volume)?;
    if row.is_going() || row.status == AttachmentStatus::ErrorDetaching {
        let text = format!("attachment {id} is {}: its mode is not changed any more", row.status);
        return Err(Refusal::Conflict(text).into());
    }
    let mode = rules::mode(Some(mode), None, None, &[], volume.readonly == Some(true));
    row.mode = mode.map_err(Refusal::Invalid)?;
    row.mode_asked = true;
    let before = db.attachments_of(volume.id)?;
    if let Some(initiator) = &row.initiator
        && let Some(volume_type) = db.type_by_id(volume.type_id)?
    {
        let existing: Vec<_> = before.iter().map(AttachmentRow::existing).collect();
        rules::may_mix(&volume_type.extra_specs, Some(id), initiator, row.mode, &existing)
            .map_err(Refusal::Conflict)?;
    }
    let mut changed = [row];
    let rewished = wishes::apply_to(db, &volume, before, &mut changed, &BTreeSet::new())?;
    let [row] = changed;
    if !row.grant_wanted {
        return Ok((None, volume.id, rewished));
    }
    let generation = |kind| Ok::<_, Abort>(db.spec(volume.id, kind)?.map(|spec| spec.stamp.generation));
    let connection = match row.native.filter(|_| row.connect_wanted) {
        Some(host) => generation(Kind::Connection(host))?.map(|generation| (host, generation)),
        None => None,
    };
    let export = generation(Kind::Export)?.unwrap_or(Generation::ZERO);
    let rows = db.attachments_of(volume.id)?;
    let names = row.initiator.iter().flat_map(Initiators::each);
    let modes = names.map(|name| (name.clone(), wanted_mode(&rows, &name))).collect();
    let wanted = Wanted { volume: volume.id, storage: volume.agent, modes, export, connection };
    Ok((Some(wanted), volume.id, rewished))
}

/// Whether the agents say that it is so; else what is waited for.
fn seen(inner: &Inner, wanted: &Wanted) -> Result<(), String> {
    let storage = inner.agents.up(wanted.storage)?;
    let name = &storage.entry.name;
    let report = storage.export(wanted.volume).filter(|report| report.generation >= wanted.export);
    let Some(report) = report else { return Err(format!("agent {name} is at it")) };
    if !wanted.modes.iter().all(|(name, mode)| seen_mode(&report, name) == *mode) {
        return Err(obstacle(name, &report.problems).unwrap_or_else(|| format!("agent {name} is at it")));
    }
    let Some((host, generation)) = wanted.connection else { return Ok(()) };
    let mode = wanted.modes.first().and_then(|(_, mode)| *mode);
    let host = inner.agents.up(host)?;
    let name = &host.entry.name;
    match host.connection(wanted.volume).report {
        Some(report) if report.generation >= generation && report.mode == mode => Ok(()),
        Some(report) if report.generation >= generation => Err(obstacle(name, &report.problems)
            .unwrap_or_else(|| format!("the disk of {name} is not in its new mode yet"))),
        _ => Err(format!("host {name} is at it")),
    }
}

impl Service {
    /// Changes the mode of an attachment where it is. Answers when the target enforces the mode and its host, if it is an
    /// enrolled one, works with it; else `Pending`. It goes on by itself, and the same call again is the same answer. What
    /// was in flight when it became read only may still land.
    pub async fn set_mode(
        &self,
        caller: &Caller,
        id: AttachmentId,
        mode: Mode,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        let deadline = Instant::now() + wait.0;
        let (inner, owner) = (self.inner.clone(), caller.clone());
        let write = move |db: &Db<'_>| begin(&inner, db, &owner, id, mode);
        let (wanted, volume, rewished) = self.inner.store.write("change an attachment's mode", write).await?;
        let mut changes = self.inner.follow(volume);
        self.inner.go(volume, &rewished.hosts);
        while let Some(why) = wanted.as_ref().and_then(|wanted| seen(&self.inner, wanted).err()) {
            if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
                return Err(Refusal::Pending(format!(
                    "attachment {id} is not {mode} yet: {why}; it goes on, ask again"
                )));
            }
        }
        self.live(caller, id, None, Wait(Duration::ZERO)).await
    }
}
