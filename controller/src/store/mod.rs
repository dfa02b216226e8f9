//! The controller's database: one SQLite file. Every wish is here before it is acknowledged, and everything that an agent is
//! told can be made again from here.
//!
//! One writer: a change is one transaction, synced once. Reads have a connection of their own and see the last commit.
//! All calls of [`Db`] run on threads that may block; [`Store`] brings them there.
//!
//! What must never happen here: an answer before the sync; a generation that goes back; a status that was not derived in
//! the transaction that changed its cause; a secret in a `Debug`, an error, or a file that others can read.

mod agents;
mod attachments;
mod error;
mod receipts;
mod specs;
mod types;
mod volumes;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_model::{ClusterId, Digest, Generation};
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, TransactionBehavior};
use rusqlite_migration::{M, Migrations};

use crate::service::Refusal;

pub(crate) use attachments::{AttachmentRow, Nexus};
pub use error::StoreError;
pub(crate) use specs::{Kind, SpecRow, Wish};
pub(crate) use types::DEFAULT_TYPE;
pub(crate) use volumes::VolumeRow;

/// The database's name in the state folder.
pub(crate) const FILE_NAME: &str = "mooring-controller.db";

/// Every schema ever released, oldest first. Only ever appended to.
const SCHEMAS: [&str; 1] = [include_str!("schema/1.sql")];

/// How long a change waits for somebody else's lock on the file (an operator's sqlite3 shell).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Statements that stay prepared: all there are, nearly.
const STATEMENTS_CACHED: usize = 96;

/// The database, for asynchronous callers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
    cluster: ClusterId,
    /// Held as long as the store: two controllers on one file would each think the other's writes impossible.
    _lock: fs::File,
}

/// What a transaction works on.
pub(crate) struct Db<'a> {
    conn: &'a Connection,
    /// One time for all of a transaction.
    pub(crate) now: SystemTime,
}

/// Why a transaction was rolled back: the store failed, or the rules say no.
#[derive(Debug)]
pub(crate) enum Abort {
    /// The store failed.
    Store(rusqlite::Error),
    /// The rules say no.
    Refused(Refusal),
}

impl From<rusqlite::Error> for Abort {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for Abort {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %mooring_model::Chain(&error), "the store failed");
        // What the file is and where it lies is the operator's business, and stands in the log.
        Self::Internal("the controller's store failed; its log says more. Try again".to_owned())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A transaction that a panic has cut short was rolled back when it was dropped.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the store in this folder; makes both when they are not there. Blocks.
    pub(crate) fn open(dir: &Path, cluster: Option<ClusterId>) -> Result<Self, StoreError> {
        let path = dir.join(FILE_NAME);
        make_private(dir, &path)?;
        let held = take_lock(dir)?;
        let mut writer = connect(&path)?;
        check(&path, &writer)?;
        configure(&writer).map_err(|source| StoreError::Sql { op: "set up the store", source })?;
        migrate(&path, &mut writer)?;
        let cluster = own_cluster(&path, &writer, cluster)?;
        let db = Db { conn: &writer, now: SystemTime::now() };
        db.make_default_type().map_err(|source| StoreError::Sql { op: "make the default type", source })?;
        let reader = connect(&path)?;
        let shared = Shared { writer: Mutex::new(writer), reader: Mutex::new(reader), cluster, _lock: held };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The cluster's id.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.shared.cluster
    }

    /// Runs one transaction. An error rolls it back. It runs to its end even when nobody waits for it any more.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = Arc::clone(&self.shared);
        let run = tokio::task::spawn_blocking(move || write_now(&shared, work));
        answer(op, run.await)
    }

    /// Reads the last commit.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = Arc::clone(&self.shared);
        let run = tokio::task::spawn_blocking(move || {
            let mut reader = lock(&shared.reader);
            // One snapshot for all of a read.
            let transaction = reader.transaction_with_behavior(TransactionBehavior::Deferred)?;
            work(&Db { conn: &transaction, now: SystemTime::now() })
        });
        answer(op, run.await)
    }

    /// As [`Store::write`], for the start, where there may be no runtime yet.
    pub(crate) fn write_blocking<T>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort>,
    ) -> Result<T, Refusal> {
        answer(op, Ok(write_now(&self.shared, work)))
    }
}

fn write_now<T>(shared: &Shared, work: impl FnOnce(&Db<'_>) -> Result<T, Abort>) -> Result<T, Abort> {
    let mut writer = lock(&shared.writer);
    // Immediate: the lock is taken before the first look, so that no look is stale when the write comes.
    let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let value = work(&Db { conn: &transaction, now: SystemTime::now() })?;
    transaction.commit()?;
    Ok(value)
}

fn answer<T>(op: &'static str, ran: Result<Result<T, Abort>, tokio::task::JoinError>) -> Result<T, Refusal> {
    match ran {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Abort::Refused(refusal))) => Err(refusal),
        Ok(Err(Abort::Store(source))) => Err(StoreError::Sql { op, source }.into()),
        Err(_) => Err(StoreError::Thread(op).into()),
    }
}

impl Db<'_> {
    pub(crate) fn meta(&self, key: &str) -> rusqlite::Result<Option<String>> {
        meta(self.conn, key)
    }

    pub(crate) fn set_meta(&self, key: &str, value: &str) -> rusqlite::Result<()> {
        set_meta(self.conn, key, value)
    }

    /// Raised by every restore.
    pub(crate) fn epoch(&self) -> rusqlite::Result<u64> {
        Ok(self.meta("epoch")?.and_then(|text| text.parse().ok()).unwrap_or(1))
    }

    /// Raises the epoch, to at least this.
    pub(crate) fn raise_epoch(&self, at_least: u64) -> rusqlite::Result<u64> {
        let epoch = self.epoch()?.saturating_add(1).max(at_least);
        self.set_meta("epoch", &epoch.to_string())?;
        Ok(epoch)
    }
}

