//! How wishes become true: for each volume one job at its storage agent, for each of its hosts one at that host's agent.
//!
//! A job looks at the rows and at what the agent said last, and does the next call: everything that it needs to go on is in
//! the store, so a controller that is killed between any two calls goes on after its start. One job of a key runs at a time;
//! jobs of different keys do not wait for each other.
//!
//! What must never happen here: a plan that is kept; a call for an object that the store does not know; a job that waits for
//! another volume's agent.

pub(crate) mod enrolled;
pub(crate) mod fenced;
mod first;
pub(crate) mod forced;
pub(crate) mod forgotten;
mod growth;
mod hears;
mod host;
pub(crate) mod leases;
mod looks;
mod manage;
mod once;
pub(crate) mod options;
pub(crate) mod place;
mod pulse;
mod reserved;
pub(crate) mod revert;
pub(crate) mod review;
mod rotate;
pub(crate) mod seen;
mod storage;
pub(crate) mod taking;
mod unsent;
mod upload;
mod waits;
pub(crate) mod wishes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use mooring_bus::Units;
use mooring_model::{AgentId, AttachmentId, VolumeId};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::agents::listener::Job;
use crate::agents::{Agents, lease};
use crate::audit::Audit;
use crate::error::Refusal;
use crate::store::{Db, FencedStore, ReadStore, Store, micros};
use options::ServiceOptions;
pub(crate) use pulse::Follower;
use pulse::Pulse;

/// How long an agent is asked to wait for the kernel.
pub(crate) const AGENT_WAIT_MS: u32 = 5_000;

/// After a call that was lost, and while something is not true yet: look again.
pub(crate) const AGAIN: Duration = Duration::from_secs(2);

/// How long a native attach may fail before it is given up.
pub(crate) const ATTACH_GIVE_UP: Duration = Duration::from_mins(1);

/// What a pass of a job leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing to do until somebody says otherwise.
    Idle,
    /// Something changed: look again at once.
    Again,
    /// Look again after this, or when somebody says so.
    After(Duration),
}

impl Next {
    /// What both of two passes leave.
    fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::Again, _) | (_, Self::Again) => Self::Again,
            (Self::After(one), Self::After(two)) => Self::After(one.min(two)),
            (Self::After(one), Self::Idle) | (Self::Idle, Self::After(one)) => Self::After(one),
            (Self::Idle, Self::Idle) => Self::Idle,
        }
    }
}

#[derive(Debug, Default)]
struct Flight {
    dirty: AtomicBool,
    wake: Notify,
    /// It waits for an answer that says all that reports say meanwhile.
    asking: AtomicBool,
    /// One of those came.
    heard: AtomicBool,
}

/// A job waits for its agent's answer. What the agent reports until then is looked at with the answer, and asks for no look of
/// its own; unless there is no answer.
struct Asking(Option<Arc<Flight>>);

