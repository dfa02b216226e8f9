//! Files that volumes are copied to, in the folder of images.
//!
//! Until it is complete, a file is named by the volume's and the copy's ids. It stays open between
//! passes, so that a copy that makes way for something newer can resume. A mark beside the file
//! says how much of it is on the disk, so that the copy resumes there after a crash, too: nobody
//! may write to the volume while the spec asks for its copy. A copy that was missing from the spec
//! in between is forgotten before the spec asks for it again.
//!
//! What must never happen here: an existing file written to; a file that has its name before all of
//! it is on the disk; a mark believed of what is not on the disk, or of another copy.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mooring_host::{ImageError, ImagePart, PartFormat, has_name, mark_of, parts};
use mooring_model::{ByteSize, ImageFormat, ImageSource, Upload, UploadId, VolumeId};

use super::{Error, Images};

/// Number of characters of an id.
const ID_CHARS: usize = 36;

/// Id of one copy of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartId {
    /// The volume.
    pub volume: VolumeId,
    /// The copy.
    pub upload: UploadId,
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.volume, self.upload)
    }
}

impl PartId {
    /// Parses the text that `Display` makes. `None` for any other text.
    fn of(text: &str) -> Option<Self> {
        let (volume, rest) = text.split_at_checked(ID_CHARS)?;
        Some(Self { volume: volume.parse().ok()?, upload: rest.strip_prefix('-')?.parse().ok()? })
    }
}

/// State of a copy's partial file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenPart {
    /// There is none.
    Nothing,
    /// There is one of a killed agent, without a mark.
    Left,
    /// There is one of a killed agent, and a mark says how far it had come.
    Marked,
    /// This agent is writing it.
    Open,
    /// The file has its name, and is complete.
    Whole,
}

/// State of a copy in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenUpload {
    /// State of the partial file.
    pub part: SeenPart,
    /// `true` if another file has the name that the copy is to get.
    pub taken: bool,
}

/// A partial file that is being written.
pub struct OpenPart {
    part: Box<dyn ImagePart>,
    /// Bytes of the disk that are in the file.
    pub(crate) done: u64,
    /// Bytes of `done` that the mark covers.
    pub(crate) marked: u64,
}

/// Beginning of a mark: its purpose, and the version of its form.
const MARK: &str = "mooring-part-1";

/// Progress of a partial file, as the mark beside it says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    format: ImageFormat,
    /// Size of the disk in bytes.
    size: u64,
    /// UUID that LVM gave the LV that is copied.
    lv: String,
    /// Bytes of the disk that are in the file and on the host's disk.
    done: u64,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = format!("{MARK} {} {} {} {}", self.format, self.size, self.lv, self.done);
        write!(f, "{said} {:08x}", crc32fast::hash(said.as_bytes()))
    }
}

impl Mark {
    /// Parses a mark. `None` if any of it differs from what was written.
    fn of(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.split(' ').skip(1);
        let format = words.next()?.parse().ok()?;
        let size = words.next()?.parse().ok()?;
        let lv = words.next()?.to_owned();
        let mark = Self { format, size, lv, done: words.next()?.parse().ok()? };
        (mark.to_string() == text && mark.done <= mark.size).then_some(mark)
    }
}

/// Partial files that are open between two passes.
#[derive(Clone, Default)]
pub(super) struct OpenParts(Arc<Mutex<BTreeMap<PartId, OpenPart>>>);

impl OpenParts {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PartId, OpenPart>> {
        // The map is consistent after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(image: &ImageSource) -> impl Fn(ImageError) -> Error + '_ {
    |source| Error::Written { image: image.clone(), source }
}

const fn format_of(image: &ImageSource) -> PartFormat {
    match image.format {
        ImageFormat::Raw => PartFormat::Raw,
        ImageFormat::Qcow2 => PartFormat::Qcow2,
    }
}

impl OpenPart {
    /// Writes the next bytes.
    pub(crate) fn write(&mut self, image: &ImageSource, bytes: &[u8]) -> Result<(), Error> {
        self.part.write(self.done, bytes).map_err(failed(image))?;
        self.done += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Flushes the completely written file to the disk.
    pub(crate) fn finish(mut self, image: &ImageSource) -> Result<(), Error> {
        self.part.finish().map_err(failed(image))
    }
}

impl Images {
    /// Returns the state of a copy. Looks at two names.
    pub fn look_for(&self, volume: VolumeId, upload: &Upload) -> Result<SeenUpload, Error> {
        let id = PartId { volume, upload: upload.id };
        let of = id.to_string();
        let (named, same) =
            has_name(&self.folder, upload.image.name.as_str(), &of).map_err(failed(&upload.image))?;
        let left = || -> Result<bool, Error> {
            Ok(parts(&self.folder).map_err(failed(&upload.image))?.contains(&of))
        };
        let marked = || mark_of(&self.folder, &of).is_some_and(|mark| Mark::of(&mark).is_some());
        let part = match (same, self.open.all().contains_key(&id)) {
            (true, _) => SeenPart::Whole,
            (false, true) => SeenPart::Open,
            (false, false) if left()? && marked() => SeenPart::Marked,
            (false, false) if left()? => SeenPart::Left,
            (false, false) => SeenPart::Nothing,
        };
        Ok(SeenUpload { part, taken: named && !same })
    }

    /// Returns the partial files in the folder, whoever needs them.
    pub fn parts(&self) -> Result<Vec<PartId>, Error> {
        let all = parts(&self.folder).map_err(|source| Error::Parts { source })?;
        Ok(all.iter().filter_map(|of| PartId::of(of)).collect())
    }

