//! State of a fake host's kernel, behind one lock: sessions, connections, disks, listeners.
//!
//! What must never happen here: two truths about one thing. A device's state follows from its
//! session's; a path below `/sys` follows from both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::target::Shared as Target;
use crate::{DiskOp, Holder, IscsiEvent, IscsiOp, IscsiParam, KernelSession, UeventItem, User};

/// State that all handles of one fake host share.
#[derive(Default)]
pub(super) struct Inner {
    kernel: Mutex<Kernel>,
    changed: Condvar,
    pub(super) hook: Mutex<Option<Hook>>,
}

/// Called before each kernel operation.
pub(super) type Hook = Arc<dyn Fn(&IscsiOp) + Send + Sync>;

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(&self, guard: MutexGuard<'a, Kernel>) -> MutexGuard<'a, Kernel> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait_until<'a>(
        &self,
        guard: MutexGuard<'a, Kernel>,
        deadline: Instant,
    ) -> Option<MutexGuard<'a, Kernel>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        Some(self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Changes the kernel's state and wakes all threads that wait for that.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Kernel) -> T) -> T {
        let mut kernel = self.lock();
        let result = change(&mut kernel);
        kernel.changes += 1;
        drop(kernel);
        self.changed.notify_all();
        result
    }
}

/// A process of the host. Once dead it can do nothing more, even if threads of it are left.
#[derive(Default)]
pub(super) struct Process {
    pub(super) dead: AtomicBool,
}

impl Process {
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

/// A listener: a queue, and the process that reads it.
pub(super) type Listener<T> = (Weak<Queue<T>>, Arc<Process>);

/// The kernel of a host.
#[derive(Default)]
pub(super) struct Kernel {
    /// Every session that has a SCSI host; destroyed ones until their work is done.
    pub(super) sessions: BTreeMap<u32, Session>,
    pub(super) last_sid: u32,
    pub(super) last_sequence: u64,
    pub(super) last_event: u64,
    pub(super) last_socket: u64,
    pub(super) listeners: Vec<Listener<IscsiEvent>>,
    pub(super) uevent_listeners: Vec<Listener<UeventItem>>,
    pub(super) losing: bool,
    pub(super) faults: Faults,
    /// Holders by the disk's sequence number, so that a disk which takes over a name has none.
    pub(super) holders: BTreeMap<u64, Held>,
    /// Unwritten bytes in the page cache, by the disk's sequence number.
    pub(super) unwritten: BTreeMap<u64, u64>,
    pub(super) disk_faults: BTreeMap<String, Errno>,
    pub(super) probes_held: bool,
    pub(super) scans: Vec<String>,
    pub(super) changes: u64,
}

/// A disk that is held open, even after it has been deleted.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) by: Vec<Holder>,
    pub(super) users: Vec<User>,
}

/// Faults of kernel operations.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) ops: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) crash_after: Option<u64>,
    pub(super) crashed: bool,
    pub(super) failing: Vec<(IscsiOp, u64, Errno)>,
    pub(super) paused: BTreeSet<String>,
    pub(super) waiting: BTreeSet<String>,
}

/// State of a session in the transport class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    /// Never logged in, or given up after `recovery_tmo`.
    Free,
    LoggedIn,
    /// Blocked, waiting for recovery.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetState {
    Allocated,
    Scanned,
    Unbinding,
    Unbound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Down,
    Bound,
    Up,
    Failed,
}

/// A session with its SCSI host.
#[allow(clippy::struct_excessive_bools, reason = "attributes of the kernel")]
pub(super) struct Session {
    pub(super) ids: KernelSession,
    pub(super) state: SessionState,
    pub(super) target_state: TargetState,
    /// The session is destroyed and its work still runs: nobody finds it any more.
    pub(super) doomed: bool,
    /// A Logout was sent: commands wait, and a closed connection is no error.
    pub(super) logging_out: bool,
    /// Stopped for good: commands fail.
    pub(super) terminated: bool,
    pub(super) params: BTreeMap<IscsiParamKey, String>,
    pub(super) recovery_timeout: i64,
    /// `recovery_tmo` was written through sysfs: the netlink parameter is ignored from then on.
    pub(super) recovery_overridden: bool,
    pub(super) creator: i64,
    pub(super) command_number: u32,
    pub(super) connection: Option<Connection>,
    pub(super) disks: BTreeMap<u64, ScsiDisk>,
}

/// Orders parameters by their numbers.
pub(super) type IscsiParamKey = u32;

impl Session {
    pub(super) fn param(&self, param: IscsiParam) -> Option<&str> {
        self.params.get(&(param as u32)).map(String::as_str)
    }

    /// Returns the state that the [`ScsiDisk`]s of this session show.
    pub(super) fn disk_state(&self, disk: &ScsiDisk) -> &'static str {
        match self.state {
            _ if disk.offline => "offline",
            SessionState::LoggedIn => "running",
            SessionState::Failed => "blocked",
            SessionState::Free => "transport-offline",
        }
    }

    /// Returns the address `<host>:0:0:<lun>`.
    pub(super) fn address(&self, lun: u64) -> String {
        format!("{}:0:0:{lun}", self.ids.host)
    }
}

/// Connection 0 of a session.
pub(super) struct Connection {
    pub(super) state: ConnectionState,
    pub(super) socket: Option<Socket>,
    /// The kernel has cleaned up by itself: ENOTCONN until `STOP_CONN` with RECOVER.
    pub(super) cleanup: bool,
    /// Stopped for recovery and not started again: a further stop does not block the session again.
    pub(super) recovering: bool,
    pub(super) next_tag: u32,
    /// A Login or Text request is on its way: the kernel has one task for them.
    pub(super) login_outstanding: bool,
    pub(super) status_number: u32,
}

