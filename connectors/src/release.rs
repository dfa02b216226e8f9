//! Lets go of every attached disk of this host, as a shutdown wants it: swap off, file systems unmounted, what stands on top taken
//! down, the disk flushed and removed, its session logged out. What is wished stays wished: after the boot everything comes back.
//!
//! Each disk has a thread of its own: one whose target does not answer holds up no other. Users that do not go (services that are
//! still being stopped) are waited for.
//!
//! What must never happen here: a disk removed, or a session ended, that somebody still uses; a disk touched that is not a verified
//! one of ours; a wait without an end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mooring_host::{Command, Holder, Layers, Top};
use mooring_model::VolumeId;

mod machine;

pub use machine::ThisMachine;

/// Longest that a shutdown waits for attached disks. Longer than systemd gives a service to stop (90 s), whose files may lie on one, and
/// than I/O waits for a lost session by default (120 s): after that an unmount ends by itself.
pub const RELEASE_WITHIN: Duration = Duration::from_secs(150);

/// Pause between two looks at a disk.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A disk that is ours: named after its volume by the agent, and there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OurDisk {
    /// The volume.
    pub volume: VolumeId,
    /// The device.
    pub device: PathBuf,
    /// The kernel's sequence number of the disk.
    pub sequence: u64,
}

/// What letting go of disks asks of a machine. Calls may hang with a disk.
pub trait Door: Send + Sync {
    /// The disks that the agent has named, as far as they are there.
    fn disks(&self) -> Result<Vec<OurDisk>, String>;
    /// What stands on a disk; nothing if it has gone.
    fn layers(&self, disk: &OurDisk) -> Result<Layers, String>;
    /// Who holds a disk open; nobody if it has gone.
    fn holders(&self, disk: &OurDisk) -> Result<Vec<Holder>, String>;
    /// Runs a command; its error text if it fails.
    fn run(&self, command: &Command) -> Result<(), String>;
    /// Writes out what the page cache holds of a disk, and has the disk write out its own cache.
    fn flush(&self, disk: &OurDisk) -> Result<(), String>;
    /// Waits a moment before the next look.
    fn pause(&self) {
        thread::sleep(LOOK_AGAIN);
    }
    /// Removes a disk that nobody uses and logs its session out. Nothing of it over Fibre Channel, where there is no session.
    fn log_out(&self, disk: &OurDisk) -> Result<(), String>;
}

/// How it went with one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// Nothing of it is in use, everything is written, its session is logged out.
    Whole,
    /// Everything that was written to it by users who are gone is flushed; why its session stays.
    Flushed(String),
    /// What did not go, or failed.
    Not(String),
}

/// Lets go of every disk, within this time. How it went, by device; the outer error: nobody knows which disks are ours.
pub fn release(door: &Arc<dyn Door>, within: Duration) -> Result<BTreeMap<PathBuf, Released>, String> {
    let until = Instant::now() + within;
    let disks = door.disks()?;
    let (tell, told) = mpsc::channel();
    let waits = Arc::new(Mutex::new(BTreeMap::new()));
    for disk in &disks {
        tracing::info!(device = %disk.device.display(), volume = %disk.volume, "letting go");
        let (door, tell, waits, disk) = (door.clone(), tell.clone(), waits.clone(), disk.clone());
        let name = format!("release-{}", disk.sequence);
        let work = move || {
            let one = One { door: &*door, disk: &disk, until, waits: &waits };
            let went = one.release();
            // Nobody listens any more: the time is over.
            drop(tell.send((disk.device.clone(), went)));
        };
        drop(
            thread::Builder::new()
                .name(name)
                .spawn(work)
                .map_err(|error| format!("start a thread: {error}"))?,
        );
    }
    drop(tell);
    let mut went = BTreeMap::new();
    while let Ok((device, how)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
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

/// One disk on its way.
struct One<'a> {
    door: &'a dyn Door,
    disk: &'a OurDisk,
    until: Instant,
    /// What each disk waits for.
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

    /// Takes down what stands on the disk until nothing and nobody is left. `Some`: a holder is left that does not go by itself.
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
            if Instant::now() >= self.until {
                return Err(what);
            }
            if !what.is_empty() {
                self.wait_for(&what);
            }
            self.door.pause();
        }
    }

    /// What failed, in words.
    fn take_down(&self, layers: &Layers) -> Vec<String> {
        let mut failed = Vec::new();
        for area in &layers.swaps {
            failed.extend(self.run("/usr/sbin/swapoff", &["--"], area));
        }
        for point in &layers.mounts {
            // Not canonicalized: looking at a path may hang with another mount.
            if let Some(why) = self.run("/usr/bin/umount", &["--no-canonicalize", "--"], point) {
                failed.push(why);
                // In use: what was written so far is on its way, whatever comes.
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
        let timeout = self.until.saturating_duration_since(Instant::now()).max(LOOK_AGAIN);
        self.door.run(&Command { program, args, timeout }).err()
    }

    /// Says what the disk waits for, once.
    fn wait_for(&self, what: &str) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waits.insert(self.disk.device.clone(), what.to_owned());
        if before.as_deref() != Some(what) {
            tracing::info!(device = %self.disk.device.display(), what, "waits");
        }
    }
}

/// Exports of the kernel's target do not end at a shutdown: nobody takes them away.
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

/// The devices that are still in use.
pub fn left(went: &BTreeMap<PathBuf, Released>) -> BTreeSet<&Path> {
    went.iter()
        .filter(|(_, how)| matches!(how, Released::Not(_)))
        .map(|(device, _)| device.as_path())
        .collect()
}

#[cfg(test)]
mod tests;
