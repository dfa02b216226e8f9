//! Board with the public state of every session, and the channel to its thread. One lock, held for
//! moments: nothing blocks under it.
//!
//! What must never happen here: a wait under the lock; a watcher that holds up a session (one that
//! reads too slowly is dropped); an order that is lost because a session ends at the same moment.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mooring_host::IscsiEvent;
use mooring_model::{Iqn, Lun, Naa, VolumeId};

use crate::clock;
use crate::wire::{Answer, End, SessionSpec, SessionState, SessionStatus};

/// Number of events that a watcher may be behind, beyond the number of sessions. One that is
/// further behind is dropped and asks anew.
const WATCH_BEHIND_MAX: usize = 1024;

/// An order to a session's thread.
#[derive(Debug)]
pub(crate) enum Order {
    /// Keep a session by this spec.
    Ensure(Box<SessionSpec>),
    /// End the session.
    End(End),
    /// An event of the kernel.
    Event(IscsiEvent),
    /// Events may have been lost: look at sysfs.
    Look,
    /// Result of a check of the disk's identity that this session began, by the number of the
    /// check.
    Checked(u64, super::identity::Verdict),
    /// This daemon stops; the session stays.
    Stop,
}

/// An order and its number.
pub(crate) type Numbered = (u64, Order);

/// The parameters that two specs of one session must share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    initiator: Iqn,
    target: Iqn,
    tpg: u16,
    lun: Lun,
    naa: Naa,
    serial: Option<String>,
}

impl Key {
    pub(crate) fn of(spec: &SessionSpec) -> Self {
        Self {
            initiator: spec.initiator.clone(),
            target: spec.target.clone(),
            tpg: spec.tpg,
            lun: spec.lun,
            naa: spec.naa.clone(),
            serial: spec.unit_serial(),
        }
    }
}

#[derive(Debug)]
struct Slot {
    key: Key,
    status: SessionStatus,
    orders: Sender<Numbered>,
    /// Number of this session's life, which tells it from an earlier session of this volume.
    life: u64,
    /// Number of the last order that the thread has handled: `status` shows its effect.
    served: u64,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<VolumeId, Slot>,
    sids: BTreeMap<u32, VolumeId>,
    watchers: Vec<SyncSender<Answer>>,
    number: u64,
}

impl State {
    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn tell(&mut self, answer: &Answer) {
        self.watchers.retain(|watcher| match watcher.try_send(answer.clone()) {
            Ok(()) => true,
            // The receiver ends when the sender is gone, and its client with it.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        });
    }
}

/// Board of all sessions; clones share one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board {
    shared: Arc<(Mutex<State>, Condvar)>,
}

/// Place of a session on the board.
pub(crate) enum Place<'a> {
    /// The session exists: this order was sent to it.
    Sent(Sent),
    /// The session exists and does not fit the spec.
    Conflict(Box<SessionStatus>),
    /// No session exists: enter one.
    Free(Vacancy<'a>),
}

/// An order that was sent to a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    volume: VolumeId,
    life: u64,
    number: u64,
}

/// A volume without a session, under the board's lock.
pub(crate) struct Vacancy<'a> {
    state: MutexGuard<'a, State>,
    volume: VolumeId,
    changed: &'a Condvar,
}

impl Sent {
    /// Returns the volume of the session.
    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }
}

