//! Room in the write-ahead log.
//!
//! A sync of appended bytes has to wait until the file system has recorded the file's new length; a
//! sync of overwritten bytes does not. SQLite overwrites its log from the second checkpoint on, and
//! never shortens it while the store is open. So the log is lengthened once, by zeros behind its
//! end, before anybody needs it.
//!
//! Zeros are no frame of the log: their salt is wrong. A reader of the log after a crash stops
//! there, as at the remains of an older round (SQLite's file format, 4.3).
//!
//! What must never happen here: a byte written where SQLite has written, or is writing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use mooring_model::ByteSize;
use nix::sys::statvfs::fstatvfs;

use super::{Store, StoreError, lock};

/// Length in bytes to which the log is extended: some hundred changes, usually more than come
/// between two checkpoints.
pub(super) const LOG_BYTES: u64 = 4 << 20;

/// Bytes that must be free on the log's file system. Room that nobody needs yet is not taken from
/// what somebody will need.
const FREE_MIN: u64 = 16 * LOG_BYTES;

/// Bytes written at a time: a change may have to wait for that long.
const AT_ONCE: usize = 256 << 10;

impl Store {
    /// Returns `true` if the log is shorter than it should be, and nobody has tried to lengthen it.
    pub fn lacks_room(&self) -> bool {
        !self.roomy.load(Ordering::Acquire)
    }

    /// Lengthens the log. For idle moments. After an error nobody tries again: a sync costs more,
    /// and nothing is lost.
    ///
    /// # Errors
    /// The log cannot be opened, written or synced, for example because its file system is full.
    pub fn make_room(&self) -> Result<(), StoreError> {
        if self.roomy.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.check_place()?;
        let path = self.log_path();
        let look = |source| StoreError::Look { path: path.clone(), source };
        // Does not create the file: a store without a log is no store of this process.
        let log = OpenOptions::new().append(true).open(&path).map_err(look)?;
        while self.lengthen(&log).map_err(look)? {}
        log.sync_data().map_err(look)
    }

    /// Appends one piece of zeros. Returns `true` if the log is still too short.
    ///
    /// No change is in progress meanwhile, and what SQLite has written ends before the end of the
    /// file.
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
