//! Jobs: the long work of passes, as it stands, and how fast it may be. A job is what a pass does now to the blocks of its
//! volume: nobody begins one, and none is stored. After a crash the pass looks again, and the LV's tags say where it goes on.
//! It ends early when what it is done for ends: a zeroing when its volume is deleted.
//!
//! One limit is for all jobs of the agent together: they share the disks. Jobs take their turns at it piece by piece.
//!
//! What must never happen here: a wait that holds up what is newer on its volume; a limit that lets a job stand still.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use mooring_model::{ByteSize, ClusterId, JobKind, JobReport, LvName, VolumeId};
use tokio::time::Instant;

use super::busy::Counted;
use super::cell::{Cell, State};
use super::{Engine, Refusal, is_tombstone, lock};
use crate::config::LIMIT_MIN;
use crate::volumes::{UploadOp, VolumeOp, Work};

/// A piece takes this part of a second at the limit, so that jobs take turns, and newer things do not wait.
const PIECES_PER_SECOND: u64 = 4;

/// So long a job is watched for its rate.
const RATE_OVER: Duration = Duration::from_secs(2);

/// The least that a job has of a pass before it gives way to a look. Drift of its volume's export waits so long.
const TIME_MIN: Duration = Duration::from_secs(5);

/// How often a job that waits for its turn sees whether it should stop.
const WAIT_STEP: Duration = Duration::from_millis(50);

/// A job at work.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    kind: JobKind,
    done: u64,
    total: u64,
    since: SystemTime,
    /// Of what is done, what an agent before this one had done.
    resumed: Option<u64>,
    rate: Option<u64>,
    /// When it was watched last, and how far it was then.
    watched: Option<(Instant, u64)>,
    /// When this pass began with it.
    began: Instant,
}

/// A job that was stopped for something newer.
#[derive(Debug, Clone)]
pub(crate) struct Stopped {
    work: Work,
    /// LVM's identity of its LV.
    uuid: String,
    job: Job,
}

impl Job {
    /// What a step is as a job; `None`: it takes no time.
    fn of(op: &VolumeOp, doomed: bool, now: SystemTime) -> Option<Self> {
        let (kind, total) = match op {
            VolumeOp::Zero { size, .. } if doomed => (JobKind::Wipe, size),
            VolumeOp::Zero { lv, size, .. } if LvName::growing(lv.name.as_str()).is_some() => {
                (JobKind::Grow, size)
            }
            VolumeOp::Zero { size, .. } => (JobKind::Zero, size),
            VolumeOp::Discard { size, .. } => (JobKind::Discard, size),
            VolumeOp::Import { size, .. } => (JobKind::Import, size),
            VolumeOp::Upload { op: UploadOp::Copy { size, .. }, .. } => (JobKind::Export, size),
            _ => return None,
        };
        Some(Self {
            kind,
            done: 0,
            total: total.0,
            since: now,
            resumed: None,
            rate: None,
            watched: None,
            began: Instant::now(),
        })
    }

    fn progress(&mut self, done: u64, now: Instant) {
        self.resumed.get_or_insert(done);
        self.done = done.min(self.total);
        match self.watched {
            None => self.watched = Some((now, done)),
            Some((at, before)) => {
                let took = now.saturating_duration_since(at);
                if took >= RATE_OVER {
                    self.rate = Some(rate(done.saturating_sub(before), took));
                    self.watched = Some((now, done));
                }
            }
        }
    }

    fn report(&self, volume: VolumeId, limited: bool) -> JobReport {
        JobReport {
            volume,
            kind: self.kind,
            done: ByteSize(self.done),
            total: ByteSize(self.total),
            rate: self.rate.map(ByteSize),
            since: self.since,
            resumed: ByteSize(self.resumed.unwrap_or(0).min(self.done)),
            limited: limited && self.kind != JobKind::Discard,
        }
    }
}

