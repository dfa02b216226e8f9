//! The controller's database. Each spec is stored here before its request is acknowledged, and
//! everything that agents are sent can be made again from here.
//!
//! [`sql`] holds what both databases share. `sqlite` is the embedded database; `postgres` is the
//! one that several controllers share, with [`leases`] among them. The other modules hold the
//! statements: one module for each kind of object, all of them methods of [`Db`], which a
//! transaction works on. All calls of [`Db`] run on threads that may block; [`Store`] brings them
//! there.
//!
//! What must never happen here: an answer before the sync; a generation that goes back; a status
//! that was not derived in the transaction that changed its cause; a secret in a `Debug`, an error,
//! or a file that others can read.

mod agents;
mod attachments;
mod audit;
pub mod backup;
pub(crate) mod beside;
#[cfg(test)]
mod contract;
mod copies;
mod counts;
mod enrolments;
mod error;
#[cfg(test)]
mod faults;
mod fenced;
mod fences;
mod fibre_channel;
mod forgotten;
mod growths;
mod hints;
mod identities;
mod isolation;
pub(crate) mod leases;
mod lists;
mod messages;
pub(crate) mod numbers;
mod operations;
mod places;
mod postgres;
mod prune;
mod quotas;
mod receipts;
mod renames;
mod reverts;
mod reviews;
mod rotations;
mod sealing;
mod specs;
mod sql;
mod sqlite;
mod standing;
mod takings;
#[cfg(test)]
pub(crate) mod testing;
mod types;
mod uploads;
mod volumes;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_model::ClusterId;
use mooring_systemd::sealing::{Origin, SealingKeys};
use tokio::sync::{Semaphore, oneshot};

use self::postgres::Postgres;
use crate::clock::Clock;
use crate::domain::RuleViolation;
use crate::error::Refusal;
use leases::Fence;
use sql::{Row, Sql, Value, values};
use sqlite::{Change, READERS, Sqlite};

pub(crate) use self::postgres::Dialer;
pub use self::postgres::PostgresOptions;
pub(crate) use agents::{AgentRow, Heard, Said};
pub(crate) use attachments::{Asked, AttachmentRow, Connector, DetachedFilter, Nexus};
pub(crate) use audit::PRUNE_ROWS_MAX;
use error::Cause;
pub use error::StoreError;
pub(crate) use fenced::{FencedStore, ReadStore};
pub(crate) use fences::FenceRow;
pub(crate) use forgotten::ForgottenRow;
pub(crate) use identities::{id_is_taken, naa_of};
pub(crate) use messages::{Event, read_as};
pub(crate) use operations::KeptOperations;
pub(crate) use places::Place;
pub(crate) use receipts::Stater;
pub(crate) use reverts::KeptRevert;
pub(crate) use reviews::ReviewKind;
pub(crate) use rotations::{Rotation, Stage};
pub(crate) use specs::{DueSpec, Kind, SpecContent, SpecRow};
pub use sql::SqlError;
pub(crate) use standing::Access;
pub(crate) use takings::{Taker, Taking};
pub(crate) use types::DEFAULT_TYPE;
pub(crate) use uploads::KeptUpload;
pub(crate) use volumes::{Tried, VolumeRow};

/// The longest time for which a change of [`Store::write_soon`] waits for another change.
const SHARE_WAIT: Duration = Duration::from_millis(25);

/// The database, for asynchronous callers. A clone is cheap.
#[derive(Clone)]
pub(crate) struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    keys: Arc<SealingKeys>,
    cluster: ClusterId,
    clock: Clock,
    /// Permits for reads of the embedded database. A read waits for one here, not on a thread.
    reads: Arc<Semaphore>,
}

enum Engine {
    Sqlite(Arc<Sqlite>),
    Postgres(Postgres),
}

/// The kind of database, and the place of the keys that seal its secrets.
#[derive(Debug, Clone)]
pub enum Database {
    /// The embedded database.
    Embedded {
        /// The database's folder, made if it is missing.
        folder: PathBuf,
        /// The keys of the embedded database.
        keys: Origin,
    },
    /// A database that several controllers may share.
    Postgres {
        /// The address and the settings of the connection.
        options: Box<PostgresOptions>,
        /// The keys, equal at every controller.
        keys: Origin,
    },
}

