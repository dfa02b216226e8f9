//! Specs, as they are sent. Content and generation are written together, in the transaction of the
//! change that causes them: a generation never stands for two contents.

use std::collections::BTreeSet;
use std::fmt;

use mooring_api::{Message, v1};
use mooring_model::{AgentId, Digest, Generation, Stamp, VolumeId};

use super::Db;
use super::sql::{Row, SqlError, values};

/// The object that a spec describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The volume itself, at its storage agent.
    Volume,
    /// The volume's export with its grants, at its storage agent.
    Export,
    /// The connection of this host to the volume.
    Connection(AgentId),
}

impl Kind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Export => "export",
            Self::Connection(_) => "connection",
        }
    }

    pub(super) fn agent(self) -> String {
        match self {
            Self::Volume | Self::Export => String::new(),
            Self::Connection(agent) => agent.to_string(),
        }
    }
}

/// A spec, encoded as it is sent.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SpecContent {
    /// The encoded spec; `None` for a tombstone.
    pub(crate) body: Option<Vec<u8>>,
    /// Data for a rebuild from the agents.
    pub(crate) opaque: Vec<u8>,
    /// For tombstones: `true` if the data is to be destroyed, or the host was revoked.
    pub(crate) hard: bool,
    /// The sender's digest.
    pub(crate) digest: Digest,
}

impl fmt::Debug for SpecContent {
    // The body of an export holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpecContent")
            .field("tombstone", &self.body.is_none())
            .field("hard", &self.hard)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl SpecContent {
    /// The row's content for a spec.
    pub(crate) fn spec(spec: &impl Message, opaque: Vec<u8>) -> Self {
        let digest = mooring_api::digest(spec, &opaque);
        Self { body: Some(spec.encode_to_vec()), opaque, hard: false, digest }
    }

    /// A tombstone: the object is to be gone. For a volume that is not `hard`, the LV stays and is
    /// unmanaged.
    pub(crate) fn tombstone(kind: Kind, hard: bool) -> Self {
        let digest = match kind {
            Kind::Volume => mooring_api::digest(&Self::volume_tombstone(hard), b"tombstone"),
            Kind::Export => mooring_api::digest(&v1::Tombstone::default(), b"tombstone"),
            Kind::Connection(_) => {
                mooring_api::digest(&v1::ConnectionTombstone { revoked: hard }, b"tombstone")
            }
        };
        Self { body: None, opaque: Vec::new(), hard, digest }
    }

    /// A volume's tombstone, as it is sent.
    pub(crate) fn volume_tombstone(hard: bool) -> v1::Tombstone {
        v1::Tombstone { destroy_data: hard, release: !hard }
    }
}

/// A spec with its generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecRow {
    /// The spec's generation and digest.
    pub(crate) stamp: Stamp,
    /// The spec's content.
    pub(crate) content: SpecContent,
    /// For connections: `true` if the tombstone is known to have come true.
    pub(crate) settled: bool,
}

/// A spec that an agent has to be sent, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DueSpec {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// The object.
    pub(crate) kind: Kind,
    /// The agent that gets the spec.
    pub(crate) agent: AgentId,
    /// The spec's generation and digest.
    pub(crate) stamp: Stamp,
}

/// A page of specs, in the order of their volumes.
#[derive(Debug, Default)]
pub(crate) struct DueSpecPage {
    /// The specs that agents are to know.
    pub(crate) specs: Vec<DueSpec>,
    /// The volume after which the next page begins; `None` after the last page.
    pub(crate) next: Option<VolumeId>,
}

/// Reads one line of a page. A volume without specs is a line, too.
fn due_spec(row: &mut Row) -> Result<(VolumeId, Option<DueSpec>), SqlError> {
    let (volume, storage) = (row.parsed(0)?, row.parsed(1)?);
    let word: Option<String> = row.get(2)?;
    let kind = match word.as_deref() {
        None => return Ok((volume, None)),
        Some("volume") => Kind::Volume,
        Some("export") => Kind::Export,
        Some(_) => Kind::Connection(row.parsed(3)?),
    };
    let agent = if let Kind::Connection(host) = kind { host } else { storage };
    let stamp = Stamp { generation: row.generation(4, 5)?, digest: row.digest(6)? };
    Ok((volume, Some(DueSpec { volume, kind, agent, stamp })))
}

/// Reads a stored spec, whose body is sealed.
fn spec(row: &mut Row) -> Result<SpecRow, SqlError> {
    let digest = row.digest(2)?;
    Ok(SpecRow {
        stamp: Stamp { generation: row.generation(0, 1)?, digest: digest.clone() },
        content: SpecContent { body: row.get(3)?, opaque: row.get(4)?, hard: row.get(5)?, digest },
        settled: row.get(6)?,
    })
}

