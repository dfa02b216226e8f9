//! SQLite: one file and one writer, with one sync for all changes that wait together.
//!
//! A writer puts its change into a queue (flat combining). One writer runs all queued changes in
//! one transaction with one sync, until the queue is empty. If one of them is refused after it has
//! changed something, the group is rolled back and runs again, each change in a savepoint. A lone
//! change pays nothing for this; with many, one thread is busy and none waits for it. Reads have
//! their own connections and see the last commit.
//!
//! What must never happen here: an answer before the sync; a refused change that takes others with
//! it; a file that others can read, or that two controllers have open.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_systemd::folder::{self, Anchor, FolderError};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, params_from_iter};
use rusqlite_migration::{M, Migrations};

use super::error::StoreError;
use super::sql::{EachRow, Row, Sql, SqlError, Value};

/// The name of the database file in the state folder.
pub(crate) const FILE_NAME: &str = "mooring-controller.db";

/// Every schema ever released, oldest first. Append only.
pub(super) const SCHEMAS: [&str; 20] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
    include_str!("schema/6.sql"),
    include_str!("schema/7.sql"),
    include_str!("schema/8.sql"),
    include_str!("schema/9.sql"),
    include_str!("schema/10.sql"),
    include_str!("schema/11.sql"),
    include_str!("schema/12.sql"),
    include_str!("schema/13.sql"),
    include_str!("schema/14.sql"),
    include_str!("schema/15.sql"),
    include_str!("schema/16.sql"),
    include_str!("schema/17.sql"),
    include_str!("schema/18.sql"),
    include_str!("schema/19.sql"),
    include_str!("schema/20.sql"),
];

/// The newest schema that this version knows.
pub(super) fn known() -> i64 {
    i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX)
}

/// The longest time for which a change waits for a foreign lock on the file (an operator's sqlite3
/// shell).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Statements that stay prepared: nearly all there are.
const STATEMENTS_CACHED: usize = 192;

/// The most changes that share one sync. Those behind them wait for the next.
const GROUP_MAX: usize = 64;

/// The number of concurrent reads. Each keeps a connection open: opening one costs more than most
/// reads.
pub(super) const READERS: usize = 8;

/// The writer's page cache, in KiB. A change touches pages scattered over all indexes.
const WRITER_CACHE_KIB: i64 = 8 * 1024;

/// One change, which its caller waits for.
pub(super) trait Change: Send {
    /// Runs the change, perhaps not for the first time: only the last run counts. Returns `true` if
    /// the change is to be kept, `false` if it was refused.
    fn run(&mut self, sql: &dyn Sql) -> bool;

    /// Tells the caller the outcome. An error: the change was not kept.
    fn tell(self: Box<Self>, kept: Result<(), SqlError>);
}

/// Changes that wait for the writer.
#[derive(Default)]
struct Queue {
    changes: VecDeque<Box<dyn Change>>,
    /// `true` while a thread runs the queue, or is about to.
    combining: bool,
}

/// The database file.
pub(super) struct Sqlite {
    path: PathBuf,
    /// The file, as it was opened.
    anchor: Anchor,
    writer: Mutex<Connection>,
    queue: Mutex<Queue>,
    readers: Mutex<Vec<Connection>>,
    /// The number of transactions that changed something; each is one sync.
    commits: AtomicU64,
    /// A lock held as long as the store. Of two controllers on one file, each would hold the
    /// other's writes impossible.
    _lock: fs::File,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A transaction that a panic interrupted was rolled back when it was dropped.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sqlite {
    /// Opens the file in this folder, and makes both if they are missing. Blocks.
    pub(super) fn open(dir: &Path) -> Result<Self, StoreError> {
        // SQLite gives its -wal and -shm files the permissions of the database.
        let path = folder::private_file(dir, FILE_NAME)?;
        let held = take_lock(dir)?;
        let mut writer = connect(&path)?;
        let anchor =
            Anchor::of(&path).map_err(|source| FolderError::Unusable { path: dir.to_owned(), source })?;
        check(&path, &writer)?;
        configure(&writer).map_err(|source| StoreError::of(&path, "set up the store", source))?;
        migrate(&path, &mut writer)?;
        Ok(Self {
            path,
            anchor,
            writer: Mutex::new(writer),
            queue: Mutex::default(),
            readers: Mutex::default(),
            commits: AtomicU64::new(0),
            _lock: held,
        })
    }

    /// Makes the file refuse all further writes, as on a full disk.
    #[cfg(test)]
    pub(super) fn fill(&self) {
        let writer = lock(&self.writer);
        let pages: i64 = writer.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap_or(0);
        let _ = writer.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0));
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Queues a change. [`Sqlite::must_combine`] must follow.
    pub(super) fn queue(&self, change: Box<dyn Change>) {
        lock(&self.queue).changes.push_back(change);
    }