impl Database {
    /// The embedded database, with its keys beside it.
    pub fn embedded(folder: PathBuf) -> Self {
        let keys = Origin::own(&folder);
        Self::Embedded { folder, keys }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("cluster", &self.shared.cluster).finish_non_exhaustive()
    }
}

/// A transaction, and what its statements need.
pub(crate) struct Db<'a> {
    sql: &'a dyn Sql,
    keys: &'a SealingKeys,
    /// The time of the transaction: one value for all of its statements.
    pub(crate) now: SystemTime,
}

/// The reason of a rollback: the store failed, or the rules refused.
#[derive(Debug)]
pub(crate) enum Abort {
    /// The store failed.
    Store(StoreError),
    /// The rules refused the change.
    Refused(Refusal),
}

impl From<SqlError> for Abort {
    fn from(error: SqlError) -> Self {
        Self::Store(error.into())
    }
}

impl From<StoreError> for Abort {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RuleViolation> for Abort {
    fn from(violation: RuleViolation) -> Self {
        Self::Refused(violation.into())
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
        match error.cause() {
            Cause::Text => {
                return Self::Invalid("Invalid input received: a text holds a NUL character".to_owned());
            }
            Cause::Away => {
                return Self::Unavailable(
                    "the controller's database cannot be reached: nothing was changed, try again".to_owned(),
                );
            }
            Cause::Unknown => {
                return Self::Unavailable(
                    "the connection to the controller's database broke while it kept this change: whether it was kept is \
                     not known; look, or ask again with the same id"
                        .to_owned(),
                );
            }
            Cause::Fenced => {
                return Self::Unavailable("another controller has taken over: ask again".to_owned());
            }
            Cause::Stuck => {
                return Self::Unavailable(
                    "the controller's store takes no changes now, and nothing was changed: its log says what to do".to_owned(),
                );
            }
            Cause::Fault => {}
        }
        // What the file is and where it lies concerns only the operator; the log says it.
        Self::Internal("the controller's store failed; its log says more. Try again".to_owned())
    }
}

impl Store {
    /// Opens the store, and brings it to this controller's schema. Blocks.
    pub(crate) fn open(
        database: Database,
        cluster: Option<ClusterId>,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let (engine, origin, shown) = match database {
            Database::Embedded { folder, keys } => {
                let sqlite = Sqlite::open(&folder)?;
                let shown = sqlite.path().display().to_string();
                (Engine::Sqlite(Arc::new(sqlite)), keys, shown)
            }
            Database::Postgres { options, keys } => {
                let postgres = Postgres::open(*options)?;
                let shown = postgres.shown().to_owned();
                (Engine::Postgres(postgres), keys, shown)
            }
        };
        let keys = engine.keys(&origin, &shown)?;
        let prepare = move |db: &Db<'_>| {
            let cluster = own_cluster(db, &shown, cluster)?;
            db.make_default_type().map_err(|source| StoreError::sql("make the default type", source))?;
            Ok(cluster)
        };
        let cluster = engine.prepare("prepare the store", &keys, clock.now(), prepare)?;
        // The keys of one cluster must never seal another cluster's database.
        engine.seal(&keys)?;
        let reads = Arc::new(Semaphore::new(READERS));
        Ok(Self { shared: Arc::new(Shared { engine, keys, cluster, clock, reads }) })
    }

    /// The dialer of a shared database; `None` if the database is this controller's alone.
    pub(crate) fn dialer(&self) -> Option<Arc<Dialer>> {
        match &self.shared.engine {
            Engine::Sqlite(_) => None,
            Engine::Postgres(postgres) => Some(postgres.dialer()),
        }
    }

