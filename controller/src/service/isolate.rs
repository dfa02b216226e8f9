//! Isolates a volume from its disk, or reconnects it, by an operator's word.
//!
//! What must never happen here: hosts that get errors without an operator's word that they may; a
//! volume shown as isolated that its agent does not report so.

use std::collections::BTreeSet;

use mooring_model::{Cut, VolumeId, VolumeKind};

use super::{Refusal, Service, not_in_review, told, volumes};
use crate::domain::{Caller, IsolationChange, VolumeIsolation};
use crate::flow::{Facts, volume_specs};
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// Refuses any work on an isolated volume, and any new attachment: LVM would put the volume's table
/// back on the way.
pub(super) fn not_isolated(volume: &VolumeRow) -> Result<(), Refusal> {
    if volume.isolated_since().is_none() {
        return Ok(());
    }
    Err(Refusal::Conflict(format!(
        "Invalid volume: Volume {0} is cut off from its disk: give it back first (mooring volume uncut {0})",
        volume.id
    )))
}

/// The isolation of a volume, as ordered and as reported. `None` if it is neither.
pub(super) fn seen(facts: &Facts, volume: &VolumeRow) -> Option<VolumeIsolation> {
    let since = volume.isolated_since();
    let agent = facts.agents.up(volume.agent).ok();
    let seen = agent.and_then(|agent| agent.volume(volume.id)).map_or(Cut::No, |report| report.cut);
    let in_force = seen == Cut::InForce;
    (since.is_some() || in_force).then_some(VolumeIsolation { in_force, since })
}

/// Refuses to isolate a volume with grants: their holders would get errors.
fn refuse_survivors(
    facts: &Facts,
    caller: &Caller,
    id: VolumeId,
    rows: &[AttachmentRow],
) -> Result<(), Refusal> {
    let kept = rows.iter().filter(|row| row.wants_grant());
    let who: Vec<_> = kept.map(|row| told::who(facts, caller, row)).collect();
    if who.is_empty() {
        return Ok(());
    }
    Err(Refusal::Conflict(format!(
        "Invalid volume: Volume {id} is attached, and every read and write would end with an error: {}. Detach first, by force \
         if a host does not answer; or allow that with force",
        who.join(", ")
    )))
}

fn set(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    change: IsolationChange,
) -> Result<volume_specs::SpecChanges, Abort> {
    let volume = volumes::find(facts, db, caller, id)?;
    if (volume.isolated_since().is_some()) == (change != IsolationChange::End) {
        return Ok(volume_specs::SpecChanges::default());
    }
    not_in_review(&volume)?;
    let since = match change {
        IsolationChange::End => None,
        IsolationChange::Isolate { force } => {
            if volume.kind() != VolumeKind::Volume || volume.operation.is_some() {
                let text = format!(
                    "Invalid volume: Volume {id} must be complete, and no operation may be running on it, but its status is: \
                     {}.",
                    volume.status
                );
                return Err(Refusal::Conflict(text).into());
            }
            if !force {
                refuse_survivors(facts, caller, id, &db.attachments_of(id)?)?;
            }
            Some(db.now)
        }
    };
    db.keep_isolation(&volume, since)?;
    volume_specs::apply(db, id, &mut [], &BTreeSet::new())
}

impl Service {
    /// Orders a volume isolated from its disk, or reconnected. Repeating the order changes nothing.
    pub async fn set_isolation(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: IsolationChange,
    ) -> Result<(), Refusal> {
        self.facts.policies().check("mooring:cut", caller, &crate::policy::Target::default())?;
        let (facts, of) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| set(&facts, db, &of, id, change);
        let spec_changes = self.store.write("cut a volume off, or give it back", write).await?;
        self.flow.go(id, &spec_changes.hosts);
        Ok(())
    }
}
