//! Finds the users of a native attachment's disk on its host, by a fresh look.
//!
//! What must never happen here: an empty answer where nobody has looked.

use mooring_api::reports;
use mooring_model::AttachmentId;
use mooring_model::limit::KERNEL_ANSWER_DEADLINE;

use super::{Refusal, Service, attach, told};
use crate::agents::calls::CallError;
use crate::domain::{AttachmentCheck, Caller};
use crate::policy::Target;
use crate::store::Db;

impl Service {
    /// Has an attachment's host look for the users of the disk. Only an enrolled host can do so.
    pub async fn check_disk(&self, caller: &Caller, id: AttachmentId) -> Result<AttachmentCheck, Refusal> {
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let row = attach::find(db, &owner, id)?;
            facts.policies().check("mooring:attachment_check", &owner, &Target::of(&row.project))?;
            Ok(row)
        };
        let row = self.store.read("read an attachment", read).await?;
        let Some(host) = row.native else {
            let text = format!(
                "attachment {id} is not on an enrolled host: nobody can look at its disk. Its cache flag is a hint to the client"
            );
            return Err(Refusal::Conflict(text));
        };
        let agent = self.facts.agents.up(host).map_err(|why| told::down(&self.facts, caller, why))?;
        let name = agent.entry.name.clone();
        // The agent answers within its own deadline, or says what hangs.
        let limit = KERNEL_ANSWER_DEADLINE * 2;
        let check = match agent.check_connection(row.volume.to_string(), limit).await {
            Ok(check) => reports::disk_check(&check),
            Err(CallError::Lost(text)) => {
                return Err(Refusal::Unavailable(told::unseen(&self.facts, caller, text)));
            }
            Err(_) if agent.can_turn_cache_off() == Some(false) => {
                let text = format!(
                    "attachment {id}{}: the host's agent is of an earlier release, and cannot look at disks: update it",
                    told::on_host(&self.facts, caller, &row)
                );
                return Err(Refusal::Conflict(text));
            }
            Err(refused) => {
                return Err(Refusal::Conflict(told::unseen(&self.facts, caller, refused.to_string())));
            }
        };
        if check.disk.is_none() {
            let on = told::on_host(&self.facts, caller, &row);
            let text = format!("attachment {id}{on}: the host has no verified disk now: see the attachment");
            return Err(Refusal::Conflict(text));
        }
        Ok(AttachmentCheck { attachment: id, volume: row.volume, host: name, check })
    }
}
