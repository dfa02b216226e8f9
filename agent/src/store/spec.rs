//! Specs: one row for a volume, one for its export, one for this host's connection to it.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use mooring_model::limit::TOMBSTONE_KEEP;
use mooring_model::{Digest, Fence, Generation, Stamp, VolumeId};
use mooring_systemd::sealing::SealingKeys;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::receipt::{self, NewReceipt};
use super::sum::{self, Sql};
use super::{Store, StoreError, micros, sealing, time_of};
use crate::clock;

/// Interval between two searches for old tombstones ([`Store::purge`]). Each search reads all
/// specs, and tombstones are kept for months.
pub(crate) const PURGED_EVERY: Duration = Duration::from_hours(1);

/// Kind of the object that a spec describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A volume.
    Volume,
    /// A volume's export.
    Export,
    /// This host's connection to a volume.
    Connection,
}

impl Kind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Export => "export",
            Self::Connection => "connection",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A spec as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub enum StoredContent {
    /// The encoded spec. Holds secrets.
    Spec(Vec<u8>),
    /// The object is deleted.
    Tombstone {
        /// For a volume: `true` if its data is deleted, too.
        destroy: bool,
    },
    /// For a volume: it is unmanaged. From now on the LV is nobody's, with its data.
    Released,
    /// For a connection: it is removed at once, because the target has revoked this host.
    Revoked,
}

impl fmt::Debug for StoredContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(body) => write!(f, "Spec({} bytes)", body.len()),
            Self::Tombstone { destroy } => f.debug_struct("Tombstone").field("destroy", destroy).finish(),
            Self::Released => f.write_str("Released"),
            Self::Revoked => f.write_str("Revoked"),
        }
    }
}

/// One stored spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSpec {
    /// Kind of the object.
    pub kind: Kind,
    /// The volume that the object belongs to.
    pub volume: VolumeId,
    /// Stamp that decides which of two specs is newer.
    pub stamp: Stamp,
    /// The spec, or what takes its place.
    pub content: StoredContent,
    /// Data of the sender, returned unchanged.
    pub opaque: Vec<u8>,
    /// Time of the write.
    pub updated: SystemTime,
    /// For a volume: `true` if its LV was completed once, for this spec or one before it.
    pub made: bool,
}

impl StoredSpec {
    /// Returns the error to report if this spec's body cannot be decoded.
    pub fn corrupt(&self) -> StoreError {
        StoreError::Row { what: describe(self.kind, self.volume) }
    }
}

fn describe(kind: Kind, volume: VolumeId) -> String {
    format!("the {kind} spec of {volume}")
}

/// Result of the comparison of stamps inside of the transaction.
enum Fenced {
    Written(Vec<i64>),
    Same,
    Refused { fence: Fence, kept: Generation },
    Unreadable,
}

impl Store {
    /// Stores a spec, sealed if it may hold secrets, together with the beginning of the revokes
    /// that it causes. Returns the receipts' rows, in their order.
    ///
    /// One transaction writes all or nothing, synced once, and only if the stamp is newer than the
    /// stored one. The very same stamp again writes nothing and returns no rows: the first call's
    /// receipts stand.
    pub fn put_spec(
        &self,
        kind: Kind,
        volume: VolumeId,
        stamp: &Stamp,
        content: &StoredContent,
        opaque: &[u8],
        receipts: &[NewReceipt],
    ) -> Result<Vec<i64>, StoreError> {
        let op = || format!("keep {}", describe(kind, volume));
        let arrived = stamp.generation;
        let drop_old = self.begins(volume, receipts.len());
        let content = match content {
            StoredContent::Spec(body) => StoredContent::Spec(sealing::seal(&self.keys, kind, volume, body)?),
            other => other.clone(),
        };
        let (stamp, opaque, receipts) = (stamp.clone(), opaque.to_vec(), receipts.to_vec());
        let fenced = self.write(op, move |conn| {
            let kept = match kept_stamp(conn, kind, volume)? {
                None => None,
                Some(Some(kept)) => Some(kept),
                Some(None) => return Ok(Fenced::Unreadable),
            };
            match (stamp.fence(kept.as_ref()), kept) {
                (Fence::Newer, _) => {}
                (Fence::Same, _) => return Ok(Fenced::Same),
                (fence, kept) => {
                    let kept = kept.map_or(Generation::ZERO, |kept| kept.generation);
                    return Ok(Fenced::Refused { fence, kept });
                }
            }
            write_spec(conn, kind, volume, &stamp, &content, &opaque)?;
            let rows = receipt::begin(conn, volume, stamp.generation, &receipts)?;
            if drop_old {
                receipt::drop_old(conn, volume)?;
            }
            Ok(Fenced::Written(rows))
        })?;
        match fenced {
            Fenced::Written(rows) => {
                self.fresh.store(false, Ordering::Release);
                self.epoch.fetch_max(arrived.epoch, Ordering::AcqRel);
                Ok(rows)
            }
            Fenced::Same => Ok(Vec::new()),
            Fenced::Refused { fence: Fence::Conflict, kept } => {
                Err(StoreError::Conflict { kind, volume, arrived, kept })
            }
            Fenced::Refused { kept, .. } => Err(StoreError::Stale { kind, volume, arrived, kept }),
            Fenced::Unreadable => Err(StoreError::Row { what: describe(kind, volume) }),
        }
    }

