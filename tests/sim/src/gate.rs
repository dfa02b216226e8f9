//! Start of blocking work: only while the run's thread has nothing else to do.
//!
//! Transactions run on a thread beside the run's own. If one ended before its caller looked for its
//! end, the caller would go on at once instead of later, and the speed of two threads would decide
//! the order of things. So while the run's thread works, a closed gate stands in the queue of
//! blocking work, and submitted work waits behind it. When the thread is about to sleep, the gate
//! opens.
//!
//! What must never happen here: a gate that stays closed while the run's thread sleeps; a gate made
//! for nothing, for its end wakes the thread, and virtual time would never go on.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};
use tokio::time::Instant;

use crate::lock;

#[derive(Debug, Default)]
struct Latch {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    fn wait(&self) {
        let mut open = lock(&self.open);
        while !*open {
            open = self.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn open(&self) {
        *lock(&self.open) = true;
        self.opened.notify_all();
    }
}

#[derive(Debug, Default)]
struct State {
    closed: Option<Arc<Latch>>,
    /// Virtual time at which the thread last woke.
    woke_at: Option<Instant>,
}

/// The gate of one run; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

impl Gate {
    /// Makes a runtime's thread open and close the gate.
    pub(crate) fn attach(&self, builder: &mut Builder) {
        let (sleeps, wakes) = (self.clone(), self.clone());
        builder.on_thread_park(move || sleeps.open());
        builder.on_thread_unpark(move || wakes.woke());
    }

    /// Closes the gate; must be called inside the runtime.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.0);
        if state.closed.is_none() {
            let latch = Arc::new(Latch::default());
            state.closed = Some(Arc::clone(&latch));
            drop(state);
            drop(tokio::task::spawn_blocking(move || latch.wait()));
        }
    }

    fn open(&self) {
        if let Some(latch) = lock(&self.0).closed.take() {
            latch.open();
        }
    }

    fn woke(&self) {
        let now = Instant::now();
        let time_went_on = lock(&self.0).woke_at.replace(now) != Some(now);
        // Otherwise the end of blocking work that nobody waits for has woken the thread, usually
        // the gate's own end.
        if time_went_on || Handle::current().metrics().global_queue_depth() > 0 {
            self.close();
        }
    }
}
