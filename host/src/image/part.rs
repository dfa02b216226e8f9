//! Files that volumes are copied to. Until it is complete, a file has a hidden name of its own: its
//! part. Then it gets its name as well, by a link, which the file system refuses where the name is
//! taken. With both names its owner is known, also after an agent was killed in between. The part
//! goes when nobody asks for it any more. A file of one block beside it, its *mark*, has the
//! progress that is on the disk. After a crash the next process goes on there.
//!
//! What must never happen here: an existing file written to or replaced; a file with its name that
//! is not whole on the disk; another file than a part or a mark removed; a mark of a part that was
//! there before.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use super::{ImageError, ImageFile};

/// Prefix and suffix of a part's name. No image has such a name: those begin with a letter or a
/// digit.
const BEGINS: &str = ".mooring-";
const ENDS: &str = ".part";

/// Suffix of a mark's name.
const MARK_ENDS: &str = ".mark";

/// Bytes of a mark: one block of any disk, so that it is written as one.
const MARK_BYTES: usize = 512;

/// Bytes of a run of zeros that is not written: at a multiple of this it becomes a hole.
const HOLE_BYTES: usize = 65536;

/// Maximum number of unflushed bytes: so the last flush is short, and memory does not fill with
/// them.
pub(super) const FLUSH_BYTES: u64 = 256 << 20;

/// Format of the finished file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartFormat {
    /// The plain bytes of the disk.
    Raw,
    /// A qcow2 image, written by QEMU.
    Qcow2,
}

/// A file in the making.
pub trait ImagePart: Send {
    /// Writes these bytes at `offset`, within the disk's size; 16 MiB at most. Bytes that are never
    /// written read as zeros.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError>;

    /// Brings all writes so far to the disk: a process that opens the part after a crash finds them
    /// there.
    fn flush(&mut self) -> Result<(), ImageError>;

    /// Ends the file after the last write: closes it, and brings it to the disk. No call may
    /// follow.
    fn finish(&mut self) -> Result<(), ImageError>;
}

/// Returns the name of a part. `of` names its owner: letters, digits and `-`.
pub fn part_name(of: &str) -> String {
    format!("{BEGINS}{of}{ENDS}")
}

fn mark_name(of: &str) -> String {
    format!("{BEGINS}{of}{MARK_ENDS}")
}

/// Lists the owners of the parts, and of marks of parts, in this folder.
pub fn parts(folder: &Path) -> Result<Vec<String>, ImageError> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(ImageError::Read)? {
        let name = entry.map_err(ImageError::Read)?.file_name();
        let of = name.to_str().and_then(|name| {
            let name = name.strip_prefix(BEGINS)?;
            name.strip_suffix(ENDS).or_else(|| name.strip_suffix(MARK_ENDS))
        });
        all.extend(of.map(str::to_owned));
    }
    Ok(all.into_iter().collect())
}

/// Reads the mark of a part. `None`: there is none, or another object has its name.
pub fn mark_of(folder: &Path, of: &str) -> Option<Vec<u8>> {
    let file = ImageFile::open(folder, &mark_name(of)).ok()?;
    if file.size().ok()? != u64::try_from(MARK_BYTES).ok()? {
        return None;
    }
    let mut mark = vec![0; MARK_BYTES];
    file.read(0, &mut mark).ok()?;
    let length = mark.iter().position(|byte| *byte == 0).unwrap_or(MARK_BYTES);
    mark.truncate(length);
    Some(mark)
}

/// Records the progress of a part in its mark, durably, in the place of an earlier one. `mark` is a
/// line of less than a block.
pub(crate) fn put_mark(folder: &Path, of: &str, mark: &[u8]) -> Result<(), ImageError> {
    let mut block = [0; MARK_BYTES];
    let too_long = || failed(folder)(io::ErrorKind::InvalidInput.into());
    block.get_mut(..mark.len()).ok_or_else(too_long)?.copy_from_slice(mark);
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(O_NOFOLLOW | O_NONBLOCK);
    let file = options.open(folder.join(mark_name(of))).map_err(failed(folder))?;
    file.write_all_at(&block, 0).and_then(|()| file.sync_all()).map_err(failed(folder))?;
    sync_folder(folder)
}

/// Removes a file. Returns `true` if it existed.
fn unlink(folder: &Path, name: &str) -> Result<bool, ImageError> {
    match std::fs::remove_file(folder.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(folder)(error)),
        Ok(()) => Ok(true),
    }
}

/// Removes the mark of a part, durably. A missing one is accepted.
pub(crate) fn remove_mark(folder: &Path, of: &str) -> Result<(), ImageError> {
    if unlink(folder, &mark_name(of))? { sync_folder(folder) } else { Ok(()) }
}

fn look(path: &Path) -> Result<Option<std::fs::Metadata>, ImageError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ImageError::Read(error)),
    }
}

