//! Things that are read beside the database: the options, and what agents and requests have told.
//!
//! What must never happen here: work at an agent; a change of the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use mooring_model::{AttachmentId, ClusterId, VolumeId};
use tokio::time::Instant;

use super::lock;
use super::options::ServiceOptions;
use super::pulse::Pulses;
use super::waits::Waits;
use crate::agents::Agents;
use crate::clock::SteadyClock;
use crate::policy::Policies;
use crate::store::{Store, micros};

/// Things that transactions and views read beside the database. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) options: Arc<ServiceOptions>,
    pub(crate) agents: Arc<Agents>,
    pub(crate) cluster: ClusterId,
    /// Revisions of the volumes, with their followers.
    pub(super) pulses: Arc<Pulses>,
    /// Times for which this controller has waited for something.
    pub(super) waits: Arc<Waits>,
    /// The wall clock, for what goes by age.
    pub(crate) steady: Arc<SteadyClock>,
    clocks: Arc<Mutex<HashMap<AttachmentId, Instant>>>,
}

impl Facts {
    pub(super) fn new(options: ServiceOptions, store: &Store) -> Self {
        let agents = Agents::new(options.agents.clone(), store.clone());
        // Revisions of an earlier run must not look like those of this one.
        let born = u64::try_from(micros(options.clock.now())).unwrap_or(0);
        Self {
            waits: Arc::new(Waits::new(options.clock.clone())),
            steady: Arc::new(SteadyClock::new(options.clock.clone())),
            options: Arc::new(options),
            agents: Arc::new(agents),
            cluster: store.cluster(),
            pulses: Arc::new(Pulses::new(born)),
            clocks: Arc::default(),
        }
    }

    /// Rules that say which caller may do what.
    pub(crate) fn policies(&self) -> &Policies {
        &self.options.policies
    }

    /// Returns the revision of a volume.
    pub(crate) fn revision(&self, volume: VolumeId) -> u64 {
        self.pulses.revision(volume)
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
}
