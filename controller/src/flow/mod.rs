//! Jobs that bring specs into force: for each volume one at its storage agent, and one at the agent
//! of each of its hosts.
//!
//! A job reads the rows and the agent's last reports, and makes the next call. The store holds
//! everything that a job needs, so a controller that is killed between any two calls goes on after
//! its start. One job of a key runs at a time; jobs of different keys do not wait for each other.
//!
//! What must never happen here: a plan that is kept between passes; a call for an object that the
//! store does not know; a job that waits for another volume's agent.

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
mod refused;
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

/// Time, in milliseconds, for which an agent may wait for the kernel before it answers.
pub(crate) const AGENT_WAIT_MS: u32 = 5_000;

/// Pause before the next look after a call was lost, or while a spec is not in force yet.
pub(crate) const AGAIN: Duration = Duration::from_secs(2);

/// Time for which a native attach may fail before it is given up.
pub(crate) const ATTACH_GIVE_UP: Duration = Duration::from_mins(1);

/// Result of a job's pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing to do until the job is kicked.
    Idle,
    /// Something changed: the next pass begins at once.
    Again,
    /// The next pass begins after this time, or when the job is kicked.
    After(Duration),
}

impl Next {
    /// Combines the results of two passes: the sooner one.
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
    /// The job waits for an answer that contains all that reports tell meanwhile.
    asking: AtomicBool,
    /// Such a report came.
    heard: AtomicBool,
}

/// Marks that a job waits for its agent's answer. A report that comes meanwhile is looked at with
/// the answer, and asks for no pass of its own. If no answer comes, it does.
struct Asking(Option<Arc<Flight>>);

impl Asking {
    /// Notes that the answer came. The look that follows is no older than any report that asked for
    /// no pass.
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
    /// Makes the job look again.
    fn kick(&self) {
        self.dirty.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

/// State of the control plane that every task shares.
pub(crate) struct Inner {
    pub(crate) options: ServiceOptions,
    /// The store, for reads.
    pub(crate) reads: ReadStore,
    /// The store, for work at no agent: no lease decides which controller does it. Work at an agent
    /// uses [`Agents::held`].
    unleased: FencedStore,
    pub(crate) agents: Arc<Agents>,
    /// Held from the read of the enrolment rows until the registry agrees with them.
    enrolling: tokio::sync::Mutex<()>,
    flights: Mutex<HashMap<Job, Arc<Flight>>>,
    /// Ordered, so that followers are always woken in the same order.
    pulses: Mutex<BTreeMap<VolumeId, Pulse>>,
    clocks: Mutex<HashMap<AttachmentId, Instant>>,
    /// Shared looks for callers that only ask.
    pub(crate) looks: looks::Looks,
    waits: waits::Waits,
    tasks: Mutex<Option<JoinSet<()>>>,
    /// Notes to other controllers on the same database.
    pub(crate) notes: lease::Notes,
    /// Lines of the audit log that are not in the database yet.
    pub(crate) audit: Audit,
    /// States of systemd's units on this machine. Empty: nothing follows them.
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
            // Revisions of an earlier run must not look like those of this one.
            born: u64::try_from(micros(now)).unwrap_or(0),
        }
    }

