//! Requests to the kernel's initiator over a netlink socket: one request, its answer, the next.
//!
//! What must never happen here: two requests at once on one socket; an answer that came too late
//! for its own request and is taken for the next one's; a wait for an answer without an end.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use super::message::{Answer, Request};
use super::{HEADER_BYTES, IscsiError, IscsiKernel, IscsiOp, IscsiParam, KernelSession, StopMode};
use crate::netlink::{MESSAGE_BYTES_MAX, Netlink};

/// Folder of the loaded transports.
const TRANSPORTS: &str = "/sys/class/iscsi_transport";

/// The transport of `iscsi_tcp`.
const TRANSPORT: &str = "tcp";

/// Time to wait for an answer once a request was handed over. The kernel handles a request inside
/// of `sendmsg(2)`, so an answer is there when that returns, or never comes: a malformed request
/// gets none.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Pause of SEND_PDU before another try, and number of tries. The kernel reports a login response
/// before it frees the one login task. So a very quick next PDU finds it taken and gets EPERM from
/// the transport.
const LOGIN_TASK_WAIT: Duration = Duration::from_millis(1);
const LOGIN_TASK_TRIES: u32 = 10;

/// Maximum number of stale datagrams to throw away before a request: more are never there, since
/// every answer is read.
const STALE_MAX: usize = 64;

/// The netlink port id of the socket that makes sessions. The kernel shows it as a session's
/// `creator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortId {
    /// 0xFFFFFFFF: `creator` reads -1, as for sessions that the kernel made at boot, which a
    /// distribution's `iscsid` leaves alone when it starts. Only one socket of the machine can have
    /// it.
    Kernel,
    /// One that the kernel chooses. An `iscsid` that starts takes the sessions over: only for the
    /// control of a test.
    Ordinary,
}

impl PortId {
    fn number(self) -> u32 {
        match self {
            Self::Kernel => u32::MAX,
            Self::Ordinary => 0,
        }
    }
}

/// Reason why the kernel's initiator cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IscsiOpenError {
    /// Another process has the port id [`PortId::Kernel`]: a second session daemon. Not retried
    /// before that one ends.
    #[error(
        "another process already manages iSCSI sessions here (netlink port id 0xffffffff of NETLINK_ISCSI is taken)"
    )]
    PortTaken,
    /// The module is not loaded. Retry after loading it.
    #[error("the kernel has no iSCSI initiator for TCP: load it (modprobe {module})")]
    ModuleMissing {
        /// The module to load.
        module: &'static str,
    },
    /// Any other error.
    #[error("cannot {what}: {} ({errno:?})", .errno.desc())]
    Refused {
        /// Operation that failed.
        what: &'static str,
        /// The kernel's answer. EACCES or EPERM: CAP_SYS_ADMIN in the initial user namespace is
        /// missing.
        errno: Errno,
    },
}

impl IscsiOpenError {
    fn of_socket(what: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::EADDRINUSE => Self::PortTaken,
            // The kernel has tried to load the protocol's module by itself.
            Errno::EPROTONOSUPPORT => Self::ModuleMissing { module: MODULE },
            errno => Self::Refused { what, errno },
        }
    }

    /// Makes the error of a socket for events, whose port id the kernel chooses.
    pub(super) fn of_event_socket(errno: Errno) -> Self {
        Self::of_socket("open a netlink socket for iSCSI events", errno)
    }
}

/// Module of the initiator; it brings `scsi_transport_iscsi` along.
const MODULE: &str = "iscsi_tcp";

/// Loaded parts of the kernel's initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IscsiModules {
    /// `scsi_transport_iscsi`: NETLINK_ISCSI and the classes in sysfs.
    pub transport_class: bool,
    /// `iscsi_tcp`: the transport `tcp`.
    pub tcp: bool,
}

impl IscsiModules {
    /// Returns the module to load; `None` when nothing is missing.
    pub fn missing(self) -> Option<&'static str> {
        (!self.transport_class || !self.tcp).then_some(MODULE)
    }
}

/// Finds the initiator's modules that this machine has loaded.
pub fn iscsi_modules() -> IscsiModules {
    modules_at(Path::new(TRANSPORTS))
}

fn modules_at(transports: &Path) -> IscsiModules {
    IscsiModules { transport_class: transports.is_dir(), tcp: transports.join(TRANSPORT).is_dir() }
}

