//! Receipts: the record of a revoke begins in the transaction that takes the grant away, and is completed when the
//! kernel's draining call has returned.

use std::time::UNIX_EPOCH;

use mooring_api::v1;
use mooring_model::{Generation, Proof, Receipt, Revoked, SessionReport, VolumeId};
use prost::Message;
use rusqlite::{Connection, Row, params};

use super::{Store, StoreError, micros, time_of};

/// Receipts that are kept of one volume, newest first; unproven ones are kept beyond that. One change can take away 512
/// grants (`GRANTS_PER_EXPORT_MAX`), and its retry must find them all.
pub const RECEIPTS_PER_VOLUME_KEPT: u32 = 1024;

/// The beginning of a revoke, to be written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReceipt {
    initiator: String,
    began_us: i64,
    proven: bool,
    body: Vec<u8>,
}

impl NewReceipt {
    /// What is written of a receipt.
    pub fn of(receipt: &Receipt) -> Self {
        Self {
            initiator: receipt.initiator.to_string(),
            began_us: micros(receipt.began),
            proven: receipt.proof == Proof::Proven,
            body: v1::Receipt::from(receipt).encode_to_vec(),
        }
    }
}

/// Inserts receipts and drops the oldest proven ones beyond the limit. Runs in the caller's transaction.
pub(super) fn begin(
    conn: &Connection,
    volume: VolumeId,
    generation: Generation,
    receipts: &[NewReceipt],
) -> rusqlite::Result<Vec<i64>> {
    if receipts.is_empty() {
        return Ok(Vec::new());
    }
    let volume = volume.to_string();
    let mut rows = Vec::with_capacity(receipts.len());
    let mut insert = conn.prepare_cached(
        "INSERT INTO receipts (volume_id, initiator, epoch, counter, body, proven, began_us) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for receipt in receipts {
        rows.push(insert.insert(params![
            volume,
            receipt.initiator,
            generation.epoch.cast_signed(),
            generation.counter.cast_signed(),
            receipt.body,
            receipt.proven,
            receipt.began_us,
        ])?);
    }
    conn.prepare_cached(
        "DELETE FROM receipts WHERE volume_id = ?1 AND proven = 1 AND id <= \
         (SELECT id FROM receipts WHERE volume_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![volume, RECEIPTS_PER_VOLUME_KEPT])?;
    Ok(rows)
}

/// Drops the old proven receipts of a volume of which no spec and no tombstone is kept.
pub(super) fn forget_old(conn: &Connection, volume: VolumeId, before_us: i64) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "DELETE FROM receipts WHERE volume_id = ?1 AND proven = 1 AND began_us < ?2 \
         AND NOT EXISTS (SELECT 1 FROM specs WHERE specs.volume_id = ?1)",
    )?
    .execute(params![volume.to_string(), before_us])
}

impl Store {
    /// Completes a receipt. `false`: there is no such row.
    pub fn prove_receipt(&self, row: i64, receipt: &Receipt) -> Result<bool, StoreError> {
        let new = NewReceipt::of(receipt);
        self.write(
            || format!("complete the receipt of {} for {}", receipt.initiator, receipt.volume),
            |conn| {
                let sql = "UPDATE receipts SET body = ?2, proven = ?3 WHERE id = ?1";
                Ok(conn.prepare_cached(sql)?.execute(params![row, new.body, new.proven])? > 0)
            },
        )
    }

    /// The receipts of a volume, newest first, at most so many.
    pub fn receipts(&self, volume: VolumeId, limit: usize) -> Result<Vec<Receipt>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.read(
            || format!("read the receipts of {volume}"),
            |conn| {
                let sql = "SELECT id, body, proven, began_us FROM receipts WHERE volume_id = ?1 ORDER BY id DESC LIMIT ?2";
                let mut statement = conn.prepare_cached(sql)?;
                let rows = statement.query_map(params![volume.to_string(), limit], RawReceipt::read)?;
                rows.collect::<Result<Vec<_>, _>>()
            },
        )?;
        rows.iter().map(|row| Ok(row.parse()?.1)).collect()
    }

    /// The receipts whose draining call had not returned when they were written, with their rows, oldest first.
    pub fn unproven_receipts(&self) -> Result<Vec<(i64, Receipt)>, StoreError> {
        let rows = self.read(
            || "read the receipts that are not proven".to_owned(),
            |conn| {
                let sql = "SELECT id, body, proven, began_us FROM receipts WHERE proven = 0 ORDER BY id";
                let mut statement = conn.prepare_cached(sql)?;
                let rows = statement.query_map([], RawReceipt::read)?;
                rows.collect::<Result<Vec<_>, _>>()
            },
        )?;
        rows.iter().map(RawReceipt::parse).collect()
    }
}

struct RawReceipt {
    id: i64,
    body: Vec<u8>,
    proven: bool,
    began_us: i64,
}

impl RawReceipt {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { id: row.get(0)?, body: row.get(1)?, proven: row.get(2)?, began_us: row.get(3)? })
    }

    fn parse(&self) -> Result<(i64, Receipt), StoreError> {
        let unreadable = || StoreError::Row { what: format!("receipt {}", self.id) };
        let wire = v1::Receipt::decode(self.body.as_slice()).map_err(|_| unreadable())?;
        let receipt = self.of_wire(wire).ok_or_else(unreadable)?;
        Ok((self.id, receipt))
    }

    /// The columns decide what they hold; the body has the rest.
    fn of_wire(&self, wire: v1::Receipt) -> Option<Receipt> {
        let generation = wire.generation?;
        let attachments = wire.attachment_ids.iter().map(|id| id.parse().ok()).collect::<Option<Vec<_>>>()?;
        let sessions = wire.sessions_cut.into_iter().map(session_of_wire).collect::<Option<Vec<_>>>()?;
        let ended = u64::try_from(wire.ended_us).ok().filter(|us| *us > 0);
        Some(Receipt {
            volume: wire.volume_id.parse().ok()?,
            initiator: wire.initiator.parse().ok()?,
            attachments,
            generation: Generation { epoch: generation.epoch, counter: generation.counter },
            revoked: if wire.nexus_removed { Revoked::Nexus } else { Revoked::Nothing },
            sessions,
            proof: if self.proven {
                Proof::Proven
            } else {
                Proof::Unproven { in_flight: wire.may_still_land }
            },
            began: time_of(self.began_us),
            ended: ended.map(|us| UNIX_EPOCH + std::time::Duration::from_micros(us)),
        })
    }
}

fn session_of_wire(session: v1::Session) -> Option<SessionReport> {
    Some(SessionReport {
        initiator: session.initiator.parse().ok()?,
        isid: session.isid,
        id: session.id,
        addresses: session.addresses,
        state: session.state,
        in_flight: session.in_flight,
    })
}
