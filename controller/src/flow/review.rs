//! Comparison of all stamps of an agent with the store, after every connect, before anything is
//! sent.
//!
//! An agent that stores a newer spec than this database got it from a later history of the
//! database: this one was restored from a backup. Then nothing is sent for that volume until an
//! operator has decided, and the epoch is raised.
//!
//! What must never happen here: a newer spec at an agent overwritten; a conclusion from something
//! that this database does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mooring_model::{AgentId, ConnectionPhase, Fence, Generation, Phase, Stamp, VolumeId};
use tokio::task::JoinSet;

use super::storage::LOOK_LIMIT;
use super::taking::UNSENT;
use super::{Flow, Next, volume_specs};
use crate::agents::listener::Compared;
use crate::agents::{Held, Kept, SeenConnection, words};
use crate::error::Refusal;
use crate::store::{Abort, Db, Kind, ReviewKind, naa_of};

/// Reason of a review right after a restore.
pub(crate) const RESTORED: &str =
    "the controller's database was restored or rebuilt, and this volume's storage agent was not heard yet";

/// Returns the generation of an agent's spec that is newer than this database's, or of another
/// history. A spec that this database never had is of another history, too: the backup is older
/// than that spec. `None`: the agent is not ahead.
pub(super) fn is_ahead(ours: Option<&Stamp>, theirs: Option<&Stamp>) -> Option<Generation> {
    let theirs = theirs?;
    match ours.map(|ours| ours.fence(Some(theirs))) {
        None | Some(Fence::Stale | Fence::Conflict) => Some(theirs.generation),
        Some(Fence::Newer | Fence::Same) => None,
    }
}

fn text(name: &str, what: &str, ours: Option<&Stamp>, theirs: Generation) -> String {
    let ours = ours.map_or(Generation::ZERO, |stamp| stamp.generation);
    format!(
        "agent {name} keeps generation {theirs} of the {what}, and this database {ours}: it was restored from an older \
         state, and nothing is sent until an operator confirms"
    )
}

fn deleted(name: &str, ours: Option<&Stamp>, theirs: Generation) -> String {
    let ours = ours.map_or(Generation::ZERO, |stamp| stamp.generation);
    format!(
        "agent {name} keeps that this volume was deleted, as generation {theirs}, and this database has {ours}: the database \
         is older than its agents. If it was restored and nobody said so, stop the controller and start it once with \
         --restored. Its data is gone, unless it was unmanaged (then its LV mooring-ID is still there: rename that first): \
         confirm to make it again, empty; if nobody needs it, delete that one then"
    )
}

/// Returns `true` if the agent has lost its store and finds no data of the volume.
fn is_lost(theirs: &Kept, id: VolumeId) -> bool {
    let phase = theirs.volume(id).map(|report| report.phase);
    theirs.volume_stamp.is_none() && phase != Some(Phase::Orphan)
}

/// Ends a review. Returns the hosts whose connections waited for that.
fn release(db: &Db<'_>, id: VolumeId) -> Result<BTreeSet<AgentId>, Abort> {
    db.end_review(id)?;
    // The specs revoke only now what was forced away meanwhile.
    let mut going = db.attachments_of(id)?;
    going.retain(|row| row.is_revoking() && row.in_spec_since == UNSENT);
    if !going.is_empty() {
        for row in &mut going {
            row.in_spec_since = Generation::ZERO;
        }
        volume_specs::apply(db, id, &mut going, &BTreeSet::new())?;
    }
    Ok(db.connections_of(id)?.into_iter().collect())
}

/// Makes every later spec newer than all that an agent stores of other histories.
fn rise_above<'a>(db: &Db<'_>, name: &str, stamps: impl Iterator<Item = &'a Stamp>) -> Result<(), Abort> {
    let (mut epoch, mut counter) = (0, 0);
    for stamp in stamps {
        epoch = stamp.generation.epoch.max(epoch);
        counter = stamp.generation.counter.max(counter);
    }
    words::may_keep(db, Generation { epoch, counter })?.map_err(Refusal::Conflict)?;
    if let Some(epoch) = db.rise_above(name, epoch)? {
        tracing::warn!(agent = name, epoch, "an agent is ahead of this database: the epoch is raised");
    }
    Ok(())
}

