//! Which jobs run, and which of them have to look again.
//!
//! What must never happen here: two runs of one job at a time; a kick that no pass follows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::lock;
use crate::agents::listener::Job;

/// A job that runs.
#[derive(Debug, Default)]
pub(super) struct Flight {
    dirty: AtomicBool,
    wake: Notify,
    /// The job waits for an answer that contains all that reports tell meanwhile.
    asking: AtomicBool,
    /// Such a report came.
    heard: AtomicBool,
}

/// Marks that a job waits for its agent's answer. A report that comes meanwhile is looked at with
/// the answer, and asks for no pass of its own. If no answer comes, it does.
pub(super) struct Asking(Option<Arc<Flight>>);

impl Asking {
    /// Notes that the answer came. The look that follows is no older than any report that asked for
    /// no pass.
    pub(super) fn answered(mut self) {
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

    /// Notes that a pass begins: whatever kicks from now on asks for another one.
    pub(super) fn begin(&self) {
        self.dirty.store(false, Ordering::Release);
    }

    /// Waits for a kick since [`Flight::begin`], at most for this time.
    pub(super) async fn pause(&self, pause: std::time::Duration) {
        // A kick from before the pass has left a permit, which wakes at once.
        let kicked = async {
            while !self.dirty.load(Ordering::Acquire) {
                self.wake.notified().await;
            }
        };
        let _ = tokio::time::timeout(pause, kicked).await;
    }
}

/// All jobs that run.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Job, Arc<Flight>>>);

impl Flights {
    /// Makes a job look again: now, or when its present pass has ended. Returns the job if it does
    /// not run yet: the caller has to run it.
    pub(super) fn kick(&self, job: Job) -> Option<Arc<Flight>> {
        let mut flights = lock(&self.0);
        if let Some(flight) = flights.get(&job) {
            flight.kick();
            return None;
        }
        let flight = Arc::new(Flight::default());
        flights.insert(job, Arc::clone(&flight));
        Some(flight)
    }

    /// Ends a job, unless it was kicked since its pass began. Returns `true` if it has ended.
    pub(super) fn end(&self, job: Job, flight: &Flight) -> bool {
        let mut flights = lock(&self.0);
        // Under the lock: a kick after this finds no job, and starts one.
        let ends = !flight.dirty.load(Ordering::Acquire);
        if ends {
            flights.remove(&job);
        }
        ends
    }

    /// Marks that a job waits for its agent's answer.
    pub(super) fn ask(&self, job: Job) -> Asking {
        let flight = lock(&self.0).get(&job).cloned();
        if let Some(flight) = &flight {
            flight.asking.store(true, Ordering::SeqCst);
        }
        Asking(flight)
    }

    /// Hands a report to the job that waits for an answer of the same agent. `false`: no job waits,
    /// the report needs a pass of its own.
    pub(super) fn hear(&self, job: Job) -> bool {
        let flight = lock(&self.0).get(&job).cloned();
        let Some(flight) = flight.filter(|flight| flight.asking.load(Ordering::SeqCst)) else {
            return false;
        };
        flight.heard.store(true, Ordering::SeqCst);
        // The wait may have ended meanwhile without an answer.
        flight.asking.load(Ordering::SeqCst) || !flight.heard.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_ended_by_a_kick_since_the_pass_began_and_by_no_earlier_one() {
        const PAUSE: Duration = Duration::from_secs(2);
        let flight = Arc::new(Flight::default());
        // (kicked before the pass, during it, after this time of the pause, paused for)
        for (before, during, later, paused) in [
            (false, false, None, PAUSE),
            (true, false, None, PAUSE),
            (true, true, None, Duration::ZERO),
            (false, true, None, Duration::ZERO),
            (true, false, Some(PAUSE / 2), PAUSE / 2),
            (false, false, Some(PAUSE / 2), PAUSE / 2),
        ] {
            let kick = |kicks: bool| kicks.then(|| flight.kick());
            kick(before);
            flight.begin();
            kick(during);
            let began = Instant::now();
            let kicker = later.map(|later| {
                let flight = Arc::clone(&flight);
                tokio::spawn(async move {
                    tokio::time::sleep(later).await;
                    flight.kick();
                })
            });
            flight.pause(PAUSE).await;
            assert_eq!(began.elapsed(), paused, "{before} {during} {later:?}");
            if let Some(kicker) = kicker {
                kicker.await.unwrap();
            }
        }
    }

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