    /// Returns all specs and tombstones, by volume.
    pub fn specs(&self) -> Result<Vec<StoredSpec>, StoreError> {
        let rows = self.read(
            || "read the specs".to_owned(),
            |conn| {
                let sql = format!("{} ORDER BY volume_id, kind DESC", *SELECT);
                conn.prepare_cached(&sql)?.query_map([], RawSpec::read)?.collect::<Result<Vec<_>, _>>()
            },
        )?;
        rows.into_iter().map(|row| row.parse(&self.keys)).collect()
    }

    /// Returns one spec or tombstone. `None` if there is none.
    pub fn spec(&self, kind: Kind, volume: VolumeId) -> Result<Option<StoredSpec>, StoreError> {
        let row = self.read(
            || format!("read {}", describe(kind, volume)),
            |conn| {
                let sql = format!("{} WHERE volume_id = ?1 AND kind = ?2", *SELECT);
                let mut statement = conn.prepare_cached(&sql)?;
                statement.query_row(params![volume.to_string(), kind.as_str()], RawSpec::read).optional()
            },
        )?;
        row.map(|row| row.parse(&self.keys)).transpose()
    }

    /// Removes tombstones that are older than 90 days and whose object is gone (`gone` returns
    /// `true`). Removes the receipts of volumes that have no row any more. Returns the number of
    /// removed tombstones.
    ///
    /// A tombstone whose object still exists stays: without it the object would be taken for an
    /// orphan, and its deletion would be forgotten.
    pub fn purge(&self, now: SystemTime, gone: impl Fn(Kind, VolumeId) -> bool) -> Result<usize, StoreError> {
        let Some(before) = now.checked_sub(TOMBSTONE_KEEP).map(micros) else { return Ok(0) };
        // Read first: on most days there is nothing to write, and so nothing to sync.
        let old = self.read(
            || "look for old tombstones".to_owned(),
            |conn| {
                let sql = "SELECT volume_id, kind FROM specs WHERE tombstone = 1 AND updated_us < ?1";
                let mut statement = conn.prepare_cached(sql)?;
                let rows =
                    statement.query_map([before], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
                rows.collect::<Result<Vec<(String, String)>, _>>()
            },
        )?;
        let mut going = Vec::new();
        for (volume, kind) in old {
            let (volume, kind) = parse_key(&volume, &kind)?;
            if gone(kind, volume) {
                going.push((volume, kind));
            }
        }
        if going.is_empty() {
            return Ok(0);
        }
        self.write(
            || "forget old tombstones".to_owned(),
            move |conn| {
                let mut forget = conn.prepare_cached(
                    "DELETE FROM specs WHERE volume_id = ?1 AND kind = ?2 AND tombstone = 1 AND updated_us < ?3",
                )?;
                let mut forgotten = 0;
                for (volume, kind) in &going {
                    forgotten += forget.execute(params![volume.to_string(), kind.as_str(), before])?;
                    receipt::forget_old(conn, *volume, before)?;
                }
                Ok(forgotten)
            },
        )
    }
}

/// Returns the stored stamp. `None` if there is no row, `Some(None)` if the stamp cannot be read.
#[expect(clippy::option_option, reason = "nothing kept and nothing readable are two answers")]
fn kept_stamp(conn: &Connection, kind: Kind, volume: VolumeId) -> rusqlite::Result<Option<Option<Stamp>>> {
    let sql = "SELECT epoch, counter, digest FROM specs WHERE volume_id = ?1 AND kind = ?2";
    let mut statement = conn.prepare_cached(sql)?;
    let read = |row: &Row<'_>| Ok(stamp_of(row.get(0)?, row.get(1)?, row.get(2)?));
    statement.query_row(params![volume.to_string(), kind.as_str()], read).optional()
}

fn stamp_of(epoch: i64, counter: i64, digest: Vec<u8>) -> Option<Stamp> {
    let generation = Generation { epoch: epoch.cast_unsigned(), counter: counter.cast_unsigned() };
    Some(Stamp { generation, digest: Digest::new(digest)? })
}

fn write_spec(
    conn: &Connection,
    kind: Kind,
    volume: VolumeId,
    stamp: &Stamp,
    content: &StoredContent,
    opaque: &[u8],
) -> rusqlite::Result<()> {
    let body = match content {
        StoredContent::Spec(body) => Some(body.as_slice()),
        StoredContent::Tombstone { .. } | StoredContent::Released | StoredContent::Revoked => None,
    };
    let destroy = matches!(content, StoredContent::Tombstone { destroy: true });
    let (revoked, released) = (*content == StoredContent::Revoked, *content == StoredContent::Released);
    conn.prepare_cached(&WRITE)?
        .execute(params![
            volume.to_string(),
            kind.as_str(),
            stamp.generation.epoch.cast_signed(),
            stamp.generation.counter.cast_signed(),
            stamp.digest.as_bytes(),
            body,
            opaque,
            body.is_none(),
            destroy,
            revoked,
            micros(clock::system_time()),
            released,
            // A new spec starts as not completed.
            false,
        ])
        .map(drop)
}

/// Writes a spec, or what takes its place. That its LV was completed stays as long as there is a
/// spec.
static WRITE: Sql = Sql::new(|| {
    let made = "CASE WHEN specs.tombstone = 1 OR excluded.tombstone = 1 THEN 0 ELSE specs.made END";
    let to = |column| if column == "made" { made.to_owned() } else { format!("excluded.{column}") };
    let values: Vec<_> = sum::SPECS.rest.iter().map(|column| (*column, to(*column))).collect();
    let changes: Vec<_> = values.iter().map(|(column, value)| (*column, value.as_str())).collect();
    let insert = sum::SPECS.insert();
    let set = sum::SPECS.set(&changes);
    format!("{insert} ON CONFLICT (volume_id, kind) DO UPDATE SET {set}")
});

static SELECT: Sql = Sql::new(|| format!("SELECT {} FROM specs", sum::SPECS.listed()));

#[allow(clippy::struct_excessive_bools, reason = "fields of a file of the store")]
struct RawSpec {
    volume: String,
    kind: String,
    stamp: Option<Stamp>,
    body: Option<Vec<u8>>,
    opaque: Vec<u8>,
    tombstone: bool,
    destroy: bool,
    revoked: bool,
    updated_us: i64,
    released: bool,
    made: bool,
}

impl RawSpec {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            volume: row.get(0)?,
            kind: row.get(1)?,
            stamp: stamp_of(row.get(2)?, row.get(3)?, row.get(4)?),
            body: row.get(5)?,
            opaque: row.get(6)?,
            tombstone: row.get(7)?,
            destroy: row.get(8)?,
            revoked: row.get(9)?,
            updated_us: row.get(10)?,
            released: row.get(11)?,
            made: row.get(12)?,
        })
    }

    fn parse(self, keys: &SealingKeys) -> Result<StoredSpec, StoreError> {
        let (volume, kind) = parse_key(&self.volume, &self.kind)?;
        let unreadable = || StoreError::Row { what: describe(kind, volume) };
        let content = match (self.body, self.tombstone) {
            (Some(body), false) => StoredContent::Spec(sealing::open(keys, kind, volume, body)?),
            (None, true) if self.revoked => StoredContent::Revoked,
            (None, true) if self.released => StoredContent::Released,
            (None, true) => StoredContent::Tombstone { destroy: self.destroy },
            _ => return Err(unreadable()),
        };
        Ok(StoredSpec {
            kind,
            volume,
            stamp: self.stamp.ok_or_else(unreadable)?,
            content,
            opaque: self.opaque,
            updated: time_of(self.updated_us),
            made: self.made,
        })
    }
}

fn parse_key(volume: &str, kind: &str) -> Result<(VolumeId, Kind), StoreError> {
    let unreadable = || StoreError::Row { what: format!("a spec under the key {volume:?}, {kind:?}") };
    let kind = [Kind::Volume, Kind::Export, Kind::Connection]
        .into_iter()
        .find(|known| known.as_str() == kind)
        .ok_or_else(unreadable)?;
    Ok((volume.parse().map_err(|_| unreadable())?, kind))
}
