//! Leases of agents: which controller drives which agent, where several controllers share one
//! database.
//!
//! The holder of an agent's lease dials the agent, follows its reports, and runs every job that
//! calls it. The holder stops all of that by its own clock before another controller can take the
//! lease. A transaction that relies on a lease checks the lease's row, too, and agents fence by
//! generations in any case. The other controllers learn from the lease's row whether the agent is
//! up, and may ask it questions. Notes between controllers only save time: the next periodic look
//! finds what a lost note would have told.
//!
//! With the embedded database, one controller holds everything, and none of this runs.
//!
//! What must never happen here: a call that changes something at an agent whose lease another
//! controller may hold; an agent's state taken from memory on a controller that does not follow it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use mooring_api::reports;
use mooring_model::VolumeId;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Agent, SeenConnection, SeenVolume, words};
use crate::store::Dialer;
use crate::store::leases::{Fence, Members, Said};

const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// Limit of a question to an agent that another controller drives.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// The controller that drives an agent.
#[derive(Debug, Clone)]
pub(crate) enum Hold {
    /// This one, without a lease: the database is not shared.
    Always,
    /// This one, under this holder's id, until this moment.
    Ours(String, watch::Receiver<Instant>),
    /// Another one, or none. Holds what the lease's row says of the agent.
    Theirs(Said),
    /// None, and never again: the agent has left the registry.
    Gone,
}

impl Hold {
    /// Returns `true` if this controller drives the agent now.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            Self::Always => true,
            Self::Ours(_, until) => Instant::now() < *until.borrow(),
            Self::Theirs(_) | Self::Gone => false,
        }
    }
}

/// The end of the lease on which a task's work relies. `None`: it relies on none yet.
type Relied = Arc<Mutex<Option<watch::Receiver<Instant>>>>;

tokio::task_local! {
    static RELIED: Relied;
}

/// Makes the work of this task rely on the lease of this agent: [`guarded`] drops it when the lease
/// ends. Returns the fence that each change of the store must check. `None`: this controller drives
/// the agent without a lease.
pub(super) fn rely_on(agent: &Agent, hold: &Hold) -> Option<Fence> {
    let Hold::Ours(holder, until) = hold else { return None };
    // Outside of guarded work there is nothing to stop.
    let _ = RELIED.try_with(|relied| {
        *relied.lock().unwrap_or_else(PoisonError::into_inner) = Some(until.clone());
    });
    Some(Fence { agent: agent.entry.name.clone(), holder: holder.clone() })
}

fn end_relied_on(relied: &Relied) -> Option<watch::Receiver<Instant>> {
    relied.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Runs work that may come to rely on a lease. `None`: that lease ended, and the work was dropped
/// where it stood.
pub(crate) async fn guarded<T>(work: impl Future<Output = T> + Send) -> Option<T> {
    let relied = Relied::default();
    let mut work = Box::pin(RELIED.scope(Arc::clone(&relied), work));
    let mut over: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
    std::future::poll_fn(move |context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        if over.is_none()
            && let Some(until) = end_relied_on(&relied)
        {
            over = Some(Box::pin(end_of(until)));
        }
        match over.as_mut().map(|over| over.as_mut().poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(None),
            Some(Poll::Pending) | None => Poll::Pending,
        }
    })
    .await
}

async fn end_of(mut until: watch::Receiver<Instant>) {
    loop {
        let moment = *until.borrow_and_update();
        if Instant::now() >= moment {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep_until(moment) => {}
            changed = until.changed() => if changed.is_err() { return },
        }
    }
}

/// A note to other controllers.
pub(crate) enum Out {
    /// The specs of a volume have changed: its jobs must look again.
    Spec(VolumeId),
    /// The state of a volume has changed: everybody who waits for it must look again.
    Touch(VolumeId),
    /// An agent went up or down.
    Said,
    /// An agent has joined, or was revoked.
    Enrolled,
}

/// The outbox of notes to other controllers. With the embedded database there are no notes.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    out: Option<mpsc::UnboundedSender<Out>>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Out>>>,
    /// This controller's id, while it is a member.
    id: Mutex<Option<String>>,
    /// No other controller is a member: no note is sent.
    alone: AtomicBool,
}

