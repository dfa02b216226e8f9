//! Paths for users: links `attachments/<attachment uuid>` and `volumes/<volume uuid>` in the run
//! folder, which point to the device.
//!
//! A record beside them tells which attachments a volume has links of (`connections/<volume
//! uuid>/<attachment uuid>`). It is written before the link and removed after it: so a link that no
//! spec has any more is found without looking at other volumes. The disk behind the volume's link
//! has a record for udev ([`crate::named`]), which goes with that link.
//!
//! What must never happen here: something replaced or removed that is not a link of ours; a moment
//! without a link while it is pointed elsewhere.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use mooring_model::{AttachmentId, VolumeId};

use crate::named::{DiskNames, Failed};
use crate::op::DiskRef;

/// A link for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkName {
    /// `attachments/<uuid>`.
    Attachment(AttachmentId),
    /// `volumes/<uuid>`.
    Volume(VolumeId),
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attachment(id) => write!(f, "attachments/{id}"),
            Self::Volume(id) => write!(f, "volumes/{id}"),
        }
    }
}

/// The object at the place of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkSeen {
    /// Nothing stands there.
    Absent,
    /// Target of a link to a device: ours.
    To(PathBuf),
    /// Description of an object that Mooring has not made.
    Foreign(String),
}

/// Read-ahead that a disk had before its page cache was turned off. It is the value to put back,
/// and the mark that the cache is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAhead {
    /// Sequence number of the disk in the kernel: the record says nothing of another disk.
    pub sequence: u64,
    /// Read-ahead in sectors of 512 bytes.
    pub sectors: u32,
}

impl ReadAhead {
    fn parse(text: &str) -> Option<Self> {
        let (sequence, sectors) = text.trim_end().split_once(' ')?;
        Some(Self { sequence: sequence.parse().ok()?, sectors: sectors.parse().ok()? })
    }
}

impl fmt::Display for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.sequence, self.sectors)
    }
}

/// A call on the run folder that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {}: {error}", .path.display())]
pub struct LinkError {
    /// Operation that failed.
    pub what: &'static str,
    /// Path of the object.
    pub path: PathBuf,
    /// Text of the system's error.
    pub error: String,
    /// An operator must change the machine: no right, no room, a read-only file system.
    pub operator: bool,
}

/// The links of one host.
pub trait Links: Send + Sync {
    /// Returns the path of a link.
    fn path(&self, link: LinkName) -> PathBuf;
    /// Looks at the object in the place of a link.
    fn look(&self, link: LinkName) -> Result<LinkSeen, LinkError>;
    /// Returns the attachments that this volume has links of, or had when a process was killed.
    fn recorded(&self, volume: VolumeId) -> Result<BTreeSet<AttachmentId>, LinkError>;
    /// Makes a link, or points it elsewhere, atomically. A foreign object in its place is an error.
    fn make(&self, volume: VolumeId, link: LinkName, device: &Path) -> Result<(), LinkError>;
    /// Returns the read-ahead to put back. `None` if nothing is recorded, or the file is no record
    /// of ours.
    fn read_ahead(&self, volume: VolumeId) -> Result<Option<ReadAhead>, LinkError>;
    /// Records the read-ahead to put back, atomically; `None` removes the record. It outlives the
    /// links: their disk may stay.
    fn keep_read_ahead(&self, volume: VolumeId, kept: Option<ReadAhead>) -> Result<(), LinkError>;
    /// Lets udev name a verified disk after the volume: `/dev/disk/by-id/mooring-<volume uuid>`.
    /// Kernel 5.15 and newer.
    fn name_disk(&self, volume: VolumeId, disk: &DiskRef) -> Result<(), LinkError>;
    /// Returns `true` if udev can name the disk of this sequence number after the volume.
    fn is_disk_named(&self, volume: VolumeId, sequence: u64) -> Result<bool, LinkError>;
    /// Removes a link and its record; with the volume's link also the disk's name. A missing link
    /// is accepted. A foreign object in its place stays.
    fn remove(&self, volume: VolumeId, link: LinkName) -> Result<(), LinkError>;
}

/// Links in a run folder (`/run/mooring`).
#[derive(Debug, Clone)]
pub struct RunLinks {
    run_dir: PathBuf,
    dev: PathBuf,
    names: DiskNames,
}

impl RunLinks {
    /// Makes links below this folder, to devices below `dev` (`/dev`).
    pub fn new(run_dir: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        let run_dir = run_dir.into();
        Self { names: DiskNames::new(run_dir.clone()), run_dir, dev: dev.into() }
    }

    /// Makes links that also tell udev, by this sysfs (`/sys`), when a disk gets or loses its name.
    #[must_use]
    pub fn telling_udev(self, sys: impl Into<PathBuf>) -> Self {
        Self { names: self.names.telling_udev(sys.into()), ..self }
    }

    fn records(&self, volume: VolumeId) -> PathBuf {
        self.run_dir.join("connections").join(volume.to_string())
    }

    fn read_ahead_file(&self, volume: VolumeId) -> PathBuf {
        self.records(volume).join("read-ahead")
    }