/// Reads the handle that every request to a transport carries. It changes when the module is loaded
/// anew.
fn read_handle(transports: &Path) -> Result<u64, IscsiOpenError> {
    let refused =
        |errno| IscsiOpenError::Refused { what: "read the handle of the iSCSI transport tcp", errno };
    let text = fs::read_to_string(transports.join(TRANSPORT).join("handle")).map_err(|error| match error
        .kind()
    {
        io::ErrorKind::NotFound => IscsiOpenError::ModuleMissing { module: MODULE },
        _ => refused(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
    })?;
    text.trim().parse().map_err(|_| refused(Errno::EBADMSG))
}

/// Carrier of messages: the socket, or a script in a test.
trait Wire {
    fn send(&mut self, message: &[u8]) -> Result<(), Errno>;
    fn receive<'b>(&mut self, buffer: &'b mut [u8], wait: Duration) -> Result<Option<&'b [u8]>, Errno>;
}

impl Wire for Netlink {
    fn send(&mut self, message: &[u8]) -> Result<(), Errno> {
        Netlink::send(self, message)
    }

    fn receive<'b>(&mut self, buffer: &'b mut [u8], wait: Duration) -> Result<Option<&'b [u8]>, Errno> {
        Netlink::receive(self, buffer, wait)
    }
}

/// Reason why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// No answer, or the interface refused it.
    Refused(Errno),
    /// The transport refused it.
    Transport(Errno),
}

impl Failure {
    fn errno(self) -> Errno {
        match self {
            Self::Refused(errno) | Self::Transport(errno) => errno,
        }
    }
}

/// The socket with the state of its requests.
#[derive(Debug)]
struct Channel<W> {
    wire: W,
    handle: u64,
    transports: PathBuf,
    buffer: Vec<u8>,
    answer_wait: Duration,
}

impl<W: Wire> Channel<W> {
    fn new(wire: W, transports: PathBuf) -> Result<Self, IscsiOpenError> {
        let handle = read_handle(&transports)?;
        Ok(Self { wire, handle, transports, buffer: vec![0; MESSAGE_BYTES_MAX], answer_wait: ANSWER_WAIT })
    }

    /// Sends one request and waits for its answer. Returns the first two numbers of the union r.
    fn ask(&mut self, request: &mut Request) -> Result<[u32; 2], Failure> {
        self.drain(request.op);
        self.wire.send(request.message(self.handle)).map_err(Failure::Refused)?;
        let begun = Instant::now();
        loop {
            let left = self.answer_wait.saturating_sub(begun.elapsed());
            let Some(datagram) = self.wire.receive(&mut self.buffer, left).map_err(Failure::Refused)? else {
                return Err(Failure::Refused(Errno::ETIME));
            };
            match request.answer(datagram) {
                Answer::Done(answer) => return Ok(answer),
                Answer::Refused(errno) => return Err(Failure::Refused(errno)),
                Answer::Transport(errno) => return Err(Failure::Transport(errno)),
                Answer::Foreign => {
                    tracing::warn!(op = ?request.op, "dropped an iSCSI answer to another request");
                    if begun.elapsed() >= self.answer_wait {
                        return Err(Failure::Refused(Errno::ETIME));
                    }
                }
            }
        }
    }

    /// Throws away the answers to requests that were given up: equal requests have equal answers.
    fn drain(&mut self, op: IscsiOp) {
        for _ in 0..STALE_MAX {
            match self.wire.receive(&mut self.buffer, Duration::ZERO) {
                Ok(None) => return,
                Ok(Some(_)) => tracing::warn!(before = ?op, "dropped a late iSCSI answer"),
                // ENOBUFS or an older error of the socket: reading it has cleared it.
                Err(errno) => tracing::warn!(before = ?op, ?errno, "the iSCSI socket had an error pending"),
            }
        }
    }

    /// Sends a request that makes an object of the transport itself. EINVAL may mean that the
    /// module was loaded anew: then the handle differs, and one more try is due. Requests about a
    /// session are not tried again. A session that was made through another handle has gone with
    /// it, and its number may be another session's now.
    fn ask_transport(&mut self, request: &mut Request) -> Result<[u32; 2], Failure> {
        let asked = self.ask(request);
        if asked != Err(Failure::Refused(Errno::EINVAL)) {
            return asked;
        }
        match read_handle(&self.transports) {
            Ok(handle) if handle != self.handle => {
                tracing::info!("the iSCSI transport was loaded anew");
                self.handle = handle;
                self.ask(request)
            }
            _ => asked,
        }
    }
}

/// The initiator of this machine's kernel.
#[derive(Debug)]
pub struct KernelIscsi {
    channel: Mutex<Channel<Netlink>>,
}

