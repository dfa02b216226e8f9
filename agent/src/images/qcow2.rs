//! Header of a qcow2 image (QEMU's docs/interop/qcow2.txt): reads the size of its disk, and checks
//! that it needs no other file.
//!
//! An image can name other files: a backing file, which provides all that the image lacks, and a
//! data file, which holds its blocks. Whoever reads such an image reads these files, by its maker's
//! choice: any file of the storage node (CVE-2024-32498, and those before it). They are refused
//! here before any program sees the image. The program is told not to follow them, and finds
//! nothing where it runs.
//!
//! What must never happen here: an image accepted that names another file, or has a feature that is
//! not known here.

/// Bytes of the file that are examined: the smallest cluster holds the header and all of its
/// extensions.
pub const HEADER_BYTES: usize = 65536;

const MAGIC: &[u8] = b"QFI\xfb";

/// Lengths of the header in bytes, by version.
const V2_BYTES: usize = 72;
const V3_BYTES: usize = 104;

/// Incompatible features, by their bits.
const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// Extensions of the header.
const END: u32 = 0;
const DATA_FILE_NAME: u32 = 0x4441_5441;
const CRYPTO: u32 = 0x0537_be77;

/// Reason why an image is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The file does not begin as a qcow2 image.
    #[error("it is no qcow2 image")]
    NotQcow2,
    /// The version is the first, or a future one.
    #[error(
        "it is of version {0} of qcow2, and only 2 and 3 are read: convert it (qemu-img convert -O qcow2)"
    )]
    Version(u32),
    /// The header contradicts itself.
    #[error("its header is damaged: {0}")]
    Damaged(&'static str),
    /// The image lacks blocks that come from another file.
    #[error("it has a backing file: make it whole first, where you trust it (qemu-img convert -O qcow2)")]
    Backing,
    /// The image's blocks lie in another file.
    #[error(
        "its data lies in another file: make it whole first, where you trust it (qemu-img convert -O qcow2)"
    )]
    DataFile,
    /// The image is encrypted.
    #[error("it is encrypted: there is no key here; decrypt it first (qemu-img convert)")]
    Encrypted,
    /// The image was not closed, or is known to be damaged.
    #[error(
        "it was not closed as it should be, or is marked as damaged: repair it first (qemu-img check -r all)"
    )]
    Unclean,
    /// The image has features that are not known here.
    #[error(
        "it has features that this release does not know (bits {0:#x}): convert it (qemu-img convert -O qcow2)"
    )]
    Features(u64),
}

fn u32_at(header: &[u8], at: usize) -> Result<u32, Refused> {
    let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_be_bytes).ok_or(Refused::Damaged("it is cut off"))
}

fn u64_at(header: &[u8], at: usize) -> Result<u64, Refused> {
    Ok(u64::from(u32_at(header, at)?) << 32 | u64::from(u32_at(header, at + 4)?))
}

/// Returns the bytes of the image's disk, if all of it is in this file. `header` is the file's
/// beginning, [`HEADER_BYTES`] or all of it.
pub fn disk_size(header: &[u8]) -> Result<u64, Refused> {
    if !header.starts_with(MAGIC) {
        return Err(Refused::NotQcow2);
    }
    let version = u32_at(header, 4)?;
    if !(2..=3).contains(&version) {
        return Err(Refused::Version(version));
    }
    if u64_at(header, 8)? != 0 || u32_at(header, 16)? != 0 {
        return Err(Refused::Backing);
    }
    if u32_at(header, 32)? != 0 {
        return Err(Refused::Encrypted);
    }
    let cluster_bits = u32_at(header, 20)?;
    if !(9..=21).contains(&cluster_bits) {
        return Err(Refused::Damaged("its clusters have a size that none have"));
    }
    let mut length = V2_BYTES;
    if version == 3 {
        length = usize::try_from(u32_at(header, 100)?).unwrap_or(usize::MAX);
        if !(V3_BYTES..=HEADER_BYTES).contains(&length) || !length.is_multiple_of(8) {
            return Err(Refused::Damaged("it has a length that none has"));
        }
        features(u64_at(header, 72)?)?;
    }
    extensions(header, length, 1 << cluster_bits)?;
    u64_at(header, 24)
}

fn features(bits: u64) -> Result<(), Refused> {
    if bits & DATA_FILE != 0 {
        return Err(Refused::DataFile);
    }
    if bits & (DIRTY | CORRUPT) != 0 {
        return Err(Refused::Unclean);
    }
    match bits & !(COMPRESSION | EXTENDED_L2) {
        0 => Ok(()),
        unknown => Err(Refused::Features(unknown)),
    }
}

