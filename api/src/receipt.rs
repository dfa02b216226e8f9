//! Conversion of receipts from the wire.
//!
//! What must never happen here: a number of commands that was not counted.

use mooring_model as model;
use mooring_model::{Cause, HeldReservation, Proof, ReservationType, Revoked};

use crate::convert::{generation_to_wire, micros};
use crate::v1;

/// Number that is sent beside `uncounted`. A controller that does not know that field takes this
/// number as true, so it must not be 0.
const UNCOUNTED: u32 = u32::MAX;

/// The wire's number for the older RESERVE(6).
const RESERVE_6: u32 = 0;

impl v1::Receipt {
    /// The initiator's hold of the volume's reservation. `None`: it held none, or one of an unknown
    /// type.
    pub fn reservation(&self) -> Option<HeldReservation> {
        match self.held_reservation? {
            RESERVE_6 => Some(HeldReservation { kind: None }),
            code => {
                let kind = ReservationType::of_code(u8::try_from(code).ok()?)?;
                Some(HeldReservation { kind: Some(kind) })
            }
        }
    }

    /// The reason for the removal. An unknown reason counts as a revoke: that is the most that can
    /// have happened.
    pub fn why(&self) -> Cause {
        match self.cause() {
            v1::Cause::Unspecified => Cause::Revoke,
            v1::Cause::Reservation => Cause::Reservation,
            v1::Cause::ReservationKeptOut => Cause::ReservationKeptOut,
            v1::Cause::Forgotten => Cause::Forgotten,
        }
    }

    /// The proof; if unproven, the number of commands that may still land, if it is known.
    pub fn proof(&self) -> Proof {
        match (self.proven, self.uncounted) {
            (true, _) => Proof::Proven,
            (false, true) => Proof::Unproven { in_flight: None },
            (false, false) => Proof::Unproven { in_flight: Some(self.may_still_land) },
        }
    }
}

fn sent_as(cause: Cause) -> v1::Cause {
    match cause {
        Cause::Revoke => v1::Cause::Unspecified,
        Cause::Reservation => v1::Cause::Reservation,
        Cause::ReservationKeptOut => v1::Cause::ReservationKeptOut,
        Cause::Forgotten => v1::Cause::Forgotten,
    }
}

impl From<&model::Receipt> for v1::Receipt {
    fn from(receipt: &model::Receipt) -> Self {
        let (proven, in_flight) = match receipt.proof {
            Proof::Proven => (true, Some(0)),
            Proof::Unproven { in_flight } => (false, in_flight),
        };
        Self {
            volume_id: receipt.volume.to_string(),
            initiator: receipt.initiator.to_string(),
            attachment_ids: receipt.attachments.iter().map(ToString::to_string).collect(),
            generation: Some(generation_to_wire(receipt.generation)),
            nexus_removed: receipt.revoked == Revoked::Nexus,
            sessions_cut: receipt.sessions.iter().map(Into::into).collect(),
            proven,
            may_still_land: in_flight.unwrap_or(UNCOUNTED),
            uncounted: in_flight.is_none(),
            began_us: micros(receipt.began),
            ended_us: receipt.ended.map_or(0, micros),
            held_reservation: receipt
                .reservation
                .map(|held| held.kind.map_or(RESERVE_6, |kind| kind.code().into())),
            cause: sent_as(receipt.cause).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use mooring_model::{Generation, Initiator, VolumeId};
    use prost::Message;

    use super::*;

    fn sent(proof: Proof) -> v1::Receipt {
        sent_with(proof, None)
    }

    fn sent_with(proof: Proof, reservation: Option<HeldReservation>) -> v1::Receipt {
        let receipt = model::Receipt {
            volume: VolumeId::random(),
            initiator: "iqn.2026-01.lab:h".parse::<Initiator>().unwrap(),
            attachments: Vec::new(),
            generation: Generation { epoch: 1, counter: 2 },
            revoked: Revoked::Nexus,
            sessions: Vec::new(),
            proof,
            began: SystemTime::UNIX_EPOCH,
            ended: None,
            reservation,
            cause: Cause::Revoke,
        };
        let bytes = v1::Receipt::from(&receipt).encode_to_vec();
        v1::Receipt::decode(bytes.as_slice()).unwrap()
    }

    #[test]
    fn a_proof_comes_as_it_was_sent() {
        let open = |in_flight| Proof::Unproven { in_flight };
        for proof in [Proof::Proven, open(None), open(Some(0)), open(Some(7)), open(Some(u32::MAX))] {
            assert_eq!(sent(proof).proof(), proof);
        }
    }

    #[test]
    fn an_agent_of_before_counts() {
        let old = v1::Receipt { may_still_land: 3, ..Default::default() };
        assert_eq!(old.proof(), Proof::Unproven { in_flight: Some(3) });
    }

    #[test]
    fn what_was_reserved_comes_as_it_was_sent() {
        let kinds = ReservationType::ALL.into_iter().map(Some).chain([None]);
        let held = kinds.map(|kind| Some(HeldReservation { kind }));
        for held in held.chain([None]) {
            assert_eq!(sent_with(Proof::Proven, held).reservation(), held);
        }
        let later = v1::Receipt { held_reservation: Some(300), ..Default::default() };
        assert_eq!(later.reservation(), None);
        assert_eq!(v1::Receipt::default().reservation(), None, "an agent of before does not say");
    }

    #[test]
    fn a_controller_of_before_never_reads_none_for_unknown() {
        assert_ne!(sent(Proof::Unproven { in_flight: None }).may_still_land, 0);
        assert_eq!(sent(Proof::Unproven { in_flight: Some(0) }).may_still_land, 0);
        assert_eq!(sent(Proof::Proven).may_still_land, 0);
    }

    #[test]
    fn a_cause_that_nobody_knows_is_a_revoke() {
        for (cause, why) in [
            (0, Cause::Revoke),
            (1, Cause::Reservation),
            (2, Cause::ReservationKeptOut),
            (3, Cause::Forgotten),
            (300, Cause::Revoke),
        ] {
            assert_eq!(v1::Receipt { cause, ..Default::default() }.why(), why);
        }
        for cause in [Cause::Revoke, Cause::Reservation, Cause::ReservationKeptOut, Cause::Forgotten] {
            let receipt = sent_with(Proof::Proven, None);
            assert_eq!(receipt.why(), Cause::Revoke);
            let sent = v1::Receipt { cause: sent_as(cause).into(), ..receipt };
            assert_eq!(sent.why(), cause);
        }
    }
}
