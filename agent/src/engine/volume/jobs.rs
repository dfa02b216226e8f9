//! Jobs: the long work of passes, their progress, and their speed limit. A job is what a pass does
//! now to the blocks of its volume: nobody begins one, and none is stored. After a crash the pass
//! looks again, and the LV's tags show where to go on. A job ends early with its purpose: a zeroing
//! ends when its volume is deleted.
//!
//! One limit holds for all jobs of the agent together, because they share the disks. Jobs take
//! turns piece by piece.
//!
//! What must never happen here: a wait that delays a newer change of its volume; a limit that stops
//! a job entirely.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use mooring_model::{ByteSize, ClusterId, JobKind, JobReport, LvName, VolumeId};
use tokio::time::Instant;

use crate::clock;
use crate::config::LIMIT_MIN;
use crate::engine::busy::Counted;
use crate::engine::cell::{Cell, State};
use crate::engine::{Engine, Refusal, is_tombstone, lock};
use crate::lvm::{UploadOp, VolumeOp, Work};
use crate::workers;

/// Pieces per second at the limit, so that jobs take turns and a newer change does not wait.
const PIECES_PER_SECOND: u64 = 4;

/// Time over which a job's rate is measured.
const RATE_OVER: Duration = Duration::from_secs(2);

/// Least time that a job has of a pass before it gives way to a look. Drift of the volume's export
/// waits for that long.
const TIME_MIN: Duration = Duration::from_secs(5);

/// Interval at which a job that waits for its turn checks whether it should stop.
const WAIT_STEP: Duration = Duration::from_millis(50);

/// A job at work.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    kind: JobKind,
    done: u64,
    total: u64,
    since: SystemTime,
    /// Bytes that were done before this agent's work on the job. `None` until the first progress.
    resumed: Option<u64>,
    rate: Option<u64>,
    /// The last measurement: when it was, and the bytes done then.
    watched: Option<(Instant, u64)>,
    /// Time at which this pass began to work on the job.
    began: Instant,
}

/// A job that was stopped for something newer.
#[derive(Debug, Clone)]
pub(crate) struct Stopped {
    work: Work,
    /// LVM's identity of the job's LV.
    uuid: String,
    job: Job,
}

impl Job {
    /// The job that a step is. `None` if the step takes no time.
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
            began: clock::instant(),
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

/// The speed limit of all jobs.
#[derive(Debug)]
pub(super) struct Pace(Mutex<Turns>);

#[derive(Debug)]
struct Turns {
    limit: Option<u64>,
    /// Raised by each change of the limit: a job that waits by the old limit asks again.
    version: u64,
    /// Time at which everything taken so far is paid for.
    paid: Option<Instant>,
}

impl Turns {
    /// Takes so many bytes. Returns until when the taker waits, `None` without a limit. Idle time
    /// saves nothing up.
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
        // The debt under the old limit is cancelled: a low limit must not act after its end.
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

    /// Size of the next piece, in bytes: whole MiB, and at least one.
    fn piece(&self, most: u64) -> u64 {
        let part = self.limit().map_or(most, |limit| limit / PIECES_PER_SECOND);
        (part & !(LIMIT_MIN.0 - 1)).clamp(LIMIT_MIN.0, most.max(LIMIT_MIN.0))
    }

