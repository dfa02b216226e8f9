//! Records by which udev names a disk: `/dev/disk/by-id/mooring-<volume uuid>`, partitions with
//! `-part<n>` behind it.
//!
//! udev's rule (`66-mooring-disks.rules`) takes the volume from the file `disks/<sequence number of
//! the disk>` in the run folder. The kernel never gives that number twice in one boot, and only a
//! disk whose identity was read and found right gets a file. So the name does not depend on the
//! target's own words, holds for adopted exports too, and a disk that takes another's `sdX` has no
//! name.
//!
//! What must never happen here: a file for a disk that nobody has verified; a file that a reader
//! finds half written.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use mooring_model::VolumeId;

use crate::op::DiskRef;

/// The files below a run folder, and the sysfs that tells udev of a change.
#[derive(Debug, Clone)]
pub(crate) struct DiskNames {
    run_dir: PathBuf,
    /// Folder of sysfs. `None`: udev is not told.
    sys: Option<PathBuf>,
}

/// A failed call on one of the files.
pub(crate) struct Failed {
    pub(crate) what: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failed {
    let path = path.to_owned();
    move |error| Failed { what, path, error }
}

/// The disk that a volume has named: sequence number and device name.
struct Named {
    sequence: u64,
    device: String,
}

impl Named {
    fn parse(text: &str) -> Option<Self> {
        let (sequence, device) = text.trim_end().split_once(' ')?;
        Some(Self { sequence: sequence.parse().ok()?, device: device.to_owned() })
    }
}

impl DiskNames {
    pub(crate) fn new(run_dir: PathBuf) -> Self {
        Self { run_dir, sys: None }
    }

    pub(crate) fn telling_udev(mut self, sys: PathBuf) -> Self {
        self.sys = Some(sys);
        self
    }

    /// Path of the file for udev.
    fn file(&self, sequence: u64) -> PathBuf {
        self.run_dir.join("disks").join(sequence.to_string())
    }

    /// Path of the record of the disk that the volume has named.
    fn record(&self, volume: VolumeId) -> PathBuf {
        self.run_dir.join("connections").join(volume.to_string()).join("disk")
    }

    /// Returns `true` if udev can name this disk after the volume.
    pub(crate) fn has(&self, volume: VolumeId, sequence: u64) -> Result<bool, Failed> {
        let record = self.record(volume);
        let named = read(&record).map_err(failed("read", &record))?;
        if named.as_deref().and_then(Named::parse).is_none_or(|named| named.sequence != sequence) {
            return Ok(false);
        }
        let file = self.file(sequence);
        Ok(read(&file).map_err(failed("read", &file))? == Some(text_of(volume)))
    }

    /// Names a verified disk. The record comes first, so that the file can always be found again;
    /// udev is told last. If udev cannot be told the record is taken back: the next pass tries
    /// again.
    pub(crate) fn give(&self, volume: VolumeId, disk: &DiskRef) -> Result<(), Failed> {
        let Some(device) = disk.path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        self.take(volume)?;
        let (record, file) = (self.record(volume), self.file(disk.sequence));
        write(&record, &format!("{} {device}", disk.sequence)).map_err(failed("write", &record))?;
        write(&file, &text_of(volume)).map_err(failed("write", &file))?;
        self.tell(device).inspect_err(|_| drop(self.forget(volume, disk.sequence)))
    }

    /// Takes the name away; a volume without one is accepted.
    pub(crate) fn take(&self, volume: VolumeId) -> Result<(), Failed> {
        let record = self.record(volume);
        let Some(text) = read(&record).map_err(failed("read", &record))? else { return Ok(()) };
        let Some(named) = Named::parse(&text) else {
            return gone(fs::remove_file(&record)).map_err(failed("remove", &record));
        };
        self.forget(volume, named.sequence)?;
        // The kernel may have given the name to another disk, or to none.
        if self.sequence_of(&named.device) == Some(named.sequence) {
            self.tell(&named.device)?;
        }
        Ok(())
    }

    fn forget(&self, volume: VolumeId, sequence: u64) -> Result<(), Failed> {
        let (file, record) = (self.file(sequence), self.record(volume));
        gone(fs::remove_file(&file)).map_err(failed("remove", &file))?;
        gone(fs::remove_file(&record)).map_err(failed("remove", &record))
    }

    fn sequence_of(&self, device: &str) -> Option<u64> {
        let sys = self.sys.as_ref()?;
        fs::read_to_string(sys.join("class/block").join(device).join("diskseq")).ok()?.trim().parse().ok()
    }

    /// Makes the kernel send udev a `change` of the disk, and of its partitions after it: udev
    /// handles a disk before its partitions.
    fn tell(&self, device: &str) -> Result<(), Failed> {
        let Some(sys) = &self.sys else { return Ok(()) };
        let folder = sys.join("class/block").join(device);
        let uevent = folder.join("uevent");
        fs::write(&uevent, "change").map_err(failed("write", &uevent))?;
        for entry in fs::read_dir(&folder).map_err(failed("list", &folder))?.flatten() {
            if entry.path().join("partition").exists() {
                let uevent = entry.path().join("uevent");
                gone(fs::write(&uevent, "change")).map_err(failed("write", &uevent))?;
            }
        }
        Ok(())
    }
}

/// Returns the volume of every disk that has a name, by the disk's sequence number. Some disks may
/// be gone.
pub(crate) fn named(run_dir: &Path) -> io::Result<BTreeMap<u64, VolumeId>> {
    let mut found = BTreeMap::new();
    let entries = match fs::read_dir(run_dir.join("disks")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let sequence = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
        let text = read(&path)?.unwrap_or_default();
        let volume = text.trim_end().strip_prefix(KEY).and_then(|id| id.parse().ok());
        found.extend(sequence.zip(volume));
    }
    Ok(found)
}

/// Key in the file from which udev's rule reads the volume's id.
const KEY: &str = "MOORING_VOLUME=";

/// Text that udev's rule imports.
fn text_of(volume: VolumeId) -> String {
    format!("{KEY}{volume}\n")
}

/// Reads a file. `None` if it does not exist. A file that is no text counts as empty.
fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use mooring_model::Lun;

