//! Basic header segments: 48 bytes, big endian (RFC 7143, 11).
//!
//! What must never happen here: a length or number of a peer's that is believed before it was
//! checked against the bytes that came.

use mooring_host::{HEADER_BYTES, LOGIN_DATA_BYTES_MAX};

use super::isid::Isid;

const IMMEDIATE: u8 = 0x40;
const OPCODE_MASK: u8 = 0x3f;
const LOGIN_REQUEST: u8 = 0x03;
const LOGOUT_REQUEST: u8 = 0x06;
const FINAL: u8 = 0x80;
const TRANSIT: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// Kinds of PDUs from a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// NOP-In 0x20.
    NopIn,
    /// Login Response 0x23.
    LoginResponse,
    /// Text Response 0x24.
    TextResponse,
    /// Logout Response 0x26.
    LogoutResponse,
    /// Asynchronous Message 0x32.
    Async,
    /// Reject 0x3f.
    Reject,
    /// Any other.
    Other(u8),
}

/// Returns the kind of this PDU.
pub fn opcode(header: &[u8; HEADER_BYTES]) -> Opcode {
    match header[0] & OPCODE_MASK {
        0x20 => Opcode::NopIn,
        0x23 => Opcode::LoginResponse,
        0x24 => Opcode::TextResponse,
        0x26 => Opcode::LogoutResponse,
        0x32 => Opcode::Async,
        0x3f => Opcode::Reject,
        other => Opcode::Other(other),
    }
}

/// A PDU that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PduError {
    /// Another kind of PDU.
    #[error("the target sent a PDU of kind {got:?} where {want:?} was due")]
    Opcode {
        /// Expected kind.
        want: Opcode,
        /// Received kind.
        got: Opcode,
    },
    /// The header announces more data than came, or more than a login may have.
    #[error(
        "the target's PDU announces {announced} bytes of data; {there} are there, {LOGIN_DATA_BYTES_MAX} are allowed"
    )]
    Length {
        /// Bytes of data by the header.
        announced: usize,
        /// Bytes of data that came.
        there: usize,
    },
    /// There is an additional header segment, which a login does not have.
    #[error("the target's login PDU has an additional header segment")]
    AdditionalHeader,
}

/// A stage of the login phase, by its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// 0: authentication.
    Security,
    /// 1: operational parameters.
    Operational,
    /// 3: the login is done.
    FullFeature,
}

impl Stage {
    fn bits(self) -> u8 {
        match self {
            Self::Security => 0,
            Self::Operational => 1,
            Self::FullFeature => 3,
        }
    }

    fn from_bits(bits: u8) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::Security),
            1 => Some(Self::Operational),
            3 => Some(Self::FullFeature),
            _ => None,
        }
    }
}

/// A Login Request but for its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoginRequest {
    /// Stage of the request.
    pub(super) stage: Stage,
    /// Stage that the request asks for (T bit).
    pub(super) transit: Option<Stage>,
    /// More text follows (C bit).
    pub(super) continues: bool,
    /// Initiator session id.
    pub(super) isid: Isid,
    /// Next status number that we expect.
    pub(super) exp_stat_sn: u32,
}

impl LoginRequest {
    /// Encodes the header. TSIH 0: a new session, or the reinstatement of a dead one by its ISID.
    /// The kernel fills in the task tag and CmdSN.
    pub(super) fn encode(&self, data_bytes: usize) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = IMMEDIATE | LOGIN_REQUEST;
        header[1] = self.stage.bits() << 2;
        if let Some(next) = self.transit {
            header[1] |= TRANSIT | next.bits();
        }
        if self.continues {
            header[1] |= CONTINUE;
        }
        // At most LOGIN_DATA_BYTES_MAX, so the upper byte of the 24-bit length is 0.
        let length = u16::try_from(data_bytes).unwrap_or(u16::MAX).to_be_bytes();
        header[6..8].copy_from_slice(&length);
        header[8..14].copy_from_slice(self.isid.as_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        header
    }
}

/// A Login Response (RFC 7143, 11.13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginResponse<'a> {
    /// The target goes to the next stage (T bit).
    pub transit: bool,
    /// More text follows (C bit).
    pub continues: bool,
    /// Stage of the response. `None`: reserved number 2.
    pub stage: Option<Stage>,
    /// The next stage; only with `transit`.
    pub next: Option<Stage>,
    /// Version of the protocol that the target uses.
    pub version_active: u8,
    /// Initiator session id, repeated. LIO does not fill it in when it refuses.
    pub isid: [u8; 6],
    /// Session number of the target.
    pub tsih: u16,
    /// The status number.
    pub stat_sn: u32,
    /// Status class.
    pub class: u8,
    /// Status detail.
    pub detail: u8,
    /// Text.
    pub data: &'a [u8],
}

