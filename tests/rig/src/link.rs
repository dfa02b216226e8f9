//! The rig's end of the command channel: many commands and transfers over one socket.
//!
//! What must never happen here: a caller that waits for a VM that is gone. When the socket ends,
//! every open channel learns it.

use std::collections::HashMap;
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_guest::wire::{self, CHUNK, Ended, Frame, Hello, Kind};

use crate::lock;

/// Time that a write may wait for a guest that does not read; then the link is given up.
const WRITE_LIMIT: Duration = Duration::from_mins(1);

/// The end of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The guest reported the end.
    Ended(Ended),
    /// The guest could not do it; the text is its reason.
    Failed(String),
    /// The VM is gone.
    Gone,
}

/// Data received over a channel.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pid: Option<u32>,
    pub(crate) end: Option<End>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }
}

/// The connection to one boot of one VM.
#[derive(Debug)]
pub(crate) struct Link {
    writer: Mutex<UnixStream>,
    open: Mutex<HashMap<u32, Arc<Shared>>>,
    next: AtomicU32,
    gone: AtomicBool,
    hello: Mutex<Option<Hello>>,
    said_hello: Condvar,
}

impl Link {
    /// Serves this socket until it ends.
    pub(crate) fn start(stream: UnixStream) -> Result<Arc<Self>> {
        stream.set_write_timeout(Some(WRITE_LIMIT)).context("set a limit on writes to the guest")?;
        let reader = stream.try_clone().context("duplicate the command socket")?;
        let link = Arc::new(Self {
            writer: Mutex::new(stream),
            open: Mutex::default(),
            next: AtomicU32::new(1),
            gone: AtomicBool::new(false),
            hello: Mutex::default(),
            said_hello: Condvar::new(),
        });
        let reading = Arc::clone(&link);
        thread::Builder::new().name("guest-link".to_owned()).spawn(move || reading.read(reader))?;
        Ok(link)
    }

    /// Returns `true` if the VM at the other end has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Waits until the guest is ready for commands.
    pub(crate) fn wait_hello(&self, limit: Duration) -> Option<Hello> {
        let hello = lock(&self.hello);
        let waiting = |hello: &mut Option<Hello>| hello.is_none() && !self.is_gone();
        let (hello, _) =
            self.said_hello.wait_timeout_while(hello, limit, waiting).unwrap_or_else(PoisonError::into_inner);
        hello.clone()
    }

    /// Opens a channel with its first frame.
    pub(crate) fn open(self: &Arc<Self>, kind: Kind, payload: &[u8]) -> Result<Channel> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::default());
        lock(&self.open).insert(id, Arc::clone(&shared));
        if self.is_gone() {
            lock(&self.open).remove(&id);
            bail!("the VM is gone");
        }
        let channel = Channel { id, link: Arc::clone(self), shared };
        channel.send(kind, payload)?;
        Ok(channel)
    }

    fn read(&self, stream: UnixStream) {
        let mut reader = BufReader::with_capacity(CHUNK, stream);
        loop {
            match wire::read_frame(&mut reader) {
                Ok(Some(frame)) => self.take(frame),
                Ok(None) => break,
                Err(e) => {
                    // A killed VM ends its stream anywhere; that is not worth a message.
                    if !matches!(e, wire::WireError::Io(_)) {
                        eprintln!("rig: {e}");
                    }
                    break;
                }
            }
        }
        self.gone.store(true, Ordering::SeqCst);
        for (_, shared) in lock(&self.open).drain() {
            shared.update(|state| state.end = Some(End::Gone));
        }
        let _hello = lock(&self.hello);
        self.said_hello.notify_all();
    }

    fn take(&self, frame: Frame) {
        let Frame { channel, kind, payload } = frame;
        if kind == Kind::Hello {
            *lock(&self.hello) = serde_json::from_slice(&payload).ok();
            self.said_hello.notify_all();
            return;
        }
        let end = match kind {
            Kind::Ended => {
                Some(serde_json::from_slice(&payload).map_or_else(|e| End::Failed(e.to_string()), End::Ended))
            }
            Kind::Failed => Some(End::Failed(String::from_utf8_lossy(&payload).into_owned())),
            _ => None,
        };
        let mut open = lock(&self.open);
        let shared = if end.is_some() { open.remove(&channel) } else { open.get(&channel).cloned() };
        drop(open);
        // Processes that a command left behind send frames for its ended channel.
        let Some(shared) = shared else { return };
        shared.update(|state| match kind {
            Kind::Stdout => state.stdout.extend_from_slice(&payload),
            Kind::Stderr => state.stderr.extend_from_slice(&payload),
            Kind::Started => state.pid = String::from_utf8_lossy(&payload).parse().ok(),
            _ => state.end = end,
        });
    }
}

