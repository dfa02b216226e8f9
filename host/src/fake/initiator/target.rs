//! A scripted iSCSI target on a real TCP port of 127.0.0.1: it answers logins as LIO does, or
//! misbehaves as a test wants. SCSI commands do not travel on the connection: the fake kernel sends
//! them by the connection's addresses, so that a command gets through exactly as long as its
//! session lives here.
//!
//! What must never happen here: a command answered for a session that has been cut; a panic on any
//! bytes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, sockopt};

use super::chap::{Credentials, TargetProof};
use super::disk::{Command, FakeDisk, NO_SUCH_UNIT, Outcome};
use super::pdu::{NO_TAG, Pdu, opcode};
use super::target_login::{Login, Verdict};

/// Longest accepted data segment of an initiator.
const DATA_BYTES_MAX: usize = 64 * 1024;
/// Time that [`FakeTarget::wait_for`] and [`super::FakeHost::wait_for`] wait before they give up.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Changes an answer on its way out: the number of the answer within its login (1 is the first),
/// and the answer.
pub type Tamper = Arc<dyn Fn(u32, &mut Pdu) + Send + Sync>;

/// Grant of an initiator: LIO's ACL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acl {
    /// Credentials that the initiator must show. `None`: no authentication.
    pub chap: Option<Credentials>,
    /// Credentials by which the target proves itself, if the initiator asks for that.
    pub mutual: Option<Credentials>,
    /// Writes are refused.
    pub read_only: bool,
}

/// Misbehaviour of the target; by default there is none.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a fake")]
pub struct Behaviour {
    /// Refuse every first login request with this status class and detail.
    pub refuse: Option<(u8, u8)>,
    /// Refuse with class 1, this detail (1 temporarily, 2 permanently moved) and this
    /// `TargetAddress`.
    pub redirect: Option<(u8, String)>,
    /// Do not send the nth answer (1 is the first) of a login until this changes or the connection
    /// is cut.
    pub stall_at: Option<u32>,
    /// Send the nth answer of a login so much later.
    pub delay: Option<(u32, Duration)>,
    /// Close the connection once this many answers of a login were sent; 0: right after accepting.
    pub close_after: Option<u32>,
    /// Send every byte as a segment of its own.
    pub split: bool,
    /// Split every login answer in two by the C bit.
    pub continue_bit: bool,
    /// Prove the target in this way where mutual authentication was asked for.
    pub proof: TargetProof,
    /// Choose `AuthMethod=None` and admit everybody whom an ACL names, whatever was offered.
    pub downgrade: bool,
    /// CHAP algorithms that the target supports.
    pub algorithms: Vec<u8>,
    /// Keys that the target proposes by itself, once a login.
    pub extra_keys: Vec<(String, String)>,
    /// The digests that the target agrees to, of headers and of data: LIO's `param/HeaderDigest`
    /// and `param/DataDigest`.
    pub digests: [String; 2],
    /// Answer these operational keys with these values, whatever was offered.
    pub forced_keys: BTreeMap<String, String>,
    /// Number of times to answer T=0 to a request with T=1 that could have been granted.
    pub refuse_transits: u32,
    /// Send a Reject PDU in place of the nth answer of a login.
    pub reject_at: Option<u32>,
    /// Send bytes that are no PDU in place of the nth answer of a login.
    pub garbage_at: Option<u32>,
    /// Do not answer a Logout request.
    pub ignore_logout: bool,
    /// Any other change of an answer.
    pub tamper: Option<Tamper>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            refuse: None,
            redirect: None,
            stall_at: None,
            delay: None,
            close_after: None,
            split: false,
            continue_bit: false,
            proof: TargetProof::Right,
            downgrade: false,
            algorithms: vec![5, 6, 7],
            extra_keys: Vec::new(),
            digests: ["CRC32C,None".to_owned(), "CRC32C,None".to_owned()],
            forced_keys: BTreeMap::new(),
            refuse_transits: 0,
            reject_at: None,
            garbage_at: None,
            ignore_logout: false,
            tamper: None,
        }
    }
}

/// Settings by which a login is answered.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) tpgt: Option<u16>,
    pub(super) enabled: bool,
    pub(super) acls: BTreeMap<String, Acl>,
    pub(super) behaviour: Behaviour,
}

