//! Completes attachments: their clients have the device.

use std::collections::BTreeSet;

use mooring_model::{AgentId, AttachmentId, VolumeId};

use super::{find, volume_of};
use crate::domain::{AttachmentStatus, Caller};
use crate::flow::Facts;
use crate::flow::volume_specs::{self, SpecChanges};
use crate::policy::Target;
use crate::service::{Refusal, Service};
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// Makes an attachment `attached`: its client has the device. Returns the row, which is to be
/// stored; `None` if it is attached already.
pub(in crate::service) fn complete(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    mut row: AttachmentRow,
) -> Result<Option<AttachmentRow>, Abort> {
    let id = row.id;
    match row.status {
        AttachmentStatus::Attached => return Ok(None),
        AttachmentStatus::Reserved | AttachmentStatus::Attaching => {}
        AttachmentStatus::Detaching | AttachmentStatus::ErrorAttaching | AttachmentStatus::ErrorDetaching => {
            let text = format!("attachment {id} is {}: it cannot be completed", row.status);
            return Err(Refusal::Conflict(text).into());
        }
    }
    if row.native.is_some() {
        let text = format!("attachment {id} is native: it is completed when its host has the device");
        return Err(Refusal::Conflict(text).into());
    }
    if row.initiator.is_some() && !row.is_granted() {
        if !facts.sees_grant(db, volume.agent, &row)? {
            let text = format!("attachment {id} is not granted yet: it cannot be completed");
            return Err(Refusal::Conflict(text).into());
        }
        row.saw_grant(facts.elapsed_ms(id, row.created_at));
    }
    row.attached(db.now);
    row.legacy = false;
    row.steps.push(("done".to_owned(), facts.elapsed_ms(id, row.created_at)));
    Ok(Some(row))
}

impl Service {
    /// Makes an attachment `attached`, on a client's word that it is connected.
    pub async fn complete_attachment(&self, caller: &Caller, id: AttachmentId) -> Result<(), Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| {
            let row = find(db, &caller, id)?;
            facts.policies().check("volume:attachment_complete", &caller, &Target::of(&row.project))?;
            let volume = volume_of(db, &row)?;
            let spec_changes = match complete(&facts, db, &volume, row)? {
                Some(row) => {
                    let before = db.attachments_of(volume.id)?;
                    volume_specs::apply_to(db, &volume, before, &mut [row], &BTreeSet::new())?
                }
                None => SpecChanges::default(),
            };
            Ok((volume.id, volume.agent, spec_changes))
        };
        let (volume, agent, spec_changes) = self.store.write("complete an attachment", write).await?;
        self.completed(id, volume, agent, &spec_changes);
        Ok(())
    }

    pub(in crate::service) fn completed(
        &self,
        id: AttachmentId,
        volume: VolumeId,
        agent: AgentId,
        spec_changes: &SpecChanges,
    ) {
        self.facts.stop_clock(id);
        if spec_changes.storage {
            self.flow.wake(volume, &spec_changes.hosts);
        }
        // The attachment's session is in the kernel's view: a later list must ask the agent anew.
        if let Some(agent) = self.facts.agents.by_id(agent) {
            agent.outdate_export(volume);
        }
        self.flow.touch(volume);
    }
}
