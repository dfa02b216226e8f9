//! Keeps the files that the next agent needs of this one: the lock of its state folder and the
//! sockets that it listens on. The kernel closes a table of files with the last thread that has it.
//! A thread in a call that does not return (lio.md, m) cannot be killed. So these files are in the
//! table of one thread, which makes no such call: killed, it is gone at once, and all of them with
//! it. It hands each connection over to the other threads' table.
//!
//! What must never happen here: the lock released while this process does anything else; a call
//! that waits for a disk of a volume; one of these files in the table of the others, or one of
//! theirs in this.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::lock::{LockError, LockFile};
use crate::sys;

/// Pause after an accept that failed (no memory, no place for a file).
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Reason why there is no such thread.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The thread or its socket could not be made.
    #[error("cannot start the thread that holds the lock and listens")]
    Start(#[source] io::Error),
    /// The kernel gives a thread no table of its own (5.9 and newer do).
    #[error("cannot give the thread that holds the lock a table of files of its own (Linux 5.9 and newer)")]
    Table(#[source] Errno),
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// A unix socket.
    Unix(UnixListener),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Unix(listener) => listener.accept()?.0.into(),
            Self::Tcp(listener) => listener.accept()?.0.into(),
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

type Order = Box<dyn FnOnce(&mut Inside) + Send>;

/// Files and state of the thread.
struct Inside {
    out: OwnedFd,
    lock: Option<LockFile>,
    listeners: Vec<Listener>,
}

/// Handle of the thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub struct Front(Arc<Shared>);

struct Shared {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    /// End of the socket that is in the common table; `None` after it was taken.
    incoming: Mutex<Option<UnixStream>>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Front")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        *self.incoming.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.orders = None;
        // The one that drops the last handle finds the lock free.
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Front {
    /// Starts the thread.
    pub fn new() -> Result<Self, FrontError> {
        let (ours, its) = UnixStream::pair().map_err(FrontError::Start)?;
        let (orders, taken) = channel();
        let (ready, started) = sync_channel(1);
        let number = its.as_raw_fd();
        let work = move || {
            let ran = catch_unwind(AssertUnwindSafe(|| run(number, |table| ready.send(table), &taken)));
            if ran.is_err() {
                // The lock is free, and everything else would go on as if it were not.
                std::process::abort();
            }
        };
        let thread = Builder::new().name("front".to_owned()).spawn(work).map_err(FrontError::Start)?;
        let gone = |_| FrontError::Start(io::ErrorKind::BrokenPipe.into());
        started.recv().map_err(gone)?.map_err(FrontError::Table)?;
        // The thread has its own copy by now.
        drop(its);
        let incoming = Mutex::new(Some(ours));
        Ok(Self(Arc::new(Shared { orders: Some(orders), thread: Some(thread), incoming })))
    }

    fn order(&self, order: Order) {
        let sent = self.0.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        if !sent {
            // Without the thread there is no lock.
            std::process::abort();
        }
    }

    /// Runs this on the thread, and waits for it.
    fn inside<T: Send + 'static>(&self, work: impl FnOnce(&mut Inside) -> T + Send + 'static) -> T {
        let (done, answer) = sync_channel(1);
        self.order(Box::new(move |inside| drop(done.send(work(inside)))));
        answer.recv().unwrap_or_else(|_| std::process::abort())
    }

    /// Takes a lock, or returns its holder at once: [`LockFile::acquire`]. Returns the process that
    /// has held it last. `None` if it is not known.
    pub fn lock(&self, path: &Path) -> Result<Option<u32>, LockError> {
        let path = path.to_owned();
        self.inside(move |inside| {
            let lock = LockFile::acquire(path)?;
            let before = lock.before();
            inside.lock = Some(lock);
            Ok(before)
        })
    }

    /// Listens at the socket that `bind` makes. Returns its number, counted from 0. Connections
    /// wait until [`Front::open`].
    ///
    /// # Errors
    /// Those of `bind`; EMFILE beyond 256 sockets.
    pub fn listen<E: From<io::Error> + Send + 'static>(
        &self,
        bind: impl FnOnce() -> Result<Listener, E> + Send + 'static,
    ) -> Result<u8, E> {
        self.inside(move |inside| {
            let full = |_| io::Error::from(Errno::EMFILE);
            let number = u8::try_from(inside.listeners.len()).map_err(full)?;
            let listener = bind()?;
            listener.set_nonblocking()?;
            inside.listeners.push(listener);
            Ok(number)
        })
    }

    /// Begins to hand connections over, until the result is dropped: then nobody listens any more.
    /// `None` if it was called before.
    pub fn open(&self) -> Option<Incoming> {
        let socket = self.0.incoming.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.order(Box::new(Inside::accept));
        Some(Incoming { socket, front: self.clone() })
    }
}

fn run<E>(out: RawFd, ready: impl FnOnce(Result<(), Errno>) -> Result<(), E>, orders: &Receiver<Order>) {
    let out = match sys::own_files(out) {
        Ok(out) => out,
        Err(errno) => return drop(ready(Err(errno))),
    };
    let mut inside = Inside { out, lock: None, listeners: Vec::new() };
    drop(ready(Ok(())));
    while let Ok(order) = orders.recv() {
        order(&mut inside);
    }
}

impl Inside {
    /// Accepts until the other end is closed.
    fn accept(&mut self) {
        let listeners = std::mem::take(&mut self.listeners);
        loop {
            let mut waited = vec![PollFd::new(self.out.as_fd(), PollFlags::empty())];
            waited.extend(listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
            match poll(&mut waited, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot wait for connections; trying again");
                    std::thread::sleep(ACCEPT_AGAIN);
                }
            }
            let came = |waited: &PollFd<'_>| waited.any().unwrap_or(false);
            let mut waited = waited.iter();
            if waited.next().is_some_and(came) {
                return;
            }
            let ready = (0_u8..).zip(&listeners).zip(waited).filter(|(_, waited)| came(waited));
            for ((number, listener), _) in ready {
                match listener.accept() {
                    Ok(caller) => self.hand_over(number, &caller),
                    // The caller has gone again.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot take a connection");
                        std::thread::sleep(ACCEPT_AGAIN);
                    }
                }
            }
        }
    }

    fn hand_over(&self, number: u8, caller: &OwnedFd) {
        let files = [caller.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        let byte = [number];
        let sent = sendmsg::<()>(
            self.out.as_raw_fd(),
            &[IoSlice::new(&byte)],
            &rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        match sent {
            // Closed at the other end: the next look sees it.
            Ok(_) | Err(Errno::EPIPE) => {}
            Err(error) => tracing::warn!(%error, "cannot hand a connection over: it is closed"),
        }
    }
}

/// The stream of connections. `socket` is closed first of its fields: the thread ends when nobody
/// has the front, and by then it has seen that.
#[derive(Debug)]
pub struct Incoming {
    /// Socket for [`next_caller`], to be read when it is readable.
    pub socket: UnixStream,
    /// Handle to keep for longer than the socket.
    pub front: Front,
}

/// Returns the next connection, and the number of its listener; `None` at the end. Never waits.
///
/// # Errors
/// `WouldBlock`: nobody is there. EMFILE: one was lost, this process has too many files.
pub fn next_caller(socket: impl AsFd) -> io::Result<Option<(u8, OwnedFd)>> {
    Ok(sys::receive_file(socket.as_fd())?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc;

    use super::*;

    /// Listens where nobody else does: a port that is closed stays closed.
    fn tcp(front: &Front) -> std::net::SocketAddr {
        let (sender, bound) = mpsc::channel();
        let bind = move || {
            let listener = TcpListener::bind("127.0.98.1:0")?;
            sender.send(listener.local_addr()?).unwrap();
            Ok::<_, io::Error>(Listener::Tcp(listener))
        };
        front.listen(bind).unwrap();
        bound.recv().unwrap()
    }

    fn next(incoming: &Incoming) -> (u8, OwnedFd) {
        poll(&mut [PollFd::new(incoming.socket.as_fd(), PollFlags::POLLIN)], PollTimeout::from(5000_u16))
            .unwrap();
        next_caller(&incoming.socket).unwrap().unwrap()
    }

    /// Lists the names that this thread has open.
    fn open_here() -> Vec<String> {
        let links = std::fs::read_dir("/proc/thread-self/fd").unwrap();
        let name = |link: io::Result<std::fs::DirEntry>| std::fs::read_link(link.unwrap().path()).ok();
        links.filter_map(name).map(|name| name.display().to_string()).collect()
    }

    #[test]
    fn the_lock_is_the_threads_and_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let here = || open_here().iter().any(|name| *name == path.display().to_string());
        let front = Front::new().unwrap();
        assert_eq!(front.lock(&path).unwrap(), None);
        assert!(!here());
        let refused = Front::new().unwrap().lock(&path).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
        drop(front);
        let control = LockFile::acquire(&path).unwrap();
        assert!(here());
        drop(control);
        assert_eq!(Front::new().unwrap().lock(&path).unwrap(), Some(std::process::id()));
    }

    #[test]
    fn who_connects_is_handed_over_with_the_number_of_the_socket() {
        let front = Front::new().unwrap();
        let (first, second) = (tcp(&front), tcp(&front));
        let mut early = TcpStream::connect(second).unwrap();
        let incoming = front.open().unwrap();
        assert!(front.open().is_none());
        let (number, file) = next(&incoming);
        assert_eq!(number, 1);
        early.write_all(b"x").unwrap();
        let mut byte = [0];
        TcpStream::from(file).read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let _other = TcpStream::connect(first).unwrap();
        assert_eq!(next(&incoming).0, 0);
        assert_eq!(next_caller(&incoming.socket).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(incoming);
        // The thread is told, and closes them.
        front.inside(|inside| assert!(inside.listeners.is_empty()));
        assert!(TcpStream::connect(first).is_err());
    }

    #[test]
    fn what_others_have_open_is_not_open_there() {
        let (mut read, write) = std::io::pipe().unwrap();
        let front = Front::new().unwrap();
        drop(write);
        // With a copy of the other end anywhere, this would wait for ever.
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
        let open = front.inside(|_| open_here());
        let sockets = open.iter().filter(|name| name.starts_with("socket:")).count();
        assert!(sockets >= 1 && open.len() <= 5, "{open:?}");
    }

    #[test]
    fn a_socket_that_cannot_be_bound_is_the_callers_error() {
        let front = Front::new().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let error =
            front.listen(move || Ok::<_, io::Error>(Listener::Tcp(TcpListener::bind(at)?))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
