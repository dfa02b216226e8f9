//! Jobs that bring specs into force: for each volume one at its storage agent, and one at the agent
//! of each of its hosts.
//!
//! A job reads the rows and the agent's last reports, and makes the next call. The store holds
//! everything that a job needs, so a controller that is killed between any two calls goes on after
//! its start. One job of a key runs at a time; jobs of different keys do not wait for each other.
//!
//! What must never happen here: a plan that is kept between passes; a call for an object that the
//! store does not know; a job that waits for another volume's agent.

mod cascade;
pub(crate) mod enrolled;
pub(crate) mod facts;
pub(crate) mod fenced;
mod first;
mod flights;
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
mod shut_out;
mod storage;
pub(crate) mod taking;
mod tasks;
mod unsent;
mod upload;
pub(crate) mod volume_specs;
mod waits;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_model::{AgentId, VolumeId};

use crate::agents::lease;
use crate::agents::listener::Job;
use crate::error::Refusal;
use crate::store::{Db, FencedStore, ReadStore, Store};
pub(crate) use facts::Facts;
use flights::{Asking, Flight, Flights};
use options::ServiceOptions;
pub(crate) use pulse::Follower;
use tasks::Tasks;

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

/// Work of the control plane: jobs, and what they wait for and announce.
pub(crate) struct Flow {
    pub(crate) facts: Facts,
    /// The store, for reads.
    pub(crate) reads: ReadStore,
    /// The store, for work at no agent: no lease decides which controller does it. Work at an agent
    /// uses [`Agents::held`](crate::agents::Agents::held).
    unleased: FencedStore,
    /// Held from the read of the enrolment rows until the registry agrees with them.
    enrolling: tokio::sync::Mutex<()>,
    flights: Flights,
    /// Shared looks for callers that only ask.
    looks: looks::Looks,
    pub(crate) tasks: Tasks,
    /// Notes to other controllers on the same database.
    pub(crate) notes: lease::Notes,
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("state_dir", &self.facts.options.state_dir).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flow {
    pub(crate) fn new(options: ServiceOptions, store: &Store) -> Self {
        Self {
            facts: Facts::new(options, store),
            reads: store.read_only(),
            unleased: store.fenced(None),
            enrolling: tokio::sync::Mutex::default(),
            flights: Flights::default(),
            looks: looks::Looks::default(),
            tasks: Tasks::default(),
            notes: lease::Notes::new(store.dialer().is_some()),
        }
    }

    /// Announces that something of a volume may have changed. Returns its new revision.
    pub(crate) fn touch(&self, volume: VolumeId) -> u64 {
        self.notes.touch(volume);
        self.touch_here(volume)
    }

    /// Does as [`Flow::touch`], only for the followers on this controller.
    pub(crate) fn touch_here(&self, volume: VolumeId) -> u64 {
        self.facts.pulses.beat(volume)
    }

    /// Announces to all followers at this controller that something may have changed.
    pub(crate) fn touch_all(&self) {
        self.facts.pulses.beat_all();
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
        self.facts.pulses.follow(volume)
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
        self.notes.spec_changed(volume);
    }

    /// Makes a job look again: now, or when its present pass has ended.
    pub(crate) fn kick(self: &Arc<Self>, job: Job) {
        let Some(flight) = self.flights.kick(job) else { return };
        let flow = Arc::clone(self);
        self.tasks.spawn(async move { flow.fly(job, &flight).await });
    }

    async fn fly(self: &Arc<Self>, job: Job, flight: &Flight) {
        loop {
            flight.begin();
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
                Next::After(pause) => flight.pause(pause).await,
                Next::Idle if self.flights.end(job, flight) => return,
                Next::Again | Next::Idle => {}
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
        self.flights.ask(Job::Storage(volume))
    }

    /// Handles a storage agent's report of an export, which is kept already. `shown`: also wakes
    /// everybody who follows the volume.
    pub(crate) fn export_news(self: &Arc<Self>, volume: VolumeId, shown: bool) {
        if !self.flights.hear(Job::Storage(volume)) {
            self.storage_news(volume);
        } else if shown {
            self.touch(volume);
        }
    }

    /// Makes a connection's job look again, because its host reported.
    pub(crate) fn host_news(self: &Arc<Self>, volume: VolumeId, host: AgentId) {
        self.kick(Job::Host(volume, host));
        self.touch(volume);
    }

    /// Goes on after a start with all work that was under way.
    pub(crate) async fn resume(self: &Arc<Self>) -> Result<(), Refusal> {
        let read = |db: &Db<'_>| Ok((db.volumes_in_motion()?, waits::announced(db)?));
        let (moving, announced) = self.reads.read("list what was on its way", read).await?;
        for volume in moving {
            self.kick(Job::Storage(volume));
        }
        self.arm_all(announced);
        Ok(())
    }
}
