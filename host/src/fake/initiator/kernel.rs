//! Requests of NETLINK_ISCSI on a fake kernel, with the rules and error numbers of 6.1, and the
//! thread that reads a bound socket as `iscsi_tcp` does.
//!
//! What must never happen here: an answer that is kinder than the kernel's; a lock held while a
//! socket is written.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::FakeHost;
use super::pdu::{NO_TAG, Pdu, opcode};
use super::state::{
    Connection, ConnectionState, Inner, Kernel, Queue, Session, SessionState, Socket, TargetState,
};
use super::target::target_at;
use crate::{
    HEADER_BYTES, IscsiError, IscsiEvent, IscsiEvents, IscsiKernel, IscsiOp, IscsiParam, KernelSession,
    LOGIN_DATA_BYTES_MAX, StopMode,
};

/// `ISCSI_ERR_BAD_OPCODE`, `_DATALEN`, `_CONN_FAILED`, `_XMIT_FAILED`, `_TCP_CONN_CLOSE`.
const BAD_OPCODE: u32 = 1005;
const DATA_LENGTH: u32 = 1006;
const CONNECTION_FAILED: u32 = 1011;
const TRANSMIT_FAILED: u32 = 1019;
const TCP_CLOSED: u32 = 1020;

impl FakeHost {
    /// Runs one request: the hook, the faults, then its work.
    fn request<T>(
        &self,
        op: IscsiOp,
        sid: Option<u32>,
        act: impl FnOnce(&mut Kernel) -> Result<T, Errno>,
    ) -> Result<T, IscsiError> {
        let hook = self.inner.hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook(&op);
        }
        self.admit(op)
            .and_then(|number| {
                self.inner.change(|kernel| {
                    let result = act(kernel);
                    if kernel.faults.crash_after == Some(number) {
                        kernel.crash(&self.process);
                        return Err(Errno::ECANCELED);
                    }
                    result
                })
            })
            .map_err(|errno| IscsiError { op, sid, errno })
    }

    /// Counts a request, waits while it is paused, and fails it if a fault says so.
    fn admit(&self, op: IscsiOp) -> Result<u64, Errno> {
        let name = format!("{op:?}");
        let number = self.inner.change(|kernel| {
            kernel.faults.ops += 1;
            let number = kernel.faults.ops;
            if kernel.faults.crash_at == Some(number) {
                kernel.crash(&self.process);
            }
            number
        });
        let mut kernel = self.inner.lock();
        if kernel.faults.paused.contains(&name) {
            drop(kernel);
            self.inner.change(|kernel| kernel.faults.waiting.insert(name.clone()));
            kernel = self.inner.lock();
            while kernel.faults.paused.contains(&name) {
                kernel = self.inner.wait(kernel);
            }
            kernel.faults.waiting.remove(&name);
        }
        if kernel.faults.crashed || self.process.is_dead() {
            return Err(Errno::ECANCELED);
        }
        let mut fault = None;
        kernel.faults.failing.retain_mut(|(failing, left, errno)| {
            if *failing == op {
                *left -= 1;
                if *left == 0 {
                    fault = Some(*errno);
                }
            }
            *left > 0
        });
        fault.map_or(Ok(number), Err)
    }
}

impl IscsiKernel for FakeHost {
    fn create_session(&self, commands_max: u16, _queue_depth: u16) -> Result<KernelSession, IscsiError> {
        self.request(IscsiOp::CreateSession, None, |kernel| {
            if !commands_max.is_power_of_two() || !(16..=4096).contains(&commands_max) {
                return Err(Errno::EINVAL);
            }
            kernel.last_sid += 1;
            let sid = kernel.last_sid;
            // The lowest number that no SCSI host has; 0 and 1 belong to the machine's own disks.
            let taken = |host: u32| kernel.sessions.values().any(|session| session.ids.host == host);
            let host = (2..u32::MAX).find(|host| !taken(*host)).ok_or(Errno::ENOMEM)?;
            let ids = KernelSession { sid, host };
            kernel.sessions.insert(sid, Session::new(ids));
            kernel.tell(&IscsiEvent::Created(ids));
            Ok(ids)
        })
    }