impl<'a> LoginResponse<'a> {
    /// Parses a PDU. `data` may have padding behind the announced bytes.
    pub fn parse(header: &[u8; HEADER_BYTES], data: &'a [u8]) -> Result<Self, PduError> {
        want(header, Opcode::LoginResponse)?;
        if header[4] != 0 {
            return Err(PduError::AdditionalHeader);
        }
        let announced = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
        let data = data
            .get(..announced)
            .filter(|_| announced <= LOGIN_DATA_BYTES_MAX)
            .ok_or(PduError::Length { announced, there: data.len() })?;
        Ok(Self {
            transit: header[1] & TRANSIT != 0,
            continues: header[1] & CONTINUE != 0,
            stage: Stage::from_bits(header[1] >> 2),
            next: Stage::from_bits(header[1]),
            version_active: header[3],
            isid: [header[8], header[9], header[10], header[11], header[12], header[13]],
            tsih: be16(header, 14),
            stat_sn: be32(header, 24),
            class: header[36],
            detail: header[37],
            data,
        })
    }
}

/// Returns the header of a Logout Request that closes the session (reason 0). It has no data.
pub fn logout_request() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = IMMEDIATE | LOGOUT_REQUEST;
    header[1] = FINAL;
    header
}

/// Result of a logout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogoutOutcome {
    /// 0: the session is closed.
    Closed,
    /// 1: the target does not know the connection, which is gone already.
    ConnectionNotFound,
    /// 2: the target does not support the request (recovery of a connection).
    Unsupported,
    /// 3: cleaning up failed.
    CleanupFailed,
    /// Not a number of the standard.
    Other(u8),
}

/// A Logout Response (RFC 7143, 11.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogoutResponse {
    /// Result of the logout.
    pub outcome: LogoutOutcome,
    /// Time to wait before the next login, in seconds, if the session was not closed.
    pub time2wait: u16,
    /// Time for which the target keeps commands in flight, in seconds.
    pub time2retain: u16,
}

/// Parses a Logout Response.
pub fn parse_logout_response(header: &[u8; HEADER_BYTES]) -> Result<LogoutResponse, PduError> {
    want(header, Opcode::LogoutResponse)?;
    let outcome = match header[2] {
        0 => LogoutOutcome::Closed,
        1 => LogoutOutcome::ConnectionNotFound,
        2 => LogoutOutcome::Unsupported,
        3 => LogoutOutcome::CleanupFailed,
        other => LogoutOutcome::Other(other),
    };
    Ok(LogoutResponse { outcome, time2wait: be16(header, 40), time2retain: be16(header, 42) })
}

/// A message that a target sends without being asked (RFC 7143, 11.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// 0: a SCSI event.
    Scsi {
        /// Additional sense code and qualifier; `None` when the sense data is too short or of an
        /// unknown format.
        sense: Option<(u8, u8)>,
    },
    /// 1: the target asks for a logout within this time.
    RequestLogout {
        /// Time limit in seconds.
        within_s: u16,
    },
    /// 2: the target drops this connection.
    DropConnection {
        /// Number of the connection; ours has only 0.
        connection: u16,
        /// Time to wait before the next login, in seconds.
        wait_s: u16,
        /// Time for which the target keeps commands in flight, in seconds.
        retain_s: u16,
    },
    /// 3: the target drops all connections of the session.
    DropSession {
        /// Time to wait before the next login, in seconds.
        wait_s: u16,
        /// Time for which the target keeps commands in flight, in seconds.
        retain_s: u16,
    },
    /// 4: the target wants to negotiate again within this time. We do not; a new login has the same
    /// effect.
    Renegotiate {
        /// Time limit in seconds.
        within_s: u16,
    },
    /// 255, or a number that the standard does not have.
    Other {
        /// The event's number.
        event: u8,
        /// The vendor's code.
        vendor_code: u8,
    },
}

impl AsyncEvent {
    /// Returns `true` if the list of LUNs has changed (sense 3F/0E, REPORTED LUNS DATA HAS
    /// CHANGED).
    pub fn luns_changed(&self) -> bool {
        matches!(self, Self::Scsi { sense: Some((0x3f, 0x0e)) })
    }
}

/// Parses an Asynchronous Message; `None` for another PDU.
pub fn parse_async(header: &[u8; HEADER_BYTES], data: &[u8]) -> Option<AsyncEvent> {
    if opcode(header) != Opcode::Async {
        return None;
    }
    let (first, wait_s, retain_s) = (be16(header, 38), be16(header, 40), be16(header, 42));
    Some(match header[36] {
        0 => AsyncEvent::Scsi { sense: sense(data) },
        1 => AsyncEvent::RequestLogout { within_s: retain_s },
        2 => AsyncEvent::DropConnection { connection: first, wait_s, retain_s },
        3 => AsyncEvent::DropSession { wait_s, retain_s },
        4 => AsyncEvent::Renegotiate { within_s: retain_s },
        event => AsyncEvent::Other { event, vendor_code: header[37] },
    })
}

/// Reads code and qualifier from the sense data behind its 16-bit length: fixed format 70h/71h,
/// descriptor format 72h/73h (SPC-4, 4.5). `None` for anything else.
fn sense(data: &[u8]) -> Option<(u8, u8)> {
    let (length, rest) = data.split_first_chunk::<2>()?;
    let sense = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    let at = match sense.first()? & 0x7f {
        0x70 | 0x71 => 12,
        0x72 | 0x73 => 2,
        _ => return None,
    };
    Some((*sense.get(at)?, *sense.get(at + 1)?))
}

fn want(header: &[u8; HEADER_BYTES], want: Opcode) -> Result<(), PduError> {
    let got = opcode(header);
    if got == want { Ok(()) } else { Err(PduError::Opcode { want, got }) }
}

fn be16(header: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

fn be32(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