    /// Begins a file with a disk of this size. Removes an attempt that failed.
    pub(crate) fn make_part(&self, id: PartId, image: &ImageSource, size: ByteSize) -> Result<(), Error> {
        let of = id.to_string();
        match self.servers.make_part((&self.folder, &of), size.0, format_of(image), &self.scratch) {
            Ok(part) => {
                self.open.all().insert(id, OpenPart { part, done: 0, marked: 0 });
                Ok(())
            }
            Err(error) => {
                self.clear(id);
                Err(failed(image)(error))
            }
        }
    }

    /// Resumes a partial file of an earlier agent at its mark, if the mark is of this copy; else
    /// begins it anew.
    ///
    /// `lv` is the UUID that LVM gave the LV that is copied; empty if it is unknown.
    pub(crate) fn go_on(
        &self,
        id: PartId,
        image: &ImageSource,
        size: ByteSize,
        lv: &str,
    ) -> Result<(), Error> {
        if let Some(open) = self.left(id, image, size, lv) {
            tracing::info!(part = %id, done = %ByteSize(open.done), "the part of a file is gone on with");
            self.open.all().insert(id, open);
            return Ok(());
        }
        tracing::info!(part = %id, "the part of a file is begun anew");
        self.remove_part(id)?;
        self.make_part(id, image, size)
    }

    fn left(&self, id: PartId, image: &ImageSource, size: ByteSize, lv: &str) -> Option<OpenPart> {
        let of = id.to_string();
        let mark = mark_of(&self.folder, &of).and_then(|mark| Mark::of(&mark))?;
        let is = mark.format == image.format && mark.size == size.0 && mark.lv == lv && !lv.is_empty();
        if !is {
            return None;
        }
        let opened = self.servers.open_part((&self.folder, &of), size.0, format_of(image), &self.scratch);
        let part = opened.unwrap_or_else(|error| {
            let error = mooring_model::Chain(&error).to_string();
            tracing::warn!(part = %id, error, "the part of a file cannot be opened");
            None
        })?;
        Some(OpenPart { part, done: mark.done, marked: mark.done })
    }

    /// Writes the mark of how far a partial file has come, after a flush. A failure only costs time
    /// after a crash.
    pub(crate) fn mark_part(
        &self,
        id: PartId,
        image: &ImageSource,
        open: &mut OpenPart,
        (size, lv): (ByteSize, &str),
    ) -> Result<(), Error> {
        open.part.flush().map_err(failed(image))?;
        open.marked = open.done;
        let mark = Mark { format: image.format, size: size.0, lv: lv.to_owned(), done: open.done };
        let marked = self.servers.mark_part(&self.folder, &id.to_string(), mark.to_string().as_bytes());
        if let Err(error) = marked {
            let error = mooring_model::Chain(&error).to_string();
            tracing::warn!(part = %id, error, "cannot mark how far the part of a file has come");
        }
        Ok(())
    }

    /// Removes the mark of an earlier copy with this id. The spec did not ask for it in between,
    /// and somebody may have written to the volume.
    pub(crate) fn forget_part(&self, id: PartId) -> Result<(), Error> {
        let unmarked = self.servers.unmark_part(&self.folder, &id.to_string());
        unmarked.map_err(|source| Error::Parts { source })
    }

    /// Takes an open partial file, to write to it.
    pub(crate) fn take_part(&self, id: PartId, image: &ImageSource) -> Result<OpenPart, Error> {
        self.open.all().remove(&id).ok_or_else(|| Error::NoPart { image: image.clone() })
    }

    /// Keeps the partial file open until the next pass.
    pub(crate) fn keep_part(&self, id: PartId, part: OpenPart) {
        self.open.all().insert(id, part);
    }

    /// Gives the finished file its name.
    pub(crate) fn publish(&self, id: PartId, image: &ImageSource) -> Result<(), Error> {
        let published = self.servers.publish_part(&self.folder, &id.to_string(), image.name.as_str());
        published.map_err(failed(image)).inspect_err(|_| self.clear(id))
    }

    /// Removes a partial file, or, beside a complete file, the name that says whose it is.
    pub(crate) fn remove_part(&self, id: PartId) -> Result<(), Error> {
        // The open file is closed first.
        drop(self.open.all().remove(&id));
        self.servers.remove_part(&self.folder, &id.to_string()).map_err(|source| Error::Parts { source })
    }

    /// Removes a partial file after a failure, which is the error to report.
    pub(crate) fn clear(&self, id: PartId) {
        if let Err(error) = self.remove_part(id) {
            let error = mooring_model::Chain(&error).to_string();
            tracing::warn!(part = %id, error, "a part of a file stays until the agent is started again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_whose_it_is() {
        let id = PartId { volume: VolumeId::from_u128(1), upload: UploadId::from_u128(2) };
        assert_eq!(PartId::of(&id.to_string()), Some(id));
        for wrong in ["", "a", &id.volume.to_string(), &format!("{id}x"), &format!("{}é", "a".repeat(35))] {
            assert_eq!(PartId::of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_mark_is_believed_as_it_was_written_and_not_otherwise() {
        let lv = "LlIhCw-6uUF-Aw7u-f1w7-Il0J-LbiF-yTPvnC".to_owned();
        let mark = Mark { format: ImageFormat::Raw, size: 8 << 30, lv, done: 1 << 30 };
        let text = mark.to_string();
        assert_eq!(Mark::of(text.as_bytes()), Some(mark.clone()));
        for length in 0..text.len() {
            assert_eq!(Mark::of(&text.as_bytes()[..length]), None, "cut off at {length}");
        }
        for (at, bit) in (0..text.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut other = text.clone().into_bytes();
            other[at] ^= 1 << bit;
            assert_eq!(Mark::of(&other), None, "another byte at {at}");
        }
        assert_eq!(Mark::of(Mark { done: (8 << 30) + 1, ..mark }.to_string().as_bytes()), None);
    }
}
