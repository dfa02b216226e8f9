//! Block devices: size, zeroing, discarding, reading and writing of whole pieces, discard support,
//! and the facts that device-mapper has of them.
//!
//! What must never happen: zeros, data or a discard on a device that something else holds (a LUN, a
//! mount): all three open it exclusively.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::{O_DIRECT, O_EXCL};
use nix::sys::stat::{major, minor};

use crate::sys;

mod flow;

pub use flow::{Flow, Followed};

/// Bytes of a sector, the unit of sizes in sysfs.
const SECTOR: u64 = 512;

/// Alignment in bytes of direct transfers: on every disk their length and place may be multiples of
/// this.
const PAGE: usize = 4096;

/// An operation on a block device that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} {}: {} ({errno:?})", .path.display(), .errno.desc())]
pub struct BlockError {
    /// Operation that failed.
    pub op: &'static str,
    /// Path of the device node.
    pub path: PathBuf,
    /// The kernel's answer.
    pub errno: Errno,
}

/// Facts that sysfs has of a device made by device-mapper (`/sys/block/dm-N`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// `dm/uuid`, as the maker of the device has set it. LVM's are `LVM-`, the group's uuid and the
    /// LV's, both without dashes; nothing but the LV's own device has exactly that.
    pub uuid: String,
    /// Size in bytes.
    pub size: u64,
    /// `dm/suspended`: commands to the device wait, because its table is being exchanged.
    pub suspended: bool,
}

/// Works on block devices.
pub trait BlockDevices: Send + Sync {
    /// Reads the device's size in bytes; `None` when there is no such node.
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError>;
    /// Returns `true` if the device takes discards (`queue/discard_max_bytes` is above 0). `false`
    /// also when there is no such node.
    fn discards(&self, path: &Path) -> Result<bool, BlockError>;
    /// Reads device-mapper's facts of the device behind this node, from sysfs alone: nothing is
    /// opened, and no disk is asked. `None` when there is no such node, or device-mapper has not
    /// made its device.
    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError>;
    /// Follows the commands in flight of the device behind this node. ENOENT when there is no such
    /// node.
    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError>;
    /// Makes `length` bytes from `offset` read as zeros, durably (`BLKZEROOUT`, which may offload
    /// to the disk, then a flush). Both are multiples of the logical block size (512 at least),
    /// else EINVAL; EBUSY when something holds the device exclusively: a LUN, a mount,
    /// device-mapper. Nothing is done for a length of 0.
    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError>;
    /// Tells the disk that nobody needs `length` bytes from `offset` any more (`BLKDISCARD`).
    /// **They may read as anything afterwards**, also as their old contents: a disk may do nothing,
    /// and round to its own units. EOPNOTSUPP when the device takes no discards
    /// (`queue/discard_max_bytes` is 0); otherwise fails as [`zero`](Self::zero) does.
    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError>;
    /// Writes these bytes from `offset`, durably. Opens the device exclusively, and fails as
    /// [`zero`](Self::zero) does; beyond the end ENOSPC.
    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError>;
    /// Makes all earlier writes to the disks below this device outlive a power cut (`fsync`, which
    /// makes the disk flush its own cache). That includes LVM's metadata, which LVM writes past the
    /// kernel's cache and does not flush. Nothing is held exclusively. ENOENT when there is no such
    /// node.
    fn flush(&self, path: &Path) -> Result<(), BlockError>;
    /// Fills `buffer` with the disk's bytes from `offset`, past the kernel's cache: LIO writes past
    /// that, too, so the pages of an earlier read may be old. The range must lie within the device,
    /// whose size is whole pages (as every LV's), else EIO.
    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError>;

    /// Has each write to the disks below volume groups told here. `false`: somebody has to watch
    /// the disks. Only a simulation tells them, because a thread that watches lives in real time.
    fn tell_writes(&self, _to: Box<dyn Fn() + Send + Sync>) -> bool {
        false
    }
}

/// The block devices of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelBlocks;

/// Opens a block device; anything else at that path is ENOTBLK.
fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    if !std::fs::metadata(path)?.file_type().is_block_device() {
        return Err(Errno::ENOTBLK.into());
    }
    options.open(path)
}

impl BlockDevices for KernelBlocks {
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError> {
        match open(path, OpenOptions::new().read(true)).and_then(|file| Ok(sys::block_size(&file)?)) {
            Ok(size) => Ok(Some(size)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("size of", path, &error)),
        }
    }

