//! Requests of NETLINK_ISCSI and their answers as bytes. Pure: no socket.
//!
//! A message is a `struct nlmsghdr` (16 bytes) and a `struct iscsi_uevent` (56 bytes: type 0,
//! iferror 4, transport handle 8, union u 16, union r 40), then a payload. Numbers are in the
//! machine's byte order. Every field has a fixed width and the union is aligned to 8, so all
//! architectures share the offsets (`include/scsi/iscsi_if.h`, 6.1).
//!
//! What must never happen here: a request whose length differs from its contents (the kernel drops
//! it without a word); an answer of another request that is taken for this one's.

use nix::errno::Errno;

use super::{HEADER_BYTES, IscsiOp, IscsiParam, LOGIN_DATA_BYTES_MAX, StopMode};

/// Bytes of `struct nlmsghdr`.
pub(super) const NLMSG_BYTES: usize = 16;

/// Bytes of `struct iscsi_uevent`.
pub(super) const EVENT_BYTES: usize = 56;

/// Offset of a message's payload.
pub(super) const PAYLOAD: usize = NLMSG_BYTES + EVENT_BYTES;

/// `nlmsg_type`.
pub(super) const AT_TYPE: usize = 4;

/// Offsets of the event's fields in a message.
pub(super) const AT_EVENT: usize = NLMSG_BYTES;
const AT_IFERROR: usize = NLMSG_BYTES + 4;
const AT_HANDLE: usize = NLMSG_BYTES + 8;
const AT_ASKED: usize = NLMSG_BYTES + 16;
pub(super) const AT_ANSWERED: usize = NLMSG_BYTES + 40;

/// Maximum bytes of a parameter's value with its NUL (the kernel's page).
const PARAM_BYTES_MAX: usize = 4096;

/// `ISCSI_KEVENT_IF_ERROR`: the type of an answer that is an error.
const IF_ERROR: u32 = 103;

/// First CmdSN of a session.
const INITIAL_CMDSN: u32 = 1;

/// Number of our sessions' only connection.
const CID: u32 = 0;

/// Returns the number of a request (`enum iscsi_uevent_e`, base 10).
fn number(op: IscsiOp) -> u16 {
    match op {
        // Never sent. 0 is no request: the kernel would answer ENOSYS.
        IscsiOp::Open => 0,
        IscsiOp::CreateSession => 11,
        IscsiOp::CreateConnection => 13,
        IscsiOp::DestroyConnection => 14,
        IscsiOp::BindConnection => 15,
        IscsiOp::SetParam(_) => 16,
        IscsiOp::StartConnection => 17,
        IscsiOp::StopConnection => 18,
        IscsiOp::SendPdu => 19,
        IscsiOp::UnbindSession => 27,
        IscsiOp::DestroySession => 43,
    }
}

/// One request, ready to send except for the transport's handle.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) op: IscsiOp,
    pub(super) sid: Option<u32>,
    bytes: Vec<u8>,
}

impl Request {
    /// Makes a request with an empty union.
    fn new(op: IscsiOp, sid: Option<u32>, payload: &[&[u8]]) -> Self {
        let mut bytes = vec![0; PAYLOAD];
        for part in payload {
            bytes.extend_from_slice(part);
        }
        let mut request = Self { op, sid, bytes };
        // The payloads are bounded (4 KiB, 8 KiB + 48), so the length fits.
        let length = u32::try_from(request.bytes.len()).unwrap_or(u32::MAX);
        request.put(0, &length.to_ne_bytes());
        request.put(AT_TYPE, &number(op).to_ne_bytes());
        request.put(AT_EVENT, &u32::from(number(op)).to_ne_bytes());
        request
    }

    /// Makes a request about a session: `sid` comes first in the union of all of them.
    fn of(op: IscsiOp, sid: u32, payload: &[&[u8]]) -> Self {
        let mut request = Self::new(op, Some(sid), payload);
        request.asked_u32(0, sid);
        request
    }

    /// Makes a request about a session's connection 0.
    fn of_connection(op: IscsiOp, sid: u32, payload: &[&[u8]]) -> Self {
        let mut request = Self::of(op, sid, payload);
        request.asked_u32(4, CID);
        request
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        for (slot, byte) in self.bytes.iter_mut().skip(at).zip(value) {
            *slot = *byte;
        }
    }

    /// Writes a field of the union `u`, `at` bytes from its start.
    fn asked_u32(&mut self, at: usize, value: u32) {
        self.put(AT_ASKED + at, &value.to_ne_bytes());
    }

    pub(super) fn create_session(commands_max: u16, queue_depth: u16) -> Self {
        let mut request = Self::new(IscsiOp::CreateSession, None, &[]);
        request.asked_u32(0, INITIAL_CMDSN);
        request.put(AT_ASKED + 4, &commands_max.to_ne_bytes());
        request.put(AT_ASKED + 6, &queue_depth.to_ne_bytes());
        request
    }

