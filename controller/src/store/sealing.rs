//! Sealed secrets: credentials of nexuses, the specs of exports and connections, which repeat them,
//! and the next authority's key. The keys lie outside of the database.
//!
//! Every start counts the sealed values by their keys. Then it seals two kinds of values by the
//! first key of the file: those in clear, which controllers without sealing wrote, and those that
//! another key has sealed. Each step of this is a transaction: the next start continues what a
//! killed one began. [`remains`] says that pages of the file may still hold replaced values; in the
//! end the file is written anew.
//!
//! What must never happen here: a value sealed, or a key made, before every key is there that
//! values are sealed by; a secret of another cluster's database sealed; a value replaced that
//! differs from the one that was opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use mooring_model::{Chain, Chap, ChapSide, Iqn, Secret, VolumeId};
use mooring_systemd::sealing::{
    self, Census, HEAD_BYTES, Look, MAGIC, Origin, Place, SealError, SealingKeys, TEXT_HEAD_CHARS,
    TEXT_PREFIX,
};

use super::error::StoreError;
use super::sql::{Row, Sql, SqlError, Value};
use super::{Db, Engine, Kind};

/// The number of values that one step seals.
const STEP: usize = 200;

/// A column whose values are sealed.
struct Column {
    table: &'static str,
    name: &'static str,
    /// The primary key of its table.
    keys: &'static [&'static str],
    /// The condition that selects the rows with such a value.
    rows: &'static str,
    text: bool,
}

const SECRET: Column =
    Column { table: "nexuses", name: "secret", keys: &["volume_id", "initiator"], rows: "1 = 1", text: true };

const MUTUAL_SECRET: Column = Column { name: "mutual_secret", ..SECRET };

/// Specs of volumes hold no secret.
const BODY: Column = Column {
    table: "specs",
    name: "body",
    keys: &["volume_id", "kind", "agent_id"],
    rows: "kind <> 'volume'",
    text: false,
};

/// The secrets that come or go while secrets are rotated.
const OTHER_SECRET: Column = Column { name: "other_secret", ..SECRET };

const OTHER_MUTUAL: Column = Column { name: "other_mutual", ..SECRET };

/// The private key of a rotation's next authority, which waits in the database for the other
/// controllers.
const NEXT_AUTHORITY_KEY: Column =
    Column { table: "meta", name: "value", keys: &["key"], rows: "key = 'next_authority_key'", text: true };

const COLUMNS: [Column; 6] = [SECRET, MUTUAL_SECRET, OTHER_SECRET, OTHER_MUTUAL, BODY, NEXT_AUTHORITY_KEY];

/// The key of `meta` which says that the file may still hold bytes of replaced values.
const REMAINS: &str = "sealing_remains";

impl Column {
    fn place<'a>(&'a self, row: &'a [&'a str]) -> Place<'a> {
        Place { table: self.table, column: self.name, row }
    }

    /// The number of leading bytes that tell how a value is stored.
    const fn head(&self) -> usize {
        if self.text { TEXT_HEAD_CHARS } else { HEAD_BYTES }
    }

    /// The first bytes of every sealed value.
    fn mark(&self) -> Value {
        if self.text { TEXT_PREFIX.into() } else { MAGIC.as_slice().into() }
    }

    /// The first bytes of every value that the first key has sealed.
    fn head_of(&self, keys: &SealingKeys) -> Value {
        if self.text { keys.text_head().into() } else { keys.head().as_slice().into() }
    }

    fn look(value: &Value) -> Look {
        match value {
            Value::Text(text) => sealing::look_text(text),
            Value::Blob(bytes) => sealing::look(bytes),
            _ => Look::Clear,
        }
    }

    fn seal_anew(&self, keys: &SealingKeys, row: &[&str], value: &Value) -> Result<Value, SealError> {
        let place = self.place(row);
        let clear = Self::look(value) == Look::Clear;
        Ok(match value {
            Value::Text(text) if clear => Value::Text(keys.seal_text(place, text)?),
            Value::Text(text) => Value::Text(keys.seal_text(place, &keys.open_text(place, text)?)?),
            Value::Blob(bytes) if clear => Value::Blob(keys.seal(place, bytes)?),
            Value::Blob(bytes) => Value::Blob(keys.seal(place, &keys.open(place, bytes)?)?),
            other => other.clone(),
        })
    }
}