fn put_in_review(
    db: &Db<'_>,
    volume: VolumeId,
    theirs: Generation,
    kind: ReviewKind,
    why: &str,
) -> Result<(), Abort> {
    let epoch = db.epoch()?;
    // One restore, one epoch: it is raised when the first agent shows that there was another
    // history.
    if epoch <= theirs.epoch {
        let raised = db.raise_above(theirs.epoch)?;
        tracing::warn!(epoch = raised, "an agent is ahead of this database: the epoch is raised");
    }
    tracing::warn!(%volume, kind = kind.as_str(), why, "a volume is in review");
    Ok(db.put_in_review(volume, kind, why)?)
}

/// A newer generation at an agent, with the reason of the review.
struct Ahead {
    kind: ReviewKind,
    newest: Generation,
    why: String,
}

/// Returns what a storage agent stores of a volume that is newer than this database. `None`:
/// nothing.
fn ahead_of(db: &Db<'_>, name: &str, id: VolumeId, theirs: &Kept) -> Result<Option<Ahead>, Abort> {
    let mut ahead = None;
    for (kind, what, stamp) in
        [(Kind::Export, "export", &theirs.export_stamp), (Kind::Volume, "volume", &theirs.volume_stamp)]
    {
        let ours = db.spec_stamp(id, kind)?;
        let Some(newest) = is_ahead(ours.as_ref(), stamp.as_ref()) else { continue };
        let phase = theirs.volume(id).map(|report| report.phase);
        let (kind, why) = match (kind, phase) {
            (Kind::Volume, Some(Phase::Gone | Phase::Deleting)) => {
                (ReviewKind::Deleted, deleted(name, ours.as_ref(), newest))
            }
            _ => (ReviewKind::Ahead, text(name, what, ours.as_ref(), newest)),
        };
        ahead = Some(Ahead { kind, newest, why });
    }
    Ok(ahead)
}

/// Keeps the ids under which an agent has volumes, orphans or tombstones: no new volume may get
/// one.
fn note_ids(db: &Db<'_>, seen: &BTreeMap<VolumeId, Arc<Kept>>) -> Result<(), Abort> {
    let mut found = Vec::with_capacity(seen.len());
    for (id, theirs) in seen {
        let naa = naa_of(*id);
        // An adopted volume is exported under another NAA.
        let recorded = theirs.export(*id).map(|report| report.naa).filter(|recorded| *recorded != naa);
        found.push((naa, *id));
        found.extend(recorded.map(|naa| (naa, *id)));
    }
    Ok(db.note_identities(&found)?)
}

/// Compares a storage agent's volumes with the store.
pub(crate) fn compare_storage(
    db: &Db<'_>,
    name: &str,
    agent: AgentId,
    seen: &BTreeMap<VolumeId, Arc<Kept>>,
) -> Result<Compared, Abort> {
    let mut compared = Compared::default();
    // An agent of an older release does not report its newest epoch at hello.
    let stamps = seen.values().flat_map(|kept| [&kept.volume_stamp, &kept.export_stamp]).flatten();
    rise_above(db, name, stamps)?;
    let nothing = Arc::new(Kept::default());
    for volume in db.volumes_on(agent)? {
        let theirs = seen.get(&volume.id).unwrap_or(&nothing);
        let kind = volume.review.as_ref().map(|review| review.kind);
        match ahead_of(db, name, volume.id, theirs)? {
            Some(ahead) => put_in_review(db, volume.id, ahead.newest, ahead.kind, &ahead.why)?,
            // An agent that has lost its store still has the data. Without the data, an empty
            // volume would take its place.
            None if kind.is_none() && volume.is_served() && is_lost(theirs, volume.id) => {
                let why = format!(
                    "agent {name} has lost its store and has no data of this volume in its pools: bring the disks of pool {} \
                     back and restart that agent, or confirm to make the volume again, empty",
                    volume.pool
                );
                tracing::warn!(volume = %volume.id, why, "a volume is in review");
                db.put_in_review(volume.id, ReviewKind::Lost, &why)?;
            }
            // The disks are back, or the agent's store is.
            None if kind == Some(ReviewKind::Lost) && !is_lost(theirs, volume.id) => {
                drop(compared.released.insert(volume.id, release(db, volume.id)?));
            }
            None if kind != Some(ReviewKind::Restored) => {}
            // The agent has lost the volume, or it was deleted after the backup was made and the
            // tombstone is forgotten. Its spec would make an empty volume in its place.
            None if volume.is_served() && theirs.volume_stamp.is_none() => {
                let why = format!(
                    "agent {name} has nothing of this volume: it was deleted after this database was backed up (restored), or \
                     its agent has lost it; confirm to make it again, empty"
                );
                db.put_in_review(volume.id, ReviewKind::Missing, &why)?;
            }
            None => drop(compared.released.insert(volume.id, release(db, volume.id)?)),
        }
    }
    note_ids(db, seen)?;
    for (id, theirs) in seen {
        let phase = theirs.volume(*id).map(|report| report.phase);
        if phase == Some(Phase::Gone) {
            continue;
        }
        let here = match db.volume(*id)? {
            // A volume that another agent has by now is nobody's here.
            Some(volume) if volume.agent != agent => "the volume is at another agent",
            None if db.spec_stamp(*id, Kind::Volume)?.is_none() => "no volume here",
            Some(_) | None => continue,
        };
        let grants = theirs.export(*id).map_or(0, |export| export.grants.len());
        let text = format!("volume {id} is there with {grants} grant(s), and {here}: it is left alone");
        compared.orphans.insert(format!("volume {id}"), text);
    }
    Ok(compared)
}

