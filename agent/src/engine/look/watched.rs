//! Exports whose folders in the kernel's tree are watched. A whole look stays true until somebody
//! makes, removes or writes something in a folder that it read, and the kernel reports that. So a
//! change by somebody else is seen at once, and a resync need not look at all exports each time. A
//! resync looks at exports that are not watched, and at a share of the others: each has a look at
//! one of [`LOOKED_AT_EVERY`] resyncs, so that no resync is a burst of looks.
//!
//! An export is watched from its first whole look on that found nothing to do: each folder is
//! watched before the look reads it, so that a later change is told. A step of ours ends the watch,
//! as a change by somebody else does. The look behind a step watches all folders anew: what the
//! kernel tells of the step has the ids of the watches before, and concerns nobody. A pass that
//! looks at changed grants only is followed by a whole look [`LOOKED_AFTER`] it. A volume that is
//! not exported has no folder: no resync looks at it, either, while its target is not there. The
//! pulse reads what the kernel changes by itself (logins, counters). Over Fibre Channel volumes
//! share folders, and each resync looks at them.
//!
//! What must never happen here: an export that counts as watched while one of its folders is not; a
//! change by somebody else taken for a step of ours.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mooring_host::{Errno, FolderChanges, FolderId, Folders, TreePath};
use mooring_model::{ExportIdentity, VolumeId};
use mooring_targets::{Wanted, layout};
use tokio::sync::mpsc;

use super::pulse::Lives;
use crate::engine::cell::{Cell, State};
use crate::engine::export::fabrics::Wanteds;
use crate::engine::knowledge::Stale;
use crate::engine::{Engine, is_spec, lock};
use crate::object::seen::Moment;

/// Resyncs in which each export has a look, watched or not: two hours, unless the configuration
/// says otherwise. A prime spreads the turns also if ids follow a pattern.
const LOOKED_AT_EVERY: u32 = 251;

/// Time to wait for more after a change: an ACL that is removed by hand goes in several calls.
const SETTLES_WITHIN: Duration = Duration::from_millis(100);

/// Time between a pass that looked at changed grants only, or whose look was overtaken by a change,
/// and the whole look from which on the export is watched. Changes in a burst have one such look.
const LOOKED_AFTER: Duration = Duration::from_millis(500);

/// Most reads in a row before the changes are reported.
const READ_AT_ONCE: usize = 64;

/// Time within which the thread ends after its receiver is dropped.
const LISTENED_EVERY: Duration = Duration::from_secs(5);

/// Time until the agent watches again after a watch ended.
const WATCH_AGAIN: Duration = Duration::from_secs(5);

/// The watch of one export.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// All folders that the last whole look read, each watched before that. Empty if not all of
    /// them could be watched.
    folders: Vec<FolderId>,
    /// `true` if a whole look is planned, so that no other need be.
    look_is_planned: bool,
    /// Commands that had come for the volume at the last look at its reservations. `None` if
    /// unknown.
    commands: Option<u64>,
}

/// A whole look that has each folder of its export watched before it reads anything there.
pub(in crate::engine) struct Listening<'a> {
    /// `None` if this export is not watched: over Fibre Channel, or if it is to be taken away.
    folders: Option<&'a dyn Folders>,
    watches: &'a Mutex<Watches>,
    volume: VolumeId,
    /// The folders of the export. Everything else in the tree is shared.
    own: [TreePath; 2],
    heard: Mutex<Heard>,
}

/// The folders that a look has watched.
#[derive(Debug, Default)]
struct Heard {
    folders: Vec<FolderId>,
    /// `true` if a folder could not be watched: then none of the look's folders stays watched.
    failed: bool,
}

