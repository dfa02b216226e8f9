//! Journal of everything that must survive the daemon's death: one file per session in a folder
//! that only root may open. It is lost with the machine's power like the sessions themselves
//! (`/run`).
//!
//! A file is written, flushed and renamed before its session is made, and removed after the session
//! is gone. An unusable file is named in the log and moved aside as `*.bad`.
//!
//! What must never happen here: a half file under a session's name; a file that others can read (it
//! holds the CHAP secret); an error that shows a file's contents; a start that fails because of one
//! bad file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mooring_model::{Portal, VolumeId};
use mooring_systemd::folder::Anchor;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use super::steps::{Step, Steps};
use crate::iscsi::Isid;
use crate::wire::{End, SessionSpec};

/// The file format that this build writes and reads. Fields are only added.
const VERSION: u32 = 1;
/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// State of a session in its life, as far as it must be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    /// The session has to be logged in.
    Wanted,
    /// The session is being ended.
    Ending(End),
    /// The target has refused this host: ended, not tried again.
    Forbidden,
    /// No login is possible: not tried again.
    Failed,
    /// The session led to another disk: ended, not tried again.
    WrongDisk,
}

/// Journal entry of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of the file format.
    version: u32,
    /// Id of the boot: kernel sessions do not outlive one.
    pub boot_id: String,
    /// Spec of the session.
    #[serde(rename = "wish")]
    pub spec: SessionSpec,
    /// Initiator session id. It stays for the life of the session, whatever its portal, so that
    /// each login takes the place of the one before.
    pub isid: Isid,
    /// Portal of the last login, or the first one to try.
    pub portal: Portal,
    /// State of the session.
    pub state: EntryState,
    /// `true`: the target has admitted this host to this session. `false`: it has not yet, or an
    /// earlier release wrote the file and did not say.
    #[serde(default)]
    pub admitted: bool,
    /// Reason for `Forbidden`, `Failed` and `WrongDisk`.
    #[serde(default)]
    pub problem: Option<String>,
}

impl Entry {
    /// Makes the entry of a new session.
    pub fn wanted(boot_id: &str, spec: SessionSpec, isid: Isid, portal: Portal) -> Self {
        Self {
            version: VERSION,
            boot_id: boot_id.to_owned(),
            spec,
            isid,
            portal,
            state: EntryState::Wanted,
            admitted: false,
            problem: None,
        }
    }
}

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {op} {}", .path.display())]
pub struct JournalError {
    op: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed<'a>(op: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> JournalError + 'a {
    move |source| JournalError { op, path: path.to_owned(), source }
}

/// The folder of the journal.
#[derive(Debug, Clone)]
pub struct Journal {
    dir: PathBuf,
    /// The folder as it was opened.
    anchor: Anchor,
    steps: Steps,
}

impl Journal {
    /// Opens the folder, makes it if it is missing, and corrects its mode.
    pub fn open(dir: &Path, steps: Steps) -> Result<Self, JournalError> {
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent).map_err(failed("make the folder", parent))?;
        }
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("make the folder", dir)(error));
            }
            _ => {}
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(failed("set the mode of the folder", dir))?;
        let anchor = Anchor::of(dir).map_err(failed("look at the folder", dir))?;
        Ok(Self { dir: dir.to_owned(), anchor, steps })
    }

    /// Checks that the folder is where it was opened. Lock and socket went with a folder that was
    /// moved: files in another folder in its place belong to that folder's daemon.
    pub fn check_place(&self) -> Result<(), JournalError> {
        if self.anchor.holds() {
            return Ok(());
        }
        let why = "it was deleted or replaced while mooring-sessiond runs: restart mooring-sessiond, which takes over all \
                   sessions as they are";
        Err(failed("go on with the folder", &self.dir)(io::Error::other(why)))
    }

    fn path(&self, volume: VolumeId) -> PathBuf {
        self.dir.join(format!("{volume}.json"))
    }

    /// Loads all entries of this boot, by volume. Unusable files are logged and moved aside.
    pub fn load(&self, boot_id: &str) -> Result<Vec<Entry>, JournalError> {
        let mut entries = Vec::new();
        let mut names = Vec::new();
        for file in fs::read_dir(&self.dir).map_err(failed("read the folder", &self.dir))? {
            names.push(file.map_err(failed("read the folder", &self.dir))?.path());
        }
        names.sort();
        for path in names {
            match path.extension().and_then(|extension| extension.to_str()) {
                // A write that was not finished: its rename never came, so the file before it is
                // still there. It may hold a secret.
                Some("tmp") => {
                    let _ = fs::remove_file(&path);
                }
                Some("json") => match read(&path, boot_id) {
                    Ok(entry) => entries.push(entry),
                    Err(why) => set_aside(&path, &why),
                },
                _ => {}
            }
        }
        Ok(entries)
    }

    /// Writes a session's file. When this returns, the file outlives any crash of the daemon.
    pub fn write(&self, entry: &Entry) -> Result<(), JournalError> {
        self.steps.step(Step::JournalWrite, || {
            self.check_place()?;
            let path = self.path(entry.spec.volume);
            let fresh = path.with_extension("tmp");
            let write = || -> io::Result<()> {
                // Left by a death in the middle of a write: the new file must not get an old file's
                // mode.
                match fs::remove_file(&fresh) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
                file.write_all(&serde_json::to_vec_pretty(entry)?)?;
                file.sync_all()?;
                fs::rename(&fresh, &path)?;
                File::open(&self.dir)?.sync_all()
            };
            write().map_err(failed("write", &path))
        })
    }

    /// Removes a session's file. A missing file is accepted.
    pub fn remove(&self, volume: VolumeId) -> Result<(), JournalError> {
        self.steps.step(Step::JournalRemove, || {
            let path = self.path(volume);
            let remove = || -> io::Result<()> {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    Err(error) => Err(error),
                    Ok(()) => File::open(&self.dir)?.sync_all(),
                }
            };
            remove().map_err(failed("remove", &path))
        })
    }
}

