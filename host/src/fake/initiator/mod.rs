//! A behaving fake of a host that attaches: the kernel's initiator ([`FakeHost`]) and a target
//! ([`FakeTarget`]), which talk over real TCP connections on 127.0.0.1.
//!
//! The login travels as PDUs, so any conforming login code can be tried against every answer of a
//! target, good or bad. SCSI commands do not: the fake kernel asks the fake target for them by the
//! addresses of the session's connection. A command gets an answer exactly as long as the kernel's
//! session is logged in *and* the target's session lives.
//!
//! * [`FakeHost`] is `Clone`; clones are one machine. It is [`IscsiKernel`](crate::IscsiKernel),
//!   [`Disks`](crate::Disks), and [`Tree`](crate::Tree) of `/sys`; [`FakeHost::events`] and
//!   [`FakeHost::uevents`] make streams. A daemon "dies" when a test drops what belongs to it: the
//!   kernel's objects stay, as they do.
//! * [`FakeHost::crash_at`] and [`FakeHost::crash_after`] stop a daemon at any request: nothing
//!   that it asks for from there on is done, and its streams are deaf, until [`FakeHost::uncrash`].
//!   Give each daemon (and the agent beside it) its own [`FakeHost::process`], so that threads of a
//!   dead one stay dead.
//! * [`FakeHost::expire_recovery`] is the kernel's `recovery_tmo` timer, by hand;
//!   [`FakeHost::break_connection`] any error that the kernel may find.
//! * [`FakeTarget::behave`] makes the target misbehave, [`FakeTarget::seen`] returns its logins.
//!
//! A stopped connection is given up by the kernel, not closed: as long as the daemon keeps its own
//! descriptor of the socket, the TCP connection stays. So it is with `iscsi_tcp`.
//!
//! What must never happen here: an answer that is kinder than a kernel's or a target's; a thread or
//! a socket that outlives both fakes.
//!
//! ```
//! use std::net::TcpStream;
//! use mooring_host::fake::initiator::{Acl, FakeDisk, FakeHost, FakeTarget};
//! use mooring_host::{Disks, IscsiKernel, Tree, TreePath};
//!
//! let target = FakeTarget::start("iqn.2026-01.lab.storage:t0")?;
//! target.set_disk(1, FakeDisk::new("11112222-3333-4444-5555-666677778888", 1 << 30));
//! target.allow("iqn.2026-01.lab:host1", Acl::default());
//!
//! let host = FakeHost::new();
//! let mut events = host.events();
//! // A whole login in one call, for tests of what comes after it; a daemon makes the requests one by one.
//! let session = host.log_in(&target, "iqn.2026-01.lab:host1", "mooring-test", [0x80, 0, 0, 0, 0, 1])?;
//! host.write(&TreePath::new(&format!("class/scsi_host/host{}/scan", session.host)), b"0 0 1")?;
//! assert_eq!(host.size("/dev/sda".as_ref())?, 1 << 30);
//! assert_eq!(host.inquiry("/dev/sda".as_ref(), 0x83)?[8..11], [0x60, 0x01, 0x40]);
//! target.cut_all();
//! assert!(host.wait_for(|host| host.session_state(session.sid).as_deref() == Some("FAILED")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chap;
mod disk;
mod disks;
mod hand;
mod kernel;
mod pdu;
mod scsi;
mod state;
mod sysfs;
mod target;
mod target_login;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use nix::errno::Errno;

use self::state::{Inner, Kernel, Process, Queue, SessionState};
use self::target::PATIENCE;
use crate::IscsiOp;

pub use self::chap::{Credentials, TargetProof};
pub use self::disk::FakeDisk;
pub use self::disks::FakeUevents;
pub use self::hand::HandError;
pub use self::kernel::FakeIscsiEvents;
pub use self::pdu::Pdu;
pub use self::target::{Acl, Behaviour, FakeTarget, LoginEnd, SeenLogin, Tamper, TargetSession};

/// Hook before each request: [`FakeHost::set_before`].
pub type BeforeRequest = Box<dyn Fn(&IscsiOp) + Send + Sync>;

/// A host with the modules of the iSCSI initiator loaded; clones share one host.
#[derive(Clone, Default)]
pub struct FakeHost {
    inner: Arc<Inner>,
    process: Arc<Process>,
}

