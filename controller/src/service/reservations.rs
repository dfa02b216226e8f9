//! Who has reserved a volume: what its storage agent says, beside the hosts that the attachments know.
//!
//! What must never happen here: "nobody" where the storage agent has not answered.

use mooring_model::{AttachmentId, VolumeId};

use super::{Refusal, Service};
use crate::domain::{Caller, VolumeReservations};
use crate::policy::Target;
use crate::store::Db;

impl Service {
    /// What is worth saying of an attachment that is about to go: its host holds the volume's reservation, as the storage agent
    /// said last. Nobody is asked, and an attachment that is not there has nothing to say.
    pub async fn parting_words(&self, caller: &Caller, id: AttachmentId) -> Result<Vec<String>, Refusal> {
        let (inner, of) = (self.inner.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let Some(row) = db.attachment(id)? else { return Ok(Vec::new()) };
            let volume = super::volumes::find(&inner, db, &of, row.volume)?;
            let report = inner.agents.up(volume.agent).ok().and_then(|agent| agent.export(row.volume));
            let Some(seen) = report.and_then(|report| report.reservations) else { return Ok(Vec::new()) };
            let Some(holder) = &seen.holder else { return Ok(Vec::new()) };
            let initiators = row.initiator.iter().flat_map(crate::initiators::Initiators::each);
            let held = initiators.filter(|one| seen.is_held_by(one));
            let kind = holder.kind.map_or_else(|| "RESERVE(6)".to_owned(), |kind| kind.to_string());
            Ok(held
                .map(|one| {
                    format!("{one} holds the volume's persistent reservation ({kind}): with its access it is released")
                })
                .collect())
        };
        self.inner.store.read("read an attachment", read).await
    }

    /// Who has registered with a volume and who has reserved it. The storage agent is asked; one that does not answer is a
    /// refusal.
    pub async fn reservations(&self, caller: &Caller, id: VolumeId) -> Result<VolumeReservations, Refusal> {
        // As who is logged in where.
        self.inner.policies().check("mooring:sessions", caller, &Target::default())?;
        let (inner, of) = (self.inner.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let row = super::volumes::find(&inner, db, &of, id)?;
            let mut hosts = Vec::new();
            for attachment in db.attachments_of(id)? {
                let Some(host) = attachment.host else { continue };
                let initiators = attachment.initiator.iter().flat_map(crate::initiators::Initiators::each);
                hosts.extend(initiators.map(|one| (one, host.clone())));
            }
            Ok((row.agent, row.name, hosts))
        };
        let (agent, name, hosts) = self.inner.store.read("read a volume", read).await?;
        let agent = self.inner.agents.up(agent).map_err(Refusal::Unavailable)?;
        // They change without a word of the controller's.
        let looked = self.inner.look(&agent, id).await;
        looked.map_err(|error| Refusal::Unavailable(format!("{}: {error}", agent.entry.name)))?;
        let seen = agent.export(id).and_then(|report| report.reservations).unwrap_or_default();
        Ok(VolumeReservations { volume: id, name, storage: agent.entry.name.clone(), seen, hosts })
    }
}
