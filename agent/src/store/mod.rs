//! Durable state of the agent: the specs it has acknowledged, and the records of what it has
//! revoked. One SQLite file.
//!
//! A change is one transaction, synced once, before it is acknowledged. Changes that arrive at the
//! same time share it (`commit`). The proof of a receipt waits for the next change: after a crash
//! the kernel shows it again. Checkpoints, which sync more than once, run from the idle tick on a
//! connection of their own. If the file is lost, the volumes' tags and the controller still know
//! everything.
//!
//! What must never happen here: an answer before the sync; a generation that goes back; a plan or a
//! view that is stored; a row that is not as it was written and is believed (`sum`); a spec's body
//! (it holds CHAP secrets) in a `Debug`, an error, or a file that others can read.

mod commit;
mod error;
mod free;
mod place;
mod places;
mod ports;
mod receipt;
mod reservations;
mod room;
mod sealing;
mod spec;
mod sum;
mod whole;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_model::{AgentId, ClusterId, IqnPrefix, VolumeId};
use mooring_systemd::folder::{self, Anchor};
use mooring_systemd::sealing::{Origin, SealingKeys};
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use rusqlite_migration::{M, Migrations};

use crate::clock;

use commit::Queue;
pub use error::StoreError;
pub use free::free;
pub(crate) use place::read_only;
use receipt::Proofs;
pub use receipt::{NewReceipt, RECEIPTS_PER_VOLUME_KEPT};
pub(crate) use spec::PURGED_EVERY;
pub use spec::{Kind, StoredContent, StoredSpec};
use sum::Sql;
pub use whole::WholeRow;

/// Name of the database in the state folder.
pub const FILE_NAME: &str = "mooring-agent.db";

/// Every schema ever released, oldest first. Only ever appended to.
const SCHEMAS: [&str; 9] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
    include_str!("schema/6.sql"),
    include_str!("schema/7.sql"),
    include_str!("schema/8.sql"),
    include_str!("schema/9.sql"),
];

/// Number of pages in the write-ahead log from which SQLite checkpoints inside of a change: 16 MiB,
/// some thousand changes.
///
/// Usually the idle tick checkpoints. If it does not come, one slow change is better than a log
/// without end.
const WAL_PAGES_MAX: u32 = 4096;

/// Time that a change waits for somebody else's lock on the file (an operator's sqlite3 shell).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of statements that stay prepared: all there are.
const STATEMENTS_CACHED: usize = 40;

