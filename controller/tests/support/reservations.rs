//! Changes to the reservations of an agent in memory. What must never happen here: a change to
//! another key.

use mooring_api::v1;
use mooring_api::v1::change_reservations_request::Change;
use tonic::{Code, Status};

use super::{Knobs, cured};

pub(super) fn answer(
    knobs: &mut Knobs,
    asked: &v1::ChangeReservationsRequest,
) -> Result<v1::ChangeReservationsResponse, Status> {
    assert!(asked.sender.is_some() && asked.deadline_ms > 0);
    let before = knobs.reservations.clone();
    let mut now = before.clone().unwrap_or_default();
    match asked.change.unwrap() {
        Change::Clear(_) => now = v1::Reservations::default(),
        Change::Preempt(v1::PreemptReservations { key, .. }) => {
            let all = now.registrations.len();
            now.registrations.retain(|one| one.key != key);
            if now.registrations.len() == all {
                return Err(cured(Code::FailedPrecondition, "nobody has registered the key", "fix_spec"));
            }
        }
    }
    knobs.reservations = Some(now).filter(|now| !now.registrations.is_empty());
    Ok(v1::ChangeReservationsResponse { before, now: knobs.reservations.clone() })
}

impl Knobs {
    pub(super) fn held_by(&self, initiator: &str) -> Option<u32> {
        let holder = self.reservations.as_ref()?.holder.as_ref()?;
        (holder.initiator == initiator).then_some(holder.r#type)
    }
}
