//! Images that volumes are copied from and to: regular files of one folder, which the configuration
//! names.
//!
//! A raw image is its bytes, whatever they look like. A qcow2 image is first checked here
//! ([`qcow2`]), and then read by a program in a sandbox (`mooring_host`'s `ImageServers`). The
//! sender of a spec names the format. It is never read from the file, because whoever could write
//! the file's first bytes would choose it.
//!
//! What must never happen here: a file outside of the folder; a format that was guessed; an image
//! read that another file is needed for, or that was changed while it was read.

mod part;
pub mod qcow2;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mooring_host::{ImageError, ImageFile, ImageServers, ServedImage};
use mooring_model::{ByteSize, Cure, ImageFormat, ImageSource};

pub use self::part::{OpenPart, PartId, SeenPart, SeenUpload};

/// Folder below the one of run-time state, with the sockets of programs that read images.
const SCRATCH: &str = "images";

/// Block size of disks in bytes. Zeros follow what a raw image has beyond its last whole block.
const SECTOR: u64 = 512;

/// Reason why an image cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no folder of images.
    #[error("this agent reads no images: say images_dir in its configuration")]
    NoFolder,
    /// The image cannot be opened or read.
    #[error("{image} cannot be read")]
    Image {
        /// The image.
        image: ImageSource,
        /// Cause.
        #[source]
        source: ImageError,
    },
    /// The file is no qcow2 image that is accepted.
    #[error("{image} is refused")]
    Refused {
        /// The image.
        image: ImageSource,
        /// Cause.
        #[source]
        source: qcow2::Refused,
    },
    /// The image is empty.
    #[error("{image} is empty")]
    Empty {
        /// The image.
        image: ImageSource,
    },
    /// The image's disk is larger than the volume.
    #[error("{image} has a disk of {has} ({} bytes), and the volume only {wanted}: make it larger", .has.0)]
    TooLarge {
        /// The image.
        image: ImageSource,
        /// Size of the image's disk.
        has: ByteSize,
        /// Size of the volume.
        wanted: ByteSize,
    },
    /// The program in the sandbox sees another size of the disk than the header says.
    #[error("{image} has a disk of {said} bytes by its header, and of {served} to qemu-nbd: it is damaged")]
    Differs {
        /// The image.
        image: ImageSource,
        /// Size in bytes by the header.
        said: u64,
        /// Size in bytes by the program.
        served: u64,
    },
    /// A volume cannot be copied to the file.
    #[error("{image} cannot be written")]
    Written {
        /// The image.
        image: ImageSource,
        /// Cause.
        #[source]
        source: ImageError,
    },
    /// A copy cannot resume, because nobody has begun it.
    #[error("nothing of {image} is open: it is copied again from its beginning")]
    NoPart {
        /// The image.
        image: ImageSource,
    },
    /// Partial files cannot be listed or removed.
    #[error("cannot look after parts of files in the folder of images")]
    Parts {
        /// Cause.
        #[source]
        source: ImageError,
    },
    /// Somebody has written to the image, or put another file in its place.
    #[error("{image} was changed while it was read: it is read again from its beginning")]
    Changed {
        /// The image.
        image: ImageSource,
    },
}

impl Error {
    /// Returns who can cure the failure.
    pub const fn cure(&self) -> Cure {
        match self {
            Self::Changed { .. } | Self::NoPart { .. } => Cure::Retry,
            Self::NoFolder
            | Self::Written { .. }
            | Self::Parts { .. }
            | Self::Image { .. }
            | Self::Refused { .. }
            | Self::Empty { .. }
            | Self::TooLarge { .. }
            | Self::Differs { .. } => Cure::Operator,
        }
    }
}

/// The folder of images, with the programs that read them.
#[derive(Clone)]
pub struct Images {
    folder: PathBuf,
    scratch: PathBuf,
    servers: Arc<dyn ImageServers>,
    open: part::OpenParts,
}

enum Reader {
    Raw,
    Served(Box<dyn ServedImage>),
}

