//! Leases of agents: which controller drives which agent, where several controllers share one database.
//!
//! The holder of an agent's lease dials it, follows its reports, and runs every job that calls it. It stops all of that by
//! its own clock before anybody else can take the lease; a transaction that relies on a lease looks at its row, too; and
//! agents fence by generations anyway. Others learn from the lease's row whether the agent is up, and may ask it questions.
//! Notes between controllers only make it quick: whatever is missed is found by the next slow look.
//!
//! With the embedded database one controller holds everything, and nothing of this runs.
//!
//! What must never happen here: a call that changes something at an agent whose lease another may hold; an agent's state
//! taken from memory on a controller that does not follow it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use mooring_api::reports;
use mooring_model::VolumeId;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Agent, SeenConnection, SeenVolume};
use crate::store::Dialer;
use crate::store::leases::{Fence, Members, Said};

const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A question to an agent of another controller.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Who drives an agent.
#[derive(Debug, Clone)]
pub(crate) enum Hold {
    /// We: the database is ours alone.
    Always,
    /// We, as this id, until this moment.
    Ours(String, watch::Receiver<Instant>),
    /// Another, or nobody.
    Theirs(Said),
    /// Nobody, ever again: it has left the registry.
    Gone,
}

impl Hold {
    /// We do, now.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            Self::Always => true,
            Self::Ours(_, until) => Instant::now() < *until.borrow(),
            Self::Theirs(_) | Self::Gone => false,
        }
    }
}

/// The end of the lease that the work of a task relies on, once it relies on one.
type Relied = Arc<Mutex<Option<watch::Receiver<Instant>>>>;

tokio::task_local! {
    static RELIED: Relied;
}

/// The work of this task relies on the lease of this agent from now on: [`guarded`] drops it when that ends. Returns what its
/// changes of the store must look at; `None`: the agent is ours without a lease.
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

/// Runs work that may come to rely on a lease. `None`: that is over, and the work was dropped where it stood.
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

/// Something for other controllers.
pub(crate) enum Out {
    /// What is wished of a volume has changed: its jobs look again.
    Wish(VolumeId),
    /// What is known of a volume has changed: who waits looks again.
    Touch(VolumeId),
    /// An agent went up or down.
    Said,
    /// An agent has joined, or was revoked.
    Enrolled,
}

/// What tells other controllers. On an embedded database there are none.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    out: Option<mpsc::UnboundedSender<Out>>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Out>>>,
    /// Our id, while we have joined.
    id: Mutex<Option<String>>,
    /// Nobody else is there: nothing is worth a note.
    alone: AtomicBool,
}

impl Notes {
    /// For a database that is shared, or not.
    pub(crate) fn new(shared: bool) -> Self {
        if !shared {
            return Self::default();
        }
        let (out, inbox) = mpsc::unbounded_channel();
        Self { out: Some(out), inbox: Mutex::new(Some(inbox)), ..Self::default() }
    }

    fn send(&self, what: Out) {
        if let Some(out) = self.out.as_ref().filter(|_| !self.alone.load(Ordering::Relaxed)) {
            // Nobody sends it any more: we are stopping.
            let _ = out.send(what);
        }
    }

    /// What is wished of a volume has changed.
    pub(crate) fn wish(&self, volume: VolumeId) {
        self.send(Out::Wish(volume));
    }

    /// What is known of a volume has changed.
    pub(crate) fn touch(&self, volume: VolumeId) {
        self.send(Out::Touch(volume));
    }

    /// An agent went up or down.
    pub(crate) fn said(&self) {
        self.send(Out::Said);
    }

    /// An agent has joined, or was revoked.
    pub(crate) fn enrolled(&self) {
        self.send(Out::Enrolled);
    }

    /// Our id among the controllers of the database; `None`: we have not joined, or the database is ours alone.
    pub(crate) fn id(&self) -> Option<String> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the notes that are to be sent. `None`: somebody has, or nobody shares the database.
    pub(crate) fn take_inbox(&self) -> Option<mpsc::UnboundedReceiver<Out>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Says whether nobody else is there.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Relaxed);
    }

    /// True if nobody else is there.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// Takes our id, or that we have left.
    pub(crate) fn joined(&self, id: Option<&str>) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = id.map(str::to_owned);
    }
}

/// Says to others that this controller stops. They would find out by themselves.
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
    /// Asks how a volume and its export are now: what is known of them here is of now, or not there.
    pub(crate) async fn ask_volume(&self, volume: VolumeId) {
        let status =
            if self.is_up() { self.get_volume(volume.to_string(), ASK_LIMIT).await.ok() } else { None };
        self.set_volume(volume, status.as_ref().map(SeenVolume::of));
    }

    /// Asks how a connection is now: what is known of it here is of now, or not there.
    pub(crate) async fn ask_connection(&self, volume: VolumeId) {
        let status =
            if self.is_up() { self.get_connection(volume.to_string(), ASK_LIMIT).await.ok() } else { None };
        let mut state = self.state();
        match status {
            None => drop(state.connections.remove(&volume)),
            Some(status) => {
                let seen = SeenConnection {
                    stamp: reports::stamp(status.stamp.as_ref()),
                    report: status.report.as_ref().and_then(reports::connection),
                    put_at: None,
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
        // Renewed once, at the third second, until the ninth.
        let renew = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            until.send_replace(began + Duration::from_secs(9));
        };
        let (over, ()) = tokio::join!(guarded(work(watched.clone())), renew);
        assert_eq!(over, None);
        assert_eq!(began.elapsed().as_secs(), 9);
        // Given back in the middle.
        until.send_replace(began + Duration::from_mins(1));
        let back = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            until.send_replace(Instant::now());
        };
        let (over, ()) = tokio::join!(guarded(work(watched)), back);
        assert_eq!((over, began.elapsed().as_secs()), (None, 12));
    }
}