/// Bytes a second.
fn rate(bytes: u64, took: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000 / took.as_millis().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// How fast jobs may be.
#[derive(Debug)]
pub(super) struct Pace(Mutex<Turns>);

#[derive(Debug)]
struct Turns {
    limit: Option<u64>,
    /// Raised by each change of the limit: whoever waits by the one before asks again.
    version: u64,
    /// When all that was taken is paid for.
    paid: Option<Instant>,
}

impl Turns {
    /// Takes so many bytes; returns until when the taker waits. Time in which nobody took anything is not made up for.
    fn take(&mut self, bytes: u64, now: Instant) -> Option<Instant> {
        let limit = self.limit?;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(limit.max(1));
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let paid = self.paid.map_or(now, |paid| paid.max(now)).checked_add(cost).unwrap_or(now);
        self.paid = Some(paid);
        Some(paid)
    }

    fn set(&mut self, limit: Option<u64>) -> Option<u64> {
        self.version = self.version.wrapping_add(1);
        // What was taken by the old limit is forgiven: a low one must not go on when it is gone.
        self.paid = None;
        std::mem::replace(&mut self.limit, limit)
    }
}

impl Pace {
    pub(super) fn new(limit: Option<ByteSize>) -> Self {
        Self(Mutex::new(Turns { limit: limit.map(|limit| limit.0), version: 0, paid: None }))
    }

    fn limit(&self) -> Option<u64> {
        lock(&self.0).limit
    }

    /// How large the next piece may be; whole MiB, and no less than one.
    pub(super) fn piece(&self, most: u64) -> u64 {
        let part = self.limit().map_or(most, |limit| limit / PIECES_PER_SECOND);
        (part & !(LIMIT_MIN.0 - 1)).clamp(LIMIT_MIN.0, most.max(LIMIT_MIN.0))
    }

    /// Waits until so many bytes are paid for, or `stop` says so.
    pub(super) fn pay(&self, bytes: u64, stop: impl Fn() -> bool) {
        let (until, version) = {
            let mut turns = lock(&self.0);
            (turns.take(bytes, Instant::now()), turns.version)
        };
        let Some(until) = until else { return };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || stop() || lock(&self.0).version != version {
                return;
            }
            std::thread::sleep(left.min(WAIT_STEP));
        }
    }
}

/// The long work of one volume's passes.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// The job of the pass at work.
    job: Option<Job>,
    /// The place of that job among the work that a shutdown waits for.
    counted: Option<Counted>,
    /// A job that was stopped for something newer.
    stopped: Option<Stopped>,
}

impl Jobs {
    /// Says whether a job is at work.
    pub(super) fn is_at_work(&self) -> bool {
        self.job.is_some()
    }

    /// Bytes that the job at work has done. `None` if there is no job.
    pub(super) fn done(&self) -> Option<u64> {
        self.job.as_ref().map(|job| job.done)
    }

    /// Counts the job at work among the work that a shutdown waits for, or with `None` does not.
    pub(super) fn count(&mut self, counted: Option<Counted>) {
        self.counted = counted;
    }

    /// Ends the job at work.
    pub(super) fn end(&mut self) {
        (self.job, self.counted) = (None, None);
    }
}

impl State {
    /// A step begins; which job it is, if it is one.
    pub(super) fn begin_job(&mut self, op: &VolumeOp, now: SystemTime) -> Option<JobKind> {
        let doomed = is_tombstone(self.volume());
        self.jobs.job = Job::of(op, doomed, now);
        self.jobs.job.as_ref().map(|job| job.kind)
    }

    /// Where work goes on that was stopped, of an LV of this identity.
    pub(super) fn resume_job(&mut self, work: Work, uuid: &str) -> u64 {
        let stopped = self.jobs.stopped.take();
        // What was discarded is not zeroed: a deletion that was called off leaves nothing to go on from.
        let Some(before) = stopped.filter(|stopped| stopped.work == work && stopped.uuid == uuid) else {
            return 0;
        };
        let done = before.job.done;
        if let Some(job) = self.jobs.job.as_mut().filter(|job| job.kind == before.job.kind) {
            *job = Job { total: job.total, began: job.began, ..before.job };
        }
        done
    }

