//! Kernel's half of an iSCSI initiator (`iscsi_tcp` under `scsi_transport_iscsi`), as NETLINK_ISCSI
//! shows it: requests that are answered one by one, and events. The caller does the login itself,
//! and makes every decision.
//!
//! What must never happen here: `GET_STATS` (it spins in the kernel without a listener); a
//! synchronous `DESTROY_SESSION` (it holds the one mutex of all iSCSI management while it waits for
//! I/O); a request without a deadline for its answer.

use std::fmt;
use std::net::TcpStream;
use std::time::Duration;

use nix::errno::Errno;

mod event;
mod kernel;
mod message;

pub use event::{KernelIscsiEvents, parse_event};
pub use kernel::{IscsiModules, IscsiOpenError, KernelIscsi, PortId, iscsi_modules};

/// Bytes of a basic header segment (RFC 7143, 11.2.1).
pub const HEADER_BYTES: usize = 48;

/// Maximum number of data bytes of a login or text PDU that the kernel takes (its login buffer).
pub const LOGIN_DATA_BYTES_MAX: usize = 8192;

/// Requests, as errors name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IscsiOp {
    /// Open the netlink sockets, or read the transport's handle.
    Open,
    /// `CREATE_SESSION` 11.
    CreateSession,
    /// `CREATE_CONN` 13.
    CreateConnection,
    /// `BIND_CONN` 15.
    BindConnection,
    /// `SET_PARAM` 16.
    SetParam(IscsiParam),
    /// `SEND_PDU` 19.
    SendPdu,
    /// `START_CONN` 17.
    StartConnection,
    /// `STOP_CONN` 18.
    StopConnection,
    /// `DESTROY_CONN` 14.
    DestroyConnection,
    /// `UNBIND_SESSION` 27.
    UnbindSession,
    /// `DESTROY_SESSION_ASYNC` 43.
    DestroySession,
}

impl fmt::Display for IscsiOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open the kernel's initiator",
            Self::CreateSession => "create a session",
            Self::CreateConnection => "create the connection",
            Self::BindConnection => "bind the connection",
            Self::SetParam(param) => return write!(f, "set parameter {param:?}"),
            Self::SendPdu => "send a PDU",
            Self::StartConnection => "start the connection",
            Self::StopConnection => "stop the connection",
            Self::DestroyConnection => "destroy the connection",
            Self::UnbindSession => "unbind the disks",
            Self::DestroySession => "destroy the session",
        })
    }
}

/// Parameters of a session or connection (`enum iscsi_param`), by their kernel numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the kernel's own, ISCSI_PARAM_… without the prefix")]
pub enum IscsiParam {
    MaxRecvDlength = 0,
    MaxXmitDlength = 1,
    HdrdgstEn = 2,
    DatadgstEn = 3,
    InitialR2tEn = 4,
    MaxR2t = 5,
    ImmDataEn = 6,
    FirstBurst = 7,
    MaxBurst = 8,
    PduInorderEn = 9,
    DataseqInorderEn = 10,
    Erl = 11,
    ExpStatsn = 14,
    TargetName = 15,
    Tpgt = 16,
    PersistentAddress = 17,
    PersistentPort = 18,
    SessRecoveryTmo = 19,
    FastAbort = 26,
    AbortTmo = 27,
    LuResetTmo = 28,
    PingTmo = 30,
    RecvTmo = 31,
    IfaceName = 32,
    InitiatorName = 34,
    TgtResetTmo = 35,
}

/// Way of stopping a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopMode {
    /// `STOP_CONN_TERM` 1: for good.
    Terminate,
    /// `STOP_CONN_RECOVER` 3: the session stays and waits for a new connection. Also clears the
    /// kernel's clean-up mark, without which every later request gets ENOTCONN.
    Recover,
}

/// A session and its SCSI host, by the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelSession {
    /// Number of the session, `session<sid>`.
    pub sid: u32,
    /// Number of the SCSI host, `host<host>`.
    pub host: u32,
}