/// One command or transfer.
#[derive(Debug)]
pub(crate) struct Channel {
    id: u32,
    link: Arc<Link>,
    shared: Arc<Shared>,
}

impl Channel {
    /// Sends one frame. A link that does not take all of it is broken inside a frame, and is given
    /// up.
    pub(crate) fn send(&self, kind: Kind, payload: &[u8]) -> Result<()> {
        let mut writer = lock(&self.link.writer);
        if let Err(e) = wire::write_frame(&mut *writer, self.id, kind, payload) {
            let _ = writer.shutdown(std::net::Shutdown::Both);
            return Err(e).context("send to the guest");
        }
        Ok(())
    }

    /// Sends bytes in chunks, so that other channels get their turn in between.
    pub(crate) fn data(&self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(CHUNK).try_for_each(|chunk| self.send(Kind::Data, chunk))
    }

    /// Tells the guest that no more bytes follow.
    pub(crate) fn end_of_data(&self) -> Result<()> {
        self.send(Kind::Data, &[])
    }

    /// The data received so far.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }

    /// Waits until the channel has ended, the deadline has passed, or `enough` returns `true`; then
    /// returns the state.
    pub(crate) fn wait(
        &self,
        deadline: Option<Instant>,
        enough: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while state.end.is_none() && !enough(&state) {
            // Without a deadline, wake up now and then, which costs nothing.
            let left =
                deadline.map_or(Duration::from_hours(1), |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: &mut UnixStream, channel: u32, kind: Kind, payload: &[u8]) {
        wire::write_frame(to, channel, kind, payload).unwrap();
    }

    #[test]
    fn channels_get_their_own_and_all_learn_that_the_vm_is_gone() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let link = Link::start(ours).unwrap();
        frame(&mut guest, 0, Kind::Hello, br#"{"name":"a","kernel":"6","uptime":1.5}"#);
        assert_eq!(link.wait_hello(Duration::from_secs(5)).unwrap().name, "a");
        let one = link.open(Kind::Spawn, b"{}").unwrap();
        let two = link.open(Kind::Spawn, b"{}").unwrap();
        frame(&mut guest, two.id, Kind::Stdout, b"two");
        frame(&mut guest, one.id, Kind::Stderr, b"one");
        frame(&mut guest, 999, Kind::Stdout, b"nobody");
        frame(&mut guest, two.id, Kind::Ended, br#"{"code":3,"signal":null,"truncated":false}"#);
        let state = two.wait(None, |_| false);
        assert_eq!((state.stdout.as_slice(), state.stderr.as_slice()), (&b"two"[..], &b""[..]));
        assert_eq!(state.end, Some(End::Ended(Ended { code: Some(3), ..Ended::default() })));
        drop(state);
        drop(guest);
        assert_eq!(one.wait(None, |_| false).end, Some(End::Gone));
        assert!(link.is_gone());
        assert!(link.open(Kind::Spawn, b"{}").is_err());
    }

    #[test]
    fn a_wait_has_its_limit() {
        let (ours, _guest) = UnixStream::pair().unwrap();
        let link = Link::start(ours).unwrap();
        assert!(link.wait_hello(Duration::from_millis(20)).is_none());
        let channel = link.open(Kind::Spawn, b"{}").unwrap();
        assert!(channel.wait(Some(Instant::now() + Duration::from_millis(20)), |_| false).end.is_none());
    }
}
