//! The agent's durable part: the specs it has acknowledged, and the records of what it has revoked. One SQLite file.
//!
//! A change is one transaction, synced once, before it is acknowledged. Checkpoints, which sync more than once, run from
//! the idle tick on a connection of their own. Losing the file loses nothing that the volumes' tags and the controller do
//! not know.
//!
//! What must never happen here: an answer before the sync; a generation that goes back; a plan or a view that is stored;
//! a spec's body (it holds CHAP secrets) in a `Debug`, an error, or a file that others can read.

mod error;
mod receipt;
mod spec;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_model::{AgentId, ClusterId, IqnPrefix};
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use rusqlite_migration::{M, Migrations};

pub use error::StoreError;
pub use receipt::{NewReceipt, RECEIPTS_PER_VOLUME_KEPT};
pub use spec::{Kind, StoredSpec, StoredWish};

/// The database's name in the state folder.
pub const FILE_NAME: &str = "mooring-agent.db";

/// Every schema ever released, oldest first. Only ever appended to.
const SCHEMAS: [&str; 2] = [include_str!("schema/1.sql"), include_str!("schema/2.sql")];

/// The write-ahead log is checkpointed by the idle tick. Should that not come for this many pages (16 MiB, some thousand
/// changes), SQLite does it inside of a change: one slow change is better than a log without end.
const WAL_PAGES_MAX: u32 = 4096;

/// How long a change waits for somebody else's lock on the file (an operator's sqlite3 shell).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Statements that stay prepared: all there are.
const STATEMENTS_CACHED: usize = 32;