    fn discards(&self, path: &Path) -> Result<bool, BlockError> {
        let discards = || io::Result::Ok(read(&sysfs(path)?.join("queue/discard_max_bytes"))? != "0");
        match discards() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            answer => answer.map_err(|error| failed("look for discards of", path, &error)),
        }
    }

    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError> {
        let mapped = || {
            let folder = sysfs(path)?;
            let uuid = read(&folder.join("dm/uuid"))?;
            let suspended = read(&folder.join("dm/suspended"))? != "0";
            // This number counts units of 512 bytes, whatever the device's own blocks are.
            let sectors: u64 = read(&folder.join("size"))?.parse().map_err(|_| Errno::EIO)?;
            let size = sectors.checked_mul(SECTOR).ok_or(Errno::EIO)?;
            io::Result::Ok(Mapped { uuid, size, suspended })
        };
        match mapped() {
            Ok(mapped) => Ok(Some(mapped)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("look what device-mapper says of", path, &error)),
        }
    }

    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError> {
        flow::follow(path)
    }

    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        let zero = || -> io::Result<()> {
            let file = open(path, OpenOptions::new().write(true).custom_flags(O_EXCL))?;
            if length > 0 {
                sys::zero_out(&file, offset, length)?;
                file.sync_all()?;
            }
            Ok(())
        };
        zero().map_err(|error| failed("zero", path, &error))
    }

    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        let discard = || -> io::Result<()> {
            let file = open(path, OpenOptions::new().write(true).custom_flags(O_EXCL))?;
            if length > 0 {
                sys::discard(&file, offset, length)?;
            }
            Ok(())
        };
        discard().map_err(|error| failed("discard", path, &error))
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        let write = || -> io::Result<()> {
            let file = open(path, OpenOptions::new().write(true).custom_flags(O_EXCL))?;
            file.write_all_at(bytes, offset)?;
            file.sync_all()
        };
        write().map_err(|error| failed("write", path, &error))
    }

    fn flush(&self, path: &Path) -> Result<(), BlockError> {
        let flush = || open(path, OpenOptions::new().read(true))?.sync_all();
        flush().map_err(|error| failed("flush", path, &error))
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError> {
        let mut read = || {
            let file = open(path, OpenOptions::new().read(true).custom_flags(O_DIRECT))?;
            read_direct(&file, offset, buffer)
        };
        read().map_err(|error| failed("read", path, &error))
    }
}

/// Finds the folder in sysfs of the block device behind this node.
pub(crate) fn sysfs(path: &Path) -> io::Result<PathBuf> {
    let meta = std::fs::metadata(path)?;
    if !meta.file_type().is_block_device() {
        return Err(Errno::ENOTBLK.into());
    }
    let number = meta.rdev();
    Ok(PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number))))
}

/// Reads one line of sysfs.
fn read(path: &Path) -> io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim_end().to_owned())
}

/// Reads whole pages into whole pages, as `O_DIRECT` requires on every disk, and copies the
/// requested bytes.
fn read_direct(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    let lead = usize::try_from(offset % PAGE as u64).unwrap_or(0);
    let length = (lead + buffer.len()).next_multiple_of(PAGE);
    let mut room = vec![0; length + PAGE];
    let begin = room.as_ptr().align_offset(PAGE);
    let pages = room.get_mut(begin..).and_then(|room| room.get_mut(..length)).ok_or(Errno::ENOMEM)?;
    file.read_exact_at(pages, offset - lead as u64)?;
    buffer.copy_from_slice(&pages[lead..lead + buffer.len()]);
    Ok(())
}

pub(crate) fn failed(op: &'static str, path: &Path, error: &io::Error) -> BlockError {
    let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    BlockError { op, path: path.to_owned(), errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_has_no_size_and_cannot_be_wiped() {
        let path = Path::new("/dev/no-such-device");
        assert_eq!((KernelBlocks.size(path).unwrap(), KernelBlocks.discards(path).unwrap()), (None, false));
        assert_eq!(KernelBlocks.mapped(path).unwrap(), None);
        let error = KernelBlocks.zero(path, 0, 512).unwrap_err();
        assert_eq!(error.errno, Errno::ENOENT);
        assert_eq!(error.to_string(), "zero /dev/no-such-device: No such file or directory (ENOENT)");
        let error = KernelBlocks.discard(path, 0, 512).unwrap_err();
        assert_eq!(error.to_string(), "discard /dev/no-such-device: No such file or directory (ENOENT)");
    }

    #[test]
    fn a_file_or_a_character_device_is_refused_and_untouched() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 4096]).unwrap();
        for path in [file.path(), Path::new("/dev/null"), Path::new("/tmp")] {
            assert_eq!(KernelBlocks.size(path).unwrap_err().errno, Errno::ENOTBLK);
            assert_eq!(KernelBlocks.discards(path).unwrap_err().errno, Errno::ENOTBLK);
            assert_eq!(KernelBlocks.mapped(path).unwrap_err().errno, Errno::ENOTBLK);
            assert_eq!(KernelBlocks.zero(path, 0, 512).unwrap_err().errno, Errno::ENOTBLK);
            assert_eq!(KernelBlocks.discard(path, 0, 512).unwrap_err().errno, Errno::ENOTBLK);
            assert_eq!(KernelBlocks.write(path, 0, &[1; 512]).unwrap_err().errno, Errno::ENOTBLK);
            assert_eq!(KernelBlocks.read(path, 0, &mut [1; 512]).unwrap_err().errno, Errno::ENOTBLK);
        }
        assert_eq!(std::fs::read(file.path()).unwrap(), [7; 4096]);
    }

    #[test]
    fn any_piece_is_read_in_whole_pages() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("disk");
        let all: Vec<u8> = (0..16384_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        std::fs::write(&path, &all).unwrap();
        for flags in [0, O_DIRECT] {
            // A file system without direct reads shows half of the behaviour.
            let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else { continue };
            for (offset, length) in [(0, 4096), (0, 16384), (512, 512), (4095, 2), (5000, 9000), (16383, 1)] {
                let mut piece = vec![0; length];
                read_direct(&file, offset, &mut piece).unwrap();
                let at = usize::try_from(offset).unwrap();
                assert!(piece == all[at..at + length], "{length} bytes at {offset}");
            }
            assert!(read_direct(&file, 12288, &mut [0; 4097]).is_err(), "beyond the end");
        }
    }
}
