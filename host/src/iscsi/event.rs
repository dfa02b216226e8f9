//! Events of NETLINK_ISCSI, multicast group 1: the parser and the stream.
//!
//! What must never happen here: a malformed message that ends the stream; lost events that nobody
//! is told of.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use super::message::{AT_ANSWERED, AT_EVENT, AT_TYPE, PAYLOAD, u32_at, whole};
use super::{
    HEADER_BYTES, IscsiError, IscsiEvent, IscsiEvents, IscsiOp, IscsiOpenError, KernelSession,
    LOGIN_DATA_BYTES_MAX,
};
use crate::netlink::{EVENT_BUFFER_BYTES, MESSAGE_BYTES_MAX, Netlink};

/// The multicast group of all events (`ISCSI_NL_GRP_ISCSID` 1), as a bit mask.
const GROUP: u32 = 1;

/// Numbers of the events (`enum iscsi_kevent_e`, base 100).
const RECV_PDU: u32 = 101;
const CONN_ERROR: u32 = 102;
const DESTROY_SESSION: u32 = 104;
const UNBIND_SESSION: u32 = 105;
const CREATE_SESSION: u32 = 106;

/// Parses the event in a datagram. `None` for one that is malformed, cut short, an answer to a
/// request, or of a kind that only offload adapters send (107 to 111).
pub fn parse_event(datagram: &[u8]) -> Option<IscsiEvent> {
    let message = whole(datagram)?;
    // Events have type 0; answers have their request's.
    if message.get(AT_TYPE..AT_TYPE + 2)? != [0, 0] {
        return None;
    }
    let first = u32_at(message, AT_ANSWERED)?;
    let second = u32_at(message, AT_ANSWERED + 4)?;
    match u32_at(message, AT_EVENT)? {
        RECV_PDU => parse_pdu(first, second, message),
        CONN_ERROR => Some(IscsiEvent::ConnectionError {
            sid: first,
            cid: second,
            error: u32_at(message, AT_ANSWERED + 8)?,
        }),
        CREATE_SESSION => Some(IscsiEvent::Created(KernelSession { sid: first, host: second })),
        UNBIND_SESSION => Some(IscsiEvent::Unbound(KernelSession { sid: first, host: second })),
        // Here alone the host comes before the session.
        DESTROY_SESSION => Some(IscsiEvent::Destroyed(KernelSession { sid: second, host: first })),
        _ => None,
    }
}

/// Parses a PDU. The message's own length is rounded up, so the data's length is read from the
/// PDU's header (DataSegmentLength, 24 bits).
fn parse_pdu(sid: u32, cid: u32, message: &[u8]) -> Option<IscsiEvent> {
    let (header, rest) = message.get(PAYLOAD..)?.split_first_chunk::<HEADER_BYTES>()?;
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]);
    let length = usize::try_from(length).ok().filter(|length| *length <= LOGIN_DATA_BYTES_MAX)?;
    Some(IscsiEvent::Pdu { sid, cid, header: *header, data: rest.get(..length)?.to_vec() })
}

/// Events of all iSCSI sessions of this machine, also foreign ones.
#[derive(Debug)]
pub struct KernelIscsiEvents {
    socket: Netlink,
    buffer: Vec<u8>,
}

impl KernelIscsiEvents {
    /// Subscribes; from here on no event is missed without an [`IscsiEvent::Overrun`]. Needs
    /// CAP_NET_ADMIN, and the initial network namespace: elsewhere it hears nothing.
    pub fn open() -> Result<Self, IscsiOpenError> {
        let refused = |what| move |errno| IscsiOpenError::Refused { what, errno };
        let socket =
            Netlink::open(SockProtocol::NetlinkISCSI, 0, GROUP).map_err(IscsiOpenError::of_event_socket)?;
        socket
            .widen(EVENT_BUFFER_BYTES)
            .map_err(refused("enlarge the receive buffer of the events socket"))?;
        Ok(Self { socket, buffer: vec![0; MESSAGE_BYTES_MAX] })
    }
}