impl Db<'_> {
    /// Seals the body of a spec for its row.
    pub(super) fn seal_body(&self, volume: VolumeId, kind: Kind, body: &[u8]) -> Result<Vec<u8>, SqlError> {
        if kind == Kind::Volume {
            return Ok(body.to_vec());
        }
        Ok(self.keys.seal(BODY.place(&[&volume.to_string(), kind.word(), &kind.agent()]), body)?)
    }

    /// Opens the body of a spec from its row.
    pub(super) fn open_body(&self, volume: VolumeId, kind: Kind, kept: Vec<u8>) -> Result<Vec<u8>, SqlError> {
        if kind == Kind::Volume {
            return Ok(kept);
        }
        let place = [&volume.to_string(), kind.word(), &kind.agent()];
        Ok(std::mem::take(&mut *self.keys.open(BODY.place(&place), &kept)?))
    }

    /// Seals the secrets of a nexus for its row: the initiator's and the target's.
    pub(super) fn seal_secrets(
        &self,
        volume: VolumeId,
        initiator: &Iqn,
        chap: &Chap,
    ) -> Result<(String, Option<String>), SqlError> {
        self.seal_pair((&SECRET, &MUTUAL_SECRET), volume, initiator, chap)
    }

    /// Seals, like [`Db::seal_secrets`], the secrets that come or go while they are rotated.
    pub(super) fn seal_other_secrets(
        &self,
        volume: VolumeId,
        initiator: &Iqn,
        chap: &Chap,
    ) -> Result<(String, Option<String>), SqlError> {
        self.seal_pair((&OTHER_SECRET, &OTHER_MUTUAL), volume, initiator, chap)
    }

    fn seal_pair(
        &self,
        (own, target): (&Column, &Column),
        volume: VolumeId,
        initiator: &Iqn,
        chap: &Chap,
    ) -> Result<(String, Option<String>), SqlError> {
        let (volume, initiator) = (volume.to_string(), initiator.to_string());
        let row = [volume.as_str(), initiator.as_str()];
        let seal =
            |column: &Column, side: &ChapSide| self.keys.seal_text(column.place(&row), side.secret.expose());
        let secret = seal(own, &chap.initiator)?;
        Ok((secret, chap.mutual.as_ref().map(|side| seal(target, side)).transpose()?))
    }

    /// Opens the initiator's secret of a nexus from its row.
    pub(super) fn open_secret(&self, volume: &str, initiator: &str, kept: &str) -> Result<Secret, SqlError> {
        self.open_text(&SECRET, &[volume, initiator], kept)
    }

    /// Opens the target's secret, like [`Db::open_secret`].
    pub(super) fn open_mutual(&self, volume: &str, initiator: &str, kept: &str) -> Result<Secret, SqlError> {
        self.open_text(&MUTUAL_SECRET, &[volume, initiator], kept)
    }

    /// Opens the initiator's secret that comes or goes, like [`Db::open_secret`].
    pub(super) fn open_other_secret(
        &self,
        volume: &str,
        initiator: &str,
        kept: &str,
    ) -> Result<Secret, SqlError> {
        self.open_text(&OTHER_SECRET, &[volume, initiator], kept)
    }

    /// Opens the target's secret that comes or goes, like [`Db::open_other_secret`].
    pub(super) fn open_other_mutual(
        &self,
        volume: &str,
        initiator: &str,
        kept: &str,
    ) -> Result<Secret, SqlError> {
        self.open_text(&OTHER_MUTUAL, &[volume, initiator], kept)
    }

    fn open_text(&self, column: &Column, row: &[&str], kept: &str) -> Result<Secret, SqlError> {
        Ok(Secret::new(std::mem::take(&mut *self.keys.open_text(column.place(row), kept)?)))
    }
}

/// Counts the sealed values by their keys.
pub(super) fn census(sql: &dyn Sql) -> Result<Census, SqlError> {
    let mut found = Census::new();
    for column in &COLUMNS {
        let Column { table, name, rows, .. } = column;
        let (head, mark) = (column.head(), if column.text { TEXT_PREFIX.len() } else { MAGIC.len() });
        let text = format!(
            "SELECT substr({name}, 1, {head}), COUNT(*) FROM {table} WHERE {rows} AND substr({name}, 1, {mark}) = ?1 \
             GROUP BY substr({name}, 1, {head})"
        );
        sql.each(&text, &[column.mark()], &mut |row| {
            let look = Column::look(&row.get(0)?);
            *found.entry(look).or_default() += row.get::<u64>(1)?;
            Ok(())
        })?;
    }
    Ok(found)
}

