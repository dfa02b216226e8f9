//! Kernel work of one agent process, in lockstep. While the machine is fast and no device hangs, a
//! job runs where it is submitted, at once, and virtual time stands still.
//!
//! Otherwise each job has a thread, its *lane*. At any moment either the run's own thread works or
//! one lane does. A lane gives the turn back when its job has ended, when it hangs in the fake
//! kernel, or when a call of it takes (virtual) time. On a slow machine two jobs can therefore be
//! at work at the same time. The seed decides how their calls are interleaved.
//!
//! What must never happen here: two jobs of one machine that run at the same moment; a job of a
//! process that was killed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use mooring_agent::workers::{Job, Workers};
use mooring_host::fake::FakeMachine;

use crate::lock;
use crate::switch::{Killed, Switch};

/// Jobs of a process at work at the same time, without those that hang.
const LANES: usize = 2;

/// Interval in which a job that waits for another one looks again.
const LOOKS_AGAIN: Duration = Duration::from_millis(100);

/// Interval in which the run's thread checks for a job that hangs.
const HANGS_AFTER: Duration = Duration::from_micros(50);

/// Limit in real time: a job that gives no turn back for this long waits for something that only
/// another job could do.
const STUCK_AFTER: Duration = Duration::from_mins(1);

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Work,
    /// A call takes this long.
    Waits(Duration),
    End,
}

/// A thread with a job on it.
#[derive(Debug)]
struct Lane {
    at: Mutex<At>,
    moved: Condvar,
    /// `true` while the job hangs, so that calls which return from the kernel wait for their turn.
    closed: AtomicBool,
}

impl Lane {
    fn new() -> Arc<Self> {
        Arc::new(Self { at: Mutex::new(At::Work), moved: Condvar::new(), closed: AtomicBool::default() })
    }

    fn go(&self, at: At) {
        *lock(&self.at) = at;
        self.moved.notify_all();
    }

    /// Gives the turn back until this time has passed; called by the lane's own thread.
    fn wait(&self, time: Duration) {
        self.go(At::Waits(time));
        let waits = |at: &mut At| *at != At::Work;
        drop(self.moved.wait_while(lock(&self.at), waits).unwrap_or_else(PoisonError::into_inner));
    }
}

thread_local! {
    static LANE: RefCell<Option<Arc<Lane>>> = const { RefCell::new(None) };
}

fn own_lane() -> Option<Arc<Lane>> {
    LANE.with_borrow(Clone::clone)
}

