//! What is wished, as it is sent. Content and generation are written together, in the transaction of the change that
//! causes them: a generation never stands for two contents.

use std::fmt;

use mooring_api::{Message, v1};
use mooring_model::{AgentId, Digest, Generation, Stamp, VolumeId};
use rusqlite::{OptionalExtension, Row, params};

use super::{Db, digest, generation, parsed, parsed_opt, signed};

/// Of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The volume itself, at its storage agent.
    Volume,
    /// Who reaches it, at its storage agent.
    Export,
    /// That this host is connected to it.
    Connection(AgentId),
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Export => "export",
            Self::Connection(_) => "connection",
        }
    }

    fn agent(self) -> String {
        match self {
            Self::Volume | Self::Export => String::new(),
            Self::Connection(agent) => agent.to_string(),
        }
    }
}

/// A wish, encoded as it is sent.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The encoded spec; `None`: a tombstone.
    pub(crate) body: Option<Vec<u8>>,
    /// For a rebuild from the agents.
    pub(crate) opaque: Vec<u8>,
    /// Tombstones: destroy the data; the host was revoked.
    pub(crate) hard: bool,
    /// The sender's digest.
    pub(crate) digest: Digest,
}

impl fmt::Debug for Wish {
    // The body of an export holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wish")
            .field("tombstone", &self.body.is_none())
            .field("hard", &self.hard)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl Wish {
    /// The wish of a spec.
    pub(crate) fn spec(spec: &impl Message, opaque: Vec<u8>) -> Self {
        let digest = mooring_api::digest(spec, &opaque);
        Self { body: Some(spec.encode_to_vec()), opaque, hard: false, digest }
    }

    /// The wish that it is gone.
    pub(crate) fn tombstone(kind: Kind, hard: bool) -> Self {
        let digest = match kind {
            Kind::Volume | Kind::Export => {
                mooring_api::digest(&v1::Tombstone { destroy_data: hard }, b"tombstone")
            }
            Kind::Connection(_) => {
                mooring_api::digest(&v1::ConnectionTombstone { revoked: hard }, b"tombstone")
            }
        };
        Self { body: None, opaque: Vec::new(), hard, digest }
    }
}

/// A wish with its generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecRow {
    /// Its fence.
    pub(crate) stamp: Stamp,
    /// Its content.
    pub(crate) wish: Wish,
    /// Connections: a tombstone that is known to be true.
    pub(crate) settled: bool,
}

fn spec(row: &Row<'_>) -> rusqlite::Result<SpecRow> {
    let digest = digest(row, 2)?;
    Ok(SpecRow {
        stamp: Stamp { generation: generation(row, 0, 1)?, digest: digest.clone() },
        wish: Wish { body: row.get(3)?, opaque: row.get(4)?, hard: row.get(5)?, digest },
        settled: row.get(6)?,
    })
}

const COLUMNS: &str = "epoch, counter, digest, body, opaque, hard, settled";

impl Db<'_> {
    /// One wish.
    pub(crate) fn spec(&self, volume: VolumeId, kind: Kind) -> rusqlite::Result<Option<SpecRow>> {
        let sql = format!("SELECT {COLUMNS} FROM specs WHERE volume_id = ?1 AND kind = ?2 AND agent_id = ?3");
        let mut query = self.conn.prepare_cached(&sql)?;
        query.query_row(params![volume.to_string(), kind.word(), kind.agent()], spec).optional()
    }

    /// Wishes this. The same content again changes nothing; another content is a new generation. Returns the generation.
    pub(crate) fn wish(&self, volume: VolumeId, kind: Kind, wish: &Wish) -> rusqlite::Result<Generation> {
        match self.spec(volume, kind)? {
            Some(kept) if kept.wish.digest == wish.digest => Ok(kept.stamp.generation),
            kept => self.put_wish(volume, kind, wish, kept.as_ref(), 0),
        }
    }

    /// The same content as a newer generation, newer than `than`, too.
    pub(crate) fn renew(&self, volume: VolumeId, kind: Kind, than: Generation) -> rusqlite::Result<()> {
        if let Some(kept) = self.spec(volume, kind)? {
            self.put_wish(volume, kind, &kept.wish, Some(&kept), than.counter)?;
        }
        Ok(())
    }

    fn put_wish(
        &self,
        volume: VolumeId,
        kind: Kind,
        wish: &Wish,
        kept: Option<&SpecRow>,
        above: u64,
    ) -> rusqlite::Result<Generation> {
        let last = kept.map_or(Generation::ZERO, |kept| kept.stamp.generation);
        let epoch = self.epoch()?.max(last.epoch);
        let generation = Generation { epoch, counter: last.counter.max(above) }.next();
        let sql = "INSERT INTO specs (volume_id, kind, agent_id, epoch, counter, digest, body, opaque, hard, settled) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0) \
                   ON CONFLICT (volume_id, kind, agent_id) DO UPDATE SET epoch = excluded.epoch, \
                   counter = excluded.counter, digest = excluded.digest, body = excluded.body, \
                   opaque = excluded.opaque, hard = excluded.hard, settled = 0";
        self.conn.prepare_cached(sql)?.execute(params![
            volume.to_string(),
            kind.word(),
            kind.agent(),
            signed(generation.epoch),
            signed(generation.counter),
            wish.digest.as_bytes(),
            wish.body,
            wish.opaque,
            wish.hard,
        ])?;
        Ok(generation)
    }

    /// A connection's tombstone has become true. Only of this generation: a newer wish is not settled by an older answer.
    pub(crate) fn settle_connection(
        &self,
        volume: VolumeId,
        agent: AgentId,
        at: Generation,
    ) -> rusqlite::Result<bool> {
        let sql = "UPDATE specs SET settled = 1 WHERE volume_id = ?1 AND kind = 'connection' AND agent_id = ?2 \
                   AND epoch = ?3 AND counter = ?4 AND body IS NULL AND settled = 0";
        let changed = self.conn.prepare_cached(sql)?.execute(params![
            volume.to_string(),
            agent.to_string(),
            signed(at.epoch),
            signed(at.counter)
        ])?;
        Ok(changed > 0)
    }

    /// Connections of one host that are wished, or whose end is not known to be true.
    pub(crate) fn connections_on(&self, agent: AgentId) -> rusqlite::Result<Vec<VolumeId>> {
        // Also where a detach goes on although the host has let go: its grant was given back for a while.
        let sql = "SELECT volume_id FROM specs WHERE kind = 'connection' AND agent_id = ?1 AND settled = 0 \
                   UNION SELECT volume_id FROM attachments WHERE native = ?1 AND grant_wanted = 1 AND connect_ever = 1 \
                   AND status IN ('detaching', 'error_attaching')";
        let mut query = self.conn.prepare_cached(sql)?;
        query.query_map([agent.to_string()], |row| parsed(row, 0))?.collect()
    }

    /// Hosts that a volume has a connection to, wished or going.
    pub(crate) fn connections_of(&self, volume: VolumeId) -> rusqlite::Result<Vec<AgentId>> {
        let sql = "SELECT agent_id FROM specs WHERE kind = 'connection' AND volume_id = ?1";
        let mut query = self.conn.prepare_cached(sql)?;
        let rows = query.query_map([volume.to_string()], |row| parsed_opt(row, 0))?;
        Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}
