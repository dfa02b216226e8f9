//! Threads that can be lost.
//!
//! A configfs call may block for as long as a disk does not answer (`rmdir` of an ACL waits for the
//! backend; kill -9 has no effect on it: lio.md, m). Such a call must never hold up anything but
//! its own volume, so kernel work runs here. A job that runs longer than `LOST_AFTER` no longer
//! counts against the number of jobs at work, and its thread is replaced.
//!
//! A group of volumes whose disk does not answer loses a thread for each of its volumes. So each
//! group may lose only a limited number of jobs. Beyond it they wait in the queue, and those of
//! healthy groups pass them.
//!
//! What must never happen here: a job that waits for another job of this pool; a lock held while a
//! job runs; threads of which a hung group has all.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use mooring_model::VgName;

use crate::clock;

/// Number of jobs at work at the same time, lost ones apart. The kernel serialises much of what
/// they do (RCU grace periods): 16 independent volumes gained 4 × in `lio.md`, k, and more gained
/// nothing.
const AT_WORK_MAX: usize = 16;

/// Number of threads in all, lost ones included. Beyond this something is wrong with the machine,
/// and jobs wait.
const THREADS_MAX: usize = 1_024;

/// Number of lost jobs of one volume group; its next ones wait until one of them returns. Long work
/// (zeroing) counts as well, so it is more than a node does at a time.
const LOST_PER_GROUP_MAX: usize = 256;

/// Time after which the scheduling gives up on a job at work. The job may still end.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(2);

/// Time after which an idle thread ends, and gives its stack and its share of the memory back:
/// those of a boot with a thousand exports are not needed behind it. Longer than from one resync to
/// the next, so that none begins with new threads.
const IDLE_FOR: Duration = Duration::from_secs(75);

/// Work for a thread that may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// Waits on a thread that runs jobs, in the place of its sleep.
type Wait = Box<dyn Fn(Duration)>;

thread_local! {
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
}

/// Has jobs on this thread wait by this in the place of sleeping. For simulations, in which time
/// does not pass by itself.
pub fn wait_by(wait: impl Fn(Duration) + 'static) {
    WAIT.set(Some(Box::new(wait)));
}

/// Waits for so long on a thread that runs jobs.
pub(crate) fn wait(time: Duration) {
    WAIT.with_borrow(|wait| match wait {
        Some(wait) => wait(time),
        None => std::thread::sleep(time),
    });
}

/// A job that has not begun.
struct Waiting {
    job: Job,
    /// The volume group whose disks the job may hang on. `None` if it hangs on none.
    group: Option<VgName>,
}

impl Waiting {
    fn may_begin(&self, hung: &[VgName]) -> bool {
        self.group.as_ref().is_none_or(|group| !hung.contains(group))
    }
}

/// A job that runs.
struct Running {
    began: Instant,
    group: Option<VgName>,
}

struct State {
    /// Time after which a job at work is lost.
    lost_after: Duration,
    /// Jobs that somebody waits for: they begin before the others.
    awaited: VecDeque<Waiting>,
    queue: VecDeque<Waiting>,
    /// `true` if only as many jobs run as processors can do, because none of them waits for the
    /// kernel.
    busy: bool,
    /// The jobs at work; the index is the thread's number.
    at_work: Vec<Option<Running>>,
    /// Wakes each thread, by its number.
    bells: Vec<Arc<Condvar>>,
    /// Threads that wait. The last one is woken first: what it works with is still in the
    /// processor's caches, and in its own share of the memory.
    idle: Vec<usize>,
    /// Numbers of threads that have ended.
    ended: Vec<usize>,
    /// Number of jobs that came since the start.
    taken: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            lost_after: LOST_AFTER,
            awaited: VecDeque::new(),
            queue: VecDeque::new(),
            busy: false,
            at_work: Vec::new(),
            bells: Vec::new(),
            idle: Vec::new(),
            ended: Vec::new(),
            taken: 0,
        }
    }
}

impl State {
    fn is_lost(&self, running: &Running) -> bool {
        running.began.elapsed() >= self.lost_after
    }

    fn at_work(&self) -> usize {
        self.at_work.iter().flatten().filter(|running| !self.is_lost(running)).count()
    }

