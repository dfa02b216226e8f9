//! Door of one process to the world: counted, and closed for good when the process is killed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mooring_host::{Errno, UeventItem, Uevents};
use mooring_model::{AttachmentId, VolumeId};

use super::World;
use crate::client::{ClientError, SessionEvent};
use crate::clock;
use crate::device::{Arrivals, Parts};
use crate::links::{LinkError, LinkName, LinkSeen, Links, ReadAhead, RunLinks};
use crate::op::DiskRef;
use crate::sessions::{SessionChanges, Sessions};
use crate::wire::{End, SessionSpec, SessionStatus};

/// Moment at which a process is killed: its n-th change of the world, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// The change is not done.
    Before(u64),
    /// The change is done, and nobody gets the answer.
    After(u64),
}

struct Shared {
    world: World,
    kill: Option<Kill>,
    changes: AtomicU64,
    calls: AtomicU64,
    dead: AtomicBool,
    log: Mutex<Vec<String>>,
    links: RunLinks,
}

/// A process's access to the world; clones share one process.
#[derive(Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

impl World {
    /// Starts a new process.
    pub fn door(&self, kill: Option<Kill>) -> Door {
        let links = RunLinks::new(self.lock().run_dir.clone(), "/dev");
        let shared = Shared {
            world: self.clone(),
            kill,
            changes: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            log: Mutex::default(),
            links,
        };
        Door { shared: Arc::new(shared) }
    }
}

impl Door {
    /// Returns all parts of a host, behind this door.
    pub fn parts(&self) -> Parts {
        Parts {
            sys: Arc::new(self.clone()),
            disks: Arc::new(self.clone()),
            links: Arc::new(self.clone()),
            sessions: Arc::new(self.clone()),
            arrivals: Arrivals::default(),
            dev: PathBuf::from("/dev"),
            recovery_timeout_s: 120,
        }
    }

    /// Returns the stream of uevents from now on.
    pub fn uevents(&self) -> Box<dyn Uevents> {
        let next = self.world().lock().uevents.len();
        Box::new(UeventReader { door: self.clone(), next })
    }

    /// Kills the process: every call fails from now on.
    pub fn kill(&self) {
        self.shared.dead.store(true, Ordering::SeqCst);
        self.world().change(|_| ());
    }

    /// Returns `true` if the process was killed.
    pub fn is_dead(&self) -> bool {
        self.shared.dead.load(Ordering::SeqCst)
    }

    /// Counts the changes of the world by this process.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::SeqCst)
    }

    /// Counts the calls of any kind by this process.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Returns the changes as words, in order.
    pub fn log(&self) -> Vec<String> {
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn world(&self) -> &World {
        &self.shared.world
    }

    /// Counts a look. The error means that the process is dead.
    pub(crate) fn look(&self) -> Result<(), Errno> {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if self.is_dead() { Err(Errno::ESRCH) } else { Ok(()) }
    }

    /// Makes a change, unless the process is killed before it.
    pub(crate) fn act<T>(&self, what: String, work: impl FnOnce() -> T) -> Result<T, Errno> {
        self.look()?;
        let number = self.shared.changes.fetch_add(1, Ordering::SeqCst) + 1;
        if self.shared.kill == Some(Kill::Before(number)) {
            self.kill();
            return Err(Errno::ESRCH);
        }
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        let value = work();
        if self.shared.kill == Some(Kill::After(number)) {
            self.kill();
            return Err(Errno::ESRCH);
        }
        Ok(value)
    }

    fn down() -> ClientError {
        let path = PathBuf::from("/run/mooring/sessiond/sessiond.sock");
        ClientError::Connect { path, source: std::io::ErrorKind::ConnectionRefused.into() }
    }

    fn sessiond(&self) -> Result<(), ClientError> {
        if self.look().is_err() || !self.world().lock().up { Err(Self::down()) } else { Ok(()) }
    }
}

impl Sessions for Door {
    fn ensure(&self, spec: &SessionSpec, _wait: Duration) -> Result<SessionStatus, ClientError> {
        self.sessiond()?;
        let ensured =
            self.act(format!("ensure {}", spec.volume), || self.world().change(|state| state.ensure(spec)));
        let status = ensured.map_err(|_| Self::down())?;
        self.world().lock().told.insert(spec.volume, status.state);
        Ok(status)
    }

    fn end(&self, volume: VolumeId, how: End, _wait: Duration) -> Result<Option<SessionStatus>, ClientError> {
        self.sessiond()?;
        let ended =
            self.act(format!("end {volume} {how:?}"), || self.world().change(|state| state.end(volume, how)));
        ended.map(|()| None).map_err(|_| Self::down())
    }