    /// Returns `true` if the caller must run [`Sqlite::combine`] on a thread that may block:
    /// changes are queued and no thread runs them.
    pub(super) fn must_combine(&self) -> bool {
        let mut queue = lock(&self.queue);
        let must = !queue.combining && !queue.changes.is_empty();
        queue.combining |= must;
        must
    }

    /// Runs queued changes until the queue is empty.
    pub(super) fn combine(&self) {
        let mut writer = lock(&self.writer);
        loop {
            let group: Vec<_> = {
                let mut queue = lock(&self.queue);
                let count = queue.changes.len().min(GROUP_MAX);
                // Under the lock: a later caller that queues a change finds that no thread
                // combines.
                queue.combining = count > 0;
                queue.changes.drain(..count).collect()
            };
            if group.is_empty() {
                return;
            }
            let before = writer.total_changes();
            // A change that panics takes its group with it, but no change behind the group.
            let ran = catch_unwind(AssertUnwindSafe(|| run_group(&mut writer, &self.anchor, group)));
            if ran.is_err() {
                tracing::error!("a change of the database panicked: its group was rolled back");
            }
            if writer.total_changes() != before {
                self.commits.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Drops the queued changes and tells their callers: no thread will run them.
    pub(super) fn abandon(&self) {
        let changes = {
            let mut queue = lock(&self.queue);
            queue.combining = false;
            std::mem::take(&mut queue.changes)
        };
        // Outside the lock: a dropped change may hold the last handle of something that then queues
        // another change.
        drop(changes);
    }

    /// The number of transactions since the start that changed something.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Runs one change at once, for the start.
    pub(super) fn write<T, E: From<SqlError>>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut writer = lock(&self.writer);
        let transaction = Transaction::begin(&mut writer, BEGIN_WRITE)?;
        let value = work(&Open(transaction.conn))?;
        in_place(&self.anchor)?;
        transaction.commit()?;
        in_place(&self.anchor)?;
        Ok(value)
    }

    /// Writes the file anew and empties its log. Neither then holds anything that was deleted or
    /// replaced earlier. For the start, while nothing reads.
    pub(super) fn rewrite(&self) -> Result<(), SqlError> {
        let writer = lock(&self.writer);
        in_place(&self.anchor)?;
        // Memory must not hold a second copy of a large database.
        writer.pragma_update(None, "temp_store", "FILE")?;
        let vacuumed = writer.execute_batch("VACUUM");
        writer.pragma_update(None, "temp_store", "MEMORY")?;
        vacuumed?;
        let busy: bool = writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy {
            return Err(SqlError::Group {
                code: Some(ErrorCode::DatabaseBusy),
                text: "another program reads the database".to_owned(),
            });
        }
        in_place(&self.anchor)
    }

    /// Reads like [`Sqlite::read`], for few rows: on the writer's connection while nothing writes.
    /// Its pages are current, while each commit voids a reader's pages.
    pub(super) fn read_one<T, E: From<SqlError> + From<StoreError>>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<T, E>,
    ) -> Result<T, E> {
        match self.writer.try_lock() {
            Ok(mut writer) => snapshot(&mut writer, work),
            Err(_) => self.read(work),
        }
    }

    /// Reads the last commit, one snapshot for all of `work`.
    pub(super) fn read<T, E: From<SqlError> + From<StoreError>>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<T, E>,
    ) -> Result<T, E> {
        let kept = lock(&self.readers).pop();
        let mut reader = if let Some(reader) = kept {
            reader
        } else {
            let reader = connect(&self.path);
            // Another file may stand at the path now.
            in_place(&self.anchor)?;
            reader?
        };
        let done = snapshot(&mut reader, work);
        let mut readers = lock(&self.readers);
        if readers.len() < READERS {
            readers.push(reader);
        }
        done
    }
}

fn snapshot<T, E: From<SqlError>>(
    conn: &mut Connection,
    work: impl FnOnce(&dyn Sql) -> Result<T, E>,
) -> Result<T, E> {
    let transaction = Transaction::begin(conn, BEGIN_READ)?;
    work(&Open(transaction.conn))
}

const BEGIN_READ: &str = "BEGIN DEFERRED";

/// Immediate: the lock is taken before the first read, so that no read is stale when the write
/// comes.
const BEGIN_WRITE: &str = "BEGIN IMMEDIATE";

