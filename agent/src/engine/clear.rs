//! Waits until a look at a volume's target no longer hangs behind another call.
//!
//! What must never happen here: a second call behind one that does not return, which costs another
//! thread; a look that is refused although the call before it ends in time.

use std::time::Duration;

use super::cell::Cell;
use crate::clock;
use crate::workers::LOST_AFTER;

/// Time between two looks at the calls. Nobody is woken when a call ends.
const PAUSE: Duration = Duration::from_millis(10);

impl Cell {
    /// Waits until a look at the target would not hang. `false` if the call that is in its way does
    /// not return before it counts as lost, or within `limit`.
    pub(super) async fn until_clear(&self, limit: Duration) -> bool {
        let began = clock::instant();
        loop {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            let Some(call) = self.state().in_the_way() else { return true };
            if call.since >= LOST_AFTER {
                return false;
            }
            tokio::time::sleep(PAUSE.min(left)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mooring_model::VolumeId;
    use tokio::task::JoinHandle;

    use super::super::cell::BLOCKED_AFTER;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn slow(step: &str) -> Arc<Cell> {
        let cell = Cell::new(VolumeId::from_u128(1));
        cell.begin(step.to_owned());
        cell
    }

    fn waits(cell: &Arc<Cell>, limit: Duration) -> JoinHandle<bool> {
        let cell = Arc::clone(cell);
        tokio::spawn(async move { cell.until_clear(limit).await })
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_call_that_is_not_in_the_way_yet() {
        let cell = slow("rmdir");
        assert!(cell.until_clear(LIMIT).await && !cell.state().is_blocked());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_returns_in_time_is_waited_for() {
        let cell = slow("rmdir");
        tokio::time::advance(BLOCKED_AFTER).await;
        assert_eq!(cell.state().in_the_way().unwrap().step, "rmdir");
        let waits = waits(&cell, LIMIT);
        tokio::time::sleep(LOST_AFTER / 2).await;
        assert!(!waits.is_finished());
        cell.end();
        assert!(waits.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_call_and_the_limit_end_the_wait() {
        let cell = slow("rmdir");
        tokio::time::advance(BLOCKED_AFTER).await;
        let began = clock::instant();
        assert!(!cell.until_clear(BLOCKED_AFTER).await);
        assert!(began.elapsed() < BLOCKED_AFTER * 2);
        assert!(!cell.until_clear(LIMIT).await);
        assert!(began.elapsed() < LOST_AFTER);
        let began = clock::instant();
        assert!(!cell.until_clear(LIMIT).await);
        assert!(began.elapsed().is_zero(), "whoever asks later is told at once");
        cell.end();
        assert!(!cell.until_clear(Duration::ZERO).await, "no time is left for a look");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_of_another_caller_is_in_the_way_too() {
        let cell = Cell::new(VolumeId::from_u128(1));
        let began = clock::instant();
        cell.state().calls.begin_look(began);
        tokio::time::advance(BLOCKED_AFTER).await;
        assert!(cell.state().is_blocked());
        let waits = waits(&cell, LIMIT);
        tokio::time::sleep(BLOCKED_AFTER).await;
        cell.state().calls.end_look(began);
        assert!(waits.await.unwrap());
    }
}