/// Makes folder and file so that nobody else can read them, and makes their names durable.
fn make_private(dir: &Path, path: &Path) -> Result<(), StoreError> {
    let folder = |source: io::Error| StoreError::Folder { path: dir.to_owned(), source };
    if !dir.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(folder)?;
        if let Some(parent) = dir.parent() {
            fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(folder)?;
        }
    }
    // A folder that an operator made is not changed. But whoever may write to it may put another file in the place of ours.
    let mode = fs::metadata(dir).map_err(folder)?.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(StoreError::Exposed { path: dir.to_owned(), mode });
    }
    // SQLite gives its -wal and -shm files the permissions of the database.
    let file =
        fs::OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(folder)?;
    file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(folder)?;
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(folder)
}

fn take_lock(dir: &Path) -> Result<fs::File, StoreError> {
    let path = dir.join("mooring-controller.lock");
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|source| StoreError::Folder { path: dir.to_owned(), source })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(StoreError::Locked { path }),
        Err(fs::TryLockError::Error(source)) => Err(StoreError::Folder { path: dir.to_owned(), source }),
    }
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |source| StoreError::Open { path: path.to_owned(), source };
    let conn = Connection::open_with_flags(path, flags).map_err(open)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(open)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    Ok(conn)
}

/// Refuses a database that is damaged or comes from a newer controller, before anything is written to it.
fn check(path: &Path, conn: &Connection) -> Result<(), StoreError> {
    let look = |source| StoreError::Sql { op: "check the store", source };
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(look)?;
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(look)?;
    if verdict != "ok" {
        return Err(StoreError::Corrupt { path: path.to_owned(), why: verdict });
    }
    Ok(())
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))?;
    // FULL: every commit syncs the log. NORMAL would lose acknowledged wishes in a power cut.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", "ON")?;
    // A revoked secret does not stay behind in free pages.
    conn.pragma_update(None, "secure_delete", "ON")?;
    conn.pragma_update(None, "trusted_schema", "OFF")
}

fn migrate(path: &Path, conn: &mut Connection) -> Result<(), StoreError> {
    match Migrations::new(SCHEMAS.map(M::up).to_vec()).to_latest(conn) {
        Ok(()) => Ok(()),
        Err(rusqlite_migration::Error::RusqliteError { err: source, .. }) => {
            Err(StoreError::Sql { op: "bring the store to this controller's schema", source })
        }
        Err(error) => Err(StoreError::Corrupt { path: path.to_owned(), why: error.to_string() }),
    }
}

/// The cluster whose database this is; made with it.
fn own_cluster(path: &Path, conn: &Connection, asked: Option<ClusterId>) -> Result<ClusterId, StoreError> {
    let op = "read the cluster's id";
    let kept = meta(conn, "cluster_id").map_err(|source| StoreError::Sql { op, source })?;
    if let Some(kept) = kept {
        let cluster: ClusterId = kept.parse().map_err(|_| StoreError::Row("the cluster's id".to_owned()))?;
        return match asked {
            Some(asked) if asked != cluster => {
                Err(StoreError::Cluster { path: path.to_owned(), kept, asked: asked.to_string() })
            }
            Some(_) | None => Ok(cluster),
        };
    }
    let cluster = asked.unwrap_or_else(ClusterId::random);
    set_meta(conn, "cluster_id", &cluster.to_string())
        .map_err(|source| StoreError::Sql { op: "give the cluster an id", source })?;
    Ok(cluster)
}

fn meta(conn: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

fn set_meta(conn: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    conn.prepare_cached(sql)?.execute([key, value]).map(drop)
}

/// Microseconds since 1970; a clock before that counts as 1970.
pub(crate) fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

pub(crate) fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn wrong(index: usize, what: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, what.to_owned().into())
}

/// A column that holds the text form of something.
fn parsed<T: FromStr>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    let text: String = row.get(index)?;
    text.parse().map_err(|_| wrong(index, "a text that is not what its column holds"))
}

fn parsed_opt<T: FromStr>(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<T>> {
    if row.get_ref(index)? == ValueRef::Null { Ok(None) } else { parsed(row, index).map(Some) }
}

/// A column that holds one of the API's words.
fn word<T>(row: &Row<'_>, index: usize, from: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let text: String = row.get(index)?;
    from(&text).ok_or_else(|| wrong(index, "an unknown word"))
}

fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    let text: String = row.get(index)?;
    serde_json::from_str(&text).map_err(|_| wrong(index, "not the JSON that its column holds"))
}

fn time_opt(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<SystemTime>> {
    Ok(row.get::<_, Option<i64>>(index)?.map(time_of))
}

fn generation(row: &Row<'_>, epoch: usize, counter: usize) -> rusqlite::Result<Generation> {
    let number = |index| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(index)?).unwrap_or(0));
    Ok(Generation { epoch: number(epoch)?, counter: number(counter)? })
}

fn digest(row: &Row<'_>, index: usize) -> rusqlite::Result<Digest> {
    Digest::new(row.get::<_, Vec<u8>>(index)?).ok_or_else(|| wrong(index, "not a digest"))
}