    /// Runs a task until it ends, or the controller does. `None`: the controller is stopping.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut tasks = lock(&self.tasks);
        let tasks = tasks.as_mut()?;
        while tasks.try_join_next().is_some() {}
        Some(tasks.spawn(task))
    }

    /// Takes all tasks, so that the caller can end them. No task can be spawned from then on.
    pub(crate) fn take_tasks(&self) -> Option<JoinSet<()>> {
        lock(&self.tasks).take()
    }

    /// Announces that something of a volume may have changed. Returns its new revision.
    pub(crate) fn touch(&self, volume: VolumeId) -> u64 {
        self.notes.touch(volume);
        self.touch_here(volume)
    }

    /// Does as [`Inner::touch`], only for the followers on this controller.
    pub(crate) fn touch_here(&self, volume: VolumeId) -> u64 {
        let mut pulses = lock(&self.pulses);
        pulses.entry(volume).or_insert_with(|| Pulse::new(self.born)).beat()
    }

    /// Follows a volume's changes. Also returns `true` if its revision already differs from
    /// `known`.
    pub(crate) fn follow_from(&self, volume: VolumeId, known: u64) -> (Follower, bool) {
        let changes = self.follow(volume);
        let news = changes.seen() != known;
        (changes, news)
    }

    /// Follows a volume's changes from now on.
    pub(crate) fn follow(&self, volume: VolumeId) -> Follower {
        let mut pulses = lock(&self.pulses);
        pulses.entry(volume).or_insert_with(|| Pulse::new(self.born)).follow()
    }

    /// Returns the revision of a volume.
    pub(crate) fn revision(&self, volume: VolumeId) -> u64 {
        lock(&self.pulses).get(&volume).map_or(self.born, Pulse::revision)
    }

    /// Starts the clock of an attachment's steps, because a request for it came.
    pub(crate) fn start_clock(&self, id: AttachmentId, at: Instant) {
        lock(&self.clocks).insert(id, at);
    }

    pub(crate) fn stop_clock(&self, id: AttachmentId) {
        lock(&self.clocks).remove(&id);
    }

    /// Returns the milliseconds since the request. After a restart: by the wall clock.
    pub(crate) fn elapsed_ms(&self, id: AttachmentId, created: SystemTime) -> u64 {
        let took = lock(&self.clocks).get(&id).map_or_else(
            || self.options.clock.now().duration_since(created).unwrap_or_default(),
            Instant::elapsed,
        );
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }

    /// Wakes everything that a change of a volume's specs concerns, and announces that change.
    pub(crate) fn go(self: &Arc<Self>, volume: VolumeId, hosts: &BTreeSet<AgentId>) {
        self.wake(volume, hosts);
        self.touch(volume);
    }

    /// Wakes everything that a change of a volume's specs concerns.
    pub(crate) fn wake(self: &Arc<Self>, volume: VolumeId, hosts: &BTreeSet<AgentId>) {
        self.kick(Job::Storage(volume));
        for host in hosts {
            self.kick(Job::Host(volume, *host));
        }
        self.notes.wish(volume);
    }

    /// Makes a job look again: now, or when its present pass has ended.
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
            // The controller that drives the agent from now on does all of it again.
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
                    // Under the lock: a kick after this finds no flight, and starts one.
                    if !flight.dirty.load(Ordering::Acquire) {
                        flights.remove(&job);
                        return;
                    }
                }
            }
        }
    }

    /// Makes a volume's job look again, because its storage agent reported or came up.
    pub(crate) fn storage_news(self: &Arc<Self>, volume: VolumeId) {
        self.kick(Job::Storage(volume));
        self.touch(volume);
    }

    /// Marks that the job of a volume waits for its storage agent's answer.
    fn ask_storage(&self, volume: VolumeId) -> Asking {
        let flight = lock(&self.flights).get(&Job::Storage(volume)).cloned();
        if let Some(flight) = &flight {
            flight.asking.store(true, Ordering::SeqCst);
        }
        Asking(flight)
    }

    /// Handles a storage agent's report of an export, which is kept already. `shown`: also wakes
    /// everybody who follows the volume.
    pub(crate) fn export_news(self: &Arc<Self>, volume: VolumeId, shown: bool) {
        let flight = lock(&self.flights).get(&Job::Storage(volume)).cloned();
        let Some(flight) = flight.filter(|flight| flight.asking.load(Ordering::SeqCst)) else {
            return self.storage_news(volume);
        };
        flight.heard.store(true, Ordering::SeqCst);
        // The wait may have ended meanwhile without an answer.
        if !flight.asking.load(Ordering::SeqCst) && flight.heard.swap(false, Ordering::SeqCst) {
            return self.storage_news(volume);
        }
        if shown {
            self.touch(volume);
        }
    }

    /// Makes a connection's job look again, because its host reported.
    pub(crate) fn host_news(self: &Arc<Self>, volume: VolumeId, host: AgentId) {
        self.kick(Job::Host(volume, host));
        self.touch(volume);
    }

    /// Announces to all followers at this controller that something may have changed.
    pub(crate) fn touch_all(&self) {
        for pulse in lock(&self.pulses).values() {
            pulse.beat();
        }
    }

    /// Goes on after a start with all work that was under way.
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
