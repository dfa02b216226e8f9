//! Watches folders of a tree: reports every object that somebody makes, removes or writes there by
//! a system call. On configfs the kernel reports every mkdir, rmdir, symlink, unlink and write
//! (inotify; docs/kernel/lio.md). It reports none of its own changes: a login, a counter.
//!
//! What must never happen here: a change in a watched folder that is not reported; a lock held
//! across a system call.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::{Entry, Tree, TreeError, TreePath};

/// Id of a watched folder. A folder keeps its id as long as it exists; one that is made anew under
/// its name has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FolderId(pub(crate) i32);

/// Changes after the last call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FolderChanges {
    /// The folders that have changed. `true`: the folder is gone, and not watched any more.
    pub folders: Vec<(FolderId, bool)>,
    /// More changes happened than could be reported.
    pub lost: bool,
}

/// Watches folders of one tree.
pub trait Folders: Send + Sync {
    /// Begins to watch a folder. A second call for one folder returns the first watch.
    ///
    /// # Errors
    /// `ENOENT`: it is not there. `ENOSPC`: `fs.inotify.max_user_watches` folders are watched
    /// already.
    fn watch(&self, folder: &TreePath) -> Result<FolderId, Errno>;

    /// Stops watching a folder. Does nothing if it is gone.
    fn unwatch(&self, folder: FolderId);

    /// Waits for changes, at most for this time.
    fn changes(&self, within: Duration) -> Result<FolderChanges, Errno>;

    /// Has changes told here, each with what follows it. `false`: somebody has to wait for them in
    /// [`Folders::changes`]. Only a simulation tells them, because a thread that waits lives in
    /// real time.
    fn tell(&self, _to: Box<dyn Fn(FolderChanges) + Send + Sync>) -> bool {
        false
    }
}

/// Events of a folder that count: every change. A read is none.
const EVENTS: AddWatchFlags = AddWatchFlags::IN_MODIFY
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_ONLYDIR);

/// Folders of the running kernel's tree.
pub struct KernelFolders {
    root: PathBuf,
    inotify: Inotify,
    watched: Mutex<HashMap<FolderId, WatchDescriptor>>,
}

impl KernelFolders {
    /// Watches folders below this one.
    ///
    /// # Errors
    /// `EMFILE`: `fs.inotify.max_user_instances` are in use.
    pub fn new(root: impl Into<PathBuf>) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Self { root: root.into(), inotify, watched: Mutex::default() })
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<FolderId, WatchDescriptor>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folders for KernelFolders {
    fn watch(&self, folder: &TreePath) -> Result<FolderId, Errno> {
        let descriptor = self.inotify.add_watch(&self.root.join(folder.as_str()), EVENTS)?;
        let id = FolderId(descriptor.as_raw());
        self.watched().insert(id, descriptor);
        Ok(id)
    }

    fn unwatch(&self, folder: FolderId) {
        let descriptor = self.watched().remove(&folder);
        if let Some(descriptor) = descriptor {
            // The watch may have gone with its folder a moment ago.
            let _gone = self.inotify.rm_watch(descriptor);
        }
    }

    fn changes(&self, within: Duration) -> Result<FolderChanges, Errno> {
        let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(FolderChanges::default()),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        let events = match self.inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => return Ok(FolderChanges::default()),
            Err(errno) => return Err(errno),
        };
        let mut changes = FolderChanges::default();
        let mut watched = self.watched();
        for event in events {
            changes.lost |= event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
            let id = FolderId(event.wd.as_raw());
            let gone = event.mask.contains(AddWatchFlags::IN_IGNORED);
            // A watch that was given up reports its end, too.
            let known = if gone { watched.remove(&id).is_some() } else { watched.contains_key(&id) };
            if known {
                changes.folders.push((id, gone));
            }
        }
        Ok(changes)
    }
}

/// A tree that announces each folder before it reads anything in it for the first time: a watch
/// that begins then misses no change behind the read. One thread reads through it.
pub struct Noted<T, F> {
    tree: T,
    before: F,
    folders: Mutex<BTreeSet<TreePath>>,
}

impl<T: Tree, F: Fn(&TreePath) + Send + Sync> Noted<T, F> {
    /// Wraps a tree of which nothing was read yet. `before` gets each folder once.
    pub const fn new(tree: T, before: F) -> Self {
        Self { tree, before, folders: Mutex::new(BTreeSet::new()) }
    }

    fn note(&self, folder: &TreePath) -> &T {
        let is_new = {
            let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
            !folders.contains(folder) && folders.insert(folder.clone())
        };
        if is_new {
            (self.before)(folder);
        }
        &self.tree
    }
}

impl<T: Tree, F: Fn(&TreePath) + Send + Sync> Tree for Noted<T, F> {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree.mkdir(path)
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree.rmdir(path)
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.tree.symlink(target, link)
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree.unlink(path)
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        self.tree.write(path, value)
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.note(&path.parent()).read(path)
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.note(path).list(path)
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.note(&path.parent()).read_link(path)
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.note(&path.parent()).is_dir(path)
    }
}