impl IscsiEvents for KernelIscsiEvents {
    fn next(&mut self, wait: Duration) -> Result<Option<IscsiEvent>, IscsiError> {
        let begun = Instant::now();
        loop {
            let left = wait.saturating_sub(begun.elapsed());
            match self.socket.receive(&mut self.buffer, left) {
                Ok(None) => return Ok(None),
                Ok(Some(datagram)) => {
                    if let Some(event) = parse_event(datagram) {
                        return Ok(Some(event));
                    }
                    tracing::debug!(bytes = datagram.len(), "an iSCSI event of no interest, or malformed");
                }
                Err(Errno::ENOBUFS) => return Ok(Some(IscsiEvent::Overrun)),
                Err(errno) => return Err(IscsiError { op: IscsiOp::Open, sid: None, errno }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds an event as the kernel lays it out; the union r follows at 40, the payload at 56,
    /// rounded up to 4.
    fn event(number: u32, answered: &[u32], payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xa5; 72];
        bytes[4..16].fill(0);
        bytes[16..20].copy_from_slice(&number.to_ne_bytes());
        for (index, value) in answered.iter().enumerate() {
            bytes[56 + 4 * index..60 + 4 * index].copy_from_slice(&value.to_ne_bytes());
        }
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    fn pdu(data_length: u32, data: &[u8]) -> Vec<u8> {
        let mut header = [0_u8; 48];
        header[0] = 0x23;
        header[5..8].copy_from_slice(&data_length.to_be_bytes()[1..]);
        [&header[..], data].concat()
    }

    #[test]
    fn every_event_has_its_own_order_of_fields() {
        let session = KernelSession { sid: 3, host: 8 };
        assert_eq!(parse_event(&event(106, &[3, 8], &[])), Some(IscsiEvent::Created(session)));
        assert_eq!(parse_event(&event(105, &[3, 8], &[])), Some(IscsiEvent::Unbound(session)));
        assert_eq!(parse_event(&event(104, &[8, 3], &[])), Some(IscsiEvent::Destroyed(session)));
        let broken = IscsiEvent::ConnectionError { sid: 3, cid: 0, error: 1020 };
        assert_eq!(parse_event(&event(102, &[3, 0, 1020], &[])), Some(broken));
        for offload in [100, 103, 107, 108, 109, 110, 111, 11] {
            assert_eq!(parse_event(&event(offload, &[3, 8, 0], &[])), None);
        }
    }

    #[test]
    fn a_pdus_data_ends_where_its_header_says() {
        let bytes = event(101, &[3, 0], &pdu(5, b"a=bc\0"));
        assert_eq!(bytes.len(), 72 + 48 + 8, "padded");
        let Some(IscsiEvent::Pdu { sid: 3, cid: 0, header, data }) = parse_event(&bytes) else { panic!() };
        assert_eq!((header[0], data.as_slice()), (0x23, &b"a=bc\0"[..]));
        let none = event(101, &[3, 0], &pdu(0, &[]));
        assert!(matches!(parse_event(&none), Some(IscsiEvent::Pdu { data, .. }) if data.is_empty()));
        let full = event(101, &[3, 0], &pdu(8192, &[7; 8192]));
        assert!(matches!(parse_event(&full), Some(IscsiEvent::Pdu { data, .. }) if data.len() == 8192));
        assert_eq!(parse_event(&event(101, &[3, 0], &pdu(8193, &[7; 8193]))), None);
        assert_eq!(parse_event(&event(101, &[3, 0], &pdu(9, b"a=bc\0"))), None, "less data than announced");
        assert_eq!(parse_event(&event(101, &[3, 0], &[0; 44])), None, "less than a header");
    }

    #[test]
    fn what_is_cut_or_longer_than_it_says_is_none() {
        let whole = event(101, &[3, 0], &pdu(4, b"a=b\0"));
        for length in 0..whole.len() {
            assert_eq!(parse_event(&whole[..length]), None);
        }
        let mut liar = whole.clone();
        liar[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(parse_event(&liar), None);
        // A length that ends inside of the data hides it.
        liar[..4].copy_from_slice(&122_u32.to_ne_bytes());
        assert_eq!(parse_event(&liar), None);
        let mut answer = whole;
        answer[4..6].copy_from_slice(&19_u16.to_ne_bytes());
        assert_eq!(parse_event(&answer), None, "an answer is no event");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_event(&bytes);
        }

        #[test]
        fn no_payload_of_a_known_event_panics(
            number in 100_u32..112,
            answered in proptest::collection::vec(any::<u32>(), 4),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0_usize..400,
        ) {
            let bytes = event(number, &answered, &payload);
            if let Some(IscsiEvent::Pdu { data, .. }) = parse_event(&bytes) {
                prop_assert!(data.len() + 48 <= payload.len().next_multiple_of(4));
            }
            prop_assert!(cut >= bytes.len() || parse_event(&bytes[..cut]).is_none());
        }
    }
}
