//! Writes a qcow2 file: `qemu-img` makes it, `qemu-nbd` fills it, both in the sandbox of the
//! readers, with that file and nothing else to write to.
//!
//! What must never happen here: a file called finished whose program has not said that it closed
//! it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::part::{self, FLUSH_BYTES, ImagePart, runs};
use super::{ANSWERS_WITHIN, ImageError, LOOK_EVERY, QEMU_IMG, Sandboxed, Sees, Served, nbd};

/// Bytes of a qcow2 file beside the disk's: tables of 8 and 2 bytes for each cluster of 64 KiB,
/// headers, and room.
const BESIDE_BYTES: u64 = 64 << 20;

/// Error numbers of NBD (its doc/proto.md), which are Linux's.
const ENOSPC: u32 = 28;

/// Returns the maximum length of the file for a disk of this size.
const fn most(size: u64) -> u64 {
    size.saturating_add(size / 1024).saturating_add(BESIDE_BYTES)
}

pub(super) struct Qcow2Part {
    file: File,
    folder: PathBuf,
    served: Option<Served>,
    unflushed: u64,
}

impl Qcow2Part {
    pub(super) fn make(folder: &Path, of: &str, size: u64, scratch: &Path) -> Result<Self, ImageError> {
        let file = part::create(folder, of)?;
        let most = most(size);
        let create = [QEMU_IMG, "create", "-q", "-f", "qcow2", "/image", &size.to_string()];
        let mut creates = Sandboxed::start(&file, Sees::ToWrite { most }, None, &create)?;
        creates.ended()?;
        let served = Served::start(&file, Sees::ToWrite { most }, scratch)?;
        if served.client.size() != size || served.client.is_read_only() {
            return Err(ImageError::Answer("a disk of another size, or one that cannot be written"));
        }
        Ok(Self { file, folder: folder.to_owned(), served: Some(served), unflushed: 0 })
    }

    /// Opens a part that an earlier process has left. Its writes behind the last flush may have
    /// left clusters without a reference, which are removed. `None`: the part does not exist, is
    /// damaged, or that process still writes to it.
    pub(super) fn open(
        folder: &Path,
        of: &str,
        size: u64,
        scratch: &Path,
    ) -> Result<Option<Self>, ImageError> {
        let Some(file) = part::reopen(folder, of)? else { return Ok(None) };
        let sees = Sees::ToWrite { most: most(size) };
        let check = [QEMU_IMG, "check", "-q", "-f", "qcow2", "-r", "leaks", "/image"];
        if let Err(error) = Sandboxed::start(&file, sees, None, &check)?.ended() {
            tracing::info!(%error, "the part of a qcow2 file cannot be gone on with");
            return Ok(None);
        }
        let served = Served::start(&file, sees, scratch)?;
        let same = served.client.size() == size && !served.client.is_read_only();
        Ok(same.then(|| Self { file, folder: folder.to_owned(), served: Some(served), unflushed: 0 }))
    }

    fn client(&mut self) -> Result<&mut nbd::Client<std::os::unix::net::UnixStream>, ImageError> {
        let served = self.served.as_mut().ok_or(ImageError::Answer("it was closed"))?;
        Ok(&mut served.client)
    }

    fn said(&self, error: ImageError) -> ImageError {
        match error {
            ImageError::NotPut { errno: ENOSPC, .. } => ImageError::Full { folder: self.folder.clone() },
            error => error,
        }
    }
}

impl ImagePart for Qcow2Part {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        for (at, run) in runs(offset, bytes) {
            let put = self.client()?.write(at, run);
            put.map_err(|error| self.said(error))?;
            self.unflushed += u64::try_from(run.len()).unwrap_or(u64::MAX);
        }
        if self.unflushed >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        let flushed = self.client()?.flush();
        flushed.map_err(|error| self.said(error))?;
        self.unflushed = 0;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        self.flush()?;
        let mut served = self.served.take().ok_or(ImageError::Answer("it was closed"))?;
        served.client.disconnect()?;
        // The program closes the image when its one client has gone, and its exit status tells if
        // that succeeded.
        served.program.ended()?;
        self.file.sync_all().map_err(part::failed(&self.folder))
    }
}

impl Sandboxed {
    /// Waits until the program has ended with success.
    pub(super) fn ended(&mut self) -> Result<(), ImageError> {
        let until = Instant::now() + ANSWERS_WITHIN;
        loop {
            match self.0.try_wait().map_err(ImageError::Program)? {
                Some(status) if status.success() => return Ok(()),
                None if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                _ => return Err(ImageError::NotWritten { said: self.said() }),
            }
        }
    }
}
