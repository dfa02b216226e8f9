//! A tree of folders, attribute files and links: configfs or sysfs, rooted anywhere.
//!
//! Every call is one system call on one object (`write` and `read` are open, one transfer, close),
//! because configfs gives each of them its own meaning. Nothing here is recursive, and nothing
//! creates parents.

use std::cell::Cell;
use std::ffi::CString;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{self, AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

/// Maximum number of bytes read from an attribute: configfs and sysfs attributes are at most one
/// page; PR lists and `info` included.
const ATTRIBUTE_BYTES_MAX: u64 = 64 * 1024;

/// Bytes of the first read, more than most attributes have: a shorter attribute takes one call.
const ATTRIBUTE_BYTES: usize = 1024;

/// A path below a tree's root. Its components hold no `/` and are not `.` or `..`, so a name from a
/// request can never lead out of the tree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(String);

/// Bytes of spare capacity in a new path: a path is made once, and extended once or twice. Building
/// paths is most of a plan's cost, and moving them while they grow was most of that.
const ROOM: usize = 128;

impl TreePath {
    /// Returns the root itself.
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// Makes a path from a text of our own such as `core/iblock_1000`; empty, `.` and `..`
    /// components are dropped.
    pub fn new(text: &str) -> Self {
        let mut path = Self(String::with_capacity(text.len() + ROOM));
        for name in text.split('/') {
            path.push(name);
        }
        path
    }

    /// Returns the path with one more component. A component that is empty, `.`, `..` or holds a
    /// `/` or NUL is replaced by one that names no object (configfs refuses it), rather than
    /// walking elsewhere.
    #[must_use]
    pub fn join(&self, name: impl fmt::Display) -> Self {
        let mut path = String::with_capacity(self.0.len() + ROOM);
        path.push_str(&self.0);
        let mut path = Self(path);
        path.push(name);
        path
    }

    /// Adds one more component, by the rules of [`TreePath::join`].
    pub fn push(&mut self, name: impl fmt::Display) {
        let before = self.0.len();
        if before > 0 {
            self.0.push('/');
        }
        let from = self.0.len();
        // Writing to a text does not fail.
        let _written = write!(self.0, "{name}");
        let added = &self.0[from..];
        if added.is_empty() || added == "." {
            self.0.truncate(before);
        } else if added == ".." || added.contains('/') || added.contains('\0') {
            self.0.truncate(from);
            self.0.push('\u{fffd}');
        }
    }

    /// Returns the path as text, without a leading `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last component.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the folder that holds this object; the root's is the root.
    #[must_use]
    pub fn parent(&self) -> Self {
        Self(self.0.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default())
    }

    /// Returns `true` if this is `other` or lies below it.
    pub fn is_within(&self, other: &Self) -> bool {
        other.0.is_empty()
            || self == other
            || self.0.strip_prefix(&other.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kinds of objects in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// A folder.
    Dir,
    /// An attribute.
    File,
    /// A symbolic link.
    Link,
}

/// One object in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Name of the object.
    pub name: String,
    /// Kind of the object.
    pub kind: EntryKind,
}

/// Operations of a tree, as errors name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TreeOp {
    /// `mkdir(2)`.
    Mkdir,
    /// `rmdir(2)`.
    Rmdir,
    /// `symlink(2)`.
    Symlink,
    /// `unlink(2)` of a link.
    Unlink,
    /// Open, one `write(2)`, close.
    Write,
    /// Open, read to the end, close.
    Read,
    /// Read a folder.
    List,
    /// `readlink(2)`.
    ReadLink,
}

impl fmt::Display for TreeOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mkdir => "mkdir",
            Self::Rmdir => "rmdir",
            Self::Symlink => "symlink",
            Self::Unlink => "unlink",
            Self::Write => "write",
            Self::Read => "read",
            Self::List => "list",
            Self::ReadLink => "readlink",
        })
    }
}

/// An operation that the kernel refused. Written values are never part of it: they may be secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} {root}/{path}: {} ({errno:?})", .errno.desc())]
pub struct TreeError {
    /// Operation that failed.
    pub op: TreeOp,
    /// Root folder of the tree.
    pub root: String,
    /// Path of the object.
    pub path: TreePath,
    /// The kernel's answer.
    pub errno: Errno,
}