impl fmt::Debug for FakeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeHost").field("sessions", &self.sessions()).finish_non_exhaustive()
    }
}

impl FakeHost {
    /// Makes a host without sessions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a handle of this host for a process of its own: its clones die together in a crash.
    /// The remains of a dead process (its threads) can do nothing, also after [`FakeHost::uncrash`]
    /// of another. `new` and `clone` share one process.
    #[must_use]
    pub fn process(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), process: Arc::default() }
    }

    /// Subscribes to iSCSI events. A dropped stream is a listener that is gone; with no listener at
    /// all, a PDU for user space breaks its connection (1011), and every other event is lost.
    pub fn events(&self) -> FakeIscsiEvents {
        let queue = Arc::new(Queue::default());
        self.inner
            .change(|kernel| kernel.listeners.push((Arc::downgrade(&queue), Arc::clone(&self.process))));
        FakeIscsiEvents { queue }
    }

    /// Subscribes to uevents.
    pub fn uevents(&self) -> FakeUevents {
        let queue = Arc::new(Queue::default());
        self.inner.change(|kernel| {
            kernel.uevent_listeners.push((Arc::downgrade(&queue), Arc::clone(&self.process)));
        });
        FakeUevents { queue }
    }

    /// Lists the numbers of the existing sessions.
    pub fn sessions(&self) -> Vec<u32> {
        self.inner.lock().sessions.keys().copied().collect()
    }

    /// Returns the `state` of a session. `None`: there is no such session.
    pub fn session_state(&self, sid: u32) -> Option<String> {
        use crate::Tree as _;
        let path = crate::TreePath::new(&format!("class/iscsi_session/session{sid}/state"));
        self.read_text(&path).ok()
    }

    /// Lists the names of the existing disks (`sda`).
    pub fn disks(&self) -> Vec<String> {
        let kernel = self.inner.lock();
        let all = kernel.sessions.values().flat_map(|session| session.disks.values());
        all.filter_map(|disk| disk.block.clone()).collect()
    }

    /// Returns everything that was written to any host's `scan`.
    pub fn scans(&self) -> Vec<String> {
        self.inner.lock().scans.clone()
    }

    /// Sets the `creator` of a session. It is -1 at first, as for a socket bound to port id
    /// 0xFFFFFFFF.
    pub fn set_creator(&self, sid: u32, creator: i64) {
        self.inner.change(|kernel| {
            if let Some(session) = kernel.sessions.get_mut(&sid) {
                session.creator = creator;
            }
        });
    }

    /// Ends the recovery timer of a session: a blocked session is given up, its disks go offline,
    /// and commands that wait for them fail. Session and disks stay, and a later login brings them
    /// back.
    pub fn expire_recovery(&self, sid: u32) {
        self.inner.change(|kernel| {
            if let Some(session) = kernel.sessions.get_mut(&sid)
                && session.state == SessionState::Failed
            {
                session.state = SessionState::Free;
            }
        });
    }

    /// Lets the kernel find an error of a connection: 1011 failed, 1020 TCP closed, 1022 NOP timed
    /// out, 1018 its host goes away.
    pub fn break_connection(&self, sid: u32, error: u32) {
        self.inner.change(|kernel| kernel.fail_connection(sid, None, error));
    }

    /// Loses the iSCSI events and uevents that are queued: every stream brings an overrun next.
    pub fn overrun(&self) {
        self.inner.change(Kernel::overrun);
    }

    /// Loses every iSCSI event from now on; at `false` every stream brings an overrun.
    pub fn lose_events(&self, on: bool) {
        self.inner.change(|kernel| {
            kernel.losing = on;
            if !on {
                kernel.overrun();
            }
        });
    }

    /// While on, a scan makes SCSI devices that have no block device yet; at `false` the disk
    /// driver gets to them.
    pub fn hold_probes(&self, on: bool) {
        self.inner.change(|kernel| {
            kernel.probes_held = on;
            let all = kernel.sessions.values().flat_map(|session| {
                let waiting = session.disks.iter().filter(|(_, disk)| disk.block.is_none());
                waiting.map(|(lun, _)| (session.ids.sid, *lun))
            });
            let waiting: Vec<_> = all.filter(|_| !on).collect();
            for (sid, lun) in waiting {
                kernel.probe(sid, lun);
            }
        });
    }

    /// Fails the power and brings it back: no sessions, no disks, their connections closed. Streams
    /// that were open get nothing more. Faults, pauses and crashes that were set are forgotten.
    pub fn reboot(&self) {
        self.inner.change(|kernel| {
            for session in kernel.sessions.values() {
                if let Some(socket) = session.connection.as_ref().and_then(|live| live.socket.as_ref()) {
                    // Also for a daemon that still holds a descriptor: its process is gone.
                    let _ = socket.stream.shutdown(std::net::Shutdown::Both);
                }
            }
            let ops = kernel.faults.ops;
            *kernel =
                Kernel { changes: kernel.changes, last_socket: kernel.last_socket, ..Kernel::default() };
            kernel.faults.ops = ops;
        });
    }

    /// Waits until the condition holds. `false`: it did not within 20 s.
    #[must_use]
    pub fn wait_for(&self, holds: impl Fn(&Self) -> bool) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let before = self.inner.lock().changes;
            if holds(self) {
                return true;
            }
            let mut kernel = self.inner.lock();
            while kernel.changes == before {
                match self.inner.wait_until(kernel, deadline) {
                    Some(guard) => kernel = guard,
                    None => return false,
                }
            }
        }
    }
}

