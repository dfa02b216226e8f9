//! Wrappers of a tree: one that counts operations, one that fails. What must never happen: a
//! failing tree that does half of an operation; a call either reaches the inner tree or it does
//! not.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::{Entry, Tree, TreeError, TreeOp, TreePath};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the operations on a tree. Clones count together.
#[derive(Debug, Clone)]
pub struct Counted<T> {
    inner: T,
    counts: Arc<Mutex<BTreeMap<TreeOp, u64>>>,
}

impl<T> Counted<T> {
    /// Starts counting from zero. `is_dir` counts as a [`TreeOp::Read`].
    pub fn new(inner: T) -> Self {
        Self { inner, counts: Arc::default() }
    }

    /// Returns the number of operations of each kind after the start or the last reset.
    pub fn counts(&self) -> BTreeMap<TreeOp, u64> {
        lock(&self.counts).clone()
    }

    /// Returns the number of operations of one kind.
    pub fn count(&self, op: TreeOp) -> u64 {
        lock(&self.counts).get(&op).copied().unwrap_or_default()
    }

    /// Returns the number of all operations.
    pub fn total(&self) -> u64 {
        lock(&self.counts).values().sum()
    }

    /// Returns the number of operations that change the tree.
    pub fn mutations(&self) -> u64 {
        lock(&self.counts).iter().filter(|(op, _)| is_mutating(**op)).map(|(_, count)| count).sum()
    }

    /// Starts again from zero.
    pub fn reset(&self) {
        lock(&self.counts).clear();
    }

    fn note(&self, op: TreeOp) -> &T {
        *lock(&self.counts).entry(op).or_default() += 1;
        &self.inner
    }
}

fn is_mutating(op: TreeOp) -> bool {
    match op {
        TreeOp::Mkdir | TreeOp::Rmdir | TreeOp::Symlink | TreeOp::Unlink | TreeOp::Write => true,
        TreeOp::Read | TreeOp::List | TreeOp::ReadLink => false,
    }
}

impl<T: Tree> Tree for Counted<T> {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.note(TreeOp::Mkdir).mkdir(path)
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.note(TreeOp::Rmdir).rmdir(path)
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.note(TreeOp::Symlink).symlink(target, link)
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.note(TreeOp::Unlink).unlink(path)
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        self.note(TreeOp::Write).write(path, value)
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.note(TreeOp::Read).read(path)
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.note(TreeOp::List).list(path)
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.note(TreeOp::ReadLink).read_link(path)
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.note(TreeOp::Read).is_dir(path)
    }
}

type Matches = Box<dyn Fn(TreeOp, &TreePath) -> bool + Send>;

#[derive(Default)]
struct Faults {
    mutations: u64,
    nth: Option<(u64, Errno)>,
    halt_after: Option<u64>,
    matching: Vec<(Matches, Errno)>,
    delays: Vec<(Matches, Duration)>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("mutations", &self.mutations)
            .field("nth", &self.nth)
            .field("halt_after", &self.halt_after)
            .field("matching", &self.matching.len())
            .field("delays", &self.delays.len())
            .finish()
    }
}

/// Makes chosen operations on a tree fail, without reaching it, or come late. Clones share their
/// faults.
#[derive(Debug, Clone)]
pub struct Faulty<T> {
    inner: T,
    faults: Arc<Mutex<Faults>>,
}

impl<T> Faulty<T> {
    /// Wraps a tree, without faults at first.
    pub fn new(inner: T) -> Self {
        Self { inner, faults: Arc::default() }
    }

    /// Returns the tree below, which never fails on purpose.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// Fails the `n`th mutating call from now (1 is the next one), once.
    pub fn fail_nth(&self, n: u64, errno: Errno) {
        let mut faults = lock(&self.faults);
        faults.nth = Some((faults.mutations + n, errno));
    }

    /// Lets `n` more mutating calls through, then fails every one with EIO, as after the death of
    /// the process.
    pub fn halt_after(&self, n: u64) {
        let mut faults = lock(&self.faults);
        faults.halt_after = Some(faults.mutations + n);
    }

    /// Fails every call, mutating or not, that matches.
    pub fn fail_when(&self, errno: Errno, matches: impl Fn(TreeOp, &TreePath) -> bool + Send + 'static) {
        lock(&self.faults).matching.push((Box::new(matches), errno));
    }

    /// Delays every call that matches.
    pub fn delay_when(&self, delay: Duration, matches: impl Fn(TreeOp, &TreePath) -> bool + Send + 'static) {
        lock(&self.faults).delays.push((Box::new(matches), delay));
    }

    /// Takes all faults and delays away.
    pub fn clear(&self) {
        let mut faults = lock(&self.faults);
        *faults = Faults { mutations: faults.mutations, ..Faults::default() };
    }

    /// Counts the mutating calls so far, failed ones included.
    pub fn mutations(&self) -> u64 {
        lock(&self.faults).mutations
    }

    fn check(&self, op: TreeOp, path: &TreePath) -> Result<&T, TreeError> {
        let (delay, errno) = {
            let mut faults = lock(&self.faults);
            let mut errno =
                faults.matching.iter().find(|(matches, _)| matches(op, path)).map(|(_, errno)| *errno);
            if is_mutating(op) {
                faults.mutations += 1;
                let now = faults.mutations;
                if let Some((_, nth)) = faults.nth.take_if(|(nth, _)| *nth == now) {
                    errno = Some(nth);
                }
                if faults.halt_after.is_some_and(|last| now > last) {
                    errno = Some(Errno::EIO);
                }
            }
            let delay = faults.delays.iter().find(|(matches, _)| matches(op, path)).map(|(_, delay)| *delay);
            (delay, errno)
        };
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        match errno {
            None => Ok(&self.inner),
            Some(errno) => Err(TreeError { op, root: "(fault)".to_owned(), path: path.clone(), errno }),
        }
    }
}

impl<T: Tree> Tree for Faulty<T> {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.check(TreeOp::Mkdir, path)?.mkdir(path)
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.check(TreeOp::Rmdir, path)?.rmdir(path)
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.check(TreeOp::Symlink, link)?.symlink(target, link)
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.check(TreeOp::Unlink, path)?.unlink(path)
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        self.check(TreeOp::Write, path)?.write(path, value)
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.check(TreeOp::Read, path)?.read(path)
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.check(TreeOp::List, path)?.list(path)
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.check(TreeOp::ReadLink, path)?.read_link(path)
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.check(TreeOp::Read, path)?.is_dir(path)
    }
}
