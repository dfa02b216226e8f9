//! PostgreSQL: several controllers on one database, with every change in a serialisable
//! transaction.
//!
//! Two small sets of threads run changes and reads. Each thread has its own connection with
//! prepared statements. If the server could not order a change with others, the change runs again;
//! a second try waits for the other second tries of this process. If a connection breaks before the
//! commit, nothing was changed, and the change runs again on the next connection. If it breaks at
//! the commit, the outcome is open, and the server is asked for it: every change leaves a mark
//! (`marks`).
//!
//! What must never happen here: an unknown outcome reported as none; a change that ran in part; a
//! statement that failed and a commit after it; a write by the holder of an expired lease.

mod connect;
mod marks;
mod schema;
mod values;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, Statement};

use super::Abort;
use super::error::StoreError;
use super::leases::Fence;
use super::sql::{EachRow, Row, Sql, SqlError, Value};
pub(crate) use connect::Dialer;
pub use connect::PostgresOptions;
use marks::{Outcome, Slot, Ticket};

/// The number of connections for changes.
const WRITERS: usize = 6;
const READERS: usize = 4;

/// The number of statements that stay prepared on one connection.
const STATEMENTS_CACHED: usize = 256;

/// The most retries of a change that the server could not order with others.
const CONFLICTS_MAX: u32 = 64;
const CONFLICTS_LIMIT: Duration = Duration::from_secs(30);

/// The most retries of a change that found a key taken: the loser of a race sees that first.
const DUPLICATES_MAX: u32 = 2;

/// The longest time for which a change waits for a server that went away.
const AWAY_LIMIT: Duration = Duration::from_secs(8);

/// The longest time for which the server is asked about the outcome of a transaction.
const RESOLVE_LIMIT: Duration = Duration::from_secs(15);

const AWAY_PAUSE: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Task = Box<dyn FnOnce(&mut Session) + Send>;

/// The database.
pub(super) struct Postgres {
    dialer: Arc<Dialer>,
    writers: Pool,
    readers: Pool,
    /// A lock that second tries hold.
    lane: Arc<Mutex<()>>,
}

impl Postgres {
    /// Brings the database to this controller's schema. Blocks.
    pub(super) fn open(options: PostgresOptions) -> Result<Self, StoreError> {
        let shown = options.shown().to_owned();
        let dialer =
            Arc::new(Dialer::new(options).map_err(|source| StoreError::sql("reach the database", source))?);
        let pool = |writer, most| Pool::new(Arc::clone(&dialer), writer, most);
        let (writers, readers) = (pool(true, WRITERS), pool(false, READERS));
        let (answer, answered) = mpsc::channel();
        writers.submit(Box::new(move |session| {
            let done = match session.connected() {
                Ok(open) => schema::migrate(&mut open.client, &shown).and_then(|()| {
                    marks::tidy(&mut open.client)
                        .map_err(|source| StoreError::sql("tidy the store", SqlError::from(source)))
                }),
                Err(source) => Err(StoreError::Reach { store: shown, source }),
            };
            // The caller of `open` waits for this.
            drop(answer.send(done));
        }));
        answered.recv().map_err(|_| StoreError::Thread("open the database"))??;
        Ok(Self { dialer, writers, readers, lane: Arc::default() })
    }

    /// Refuses a database with another schema than this controller's. Changes nothing. Blocks.
    pub(super) fn is_current(options: &PostgresOptions) -> Result<(), StoreError> {
        let store = options.shown().to_owned();
        let reach = |source| StoreError::Reach { store: store.clone(), source };
        let mut client =
            Dialer::new(options.clone()).and_then(|dialer| dialer.connect(false)).map_err(reach)?;
        schema::is_current(&mut client, &store)
    }

    pub(super) fn dialer(&self) -> Arc<Dialer> {
        Arc::clone(&self.dialer)
    }

    pub(super) fn shown(&self) -> &str {
        self.dialer.options().shown()
    }

