//! Sealed bodies. The specs of exports and connections contain CHAP secrets, so their bodies are
//! sealed as a whole. The keys lie outside of the database.
//!
//! Every start first counts by which keys the bodies are sealed, before it changes anything. Then
//! it seals by the first key each body that is in clear (from an agent that does not seal) or that
//! another key has sealed. Each step is a transaction: if a start is killed, the next one goes on.
//! A row of `meta` says that pages of the file may still hold what was replaced, until the file has
//! been rewritten.
//!
//! What must never happen here: a change before every key is there that bodies are sealed by; a key
//! made where bodies are sealed already; a body that is replaced by anything but the same one,
//! sealed.

use std::path::Path;
use std::sync::Arc;

use mooring_model::{Chain, VolumeId};
use mooring_systemd::sealing::{self, Census, HEAD_BYTES, Look, MAGIC, Origin, Place, SealingKeys};
use rusqlite::{Connection, TransactionBehavior, params};

use super::sum::{self, Sql};
use super::{Kind, StoreError, meta, set_meta};

/// Number of bodies in one step.
const STEP: usize = 200;

/// Key in `meta` of the row that says that the file may still hold bytes of what was replaced.
const REMAINS: &str = "sealing_remains";

/// Seals the body of a spec for its row. A volume's body holds no secret, and stays as it is.
pub(super) fn seal(
    keys: &SealingKeys,
    kind: Kind,
    volume: VolumeId,
    body: &[u8],
) -> Result<Vec<u8>, StoreError> {
    if kind == Kind::Volume {
        return Ok(body.to_vec());
    }
    Ok(keys.seal(place(&[&volume.to_string(), kind.as_str()]), body)?)
}

/// Opens the body of a spec as its row has it.
pub(super) fn open(
    keys: &SealingKeys,
    kind: Kind,
    volume: VolumeId,
    kept: Vec<u8>,
) -> Result<Vec<u8>, StoreError> {
    if kind == Kind::Volume {
        return Ok(kept);
    }
    Ok(std::mem::take(&mut *keys.open(place(&[&volume.to_string(), kind.as_str()]), &kept)?))
}

fn place<'a>(row: &'a [&'a str]) -> Place<'a> {
    Place { table: "specs", column: "body", row }
}

/// Counts the sealed bodies by their keys.
fn census(conn: &Connection) -> rusqlite::Result<Census> {
    let head = format!("substr(body, 1, {HEAD_BYTES})");
    let mut statement = conn.prepare(&format!(
        "SELECT {head}, COUNT(*) FROM specs WHERE kind <> 'volume' AND substr(body, 1, {}) = ?1 GROUP BY {head}",
        MAGIC.len()
    ))?;
    let looked = statement.query_map([MAGIC.as_slice()], |row| {
        let head: Vec<u8> = row.get(0)?;
        Ok((sealing::look(&head), row.get::<_, i64>(1)?.unsigned_abs()))
    })?;
    looked.collect()
}

/// Numbers of bodies that were sealed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sealed {
    /// Bodies that were in clear.
    pub(super) clear: u64,
    /// Bodies that an older key had sealed.
    pub(super) older: u64,
}

/// Key of the last row of a step.
type Cursor = (String, String);

static REPLACE: Sql = Sql::new(|| {
    let set = sum::SPECS.set(&[("body", "?3")]);
    format!("UPDATE specs SET {set} WHERE volume_id = ?1 AND kind = ?2")
});

/// Runs one step: seals the next bodies that the first key has not sealed. Returns what it did, and
/// where the next step begins; `None` after the last.
fn step(
    conn: &mut Connection,
    keys: &SealingKeys,
    after: &Cursor,
) -> Result<(Sealed, Option<Cursor>), Failed> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let sql = format!(
        "SELECT volume_id, kind, body FROM specs WHERE kind <> 'volume' AND substr(body, 1, {HEAD_BYTES}) <> ?1 \
         AND (volume_id, kind) > (?2, ?3) ORDER BY volume_id, kind LIMIT {STEP}"
    );
    let rows = transaction
        .prepare(&sql)?
        .query_map(params![keys.head().as_slice(), after.0, after.1], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect::<Result<Vec<(String, String, Vec<u8>)>, _>>()?;
    let next = if rows.len() < STEP { None } else { rows.last().map(|row| (row.0.clone(), row.1.clone())) };
    let mut sealed = Sealed::default();
    for (volume, kind, body) in rows {
        let row = [volume.as_str(), kind.as_str()];
        let new = match sealing::look(&body) {
            Look::Clear => {
                sealed.clear += 1;
                keys.seal(place(&row), &body)?
            }
            Look::Sealed(_) | Look::Newer(_) => {
                sealed.older += 1;
                keys.seal(place(&row), &keys.open(place(&row), &body)?)?
            }
        };
        transaction.prepare_cached(&REPLACE)?.execute(params![volume, kind, new])?;
    }
    if sealed != Sealed::default() {
        set_meta(&transaction, REMAINS, "1")?;
    }
    transaction.commit()?;
    Ok((sealed, next))
}

/// Reason why a step came to nothing.
enum Failed {
    Sql(rusqlite::Error),
    Seal(sealing::SealError),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<sealing::SealError> for Failed {
    fn from(error: sealing::SealError) -> Self {
        Self::Seal(error)
    }
}

/// Seals every body by the first key, and returns the keys. Changes nothing unless every key is
/// there.
pub(super) fn prepare(
    path: &Path,
    conn: &mut Connection,
    origin: &Origin,
) -> Result<Arc<SealingKeys>, StoreError> {
    let failed = |source| StoreError::of(path, "seal the secrets of the store", source);
    let found = census(conn).map_err(failed)?;
    let keys = origin.open(&found, &format!("the store {}", path.display()))?;
    let mut all = Sealed::default();
    let mut next = Some(Cursor::default());
    while let Some(after) = next {
        let sealed;
        (sealed, next) = step(conn, &keys, &after).map_err(|error| match error {
            Failed::Sql(source) => failed(source),
            Failed::Seal(error) => error.into(),
        })?;
        all.clear += sealed.clear;
        all.older += sealed.older;
    }
    if all.clear > 0 {
        tracing::info!(key = %keys.first(), keys = keys.origin(), "sealed {} specs of the store that stood in clear", all.clear);
    }
    if all.older > 0 {
        tracing::info!(key = %keys.first(), "sealed {} specs of the store anew that an older key had sealed", all.older);
    }
    if keys.ids().count() > 1 {
        // A body that does not open would have ended the start before.
        let idle = keys.ids().skip(1).map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
        tracing::info!(
            "nothing is sealed by {idle} any more: in {}, all lines below the first key can be removed, unless older copies of \
             the store are still needed",
            keys.origin()
        );
    }
    if meta(conn, REMAINS).map_err(failed)?.is_some()
        && let Err(error) = rewrite(conn)
    {
        tracing::warn!(
            store = %path.display(), error = %Chain(&error),
            "bytes of secrets as they stood before may still be in free pages of the store: they are removed at the next start"
        );
    }
    Ok(Arc::new(keys))
}

/// Rewrites the file, and empties its log: neither holds any more what was deleted or replaced
/// before.
fn rewrite(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("VACUUM")?;
    let busy: bool = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if busy {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(code, Some("another program reads it".to_owned())));
    }
    conn.execute("DELETE FROM meta WHERE key = ?1", [REMAINS]).map(drop)
}

#[cfg(test)]
mod tests;
