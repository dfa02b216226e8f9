//! Receipts. The record of a revoke begins in the transaction that removes the grant, and is
//! completed when the kernel's draining call has returned.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use mooring_api::v1;
use mooring_model::{Cause, Chain, Generation, Proof, Receipt, Revoked, SessionReport, VolumeId};
use prost::Message;
use rusqlite::{Connection, Row, params};

use super::commit::Change;
use super::sum::{self, Sql};
use super::{Store, StoreError, lock, micros, time_of};

/// Number of receipts kept of one volume, newest first; unproven ones are kept beyond that.
///
/// One change can remove 512 grants (`GRANTS_PER_EXPORT_MAX`), and its retry must find them all.
pub const RECEIPTS_PER_VOLUME_KEPT: u32 = 1024;

/// Number of new receipts after which older ones are dropped. Looking for them costs as much as
/// reading all that are kept.
const RECEIPTS_BETWEEN_DROPS: usize = 64;

/// The beginning of a revoke, to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReceipt {
    initiator: String,
    began_us: i64,
    proven: bool,
    body: Vec<u8>,
}

impl NewReceipt {
    /// Returns the stored part of a receipt.
    pub fn of(receipt: &Receipt) -> Self {
        Self {
            initiator: receipt.initiator.to_string(),
            began_us: micros(receipt.began),
            proven: receipt.proof == Proof::Proven,
            body: v1::Receipt::from(receipt).encode_to_vec(),
        }
    }
}

/// Inserts receipts. Runs in the caller's transaction. Returns their rows.
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
    let mut insert = conn.prepare_cached(&BEGIN)?;
    for (row, receipt) in (newest_row(conn)? + 1..).zip(receipts) {
        insert.execute(params![
            row,
            volume,
            receipt.initiator,
            generation.epoch.cast_signed(),
            generation.counter.cast_signed(),
            receipt.body,
            receipt.proven,
            receipt.began_us,
        ])?;
        rows.push(row);
    }
    Ok(rows)
}

static BEGIN: Sql = Sql::new(|| sum::RECEIPTS.insert());

/// Returns the newest row's number. The agent numbers the rows as SQLite would, because a row's sum
/// covers its number, too.
fn newest_row(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT IFNULL(MAX(id), 0) FROM receipts")?.query_row([], |row| row.get(0))
}

/// Drops the oldest proven receipts of a volume beyond the limit.
pub(super) fn drop_old(conn: &Connection, volume: VolumeId) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "DELETE FROM receipts WHERE volume_id = ?1 AND proven = 1 AND id <= \
         (SELECT id FROM receipts WHERE volume_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![volume.to_string(), RECEIPTS_PER_VOLUME_KEPT])
}

/// Drops the old proven receipts of a volume that has neither spec nor tombstone.
pub(super) fn forget_old(conn: &Connection, volume: VolumeId, before_us: i64) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "DELETE FROM receipts WHERE volume_id = ?1 AND proven = 1 AND began_us < ?2 \
         AND NOT EXISTS (SELECT 1 FROM specs WHERE specs.volume_id = ?1)",
    )?
    .execute(params![volume.to_string(), before_us])
}

impl Store {
    /// Counts `count` new receipts of a volume. Returns `true` if its old ones are due to be
    /// dropped.
    pub(super) fn begins(&self, volume: VolumeId, count: usize) -> bool {
        if count == 0 {
            return false;
        }
        let mut begun = lock(&self.begun);
        let total = begun.entry(volume).or_default();
        *total += count;
        let due = *total >= RECEIPTS_BETWEEN_DROPS;
        if due {
            begun.remove(&volume);
        }
        due
    }

    /// Stores the beginning of a receipt for a nexus that is ended while its grant stands. Returns
    /// the receipt's row.
    pub fn begin_nexus_revoke(&self, receipt: &Receipt) -> Result<i64, StoreError> {
        let drop_old = self.begins(receipt.volume, 1);
        let (volume, generation, new) = (receipt.volume, receipt.generation, NewReceipt::of(receipt));
        let rows = self.write(
            || format!("begin to cut {} off from {volume}", receipt.initiator),
            move |conn| {
                let rows = begin(conn, volume, generation, std::slice::from_ref(&new))?;
                if drop_old {
                    self::drop_old(conn, volume)?;
                }
                Ok(rows)
            },
        )?;
        rows.first().copied().ok_or_else(|| StoreError::Row { what: format!("a receipt of {volume}") })
    }

    /// Returns the initiators that are kept out, and of which volume, by the newest receipt of
    /// each.
    pub fn kept_out(&self) -> Result<Vec<Receipt>, StoreError> {
        let rows = self.read(
            || "read who is kept out".to_owned(),
            |conn| {
                let sql = "SELECT id, body, proven, began_us FROM receipts WHERE id IN \
                           (SELECT MAX(id) FROM receipts GROUP BY volume_id, initiator)";
                conn.prepare_cached(sql)?.query_map([], RawReceipt::read)?.collect::<Result<Vec<_>, _>>()
            },
        )?;
        let newest = self.with_proofs(rows).into_iter().map(|row| Ok(row.parse()?.1));
        let kept_out = |receipt: &Receipt| receipt.cause == Cause::ReservationKeptOut;
        newest.filter(|found| found.as_ref().map_or(true, kept_out)).collect()
    }