/// Waits while this thread's lane is closed; called after every return from the kernel.
pub(crate) fn take_turn() {
    if let Some(lane) = own_lane() {
        while lane.closed.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

/// Lets time pass in a job. Does nothing outside a lane: there, time stands still.
pub(crate) fn pass(time: Duration) {
    if let Some(lane) = own_lane() {
        lane.wait(time);
    }
}

/// Jobs that hang on one machine, whoever submitted them.
#[derive(Clone, Default)]
pub(crate) struct Hung(Arc<Mutex<Vec<HungJob>>>);

/// A lane that hangs, and the process that it belongs to.
type HungJob = (Jobs, Arc<Lane>);

impl Hung {
    /// Resumes the jobs after the device has answered: all calls return, and their jobs go on in
    /// the order in which they hung.
    pub(crate) fn go_on(&self, machine: &FakeMachine) {
        while machine.waiting() > 0 {
            std::thread::yield_now();
        }
        for (jobs, lane) in std::mem::take(&mut *lock(&self.0)) {
            lock(&jobs.queue).lanes.push(Arc::clone(&lane));
            lane.closed.store(false, Ordering::Release);
            jobs.follow(&lane, 0);
        }
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// `true` while [`Jobs::drain`] runs.
    at_work: bool,
    /// Jobs that have begun, and do not hang.
    lanes: Vec<Arc<Lane>>,
}

/// Jobs of one agent process; clones belong to the same process.
#[derive(Clone)]
pub(crate) struct Jobs {
    queue: Arc<Mutex<Queue>>,
    switch: Switch,
    hung: Hung,
    runtime: tokio::runtime::Handle,
}

impl Jobs {
    /// Creates an empty queue; must be called inside the run's runtime.
    pub(crate) fn new(switch: Switch, hung: Hung) -> Self {
        Self { queue: Arc::default(), switch, hung, runtime: tokio::runtime::Handle::current() }
    }

    /// Returns the workers that the agent uses.
    pub(crate) fn workers(&self) -> Workers {
        let jobs = self.clone();
        Workers::given(move |job| jobs.submit(job))
    }

    fn submit(&self, job: Job) {
        if self.switch.is_dead() {
            return;
        }
        lock(&self.queue).jobs.push_back(job);
        // A job that another job submits begins after that one has given the turn back.
        if own_lane().is_none() {
            self.drain();
        }
    }

    /// Runs the jobs that wait and may begin; called by the run's thread.
    pub(crate) fn drain(&self) {
        if std::mem::replace(&mut lock(&self.queue).at_work, true) {
            return;
        }
        loop {
            let (job, alone) = {
                let mut queue = lock(&self.queue);
                let may_begin = queue.lanes.len() < LANES;
                let Some(job) = may_begin.then(|| queue.jobs.pop_front()).flatten() else {
                    queue.at_work = false;
                    return;
                };
                (job, queue.lanes.is_empty())
            };
            if self.switch.is_dead() {
                continue;
            }
            if alone && !self.switch.takes_time() { run(&self.switch, job) } else { self.run_on_lane(job) }
        }
    }

    /// Ends the jobs after a kill of the process: those that wait for a call end at once.
    pub(crate) fn end(&self) {
        let lanes = std::mem::take(&mut lock(&self.queue).lanes);
        for lane in lanes {
            while matches!(*lock(&lane.at), At::Waits(_)) {
                lane.go(At::Work);
                self.follow(&lane, 0);
            }
        }
    }

    fn run_on_lane(&self, job: Job) {
        let lane = Lane::new();
        let before = self.switch.machine().waiting();
        let (ours, switch, runtime) = (Arc::clone(&lane), self.switch.clone(), self.runtime.clone());
        let spawned = std::thread::Builder::new().name("sim-lane".to_owned()).spawn(move || {
            let _runtime = runtime.enter();
            LANE.set(Some(Arc::clone(&ours)));
            mooring_agent::workers::wait_by(|time| pass(time.max(LOOKS_AGAIN)));
            // Even the first call of a job may come after another job's.
            if let Some(time) = switch.takes_first() {
                pass(time);
            }
            run(&switch, job);
            ours.go(At::End);
        });
        if spawned.is_err() {
            self.switch.complain("no thread for a job of the simulation");
            return;
        }
        lock(&self.queue).lanes.push(Arc::clone(&lane));
        self.follow(&lane, before);
    }

    /// Waits until a lane gives the turn back, and records why. `before` is the number of the
    /// machine's calls that hung already.
    fn follow(&self, lane: &Arc<Lane>, before: usize) {
        let ended = |queue: &Mutex<Queue>| lock(queue).lanes.retain(|one| !Arc::ptr_eq(one, lane));
        match self.next_turn(lane, before) {
            Some(At::Waits(time)) => {
                let (jobs, lane) = (self.clone(), Arc::clone(lane));
                self.runtime.spawn(async move {
                    tokio::time::sleep(time).await;
                    if matches!(*lock(&lane.at), At::Waits(_)) {
                        let before = jobs.switch.machine().waiting();
                        lane.go(At::Work);
                        jobs.follow(&lane, before);
                        jobs.drain();
                    }
                });
            }
            Some(At::End) => ended(&self.queue),
            Some(At::Work) | None => {
                lane.closed.store(true, Ordering::Release);
                ended(&self.queue);
                lock(&self.hung.0).push((self.clone(), Arc::clone(lane)));
            }
        }
    }

    /// Returns the job's state when the turn comes back; `None` if the job hangs.
    fn next_turn(&self, lane: &Lane, before: usize) -> Option<At> {
        let may_hang = self.switch.may_hang();
        let patience = if may_hang { HANGS_AFTER } else { STUCK_AFTER };
        let mut at = lock(&lane.at);
        while *at == At::Work {
            let (now, waited) = lane.moved.wait_timeout(at, patience).unwrap_or_else(PoisonError::into_inner);
            at = now;
            if *at == At::Work && self.switch.machine().waiting() > before {
                return None;
            }
            if waited.timed_out() && !may_hang {
                self.switch.complain("a job waits for another one");
            }
        }
        Some(*at)
    }
}

fn run(switch: &Switch, job: Job) {
    if let Err(why) = catch_unwind(AssertUnwindSafe(job))
        && !why.is::<Killed>()
    {
        switch.complain("a kernel job of the agent panicked");
    }
}
