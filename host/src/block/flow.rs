//! Follows a block device and tells again and again if it answers: the number of commands in
//! flight, and the number of those that ended. All of it comes from sysfs, which asks no disk. The
//! files stay open, because finding one costs several times as much as reading it.
//!
//! What must never happen here: a wait for the device.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{BlockError, failed, sysfs};

/// Bytes that each of these files has at most, and more: two numbers, or one digit.
const SHORT: usize = 128;

/// Indexes of the numbers in `stat` that count ended operations: reads, writes, discards and
/// flushes (the kernel's Documentation/block/stat.rst; bio-based devices count an operation when it
/// ends since 6.1.16).
const ENDED: [usize; 4] = [0, 4, 11, 15];

/// Activity of a block device at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// No command is in flight.
    Idle,
    /// Commands are in flight.
    Busy {
        /// Number that moves whenever a command ends.
        ended: u64,
    },
    /// Device-mapper holds back all commands (`dmsetup suspend`), and does not count them as in
    /// flight.
    Suspended,
}

/// A block device that is followed. It is the device that was behind its path at the beginning:
/// when that is gone, each look is an error.
pub trait Followed: Send {
    /// Reads the present activity. Asks no disk.
    fn flow(&self) -> Result<Flow, BlockError>;
}

/// A block device of this machine.
#[derive(Debug)]
struct KernelFollowed {
    path: PathBuf,
    in_flight: File,
    /// File of `dm/suspended`. `None`: device-mapper has not made the device.
    suspended: Option<File>,
    /// Path of `stat`, which is read only while commands are in flight.
    stat: PathBuf,
}

/// Follows the device behind this node.
pub(crate) fn follow(path: &Path) -> Result<Box<dyn Followed>, BlockError> {
    let open = || {
        let folder = sysfs(path)?;
        let suspended = match File::open(folder.join("dm/suspended")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened?),
        };
        let in_flight = File::open(folder.join("inflight"))?;
        let stat = folder.join("stat");
        io::Result::Ok(KernelFollowed { path: path.to_owned(), in_flight, suspended, stat })
    };
    let followed = open().map_err(|error| failed("follow", path, &error))?;
    Ok(Box::new(followed))
}

/// Adds up the numbers of a short file.
fn sum(file: &File) -> io::Result<u64> {
    let mut text = [0; SHORT];
    let length = file.read_at(&mut text, 0)?;
    let text = std::str::from_utf8(&text[..length]).map_err(io::Error::other)?;
    text.split_whitespace().map(|number| number.parse::<u64>().map_err(io::Error::other)).sum()
}

/// Counts the ended operations in the text of `stat`.
fn ended(text: &str) -> Option<u64> {
    let numbers: Vec<u64> = text.split_whitespace().map_while(|number| number.parse().ok()).collect();
    // Older kernels lack discards and flushes.
    let all = ENDED.iter().filter_map(|at| numbers.get(*at)).fold(0, |all, one| one.wrapping_add(all));
    numbers.get(ENDED[1]).map(|_| all)
}

impl Followed for KernelFollowed {
    fn flow(&self) -> Result<Flow, BlockError> {
        let look = || {
            if let Some(suspended) = &self.suspended
                && sum(suspended)? > 0
            {
                return Ok(Flow::Suspended);
            }
            if sum(&self.in_flight)? == 0 {
                return Ok(Flow::Idle);
            }
            let text = std::fs::read_to_string(&self.stat)?;
            Ok(Flow::Busy { ended: ended(&text).ok_or(Errno::EIO)? })
        };
        look().map_err(|error: io::Error| failed("look at the flow of", &self.path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_counted_of_each_kind() {
        let whole = "  10 0 80 5  20 0 160 9  3 40 14  1 0 8 2  7 4\n";
        assert_eq!(ended(whole), Some(10 + 20 + 1 + 7));
        assert_eq!(ended("10 0 80 5 20 0 160 9 3 40 14"), Some(30), "a kernel without the newer ones");
        assert_eq!((ended(""), ended("10 0 80")), (None, None));
    }

    #[test]
    fn a_short_file_is_read_anew_each_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = File::open(file.path()).unwrap();
        for (text, all) in [("       2        5\n", 7), ("0\n", 0), ("       0        0\n", 0)] {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(sum(&open).unwrap(), all, "{text}");
        }
        std::fs::write(file.path(), "word").unwrap();
        assert!(sum(&open).is_err());
    }

    #[test]
    fn what_is_no_block_device_is_not_followed() {
        let errno = |path: &str| follow(Path::new(path)).err().map(|error| error.errno);
        assert_eq!(errno("/dev/no-such-device"), Some(Errno::ENOENT));
        assert_eq!(errno("/dev/null"), Some(Errno::ENOTBLK));
    }
}
