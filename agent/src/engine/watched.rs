//! Exports whose folders in the kernel's tree are watched. What a whole look has seen stays true until somebody makes, removes or
//! writes something in a folder that was read for it, and of that the kernel tells: so somebody else's change is seen at once, and
//! a resync need not look at all exports again and again. It looks at those that are not watched, and at the others in turns:
//! each at one of [`LOOKED_AT_EVERY`] resyncs, so that no resync is a burst of looks.
//!
//! An export is watched when two whole looks, one resync apart, found nothing to do, the folders that the second has read were
//! watched since the first, and nothing was told meanwhile. A volume that is not exported has no folder: it is left alone, too, while
//! its target is not there. A step of ours ends that, as a change of somebody else does. What
//! the kernel changes by itself (logins, counters) is the pulse's; over Fibre Channel folders are shared by volumes, and looked at
//! as before.
//!
//! What must never happen here: an export taken for watched of which one folder is not; a change by somebody else that is taken
//! for one of ours.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mooring_host::{Errno, FolderChanges, FolderId, Folders, TreePath};
use mooring_model::{ExportIdentity, VolumeId};
use mooring_targets::layout;
use tokio::sync::mpsc;

use super::cell::{Cell, State};
use super::fabrics::Wanteds;
use super::knowledge::Stale;
use super::pulse::Lives;
use super::{Engine, lock};
use crate::object::seen::Moment;

/// Resyncs until each export was looked at, watched or not: two hours, unless the configuration says otherwise. A prime, so that the
/// turns of ids that follow a pattern are spread, too.
const LOOKED_AT_EVERY: u32 = 251;

/// How long what follows a change is waited for: by hand an ACL goes in several calls.
const SETTLES_WITHIN: Duration = Duration::from_millis(100);

/// Reads of changes that follow one another, before what they have brought is told.
const READ_AT_ONCE: usize = 64;

/// How soon the thread ends when nobody listens any more.
const LISTENED_EVERY: Duration = Duration::from_secs(5);

/// How long a watch that ended is left alone.
const WATCH_AGAIN: Duration = Duration::from_secs(5);

/// The watch of one export.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Of all folders that the last whole look has read; empty: not all could be.
    folders: Vec<FolderId>,
    /// Commands that had come for the volume when its reservations were looked at.
    commands: Option<u64>,
}

/// The watches of all exports.
#[derive(Debug, Default)]
pub(super) struct Watches {
    volumes: HashMap<FolderId, VolumeId>,
    /// The share of the last resync.
    share: Share,
}

/// The share of all volumes that a resync looks at, watched or not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share(u32);

impl Share {
    fn of(volume: VolumeId) -> Self {
        let every = u128::from(LOOKED_AT_EVERY);
        Self(u32::try_from(u128::from_be_bytes(*volume.as_bytes()) % every).unwrap_or_default())
    }

    const fn next(self) -> Self {
        Self((self.0 + 1) % LOOKED_AT_EVERY)
    }
}

impl State {
    /// Whether its volume and its export have been taken away, and nothing of either was left.
    fn has_ended(&self) -> bool {
        let volume = self.volume();
        volume.is_some_and(|wish| self.has_ended_by(wish))
            && self.export().is_none_or(|wish| wish.spec().is_none())
            && self.is_export_done()
            && self.receipts.open().is_empty()
            && self.knowledge.linked().is_empty()
            && self.knowledge.orphan().is_none()
            && self.turn.is_idle()
            && !self.may_be_cut()
    }

    /// Whether nothing of it need be looked at: its export is watched, and everything is as the last pass left it.
    fn rests(&self) -> bool {
        self.knowledge.is_unchanged() && self.is_as_left()
    }

    /// The same of a volume that is not exported: nothing of an export was left. Where its target is there again, it does not hold.
    fn rests_unexported(&self) -> bool {
        self.export().is_none_or(|wish| wish.spec().is_none())
            && self.receipts.open().is_empty()
            && self.knowledge.linked().is_empty()
            && self.established.former().is_empty()
            && self.is_as_left()
    }

