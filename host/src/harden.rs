//! Protects a process that disks depend on. While it is needed to bring a disk back, the kernel
//! must neither swap it out, nor kill it for memory, nor make it wait for a write to that very
//! disk.
//!
//! What must never happen here: a protection that is missing without a word; a daemon that does not
//! start because of one.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::sys;

/// Number of descriptors that the process may have open: a socket and some files for each of
/// thousands of sessions.
const DESCRIPTORS: u64 = 65_536;

/// File of this process's rank among those that the kernel kills for memory.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Rank of a process that is never killed for memory (OOM_SCORE_ADJ_MIN).
const NEVER_KILLED: &str = "-1000";

/// A protection that this process does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot {what}: {} ({errno:?})", .errno.desc())]
pub struct HardenWarning {
    /// Protection that failed.
    pub what: &'static str,
    /// The kernel's answer. EPERM and ENOMEM: a capability (CAP_IPC_LOCK, CAP_SYS_RESOURCE) or a
    /// limit is missing.
    pub errno: Errno,
}

/// Takes every protection and returns those that were refused. Call it once, at the start, before
/// threads are made: memory that is mapped later is locked too, so give threads small stacks.
#[must_use = "what is not protected has to be said"]
pub fn harden() -> Vec<HardenWarning> {
    let lock = || mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE);
    let steps: [(&'static str, Result<(), Errno>); 4] = [
        ("allow enough open files (RLIMIT_NOFILE)", raise_descriptors(DESCRIPTORS)),
        ("keep this process from being killed for memory (oom_score_adj -1000)", spare(Path::new(OOM_SCORE))),
        (
            "keep its memory requests from waiting for writes to disks (PR_SET_IO_FLUSHER)",
            sys::set_io_flusher(),
        ),
        ("lock its memory (mlockall)", lock()),
    ];
    steps
        .into_iter()
        .filter_map(|(what, done)| done.err().map(|errno| HardenWarning { what, errno }))
        .collect()
}

fn spare(file: &Path) -> Result<(), Errno> {
    let failed = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    // A missing file is not made.
    let mut file = fs::OpenOptions::new().write(true).open(file).map_err(failed)?;
    file.write_all(NEVER_KILLED.as_bytes()).map_err(failed)
}

/// Raises the soft limit, and the hard one if it is lower. Never lowers either.
fn raise_descriptors(wanted: u64) -> Result<(), Errno> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_protection_says_which_and_why() {
        let warning = HardenWarning { what: "lock its memory (mlockall)", errno: Errno::EPERM };
        assert_eq!(warning.to_string(), "cannot lock its memory (mlockall): Operation not permitted (EPERM)");
        assert_eq!(spare(Path::new("/proc/self/no-such-file")), Err(Errno::ENOENT));
        let file = tempfile::NamedTempFile::new().unwrap();
        spare(file.path()).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), b"-1000");
    }

    #[test]
    fn the_limit_of_descriptors_is_never_lowered() {
        let before = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        raise_descriptors(1).unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), before);
    }
}