impl Notes {
    /// Makes the outbox. `shared`: other controllers can use the database.
    pub(crate) fn new(shared: bool) -> Self {
        if !shared {
            return Self::default();
        }
        let (out, inbox) = mpsc::unbounded_channel();
        Self { out: Some(out), inbox: Mutex::new(Some(inbox)), ..Self::default() }
    }

    fn send(&self, what: Out) {
        if let Some(out) = self.out.as_ref().filter(|_| !self.alone.load(Ordering::Relaxed)) {
            // The receiver is gone: this controller is stopping.
            let _ = out.send(what);
        }
    }

    /// Announces that the specs of a volume have changed.
    pub(crate) fn spec_changed(&self, volume: VolumeId) {
        self.send(Out::Spec(volume));
    }

    /// Announces that the state of a volume has changed.
    pub(crate) fn touch(&self, volume: VolumeId) {
        self.send(Out::Touch(volume));
    }

    /// Announces that an agent went up or down.
    pub(crate) fn said(&self) {
        self.send(Out::Said);
    }

    /// Announces that an agent has joined, or was revoked.
    pub(crate) fn enrolled(&self) {
        self.send(Out::Enrolled);
    }

    /// Returns this controller's id among the controllers of the database. `None`: it is no member,
    /// or the database is not shared.
    pub(crate) fn id(&self) -> Option<String> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the queue of notes to send. `None`: it was taken already, or the database is not
    /// shared.
    pub(crate) fn take_inbox(&self) -> Option<mpsc::UnboundedReceiver<Out>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sets that no other controller is a member (`true`), or that one is.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Relaxed);
    }

    /// Returns `true` if no other controller is a member.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// Sets this controller's id as a member. `None`: it has left.
    pub(crate) fn joined(&self, id: Option<&str>) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = id.map(str::to_owned);
    }
}

/// Tells other controllers that this one stops. Without that, they see it when the leases end.
pub(crate) async fn leave(notes: &Notes, dialer: &Dialer) {
    let id = notes.id.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(id) = id else { return };
    let left = tokio::time::timeout(LEAVE_LIMIT, async {
        let (mut members, _notes) = Members::connect(dialer).await?;
        members.leave(&id).await?;
        members.announce(&[format!("l {id}")]).await
    });
    if !matches!(left.await, Ok(Ok(()))) {
        tracing::warn!("could not give the leases back: others take them when they are over");
    }
}

impl Agent {
    /// Asks for the present state of a volume and its export. Without an answer, nothing is known
    /// of them here any more.
    pub(crate) async fn ask_volume(&self, volume: VolumeId) {
        let status =
            if self.is_up() { self.get_volume(volume.to_string(), ASK_LIMIT).await.ok() } else { None };
        self.set_volume(volume, status.as_ref().map(|status| SeenVolume::of(volume, status)));
    }

    /// Asks for the present state of a connection. Without an answer, nothing is known of it here
    /// any more.
    pub(crate) async fn ask_connection(&self, volume: VolumeId) {
        let status =
            if self.is_up() { self.get_connection(volume.to_string(), ASK_LIMIT).await.ok() } else { None };
        let mut state = self.state();
        match status {
            None => drop(state.connections.remove(&volume)),
            Some(status) => {
                let seen = SeenConnection {
                    stamp: reports::stamp(status.stamp.as_ref()),
                    report: reports::connection_of(status.report.as_ref(), volume).map(words::cleaned),
                    ..SeenConnection::default()
                };
                state.connections.insert(volume, seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn guarded_work_ends_with_the_lease_it_relies_on() {
        let began = Instant::now();
        assert_eq!(guarded(async { 1 }).await, Some(1));
        let (until, watched) = watch::channel(began + Duration::from_secs(5));
        let work = |watched: watch::Receiver<Instant>| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            RELIED.with(|relied| *relied.lock().unwrap() = Some(watched));
            std::future::pending::<()>().await;
        };
        // The lease is renewed once, at the third second, until the ninth.
        let renew = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            until.send_replace(began + Duration::from_secs(9));
        };
        let (over, ()) = tokio::join!(guarded(work(watched.clone())), renew);
        assert_eq!(over, None);
        assert_eq!(began.elapsed().as_secs(), 9);
        // The lease is given back in the middle.
        until.send_replace(began + Duration::from_mins(1));
        let back = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            until.send_replace(Instant::now());
        };
        let (over, ()) = tokio::join!(guarded(work(watched)), back);
        assert_eq!((over, began.elapsed().as_secs()), (None, 12));
    }
}