    /// Whether everything is as the last pass left it, as far as it is told, or was seen since.
    fn is_as_left(&self) -> bool {
        self.turn.is_idle()
            && !self.may_be_cut()
            && self.is_export_done()
            && self.volume_end().done
            && self.knowledge.ready().is_some()
            && self.knowledge.ready() == self.volume_end().report.as_ref()
    }
}

impl Engine {
    /// The share of all volumes that this resync looks at.
    pub(super) fn next_share(&self) -> Share {
        let mut watches = lock(&self.shared.watches);
        watches.share = watches.share.next();
        watches.share
    }

    /// Those that a resync has to look at: the `share`, all that are exported and not watched, and where somebody has registered a
    /// reservation. `targets`: what the kernel serves, if that is known.
    pub(super) fn restless(
        &self,
        mut cells: Vec<Arc<Cell>>,
        share: Share,
        targets: Option<&BTreeSet<String>>,
    ) -> Vec<Arc<Cell>> {
        cells.retain(|cell| {
            if Share::of(cell.id) == share {
                return true;
            }
            if self.is_without_target(cell, targets) {
                return false;
            }
            let rests = cell.state().rests();
            if rests {
                self.look_at_reservations(cell);
            }
            !rests
        });
        cells
    }

    /// Whether a volume is not exported, or nothing is left of one whose tombstone is kept; and nobody has made its target again.
    fn is_without_target(&self, cell: &Cell, targets: Option<&BTreeSet<String>>) -> bool {
        let prefix = &self.shared.config.iqn_prefix;
        let target = || ExportIdentity::Derived.names(cell.id, prefix).iqn;
        let is_not_wanted = || {
            let state = cell.state();
            state.has_ended() || state.rests_unexported()
        };
        is_not_wanted() && targets.is_some_and(|targets| !targets.contains(target().as_str()))
    }

    /// Somebody may have registered a reservation, which nothing tells: not where no command has come since the last look at it.
    fn look_at_reservations(&self, cell: &Arc<Cell>) {
        let come = {
            let state = cell.state();
            let come = state.knowledge.lives().and_then(Lives::commands);
            if come.is_some() && come == state.knowledge.watched().commands {
                return;
            }
            come
        };
        if self.has_new_reservations(cell) {
            self.wake(cell);
        }
        cell.state().knowledge.watched_mut().commands = come;
    }

    /// Watches the folders that a whole look has read which found nothing to do.
    pub(super) fn watch_export(
        &self,
        cell: &Cell,
        wanted: &Wanteds,
        began: Moment,
        read: &BTreeSet<TreePath>,
    ) {
        let Some(folders) = self.shared.machine.folders.as_deref() else { return };
        {
            let state = cell.state();
            // What a step of ours has changed is looked at first, by the next resync.
            let is_old = !state.knowledge.is_unchanged_since(began);
            if is_old || wanted.is_over_fc() || !super::is_spec(state.export()) {
                return;
            }
        }
        let names = wanted.names();
        let own = [layout::target(names), layout::backstore(names)];
        let read: Vec<_> = read.iter().filter(|path| own.iter().any(|own| path.is_within(own))).collect();
        let watched = watch_all(folders, &read).unwrap_or_else(|errno| {
            Self::say_unwatched(cell.id, errno);
            Vec::new()
        });
        {
            let mut all = lock(&self.shared.watches);
            all.volumes.extend(watched.iter().map(|folder| (*folder, cell.id)));
        }
        let mut state = cell.state();
        let watch = state.knowledge.watched_mut();
        let before = std::mem::replace(&mut watch.folders, watched);
        let same = !watch.folders.is_empty() && before == watch.folders;
        let left: Vec<_> = before.into_iter().filter(|folder| !watch.folders.contains(folder)).collect();
        if same {
            state.knowledge.learn_unchanged(began);
        } else {
            state.knowledge.forget(Stale::OtherFolders);
        }
        drop(state);
        self.let_go(folders, &left);
    }

    fn let_go(&self, folders: &dyn Folders, left: &[FolderId]) {
        for folder in left {
            folders.unwatch(*folder);
            lock(&self.shared.watches).volumes.remove(folder);
        }
    }