impl KernelIscsi {
    /// Opens the socket and reads the transport's handle. Needs CAP_SYS_ADMIN in the initial user
    /// namespace, and the initial network namespace: elsewhere every request answers ECONNREFUSED.
    pub fn open(port: PortId) -> Result<Self, IscsiOpenError> {
        let socket = Netlink::open(SockProtocol::NetlinkISCSI, port.number(), 0)
            .map_err(|errno| IscsiOpenError::of_socket("open a netlink socket for iSCSI", errno))?;
        Ok(Self { channel: Mutex::new(Channel::new(socket, PathBuf::from(TRANSPORTS))?) })
    }

    fn channel(&self) -> MutexGuard<'_, Channel<Netlink>> {
        // A panic between a request and its answer leaves a stale answer at worst, which is
        // drained.
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, mut request: Request) -> Result<[u32; 2], IscsiError> {
        let answer = self.channel().ask(&mut request);
        answer.map_err(|failure| failed(&request, failure))
    }

    fn tell(&self, request: Request) -> Result<(), IscsiError> {
        self.ask(request).map(|_| ())
    }
}

fn failed(request: &Request, failure: Failure) -> IscsiError {
    let error = IscsiError { op: request.op, sid: request.sid, errno: failure.errno() };
    tracing::debug!(%error, ?failure, "an iSCSI request failed");
    error
}

/// Sends a PDU, and repeats that while the transport answers EPERM: `ask` is one try. Between the
/// tries other requests may come.
fn send(mut ask: impl FnMut() -> Result<[u32; 2], Failure>, wait: Duration) -> Result<[u32; 2], Failure> {
    let mut tries = 1;
    loop {
        let asked = ask();
        if asked != Err(Failure::Transport(Errno::EPERM)) || tries == LOGIN_TASK_TRIES {
            return asked;
        }
        tries += 1;
        thread::sleep(wait);
    }
}

impl IscsiKernel for KernelIscsi {
    fn create_session(&self, commands_max: u16, queue_depth: u16) -> Result<KernelSession, IscsiError> {
        let mut request = Request::create_session(commands_max, queue_depth);
        let made = self.channel().ask_transport(&mut request);
        let [sid, host] = made.map_err(|failure| failed(&request, failure))?;
        Ok(KernelSession { sid, host })
    }

