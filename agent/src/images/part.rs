//! Files that volumes are copied to, in the folder of images. What a file is called until it is whole says whose it is: the volume's
//! and the copy's ids. What is written stays open between passes, so that a copy that makes way for something newer goes on.
//!
//! What must never happen here: a file that is there written to; one that has its name before all of it is on the disk.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mooring_host::{ImageError, ImagePart, PartFormat, has_name, parts};
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
        let part = match (same, self.open.all().contains_key(&id)) {
            (true, _) => SeenPart::Whole,
            (false, true) => SeenPart::Open,
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
        let format = match image.format {
            ImageFormat::Raw => PartFormat::Raw,
            ImageFormat::Qcow2 => PartFormat::Qcow2,
        };
        let of = id.to_string();
        match self.servers.make_part((&self.folder, &of), size.0, format, &self.scratch) {
            Ok(part) => {
                self.open.all().insert(id, OpenPart { part, done: 0 });
                Ok(())
            }
            Err(error) => {
                self.clear(id);
                Err(failed(image)(error))
            }
        }
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
}