/// A request that failed. Values are never part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("iSCSI: cannot {op}{}: {} ({errno:?})", of_session(*.sid), .errno.desc())]
pub struct IscsiError {
    /// Request that failed.
    pub op: IscsiOp,
    /// Session of the request; `None` if it had none.
    pub sid: Option<u32>,
    /// The kernel's answer. ETIME: no answer came in time.
    pub errno: Errno,
}

/// Names a request's session, behind its operation; empty if it had none.
fn of_session(sid: Option<u32>) -> String {
    sid.map(|sid| format!(" of session {sid}")).unwrap_or_default()
}

/// Event of a session, from multicast group 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IscsiEvent {
    /// A login, logout, text response or async message arrived.
    Pdu {
        /// Session.
        sid: u32,
        /// Connection.
        cid: u32,
        /// Basic header segment.
        header: [u8; HEADER_BYTES],
        /// Data segment, without padding.
        data: Vec<u8>,
    },
    /// The connection broke. `error` is the kernel's number (1000 + `enum iscsi_err`), such as 1020
    /// TCP closed, 1011 failed, 1022 NOP timed out, 1018 its host goes away.
    ConnectionError {
        /// Session.
        sid: u32,
        /// Connection.
        cid: u32,
        /// Number of the error.
        error: u32,
    },
    /// A session was made, by any process.
    Created(KernelSession),
    /// A session is gone.
    Destroyed(KernelSession),
    /// A session's devices are gone, after `UNBIND_SESSION`.
    Unbound(KernelSession),
    /// Events were lost (ENOBUFS): read the state of every session from sysfs.
    Overrun,
}

/// The kernel's initiator. Every call is one request and its answer. Any of them may block for as
/// long as another process's request does, because the kernel serves them one at a time.
pub trait IscsiKernel: Send + Sync {
    /// Makes a session and its SCSI host.
    fn create_session(&self, commands_max: u16, queue_depth: u16) -> Result<KernelSession, IscsiError>;
    /// Makes connection 0 of a session.
    fn create_connection(&self, sid: u32) -> Result<(), IscsiError>;
    /// Hands a connected TCP socket to connection 0. The kernel takes its own reference. From here
    /// on nobody else may read or write the socket, and it must not hold unread bytes.
    fn bind_connection(&self, sid: u32, socket: &TcpStream) -> Result<(), IscsiError>;
    /// Sets one parameter.
    fn set_param(&self, sid: u32, param: IscsiParam, value: &str) -> Result<(), IscsiError>;
    /// Sends one PDU through the kernel, which fills in ITT and CmdSN.
    fn send_pdu(&self, sid: u32, header: &[u8; HEADER_BYTES], data: &[u8]) -> Result<(), IscsiError>;
    /// Enters the full feature phase: the session is logged in, its devices run.
    fn start_connection(&self, sid: u32) -> Result<(), IscsiError>;
    /// Stops connection 0.
    fn stop_connection(&self, sid: u32, mode: StopMode) -> Result<(), IscsiError>;
    /// Destroys connection 0. EINVAL: it is gone already.
    fn destroy_connection(&self, sid: u32) -> Result<(), IscsiError>;
    /// Begins to remove the session's devices; [`IscsiEvent::Unbound`] reports the end.
    fn unbind_session(&self, sid: u32) -> Result<(), IscsiError>;
    /// Begins to destroy the session; [`IscsiEvent::Destroyed`] reports the end. EINVAL: it is gone
    /// already.
    fn destroy_session(&self, sid: u32) -> Result<(), IscsiError>;
}

/// The stream of events, with one reader.
pub trait IscsiEvents: Send {
    /// Returns the next event; `None` when none came within `wait`.
    fn next(&mut self, wait: Duration) -> Result<Option<IscsiEvent>, IscsiError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_request_and_its_session_in_words() {
        let said = |op, sid| IscsiError { op, sid, errno: Errno::EINVAL }.to_string();
        assert_eq!(
            said(IscsiOp::SetParam(IscsiParam::IfaceName), Some(3)),
            "iSCSI: cannot set parameter IfaceName of session 3: Invalid argument (EINVAL)"
        );
        assert_eq!(
            said(IscsiOp::CreateSession, None),
            "iSCSI: cannot create a session: Invalid argument (EINVAL)"
        );
    }
}