    /// Whether the job gives way: at once to a newer wish; to a look, which comes with every resync, when it has had its time. A
    /// look at LVM may take longer than the time between two resyncs, and a job that gave way to each of them would not get on.
    fn job_gives_way(&self) -> bool {
        let had_its_time = self.jobs.job.as_ref().is_none_or(|job| job.began.elapsed() >= TIME_MIN);
        self.turn.is_queued() && (self.turn.is_queued_anew() || had_its_time)
    }

    /// The job waits for its turn: that is no stuck call. Whether something newer wants the volume.
    pub(super) fn job_waits(&mut self) -> bool {
        self.calls.renew(Instant::now());
        self.job_gives_way()
    }

    /// So much is done. Whether the job stops: something newer wants the volume, or a shutdown has begun (`closing`).
    pub(super) fn job_is_at(&mut self, work: Work, uuid: &str, bytes: u64, closing: bool) -> bool {
        let now = Instant::now();
        if let Some(job) = &mut self.jobs.job {
            job.progress(bytes, now);
        }
        self.calls.renew(now);
        // What is done need not be stopped. Kept as stopped, it would stand for work that is to be done anew.
        let gives_way = closing || self.job_gives_way();
        let stops = gives_way && self.jobs.job.as_ref().is_none_or(|job| job.done < job.total);
        if stops {
            self.jobs.stopped = self.jobs.job.clone().map(|job| Stopped { work, uuid: uuid.to_owned(), job });
        }
        stops
    }
}

impl Cell {
    pub(super) fn job_report(&self, limited: bool) -> Option<JobReport> {
        self.state().jobs.job.as_ref().map(|job| job.report(self.id, limited))
    }
}

impl Engine {
    /// The jobs that go on now, of this volume or of all, by their volumes; and what limits them, in bytes a second.
    pub fn jobs(&self, only: Option<VolumeId>) -> (Vec<JobReport>, Option<ByteSize>) {
        let limit = self.shared.pace.limit();
        let cells = self.cells().into_iter().filter(|cell| only.is_none_or(|id| id == cell.id));
        (cells.filter_map(|cell| cell.job_report(limit.is_some())).collect(), limit.map(ByteSize))
    }