    fn get(&self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError> {
        self.sessiond()?;
        let mut state = self.world().lock();
        let status = state.sessions.get(&volume).map(|(_, status)| status.clone());
        match &status {
            Some(status) => state.told.insert(volume, status.state),
            None => state.told.remove(&volume),
        };
        Ok(status)
    }

    fn list(&self) -> Result<Vec<SessionStatus>, ClientError> {
        self.sessiond()?;
        Ok(self.world().lock().sessions.values().map(|(_, status)| status.clone()).collect())
    }

    fn watch(&self) -> Result<Box<dyn SessionChanges>, ClientError> {
        let mut first: Vec<_> = self.list()?.into_iter().map(Box::new).map(SessionEvent::Session).collect();
        first.push(SessionEvent::Synced);
        first.reverse();
        let state = self.world().lock();
        Ok(Box::new(Changes { door: self.clone(), first, next: state.events.len(), life: state.lives }))
    }
}

struct Changes {
    door: Door,
    first: Vec<SessionEvent>,
    next: usize,
    life: u64,
}

impl SessionChanges for Changes {
    fn next(&mut self, wait: Duration) -> Result<Option<SessionEvent>, ClientError> {
        if let Some(event) = self.first.pop() {
            return Ok(Some(event));
        }
        let until = clock::instant() + wait;
        let world = self.door.world().clone();
        let mut state = world.lock();
        loop {
            if self.door.is_dead() || state.lives != self.life || !state.up {
                return Err(Door::down());
            }
            if let Some(event) = state.events.get(self.next).cloned() {
                self.next += 1;
                return Ok(Some(event));
            }
            let left = until.saturating_duration_since(clock::instant());
            if left.is_zero() {
                return Ok(None);
            }
            state = world.wait(state, left);
        }
    }
}

struct UeventReader {
    door: Door,
    next: usize,
}

impl Uevents for UeventReader {
    fn next(&mut self, wait: Duration) -> Result<Option<UeventItem>, Errno> {
        let until = clock::instant() + wait;
        let world = self.door.world().clone();
        let mut state = world.lock();
        loop {
            if self.door.is_dead() {
                return Err(Errno::ESRCH);
            }
            if let Some(event) = state.uevents.get(self.next).cloned() {
                self.next += 1;
                return Ok(Some(UeventItem::Event(event)));
            }
            let left = until.saturating_duration_since(clock::instant());
            if left.is_zero() {
                return Ok(None);
            }
            state = world.wait(state, left);
        }
    }
}

fn dead(_: Errno) -> LinkError {
    LinkError { what: "use", path: PathBuf::new(), error: "this process is dead".to_owned(), operator: false }
}

impl Links for Door {
    fn path(&self, link: LinkName) -> PathBuf {
        self.shared.links.path(link)
    }

    fn look(&self, link: LinkName) -> Result<LinkSeen, LinkError> {
        Self::look(self).map_err(dead)?;
        self.shared.links.look(link)
    }

    fn recorded(&self, volume: VolumeId) -> Result<BTreeSet<AttachmentId>, LinkError> {
        Self::look(self).map_err(dead)?;
        self.shared.links.recorded(volume)
    }

    fn make(&self, volume: VolumeId, link: LinkName, device: &Path) -> Result<(), LinkError> {
        self.world().change(|state| state.check_link(volume, link, device));
        self.act(format!("link {link} -> {}", device.display()), || {
            self.shared.links.make(volume, link, device)
        })
        .map_err(dead)?
    }

    fn read_ahead(&self, volume: VolumeId) -> Result<Option<ReadAhead>, LinkError> {
        Self::look(self).map_err(dead)?;
        self.shared.links.read_ahead(volume)
    }

    fn keep_read_ahead(&self, volume: VolumeId, kept: Option<ReadAhead>) -> Result<(), LinkError> {
        let what = kept.map_or_else(
            || "forget the read-ahead".to_owned(),
            |kept| format!("keep the read-ahead {}", kept.sectors),
        );
        self.act(what, || self.shared.links.keep_read_ahead(volume, kept)).map_err(dead)?
    }

    fn name_disk(&self, volume: VolumeId, disk: &DiskRef) -> Result<(), LinkError> {
        self.act(format!("name {}", disk.path.display()), || self.shared.links.name_disk(volume, disk))
            .map_err(dead)?
    }

    fn is_disk_named(&self, volume: VolumeId, sequence: u64) -> Result<bool, LinkError> {
        Self::look(self).map_err(dead)?;
        self.shared.links.is_disk_named(volume, sequence)
    }

    fn remove(&self, volume: VolumeId, link: LinkName) -> Result<(), LinkError> {
        self.act(format!("unlink {link}"), || self.shared.links.remove(volume, link)).map_err(dead)?
    }
}