/// Checks what follows the header, to the end of its cluster or of what is examined.
fn extensions(header: &[u8], mut at: usize, cluster: usize) -> Result<(), Refused> {
    let header = &header[..header.len().min(cluster)];
    while at + 8 <= header.len() {
        let length = usize::try_from(u32_at(header, at + 4)?).unwrap_or(usize::MAX);
        match u32_at(header, at)? {
            END => return Ok(()),
            DATA_FILE_NAME => return Err(Refused::DataFile),
            CRYPTO => return Err(Refused::Encrypted),
            _ => {}
        }
        let padded = length.checked_next_multiple_of(8).filter(|padded| *padded <= cluster);
        at += 8 + padded.ok_or(Refused::Damaged("an extension is longer than its cluster"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mooring_host::fake::FakeImages;
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 30;

    fn good() -> Vec<u8> {
        FakeImages::qcow2(SIZE, b"")
    }

    fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut image = good();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image
    }

    fn version_2() -> Vec<u8> {
        let mut image = with(4, &2_u32.to_be_bytes());
        image[72..104].fill(0);
        image
    }

    #[test]
    fn a_whole_image_says_its_size() {
        for image in [good(), version_2(), with(79, &[8]), with(79, &[16])] {
            assert_eq!(disk_size(&image), Ok(SIZE));
        }
        // A feature name table, as qemu-img writes it.
        let mut named = good();
        named[104..112].copy_from_slice(&[0x68, 0x03, 0xf8, 0x57, 0, 0, 0, 48]);
        assert_eq!(disk_size(&named), Ok(SIZE));
    }

    #[test]
    fn an_image_that_is_not_whole_in_itself_is_refused() {
        let name = |mut image: Vec<u8>, at: usize, kind: u32| {
            image[at..at + 4].copy_from_slice(&kind.to_be_bytes());
            image[at + 4..at + 8].copy_from_slice(&11_u32.to_be_bytes());
            image[at + 8..at + 19].copy_from_slice(b"/etc/shadow");
            image
        };
        let mut behind = name(good(), 128, DATA_FILE_NAME);
        behind[104..112].copy_from_slice(&[0x68, 0x03, 0xf8, 0x57, 0, 0, 0, 10]);
        for (image, why) in [
            (with(15, &[112]), Refused::Backing),
            // A name without a place, or a place without a name.
            (with(19, &[11]), Refused::Backing),
            (with(8, &[1]), Refused::Backing),
            (with(79, &[4]), Refused::DataFile),
            // The image is refused even if the feature's bit was removed.
            (name(good(), 104, DATA_FILE_NAME), Refused::DataFile),
            (name(version_2(), 72, DATA_FILE_NAME), Refused::DataFile),
            (behind, Refused::DataFile),
            (with(35, &[2]), Refused::Encrypted),
            (name(good(), 104, CRYPTO), Refused::Encrypted),
            (with(79, &[1]), Refused::Unclean),
            (with(79, &[2]), Refused::Unclean),
            (with(79, &[32]), Refused::Features(32)),
            (with(72, &[1]), Refused::Features(1 << 56)),
            (with(7, &[1]), Refused::Version(1)),
            (with(7, &[4]), Refused::Version(4)),
            (with(0, b"R"), Refused::NotQcow2),
            (with(23, &[8]), Refused::Damaged("its clusters have a size that none have")),
            (with(23, &[22]), Refused::Damaged("its clusters have a size that none have")),
            (with(103, &[72]), Refused::Damaged("it has a length that none has")),
            (with(100, &[1]), Refused::Damaged("it has a length that none has")),
            (
                with(104, &[1, 1, 1, 1, 0, 1, 0, 1]),
                Refused::Damaged("an extension is longer than its cluster"),
            ),
        ] {
            assert_eq!(disk_size(&image), Err(why));
        }
        for short in [&b""[..], b"QFI", b"QFI\xfb", &good()[..100]] {
            assert!(disk_size(short).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_no_named_file_passes(
            changes in prop::collection::vec((0_usize..256, any::<u8>()), 0..24),
            length in 0_usize..512,
        ) {
            let mut image = good();
            for (at, byte) in changes {
                image[at] = byte;
            }
            image.truncate(length.max(8));
            if disk_size(&image).is_ok() {
                prop_assert!(image[8..20].iter().all(|byte| *byte == 0), "a backing file");
                prop_assert!(image[7] == 2 || image[79] & 4 == 0, "a data file");
            }
        }
    }
}