    /// Limits all jobs together to so many bytes a second, from now on until the agent is started again. Returns what it was.
    pub async fn set_job_limit(
        &self,
        sender: ClusterId,
        limit: Option<ByteSize>,
    ) -> Result<Option<ByteSize>, Refusal> {
        let engine = self.clone();
        let checked = self.blocking(move || engine.check_sender(sender)).await;
        checked.unwrap_or_else(|| {
            let why = "the limit could not be set: try again".to_owned();
            Err(Refusal::precondition(why, mooring_model::Cure::Retry))
        })?;
        let was = lock(&self.shared.pace.0).set(limit.map(|limit| limit.0));
        let word = limit.map_or_else(|| "none".to_owned(), |limit| format!("{limit}/s"));
        tracing::info!(limit = word, "the limit of jobs was set");
        Ok(was.map(ByteSize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn turns(limit: Option<u64>) -> Turns {
        Turns { limit, version: 0, paid: None }
    }

    #[test]
    fn all_jobs_together_take_what_the_limit_gives() {
        let now = Instant::now();
        let mut turns = turns(Some(8 * MIB));
        let mut last = now;
        // Two jobs in turn, ten pieces of 4 MiB each: 80 MiB at 8 MiB/s.
        for _ in 0..20 {
            last = turns.take(4 * MIB, now).unwrap();
        }
        assert_eq!(last - now, Duration::from_secs(10));
        // A pause saves nothing up.
        let later = last + Duration::from_mins(1);
        assert_eq!(turns.take(8 * MIB, later).unwrap() - later, Duration::from_secs(1));
    }

    #[test]
    fn without_a_limit_nobody_waits_and_a_new_one_forgives_what_was_taken() {
        let now = Instant::now();
        let mut turns = turns(None);
        assert_eq!(turns.take(u64::MAX, now), None);
        assert_eq!(turns.set(Some(MIB)), None);
        assert_eq!(turns.take(100 * MIB, now).unwrap() - now, Duration::from_secs(100));
        assert_eq!(turns.set(Some(2 * MIB)), Some(MIB));
        assert_eq!(turns.take(4 * MIB, now).unwrap() - now, Duration::from_secs(2));
        assert_eq!((turns.set(None), turns.take(1, now)), (Some(2 * MIB), None));
    }

    #[test]
    fn pieces_are_whole_mib_and_never_nothing() {
        let pieces = |limit: Option<u64>| Pace::new(limit.map(ByteSize)).piece(16 * MIB) / MIB;
        assert_eq!(
            [None, Some(MIB), Some(10 * MIB), Some(40 * MIB), Some(1 << 40)].map(pieces),
            [16, 1, 2, 10, 16]
        );
    }

    #[test]
    fn whoever_waits_is_let_go_by_a_new_limit_or_a_stop() {
        let pace = std::sync::Arc::new(Pace::new(Some(LIMIT_MIN)));
        // It would take a day and more.
        let days = LIMIT_MIN.0 * 100_000;
        pace.pay(days, || true);
        let (waiter, (done, ended)) = (pace.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            waiter.pay(days, || false);
            done.send(()).unwrap();
        });
        assert!(ended.recv_timeout(Duration::from_millis(200)).is_err(), "it waits");
        lock(&pace.0).set(None);
        ended.recv_timeout(Duration::from_mins(1)).expect("the limit is gone");
    }

    #[test]
    fn a_job_says_how_fast_it_is_and_what_it_found_done() {
        let lv = crate::volumes::LvId {
            group: "vg0".parse().unwrap(),
            name: LvName::growth_of(VolumeId::from_u128(1)),
        };
        let zero = VolumeOp::Zero { lv, size: ByteSize(100 * MIB), marks: Vec::new() };
        let mut job = Job::of(&zero, false, SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(Job::of(&zero, true, SystemTime::UNIX_EPOCH).unwrap().kind, JobKind::Wipe);
        let now = Instant::now();
        job.progress(40 * MIB, now);
        let report = |job: &Job| job.report(VolumeId::from_u128(1), true);
        assert_eq!((report(&job).kind, report(&job).rate, report(&job).limited), (JobKind::Grow, None, true));
        job.progress(50 * MIB, now + RATE_OVER);
        let last = report(&job);
        assert_eq!((last.done.0, last.resumed.0, last.rate), (50 * MIB, 40 * MIB, Some(ByteSize(5 * MIB))));
    }

    #[test]
    fn a_job_gives_way_to_a_wish_at_once_and_to_looks_when_it_has_had_its_time() {
        let lv =
            crate::volumes::LvId { group: "vg0".parse().unwrap(), name: LvName::of(VolumeId::from_u128(1)) };
        let zero = VolumeOp::Zero { lv, size: ByteSize(8 * MIB), marks: Vec::new() };
        for (dirty, wanted_anew, long, done) in
            (0..16).map(|case| (case & 1 > 0, case & 2 > 0, case & 4 > 0, if case & 8 > 0 { 8 } else { 4 }))
        {
            let mut state = State::default();
            if dirty && wanted_anew {
                state.turn.ask_anew();
            } else if dirty {
                state.turn.ask();
            }
            state.begin_job(&zero, SystemTime::UNIX_EPOCH);
            if let (Some(job), true) = (&mut state.jobs.job, long) {
                job.began = job.began.checked_sub(TIME_MIN).unwrap();
            }
            let gives_way = dirty && (wanted_anew || long);
            let case = (dirty, wanted_anew, long, done);
            assert_eq!(state.job_waits(), gives_way, "{case:?}");
            assert_eq!(
                state.job_is_at(Work::Zero, "u", done * MIB, false),
                gives_way && done < 8,
                "{case:?}"
            );
            // What is done is no work to go on with: the next zeroing of this LV begins at its beginning.
            let kept = if gives_way && done < 8 { done * MIB } else { 0 };
            assert_eq!(state.resume_job(Work::Zero, "u"), kept, "{case:?}");
            // At a shutdown it always does.
            state.begin_job(&zero, SystemTime::UNIX_EPOCH);
            assert_eq!(state.job_is_at(Work::Zero, "u", done * MIB, true), done < 8, "{case:?}");
        }
    }
}