    /// Waits until so many bytes are paid for, or `stop` returns `true`.
    fn pay(&self, bytes: u64, stop: impl Fn() -> bool) {
        let (until, version) = {
            let mut turns = lock(&self.0);
            (turns.take(bytes, clock::instant()), turns.version)
        };
        let Some(until) = until else { return };
        loop {
            let left = until.saturating_duration_since(clock::instant());
            if left.is_zero() || stop() || lock(&self.0).version != version {
                return;
            }
            workers::wait(left.min(WAIT_STEP));
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
    pub(in crate::engine) fn is_at_work(&self) -> bool {
        self.job.is_some()
    }

    /// Bytes that the job at work has done. `None` if there is no job.
    pub(in crate::engine) fn done(&self) -> Option<u64> {
        self.job.as_ref().map(|job| job.done)
    }

    /// Counts the job at work among the work that a shutdown waits for, or with `None` does not.
    pub(in crate::engine) fn count(&mut self, counted: Option<Counted>) {
        self.counted = counted;
    }

    /// Ends the job at work.
    pub(in crate::engine) fn end(&mut self) {
        (self.job, self.counted) = (None, None);
    }
}

impl State {
    /// Begins a step. Returns the kind of job that it is, `None` if it is no job.
    pub(in crate::engine) fn begin_job(&mut self, op: &VolumeOp, now: SystemTime) -> Option<JobKind> {
        let doomed = is_tombstone(self.volume());
        self.jobs.job = Job::of(op, doomed, now);
        self.jobs.job.as_ref().map(|job| job.kind)
    }

    /// Bytes at which stopped work goes on, if the LV has this identity; 0 if it begins anew.
    pub(in crate::engine) fn resume_job(&mut self, work: Work, uuid: &str) -> u64 {
        let stopped = self.jobs.stopped.take();
        // A discarded LV is not zeroed: a deletion that was called off leaves nothing to go on
        // from.
        let Some(before) = stopped.filter(|stopped| stopped.work == work && stopped.uuid == uuid) else {
            return 0;
        };
        let done = before.job.done;
        if let Some(job) = self.jobs.job.as_mut().filter(|job| job.kind == before.job.kind) {
            *job = Job { total: job.total, began: job.began, ..before.job };
        }
        done
    }

    /// Says whether the job gives way: to a newer spec at once, to a look only after [`TIME_MIN`].
    /// Each resync brings a look, and LVM may take longer than the time between two resyncs. A job
    /// that gave way to every look would never end.
    fn job_gives_way(&self) -> bool {
        let had_its_time = self.jobs.job.as_ref().is_none_or(|job| job.began.elapsed() >= TIME_MIN);
        self.turn.is_queued() && (self.turn.is_queued_anew() || had_its_time)
    }

    /// Notes that the job waits for its turn, which is no stuck call. `true` if the job gives way.
    pub(in crate::engine) fn job_waits(&mut self) -> bool {
        self.calls.renew(clock::instant());
        self.job_gives_way()
    }

    /// Notes the bytes done. `true` if the job stops: for something newer, or for a shutdown
    /// (`closing`).
    pub(in crate::engine) fn job_is_at(&mut self, work: Work, uuid: &str, bytes: u64, closing: bool) -> bool {
        let now = clock::instant();
        if let Some(job) = &mut self.jobs.job {
            job.progress(bytes, now);
        }
        self.calls.renew(now);
        // A complete job need not stop. A record of it as stopped would skip work that is to be
        // done anew.
        let gives_way = closing || self.job_gives_way();
        let stops = gives_way && self.jobs.job.as_ref().is_none_or(|job| job.done < job.total);
        if stops {
            self.jobs.stopped = self.jobs.job.clone().map(|job| Stopped { work, uuid: uuid.to_owned(), job });
        }
        stops
    }
}

impl Cell {
    pub(in crate::engine) fn job_report(&self, limited: bool) -> Option<JobReport> {
        self.state().jobs.job.as_ref().map(|job| job.report(self.id, limited))
    }
}

impl Engine {
    /// Size of a job's next piece, in bytes, under the limit of all jobs.
    pub(in crate::engine) fn piece_of_job(&self, most: u64) -> u64 {
        self.shared.volume_memory.pace.piece(most)
    }

    /// Waits until the limit of all jobs allows so many bytes more, or `stop` returns `true`.
    pub(in crate::engine) fn pay_for_job(&self, bytes: u64, stop: impl Fn() -> bool) {
        self.shared.volume_memory.pace.pay(bytes, stop);
    }

    /// The jobs at work, of this volume or of all, in the order of their volumes; and their limit
    /// in bytes a second.
    pub fn jobs(&self, only: Option<VolumeId>) -> (Vec<JobReport>, Option<ByteSize>) {
        let limit = self.shared.volume_memory.pace.limit();
        let cells = self.cells().into_iter().filter(|cell| only.is_none_or(|id| id == cell.id));
        (cells.filter_map(|cell| cell.job_report(limit.is_some())).collect(), limit.map(ByteSize))
    }

    /// Limits all jobs together to so many bytes a second, until the agent's next start. `None`
    /// ends the limit. Returns the limit before.
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
        let was = lock(&self.shared.volume_memory.pace.0).set(limit.map(|limit| limit.0));
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
        // The payment would take more than a day.
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
        let lv = crate::lvm::LvId {
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
    fn job_gives_way_to_a_spec_at_once_and_to_a_look_after_its_time() {
        let lv = crate::lvm::LvId { group: "vg0".parse().unwrap(), name: LvName::of(VolumeId::from_u128(1)) };
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
            // A complete job leaves nothing to go on from: the next zeroing of this LV begins at
            // its beginning.
            let kept = if gives_way && done < 8 { done * MIB } else { 0 };
            assert_eq!(state.resume_job(Work::Zero, "u"), kept, "{case:?}");
            // At a shutdown the job always gives way.
            state.begin_job(&zero, SystemTime::UNIX_EPOCH);
            assert_eq!(state.job_is_at(Work::Zero, "u", done * MIB, true), done < 8, "{case:?}");
        }
    }
}