    /// The cluster's id.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.shared.cluster
    }

    /// The number of transactions since the start that changed something; each is one sync. `None`
    /// with PostgreSQL: the server counts its own.
    pub(crate) fn commits(&self) -> Option<u64> {
        match &self.shared.engine {
            Engine::Sqlite(sqlite) => Some(sqlite.commits()),
            Engine::Postgres(_) => None,
        }
    }

    /// Runs one transaction. An error rolls it back. The transaction runs to its end even if its
    /// caller stops waiting. `work` may run more than once, and only the last run counts: it must
    /// do nothing but speak to its `Db`.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.write_fenced(op, None, work).await
    }

    /// As [`Store::write`], for work that relies on a lease. `None`: on none.
    async fn write_fenced<T: Send + 'static>(
        &self,
        op: &'static str,
        fence: Option<Fence>,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let answered = self.queue(fence, work);
        self.combine();
        self.answer_of(op, answered.await.map_err(|_| StoreError::Thread(op)))
    }

    /// Runs a transaction like [`Store::write`], but waits a moment for another change, to share
    /// its sync. For facts that a crash may lose without harm, because they are observed again.
    pub(crate) async fn write_soon<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.write_soon_fenced(op, None, work).await
    }

    /// As [`Store::write_soon`], for work that relies on a lease. `None`: on none.
    async fn write_soon_fenced<T: Send + 'static>(
        &self,
        op: &'static str,
        fence: Option<Fence>,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let mut answered = self.queue(fence, work);
        let ran = if let Ok(ran) = tokio::time::timeout(SHARE_WAIT, &mut answered).await {
            ran
        } else {
            self.combine();
            answered.await
        };
        self.answer_of(op, ran.map_err(|_| StoreError::Thread(op)))
    }

    fn queue<T: Send + 'static>(
        &self,
        fence: Option<Fence>,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, Abort>> {
        let (answer, answered) = oneshot::channel();
        let now = self.shared.clock.now();
        let keys = Arc::clone(&self.shared.keys);
        match &self.shared.engine {
            Engine::Sqlite(sqlite) => sqlite.queue(Box::new(Queued { work, keys, now, done: None, answer })),
            Engine::Postgres(postgres) => postgres.write(
                fence,
                move |sql| work(&Db { sql, keys: &keys, now }),
                move |done| drop(answer.send(done)),
            ),
        }
        answered
    }

    /// Sees to it that queued changes run. PostgreSQL begins them by itself.
    fn combine(&self) {
        if let Engine::Sqlite(sqlite) = &self.shared.engine
            && sqlite.must_combine()
        {
            let combiner = Combiner(Some(Arc::clone(sqlite)));
            tokio::task::spawn_blocking(move || combiner.run());
        }
    }

    /// Reads the last commit: one object with what belongs to it, by its id. The embedded database
    /// takes some tens of microseconds for this, from the page cache. A hop to another thread and
    /// back takes longer, so the read runs on the caller's thread.
    pub(crate) async fn read_one<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let now = self.shared.clock.now();
        match &self.shared.engine {
            Engine::Sqlite(sqlite) => {
                let keys = &self.shared.keys;
                self.answer_of(op, Ok(sqlite.read_one(|sql| work(&Db { sql, keys, now }))))
            }
            Engine::Postgres(_) => self.read(op, work).await,
        }
    }

    /// Reads the last commit.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = Arc::clone(&self.shared);
        let now = shared.clock.now();
        if let Engine::Postgres(postgres) = &self.shared.engine {
            let (answer, answered) = oneshot::channel();
            let keys = Arc::clone(&self.shared.keys);
            postgres
                .read(move |sql| work(&Db { sql, keys: &keys, now }), move |done| drop(answer.send(done)));
            return self.answer_of(op, answered.await.map_err(|_| StoreError::Thread(op)));
        }
        let place =
            Arc::clone(&self.shared.reads).acquire_owned().await.map_err(|_| StoreError::Thread(op))?;
        let run = tokio::task::spawn_blocking(move || {
            // The permit returns when the read ends, even if its caller no longer waits.
            let _place = place;
            match &shared.engine {
                Engine::Sqlite(sqlite) => sqlite.read(|sql| work(&Db { sql, keys: &shared.keys, now })),
                Engine::Postgres(_) => Err(StoreError::Thread(op).into()),
            }
        });
        self.answer_of(op, run.await.map_err(|_| StoreError::Thread(op)))
    }

    /// Reads like [`Store::read`], for tests without a runtime.
    #[cfg(test)]
    pub(crate) fn read_blocking<T>(
        &self,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort>,
    ) -> Result<T, Refusal> {
        let now = self.shared.clock.now();
        let done = match &self.shared.engine {
            Engine::Sqlite(sqlite) => sqlite.read(|sql| work(&Db { sql, keys: &self.shared.keys, now })),
            Engine::Postgres(_) => Err(StoreError::Thread("read").into()),
        };
        self.answer_of("read", Ok(done))
    }

    /// Writes like [`Store::write`], for the start. There may be no runtime yet, and the caller may
    /// be told the inside of a failure.
    pub(crate) fn prepare<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.shared.engine.prepare(op, &self.shared.keys, self.shared.clock.now(), work)
    }

    fn answer_of<T>(
        &self,
        op: &'static str,
        ran: Result<Result<T, Abort>, StoreError>,
    ) -> Result<T, Refusal> {
        match ran {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Abort::Refused(refusal))) => Err(refusal),
            Ok(Err(Abort::Store(error))) => Err(error.during(op, self.shared.engine.file()).into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A change of the embedded database, with its caller.
struct Queued<W, T> {
    work: W,
    keys: Arc<SealingKeys>,
    now: SystemTime,
    /// The result of the last run; `None` before the first.
    done: Option<Result<T, Abort>>,
    answer: oneshot::Sender<Result<T, Abort>>,
}

impl<W: Fn(&Db<'_>) -> Result<T, Abort> + Send, T: Send> Change for Queued<W, T> {
    fn run(&mut self, sql: &dyn Sql) -> bool {
        let done = (self.work)(&Db { sql, keys: &self.keys, now: self.now });
        self.done.insert(done).is_ok()
    }

    fn tell(self: Box<Self>, kept: Result<(), SqlError>) {
        let done = match (self.done, kept) {
            (Some(Err(abort)), _) => Err(abort),
            (_, Err(error)) => Err(error.into()),
            (Some(done), Ok(())) => done,
            (None, Ok(())) => return,
        };
        // The change is done even if its caller no longer waits.
        drop(self.answer.send(done));
    }
}

/// A task that will run the queued changes. If the runtime ends, it drops this before it begins.
/// Then nothing runs the queue, and the queue is dropped: it may hold this store, and with it the
/// lock on its file.
struct Combiner(Option<Arc<Sqlite>>);

impl Combiner {
    fn run(mut self) {
        if let Some(sqlite) = self.0.take() {
            sqlite.combine();
        }
    }
}

impl Drop for Combiner {
    fn drop(&mut self) {
        if let Some(sqlite) = self.0.take() {
            sqlite.abandon();
        }
    }
}

impl Engine {
    /// The path of the embedded database; `None` with PostgreSQL.
    fn file(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(sqlite) => Some(sqlite.path()),
            Self::Postgres(_) => None,
        }
    }

    fn prepare<T: Send + 'static>(
        &self,
        op: &'static str,
        keys: &Arc<SealingKeys>,
        now: SystemTime,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, StoreError> {
        let keys = Arc::clone(keys);
        self.change(move |sql| work(&Db { sql, keys: &keys, now })).map_err(|abort| self.during(op, abort))
    }

    /// The error of the store for a failure during the start.
    fn during(&self, op: &'static str, abort: Abort) -> StoreError {
        match abort {
            Abort::Store(error) => error.during(op, self.file()),
            Abort::Refused(refusal) => StoreError::Row(refusal.to_string()),
        }
    }

    /// Runs one change at once, for the start.
    fn change<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Sql) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Abort> {
        match self {
            Self::Sqlite(sqlite) => sqlite.write(work),
            Self::Postgres(postgres) => {
                let (answer, answered) = mpsc::channel();
                postgres.write(None, work, move |done| drop(answer.send(done)));
                answered.recv().map_err(|_| StoreError::Thread("prepare the store"))?
            }
        }
    }

    /// Reads the last commit once, for the start; in the embedded database on the connection that
    /// is already open.
    fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Abort> {
        match self {
            Self::Sqlite(sqlite) => sqlite.read_one(work),
            Self::Postgres(postgres) => {
                let (answer, answered) = mpsc::channel();
                postgres.read(work, move |done| drop(answer.send(done)));
                answered.recv().map_err(|_| StoreError::Thread("look at the store"))?
            }
        }
    }
}