/// A transaction, rolled back when it is dropped. Its statements stay prepared, while those of
/// rusqlite's own transaction are compiled each time.
struct Transaction<'a> {
    conn: &'a mut Connection,
}

impl<'a> Transaction<'a> {
    fn begin(conn: &'a mut Connection, how: &str) -> Result<Self, SqlError> {
        // An earlier one that could not be rolled back would make all others fail.
        if !conn.is_autocommit() {
            control(conn, "ROLLBACK")?;
        }
        control(conn, how)?;
        Ok(Self { conn })
    }

    fn commit(self) -> Result<(), SqlError> {
        control(self.conn, "COMMIT")
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.conn.is_autocommit() && control(self.conn, "ROLLBACK").is_err() {
            tracing::error!("a transaction of the embedded database cannot be rolled back");
        }
    }
}

/// Runs a statement that begins or ends a transaction.
fn control(conn: &Connection, sql: &str) -> Result<(), SqlError> {
    Ok(conn.prepare_cached(sql)?.execute([]).map(drop)?)
}

/// Fails if the file is no longer at its path: writes into a file without a name are not kept.
fn in_place(anchor: &Anchor) -> Result<(), SqlError> {
    if anchor.holds() { Ok(()) } else { Err(SqlError::Gone) }
}

/// Runs a group of changes in one transaction, and tells their callers.
fn run_group(writer: &mut Connection, anchor: &Anchor, mut group: Vec<Box<dyn Change>>) {
    match commit_group(writer, anchor, &mut group) {
        Ok(outcomes) => {
            for (change, kept) in group.into_iter().zip(outcomes) {
                change.tell(kept);
            }
        }
        Err(error) => {
            let lost = Lost::of(&error);
            for change in group {
                change.tell(Err(lost.error()));
            }
        }
    }
}

/// Outcome of each change of a group that was committed.
type Outcomes = Vec<Result<(), SqlError>>;

/// Runs a group of changes and commits those that are to be kept.
fn commit_group(
    writer: &mut Connection,
    anchor: &Anchor,
    group: &mut [Box<dyn Change>],
) -> Result<Outcomes, SqlError> {
    in_place(anchor)?;
    let mut transaction = Transaction::begin(writer, BEGIN_WRITE)?;
    let mut outcomes = Vec::new();
    if run_plainly(transaction.conn, group)? {
        outcomes.resize_with(group.len(), || Ok(()));
    } else {
        drop(transaction);
        transaction = Transaction::begin(writer, BEGIN_WRITE)?;
        for change in group {
            outcomes.push(run_in_savepoint(transaction.conn, change.as_mut())?);
        }
    }
    transaction.commit()?;
    // Checks again after the sync: the folder may have gone meanwhile.
    in_place(anchor)?;
    Ok(outcomes)
}

/// Runs changes without savepoints: for a savepoint SQLite copies each page before its first
/// change. Returns `false` if one was refused after it had changed something.
fn run_plainly(conn: &Connection, group: &mut [Box<dyn Change>]) -> Result<bool, SqlError> {
    for change in group {
        let before = conn.total_changes();
        let keep = change.run(&Open(conn));
        still_open(conn)?;
        if !keep && conn.total_changes() != before {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs a change that is rolled back by itself if it is refused. The outer error is that of the
/// whole group.
fn run_in_savepoint(
    conn: &mut Connection,
    change: &mut dyn Change,
) -> Result<Result<(), SqlError>, SqlError> {
    let mut savepoint = conn.savepoint()?;
    let keep = change.run(&Open(&savepoint));
    still_open(&savepoint)?;
    let ended = if keep { savepoint.commit() } else { savepoint.rollback() };
    Ok(ended.map_err(SqlError::from))
}

/// Fails if SQLite has rolled the transaction back by itself, as it may on a full disk: each
/// further statement would be committed alone.
fn still_open(conn: &Connection) -> Result<(), SqlError> {
    if conn.is_autocommit() {
        let text = "SQLite has rolled the changes back that shared a sync with a failed one".to_owned();
        return Err(SqlError::Group { code: Some(ErrorCode::OperationAborted), text });
    }
    Ok(())
}

/// An error of a whole group, for each of its members.
enum Lost {
    /// The file is not at its path.
    Gone,
    /// An error of SQLite.
    Said { code: Option<ErrorCode>, text: String },
}

impl Lost {
    fn of(error: &SqlError) -> Self {
        match error {
            SqlError::Gone => Self::Gone,
            other => Self::Said { code: other.code(), text: other.to_string() },
        }
    }

    fn error(&self) -> SqlError {
        match self {
            Self::Gone => SqlError::Gone,
            Self::Said { code, text } => SqlError::Group { code: *code, text: text.clone() },
        }
    }
}

/// A connection in a transaction.
pub(super) struct Open<'a>(&'a Connection);

impl<'a> Open<'a> {
    pub(super) fn on(conn: &'a Connection) -> Self {
        Self(conn)
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
            Self::TooLarge => {
                return Err(rusqlite::Error::ToSqlConversionFailure(Box::new(SqlError::TooLarge)));
            }
        }))
    }
}

