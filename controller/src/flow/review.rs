//! What an agent has beside what we wish: after every connect, all stamps are compared, before anything is sent.
//!
//! An agent that keeps something newer than we ever wished was told so by a later history of this database: we are a
//! restored one. Then nothing is sent for that volume until an operator has said what holds, and the epoch is raised.
//!
//! What must never happen here: a newer wish at an agent overwritten; anything inferred from what we do not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use mooring_model::{AgentId, Fence, Generation, Phase, Stamp, VolumeId};

use super::{Inner, Next};
use crate::agents::{SeenConnection, SeenVolume};
use crate::service::Refusal;
use crate::store::{Abort, Db, Kind};

/// Why a volume is in review right after a restore.
pub(crate) const RESTORED: &str =
    "the controller's database was restored, and this volume's storage agent was not heard yet";

/// What an agent keeps is newer than what we wish, or another history of the same generation.
fn is_ahead(ours: Option<&Stamp>, theirs: Option<&Stamp>) -> Option<Generation> {
    let (ours, theirs) = (ours?, theirs?);
    match ours.fence(Some(theirs)) {
        Fence::Stale | Fence::Conflict => Some(theirs.generation),
        Fence::Newer | Fence::Same => None,
    }
}

fn text(name: &str, what: &str, ours: Option<&Stamp>, theirs: Generation) -> String {
    let ours = ours.map_or(Generation::ZERO, |stamp| stamp.generation);
    format!(
        "agent {name} keeps generation {theirs} of the {what}, and this database {ours}: it was restored from an older \
         state, and nothing is sent until an operator confirms"
    )
}

/// What a comparison found.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Volumes and connections that nobody here knows.
    pub(crate) orphans: BTreeMap<String, String>,
    /// To look at now.
    pub(crate) volumes: Vec<VolumeId>,
}

fn stamp_of(db: &Db<'_>, volume: VolumeId, kind: Kind) -> Result<Option<Stamp>, Abort> {
    Ok(db.spec(volume, kind)?.map(|spec| spec.stamp))
}

fn put_in_review(db: &Db<'_>, volume: VolumeId, theirs: Generation, why: &str) -> Result<(), Abort> {
    let epoch = db.epoch()?;
    // One restore, one epoch: raised when the first agent shows that there was another history.
    if epoch <= theirs.epoch {
        let raised = db.raise_epoch(theirs.epoch.saturating_add(1))?;
        tracing::warn!(epoch = raised, "an agent is ahead of this database: the epoch is raised");
    }
    tracing::warn!(%volume, why, "a volume is in review");
    Ok(db.set_review(volume, Some(why))?)
}

/// Compares a storage agent's volumes with the store.
pub(crate) fn compare_storage(
    db: &Db<'_>,
    name: &str,
    agent: AgentId,
    seen: &BTreeMap<VolumeId, SeenVolume>,
) -> Result<Compared, Abort> {
    let mut compared = Compared::default();
    for volume in db.volumes_on(agent)? {
        let nothing = SeenVolume::default();
        let theirs = seen.get(&volume.id).unwrap_or(&nothing);
        let mut ahead = None;
        for (kind, what, stamp) in
            [(Kind::Volume, "volume", &theirs.volume_stamp), (Kind::Export, "export", &theirs.export_stamp)]
        {
            let ours = stamp_of(db, volume.id, kind)?;
            if let Some(generation) = is_ahead(ours.as_ref(), stamp.as_ref()) {
                ahead = Some((generation, text(name, what, ours.as_ref(), generation)));
            }
        }
        match ahead {
            Some((generation, why)) => put_in_review(db, volume.id, generation, &why)?,
            None if volume.review.as_deref() == Some(RESTORED) => db.set_review(volume.id, None)?,
            None => {}
        }
        compared.volumes.push(volume.id);
    }
    for (id, theirs) in seen {
        let phase = theirs.volume.as_ref().map(|report| report.phase);
        if phase != Some(Phase::Gone) && db.volume(*id)?.is_none() && db.spec(*id, Kind::Volume)?.is_none() {
            let grants = theirs.export.as_ref().map_or(0, |export| export.grants.len());
            let text =
                format!("volume {id} is there with {grants} grant(s), and no volume here: it is left alone");
            compared.orphans.insert(format!("volume {id}"), text);
        }
    }
    Ok(compared)
}

/// Compares a host's connections with the store.
pub(crate) fn compare_host(
    db: &Db<'_>,
    name: &str,
    agent: AgentId,
    seen: &BTreeMap<VolumeId, SeenConnection>,
) -> Result<Compared, Abort> {
    let mut compared = Compared::default();
    for (id, theirs) in seen {
        let ours = stamp_of(db, *id, Kind::Connection(agent))?;
        if ours.is_none() {
            let text = format!("a connection to volume {id} is there, and none here: it is left alone");
            compared.orphans.insert(format!("connection {id}"), text);
        } else if let Some(generation) = is_ahead(ours.as_ref(), theirs.stamp.as_ref()) {
            put_in_review(db, *id, generation, &text(name, "connection", ours.as_ref(), generation))?;
        }
    }
    compared.volumes = db.connections_on(agent)?;
    Ok(compared)
}

impl Inner {
    /// An agent refused what is older than what it keeps.
    pub(super) async fn review(self: &Arc<Self>, id: VolumeId, why: &str) -> Result<Next, Refusal> {
        let why =
            format!("{why}: this database may be an older state; nothing is sent until an operator confirms");
        let write = move |db: &Db<'_>| {
            let generation = Generation { epoch: db.epoch()?.saturating_sub(1), counter: 0 };
            put_in_review(db, id, generation, &why)
        };
        self.store.write("put a volume in review", write).await?;
        self.touch(id);
        Ok(Next::Idle)
    }
}
