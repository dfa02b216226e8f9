//! Files that volumes are copied to, in the folder of images. What a file is called until it is whole says whose it is: the volume's
//! and the copy's ids. What is written stays open between passes, so that a copy that makes way for something newer goes on. How much
//! of it is on the disk stands beside it now and then, so that it goes on there after a crash, too: nobody may write to the volume
//! while its copy is wished, and a copy that was not wished in between is forgotten before it is wished again.
//!
//! What must never happen here: a file that is there written to; one that has its name before all of it is on the disk; a mark of what
//! is not on the disk, or of another copy, believed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mooring_host::{ImageError, ImagePart, PartFormat, has_name, mark_of, parts};
use mooring_model::{ByteSize, ImageFormat, ImageSource, Upload, UploadId, VolumeId};

use super::{Error, Images};

/// Characters of an id.
const ID_CHARS: usize = 36;

/// Which copy of which volume.
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
    /// From the text that it makes.
    fn of(text: &str) -> Option<Self> {
        let (volume, rest) = text.split_at_checked(ID_CHARS)?;
        Some(Self { volume: volume.parse().ok()?, upload: rest.strip_prefix('-')?.parse().ok()? })
    }
}

/// What there is of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenPart {
    /// Nothing.
    Nothing,
    /// Something that nobody goes on with: its agent was killed.
    Left,
    /// The same, and it is said how far it had come.
    Marked,
    /// It is being written, by this agent.
    Open,
    /// The file has its name, and is whole.
    Whole,
}

/// What there is in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenUpload {
    /// Of the copy.
    pub part: SeenPart,
    /// Something else has the file's name.
    pub taken: bool,
}

/// A part that is written.
pub struct OpenPart {
    part: Box<dyn ImagePart>,
    /// Bytes of the disk that are in it.
    pub(crate) done: u64,
    /// Of these, what is said beside it.
    pub(crate) marked: u64,
}

/// How a mark begins: what it is, and how it is written.
const MARK: &str = "mooring-part-1";

/// How far a part has come, as it is said beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    format: ImageFormat,
    /// Bytes of the disk.
    size: u64,
    /// LVM's identity of the LV that is copied.
    lv: String,
    /// Bytes of the disk that are in it, and on this host's.
    done: u64,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = format!("{MARK} {} {} {} {}", self.format, self.size, self.lv, self.done);
        write!(f, "{said} {:08x}", crc32fast::hash(said.as_bytes()))
    }
}

impl Mark {
    /// What it says, if all of it is as it was written.
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

/// Those between two passes.
#[derive(Clone, Default)]
pub(super) struct OpenParts(Arc<Mutex<BTreeMap<PartId, OpenPart>>>);

impl OpenParts {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PartId, OpenPart>> {
        // It is whole after every statement.
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
    /// Puts the next bytes.
    pub(crate) fn write(&mut self, image: &ImageSource, bytes: &[u8]) -> Result<(), Error> {
        self.part.write(self.done, bytes).map_err(failed(image))?;
        self.done += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// All of it was put: brings it to the disk.
    pub(crate) fn finish(mut self, image: &ImageSource) -> Result<(), Error> {
        self.part.finish().map_err(failed(image))
    }
}

impl Images {
    /// What there is of a copy. Looks at two names.
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

    /// The parts that lie in the folder, whoever wants them.
    pub fn parts(&self) -> Result<Vec<PartId>, Error> {
        let all = parts(&self.folder).map_err(|source| Error::Parts { source })?;
        Ok(all.iter().filter_map(|of| PartId::of(of)).collect())
    }

    /// Begins a file with a disk of this size. What was begun and failed is taken away.
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

    /// Goes on with a part that an agent before this one has left, where its mark says, if that is true of this copy; else begins it
    /// anew. `lv`: LVM's identity of the LV that is copied; empty: nobody knows it.
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

    /// Says beside a part how far it has come, when that is on the disk. A mark that cannot be written costs nothing but time after a
    /// crash.
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

    /// Forgets how far an earlier copy of this id has come: it was not wished since, and somebody may have written to the volume.
    pub(crate) fn forget_part(&self, id: PartId) -> Result<(), Error> {
        let unmarked = self.servers.unmark_part(&self.folder, &id.to_string());
        unmarked.map_err(|source| Error::Parts { source })
    }

    /// Takes a part that is open, to write to it.
    pub(crate) fn take_part(&self, id: PartId, image: &ImageSource) -> Result<OpenPart, Error> {
        self.open.all().remove(&id).ok_or_else(|| Error::NoPart { image: image.clone() })
    }

    /// Keeps it open until the next pass.
    pub(crate) fn keep_part(&self, id: PartId, part: OpenPart) {
        self.open.all().insert(id, part);
    }

    /// Gives the finished file its name.
    pub(crate) fn publish(&self, id: PartId, image: &ImageSource) -> Result<(), Error> {
        let published = self.servers.publish_part(&self.folder, &id.to_string(), image.name.as_str());
        published.map_err(failed(image)).inspect_err(|_| self.clear(id))
    }

    /// Takes a part away: the file that is not whole, or what says of a whole one whose it is.
    pub(crate) fn remove_part(&self, id: PartId) -> Result<(), Error> {
        // Whoever writes to it goes first.
        drop(self.open.all().remove(&id));
        self.servers.remove_part(&self.folder, &id.to_string()).map_err(|source| Error::Parts { source })
    }

    /// The same after a failure, which is what is told.
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