/// Returns two values: `true` if any object has this name, and `true` if that object is this part.
pub fn has_name(folder: &Path, name: &str, of: &str) -> Result<(bool, bool), ImageError> {
    let named = look(&folder.join(name))?;
    let part = look(&folder.join(part_name(of)))?;
    let id = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
    let same = named.as_ref().zip(part.as_ref()).is_some_and(|(named, part)| id(named) == id(part));
    Ok((named.is_some(), same))
}

/// Makes the error of a write that failed. `folder` is on the file system that was written to.
pub(super) fn failed(folder: &Path) -> impl Fn(io::Error) -> ImageError + '_ {
    |error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => ImageError::Full { folder: folder.to_owned() },
        _ => ImageError::Write { folder: folder.to_owned(), source: error },
    }
}

/// Makes a new, empty part. An existing one is an error.
pub(crate) fn create(folder: &Path, of: &str) -> Result<File, ImageError> {
    // A mark without its part, which a power cut has left.
    remove_mark(folder, of)?;
    let path = folder.join(part_name(of));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(O_NOFOLLOW);
    options.open(path).map_err(failed(folder))
}

/// Opens an existing part, as an earlier process has left it. `None`: it does not exist, is no
/// regular file, or has another name as well, under which nobody expects writes to it.
pub(crate) fn reopen(folder: &Path, of: &str) -> Result<Option<File>, ImageError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(O_NOFOLLOW | O_NONBLOCK);
    let path = folder.join(part_name(of));
    let Some(named) = look(&path)?.filter(|meta| meta.file_type().is_file()) else { return Ok(None) };
    let file = options.open(path).map_err(failed(folder))?;
    let meta = file.metadata().map_err(ImageError::Read)?;
    let same = (meta.dev(), meta.ino()) == (named.dev(), named.ino());
    Ok((same && meta.nlink() == 1).then_some(file))
}

fn sync_folder(folder: &Path) -> Result<(), ImageError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed(folder))
}

/// Gives a finished part its name. The part stays beside it.
pub(crate) fn publish(folder: &Path, of: &str, name: &str) -> Result<(), ImageError> {
    let path = folder.join(name);
    match std::fs::hard_link(folder.join(part_name(of)), &path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(ImageError::Exists { path }),
        linked => linked.map_err(failed(folder)),
    }?;
    if let Err(error) = unlink(folder, &mark_name(of)) {
        tracing::debug!(%error, "the mark of a part that is whole stays until the part goes");
    }
    sync_folder(folder)
}

/// Removes a part, and its mark before it. Missing ones are accepted.
pub(crate) fn remove(folder: &Path, of: &str) -> Result<(), ImageError> {
    let marked = unlink(folder, &mark_name(of))?;
    let there = unlink(folder, &part_name(of))?;
    if marked || there { sync_folder(folder) } else { Ok(()) }
}

/// The bytes of a disk, with holes where they are zeros.
pub(crate) struct RawPart {
    file: File,
    folder: PathBuf,
    unflushed: u64,
}

impl RawPart {
    pub(crate) fn make(folder: &Path, of: &str, size: u64) -> Result<Self, ImageError> {
        let file = create(folder, of)?;
        file.set_len(size).map_err(failed(folder))?;
        Ok(Self { file, folder: folder.to_owned(), unflushed: 0 })
    }

    /// Opens an existing part, if it has this size; `None` otherwise.
    pub(crate) fn open(folder: &Path, of: &str, size: u64) -> Result<Option<Self>, ImageError> {
        let Some(file) = reopen(folder, of)? else { return Ok(None) };
        let has = file.metadata().map_err(ImageError::Read)?.len();
        Ok((has == size).then(|| Self { file, folder: folder.to_owned(), unflushed: 0 }))
    }
}

/// Returns `true` if the bytes are all zeros. It compares them with zeros by the C library: a loop
/// of ours, which is not optimized in tests, would take long for all bytes of a volume.
pub fn is_zeros(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|part| ZEROS.starts_with(part))
}

/// Returns the runs that are not zeros: offset and bytes.
pub(super) fn runs(offset: u64, bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut all = Vec::new();
    let mut from = None;
    for (index, part) in bytes.chunks(HOLE_BYTES).enumerate() {
        let at = index * HOLE_BYTES;
        if !is_zeros(part) {
            from.get_or_insert(at);
        } else if let Some(from) = from.take() {
            all.push((from, at));
        }
    }
    all.extend(from.map(|from| (from, bytes.len())));
    let place = |from: usize| offset.saturating_add(u64::try_from(from).unwrap_or(u64::MAX));
    all.into_iter().map(|(from, to)| (place(from), &bytes[from..to])).collect()
}