    /// Removes the folder of records. A record in it keeps it, and so does a foreign object.
    fn remove_records(&self, volume: VolumeId) -> Result<(), LinkError> {
        let records = self.records(volume);
        let kept = [ErrorKind::NotFound, ErrorKind::DirectoryNotEmpty, ErrorKind::NotADirectory];
        unless(&kept, fs::remove_dir(&records)).map_err(failed("remove", &records))
    }

    fn seen(&self, path: &Path) -> Result<LinkSeen, LinkError> {
        match fs::read_link(path) {
            Ok(target) if target.starts_with(&self.dev) => Ok(LinkSeen::To(target)),
            Ok(target) => Ok(LinkSeen::Foreign(format!("a link to {}", target.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(LinkSeen::Absent),
            // EINVAL: the object is no link.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                Ok(LinkSeen::Foreign("no link".to_owned()))
            }
            Err(error) => Err(failed("look at", path)(error)),
        }
    }
}

impl From<Failed> for LinkError {
    fn from(failure: Failed) -> Self {
        failed(failure.what, &failure.path)(failure.error)
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LinkError {
    let path = path.to_owned();
    move |error| LinkError {
        what,
        path,
        operator: matches!(
            error.kind(),
            ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::StorageFull
                | ErrorKind::NotADirectory
                | ErrorKind::AlreadyExists
        ),
        error: error.to_string(),
    }
}

/// Makes a link, and its folder when that is missing: after a reboot the run folder is empty.
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    match std::os::unix::fs::symlink(target, link) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Some(folder) = link.parent() {
                fs::create_dir_all(folder)?;
            }
            std::os::unix::fs::symlink(target, link)
        }
        result => result,
    }
}

fn unless(kinds: &[ErrorKind], result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if kinds.contains(&error.kind()) { Ok(()) } else { Err(error) })
}

impl Links for RunLinks {
    fn path(&self, link: LinkName) -> PathBuf {
        match link {
            LinkName::Attachment(id) => self.run_dir.join("attachments").join(id.to_string()),
            LinkName::Volume(id) => self.run_dir.join("volumes").join(id.to_string()),
        }
    }

    fn look(&self, link: LinkName) -> Result<LinkSeen, LinkError> {
        self.seen(&self.path(link))
    }

