//! Receipts on the wire. What must never happen here: a number of commands that nobody has counted.

use mooring_model as model;
use mooring_model::{Proof, Revoked};

use crate::convert::{generation_to_wire, micros};
use crate::v1;

impl v1::Receipt {
    /// Whether it is proven, and if not, how many commands may still land, if that is known.
    pub fn proof(&self) -> Proof {
        match (self.proven, self.uncounted) {
            (true, _) => Proof::Proven,
            (false, true) => Proof::Unproven { in_flight: None },
            (false, false) => Proof::Unproven { in_flight: Some(self.may_still_land) },
        }
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
            may_still_land: in_flight.unwrap_or(0),
            uncounted: in_flight.is_none(),
            began_us: micros(receipt.began),
            ended_us: receipt.ended.map_or(0, micros),
        }
    }
}