/// The store. All calls block, and must come from threads that may block.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// The file, as it was opened.
    anchor: Anchor,
    /// Keys that seal the specs that hold secrets.
    keys: Arc<SealingKeys>,
    /// Connection of every change and every read.
    main: Mutex<Connection>,
    /// Connection of checkpoints, which run beside changes.
    keeper: Mutex<Connection>,
    /// `true` if something was written since the last checkpoint.
    written: AtomicBool,
    /// `true` if the log has the room that it should have, or cannot have it.
    roomy: AtomicBool,
    commits: AtomicU64,
    /// Changes that wait for the connection.
    queue: Queue,
    /// Number of receipts of each volume that began since its old ones were dropped.
    begun: Mutex<HashMap<VolumeId, usize>>,
    proofs: Proofs,
    agent: Mutex<AgentId>,
    cluster: Mutex<Option<ClusterId>>,
    /// `true` if no spec was ever stored in this file.
    fresh: AtomicBool,
    /// Newest epoch of all rows, tombstones included.
    epoch: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A transaction that a panic interrupted was rolled back when it was dropped.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the store in this folder, with the keys beside it; creates what is missing.
    ///
    /// The caller holds the folder's lock: two agents on one store would each think the other's
    /// writes impossible.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, &Origin::own(dir))
    }

    /// Opens the store as [`Store::open`] does, with keys from elsewhere.
    pub fn open_with(dir: &Path, keys: &Origin) -> Result<Self, StoreError> {
        // SQLite gives its -wal and -shm files the permissions of the database.
        let path = folder::private_file(dir, FILE_NAME)?;
        let mut main = connect(&path)?;
        let anchor = Anchor::of(&path).map_err(|source| StoreError::Look { path: path.clone(), source })?;
        check(&path, &main)?;
        let set_up = |source| StoreError::of(&path, "set up the store", source);
        configure(&main).map_err(set_up)?;
        migrate(&path, &mut main)?;
        let keys = sealing::prepare(&path, &mut main, keys)?;
        let keeper = connect(&path)?;
        let agent = agent_id(&path, &main)?;
        let fresh = is_empty(&main)
            .map_err(|source| StoreError::of(&path, "see whether anything is kept", source))?;
        let epoch = newest_epoch(&main)
            .map_err(|source| StoreError::of(&path, "see what is newest of all that is kept", source))?;
        let cluster = meta(&main, "cluster_id")
            .map_err(|source| StoreError::of(&path, "read the pinned cluster", source))?
            .map(|text| text.parse())
            .transpose()
            .map_err(|_| StoreError::Row { what: "the pinned cluster".to_owned() })?;
        Ok(Self {
            main: Mutex::new(main),
            keeper: Mutex::new(keeper),
            written: AtomicBool::new(true),
            roomy: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            queue: Queue::default(),
            begun: Mutex::default(),
            proofs: Proofs::default(),
            agent: Mutex::new(agent),
            cluster: Mutex::new(cluster),
            fresh: AtomicBool::new(fresh),
            epoch: AtomicU64::new(epoch),
            anchor,
            keys,
            path,
        })
    }

    /// Reads the identity of this state folder without opening it as an agent does: an agent may be
    /// at work on it. `None` if the folder has no identity, or if it cannot be read.
    pub fn id_in(dir: &Path) -> Option<AgentId> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(dir.join(FILE_NAME), flags).ok()?;
        conn.busy_timeout(BUSY_TIMEOUT).ok()?;
        meta(&conn, "agent_id").ok()??.parse().ok()
    }

    /// Returns the identity of this state folder: made with the folder, or given back by a
    /// controller that knew the folder before it.
    pub fn agent_id(&self) -> AgentId {
        *lock(&self.agent)
    }

    /// Returns `true` if nothing was ever stored here: the folder is new, or its store was lost.
    pub fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::Acquire)
    }

    /// Returns the newest epoch of all specs and tombstones that are stored here, or were since the
    /// start. 0 if there are none.
    pub fn newest_epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Checks that the file is still where it was opened, and that its file system is writable.
    ///
    /// If its folder was deleted under the running agent, or another file is in its place, whatever
    /// is written goes with this process.
    pub fn check_place(&self) -> Result<(), StoreError> {
        if !self.anchor.holds() {
            return Err(StoreError::Gone { path: self.path.clone() });
        }
        match place::read_only(&self.path) {
            None => Ok(()),
            Some(mount) => Err(StoreError::Frozen { path: self.path.clone(), mount }),
        }
    }

    /// Gives a fresh store to a cluster, under the id that the cluster knows its host by. A
    /// repeated call changes nothing.
    pub fn adopt(&self, cluster: ClusterId, agent: AgentId) -> Result<(), StoreError> {
        let mut owner = lock(&self.cluster);
        let mut id = lock(&self.agent);
        match *owner {
            Some(kept) if kept != cluster => return Err(StoreError::Pinned { kept, arrived: cluster }),
            Some(_) if *id == agent => return Ok(()),
            Some(_) | None => {}
        }
        let op = || format!("take the id {agent} in cluster {cluster}");
        let taken = self.write(op, move |conn| {
            // Checked in the transaction: a concurrent spec is stored before this, or after.
            if !is_empty(conn)? {
                return Ok(false);
            }
            set_meta(conn, "cluster_id", &cluster.to_string())?;
            set_meta(conn, "agent_id", &agent.to_string())?;
            Ok(true)
        })?;
        if !taken {
            return Err(StoreError::NotFresh { kept: *id, arrived: agent });
        }
        *owner = Some(cluster);
        *id = agent;
        Ok(())
    }

    /// Returns the number of commits since the start. Each of them is one sync of the log.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Returns the cluster that owns this agent. `None` while no cluster does.
    pub fn cluster(&self) -> Result<Option<ClusterId>, StoreError> {
        Ok(*lock(&self.cluster))
    }

    /// Gives the agent to a cluster for good. Writes nothing if the cluster owns it already.
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

    /// Gives the agent to a cluster whoever owned it before: the operator has set it in the
    /// configuration.
    pub fn pin_by_operator(&self, cluster: ClusterId) -> Result<(), StoreError> {
        let mut owner = lock(&self.cluster);
        if *owner != Some(cluster) {
            self.write_cluster(cluster)?;
            *owner = Some(cluster);
        }
        Ok(())
    }

    /// Stores the prefix of target names for good. Every name on the wire follows from it: with
    /// another one a revoke would look where nothing is, and call it proven.
    pub fn keep_prefix(&self, prefix: &IqnPrefix) -> Result<(), StoreError> {
        let read =
            self.read(|| "read the prefix of target names".to_owned(), |conn| meta(conn, "iqn_prefix"))?;
        match read {
            Some(kept) if kept == prefix.as_str() => Ok(()),
            Some(kept) => Err(StoreError::Prefix { kept, arrived: prefix.to_string() }),
            None => {
                let kept = prefix.clone();
                self.write(
                    || format!("keep the prefix of target names, {prefix}"),
                    move |conn| set_meta(conn, "iqn_prefix", kept.as_str()),
                )
            }
        }
    }

    fn write_cluster(&self, cluster: ClusterId) -> Result<(), StoreError> {
        self.write(
            || format!("pin the agent to cluster {cluster}"),
            move |conn| set_meta(conn, "cluster_id", &cluster.to_string()),
        )
    }

    /// Moves the write-ahead log into the database, without delaying changes. For idle moments;
    /// free if nothing was written since the last call.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        if !self.written.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let failed = |source| {
            self.written.store(true, Ordering::Release);
            StoreError::of(&self.path, "checkpoint the store", source)
        };
        // PASSIVE: changes go on meanwhile. The next checkpoint moves what is left.
        let left = lock(&self.keeper)
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?)
            })
            .map_err(failed)?;
        if left > 0 {
            self.written.store(true, Ordering::Release);
            return Ok(());
        }
        // The first change after a checkpoint starts the log anew, which costs a second sync. This
        // write is that change, so that no grant has to wait for it.
        set_meta(&lock(&self.main), "checkpointed_us", &micros(clock::system_time()).to_string())
            .map_err(failed)
    }

    /// Makes one change, durable when this returns. An error rolls it back. `work` may run more
    /// than once.
    fn write<T: Send + 'static>(
        &self,
        op: impl FnOnce() -> String,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.check_place()?;
        let (made, commits) = self.queue.write(&self.main, work);
        self.commits.fetch_add(commits, Ordering::Relaxed);
        let value = made.map_err(|source| StoreError::of(&self.path, op(), source))?;
        // Checked again after the sync: a write into a file without a name does not last.
        self.check_place()?;
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

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |source| StoreError::Open { path: path.to_owned(), source };
    let conn = Connection::open_with_flags(path, flags).map_err(open)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(open)?;
    sum::teach(&conn).map_err(open)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    Ok(conn)
}