    pub(super) fn create_connection(sid: u32) -> Self {
        Self::of_connection(IscsiOp::CreateConnection, sid, &[])
    }

    /// Makes BIND_CONN. `descriptor` is a number of the calling process's table: the kernel looks
    /// it up while it handles the request.
    pub(super) fn bind_connection(sid: u32, descriptor: u32) -> Self {
        let mut request = Self::of_connection(IscsiOp::BindConnection, sid, &[]);
        request.put(AT_ASKED + 8, &u64::from(descriptor).to_ne_bytes());
        request.asked_u32(16, 1);
        request
    }

    /// Makes SET_PARAM. EINVAL for a value with a NUL or one that is too long.
    pub(super) fn set_param(sid: u32, param: IscsiParam, value: &str) -> Result<Self, Errno> {
        let length = value.len() + 1;
        if value.contains('\0') || length > PARAM_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let mut request = Self::of_connection(IscsiOp::SetParam(param), sid, &[value.as_bytes(), b"\0"]);
        request.asked_u32(8, param as u32);
        request.asked_u32(12, u32::try_from(length).map_err(|_| Errno::EINVAL)?);
        Ok(request)
    }

    /// Makes SEND_PDU. EINVAL for more data than the kernel takes.
    pub(super) fn send_pdu(sid: u32, header: &[u8; HEADER_BYTES], data: &[u8]) -> Result<Self, Errno> {
        if data.len() > LOGIN_DATA_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let size = |bytes: usize| u32::try_from(bytes).map_err(|_| Errno::EINVAL);
        let mut request = Self::of_connection(IscsiOp::SendPdu, sid, &[header, data]);
        request.asked_u32(8, size(HEADER_BYTES)?);
        request.asked_u32(12, size(data.len())?);
        Ok(request)
    }

    pub(super) fn start_connection(sid: u32) -> Self {
        Self::of_connection(IscsiOp::StartConnection, sid, &[])
    }

    pub(super) fn stop_connection(sid: u32, mode: StopMode) -> Self {
        let mut request = Self::of_connection(IscsiOp::StopConnection, sid, &[]);
        // Behind sid and cid is a u64 connection handle, which the kernel ignores.
        request.asked_u32(
            16,
            match mode {
                StopMode::Terminate => 1,
                StopMode::Recover => 3,
            },
        );
        request
    }

    pub(super) fn destroy_connection(sid: u32) -> Self {
        Self::of_connection(IscsiOp::DestroyConnection, sid, &[])
    }

    pub(super) fn unbind_session(sid: u32) -> Self {
        Self::of(IscsiOp::UnbindSession, sid, &[])
    }

    pub(super) fn destroy_session(sid: u32) -> Self {
        Self::of(IscsiOp::DestroySession, sid, &[])
    }

    /// Returns the whole message, for the transport with this handle.
    pub(super) fn message(&mut self, handle: u64) -> &[u8] {
        self.put(AT_HANDLE, &handle.to_ne_bytes());
        &self.bytes
    }

    /// Reads a datagram as an answer to this request, as it was sent last.
    ///
    /// The kernel's answers carry neither a sequence number nor ours: they are the request's event
    /// as we sent it, with the error or the result filled in. So an answer is this request's only
    /// if the type, the transport handle and the whole union u are as sent.
    pub(super) fn answer(&self, datagram: &[u8]) -> Answer {
        let Some(message) = whole(datagram) else { return Answer::Foreign };
        let same = |from: usize, to: usize| matches!((message.get(from..to), self.bytes.get(from..to)), (Some(got), Some(sent)) if got == sent);
        if !same(AT_TYPE, AT_TYPE + 2) || !same(AT_HANDLE, AT_ANSWERED) {
            return Answer::Foreign;
        }
        let field = |at| u32_at(message, at).unwrap_or_default();
        if field(AT_EVENT) == IF_ERROR {
            return Answer::Refused(errno_of(field(AT_IFERROR)));
        }
        if field(AT_EVENT) != u32::from(number(self.op)) {
            return Answer::Foreign;
        }
        let transport =
            matches!(self.op, IscsiOp::BindConnection | IscsiOp::StartConnection | IscsiOp::SendPdu);
        match field(AT_ANSWERED) {
            0 => Answer::Done([0, field(AT_ANSWERED + 4)]),
            code if transport => Answer::Transport(errno_of(code)),
            first => Answer::Done([first, field(AT_ANSWERED + 4)]),
        }
    }
}

/// Meaning of a datagram for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The datagram answers another request, or none.
    Foreign,
    /// The request was done; the first two numbers of the union r.
    Done([u32; 2]),
    /// The interface refused the request (`iferror`).
    Refused(Errno),
    /// The transport refused the request (`retcode` of BIND_CONN, START_CONN and SEND_PDU).
    Transport(Errno),
}

