//! Shutdowns wait a moment for a disk that is leaving this host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mooring_api::v1;
use mooring_bus::fake::{Daemon, Fake};
use mooring_connectors::client::ClientError;
use mooring_connectors::wire::{End, SessionSpec, SessionStatus};
use mooring_connectors::{SessionChanges, Sessions};
use mooring_model::VolumeId;

use crate::rig::*;

/// Sessions that end when they may.
struct Slow {
    sessions: Arc<dyn Sessions>,
    may_end: Arc<AtomicBool>,
}

impl Sessions for Slow {
    fn ensure(&self, wish: &SessionSpec, wait: Duration) -> Result<SessionStatus, ClientError> {
        self.sessions.ensure(wish, wait)
    }

    fn end(&self, volume: VolumeId, how: End, wait: Duration) -> Result<Option<SessionStatus>, ClientError> {
        eventually("it may end", || self.may_end.load(Ordering::SeqCst));
        self.sessions.end(volume, how, wait)
    }

    fn get(&self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError> {
        self.sessions.get(volume)
    }

    fn list(&self) -> Result<Vec<SessionStatus>, ClientError> {
        self.sessions.list()
    }

    fn watch(&self) -> Result<Box<dyn SessionChanges>, ClientError> {
        self.sessions.watch()
    }
}

#[test]
fn a_detach_that_takes_its_time_delays_a_shutdown_until_it_has_ended() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let daemon = Daemon::started();
    let fake = Arc::new(runtime.block_on(Fake::serve(&daemon, &[])));
    let site = Site::exporting(&[1]);
    let door = site.world.door(None);
    let mut parts = door.parts();
    let may_end = Arc::<AtomicBool>::default();
    parts.sessions = Arc::new(Slow { sessions: parts.sessions, may_end: Arc::clone(&may_end) });
    let agent = start_agent_on(Some(daemon.bus()), &site.config, parts, door.uevents(), Some(door.clone()));
    agent.make(agent.put(1, 1, &[(1, RW)]));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(fake.locks(), Vec::<String>::new(), "nothing leaves");
    let watching = Arc::clone(&fake);
    let seen = std::thread::spawn(move || {
        eventually("the lock", || {
            watching.locks() == ["shutdown delay Mooring agent: 1 disk is being detached"]
        });
        may_end.store(true, Ordering::SeqCst);
    });
    assert_eq!(agent.make(tombstone(1, 2, false)).phase(), v1::ConnectionPhase::Gone);
    seen.join().unwrap();
    eventually("its end", || fake.locks().is_empty());
    site.assert_nothing_left(1);
}
