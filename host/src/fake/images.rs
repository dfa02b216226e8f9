//! Fake of the program that reads images of a format: it believes the header's size and takes the
//! disk's bytes from behind the first cluster. It does not model how a real `qemu-nbd` handles
//! other files that an image names: no reference may get so far.
//!
//! What must never happen: an image served that has no header.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::image::{RawPart, create, publish, put_mark, remove, remove_mark, reopen};
use crate::{ImageError, ImageFile, ImagePart, ImageServers, PartFormat, ServedImage};

/// Bytes of the first cluster, which holds the header.
const CLUSTER: u64 = 65536;

/// Offset of the disk's size in the header.
const SIZE_AT: usize = 24;

#[derive(Debug, Default)]
struct State {
    missing: bool,
    /// Number of reads that still succeed. `None`: all.
    reads: Option<u64>,
    served: u64,
    /// Number of calls so far that change a folder or a file.
    changes: u64,
    dies: Option<PartDeath>,
    /// Number of bytes that the file system still takes. `None`: any number.
    room: Option<u64>,
    /// A part has writes that were not flushed.
    unflushed: bool,
    /// Number of marks so far that count unflushed writes.
    untrue: u64,
    /// Number of writes to parts.
    puts: u64,
}

/// Moment at which the writer of files is killed: around its n-th change, from 1. It changes
/// nothing afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartDeath {
    /// The change is not made.
    Before(u64),
    /// The change is made, and nothing comes after it.
    After(u64),
}

/// Programs that read images; clones share one state.
#[derive(Debug, Clone, Default)]
pub struct FakeImages(Arc<Mutex<State>>);

impl FakeImages {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds a qcow2 image as this fake reads it: of a disk of this size, which begins with these
    /// bytes.
    pub fn qcow2(size: u64, begins: &[u8]) -> Vec<u8> {
        let mut image = vec![0; usize::try_from(CLUSTER).unwrap_or_default()];
        image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        // 64 KiB a cluster.
        image[20..24].copy_from_slice(&16_u32.to_be_bytes());
        image[SIZE_AT..SIZE_AT + 8].copy_from_slice(&size.to_be_bytes());
        image[100..104].copy_from_slice(&104_u32.to_be_bytes());
        image.extend(begins);
        image
    }

    /// Removes or installs the programs.
    pub fn set_missing(&self, missing: bool) {
        self.state().missing = missing;
    }

    /// Lets the program die after this number of reads. `None`: it does not.
    pub fn dies_after(&self, reads: Option<u64>) {
        self.state().reads = reads;
    }

    /// Lets the writer of files be killed there. `None`: another one works from now on.
    pub fn dies(&self, at: Option<PartDeath>) {
        let mut state = self.state();
        (state.dies, state.changes) = (at, 0);
    }

    /// Counts the changes of files after the last call of [`Self::dies`].
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Counts the marks that claim more of a part than is on the disk.
    pub fn untrue_marks(&self) -> u64 {
        self.state().untrue
    }

    /// Counts the writes to parts.
    pub fn puts(&self) -> u64 {
        self.state().puts
    }

    /// Limits the file system to this number of further bytes. `None`: it has room.
    pub fn set_room(&self, room: Option<u64>) {
        self.state().room = room;
    }

    fn change<T>(&self, call: impl FnOnce() -> Result<T, ImageError>) -> Result<T, ImageError> {
        let (number, dies) = {
            let mut state = self.state();
            state.changes += 1;
            (state.changes, state.dies)
        };
        let dead = || Err(ImageError::Program(std::io::ErrorKind::Interrupted.into()));
        match dies {
            Some(PartDeath::Before(at)) if number >= at => dead(),
            Some(PartDeath::After(at)) if number > at => dead(),
            Some(PartDeath::After(at)) if number == at => call().and_then(|_| dead()),
            _ => call(),
        }
    }

    /// Counts the images that it was given to read.
    pub fn served(&self) -> u64 {
        self.state().served
    }
}

struct Served {
    programs: FakeImages,
    content: Vec<u8>,
    size: u64,
}

impl ServedImage for Served {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), ImageError> {
        match &mut self.programs.state().reads {
            Some(0) => return Err(ImageError::Read(std::io::ErrorKind::UnexpectedEof.into())),
            Some(reads) => *reads -= 1,
            None => {}
        }
        buffer.fill(0);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.content.len());
        let length = buffer.len().min(self.content.len() - from);
        buffer[..length].copy_from_slice(&self.content[from..from + length]);
        Ok(())
    }
}

