//! SCSI disks of this machine: ioctls on a device node that was resolved and checked once.
//!
//! What must never happen here: a command that waits without an end; an answer that is shorter than
//! it says, or of another page than was asked for, passed on as identity.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{O_EXCL, O_NOFOLLOW, O_NONBLOCK};

use super::holders::Machine;
use super::{DiskError, DiskOp, Disks, Holder, Layers, Usage};
use crate::sys::{self, ScsiOutcome};

/// Time limit of an INQUIRY.
const INQUIRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of bytes to ask for first: every device takes a length that fits into one byte, and
/// nearly every page fits into this.
const FIRST_BYTES: u16 = 252;

/// Bytes of a page's header: peripheral, page code, length.
const PAGE_HEADER_BYTES: usize = 4;

/// The disks of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelDisks;

/// A block device that is open, for reading.
struct Opened {
    file: File,
    /// Path of the node, without symbolic links.
    node: PathBuf,
    /// Number of the device.
    number: u64,
}

/// Opens a block device. The path may be a symbolic link. It is resolved once, and the path leads
/// to the opened device before and after; ESTALE when it was changed meanwhile. ENOTBLK for
/// anything else than a block device, which is not opened at all.
fn open(device: &Path) -> io::Result<Opened> {
    let node = fs::canonicalize(device)?;
    let found = fs::symlink_metadata(&node)?;
    if !found.file_type().is_block_device() {
        return Err(Errno::ENOTBLK.into());
    }
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK | O_NOFOLLOW).open(&node)?;
    let number = file.metadata()?.rdev();
    if number != found.rdev() || number != fs::metadata(device)?.rdev() {
        return Err(Errno::ESTALE.into());
    }
    Ok(Opened { file, node, number })
}

/// Runs `work` on each partition of a disk, and on the disk at last: each has a page cache of its
/// own, whose pages are in no other.
fn with_parts(disk: &Opened, work: impl Fn(&File) -> Result<(), Failure>) -> Result<(), Failure> {
    let open = |node: &Path| open(node).map(|part| (part.file, part.number));
    for part in Machine::this().partitions(disk.number, &disk.node, open)? {
        work(&part)?;
    }
    work(&disk.file)
}

/// Runs `work` on an open disk.
fn with<T>(
    op: DiskOp,
    device: &Path,
    work: impl FnOnce(&Opened) -> Result<T, Failure>,
) -> Result<T, DiskError> {
    let opened = open(device).map_err(|error| Failure::from(error).at(DiskOp::Open, device))?;
    work(&opened).map_err(|failure| failure.at(op, device))
}

/// An error number and its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) errno: Errno,
    pub(super) detail: String,
}

impl Failure {
    fn io(detail: String) -> Self {
        Self { errno: Errno::EIO, detail }
    }

    fn at(self, op: DiskOp, device: &Path) -> DiskError {
        DiskError { op, path: device.to_owned(), errno: self.errno, detail: self.detail }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self { errno, detail: String::new() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw).into()
    }
}

impl Disks for KernelDisks {
    fn inquiry(&self, device: &Path, page: u8) -> Result<Vec<u8>, DiskError> {
        with(DiskOp::Inquiry(page), device, |disk| {
            read_page(page, |length| {
                let mut data = vec![0; usize::from(length)];
                let [high, low] = length.to_be_bytes();
                let outcome =
                    sys::scsi_read(&disk.file, &[0x12, 1, page, high, low, 0], &mut data, INQUIRY_TIMEOUT)?;
                if let Some(detail) = fault(&outcome) {
                    return Err(Failure::io(detail));
                }
                data.truncate(outcome.filled);
                Ok(data)
            })
        })
    }

    fn size(&self, device: &Path) -> Result<u64, DiskError> {
        with(DiskOp::Size, device, |disk| Ok(sys::block_size(&disk.file)?))
    }

    fn sequence(&self, device: &Path) -> Result<u64, DiskError> {
        with(DiskOp::Sequence, device, |disk| Ok(sys::disk_sequence(&disk.file)?))
    }

