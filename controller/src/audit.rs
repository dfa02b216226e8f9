//! The audit log's way into the database: lines wait in a bounded queue, in order, and a task
//! writes them in batches.
//!
//! A line costs its call no transaction. A batch is written each [`FLUSH_EVERY`], earlier when
//! [`BATCH_MAX`] lines wait, and at the stop. While the database is away, lines wait. A line is
//! lost only if the queue is full, or in a flood of calls without a login; lost lines are counted.
//! A crash loses the waiting lines, but the journal has every line, as an event of the target
//! `audit`.
//!
//! What must never happen here: a call that waits for its line; a line written twice; a line lost
//! without a count.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::domain::AuditEntry;
use crate::error::Refusal;
use crate::store::{Db, PRUNE_ROWS_MAX, Store};

/// The longest time for which a line waits for its batch, while the database answers.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The most lines of one transaction.
const BATCH_MAX: usize = 256;

/// The most waiting lines: some megabytes.
pub(crate) const QUEUE_MAX: usize = 16_384;

/// The most lines of unauthenticated callers (401) in each [`STRANGERS_WINDOW`]. Without this
/// bound, anybody who reaches the API could fill the database.
const STRANGERS_MAX: u32 = 1_000;

const STRANGERS_WINDOW: Duration = Duration::from_mins(1);

/// The longest pause after the database refused a batch.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The time for which the stop waits for the database.
const END_WAIT: Duration = Duration::from_secs(5);

/// The time between two searches for old lines.
const PRUNE_EVERY: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
struct Waiting {
    entries: VecDeque<AuditEntry>,
    /// `true` if the queue is full, and that was logged.
    overflows: bool,
    /// The start of the window of unauthenticated callers, and the lines taken in it.
    strangers: Option<(Instant, u32)>,
}

impl Waiting {
    /// Counts a line of an unauthenticated caller; `false` if the window has enough of them.
    fn takes_stranger(&mut self, now: Instant) -> bool {
        let (began, count) =
            self.strangers.filter(|(began, _)| now < *began + STRANGERS_WINDOW).unwrap_or((now, 0));
        self.strangers = Some((began, count.saturating_add(1)));
        if count == STRANGERS_MAX {
            tracing::error!(
                most = STRANGERS_MAX,
                "many calls without a login: for up to a minute their audit lines are in the journal only"
            );
        }
        count < STRANGERS_MAX
    }
}

/// The queue and its writer: see the module.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    waiting: Mutex<Waiting>,
    lost: AtomicU64,
    many: Notify,
    /// A lock that the writer holds, so that batches stay in order.
    writing: tokio::sync::Mutex<()>,
}