    /// Runs a change, and returns its outcome.
    pub(super) fn write<T: Send + 'static>(
        &self,
        fence: Option<Fence>,
        work: impl Fn(&dyn Sql) -> Result<T, Abort> + Send + 'static,
        tell: impl FnOnce(Result<T, Abort>) + Send + 'static,
    ) {
        let lane = Arc::clone(&self.lane);
        self.writers.submit(Box::new(move |session| tell(session.write(&lane, fence.as_ref(), &work))));
    }

    /// Reads the last commit, one snapshot for all of `work`.
    pub(super) fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Sql) -> Result<T, Abort> + Send + 'static,
        tell: impl FnOnce(Result<T, Abort>) + Send + 'static,
    ) {
        self.readers.submit(Box::new(move |session| tell(session.read(work))));
    }
}

/// Threads with one connection each, started when they are needed.
struct Pool(Arc<Shared>);

struct Shared {
    dialer: Arc<Dialer>,
    writer: bool,
    most: usize,
    queue: Mutex<Queue>,
    news: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    fn new(dialer: Arc<Dialer>, writer: bool, most: usize) -> Self {
        Self(Arc::new(Shared { dialer, writer, most, queue: Mutex::default(), news: Condvar::new() }))
    }

    fn submit(&self, task: Task) {
        let mut queue = lock(&self.0.queue);
        queue.tasks.push_back(task);
        if queue.idle >= queue.tasks.len() || queue.threads >= self.0.most {
            drop(queue);
            self.0.news.notify_one();
            return;
        }
        let shared = Arc::clone(&self.0);
        let name = if shared.writer { "pg-write" } else { "pg-read" };
        match std::thread::Builder::new().name(name.to_owned()).spawn(move || serve(&shared)) {
            Ok(_) => queue.threads += 1,
            // A dropped task tells its caller so.
            Err(error) if queue.threads == 0 => {
                tracing::error!(%error, "cannot start a thread for the database");
                queue.tasks.clear();
            }
            Err(_) => {}
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Queued tasks still run. Their threads end afterwards, and close their connections.
        lock(&self.0.queue).closed = true;
        self.0.news.notify_all();
    }
}

fn serve(shared: &Shared) {
    let mut session =
        Session { dialer: Arc::clone(&shared.dialer), writer: shared.writer, slot: Slot::new(), open: None };
    loop {
        let mut queue = lock(&shared.queue);
        let task = loop {
            if let Some(task) = queue.tasks.pop_front() {
                break task;
            }
            if queue.closed {
                return;
            }
            queue.idle += 1;
            queue = shared.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        };
        drop(queue);
        task(&mut session);
    }
}

/// An open connection.
struct Connected {
    client: Client,
    statements: HashMap<String, Statement>,
    /// The server's timeline: another one after a standby was promoted.
    timeline: String,
}

impl Connected {
    fn statement(&mut self, sql: &str) -> Result<Statement, postgres::Error> {
        if let Some(kept) = self.statements.get(sql) {
            return Ok(kept.clone());
        }
        let made = self.client.prepare(&values::placeholders(sql))?;
        if self.statements.len() >= STATEMENTS_CACHED {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), made.clone());
        Ok(made)
    }
}

/// The meaning of a failed statement for its transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    /// The server could not order the transaction with others.
    Conflict,
    /// A key is taken.
    Duplicate,
    /// The connection is gone, or does not fit the schema any more.
    Away,
    /// A retry would fail again.
    Fault,
}

fn meaning(error: &postgres::Error) -> Failed {
    if error.is_closed() {
        return Failed::Away;
    }
    match error.code() {
        // No error of the server: the connection broke, or a value did not fit.
        None if error.as_db_error().is_none() && is_io(error) => Failed::Away,
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::LOCK_NOT_AVAILABLE) => {
            Failed::Conflict
        }
        Some(&SqlState::UNIQUE_VIOLATION) => Failed::Duplicate,
        Some(
            &SqlState::ADMIN_SHUTDOWN
            | &SqlState::CRASH_SHUTDOWN
            | &SqlState::CANNOT_CONNECT_NOW
            | &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
            | &SqlState::TOO_MANY_CONNECTIONS
            // A statement prepared before a change of the schema.
            | &SqlState::FEATURE_NOT_SUPPORTED
            // A standby: the other host of the address leads now.
            | &SqlState::READ_ONLY_SQL_TRANSACTION,
        ) => Failed::Away,
        _ => Failed::Fault,
    }
}

