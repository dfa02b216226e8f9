//! Receipts, as the storage agents said. A receipt that is proven never becomes unproven again.

use mooring_api::{Message, v1};
use mooring_model::{Generation, Iqn, Proof, Receipt, VolumeId};
use rusqlite::{OptionalExtension, params};

use super::{Db, signed, wrong};
use crate::agents::wire;

fn receipt(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, Receipt)> {
    let body: Vec<u8> = row.get(1)?;
    let receipt = v1::Receipt::decode(body.as_slice()).ok().and_then(|receipt| wire::receipt(&receipt));
    Ok((row.get(0)?, receipt.ok_or_else(|| wrong(1, "not a receipt"))?))
}

impl Db<'_> {
    /// Keeps a receipt, or that it is proven now. Whether that was new.
    pub(crate) fn keep_receipt(&self, receipt: &Receipt) -> rusqlite::Result<bool> {
        let proven = receipt.proof == Proof::Proven;
        let sql = "INSERT INTO receipts (volume_id, initiator, epoch, counter, body, proven) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (volume_id, initiator, epoch, counter) \
                   DO UPDATE SET body = excluded.body, proven = excluded.proven WHERE proven < excluded.proven";
        let changed = self.conn.prepare_cached(sql)?.execute(params![
            receipt.volume.to_string(),
            receipt.initiator.as_str(),
            signed(receipt.generation.epoch),
            signed(receipt.generation.counter),
            v1::Receipt::from(receipt).encode_to_vec(),
            proven
        ])?;
        Ok(changed > 0)
    }

    /// The oldest receipt of a nexus that is not older than the wish to revoke it.
    pub(crate) fn receipt_since(
        &self,
        volume: VolumeId,
        initiator: &Iqn,
        since: Generation,
    ) -> rusqlite::Result<Option<(i64, Receipt)>> {
        let sql = "SELECT id, body FROM receipts WHERE volume_id = ?1 AND initiator = ?2 \
                   AND (epoch, counter) >= (?3, ?4) ORDER BY epoch, counter LIMIT 1";
        self.conn
            .prepare_cached(sql)?
            .query_row(
                params![volume.to_string(), initiator.as_str(), signed(since.epoch), signed(since.counter)],
                receipt,
            )
            .optional()
    }

    /// One receipt.
    pub(crate) fn receipt(&self, id: i64) -> rusqlite::Result<Option<Receipt>> {
        let sql = "SELECT id, body FROM receipts WHERE id = ?1";
        Ok(self.conn.prepare_cached(sql)?.query_row([id], receipt).optional()?.map(|(_, receipt)| receipt))
    }
}