fn value(column: ValueRef<'_>) -> Result<Value, rusqlite::Error> {
    Ok(match column {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Text(_) => Value::Text(column.as_str()?.to_owned()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        // Our columns and statements have no floating-point values.
        ValueRef::Real(_) => return Err(rusqlite::Error::InvalidQuery),
    })
}

impl Sql for Open<'_> {
    fn each(&self, sql: &str, values: &[Value], work: EachRow<'_>) -> Result<(), SqlError> {
        let mut statement = self.0.prepare_cached(sql)?;
        let columns = statement.column_count();
        let mut found = statement.query(params_from_iter(values))?;
        let mut row = Row::default();
        while let Some(next) = found.next()? {
            row.refill((0..columns).map(|index| value(next.get_ref(index)?)))?;
            work(&mut row)?;
        }
        Ok(())
    }

    fn run(&self, sql: &str, values: &[Value]) -> Result<u64, SqlError> {
        let changed = self.0.prepare_cached(sql)?.execute(params_from_iter(values))?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }
}

pub(super) fn take_lock(dir: &Path) -> Result<fs::File, StoreError> {
    let path = dir.join("mooring-controller.lock");
    let unusable = |source| FolderError::Unusable { path: dir.to_owned(), source };
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(StoreError::Locked { path }),
        Err(fs::TryLockError::Error(source)) => Err(unusable(source).into()),
    }
}

pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |source| StoreError::Open { path: path.to_owned(), source };
    let conn = Connection::open_with_flags(path, flags).map_err(open)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(open)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    Ok(conn)
}

/// Refuses a database that is damaged or comes from a newer controller, before anything is written.
pub(super) fn check(path: &Path, conn: &Connection) -> Result<(), StoreError> {
    let look = |source: rusqlite::Error| StoreError::of(path, "check the store", source);
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(look)?;
    let known = known();
    if found > known {
        return Err(StoreError::Newer { store: path.display().to_string(), found, known });
    }
    let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(look)?;
    if verdict != "ok" {
        return Err(StoreError::Corrupt { path: path.to_owned(), why: verdict });
    }
    Ok(())
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))?;
    // FULL: every commit syncs the log. NORMAL would lose acknowledged specs in a power cut.
    conn.pragma_update(None, "synchronous", "FULL")?;
    // A checkpoint syncs twice and delays a commit: one for each 16 MiB of log is enough.
    conn.pragma_update(None, "wal_autocheckpoint", 4_096)?;
    // The pages that a savepoint may bring back need not outlive the process.
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    conn.pragma_update(None, "foreign_keys", "ON")?;
    // A revoked secret must not stay behind in free pages.
    conn.pragma_update(None, "secure_delete", "ON")?;
    conn.pragma_update(None, "trusted_schema", "OFF")
}

/// Opens the database file of a folder for reading, beside the controller that works on it.
pub(super) fn beside(dir: &Path) -> Result<Connection, StoreError> {
    let path = dir.join(FILE_NAME);
    let conn = connect(&path)?;
    let look = |source: rusqlite::Error| StoreError::of(&path, "look at the store", source);
    conn.pragma_update(None, "query_only", true).map_err(look)?;
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(look)?;
    let known = known();
    if found == known {
        Ok(conn)
    } else {
        Err(StoreError::Schema { store: path.display().to_string(), found, known })
    }
}

/// Reads the last commit of a file that [`beside`] has opened.
pub(super) fn look<T, E: From<SqlError>>(
    conn: &Connection,
    work: impl FnOnce(&dyn Sql) -> Result<T, E>,
) -> Result<T, E> {
    let transaction = conn.unchecked_transaction().map_err(SqlError::from)?;
    work(&Open(&transaction))
}

pub(super) fn migrate(path: &Path, conn: &mut Connection) -> Result<(), StoreError> {
    match Migrations::new(SCHEMAS.map(M::up).to_vec()).to_latest(conn) {
        Ok(()) => Ok(()),
        Err(rusqlite_migration::Error::RusqliteError { err: source, .. }) => {
            Err(StoreError::of(path, "bring the store to this controller's schema", source))
        }
        Err(error) => Err(StoreError::Corrupt { path: path.to_owned(), why: error.to_string() }),
    }
}
