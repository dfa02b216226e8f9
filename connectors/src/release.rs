//! Releases every attached disk of this host at a shutdown: swap off, file systems unmounted, upper
//! layers taken down, the disk flushed and removed, its session logged out. The specs stay: after
//! the boot everything comes back.
//!
//! Each disk has a thread of its own: one whose target does not answer holds up no other. The
//! release waits for users that do not go (services that are still being stopped).
//!
//! What must never happen here: a disk removed, or a session ended, that somebody still uses; a
//! disk touched that is not a verified one of ours; a wait without an end.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mooring_host::{Command, Holder, Layers, Top};
use mooring_model::VolumeId;

use crate::clock;

mod machine;

pub use machine::ThisMachine;

/// Longest time that a shutdown waits for attached disks. It is longer than systemd gives a service
/// to stop (90 s), whose files may lie on a disk. It is also longer than I/O waits for a lost
/// session by default (120 s): after that an unmount ends by itself.
pub const RELEASE_WITHIN: Duration = Duration::from_secs(150);

/// Pause between two looks at a disk.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// An existing disk that the agent has named after its volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OurDisk {
    /// The volume.
    pub volume: VolumeId,
    /// Device node.
    pub device: PathBuf,
    /// Sequence number of the disk in the kernel.
    pub sequence: u64,
}

/// The machine as the release of disks needs it. Calls may hang with a disk.
pub trait Door: Send + Sync {
    /// Lists the disks that the agent has named and that exist.
    fn disks(&self) -> Result<Vec<OurDisk>, String>;
    /// Finds the layers on a disk; none if it has gone.
    fn layers(&self, disk: &OurDisk) -> Result<Layers, String>;
    /// Finds the holders that have a disk open; none if it has gone.
    fn holders(&self, disk: &OurDisk) -> Result<Vec<Holder>, String>;
    /// Runs a command. The error is its error text.
    fn run(&self, command: &Command) -> Result<(), String>;
    /// Writes out the disk's pages in the page cache, and makes the disk write out its own cache.
    fn flush(&self, disk: &OurDisk) -> Result<(), String>;
    /// Starts the thread of one disk.
    fn start(&self, name: String, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::Builder::new().name(name).spawn(work).map(drop)
    }
    /// Waits a moment before the next look.
    fn pause(&self) {
        thread::sleep(LOOK_AGAIN);
    }
    /// Removes a disk that nobody uses and logs its session out. Over Fibre Channel, where there is
    /// no session, does nothing.
    fn log_out(&self, disk: &OurDisk) -> Result<(), String>;
}

/// Result for one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// Nobody uses the disk, everything is written, its session is logged out.
    Whole,
    /// All writes of users who are gone are flushed; the text says why the session stays.
    Flushed(String),
    /// A layer stayed, or a step failed: the text says which.
    Not(String),
}

/// Releases every disk within this time. The results are by device. An error means that nobody
/// knows which disks are ours; whatever happens to one disk is that disk's result.
pub fn release(door: &Arc<dyn Door>, within: Duration) -> Result<BTreeMap<PathBuf, Released>, String> {
    let until = clock::instant() + within;
    let disks = door.disks()?;
    let (tell, told) = mpsc::channel();
    let waits = Arc::new(Mutex::new(BTreeMap::new()));
    let mut went = BTreeMap::new();
    for disk in &disks {
        tracing::info!(device = %disk.device.display(), volume = %disk.volume, "letting go");
        let (its, tell, waits, ours) = (door.clone(), tell.clone(), waits.clone(), disk.clone());
        let name = format!("release-{}", disk.sequence);
        let work = move || {
            let one = One { door: &*its, disk: &ours, until, waits: &waits };
            let went = one.release();
            // An error means that nobody listens any more: the time is over.
            drop(tell.send((ours.device.clone(), went)));
        };
        // The other disks go all the same: data that nobody flushes may be lost.
        if let Err(error) = door.start(name, Box::new(work)) {
            let how = Released::Not(format!("cannot start a thread for it ({error}): it is left as it is"));
            report(&disk.device, &how);
            went.insert(disk.device.clone(), how);
        }
    }
    drop(tell);
    while let Ok((device, how)) = told.recv_timeout(until.saturating_duration_since(clock::instant())) {
        report(&device, &how);
        went.insert(device, how);
    }
    for disk in disks {
        if went.contains_key(&disk.device) {
            continue;
        }
        let waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
        let what =
            waits.get(&disk.device).cloned().unwrap_or_else(|| "its device does not answer".to_owned());
        let how = Released::Not(format!("not within {} s: {what}", within.as_secs()));
        report(&disk.device, &how);
        went.insert(disk.device, how);
    }
    Ok(went)
}

fn report(device: &Path, how: &Released) {
    let device = device.display();
    match how {
        Released::Whole => tracing::info!(%device, "unmounted, flushed and logged out"),
        Released::Flushed(why) => tracing::warn!(%device, why, "unmounted and flushed; its session stays"),
        Released::Not(why) => tracing::error!(%device, why, "in use: what is not flushed may be lost"),
    }
}