fn is_io(error: &postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
}

/// A thread with its connection, if there is one.
struct Session {
    dialer: Arc<Dialer>,
    writer: bool,
    slot: Slot,
    open: Option<Connected>,
}

/// The result of one try of a change.
enum Tried<T> {
    Done(Result<T, Abort>),
    /// The change did not happen, for this reason.
    Again(Failed, Abort),
}

impl Session {
    fn connected(&mut self) -> Result<&mut Connected, SqlError> {
        if self.open.as_ref().is_some_and(|open| open.client.is_closed()) {
            self.open = None;
        }
        if self.open.is_none() {
            let mut client = self.dialer.connect(self.writer)?;
            let timeline = marks::timeline(&mut client)?;
            self.open = Some(Connected { client, statements: HashMap::new(), timeline });
        }
        self.open.as_mut().ok_or_else(|| SqlError::Unreachable("there is no connection".to_owned()))
    }

    fn read<T>(&mut self, work: impl FnOnce(&dyn Sql) -> Result<T, Abort>) -> Result<T, Abort> {
        let began = Instant::now();
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        loop {
            // An idle connection may be gone, and nothing has run yet.
            let begun = self.connected().and_then(|open| Ok(open.client.batch_execute(begin)?));
            match begun {
                Ok(()) => break,
                Err(error) if began.elapsed() >= AWAY_LIMIT => return Err(error.into()),
                Err(_) => {
                    self.open = None;
                    std::thread::sleep(AWAY_PAUSE);
                }
            }
        }
        let open = self.connected()?;
        let look = Open { conn: RefCell::new(open), failed: Cell::new(None) };
        let done = work(&look);
        if self.connected().and_then(|open| Ok(open.client.batch_execute("COMMIT")?)).is_err() {
            self.open = None;
        }
        done
    }

    fn write<T>(
        &mut self,
        lane: &Mutex<()>,
        fence: Option<&Fence>,
        work: &dyn Fn(&dyn Sql) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let began = Instant::now();
        let (mut conflicts, mut duplicates) = (0, 0);
        let mut alone = None;
        loop {
            let (why, error) = match self.attempt(fence, work) {
                Tried::Done(done) => return done,
                Tried::Again(why, error) => (why, error),
            };
            match why {
                Failed::Conflict if conflicts < CONFLICTS_MAX && began.elapsed() < CONFLICTS_LIMIT => {
                    conflicts += 1;
                    if alone.is_none() {
                        alone = Some(lock(lane));
                    }
                    // Gives way to the transactions of other processes.
                    std::thread::sleep(jitter(conflicts));
                }
                Failed::Duplicate if duplicates < DUPLICATES_MAX => duplicates += 1,
                Failed::Away if began.elapsed() < AWAY_LIMIT => {
                    self.open = None;
                    std::thread::sleep(AWAY_PAUSE);
                }
                _ => return Err(error),
            }
        }
    }