    fn create_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.request(IscsiOp::CreateConnection, Some(sid), |kernel| {
            let session = kernel.session(sid)?;
            if session.connection.is_some() {
                return Err(Errno::ENOMEM);
            }
            session.connection = Some(Connection {
                state: ConnectionState::Down,
                socket: None,
                cleanup: false,
                recovering: false,
                next_tag: 0,
                login_outstanding: false,
                status_number: 0,
            });
            Ok(())
        })
    }

    fn bind_connection(&self, sid: u32, socket: &TcpStream) -> Result<(), IscsiError> {
        let inner = Arc::downgrade(&self.inner);
        self.request(IscsiOp::BindConnection, Some(sid), |kernel| {
            let id = kernel.last_socket + 1;
            let connection = kernel.connection(sid)?;
            if connection.cleanup {
                return Err(Errno::ENOTCONN);
            }
            // The kernel would take the new socket and forget the old one with its readers: a
            // mistake of the caller.
            if connection.socket.is_some() {
                return Err(Errno::EINVAL);
            }
            connection.socket = Some(take_socket(socket, id, sid, inner).map_err(|_| Errno::EINVAL)?);
            connection.state = ConnectionState::Bound;
            connection.login_outstanding = false;
            kernel.last_socket = id;
            Ok(())
        })
    }

    fn set_param(&self, sid: u32, param: IscsiParam, value: &str) -> Result<(), IscsiError> {
        self.request(IscsiOp::SetParam(param), Some(sid), |kernel| {
            if value.contains('\0') || value.len() >= 4096 {
                return Err(Errno::EINVAL);
            }
            let connection = kernel.connection(sid)?;
            let live = matches!(connection.state, ConnectionState::Bound | ConnectionState::Up);
            if param == IscsiParam::ExpStatsn && live {
                connection.status_number = value.parse().map_err(|_| Errno::EINVAL)?;
            }
            let session = kernel.session(sid)?;
            if param == IscsiParam::SessRecoveryTmo {
                if !session.recovery_overridden {
                    session.recovery_timeout = value.parse().map_err(|_| Errno::EINVAL)?;
                }
                return Ok(());
            }
            if !live {
                return Err(Errno::ENOTCONN);
            }
            session.params.insert(param as u32, value.to_owned());
            Ok(())
        })
    }

    fn send_pdu(&self, sid: u32, header: &[u8; HEADER_BYTES], data: &[u8]) -> Result<(), IscsiError> {
        let mut pdu = Pdu { header: *header, data: data.to_vec() };
        let (stream, id) =
            self.request(IscsiOp::SendPdu, Some(sid), |kernel| kernel.prepare(sid, &mut pdu))?;
        // The kernel queues a PDU and sends it by itself: a failure comes as an event.
        if (&*stream).write_all(&pdu.bytes()).is_err() {
            self.inner.change(|kernel| kernel.fail_connection(sid, Some(id), TRANSMIT_FAILED));
        }
        Ok(())
    }

    fn start_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.request(IscsiOp::StartConnection, Some(sid), |kernel| {
            let connection = kernel.connection(sid)?;
            if connection.cleanup {
                return Err(Errno::ENOTCONN);
            }
            // The kernel does not check this; a session without a connection would be a mistake of
            // the caller.
            if connection.state != ConnectionState::Bound {
                return Err(Errno::EINVAL);
            }
            let session = kernel.session(sid)?;
            let number = |param| session.param(param).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            let unsolicited =
                number(IscsiParam::ImmDataEn) != 0 || session.param(IscsiParam::InitialR2tEn) == Some("0");
            if unsolicited && number(IscsiParam::FirstBurst) > number(IscsiParam::MaxBurst) {
                return Err(Errno::EINVAL);
            }
            session.state = SessionState::LoggedIn;
            session.logging_out = false;
            session.terminated = false;
            let connection = kernel.connection(sid)?;
            connection.state = ConnectionState::Up;
            connection.recovering = false;
            Ok(())
        })
    }

    fn stop_connection(&self, sid: u32, mode: StopMode) -> Result<(), IscsiError> {
        self.request(IscsiOp::StopConnection, Some(sid), |kernel| {
            let connection = kernel.connection(sid)?;
            connection.socket = None;
            match mode {
                StopMode::Terminate => {
                    connection.state = ConnectionState::Down;
                    kernel.session(sid)?.terminated = true;
                }
                StopMode::Recover => {
                    connection.state = ConnectionState::Failed;
                    connection.cleanup = false;
                    kernel.block(sid)?;
                }
            }
            Ok(())
        })
    }

    fn destroy_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.request(IscsiOp::DestroyConnection, Some(sid), |kernel| {
            kernel.connection(sid)?;
            let session = kernel.session(sid)?;
            session.connection = None;
            session.terminated = true;
            Ok(())
        })
    }

    fn unbind_session(&self, sid: u32) -> Result<(), IscsiError> {
        self.request(IscsiOp::UnbindSession, Some(sid), |kernel| {
            let session = kernel.session(sid)?;
            let host = self.clone();
            if matches!(session.target_state, TargetState::Allocated | TargetState::Scanned) {
                session.target_state = TargetState::Unbinding;
                // The kernel does this in work of its own; the request does not wait for it.
                thread::spawn(move || host.unbind(sid));
            }
            Ok(())
        })
    }

    fn destroy_session(&self, sid: u32) -> Result<(), IscsiError> {
        self.request(IscsiOp::DestroySession, Some(sid), |kernel| {
            let session = kernel.session(sid)?;
            if session.connection.is_some() {
                return Err(Errno::EBUSY);
            }
            session.doomed = true;
            session.state = SessionState::Free;
            let host = self.clone();
            thread::spawn(move || host.destroy(sid));
            Ok(())
        })
    }
}

