//! Tasks of the control plane: they end with it.
//!
//! What must never happen here: a task that outlives the control plane.

use std::sync::Mutex;

use tokio::task::{AbortHandle, JoinSet};

use super::lock;

/// The tasks that run. `None` inside: the controller is stopping.
#[derive(Debug)]
pub(crate) struct Tasks(Mutex<Option<JoinSet<()>>>);

impl Default for Tasks {
    fn default() -> Self {
        Self(Mutex::new(Some(JoinSet::new())))
    }
}

impl Tasks {
    /// Runs a task until it ends, or the controller does. `None`: the controller is stopping.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut tasks = lock(&self.0);
        let tasks = tasks.as_mut()?;
        while tasks.try_join_next().is_some() {}
        Some(tasks.spawn(task))
    }

    /// Takes all tasks, so that the caller can end them. No task can be spawned from then on.
    pub(crate) fn take(&self) -> Option<JoinSet<()>> {
        lock(&self.0).take()
    }
}