/// A session that lives on the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetSession {
    /// Name of the initiator.
    pub initiator: String,
    /// Initiator session id.
    pub isid: [u8; 6],
    /// Target session identifying handle.
    pub tsih: u16,
    /// Address of the initiator's end of the connection.
    pub peer: SocketAddr,
}

/// End of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginEnd {
    /// With a session, of this handle.
    LoggedIn(u16),
    /// With this status class and detail.
    Refused(u8, u8),
    /// The connection was closed first, by either side.
    Dropped,
}

/// A login attempt that the target has seen. Holds no secret, challenge or response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenLogin {
    /// Name of the initiator; empty when the connection was closed before it came.
    pub initiator: String,
    /// Initiator session id.
    pub isid: [u8; 6],
    /// Address of the initiator's end of the connection.
    pub peer: SocketAddr,
    /// Keys in the order in which they came.
    pub keys: Vec<(String, String)>,
    /// Number of login requests.
    pub requests: u32,
    /// End of the login; `None` while it runs.
    pub end: Option<LoginEnd>,
}

struct Inner {
    settings: Settings,
    luns: BTreeMap<u64, FakeDisk>,
    listener: Option<Arc<TcpListener>>,
    connections: BTreeMap<SocketAddr, Arc<TcpStream>>,
    sessions: BTreeMap<SocketAddr, TargetSession>,
    seen: Vec<SeenLogin>,
    next_tsih: u16,
    io_held: bool,
    commands: u64,
    logouts: u64,
    pings_answered: u64,
    changes: u64,
    over: bool,
}

pub(super) struct Shared {
    address: SocketAddr,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Bound but never listening: reserves the port while the target does not listen.
    _reservation: OwnedFd,
}

/// Targets by the address that they listen on.
static TARGETS: Mutex<BTreeMap<SocketAddr, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// Returns the target that listens, or listened, on this address. `None` if there was none, or it
/// is gone.
pub(super) fn target_at(address: SocketAddr) -> Option<Arc<Shared>> {
    TARGETS.lock().unwrap_or_else(PoisonError::into_inner).get(&address)?.upgrade()
}

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.over = true;
        inner.stop_listening();
        inner.cut(|_, _| true);
        drop(inner);
        self.0.changed.notify_all();
        TARGETS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0.address);
    }
}

/// A target; clones share one. With the last one it is gone, with its connections.
#[derive(Clone)]
pub struct FakeTarget {
    owner: Arc<Owner>,
}