impl ImagePart for RawPart {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        for (at, run) in runs(offset, bytes) {
            self.file.write_all_at(run, at).map_err(failed(&self.folder))?;
            self.unflushed += u64::try_from(run.len()).unwrap_or(u64::MAX);
        }
        if self.unflushed >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        self.file.sync_data().map_err(failed(&self.folder))?;
        self.unflushed = 0;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        self.file.sync_all().map_err(failed(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_file_has_holes_and_gets_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let size = 64 << 20;
        let mut part = RawPart::make(folder, "a", size).unwrap();
        part.write(0, &[vec![0; 1 << 20], vec![7; 100]].concat()).unwrap();
        part.write(size - 4, b"last").unwrap();
        part.finish().unwrap();
        assert_eq!(parts(folder).unwrap(), ["a"]);
        assert_eq!(has_name(folder, "new", "a").unwrap(), (false, false));
        publish(folder, "a", "new").unwrap();
        assert_eq!(has_name(folder, "new", "a").unwrap(), (true, true));
        remove(folder, "a").unwrap();
        remove(folder, "a").unwrap();
        assert_eq!(has_name(folder, "new", "a").unwrap(), (true, false));
        let bytes = std::fs::read(folder.join("new")).unwrap();
        assert_eq!(bytes.len() as u64, size);
        assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0) && bytes[1 << 20..][..100] == [7; 100]);
        assert!(bytes.ends_with(b"\0last"));
        let used = std::fs::metadata(folder.join("new")).unwrap().blocks() * 512;
        assert!(used < 1 << 20, "{used} bytes are used: zeros were written");
    }

    #[test]
    fn a_part_that_is_left_is_gone_on_with_and_its_mark_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let size = 1 << 20;
        let mut part = RawPart::make(folder, "a", size).unwrap();
        assert_eq!(mark_of(folder, "a"), None);
        part.write(0, &[7; 100]).unwrap();
        part.flush().unwrap();
        put_mark(folder, "a", b"one").unwrap();
        put_mark(folder, "a", b"1").unwrap();
        assert_eq!(mark_of(folder, "a").unwrap(), b"1", "nothing of the first one shows");
        assert!(put_mark(folder, "a", &[1; MARK_BYTES + 1]).is_err());
        drop(part);
        assert!(RawPart::open(folder, "a", size + 1).unwrap().is_none(), "of another size");
        let mut part = RawPart::open(folder, "a", size).unwrap().unwrap();
        part.write(100, &[8; 100]).unwrap();
        part.finish().unwrap();
        publish(folder, "a", "new").unwrap();
        assert_eq!(mark_of(folder, "a"), None, "what is whole needs none");
        let bytes = std::fs::read(folder.join("new")).unwrap();
        assert!(bytes[..100] == [7; 100] && bytes[100..200] == [8; 100] && bytes.len() as u64 == size);
        // A part with a name of its own is not written to any more.
        assert!(RawPart::open(folder, "a", size).unwrap().is_none());
        remove(folder, "a").unwrap();
        // A mark alone, as a power cut may leave it, counts as a part to remove, and never belongs
        // to the next part.
        put_mark(folder, "a", b"1").unwrap();
        assert_eq!(parts(folder).unwrap(), ["a"]);
        drop(RawPart::make(folder, "a", size).unwrap());
        assert_eq!(mark_of(folder, "a"), None);
        put_mark(folder, "a", b"1").unwrap();
        assert_eq!(parts(folder).unwrap(), ["a"]);
        remove(folder, "a").unwrap();
        assert_eq!((parts(folder).unwrap(), mark_of(folder, "a")), (Vec::new(), None));
        // A link is no file of ours and is not followed.
        std::os::unix::fs::symlink("new", folder.join(part_name("a"))).unwrap();
        std::os::unix::fs::symlink("new", folder.join(mark_name("a"))).unwrap();
        assert!(RawPart::open(folder, "a", size).unwrap().is_none() && mark_of(folder, "a").is_none());
        assert!(put_mark(folder, "a", b"1").is_err());
        assert!(std::fs::read(folder.join("new")).unwrap() == bytes);
    }

    #[test]
    fn a_name_that_is_taken_is_left_alone_whatever_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        std::fs::write(folder.join("file"), b"theirs").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
        std::fs::create_dir(folder.join("folder")).unwrap();
        RawPart::make(folder, "a", 512).unwrap().finish().unwrap();
        for name in ["file", "link", "folder"] {
            assert_eq!(has_name(folder, name, "a").unwrap(), (true, false), "{name}");
            let error = publish(folder, "a", name).unwrap_err();
            assert!(matches!(error, ImageError::Exists { .. }), "{name}: {error}");
        }
        assert_eq!(std::fs::read(folder.join("file")).unwrap(), b"theirs");
        // A part is made only once, too.
        assert!(matches!(RawPart::make(folder, "a", 512), Err(ImageError::Write { .. })));
    }

    #[test]
    fn runs_are_what_is_not_zeros() {
        let mut bytes = vec![0; 4 * HOLE_BYTES + 10];
        bytes[HOLE_BYTES + 5] = 1;
        bytes[2 * HOLE_BYTES] = 1;
        bytes[4 * HOLE_BYTES + 9] = 1;
        let found: Vec<_> = runs(100, &bytes).iter().map(|(at, run)| (*at, run.len())).collect();
        let hole = HOLE_BYTES as u64;
        assert_eq!(found, [(100 + hole, 2 * HOLE_BYTES), (100 + 4 * hole, 10)]);
        assert!(runs(0, &[0; 100]).is_empty() && runs(0, b"").is_empty());
    }
}
