//! Admission of changes of one object: they are taken one by one, and the worker that writes and
//! the caller who gives up agree on the outcome.
//!
//! What must never happen here: a change that is made after its caller was told that it was not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock;
use crate::workers;

/// The turn of one object: held while a change of it is checked and made durable.
#[derive(Default)]
pub(crate) struct Turns(Mutex<()>);

impl Turns {
    /// Waits for the turn, at most until `deadline`. `None` if it did not come.
    pub(crate) fn take(&self, deadline: Duration) -> Option<MutexGuard<'_, ()>> {
        let until = clock::instant() + deadline;
        loop {
            match self.0.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) if clock::instant() >= until => return None,
                // Rare: two senders change one object at the same moment.
                Err(TryLockError::WouldBlock) => workers::wait(Duration::from_millis(1)),
            }
        }
    }
}

/// Decides once who settles a change: the worker that is about to write it, or the caller who gives
/// up.
#[derive(Default)]
pub(crate) struct Claim(AtomicBool);

impl Claim {
    /// Returns `true` for the first caller.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Returns `true` if somebody has taken the claim. To a worker that has not taken it, this
    /// means that the caller has given up.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Waits for the worker's answer. `None` if the worker did not begin the change before the
/// deadline; then it never begins it.
pub(crate) async fn answer<T>(
    mut result: oneshot::Receiver<T>,
    claim: &Arc<Claim>,
    deadline: Duration,
) -> Option<T> {
    match tokio::time::timeout(deadline, &mut result).await {
        Ok(answer) => answer.ok(),
        Err(_) if claim.take() => None,
        // The worker is writing the change: its outcome is worth the moment that a write takes.
        Err(_) => result.await.ok(),
    }
}