/// The place where a step begins.
#[derive(Clone)]
struct Cursor {
    column: usize,
    after: Vec<String>,
}

impl Cursor {
    fn at(column: usize) -> Option<Self> {
        let keys = COLUMNS.get(column)?.keys.len();
        Some(Self { column, after: vec![String::new(); keys] })
    }
}

/// Counts of the values that were sealed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Sealed {
    /// Values found in clear, by table and column.
    pub(super) clear: BTreeMap<String, u64>,
    /// Values that an older key had sealed.
    pub(super) older: u64,
}

impl Sealed {
    fn add(&mut self, other: &Self) {
        self.older += other.older;
        for (column, count) in &other.clear {
            *self.clear.entry(column.clone()).or_default() += count;
        }
    }

    fn nothing(&self) -> bool {
        self.older == 0 && self.clear.is_empty()
    }
}

/// Runs one step: seals the next values that the first key has not sealed. Returns the counts, and
/// the place where the next step begins (`None` after the last one).
fn step(sql: &dyn Sql, keys: &SealingKeys, from: &Cursor) -> Result<(Sealed, Option<Cursor>), SqlError> {
    let column = &COLUMNS[from.column];
    let Column { table, name, rows, .. } = column;
    let fields = column.keys.join(", ");
    let places = (2..2 + column.keys.len()).map(|at| format!("?{at}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "SELECT {fields}, {name} FROM {table} WHERE {rows} AND substr({name}, 1, {}) <> ?1 AND ({fields}) > ({places}) \
         ORDER BY {fields} LIMIT {STEP}",
        column.head()
    );
    let values: Vec<_> =
        std::iter::once(column.head_of(keys)).chain(from.after.iter().map(Value::from)).collect();
    let found = sql.rows(&text, &values)?;
    let last = found.len() < STEP;
    let (mut sealed, mut after) = (Sealed::default(), from.after.clone());
    for mut row in found {
        after = column.keys.iter().enumerate().map(|(at, _)| row.get(at)).collect::<Result<_, _>>()?;
        replace(sql, keys, column, &after, &mut row, &mut sealed)?;
    }
    if !sealed.nothing() {
        note_remains(sql)?;
    }
    let next = if last { Cursor::at(from.column + 1) } else { Some(Cursor { column: from.column, after }) };
    Ok((sealed, next))
}

fn replace(
    sql: &dyn Sql,
    keys: &SealingKeys,
    column: &Column,
    of: &[String],
    row: &mut Row,
    sealed: &mut Sealed,
) -> Result<(), SqlError> {
    let Column { table, name, .. } = column;
    let was: Value = row.get(of.len())?;
    let of: Vec<&str> = of.iter().map(String::as_str).collect();
    let look = Column::look(&was);
    let new = match column.seal_anew(keys, &of, &was) {
        Ok(new) => new,
        // No start can open this value; a caller that needs it is told so. The other values are no
        // worse for it.
        Err(error @ SealError::Changed(_)) => {
            tracing::error!(%error, "a secret of the database is lost: detach and attach what it is for, or rebuild the database");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let row = column.keys.iter().enumerate().map(|(at, key)| format!(" AND {key} = ?{}", at + 3));
    let text = format!("UPDATE {table} SET {name} = ?1 WHERE {name} = ?2{}", row.collect::<String>());
    let values: Vec<_> = [new, was].into_iter().chain(of.into_iter().map(Value::from)).collect();
    let changed = sql.run(&text, &values)?;
    match look {
        Look::Clear => *sealed.clear.entry(format!("{table}.{name}")).or_default() += changed,
        Look::Sealed(_) | Look::Newer(_) => sealed.older += changed,
    }
    Ok(())
}

fn note_remains(sql: &dyn Sql) -> Result<(), SqlError> {
    let text = "INSERT INTO meta (key, value) VALUES (?1, '1') ON CONFLICT (key) DO NOTHING";
    sql.run(text, &[REMAINS.into()]).map(drop)
}

/// Returns `true` if the file may still hold bytes of replaced values.
fn remains(sql: &dyn Sql) -> Result<bool, SqlError> {
    Ok(!sql.rows("SELECT value FROM meta WHERE key = ?1", &[REMAINS.into()])?.is_empty())
}

impl Engine {
    /// Reads the keys. Fails, without a change in the database, if a key is missing that something
    /// is sealed by.
    pub(super) fn keys(&self, origin: &Origin, store: &str) -> Result<Arc<SealingKeys>, StoreError> {
        let found = self.look_for_sealing(census)?;
        Ok(Arc::new(origin.open(&found, &format!("the store {store}"))?))
    }

    /// Seals every secret by the first key.
    pub(super) fn seal(&self, keys: &Arc<SealingKeys>) -> Result<(), StoreError> {
        let mut all = Sealed::default();
        let mut next = Cursor::at(0);
        while let Some(from) = next {
            let sealed;
            (sealed, next) = self.seal_step(keys, from)?;
            all.add(&sealed);
        }
        self.tell(keys, &all)?;
        if self.look_for_sealing(remains)? {
            self.sweep();
        }
        Ok(())
    }

    fn look_for_sealing<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Sql) -> Result<T, SqlError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = self.look(move |sql| Ok(look(sql)?));
        done.map_err(|abort| self.during("look how the secrets of the store are sealed", abort))
    }

    fn seal_step(
        &self,
        keys: &Arc<SealingKeys>,
        from: Cursor,
    ) -> Result<(Sealed, Option<Cursor>), StoreError> {
        let keys = Arc::clone(keys);
        let done = self.change(move |sql| Ok(step(sql, &keys, &from)?));
        done.map_err(|abort| self.during("seal the secrets of the store", abort))
    }

    /// Logs what was sealed, and which keys are no longer needed.
    fn tell(&self, keys: &SealingKeys, sealed: &Sealed) -> Result<(), StoreError> {
        let first = keys.first();
        if !sealed.clear.is_empty() {
            let counts = sealed.clear.iter().map(|(column, count)| format!("{count} of {column}"));
            let counts = counts.collect::<Vec<_>>().join(", ");
            tracing::info!(key = %first, keys = keys.origin(), "sealed secrets of the database that stood in clear: {counts}");
        }
        if sealed.older > 0 {
            tracing::info!(key = %first, "sealed {} secrets of the database anew that an older key had sealed", sealed.older);
        }
        if keys.ids().count() > 1 {
            let left = self.look_for_sealing(census)?;
            let idle = keys.ids().skip(1).filter(|id| !left.contains_key(&Look::Sealed(*id)));
            let idle = idle.map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
            if !idle.is_empty() {
                let others = if self.file().is_some() {
                    ""
                } else {
                    ", once every controller has the new key as its first one"
                };
                tracing::info!(
                    "nothing is sealed by {idle} any more: in {}, all lines below the first key can be removed{others}, unless older \
                     backups are still needed",
                    keys.origin()
                );
            }
        }
        Ok(())
    }

    /// Removes the bytes of replaced values from the database. A failure is logged and does not
    /// keep the controller from its work.
    fn sweep(&self) {
        let Self::Sqlite(sqlite) = self else {
            tracing::warn!(
                "rows of before stay in the tables nexuses, specs and meta of the database, and in its log, until the server \
                 writes them anew: run VACUUM FULL on these, and think of its backups"
            );
            self.forget_remains();
            return;
        };
        match sqlite.rewrite() {
            Ok(()) => self.forget_remains(),
            Err(error) => tracing::warn!(
                file = %sqlite.path().display(), error = %Chain(&error),
                "bytes of secrets as they stood before may still be in free pages of the database: they are removed at the next start"
            ),
        }
    }

    fn forget_remains(&self) {
        let done = self.change(|sql| Ok(sql.run("DELETE FROM meta WHERE key = ?1", &[REMAINS.into()])?));
        if let Err(abort) = done {
            let error = self.during("note that the store was written anew", abort);
            tracing::warn!(error = %Chain(&error), "the database is written anew once more at the next start");
        }
    }
}

#[cfg(test)]
mod tests;