/// Ends a review because an agent found data of a volume that none of its specs names. The volume
/// counted as lost: LVM was slow, or the disks came back only now. Returns the hosts whose
/// connections waited for that; `None` if there was no such review.
pub(crate) fn found_again(
    db: &Db<'_>,
    agent: AgentId,
    id: VolumeId,
) -> Result<Option<BTreeSet<AgentId>>, Abort> {
    db.note_identities(&[(naa_of(id), id)])?;
    let Some(volume) = db.volume(id)?.filter(|volume| volume.agent == agent) else { return Ok(None) };
    let is_lost = volume.review.is_some_and(|review| review.kind == ReviewKind::Lost);
    is_lost.then(|| release(db, id)).transpose()
}

/// Compares a host's connections with the store.
pub(crate) fn compare_host(
    db: &Db<'_>,
    name: &str,
    agent: AgentId,
    seen: &BTreeMap<VolumeId, SeenConnection>,
) -> Result<Compared, Abort> {
    let mut compared = Compared::default();
    rise_above(db, name, seen.values().filter_map(|theirs| theirs.stamp.as_ref()))?;
    for (id, theirs) in seen {
        let ours = db.spec_stamp(*id, Kind::Connection(agent))?;
        let phase = theirs.report.as_ref().map(|report| report.phase);
        if ours.is_none() && phase == Some(ConnectionPhase::Gone) {
            // A tombstone that the agent has kept for longer than this database.
            db.note_identities(&[(naa_of(*id), *id)])?;
        } else if ours.is_none() {
            db.note_identities(&[(naa_of(*id), *id)])?;
            let text = format!("a connection to volume {id} is there, and none here: it is left alone");
            compared.orphans.insert(format!("connection {id}"), text);
        } else if let Some(generation) = is_ahead(ours.as_ref(), theirs.stamp.as_ref()) {
            let why = text(name, "connection", ours.as_ref(), generation);
            put_in_review(db, *id, generation, ReviewKind::Ahead, &why)?;
        }
    }
    Ok(compared)
}

impl Flow {
    /// Asks the agents of a volume in review which specs they store now. They listed them when they
    /// came up, and what somebody has changed there since then is newer.
    pub(crate) async fn learn_stamps(&self, id: VolumeId) {
        let read = move |db: &Db<'_>| {
            let storage = db.volume(id)?.filter(|volume| volume.review.is_some()).map(|volume| volume.agent);
            Ok((storage, db.connections_of(id)?))
        };
        let Ok((Some(storage), hosts)) = self.reads.read("read a volume", read).await else { return };
        let mut asked = JoinSet::new();
        if let Ok(agent) = self.facts.agents.up(storage) {
            asked.spawn(async move { agent.learn_volume(id, LOOK_LIMIT).await });
        }
        for host in hosts {
            if let Ok(agent) = self.facts.agents.up(host) {
                asked.spawn(async move { agent.learn_connection(id, LOOK_LIMIT).await });
            }
        }
        asked.join_all().await;
    }

    /// Puts a volume in review, because an agent refused a spec older than its own.
    pub(super) async fn review(
        self: &Arc<Self>,
        agent: &Held,
        id: VolumeId,
        why: &str,
    ) -> Result<Next, Refusal> {
        let why =
            format!("{why}: this database may be an older state; nothing is sent until an operator confirms");
        let write = move |db: &Db<'_>| {
            let generation = Generation { epoch: db.epoch()?.saturating_sub(1), counter: 0 };
            put_in_review(db, id, generation, ReviewKind::Refused, &why)
        };
        agent.store.write("put a volume in review", write).await?;
        self.touch(id);
        Ok(Next::Idle)
    }
}
