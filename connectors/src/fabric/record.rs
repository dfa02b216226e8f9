//! Records of connections over Fibre Channel, in files. When no spec has a volume any more, only
//! these records tell under which number of which port its disk may be.
//!
//! A record is `<volume>.json`. A claim beside it, a link `<port>-<LUN>` to it, tells which volume
//! has a number. The claim comes first and goes last. Both outlive a reboot: the kernel finds every
//! LUN again by itself when a port comes back.
//!
//! What must never happen here: two records with one number of one port; a record forgotten while
//! its disk may be there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use mooring_model::{Cure, FcRoute, Generation, Iqn, Lun, VolumeId, Wwpn};
use serde::{Deserialize, Serialize};

use crate::client::ClientError;

/// Record of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) volume: VolumeId,
    pub(super) generation: Generation,
    pub(super) initiator: Iqn,
    pub(super) target: Iqn,
    pub(super) lun: Lun,
    pub(super) route: FcRoute,
    /// Target port whose disk is used; `None` if none was used yet.
    #[serde(default)]
    pub(super) used: Option<Wwpn>,
}

impl Record {
    fn claim(&self) -> String {
        format!("{:016x}-{}", self.route.port.as_u64(), self.lun.0)
    }
}

/// The folder of the records. The first record that is written makes it.
#[derive(Debug, Clone)]
pub(super) struct Records {
    dir: PathBuf,
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> ClientError + 'a {
    move |error| {
        let cure = match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::StorageFull => {
                Cure::Operator
            }
            _ => Cure::Retry,
        };
        ClientError::Fabric { text: format!("{what} {}: {error}", path.display()), cure }
    }
}

fn file(volume: VolumeId) -> String {
    format!("{volume}.json")
}

fn remove(path: &Path) -> Result<(), ClientError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

impl Records {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Reads a volume's record; `None` if nothing was begun.
    pub(super) fn read(&self, volume: VolumeId) -> Result<Option<Record>, ClientError> {
        let path = self.dir.join(file(volume));
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let record = serde_json::from_slice(&bytes).map_err(|error| {
            let text = format!(
                "{} cannot be taken ({error}): see which disk is volume {volume}'s, remove it and then this file",
                path.display()
            );
            ClientError::Fabric { text, cure: Cure::Operator }
        })?;
        Ok(Some(record))
    }

    /// Reads all records. Unreadable ones are left out: a look at their own volume reports them.
    pub(super) fn all(&self) -> Result<Vec<Record>, ClientError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("list", &self.dir)(error)),
        };
        let volume = |entry: io::Result<fs::DirEntry>| {
            let name = entry.ok()?.file_name();
            name.to_str()?.strip_suffix(".json")?.parse::<VolumeId>().ok()
        };
        Ok(entries.filter_map(volume).filter_map(|id| self.read(id).ok().flatten()).collect())
    }

    /// Writes a record. When this returns, the record outlives any crash, and no other volume has
    /// its number.
    pub(super) fn write(&self, record: &Record) -> Result<(), ClientError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(failed("make the folder", &self.dir))?;
        self.claim(record)?;
        let path = self.dir.join(file(record.volume));
        let fresh = path.with_extension("tmp");
        let write = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&serde_json::to_vec_pretty(record)?)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            self.sync()
        };
        write().map_err(failed("write", &path))
    }

    fn claim(&self, record: &Record) -> Result<(), ClientError> {
        let (link, own) = (self.dir.join(record.claim()), file(record.volume));
        // A claim whose record never came, or went, belongs to nobody.
        for _ in 0..2 {
            match symlink(&own, &link) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("make", &link)(error)),
            }
            let whose = fs::read_link(&link).map_err(|error| match error.kind() {
                ErrorKind::InvalidInput => ClientError::Fabric {
                    text: format!("{} is no link of Mooring's: remove it", link.display()),
                    cure: Cure::Operator,
                },
                _ => failed("read", &link)(error),
            })?;
            if whose == Path::new(&own) {
                return Ok(());
            }
            if self.dir.join(&whose).exists() {
                let other = whose.with_extension("");
                let text = format!(
                    "LUN {} of port {} is still volume {}'s on this host: this one waits until that one is detached here",
                    record.lun.0,
                    record.route.port,
                    other.display()
                );
                return Err(ClientError::Fabric { text, cure: Cure::Retry });
            }
            remove(&link)?;
        }
        let text = format!("{} is made again by another process each time; tried again", link.display());
        Err(ClientError::Fabric { text, cure: Cure::Retry })
    }

    /// Removes the record of a volume, whose disk is gone.
    pub(super) fn forget(&self, record: &Record) -> Result<(), ClientError> {
        remove(&self.dir.join(file(record.volume)))?;
        remove(&self.dir.join(record.claim()))?;
        self.sync().map_err(failed("sync", &self.dir))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }
}