/// The kernel's reference of a TCP socket. Dropping it ends the thread that reads. The connection
/// is closed when nobody else holds the socket.
pub(super) struct Socket {
    pub(super) id: u64,
    pub(super) stream: Arc<TcpStream>,
    pub(super) target: Option<Arc<Target>>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Closing this end wakes the reader.
    pub(super) _wake: UnixStream,
}

/// A SCSI disk, as it was scanned.
#[derive(Debug, Clone)]
pub(super) struct ScsiDisk {
    /// Name `sd<x>`; `None` until the driver has probed the disk.
    pub(super) block: Option<String>,
    pub(super) sequence: u64,
    pub(super) size: u64,
    pub(super) write_protected: bool,
    pub(super) set_read_only: bool,
    /// Read-ahead in sectors.
    pub(super) read_ahead: u32,
    pub(super) offline: bool,
    pub(super) page_83: Vec<u8>,
    pub(super) page_80: Vec<u8>,
}

impl Kernel {
    /// Returns a session that requests can find.
    pub(super) fn session(&mut self, sid: u32) -> Result<&mut Session, Errno> {
        self.sessions.get_mut(&sid).filter(|session| !session.doomed).ok_or(Errno::EINVAL)
    }

    /// Returns the connection of such a session.
    pub(super) fn connection(&mut self, sid: u32) -> Result<&mut Connection, Errno> {
        self.session(sid)?.connection.as_mut().ok_or(Errno::EINVAL)
    }

    /// Finds the session and LUN of a block device. `None` if there is no such device.
    pub(super) fn disk(&self, block: &str) -> Option<(&Session, u64, &ScsiDisk)> {
        self.sessions.values().find_map(|session| {
            let (lun, disk) = session.disks.iter().find(|(_, disk)| disk.block.as_deref() == Some(block))?;
            Some((session, *lun, disk))
        })
    }

    /// Sends an event to every listener. `false`: there is none.
    pub(super) fn tell(&mut self, event: &IscsiEvent) -> bool {
        self.listeners.retain(|(queue, _)| queue.strong_count() > 0);
        if !self.losing {
            queues(&self.listeners).for_each(|queue| queue.push(event.clone()));
        }
        !self.listeners.is_empty()
    }

    pub(super) fn tell_uevent(&mut self, event: &UeventItem) {
        self.uevent_listeners.retain(|(queue, _)| queue.strong_count() > 0);
        queues(&self.uevent_listeners).for_each(|queue| queue.push(event.clone()));
    }

    /// Makes every listener lose events.
    pub(super) fn overrun(&mut self) {
        queues(&self.listeners).for_each(|queue| queue.overrun(IscsiEvent::Overrun));
        queues(&self.uevent_listeners).for_each(|queue| queue.overrun(UeventItem::Overrun));
    }

    /// Lets a process that drove this kernel die: it listens no longer, and every request fails
    /// until the next one begins.
    pub(super) fn crash(&mut self, process: &Arc<Process>) {
        process.dead.store(true, Ordering::SeqCst);
        self.faults.crashed = true;
        self.faults.crash_at = None;
        self.faults.crash_after = None;
        self.listeners.retain(|(_, owner)| !Arc::ptr_eq(owner, process));
        self.uevent_listeners.retain(|(_, owner)| !Arc::ptr_eq(owner, process));
    }

    /// Returns the first free `sd<x>`. The kernel gives a name away again once nobody holds the old
    /// disk open.
    pub(super) fn free_name(&self) -> String {
        let taken = |name: &str| {
            self.disk(name).is_some()
                || self.holders.values().any(|held| held.name == name && !held.by.is_empty())
        };
        let names = (0_u32..).map(disk_name);
        names.into_iter().find(|name| !taken(name)).unwrap_or_default()
    }

    pub(super) fn disk_fault(&self, op: DiskOp) -> Option<Errno> {
        self.disk_faults.get(&format!("{op:?}")).copied()
    }
}

fn queues<T>(listeners: &[Listener<T>]) -> impl Iterator<Item = Arc<Queue<T>>> {
    listeners.iter().filter_map(|(queue, _)| queue.upgrade())
}

/// Returns the name of this index: `sda` … `sdz`, `sdaa` …
fn disk_name(mut index: u32) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(char::from(b'a' + u8::try_from(index % 26).unwrap_or_default()));
        if index < 26 {
            break;
        }
        index = index / 26 - 1;
    }
    letters.push('d');
    letters.push('s');
    letters.into_iter().rev().collect()
}

/// Events on their way to one listener.
pub(super) struct Queue<T> {
    items: Mutex<VecDeque<T>>,
    changed: Condvar,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { items: Mutex::default(), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, item: T) {
        self.lock().push_back(item);
        self.changed.notify_all();
    }

    /// Drops the queued events and queues `mark`.
    pub(super) fn overrun(&self, mark: T) {
        let mut items = self.lock();
        items.clear();
        items.push_back(mark);
        drop(items);
        self.changed.notify_all();
    }

    pub(super) fn next(&self, wait: Duration) -> Option<T> {
        let deadline = Instant::now() + wait;
        let mut items = self.lock();
        loop {
            if let Some(item) = items.pop_front() {
                return Some(item);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            items = self.changed.wait_timeout(items, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn disks_are_named_as_the_kernel_does() {
        let names = [0, 1, 25, 26, 27, 26 + 26 * 26 - 1, 26 + 26 * 26].map(super::disk_name);
        assert_eq!(names, ["sda", "sdb", "sdz", "sdaa", "sdab", "sdzz", "sdaaa"]);
    }
}