impl Asking {
    /// It came. What is looked at after this is no older than any report that asked for no look.
    fn answered(mut self) {
        if let Some(flight) = self.0.take() {
            flight.asking.store(false, Ordering::SeqCst);
            flight.heard.store(false, Ordering::SeqCst);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(flight) = &self.0 {
            flight.asking.store(false, Ordering::SeqCst);
            if flight.heard.swap(false, Ordering::SeqCst) {
                flight.kick();
            }
        }
    }
}

impl Flight {
    /// Sees that its job looks again.
    fn kick(&self) {
        self.dirty.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

/// The control plane's inside: what every task holds.
pub(crate) struct Inner {
    pub(crate) options: ServiceOptions,
    /// The store, to look at.
    pub(crate) reads: ReadStore,
    /// The store, for work that is no agent's: no lease decides who does it. Work at an agent has [`Agents::held`].
    unleased: FencedStore,
    pub(crate) agents: Arc<Agents>,
    /// Held while rows of enrolments are read and the registry is made what they say.
    enrolling: tokio::sync::Mutex<()>,
    flights: Mutex<HashMap<Job, Arc<Flight>>>,
    /// In order, so that all are told in the same order each time.
    pulses: Mutex<BTreeMap<VolumeId, Pulse>>,
    clocks: Mutex<HashMap<AttachmentId, Instant>>,
    /// For those who only ask.
    pub(crate) looks: looks::Looks,
    waits: waits::Waits,
    tasks: Mutex<Option<JoinSet<()>>>,
    /// For other controllers on the same database.
    pub(crate) notes: lease::Notes,
    /// Lines of the audit log that are not in the database yet.
    pub(crate) audit: Audit,
    /// The states of systemd's units on this machine, if somebody follows them.
    pub(crate) units: OnceLock<watch::Receiver<Option<Units>>>,
    born: u64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("state_dir", &self.options.state_dir).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(crate) fn new(options: ServiceOptions, store: &Store) -> Self {
        let agents = Arc::new(Agents::new(options.agents.clone(), store.clone()));
        let now = options.clock.now();
        Self {
            notes: lease::Notes::new(store.dialer().is_some()),
            options,
            reads: store.read_only(),
            unleased: store.fenced(None),
            agents,
            enrolling: tokio::sync::Mutex::default(),
            flights: Mutex::default(),
            pulses: Mutex::default(),
            clocks: Mutex::default(),
            looks: looks::Looks::default(),
            waits: waits::Waits::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
            audit: Audit::default(),
            units: OnceLock::new(),
            // Revisions of an earlier run must not look like ours.
            born: u64::try_from(micros(now)).unwrap_or(0),
        }
    }

    /// Runs a task until its end, or ours.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut tasks = lock(&self.tasks);
        let tasks = tasks.as_mut()?;
        while tasks.try_join_next().is_some() {}
        Some(tasks.spawn(task))
    }

    /// Takes all tasks, to end them; none can be spawned any more.
    pub(crate) fn take_tasks(&self) -> Option<JoinSet<()>> {
        lock(&self.tasks).take()
    }

    /// Says that something of a volume may have changed. Returns its new revision.
    pub(crate) fn touch(&self, volume: VolumeId) -> u64 {
        self.notes.touch(volume);
        self.touch_here(volume)
    }

    /// The same, to those who follow it on this controller.
    pub(crate) fn touch_here(&self, volume: VolumeId) -> u64 {
        let mut pulses = lock(&self.pulses);
        pulses.entry(volume).or_insert_with(|| Pulse::new(self.born)).beat()
    }

    /// Follows what changes of a volume after a revision; also, whether something has already.
    pub(crate) fn follow_from(&self, volume: VolumeId, known: u64) -> (Follower, bool) {
        let changes = self.follow(volume);
        let news = changes.seen() != known;
        (changes, news)
    }

    /// Follows what changes of a volume.
    pub(crate) fn follow(&self, volume: VolumeId) -> Follower {
        let mut pulses = lock(&self.pulses);
        pulses.entry(volume).or_insert_with(|| Pulse::new(self.born)).follow()
    }

    /// The revision of a volume.
    pub(crate) fn revision(&self, volume: VolumeId) -> u64 {
        lock(&self.pulses).get(&volume).map_or(self.born, Pulse::revision)
    }

    /// A request came for this attachment: its steps are measured from now.
    pub(crate) fn start_clock(&self, id: AttachmentId, at: Instant) {
        lock(&self.clocks).insert(id, at);
    }

    pub(crate) fn stop_clock(&self, id: AttachmentId) {
        lock(&self.clocks).remove(&id);
    }

    /// Milliseconds since the request; after a restart, by the wall clock.
    pub(crate) fn elapsed_ms(&self, id: AttachmentId, created: SystemTime) -> u64 {
        let took = lock(&self.clocks).get(&id).map_or_else(
            || self.options.clock.now().duration_since(created).unwrap_or_default(),
            Instant::elapsed,
        );
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }

    /// Wakes everything that a change of wishes concerns, and says that there was one.
    pub(crate) fn go(self: &Arc<Self>, volume: VolumeId, hosts: &BTreeSet<AgentId>) {
        self.wake(volume, hosts);
        self.touch(volume);
    }

    /// Wakes everything that a change of wishes concerns.
    pub(crate) fn wake(self: &Arc<Self>, volume: VolumeId, hosts: &BTreeSet<AgentId>) {
        self.kick(Job::Storage(volume));
        for host in hosts {
            self.kick(Job::Host(volume, *host));
        }
        self.notes.wish(volume);
    }

    /// Sees that a job looks again, now or when its pass has ended.
    pub(crate) fn kick(self: &Arc<Self>, job: Job) {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&job) {
            flight.kick();
            return;
        }
        let flight = Arc::new(Flight::default());
        flights.insert(job, Arc::clone(&flight));
        drop(flights);
        let inner = Arc::clone(self);
        self.spawn(async move { inner.fly(job, &flight).await });
    }