/// The store. All calls block; they come from threads that may.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// Every change and every read.
    main: Mutex<Connection>,
    /// Checkpoints, beside the changes that go on.
    keeper: Mutex<Connection>,
    /// Something was written since the last checkpoint.
    written: AtomicBool,
    agent: AgentId,
    cluster: Mutex<Option<ClusterId>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A transaction that a panic has cut short was rolled back when it was dropped.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the store in this folder; makes both when they are not there. The caller holds the folder's lock: two agents
    /// on one store would each think the other's writes impossible.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FILE_NAME);
        make_private(dir, &path)?;
        let mut main = connect(&path)?;
        check(&path, &main)?;
        let set_up = |source| StoreError::of(&path, "set up the store", source);
        configure(&main).map_err(set_up)?;
        migrate(&path, &mut main)?;
        let keeper = connect(&path)?;
        let agent = agent_id(&path, &main)?;
        let cluster = meta(&main, "cluster_id")
            .map_err(|source| StoreError::of(&path, "read the pinned cluster", source))?
            .map(|text| text.parse())
            .transpose()
            .map_err(|_| StoreError::Row { what: "the pinned cluster".to_owned() })?;
        Ok(Self {
            main: Mutex::new(main),
            keeper: Mutex::new(keeper),
            written: AtomicBool::new(true),
            agent,
            cluster: Mutex::new(cluster),
            path,
        })
    }

    /// This state folder's identity, made with the folder.
    pub const fn agent_id(&self) -> AgentId {
        self.agent
    }

    /// The cluster that owns this agent; `None` while nobody does.
    pub fn cluster(&self) -> Result<Option<ClusterId>, StoreError> {
        Ok(*lock(&self.cluster))
    }

    /// Gives the agent to a cluster for good. To the owner again: nothing is written.
    pub fn pin(&self, cluster: ClusterId) -> Result<(), StoreError> {
        let mut owner = lock(&self.cluster);
        match *owner {
            Some(kept) if kept == cluster => return Ok(()),
            Some(kept) => return Err(StoreError::Pinned { kept, arrived: cluster }),
            None => {}
        }
        self.write_cluster(cluster)?;
        *owner = Some(cluster);
        Ok(())
    }

    /// Gives the agent to a cluster whoever owned it before: the operator has said so in the configuration.
    pub fn pin_by_operator(&self, cluster: ClusterId) -> Result<(), StoreError> {
        let mut owner = lock(&self.cluster);
        if *owner != Some(cluster) {
            self.write_cluster(cluster)?;
            *owner = Some(cluster);
        }
        Ok(())
    }

    /// Keeps the prefix of target names for good: every name on the wire follows from it, so that with another one a revoke
    /// would look where nothing is and call it proven.
    pub fn keep_prefix(&self, prefix: &IqnPrefix) -> Result<(), StoreError> {
        let read =
            self.read(|| "read the prefix of target names".to_owned(), |conn| meta(conn, "iqn_prefix"))?;
        match read {
            Some(kept) if kept == prefix.as_str() => Ok(()),
            Some(kept) => Err(StoreError::Prefix { kept, arrived: prefix.to_string() }),
            None => self.write(
                || format!("keep the prefix of target names, {prefix}"),
                |conn| set_meta(conn, "iqn_prefix", prefix.as_str()),
            ),
        }
    }

    fn write_cluster(&self, cluster: ClusterId) -> Result<(), StoreError> {
        self.write(
            || format!("pin the agent to cluster {cluster}"),
            |conn| set_meta(conn, "cluster_id", &cluster.to_string()),
        )
    }

    /// Moves the write-ahead log into the database, without holding up changes. Call it when nothing else is to do; costs
    /// nothing when nothing was written since.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        if !self.written.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let failed = |source| {
            self.written.store(true, Ordering::Release);
            StoreError::of(&self.path, "checkpoint the store", source)
        };
        // PASSIVE: whoever writes meanwhile goes on; what is left over is moved the next time.
        let left = lock(&self.keeper)
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?)
            })
            .map_err(failed)?;
        if left > 0 {
            self.written.store(true, Ordering::Release);
            return Ok(());
        }
        // The first change after a checkpoint starts the log anew, which costs a second sync. It is made here, so that no
        // grant has to wait for it.
        set_meta(&lock(&self.main), "checkpointed_us", &micros(SystemTime::now()).to_string()).map_err(failed)
    }

    /// Runs one transaction. An error rolls it back.
    fn write<T>(
        &self,
        op: impl FnOnce() -> String,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut conn = lock(&self.main);
        let run = || {
            // Immediate: the lock is taken before the first look, so that no look is stale when the write comes.
            let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        let value = run().map_err(|source| StoreError::of(&self.path, op(), source))?;
        self.written.store(true, Ordering::Release);
        Ok(value)
    }

    fn read<T>(
        &self,
        op: impl FnOnce() -> String,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        work(&lock(&self.main)).map_err(|source| StoreError::of(&self.path, op(), source))
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
    // A folder that an operator made is not changed: it may be shared on purpose, and the files protect themselves. But
    // whoever may write to it may put another file in the place of ours.
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

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |source| StoreError::Open { path: path.to_owned(), source };
    let conn = Connection::open_with_flags(path, flags).map_err(open)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(open)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    Ok(conn)
}

/// Refuses a database that is damaged or comes from a newer agent, before anything is written to it.
fn check(path: &Path, conn: &Connection) -> Result<(), StoreError> {
    let look = |source| StoreError::of(path, "check the store", source);
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
    // FULL: every commit syncs the log. NORMAL would lose acknowledged specs in a power cut.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", "ON")?;
    // A revoked secret does not stay behind in free pages.
    conn.pragma_update(None, "secure_delete", "ON")?;
    conn.pragma_update(None, "trusted_schema", "OFF")?;
    conn.pragma_update(None, "wal_autocheckpoint", WAL_PAGES_MAX)
}

fn migrate(path: &Path, conn: &mut Connection) -> Result<(), StoreError> {
    match Migrations::new(SCHEMAS.map(M::up).to_vec()).to_latest(conn) {
        Ok(()) => Ok(()),
        Err(rusqlite_migration::Error::RusqliteError { err, .. }) => {
            Err(StoreError::of(path, "bring the store to this agent's schema", err))
        }
        Err(error) => Err(StoreError::Corrupt { path: path.to_owned(), why: error.to_string() }),
    }
}

fn agent_id(path: &Path, conn: &Connection) -> Result<AgentId, StoreError> {
    let fail = |source| StoreError::of(path, "read the agent's id", source);
    if let Some(text) = meta(conn, "agent_id").map_err(fail)? {
        return text.parse().map_err(|_| StoreError::Row { what: "the agent's id".to_owned() });
    }
    let id = AgentId::random();
    let make = |source| StoreError::of(path, "give the agent an id", source);
    set_meta(conn, "created_us", &micros(SystemTime::now()).to_string()).map_err(make)?;
    set_meta(conn, "agent_id", &id.to_string()).map_err(make)?;
    Ok(id)
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
fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[cfg(test)]
mod tests;
