//! A program that reads images of a format, without the program: it believes the header's size and takes the disk's bytes from
//! behind the first cluster. What a real `qemu-nbd` does with other files that an image names is not here: nothing may get so far.
//!
//! What must never happen: an image served that has no header.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{ImageError, ImageFile, ImageServers, ServedImage};

/// Bytes of the first cluster: the header's.
const CLUSTER: u64 = 65536;

/// Where the header has the disk's size.
const SIZE_AT: usize = 24;

#[derive(Debug, Default)]
struct State {
    missing: bool,
    /// Reads that still succeed; `None`: all.
    reads: Option<u64>,
    served: u64,
}

/// Programs that read images. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct FakeImages(Arc<Mutex<State>>);

impl FakeImages {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A qcow2 image, as this reads it: of a disk of so many bytes, which begins with these.
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

    /// Whether the programs are not installed.
    pub fn set_missing(&self, missing: bool) {
        self.state().missing = missing;
    }

    /// The program dies after so many reads; `None`: it does not.
    pub fn dies_after(&self, reads: Option<u64>) {
        self.state().reads = reads;
    }

    /// Images that it was given to read.
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
}