    fn attempt<T>(&mut self, fence: Option<&Fence>, work: &dyn Fn(&dyn Sql) -> Result<T, Abort>) -> Tried<T> {
        let away = |error: SqlError| Tried::Again(Failed::Away, error.into());
        let slot = self.slot;
        let open = match self.connected() {
            Ok(open) => open,
            Err(error) => return away(error),
        };
        let ticket = match slot.begin(&mut open.client, &open.timeline) {
            Ok(ticket) => ticket,
            Err(error) => return away(error),
        };
        let change = Open { conn: RefCell::new(open), failed: Cell::new(None) };
        let done = fence.map_or(Ok(()), |fence| fence.check(&change).map_err(Abort::from));
        let done = done.and_then(|()| work(&change));
        let failed = change.failed.get();
        let done = match (done, failed) {
            (Ok(value), None) => match open.client.batch_execute("COMMIT") {
                Ok(()) => return Tried::Done(Ok(value)),
                Err(error) if meaning(&error) == Failed::Away => {
                    return self.resolve(&ticket, value, error.into());
                }
                Err(error) => return Tried::Again(meaning(&error), SqlError::from(error).into()),
            },
            // The work ignored a failed statement: the server would answer the commit with a
            // rollback.
            (Ok(_), Some(_)) => Err(SqlError::Group {
                code: None,
                text: "a statement of the change failed, and it went on".to_owned(),
            }
            .into()),
            (Err(error), _) => Err(error),
        };
        if open.client.batch_execute("ROLLBACK").is_err() {
            self.open = None;
        }
        match (done, failed) {
            (Err(error), Some(failed)) => Tried::Again(failed, error),
            (done, _) => Tried::Done(done),
        }
    }

    /// Asks the server for the outcome of a commit during which the connection broke.
    fn resolve<T>(&mut self, ticket: &Ticket, value: T, error: SqlError) -> Tried<T> {
        let began = Instant::now();
        self.open = None;
        let unknown = |error| Tried::Done(Err(StoreError::Unknown { source: error }.into()));
        while began.elapsed() < RESOLVE_LIMIT {
            std::thread::sleep(AWAY_PAUSE);
            let Ok(open) = self.connected() else { continue };
            match ticket.outcome(&mut open.client, &open.timeline) {
                Ok(Outcome::Committed) => return Tried::Done(Ok(value)),
                Ok(Outcome::Nothing) => return Tried::Again(Failed::Away, error.into()),
                Ok(Outcome::Unknown) => return unknown(error),
                // The server is still busy with it, or went away again.
                Ok(Outcome::Busy) | Err(_) => {}
            }
        }
        unknown(error)
    }
}

/// A random pause: up to 1 ms at first, up to 32 ms in the end.
fn jitter(tries: u32) -> Duration {
    let mut byte = [0_u8; 1];
    // Without random numbers every pause has equal length.
    let _ = getrandom::fill(&mut byte);
    Duration::from_micros(u64::from(byte[0]) * 4) * 2_u32.pow(tries.min(5))
}

/// A connection in a transaction.
struct Open<'a> {
    conn: RefCell<&'a mut Connected>,
    failed: Cell<Option<Failed>>,
}

impl Open<'_> {
    fn run_on<T>(
        &self,
        sql: &str,
        values: &[Value],
        run: impl Fn(&mut Client, &Statement, &[&(dyn ToSql + Sync)]) -> Result<T, postgres::Error>,
    ) -> Result<T, SqlError> {
        if values.iter().any(|value| matches!(value, Value::Text(text) if text.contains('\0'))) {
            return Err(SqlError::Nul);
        }
        let params: Vec<&(dyn ToSql + Sync)> =
            values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        let mut conn = self.conn.borrow_mut();
        let done = conn.statement(sql).and_then(|statement| run(&mut conn.client, &statement, &params));
        done.map_err(|error| {
            // The first failure is the cause of all others.
            self.failed.set(self.failed.get().or(Some(meaning(&error))));
            error.into()
        })
    }
}

impl Sql for Open<'_> {
    fn each(&self, sql: &str, values: &[Value], work: EachRow<'_>) -> Result<(), SqlError> {
        let found = self.run_on(sql, values, |client, statement, params| client.query(statement, params))?;
        let mut row = Row::default();
        for next in &found {
            row.refill((0..next.len()).map(|index| next.try_get(index)))?;
            work(&mut row)?;
        }
        Ok(())
    }

    fn run(&self, sql: &str, values: &[Value]) -> Result<u64, SqlError> {
        self.run_on(sql, values, |client, statement, params| client.execute(statement, params))
    }
}