    fn say_unwatched(volume: VolumeId, errno: Errno) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if errno == Errno::ENOSPC && !SAID.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %volume,
                "no more folders can be watched: this export, and maybe others, are looked at by every resync instead, which costs \
                 processor time. Raise fs.inotify.max_user_watches (sysctl)"
            );
        }
        tracing::debug!(%volume, %errno, "an export cannot be watched");
    }

    /// Follows the watched folders, for ever.
    pub(super) async fn follow_folders(self) {
        let Some(folders) = self.shared.machine.folders.clone() else { return };
        loop {
            if let Some(mut changes) = listen(&folders) {
                while let Some(changes) = changes.recv().await {
                    self.note_changes(&changes);
                }
            }
            self.note_changes(&FolderChanges { lost: true, ..FolderChanges::default() });
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }

    fn note_changes(&self, changes: &FolderChanges) {
        let touched: BTreeSet<_> = {
            let mut all = lock(&self.shared.watches);
            let of = |(folder, gone): &(FolderId, bool)| {
                if *gone { all.volumes.remove(folder) } else { all.volumes.get(folder).copied() }
            };
            changes.folders.iter().filter_map(of).collect()
        };
        let cells = if changes.lost {
            self.cells()
        } else {
            touched.iter().filter_map(|volume| self.known_cell(*volume)).collect()
        };
        for cell in cells {
            let stood = {
                let mut state = cell.state();
                let stood = state.knowledge.is_unchanged();
                // Of a change before the watch stood nobody knows whether it is a step of ours.
                state.knowledge.forget(if stood { Stale::ExportDrifted } else { Stale::ExportTold });
                stood
            };
            if stood {
                tracing::info!(volume = %cell.id, "somebody else has changed the export in the kernel's tree: looking at it");
                self.wake(&cell);
            }
        }
    }
}

/// All of them, or none.
fn watch_all(folders: &dyn Folders, read: &[&TreePath]) -> Result<Vec<FolderId>, Errno> {
    let mut watched = Vec::with_capacity(read.len());
    for folder in read {
        match folders.watch(folder) {
            Ok(id) => watched.push(id),
            Err(errno) => {
                for id in watched {
                    folders.unwatch(id);
                }
                return Err(errno);
            }
        }
    }
    Ok(watched)
}

/// A change and what follows it, or nothing for a while. What follows is waited for by the thread that was woken: the kernel tells of
/// each step of ours as well, and would wake this thread, and it another one, between any two of them.
fn settled(folders: &dyn Folders) -> Result<FolderChanges, Errno> {
    let mut all = folders.changes(LISTENED_EVERY)?;
    if all == FolderChanges::default() {
        return Ok(all);
    }
    std::thread::sleep(SETTLES_WITHIN);
    for _ in 0..READ_AT_ONCE {
        let more = folders.changes(Duration::ZERO)?;
        if more == FolderChanges::default() {
            break;
        }
        all.lost |= more.lost;
        all.folders.extend(more.folders);
    }
    Ok(all)
}

/// What changes, soon after it happens, by a thread that ends soon when nobody listens any more.
fn listen(folders: &Arc<dyn Folders>) -> Option<mpsc::UnboundedReceiver<FolderChanges>> {
    let (sender, changes) = mpsc::unbounded_channel();
    let told = sender.clone();
    if folders.tell(Box::new(move |changes| drop(told.send(changes)))) {
        return Some(changes);
    }
    let folders = Arc::clone(folders);
    let tell = move || {
        while !sender.is_closed() {
            match settled(&*folders) {
                Ok(changes) if changes == FolderChanges::default() => {}
                Ok(changes) => drop(sender.send(changes)),
                Err(errno) => return tracing::warn!(%errno, "the watch of the exports has ended; begun anew"),
            }
        }
    };
    let started = std::thread::Builder::new().name("exports".to_owned()).spawn(tell);
    started.inspect_err(|error| tracing::warn!(%error, "exports cannot be watched")).ok()?;
    Some(changes)
}

#[cfg(test)]
mod tests;