    /// Completes a receipt. Reads show it as proven at once.
    ///
    /// The proof is durable with the next change, or by [`Store::flush`]. After a crash before
    /// that, the receipt is unproven again. The kernel, in which the nexus is no more, then proves
    /// it again.
    pub fn prove_receipt(&self, row: i64, receipt: &Receipt) {
        let new = NewReceipt::of(receipt);
        lock(&self.proofs).insert(row, new.clone());
        self.queue.add(Arc::new(Completion {
            row,
            new,
            proofs: Arc::clone(&self.proofs),
            failed: false.into(),
        }));
    }

    /// Returns `true` if there are proofs that are not known to be durable.
    pub fn has_unwritten(&self) -> bool {
        !lock(&self.proofs).is_empty()
    }

    /// Makes every proof durable that no change has taken along, or that a change could not write.
    pub fn flush(&self) -> Result<(), StoreError> {
        let proofs: Vec<_> = lock(&self.proofs).iter().map(|(row, new)| (*row, new.clone())).collect();
        if proofs.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = proofs.iter().map(|(row, _)| *row).collect();
        self.write(
            || "complete receipts".to_owned(),
            move |conn| proofs.iter().try_for_each(|(row, new)| complete(conn, *row, new)),
        )?;
        let mut proofs = lock(&self.proofs);
        for row in rows {
            proofs.remove(&row);
        }
        Ok(())
    }

    /// Adds to what was read the proofs that are not written yet.
    fn with_proofs(&self, rows: Vec<RawReceipt>) -> Vec<RawReceipt> {
        let proofs = lock(&self.proofs);
        let known = |row: RawReceipt| match proofs.get(&row.id) {
            Some(new) => RawReceipt { body: new.body.clone(), proven: new.proven, ..row },
            None => row,
        };
        rows.into_iter().map(known).collect()
    }

    /// Returns the receipts of a volume, newest first, at most `limit`.
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
        self.with_proofs(rows).iter().map(|row| Ok(row.parse()?.1)).collect()
    }

    /// Returns the receipts of a volume that began with one generation of its spec, newest first.
    pub fn receipts_of(&self, volume: VolumeId, generation: Generation) -> Result<Vec<Receipt>, StoreError> {
        let rows = self.read(
            || format!("read the receipts of {volume}, generation {generation}"),
            |conn| {
                let sql = "SELECT id, body, proven, began_us FROM receipts \
                           WHERE volume_id = ?1 AND epoch = ?2 AND counter = ?3 ORDER BY id DESC";
                let mut statement = conn.prepare_cached(sql)?;
                let (epoch, counter) = (generation.epoch.cast_signed(), generation.counter.cast_signed());
                let rows =
                    statement.query_map(params![volume.to_string(), epoch, counter], RawReceipt::read)?;
                rows.collect::<Result<Vec<_>, _>>()
            },
        )?;
        self.with_proofs(rows).iter().map(|row| Ok(row.parse()?.1)).collect()
    }

    /// Returns the receipts whose draining call had not returned when they were written, with their
    /// rows, oldest first.
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
        let open = self.with_proofs(rows).into_iter().filter(|row| !row.proven);
        open.map(|row| row.parse()).collect()
    }
}

static COMPLETE: Sql = Sql::new(|| {
    format!("UPDATE receipts SET {} WHERE id = ?1", sum::RECEIPTS.set(&[("body", "?2"), ("proven", "?3")]))
});

fn complete(conn: &Connection, row: i64, new: &NewReceipt) -> rusqlite::Result<()> {
    conn.prepare_cached(&COMPLETE)?.execute(params![row, new.body, new.proven]).map(drop)
}

/// Proofs that are not known to be durable.
pub(super) type Proofs = Arc<Mutex<BTreeMap<i64, NewReceipt>>>;

/// A proof on its way into the next change's transaction.
struct Completion {
    row: i64,
    new: NewReceipt,
    proofs: Proofs,
    failed: AtomicBool,
}

impl Change for Completion {
    fn make(&self, conn: &Connection) -> rusqlite::Result<()> {
        complete(conn, self.row, &self.new)
    }

    fn fail(&self, error: rusqlite::Error) {
        // The receipt stays unproven in the store, which is the safe side; the next tick writes the
        // proof.
        tracing::error!(error = %Chain(&error), row = self.row, "cannot write a receipt down");
        self.failed.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        false
    }

    fn end(&self) {
        if !self.failed.load(Ordering::Relaxed) {
            lock(&self.proofs).remove(&self.row);
        }
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

    /// Decodes a receipt; `None` if that fails. The columns decide what they hold; the body has the
    /// rest.
    fn of_wire(&self, wire: v1::Receipt) -> Option<Receipt> {
        let generation = wire.generation?;
        let proof = if self.proven { Proof::Proven } else { wire.proof() };
        let (reservation, cause) = (wire.reservation(), wire.why());
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
            proof,
            began: time_of(self.began_us),
            ended: ended.map(|us| UNIX_EPOCH + std::time::Duration::from_micros(us)),
            reservation,
            cause,
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
        since: (session.since_us > 0).then(|| time_of(session.since_us)),
    })
}