/// Refuses a database that is damaged or comes from a newer agent, before anything is written to
/// it.
fn check(path: &Path, conn: &Connection) -> Result<(), StoreError> {
    let look = |source| StoreError::of(path, "check the store", source);
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(look)?;
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    let corrupt = |why| Err(StoreError::Corrupt { path: path.to_owned(), why });
    // Not `quick_check`: it misses an index that has lost a receipt, and unproven receipts are
    // found by one.
    let verdict: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(look)?;
    // Checks the tables of the store's schema: an older one has fewer with sums, or none.
    let rows = sum::damaged(conn, found);
    match (rows, verdict.as_str()) {
        // The sum's message is more precise than SQLite's verdict, which may be about the same row.
        (Ok(Some(why)), _) => corrupt(why),
        (rows, "ok") => rows.map(drop).map_err(look),
        _ => corrupt(verdict),
    }
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))?;
    // FULL: every commit syncs the log. NORMAL would lose acknowledged specs in a power cut.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", "ON")?;
    // No revoked secret stays behind in free pages.
    conn.pragma_update(None, "secure_delete", "ON")?;
    conn.pragma_update(None, "trusted_schema", "OFF")?;
    conn.pragma_update(None, "wal_autocheckpoint", WAL_PAGES_MAX)
}

fn migrate(path: &Path, conn: &mut Connection) -> Result<(), StoreError> {
    match Migrations::new(SCHEMAS.map(M::up).to_vec()).to_latest(conn) {
        Ok(()) => Ok(()),
        Err(rusqlite_migration::Error::RusqliteError { err, .. }) => {
            match StoreError::of(path, "bring the store to this agent's schema", err) {
                // The database has another schema than its number says.
                StoreError::Defect { source, path, .. } => {
                    Err(StoreError::Corrupt { path, why: source.to_string() })
                }
                error => Err(error),
            }
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
    set_meta(conn, "created_us", &micros(clock::system_time()).to_string()).map_err(make)?;
    set_meta(conn, "agent_id", &id.to_string()).map_err(make)?;
    Ok(id)
}

/// Returns `true` if the database holds nothing but the agent's identity.
fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM specs) AND NOT EXISTS (SELECT 1 FROM receipts)";
    conn.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// Returns the newest epoch of all rows.
fn newest_epoch(conn: &Connection) -> rusqlite::Result<u64> {
    let newest: Option<i64> = conn.query_row("SELECT MAX(epoch) FROM specs", [], |row| row.get(0))?;
    Ok(newest.map_or(0, i64::cast_unsigned))
}

fn meta(conn: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

fn set_meta(conn: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    static SET: Sql = Sql::new(|| {
        let insert = sum::META.insert();
        format!("{insert} ON CONFLICT (key) DO UPDATE SET value = excluded.value, sum = excluded.sum")
    });
    conn.prepare_cached(&SET)?.execute([key, value]).map(drop)
}

/// Converts a time to microseconds since 1970; an earlier time counts as 1970.
fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[cfg(test)]
mod tests;
