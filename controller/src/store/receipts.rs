//! Receipts, as the storage agents report them. A proven receipt never becomes unproven again.
//!
//! What must never happen here: a receipt of an agent that does not serve the volume found among
//! the volume's own.

use std::collections::BTreeSet;

use mooring_api::{Message, reports, v1};
use mooring_model::{AgentId, Cause, Generation, Initiator, Proof, Receipt, VolumeId};

use super::Db;
use super::messages::Event;
use super::sql::{Row, SqlError, values};

/// Reads a stored receipt.
pub(super) fn decoded(body: &[u8]) -> Result<Receipt, SqlError> {
    let receipt = v1::Receipt::decode(body).ok().and_then(|receipt| reports::receipt(&receipt));
    receipt.ok_or(SqlError::Column { index: 1, what: "not a receipt" })
}

pub(super) fn receipt(row: &mut Row) -> Result<(i64, Receipt), SqlError> {
    let body: Vec<u8> = row.get(1)?;
    Ok((row.get(0)?, decoded(&body)?))
}

/// Column `other_agent` of the receipts that `by` states.
pub(super) fn other_agent(by: Stater) -> String {
    match by {
        Stater::Storage => String::new(),
        Stater::Other(agent) => agent.to_string(),
    }
}

/// The agent that states a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stater {
    /// The volume's storage agent.
    Storage,
    /// An agent at which the database does not have the volume, and which took access away there.
    /// Its receipts prove nothing of other agents' nexuses.
    Other(AgentId),
}

impl Db<'_> {
    /// Tells how an agent's receipts of a volume are kept: as the volume's own only if the database
    /// has the volume at this agent. Two agents may have a volume that it does not have.
    pub(crate) fn stater(&self, agent: AgentId, volume: VolumeId) -> Result<Stater, SqlError> {
        let own = self.storage_of(volume)? == Some(agent);
        Ok(if own { Stater::Storage } else { Stater::Other(agent) })
    }

    /// Tells who states a stored receipt. `None` if there is no such row.
    pub(crate) fn stater_of(&self, receipt: i64) -> Result<Option<Stater>, SqlError> {
        let sql = "SELECT other_agent FROM receipts WHERE id = ?1";
        let other = self.one(sql, &values![receipt], |row| row.get::<String>(0))?;
        Ok(other.map(|text| text.parse().map_or(Stater::Storage, Stater::Other)))
    }

    /// Stores a receipt of the volume's storage agent, or its proof. Returns `true` if that was
    /// new.
    pub(crate) fn keep_receipt(&self, receipt: &Receipt) -> Result<bool, SqlError> {
        self.keep_receipt_of(Stater::Storage, receipt)
    }

    /// Stores a receipt, or its proof. Returns `true` if that was new.
    pub(crate) fn keep_receipt_of(&self, by: Stater, receipt: &Receipt) -> Result<bool, SqlError> {
        let sql = "INSERT INTO receipts (volume_id, initiator, epoch, counter, body, proven, kept_us, other_agent) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
                   ON CONFLICT (volume_id, initiator, other_agent, epoch, counter) \
                   DO UPDATE SET body = excluded.body, proven = excluded.proven, kept_us = excluded.kept_us \
                   WHERE receipts.proven < excluded.proven";
        let changed = self.run(
            sql,
            &values![
                receipt.volume,
                &receipt.initiator,
                receipt.generation.epoch,
                receipt.generation.counter,
                v1::Receipt::from(receipt).encode_to_vec(),
                receipt.proof == Proof::Proven,
                self.now,
                other_agent(by)
            ],
        )?;
        let own = by == Stater::Storage;
        if changed > 0 && own && receipt.proof == Proof::Proven && receipt.cause != Cause::Revoke {
            self.tell_cut(receipt)?;
        }
        Ok(changed > 0)
    }

    /// Tells the volume's project that a nexus was revoked while its grant stands.
    fn tell_cut(&self, receipt: &Receipt) -> Result<(), SqlError> {
        let Some(volume) = self.volume(receipt.volume)? else { return Ok(()) };
        let mut hosts = BTreeSet::new();
        for id in &receipt.attachments {
            hosts.extend(self.attachment(*id)?.and_then(|row| row.host));
        }
        let of =
            if hosts.is_empty() { String::new() } else { format!(" ({})", Vec::from_iter(hosts).join(", ")) };
        let words = receipt.parting_words().unwrap_or_default();
        self.keep_message(Event::Reserve, &volume.project, volume.id, &format!("{words}{of}"))
    }

    /// One initiator's oldest receipt by the storage agent that is not older than the spec which
    /// revokes it.
    pub(crate) fn receipt_since(
        &self,
        volume: VolumeId,
        initiator: &Initiator,
        since: Generation,
    ) -> Result<Option<(i64, Receipt)>, SqlError> {
        let sql = "SELECT id, body FROM receipts WHERE volume_id = ?1 AND initiator = ?2 AND other_agent = '' \
                   AND (epoch, counter) >= (?3, ?4) ORDER BY epoch, counter LIMIT 1";
        self.one(sql, &values![volume, initiator, since.epoch, since.counter], receipt)
    }

    /// The newest receipt of one initiator that this agent states.
    pub(crate) fn newest_receipt(
        &self,
        by: Stater,
        volume: VolumeId,
        initiator: &Initiator,
    ) -> Result<Option<(i64, Receipt)>, SqlError> {
        let sql = "SELECT id, body FROM receipts WHERE volume_id = ?1 AND initiator = ?2 AND other_agent = ?3 \
                   ORDER BY epoch DESC, counter DESC LIMIT 1";
        self.one(sql, &values![volume, initiator, other_agent(by)], receipt)
    }

    /// One receipt.
    pub(crate) fn receipt(&self, id: i64) -> Result<Option<Receipt>, SqlError> {
        let sql = "SELECT id, body FROM receipts WHERE id = ?1";
        Ok(self.one(sql, &values![id], receipt)?.map(|(_, receipt)| receipt))
    }
}
