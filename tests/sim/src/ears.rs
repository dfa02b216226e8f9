//! Notices of the kernel to an agent process: changes in folders of LIO's tree, and writes to the
//! disks below volume groups. On a real machine, threads wait for both (inotify); here they arrive
//! in virtual time.
//!
//! What must never happen here: a change that is told late because a thread was slow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mooring_host::fake::FakeFolders;
use mooring_host::{Errno, FolderChanges, FolderId, Folders, TreePath};
use tokio::sync::Notify;

use crate::lock;

/// Time for which the agent's own thread waits for what follows a change.
const SETTLES_WITHIN: Duration = Duration::from_millis(100);

type TellFolders = Box<dyn Fn(FolderChanges) + Send + Sync>;
type TellDisks = Box<dyn Fn() + Send + Sync>;

struct State {
    inner: FakeFolders,
    folders: Option<TellFolders>,
    disks: Option<TellDisks>,
}

/// Notices for one process; clones belong to the same process.
#[derive(Clone)]
pub(crate) struct Ears {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    /// `true` with a defect put in on purpose: no notice arrives.
    deaf: bool,
}

impl std::fmt::Debug for Ears {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Ears").finish_non_exhaustive()
    }
}

impl Ears {
    pub(crate) fn new(inner: FakeFolders, deaf: bool) -> Self {
        let state = State { inner, folders: None, disks: None };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::default(), deaf }
    }

    /// Announces a change in LIO's tree.
    pub(crate) fn tree_changed(&self) {
        self.changed.notify_one();
    }

    /// Announces a write to the disk of a group.
    pub(crate) fn disk_written(&self) {
        if let Some(tell) = lock(&self.state).disks.as_ref().filter(|_| !self.deaf) {
            tell();
        }
    }

    pub(crate) fn hear_disks(&self, to: TellDisks) {
        lock(&self.state).disks = Some(to);
    }

    /// Forwards changes in folders, forever.
    pub(crate) async fn follow(self) {
        loop {
            self.changed.notified().await;
            tokio::time::sleep(SETTLES_WITHIN).await;
            let state = lock(&self.state);
            let changes = state.inner.changes(Duration::ZERO).unwrap_or_default();
            if let Some(tell) =
                state.folders.as_ref().filter(|_| !self.deaf && changes != FolderChanges::default())
            {
                tell(changes);
            }
        }
    }
}

impl Folders for Ears {
    fn watch(&self, folder: &TreePath) -> Result<FolderId, Errno> {
        lock(&self.state).inner.watch(folder)
    }

    fn unwatch(&self, folder: FolderId) {
        lock(&self.state).inner.unwatch(folder);
    }

    fn changes(&self, _: Duration) -> Result<FolderChanges, Errno> {
        // Nobody asks here, because changes are announced.
        Ok(FolderChanges::default())
    }

    fn tell(&self, to: Box<dyn Fn(FolderChanges) + Send + Sync>) -> bool {
        lock(&self.state).folders = Some(to);
        true
    }
}
