//! Room in the write-ahead log. A sync of what was appended to a file has to wait until the file system has written down that the
//! file is longer; a sync of what was written over does not. SQLite writes over its log from the second checkpoint on, and never
//! makes it shorter while the store is open. So the log is made long once, by zeros behind its end, before anybody needs it.
//!
//! Zeros are no frame of the log: its salt is wrong, and whoever reads the log after a crash stops there, as at what is left of an
//! older round of it (SQLite's file format, 4.3).
//!
//! What must never happen here: a byte written where SQLite has written, or is writing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use mooring_model::ByteSize;
use nix::sys::statvfs::fstatvfs;

use super::{Store, StoreError, lock};

/// How long the log is made: some hundred changes, more than come between two checkpoints as a rule.
pub(super) const LOG_BYTES: u64 = 4 << 20;

/// So much must be free where it lies: room that nobody needs yet is not taken from what somebody will need.
const FREE_MIN: u64 = 16 * LOG_BYTES;

/// Written at a time: so long a change may have to wait.
const AT_ONCE: usize = 256 << 10;

impl Store {
    /// Whether the log is shorter than it should be, and nobody has tried to make it longer.
    pub fn lacks_room(&self) -> bool {
        !self.roomy.load(Ordering::Acquire)
    }

    /// Makes the log long. Call it when nothing else is to do. After an error nobody tries again: a sync costs more, and nothing is
    /// lost.
    ///
    /// # Errors
    /// The log cannot be opened, written or synced: its file system is full, for one.
    pub fn make_room(&self) -> Result<(), StoreError> {
        if self.roomy.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.check_place()?;
        let path = self.log_path();
        let look = |source| StoreError::Look { path: path.clone(), source };
        // Not made: a store whose log is not there is no store of this process.
        let log = OpenOptions::new().append(true).open(&path).map_err(look)?;
        while self.lengthen(&log).map_err(look)? {}
        log.sync_data().map_err(look)
    }

    /// Adds a piece. Whether the log is too short still. No change is on its way meanwhile, and what SQLite has written ends before
    /// the end of the file.
    fn lengthen(&self, mut log: &File) -> io::Result<bool> {
        let _still = lock(&self.main);
        if log.metadata()?.len() >= LOG_BYTES {
            return Ok(false);
        }
        let place = fstatvfs(log)?;
        if place.blocks_available().saturating_mul(place.fragment_size()) < FREE_MIN {
            let why = format!("its file system has less than {} free", ByteSize(FREE_MIN));
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        log.write_all(&vec![0; AT_ONCE])?;
        Ok(true)
    }

    pub(super) fn log_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        path.into()
    }
}
