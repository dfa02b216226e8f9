//! Group commit: changes that arrive at the same time share one transaction, and so one sync.
//! Whoever gets the connection first does the work of everybody who waits for it; the others find
//! theirs done.
//!
//! What must never happen here: a change reported done before the sync that it shares; a failed
//! change that makes another one fail; two changes that are not executed one after the other.

use std::sync::{Arc, Mutex, PoisonError};

use mooring_model::Chain;
use rusqlite::Connection;

/// A change that waits for its turn.
pub(super) trait Change: Send + Sync {
    /// Executes the change in somebody's transaction. Called again in another one, if the first
    /// came to nothing.
    fn make(&self, conn: &Connection) -> rusqlite::Result<()>;
    /// Stores the error of a change that failed while its transaction goes on.
    fn fail(&self, error: rusqlite::Error);
    /// Returns `true` if the change has been made or has failed, for good.
    fn is_over(&self) -> bool;
    /// Ends the change: its outcome is final.
    fn end(&self);
}

struct Task<T, F> {
    work: F,
    /// Outcome so far, and `true` once it is final.
    outcome: Mutex<(Option<rusqlite::Result<T>>, bool)>,
}

impl<T: Send, F: Fn(&Connection) -> rusqlite::Result<T> + Send + Sync> Change for Task<T, F> {
    fn make(&self, conn: &Connection) -> rusqlite::Result<()> {
        let made = (self.work)(conn)?;
        lock(&self.outcome).0 = Some(Ok(made));
        Ok(())
    }

    fn fail(&self, error: rusqlite::Error) {
        lock(&self.outcome).0 = Some(Err(error));
    }

    fn is_over(&self) -> bool {
        lock(&self.outcome).1
    }

    fn end(&self) {
        lock(&self.outcome).1 = true;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // The guarded data is consistent after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes that wait.
#[derive(Default)]
pub(super) struct Queue(Mutex<Vec<Arc<dyn Change>>>);

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Queue").field(&lock(&self.0).len()).finish()
    }
}

impl Queue {
    /// Adds a change that nobody waits for. The next change that somebody waits for takes it along.
    pub(super) fn add(&self, change: Arc<dyn Change>) {
        lock(&self.0).push(change);
    }

    /// Makes one change durable, and with it those that wait meanwhile. Returns its outcome, and
    /// the number of transactions that this call committed.
    ///
    /// `work` may run more than once, and has no effect outside of its transaction.
    pub(super) fn write<T: Send + 'static>(
        &self,
        main: &Mutex<Connection>,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + Sync + 'static,
    ) -> (rusqlite::Result<T>, u64) {
        let task = Arc::new(Task { work, outcome: Mutex::new((None, false)) });
        let own: Arc<dyn Change> = task.clone();
        lock(&self.0).push(Arc::clone(&own));
        // A transaction that a panic interrupted was rolled back when it was dropped.
        let conn = lock(main);
        let mut commits = 0;
        if !own.is_over() {
            let mut batch = std::mem::take(&mut *lock(&self.0));
            // The own change is missing if somebody's panic has interrupted the batch that it was
            // in.
            if !batch.iter().any(|change| Arc::ptr_eq(change, &own)) {
                batch.push(own);
            }
            commits = make_all(&conn, &batch);
        }
        drop(conn);
        let outcome = lock(&task.outcome).0.take();
        (outcome.unwrap_or(Err(rusqlite::Error::InvalidQuery)), commits)
    }
}

/// Makes all changes in one transaction; if that fails, each in its own. Returns the number of
/// commits.
fn make_all(conn: &Connection, batch: &[Arc<dyn Change>]) -> u64 {
    let mut commits = 0;
    if batch.len() > 1 && make_together(conn, batch).is_ok() {
        commits = 1;
    } else {
        for change in batch {
            match make_alone(conn, change.as_ref()) {
                Ok(()) => commits += 1,
                Err(error) => change.fail(error),
            }
        }
    }
    for change in batch {
        change.end();
    }
    commits
}

/// A transaction by prepared statements: parsing `BEGIN` and `COMMIT` each time costs as much as a
/// small change. Rolled back if it is not committed.
struct Transaction<'a>(&'a Connection);

impl<'a> Transaction<'a> {
    /// Begins an immediate transaction: it takes the lock before the first read, so that no read is
    /// stale when the write comes.
    fn begin(conn: &'a Connection) -> rusqlite::Result<Self> {
        run(conn, "BEGIN IMMEDIATE")?;
        Ok(Self(conn))
    }

    fn commit(self) -> rusqlite::Result<()> {
        run(self.0, "COMMIT")
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // The transaction was committed, or SQLite itself has rolled it back.
        if self.0.is_autocommit() {
            return;
        }
        if let Err(error) = run(self.0, "ROLLBACK") {
            tracing::error!(error = %Chain(&error), "a change that came to nothing cannot be rolled back");
        }
    }
}

fn run(conn: &Connection, statement: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(statement)?.execute([]).map(drop)
}

fn make_alone(conn: &Connection, change: &dyn Change) -> rusqlite::Result<()> {
    let transaction = Transaction::begin(conn)?;
    change.make(conn)?;
    transaction.commit()
}