impl Listening<'_> {
    /// Watches a folder, before anything in it is read.
    pub(in crate::engine) fn watch(&self, folder: &TreePath) {
        let Some(folders) = self.folders else { return };
        let is_own = self.own.iter().any(|own| folder.is_within(own));
        if !is_own || lock(&self.heard).failed {
            return;
        }
        match folders.watch(folder) {
            Ok(id) => {
                // A change that is told before this line concerns nobody: the look reads it.
                lock(self.watches).volumes.insert(id, self.volume);
                lock(&self.heard).folders.push(id);
            }
            Err(errno) => {
                Engine::say_unwatched(self.volume, errno);
                lock(&self.heard).failed = true;
            }
        }
    }
}

/// The watches of all exports.
#[derive(Debug, Default)]
pub(in crate::engine) struct Watches {
    volumes: HashMap<FolderId, VolumeId>,
    /// The share of the last resync.
    share: Share,
}

/// The share of all volumes that a resync looks at, watched or not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Share(u32);

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
    /// Says whether the volume and its export were taken away, and nothing of either is left.
    fn has_ended(&self) -> bool {
        let volume = self.volume();
        volume.is_some_and(|kept_spec| self.has_ended_by(kept_spec))
            && self.export().is_none_or(|kept_spec| kept_spec.spec().is_none())
            && self.is_export_done()
            && self.established.receipts().open().is_empty()
            && self.knowledge.linked().is_empty()
            && self.knowledge.orphan().is_none()
            && self.turn.is_idle()
            && !self.may_be_isolated()
    }

    /// Says whether no look is needed: the export is watched, and everything is as the last pass
    /// left it.
    fn rests(&self) -> bool {
        self.knowledge.is_unchanged() && self.is_as_left()
    }

    /// Says whether no look is needed at a volume without an export: nothing of one is left. This
    /// no longer holds once its target is there again.
    fn rests_unexported(&self) -> bool {
        self.export().is_none_or(|kept_spec| kept_spec.spec().is_none())
            && self.established.receipts().open().is_empty()
            && self.knowledge.linked().is_empty()
            && self.established.former().is_empty()
            && self.is_as_left()
    }

    /// Says whether everything is as the last pass left it, as far as notices and looks have shown.
    fn is_as_left(&self) -> bool {
        self.turn.is_idle()
            && !self.may_be_isolated()
            && self.is_export_done()
            && self.volume_end().is_done()
            && self.knowledge.ready().is_some()
            && self.knowledge.ready() == self.volume_end().report.as_ref()
    }
}

impl Engine {
    /// The share of all volumes that this resync looks at.
    pub(in crate::engine) fn next_share(&self) -> Share {
        let mut watches = lock(&self.shared.look_memory.watches);
        watches.share = watches.share.next();
        watches.share
    }

    /// The volumes that a resync has to look at: the `share`, and all that are exported and not
    /// watched. Wakes the others that have new reservations. `targets`: the kernel's targets,
    /// `None` if they are unknown.
    pub(in crate::engine) fn restless(
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

    /// Says whether a volume is not exported, or has ended and left nothing, and nobody has made
    /// its target again.
    fn is_without_target(&self, cell: &Cell, targets: Option<&BTreeSet<String>>) -> bool {
        let prefix = &self.shared.config.iqn_prefix;
        let target = || ExportIdentity::Derived.names(cell.id, prefix).iqn;
        let is_not_wanted = || {
            let state = cell.state();
            state.has_ended() || state.rests_unexported()
        };
        is_not_wanted() && targets.is_some_and(|targets| !targets.contains(target().as_str()))
    }

    /// Looks for a new registration, which no event reports. Skipped if no command came since the
    /// last look.
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

    /// Begins a whole look. The watches of an export that is as it was left stay. Those of any
    /// other end: notices of what was done to it concern nobody, because the look reads all of it.
    pub(in crate::engine) fn begin_watch(&self, cell: &Cell, wanted: &Wanteds) -> Listening<'_> {
        let folders = self.shared.machine.folders.as_deref();
        if let Some(folders) = folders {
            let ended = {
                let mut state = cell.state();
                if state.knowledge.is_unchanged() {
                    Vec::new()
                } else {
                    std::mem::take(&mut state.knowledge.watched_mut().folders)
                }
            };
            self.let_go(folders, &ended);
        }
        let is_watched = matches!(wanted.iscsi, Wanted::Present { .. }) && !wanted.is_over_fc();
        let names = wanted.names();
        Listening {
            folders: folders.filter(|_| is_watched),
            watches: &self.shared.look_memory.watches,
            volume: cell.id,
            own: [layout::target(names), layout::backstore(names)],
            heard: Mutex::default(),
        }
    }

