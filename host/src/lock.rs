//! Lock on a state folder: two agents on one store would each undo the other's work.
//!
//! What must never happen: two holders; a lock that stays after its holder has died (the kernel
//! releases it); a lock file that is removed while another process waits for its name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Reason why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is locked by {}", .path.display(), holder(*.pid))]
    Held {
        /// Path of the lock file.
        path: PathBuf,
        /// Process id of the holder; `None` if it has not written it yet.
        pid: Option<u32>,
    },
    /// The file cannot be made, locked or written.
    #[error("cannot {op} the lock file {}", .path.display())]
    Io {
        /// Operation that failed.
        op: &'static str,
        /// Path of the lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// An exclusive lock on a file, held until it is dropped or the process ends. The file stays, with
/// the holder's process id inside.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
    path: PathBuf,
    before: Option<u32>,
}

impl LockFile {
    /// Takes the lock, or returns its holder at once. Makes the file (mode 600), not its folder.
    pub fn acquire(path: impl AsRef<Path>) -> Result<Self, LockError> {
        let path = path.as_ref();
        let failed = |op| move |source| LockError::Io { op, path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held { path: path.to_owned(), pid: holder_of(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let before = holder_of(&mut file);
        let note = |file: &mut File| -> io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        note(&mut file).map_err(failed("write"))?;
        Ok(Self { _file: file, path: path.to_owned(), before })
    }

    /// Returns the path of the lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the process that has held the lock last; `None` if it is not known.
    pub fn before(&self) -> Option<u32> {
        self.before
    }
}

fn holder_of(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = LockFile::acquire(&path).unwrap();
        let error = LockFile::acquire(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} is locked by process {}", path.display(), std::process::id())
        );
        assert_eq!((first.path(), first.before()), (path.as_path(), None));
        drop(first);
        let again = LockFile::acquire(&path).unwrap();
        assert_eq!(again.before(), Some(std::process::id()));
        assert_eq!(std::fs::read_to_string(again.path()).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn an_unreadable_holder_is_still_a_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let _first = LockFile::acquire(&path).unwrap();
        std::fs::write(&path, "not a number").unwrap();
        let error = LockFile::acquire(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("{} is locked by another process", path.display()));
    }

    #[test]
    fn a_folder_that_is_missing_is_an_error_of_its_own() {
        let error = LockFile::acquire("/nonexistent/lock").unwrap_err();
        assert_eq!(error.to_string(), "cannot open the lock file /nonexistent/lock");
        assert!(std::error::Error::source(&error).is_some());
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(LockFile::acquire(folder.path()), Err(LockError::Io { .. })));
    }
}