impl Vacancy<'_> {
    /// Counts the sessions.
    pub(crate) fn sessions(&self) -> usize {
        self.state.slots.len()
    }

    /// Enters a session. Its thread gets the receiver.
    pub(crate) fn enter(
        mut self,
        key: Key,
        status: SessionStatus,
    ) -> (Receiver<Numbered>, Sender<Numbered>, Sent) {
        let (orders, taken) = std::sync::mpsc::channel();
        let life = self.state.number();
        self.state.tell(&Answer::Session { session: status.clone() });
        let slot = Slot { key, status, orders: orders.clone(), life, served: life };
        self.state.slots.insert(self.volume, slot);
        self.changed.notify_all();
        (taken, orders, Sent { volume: self.volume, life, number: life })
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock does no harm: nothing under it panics half-way through a change.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a spec to the session of its volume, if one exists that fits it.
    pub(crate) fn ensure(&self, spec: &SessionSpec) -> Place<'_> {
        let mut state = self.lock();
        let number = state.number();
        let volume = spec.volume;
        let Some(slot) = state.slots.get_mut(&volume) else {
            return Place::Free(Vacancy { state, volume, changed: &self.shared.1 });
        };
        let key = Key::of(spec);
        if slot.key != key {
            let replaceable = match slot.status.state {
                SessionState::Ending => true,
                SessionState::Forbidden | SessionState::Failed | SessionState::WrongDisk => {
                    spec.generation > slot.status.generation
                }
                SessionState::Connecting | SessionState::LoggedIn | SessionState::Recovering => false,
            };
            if !replaceable {
                return Place::Conflict(Box::new(slot.status.clone()));
            }
            slot.key = key;
        }
        // A thread that ended without leaving the board has panicked, and the process is about to
        // abort.
        let _ = slot.orders.send((number, Order::Ensure(Box::new(spec.clone()))));
        Place::Sent(Sent { volume, life: slot.life, number })
    }

    /// Sends the order to end to the session of a volume; `None` if there is none.
    pub(crate) fn end(&self, volume: VolumeId, how: End) -> Option<Sent> {
        let mut state = self.lock();
        let number = state.number();
        let slot = state.slots.get(&volume)?;
        let _ = slot.orders.send((number, Order::End(how)));
        Some(Sent { volume, life: slot.life, number })
    }

    /// Asks the session of a volume to look at sysfs.
    pub(crate) fn look(&self, volume: VolumeId) {
        if let Some(slot) = self.lock().slots.get(&volume) {
            let _ = slot.orders.send((0, Order::Look));
        }
    }

    /// Returns a volume's free place, for a session that existed before this process. `None` if the
    /// place is taken.
    pub(crate) fn vacancy(&self, volume: VolumeId) -> Option<Vacancy<'_>> {
        let state = self.lock();
        let free = !state.slots.contains_key(&volume);
        free.then(|| Vacancy { state, volume, changed: &self.shared.1 })
    }

    /// Hands an event to its session. Events of foreign sessions are dropped.
    pub(crate) fn dispatch(&self, sid: u32, event: IscsiEvent) {
        let state = self.lock();
        if let Some(slot) = state.sids.get(&sid).and_then(|volume| state.slots.get(volume)) {
            let _ = slot.orders.send((0, Order::Event(event)));
        }
    }

    /// Sends an order to every session.
    pub(crate) fn tell_all(&self, order: impl Fn() -> Order) {
        for slot in self.lock().slots.values() {
            let _ = slot.orders.send((0, order()));
        }
    }

    /// Routes events of this kernel session to this volume's thread from now on.
    pub(crate) fn route(&self, sid: u32, volume: VolumeId) {
        self.lock().sids.insert(sid, volume);
    }

    /// Ends the routing of this kernel session's events.
    pub(crate) fn unroute(&self, sid: u32) {
        self.lock().sids.remove(&sid);
    }

    /// Shows a changed session whose thread has handled all orders up to this number (0: no further
    /// ones).
    pub(crate) fn show(&self, status: &SessionStatus, served: u64) {
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(&status.volume) else { return };
        slot.served = slot.served.max(served);
        if slot.status != *status {
            slot.status = status.clone();
            state.tell(&Answer::Session { session: status.clone() });
        }
        self.shared.1.notify_all();
    }

    /// Takes a session that is gone from the board. Returns a new spec that came meanwhile, with
    /// which the thread goes on; `None`: it ends. `again` is a spec that came before.
    pub(crate) fn leave(
        &self,
        volume: VolumeId,
        orders: &Receiver<Numbered>,
        mut again: Option<(u64, SessionSpec)>,
    ) -> Option<(u64, SessionSpec)> {
        let mut state = self.lock();
        // Orders are sent under this lock: an order that is not here now goes to a new session.
        while let Ok((number, order)) = orders.try_recv() {
            match order {
                Order::Ensure(spec) => again = Some((number, *spec)),
                Order::End(_) => again = None,
                Order::Event(_) | Order::Look | Order::Checked(..) | Order::Stop => {}
            }
        }
        state.tell(&Answer::Gone { volume });
        if again.is_some() {
            let life = state.number();
            if let Some(slot) = state.slots.get_mut(&volume) {
                slot.life = life;
            }
        } else {
            state.slots.remove(&volume);
        }
        self.shared.1.notify_all();
        again
    }

    /// Takes a session off whose thread could not be started.
    pub(crate) fn drop_slot(&self, volume: VolumeId) {
        let mut state = self.lock();
        state.slots.remove(&volume);
        state.tell(&Answer::Gone { volume });
        self.shared.1.notify_all();
    }

    /// Returns one session; `None` if this volume has none.
    pub(crate) fn get(&self, volume: VolumeId) -> Option<SessionStatus> {
        self.lock().slots.get(&volume).map(|slot| slot.status.clone())
    }

    /// Returns all sessions.
    pub(crate) fn list(&self) -> Vec<SessionStatus> {
        self.lock().slots.values().map(|slot| slot.status.clone()).collect()
    }

    /// Streams all sessions, then `Synced`, then every change. Ends when its reader is too far
    /// behind.
    pub(crate) fn watch(&self) -> Receiver<Answer> {
        let mut state = self.lock();
        let (watcher, changes) = sync_channel(state.slots.len() + 1 + WATCH_BEHIND_MAX);
        let known = state.slots.values().map(|slot| Answer::Session { session: slot.status.clone() });
        for answer in known.chain([Answer::Synced]) {
            // The channel has room for all of them.
            let _ = watcher.try_send(answer);
        }
        state.watchers.push(watcher);
        changes
    }

    /// Waits until a session has handled an order and is settled: logged in, given up, or gone
    /// (`None`).
    pub(crate) fn wait_settled(&self, sent: Sent, wait: Duration) -> Option<SessionStatus> {
        self.wait(sent.volume, wait, |slot| {
            let settled = !matches!(
                slot.status.state,
                SessionState::Connecting | SessionState::Recovering | SessionState::Ending
            );
            slot.served >= sent.number && settled
        })
    }

    /// Waits until a session has ended. `None` if it has; otherwise its state.
    pub(crate) fn wait_gone(&self, sent: Sent, wait: Duration) -> Option<SessionStatus> {
        let status = self.wait(sent.volume, wait, |slot| slot.life != sent.life);
        let state = self.lock();
        let lives = state.slots.get(&sent.volume).is_some_and(|slot| slot.life == sent.life);
        status.filter(|_| lives)
    }

    fn wait(&self, volume: VolumeId, wait: Duration, done: impl Fn(&Slot) -> bool) -> Option<SessionStatus> {
        // A client may ask for any time; an hour is as good as for ever, and cannot overflow.
        let until = clock::instant() + wait.min(Duration::from_hours(1));
        let mut state = self.lock();
        loop {
            let slot = state.slots.get(&volume)?;
            let left = until.saturating_duration_since(clock::instant());
            if done(slot) || left.is_zero() {
                return Some(slot.status.clone());
            }
            let waited = self.shared.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