    fn create_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.tell(Request::create_connection(sid))
    }

    fn bind_connection(&self, sid: u32, socket: &TcpStream) -> Result<(), IscsiError> {
        let op = IscsiOp::BindConnection;
        let descriptor = u32::try_from(socket.as_raw_fd()).map_err(|_| IscsiError {
            op,
            sid: Some(sid),
            errno: Errno::EBADF,
        })?;
        self.tell(Request::bind_connection(sid, descriptor))
    }

    fn set_param(&self, sid: u32, param: IscsiParam, value: &str) -> Result<(), IscsiError> {
        let op = IscsiOp::SetParam(param);
        let request = Request::set_param(sid, param, value).map_err(|errno| IscsiError {
            op,
            sid: Some(sid),
            errno,
        })?;
        self.tell(request)
    }

    fn send_pdu(&self, sid: u32, header: &[u8; HEADER_BYTES], data: &[u8]) -> Result<(), IscsiError> {
        let op = IscsiOp::SendPdu;
        let mut request =
            Request::send_pdu(sid, header, data).map_err(|errno| IscsiError { op, sid: Some(sid), errno })?;
        send(|| self.channel().ask(&mut request), LOGIN_TASK_WAIT)
            .map(|_| ())
            .map_err(|failure| failed(&request, failure))
    }

    fn start_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.tell(Request::start_connection(sid))
    }

    fn stop_connection(&self, sid: u32, mode: StopMode) -> Result<(), IscsiError> {
        self.tell(Request::stop_connection(sid, mode))
    }

    fn destroy_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.tell(Request::destroy_connection(sid))
    }

    fn unbind_session(&self, sid: u32) -> Result<(), IscsiError> {
        self.tell(Request::unbind_session(sid))
    }

    fn destroy_session(&self, sid: u32) -> Result<(), IscsiError> {
        self.tell(Request::destroy_session(sid))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Reaction of the scripted kernel to the next request.
    enum Next {
        /// Answers: iferror, then the union r.
        Answer(i32, [u32; 2]),
        /// Gives no answer, as to a malformed request.
        Silence,
        /// Gives no answer now; this answer comes before the next request.
        Late,
        /// Answers behind these bytes.
        Behind(Vec<u8>, [u32; 2]),
        /// The send fails.
        Fail(Errno),
    }

    #[derive(Default)]
    struct Script {
        next: VecDeque<Next>,
        queue: VecDeque<Vec<u8>>,
        late: VecDeque<Vec<u8>>,
        handles: Vec<u64>,
    }

    impl Script {
        fn answer(message: &[u8], iferror: i32, answered: [u32; 2]) -> Vec<u8> {
            let mut bytes = message[..72].to_vec();
            bytes[..4].copy_from_slice(&72_u32.to_ne_bytes());
            if iferror != 0 {
                bytes[16..20].copy_from_slice(&103_u32.to_ne_bytes());
                bytes[20..24].copy_from_slice(&iferror.to_ne_bytes());
            }
            bytes[56..60].copy_from_slice(&answered[0].to_ne_bytes());
            bytes[60..64].copy_from_slice(&answered[1].to_ne_bytes());
            bytes
        }
    }

    impl Wire for Script {
        fn send(&mut self, message: &[u8]) -> Result<(), Errno> {
            assert!(self.queue.is_empty(), "a request is sent on top of a stale answer");
            self.handles.push(u64::from_ne_bytes(message[24..32].try_into().unwrap()));
            match self.next.pop_front().expect("no more requests") {
                Next::Answer(iferror, answered) => {
                    self.queue.push_back(Self::answer(message, iferror, answered));
                }
                Next::Late => self.late.push_back(Self::answer(message, 0, [0, 0])),
                Next::Behind(first, answered) => {
                    self.queue.extend([first, Self::answer(message, 0, answered)]);
                }
                Next::Silence => {}
                Next::Fail(errno) => return Err(errno),
            }
            Ok(())
        }

        fn receive<'b>(&mut self, buffer: &'b mut [u8], wait: Duration) -> Result<Option<&'b [u8]>, Errno> {
            if wait.is_zero() {
                self.queue.append(&mut self.late);
            }
            let Some(bytes) = self.queue.pop_front() else { return Ok(None) };
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(Some(&buffer[..bytes.len()]))
        }
    }

    /// Makes a channel whose kernel follows a script, and the folder that stands for sysfs.
    fn channel(next: impl IntoIterator<Item = Next>) -> (Channel<Script>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tcp")).unwrap();
        fs::write(folder.path().join("tcp/handle"), "18446744072642212544\n").unwrap();
        let script = Script { next: next.into_iter().collect(), ..Script::default() };
        let channel = Channel::new(script, folder.path().to_owned()).unwrap();
        (channel, folder)
    }

    #[test]
    fn an_answer_brings_its_numbers_and_an_error_its_number() {
        let (mut channel, _folder) =
            channel([Next::Answer(0, [3, 8]), Next::Answer(-16, [0, 0]), Next::Fail(Errno::ECONNREFUSED)]);
        assert_eq!(channel.ask(&mut Request::create_session(128, 32)), Ok([3, 8]));
        let mut destroy = Request::destroy_session(3);
        assert_eq!(channel.ask(&mut destroy), Err(Failure::Refused(Errno::EBUSY)));
        assert_eq!(channel.ask(&mut destroy), Err(Failure::Refused(Errno::ECONNREFUSED)));
        assert_eq!(channel.wire.handles, [18_446_744_072_642_212_544; 3]);
    }

    #[test]
    fn a_late_answer_is_not_the_next_ones() {
        let (mut channel, _folder) = channel([
            Next::Late,
            Next::Answer(-107, [0, 0]),
            Next::Silence,
            Next::Late,
            Next::Answer(0, [0, 0]),
        ]);
        channel.answer_wait = Duration::from_secs(5);
        // The same request twice: the two answers differ in nothing but their result.
        let mut stop = Request::stop_connection(1, StopMode::Recover);
        assert_eq!(channel.ask(&mut stop), Err(Failure::Refused(Errno::ETIME)));
        assert_eq!(channel.ask(&mut stop), Err(Failure::Refused(Errno::ENOTCONN)));
        assert_eq!(channel.ask(&mut stop), Err(Failure::Refused(Errno::ETIME)));
        assert_eq!(channel.ask(&mut stop), Err(Failure::Refused(Errno::ETIME)));
        assert_eq!(channel.ask(&mut stop), Ok([0, 0]));
    }

    #[test]
    fn an_answer_to_another_request_is_passed_over() {
        let mut other = Request::create_connection(9);
        let foreign = Script::answer(other.message(1), 0, [9, 0]);
        let (mut channel, _folder) = channel([Next::Behind(foreign, [5, 6])]);
        assert_eq!(channel.ask(&mut Request::create_session(128, 32)), Ok([5, 6]));
    }

    #[test]
    fn a_session_is_made_through_the_handle_of_today() {
        let (mut channel, folder) = channel([
            Next::Answer(-22, [0, 0]),
            Next::Answer(-22, [0, 0]),
            Next::Answer(0, [1, 2]),
            Next::Answer(-22, [0, 0]),
            Next::Answer(-22, [0, 0]),
        ]);
        // EINVAL of an unchanged transport is the answer.
        let mut create = Request::create_session(100, 32);
        assert_eq!(channel.ask_transport(&mut create), Err(Failure::Refused(Errno::EINVAL)));
        fs::write(folder.path().join("tcp/handle"), "77\n").unwrap();
        assert_eq!(channel.ask_transport(&mut create), Ok([1, 2]));
        // One more try, not until it works; and none when the module has gone.
        fs::write(folder.path().join("tcp/handle"), "78\n").unwrap();
        fs::remove_file(folder.path().join("tcp/handle")).unwrap();
        assert_eq!(channel.ask_transport(&mut create), Err(Failure::Refused(Errno::EINVAL)));
        fs::write(folder.path().join("tcp/handle"), "78\n").unwrap();
        channel.wire.next.push_back(Next::Answer(-22, [0, 0]));
        assert_eq!(channel.ask_transport(&mut create), Err(Failure::Refused(Errno::EINVAL)));
        let old = 18_446_744_072_642_212_544;
        assert_eq!(channel.wire.handles, [old, old, 77, 77, 77, 78]);
    }

    #[test]
    fn a_pdu_is_sent_again_while_the_login_task_is_taken_and_only_then() {
        let taken = Err(Failure::Transport(Errno::EPERM));
        let mut tries = 0;
        let freed = send(
            || {
                tries += 1;
                if tries < 4 { taken } else { Ok([0, 0]) }
            },
            Duration::ZERO,
        );
        assert_eq!((freed, tries), (Ok([0, 0]), 4));
        for (answer, most) in [
            (taken, 10),
            (Err(Failure::Refused(Errno::EPERM)), 1),
            (Err(Failure::Transport(Errno::ENOTCONN)), 1),
        ] {
            let mut tries = 0;
            let sent = send(
                || {
                    tries += 1;
                    answer
                },
                Duration::ZERO,
            );
            assert_eq!((sent, tries), (answer, most));
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("class");
        assert_eq!(modules_at(&class), IscsiModules { transport_class: false, tcp: false });
        assert_eq!(modules_at(&class).missing(), Some("iscsi_tcp"));
        fs::create_dir(&class).unwrap();
        assert_eq!(modules_at(&class).missing(), Some("iscsi_tcp"));
        let error = read_handle(&class).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel has no iSCSI initiator for TCP: load it (modprobe iscsi_tcp)"
        );
        fs::create_dir(class.join("tcp")).unwrap();
        assert_eq!(modules_at(&class).missing(), None);
        for nonsense in ["", "0x12", "-1", "99999999999999999999"] {
            fs::write(class.join("tcp/handle"), nonsense).unwrap();
            let error = read_handle(&class).unwrap_err();
            assert!(matches!(error, IscsiOpenError::Refused { errno: Errno::EBADMSG, .. }), "{nonsense:?}");
        }
        let taken = IscsiOpenError::of_socket("open", Errno::EADDRINUSE);
        assert!(taken.to_string().contains("0xffffffff"), "{taken}");
        assert_eq!(
            IscsiOpenError::of_socket("open a netlink socket for iSCSI", Errno::EPERM).to_string(),
            "cannot open a netlink socket for iSCSI: Operation not permitted (EPERM)"
        );
    }

    #[test]
    fn a_machine_without_the_module_says_so_at_the_door() {
        if iscsi_modules().missing().is_none() {
            return;
        }
        let module = IscsiOpenError::ModuleMissing { module: "iscsi_tcp" };
        assert_eq!(KernelIscsi::open(PortId::Kernel).unwrap_err(), module);
        assert_eq!(KernelIscsi::open(PortId::Ordinary).unwrap_err(), module);
        if !iscsi_modules().transport_class {
            assert_eq!(super::super::KernelIscsiEvents::open().unwrap_err(), module);
        }
    }
}