impl ImageServers for FakeImages {
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        self.state().missing.then_some(("/usr/bin/qemu-nbd", "qemu-utils"))
    }

    fn serve_qcow2(&self, image: &ImageFile, _scratch: &Path) -> Result<Box<dyn ServedImage>, ImageError> {
        if let Some((program, package)) = self.missing() {
            return Err(ImageError::NoProgram { program, package });
        }
        self.state().served += 1;
        let mut header = [0; 104];
        image.read(0, &mut header)?;
        if !header.starts_with(b"QFI\xfb") {
            let said = "Failed to open: Image is not in qcow2 format".to_owned();
            return Err(ImageError::NotServed { said });
        }
        let mut number = [0; 8];
        number.copy_from_slice(&header[SIZE_AT..SIZE_AT + 8]);
        let length = image.size()?.saturating_sub(CLUSTER);
        let mut content = vec![0; usize::try_from(length).unwrap_or_default()];
        image.read(CLUSTER, &mut content)?;
        Ok(Box::new(Served { programs: self.clone(), content, size: u64::from_be_bytes(number) }))
    }

    fn make_part(
        &self,
        (folder, of): (&Path, &str),
        size: u64,
        format: PartFormat,
        _scratch: &Path,
    ) -> Result<Box<dyn ImagePart>, ImageError> {
        if let Some((program, package)) = self.missing().filter(|_| format == PartFormat::Qcow2) {
            return Err(ImageError::NoProgram { program, package });
        }
        let inner = self.change(|| match format {
            PartFormat::Raw => Ok(Box::new(RawPart::make(folder, of, size)?) as Box<dyn ImagePart>),
            PartFormat::Qcow2 => Ok(Box::new(Qcow2Part::make(folder, of, size)?)),
        })?;
        Ok(Box::new(Part { programs: self.clone(), folder: folder.to_owned(), inner }))
    }

    fn open_part(
        &self,
        (folder, of): (&Path, &str),
        size: u64,
        format: PartFormat,
        _scratch: &Path,
    ) -> Result<Option<Box<dyn ImagePart>>, ImageError> {
        if let Some((program, package)) = self.missing().filter(|_| format == PartFormat::Qcow2) {
            return Err(ImageError::NoProgram { program, package });
        }
        let inner = match format {
            PartFormat::Raw => {
                RawPart::open(folder, of, size)?.map(|part| Box::new(part) as Box<dyn ImagePart>)
            }
            PartFormat::Qcow2 => {
                Qcow2Part::open(folder, of, size)?.map(|part| Box::new(part) as Box<dyn ImagePart>)
            }
        };
        let part = |inner| Part { programs: self.clone(), folder: folder.to_owned(), inner };
        Ok(inner.map(|inner| Box::new(part(inner)) as Box<dyn ImagePart>))
    }

    fn mark_part(&self, folder: &Path, of: &str, mark: &[u8]) -> Result<(), ImageError> {
        {
            let mut state = self.state();
            state.untrue += u64::from(state.unflushed);
        }
        self.change(|| put_mark(folder, of, mark))
    }

    fn unmark_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        self.change(|| remove_mark(folder, of))
    }

    fn publish_part(&self, folder: &Path, of: &str, name: &str) -> Result<(), ImageError> {
        self.change(|| publish(folder, of, name))
    }

    fn remove_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        self.change(|| remove(folder, of))
    }
}

/// A part whose changes are counted, on a file system that may be full.
struct Part {
    programs: FakeImages,
    folder: PathBuf,
    inner: Box<dyn ImagePart>,
}

impl ImagePart for Part {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        let Self { programs, folder, inner } = self;
        programs.change(|| {
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            if let Some(room) = &mut programs.state().room {
                *room =
                    room.checked_sub(length).ok_or_else(|| ImageError::Full { folder: folder.clone() })?;
            }
            inner.write(offset, bytes)?;
            let mut state = programs.state();
            (state.unflushed, state.puts) = (true, state.puts + 1);
            Ok(())
        })
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        self.inner.flush()?;
        self.programs.state().unflushed = false;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        let Self { programs, inner, .. } = self;
        programs.change(|| inner.finish())
    }
}

/// A part in the form of [`FakeImages::qcow2`]: the header's cluster, then the disk.
struct Qcow2Part {
    file: File,
    size: u64,
}

impl Qcow2Part {
    fn make(folder: &Path, of: &str, size: u64) -> Result<Self, ImageError> {
        let file = create(folder, of)?;
        let failed = |source| ImageError::Write { folder: folder.to_owned(), source };
        file.write_all_at(&FakeImages::qcow2(size, b""), 0).map_err(failed)?;
        file.set_len(CLUSTER + size).map_err(failed)?;
        Ok(Self { file, size })
    }

    /// Opens an existing part, if its header and its length fit; `None` otherwise.
    fn open(folder: &Path, of: &str, size: u64) -> Result<Option<Self>, ImageError> {
        let Some(file) = reopen(folder, of)? else { return Ok(None) };
        let mut header = vec![0; usize::try_from(CLUSTER).unwrap_or_default()];
        let whole = file.read_exact_at(&mut header, 0).is_ok() && header == FakeImages::qcow2(size, b"");
        let length = file.metadata().map_err(ImageError::Read)?.len();
        Ok((whole && length == CLUSTER + size).then_some(Self { file, size }))
    }
}

impl ImagePart for Qcow2Part {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        let end = offset.checked_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if end.is_none_or(|end| end > self.size) {
            let errno = u32::try_from(Errno::EINVAL as i32).unwrap_or_default();
            return Err(ImageError::NotPut { offset, length: bytes.len(), errno });
        }
        self.file.write_all_at(bytes, CLUSTER + offset).map_err(ImageError::Program)
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        self.file.sync_data().map_err(ImageError::Program)
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        self.file
            .set_len(CLUSTER + self.size)
            .and_then(|()| self.file.sync_all())
            .map_err(ImageError::Program)
    }
}