impl FakeTarget {
    /// Starts a target of this name, TPG 1, without ACLs and LUNs, that listens on a free port of
    /// 127.0.0.1.
    pub fn start(name: impl Into<String>) -> io::Result<Self> {
        let reservation =
            socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        socket::setsockopt(&reservation, sockopt::ReuseAddr, &true)?;
        socket::bind(reservation.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0))?;
        let bound: SockaddrIn = socket::getsockname(reservation.as_raw_fd())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, bound.port()));
        let settings = Settings {
            name: name.into(),
            tpgt: Some(1),
            enabled: true,
            acls: BTreeMap::new(),
            behaviour: Behaviour::default(),
        };
        let inner = Inner {
            settings,
            luns: BTreeMap::new(),
            listener: None,
            connections: BTreeMap::new(),
            sessions: BTreeMap::new(),
            seen: Vec::new(),
            next_tsih: 1,
            io_held: false,
            commands: 0,
            logouts: 0,
            pings_answered: 0,
            changes: 0,
            over: false,
        };
        let shared = Arc::new(Shared {
            address,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            _reservation: reservation,
        });
        TARGETS.lock().unwrap_or_else(PoisonError::into_inner).insert(address, Arc::downgrade(&shared));
        let target = Self { owner: Arc::new(Owner(shared)) };
        target.listen()?;
        Ok(target)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.owner.0
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        self.shared().change(change)
    }

    /// Returns the address of its portal.
    pub fn address(&self) -> SocketAddr {
        self.shared().address
    }

    /// Returns its name.
    pub fn name(&self) -> String {
        self.shared().lock().settings.name.clone()
    }

    /// Listens (again) on its port.
    pub fn listen(&self) -> io::Result<()> {
        let shared = self.shared();
        let mut inner = shared.lock();
        if inner.listener.is_some() {
            return Ok(());
        }
        let listener = Arc::new(TcpListener::bind(shared.address)?);
        inner.listener = Some(Arc::clone(&listener));
        let shared = Arc::clone(shared);
        thread::Builder::new().name("fake-target".to_owned()).spawn(move || accept(&shared, &listener))?;
        Ok(())
    }

    /// Stops listening: a connection is refused. Sessions live on.
    pub fn stop_listening(&self) {
        self.change(Inner::stop_listening);
    }

    /// Gives an initiator an ACL, or changes it.
    pub fn allow(&self, initiator: impl Into<String>, acl: Acl) {
        self.change(|inner| inner.settings.acls.insert(initiator.into(), acl));
    }

    /// Removes an initiator's ACL and cuts its sessions, as LIO does by `rmdir`: later logins get
    /// 0x0202. Returns the number of sessions that were cut.
    pub fn revoke(&self, initiator: &str) -> usize {
        self.change(|inner| {
            inner.settings.acls.remove(initiator);
            inner.cut(|_, session| session.is_some_and(|session| session.initiator == initiator))
        })
    }

    /// Cuts the sessions of one initiator, which may log in again. Returns their number.
    pub fn cut(&self, initiator: &str) -> usize {
        self.change(|inner| {
            inner.cut(|_, session| session.is_some_and(|session| session.initiator == initiator))
        })
    }

    /// Closes all connections, of logins too. Returns the number of those that were sessions.
    pub fn cut_all(&self) -> usize {
        self.change(|inner| inner.cut(|_, _| true))
    }

    /// Enables or disables the TPG: when it is disabled, sessions are cut and logins get 0x0301.
    pub fn set_enabled(&self, on: bool) {
        self.change(|inner| {
            inner.settings.enabled = on;
            if !on {
                inner.cut(|_, _| true);
            }
        });
    }

    /// Sets the portal group tag in login answers. `None`: they have none.
    pub fn set_tpgt(&self, tpgt: Option<u16>) {
        self.change(|inner| inner.settings.tpgt = tpgt);
    }

    /// Changes the behaviour from the next PDU on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        self.change(|inner| change(&mut inner.settings.behaviour));
    }

    /// Puts a disk behind a LUN, or exchanges it: initiators are not told.
    pub fn set_disk(&self, lun: u64, disk: FakeDisk) {
        self.change(|inner| inner.luns.insert(lun, disk));
    }

    /// Returns the disk behind a LUN. `None` if there is none.
    pub fn disk(&self, lun: u64) -> Option<FakeDisk> {
        self.shared().lock().luns.get(&lun).cloned()
    }

    /// Removes a LUN.
    pub fn remove_lun(&self, lun: u64) {
        self.change(|inner| inner.luns.remove(&lun));
    }

    /// Leaves every SCSI command without an answer, until `false`, or until its session is cut.
    pub fn hold_io(&self, on: bool) {
        self.change(|inner| inner.io_held = on);
    }

    /// Counts the SCSI commands that were answered.
    pub fn commands(&self) -> u64 {
        self.shared().lock().commands
    }

    /// Counts the Logout requests that were answered.
    pub fn logouts(&self) -> u64 {
        self.shared().lock().logouts
    }

    /// Counts the answers to [`FakeTarget::ping`].
    pub fn pings_answered(&self) -> u64 {
        self.shared().lock().pings_answered
    }

    /// Returns the sessions.
    pub fn sessions(&self) -> Vec<TargetSession> {
        self.shared().lock().sessions.values().cloned().collect()
    }

    /// Returns every login so far, oldest first.
    pub fn seen(&self) -> Vec<SeenLogin> {
        self.shared().lock().seen.clone()
    }

    /// Sends an async message (0 SCSI event, 1 log out, 2 and 3 connections will be dropped, 4
    /// negotiate anew) with its three parameters to every session of an initiator. Returns the
    /// number of sessions.
    pub fn send_async(&self, initiator: &str, event: u8, parameters: [u16; 3]) -> usize {
        let mut pdu = Pdu::new(opcode::ASYNC);
        pdu.header[1] = 0x80;
        pdu.set(16, &NO_TAG);
        pdu.header[36] = event;
        for (at, parameter) in [38, 40, 42].into_iter().zip(parameters) {
            pdu.set(at, &parameter.to_be_bytes());
        }
        if event == 0 {
            // Fixed format sense: UNIT ATTENTION, REPORTED LUNS DATA HAS CHANGED.
            let mut sense = vec![0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x3f, 0x0e];
            sense.resize(20, 0);
            pdu.data = sense;
        }
        self.shared().send_to(initiator, &pdu)
    }

    /// Sends a NOP-In that wants an answer to every session of an initiator. Returns the number of
    /// sessions.
    pub fn ping(&self, initiator: &str) -> usize {
        let mut pdu = Pdu::new(opcode::NOP_IN);
        pdu.header[1] = 0x80;
        pdu.set(16, &NO_TAG);
        pdu.set(20, &[0, 0, 0, 1]);
        self.shared().send_to(initiator, &pdu)
    }

    /// Waits until the condition holds. `false`: it did not within 20 s.
    #[must_use]
    pub fn wait_for(&self, holds: impl Fn(&Self) -> bool) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let before = self.shared().lock().changes;
            if holds(self) {
                return true;
            }
            let mut inner = self.shared().lock();
            while inner.changes == before {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return false;
                }
                inner =
                    self.shared().changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Inner {
    fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            // Wakes accept(2), which returns EINVAL.
            let _ = socket::shutdown(listener.as_raw_fd(), socket::Shutdown::Both);
        }
    }

    /// Closes the connections that match. Returns the number of those that were sessions.
    fn cut(&mut self, matches: impl Fn(SocketAddr, Option<&TargetSession>) -> bool) -> usize {
        let peers: Vec<_> = self.connections.keys().copied().collect();
        let doomed: Vec<_> =
            peers.into_iter().filter(|peer| matches(*peer, self.sessions.get(peer))).collect();
        let mut cut = 0;
        for peer in doomed {
            cut += usize::from(self.sessions.contains_key(&peer));
            self.forget(peer);
        }
        cut
    }

    fn forget(&mut self, peer: SocketAddr) {
        self.sessions.remove(&peer);
        if let Some(stream) = self.connections.remove(&peer) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let result = change(&mut inner);
        inner.changes += 1;
        drop(inner);
        self.changed.notify_all();
        result
    }

    fn send_to(&self, initiator: &str, pdu: &Pdu) -> usize {
        let streams: Vec<_> = {
            let inner = self.lock();
            let peers = inner.sessions.values().filter(|session| session.initiator == initiator);
            peers.filter_map(|session| inner.connections.get(&session.peer).cloned()).collect()
        };
        streams.iter().filter(|stream| (&***stream).write_all(&pdu.bytes()).is_ok()).count()
    }

    /// Handles a SCSI command of the session whose initiator's end is `peer`.
    pub(super) fn command(&self, peer: SocketAddr, lun: u64, command: Command<'_>) -> Outcome {
        let mut inner = self.lock();
        loop {
            if !inner.sessions.contains_key(&peer) {
                return Outcome::Gone;
            }
            if !inner.io_held {
                break;
            }
            inner = self.wait(inner);
        }
        inner.commands += 1;
        inner.changes += 1;
        let initiator = inner.sessions.get(&peer).map(|session| session.initiator.clone());
        let acl = initiator.and_then(|initiator| inner.settings.acls.get(&initiator));
        let may_write = acl.is_some_and(|acl| !acl.read_only);
        // Answered under the lock: once a session has been cut, none of its commands lands any
        // more.
        let outcome = inner.luns.get(&lun).map_or(NO_SUCH_UNIT, |disk| disk.answer(command, may_write));
        drop(inner);
        self.changed.notify_all();
        outcome
    }

    /// Handles REPORT LUNS: returns the LUNs that a session sees.
    pub(super) fn report_luns(&self, peer: SocketAddr) -> Vec<u64> {
        let inner = self.lock();
        if inner.sessions.contains_key(&peer) { inner.luns.keys().copied().collect() } else { Vec::new() }
    }
}