impl Db<'_> {
    fn run(&self, sql: &str, values: &[Value]) -> Result<u64, SqlError> {
        self.sql.run(sql, values)
    }

    fn all<T>(
        &self,
        sql: &str,
        values: &[Value],
        map: impl Fn(&mut Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        let mut all = Vec::new();
        self.sql.each(sql, values, &mut |row| {
            all.push(map(row)?);
            Ok(())
        })?;
        Ok(all)
    }

    fn one<T>(
        &self,
        sql: &str,
        values: &[Value],
        map: impl Fn(&mut Row) -> Result<T, SqlError>,
    ) -> Result<Option<T>, SqlError> {
        let mut first = None;
        self.sql.each(sql, values, &mut |row| {
            if first.is_none() {
                first = Some(map(row)?);
            }
            Ok(())
        })?;
        Ok(first)
    }

    pub(crate) fn meta(&self, key: &str) -> Result<Option<String>, SqlError> {
        self.one("SELECT value FROM meta WHERE key = ?1", &values![key], |row| row.get(0))
    }

    pub(crate) fn set_meta(&self, key: &str, value: &str) -> Result<(), SqlError> {
        let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        self.run(sql, &values![key, value]).map(drop)
    }

    pub(crate) fn drop_meta(&self, key: &str) -> Result<bool, SqlError> {
        Ok(self.run("DELETE FROM meta WHERE key = ?1", &values![key])? == 1)
    }

    /// Counts what keeps this database from being rebuilt: volumes, specs, records of detaches,
    /// receipts, and the types other than the one that is made with the database.
    pub(crate) fn holds(&self) -> Result<u64, SqlError> {
        let sql = "SELECT (SELECT COUNT(*) FROM volumes) + (SELECT COUNT(*) FROM specs) + \
                   (SELECT COUNT(*) FROM detached) + (SELECT COUNT(*) FROM receipts) + \
                   (SELECT COUNT(*) FROM volume_types WHERE name <> ?1)";
        Ok(self.one(sql, &values![DEFAULT_TYPE], |row| row.get(0))?.unwrap_or(0))
    }

    /// The epoch. Every restore raises it.
    pub(crate) fn epoch(&self) -> Result<u64, SqlError> {
        Ok(self.meta("epoch")?.and_then(|text| text.parse().ok()).unwrap_or(1))
    }

    /// Raises the epoch to at least this value.
    pub(crate) fn raise_epoch(&self, at_least: u64) -> Result<u64, SqlError> {
        self.raise_above(self.epoch()?.max(at_least.saturating_sub(1)))
    }

    /// Raises the epoch above `other` and above its own value.
    pub(crate) fn raise_above(&self, other: u64) -> Result<u64, SqlError> {
        let epoch = self.epoch()?.max(other).checked_add(1);
        // A column of the database holds no larger number.
        let epoch = epoch.filter(|epoch| i64::try_from(*epoch).is_ok()).ok_or(SqlError::TooLarge)?;
        self.set_meta("epoch", &epoch.to_string())?;
        Ok(epoch)
    }
}

/// The id of the cluster that this database belongs to, made with the database.
fn own_cluster(db: &Db<'_>, store: &str, asked: Option<ClusterId>) -> Result<ClusterId, StoreError> {
    let kept = db.meta("cluster_id").map_err(|source| StoreError::sql("read the cluster's id", source))?;
    if let Some(kept) = kept {
        let cluster: ClusterId = kept.parse().map_err(|_| StoreError::Row("the cluster's id".to_owned()))?;
        return match asked {
            Some(asked) if asked != cluster => {
                Err(StoreError::Cluster { store: store.to_owned(), kept, asked: asked.to_string() })
            }
            Some(_) | None => Ok(cluster),
        };
    }
    let cluster = asked.unwrap_or_else(ClusterId::random);
    db.set_meta("cluster_id", &cluster.to_string())
        .map_err(|source| StoreError::sql("give the cluster an id", source))?;
    Ok(cluster)
}

/// Microseconds since 1970. A time before 1970 counts as 1970.
pub(crate) fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

pub(crate) fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