    use super::*;
    use crate::device::{Seat, Unit};

    struct Rig {
        folder: tempfile::TempDir,
        names: DiskNames,
    }

    /// Makes sda with the partition sda1, whose numbers and uevents are files.
    fn rig() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sys/class/block/sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        fs::write(disk.join("diskseq"), "7\n").unwrap();
        let names = DiskNames::new(folder.path().join("run")).telling_udev(folder.path().join("sys"));
        Rig { folder, names }
    }

    impl Rig {
        /// Returns the uevents that were asked for since the last call, of disk and partition.
        fn told(&self) -> (bool, bool) {
            let told = |name: &str| {
                let file = self.folder.path().join("sys/class/block/sda").join(name).join("uevent");
                let text = fs::read_to_string(&file).unwrap_or_default();
                drop(fs::remove_file(&file));
                text == "change"
            };
            (told("."), told("sda1"))
        }

        fn files(&self) -> Vec<(String, String)> {
            let Ok(entries) = fs::read_dir(self.folder.path().join("run/disks")) else { return Vec::new() };
            let of = |entry: fs::DirEntry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap())
            };
            let mut all: Vec<_> = entries.map(|entry| of(entry.unwrap())).collect();
            all.sort();
            all
        }
    }

    fn disk(path: &str, sequence: u64) -> DiskRef {
        DiskRef { unit: Unit { host: 1, seat: Seat::Session(1), lun: Lun(1) }, path: path.into(), sequence }
    }

    #[test]
    fn a_name_is_a_file_for_udev_and_goes_with_the_volume() {
        let rig = rig();
        let volume = VolumeId::from_u128(1);
        assert!(!rig.names.has(volume, 7).ok().unwrap());
        rig.names.take(volume).ok().unwrap();
        rig.names.give(volume, &disk("/dev/sda", 7)).ok().unwrap();
        assert_eq!(rig.files(), [("7".to_owned(), format!("MOORING_VOLUME={volume}\n"))]);
        assert_eq!(rig.told(), (true, true));
        assert_eq!(named(&rig.folder.path().join("run")).unwrap(), BTreeMap::from([(7, volume)]));
        assert!(rig.names.has(volume, 7).ok().unwrap());
        assert!(!rig.names.has(volume, 8).ok().unwrap(), "another disk");
        assert!(!rig.names.has(VolumeId::from_u128(2), 7).ok().unwrap(), "another volume");
        rig.names.take(volume).ok().unwrap();
        assert_eq!((rig.files(), rig.told()), (vec![], (true, true)));
        assert!(!rig.names.has(volume, 7).ok().unwrap());
    }

    #[test]
    fn a_disk_that_took_anothers_device_has_no_name() {
        let rig = rig();
        let volume = VolumeId::from_u128(1);
        rig.names.give(volume, &disk("/dev/sda", 6)).ok().unwrap();
        assert_eq!(rig.told(), (true, true));
        // sda is disk 7 meanwhile: udev finds nothing under that number, and is told nothing of
        // disk 6.
        assert_eq!(rig.files().len(), 1);
        assert!(!rig.names.has(volume, 7).ok().unwrap());
        rig.names.take(volume).ok().unwrap();
        assert_eq!((rig.files(), rig.told()), (vec![], (false, false)));
    }

    #[test]
    fn a_volume_has_one_disk_at_most() {
        let rig = rig();
        let volume = VolumeId::from_u128(1);
        rig.names.give(volume, &disk("/dev/sda", 6)).ok().unwrap();
        rig.names.give(volume, &disk("/dev/sda", 7)).ok().unwrap();
        let names: Vec<_> = rig.files().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["7"]);
    }

    #[test]
    fn a_name_that_udev_was_not_told_is_given_again() {
        let rig = rig();
        let volume = VolumeId::from_u128(1);
        assert!(rig.names.give(volume, &disk("/dev/sdz", 9)).is_err(), "there is no sdz");
        assert!(!rig.names.has(volume, 9).ok().unwrap());
        assert_eq!(rig.files(), []);
    }

    #[test]
    fn a_damaged_record_is_no_name_and_is_taken_away() {
        let rig = rig();
        let volume = VolumeId::from_u128(1);
        for text in [&b""[..], b"7", b"x sda", b"\xff\xff"] {
            write(&rig.names.record(volume), "").unwrap();
            fs::write(rig.names.record(volume), text).unwrap();
            assert!(!rig.names.has(volume, 7).ok().unwrap(), "{text:?}");
            rig.names.take(volume).ok().unwrap();
            assert!(!rig.names.record(volume).exists(), "{text:?}");
        }
    }
}