fn accept(shared: &Arc<Shared>, listener: &Arc<TcpListener>) {
    while let Ok((stream, peer)) = listener.accept() {
        let stream = Arc::new(stream);
        let live = {
            let mut inner = shared.lock();
            let live = inner.listener.as_ref().is_some_and(|current| Arc::ptr_eq(current, listener));
            if live {
                inner.connections.insert(peer, Arc::clone(&stream));
            }
            live
        };
        if !live {
            return;
        }
        let shared = Arc::clone(shared);
        let _ = thread::Builder::new().name("fake-target-connection".to_owned()).spawn(move || {
            serve(&shared, &stream, peer);
        });
    }
}

fn serve(shared: &Shared, stream: &Arc<TcpStream>, peer: SocketAddr) {
    let _ = stream.set_nodelay(true);
    if let Some(status) = log_in(shared, stream, peer) {
        full_feature(shared, stream, peer, status);
    }
    shared.change(|inner| {
        // Removes only this connection: another one may have got this port after the cut.
        if inner.connections.get(&peer).is_some_and(|current| Arc::ptr_eq(current, stream)) {
            inner.forget(peer);
        }
    });
    let _ = stream.shutdown(Shutdown::Both);
}

fn send(stream: &TcpStream, bytes: &[u8], split: bool) -> io::Result<()> {
    let mut stream = stream;
    if split {
        return bytes.iter().try_for_each(|byte| stream.write_all(&[*byte]));
    }
    stream.write_all(bytes)
}