    /// Ends a whole look: the folders that it read stay watched, if all of them are. `is_whole`:
    /// the look came to its end.
    pub(in crate::engine) fn end_watch(&self, cell: &Cell, listening: Listening<'_>, is_whole: bool) {
        let Some(folders) = self.shared.machine.folders.as_deref() else { return };
        let Heard { folders: heard, failed } =
            listening.heard.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (heard, ended) = if failed { (Vec::new(), heard) } else { (heard, Vec::new()) };
        let kept: BTreeSet<_> = heard.iter().copied().collect();
        let before = {
            let mut state = cell.state();
            if (kept.is_empty() || !is_whole) && state.knowledge.is_unchanged() {
                state.knowledge.forget(Stale::OtherFolders);
            }
            std::mem::replace(&mut state.knowledge.watched_mut().folders, heard)
        };
        let left: Vec<_> = before.into_iter().chain(ended).filter(|folder| !kept.contains(folder)).collect();
        self.let_go(folders, &left);
    }

    /// Notes that the whole look which began at this moment found nothing to do: from then on the
    /// export is watched, if all that the look read is. If a change was told meanwhile, another
    /// look follows.
    pub(in crate::engine) fn watch_export(&self, cell: &Arc<Cell>, began: Moment) {
        let overtaken = {
            let mut state = cell.state();
            let is_watched = !state.knowledge.watched().folders.is_empty();
            is_watched && !state.knowledge.learn_unchanged(began)
        };
        if overtaken {
            self.look_soon(cell);
        }
    }

    /// Has a whole look at the export made soon, if its folders can be watched and it does not
    /// count as watched.
    pub(in crate::engine) fn look_soon(&self, cell: &Arc<Cell>) {
        {
            let mut state = cell.state();
            let stands = state.knowledge.is_unchanged();
            let watch = state.knowledge.watched_mut();
            if stands || watch.folders.is_empty() || std::mem::replace(&mut watch.look_is_planned, true) {
                return;
            }
        }
        let (engine, cell) = (self.clone(), Arc::clone(cell));
        self.shared.runtime.spawn(async move {
            tokio::time::sleep(LOOKED_AFTER).await;
            {
                let mut state = cell.state();
                state.knowledge.watched_mut().look_is_planned = false;
                if state.knowledge.is_unchanged() || !is_spec(state.export()) {
                    return;
                }
                state.knowledge.forget(Stale::Swept);
            }
            engine.wake(&cell);
        });
    }

    fn let_go(&self, folders: &dyn Folders, left: &[FolderId]) {
        for folder in left {
            folders.unwatch(*folder);
            lock(&self.shared.look_memory.watches).volumes.remove(folder);
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

    /// Follows the watched folders. Never returns, if folders can be watched.
    pub(in crate::engine) async fn follow_folders(self) {
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
            let mut all = lock(&self.shared.look_memory.watches);
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
                // A change before the watch stood may be a step of ours.
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

/// Waits for a change and those that follow it. Empty if there is none for a while. The woken
/// thread itself waits for more: the kernel reports each step of ours, too, and would wake this
/// thread, and it another one, between any two steps.
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

/// Reports changes soon after they happen, by a thread that ends soon after the receiver is
/// dropped. `None` if no thread can be started.
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