/// An open image.
pub struct OpenImage {
    image: ImageSource,
    file: ImageFile,
    state: String,
    size: u64,
    reader: Reader,
}

impl Images {
    /// Makes the access to the images of this folder.
    pub fn new(folder: PathBuf, run_dir: &Path, servers: Arc<dyn ImageServers>) -> Self {
        Self { folder, scratch: run_dir.join(SCRATCH), servers, open: part::OpenParts::default() }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the program without which only raw images are read, and its package. `None` if it is
    /// installed.
    pub fn missing(&self) -> Option<(&'static str, &'static str)> {
        self.servers.missing()
    }

    fn look(&self, image: &ImageSource, most: ByteSize) -> Result<(ImageFile, String, u64), Error> {
        let failed = |source| Error::Image { image: image.clone(), source };
        let file = ImageFile::open(&self.folder, image.name.as_str()).map_err(failed)?;
        let state = file.state().map_err(failed)?;
        let bytes = file.size().map_err(failed)?;
        let size = match image.format {
            ImageFormat::Raw => bytes.next_multiple_of(SECTOR),
            ImageFormat::Qcow2 => {
                let mut header = vec![0; qcow2::HEADER_BYTES];
                file.read(0, &mut header).map_err(failed)?;
                header.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
                let refused = |source| Error::Refused { image: image.clone(), source };
                qcow2::disk_size(&header).map_err(refused)?
            }
        };
        match size {
            0 => Err(Error::Empty { image: image.clone() }),
            size if size > most.0 => {
                Err(Error::TooLarge { image: image.clone(), has: ByteSize(size), wanted: most })
            }
            size => Ok((file, state, size)),
        }
    }

    /// Opens an image whose disk has at most `most` bytes. Changes nothing.
    pub fn open(&self, image: &ImageSource, most: ByteSize) -> Result<OpenImage, Error> {
        let (file, state, size) = self.look(image, most)?;
        let reader = match image.format {
            ImageFormat::Raw => Reader::Raw,
            ImageFormat::Qcow2 => {
                let failed = |source| Error::Image { image: image.clone(), source };
                let served = self.servers.serve_qcow2(&file, &self.scratch).map_err(failed)?;
                if served.size() != size {
                    let (image, served) = (image.clone(), served.size());
                    return Err(Error::Differs { image, said: size, served });
                }
                Reader::Served(served)
            }
        };
        Ok(OpenImage { image: image.clone(), file, state, size, reader })
    }
}

impl OpenImage {
    /// Returns the identity of what is read: the file, and its state when it was opened. Letters,
    /// digits, `:`, `.` and `-`.
    pub fn identity(&self) -> String {
        format!("{}:{}", self.image.format, self.state)
    }

    /// Fills the buffer from `offset`. Behind the end of the image's disk there are zeros.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let within = left.min(buffer.len());
        let (has, none) = buffer.split_at_mut(within);
        none.fill(0);
        if has.is_empty() {
            return Ok(());
        }
        let read = match &mut self.reader {
            Reader::Raw => self.file.read(offset, has),
            Reader::Served(served) => served.read(offset, has),
        };
        read.map_err(|source| Error::Image { image: self.image.clone(), source })
    }

    /// Checks that the file is unchanged since it was opened.
    pub fn check_same(&self) -> Result<(), Error> {
        let now = self.file.state().map_err(|source| Error::Image { image: self.image.clone(), source })?;
        if now == self.state { Ok(()) } else { Err(Error::Changed { image: self.image.clone() }) }
    }
}

#[cfg(test)]
mod tests {
    use mooring_host::fake::FakeImages;
    use mooring_model::Chain;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn image(name: &str, format: ImageFormat) -> ImageSource {
        ImageSource { name: name.parse().unwrap(), format }
    }

    struct Rig {
        folder: tempfile::TempDir,
        servers: FakeImages,
    }

    impl Rig {
        fn images(&self) -> Images {
            let folder = self.folder.path().to_owned();
            Images::new(folder.clone(), &folder, Arc::new(self.servers.clone()))
        }

        fn put(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.folder.path().join(name), bytes).unwrap();
        }

