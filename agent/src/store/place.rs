//! Tells whether the store's file system is writable.
//!
//! What must never happen here: a read-only file system that is taken for a writable one because a
//! file on it is open. (One that the kernel makes read-only under open files may still take what
//! overwrites a file there, into its cache.)

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

/// Returns the mount point of the file system that has this path, or would have it, if it is
/// read-only.
///
/// `None` if it is writable, or cannot be examined: then a write shows it.
pub(crate) fn read_only(path: &Path) -> Option<PathBuf> {
    // Called each second, as a rule with a path that exists.
    let (there, found) = path.ancestors().find_map(|part| Some((part, statvfs(part).ok()?)))?;
    found.flags().contains(FsFlags::ST_RDONLY).then(|| mount_of(there))
}

/// Returns the mount point of the file system that holds this path.
fn mount_of(path: &Path) -> PathBuf {
    let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let device = |part: &Path| fs::metadata(part).map(|found| found.dev()).ok();
    let own = device(&whole);
    let same = whole.ancestors().take_while(|part| device(part) == own).last();
    same.unwrap_or(&whole).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_known_by_where_it_is_mounted() {
        assert_eq!(mount_of(Path::new("/proc/self/status")), Path::new("/proc"));
        assert_eq!(mount_of(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn writable_and_missing_paths_are_not_read_only() {
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("file"), "x").unwrap();
        for path in ["", "file", "not/there/yet"] {
            assert_eq!(read_only(&top.path().join(path)), None, "{path}");
        }
    }
}
