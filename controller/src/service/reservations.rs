//! Who has reserved a volume: what its storage agent says, beside the hosts that the attachments know.
//!
//! And what an operator takes away of that, through the storage agent.
//!
//! What must never happen here: "nobody" where the storage agent has not answered.

use std::sync::Arc;

use mooring_api::v1::change_reservations_request::Change;
use mooring_api::{reports, v1};
use mooring_model::{AgentId, AttachmentId, Cure, Initiator, Reservations, ReservationsChange, VolumeId};

use super::{Refusal, Service};
use crate::agents::Agent;
use crate::agents::calls::CallError;
use crate::domain::{Caller, VolumeReservations};
use crate::flow::Inner;
use crate::policy::Target;
use crate::store::{AttachmentRow, Db};

/// How long a storage agent may take for a change: its session with the target lives for 5 s.
const CHANGE_WITHIN_MS: u32 = 10_000;

impl Service {
    /// What is worth saying of an attachment that is about to go: its host holds the volume's reservation, as the storage agent
    /// said last. Nobody is asked, and an attachment that is not there has nothing to say.
    pub async fn parting_words(&self, caller: &Caller, id: AttachmentId) -> Result<Vec<String>, Refusal> {
        let (inner, of) = (self.inner.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let Some(row) = db.attachment(id)? else { return Ok(Vec::new()) };
            let volume = super::volumes::find(&inner, db, &of, row.volume)?;
            Ok(holds(&inner, &row, volume.agent))
        };
        self.store.read("read an attachment", read).await
    }

    /// Who has registered with a volume and who has reserved it. The storage agent is asked; one that does not answer is a
    /// refusal.
    pub async fn reservations(&self, caller: &Caller, id: VolumeId) -> Result<VolumeReservations, Refusal> {
        // As who is logged in where.
        self.inner.policies().check("mooring:sessions", caller, &Target::default())?;
        let (agent, mut told) = self.unknown_reservations(caller, id).await?;
        // They change without a word of the controller's.
        let looked = self.inner.look(&agent, id).await;
        looked.map_err(|error| Refusal::Unavailable(format!("{}: {error}", agent.entry.name)))?;
        told.seen = agent.export(id).and_then(|report| report.reservations).unwrap_or_default();
        Ok(told)
    }

    /// Takes registrations and reservations of a volume away, through its storage agent. Answers with what was there and what is
    /// there now, when the kernel shows it. Repeated, it is done once.
    pub async fn change_reservations(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: ReservationsChange,
    ) -> Result<[VolumeReservations; 2], Refusal> {
        self.inner.policies().check("mooring:reservations", caller, &Target::default())?;
        let (agent, told) = self.unknown_reservations(caller, id).await?;
        let change_wire = match change {
            ReservationsChange::Clear => Change::Clear(v1::ClearReservations {}),
            ReservationsChange::Preempt { key, abort } => {
                Change::Preempt(v1::PreemptReservations { key, abort })
            }
        };
        let asked = v1::ChangeReservationsRequest {
            sender: Some(self.inner.sender()),
            volume_id: id.to_string(),
            change: Some(change_wire),
            deadline_ms: CHANGE_WITHIN_MS,
        };
        let changed = agent.change_reservations(asked).await.map_err(refusal_of)?;
        tracing::warn!(volume = %id, ?change, "reservations taken away");
        let with = |seen: Option<v1::Reservations>| VolumeReservations {
            seen: seen.as_ref().map(reports::reservations).unwrap_or_default(),
            ..told.clone()
        };
        Ok([with(changed.before), with(changed.now)])
    }

    /// A volume's storage agent, which is up, and everything but what its kernel has.
    async fn unknown_reservations(
        &self,
        caller: &Caller,
        id: VolumeId,
    ) -> Result<(Arc<Agent>, VolumeReservations), Refusal> {
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
        let (agent, name, hosts) = self.store.read("read a volume", read).await?;
        let agent = self.inner.agents.up(agent).map_err(Refusal::Unavailable)?;
        let storage = agent.entry.name.clone();
        Ok((agent, VolumeReservations { volume: id, name, storage, seen: Reservations::default(), hosts }))
    }
}

/// Who of an attachment's host holds its volume's reservation, in words, as the storage agent said last. One that is away says
/// nothing.
pub(super) fn holds(inner: &Inner, row: &AttachmentRow, storage: AgentId) -> Vec<String> {
    let report = inner.agents.up(storage).ok().and_then(|agent| agent.export(row.volume));
    let Some(seen) = report.and_then(|report| report.reservations) else { return Vec::new() };
    let initiators = row.initiator.iter().flat_map(crate::initiators::Initiators::each);
    let words = |one: Initiator| {
        let held = seen.held_by(&one)?;
        Some(format!("{one} holds the volume's reservation ({held}): {}", held.end()))
    };
    initiators.filter_map(words).collect()
}

/// What an agent's refusal to change reservations means to the caller.
fn refusal_of(error: CallError) -> Refusal {
    match error {
        CallError::Refused { text, cure: Cure::Retry, .. } => Refusal::Unavailable(text),
        CallError::Refused { text, precondition: true, .. } => Refusal::Conflict(text),
        CallError::Refused { text, cure: Cure::FixSpec, .. } => Refusal::Invalid(text),
        // Also one of an earlier release, which does not know the call.
        CallError::Refused { text, .. } => Refusal::Unavailable(format!(
            "{text}: the storage agent does not take this call (is it of an earlier release?)"
        )),
        CallError::Lost(text) | CallError::Stale(text) => Refusal::Unavailable(format!(
            "{text}: whether it was done is not known; look at the reservations, and ask again"
        )),
    }
}