impl Audit {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line, and never waits.
    pub(crate) fn record(&self, entry: AuditEntry) {
        let mut waiting = self.waiting();
        if entry.call.user.is_none() && !waiting.takes_stranger(Instant::now()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if waiting.entries.len() >= QUEUE_MAX {
            self.lost.fetch_add(1, Ordering::Relaxed);
            if !std::mem::replace(&mut waiting.overflows, true) {
                tracing::error!(
                    waiting = QUEUE_MAX,
                    "the database does not take the audit log, and no more lines can wait: from now on they are in the journal only"
                );
            }
            return;
        }
        waiting.entries.push_back(entry);
        if waiting.entries.len() == BATCH_MAX {
            self.many.notify_one();
        }
    }

    /// The number of lines that only the journal has.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The number of lines that wait for the database.
    pub(crate) fn count_waiting(&self) -> usize {
        self.waiting().entries.len()
    }

    /// Writes waiting lines, in order. Lines that the database does not take go on waiting.
    pub(crate) async fn flush(&self, store: &Store) -> Result<(), Refusal> {
        let _writing = self.writing.lock().await;
        loop {
            let batch: Vec<_> = self.waiting().entries.iter().take(BATCH_MAX).cloned().collect();
            if batch.is_empty() {
                return Ok(());
            }
            let count = batch.len();
            let append = move |db: &Db<'_>| Ok(batch.iter().try_for_each(|entry| db.append_audit(entry))?);
            store.write_soon("append to the audit log", append).await?;
            let mut waiting = self.waiting();
            waiting.entries.drain(..count);
            waiting.overflows = false;
        }
    }

    /// Writes and prunes until it is dropped. Prunes nothing while `now` is `None`: the clock
    /// cannot be relied on.
    pub(crate) async fn run(
        &self,
        store: &Store,
        keep: Option<Duration>,
        now: impl Fn() -> Option<SystemTime>,
    ) {
        let (mut pause, mut prune_at) = (FLUSH_EVERY, Instant::now());
        loop {
            pause = match self.flush(store).await {
                Ok(()) => FLUSH_EVERY,
                Err(error) => {
                    let waiting = self.count_waiting();
                    tracing::error!(%error, waiting, "the audit log is not in the database yet");
                    (pause * 2).min(RETRY_MAX)
                }
            };
            if let Some(keep) = keep
                && prune_at <= Instant::now()
            {
                let before = now().and_then(|now| now.checked_sub(keep));
                let more = before.map(|before| prune(store, before));
                let more = match more {
                    Some(more) => more.await,
                    None => false,
                };
                prune_at = Instant::now() + if more { Duration::ZERO } else { PRUNE_EVERY };
            }
            // After a refused batch the database is left alone, however many lines wait.
            let many = async {
                if pause > FLUSH_EVERY {
                    std::future::pending::<()>().await;
                }
                self.many.notified().await;
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = many => {}
            }
        }
    }

    /// Writes waiting lines at the stop. Lines that the database does not take now are only in the
    /// journal.
    pub(crate) async fn end(&self, store: &Store) {
        let done = tokio::time::timeout(END_WAIT, self.flush(store)).await;
        let left = std::mem::take(&mut self.waiting().entries).len();
        if left > 0 {
            self.lost.fetch_add(u64::try_from(left).unwrap_or(u64::MAX), Ordering::Relaxed);
            let why = match done {
                Ok(Err(refusal)) => refusal.to_string(),
                Ok(Ok(())) | Err(_) => "it did not answer in time".to_owned(),
            };
            tracing::error!(
                lines = left,
                why,
                "the database did not take the end of the audit log: it is in the journal only"
            );
        }
    }
}

/// Deletes lines from before a time; `true` if there may be more.
async fn prune(store: &Store, before: SystemTime) -> bool {
    match store.write_soon("prune the audit log", move |db| Ok(db.prune_audit(before)?)).await {
        Ok(0) => false,
        Ok(lines) => {
            tracing::info!(lines, "old lines of the audit log were deleted");
            lines >= u64::from(PRUNE_ROWS_MAX)
        }
        Err(error) => {
            tracing::warn!(%error, "the audit log is not pruned now");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::domain::{AuditCall, AuditQuery};
    use crate::store::{Database, time_of};

    fn entry(number: usize) -> AuditEntry {
        let user = Some("u".to_owned());
        let call = AuditCall { request: format!("req-{number}"), user, ..AuditCall::default() };
        AuditEntry { at: time_of(i64::try_from(number).unwrap()), call }
    }

    fn store(dir: &tempfile::TempDir) -> Store {
        let database = Database::embedded(dir.path().join("state"));
        Store::open(database, None, Clock::system()).unwrap()
    }

    async fn kept(store: &Store) -> Vec<String> {
        let query = AuditQuery { limit: 100_000, ..AuditQuery::default() };
        let lines = store.read("read", move |db| Ok(db.audit_lines(&query)?)).await.unwrap();
        lines.into_iter().rev().map(|line| line.entry.call.request).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lines_are_written_in_batches_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (audit, store) = (Audit::default(), store(&dir));
        let count = 2 * BATCH_MAX + 1;
        (0..count).for_each(|number| audit.record(entry(number)));
        let before = store.commits().unwrap();
        audit.flush(&store).await.unwrap();
        // The last line is counted after its call is answered.
        assert!(store.commits().unwrap() - before <= 3, "a transaction for each batch");
        assert_eq!(kept(&store).await, (0..count).map(|number| format!("req-{number}")).collect::<Vec<_>>());
        assert_eq!((audit.count_waiting(), audit.lost()), (0, 0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_queue_loses_the_newest_line_and_counts_it() {
        let dir = tempfile::tempdir().unwrap();
        let (audit, store) = (Audit::default(), store(&dir));
        (0..QUEUE_MAX + 3).for_each(|number| audit.record(entry(number)));
        assert_eq!((audit.count_waiting(), audit.lost()), (QUEUE_MAX, 3));
        audit.flush(&store).await.unwrap();
        assert_eq!((audit.count_waiting(), audit.lost()), (0, 3));
        assert_eq!(kept(&store).await.last(), Some(&format!("req-{}", QUEUE_MAX - 1)));
    }

    #[test]
    fn strangers_do_not_fill_the_database() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        let taken = |waiting: &mut Waiting, now| {
            (0..STRANGERS_MAX + 3).filter(|_| waiting.takes_stranger(now)).count()
        };
        let most = usize::try_from(STRANGERS_MAX).unwrap();
        assert_eq!(taken(&mut waiting, now), most);
        assert_eq!(taken(&mut waiting, now + STRANGERS_WINDOW / 2), 0);
        assert_eq!(taken(&mut waiting, now + STRANGERS_WINDOW), most);
        let audit = Audit::default();
        let stranger = |number| {
            let mut entry = entry(number);
            entry.call.user = None;
            entry
        };
        (0..most + 3).for_each(|number| audit.record(stranger(number)));
        audit.record(entry(0));
        assert_eq!((audit.count_waiting(), audit.lost()), (most + 1, 3), "those who are known have theirs");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_task_writes_by_itself_and_prunes_what_is_old() {
        let dir = tempfile::tempdir().unwrap();
        let (audit, store) = (Audit::default(), store(&dir));
        let count = usize::try_from(PRUNE_ROWS_MAX).unwrap() + 7;
        (0..count).for_each(|number| audit.record(entry(number)));
        // A line one microsecond younger is kept.
        let keep = Duration::from_micros(2);
        let now = || Some(time_of(i64::try_from(count).unwrap()));
        let task = audit.run(&store, Some(keep), now);
        let pruned = async {
            while kept(&store).await.len() != 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = task => unreachable!("it runs until it is dropped"),
            () = pruned => {}
        }
        assert_eq!(kept(&store).await, [format!("req-{}", count - 2), format!("req-{}", count - 1)]);
    }
}