        fn refusal(&self, name: &str, format: ImageFormat) -> String {
            Chain(&self.images().open(&image(name, format), ByteSize(4 * MIB)).err().unwrap()).to_string()
        }
    }

    fn rig() -> Rig {
        Rig { folder: tempfile::tempdir().unwrap(), servers: FakeImages::default() }
    }

    #[test]
    fn an_image_reads_as_its_disk_and_zeros() {
        let rig = rig();
        rig.put("a.raw", &[7; 700]);
        rig.put("a.qcow2", &FakeImages::qcow2(MIB, &[7; 700]));
        for (name, format) in [("a.raw", ImageFormat::Raw), ("a.qcow2", ImageFormat::Qcow2)] {
            let mut open = rig.images().open(&image(name, format), ByteSize(MIB)).unwrap();
            let mut buffer = [1; 1024];
            open.read(512, &mut buffer).unwrap();
            assert_eq!((buffer[..188].to_vec(), buffer[188..].to_vec()), (vec![7; 188], vec![0; 836]));
            open.read(MIB - 512, &mut buffer).unwrap();
            assert_eq!(buffer, [0; 1024]);
            open.check_same().unwrap();
            rig.put(name, b"another");
            assert!(matches!(open.check_same().unwrap_err(), Error::Changed { .. }));
        }
    }

    #[test]
    fn a_format_is_what_was_said_and_nothing_else() {
        let rig = rig();
        let bytes = FakeImages::qcow2(MIB, b"");
        rig.put("a", &bytes);
        let mut open = rig.images().open(&image("a", ImageFormat::Raw), ByteSize(MIB)).unwrap();
        let mut buffer = [0; 512];
        open.read(0, &mut buffer).unwrap();
        assert_eq!(buffer, bytes[..512], "the bytes themselves, header and all");
        rig.put("b", &[0; 512]);
        let said = rig.refusal("b", ImageFormat::Qcow2);
        assert_eq!(said, "image b (qcow2) is refused: it is no qcow2 image");
        assert_eq!(rig.servers.served(), 0, "no program has seen it");
    }

    #[test]
    fn bad_images_are_refused_before_a_program_sees_them() {
        let rig = rig();
        let mut backed = FakeImages::qcow2(MIB, b"");
        backed[15] = 112;
        backed[19] = 11;
        backed[112..123].copy_from_slice(b"/etc/shadow");
        let mut elsewhere = FakeImages::qcow2(MIB, b"");
        elsewhere[79] = 4;
        rig.put("backed", &backed);
        rig.put("elsewhere", &elsewhere);
        rig.put("large", &FakeImages::qcow2(5 * MIB, b""));
        rig.put("void", &FakeImages::qcow2(0, b""));
        rig.put("long", &vec![0; 4 << 20 | 1]);
        rig.put("empty", b"");
        std::os::unix::fs::symlink("large", rig.folder.path().join("link")).unwrap();
        let (raw, qcow2) = (ImageFormat::Raw, ImageFormat::Qcow2);
        for (name, format, why) in [
            ("backed", qcow2, "has a backing file"),
            ("elsewhere", qcow2, "its data lies in another file"),
            (
                "large",
                qcow2,
                "has a disk of 5 MiB (5242880 bytes), and the volume only 4 MiB: make it larger",
            ),
            ("void", qcow2, "is empty"),
            ("long", raw, "(4194816 bytes), and the volume only 4 MiB"),
            ("empty", raw, "is empty"),
            ("none", raw, "none is not there"),
            ("link", raw, "is not a regular file"),
            ("link", qcow2, "is not a regular file"),
        ] {
            let said = rig.refusal(name, format);
            assert!(said.contains(why), "{name}: {said}");
        }
        assert_eq!(rig.servers.served(), 0);
        rig.servers.set_missing(true);
        rig.put("good", &FakeImages::qcow2(MIB, b""));
        let said = rig.refusal("good", qcow2);
        assert!(
            said.ends_with("/usr/bin/qemu-nbd is not installed: install the package qemu-utils"),
            "{said}"
        );
    }
}
