//! How wishes become true: for each volume one job at its storage agent, for each of its hosts one at that host's agent.
//!
//! A job looks at the rows and at what the agent said last, and does the next call: everything that it needs to go on is in
//! the store, so a controller that is killed between any two calls goes on after its start. One job of a key runs at a time;
//! jobs of different keys do not wait for each other.
//!
//! What must never happen here: a plan that is kept; a call for an object that the store does not know; a job that waits for
//! another volume's agent.

mod host;
pub(crate) mod review;
mod storage;
pub(crate) mod wishes;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mooring_model::{AgentId, AttachmentId, VolumeId};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::agents::Agents;
use crate::service::{Refusal, ServiceOptions};
use crate::store::{Store, micros};

/// How long an agent is asked to wait for the kernel.
pub(crate) const AGENT_WAIT_MS: u32 = 5_000;

/// After a call that was lost, and while something is not true yet: look again.
pub(crate) const AGAIN: Duration = Duration::from_secs(2);

/// How long a native attach may fail before it is given up.
pub(crate) const ATTACH_GIVE_UP: Duration = Duration::from_mins(1);

/// A key of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Job {
    /// A volume and its export, at its storage agent.
    Storage(VolumeId),
    /// Its connection, at a host's agent.
    Host(VolumeId, AgentId),
}

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

#[derive(Debug, Default)]
struct Flight {
    dirty: AtomicBool,
    wake: Notify,
}

/// The control plane's inside: what every task holds.
pub(crate) struct Inner {
    pub(crate) options: ServiceOptions,
    pub(crate) store: Store,
    pub(crate) agents: Agents,
    flights: Mutex<HashMap<Job, Arc<Flight>>>,
    pulses: Mutex<HashMap<VolumeId, watch::Sender<u64>>>,
    clocks: Mutex<HashMap<AttachmentId, Instant>>,
    tasks: Mutex<Option<JoinSet<()>>>,
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
    pub(crate) fn new(options: ServiceOptions, store: Store) -> Self {
        let agents = Agents::new(options.agents.clone());
        Self {
            options,
            store,
            agents,
            flights: Mutex::default(),
            pulses: Mutex::default(),
            clocks: Mutex::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
            // Revisions of an earlier run must not look like ours.
            born: u64::try_from(micros(SystemTime::now())).unwrap_or(0),
        }
    }

    /// Runs a task until its end, or ours.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = lock(&self.tasks).as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }

    /// Takes all tasks, to end them; none can be spawned any more.
    pub(crate) fn take_tasks(&self) -> Option<JoinSet<()>> {
        lock(&self.tasks).take()
    }

    /// Says that something of a volume may have changed.
    pub(crate) fn touch(&self, volume: VolumeId) {
        let mut pulses = lock(&self.pulses);
        let pulse = pulses.entry(volume).or_insert_with(|| watch::Sender::new(self.born));
        pulse.send_modify(|revision| *revision += 1);
    }

    /// Follows what changes of a volume.
    pub(crate) fn follow(&self, volume: VolumeId) -> watch::Receiver<u64> {
        let mut pulses = lock(&self.pulses);
        pulses.entry(volume).or_insert_with(|| watch::Sender::new(self.born)).subscribe()
    }

    /// The revision of a volume.
    pub(crate) fn revision(&self, volume: VolumeId) -> u64 {
        lock(&self.pulses).get(&volume).map_or(self.born, |pulse| *pulse.borrow())
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
        let took = lock(&self.clocks)
            .get(&id)
            .map_or_else(|| SystemTime::now().duration_since(created).unwrap_or_default(), Instant::elapsed);
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }

    /// Wakes everything that a change of wishes concerns.
    pub(crate) fn go(self: &Arc<Self>, volume: VolumeId, hosts: &BTreeSet<AgentId>) {
        self.kick(Job::Storage(volume));
        for host in hosts {
            self.kick(Job::Host(volume, *host));
        }
        self.touch(volume);
    }

    /// Sees that a job looks again, now or when its pass has ended.
    pub(crate) fn kick(self: &Arc<Self>, job: Job) {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&job) {
            flight.dirty.store(true, Ordering::Release);
            flight.wake.notify_one();
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
            let next = match job {
                Job::Storage(volume) => self.storage_pass(volume).await,
                Job::Host(volume, host) => self.host_pass(volume, host).await,
            };
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

    /// A host's report came.
    pub(crate) fn host_news(self: &Arc<Self>, volume: VolumeId, host: AgentId) {
        self.kick(Job::Host(volume, host));
        self.touch(volume);
    }

    /// Says to all who follow anything that it may have changed.
    pub(crate) fn touch_all(&self) {
        for pulse in lock(&self.pulses).values() {
            pulse.send_modify(|revision| *revision += 1);
        }
    }

    /// After a start: goes on with everything that was on its way.
    pub(crate) async fn resume(self: &Arc<Self>) -> Result<(), Refusal> {
        let moving = self.store.read("list what was on its way", |db| Ok(db.volumes_in_motion()?)).await?;
        for volume in moving {
            self.kick(Job::Storage(volume));
        }
        Ok(())
    }
}