impl FakeHost {
    fn unbind(&self, sid: u32) {
        self.remove_disks(sid);
        self.inner.change(|kernel| {
            if let Some(session) = kernel.sessions.get_mut(&sid) {
                session.target_state = TargetState::Unbound;
                let ids = session.ids;
                kernel.tell(&IscsiEvent::Unbound(ids));
            }
        });
    }

    fn destroy(&self, sid: u32) {
        self.remove_disks(sid);
        self.inner.change(|kernel| {
            if let Some(session) = kernel.sessions.remove(&sid) {
                kernel.tell(&IscsiEvent::Destroyed(session.ids));
            }
        });
    }
}

impl Session {
    fn new(ids: KernelSession) -> Self {
        Self {
            ids,
            state: SessionState::Free,
            target_state: TargetState::Allocated,
            doomed: false,
            logging_out: false,
            terminated: false,
            params: std::collections::BTreeMap::new(),
            recovery_timeout: 120,
            recovery_overridden: false,
            creator: -1,
            command_number: 1,
            connection: None,
            disks: std::collections::BTreeMap::new(),
        }
    }
}

impl Kernel {
    /// Blocks a session whose connection is stopped for recovery, once.
    fn block(&mut self, sid: u32) -> Result<(), Errno> {
        let session = self.session(sid)?;
        session.params.remove(&(IscsiParam::HdrdgstEn as u32));
        session.params.remove(&(IscsiParam::DatadgstEn as u32));
        let Some(connection) = session.connection.as_mut() else { return Err(Errno::EINVAL) };
        if !std::mem::replace(&mut connection.recovering, true) {
            session.state = SessionState::Failed;
        }
        Ok(())
    }

    /// Fills in the kernel's fields of a PDU, and returns the socket to write to.
    fn prepare(&mut self, sid: u32, pdu: &mut Pdu) -> Result<(Arc<TcpStream>, u64), Errno> {
        let connection = self.connection(sid)?;
        if connection.cleanup {
            return Err(Errno::ENOTCONN);
        }
        let socket = connection.socket.as_ref().ok_or(Errno::EPERM)?;
        let (stream, id) = (Arc::clone(&socket.stream), socket.id);
        let tag = connection.next_tag;
        let status = connection.status_number;
        let outstanding = connection.login_outstanding;
        connection.next_tag = (tag + 1) % 0x7f;
        let session = self.session(sid)?;
        if session.terminated {
            return Err(Errno::EPERM);
        }
        match pdu.opcode() {
            opcode::LOGIN | opcode::TEXT if pdu.data.len() > LOGIN_DATA_BYTES_MAX => {
                return Err(Errno::EPERM);
            }
            opcode::LOGIN | opcode::TEXT if outstanding => return Err(Errno::EPERM),
            opcode::LOGIN | opcode::TEXT => {
                session.connection.as_mut().ok_or(Errno::EINVAL)?.login_outstanding = true;
            }
            _ if session.state != SessionState::LoggedIn || !pdu.data.is_empty() => return Err(Errno::EPERM),
            _ if session.logging_out => return Err(Errno::EPERM),
            other => {
                pdu.set(28, &status.to_be_bytes());
                session.logging_out |= other == opcode::LOGOUT;
            }
        }
        if pdu.tag() != NO_TAG {
            pdu.set(16, &tag.to_be_bytes());
        }
        pdu.set(24, &session.command_number.to_be_bytes());
        Ok((stream, id))
    }

