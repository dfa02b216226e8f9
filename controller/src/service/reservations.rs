//! Persistent reservations of a volume: the storage agent's report, beside the hosts that the
//! attachments name. An operator's changes to them go through the storage agent.
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
use crate::flow::Facts;
use crate::policy::Target;
use crate::store::{AttachmentRow, Db};

/// Time limit for a change by a storage agent, in ms: its session with the target lives for 5 s.
const CHANGE_WITHIN_MS: u32 = 10_000;

impl Service {
    /// Warnings about an attachment that is about to go: its host holds the volume's reservation,
    /// by the storage agent's last report. Asks no agent. An attachment that does not exist has no
    /// warnings.
    pub async fn parting_words(&self, caller: &Caller, id: AttachmentId) -> Result<Vec<String>, Refusal> {
        let (facts, of) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let Some(row) = db.attachment(id)? else { return Ok(Vec::new()) };
            let volume = super::volumes::find(&facts, db, &of, row.volume)?;
            Ok(holds(&facts, &row, volume.agent))
        };
        self.store.read("read an attachment", read).await
    }

    /// The registrations and the reservation of a volume. The storage agent is asked; if it does
    /// not answer, the call is refused.
    pub async fn reservations(&self, caller: &Caller, id: VolumeId) -> Result<VolumeReservations, Refusal> {
        // The policy is the one for sessions: it tells as much about who is logged in where.
        self.facts.policies().check("mooring:sessions", caller, &Target::default())?;
        let (agent, mut told) = self.unknown_reservations(caller, id).await?;
        // Reservations change without the controller.
        let looked = self.flow.look(&agent, id).await;
        looked.map_err(|error| Refusal::Unavailable(format!("{}: {error}", agent.entry.name)))?;
        told.seen = agent.export(id).and_then(|report| report.reservations).unwrap_or_default();
        Ok(told)
    }

    /// Takes registrations and reservations of a volume away, through its storage agent. Answers
    /// with the state before and after, once the kernel shows the change. A repeated call changes
    /// nothing more.
    pub async fn change_reservations(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: ReservationsChange,
    ) -> Result<[VolumeReservations; 2], Refusal> {
        self.facts.policies().check("mooring:reservations", caller, &Target::default())?;
        let (agent, told) = self.unknown_reservations(caller, id).await?;
        let change_wire = match change {
            ReservationsChange::Clear => Change::Clear(v1::ClearReservations {}),
            ReservationsChange::Preempt { key, abort } => {
                Change::Preempt(v1::PreemptReservations { key, abort })
            }
        };
        let asked = v1::ChangeReservationsRequest {
            sender: Some(self.flow.sender()),
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

    /// A volume's storage agent, which is up, and the answer without the kernel's part.
    async fn unknown_reservations(
        &self,
        caller: &Caller,
        id: VolumeId,
    ) -> Result<(Arc<Agent>, VolumeReservations), Refusal> {
        let (facts, of) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| {
            let row = super::volumes::find(&facts, db, &of, id)?;
            let mut hosts = Vec::new();
            for attachment in db.attachments_of(id)? {
                let Some(host) = attachment.host else { continue };
                let initiators = attachment.initiator.iter().flat_map(crate::initiators::Initiators::each);
                hosts.extend(initiators.map(|one| (one, host.clone())));
            }
            Ok((row.agent, row.name, hosts))
        };
        let (agent, name, hosts) = self.store.read("read a volume", read).await?;
        let agent = self.facts.agents.up(agent).map_err(Refusal::Unavailable)?;
        let storage = agent.entry.name.clone();
        Ok((agent, VolumeReservations { volume: id, name, storage, seen: Reservations::default(), hosts }))
    }
}

/// The initiators of an attachment's host that hold the volume's reservation, in words, by the
/// storage agent's last report. Empty if that agent is down.
pub(super) fn holds(facts: &Facts, row: &AttachmentRow, storage: AgentId) -> Vec<String> {
    let report = facts.agents.up(storage).ok().and_then(|agent| agent.export(row.volume));
    let Some(seen) = report.and_then(|report| report.reservations) else { return Vec::new() };
    let initiators = row.initiator.iter().flat_map(crate::initiators::Initiators::each);
    let words = |one: Initiator| {
        let held = seen.held_by(&one)?;
        Some(format!("{one} holds the volume's reservation ({held}): {}", held.end()))
    };
    initiators.filter_map(words).collect()
}

/// The refusal to the caller for an agent's error.
fn refusal_of(error: CallError) -> Refusal {
    match error {
        CallError::Refused { text, cure: Cure::Retry, .. } => Refusal::Unavailable(text),
        CallError::Refused { text, precondition: true, .. } => Refusal::Conflict(text),
        CallError::Refused { text, cure: Cure::FixSpec, .. } => Refusal::Invalid(text),
        // An agent of an earlier release does not know the call, and comes here, too.
        CallError::Refused { text, .. } => Refusal::Unavailable(format!(
            "{text}: the storage agent does not take this call (is it of an earlier release?)"
        )),
        CallError::Lost(text) | CallError::Stale(text) => Refusal::Unavailable(format!(
            "{text}: it is not known whether it was done; look at the reservations, and ask again"
        )),
    }
}