/// Reads one file. The error is the reason why it is unusable, without anything of its contents.
fn read(path: &Path, boot_id: &str) -> Result<Entry, String> {
    let mut text = Vec::new();
    let mut options = OpenOptions::new();
    // A pipe would block the start, a link would lead elsewhere.
    options.read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let file = options.open(path).map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("it is no regular file".to_owned());
    }
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it is longer than {FILE_BYTES_MAX} bytes"));
    }
    let entry: Entry = serde_json::from_slice(&text)
        .map_err(|error| format!("it is no session (line {}, column {})", error.line(), error.column()))?;
    if entry.version != VERSION {
        return Err(format!("it has format {}, this build reads {VERSION}", entry.version));
    }
    if path.file_stem() != Some(entry.spec.volume.to_string().as_ref()) {
        return Err(format!("it is about volume {}", entry.spec.volume));
    }
    if entry.boot_id != boot_id {
        return Err("it was written before this boot".to_owned());
    }
    if entry.spec.portals.is_empty() {
        return Err("it names no portal".to_owned());
    }
    Ok(entry)
}

fn set_aside(path: &Path, why: &str) {
    let aside = path.with_extension("json.bad");
    match fs::rename(path, &aside) {
        Ok(()) => {
            tracing::warn!(file = %path.display(), why, moved_to = %aside.display(), "a journal file is not taken");
        }
        Err(error) => {
            tracing::error!(file = %path.display(), why, %error, "a journal file is not taken, and cannot be moved");
        }
    }
}

#[cfg(test)]
mod tests {
    use mooring_model::{Generation, Lun, Naa};

    use super::*;

    #[test]
    fn a_folder_that_goes_under_the_daemon_takes_nothing_more() {
        let top = tempfile::tempdir().unwrap();
        let (dir, aside) = (top.path().join("sessiond"), top.path().join("aside"));
        let journal = Journal::open(&dir, Steps::silent()).unwrap();
        let volume = VolumeId::from_u128(7);
        let portal: Portal = "192.0.2.1:3260".parse().unwrap();
        let spec = SessionSpec {
            volume,
            generation: Generation { epoch: 1, counter: 1 },
            initiator: "iqn.2026-01.lab:host1".parse().unwrap(),
            target: "iqn.2026-11.dev.mooring:x".parse().unwrap(),
            tpg: 1,
            portals: vec![portal],
            lun: Lun(1),
            naa: Naa::of_serial("00000000-0000-0000-0000-000000000007"),
            serial: None,
            chap: None,
            other_chap: None,
            recovery_timeout_s: 120,
            fc: None,
        };
        let isid = Isid::of(&spec.initiator, &spec.target, portal);
        let entry = Entry::wanted("boot", spec, isid, portal);
        journal.write(&entry).unwrap();
        fs::rename(&dir, &aside).unwrap();
        // Also when another daemon's folder is there by now.
        for again in [false, true] {
            if again {
                Journal::open(&dir, Steps::silent()).unwrap();
            }
            let refused = mooring_model::Chain(&journal.write(&entry).unwrap_err()).to_string();
            assert!(refused.contains(dir.to_str().unwrap()) && refused.contains("restart"), "{refused}");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
        fs::rename(&aside, &dir).unwrap();
        journal.write(&entry).unwrap();
        assert_eq!(journal.load("boot").unwrap(), [entry]);
    }
}
