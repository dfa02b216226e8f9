//! The controller's database. Every wish is here before it is acknowledged, and everything that an agent is told can be
//! made again from here.
//!
//! [`sql`] is what both databases agree on, `sqlite` is the embedded one, `postgres` the one that several controllers share
//! (with [`leases`] among them). The other modules are the statements, one module
//! for each kind of object, all of them methods of [`Db`]: what a transaction works on. All calls of [`Db`] run on
//! threads that may block; [`Store`] brings them there.
//!
//! What must never happen here: an answer before the sync; a generation that goes back; a status that was not derived in
//! the transaction that changed its cause; a secret in a `Debug`, an error, or a file that others can read.

mod agents;
mod attachments;
mod audit;
pub mod backup;
pub(crate) mod beside;
#[cfg(test)]
mod contract;
mod copies;
mod counts;
mod cuts;
mod enrolments;
mod error;
#[cfg(test)]
mod faults;
mod fences;
mod fibre_channel;
mod forgotten;
mod growths;
mod identities;
pub(crate) mod leases;
mod lists;
mod messages;
pub(crate) mod numbers;
mod places;
mod postgres;
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
use crate::agents::lease;
use crate::clock::Clock;
use crate::error::Refusal;
use sql::{Row, Sql, Value, values};
use sqlite::{READERS, Sqlite, Told};

pub(crate) use self::postgres::Dialer;
pub use self::postgres::PostgresOptions;
pub(crate) use agents::{AgentRow, Heard, Said};
pub(crate) use attachments::{Asked, AttachmentRow, DetachedFilter, Nexus};
pub(crate) use audit::PRUNE_ROWS_MAX;
use error::Cause;
pub use error::StoreError;
pub(crate) use fences::FenceRow;
pub(crate) use forgotten::ForgottenRow;
pub(crate) use identities::{id_is_taken, naa_of};
pub(crate) use messages::Event;
pub(crate) use places::Place;
pub(crate) use reverts::KeptRevert;
pub(crate) use reviews::ReviewKind;
pub(crate) use rotations::{Rotation, Stage};
pub(crate) use specs::{Kind, SpecRow, Wish, Wished};
pub use sql::SqlError;
pub(crate) use takings::{Taker, Taking};
pub(crate) use types::DEFAULT_TYPE;
pub(crate) use uploads::KeptUpload;
pub(crate) use volumes::{Tried, VolumeRow};

/// How long a change that may wait does wait for another one.
const SHARE_WAIT: Duration = Duration::from_millis(25);

/// The database, for asynchronous callers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    keys: Arc<SealingKeys>,
    cluster: ClusterId,
    clock: Clock,
    /// Places for reads of the embedded database: they are waited for here and not on threads.
    reads: Arc<Semaphore>,
}

enum Engine {
    Sqlite(Arc<Sqlite>),
    Postgres(Postgres),
}

/// Which database, and where the keys are that seal its secrets.
#[derive(Debug, Clone)]
pub enum Database {
    /// The embedded one.
    Embedded {
        /// Its folder, which is made when it is not there.
        folder: PathBuf,
        /// Its keys.
        keys: Origin,
    },
    /// One that several controllers may share.
    Postgres {
        /// How it is reached.
        options: Box<PostgresOptions>,
        /// Its keys, the same at every controller.
        keys: Origin,
    },
}

impl Database {
    /// The embedded one, with its keys beside it.
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

/// What a transaction works on.
pub(crate) struct Db<'a> {
    sql: &'a dyn Sql,
    keys: &'a SealingKeys,
    /// One time for all of a transaction.
    pub(crate) now: SystemTime,
}

/// Why a transaction was rolled back: the store failed, or the rules say no.
#[derive(Debug)]
pub(crate) enum Abort {
    /// The store failed.
    Store(StoreError),
    /// The rules say no.
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
        // What the file is and where it lies is the operator's business, and stands in the log.
        Self::Internal("the controller's store failed; its log says more. Try again".to_owned())
    }
}