    fn recorded(&self, volume: VolumeId) -> Result<BTreeSet<AttachmentId>, LinkError> {
        let folder = self.records(volume);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(failed("list", &folder)(error)),
        };
        let mut found = BTreeSet::new();
        for entry in entries {
            let entry = entry.map_err(failed("list", &folder))?;
            // A name that is no attachment's id is not ours.
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<AttachmentId>().ok()));
        }
        Ok(found)
    }

    fn make(&self, volume: VolumeId, link: LinkName, device: &Path) -> Result<(), LinkError> {
        let path = self.path(link);
        if let LinkName::Attachment(id) = link {
            let record = self.records(volume).join(id.to_string());
            let target = Path::new("../../attachments").join(id.to_string());
            unless(&[ErrorKind::AlreadyExists], symlink(&target, &record))
                .map_err(failed("record", &record))?;
        }
        match symlink(device, &path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("link", &path)(error)),
        }
        match self.seen(&path)? {
            LinkSeen::To(target) if target == device => Ok(()),
            LinkSeen::To(_) | LinkSeen::Absent => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let new = path.with_file_name(format!(".{name}.new"));
                unless(&[ErrorKind::NotFound], fs::remove_file(&new)).map_err(failed("remove", &new))?;
                symlink(device, &new).map_err(failed("link", &new))?;
                fs::rename(&new, &path).map_err(failed("link", &path))
            }
            LinkSeen::Foreign(what) => {
                let error = io::Error::new(ErrorKind::AlreadyExists, format!("{what} is in the way"));
                Err(failed("link", &path)(error))
            }
        }
    }

    fn read_ahead(&self, volume: VolumeId) -> Result<Option<ReadAhead>, LinkError> {
        let file = self.read_ahead_file(volume);
        let none = [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::IsADirectory];
        match fs::read(&file) {
            Ok(bytes) => Ok(str::from_utf8(&bytes).ok().and_then(ReadAhead::parse)),
            Err(error) if none.contains(&error.kind()) => Ok(None),
            Err(error) => Err(failed("read", &file)(error)),
        }
    }

    fn keep_read_ahead(&self, volume: VolumeId, kept: Option<ReadAhead>) -> Result<(), LinkError> {
        let file = self.read_ahead_file(volume);
        let new = file.with_file_name(".read-ahead.new");
        let Some(kept) = kept else {
            let missing = [ErrorKind::NotFound, ErrorKind::NotADirectory];
            [&new, &file].into_iter().try_for_each(|path| {
                unless(&missing, fs::remove_file(path)).map_err(failed("remove", path))
            })?;
            return self.remove_records(volume);
        };
        fs::create_dir_all(self.records(volume))
            .and_then(|()| fs::write(&new, kept.to_string()))
            .and_then(|()| fs::rename(&new, &file))
            .map_err(failed("write", &file))
    }

    fn name_disk(&self, volume: VolumeId, disk: &DiskRef) -> Result<(), LinkError> {
        Ok(self.names.give(volume, disk)?)
    }

    fn is_disk_named(&self, volume: VolumeId, sequence: u64) -> Result<bool, LinkError> {
        Ok(self.names.has(volume, sequence)?)
    }

    fn remove(&self, volume: VolumeId, link: LinkName) -> Result<(), LinkError> {
        let path = self.path(link);
        if let LinkName::Volume(_) = link {
            self.names.take(volume)?;
        }
        if let LinkSeen::To(_) = self.seen(&path)? {
            unless(&[ErrorKind::NotFound], fs::remove_file(&path)).map_err(failed("unlink", &path))?;
        }
        let records = self.records(volume);
        match link {
            LinkName::Attachment(id) => {
                let record = records.join(id.to_string());
                unless(&[ErrorKind::NotFound], fs::remove_file(&record)).map_err(failed("unlink", &record))
            }
            LinkName::Volume(_) => self.remove_records(volume),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;

    #[test]
    fn links_come_move_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let links = RunLinks::new(dir.path().join("run"), "/dev");
        let (volume, id) = (VolumeId::from_u128(1), AttachmentId::from_u128(2));
        for link in [LinkName::Attachment(id), LinkName::Volume(volume)] {
            assert_eq!(links.look(link).unwrap(), LinkSeen::Absent);
            links.make(volume, link, Path::new("/dev/sda")).unwrap();
            links.make(volume, link, Path::new("/dev/sda")).unwrap();
            assert_eq!(links.look(link).unwrap(), LinkSeen::To("/dev/sda".into()));
            links.make(volume, link, Path::new("/dev/sdb")).unwrap();
            assert_eq!(links.look(link).unwrap(), LinkSeen::To("/dev/sdb".into()));
        }
        assert_eq!(links.recorded(volume).unwrap(), [id].into());
        for link in [LinkName::Attachment(id), LinkName::Volume(volume)] {
            links.remove(volume, link).unwrap();
            links.remove(volume, link).unwrap();
            assert_eq!(links.look(link).unwrap(), LinkSeen::Absent);
        }
        assert_eq!(links.recorded(volume).unwrap(), [].into());
        for folder in ["attachments", "volumes", "connections"] {
            assert_eq!(fs::read_dir(dir.path().join("run").join(folder)).unwrap().count(), 0, "{folder}");
        }
    }

    #[test]
    fn a_read_ahead_is_kept_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let links = RunLinks::new(dir.path(), "/dev");
        let volume = VolumeId::from_u128(1);
        assert_eq!(links.read_ahead(volume).unwrap(), None);
        links.keep_read_ahead(volume, None).unwrap();
        for sectors in [256, 0, u32::MAX] {
            let kept = Some(ReadAhead { sequence: 7, sectors });
            links.keep_read_ahead(volume, kept).unwrap();
            assert_eq!(links.read_ahead(volume).unwrap(), kept);
        }
        assert_eq!(links.recorded(volume).unwrap(), [].into(), "no attachment");
        let file = links.read_ahead_file(volume);
        for wrong in ["", "7", "7 x", "x 7", "7 256 1"] {
            fs::write(&file, wrong).unwrap();
            assert_eq!(links.read_ahead(volume).unwrap(), None, "{wrong:?}");
        }
        fs::write(&file, b"7 \xff").unwrap();
        assert_eq!(links.read_ahead(volume).unwrap(), None, "no text");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(links.read_ahead(volume).unwrap(), None, "no file");
        fs::remove_dir(&file).unwrap();
        // The volume's link goes, and the disk may stay.
        let kept = Some(ReadAhead { sequence: 7, sectors: 256 });
        links.keep_read_ahead(volume, kept).unwrap();
        links.remove(volume, LinkName::Volume(volume)).unwrap();
        assert_eq!(links.read_ahead(volume).unwrap(), kept);
        // Left by a process that was killed while it wrote.
        fs::write(file.with_file_name(".read-ahead.new"), "7").unwrap();
        links.keep_read_ahead(volume, None).unwrap();
        assert!(!links.records(volume).exists());
    }

    #[test]
    fn what_is_not_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let links = RunLinks::new(dir.path(), "/dev");
        let (volume, id) = (VolumeId::from_u128(1), AttachmentId::from_u128(2));
        let link = LinkName::Attachment(id);
        fs::create_dir(dir.path().join("attachments")).unwrap();
        let path = links.path(link);
        fs::write(&path, "mine").unwrap();
        assert!(matches!(links.look(link).unwrap(), LinkSeen::Foreign(_)));
        let error = links.make(volume, link, Path::new("/dev/sda")).unwrap_err();
        assert!(error.to_string().contains("in the way") && error.operator, "{error}");
        links.remove(volume, link).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(links.look(link).unwrap(), LinkSeen::Foreign("a link to /etc/passwd".into()));
        links.remove(volume, link).unwrap();
        assert!(fs::symlink_metadata(&path).is_ok());
    }
}