    /// Returns the groups that have lost as many jobs as they may.
    fn hung(&self) -> Vec<VgName> {
        let lost = || self.at_work.iter().flatten().filter(|running| self.is_lost(running));
        if lost().count() < LOST_PER_GROUP_MAX {
            return Vec::new();
        }
        let mut groups: BTreeMap<&VgName, usize> = BTreeMap::new();
        for group in lost().filter_map(|running| running.group.as_ref()) {
            *groups.entry(group).or_default() += 1;
        }
        let hung = groups.into_iter().filter(|(_, lost)| *lost >= LOST_PER_GROUP_MAX);
        hung.map(|(group, _)| group.clone()).collect()
    }

    /// Returns `true` if a job may begin now.
    fn may_begin(&self) -> bool {
        if self.queue.is_empty() && self.awaited.is_empty() {
            return false;
        }
        let (at_work, hung) = (self.at_work(), self.hung());
        let most = if self.busy { busy_max() } else { AT_WORK_MAX };
        let has_one = |waiting: &VecDeque<Waiting>| waiting.iter().any(|one| one.may_begin(&hung));
        // An awaited job finds a place even while the machine is busy.
        (at_work < most && has_one(&self.queue)) || (at_work < AT_WORK_MAX && has_one(&self.awaited))
    }

    /// Returns the number for a thread to be started. `None` if there are as many threads as may
    /// be.
    fn free_number(&mut self) -> Option<usize> {
        self.ended.pop().or_else(|| {
            let number = self.at_work.len();
            (number < THREADS_MAX).then(|| {
                self.at_work.push(None);
                self.bells.push(Arc::default());
                number
            })
        })
    }

    fn next(&mut self) -> Option<Waiting> {
        let hung = self.hung();
        let first = |waiting: &mut VecDeque<Waiting>| {
            let at = waiting.iter().position(|one| one.may_begin(&hung))?;
            waiting.remove(at)
        };
        first(&mut self.awaited).or_else(|| first(&mut self.queue))
    }
}

/// Returns the number of jobs at work that only need processors: one for each, and one that waits
/// for a disk. Determined once: the answer is in files of the control group, and each job would
/// read them.
fn busy_max() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        available_parallelism().map_or(AT_WORK_MAX, |processors| (processors.get() + 1).min(AT_WORK_MAX))
    })
}

/// The pool.
#[derive(Clone)]
pub struct Workers {
    shared: Arc<Mutex<State>>,
    /// Time that a thread waits for something to do.
    idle_for: Duration,
    /// Runs the jobs in the place of this pool's threads.
    given: Option<Arc<dyn Fn(Job) + Send + Sync>>,
}

impl Default for Workers {
    fn default() -> Self {
        Self { shared: Arc::default(), idle_for: IDLE_FOR, given: None }
    }
}

impl Workers {
    /// Makes a pool without threads: `run` gets each job, and runs one of a volume after another.
    /// For simulations, which decide themselves what runs when, and for which a call that hangs is
    /// not lost time.
    pub fn given(run: impl Fn(Job) + Send + Sync + 'static) -> Self {
        Self { given: Some(Arc::new(run)), ..Self::default() }
    }