    /// Breaks a connection: the kernel stops it for recovery, blocks its session and sends an
    /// event. With `socket` only the connection that has this socket breaks.
    pub(super) fn fail_connection(&mut self, sid: u32, socket: Option<u64>, error: u32) {
        let Ok(session) = self.session(sid) else { return };
        let logging_out = session.logging_out;
        let Some(connection) = session.connection.as_mut() else { return };
        let current = connection.socket.as_ref().map(|socket| socket.id);
        if current.is_none() || socket.is_some_and(|id| Some(id) != current) {
            return;
        }
        if logging_out && error == TCP_CLOSED {
            return;
        }
        connection.socket = None;
        connection.cleanup = true;
        connection.state = ConnectionState::Failed;
        let _ = self.block(sid);
        self.tell(&IscsiEvent::ConnectionError { sid, cid: 0, error });
    }

    /// Handles a received PDU as the kernel does. Returns a PDU to send; `None` if there is none.
    fn receive(&mut self, sid: u32, id: u64, pdu: Pdu) -> Option<Pdu> {
        let command_number = self.session(sid).ok()?.command_number;
        let connection = self.connection(sid).ok()?;
        if connection.socket.as_ref()?.id != id {
            return None;
        }
        let status = pdu.word(24);
        match pdu.opcode() {
            opcode::LOGIN_RESPONSE | opcode::TEXT_RESPONSE | opcode::LOGOUT_RESPONSE | opcode::ASYNC => {
                if matches!(pdu.opcode(), opcode::LOGOUT_RESPONSE | opcode::ASYNC) {
                    connection.status_number = status.wrapping_add(1);
                } else {
                    connection.login_outstanding = false;
                }
                let event = IscsiEvent::Pdu { sid, cid: 0, header: pdu.header, data: pdu.data };
                if !self.tell(&event) {
                    self.fail_connection(sid, Some(id), CONNECTION_FAILED);
                }
                None
            }
            opcode::NOP_IN if pdu.word(20).to_be_bytes() != NO_TAG => {
                let mut answer = Pdu::new(0x40 | opcode::NOP_OUT);
                answer.header[1] = 0x80;
                answer.set(8, &pdu.header[8..16]);
                answer.set(16, &NO_TAG);
                answer.set(20, &pdu.header[20..24]);
                answer.set(24, &command_number.to_be_bytes());
                answer.set(28, &connection.status_number.to_be_bytes());
                Some(answer)
            }
            // The answer to a ping of the kernel's own, and rejects, end here.
            opcode::NOP_IN | opcode::REJECT => None,
            _ => {
                self.fail_connection(sid, Some(id), BAD_OPCODE);
                None
            }
        }
    }
}

/// Takes a reference of a socket, and reads the socket on a thread of its own.
fn take_socket(socket: &TcpStream, id: u64, sid: u32, inner: Weak<Inner>) -> io::Result<Socket> {
    let stream = Arc::new(socket.try_clone()?);
    // The kernel would not look at bytes that came before it had the socket, until more come.
    stream.set_nonblocking(true)?;
    if stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // The flags belong to the connection: the caller's descriptor gets them too, but must not use
    // it any more.
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(Some(Duration::from_secs(15)))?;
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    let (wake, woken) = UnixStream::pair()?;
    let mut reader = Reader { stream: Arc::clone(&stream), woken };
    thread::Builder::new().name("fake-iscsi-tcp".to_owned()).spawn(move || {
        loop {
            let read = Pdu::read(&mut reader, LOGIN_DATA_BYTES_MAX);
            let Some(inner) = inner.upgrade() else { return };
            match read {
                Ok(pdu) => {
                    if let Some(answer) = inner.change(|kernel| kernel.receive(sid, id, pdu)) {
                        let _ = (&*reader.stream).write_all(&answer.bytes());
                    }
                }
                Err(error) => {
                    let long = error.kind() == io::ErrorKind::InvalidData;
                    let error = if long { DATA_LENGTH } else { TCP_CLOSED };
                    inner.change(|kernel| kernel.fail_connection(sid, Some(id), error));
                    return;
                }
            }
        }
    })?;
    Ok(Socket { id, stream, target: target_at(peer), local, peer, _wake: wake })
}

/// A socket whose reads end when the kernel gives the socket up.
struct Reader {
    stream: Arc<TcpStream>,
    woken: UnixStream,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut both = [
                PollFd::new(self.stream.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
            ];
            match nix::poll::poll(&mut both, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(_) if both[1].any() == Some(true) => return Ok(0),
                Ok(_) => return (&*self.stream).read(buffer),
            }
        }
    }
}

/// One listener's events: [`FakeHost::events`].
pub struct FakeIscsiEvents {
    pub(super) queue: Arc<Queue<IscsiEvent>>,
}

impl IscsiEvents for FakeIscsiEvents {
    fn next(&mut self, wait: Duration) -> Result<Option<IscsiEvent>, IscsiError> {
        Ok(self.queue.next(wait))
    }
}