impl Store {
    /// Opens the store; brings it to this controller's schema. Blocks.
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
        // Another cluster's database is not sealed by keys of ours.
        engine.seal(&keys)?;
        let reads = Arc::new(Semaphore::new(READERS));
        Ok(Self { shared: Arc::new(Shared { engine, keys, cluster, clock, reads }) })
    }

    /// How a shared database is reached; `None`: it is ours alone.
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

    /// How many transactions have changed something since the start: each is one sync. `None`: the database server counts
    /// its own.
    pub(crate) fn commits(&self) -> Option<u64> {
        match &self.shared.engine {
            Engine::Sqlite(sqlite) => Some(sqlite.commits()),
            Engine::Postgres(_) => None,
        }
    }

    /// Runs one transaction. An error rolls it back. It runs to its end even when nobody waits for it any more. The work
    /// may run more than once, and only its last run counts: it must do nothing but speak to its `Db`.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let answered = self.queue(work);
        self.combine();
        self.answer_of(op, answered.await.map_err(|_| StoreError::Thread(op)))
    }

    /// As [`Store::write`], for what a crash may lose without harm because it is seen again: it waits a moment for
    /// another change, to share its sync.
    pub(crate) async fn write_soon<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        let mut answered = self.queue(work);
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
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, Abort>> {
        let (answer, answered) = oneshot::channel();
        let now = self.shared.clock.now();
        let keys = Arc::clone(&self.shared.keys);
        match &self.shared.engine {
            Engine::Sqlite(sqlite) => sqlite.queue(Box::new(move |sql| {
                let done = work(&Db { sql, keys: &keys, now });
                let keep = done.is_ok();
                let told: Told = Box::new(move |kept| {
                    // Nobody waits any more: it is done all the same.
                    drop(answer.send(match (done, kept) {
                        (Ok(_), Err(error)) => Err(error.into()),
                        (done, _) => done,
                    }));
                });
                (keep, told)
            })),
            Engine::Postgres(postgres) => postgres.write(
                lease::fence(),
                move |sql| work(&Db { sql, keys: &keys, now }),
                move |done| drop(answer.send(done)),
            ),
        }
        answered
    }

    /// Sees that what is queued is done. PostgreSQL begins by itself.
    fn combine(&self) {
        if let Engine::Sqlite(sqlite) = &self.shared.engine
            && sqlite.must_combine()
        {
            let combiner = Combiner(Some(Arc::clone(sqlite)));
            tokio::task::spawn_blocking(move || combiner.run());
        }
    }

    /// Reads the last commit: one object with what belongs to it, by its id. Of the embedded database that is some tens of
    /// microseconds of the page cache, less than it takes to hand it to another thread and back: it runs where it is asked
    /// for.
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
            // It is given back when the read has ended, whether or not somebody still waits for it.
            let _place = place;
            match &shared.engine {
                Engine::Sqlite(sqlite) => sqlite.read(|sql| work(&Db { sql, keys: &shared.keys, now })),
                Engine::Postgres(_) => Err(StoreError::Thread(op).into()),
            }
        });
        self.answer_of(op, run.await.map_err(|_| StoreError::Thread(op)))
    }

    /// As [`Store::read`], for tests without a runtime.
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

    /// As [`Store::write`], for the start, where there may be no runtime yet, and where who is told of a failure may know its
    /// inside.
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

/// Who runs what is queued. A runtime that ends drops it before it has begun: then nobody does, and what is queued, which may
/// hold this store and with it the lock on its file, goes with it.
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
    /// The embedded database's.
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

    /// What a failure of the start means.
    fn during(&self, op: &'static str, abort: Abort) -> StoreError {
        match abort {
            Abort::Store(error) => error.during(op, self.file()),
            Abort::Refused(refusal) => StoreError::Row(refusal.to_string()),
        }
    }

    /// One change at once, for the start.
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

    /// One look at the last commit, for the start: of the embedded database on the connection that is open already.
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
        self.sql.rows(sql, values)?.first_mut().map(map).transpose()
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

    /// What keeps this database from being rebuilt: how many volumes, attachments, wishes, receipts, and types beside the
    /// one that is made with it.
    pub(crate) fn holds(&self) -> Result<u64, SqlError> {
        let sql = "SELECT (SELECT COUNT(*) FROM volumes) + (SELECT COUNT(*) FROM specs) + \
                   (SELECT COUNT(*) FROM detached) + (SELECT COUNT(*) FROM receipts) + \
                   (SELECT COUNT(*) FROM volume_types WHERE name <> ?1)";
        Ok(self.one(sql, &values![DEFAULT_TYPE], |row| row.get(0))?.unwrap_or(0))
    }

    /// Raised by every restore.
    pub(crate) fn epoch(&self) -> Result<u64, SqlError> {
        Ok(self.meta("epoch")?.and_then(|text| text.parse().ok()).unwrap_or(1))
    }

    /// Raises the epoch, to at least this.
    pub(crate) fn raise_epoch(&self, at_least: u64) -> Result<u64, SqlError> {
        self.raise_above(self.epoch()?.max(at_least.saturating_sub(1)))
    }

    /// Raises the epoch above this one, and above its own.
    pub(crate) fn raise_above(&self, other: u64) -> Result<u64, SqlError> {
        let epoch = self.epoch()?.max(other).checked_add(1);
        // What a column of the database holds.
        let epoch = epoch.filter(|epoch| i64::try_from(*epoch).is_ok()).ok_or(SqlError::TooLarge)?;
        self.set_meta("epoch", &epoch.to_string())?;
        Ok(epoch)
    }
}

/// The cluster whose database this is; made with it.
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

/// Microseconds since 1970; a clock before that counts as 1970.
pub(crate) fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

pub(crate) fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
