//! Counts the work that a shutdown waits a moment for (data jobs, detaches, revokes), and knows
//! whether a shutdown has begun.
//!
//! What must never happen here: work that is counted after it has ended; a wait.

use std::sync::{Arc, Mutex};

use mooring_bus::delay_shutdown;
use mooring_model::JobKind;
use tokio::sync::watch;

use super::{Engine, lock};

/// The name under which `systemd-inhibit --list` shows the agent.
const WHO: &str = "Mooring agent";

/// A piece of work in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// A data job.
    Job(JobKind),
    /// A disk leaves this host.
    Detach,
    /// An export of this storage node loses grants, and proves that they have drained.
    Revoke,
}

#[derive(Debug, Default)]
struct Counts {
    /// Counts by kind, in the order in which the kinds first came.
    jobs: Vec<(JobKind, usize)>,
    detaches: usize,
    revokes: usize,
}

impl Counts {
    fn of(&mut self, task: Task) -> &mut usize {
        match task {
            Task::Detach => &mut self.detaches,
            Task::Revoke => &mut self.revokes,
            Task::Job(kind) => {
                let known = self.jobs.iter().position(|(known, _)| *known == kind);
                let index = known.unwrap_or_else(|| {
                    self.jobs.push((kind, 0));
                    self.jobs.len() - 1
                });
                &mut self.jobs[index].1
            }
        }
    }

    /// The reason why a shutdown waits, in plain words. `None` if it does not wait.
    fn why(&self) -> Option<String> {
        let jobs = self.jobs.iter().filter(|(_, count)| *count > 0);
        let jobs: Vec<_> = jobs.map(|(kind, count)| format!("{count} {kind}")).collect();
        let mut parts = Vec::new();
        if !jobs.is_empty() {
            parts.push(format!("data jobs write down how far they are ({})", jobs.join(", ")));
        }
        match self.detaches {
            0 => {}
            1 => parts.push("1 disk is being detached".to_owned()),
            more => parts.push(format!("{more} disks are being detached")),
        }
        match self.revokes {
            0 => {}
            1 => parts.push("access to 1 volume is being revoked".to_owned()),
            more => parts.push(format!("access to {more} volumes is being revoked")),
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Counter of the work in progress; clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct Busy {
    counts: Arc<Mutex<Counts>>,
    why: watch::Sender<Option<String>>,
    closing: watch::Sender<bool>,
}

impl Busy {
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = lock(&self.counts);
        change(&mut counts);
        // Under the lock: the last reason that is sent belongs to the last count.
        self.why.send_replace(counts.why());
    }

    fn begin(&self, task: Task) -> Counted {
        self.count(|counts| *counts.of(task) += 1);
        Counted { busy: self.clone(), task }
    }
}

/// One piece of work in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    busy: Busy,
    task: Task,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.busy.count(|counts| {
            let count = counts.of(self.task);
            *count = count.saturating_sub(1);
        });
    }
}

impl Engine {
    /// Counts a task as at work until the returned value is dropped.
    pub(crate) fn busy(&self, task: Task) -> Counted {
        self.shared.busy.begin(task)
    }

    /// Says whether a shutdown has begun: a data job stops where it is and writes that down, and
    /// none begins.
    pub(super) fn is_closing(&self) -> bool {
        *self.shared.busy.closing.borrow()
    }

    /// Has shutdowns wait for the work in progress, and wakes jobs when a shutdown was called off.
    /// Ends at once where there is no bus.
    pub(super) async fn follow_shutdowns(self) {
        let Some(bus) = self.shared.machine.bus.clone() else { return };
        let Busy { why, closing, .. } = &self.shared.busy;
        tokio::spawn(delay_shutdown(bus, WHO, why.subscribe(), closing.clone()));
        let mut closing = closing.subscribe();
        while closing.changed().await.is_ok() {
            if !*closing.borrow_and_update() {
                for cell in self.cells() {
                    self.wake(&cell);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_counts_what_is_at_work_and_ends_with_it() {
        let busy = Busy::default();
        let why = || busy.why.borrow().clone();
        assert_eq!(why(), None);
        let zero = busy.begin(Task::Job(JobKind::Zero));
        assert_eq!(why().unwrap(), "data jobs write down how far they are (1 zero)");
        let held =
            [Task::Job(JobKind::Zero), Task::Job(JobKind::Import), Task::Detach].map(|task| busy.begin(task));
        assert_eq!(
            why().unwrap(),
            "data jobs write down how far they are (2 zero, 1 import); 1 disk is being detached"
        );
        drop(zero);
        let second = busy.begin(Task::Detach);
        drop(held);
        assert_eq!(why().unwrap(), "1 disk is being detached");
        let revokes = [Task::Revoke, Task::Revoke].map(|task| busy.begin(task));
        assert_eq!(why().unwrap(), "1 disk is being detached; access to 2 volumes is being revoked");
        drop(second);
        let [first, last] = revokes;
        drop(first);
        assert_eq!(why().unwrap(), "access to 1 volume is being revoked");
        drop(last);
        assert_eq!(why(), None);
    }
}
