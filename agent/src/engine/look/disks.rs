//! The disks below the volume groups, watched. Every change of a group, also by LVM on the command
//! line, writes metadata to these disks. The kernel reports when the writer closes them: inotify on
//! the device node, as udev's own `watch` does. So the agent sees a change by hand in a moment, and
//! need not ask LVM again and again. While the watch stands, only each [`ASKED_EVERY`]th resync
//! asks LVM.
//!
//! The filling of a thin pool writes to no watched disk: there each resync asks LVM. So does each
//! resync while a group cannot be used: what mends it may write to no disk. A deactivated LV loses
//! its device node in the group's folder, and the agent watches that folder, too.
//!
//! What must never happen here: trust in a watch that does not stand; a look for each of many
//! changes.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mooring_host::BlockDevices;
use mooring_model::Chain;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

use crate::engine::{Engine, lock};
use crate::lvm;

/// Resyncs until LVM is asked although the watch stands: no event reports a write by another host.
const ASKED_EVERY: u32 = 10;

/// Time to wait for more after a change: one LVM command writes to a disk several times.
const SETTLES_WITHIN: Duration = Duration::from_millis(200);

/// Least time between two looks: all changes within it share one. The watch also reports this
/// agent's own changes, which have a look anyway.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Time after which the disks are listed again without any event.
const LIST_EVERY: Duration = Duration::from_mins(10);

/// Time after which the disks are listed again if they cannot be watched.
const LIST_AGAIN: Duration = Duration::from_mins(1);

/// A writer closes a disk, or a node comes or goes in a group's folder.
const EVENTS: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO);

/// Time within which the thread of a dropped watch ends, in milliseconds.
const LISTENED_EVERY_MS: u16 = 5000;

/// Decides whether a resync has to ask LVM.
#[derive(Debug, Default)]
pub(in crate::engine) struct Watch {
    /// `true` while the disks of all groups are watched.
    stands: bool,
    /// Resyncs since the last one that asked LVM.
    resyncs: u32,
}

impl Engine {
    /// Says whether this resync asks LVM.
    pub(in crate::engine) fn resync_asks_lvm(&self) -> bool {
        let known = self.lvm().known();
        let fills = known.pools().iter().any(|pool| !pool.thick);
        let mut watch = lock(&self.shared.look_memory.watch);
        watch.resyncs += 1;
        let asks = !watch.stands || fills || known.has_unusable_group() || watch.resyncs >= ASKED_EVERY;
        if asks {
            watch.resyncs = 0;
        }
        asks
    }

    /// Follows the disks. Never returns if there are groups.
    pub(in crate::engine) async fn follow_disks(self) {
        if self.shared.config.groups.is_empty() {
            return;
        }
        let (mut watched, mut changes) = (BTreeSet::new(), None);
        loop {
            let engine = self.clone();
            let places = self.blocking(move || engine.places_to_watch()).await.unwrap_or_default();
            if changes.is_none() || places != watched {
                changes = watch(&*self.shared.machine.blocks, &places);
                watched = places;
                lock(&self.shared.look_memory.watch).stands = changes.is_some();
                // Changes from before the watch stood.
                if changes.is_some() {
                    self.look_at_groups().await;
                }
            }
            let told = match &mut changes {
                Some(changes) => tokio::time::timeout(LIST_EVERY, changes.recv()).await,
                None => Ok(None),
            };
            match told {
                Ok(Some(())) => {
                    tokio::time::sleep(SETTLES_WITHIN).await;
                    if let Some(changes) = &mut changes {
                        while changes.try_recv().is_ok() {}
                    }
                    self.look_at_groups().await;
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Ok(None) => {
                    changes = None;
                    lock(&self.shared.look_memory.watch).stands = false;
                    tokio::time::sleep(LIST_AGAIN).await;
                }
                Err(_) => {}
            }
        }
    }

    async fn look_at_groups(&self) {
        let engine = self.clone();
        self.blocking(move || engine.look_for_drift()).await;
    }

    /// The disks of the groups and the groups' folders. Empty if a group has no disk to watch.
    fn places_to_watch(&self) -> BTreeSet<PathBuf> {
        let groups = &self.shared.config.groups;
        match lvm::disks(&*self.shared.machine.commands, groups) {
            Ok(disks) if groups.iter().all(|group| disks.iter().any(|(of, _)| *of == group.name)) => {
                let folders = groups.iter().map(|group| Path::new("/dev").join(group.name.as_str()));
                let folders = folders.filter(|folder| folder.is_dir());
                disks.iter().map(|(_, path)| path.clone()).chain(folders).collect()
            }
            Ok(_) => BTreeSet::new(),
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "cannot list the disks of the groups");
                BTreeSet::new()
            }
        }
    }
}

/// Reports every change at these places, by a thread that ends soon after the receiver is dropped.
/// At most one notice waits: it stands for all changes before it is read. `None` if not all places
/// can be watched.
fn watch(blocks: &dyn BlockDevices, places: &BTreeSet<PathBuf>) -> Option<mpsc::Receiver<()>> {
    if places.is_empty() {
        return None;
    }
    let (sender, changes) = mpsc::channel(1);
    let written = sender.clone();
    if blocks.tell_writes(Box::new(move || {
        let _heard_already = written.try_send(());
    })) {
        return Some(changes);
    }
    let told = |error: &dyn std::fmt::Display, what: &Path| {
        tracing::warn!(%error, what = %what.display(), "cannot watch a disk: LVM is asked at every resync");
    };
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
    let inotify = inotify.inspect_err(|error| told(error, Path::new("inotify"))).ok()?;
    for place in places {
        inotify.add_watch(place, EVENTS).inspect_err(|error| told(error, place)).ok()?;
    }
    let started = std::thread::Builder::new().name("disks".to_owned()).spawn(move || tell(&inotify, &sender));
    started.inspect_err(|error| told(error, Path::new("thread"))).ok()?;
    Some(changes)
}

fn tell(inotify: &Inotify, sender: &mpsc::Sender<()>) {
    while !sender.is_closed() {
        match poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], LISTENED_EVERY_MS) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return tracing::warn!(%errno, "the watch of the disks has ended"),
        }
        let Ok(events) = inotify.read_events() else { continue };
        let _heard_already = sender.try_send(());
        // A disk that goes takes its watch with it.
        if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) {
            return;
        }
    }
}
