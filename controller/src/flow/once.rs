//! Receipts without repetitions.
//!
//! What must never happen here: a proof that is lost behind an older receipt.

use mooring_model::{Proof, Receipt};

/// Returns each receipt once, in its latest state: reports and answers bring the same receipts, and
/// on the way to its proof one receipt comes several times.
pub(super) fn once(receipts: Vec<Receipt>) -> Vec<Receipt> {
    let mut kept: Vec<Receipt> = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        let of = |receipt: &Receipt| (receipt.volume, receipt.generation, receipt.initiator.clone());
        let same = |other: &&mut Receipt| of(other) == of(&receipt);
        match kept.iter_mut().find(same) {
            None => kept.push(receipt),
            // A proven receipt never becomes unproven again.
            Some(other) if other.proof != Proof::Proven => *other = receipt,
            Some(_) => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use mooring_model::{Generation, Revoked, VolumeId};

    use super::*;

    fn receipt(host: u8, counter: u64, proof: Proof) -> Receipt {
        Receipt {
            volume: VolumeId::from_u128(1),
            initiator: format!("iqn.2026-01.lab:host{host}").parse().unwrap(),
            attachments: Vec::new(),
            generation: Generation { epoch: 1, counter },
            revoked: Revoked::Nexus,
            sessions: Vec::new(),
            proof,
            began: SystemTime::UNIX_EPOCH,
            ended: None,
            reservation: None,
            cause: mooring_model::Cause::Revoke,
        }
    }

    #[test]
    fn a_receipt_that_was_said_more_than_once_is_kept_once_and_proven() {
        let open = Proof::Unproven { in_flight: Some(3) };
        let said = [
            (1, 2, open),
            (2, 2, open),
            (1, 2, Proof::Proven),
            (1, 2, open),
            (1, 3, open),
            (1, 2, Proof::Proven),
        ];
        let said = said.map(|(host, counter, proof)| receipt(host, counter, proof));
        let kept = [(1, 2, Proof::Proven), (2, 2, open), (1, 3, open)];
        let kept = kept.map(|(host, counter, proof)| receipt(host, counter, proof));
        assert_eq!(once(said.to_vec()), kept);
    }
}