/// Runs the login phase. Returns the next status number; `None` if no session was made.
fn log_in(shared: &Shared, stream: &Arc<TcpStream>, peer: SocketAddr) -> Option<u32> {
    let (tsih, at) = shared.change(|inner| {
        let tsih = inner.next_tsih;
        inner.next_tsih = tsih.checked_add(1).unwrap_or(1);
        let (initiator, keys) = (String::new(), Vec::new());
        inner.seen.push(SeenLogin { initiator, isid: [0; 6], peer, keys, requests: 0, end: None });
        (tsih, inner.seen.len() - 1)
    });
    let mut login = Login::new(tsih);
    let end = converse(shared, stream, peer, &mut login, at);
    shared.change(|inner| inner.note_end(at, end));
    matches!(end, LoginEnd::LoggedIn(_)).then(|| login.next_status())
}

fn converse(
    shared: &Shared,
    stream: &Arc<TcpStream>,
    peer: SocketAddr,
    login: &mut Login,
    at: usize,
) -> LoginEnd {
    if shared.lock().settings.behaviour.close_after == Some(0) {
        return LoginEnd::Dropped;
    }
    for number in 1.. {
        let Ok(request) = Pdu::read(&mut &**stream, DATA_BYTES_MAX) else { return LoginEnd::Dropped };
        let settings = shared.lock().settings.clone();
        let verdict = login.answer(&settings, &request);
        shared.change(|inner| {
            if let Some(seen) = inner.seen.get_mut(at) {
                login.initiator.clone_into(&mut seen.initiator);
                seen.isid = login.isid;
                seen.keys.clone_from(&login.keys);
                seen.requests = number;
            }
        });
        if !let_pass(shared, peer, stream, number) {
            return LoginEnd::Dropped;
        }
        let behaviour = shared.lock().settings.behaviour.clone();
        let (mut answer, end) = match verdict {
            Verdict::Answer(answer) => (answer, None),
            Verdict::Refuse(answer, class, detail) => {
                let end = LoginEnd::Refused(class, detail);
                // Recorded before the initiator knows, so that a test which asks after its answer
                // finds it.
                shared.change(|inner| inner.note_end(at, end));
                (answer, Some(end))
            }
            Verdict::Done(answer) => {
                let tsih = u16::from_be_bytes([answer.header[14], answer.header[15]]);
                if !shared.change(|inner| inner.admit(login, tsih, peer, stream, at)) {
                    return LoginEnd::Dropped;
                }
                (answer, Some(LoginEnd::LoggedIn(tsih)))
            }
        };
        if let Some(tamper) = &behaviour.tamper {
            tamper(number, &mut answer);
        }
        let mut bytes = answer.bytes();
        if behaviour.reject_at == Some(number) {
            let mut reject = Pdu::new(opcode::REJECT);
            (reject.header[1], reject.header[2]) = (0x80, 0x0b);
            reject.set(16, &NO_TAG);
            reject.data = request.header.to_vec();
            bytes = reject.bytes();
        }
        if behaviour.garbage_at == Some(number) {
            bytes = (0..200_u8).map(|at| at.wrapping_mul(167) | 0x17).collect();
        }
        if send(stream, &bytes, behaviour.split).is_err() {
            return end.unwrap_or(LoginEnd::Dropped);
        }
        if behaviour.close_after == Some(number) {
            return LoginEnd::Dropped;
        }
        if let Some(end) = end {
            return end;
        }
    }
    LoginEnd::Dropped
}