/// Makes the changes in one transaction. An error of one change rolls back that change only.
fn make_together(conn: &Connection, batch: &[Arc<dyn Change>]) -> rusqlite::Result<()> {
    let transaction = Transaction::begin(conn)?;
    for change in batch {
        run(conn, "SAVEPOINT change")?;
        match change.make(conn) {
            Ok(()) => run(conn, "RELEASE change")?,
            // SQLite has rolled back everything, for example because the disk is full.
            Err(error) if conn.is_autocommit() => return Err(error),
            Err(error) => {
                run(conn, "ROLLBACK TO change")?;
                run(conn, "RELEASE change")?;
                change.fail(error);
            }
        }
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn database() -> Arc<Mutex<Connection>> {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE t (x INTEGER PRIMARY KEY, body BLOB) STRICT").unwrap();
        Arc::new(Mutex::new(conn))
    }

    fn insert(x: i64, bytes: i64) -> impl Fn(&Connection) -> rusqlite::Result<i64> {
        move |conn| {
            conn.execute("INSERT INTO t (x, body) VALUES (?1, zeroblob(?2))", (x, bytes))?;
            Ok(x)
        }
    }

    fn rows(main: &Mutex<Connection>) -> Vec<i64> {
        let conn = lock(main);
        let mut statement = conn.prepare("SELECT x FROM t ORDER BY x").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    /// Makes changes that all arrive while another one is being made. Returns the outcome of each,
    /// and the number of commits.
    fn at_once(main: &Arc<Mutex<Connection>>, changes: &[(i64, i64)]) -> (Vec<bool>, u64) {
        let queue = Arc::new(Queue::default());
        let busy = lock(main);
        let threads: Vec<_> = changes
            .iter()
            .map(|(x, bytes)| {
                let (queue, main, work) = (Arc::clone(&queue), Arc::clone(main), insert(*x, *bytes));
                thread::spawn(move || queue.write(&main, work))
            })
            .collect();
        while lock(&queue.0).len() < changes.len() {
            thread::yield_now();
        }
        drop(busy);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(lock(&queue.0).is_empty());
        (ended.iter().map(|(made, _)| made.is_ok()).collect(), ended.iter().map(|(_, commits)| commits).sum())
    }

    #[test]
    fn changes_that_come_at_once_share_a_commit() {
        let main = database();
        let changes: Vec<_> = (0..16).map(|x| (x, 1)).collect();
        assert_eq!(at_once(&main, &changes), (vec![true; 16], 1));
        assert_eq!(rows(&main), (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn a_change_that_fails_takes_no_other_with_it() {
        let main = database();
        assert!(Queue::default().write(&main, insert(2, 1)).0.is_ok());
        // The key is taken.
        assert_eq!(at_once(&main, &[(1, 1), (2, 1), (3, 1)]), (vec![true, false, true], 1));
        assert_eq!(rows(&main), [1, 2, 3]);
    }

    #[test]
    fn a_full_disk_fails_those_that_have_no_room() {
        let main = database();
        lock(&main).pragma_update_and_check(None, "max_page_count", 20, |_| Ok(())).unwrap();
        let (made, commits) = at_once(&main, &[(1, 1), (2, 1 << 20), (3, 1)]);
        assert_eq!((made, commits > 0), (vec![true, false, true], true));
        assert_eq!(rows(&main), [1, 3]);
        assert!(Queue::default().write(&main, insert(4, 1)).0.is_ok(), "no transaction was left open");
    }

    struct Rider(i64, Mutex<Vec<&'static str>>);

    impl Change for Rider {
        fn make(&self, conn: &Connection) -> rusqlite::Result<()> {
            lock(&self.1).push("made");
            insert(self.0, 1)(conn).map(drop)
        }

        fn fail(&self, _: rusqlite::Error) {
            lock(&self.1).push("failed");
        }

        fn is_over(&self) -> bool {
            false
        }

        fn end(&self) {
            lock(&self.1).push("ended");
        }
    }

    #[test]
    fn what_nobody_waits_for_shares_the_next_commit() {
        let (main, queue) = (database(), Queue::default());
        let riders = [1, 2, 1].map(|x| Arc::new(Rider(x, Mutex::default())));
        for rider in &riders {
            queue.add(rider.clone());
        }
        assert!(rows(&main).is_empty());
        let (made, commits) = queue.write(&main, insert(3, 1));
        assert!(made.is_ok());
        assert_eq!((commits, rows(&main)), (1, vec![1, 2, 3]));
        assert_eq!(*lock(&riders[1].1), ["made", "ended"]);
        // A change that cannot be made does not make another one fail.
        assert_eq!(*lock(&riders[2].1), ["made", "failed", "ended"]);
        assert_eq!(queue.write(&main, insert(4, 1)).1, 1);
        assert_eq!(lock(&riders[0].1).len(), 2, "made once");
    }

    #[test]
    fn a_change_that_panics_leaves_the_connection_usable() {
        let main = database();
        let queue = Queue::default();
        let panics = |_: &Connection| -> rusqlite::Result<()> { panic!("on purpose") };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.write(&main, panics)));
        assert!(caught.is_err());
        assert!(queue.write(&main, insert(1, 1)).0.is_ok());
        assert_eq!(rows(&main), [1]);
    }
}