    fn set_read_only(&self, device: &Path, read_only: bool) -> Result<(), DiskError> {
        with(DiskOp::SetReadOnly, device, |disk| Ok(sys::set_read_only(&disk.file, read_only)?))
    }

    fn read_only(&self, device: &Path) -> Result<bool, DiskError> {
        with(DiskOp::GetReadOnly, device, |disk| Ok(sys::read_only(&disk.file)?))
    }

    fn flush(&self, device: &Path) -> Result<(), DiskError> {
        with(DiskOp::Flush, device, |disk| {
            with_parts(disk, |file| {
                file.sync_all()?;
                Ok(sys::flush_buffers(file)?)
            })
        })
    }

    fn drop_pages(&self, device: &Path) -> Result<(), DiskError> {
        with(DiskOp::DropPages, device, |disk| with_parts(disk, |file| Ok(sys::flush_buffers(file)?)))
    }

    fn set_read_ahead(&self, device: &Path, sectors: u32) -> Result<(), DiskError> {
        with(DiskOp::SetReadAhead, device, |disk| Ok(sys::set_read_ahead(&disk.file, sectors)?))
    }

    fn read_ahead(&self, device: &Path) -> Result<u32, DiskError> {
        with(DiskOp::GetReadAhead, device, |disk| Ok(sys::read_ahead(&disk.file)?))
    }