/// Faults.
impl FakeHost {
    /// Counts the requests to [`IscsiKernel`](crate::IscsiKernel) so far, failed ones included.
    pub fn ops(&self) -> u64 {
        self.inner.lock().faults.ops
    }

    /// Fails the `nth` request of this kind from now on (1 is the next), once.
    pub fn fail(&self, op: IscsiOp, nth: u64, errno: Errno) {
        self.inner.change(|kernel| kernel.faults.failing.push((op, nth.max(1), errno)));
    }

    /// Makes requests of this kind wait, until [`FakeHost::resume`].
    pub fn pause(&self, op: IscsiOp) {
        self.inner.change(|kernel| kernel.faults.paused.insert(format!("{op:?}")));
    }

    /// Lets requests of this kind go on.
    pub fn resume(&self, op: IscsiOp) {
        self.inner.change(|kernel| kernel.faults.paused.remove(&format!("{op:?}")));
    }

    /// Returns `true` if a request of this kind waits at a [`FakeHost::pause`].
    pub fn is_paused(&self, op: IscsiOp) -> bool {
        self.inner.lock().faults.waiting.contains(&format!("{op:?}"))
    }

    /// Sets a hook that runs before each request, on the thread that makes it; it may panic. `None`
    /// removes it.
    pub fn set_before(&self, hook: Option<BeforeRequest>) {
        *self.inner.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook.map(Arc::from);
    }

    /// Lets the daemon die before its `nth` request from now on (1 is the next). That and all later
    /// requests do nothing and return ECANCELED, until [`FakeHost::uncrash`]. The process
    /// ([`FakeHost::process`]) that made the request is dead: its streams are deaf, and its writes
    /// below `/sys` return ECANCELED too.
    pub fn crash_at(&self, nth: u64) {
        self.inner.change(|kernel| kernel.faults.crash_at = Some(kernel.faults.ops + nth.max(1)));
    }

    /// Lets the daemon die right after its `nth` request from now on, which is done; otherwise as
    /// [`FakeHost::crash_at`].
    pub fn crash_after(&self, nth: u64) {
        self.inner.change(|kernel| kernel.faults.crash_after = Some(kernel.faults.ops + nth.max(1)));
    }

    /// Lets this process die now.
    pub fn crash(&self) {
        self.inner.change(|kernel| kernel.crash(&self.process));
    }

    /// Returns `true` if a crash has happened.
    pub fn crashed(&self) -> bool {
        self.inner.lock().faults.crashed
    }

    /// Lets a new daemon begin, on this handle or on one of a new process; a crash that has not
    /// happened yet is called off.
    pub fn uncrash(&self) {
        self.inner.change(|kernel| {
            self.process.dead.store(false, Ordering::SeqCst);
            kernel.faults.crashed = false;
            kernel.faults.crash_at = None;
            kernel.faults.crash_after = None;
        });
    }
}

#[cfg(test)]
mod tests;
