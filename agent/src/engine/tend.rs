//! The work of each second, and the store's housekeeping.
//!
//! What must never happen here: work on this task that waits for a device; the workers get that.

use std::sync::Arc;
use std::time::Duration;

use mooring_model::Chain;

use super::Engine;
use crate::capabilities;
use crate::store::{PURGED_EVERY, StoreError};

/// Time within which notices of changed addresses count as one: a bond that loses its links sends
/// dozens.
const NOTICES_GATHERED: Duration = Duration::from_millis(50);

/// Seconds between two checks of the store's file and of kernel modules. Nobody waits for a check:
/// each write checks by itself.
const PLACES_WATCHED_EVERY: u64 = 5;

impl Engine {
    /// Does the work of each second, and looks at addresses when they change. Never returns.
    pub(super) async fn tend(self) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        let mut until_sweep = self.shared.config.resync_seconds;
        let mut until_places = 0;
        let mut in_place = true;
        let mut started = false;
        let mut modules = Vec::new();
        let changed = Arc::clone(&self.shared.machine.addresses_changed);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = changed.notified() => {
                    self.watch_addresses();
                    // Notices in a burst count as one.
                    tokio::time::sleep(NOTICES_GATHERED).await;
                    continue;
                }
            }
            self.shared.workers.tend();
            self.tend_bulk();
            if until_places == 0 {
                until_places = PLACES_WATCHED_EVERY;
                self.watch_place(&mut in_place);
                self.watch_modules(&mut modules);
            }
            until_places -= 1;
            self.watch_addresses();
            self.beat();
            self.knock_soon();
            self.keep_whole_soon();
            if self.shared.store.has_unwritten() {
                let flusher = self.clone();
                self.shared.workers.submit(move || flusher.flush());
            }
            // Not at the start: the exports of a boot come first.
            if started && !self.is_making() && self.shared.store.lacks_room() {
                let roomy = self.clone();
                self.shared.workers.submit(move || roomy.make_room());
            }
            started = true;
            until_sweep = until_sweep.saturating_sub(1);
            if until_sweep == 0 {
                until_sweep = self.shared.config.resync_seconds;
                let sweeper = self.clone();
                self.shared.workers.submit(move || {
                    sweeper.housekeep();
                    sweeper.sweep();
                });
            }
        }
    }

    /// Reports when the store's file goes, and when it is back. `in_place`: the result of the last
    /// check.
    fn watch_place(&self, in_place: &mut bool) {
        let found = self.shared.store.check_place();
        if found.is_ok() == *in_place {
            return;
        }
        *in_place = found.is_ok();
        self.lvm().tell();
        match found {
            Ok(()) => tracing::warn!("the store is back in its place: changes are taken again"),
            Err(error) => tracing::error!(error = %Chain(&error), "no change is taken any more"),
        }
    }

    /// Reports when a kernel module that is needed comes or goes. `loaded`: the result of the last
    /// check.
    fn watch_modules(&self, loaded: &mut Vec<bool>) {
        let now = capabilities::loaded_modules(&self.shared.machine, &self.shared.config);
        if *loaded != now {
            *loaded = now;
            self.lvm().tell();
        }
    }

    /// Writes the proofs that no other write has taken along.
    fn flush(&self) {
        if let Err(error) = self.shared.store.flush() {
            tracing::error!(error = %Chain(&error), "cannot write receipts down; tried again at the next tick");
        }
    }

    /// Makes room in the store's log.
    fn make_room(&self) {
        if let Err(error) = self.shared.store.make_room() {
            tracing::warn!(error = %Chain(&error), "the store's log has no room of its own: changes take longer to keep");
        }
    }

    /// Forgets old tombstones and places, and moves the store's log into its file.
    fn housekeep(&self) {
        self.forget_places();
        if let Err(error) = self.purge().and_then(|()| self.shared.store.checkpoint()) {
            tracing::warn!(error = %Chain(&error), "the store's housekeeping failed; tried again at the next tick");
        }
    }

    /// Forgets old tombstones, unless that was done lately: it reads all kept specs.
    fn purge(&self) -> Result<(), StoreError> {
        let now = self.shared.machine.clock.now();
        let purge = || self.shared.store.purge(now, |kind, id| self.is_gone(kind, id)).map(drop);
        self.shared.purged.when_due(now, PURGED_EVERY, purge)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use mooring_host::fake::FakeMachine;
    use tokio::time::Instant;

    use super::*;
    use crate::engine::testing;

    /// Lets every task run that can run. The clock stands meanwhile.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changed_addresses_are_looked_at_by_the_notice_and_not_by_the_tick() {
        let (dir, fake) = (tempfile::tempdir().unwrap(), FakeMachine::new());
        let set = |last: u8| {
            fake.set_addresses([IpAddr::from([10, 0, 0, last])]);
            fake.local_addresses()
        };
        let mut machine = testing::machine(dir.path(), &fake);
        let (asked, changed) = (fake.clone(), Arc::clone(&machine.addresses_changed));
        machine.addresses = Arc::new(move || asked.local_addresses());
        let engine = testing::engine_on(dir.path(), machine);
        let seen = || engine.known_addresses();
        let first = set(1);
        let tending = tokio::spawn(engine.clone().tend());
        settle().await;
        assert_eq!(seen(), first, "the first tick");
        let began = Instant::now();
        let second = set(2);
        settle().await;
        assert_eq!(seen(), first, "the control: nobody looks before the next tick");
        changed.notify_one();
        settle().await;
        assert_eq!((seen(), began.elapsed()), (second.clone(), Duration::ZERO));
        // A notice that comes while others are gathered is not lost.
        let third = set(3);
        changed.notify_one();
        settle().await;
        assert_eq!(seen(), second);
        tokio::time::advance(NOTICES_GATHERED * 2).await;
        settle().await;
        assert_eq!(seen(), third);
        assert!(began.elapsed() < Duration::from_secs(1), "before the next tick");
        tending.abort();
    }
}