/// One disk on its way out.
struct One<'a> {
    door: &'a dyn Door,
    disk: &'a OurDisk,
    until: Instant,
    /// Reason of each disk's wait.
    waits: &'a Mutex<BTreeMap<PathBuf, String>>,
}

impl One<'_> {
    fn release(&self) -> Released {
        match self.clear() {
            Ok(None) => {}
            Ok(Some(why)) => return self.flush().map_or_else(Released::Not, |()| Released::Flushed(why)),
            Err(why) => return self.flush().map_or_else(Released::Not, |()| Released::Not(why)),
        }
        match self.flush().and_then(|()| self.door.log_out(self.disk)) {
            Ok(()) => Released::Whole,
            Err(why) => Released::Not(why),
        }
    }

    fn flush(&self) -> Result<(), String> {
        self.wait_for("its cache is being written");
        self.door.flush(self.disk)
    }

    /// Takes down the layers of the disk until no layer and no holder is left. `Some` is a holder
    /// that does not go by itself.
    fn clear(&self) -> Result<Option<String>, String> {
        loop {
            let layers = self.door.layers(self.disk)?;
            let failed = self.take_down(&layers);
            let what = if layers.is_empty() {
                let holders = self.door.holders(self.disk)?;
                if holders.is_empty() {
                    return Ok(None);
                }
                let names: Vec<_> = holders.iter().map(name_of).collect();
                if holders.iter().all(stays) {
                    return Ok(Some(format!("held by {}", names.join(", "))));
                }
                format!("held by {}", names.join(", "))
            } else {
                failed.join("; ")
            };
            if clock::instant() >= self.until {
                return Err(what);
            }
            if !what.is_empty() {
                self.wait_for(&what);
            }
            self.door.pause();
        }
    }

    /// Takes layers down. Returns the failures in words.
    fn take_down(&self, layers: &Layers) -> Vec<String> {
        let mut failed = Vec::new();
        for area in &layers.swaps {
            failed.extend(self.run("/usr/sbin/swapoff", &["--"], area));
        }
        for point in &layers.mounts {
            // Not canonicalized: looking at a path may hang with another mount.
            if let Some(why) = self.run("/usr/bin/umount", &["--no-canonicalize", "--"], point) {
                failed.push(why);
                // The mount is in use: its data so far are at least on their way.
                failed.extend(self.run("/usr/bin/sync", &["--file-system", "--"], point));
            }
        }
        if layers.mounts.is_empty() && layers.swaps.is_empty() {
            failed.extend(layers.tops.iter().filter_map(|top| self.take_top(top)));
        }
        failed
    }

    fn take_top(&self, top: &Top) -> Option<String> {
        match top {
            Top::Map(name) => self.run("/usr/sbin/dmsetup", &["remove", "--"], Path::new(name)),
            Top::Raid(name) => self.run("/usr/sbin/mdadm", &["--stop"], &Path::new("/dev").join(name)),
            Top::Loop(name) => self.run("/usr/sbin/losetup", &["--detach"], &Path::new("/dev").join(name)),
            Top::Other(name) => Some(format!("{name} stands on it")),
        }
    }

    fn run(&self, program: &'static str, args: &[&str], object: &Path) -> Option<String> {
        let Some(object) = object.to_str() else {
            return Some(format!("{program}: {} is no text", object.display()));
        };
        let args = args.iter().copied().chain([object]).map(str::to_owned).collect();
        let timeout = self.until.saturating_duration_since(clock::instant()).max(LOOK_AGAIN);
        self.door.run(&Command { program, args, timeout }).err()
    }

    /// Reports once why the disk waits.
    fn wait_for(&self, what: &str) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waits.insert(self.disk.device.clone(), what.to_owned());
        if before.as_deref() != Some(what) {
            tracing::info!(device = %self.disk.device.display(), what, "waits");
        }
    }
}

/// Returns `true` for exports of the kernel's target, which do not end at a shutdown: nobody takes
/// them away.
fn stays(holder: &Holder) -> bool {
    matches!(holder, Holder::Device(name) if name.starts_with("LIO "))
}

fn name_of(holder: &Holder) -> String {
    match holder {
        Holder::Process { pid, name } => format!("process {pid} ({name})"),
        Holder::Mount(point) => format!("the mount {}", point.display()),
        Holder::Swap => "swap".to_owned(),
        Holder::Device(name) => name.clone(),
        Holder::Unknown => "somebody in another namespace".to_owned(),
    }
}

/// Returns the devices that are still in use.
pub fn left(went: &BTreeMap<PathBuf, Released>) -> BTreeSet<&Path> {
    went.iter()
        .filter(|(_, how)| matches!(how, Released::Not(_)))
        .map(|(device, _)| device.as_path())
        .collect()
}

#[cfg(test)]
mod tests;
