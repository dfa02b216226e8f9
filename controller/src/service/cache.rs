//! The cache flag of an existing attachment. With the flag off, the host drops the page cache of
//! the disk and reads nothing ahead.
//!
//! Only an enrolled host follows the flag. For a client that logs in by itself, the flag is stored
//! and shown as a hint.
//!
//! What must never happen here: an answer before the host works as the flag says; a stored flag
//! that the host cannot follow.

use std::collections::BTreeSet;
use std::time::Duration;

use mooring_model::{AgentId, AttachmentId, Cache, Generation, VolumeId};
use tokio::time::Instant;

use super::{Refusal, Service, Wait, attach, not_in_review, obstacle, told};
use crate::agents::Agent;
use crate::domain::{AttachmentLive, AttachmentStatus, Caller};
use crate::flow::Facts;
use crate::flow::volume_specs::{self, SpecChanges};
use crate::permits;
use crate::policy::Target;
use crate::store::{Abort, AttachmentRow, Db, Kind};

/// The disk on a host that has to follow a flag.
struct Wanted {
    volume: VolumeId,
    host: AgentId,
    generation: Generation,
    /// The strictest flag of the disk's attachments.
    cache: Cache,
}

/// The disk of a native attachment whose host has a connection, or is to get one. `None` for any
/// other attachment.
fn wanted(db: &Db<'_>, row: &AttachmentRow) -> Result<Option<Wanted>, Abort> {
    let Some(host) = row.native.filter(|_| row.wants_path()) else { return Ok(None) };
    let Some(spec) = db.spec(row.volume, Kind::Connection(host))? else { return Ok(None) };
    let cache = volume_specs::cache_on(&db.attachments_of(row.volume)?, host).unwrap_or(row.cache);
    Ok(Some(Wanted { volume: row.volume, host, generation: spec.stamp.generation, cache }))
}

/// Refuses `off` for a host whose agent does not know the flag.
pub(super) fn may_be(agent: &Agent, cache: Cache) -> Result<(), Refusal> {
    match agent.can_turn_cache_off().filter(|_| cache == Cache::Off) {
        Some(false) => {
            let text = "the host cannot turn a disk's page cache off: its agent is of an earlier release. Update it, or attach with \
                        cache on";
            Err(Refusal::Conflict(text.to_owned()))
        }
        Some(true) | None => Ok(()),
    }
}

fn begin(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    cache: Cache,
) -> Result<(VolumeId, SpecChanges), Abort> {
    let mut row = attach::find(db, caller, id)?;
    facts.policies().check("volume:attachment_update", caller, &Target::of(&row.project))?;
    let volume = attach::volume_of(db, &row)?;
    not_in_review(&volume)?;
    if row.is_going() || row.status == AttachmentStatus::ErrorDetaching {
        let text = format!("attachment {id} is {}: its cache flag is not changed any more", row.status);
        return Err(Refusal::Conflict(text).into());
    }
    if let Some(host) = row.native {
        may_be(&*facts.agents.up(host).map_err(|why| told::down(facts, caller, why))?, cache)?;
    }
    row.cache = cache;
    let before = db.attachments_of(volume.id)?;
    let mut changed = [row];
    let spec_changes = volume_specs::apply_to(db, &volume, before, &mut changed, &BTreeSet::new())?;
    Ok((volume.id, spec_changes))
}

/// The disk that must show the flag before this call is answered. `None` if no host follows the
/// flag. An error if another call has changed the flag meanwhile.
fn still_wanted(db: &Db<'_>, id: AttachmentId, cache: Cache) -> Result<Option<Wanted>, Abort> {
    let now = db.attachment(id)?.filter(|row| !row.is_going());
    let Some(row) = now else {
        let text = format!("attachment {id} is going, or gone: its cache flag is not changed any more");
        return Err(Refusal::Conflict(text).into());
    };
    if row.cache != cache {
        let text =
            format!("the cache of attachment {id} was turned {} meanwhile, by another call", row.cache);
        return Err(Refusal::Conflict(text).into());
    }
    wanted(db, &row)
}

/// Ok if the host works as the flag says; else the reason why it does not yet.
fn seen(facts: &Facts, wanted: &Wanted) -> Result<(), String> {
    let host = facts.agents.up(wanted.host)?;
    let name = &host.entry.name;
    let report =
        host.connection(wanted.volume).report.filter(|report| report.generation >= wanted.generation);
    let Some(report) = report else { return Err(format!("host {name} is working on it")) };
    // An agent that does not know the flag leaves the cache on. One that does reports none while it
    // has no verified disk.
    let silent = Cache::On;
    let known = report.cache.or_else(|| (host.can_turn_cache_off() != Some(true)).then_some(silent));
    if known == Some(wanted.cache) {
        return Ok(());
    }
    Err(obstacle(name, &report.problems)
        .unwrap_or_else(|| format!("the page cache of the disk on {name} is not {} yet", wanted.cache)))
}

impl Service {
    /// Changes the cache flag of an existing attachment. If its host is enrolled, answers once the
    /// host follows the strictest flag of the disk's attachments; else `Pending`. The work goes on
    /// by itself, and the same call again gets the same answer.
    pub async fn set_cache(
        &self,
        caller: &Caller,
        id: AttachmentId,
        cache: Cache,
        wait: Wait,
    ) -> Result<AttachmentLive, Refusal> {
        let deadline = Instant::now() + wait.0;
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| begin(&facts, db, &owner, id, cache);
        let (volume, spec_changes) = self.store.write("change an attachment's cache flag", write).await?;
        let mut changes = self.flow.follow(volume);
        self.flow.go(volume, &spec_changes.hosts);
        loop {
            let read = move |db: &Db<'_>| still_wanted(db, id, cache);
            let wanted = self.store.read("read an attachment's cache flag", read).await?;
            let Some(why) = wanted.and_then(|wanted| seen(&self.facts, &wanted).err()) else { break };
            if permits::until(deadline, changes.changed()).await.is_err() {
                let why = self.waits_for(caller, why);
                return Err(Refusal::Pending(format!(
                    "the cache of attachment {id} is not {cache} yet: {why}; it goes on, ask again"
                )));
            }
        }
        self.live(caller, id, None, Wait(Duration::ZERO)).await
    }
}
