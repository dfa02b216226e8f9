//! Permits of requests: bounds on the requests that work and that wait, in all and per project.
//!
//! A request gets a permit when its caller is known. When it begins to wait for agents, it
//! exchanges its permit of work for one of waiting until it ends: a waiting request keeps none from
//! working. Callers that may fence hosts or detach by force have a reserve of both kinds, for the
//! time when all others are taken.
//!
//! What must never happen here: a permit for an unknown caller; a project that keeps another one
//! from its work; a change that ends because its client has gone (only the wait ends).

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// Bounds on concurrent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The permits of all projects together.
    pub all: usize,
    /// The permits of one project.
    pub of_project: usize,
    /// Additional permits for callers that may fence hosts or detach by force.
    pub reserve: usize,
}

/// The bounds on requests that work.
pub const WORK: Limits = Limits { all: 1_024, of_project: 512, reserve: 64 };

/// The bounds on requests that wait for agents.
pub const WAITS: Limits = Limits { all: 2_048, of_project: 512, reserve: 256 };

/// A limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("{0} requests are being worked on")]
    All(usize),
    #[error("{0} requests of this project are being worked on")]
    Project(usize),
}

/// The caller that holds a permit.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    pub(crate) project: String,
    /// `true` if the caller may fence hosts or detach by force, and so has the reserve.
    pub(crate) cuts: bool,
}

struct Pool {
    limits: Limits,
    all: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    /// The number of taken permits, of each project that has any.
    projects: Mutex<HashMap<String, usize>>,
}

/// One permit, given back when it is dropped.
struct Permit {
    _place: OwnedSemaphorePermit,
    /// The pool and the project; `None` for a permit of the reserve.
    counted: Option<(Arc<Pool>, String)>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some((pool, project)) = self.counted.take() else { return };
        let mut projects = pool.projects();
        if let Some(count) = projects.get_mut(&project) {
            *count -= 1;
            if *count == 0 {
                projects.remove(&project);
            }
        }
    }
}

impl Pool {
    fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            all: Arc::new(Semaphore::new(limits.all)),
            reserve: Arc::new(Semaphore::new(limits.reserve)),
            projects: Mutex::default(),
        })
    }

    fn projects(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.projects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, holder: &Holder) -> Result<Permit, Full> {
        let full = match self.shared(&holder.project) {
            Ok(permit) => return Ok(permit),
            Err(full) => full,
        };
        let reserved = holder.cuts.then(|| Arc::clone(&self.reserve).try_acquire_owned().ok()).flatten();
        reserved.map(|place| Permit { _place: place, counted: None }).ok_or(full)
    }

    fn shared(self: &Arc<Self>, project: &str) -> Result<Permit, Full> {
        let Limits { all, of_project, .. } = self.limits;
        let mut projects = self.projects();
        let held = projects.get(project).copied().unwrap_or(0);
        if held >= of_project {
            return Err(Full::Project(of_project));
        }
        let place = Arc::clone(&self.all).try_acquire_owned().map_err(|_| Full::All(all))?;
        projects.insert(project.to_owned(), held + 1);
        Ok(Permit { _place: place, counted: Some((Arc::clone(self), project.to_owned())) })
    }
}

/// All permits of an API.
pub(crate) struct Permits {
    work: Arc<Pool>,
    waits: Arc<Pool>,
}

impl Default for Permits {
    fn default() -> Self {
        Self { work: Pool::new(WORK), waits: Pool::new(WAITS) }
    }
}

impl Permits {
    /// Lets a request begin. `gone` ends when the client is gone; `None` if the request ends with
    /// its client.
    pub(crate) fn admit(&self, holder: Holder, gone: Option<Client>) -> Result<Turn, Full> {
        let permit = self.work.take(&holder)?;
        let held = Mutex::new(Held { _permit: permit, waits: false });
        Ok(Turn(Arc::new(Inner { waits: Arc::clone(&self.waits), holder, gone, held })))
    }
}

/// A channel that ends when a request's client is gone; nothing is ever sent on it.
pub(crate) type Client = watch::Receiver<()>;

struct Held {
    _permit: Permit,
    waits: bool,
}

struct Inner {
    waits: Arc<Pool>,
    holder: Holder,
    gone: Option<Client>,
    held: Mutex<Held>,
}

/// The permit of one request, held until the request ends.
#[derive(Clone)]
pub(crate) struct Turn(Arc<Inner>);

tokio::task_local! {
    static TURN: Turn;
}

impl Turn {
    /// Runs the request's work. Waits in it use [`until`].
    pub(crate) async fn run<T>(self, work: impl Future<Output = T>) -> T {
        TURN.scope(self, work).await
    }

    /// Exchanges the permit of work for one of waiting. If there is none, the request keeps what it
    /// has.
    fn begin_to_wait(&self) -> bool {
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.waits {
            return true;
        }
        let Ok(permit) = self.0.waits.take(&self.0.holder) else { return false };
        *held = Held { _permit: permit, waits: true };
        true
    }