    async fn fly(self: &Arc<Self>, job: Job, flight: &Flight) {
        loop {
            flight.dirty.store(false, Ordering::Release);
            let pass = async {
                match job {
                    Job::Storage(volume) => self.storage_pass(volume).await,
                    Job::Host(volume, host) => self.host_pass(volume, host).await,
                }
            };
            // Who drives the agent from now on does it all again.
            let next = lease::guarded(pass).await.unwrap_or(Ok(Next::Idle));
            let next = next.unwrap_or_else(|refusal| {
                tracing::warn!(?job, error = %refusal, "a pass failed");
                Next::After(AGAIN)
            });
            match next {
                Next::Again => {}
                Next::After(pause) => {
                    let woken = flight.wake.notified();
                    if !flight.dirty.load(Ordering::Acquire) {
                        let _ = tokio::time::timeout(pause, woken).await;
                    }
                }
                Next::Idle => {
                    let mut flights = lock(&self.flights);
                    // Under the lock: whoever kicks after this finds no flight and starts one.
                    if !flight.dirty.load(Ordering::Acquire) {
                        flights.remove(&job);
                        return;
                    }
                }
            }
        }
    }

    /// A storage agent's report came, or it is up: its volume looks again.
    pub(crate) fn storage_news(self: &Arc<Self>, volume: VolumeId) {
        self.kick(Job::Storage(volume));
        self.touch(volume);
    }

    /// From now on the job of a volume waits for its storage agent's answer.
    fn ask_storage(&self, volume: VolumeId) -> Asking {
        let flight = lock(&self.flights).get(&Job::Storage(volume)).cloned();
        if let Some(flight) = &flight {
            flight.asking.store(true, Ordering::SeqCst);
        }
        Asking(flight)
    }

    /// A storage agent's report of an export came, and is kept already. `shown`: those who follow the volume see it, too.
    pub(crate) fn export_news(self: &Arc<Self>, volume: VolumeId, shown: bool) {
        let flight = lock(&self.flights).get(&Job::Storage(volume)).cloned();
        let Some(flight) = flight.filter(|flight| flight.asking.load(Ordering::SeqCst)) else {
            return self.storage_news(volume);
        };
        flight.heard.store(true, Ordering::SeqCst);
        // It may have ended meanwhile without an answer.
        if !flight.asking.load(Ordering::SeqCst) && flight.heard.swap(false, Ordering::SeqCst) {
            return self.storage_news(volume);
        }
        if shown {
            self.touch(volume);
        }
    }

    /// A host's report came.
    pub(crate) fn host_news(self: &Arc<Self>, volume: VolumeId, host: AgentId) {
        self.kick(Job::Host(volume, host));
        self.touch(volume);
    }

    /// Says to all who follow anything that it may have changed.
    pub(crate) fn touch_all(&self) {
        self.touch_all_here();
    }

    /// The same, on this controller.
    pub(crate) fn touch_all_here(&self) {
        for pulse in lock(&self.pulses).values() {
            pulse.beat();
        }
    }

    /// After a start: goes on with everything that was on its way.
    pub(crate) async fn resume(self: &Arc<Self>) -> Result<(), Refusal> {
        let read = |db: &Db<'_>| Ok((db.volumes_in_motion()?, db.volumes_held()?));
        let (moving, held) = self.reads.read("list what was on its way", read).await?;
        for volume in moving {
            self.kick(Job::Storage(volume));
        }
        for (volume, mark) in held {
            self.arm_hold(volume, mark);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking() -> (Arc<Flight>, Asking) {
        let flight = Arc::new(Flight { asking: true.into(), ..Flight::default() });
        (Arc::clone(&flight), Asking(Some(flight)))
    }

    #[test]
    fn what_is_heard_before_an_answer_needs_no_look_of_its_own() {
        let (flight, asking) = asking();
        flight.heard.store(true, Ordering::SeqCst);
        asking.answered();
        assert!(!flight.dirty.load(Ordering::SeqCst) && !flight.asking.load(Ordering::SeqCst));
    }

    #[test]
    fn without_an_answer_it_is_looked_at() {
        for heard in [true, false] {
            let (flight, asking) = asking();
            flight.heard.store(heard, Ordering::SeqCst);
            drop(asking);
            assert_eq!(flight.dirty.load(Ordering::SeqCst), heard);
            assert!(!flight.asking.load(Ordering::SeqCst));
        }
    }
}