/// A configfs or sysfs tree.
pub trait Tree: Send + Sync {
    /// Makes a folder; configfs makes the kernel object behind it.
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError>;
    /// Removes a folder; configfs destroys the kernel object behind it, and may block until its I/O
    /// has drained.
    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError>;
    /// Makes `link` point to the object `target` of the same tree.
    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError>;
    /// Removes a link.
    fn unlink(&self, path: &TreePath) -> Result<(), TreeError>;
    /// Writes an attribute by one `write(2)` of exactly these bytes: no newline is added.
    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError>;
    /// Reads an attribute.
    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError>;
    /// Lists the objects of a folder, sorted by name.
    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError>;
    /// Reads the target of a link, as a path of this tree.
    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError>;
    /// Returns `true` if there is a folder (one `stat(2)`).
    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError>;

    /// Reads an attribute as text without its trailing newlines.
    fn read_text(&self, path: &TreePath) -> Result<String, TreeError> {
        let bytes = self.read(path)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\0']).to_owned())
    }
}

macro_rules! forward_tree {
    ($($kind:ty),*) => {$(
        impl<T: Tree + ?Sized> Tree for $kind {
            fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
                (**self).mkdir(path)
            }

            fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
                (**self).rmdir(path)
            }

            fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
                (**self).symlink(target, link)
            }

            fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
                (**self).unlink(path)
            }

            fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
                (**self).write(path, value)
            }

            fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
                (**self).read(path)
            }

            fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
                (**self).list(path)
            }

            fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
                (**self).read_link(path)
            }

            fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
                (**self).is_dir(path)
            }
        }
    )*};
}

forward_tree!(&T, std::sync::Arc<T>);

thread_local! {
    static OPERATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the operations on kernel trees by this thread so far: the cost of a pass is a difference
/// of two counts.
pub fn tree_operations() -> u64 {
    OPERATIONS.get()
}

/// `CONFIGFS_MAGIC` of the kernel's linux/magic.h.
const CONFIGFS: FsType = FsType(0x6265_6570);

/// The folder that configfs is mounted at, held open. Otherwise the kernel walks a longer path for
/// each call, with a check by each of its security modules at each component. This is not the
/// tree's own root, which is another folder when its module was loaded anew; there is one configfs,
/// wherever it is mounted.
#[derive(Debug)]
struct Mount {
    folder: OwnedFd,
    /// Root of the tree below configfs.
    root: PathBuf,
}

impl Mount {
    /// Opens it for a tree. `None`: the tree's root is not right below configfs.
    fn of(root: &Path) -> Option<Self> {
        let (parent, name) = (root.parent()?, root.file_name()?);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = fcntl::open(parent, flags, Mode::empty()).ok()?;
        let kind = fstatfs(&folder).ok()?.filesystem_type();
        (kind == CONFIGFS).then(|| Self { folder, root: name.into() })
    }
}

/// Builds a path for the kernel.
fn below(root: &Path, path: &TreePath) -> CString {
    let (root, path) = (root.as_os_str().as_bytes(), path.as_str().as_bytes());
    let mut text = Vec::with_capacity(root.len() + path.len() + 2);
    text.extend_from_slice(root);
    if !path.is_empty() {
        text.push(b'/');
        text.extend_from_slice(path);
    }
    // Only the root can have a NUL, which names nothing; an empty path names nothing either.
    CString::new(text).unwrap_or_default()
}

/// A real tree: a folder of the running kernel.
#[derive(Debug, Clone)]
pub struct KernelTree {
    root: PathBuf,
    /// Found at the first call.
    mount: Arc<OnceLock<Option<Mount>>>,
}

impl KernelTree {
    /// The LIO tree of a stock system.
    pub const TARGET: &'static str = "/sys/kernel/config/target";

    /// Makes a tree rooted at this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), mount: Arc::default() }
    }

    /// Returns the root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Builds the whole path of an object.
    fn whole(&self, path: &TreePath) -> CString {
        below(&self.root, path)
    }

    /// Locates an object: an open folder, and a path from there.
    fn at(&self, path: &TreePath) -> (BorrowedFd<'_>, CString) {
        match self.mount.get_or_init(|| Mount::of(&self.root)) {
            Some(mount) => (mount.folder.as_fd(), below(&mount.root, path)),
            None => (AT_FDCWD, self.whole(path)),
        }
    }

    /// Counts one operation.
    fn count(&self) -> &Self {
        OPERATIONS.set(OPERATIONS.get() + 1);
        self
    }

    fn open(&self, path: &TreePath, flags: OFlag) -> nix::Result<fs::File> {
        let (folder, path) = self.count().at(path);
        fcntl::openat(folder, path.as_c_str(), flags | OFlag::O_CLOEXEC, Mode::empty()).map(fs::File::from)
    }

    fn fail<E: Into<io::Error>>(&self, op: TreeOp, path: &TreePath) -> impl FnOnce(E) -> TreeError {
        move |error| TreeError {
            op,
            root: self.root.display().to_string(),
            path: path.clone(),
            errno: error.into().raw_os_error().map_or(Errno::EIO, Errno::from_raw),
        }
    }
}

