//! A daemon's files in its state folder: their names are durable, and no other user can read them.
//!
//! What must never happen here: an open file that is used after its path leads to another one; a
//! file with secrets that others can read, even for a moment; a changed permission of a folder that
//! an operator made.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A state folder that is unfit. Both faults are the operator's to fix.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder cannot be made or used.
    #[error(
        "cannot use the state folder {}: it must be a folder that this daemon's user may write to", .path.display()
    )]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Other users could replace our file.
    #[error("others may write to the state folder {} (mode {mode:04o}): run chmod go-w on it", .path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// The folder's permissions.
        mode: u32,
    },
}

/// Makes the folder (0700) and an empty file in it (0600) if they are missing, and makes their
/// names durable.
pub fn private_file(dir: &Path, name: &str) -> Result<PathBuf, FolderError> {
    let unusable = |source: io::Error| FolderError::Unusable { path: dir.to_owned(), source };
    if !dir.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unusable)?;
        if let Some(parent) = dir.parent() {
            fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(unusable)?;
        }
    }
    // A folder that an operator made is not changed: it may be shared on purpose, and the files
    // protect themselves. But a user with write access to it could replace our file.
    let mode = fs::metadata(dir).map_err(unusable)?.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(FolderError::Exposed { path: dir.to_owned(), mode });
    }
    let path = dir.join(name);
    let file = fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map_err(unusable)?;
    file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(unusable)?;
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(unusable)?;
    Ok(path)
}

/// Permissions and owner of a file that is written as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Permissions.
    pub mode: u32,
    /// User and group; `None`: those of the writer.
    pub owner: Option<(u32, u32)>,
}

/// Writes a new file, whole and durable, or not at all. Returns `false`, and changes nothing, if
/// the name is taken.
pub fn write_new(path: &Path, text: &str, kept: Kept) -> io::Result<bool> {
    match whole(path, text, kept)?.persist_noclobber(path) {
        Ok(_) => named(path).map(|()| true),
        Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(refused) => Err(refused.error),
    }
}

/// Replaces the file of this name, if there is one: a reader finds the old one or the new one,
/// whole.
pub fn write_over(path: &Path, text: &str, kept: Kept) -> io::Result<()> {
    whole(path, text, kept)?.persist(path).map_err(|refused| refused.error)?;
    named(path)
}

/// Prefix of the names of unfinished files; [`RANDOM_CHARS`] letters and digits follow.
const BEGINS: &str = ".mooring-";
const RANDOM_CHARS: usize = 6;

/// Removes unfinished files that a killed [`write_new`] or [`write_over`] left in this folder, and
/// returns their paths. A file that is still being written stays: its writer holds a lock on it.
/// Files that cannot be opened or removed stay, too.
pub fn sweep(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut swept = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(BEGINS));
        let ours = random.is_some_and(|random| {
            random.len() == RANDOM_CHARS && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
        // A link or a pipe is never our unfinished file, and opening one may block.
        if !ours || !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        let Ok(file) = fs::File::open(&path) else { continue };
        if file.try_lock().is_ok() && fs::remove_file(&path).is_ok() {
            swept.push(path);
        }
    }
    if !swept.is_empty() {
        fs::File::open(dir)?.sync_all()?;
    }
    Ok(swept)
}