/// The statement of [`Db::insert_spec`], with its behaviour for an existing spec.
macro_rules! insert_spec {
    ($on_conflict:literal) => {
        concat!(
            "INSERT INTO specs (volume_id, kind, agent_id, epoch, counter, digest, body, opaque, hard, settled) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            $on_conflict
        )
    };
}

const COLUMNS: &str = "epoch, counter, digest, body, opaque, hard, settled";

impl Db<'_> {
    /// The spec of one object.
    pub(crate) fn spec(&self, volume: VolumeId, kind: Kind) -> Result<Option<SpecRow>, SqlError> {
        let sql = format!("SELECT {COLUMNS} FROM specs WHERE volume_id = ?1 AND kind = ?2 AND agent_id = ?3");
        let mut kept = self.one(&sql, &values![volume, kind.word(), kind.agent()], spec)?;
        if let Some(kept) = &mut kept {
            let body = kept.content.body.take();
            kept.content.body = body.map(|body| self.open_body(volume, kind, body)).transpose()?;
        }
        Ok(kept)
    }

    /// The generation and digest of one spec. Its body is not read, and not unsealed.
    pub(crate) fn spec_stamp(&self, volume: VolumeId, kind: Kind) -> Result<Option<Stamp>, SqlError> {
        let sql =
            "SELECT epoch, counter, digest FROM specs WHERE volume_id = ?1 AND kind = ?2 AND agent_id = ?3";
        let stamp = |row: &mut Row| Ok(Stamp { generation: row.generation(0, 1)?, digest: row.digest(2)? });
        self.one(sql, &values![volume, kind.word(), kind.agent()], stamp)
    }

    /// Returns `true` if this agent serves the volume, and the volume's export has or had a spec of
    /// this generation.
    pub(crate) fn has_had_export(
        &self,
        agent: AgentId,
        volume: VolumeId,
        at: Generation,
    ) -> Result<bool, SqlError> {
        let sql = "SELECT 1 FROM volumes v JOIN specs s ON s.volume_id = v.id AND s.kind = 'export' AND s.agent_id = '' \
                   WHERE v.id = ?1 AND v.agent_id = ?2 AND (s.epoch, s.counter) >= (?3, ?4)";
        Ok(self.one(sql, &values![volume, agent, at.epoch, at.counter], |row| row.get::<i64>(0))?.is_some())
    }

    /// The generation of one spec, also of one that went by age; zero if there never was one.
    pub(crate) fn generation_of(&self, volume: VolumeId, kind: Kind) -> Result<Generation, SqlError> {
        match self.spec_stamp(volume, kind)? {
            Some(stamp) => Ok(stamp.generation),
            None => self.pruned_generation(volume),
        }
    }

    /// Stores a spec. Equal content changes nothing; other content gets a new generation. Returns
    /// the generation, and `true` if it is new.
    pub(crate) fn put_spec(
        &self,
        volume: VolumeId,
        kind: Kind,
        content: &SpecContent,
    ) -> Result<(Generation, bool), SqlError> {
        let kept = self.spec_stamp(volume, kind)?;
        self.put_spec_over(volume, kind, content, kept.as_ref())
    }

    /// Stores a spec, like [`Db::put_spec`], that depends on the last one.
    pub(crate) fn put_spec_after<E: From<SqlError>>(
        &self,
        volume: VolumeId,
        kind: Kind,
        content: impl FnOnce(Option<&SpecContent>) -> Result<SpecContent, E>,
    ) -> Result<(Generation, bool), E> {
        let kept = self.spec(volume, kind)?;
        let content = content(kept.as_ref().map(|kept| &kept.content))?;
        Ok(self.put_spec_over(volume, kind, &content, kept.as_ref().map(|kept| &kept.stamp))?)
    }

    fn put_spec_over(
        &self,
        volume: VolumeId,
        kind: Kind,
        content: &SpecContent,
        kept: Option<&Stamp>,
    ) -> Result<(Generation, bool), SqlError> {
        match kept {
            Some(kept) if kept.digest == content.digest => Ok((kept.generation, false)),
            kept => Ok((self.write_spec(volume, kind, content, kept, 0)?, true)),
        }
    }

    /// Gives the content a new generation, which is also newer than `than`.
    pub(crate) fn renew(&self, volume: VolumeId, kind: Kind, than: Generation) -> Result<(), SqlError> {
        if let Some(kept) = self.spec(volume, kind)? {
            self.write_spec(volume, kind, &kept.content, Some(&kept.stamp), than.counter)?;
        }
        Ok(())
    }

    fn write_spec(
        &self,
        volume: VolumeId,
        kind: Kind,
        content: &SpecContent,
        kept: Option<&Stamp>,
        above: u64,
    ) -> Result<Generation, SqlError> {
        let last = match kept {
            Some(kept) => kept.generation,
            None => self.pruned_generation(volume)?,
        };
        let epoch = self.epoch()?.max(last.epoch);
        let generation = Generation { epoch, counter: last.counter.max(above) }.next();
        let sql = insert_spec!(
            " ON CONFLICT (volume_id, kind, agent_id) DO UPDATE SET epoch = excluded.epoch, \
             counter = excluded.counter, digest = excluded.digest, body = excluded.body, \
             opaque = excluded.opaque, hard = excluded.hard, settled = excluded.settled"
        );
        self.insert_spec(sql, volume, kind, generation, content, false)?;
        Ok(generation)
    }

    fn insert_spec(
        &self,
        sql: &str,
        volume: VolumeId,
        kind: Kind,
        at: Generation,
        content: &SpecContent,
        settled: bool,
    ) -> Result<(), SqlError> {
        let body = content.body.as_ref().map(|body| self.seal_body(volume, kind, body)).transpose()?;
        self.run(
            sql,
            &values![
                volume,
                kind.word(),
                kind.agent(),
                at.epoch,
                at.counter,
                content.digest.as_bytes(),
                body,
                content.opaque.as_slice(),
                content.hard,
                settled
            ],
        )
        .map(drop)
    }

    /// Deletes the spec of a volume that no agent has taken. The volume's id stays known.
    pub(crate) fn forget_spec(&self, volume: VolumeId) -> Result<(), SqlError> {
        let sql = "DELETE FROM specs WHERE volume_id = ?1 AND kind = 'volume'";
        self.run(sql, &values![volume]).map(drop)
    }

    /// Stores a spec with the generation and the digest that an agent stores it with.
    pub(crate) fn keep_spec(&self, volume: VolumeId, kind: Kind, kept: &SpecRow) -> Result<(), SqlError> {
        self.insert_spec(insert_spec!(""), volume, kind, kept.stamp.generation, &kept.content, kept.settled)
    }

    /// Notes that a connection's tombstone of this generation has come true. An older answer does
    /// not settle a newer spec. Returns `true` if that was new.
    pub(crate) fn settle_connection(
        &self,
        volume: VolumeId,
        agent: AgentId,
        at: Generation,
    ) -> Result<bool, SqlError> {
        let sql = "UPDATE specs SET settled = 1 WHERE volume_id = ?1 AND kind = 'connection' AND agent_id = ?2 \
                   AND epoch = ?3 AND counter = ?4 AND body IS NULL AND settled = 0";
        let settled = self.run(sql, &values![volume, agent, at.epoch, at.counter])? > 0;
        if settled {
            let sql = "UPDATE gone SET gone_us = ?2 WHERE volume_id = ?1";
            self.run(sql, &values![volume, self.now])?;
        }
        Ok(settled)
    }

    /// Connections of one host that have a spec, or whose end is not known to be true.
    pub(crate) fn connections_on(&self, agent: AgentId) -> Result<Vec<VolumeId>, SqlError> {
        // Also where a detach goes on although the host has disconnected: its grant was given back
        // for a while.
        let sql = "SELECT volume_id FROM specs WHERE kind = 'connection' AND agent_id = ?1 AND settled = 0 \
                   UNION SELECT volume_id FROM attachments WHERE native = ?1 AND access = 32";
        self.all(sql, &values![agent], |row| row.parsed(0))
    }

    /// The specs that agents are to know of the next `volumes` volumes after this one. Leaves out
    /// those that are not sent again by themselves. These are volumes in review, volumes whose
    /// creation or deletion failed, and connections whose end is known to be true.
    pub(crate) fn due_specs_after(
        &self,
        after: Option<VolumeId>,
        volumes: u32,
    ) -> Result<DueSpecPage, SqlError> {
        let sql = "SELECT v.id, v.agent_id, s.kind, s.agent_id, s.epoch, s.counter, s.digest FROM \
                   (SELECT id, agent_id, review, operation FROM volumes WHERE id > ?1 ORDER BY id LIMIT ?2) v \
                   LEFT JOIN specs s ON s.volume_id = v.id AND s.settled = 0 AND v.review IS NULL \
                   AND COALESCE(v.operation, '') NOT IN ('error', 'error_deleting', 'error_managing', 'error_unmanaging') \
                   ORDER BY v.id";
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        let lines = self.all(sql, &values![after, volumes], due_spec)?;
        let count = lines.iter().map(|(volume, _)| volume).collect::<BTreeSet<_>>().len();
        let last = lines.last().map(|(volume, _)| *volume);
        let next = last.filter(|_| u32::try_from(count).is_ok_and(|count| count >= volumes));
        Ok(DueSpecPage { specs: lines.into_iter().filter_map(|(_, due_spec)| due_spec).collect(), next })
    }

    /// Hosts for which a connection to this volume has a spec; tombstones count, too.
    pub(crate) fn connections_of(&self, volume: VolumeId) -> Result<Vec<AgentId>, SqlError> {
        let sql = "SELECT agent_id FROM specs WHERE kind = 'connection' AND volume_id = ?1";
        self.all(sql, &values![volume], |row| row.parsed(0))
    }
}
