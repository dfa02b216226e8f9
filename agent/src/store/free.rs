//! Frees the locks that a killed agent still holds on its store.
//!
//! SQLite's locks are locks on files. The kernel releases them with the process's table of files,
//! which a thread that hangs in the kernel keeps. Locks of readers of the database are in nobody's
//! way. Locks on the log are: of a change that was being made, a checkpoint, a read. They are on
//! bytes of the log's index (SQLite's WAL format, 2.3.1). The index holds nothing that is not in
//! the log, so a new index frees them all.
//!
//! What must never happen here: an index that is taken from under a program that lives.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::{FILE_NAME, StoreError};

/// Offset of the first lock on the log. The next constant counts them: to write, to checkpoint, to
/// recover, five to read.
const LOCKS_AT: i64 = 120;
const LOCKS: i64 = 8;

/// Removes the locks that a process holds on the log of the store in this folder. Returns `true` if
/// there were any.
///
/// The caller holds the folder's lock, has not opened the store yet, and knows that no thread of
/// the process will ever run again.
///
/// # Errors
/// The index cannot be opened, queried or removed.
pub fn free(folder: &Path, pid: u32) -> Result<bool, StoreError> {
    let path = folder.join(format!("{FILE_NAME}-shm"));
    let look = |source| StoreError::Look { path: path.clone(), source };
    let index = match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(index) => index,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(look(error)),
    };
    // An exclusive lock conflicts with any of the process's locks.
    let mut lock = exclusive(LOCKS);
    let _answered = fcntl(&index, FcntlArg::F_GETLK(&mut lock)).map_err(|errno| look(errno.into()))?;
    let held = i32::from(lock.l_type) != libc::F_UNLCK;
    if !held || u32::try_from(lock.l_pid) != Ok(pid) {
        return Ok(false);
    }
    std::fs::remove_file(&path).map_err(look)?;
    Ok(true)
}

/// Returns an exclusive lock on the first `count` of the lock bytes.
#[expect(clippy::cast_possible_truncation, reason = "the kernel's numbers are 0 and 1")]
fn exclusive(count: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: LOCKS_AT,
        l_len: count,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use mooring_model::ClusterId;

    use super::*;
    use crate::store::Store;

    const FOLDER: &str = "MOORING_TEST_FOLDER";
    const ROLE: &str = "MOORING_TEST_ROLE";

    fn cluster(last: char) -> ClusterId {
        format!("00000000-0000-4000-8000-00000000000{last}").parse().unwrap()
    }

    /// Starts another process, which runs this role.
    fn other(role: &str, folder: &Path) -> Child {
        let name = "store::free::tests::what_a_dead_writer_holds_is_let_go_of";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name]).env(ROLE, role).env(FOLDER, folder).spawn().unwrap()
    }

    /// Makes a store, and stays in the middle of a change until it is killed.
    fn write(folder: &Path) {
        let store = Store::open(folder).unwrap();
        store.pin(cluster('c')).unwrap();
        let index = folder.join(format!("{FILE_NAME}-shm"));
        let index = OpenOptions::new().read(true).write(true).open(index).unwrap();
        let _set = fcntl(&index, FcntlArg::F_SETLK(&exclusive(1))).unwrap();
        std::fs::write(folder.join("held"), "").unwrap();
        std::thread::sleep(Duration::from_mins(1));
    }

    fn is_refused(folder: &Path) {
        let refused = Store::open(folder).and_then(|store| store.pin_by_operator(cluster('d')));
        assert!(matches!(refused, Err(StoreError::Busy { .. })), "{refused:?}");
    }

    #[test]
    fn what_a_dead_writer_holds_is_let_go_of() {
        if let (Some(folder), Ok(role)) = (std::env::var_os(FOLDER), std::env::var(ROLE)) {
            let folder = Path::new(&folder);
            return if role == "write" { write(folder) } else { is_refused(folder) };
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert!(!free(folder, 1).unwrap(), "there is no store");
        let mut writer = other("write", folder);
        let begun = Instant::now();
        while !folder.join("held").exists() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it never held the lock");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(other("be refused", folder).wait().unwrap().success(), "the control");
        assert!(!free(folder, std::process::id()).unwrap(), "it is another's");
        assert!(folder.join(format!("{FILE_NAME}-shm")).exists());
        assert!(free(folder, writer.id()).unwrap());
        let store = Store::open(folder).unwrap();
        assert_eq!(store.cluster().unwrap(), Some(cluster('c')), "what was kept is there");
        store.pin_by_operator(cluster('d')).unwrap();
        writer.kill().unwrap();
        assert!(!writer.wait().unwrap().success());
    }
}
