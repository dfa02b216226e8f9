//! Watches folders of the fake LIO tree, as inotify on configfs does it on Linux 6.1
//! (docs/kernel/lio.md). A watch is of the folder and not of its name, and goes with it. Making,
//! removing and writing are reported, reading is not.
//!
//! What must never happen: a change that the kernel reports and this does not, or the other way
//! round.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::FakeMachine;
use super::state::Handle;
use crate::{FolderChanges, FolderId, Folders, TreeOp, TreePath};

/// All watches of a machine.
#[derive(Debug, Default)]
pub(super) struct Watches {
    next: i32,
    /// Watcher and folder of each watch.
    watched: BTreeMap<FolderId, (u32, TreePath)>,
    /// Changes that were not fetched yet, by watcher.
    told: BTreeMap<u32, FolderChanges>,
    watchers: u32,
    /// Maximum number of watched folders. `None`: any number.
    most: Option<usize>,
}

impl Watches {
    /// Records a change.
    pub(super) fn tell(&mut self, op: TreeOp, path: &TreePath) {
        match op {
            TreeOp::Mkdir | TreeOp::Symlink | TreeOp::Unlink | TreeOp::Write => self.changed(&path.parent()),
            TreeOp::Rmdir => {
                self.changed(&path.parent());
                // The folders that the kernel made in it go with it.
                let ids = self.watched.iter().filter(|(_, (_, folder))| folder.is_within(path));
                for id in ids.map(|(id, _)| *id).collect::<Vec<_>>() {
                    let Some((watcher, _)) = self.watched.remove(&id) else { continue };
                    self.told.entry(watcher).or_default().folders.push((id, true));
                }
            }
            TreeOp::Read | TreeOp::List | TreeOp::ReadLink => {}
        }
    }

    fn changed(&mut self, folder: &TreePath) {
        for (id, (watcher, _)) in self.watched.iter().filter(|(_, (_, watched))| watched == folder) {
            self.told.entry(*watcher).or_default().folders.push((*id, false));
        }
    }
}

/// One process that watches folders of a [`FakeMachine`].
#[derive(Debug)]
pub struct FakeFolders {
    handle: Handle,
    watcher: u32,
}

impl FakeFolders {
    pub(super) fn new(handle: Handle) -> Self {
        let watcher = {
            let watches = &mut handle.lock().folders;
            watches.watchers += 1;
            watches.watchers
        };
        Self { handle, watcher }
    }
}

impl Folders for FakeFolders {
    fn watch(&self, folder: &TreePath) -> Result<FolderId, Errno> {
        let mut machine = self.handle.lock();
        // The kernel may wait here for a call that holds the folder. In this fake only the read
        // behind the watch waits.
        if !machine.lio.has_folder(folder) {
            return Err(Errno::ENOENT);
        }
        let watches = &mut machine.folders;
        let here = |(_, (watcher, watched)): &(&FolderId, &(u32, TreePath))| {
            *watcher == self.watcher && watched == folder
        };
        if let Some((id, _)) = watches.watched.iter().find(here) {
            return Ok(*id);
        }
        if watches.most.is_some_and(|most| watches.watched.len() >= most) {
            return Err(Errno::ENOSPC);
        }
        watches.next += 1;
        let id = FolderId(watches.next);
        watches.watched.insert(id, (self.watcher, folder.clone()));
        Ok(id)
    }

    fn unwatch(&self, folder: FolderId) {
        self.handle.lock().folders.watched.remove(&folder);
    }

    fn changes(&self, within: Duration) -> Result<FolderChanges, Errno> {
        let until = Instant::now() + within;
        loop {
            let changes = self.handle.lock().folders.told.remove(&self.watcher);
            if let Some(changes) = changes {
                return Ok(changes);
            }
            if Instant::now() >= until {
                return Ok(FolderChanges::default());
            }
            // Other threads wait for the lock of the fake: no long sleep on it.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl FakeMachine {
    /// Limits the number of watched folders from now on (`fs.inotify.max_user_watches`).
    pub fn set_watches_max(&self, most: usize) {
        self.handle.lock().folders.most = Some(most);
    }

    /// Counts the watched folders.
    pub fn watched_folders(&self) -> usize {
        self.handle.lock().folders.watched.len()
    }

    /// Lets more changes happen than can be reported.
    pub fn lose_folder_changes(&self) {
        let mut machine = self.handle.lock();
        let watches = &mut machine.folders;
        for watcher in 1..=watches.watchers {
            watches.told.entry(watcher).or_default().lost = true;
        }
    }
}