    /// Ends when the client is gone.
    async fn gone(&self) {
        match self.0.gone.clone() {
            Some(mut client) => while client.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }
}

/// The reason why a wait ended without its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The deadline has passed.
    Late,
    /// The client is gone.
    Gone,
    /// Too many requests wait already: this one is answered as if its deadline had passed.
    Full,
}

impl Ended {
    /// Returns `true` if a later deadline would not help: the request is answered with what it has.
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Gone | Self::Full)
    }
}

/// Waits for news until a deadline, with a permit of waiting in place of the request's permit of
/// work.
pub(crate) async fn until<T>(deadline: Instant, news: impl Future<Output = T>) -> Result<T, Ended> {
    let mut news = pin!(news);
    let now = poll_fn(|context| Poll::Ready(news.as_mut().poll(context))).await;
    if let Poll::Ready(found) = now {
        return Ok(found);
    }
    if Instant::now() >= deadline {
        return Err(Ended::Late);
    }
    let Ok(turn) = TURN.try_with(Clone::clone) else {
        // Outside of a request: a part of the controller waits.
        return tokio::time::timeout_at(deadline, news).await.map_err(|_| Ended::Late);
    };
    if !turn.begin_to_wait() {
        return Err(Ended::Full);
    }
    tokio::select! {
        biased;
        found = news => Ok(found),
        () = turn.gone() => Err(Ended::Gone),
        () = tokio::time::sleep_until(deadline) => Err(Ended::Late),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(project: &str, cuts: bool) -> Holder {
        Holder { project: project.to_owned(), cuts }
    }

    fn permits(work: Limits, waits: Limits) -> Permits {
        Permits { work: Pool::new(work), waits: Pool::new(waits) }
    }

    const FEW: Limits = Limits { all: 3, of_project: 2, reserve: 1 };

    #[test]
    fn a_project_has_its_share_and_the_reserve_is_for_those_who_cut() {
        let permits = permits(FEW, FEW);
        let take = |project: &str, cuts| permits.admit(of(project, cuts), None);
        let mut held: Vec<_> = [take("p", false), take("p", false)].map(Result::unwrap).into();
        assert_eq!(take("p", false).err(), Some(Full::Project(2)));
        held.push(take("q", false).ok().unwrap());
        assert_eq!(take("q", false).err(), Some(Full::All(3)));
        let reserved = take("p", true).ok().unwrap();
        assert_eq!(take("p", true).err(), Some(Full::Project(2)), "the reserve has an end, too");
        drop(reserved);
        drop(held);
        assert!(permits.work.projects().is_empty(), "nothing is kept of who has nothing");
        assert!(
            [take("p", false), take("p", false), take("q", true), take("q", true)].iter().all(Result::is_ok)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_gives_the_permit_of_work_back() {
        let permits = permits(Limits { all: 1, of_project: 1, reserve: 0 }, FEW);
        let begin = || permits.admit(of("p", false), None);
        let limit = Instant::now() + Duration::from_secs(9);
        let wait = |turn: Turn| turn.run(until(limit, std::future::pending::<()>()));
        let mut waiting = Vec::new();
        for _ in 0..2 {
            // Each of them begins with the only permit.
            waiting.push(tokio::spawn(wait(begin().ok().unwrap())));
            tokio::task::yield_now().await;
        }
        let third = begin().ok().unwrap();
        assert!(begin().is_err(), "it is at work");
        assert_eq!(wait(third).await, Err(Ended::Full), "a project's waits have a limit of their own");
        for one in waiting {
            assert_eq!(one.await.unwrap(), Err(Ended::Late));
        }
        assert!(permits.waits.projects().is_empty() && permits.work.projects().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_gone_ends_its_wait() {
        let permits = permits(FEW, FEW);
        let (client, gone) = watch::channel(());
        let turn = permits.admit(of("p", false), Some(gone)).ok().unwrap();
        let limit = Instant::now() + Duration::from_mins(1);
        let work = turn.run(async move {
            let ended = until(limit, std::future::pending::<()>()).await;
            (ended, Instant::now() < limit)
        });
        let work = tokio::spawn(work);
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(client);
        assert_eq!(work.await.unwrap(), (Err(Ended::Gone), true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_there_already_is_not_waited_for() {
        let permits = permits(FEW, Limits { all: 0, of_project: 0, reserve: 0 });
        let turn = permits.admit(of("p", false), None).ok().unwrap();
        let past = Instant::now();
        let (found, none) = turn
            .run(async {
                (until(past, std::future::ready(7)).await, until(past, std::future::pending::<()>()).await)
            })
            .await;
        assert_eq!((found, none), (Ok(7), Err(Ended::Late)));
        // A part of the controller that waits holds no permit.
        let late = until(Instant::now() + Duration::from_secs(1), std::future::pending::<()>()).await;
        assert_eq!(late, Err(Ended::Late));
    }
}
