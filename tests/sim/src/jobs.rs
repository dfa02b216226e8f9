//! The kernel work of one agent process, in lockstep: a job runs where it is submitted, at once, and virtual time stands
//! still meanwhile. On a machine with a device that hangs each job has a thread, and whoever submitted it waits until it has
//! ended or hangs in the fake kernel; when the device answers again, what hung goes on, one after another.
//!
//! What must never happen here: two jobs of one machine that run at the same moment; a job of a process that was killed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mooring_agent::workers::{Job, Workers};
use mooring_host::fake::FakeMachine;

use crate::lock;
use crate::switch::{Killed, Switch};

/// A thread with a job on it.
#[derive(Debug, Default)]
struct Lane {
    done: AtomicBool,
    /// Closed while the job hangs, so that what comes back from the kernel waits for its turn.
    closed: AtomicBool,
}

thread_local! {
    static LANE: RefCell<Option<Arc<Lane>>> = const { RefCell::new(None) };
}

/// Waits while this thread's lane is closed. The kernel's door calls it whenever a call has returned.
pub(crate) fn take_turn() {
    let lane = LANE.with_borrow(Clone::clone);
    if let Some(lane) = lane {
        while lane.closed.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

/// What hangs on one machine, whoever submitted it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hung(Arc<Mutex<Vec<Arc<Lane>>>>);

impl Hung {
    /// The device answers again: all calls return, and their jobs go on in the order in which they hung.
    pub(crate) fn go_on(&self, machine: &FakeMachine) {
        while machine.waiting() > 0 {
            std::thread::yield_now();
        }
        for lane in std::mem::take(&mut *lock(&self.0)) {
            lane.closed.store(false, Ordering::Release);
            while !lane.done.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Somebody is at it.
    at_work: bool,
}

/// The jobs of one agent process. Clones are the same process.
#[derive(Clone)]
pub(crate) struct Jobs {
    queue: Arc<Mutex<Queue>>,
    switch: Switch,
    hung: Hung,
    runtime: tokio::runtime::Handle,
}

impl Jobs {
    /// Must be called inside the run's runtime.
    pub(crate) fn new(switch: Switch, hung: Hung) -> Self {
        Self { queue: Arc::default(), switch, hung, runtime: tokio::runtime::Handle::current() }
    }

    /// As the agent takes them.
    pub(crate) fn workers(&self) -> Workers {
        let jobs = self.clone();
        Workers::given(move |job| jobs.submit(job))
    }

    fn submit(&self, job: Job) {
        if self.switch.is_dead() {
            return;
        }
        {
            let mut queue = lock(&self.queue);
            queue.jobs.push_back(job);
            if std::mem::replace(&mut queue.at_work, true) {
                return;
            }
        }
        self.drain();
    }

    /// Runs what a job left that had hung.
    pub(crate) fn resume(&self) {
        if !std::mem::replace(&mut lock(&self.queue).at_work, true) {
            self.drain();
        }
    }

    fn drain(&self) {
        loop {
            let job = {
                let mut queue = lock(&self.queue);
                let Some(job) = queue.jobs.pop_front() else {
                    queue.at_work = false;
                    return;
                };
                job
            };
            if self.switch.is_dead() {
                continue;
            }
            if self.switch.may_hang() { self.run_on_lane(job) } else { run(&self.switch, job) }
        }
    }

    fn run_on_lane(&self, job: Job) {
        let lane = Arc::new(Lane::default());
        let before = self.switch.machine().waiting();
        let (ours, switch, runtime) = (Arc::clone(&lane), self.switch.clone(), self.runtime.clone());
        let spawned = std::thread::Builder::new().name("sim-lane".to_owned()).spawn(move || {
            let _runtime = runtime.enter();
            LANE.set(Some(Arc::clone(&ours)));
            run(&switch, job);
            ours.done.store(true, Ordering::Release);
        });
        if spawned.is_err() {
            self.switch.complain("no thread for a job of the simulation");
            return;
        }
        while !lane.done.load(Ordering::Acquire) {
            if self.switch.machine().waiting() > before {
                lane.closed.store(true, Ordering::Release);
                lock(&self.hung.0).push(lane);
                return;
            }
            std::thread::yield_now();
        }
    }
}

fn run(switch: &Switch, job: Job) {
    if let Err(why) = catch_unwind(AssertUnwindSafe(job))
        && !why.is::<Killed>()
    {
        switch.complain("a kernel job of the agent panicked");
    }
}