/// Cuts the message at the start of a datagram to its own length; `None` when it is shorter than an
/// event or incomplete.
pub(super) fn whole(datagram: &[u8]) -> Option<&[u8]> {
    let length = usize::try_from(u32_at(datagram, 0)?).ok()?;
    datagram.get(..length).filter(|message| message.len() >= PAYLOAD)
}

/// Reads a number at an offset, in the machine's byte order.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    field.try_into().ok().map(u32::from_ne_bytes)
}

/// Decodes an error number as the kernel returns it: negative. Any other number that is no success
/// becomes EIO.
fn errno_of(code: u32) -> Errno {
    match code.cast_signed().checked_neg() {
        Some(number) if number > 0 => Errno::from_raw(number),
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HANDLE: u64 = 0xffff_ffff_c0a1_b2c0;

    fn u16_at(bytes: &[u8], at: usize) -> u16 {
        u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// Returns every kind of request, with its number.
    fn every() -> Vec<(u16, Request)> {
        vec![
            (11, Request::create_session(128, 32)),
            (13, Request::create_connection(7)),
            (14, Request::destroy_connection(7)),
            (15, Request::bind_connection(7, 9)),
            (16, Request::set_param(7, IscsiParam::TargetName, "iqn.x:y").unwrap()),
            (17, Request::start_connection(7)),
            (18, Request::stop_connection(7, StopMode::Recover)),
            (19, Request::send_pdu(7, &[0x43; 48], b"a=b\0").unwrap()),
            (27, Request::unbind_session(7)),
            (43, Request::destroy_session(7)),
        ]
    }

    /// Builds the answer as the kernel does: the request's event without its payload.
    fn echo(request: &Request, kind: Option<u32>, iferror: i32, answered: [u32; 2]) -> Vec<u8> {
        let mut bytes = request.bytes[..PAYLOAD].to_vec();
        bytes[..4].copy_from_slice(&72_u32.to_ne_bytes());
        if let Some(kind) = kind {
            bytes[16..20].copy_from_slice(&kind.to_ne_bytes());
        }
        bytes[20..24].copy_from_slice(&iferror.to_ne_bytes());
        bytes[56..60].copy_from_slice(&answered[0].to_ne_bytes());
        bytes[60..64].copy_from_slice(&answered[1].to_ne_bytes());
        bytes
    }

    #[test]
    fn every_request_says_its_length_type_and_handle() {
        for (number, mut request) in every() {
            let bytes = request.message(HANDLE);
            assert_eq!(u32_at(bytes, 0), u32::try_from(bytes.len()).ok());
            assert_eq!((u16_at(bytes, 4), u32_at(bytes, 16)), (number, Some(u32::from(number))));
            assert_eq!(bytes[6..16], [0; 10], "flags, sequence and port id are the kernel's to ignore");
            assert_eq!((u32_at(bytes, 20), u64_at(bytes, 24)), (Some(0), HANDLE));
            assert_eq!(bytes[56..72], [0; 16], "the answer's place is empty");
        }
    }

    #[test]
    fn no_request_is_one_that_blocks_the_kernel() {
        for (number, _) in every() {
            assert!(![12, 20].contains(&number), "DESTROY_SESSION and GET_STATS are never sent");
        }
    }

    #[test]
    fn the_fields_stand_where_the_kernel_reads_them() {
        // Offsets in the event, so 16 less than in the message.
        let create = Request::create_session(128, 32);
        assert_eq!(
            (u32_at(&create.bytes, 32), u16_at(&create.bytes, 36), u16_at(&create.bytes, 38)),
            (Some(1), 128, 32)
        );
        for (_, request) in every().into_iter().skip(1) {
            assert_eq!((u32_at(&request.bytes, 32), u32_at(&request.bytes, 36)), (Some(7), Some(0)));
        }
        let bind = Request::bind_connection(7, 9);
        assert_eq!((u64_at(&bind.bytes, 40), u32_at(&bind.bytes, 48)), (9, Some(1)));
        let param = Request::set_param(7, IscsiParam::IfaceName, "mooring").unwrap();
        assert_eq!((u32_at(&param.bytes, 40), u32_at(&param.bytes, 44)), (Some(32), Some(8)));
        assert_eq!(&param.bytes[72..], b"mooring\0");
        let send = Request::send_pdu(7, &[0x43; 48], b"a=b\0").unwrap();
        assert_eq!((u32_at(&send.bytes, 40), u32_at(&send.bytes, 44)), (Some(48), Some(4)));
        assert_eq!((&send.bytes[72..120], &send.bytes[120..]), (&[0x43; 48][..], &b"a=b\0"[..]));
        for (mode, flag) in [(StopMode::Terminate, 1), (StopMode::Recover, 3)] {
            let stop = Request::stop_connection(7, mode);
            assert_eq!((u64_at(&stop.bytes, 40), u32_at(&stop.bytes, 48)), (0, Some(flag)));
        }
    }

    #[test]
    fn a_value_that_the_kernel_would_cut_is_refused() {
        let set = |value: &str| Request::set_param(1, IscsiParam::TargetName, value).map(|_| ());
        assert_eq!(set("a\0b"), Err(Errno::EINVAL));
        assert_eq!(set(&"x".repeat(4096)), Err(Errno::EINVAL));
        assert_eq!((set(&"x".repeat(4095)), set("")), (Ok(()), Ok(())));
        let send = |bytes: usize| Request::send_pdu(1, &[0; 48], &vec![0; bytes]).map(|_| ());
        assert_eq!((send(8192), send(8193)), (Ok(()), Err(Errno::EINVAL)));
    }

    #[test]
    fn an_answer_is_done_refused_or_refused_by_the_transport() {
        for (number, request) in every() {
            assert_eq!(request.answer(&echo(&request, None, 0, [0, 3])), Answer::Done([0, 3]));
            assert_eq!(
                request.answer(&echo(&request, Some(103), -22, [0, 0])),
                Answer::Refused(Errno::EINVAL)
            );
            // -107 as a session number is one; as the transport's result it is ENOTCONN.
            let code = (-107_i32).cast_unsigned();
            let expected = match number {
                15 | 17 | 19 => Answer::Transport(Errno::ENOTCONN),
                _ => Answer::Done([code, 0]),
            };
            assert_eq!(request.answer(&echo(&request, None, 0, [code, 0])), expected);
        }
        let start = Request::start_connection(7);
        assert_eq!(start.answer(&echo(&start, None, 0, [5, 0])), Answer::Transport(Errno::EIO));
        assert_eq!(start.answer(&echo(&start, Some(103), 0, [0, 0])), Answer::Refused(Errno::EIO));
        assert_eq!(start.answer(&echo(&start, Some(103), i32::MIN, [0, 0])), Answer::Refused(Errno::EIO));
    }

    #[test]
    fn no_request_takes_the_answer_of_another() {
        let others = [
            Request::create_session(128, 64),
            Request::create_connection(8),
            Request::bind_connection(7, 10),
            Request::set_param(7, IscsiParam::InitiatorName, "iqn.x:y").unwrap(),
            Request::stop_connection(7, StopMode::Terminate),
            Request::send_pdu(7, &[0x43; 48], b"a=bc\0").unwrap(),
        ];
        let all: Vec<_> = every().into_iter().map(|(_, request)| request).chain(others).collect();
        for (index, asked) in all.iter().enumerate() {
            for (other, answered) in all.iter().enumerate() {
                for kind in [None, Some(103)] {
                    let foreign = asked.answer(&echo(answered, kind, -22, [0, 0])) == Answer::Foreign;
                    assert_eq!(foreign, index != other, "{:?} and {:?}", asked.op, answered.op);
                }
            }
        }
        // The same request to a transport that was loaded anew is another one.
        let mut request = Request::start_connection(7);
        let old = echo(&request, None, 0, [0, 0]);
        request.message(HANDLE);
        assert_eq!(request.answer(&old), Answer::Foreign);
    }

    #[test]
    fn a_cut_answer_is_none() {
        let request = Request::start_connection(7);
        let answer = echo(&request, None, 0, [0, 0]);
        for length in 0..answer.len() {
            assert_eq!(request.answer(&answer[..length]), Answer::Foreign);
        }
        let mut long = answer.clone();
        long[..4].copy_from_slice(&73_u32.to_ne_bytes());
        assert_eq!(request.answer(&long), Answer::Foreign);
        let mut short = answer;
        short[..4].copy_from_slice(&71_u32.to_ne_bytes());
        assert_eq!(request.answer(&short), Answer::Foreign);
    }

    proptest! {
        #[test]
        fn no_bytes_make_an_answer_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in any::<u32>()) {
            let mut framed = bytes.clone();
            for (slot, byte) in framed.iter_mut().zip(length.to_ne_bytes()) {
                *slot = byte;
            }
            for (_, request) in every() {
                prop_assert_eq!(request.answer(&bytes), Answer::Foreign);
                prop_assert_eq!(request.answer(&framed), Answer::Foreign);
            }
        }

        #[test]
        fn no_noise_in_an_answer_makes_it_panic(at in 0_usize..72, byte in any::<u8>()) {
            for (_, request) in every() {
                let mut answer = echo(&request, None, 0, [0, 0]);
                answer[at] = byte;
                let _ = request.answer(&answer);
            }
        }
    }
}