    /// Makes another pool of the same kind, whose jobs do not wait for this one's.
    pub(crate) fn beside(&self) -> Self {
        Self { given: self.given.clone(), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No job runs under this lock, so a poisoned lock still guards a consistent state.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job in the queue. The job begins as soon as a place is free.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.submit_of(None, job);
    }

    /// As [`Workers::submit`], for a job that may hang on the disks of a volume group.
    pub(crate) fn submit_of(&self, group: Option<VgName>, job: impl FnOnce() + Send + 'static) {
        if let Some(run) = &self.given {
            return run(Box::new(job));
        }
        let mut state = self.lock();
        state.taken += 1;
        state.queue.push_back(Waiting { job: Box::new(job), group });
        self.staff(state);
    }

    /// As [`Workers::submit`], for a job that somebody waits for: it does not wait behind views of
    /// thousands of volumes.
    pub(crate) fn submit_awaited(&self, job: impl FnOnce() + Send + 'static) {
        self.submit_awaited_of(None, job);
    }

    /// As [`Workers::submit_awaited`], for a job that may hang on the disks of a volume group.
    pub(crate) fn submit_awaited_of(&self, group: Option<VgName>, job: impl FnOnce() + Send + 'static) {
        if let Some(run) = &self.given {
            return run(Box::new(job));
        }
        let mut state = self.lock();
        state.taken += 1;
        state.awaited.push_back(Waiting { job: Box::new(job), group });
        self.staff(state);
    }

    /// Returns the number of jobs that this pool's threads were given since the start. Each is a
    /// thread that is woken.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Sets whether jobs of the queue only need processors from now on: then more of them at the
    /// same time would only be in each other's way.
    pub(crate) fn set_busy(&self, busy: bool) {
        let mut state = self.lock();
        state.busy = busy;
        self.staff(state);
    }

    /// Starts threads for jobs that wait although a place is free. Call it now and then, because a
    /// job becomes "lost" by the passing of time alone.
    pub(crate) fn tend(&self) {
        self.staff(self.lock());
    }

    /// Finds a thread for the next job. A thread is woken after the lock is released: on one
    /// processor it would run into the lock, and both would be switched to and fro twice more.
    fn staff(&self, mut state: MutexGuard<'_, State>) {
        if !state.may_begin() {
            return;
        }
        if let Some(number) = state.idle.pop() {
            let bell = Arc::clone(&state.bells[number]);
            drop(state);
            bell.notify_one();
            return;
        }
        let Some(number) = state.free_number() else { return };
        let (workers, bell) = (self.clone(), Arc::clone(&state.bells[number]));
        let thread = std::thread::Builder::new().name(format!("kernel-{number}"));
        if let Err(error) = thread.spawn(move || workers.serve(number, &bell)) {
            state.ended.push(number);
            tracing::error!(%error, "cannot start a thread for kernel work; the queue waits");
        }
    }

    /// Runs jobs until there was nothing to do for a while.
    fn serve(&self, number: usize, bell: &Condvar) {
        let mut state = self.lock();
        loop {
            while !state.may_begin() {
                state.idle.push(number);
                let woken =
                    bell.wait_timeout_while(state, self.idle_for, |state| state.idle.contains(&number));
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                // A woken thread is not in the list any more: a job counts on it.
                if let Some(at) = state.idle.iter().position(|idle| *idle == number) {
                    state.idle.remove(at);
                    state.ended.push(number);
                    return;
                }
            }
            let Some(Waiting { job, group }) = state.next() else { continue };
            state.at_work[number] = Some(Running { began: clock::std_instant(), group });
            self.staff(state);
            // A job that panics is a defect of ours: report it and go on serving the other volumes.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                tracing::error!("a kernel job panicked; its volume is looked at again at the next tick");
            }
            state = self.lock();
            state.at_work[number] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn stuck_jobs_do_not_hold_up_others() {
        let workers = Workers::default();
        workers.lock().lost_after = Duration::from_mins(1);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..AT_WORK_MAX {
            let gate = Arc::clone(&gate);
            workers.submit(move || drop(gate.lock().map(|gate| gate.recv())));
        }
        let (done, finished) = mpsc::channel();
        workers.submit(move || done.send(()).unwrap());
        assert!(finished.recv_timeout(Duration::from_millis(100)).is_err(), "all places are taken");
        workers.lock().lost_after = LOST_AFTER;
        std::thread::sleep(LOST_AFTER);
        workers.tend();
        finished.recv_timeout(Duration::from_secs(5)).expect("the lost jobs' places were given to others");
        drop(release);
    }

    #[test]
    fn a_hung_group_leaves_threads_for_the_others() {
        let workers = Workers::default();
        workers.lock().lost_after = Duration::from_millis(1);
        let group = |name: &str| Some(name.parse::<VgName>().unwrap());
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        // More volumes than there are threads, on a disk that does not answer.
        for number in 0..THREADS_MAX + 50 {
            let gate = Arc::clone(&gate);
            let hangs = move || drop(gate.lock().map(|gate| gate.recv()));
            if number % 2 == 0 {
                workers.submit_of(group("vg0"), hangs);
            } else {
                workers.submit_awaited_of(group("vg0"), hangs);
            }
        }
        let began = Instant::now();
        // A job of another group that has just sent its message may not have returned yet.
        let of_group = |running: &&Running| running.group == group("vg0");
        let lost = || workers.lock().at_work.iter().flatten().filter(of_group).count();
        while lost() < LOST_PER_GROUP_MAX {
            assert!(began.elapsed() < Duration::from_secs(30), "{} at work", lost());
            std::thread::sleep(Duration::from_millis(2));
            workers.tend();
        }
        std::thread::sleep(Duration::from_millis(5));
        workers.tend();
        let (done, finished) = mpsc::channel();
        for of in [group("vg1"), None] {
            let done = done.clone();
            workers.submit_of(of.clone(), move || done.send(()).unwrap());
            finished.recv_timeout(Duration::from_secs(5)).unwrap_or_else(|_| panic!("{of:?} has no thread"));
        }
        assert!(lost() < LOST_PER_GROUP_MAX + AT_WORK_MAX + 1, "{} threads are lost", lost());
        // The disk answers: all of them run.
        drop(release);
        while !workers.lock().awaited.is_empty() || !workers.lock().queue.is_empty() {
            assert!(began.elapsed() < Duration::from_mins(1), "its jobs wait for ever");
            std::thread::sleep(Duration::from_millis(2));
            workers.tend();
        }
    }

    #[test]
    fn who_is_waited_for_goes_first() {
        let workers = Workers::default();
        workers.lock().lost_after = Duration::from_mins(1);
        workers.set_busy(true);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (done, order) = mpsc::channel();
        for _ in 0..busy_max() {
            let gate = Arc::clone(&gate);
            workers.submit(move || drop(gate.lock().map(|gate| gate.recv())));
        }
        let queued = done.clone();
        workers.submit(move || queued.send("queued").unwrap());
        workers.submit_awaited(move || done.send("awaited").unwrap());
        // An awaited job has a place beyond those of a busy machine.
        if busy_max() < AT_WORK_MAX {
            assert_eq!(order.recv_timeout(Duration::from_secs(5)), Ok("awaited"));
            assert!(order.try_recv().is_err(), "the places of the queue are taken");
        }
        drop(release);
        assert!(order.recv_timeout(Duration::from_secs(5)).is_ok());
    }

    #[test]
    fn one_job_after_another_is_one_threads() {
        const THREADS: usize = 4;
        let workers = Workers::default();
        let together = Arc::new(std::sync::Barrier::new(THREADS));
        for _ in 0..THREADS {
            let together = Arc::clone(&together);
            workers.submit(move || {
                let _who = together.wait();
            });
        }
        // There may be more threads than were needed.
        let all_wait = || {
            let state = workers.lock();
            state.idle.len() + state.ended.len() == state.at_work.len()
        };
        let (done, ran) = mpsc::channel();
        let mut by = std::collections::BTreeSet::new();
        for _ in 0..20 {
            while !all_wait() {
                std::thread::yield_now();
            }
            let done = done.clone();
            workers.submit(move || done.send(std::thread::current().name().map(str::to_owned)).unwrap());
            by.insert(ran.recv_timeout(Duration::from_secs(5)).unwrap());
        }
        assert_eq!(by.len(), 1, "{by:?}");
    }

    #[test]
    fn threads_with_nothing_to_do_end_and_others_take_their_places() {
        let workers = Workers { idle_for: Duration::from_millis(20), ..Workers::default() };
        for round in 0..3 {
            let together = Arc::new(std::sync::Barrier::new(AT_WORK_MAX));
            for _ in 0..AT_WORK_MAX {
                let together = Arc::clone(&together);
                workers.submit(move || {
                    let _who = together.wait();
                });
            }
            let began = Instant::now();
            loop {
                let state = workers.lock();
                assert!(state.idle.len() + state.ended.len() <= state.at_work.len(), "counted twice");
                // The jobs need each other: each has had a thread of its own.
                if state.queue.is_empty() && state.ended.len() == state.at_work.len() {
                    assert!((AT_WORK_MAX..=AT_WORK_MAX * 2).contains(&state.at_work.len()), "round {round}");
                    break;
                }
                drop(state);
                assert!(began.elapsed() < Duration::from_secs(30), "a thread stays for ever");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    #[test]
    fn a_panic_costs_one_job() {
        let workers = Workers::default();
        workers.submit(|| panic!("on purpose"));
        let (done, finished) = mpsc::channel();
        workers.submit(move || done.send(()).unwrap());
        finished.recv_timeout(Duration::from_secs(5)).expect("the next job ran");
    }
}