impl Tree for KernelTree {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        let (folder, at) = self.count().at(path);
        mkdirat(folder, at.as_c_str(), Mode::from_bits_truncate(0o777))
            .map_err(self.fail(TreeOp::Mkdir, path))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        let (folder, at) = self.count().at(path);
        unlinkat(folder, at.as_c_str(), UnlinkatFlags::RemoveDir).map_err(self.fail(TreeOp::Rmdir, path))
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        let (folder, at) = self.count().at(link);
        // configfs looks for the target at once, from the process's working folder: only its whole
        // path leads there.
        symlinkat(self.whole(target).as_c_str(), folder, at.as_c_str())
            .map_err(self.fail(TreeOp::Symlink, link))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        let (folder, at) = self.count().at(path);
        unlinkat(folder, at.as_c_str(), UnlinkatFlags::NoRemoveDir).map_err(self.fail(TreeOp::Unlink, path))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        let write = || -> io::Result<()> {
            let mut file = self.open(path, OFlag::O_WRONLY)?;
            // One write(2): configfs stores the bytes of one call. A short write would store half a
            // value.
            match file.write(value)? {
                n if n == value.len() => Ok(()),
                _ => Err(io::Error::from_raw_os_error(Errno::EIO as i32)),
            }
        };
        write().map_err(self.fail(TreeOp::Write, path))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = self.open(path, OFlag::O_RDONLY)?;
            let mut first = [0; ATTRIBUTE_BYTES];
            let count = file.read(&mut first)?;
            let mut bytes = first[..count].to_vec();
            // The kernel makes the whole text at the first read and returns as much of it as fits:
            // a shorter answer is all of it.
            if count == first.len() {
                file.take(ATTRIBUTE_BYTES_MAX).read_to_end(&mut bytes)?;
            }
            Ok(bytes)
        };
        read().map_err(self.fail(TreeOp::Read, path))
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        let list = || -> nix::Result<Vec<Entry>> {
            let (folder, at) = self.count().at(path);
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let mut entries = Vec::new();
            for entry in Dir::openat(folder, at.as_c_str(), flags, Mode::empty())?.iter() {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy();
                if name == "." || name == ".." {
                    continue;
                }
                let kind = match entry.file_type() {
                    Some(Type::Directory) => EntryKind::Dir,
                    Some(Type::Symlink) => EntryKind::Link,
                    // configfs and sysfs always tell an entry's kind.
                    Some(_) | None => EntryKind::File,
                };
                entries.push(Entry { name: name.into_owned(), kind });
            }
            entries.sort();
            Ok(entries)
        };
        list().map_err(self.fail(TreeOp::List, path))
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        // configfs answers with a relative path (`../../../../target/core/…`), whatever the link
        // was made with.
        let (folder, at) = self.count().at(path);
        let target = fcntl::readlinkat(folder, at.as_c_str()).map_err(self.fail(TreeOp::ReadLink, path))?;
        let mut whole = self.root.join(path.parent().as_str());
        for part in Path::new(&target).components() {
            match part {
                Component::RootDir => whole = PathBuf::from("/"),
                Component::ParentDir => {
                    whole.pop();
                }
                Component::Normal(name) => whole.push(name),
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
        let below = whole.strip_prefix(&self.root).unwrap_or(&whole);
        Ok(TreePath::new(&below.to_string_lossy()))
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        let (folder, at) = self.count().at(path);
        match fstatat(folder, at.as_c_str(), AtFlags::empty()) {
            Ok(stat) => Ok(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(self.fail(TreeOp::Read, path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_tree() {
        let root = TreePath::root();
        assert_eq!(TreePath::new("/core//iblock_0/./x/").as_str(), "core/iblock_0/x");
        for hostile in ["..", "a/b", "a\0b", "/"] {
            let path = root.join("acls").join(hostile);
            assert_eq!((path.parent().as_str(), path.name()), ("acls", "\u{fffd}"), "{hostile:?}");
        }
        assert_eq!(root.join("").join("."), root);
        let mut path = TreePath::new("iscsi");
        for name in ["", ".", "a/b", "..", "acls"] {
            assert_eq!(path.join(name), TreePath::new(path.as_str()).join(name));
            path.push(name);
        }
        assert_eq!(path.as_str(), "iscsi/\u{fffd}/\u{fffd}/acls");
        assert_eq!((root.parent(), root.name()), (TreePath::root(), ""));
        let path = TreePath::new("a/bc");
        assert!(path.is_within(&TreePath::new("a")) && path.is_within(&path) && path.is_within(&root));
        assert!(!path.is_within(&TreePath::new("a/b")));
    }

    #[test]
    fn a_kernel_tree_is_one_system_call_each() {
        let folder = tempfile::tempdir().unwrap();
        let tree = KernelTree::new(folder.path());
        let path = TreePath::new;
        tree.mkdir(&path("core")).unwrap();
        assert_eq!(tree.mkdir(&path("core")).unwrap_err().errno, Errno::EEXIST);
        let error = tree.mkdir(&path("none/x")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("mkdir {}/none/x: No such file or directory (ENOENT)", folder.path().display())
        );
        // A write does not make a missing attribute.
        assert_eq!(tree.write(&path("core/attribute"), b"1").unwrap_err().errno, Errno::ENOENT);
        fs::write(folder.path().join("core/attribute"), b"old\n").unwrap();
        tree.write(&path("core/attribute"), b"new").unwrap();
        assert_eq!(tree.read(&path("core/attribute")).unwrap(), b"new\n");
        assert_eq!(tree.read_text(&path("core/attribute")).unwrap(), "new");
        for bytes in [0, ATTRIBUTE_BYTES - 1, ATTRIBUTE_BYTES, ATTRIBUTE_BYTES + 1, 3 * ATTRIBUTE_BYTES] {
            let long: Vec<_> = (0..bytes).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
            fs::write(folder.path().join("core/attribute"), &long).unwrap();
            assert_eq!(tree.read(&path("core/attribute")).unwrap(), long, "{bytes} bytes");
        }
        tree.symlink(&path("core"), &path("link")).unwrap();
        assert_eq!(tree.read_link(&path("link")).unwrap(), path("core"));
        std::os::unix::fs::symlink("../core/attribute", folder.path().join("core/relative")).unwrap();
        assert_eq!(tree.read_link(&path("core/relative")).unwrap(), path("core/attribute"));
        assert_eq!(tree.read_link(&path("core")).unwrap_err().errno, Errno::EINVAL);
        let kinds: Vec<_> =
            tree.list(&TreePath::root()).unwrap().into_iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [EntryKind::Dir, EntryKind::Link]);
        assert_eq!(tree.list(&path("none")).unwrap_err().errno, Errno::ENOENT);
        assert!(tree.is_dir(&path("core")).unwrap());
        assert!(!tree.is_dir(&path("none")).unwrap() && !tree.is_dir(&path("core/attribute")).unwrap());
        assert_eq!(tree.rmdir(&path("core")).unwrap_err().errno, Errno::ENOTEMPTY);
        tree.unlink(&path("link")).unwrap();
        assert_eq!(tree.unlink(&path("link")).unwrap_err().errno, Errno::ENOENT);
    }
}