    fn holders(&self, device: &Path) -> Result<Vec<Holder>, DiskError> {
        with(DiskOp::Holders, device, |disk| {
            let named = Machine::this().holders(disk.number)?;
            if !named.is_empty() {
                return Ok(named.into_iter().collect());
            }
            // Tried only when no holder is known: for its moment the exclusive open would keep
            // others from mounting.
            let probe =
                OpenOptions::new().read(true).custom_flags(O_EXCL | O_NONBLOCK | O_NOFOLLOW).open(&disk.node);
            match probe {
                Ok(file) if file.metadata()?.rdev() == disk.number => Ok(Vec::new()),
                Ok(_) => Err(Errno::ESTALE.into()),
                Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(vec![Holder::Unknown]),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn usage(&self, devices: &[PathBuf]) -> Result<Usage, DiskError> {
        let first = devices.first().map_or(Path::new(""), PathBuf::as_path);
        Usage::of(&Machine::this(), devices).map_err(|failure| failure.at(DiskOp::Usage, first))
    }

    fn unwritten(&self, device: &Path) -> Result<Option<u64>, DiskError> {
        Machine::this().unwritten(device).map_err(|failure| failure.at(DiskOp::Unwritten, device))
    }
}

/// Does as [`super::layers`].
pub(super) fn layers(device: &Path) -> Result<Layers, DiskError> {
    match fs::metadata(device) {
        Ok(found) if found.file_type().is_block_device() => {
            Machine::this().layers(found.rdev()).map_err(|failure| failure.at(DiskOp::Layers, device))
        }
        Ok(_) => Err(Failure::from(Errno::ENOTBLK).at(DiskOp::Layers, device)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Layers::default()),
        Err(error) => Err(Failure::from(error).at(DiskOp::Layers, device)),
    }
}

/// Reads a page of vital product data by `inquire`, which takes a number of bytes: first the number
/// that usually suffices, then the one in the page's header. The result ends where the page does.
fn read_page(page: u8, mut inquire: impl FnMut(u16) -> Result<Vec<u8>, Failure>) -> Result<Vec<u8>, Failure> {
    let mut data = inquire(FIRST_BYTES)?;
    let length = page_length(page, &data)?;
    if length <= data.len() {
        data.truncate(length);
        return Ok(data);
    }
    let mut data = inquire(u16::try_from(length).unwrap_or(u16::MAX))?;
    let again = page_length(page, &data)?;
    if again > data.len() {
        return Err(Failure::io(format!(": the answer is cut at {} of {again} bytes", data.len())));
    }
    data.truncate(again);
    Ok(data)
}

/// Returns the whole length of the page in an answer, with its header.
fn page_length(page: u8, data: &[u8]) -> Result<usize, Failure> {
    match data.first_chunk::<PAGE_HEADER_BYTES>() {
        None => Err(Failure::io(format!(": the answer has {} bytes", data.len()))),
        Some([_, code, ..]) if *code != page => {
            Err(Failure::io(format!(": the answer is page {code:#04x}, not {page:#04x}")))
        }
        Some([_, _, high, low]) => Ok(PAGE_HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]))),
    }
}

/// Describes the failure of a command; `None` when it is GOOD.
fn fault(outcome: &ScsiOutcome) -> Option<String> {
    // The connection's trouble explains the rest.
    match outcome.host_status {
        0 => {}
        1 => return Some(": no connection to the target".to_owned()),
        3 => return Some(": no answer in time".to_owned()),
        host => return Some(format!(": host adapter status {host:#04x}")),
    }
    match outcome.status {
        0 if outcome.driver_status == 0 => None,
        0 => Some(format!(": driver status {:#04x}", outcome.driver_status)),
        0x02 => Some(match sense_of(&outcome.sense) {
            Some([key, code, qualifier]) => {
                format!(": CHECK CONDITION, sense {key:x}/{code:02x}/{qualifier:02x}")
            }
            None => ": CHECK CONDITION without sense data".to_owned(),
        }),
        0x08 => Some(": BUSY".to_owned()),
        0x18 => Some(": RESERVATION CONFLICT".to_owned()),
        0x28 => Some(": TASK SET FULL".to_owned()),
        status => Some(format!(": SCSI status {status:#04x}")),
    }
}

/// Reads sense key, additional sense code and its qualifier, of either format (SPC-4, 4.5). `None`
/// if there is no such sense data.
fn sense_of(sense: &[u8]) -> Option<[u8; 3]> {
    let byte = |at: usize| sense.get(at).copied();
    match byte(0)? & 0x7f {
        0x70 | 0x71 => Some([byte(2)? & 0x0f, byte(12)?, byte(13)?]),
        0x72 | 0x73 => Some([byte(1)? & 0x0f, byte(2)?, byte(3)?]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Makes a device that answers with this page, cut at the requested length and at `most`.
    fn device(page: Vec<u8>, most: usize) -> impl FnMut(u16) -> Result<Vec<u8>, Failure> {
        move |length| {
            let mut data = page.clone();
            data.truncate(usize::from(length).min(most));
            Ok(data)
        }
    }

    fn page(code: u8, length: u16) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        let mut data = vec![0, code, high, low];
        data.extend((0..length).map(|index| index.to_le_bytes()[0]));
        data
    }

    #[test]
    fn a_page_of_any_length_is_read_to_its_end() {
        for length in [0, 16, 247, 248, 249, 1000, u16::MAX - 4] {
            let whole = page(0x83, length);
            assert_eq!(read_page(0x83, device(whole.clone(), usize::MAX)).unwrap(), whole, "{length}");
            // Bytes behind the page are no part of it.
            let mut longer = whole.clone();
            longer.extend([0xee; 8]);
            assert_eq!(read_page(0x83, device(longer, usize::MAX)).unwrap(), whole, "{length}");
        }
    }

    #[test]
    fn what_is_short_or_another_page_is_no_identity() {
        let text = |answer: Vec<u8>, most| read_page(0x83, device(answer, most)).unwrap_err().detail;
        assert_eq!(text(vec![0, 0x83, 0], 252), ": the answer has 3 bytes");
        assert_eq!(text(Vec::new(), 252), ": the answer has 0 bytes");
        assert_eq!(text(page(0x80, 8), 252), ": the answer is page 0x80, not 0x83");
        assert_eq!(text(page(0x83, 300), 252), ": the answer is cut at 252 of 304 bytes");
        assert_eq!(text(page(0x83, 40), 20), ": the answer is cut at 20 of 44 bytes");
        assert_eq!(text(page(0x83, u16::MAX), usize::MAX), ": the answer is cut at 65535 of 65539 bytes");
        let refused = read_page(0x83, |_| Err(Errno::ENOTTY.into())).unwrap_err();
        assert_eq!(refused, Failure { errno: Errno::ENOTTY, detail: String::new() });
    }

    #[test]
    fn a_status_other_than_good_says_what_it_is() {
        let good = ScsiOutcome { filled: 0, status: 0, host_status: 0, driver_status: 0, sense: Vec::new() };
        assert_eq!(fault(&good), None);
        let fixed = [&[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0][..], &[0; 4]].concat();
        let checked = |sense: &[u8]| fault(&ScsiOutcome { status: 2, sense: sense.to_vec(), ..good.clone() });
        assert_eq!(checked(&fixed).unwrap(), ": CHECK CONDITION, sense 5/25/00");
        assert_eq!(checked(&[0x72, 6, 0x3f, 0x0e, 0, 0, 0, 0]).unwrap(), ": CHECK CONDITION, sense 6/3f/0e");
        for none in [&[][..], &[0x70, 0, 5], &[0x7f; 20]] {
            assert_eq!(checked(none).unwrap(), ": CHECK CONDITION without sense data");
        }
        let status = |status| fault(&ScsiOutcome { status, ..good.clone() }).unwrap();
        assert_eq!(
            (status(0x18), status(0x40)),
            (": RESERVATION CONFLICT".into(), ": SCSI status 0x40".into())
        );
        let host = |host_status| fault(&ScsiOutcome { host_status, status: 2, ..good.clone() }).unwrap();
        assert_eq!(
            (host(1), host(0xf)),
            (": no connection to the target".into(), ": host adapter status 0x0f".into())
        );
        assert!(fault(&ScsiOutcome { driver_status: 6, ..good }).is_some());
    }

    #[test]
    fn what_is_no_block_device_is_refused_before_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, [7; 512]).unwrap();
        // An open would wait for a writer.
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        for path in [&file, &pipe, &link, &PathBuf::from("/dev/null"), &folder.path().to_owned()] {
            let errors = [
                KernelDisks.inquiry(path, 0x83).unwrap_err(),
                KernelDisks.size(path).unwrap_err(),
                KernelDisks.sequence(path).unwrap_err(),
                KernelDisks.set_read_only(path, true).unwrap_err(),
                KernelDisks.read_only(path).unwrap_err(),
                KernelDisks.flush(path).unwrap_err(),
                KernelDisks.drop_pages(path).unwrap_err(),
                KernelDisks.set_read_ahead(path, 0).unwrap_err(),
                KernelDisks.read_ahead(path).unwrap_err(),
                KernelDisks.holders(path).unwrap_err(),
            ];
            for error in errors {
                assert_eq!((error.op, error.errno, &error.path), (DiskOp::Open, Errno::ENOTBLK, path));
            }
        }
        let dangling = folder.path().join("dangling");
        std::os::unix::fs::symlink("none", &dangling).unwrap();
        let error = KernelDisks.size(&dangling).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("open of {}: No such file or directory (ENOENT)", dangling.display())
        );
    }

    proptest! {
        #[test]
        fn no_answer_panics_and_none_is_longer_than_it_says(
            first in proptest::collection::vec(any::<u8>(), 0..300),
            second in proptest::collection::vec(any::<u8>(), 0..300),
            code in any::<u8>(),
        ) {
            let mut answers = vec![second, first];
            let read = read_page(code, |_| Ok(answers.pop().unwrap_or_default()));
            if let Ok(data) = read {
                prop_assert_eq!(data[1], code);
                prop_assert_eq!(data.len(), 4 + usize::from(u16::from_be_bytes([data[2], data[3]])));
            }
        }

        #[test]
        fn no_sense_panics(sense in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = sense_of(&sense);
        }
    }
}