/// Sweeps the folders of these files, each once. Calls `told` with each removed file, and with each
/// folder that cannot be read. A missing folder counts as empty.
pub fn sweep_beside<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    mut told: impl FnMut(&Path, io::Result<()>),
) {
    let folders: BTreeSet<_> = files.into_iter().map(parent).collect();
    for folder in folders {
        match sweep(folder) {
            Ok(swept) => swept.iter().for_each(|path| told(path, Ok(()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => told(folder, Err(error)),
        }
    }
}

/// Writes a durable file that has no final name yet. Other users cannot read it before its
/// permissions are set.
fn whole(path: &Path, text: &str, kept: Kept) -> io::Result<tempfile::NamedTempFile> {
    let mut file = unfinished(parent(path))?;
    give(file.as_file(), kept.owner)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(kept.mode))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Makes an unfinished file (0600) in this folder. No [`sweep`] removes it while this process
/// lives.
pub fn unfinished(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let file = tempfile::Builder::new().prefix(BEGINS).rand_bytes(RANDOM_CHARS).tempfile_in(folder)?;
    // The lock ends with its writer, so a sweep recognises what a killed one left. On a file system
    // without locks nothing is swept.
    let _ = file.as_file().try_lock();
    Ok(file)
}

/// Gives a file to this user and group; `None`: the writer keeps it.
pub fn give(file: &fs::File, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((user, group)) = owner else { return Ok(()) };
    std::os::unix::fs::fchown(file, Some(user), Some(group))
}

/// The folder that contains a path.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Makes a name durable.
pub fn named(path: &Path) -> io::Result<()> {
    fs::File::open(parent(path)).and_then(|folder| folder.sync_all())
}

/// Tells whether a path still leads to the file that was opened there. An open file and its lock
/// outlive its name. So a daemon whose folder was deleted would write into nothing, and a second
/// daemon could start beside it.
#[derive(Debug, Clone)]
pub struct Anchor {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Anchor {
    /// Remembers the file that is at this path now.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    /// Returns `true` if the path still leads to that file. A failing disk also counts as `true`:
    /// it does not prove that the file is gone.
    pub fn holds(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) == (self.device, self.inode),
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_knows_its_file_from_another_one() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("state");
        let path = private_file(&dir, "x.db").unwrap();
        let anchor = Anchor::of(&path).unwrap();
        fs::write(&path, "grown").unwrap();
        assert!(anchor.holds());
        let aside = top.path().join("aside");
        fs::rename(&dir, &aside).unwrap();
        assert!(!anchor.holds(), "its folder is gone");
        private_file(&dir, "x.db").unwrap();
        assert!(!anchor.holds(), "another one is in its place");
        fs::remove_dir_all(&dir).unwrap();
        fs::write(&dir, "a file where its folder was").unwrap();
        assert!(!anchor.holds());
        fs::remove_file(&dir).unwrap();
        fs::rename(&aside, &dir).unwrap();
        assert!(anchor.holds(), "it is back");
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn folder_and_file_are_ours_alone_and_made_once() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/state");
        let path = private_file(&dir, "x.db").unwrap();
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
        fs::write(&path, "kept").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(private_file(&dir, "x.db").unwrap(), path);
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (0o600, "kept"));
    }

    #[test]
    fn a_new_file_takes_no_others_place_and_one_over_it_does() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("a.key");
        let kept = Kept { mode: 0o640, owner: None };
        assert!(write_new(&path, "first", kept).unwrap());
        assert!(!write_new(&path, "second", kept).unwrap());
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("first", 0o640));
        write_over(&path, "third", Kept { mode: 0o600, owner: None }).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("third", 0o600));
        let found = fs::metadata(&path).unwrap();
        let ours = Kept { mode: 0o600, owner: Some((found.uid(), found.gid())) };
        write_over(&path, "fourth", ours).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().uid(), found.uid());
        // A link that leads nowhere is a name, too, and is not followed.
        let link = top.path().join("link");
        std::os::unix::fs::symlink(top.path().join("none"), &link).unwrap();
        assert!(!write_new(&link, "x", kept).unwrap());
        assert!(!top.path().join("none").exists());
        assert!(write_new(&top.path().join("no/such"), "x", kept).is_err());
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn what_a_killed_writer_has_left_is_swept_and_nothing_else() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("a.key");
        let kept = Kept { mode: 0o600, owner: None };
        write_new(&path, "kept", kept).unwrap();
        // A writer that is killed before its file gets its name: nobody removes the file, and its
        // lock goes.
        let (file, left) = whole(&path, "secret", kept).unwrap().keep().unwrap();
        let at_work = whole(&path, "new", kept).unwrap();
        assert_eq!(sweep(top.path()).unwrap(), Vec::<PathBuf>::new(), "both are being written");
        drop(file);
        for name in [".mooring-", ".mooring-abcde", ".mooring-abcdefg", ".mooring-abc.rt", "mooring-abcdef"] {
            fs::write(top.path().join(name), "theirs").unwrap();
        }
        fs::create_dir(top.path().join(".mooring-folder")).unwrap();
        std::os::unix::fs::symlink(&path, top.path().join(".mooring-linked")).unwrap();
        let names = || fs::read_dir(top.path()).unwrap().count();
        let before = names();
        assert_eq!(sweep(top.path()).unwrap(), std::slice::from_ref(&left));
        assert_eq!((names(), left.exists()), (before - 1, false));
        at_work.persist(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(sweep(top.path()).unwrap(), Vec::<PathBuf>::new());
        let (_, left) = whole(&path, "secret", kept).unwrap().keep().unwrap();
        let mut told = Vec::new();
        let files = [path.as_path(), &top.path().join("b"), &top.path().join("none/c"), &path.join("d")];
        sweep_beside(files, |path, swept| told.push((path.to_owned(), swept.is_ok())));
        assert_eq!(told, [(left, true), (path, false)]);
    }

    #[test]
    fn a_folder_that_others_write_to_is_refused_and_not_changed() {
        let top = tempfile::tempdir().unwrap();
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o775)).unwrap();
        let error = private_file(top.path(), "x.db").unwrap_err();
        assert!(matches!(error, FolderError::Exposed { mode: 0o775, .. }), "{error}");
        assert!(error.to_string().contains("chmod go-w"));
        assert_eq!((mode(top.path()), top.path().join("x.db").exists()), (0o775, false));
        // One that only others may read is the operator's choice.
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_file(top.path(), "x.db").is_ok());
    }

    #[test]
    fn what_is_no_folder_is_named() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("file");
        fs::write(&file, "").unwrap();
        let error = private_file(&file.join("state"), "x.db").unwrap_err();
        assert!(error.to_string().contains("file/state"), "{error}");
    }
}