/// Waits as long as the nth answer has to be delayed or held back. `false`: the connection was cut
/// meanwhile.
fn let_pass(shared: &Shared, peer: SocketAddr, stream: &Arc<TcpStream>, number: u32) -> bool {
    if let Some((_, delay)) = shared.lock().settings.behaviour.delay.filter(|(at, _)| *at == number) {
        thread::sleep(delay);
    }
    let mut inner = shared.lock();
    loop {
        if inner.over || !inner.connections.get(&peer).is_some_and(|current| Arc::ptr_eq(current, stream)) {
            return false;
        }
        if inner.settings.behaviour.stall_at != Some(number) {
            return true;
        }
        inner = shared.wait(inner);
    }
}

impl Inner {
    /// Makes the session, and ends an older one of this initiator and ISID. `false`: the connection
    /// was cut, or the initiator's ACL removed, meanwhile.
    fn admit(
        &mut self,
        login: &Login,
        tsih: u16,
        peer: SocketAddr,
        stream: &Arc<TcpStream>,
        at: usize,
    ) -> bool {
        let current = self.connections.get(&peer).is_some_and(|current| Arc::ptr_eq(current, stream));
        if !current || !self.settings.enabled || !self.settings.acls.contains_key(&login.initiator) {
            return false;
        }
        self.cut(|_, session| {
            session.is_some_and(|old| old.initiator == login.initiator && old.isid == login.isid)
        });
        let session = TargetSession { initiator: login.initiator.clone(), isid: login.isid, tsih, peer };
        self.sessions.insert(peer, session);
        self.note_end(at, LoginEnd::LoggedIn(tsih));
        true
    }

    fn note_end(&mut self, at: usize, end: LoginEnd) {
        if let Some(seen) = self.seen.get_mut(at) {
            seen.end.get_or_insert(end);
        }
    }
}

fn full_feature(shared: &Shared, stream: &TcpStream, peer: SocketAddr, mut status: u32) {
    while let Ok(request) = Pdu::read(&mut &*stream, DATA_BYTES_MAX) {
        let behaviour = shared.lock().settings.behaviour.clone();
        let mut answer = Pdu::new(opcode::REJECT);
        answer.header[1] = 0x80;
        answer.set(16, &request.tag());
        answer.set(24, &status.to_be_bytes());
        answer.set(28, &request.word(24).to_be_bytes());
        answer.set(32, &request.word(24).wrapping_add(63).to_be_bytes());
        match request.opcode() {
            opcode::LOGOUT if behaviour.ignore_logout => continue,
            opcode::LOGOUT => {
                answer.header[0] = opcode::LOGOUT_RESPONSE;
                answer.set(40, &2_u16.to_be_bytes());
                answer.set(42, &20_u16.to_be_bytes());
            }
            opcode::NOP_OUT if request.tag() == NO_TAG => {
                shared.change(|inner| inner.pings_answered += 1);
                continue;
            }
            opcode::NOP_OUT => {
                answer.header[0] = opcode::NOP_IN;
                answer.set(20, &NO_TAG);
                answer.data.clone_from(&request.data);
            }
            _ => {
                answer.header[2] = 0x05;
                answer.set(16, &NO_TAG);
                answer.data = request.header.to_vec();
            }
        }
        status = status.wrapping_add(1);
        let over = request.opcode() == opcode::LOGOUT;
        if over {
            shared.change(|inner| {
                inner.logouts += 1;
                inner.sessions.remove(&peer);
            });
        }
        if send(stream, &answer.bytes(), behaviour.split).is_err() || over {
            return;
        }
    }
}
